"""Scrapy's SCHEDULER over leased sites: hands the engine one request at a time, each exactly when it is due.

A thin coat: the agent knows the sites, Visits the requests. Scrapy polls a scheduler that gave nothing only every
5 s, so this one wakes the engine itself; that hook is private in Scrapy and checked at start.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from scrapy.core.scheduler import BaseScheduler
from scrapy.utils.defer import deferred_from_coro

from crawler import engine
from crawler import options as our_options
from crawler.agent.agent import Agent
from crawler.agent.visits import OUR_META, Visits
from crawler.agent.wire import wire_of
from crawler.sites.canonical import UrlError, split
from crawler.sites.seeds import Seed

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from twisted.internet.defer import Deferred

logger = logging.getLogger("agent")


class RequestQueue(BaseScheduler):
    """What Scrapy calls its scheduler."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._wake_call: asyncio.TimerHandle | None = None
        options = our_options.read(crawler.settings)
        self.agent = Agent(crawler, options, wire_of(crawler).names, self._wake_engine)
        self._visits = Visits(crawler, self.agent)
        self._seeds: list[Seed] = []

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> RequestQueue:
        """Built by Scrapy; OptionError where a setting cannot be used."""
        return cls(crawler)

    def open(self, spider: Spider) -> Deferred[None]:
        """Join the crawl."""
        engine.check(self._crawler)
        return deferred_from_coro(self.agent.open(spider))

    def close(self, reason: str) -> Deferred[None]:
        """Give everything back."""
        if self._wake_call:
            self._wake_call.cancel()
        return deferred_from_coro(self.agent.close(reason))

    def has_pending_requests(self) -> bool:
        """Whether the crawl goes on; only the agent knows."""
        return not self.agent.ended

    def next_request(self) -> Request | None:
        """The request that is due now; None: the engine is woken when there is one."""
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
        if "slot" in request.meta:
            # The user copied a response's meta; what is ours in it belongs to that other request.
            kept = {key: value for key, value in request.meta.items() if key not in OUR_META}
            request = request.replace(meta=kept)
        try:
            site, path = split(request.url)
        except UrlError as error:
            logger.warning("%s", error)
            return False
        plain = request.method == "GET" and not request.body and request.callback in (None, self._parse)
        if plain and request.meta.get("is_start_request"):
            asyncio.ensure_future(self._add_seed(Seed(site, path)))  # noqa: RUF006
            return True
        return self._follow(request, site, path, plain=plain)

    def _take_back(self, request: Request) -> bool:
        """A request of a slot that a middleware made anew: its turn comes again when the delay allows it."""
        slot = request.meta["slot"]
        slot.in_flight -= 1
        if slot.live:
            self.agent.hold(slot, request)
        else:
            self.agent.settle(slot)
        return bool(slot.live)

    @property
    def _parse(self) -> object:
        return getattr(self._crawler.spider, "parse", None)

    def _follow(self, request: Request, site: str, path: str, *, plain: bool) -> bool:
        slot = self.agent.leasing.slot_of(site)
        if plain and slot:
            if not self.agent.scope.has_page(site + path):
                return False
            new = slot.frontier.add((path,), int(request.meta.get("depth", 0)) + 1)
            self.agent.settle(slot)
            return bool(new)
        if slot:
            self.agent.hold(slot, request)
            return True
        if plain:
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

    async def _add_seed(self, seed: Seed) -> None:
        self.agent.seeding.starting += 1
        try:
            await self.agent.seeding.queue_seeds([seed])
        finally:
            self.agent.seeding.starting -= 1

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
