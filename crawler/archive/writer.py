"""Writes WARC files and recovers them after a crash.

    NAME.warc.gz        finished, with its sorted index NAME.cdxj
    NAME.warc.gz.open   being written, locked (flock); unsorted index NAME.cdxj.open

`add` returns a capture's place; after `flush` it survives a kill, after `sync` a power loss. Raises OSError; the next
calls write the rest, nothing twice.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from crawler.archive import warc
from crawler.archive.reader import OPEN, SUFFIX, entry_of, whole_members
from crawler.disk import make_folder, sync_folders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

logger = logging.getLogger("archive")

INDEX_SUFFIX: Final = ".cdxj"
_APPEND: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND


class Place(NamedTuple):
    """A capture's place, for the page's record."""

    file: str
    offset: int
    length: int


class Writer:
    """Writes one process's files; finishes each above `most_bytes` or after `most_seconds`."""

    def __init__(
        self,
        folder: Path,
        name: str,
        most_bytes: int,
        most_seconds: float,
        about: Callable[[], dict[str, str]],
    ) -> None:
        self._folder = folder
        self._name = name
        self._most_bytes = most_bytes
        self._most_seconds = most_seconds
        self._about = about
        self._count = 0
        self._file: _File | None = None  # the current one
        self._full: list[_File] = []  # complete, being finished
        self._unsynced: list[_File] = []  # written by the last `flush`
        self._syncing = threading.Lock()
        self._finisher: ThreadPoolExecutor | None = None
        self._warned = False

    @property
    def waiting(self) -> int:
        """Bytes that may not be on disk."""
        return sum(file.waiting for file in self._files())

    def add(self, exchange: warc.Exchange, mime: str, status: int, earlier: warc.Earlier | None) -> Place:
        """Buffer one fetch; without its body if `earlier` has it."""
        if self._file is not None and self._file.size >= self._most_bytes:
            self._seal()
        if self._file is None:
            self._count += 1
            name = f"{self._name}-{self._count:05}"
            self._file = _File(self._folder, name, self._about())
        return self._file.add(exchange, mime, status, earlier)

    def flush(self) -> None:
        """Write all buffers. Raises OSError; call again."""
        if self._file is not None and self._file.age >= self._most_seconds:
            self._seal()
        for file in self._files():
            file.flush()
        self._unsynced = [file for file in self._files() if not file.settled]
        self._finish()

    def sync(self) -> None:
        """Wait for the disk; may run in a thread during `add`. Raises OSError: call `flush` again."""
        with self._syncing:
            for file in self._unsynced:
                file.sync()

    def close(self) -> None:
        """Finish all files; `recover` handles failures."""
        try:
            self._seal()
            self.flush()
            self.sync()
            self._finish()
        except OSError as error:
            logger.warning("%d bytes could not be written to the archive: %s", self.waiting, error)
        if self._finisher is not None:
            self._finisher.shutdown(wait=True)
        for file in self._files():
            self._let_go(file)

    @staticmethod
    def _let_go(file: _File) -> None:
        error = file.finishing.exception() if file.finishing is not None else None
        if error is not None:
            logger.warning("%s could not be finished: %s", file.path.name, error)
        file.abandon()

    def _files(self) -> Iterator[_File]:
        yield from self._full
        if self._file is not None:
            yield self._file

    def _seal(self) -> None:
        if self._file is not None:
            self._full.append(self._file)
            self._file = None

    def _finish(self) -> None:
        """Finish full files in a thread: sorting and fsync are slow."""
        for file in list(self._full):
            if file.finishing is None:
                if file.settled:
                    self._start(file)
            elif file.finishing.done():
                self._look_at(file, file.finishing.exception())

    def _start(self, file: _File) -> None:
        if self._finisher is None:
            self._finisher = ThreadPoolExecutor(1, thread_name_prefix="archive")
        file.finishing = self._finisher.submit(file.finish)

    def _look_at(self, file: _File, error: BaseException | None) -> None:
        if error is None:
            self._full.remove(file)
            self._warned = False
            return
        if not isinstance(error, OSError):
            raise error
        file.finishing = None
        if not self._warned:
            self._warned = True
            logger.warning("%s could not be finished, retrying: %s", file.path.name, error)


class _File:
    """One file: in memory, open, finished."""

    def __init__(self, folder: Path, name: str, about: dict[str, str]) -> None:
        self.path = folder / (name + SUFFIX)
        self.finishing: Future[None] | None = None
        self._index_path = folder / (name + INDEX_SUFFIX)
        self._born = time.monotonic()
        random = os.urandom(10).hex()
        self._random = f"{random[:8]}-{random[8:12]}-4{random[13:16]}-8{random[17:20]}"
        self._count = 0
        info = warc.warcinfo(self._number(), self.path.name, int(time.time() * 1000), about)
        self._records = bytearray(warc.member(info))  # not in the file yet
        self._written = bytearray()  # in the file, perhaps not on disk
        self._lines = bytearray()  # not in the index yet
        self._on_disk = 0  # bytes on disk
        self._torn = False  # bytes after `_on_disk` are undefined
        self._renamed: list[Path] = []  # folders to sync
        self.size = len(self._records)
        self._fd = self._index_fd = -1

    @property
    def waiting(self) -> int:
        """Bytes that may not be on disk."""
        return len(self._records) + len(self._written)

    @property
    def settled(self) -> bool:
        """Whether everything is on disk."""
        return not self.waiting

    @property
    def age(self) -> float:
        """Seconds since creation."""
        return time.monotonic() - self._born

    def add(self, exchange: warc.Exchange, mime: str, status: int, earlier: warc.Earlier | None) -> Place:
        """Buffer one capture."""
        answer, asked = self._number(), self._number()
        if earlier is None:
            record = warc.member(warc.response(exchange, answer, asked))
        else:
            record = warc.member(warc.revisit(exchange, answer, asked, earlier))
            mime = warc.REVISIT_MIME
        place = Place(self.path.name, self.size, len(record))
        entry = warc.Entry(exchange.url, exchange.fetched_at, mime, status, exchange.sha256, *place)
        request = warc.member(warc.request(exchange, asked, answer))
        self._lines += warc.index_line(entry)
        self._records += record
        self._records += request
        self.size += len(record) + len(request)
        return place

    def flush(self) -> None:
        """Write the buffers."""
        if self._torn:
            self._take_back()
        if not self._records and not self._lines:
            return  # may be in `finish`
        if self._fd < 0:
            self._open()
        _drain(self._fd, self._records, self._written)
        _drain(self._index_fd, self._lines, bytearray())

    def sync(self) -> None:
        """Wait until data and file name are on disk."""
        many = len(self._written)
        try:
            os.fdatasync(self._fd)
            sync_folders(*self._renamed)
        except OSError:
            # The kernel drops pages that it failed to write; the next fsync would succeed.
            self._torn = True
            raise
        self._renamed = []
        self._on_disk += many
        del self._written[:many]

    def _take_back(self) -> None:
        """Truncate to the bytes on disk."""
        os.ftruncate(self._fd, self._on_disk)
        self._records[:0] = self._written
        self._written.clear()
        self._torn = False

    def finish(self) -> None:
        """Write the index and rename the file; runs in a thread."""
        opened = _open_name(self._index_path)
        with opened.open("rb") as file:
            _write_index(self._index_path, file.readlines())
        with suppress(FileNotFoundError):  # renamed by an earlier, failed call
            _name(self.path)
        opened.unlink()
        self.abandon()

    def abandon(self) -> None:
        """Close without finishing."""
        for descriptor in (self._fd, self._index_fd):
            if descriptor >= 0:
                os.close(descriptor)
        self._fd = self._index_fd = -1

    def _number(self) -> str:
        """A record ID: random per file, then counted."""
        self._count += 1
        return f"{self._random}-{self._count:012x}"

    def _open(self) -> None:
        # Include folders of an earlier, failed try.
        self._renamed = [*dict.fromkeys((*self._renamed, *make_folder(self.path.parent), self.path.parent))]
        descriptor = _make_locked(_open_name(self.path))
        try:
            # Under the lock: `recover` deletes the index of files that it can lock.
            self._index_fd = os.open(_open_name(self._index_path), _APPEND, 0o644)
        except OSError:
            os.close(descriptor)
            raise
        self._fd = descriptor


def recover(folder: Path) -> list[str]:
    """Finish files of exited processes; returns their names."""
    done = []
    for path in sorted(folder.glob(f"*{SUFFIX}{OPEN}")):
        descriptor = _lock(path)
        if descriptor is None:
            continue
        try:
            _mend(path, descriptor)
            done.append(path.name.removesuffix(OPEN))
        finally:
            os.close(descriptor)
    return done


def finished(folder: Path) -> list[Path]:
    """Finished files, by name."""
    return sorted(folder.glob(f"*{SUFFIX}"))


def being_written(folder: Path) -> list[Path]:
    """Unfinished files, also of exited processes."""
    return sorted(folder.glob(f"*{SUFFIX}{OPEN}"))


def _mend(path: Path, descriptor: int) -> None:
    """Truncate and finish; delete without captures."""
    final = path.with_name(path.name.removesuffix(OPEN))
    index = final.with_name(final.name.removesuffix(SUFFIX) + INDEX_SUFFIX)
    end, lines = 0, list[bytes]()
    for member in whole_members(path):
        end = member.offset + member.length
        entry = entry_of(member, final.name)
        if entry is not None:
            lines.append(warc.index_line(entry))
    with suppress(FileNotFoundError):
        _open_name(index).unlink()
    if not lines:
        path.unlink()
        return
    cut = os.fstat(descriptor).st_size - end
    os.ftruncate(descriptor, end)
    os.fsync(descriptor)
    _write_index(index, lines)
    _name(final)
    logger.info("%s: recovered after a crash, %d bytes truncated", final.name, cut)


def _write_index(path: Path, lines: list[bytes]) -> None:
    """Sorted by bytes; atomic."""
    lines.sort()
    made = path.with_name(f"{path.name}.new")
    with made.open("wb") as file:
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())
    made.rename(path)
    sync_folders(path.parent)


def _name(path: Path) -> None:
    """The last step, after the index."""
    _open_name(path).rename(path)
    sync_folders(path.parent)


def _open_name(path: Path) -> Path:
    return path.with_name(path.name + OPEN)


def _drain(descriptor: int, waiting: bytearray, taken: bytearray) -> None:
    """Move written bytes to `taken`, also on errors."""
    while waiting:
        written = os.write(descriptor, waiting)
        taken += waiting[:written]
        del waiting[:written]


def _make_locked(path: Path) -> int:
    """Raises BlockingIOError if another process recovers the file."""
    descriptor = os.open(path, _APPEND, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_at(path, descriptor):
            raise BlockingIOError(f"{path} was removed by another process")
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _lock(path: Path) -> int | None:
    """None if it is locked or gone."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    # It may have been finished or recovered, and renamed.
    if not _is_at(path, descriptor):
        os.close(descriptor)
        return None
    return descriptor


def _is_at(path: Path, descriptor: int) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    return False
