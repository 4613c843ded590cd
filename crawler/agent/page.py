"""A fetched page on its way through the page pipelines, and the pipelines' chain.

A page pipeline is a class with `process(page)`; it reads the answer and fills the record. What no field is there for
goes into `record.extra` under a name of the pipeline's own: whatever JSON can say, 16 kB in all; what cannot be kept is
left out and noted in the record. It may set `record.outcome` to "filtered" so that only the fact of the fetch is kept.
One that raises costs the page nothing but what it would have added: the error is logged with the page's URL and noted
in the record. One that keeps something which records refer to has `flush()` and `sync()` too: nothing is published
before both have worked.
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
# Types that say nothing.
_UNKNOWN = ("unknown/unknown", "application/unknown")
# How bodies begin that are no HTML, where no type is said.
_NO_HTML = (b"%PDF-", b"\x89PNG", b"GIF8", b"\xff\xd8\xff", b"PK\x03\x04", b"\x1f\x8b", b"RIFF")


def media_type(content_type: str) -> str:
    """The kind that a Content-Type says, in lower case and without parameters; empty: none.

    Of several, as of a field that a proxy has joined, the last one counts that says anything: so browsers have it.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind in HTML:
        return kind
    kinds = (one.partition(";")[0].strip().lower() for one in content_type.split(","))
    said = [one for one in kinds if "/" in one and "*" not in one and one not in _UNKNOWN]
    return said[-1] if said else ""


class LoadedPage:
    """A page with an answer 2xx. `record` is what will be stored; `out_links` its links as 64-bit hashes."""

    def __init__(
        self, agent: Agent, lease: SiteLease, turn: Turn, response: Response, record: records.Page
    ) -> None:
        self.agent = agent
        self.lease = lease
        self.turn = turn
        self.response = response
        self.record = record
        self.out_links = b""
        # What kept the page from being parsed whole; known with the document.
        self.bound: Literal["", "bytes", "markup"] = ""

    def note(self, words: str) -> None:
        """Add to what the record says of the page's faults."""
        self.record.error = "; ".join(filter(None, (self.record.error, words)))

    @property
    def body(self) -> bytes:
        """The body's bytes, decoded from transfer and content encoding."""
        return self.response.body

    @cached_property
    def charset(self) -> str:
        """What the body is written in: the name of a codec of Python's."""
        return charset.encoding_of(self.body[: self._parsed_bytes], self.record.content_type)

    @cached_property
    def document(self) -> Any:
        """The page parsed by lxml; None where it is no HTML or nothing could be parsed.

        What of it was left out is noted in the record.
        """
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
        """The text that a person sees, white space as it stands; empty where there is no document."""
        return text.visible(self.document)

    @cached_property
    def text(self) -> str:
        """The same with one blank between words. Made when it is first asked for."""
        return text.collapsed(self.raw_text)

    @cached_property
    def written(self) -> Written:
        """Where a page leads, as written; none that say nofollow."""
        refresh = (self.response.headers.get("Refresh") or b"").decode("latin-1")
        return links.written(self.document, refresh)

    @cached_property
    def links(self) -> Links:
        """Where they lead, as written; those that lead to no page are left out.

        What is left out of more than MAX_LINKS_PER_PAGE is noted in the record.
        """
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
        """The URL, as written, that it names as the one to take for it; empty: none, or its own."""
        header = b",".join(self.response.headers.getlist("Link")).decode("latin-1")
        return links.named_canonical(
            self.document, header, self.response.url, self.agent.max_url_length, lambda: self.charset
        )

    @cached_property
    def directives(self) -> set[str]:
        """Words of meta robots and X-Robots-Tag, in lower case."""
        header = b"\n".join(self.response.headers.getlist("X-Robots-Tag")).decode("latin-1")
        return links.robots_directives(self.document, header, self.lease.site_session.user_agent)

    def publish(self) -> None:
        """The turn is over: into the results stream with the record, whatever the steps of the chain did to it."""
        try:
            self._publish()
        except Exception as error:
            logger.exception("the record of %s cannot be written; the bare fact is", self.record.url)
            self.record = self._bare_record(error)
            self._publish()

    def _publish(self) -> None:
        if self.lease.lost:
            return
        self._bound_extra()
        self.agent.publish(self.lease, self.record, self.out_links)
        self.lease.frontier.finish(self.turn)

    def _bound_extra(self) -> None:
        """Whatever steps put into `extra`, the record can be written, and says what is missing."""
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
    """What records refer to could not be written: they must wait."""


class PagePipeline(Protocol):
    """One step between download and stream. Built by `from_crawler(crawler)` where the class has it.

    It may have more. Before records are published, `flush()` writes what they refer to, and then `sync()` waits until
    that is on the disk. `sync()` runs in a thread, while `process()` takes later pages, whose records wait for the next
    `flush()`; it is left out where no page came since the last. If either raises OSError, the records wait and both
    are called again. `full` says that the step can hold no more until then: fetching pauses. `close()` is called once,
    after the last page.
    """

    def process(self, page: LoadedPage) -> None:
        """Read the answer, fill the record. Called once per page, in the order of PAGE_PIPELINES."""


class Chain:
    """The pipelines of PAGE_PIPELINES, in order."""

    def __init__(self, crawler: Crawler, pipelines: dict[str, int | None]) -> None:
        wanted = sorted((order, path) for path, order in pipelines.items() if order is not None)
        self._steps: list[PagePipeline] = [
            build_from_crawler(load_object(path), crawler) for _, path in wanted
        ]
        self._keepers: list[Any] = [step for step in self._steps if hasattr(step, "flush")]
        self._synced: list[Any] = [step for step in self._steps if hasattr(step, "sync")]
        self._unsynced = False  # pages came since the last sync

    def process(self, page: LoadedPage) -> None:
        """Run every step; a step that fails is told and skipped."""
        self._unsynced = True
        for step in self._steps:
            try:
                step.process(page)
            except Exception as error:
                page.note(f"{type(step).__name__}: {error}"[:200])
                logger.exception("%s failed on %s", type(step).__name__, page.record.url)

    async def flush(self) -> None:
        """Bring to the disk what the records so far refer to; NotKeptError where that cannot be."""
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
        """Whether fetching must pause until `flush` has worked."""
        return any(getattr(step, "full", False) for step in self._keepers)

    def close(self) -> None:
        """Let every step end what it has open; one that fails is told."""
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
    """What most steps have to close."""
