"""The work `status` of one agent: sites that are due are leased in batches, checked, told of and given back in batches.

It has slots of its own, and a check has no frontier and no checkpoint: what it found goes into the results stream in
the call that ends its lease and sets when the site is due again. So a site costs one lease and one hand-in, shared with
many others, and its own requests. A check that takes long gives up its slot to a quick one and goes on among the slow
ones: what hangs holds up nobody. While Redis is away what was found waits; it is told also where the lease was lost
meanwhile, for it was seen.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from redis.exceptions import RedisError
from scrapy.exceptions import CannotResolveHostError

from crawler import engine
from crawler.agent.jobs.site_check import Asker, NotAskedError, Permit, SiteCheck
from crawler.agent.overrides import Dress, Overrides
from crawler.queue.queue import BrokenRecordError, HandedIn, Leased, SiteQueue, StaleLeaseError
from crawler.urls.url import host_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy.crawler import Crawler

    from crawler.agent.daily import Days, SiteDay
    from crawler.agent.jobs.site_check import Found
    from crawler.agent.session import Session
    from crawler.fetch.dns import Names
    from crawler.options import Options
    from crawler.records import Work

logger = logging.getLogger("agent")

CHECKING: Work = "status"
# Sites asked for in one lease call, and handed in by one.
LEASE_AT_A_TIME = HAND_IN_AT_A_TIME = 64
# Fewer free slots than these are not worth a call.
LEAST_AT_A_TIME = 16
# A check that takes longer gives up its slot to a quick one.
SLOW_SECONDS = 1.0
# With idle slots it is asked this often.
ASK_SECONDS = 0.25
# How often it is looked whether all sites have a due time, which a lost queue has not.
ENROL_SECONDS = 5.0
# Open files that are left to everything else.
OTHER_FILES = 256
# A site whose address has no place is asked again after this, one that was not asked at all as well.
AGAIN_SECONDS = 1.0


class Checking:
    """One agent's checks. Its loops are `lease_loop` and `hand_in_loop`, kept by the session."""

    def __init__(
        self,
        crawler: Crawler,
        session: Session,
        queue: SiteQueue,
        names: Names,
        options: Options,
        delay: float,
        user_agent: str,
        max_url_length: int,
        days: Days | None,
    ) -> None:
        self._session = session
        self._queue = queue
        self._names = names
        self._days = days
        self._options = options
        self._overrides = Overrides(options.site_overrides)
        self._delay = delay
        self._user_agent = user_agent
        self._asker = Asker(crawler, options, session.server_time, max_url_length)
        self._running: dict[str, asyncio.Task[None]] = {}  # by site
        self._slow: set[str] = set()  # of these
        self._least = max(1, min(LEAST_AT_A_TIME, options.status_slots // 4))
        self._slow_after = min(SLOW_SECONDS, options.status_delay_seconds)
        self._most_slow = min(options.status_slow_slots, _files())
        self._done: list[HandedIn] = []  # found, and not yet handed in
        self._going: set[str] = set()  # their sites
        self._enough = asyncio.Event()  # so many are done that they should not wait for their time
        self._free = asyncio.Event()  # a slot has come free
        self._enrol_at = 0.0
        self._losses = 0  # how often all leases were lost
        # A lease call is to come or under way: what it gives is in nobody's list.
        self._asking = True

    @property
    def busy(self) -> bool:
        """Whether sites are in hand, or anything is still to be told."""
        return bool(self._asking or self._running or self._done)

    def holds(self, site: str) -> bool:
        """Whether the site is in hand here, or on its way back."""
        return site in self._running or site in self._going

    # --- coming ---

    async def lease_loop(self) -> None:
        """Lease sites that are due, and check them."""
        while not self._session.stopping.is_set():
            self._free.clear()
            await self._enrol()
            got = await self._lease()
            if not got:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._free.wait(), ASK_SECONDS)

    async def _enrol(self) -> None:
        """Every site of the crawl gets a due time, once; those that are found later get theirs when they are."""
        now = asyncio.get_running_loop().time()
        if now < self._enrol_at:
            return
        await self._queue.monitor(CHECKING)
        self._enrol_at = now + ENROL_SECONDS

    async def _lease(self) -> int:
        room = min(self._room, LEASE_AT_A_TIME)
        # An engine that closes waits for all that is under way: with new checks always some would be.
        if room < self._least or not self._session.holds or engine.closing(self._asker.crawler):
            return 0
        self._asking = True
        try:
            return await self._lease_some(room)
        finally:
            self._asking = False

    async def _lease_some(self, room: int) -> int:
        hour = int(self._session.server_time() // self._options.hour_seconds)
        hand = await self._queue.lease(self._session.name, CHECKING, room, hour)
        if not hand.sites:
            return 0
        sites = [leased.site for leased in hand.sites]
        permits = await self._queue.permits(sites)
        days: Sequence[SiteDay | None] = [None] * len(sites)
        if self._days is not None:
            days = await self._days.open(sites)
        for leased, permit, day in zip(hand.sites, permits, days, strict=True):
            self._begin(leased, permit, day)
        return len(hand.sites)

    @property
    def _room(self) -> int:
        """Sites that may be taken now; none while what was found cannot be told, or too many hang."""
        if len(self._slow) >= self._most_slow or len(self._done) >= self._options.spool_records:
            return 0
        return self._options.status_slots - (len(self._running) - len(self._slow))

    def _begin(self, leased: Leased, permit: str, day: SiteDay | None) -> None:
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._check(leased, permit, day, self._losses))
        self._running[leased.site] = task
        timer = loop.call_later(self._slow_after, self._turn_slow, leased.site)
        task.add_done_callback(lambda ended: self._end(leased.site, ended, timer))

    def _turn_slow(self, site: str) -> None:
        self._slow.add(site)
        self._free.set()

    def _end(self, site: str, ended: asyncio.Task[None], timer: asyncio.TimerHandle) -> None:
        timer.cancel()
        # After a loss the same site may have come again.
        if self._running.get(site) is ended:
            del self._running[site]
            self._slow.discard(site)
        self._free.set()

    # --- one site ---

    async def _check(self, leased: Leased, permit: str, day: SiteDay | None, losses: int) -> None:
        loop, began = asyncio.get_running_loop(), self._session.server_time()
        override = self._overrides.of(leased.site)
        check = SiteCheck(
            self._asker,
            leased.site,
            Dress(leased.site, override, self._user_agent),
            override.delay_or(self._delay),
            Permit.read(permit),
            partial(self._may_send, losses),
            day,
        )
        due = began + self._options.status_interval_seconds
        found: Found | None = None
        try:
            if await self._has_place(leased):
                found = await check.run()
                due += found.closed_seconds
            else:
                due = began + AGAIN_SECONDS
        except (NotAskedError, RedisError, OSError, BrokenRecordError):
            due = began + AGAIN_SECONDS if day is None or not day.used_up() else day.tomorrow
        except Exception:
            logger.exception("%s: its status could not be checked", leased.site)
        rests_until = 0.0
        if check.last_asked and (left := check.last_asked + check.delay - loop.time()) > 0:
            rests_until = self._session.server_time() + left
        self._tell(leased, found, due, rests_until)

    def _tell(self, leased: Leased, found: Found | None, due: float, rests_until: float) -> None:
        record = b""
        if found is not None and found.health is not None:
            record = self._session.author.numbered(found.health)
            self._session.pages += 1
        permit = "" if found is None or found.permit is None else str(found.permit)
        handed = HandedIn(leased.site, leased.token, int(due * 1000), int(rests_until * 1000), permit, record)
        self._done.append(handed)
        self._going.add(leased.site)
        if len(self._done) >= HAND_IN_AT_A_TIME:
            self._enough.set()

    async def _has_place(self, leased: Leased) -> bool:
        """Take a place on the site's address, where the lease has not; True where it has none: the check will tell."""
        try:
            address = min(await self._names.resolve(host_of(leased.site)))
        except CannotResolveHostError:
            return True
        if address == leased.address:
            return True
        try:
            return await self._queue.locate(self._session.name, leased, address)
        except StaleLeaseError:
            return False

    def _may_send(self, losses: int) -> bool:
        """Whether a lease that was had after so many losses holds for certain, and the agent goes on."""
        return losses == self._losses and self._session.holds and not engine.closing(self._asker.crawler)

    # --- going ---

    async def hand_in_loop(self) -> None:
        """Tell what was found and give the sites back, many at a time."""
        while not self._session.stopping.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._enough.wait(), self._options.flush_seconds)
            await self.hand_in()

    async def hand_in(self) -> None:
        """Everything that is done by now; a connection error leaves what is not handed in, and may be asked again."""
        self._enough.clear()
        if self._days is not None:
            await self._days.tell()
        while self._done:
            some = self._done[:HAND_IN_AT_A_TIME]
            await self._queue.hand_in(self._session.name, some)
            del self._done[: len(some)]
            self._going.difference_update(one.site for one in some)
            self._session.say_back()

    def lose(self) -> None:
        """All leases are others' now: nothing more is asked; what comes to questions under way is told all the same."""
        self._losses += 1

    async def close(self, seconds: float) -> None:
        """Wait for what is under way, so long at most; what was not asked to its end is asked by the next agent."""
        running = list(self._running.values())
        if running:
            _, late = await asyncio.wait(running, timeout=seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)


def _files() -> int:
    """Slow checks that the process's open files allow, each with a socket."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if most == resource.RLIM_INFINITY else max(1, (most - OTHER_FILES) // 2)
