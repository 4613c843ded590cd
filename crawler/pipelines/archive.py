"""Stores responses and requests in the archive. Off without ARCHIVE_CONTENT_TYPES; skips cached responses.

A duplicate becomes a `revisit` record only if this agent stored the original itself.
"""

from __future__ import annotations

import logging
from fnmatch import fnmatchcase
from functools import lru_cache
from hashlib import sha256
from threading import Thread
from typing import TYPE_CHECKING, Final

from scrapy import signals

from crawler import options as our_options
from crawler.agent.offers import Remembered
from crawler.agent.page import media_type
from crawler.archive import warc, writer
from crawler.archive.reader import LARGEST_MEMBER
from crawler.fetch.wire import ENCODINGS

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from crawler.agent.page import LoadedPage
    from crawler.archive.writer import Place
    from crawler.options import Options

logger = logging.getLogger("archive")

# Captures that later pages may refer to: 7 MB.
REMEMBERED: Final = 32_768
CONFORMS_TO: Final = "http://iipc.github.io/warc-specifications/specifications/warc-format/warc-1.1/"
BODIES: Final = "bodies are decoded; header fields that no longer hold begin with X-Crawler-"


class Archive:
    """Fills warc_file, warc_offset and warc_length for the configured content types."""

    def __init__(self, crawler: Crawler, options: Options) -> None:
        self._options = options
        self._types = options.archive_types
        self._user_agent = str(crawler.settings["USER_AGENT"])
        self._writer: writer.Writer | None = None
        self._earlier = Remembered[tuple[str, str], warc.Earlier](REMEMBERED)  # by site and SHA-256
        self._wants = lru_cache(1024)(self._is_wanted)
        if self._types:
            crawler.signals.connect(self._recover, signals.spider_opened)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Archive:
        """Called by the chain."""
        return cls(crawler, our_options.read(crawler.settings))

    def process(self, page: LoadedPage) -> None:
        """Add the page to the buffer."""
        record = page.record
        if not self._types or record.outcome == "filtered" or not self._wants(record.content_type):
            return
        if "cached" in page.response.flags or record.size > LARGEST_MEMBER // 2:
            return
        digest = record.sha256 or sha256(page.body).hexdigest()
        earlier = self._earlier.get((record.site, digest)) if record.duplicate_of else None
        place = self._keep(page, digest, earlier)
        if earlier is None:
            capture = warc.Earlier(record.asked_url, record.fetched_at, place.file, place.offset)
            self._earlier.put((record.site, digest), capture)
        record.warc_file, record.warc_offset, record.warc_length = place

    def flush(self) -> None:
        """Write the buffer. Raises OSError."""
        if self._writer is not None:
            self._writer.flush()

    def sync(self) -> None:
        """Wait for the disk. Raises OSError."""
        if self._writer is not None:
            self._writer.sync()

    @property
    def full(self) -> bool:
        """Whether the buffer is full."""
        return self._writer is not None and self._writer.waiting >= self._options.archive_buffer_bytes

    def close(self) -> None:
        """Finish open files."""
        if self._writer is not None:
            self._writer.close()

    def _keep(self, page: LoadedPage, digest: str, earlier: warc.Earlier | None) -> Place:
        if self._writer is None:
            self._writer = self._make_writer(page)
        mime = warc.mime_of(page.record.content_type)
        return self._writer.add(exchange_of(page, digest), mime, page.record.status, earlier)

    def _make_writer(self, page: LoadedPage) -> writer.Writer:
        options, author = self._options, page.agent.session.author
        return writer.Writer(
            options.archive_folder,
            f"{author.name}-{author.run}",
            options.archive_file_bytes,
            options.archive_file_seconds,
            self._about,
        )

    def _about(self) -> dict[str, str]:
        return {
            "software": "Lowtide",
            "format": "WARC File Format 1.1",
            "conformsTo": CONFORMS_TO,
            "robots": "obey",
            "http-header-user-agent": self._user_agent,
            "description": BODIES,
        }

    def _is_wanted(self, content_type: str) -> bool:
        # No content type means HTML, as in link extraction.
        kind = media_type(content_type) or "text/html"
        return any(fnmatchcase(kind, wanted) for wanted in self._types)

    def _recover(self) -> None:
        """In a thread: a large file takes seconds."""
        Thread(target=self._recover_all, name="archive-recovery", daemon=True).start()

    def _recover_all(self) -> None:
        try:
            writer.recover(self._options.archive_folder)
        except OSError as error:
            logger.warning("recovering archive files failed, the next start will retry: %s", error)


def exchange_of(page: LoadedPage, digest: str) -> warc.Exchange:
    """The exchange to store."""
    record, response = page.record, page.response
    meta = {} if response.request is None else response.meta
    lines = meta.get("raw_head")
    return warc.Exchange(
        url=record.asked_url,
        fetched_at=record.fetched_at,
        address=record.address,
        protocol=warc.protocol_of(response),
        request=warc.request_head(record.asked_url, response.request, ENCODINGS if lines else ""),
        head=warc.stored_head(lines or warc.lines_of(response), len(page.body)),
        body=page.body,
        sha256=digest,
        truncated=_why_cut(response),
        fetch=warc.Fetch(
            depth=record.depth,
            tries=record.tries,
            latency_ms=record.latency_ms,
            wire_size=record.wire_size,
            connect_ms=record.connect_ms,
            head_ms=record.head_ms,
            body_ms=record.body_ms,
            duplicate_of=record.duplicate_of,
            error=meta.get("decoding_error", ""),
        ),
    )


def _why_cut(response: Response) -> str:
    """WARC-Truncated."""
    if "dataloss" in response.flags:
        return "disconnect"
    return "unspecified" if "download_stopped" in response.flags else ""
