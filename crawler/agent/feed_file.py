"""Feeds that continue over several runs and agents of a crawl, without lost or torn items.

Items are written at once, since published pages are not parsed again. Later runs append, also with `-O` or `overwrite`,
and cut a killed agent's torn item. Formats without appending go to a new file. Agents share JSON lines and CSV through
locks; other formats get a file each.
"""

from __future__ import annotations

import csv
import fcntl
import io
import json
import logging
import math
import mmap
import os
import re
import time
from collections.abc import Callable
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple, cast
from urllib.parse import urlparse

from scrapy.exporters import CsvItemExporter, JsonItemExporter, JsonLinesItemExporter, XmlItemExporter
from scrapy.extensions.feedexport import FeedExporter, FileFeedStorage, FTPFeedStorage, StdoutFeedStorage
from scrapy.extensions.postprocessing import GzipPlugin
from scrapy.utils.misc import load_object

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler

logger = logging.getLogger("feeds")

# Set by a supervisor: 1 if the crawl continues, 0 if it begins. An agent without it reads the queue.
FEEDS_GO_ON: Final = "FEEDS_GO_ON"
# Key of a feed's options for this run's state.
_RUN: Final = "run"
# Time an agent may lock the file until its first item and header are written.
_FIRST_WRITE_SECONDS: Final = 2.0
# File times have the resolution of a kernel tick.
_TICK_SECONDS: Final = 0.02
# The longest torn item of a killed agent; a longer tail was not written by us.
MOST_TORN_BYTES: Final = 16_000_000
# A URI that names another file in each run.
_NEW_EACH_RUN = re.compile(r"%\((batch_)?time\)")

# Finds where the last whole item of a file ends; None: unknown.
_End = Callable[["mmap.mmap", dict[str, Any]], int | None]


class _Run(NamedTuple):
    goes_on: bool = False
    end: _End | None = None  # None: this format cannot be appended to
    overwrite: bool = False
    began: float = math.inf  # a file changed since then has items of this crawl


def begin(crawler: Crawler, *, goes_on: bool) -> None:
    """Call it before the spider is opened: feeds append if the crawl continues."""
    exporter = crawler.get_extension(FeedExporter)
    if exporter is None:
        return
    began = time.time() - _TICK_SECONDS
    for uri, options in exporter.feeds.items():
        _keep_compressed(uri, options)
        options[_RUN] = _Run(goes_on, _end_of(exporter, options), bool(options.get("overwrite")), began)
        if goes_on:
            _go_on(exporter, uri, options)


class FlushedGzip(GzipPlugin):
    """Readable after a kill, for 2 µs per write and up to 75% more bytes."""

    def write(self, data: bytes) -> int:
        """Compress and flush."""
        written = super().write(data)
        self.gzipfile.flush()
        return written


def _keep_compressed(uri: str, options: dict[str, Any]) -> None:
    if "postprocessing" not in options:
        return
    given = [load_object(plugin) for plugin in options["postprocessing"]]
    options["postprocessing"] = [FlushedGzip if plugin is GzipPlugin else plugin for plugin in given]
    if others := [getattr(plugin, "__name__", str(plugin)) for plugin in given if plugin is not GzipPlugin]:
        logger.warning(
            "feed %s: %s may keep items in memory until the crawl ends: if this agent is killed, they are lost, and "
            "their pages are not parsed again; expected GzipPlugin, or no postprocessing",
            uri,
            ", ".join(others),
        )


def _go_on(exporter: FeedExporter, uri: str, options: dict[str, Any]) -> None:
    options["overwrite"] = False
    if options[_RUN].end is None:
        # Without an item no new file is needed.
        options["store_empty"] = False
    storage = exporter.storages.get(urlparse(uri).scheme, FeedFile)
    appends = isinstance(storage, type) and issubclass(
        storage, FileFeedStorage | FTPFeedStorage | StdoutFeedStorage
    )
    if not appends and not _NEW_EACH_RUN.search(uri):
        logger.warning(
            "feed %s: this crawl continues, but %s cannot append: the items of earlier runs are replaced; expected "
            "a file, or %%(time)s in its address",
            uri,
            storage.__name__,
        )


def leave_without_items(crawler: Crawler, *, finished: bool) -> None:
    """Leave feeds without items as they are."""
    exporter = crawler.get_extension(FeedExporter)
    for slot in exporter.slots if exporter else ():
        if not finished or (isinstance(slot.storage, FeedFile) and slot.storage.is_written_by_another()):
            slot.store_empty = False


def _end_of(exporter: FeedExporter, options: dict[str, Any]) -> _End | None:
    if "postprocessing" in options or not _is_ascii_based(options.get("encoding")):
        return None
    kind = exporter.exporters.get(options["format"])
    ends = (end for known, end in _ENDS.items() if isinstance(kind, type) and issubclass(kind, known))
    return next(ends, None)


def _is_ascii_based(encoding: str | None) -> bool:
    with suppress(LookupError):
        return "\n".encode(encoding or "utf-8") == b"\n"
    return False


class FeedFile(FileFeedStorage):
    """The class in FEED_STORAGES for files."""

    def __init__(self, uri: str, *, feed_options: dict[str, Any] | None = None) -> None:
        super().__init__(uri, feed_options=feed_options)
        self._options = feed_options or {}
        self._run: _Run = self._options.get(_RUN) or _Run()

    def open(self, spider: Spider) -> IO[bytes]:
        """Scrapy's file, flushed at each write."""
        path = Path(self.path)
        if path.exists() and not path.is_file():  # a pipe, a device
            return _WrittenThrough(cast("io.BufferedWriter", super().open(spider)).detach())
        path.parent.mkdir(parents=True, exist_ok=True)
        file = _opened(path)
        if not file.alone:
            return self._joined(path, file)
        if file.size and (self._run.goes_on or file.changed >= self._run.began):
            return self._continued(path, file) or self._set_aside(path, file, spider)
        if self.write_mode == "wb":
            file.truncate(0)
        return file

    def is_written_by_another(self) -> bool:
        """Whether another agent has items in the file."""
        path = Path(self.path)
        if not path.is_file() or not path.stat().st_size:
            return False
        with _opened(path) as file:
            return not file.alone or file.changed >= self._run.began

    def _joined(self, path: Path, file: _WrittenThrough) -> IO[bytes]:
        if self._run.end in _LINES:
            logger.info("feed %s: shared with another agent, appending the items of this one", path)
            file.goes_on = file.size > 0
            return file
        file.close()
        own, file = _free(path)
        logger.warning(
            "feed %s: another agent writes it, and the format %s allows only one writer; the items of this "
            "agent are in %s",
            path,
            self._options.get("format"),
            own,
        )
        return file

    def _continued(self, path: Path, file: _WrittenThrough) -> IO[bytes] | None:
        """Returns None when the file cannot be appended to."""
        end = self._end_of_items(file)
        if end is None:
            return None
        if self._run.goes_on and self._run.overwrite:
            logger.info(
                "feed %s: this crawl continues, so items are appended (for a new feed, delete the file or crawl "
                "with --again)",
                path,
            )
        file.goes_on = end > 0
        return file

    def _end_of_items(self, file: _WrittenThrough) -> int | None:
        find = self._run.end
        if find is None:
            return None
        with closing(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) as data:
            size, end = len(data), find(data, self._options)
            lacks_newline = find is _end_of_lines and end == size and data[size - 1] != ord("\n")
        if end is None or size - end > MOST_TORN_BYTES:
            return None
        file.truncate(end)
        if lacks_newline:
            file.write(b"\n")
        return end

    def _set_aside(self, path: Path, file: _WrittenThrough, spider: Spider) -> IO[bytes]:
        kept, placeholder = _free(path)
        placeholder.close()
        path.replace(kept)
        file.close()
        logger.warning(
            "feed %s: this crawl continues, but the format %s cannot be appended to; the items of earlier runs "
            "are in %s",
            path,
            self._options.get("format"),
            kept,
        )
        return self.open(spider)


class _WrittenThrough(io.BufferedWriter):
    alone = False  # other processes wait until something is written
    goes_on = False  # it has items of earlier runs or of another agent

    @property
    def size(self) -> int:
        return os.fstat(self.fileno()).st_size

    @property
    def changed(self) -> float:
        return os.fstat(self.fileno()).st_mtime

    def write(self, data: Any) -> int:
        written = super().write(data)
        self.flush()
        if self.alone:
            self.share()
        return written

    def share(self) -> None:
        """Let others append; waits for another holder's first item."""
        self.alone = False
        until = time.monotonic() + _FIRST_WRITE_SECONDS
        while not _lock(self, fcntl.LOCK_SH) and time.monotonic() < until:
            time.sleep(0.005)


def _opened(path: Path) -> _WrittenThrough:
    """`alone` if no other process has it open."""
    while True:
        # Append mode: another agent may write to the same file.
        file = _WrittenThrough(io.FileIO(path, "a+"))
        file.alone = _lock(file, fcntl.LOCK_EX)
        if not file.alone:
            file.share()
            # The other process may have closed it.
            file.alone = _lock(file, fcntl.LOCK_EX)
            if not file.alone:
                file.share()
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()


def _free(path: Path) -> tuple[Path, _WrittenThrough]:
    """A new file next to this one."""
    for number in count(1):
        other = path.with_name(f"{path.name}.{number}")
        with suppress(FileExistsError):
            return other, _WrittenThrough(io.FileIO(other, "x"))
    raise AssertionError("unreachable")


def _lock(file: _WrittenThrough, mode: int) -> bool:
    """Returns False when another process holds it, True without lock support."""
    try:
        fcntl.flock(file, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


# --- Where the last whole item ends --------------------------------------------------------------------------


def _end_of_lines(data: mmap.mmap, options: dict[str, Any]) -> int:
    """A last line without a newline is whole if it is JSON."""
    start = data.rfind(b"\n") + 1
    return len(data) if _is_json(data[start:], options) else start


def _end_of_rows(data: mmap.mmap, options: dict[str, Any]) -> int:
    """Quoted text may contain newlines, so rows are counted."""
    if options.get("item_export_kwargs"):  # quotes may differ
        return data.rfind(b"\n") + 1
    end = place = quotes = 0
    while line := data.readline():
        place += len(line)
        quotes += line.count(b'"')
        if quotes % 2 == 0 and line.endswith(b"\n"):
            end = place
    return end


def _end_of_array(data: mmap.mmap, options: dict[str, Any]) -> int | None:
    """Items begin and end at the start of a line."""
    end, torn = len(data), 0
    while torn < 2:
        start = data.rfind(b"\n", 0, end) + 1
        line = data[start:end].rstrip(b", \r")
        if line == b"}" or (line.startswith(b"{") and _is_json(line, options)):
            return start + len(line)
        if start == 0:
            return 0 if line in (b"", b"[") else None
        torn += line.startswith(b"{")
        end = start - 1
    return None


def _end_of_elements(data: mmap.mmap, options: dict[str, Any]) -> int:
    """Items may nest the same name; text has no angle brackets."""
    name = options.get("item_export_kwargs", {}).get("item_element", "item")
    end = depth = 0
    for tag in re.finditer(f"<(/?){re.escape(name)}>".encode(), data):
        depth += -1 if tag[1] else 1
        if depth == 0:
            end = tag.end()
    return end


def _is_json(text: bytes, options: dict[str, Any]) -> bool:
    with suppress(ValueError):
        json.loads(text.decode(options.get("encoding") or "utf-8"))
        return True
    return False


# --- Formats of which several runs make one file -------------------------------------------------------------


class JsonExporter(JsonItemExporter):
    """One array over all runs."""

    def start_exporting(self) -> None:
        """Start the array, or continue it."""
        if _goes_on(self.file):
            self.first_item = False
        else:
            super().start_exporting()


class CsvExporter(CsvItemExporter):
    """One table over all runs, with one header."""

    def __init__(self, file: IO[bytes], **options: Any) -> None:
        super().__init__(cast("io.BytesIO", file), **options)
        if _goes_on(file) and self.include_headers_line:
            self._headers_not_written = False
            if not self.fields_to_export:
                self.fields_to_export = self._columns(file.name)
                self._autodetected_fields = True

    def _columns(self, name: str) -> list[str]:
        with Path(name).open(encoding=self.encoding, newline="") as file:
            return next(csv.reader(file, **self._kwargs))


class XmlExporter(XmlItemExporter):
    """One root element over all runs."""

    def start_exporting(self) -> None:
        """Start the element, or continue it."""
        if _goes_on(self.stream.buffer):
            self._beautify_newline(new_item=True)
        else:
            super().start_exporting()


def _goes_on(file: Any) -> bool:
    return isinstance(file, _WrittenThrough) and file.goes_on


_ENDS: dict[type, _End] = {
    JsonLinesItemExporter: _end_of_lines,
    CsvExporter: _end_of_rows,
    JsonExporter: _end_of_array,
    XmlExporter: _end_of_elements,
}
_LINES = (_end_of_lines, _end_of_rows)
