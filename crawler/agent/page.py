"""A fetched page in the page pipelines, and their chain.

A failing pipeline loses only its own additions.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol

from scrapy.utils.misc import build_from_crawler, load_object

from crawler.content import charset, extra, text
from crawler.content import html as links

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from crawler import records
    from crawler.agent.agent import Agent
    from crawler.agent.frontier import Turn
    from crawler.agent.site_lease import SiteLease
    from crawler.content.html import Links, Written

logger = logging.getLogger("pipelines")

HTML = ("text/html", "application/xhtml+xml")
# Content types without information.
_UNKNOWN = ("unknown/unknown", "application/unknown")
# How non-HTML bodies begin, if the type is unknown.
_NO_HTML = (b"%PDF-", b"\x89PNG", b"GIF8", b"\xff\xd8\xff", b"PK\x03\x04", b"\x1f\x8b", b"RIFF")


def media_type(content_type: str) -> str:
    """The media type in lower case; empty: unknown. Of several, the last known one."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind in HTML:
        return kind
    kinds = (one.partition(";")[0].strip().lower() for one in content_type.split(","))
    said = [one for one in kinds if "/" in one and "*" not in one and one not in _UNKNOWN]
    return said[-1] if said else ""


class LoadedPage:
    """A page with a 2xx response. `record` will be stored; `out_links` are 64-bit hashes."""

    def __init__(
        self, agent: Agent, lease: SiteLease, turn: Turn, response: Response, record: records.Page
    ) -> None:
        self.agent = agent
        self.lease = lease
        self.turn = turn
        self.response = response
        self.record = record
        self.out_links = b""
        # The limit that truncated the parsed page; set by `document`.
        self.bound: Literal["", "bytes", "markup"] = ""

    def note(self, words: str) -> None:
        """Append to the record's error."""
        self.record.error = "; ".join(filter(None, (self.record.error, words)))

    @property
    def body(self) -> bytes:
        """The decoded body."""
        return self.response.body

    @cached_property
    def charset(self) -> str:
        """The Python codec of the body."""
        return charset.encoding_of(self.body[: self._parsed_bytes], self.record.content_type)

    @cached_property
    def document(self) -> Any:
        """The parsed page. Returns None when it is not HTML or empty."""
        kind = media_type(self.record.content_type)
        if kind not in HTML and (kind or self.body.startswith(_NO_HTML)):
            return None
        page = links.parsed(self.body, lambda: self.charset, self._parsed_bytes)
        self.bound = page.bound
        self.note(page.left_out)
        return page.root

    @property
    def _parsed_bytes(self) -> int:
        return self.agent.options.max_html_bytes

    @cached_property
    def raw_text(self) -> str:
        """The visible text with its white space."""
        return text.visible(self.document)

    @cached_property
    def text(self) -> str:
        """The visible text with single spaces."""
        return text.collapsed(self.raw_text)

    @cached_property
    def written(self) -> Written:
        """Links as written, without nofollow ones."""
        refresh = (self.response.headers.get("Refresh") or b"").decode("latin-1")
        return links.written(self.document, refresh)

    @cached_property
    def links(self) -> Links:
        """Resolved links to pages, at most MAX_LINKS_PER_PAGE."""
        found = links.placed(
            self.written,
            self.document,
            self.response.url,
            self.lease.site,
            self.agent.options.max_links_per_page,
            self.agent.max_url_length,
            lambda: self.charset,
        )
        self.note(found.left_out)
        return found

    @cached_property
    def canonical(self) -> str:
        """The canonical URL, as written; empty: none or its own."""
        header = b",".join(self.response.headers.getlist("Link")).decode("latin-1")
        return links.named_canonical(
            self.document, header, self.response.url, self.agent.max_url_length, lambda: self.charset
        )

    @cached_property
    def directives(self) -> set[str]:
        """Meta robots and X-Robots-Tag, in lower case."""
        header = b"\n".join(self.response.headers.getlist("X-Robots-Tag")).decode("latin-1")
        return links.robots_directives(self.document, header, self.lease.site_session.user_agent)

    def publish(self) -> None:
        """Publish the record, or a minimal one if it cannot be encoded."""
        try:
            self._publish()
        except Exception as error:
            logger.exception(
                "the record of %s cannot be encoded; a minimal record is published", self.record.url
            )
            self.record = self._bare_record(error)
            self._publish()

    def _publish(self) -> None:
        if self.lease.lost:
            return
        self._bound_extra()
        self.agent.publish(self.lease, self.record, self.out_links)
        self.lease.frontier.finish(self.turn)

    def _bound_extra(self) -> None:
        if self.record.extra != {}:
            self.record.extra, left_out = extra.bounded(self.record.extra)
            if left_out:
                self.note(left_out)
                logger.warning("%s: %s", self.record.url, left_out)

    def _bare_record(self, error: Exception) -> records.Page:
        return type(self.record)(
            site=self.lease.site,
            path=self.turn.path,
            fetched_at=int(time.time() * 1000),
            outcome="stored",
            status=self.response.status,
            depth=self.turn.depth,
            tries=self.turn.tries,
            error=f"{type(error).__name__}: {error}"[:200],
            work=self.lease.leased.work,
            asked_as=self.turn.asked_as,
        )


class NotKeptError(Exception):
    """Data that records refer to could not be written."""


class PagePipeline(Protocol):
    """One step between download and results stream; built by `from_crawler(crawler)` if it has one.

    It fills `record`, with up to 16 kB of JSON in `record.extra`; `record.outcome` "filtered" keeps only the fetch.

    Optional: `flush()` writes what records refer to, `sync()` (in a thread) waits until it is on disk; both precede
    publishing. If one raises OSError, both are called again later. `full` pauses fetching. `close()` is called once,
    last.
    """

    def process(self, page: LoadedPage) -> None:
        """Called once per page, in the order of PAGE_PIPELINES."""


class Chain:
    """The pipelines of PAGE_PIPELINES, in order."""

    def __init__(self, crawler: Crawler, pipelines: dict[str, int | None]) -> None:
        ordered = sorted((order, path) for path, order in pipelines.items() if order is not None)
        self._steps: list[PagePipeline] = [
            build_from_crawler(load_object(path), crawler) for _, path in ordered
        ]
        self._keepers: list[Any] = [step for step in self._steps if hasattr(step, "flush")]
        self._synced: list[Any] = [step for step in self._steps if hasattr(step, "sync")]
        self._unsynced = False  # pages were processed since the last sync

    def process(self, page: LoadedPage) -> None:
        """Run every step; errors are logged."""
        self._unsynced = True
        for step in self._steps:
            try:
                step.process(page)
            except Exception as error:
                page.note(f"{type(step).__name__}: {error}"[:200])
                logger.exception("%s failed on %s", type(step).__name__, page.record.url)

    async def flush(self) -> None:
        """Raises NotKeptError if a step fails."""
        for step in self._keepers:
            with _keeping(step):
                step.flush()
        if not self._unsynced:
            return
        self._unsynced = False
        try:
            for step in self._synced:
                with _keeping(step):
                    await asyncio.to_thread(step.sync)
        except BaseException:
            self._unsynced = True
            raise

    @property
    def full(self) -> bool:
        """Whether fetching must pause until `flush` succeeds."""
        return any(getattr(step, "full", False) for step in self._keepers)

    def close(self) -> None:
        """Close every step; errors are logged."""
        for step in self._steps:
            try:
                getattr(step, "close", _nothing)()
            except Exception:
                logger.exception("%s could not be closed", type(step).__name__)


@contextmanager
def _keeping(step: PagePipeline) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NotKeptError(f"{type(step).__name__}: {error}") from error


def _nothing() -> None:
    """The default `close`."""
