"""The archive's files: written here, mended after a crash, and found again.

    NAME.warc.gz        a finished file; beside it NAME.cdxj, its sorted index
    NAME.warc.gz.open   still being written; its owner holds a lock on it (flock), which the kernel lets go of
                        however a process ends. NAME.cdxj.open beside it: index lines in order of arrival

NAME is agent, run and a counter. A capture (an answer and its request) is made in memory, where its place is known at
once. After `flush` it is in the file, and no kill can take it away; after `sync` it is on the disk, with the file's
name, and no power cut can. `sync` waits for the disk, so it runs in a thread; `add` goes on meanwhile. A file whose
owner is gone is cut behind its last whole member, gets its index and its name.

Raises OSError where the disk does; what did not reach the disk is written again by the next calls, nothing twice.
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
    """Where a capture is: what a page's record says of it."""

    file: str
    offset: int
    length: int


class Writer:
    """One process's way into the archive. `about` gives the fields of each file's first record.

    A file is finished above `most_bytes` or after `most_seconds`, whichever is first.
    """

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
        self._file: _File | None = None  # the one that is added to
        self._full: list[_File] = []  # nothing more is added to these
        self._unsynced: list[_File] = []  # written by the last `flush`
        self._syncing = threading.Lock()
        self._finisher: ThreadPoolExecutor | None = None
        self._told = False

    @property
    def waiting(self) -> int:
        """Bytes in memory that are not on the disk for certain."""
        return sum(file.waiting for file in self._files())

    def add(self, exchange: warc.Exchange, mime: str, status: int, earlier: warc.Earlier | None) -> Place:
        """Take in one fetch; with `earlier` its body is not kept again. Where it will be: not before `flush`."""
        if self._file is not None and self._file.size >= self._most_bytes:
            self._seal()
        if self._file is None:
            self._count += 1
            name = f"{self._name}-{self._count:05}"
            self._file = _File(self._folder, name, self._about())
        return self._file.add(exchange, mime, status, earlier)

    def flush(self) -> None:
        """Write all that was added; OSError where that cannot be: call again."""
        if self._file is not None and self._file.age >= self._most_seconds:
            self._seal()
        for file in self._files():
            file.flush()
        self._unsynced = [file for file in self._files() if not file.settled]
        self._finish()

    def sync(self) -> None:
        """Wait until all that `flush` wrote is on the disk; OSError where that cannot be: call `flush` again.

        May run in a thread beside `add`; a second call at a time waits for the first.
        """
        with self._syncing:
            for file in self._unsynced:
                file.sync()

    def close(self) -> None:
        """Write and finish everything; what the disk refuses is left to the next start."""
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
        """Have full files finished in a thread, for that takes long: sorting, and waiting for the disk."""
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
            self._told = False
            return
        if not isinstance(error, OSError):
            raise error
        file.finishing = None
        if not self._told:
            self._told = True
            logger.warning("%s cannot be finished, and is tried again: %s", file.path.name, error)


class _File:
    """One file on its way: in memory, open, finished."""

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
        self._written = bytearray()  # in the file, and not on the disk for certain
        self._lines = bytearray()  # not in the index yet
        self._on_disk = 0  # bytes of the file that are
        self._torn = False  # what the file has behind them is not to be trusted
        self._renamed: list[Path] = []  # folders whose new names are not on the disk yet
        self.size = len(self._records)
        self._fd = self._index_fd = -1

    @property
    def waiting(self) -> int:
        """Bytes that are not on the disk for certain."""
        return len(self._records) + len(self._written)

    @property
    def settled(self) -> bool:
        """Whether all of it is on the disk."""
        return not self.waiting

    @property
    def age(self) -> float:
        """Seconds since it was begun."""
        return time.monotonic() - self._born

    def add(self, exchange: warc.Exchange, mime: str, status: int, earlier: warc.Earlier | None) -> Place:
        """Take in one capture."""
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
        """Bring the file up to what was added."""
        if self._torn:
            self._take_back()
        if not self._records and not self._lines:
            return  # perhaps it is just being finished
        if self._fd < 0:
            self._open()
        _drain(self._fd, self._records, self._written)
        _drain(self._index_fd, self._lines, bytearray())

    def sync(self) -> None:
        """Wait until all that was written is on the disk, and the file's name too."""
        many = len(self._written)
        try:
            os.fdatasync(self._fd)
            sync_folders(*self._renamed)
        except OSError:
            # The kernel drops what it could not write, and the next fsync would say that all is well.
            self._torn = True
            raise
        self._renamed = []
        self._on_disk += many
        del self._written[:many]

    def _take_back(self) -> None:
        """Cut the file behind what is on the disk; the rest is written again."""
        os.ftruncate(self._fd, self._on_disk)
        self._records[:0] = self._written
        self._written.clear()
        self._torn = False

    def finish(self) -> None:
        """Give it its index and its name once it is settled; in a thread of its own, nothing is added any more."""
        opened = _open_name(self._index_path)
        with opened.open("rb") as file:
            _write_index(self._index_path, file.readlines())
        with suppress(FileNotFoundError):  # done by a call that failed behind it
            _name(self.path)
        opened.unlink()
        self.abandon()

    def abandon(self) -> None:
        """Let go of it as it is."""
        for descriptor in (self._fd, self._index_fd):
            if descriptor >= 0:
                os.close(descriptor)
        self._fd = self._index_fd = -1

    def _number(self) -> str:
        """A record's identity: random per file, counted within."""
        self._count += 1
        return f"{self._random}-{self._count:012x}"

    def _open(self) -> None:
        # With what a try before has made, which may have failed behind this.
        self._renamed = [*dict.fromkeys((*self._renamed, *make_folder(self.path.parent), self.path.parent))]
        descriptor = _make_locked(_open_name(self.path))
        try:
            # Under the lock: whoever mends files takes away the index of one that he may lock.
            self._index_fd = os.open(_open_name(self._index_path), _APPEND, 0o644)
        except OSError:
            os.close(descriptor)
            raise
        self._fd = descriptor


def recover(folder: Path) -> list[str]:
    """Finish the files whose owners are gone; their names. Files of living owners are left alone."""
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
    """The archive's finished files, by name."""
    return sorted(folder.glob(f"*{SUFFIX}"))


def being_written(folder: Path) -> list[Path]:
    """Files that some living process still writes, or that nobody has mended yet."""
    return sorted(folder.glob(f"*{SUFFIX}{OPEN}"))


def _mend(path: Path, descriptor: int) -> None:
    """Cut a file behind its last whole member, and finish it; away with it where it holds no capture."""
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
    logger.info("%s was left by a process that is gone: finished, %d bytes cut", final.name, cut)


def _write_index(path: Path, lines: list[bytes]) -> None:
    """All of it or nothing, in the order of bytes."""
    lines.sort()
    made = path.with_name(f"{path.name}.new")
    with made.open("wb") as file:
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())
    made.rename(path)
    sync_folders(path.parent)


def _name(path: Path) -> None:
    """A finished file gets its name: the last step, and never without its index."""
    _open_name(path).rename(path)
    sync_folders(path.parent)


def _open_name(path: Path) -> Path:
    return path.with_name(path.name + OPEN)


def _drain(descriptor: int, waiting: bytearray, taken: bytearray) -> None:
    """Write what waits; what the file has taken goes from `waiting` to `taken`, also where the rest is refused."""
    while waiting:
        written = os.write(descriptor, waiting)
        taken += waiting[:written]
        del waiting[:written]


def _make_locked(path: Path) -> int:
    """A new file, locked. BlockingIOError where another process takes it for a dead one's this very moment."""
    descriptor = os.open(path, _APPEND, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_at(path, descriptor):
            raise BlockingIOError(f"{path} was taken away")
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _lock(path: Path) -> int | None:
    """The file locked and open for mending; None: somebody else's, or gone."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    # Finished or mended meanwhile, it has another name now.
    if not _is_at(path, descriptor):
        os.close(descriptor)
        return None
    return descriptor


def _is_at(path: Path, descriptor: int) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    return False
