"""Feeds that keep what they have: across a killed agent, and across the runs of one crawl.

A feed's file has every item as soon as it was scraped. Scrapy keeps some kilobytes of a feed in memory, while the
pages of these items are published and are not fetched again.

A crawl that goes on appends to its feeds, also with `-O` or `overwrite`: the pages of earlier runs are not parsed
again, so their items exist nowhere else. What a killed agent wrote of its last item is cut off; that page was not
published, and its item comes again. JSON, JSON lines, CSV and XML stay one valid file over all runs. A file in any
other format (pickle, a postprocessed one, an exporter of a user's) is renamed, and the run begins a new one.

Several agents of a crawl may name the same file, also those that start at the same moment: the first one that has an
item empties it, and the others append (JSON lines, CSV) or write a file of their own, as they say (JSON, XML and all
else that can have one writer only). Locks on the file decide it; its time tells of an agent that ended already.
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

# What a supervisor tells its agents: 1, the crawl goes on; 0, it begins. An agent without it asks the queue.
FEEDS_GO_ON: Final = "FEEDS_GO_ON"
# Where a feed's options say what this run does with it.
_RUN: Final = "run"
# An agent that opens a file has it for itself until its first item (and a header) is written; others wait for that.
_FIRST_WRITE_SECONDS: Final = 2.0
# A file's time is that of the kernel's last tick.
_TICK_SECONDS: Final = 0.02
# A killed agent leaves no more than this of an item; a file with a longer tail was not written by us.
MOST_TORN_BYTES: Final = 16_000_000
# A URI that names another file in each run.
_NEW_EACH_RUN = re.compile(r"%\((batch_)?time\)")

# Where the last whole item of a file ends; None where that cannot be found out.
_End = Callable[["mmap.mmap", dict[str, Any]], int | None]


class _Run(NamedTuple):
    goes_on: bool = False
    end: _End | None = None  # None: files of this format cannot be appended to
    asked_to_overwrite: bool = False
    began: float = math.inf  # a file that was written since then has items of this crawl


def begin(crawler: Crawler, *, goes_on: bool) -> None:
    """Let the feeds of a crawl that goes on append, and those of one that begins keep what other agents wrote.

    Call it before the spider is opened.
    """
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
    """What is written can be unpacked from the file at once, also if the agent is killed.

    It costs 2 us a write, and small items take up to 75 % more bytes.
    """

    def write(self, data: bytes) -> int:
        """Compress, and let nothing stay in memory."""
        written = super().write(data)
        self.gzipfile.flush()
        return written


def _keep_compressed(uri: str, options: dict[str, Any]) -> None:
    """Let gzip hold nothing back; say which plugins do."""
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
        # Without an item there is no reason to begin another file.
        options["store_empty"] = False
    storage = exporter.storages.get(urlparse(uri).scheme, FeedFile)
    appends = isinstance(storage, type) and issubclass(
        storage, FileFeedStorage | FTPFeedStorage | StdoutFeedStorage
    )
    if not appends and not _NEW_EACH_RUN.search(uri):
        logger.warning(
            "feed %s: this crawl goes on, and %s cannot append: the items of earlier runs are replaced; expected "
            "a file, or %%(time)s in its address",
            uri,
            storage.__name__,
        )


def leave_without_items(crawler: Crawler, *, finished: bool) -> None:
    """Leave a feed as it is where this run has no item for it: if it did not come to its end, or another wrote it."""
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
    """What FEED_STORAGES names for files."""

    def __init__(self, uri: str, *, feed_options: dict[str, Any] | None = None) -> None:
        super().__init__(uri, feed_options=feed_options)
        self._options = feed_options or {}
        self._run: _Run = self._options.get(_RUN) or _Run()

    def open(self, spider: Spider) -> IO[bytes]:
        """The same file as Scrapy's, but nothing of it stays in memory: some microseconds an item."""
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
        """Whether an agent of this crawl has items in the file; asked by one that has none."""
        path = Path(self.path)
        if not path.is_file() or not path.stat().st_size:
            return False
        with _opened(path) as file:
            return not file.alone or file.changed >= self._run.began

    def _joined(self, path: Path, file: _WrittenThrough) -> IO[bytes]:
        """Another process writes here: no item is torn, but an array can have one writer only."""
        if self._run.end in _LINES:
            logger.info("feed %s: another agent writes it too; the items of this one are appended", path)
            file.goes_on = file.size > 0
            return file
        file.close()
        own, file = _free(path)
        logger.warning(
            "feed %s: another agent writes it, and a file in the format %s can have one writer only; the items of this "
            "agent are in %s",
            path,
            self._options.get("format"),
            own,
        )
        return file

    def _continued(self, path: Path, file: _WrittenThrough) -> IO[bytes] | None:
        """The file, cut behind its last whole item; None where it cannot be appended to."""
        end = self._end_of_items(file)
        if end is None:
            return None
        if self._run.goes_on and self._run.asked_to_overwrite:
            logger.info(
                "feed %s: this crawl goes on, so its items are appended (to begin a new feed, delete the file or crawl "
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
            "feed %s: this crawl goes on, and a file in the format %s cannot be appended to; what earlier runs wrote "
            "is in %s",
            path,
            self._options.get("format"),
            kept,
        )
        return self.open(spider)


class _WrittenThrough(io.BufferedWriter):
    alone = False  # no other process may look at it before something is written
    goes_on = False  # items of earlier runs, or of another agent, stand in it

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
        """Let others append: wait for one that has the file for itself, which is a matter of its first item."""
        self.alone = False
        until = time.monotonic() + _FIRST_WRITE_SECONDS
        while not _lock(self, fcntl.LOCK_SH) and time.monotonic() < until:
            time.sleep(0.005)


def _opened(path: Path) -> _WrittenThrough:
    """The file of this name, which another process may rename meanwhile; `alone` where no other has it open."""
    while True:
        # Always written at its end: another agent may append to the same file.
        file = _WrittenThrough(io.FileIO(path, "a+"))
        file.alone = _lock(file, fcntl.LOCK_EX)
        if not file.alone:
            file.share()
            # It may have had only a look.
            file.alone = _lock(file, fcntl.LOCK_EX)
            if not file.alone:
                file.share()
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()


def _free(path: Path) -> tuple[Path, _WrittenThrough]:
    """A file beside this one that was not there before."""
    for number in count(1):
        other = path.with_name(f"{path.name}.{number}")
        with suppress(FileExistsError):
            return other, _WrittenThrough(io.FileIO(other, "x"))
    raise AssertionError("numbers do not end")


def _lock(file: _WrittenThrough, mode: int) -> bool:
    """Whether the file is locked, or its file system knows no locks; False: another process holds it."""
    try:
        fcntl.flock(file, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


# --- Where the last whole item ends --------------------------------------------------------------------------


def _end_of_lines(data: mmap.mmap, options: dict[str, Any]) -> int:
    """JSON lines: a last line without its end is whole if it is JSON."""
    start = data.rfind(b"\n") + 1
    return len(data) if _is_json(data[start:], options) else start


def _end_of_rows(data: mmap.mmap, options: dict[str, Any]) -> int:
    """CSV: a text in quotes may have ends of lines, so rows are counted from the first one on."""
    if options.get("item_export_kwargs"):  # other quotes, perhaps
        return data.rfind(b"\n") + 1
    end = place = quotes = 0
    while line := data.readline():
        place += len(line)
        quotes += line.count(b'"')
        if quotes % 2 == 0 and line.endswith(b"\n"):
            end = place
    return end


def _end_of_array(data: mmap.mmap, options: dict[str, Any]) -> int | None:
    """JSON: an item begins and ends at the beginning of a line, whether it takes one line or several."""
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
    """XML: an item may have elements of the same name inside; no text has an angle bracket."""
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
    """One array of the items of all runs."""

    def start_exporting(self) -> None:
        """Begin the array, or go on behind its last item."""
        if _goes_on(self.file):
            self.first_item = False
        else:
            super().start_exporting()


class CsvExporter(CsvItemExporter):
    """One table: one header, and its columns for all runs."""

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
    """One element of the items of all runs."""

    def start_exporting(self) -> None:
        """Begin the element, or go on behind its last item."""
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
