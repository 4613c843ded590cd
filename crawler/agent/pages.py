"""A fetched page on its way through the page pipelines, and the pipelines' chain.

A page pipeline is a class with `process(page)`; it reads the answer and fills the record. It may set
`record.outcome` to "filtered" so that only the fact of the fetch is kept. One that raises costs the page nothing
but what it would have added: the error is logged with the page's URL and noted in the record.
"""

from __future__ import annotations

import logging
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from scrapy.utils.misc import build_from_crawler, load_object

from crawler.agent import links

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from crawler import records
    from crawler.agent.agent import Agent
    from crawler.agent.frontier import Turn
    from crawler.agent.slots import Slot

logger = logging.getLogger("pipelines")

HTML = ("text/html", "application/xhtml+xml")


class LoadedPage:
    """A page with an answer 2xx. `record` is what will be stored; `out_links` its links as 64-bit hashes."""

    def __init__(
        self, agent: Agent, slot: Slot, turn: Turn, response: Response, record: records.Page
    ) -> None:
        self.agent = agent
        self.slot = slot
        self.turn = turn
        self.response = response
        self.record = record
        self.out_links = b""
        self.held = False  # its turn goes on until `release`
        self.published = False

    @property
    def body(self) -> bytes:
        """The body's bytes, decoded from transfer and content encoding."""
        return self.response.body

    @cached_property
    def document(self) -> Any:
        """The page parsed by lxml; None where it is no HTML or nothing could be parsed."""
        kind = self.record.content_type.partition(";")[0].strip().lower()
        if kind and kind not in HTML:
            return None
        return links.document(self.body, self.record.content_type)

    @cached_property
    def directives(self) -> set[str]:
        """Words of meta robots and X-Robots-Tag, in lower case."""
        header = b"\n".join(self.response.headers.getlist("X-Robots-Tag")).decode("latin-1")
        return links.robots_directives(self.document, header)

    def publish(self) -> None:
        """The page's turn is over; its record goes into the results stream. Not before `release`, if it is held."""
        if self.held or self.published or self.slot.lost:
            return
        self.agent.publish(self.slot, self.record, self.out_links)
        self.slot.frontier.finish(self.turn)
        self.published = True

    def release(self) -> None:
        """The user's `parse` is done: the turn ends now, with a record, whatever the steps of the chain did to it."""
        self.held = False
        try:
            self.publish()
        except Exception as error:
            logger.exception("the record of %s cannot be written; the bare fact is", self.record.url)
            self.record = self._bare_record(error)
            self.publish()

    def _bare_record(self, error: Exception) -> records.Page:
        return type(self.record)(
            site=self.slot.site,
            path=self.turn.path,
            fetched_at=int(time.time() * 1000),
            outcome="stored",
            status=self.response.status,
            depth=self.turn.depth,
            tries=self.turn.tries,
            error=f"{type(error).__name__}: {error}"[:200],
        )


class PagePipeline(Protocol):
    """One step between download and stream. Built by `from_crawler(crawler)` where the class has it."""

    def process(self, page: LoadedPage) -> None:
        """Read the answer, fill the record. Called once per page, in the order of PAGE_PIPELINES."""


class Chain:
    """The pipelines of PAGE_PIPELINES, in order."""

    def __init__(self, crawler: Crawler, pipelines: dict[str, int | None]) -> None:
        wanted = sorted((order, path) for path, order in pipelines.items() if order is not None)
        self._steps: list[PagePipeline] = [
            build_from_crawler(load_object(path), crawler) for _, path in wanted
        ]

    def process(self, page: LoadedPage) -> None:
        """Run every step; a step that fails is told and skipped."""
        for step in self._steps:
            try:
                step.process(page)
            except Exception as error:
                page.record.error = f"{type(step).__name__}: {error}"[:200]
                logger.exception("%s failed on %s", type(step).__name__, page.record.url)
