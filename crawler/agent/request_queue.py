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
from crawler.agent.agent import Agent
from crawler.agent.downloader import COUNT
from crawler.agent.own_requests import OwnRequests, carries, default_callbacks, is_get_for
from crawler.agent.visits import OUR_META, Visits
from crawler.agent.wire import leave, wire_of
from crawler.sites.canonical import UrlError, split
from crawler.sites.seeds import Seed

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from twisted.internet.defer import Deferred

    from crawler.agent.slots import Slot

logger = logging.getLogger("agent")

# Objects made and not freed until Python looks for cycles; its own 700 is passed with every page or two.
GC_ALLOCATIONS = 20_000

_NOT_COPIED = OUR_META | {COUNT}


class RequestQueue(BaseScheduler):
    """What Scrapy calls its scheduler."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._wake_call: asyncio.TimerHandle | None = None
        options = our_options.read(crawler.settings)
        self._wire = wire_of(crawler)
        self.agent = Agent(crawler, options, self._wire.names, self._wake_engine)
        self._visits = Visits(crawler, self.agent)
        self._own = OwnRequests(crawler, options.max_pages_per_site)
        self._seeds: list[Seed] = []

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
        return deferred_from_coro(self.agent.open(spider))

    def close(self, reason: str) -> Deferred[None]:
        """Give everything back."""
        if self._wake_call:
            self._wake_call.cancel()
        self._visits.end_parsed()
        return deferred_from_coro(self._close(reason))

    async def _close(self, reason: str) -> None:
        await self.agent.close(reason)
        await leave(self._crawler)

    def has_pending_requests(self) -> bool:
        """Whether the crawl goes on; only the agent knows."""
        return not self.agent.ended

    def next_request(self) -> Request | None:
        """The request that is due now; None: the engine is woken when there is one."""
        self._visits.end_parsed()
        while slot := self.agent.next_slot():
            request = self._visits.next_request(slot)
            if request is not None:
                return request
        self._sleep()
        return None

    def enqueue_request(self, request: Request) -> bool:
        """A request from outside the frontier: a user's own, a start URL, or one that a middleware made anew."""
        if self._visits.is_ours(request):
            return self._take_back(request)
        copied = "slot" in request.meta
        if copied:
            # The user copied a response's meta; what is ours in it belongs to that other request.
            kept = {key: value for key, value in request.meta.items() if key not in _NOT_COPIED}
            request = request.replace(meta=kept)
        if len(request.url) > self.agent.max_url_length:
            logger.info("%.80s… is longer than URLLENGTH_LIMIT (%d)", request.url, self.agent.max_url_length)
            return False
        try:
            site, path = split(request.url)
        except UrlError as error:
            logger.warning("%s", error)
            return False
        as_link = is_get_for(request, default_callbacks(self._crawler.spider))
        if as_link and request.meta.get("is_start_request"):
            self.agent.seeding.give(Seed(site, path))
            return True
        slot = self.agent.leasing.slot_of(site)
        if slot and as_link and not carries(request, copied=copied):
            return self._add_page(slot, path, request.meta.get("depth", 0))
        if slot:
            return self._fetch_beside(slot, request)
        return self._leave_to_others(request, site, path, as_link=as_link)

    def _take_back(self, request: Request) -> bool:
        """A request of a slot that a middleware made anew: its turn comes again when the delay allows it."""
        slot = request.meta["slot"]
        slot.in_flight -= 1
        if slot.live:
            self.agent.hold(slot, request)
        else:
            self.agent.settle(slot)
        return bool(slot.live)

    def _add_page(self, slot: Slot, path: str, depth: int) -> bool:
        """A link to a page of a site in hand; whether it is a new one."""
        if not self.agent.scope.has_page(slot.site + path):
            return False
        new = slot.frontier.add((path,), depth)
        self.agent.settle(slot)
        return bool(new)

    def _fetch_beside(self, slot: Slot, request: Request) -> bool:
        taken = self._own.take(slot, request)
        if taken:
            self.agent.hold(slot, request)
        return taken

    def _leave_to_others(self, request: Request, site: str, path: str, *, as_link: bool) -> bool:
        """A site that is not in hand, whoever may hold it: a link leads there, anything else cannot be sent."""
        if as_link:
            self.agent.seeding.met(site, [path])
            return True
        logger.warning(
            "%s %s was dropped: a request with a callback of its own goes to a site that this agent holds; "
            "wanted one to %s's own site, or a plain link",
            request.method,
            request.url,
            self._crawler.spider,
        )
        return False

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
