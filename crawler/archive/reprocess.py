"""Scrapy schedulers for `scrapy extract`: read EXTRACT_FILES instead of crawling.

`Republishing` publishes records again, which replace the rows of the same fetch. `Reparsing` runs a spider's `parse`.
Damaged captures are logged, counted and skipped.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, cast

from redis.exceptions import RedisError
from scrapy import Request
from scrapy.core.scheduler import BaseScheduler
from scrapy.exceptions import IgnoreRequest
from scrapy.responsetypes import responsetypes
from scrapy.utils.defer import deferred_from_coro

from crawler import engine, records
from crawler import options as our_options
from crawler.agent.fetcher import note_answer
from crawler.agent.frontier import Frontier
from crawler.agent.overrides import PLAIN, Overrides, SiteSession
from crawler.agent.page import Chain, LoadedPage, NotKeptError
from crawler.agent.session import Author, BackOff, now_ms
from crawler.agent.site_lease import SiteLease
from crawler.archive.reader import CaptureError, CaptureNotFoundError, Damage, Library, captures
from crawler.queue import connection
from crawler.queue.queue import SiteQueue
from crawler.queue.sites import Leased
from crawler.robots import policy
from crawler.urls.scope import Scope
from crawler.urls.url import UrlError, page_of, resolve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from twisted.internet.defer import Deferred

    from crawler.agent.agent import Agent
    from crawler.archive.reader import Capture
    from crawler.options import Options

logger = logging.getLogger("extract")

# Setting with the Paths to read, set by the command.
FILES: Final = "EXTRACT_FILES"
# Prefix of the totals in Scrapy's stats.
FIGURES: Final = "extract/"
# Records per publication, and captures between two yields to the event loop.
BATCH: Final = 200
TURN: Final = 20
TELL_SECONDS: Final = 10.0
_CAPTURE: Final = "capture"


class Figures:
    """Counters."""

    def __init__(self, crawler: Crawler, files: int) -> None:
        self.done = 0  # files read to their end
        self._crawler = crawler
        self._files = files
        self._counts = dict.fromkeys(("captures", "published", "damaged", "missing", "failed", "dropped"), 0)
        self._told_at = time.monotonic()

    def count(self, what: str, many: int = 1) -> None:
        """Increment a counter."""
        self._counts[what] += many

    def tell(self) -> None:
        """Log the progress every TELL_SECONDS."""
        if time.monotonic() - self._told_at > TELL_SECONDS:
            self._told_at = time.monotonic()
            logger.info(
                "%d captures read, %d of %d files done", self._counts["captures"], self.done, self._files
            )

    def end(self) -> None:
        """Store the totals in Scrapy's stats."""
        for name, value in {"files": self.done, **self._counts}.items():
            self._crawler.stats.set_value(FIGURES + name, value)


class _Reading(BaseScheduler):
    """Common base."""

    def __init__(self, crawler: Crawler) -> None:
        files: list[Path] = crawler.settings.getlist(FILES)
        self._crawler = crawler
        self._figures = Figures(crawler, len(files))
        self._stored = _stored(files, self._figures)
        self._ended = False

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> _Reading:
        """Called by Scrapy."""
        return cls(crawler)

    def has_pending_requests(self) -> bool:
        """Whether captures remain."""
        return not self._ended

    def enqueue_request(self, request: Request) -> bool:
        """Drop a spider's request."""
        if not request.meta.get("is_start_request"):
            self._figures.count("dropped")
        return False

    def _end(self) -> None:
        self._ended = True
        engine.wake(self._crawler)


# --- Republishing -------------------------------------------------------------------------------------------


class Republishing(_Reading):
    """Runs captures through the page pipelines."""

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        options = our_options.read(crawler.settings)
        self._chain = Chain(crawler, options.page_pipelines)
        self._client = connection.connect(crawler.settings)
        self._queue = SiteQueue(self._client, options)
        self._agent = _Bystander(crawler, options)
        self._most = options.stream_max_records
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._away = False

    def open(self, spider: Spider) -> None:  # noqa: ARG002 - Scrapy's
        """Start reading."""
        engine.check(self._crawler)
        self._task = asyncio.ensure_future(self._run())

    def close(self, reason: str) -> Deferred[None]:  # noqa: ARG002 - Scrapy's
        """Publish the rest and stop."""
        return deferred_from_coro(self._close())

    def next_request(self) -> Request | None:
        """Always None."""
        return None

    async def _close(self) -> None:
        self._stopping.set()
        if self._task is not None:
            await self._task
        self._chain.close()
        await self._client.aclose()
        self._figures.end()

    async def _run(self) -> None:
        try:
            await self._publish_all()
        except Exception:
            logger.exception("reading the archive failed")
            self._closing = asyncio.ensure_future(engine.close(self._crawler, "agent_failed"))
            return
        self._end()

    async def _publish_all(self) -> None:
        for number, (capture, body) in enumerate(self._stored, 1):
            self._take(capture, body)
            if len(self._agent.results) >= BATCH or self._chain.full:
                await self._tell()
            elif number % TURN == 0:
                await asyncio.sleep(0)
            if self._stopping.is_set():
                break
        await self._tell()

    def _take(self, capture: Capture, body: bytes) -> None:
        page = self._page(capture, body)
        if page is None:
            return
        before = len(self._agent.results)
        self._chain.process(page)
        page.publish()
        if len(self._agent.results) == before:
            self._figures.count("failed")

    def _page(self, capture: Capture, body: bytes) -> LoadedPage | None:
        try:
            site, asked = resolve(capture.url)
        except UrlError as error:
            logger.warning("%s at %d: %s", capture.file, capture.offset, error)
            self._figures.count("failed")
            return None
        response = answer_of(capture, body, Request(capture.url, meta={"verbatim_url": True}))
        return self._agent.page(record_of(capture, site, asked, response), response, capture.user_agent)

    async def _tell(self) -> None:
        """Publish; wait while Redis is unavailable or the stream is full."""
        back_off = BackOff()
        while self._agent.results:
            try:
                await self._chain.flush()
                if await self._has_room():
                    await self._publish()
                    self._away = False
                    return
                if self._stopping.is_set():
                    logger.warning("%d records not published: the stream is full", len(self._agent.results))
                    return
            except (RedisError, OSError, NotKeptError) as error:
                if self._stopping.is_set():
                    logger.warning("%d records not published: %s", len(self._agent.results), error)
                    return
                if not self._away:
                    logger.warning("waiting to publish: %s", error)
                self._away = True
            await asyncio.sleep(back_off.next())

    async def _has_room(self) -> bool:
        return (await self._queue.depth()).records < self._most

    async def _publish(self) -> None:
        results = self._agent.results
        await self._queue.tell([record for record, _ in results], [links for _, links in results])
        self._figures.count("published", len(results))
        results.clear()


class _Bystander:
    """The agent as the page pipelines need it."""

    def __init__(self, crawler: Crawler, options: Options) -> None:
        self.crawler = crawler
        self.options = options
        self.scope = Scope(options)
        self.max_url_length: int = crawler.settings.getint("URLLENGTH_LIMIT")
        self.offers = self  # the pipelines call `add` only
        self.results: list[tuple[bytes, bytes]] = []
        self._overrides = Overrides(options.site_overrides)
        self._name = policy.product(crawler.settings["USER_AGENT"])
        self._author = Author("extract")

    def page(self, record: records.Page, response: Response, user_agent: str) -> LoadedPage:
        """A page with a lease of its own: no state is shared.

        Directives apply to the capture's user agent; default: the settings'.
        """
        frontier = Frontier()
        frontier.add_page(record.path, record.asked_as or record.path, record.depth)
        turn = frontier.take(0.0)
        assert turn is not None
        leased = Leased(record.site, "", suspended=False, address=None)
        if user_agent:
            site_session = SiteSession(record.site, PLAIN, policy.product(user_agent))
        else:
            site_session = SiteSession(record.site, self._overrides.of(record.site), self._name)
        lease = SiteLease(leased, frontier, 0, site_session, 0.0)
        self._fetched_at = record.fetched_at
        return LoadedPage(cast("Agent", self), lease, turn, response, record)

    def publish(self, lease: SiteLease, page: records.Page, links: bytes = b"") -> None:  # noqa: ARG002 - the agent's
        """Collect a record, except the minimal one of a page that cannot be encoded."""
        if page.fetched_at == self._fetched_at:
            page.extracted_at = now_ms()
            self.results.append((self._author.numbered(page), links))

    def add(self, site: str, paths: list[str], depth: int) -> None:
        """Ignored."""


# --- A spider's parse ---------------------------------------------------------------------------------------


class Reparsing(_Reading):
    """Runs captures through a spider's `parse`."""

    def close(self, reason: str) -> None:  # noqa: ARG002 - Scrapy's
        """Store the totals."""
        self._figures.end()

    def next_request(self) -> Request | None:
        """The next capture."""
        capture, body = next(self._stored, (None, b""))
        if capture is None:
            self._ended = True
            return None
        meta = {
            "depth": capture.fetch.depth,
            "fetched_at": capture.fetched_at,
            "verbatim_url": True,
            _CAPTURE: (capture, body),
        }
        return Request(capture.url, meta=meta, dont_filter=True)


class StoredAnswers:
    """Scrapy's DOWNLOADER for Reparsing; no middlewares, no network."""

    def __init__(self, crawler: Crawler) -> None:
        self.active: set[Request] = set()
        self.slots: dict[str, Any] = {}
        self._most = crawler.settings.getint("CONCURRENT_REQUESTS")

    def fetch(self, request: Request) -> Deferred[Response]:
        """The stored response. Raises IgnoreRequest without one."""
        return deferred_from_coro(self._answer(request))

    def needs_backout(self) -> bool:
        """Whether CONCURRENT_REQUESTS is reached."""
        return 0 < self._most <= len(self.active)

    def close(self) -> None:
        """Nothing to close."""

    async def _answer(self, request: Request) -> Response:
        stored = request.meta.pop(_CAPTURE, None)
        if stored is None:
            raise IgnoreRequest(f"{request.url}: not fetched, `scrapy extract` reads the archive only")
        self.active.add(request)
        try:
            await asyncio.sleep(0)
            capture, body = stored
            return answer_of(capture, body, request)
        finally:
            self.active.discard(request)


# --- From the archive ---------------------------------------------------------------------------------------


def answer_of(capture: Capture, body: bytes, request: Request) -> Response:
    """The Response as the page pipelines got it."""
    kind = responsetypes.from_args(headers=capture.headers, url=capture.url, body=body)
    address = None
    with suppress(ValueError):
        address = ip_address(capture.address)
    response = kind(
        url=capture.url,
        status=capture.status,
        body=body,
        flags=["archived"],
        request=request,
        ip_address=address,
    )
    response.headers = capture.headers
    return response


def record_of(capture: Capture, site: str, asked: str, response: Response) -> records.Page:
    """The page's record before the page pipelines."""
    fetch, path = capture.fetch, page_of(asked)
    record = records.Page(
        site=site,
        path=path,
        fetched_at=capture.fetched_at,
        outcome="duplicate" if fetch.duplicate_of else "stored",
        status=capture.status,
        depth=fetch.depth,
        tries=fetch.tries,
        sha256=capture.sha256,
        duplicate_of=fetch.duplicate_of,
        warc_file=capture.file,
        warc_offset=capture.offset,
        warc_length=capture.length,
        error=fetch.error,
        asked_as=asked if asked != path else "",
    )
    note_answer(record, response)
    record.latency_ms, record.wire_size = fetch.latency_ms, fetch.wire_size
    record.connect_ms, record.head_ms, record.body_ms = fetch.connect_ms, fetch.head_ms, fetch.body_ms
    return record


def _stored(files: list[Path], figures: Figures) -> Iterator[tuple[Capture, bytes]]:
    """Readable captures with their bodies."""
    for path in files:
        with Library(path.parent) as library:
            for found in captures(path):
                figures.tell()
                if isinstance(found, Damage):
                    logger.warning("%s: %d bytes at %d are damaged", path.name, found.length, found.offset)
                    figures.count("damaged")
                    continue
                try:
                    body = library.body(found)
                except CaptureError as error:
                    logger.warning("%s: %s", found.url, error)
                    figures.count("missing" if isinstance(error, CaptureNotFoundError) else "damaged")
                    continue
                figures.count("captures")
                yield found, body
        figures.done += 1
