"""Scrapy's SCHEDULER over leased sites: hands the engine one request at a time, each exactly when it is due.

A thin coat: the agent knows the sites, Visits the requests. Scrapy polls a scheduler that gave nothing only every
5 s, so this one wakes the engine itself; that hook is private in Scrapy and checked at start.
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

# Objects made and not freed until Python looks for cycles; its own 700 is passed with every page or two.
GC_ALLOCATIONS = 20_000


class RequestQueue(BaseScheduler):
    """What Scrapy calls its scheduler."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._wake_call: asyncio.TimerHandle | None = None
        options = our_options.read_checked(crawler.settings)
        self._wire = wire_of(crawler)
        chain = Chain(crawler, options.page_pipelines)
        self.agent = Agent(crawler, options, self._wire.names, chain, self._wake_engine)
        self._visits = PageFetcher(crawler, self.agent, chain)
        self._own = OwnRequests(crawler, options.max_pages_per_site)
        self._told: set[str] = set()

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> RequestQueue:
        """Built by Scrapy; OptionError where a setting cannot be used."""
        return cls(crawler)

    def open(self, spider: Spider) -> Deferred[None]:
        """Join the crawl."""
        engine.check(self._crawler)
        # Pages are freed by their reference counts; looking for cycles in all that a crawl holds took 8 % of its CPU.
        gc.freeze()
        gc.set_threshold(GC_ALLOCATIONS, *gc.get_threshold()[1:])
        # The names are the wire's; where no download handler is ours, nobody else would close it.
        self._wire.users += 1
        return deferred_from_coro(self._open(spider))

    async def _open(self, spider: Spider) -> None:
        await self.agent.open(spider)
        feed_file.begin(self._crawler, goes_on=self.agent.goes_on)

    def close(self, reason: str) -> Deferred[None]:
        """Give everything back."""
        if self._wake_call:
            self._wake_call.cancel()
        self._visits.end_parsed()
        return deferred_from_coro(self._close(reason))

    async def _close(self, reason: str) -> None:
        await self.agent.close(reason)
        feed_file.leave_without_items(self._crawler, finished=reason == "finished")
        await leave(self._crawler)

    def has_pending_requests(self) -> bool:
        """Whether the crawl goes on; only the agent knows."""
        return not self.agent.ended

    def next_request(self) -> Request | None:
        """The request that is due now; None: the engine is woken when there is one."""
        self._visits.end_parsed()
        while lease := self.agent.next_lease():
            request = self._visits.next_request(lease)
            if request is not None:
                return request
        self._sleep()
        return None

    def enqueue_request(self, request: Request) -> bool:
        """A request from outside the frontier: a user's own, a start URL, or one that a middleware made anew."""
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
            self._tell_dropped(request, "a seed", data)
            self.agent.seeding.give(Seed(site, path))
            return True
        lease = self.agent.leasing.slot_of(site)
        if lease is None:
            return self._leave_to_others(request, site, path, more, data)
        if more or data or once_more:
            return self._fetch_beside(lease, request)
        if lease is not giver:
            self.agent.offers.add(site, (path,), request.meta.get("depth", 0))
            return True
        return self._add_page(lease, path, request.meta.get("depth", 0))

    def _take_back(self, context: RequestContext, request: Request) -> bool:
        """What a middleware put in a request's place: its turn comes when the delay allows it."""
        context.end()
        # Also where the site goes back: what is not sent is told then.
        self.agent.hold(context.lease, request)
        return context.lease.live

    def _add_page(self, lease: SiteLease, path: str, depth: int) -> bool:
        """A link of a site in hand to a page of its own; whether it is a new one."""
        if not self.agent.scope.has_page(lease.site + path):
            return False
        new = lease.add_found((path,), depth)
        self.agent.settle(lease)
        return bool(new)

    def _fetch_beside(self, lease: SiteLease, request: Request) -> bool:
        taken = self._own.take(lease, request)
        if taken:
            self.agent.hold(lease, request)
        return taken

    def _leave_to_others(
        self, request: Request, site: str, path: str, more: list[str], data: list[str]
    ) -> bool:
        """A site that is not in hand, whoever may hold it: a link leads there, anything else cannot be sent."""
        if not more:
            if self.agent.scope.has_site(site):
                self._tell_dropped(request, "a link to a site that is not in hand", data)
            self.agent.offers.add(site, (path,), request.meta.get("depth", 0))
            return True
        logger.warning(
            "%s was dropped: it has %s, and its site is not in hand; expected a request to the site of the page that "
            "gave it, or a plain link",
            request.url,
            " and ".join(more),
        )
        return False

    def _tell_dropped(self, request: Request, what: str, data: list[str]) -> None:
        """Say what a page has no room for: once for each kind of data, for there may be many links."""
        kinds = {f"{what}: {name.partition('[')[0]}" for name in data}
        if kinds <= self._told:
            return
        self._told |= kinds
        logger.warning(
            "%s is taken as %s, without its %s; expected SITE_OVERRIDES for what all requests to a site have, or a "
            "request to the site of the page that gave it (told once)",
            request.url,
            what,
            ", ".join(data),
        )

    def _sleep(self) -> None:
        """Wake the engine when the next slot is ready."""
        if self._wake_call:
            self._wake_call.cancel()
            self._wake_call = None
        seconds = self.agent.seconds_until_ready()
        if seconds is not None:
            self._wake_call = asyncio.get_running_loop().call_later(seconds, self._wake_engine)

    def _wake_engine(self) -> None:
        engine.wake(self._crawler)
