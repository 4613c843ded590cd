"""Scrapy's SCHEDULER over leased sites: returns each request exactly when it is due.

It wakes the engine itself, since Scrapy polls only every 5 s.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import TYPE_CHECKING

from scrapy.core.scheduler import BaseScheduler
from scrapy.utils.defer import deferred_from_coro

from crawler import engine
from crawler import options as our_options
from crawler.agent import feed_file
from crawler.agent.agent import Agent
from crawler.agent.fetcher import PageFetcher
from crawler.agent.page import Chain
from crawler.agent.requests import OwnRequests, beyond_link, carried, giver_of, request_context_of
from crawler.fetch.wire import leave, wire_of
from crawler.urls.seeds import Seed
from crawler.urls.url import UrlError, resolve

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from twisted.internet.defer import Deferred

    from crawler.agent.requests import RequestContext
    from crawler.agent.site_lease import SiteLease

logger = logging.getLogger("agent")

# Allocations between garbage collections; Python's default of 700 is exceeded every page or two.
GC_ALLOCATIONS = 20_000


class RequestQueue(BaseScheduler):
    """The class in Scrapy's SCHEDULER."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._wake_call: asyncio.TimerHandle | None = None
        options = our_options.read_checked(crawler.settings)
        self._wire = wire_of(crawler)
        chain = Chain(crawler, options.page_pipelines)
        self.agent = Agent(crawler, options, self._wire.names, chain, self._wake_engine)
        self._visits = PageFetcher(crawler, self.agent, chain)
        self._own = OwnRequests(crawler, options.max_pages_per_site)
        self._reported: set[str] = set()

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> RequestQueue:
        """Raises OptionError if a setting is invalid."""
        return cls(crawler)

    def open(self, spider: Spider) -> Deferred[None]:
        """Join the crawl."""
        engine.check(self._crawler)
        # Reference counts free pages; cycle detection over all objects of a crawl took 8% of the CPU.
        gc.freeze()
        gc.set_threshold(GC_ALLOCATIONS, *gc.get_threshold()[1:])
        # The resolver belongs to the wire; without our download handler nothing else would close it.
        self._wire.users += 1
        return deferred_from_coro(self._open(spider))

    async def _open(self, spider: Spider) -> None:
        await self.agent.open(spider)
        feed_file.begin(self._crawler, goes_on=self.agent.goes_on)

    def close(self, reason: str) -> Deferred[None]:
        """Leave the crawl."""
        if self._wake_call:
            self._wake_call.cancel()
        self._visits.end_parsed()
        return deferred_from_coro(self._close(reason))

    async def _close(self, reason: str) -> None:
        await self.agent.close(reason)
        feed_file.leave_without_items(self._crawler, finished=reason == "finished")
        await leave(self._crawler)

    def has_pending_requests(self) -> bool:
        """Whether the crawl goes on."""
        return not self.agent.ended

    def next_request(self) -> Request | None:
        """Returns None when no request is due; the engine is woken later."""
        self._visits.end_parsed()
        while lease := self.agent.next_lease():
            request = self._visits.next_request(lease)
            if request is not None:
                return request
        self._sleep()
        return None

    def enqueue_request(self, request: Request) -> bool:
        """Accept a user's own request, a start URL or a substitute."""
        context, giver = request_context_of(request), giver_of(request)
        if context is not None and context.replacement is request:
            return self._take_back(context, request)
        once_more = self._visits.is_copy(request)
        request = self._visits.freed(request)
        if len(request.url) > self.agent.max_url_length:
            logger.info("%.80s… is longer than URLLENGTH_LIMIT (%d)", request.url, self.agent.max_url_length)
            return False
        try:
            site, path = resolve(request.url)
        except UrlError as error:
            logger.warning("%s", error)
            return False
        more, data = beyond_link(request, self._crawler.spider), carried(request, context)
        if not more and request.meta.get("is_start_request"):
            self._log_dropped(request, "a seed", data)
            self.agent.seeding.give(Seed(site, path))
            return True
        lease = self.agent.leasing.slot_of(site)
        if lease is None:
            return self._leave_to_others(request, site, path, more, data)
        if more or data or once_more:
            return self._hold_own(lease, request)
        if lease is not giver:
            self.agent.offers.add(site, (path,), request.meta.get("depth", 0))
            return True
        return self._add_page(lease, path, request.meta.get("depth", 0))

    def _take_back(self, context: RequestContext, request: Request) -> bool:
        """Hold a substitute until the delay allows it."""
        context.end()
        # Also if the site is being returned: unsent requests are logged then.
        self.agent.hold(context.lease, request)
        return context.lease.live

    def _add_page(self, lease: SiteLease, path: str, depth: int) -> bool:
        """Whether it is a new page."""
        if not self.agent.scope.has_page(lease.site + path):
            return False
        new = lease.add_found((path,), depth)
        self.agent.settle(lease)
        return bool(new)

    def _hold_own(self, lease: SiteLease, request: Request) -> bool:
        taken = self._own.take(lease, request)
        if taken:
            self.agent.hold(lease, request)
        return taken

    def _leave_to_others(
        self, request: Request, site: str, path: str, more: list[str], data: list[str]
    ) -> bool:
        """Offer a link to a site not leased here; drop other requests."""
        if not more:
            if self.agent.scope.has_site(site):
                self._log_dropped(request, "a link to a site that is not leased here", data)
            self.agent.offers.add(site, (path,), request.meta.get("depth", 0))
            return True
        logger.warning(
            "%s dropped: it has %s, and its site is not leased here; expected a request to the site of the page that "
            "yielded it, or a plain link",
            request.url,
            " and ".join(more),
        )
        return False

    def _log_dropped(self, request: Request, what: str, data: list[str]) -> None:
        """Once per kind of data."""
        kinds = {f"{what}: {name.partition('[')[0]}" for name in data}
        if kinds <= self._reported:
            return
        self._reported |= kinds
        logger.warning(
            "%s handled as %s, without its %s; expected SITE_OVERRIDES for data of all requests to a site, or a "
            "request to the site of the page that yielded it (logged once)",
            request.url,
            what,
            ", ".join(data),
        )

    def _sleep(self) -> None:
        if self._wake_call:
            self._wake_call.cancel()
            self._wake_call = None
        seconds = self.agent.seconds_until_ready()
        if seconds is not None:
            self._wake_call = asyncio.get_running_loop().call_later(seconds, self._wake_engine)

    def _wake_engine(self) -> None:
        engine.wake(self._crawler)
