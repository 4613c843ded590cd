"""Leases and returns one agent's sites, and shares them fairly between agents.

A slow host name delays no other site. Leases whose reply was lost are found and returned. A returned site keeps its
delay.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from crawler.agent import jobs
from crawler.agent.frontier import CheckpointError, Frontier
from crawler.agent.overrides import Overrides, SiteSession
from crawler.agent.requests import request_context_of
from crawler.agent.site_lease import SiteLease
from crawler.options import OptionError
from crawler.queue.errors import StaleLeaseError
from crawler.queue.leases import Ending
from crawler.queue.queue import SiteQueue
from crawler.queue.sites import PROBE_PAGES, Hand, Leased
from crawler.records import Work
from crawler.urls.url import host_of

if TYPE_CHECKING:
    from crawler.agent.politeness import Days
    from crawler.agent.publisher import Outbox
    from crawler.agent.session import Session
    from crawler.fetch.dns import Names
    from crawler.options import Options


# --- Slots per job ---


LOADING: Work = "site"


class SlotAllocation:
    """Divides `slots` among `works`; `fixed` are the slots of jobs that have their own (WORK_SLOTS).

    No shared slot idles while a job has something due; crawling keeps three quarters (benchmarks/dead_links.py). Raises
    OptionError if a job gets no slot.
    """

    def __init__(self, slots: int, works: tuple[Work, ...], fixed: Mapping[Work, int]) -> None:
        self.loading_waits = False  # sites are ready to be crawled
        self._fixed = {work: many for work, many in fixed.items() if work in works}
        needed = sum(self._fixed.values()) + (len(self._fixed) < len(works))
        if slots < needed:
            raise OptionError(
                f"WORK_SLOTS is {dict(fixed)} and SITE_SLOTS is {slots}; expected SITE_SLOTS of {needed} or more for "
                f"{', '.join(works)}"
            )
        self._shared = slots - sum(self._fixed.values())
        # Shared slots for the other jobs while there are sites to crawl; at least one of two.
        self._most_others = max(self._shared // 4, min(1, self._shared // 2))
        self._loads = LOADING in works

    def room(self, work: Work, held: Mapping[Work, int]) -> int:
        """How many more sites a job may lease."""
        if work in self._fixed:
            return max(0, self._fixed[work] - held.get(work, 0))
        free = self._shared - self._in_shared(held)
        if work != LOADING and self._loads and self.loading_waits:
            free = min(free, self._most_others - self._others(held))
        return max(0, free)

    def to_give_up(self, work: Work, held: Mapping[Work, int], due: int) -> int:
        """How many crawled sites to return for a job without a slot."""
        if work == LOADING or work in self._fixed or LOADING in self._fixed or self.room(work, held):
            return 0
        claim = self._most_others - self._others(held)
        return max(0, min(due, claim, held.get(LOADING, 0)))

    def _in_shared(self, held: Mapping[Work, int]) -> int:
        return sum(many for work, many in held.items() if work not in self._fixed)

    def _others(self, held: Mapping[Work, int]) -> int:
        return self._in_shared(held) - (0 if LOADING in self._fixed else held.get(LOADING, 0))


logger = logging.getLogger("agent")

# A site due later than this is returned; its slot is used for another site.
KEEP_SECONDS = 59.0
# Minimum interval between returns for another job, which needs time to lease.
GIVE_UP_SECONDS = 1.0
# Sites per lease call.
LEASE_AT_A_TIME = 16
# Concurrent Redis calls for sites being leased; each takes a connection.
CALLS_AT_A_TIME = 4
# Sites above the fair share that an agent keeps, and pending pages that make a site worth moving.
LEAST_SURPLUS = 2
LEAST_PENDING = 10


class Leasing:
    """One agent's leased sites. `settle` is called with a site that needs its next request."""

    def __init__(
        self,
        session: Session,
        queue: SiteQueue,
        outbox: Outbox,
        names: Names,
        options: Options,
        names_of_works: tuple[Work, ...],
        delay: float,
        user_agent: str,
        days: Days | None,
        settle: Callable[[SiteLease], None],
    ) -> None:
        self.asks = asyncio.Event()  # set when a slot is free or sites were queued
        self._session = session
        self._queue = queue
        self._outbox = outbox
        self._names = names
        self._options = options
        self._overrides = Overrides(options.site_overrides)
        self._delay = delay
        self._user_agent = user_agent
        self._days = days
        self._settle = settle
        # Called with a lease of another job than crawling, and its packet.
        self.begin: Callable[[SiteLease, bytes], None] = lambda _new_lease, _packed: None
        self._division = SlotAllocation(options.site_slots, names_of_works, options.work_slots)
        self._works = names_of_works
        self._gave_up_at = 0.0
        self.elsewhere: Callable[[str], bool] = lambda _site: (
            False
        )  # whether a site is leased elsewhere in this process
        self._slots: dict[str, SiteLease] = {}  # by site; ending ones stay until they are returned
        self._coming: dict[str, Leased] = {}  # leased, not yet active
        self._tasks: set[asyncio.Task[None]] = set()
        self._calls = asyncio.Semaphore(CALLS_AT_A_TIME)
        self._share = 1  # sites the next lease call may take by fairness
        self._orphans: dict[str, str] = {}  # leases known to the server only: site -> token
        self._given: set[str] = set()  # leased sites that received paths
        outbox.left = self._lease_left

    def __len__(self) -> int:
        return len(self._slots) + len(self._coming)

    @property
    def sated(self) -> bool:
        """Whether this agent has its fair share; then it leases one site per call."""
        return self._share <= 0

    def slot_of(self, site: str) -> SiteLease | None:
        """The active lease. None: not leased, or the lease is ending."""
        lease = self._slots.get(site)
        return lease if lease and lease.live else None

    # --- coming ---

    async def lease(self) -> int:
        """Lease sites and return their number. The next call raises errors of their activation."""
        self._raise_errors()
        leased = 0
        for work in self._works:
            leased += await (self._lease_to_load() if work == LOADING else self._lease_for(work))
        return leased

    async def _lease_for(self, work: Work) -> int:
        held = self._held()
        room = min(self._division.room(work, held), LEASE_AT_A_TIME)
        packed = jobs.is_packed(work)
        hand = await self._queue.lease(self._session.name, work, room, self._hour, packed=packed)
        for leased in hand.sites:
            self._begin(leased)
        if hand.ready and len(hand.sites) == room:
            self._give_up(self._division.to_give_up(work, self._held(), hand.ready))
        return len(hand.sites)

    def _give_up(self, many: int) -> None:
        now = asyncio.get_running_loop().time()
        if not many or now - self._gave_up_at < GIVE_UP_SECONDS:
            return
        self._gave_up_at = now
        loading = [lease for lease in self._slots.values() if lease.live and lease.loads]
        for lease in sorted(loading, key=lambda lease: -lease.frontier.pending)[:many]:
            self.end(lease, "returned", "another work is due")

    @property
    def _hour(self) -> int:
        return int(self._session.server_time() // self._options.hour_seconds)

    async def _lease_to_load(self) -> int:
        free = self._division.room(LOADING, self._held())
        # Call even with no free slot: it also reports sites of dead agents and agents below their share.
        wanted = max(0, min(free, LEASE_AT_A_TIME, max(1, self._share)))
        hungry = wanted > 0 and not self.sated
        hand = await self._queue.lease(self._session.name, LOADING, wanted, self._hour, hungry=hungry)
        for leased in hand.sites:
            self._begin(leased)
        self._division.loading_waits = hand.ready > 0
        self._share_out(hand)
        return len(hand.sites)

    def _held(self) -> Counter[Work]:
        held = Counter(lease.leased.work for lease in self._slots.values() if lease.live)
        held.update(leased.work for leased in self._coming.values())
        return held

    def _share_out(self, hand: Hand) -> None:
        """Return surplus sites, at most as many as other agents failed to get."""
        everything = hand.ready + hand.leased
        self._share = -(-everything // max(1, hand.agents)) - self._held()[LOADING]
        surplus = -self._share
        if hand.ready or surplus < LEAST_SURPLUS:
            return
        worth = [
            lease
            for lease in self._slots.values()
            if lease.live and lease.loads and lease.frontier.pending >= LEAST_PENDING
        ]
        for lease in worth[: min(surplus, hand.missing)]:
            self.end(lease, "returned", "shared out")

    def _begin(self, leased: Leased) -> None:
        self._coming[leased.site] = leased
        self._begin_task(self._take_up(leased))

    def _begin_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(lambda _: self.asks.set())

    def _raise_errors(self) -> None:
        """Failed sites are found as orphans later."""
        done = {task for task in self._tasks if task.done()}
        self._tasks -= done
        errors = [error for task in done if (error := task.exception())]
        if errors:
            raise errors[0]

    async def _take_up(self, leased: Leased) -> None:
        try:
            lease = await (
                self._lease_to_crawl(leased) if leased.work == LOADING else self._open_lease(leased)
            )
            if self._days is not None:
                async with self._calls:
                    (lease.day,) = await self._days.open([lease.site])
            if not await self._find_place(lease) or self._coming.get(leased.site) is not leased:
                return
            self._slots[leased.site] = lease
        finally:
            if self._coming.get(leased.site) is leased:
                del self._coming[leased.site]
        if lease.ending:
            self._outbox.end(lease)
        else:
            self._settle(lease)

    async def _lease_to_crawl(self, leased: Leased) -> SiteLease:
        entries, given, budget = await self._checkpoint(leased)
        lease = self._new_lease(leased, self._frontier(leased.site, entries, budget))
        _take_given(lease, given)
        if not lease.frontier:
            lease.add_found(("/",), 0)
        if leased.may_be_alias:
            lease.begin_comparison()
        return lease

    async def _open_lease(self, leased: Leased) -> SiteLease:
        packed = b""
        if jobs.is_packed(leased.work):
            async with self._calls:
                packed = await self._queue.packet(leased.site, leased.work)
        lease = self._new_lease(leased, Frontier())
        self.begin(lease, packed)
        return lease

    async def _checkpoint(self, leased: Leased) -> tuple[list[bytes], list[str], int | None]:
        if not leased.more:
            return [], [], None
        async with self._calls:
            return await self._queue.checkpoint(leased.site)

    def _new_lease(self, leased: Leased, frontier: Frontier) -> SiteLease:
        override = self._overrides.of(leased.site)
        delay = override.delay_or(self._delay)
        site_session = SiteSession(leased.site, override, self._user_agent)
        lease = SiteLease(leased, frontier, 0, site_session, delay, override.connections, delay=delay)
        lease.probe_pages = PROBE_PAGES if leased.probe else None
        return lease

    def _frontier(self, site: str, entries: list[bytes], budget: int | None) -> Frontier:
        pages = self._options.max_pages_per_site if budget is None else budget
        frontier = Frontier(pages, self._options.max_depth, site)
        try:
            frontier.restore(entries)
        except CheckpointError as error:
            logger.warning("site %s: checkpoint unreadable (%s), starting over", site, error)
            frontier = Frontier(pages, self._options.max_depth, site)
            frontier.replace_checkpoint()
        return frontier

    async def _find_place(self, lease: SiteLease) -> bool:
        """Returns False when the lease is lost."""
        try:
            # The smallest of several: a server may list its addresses in any order.
            address = min(await self._names.resolve(host_of(lease.site)))
        except Exception as error:
            # The fetch meets the same error and records it.
            logger.debug("%s: %s", lease.site, error)
            return True
        lease.address = address
        try:
            async with self._calls:
                placed = await self._queue.locate(self._session.name, lease.leased, address)
        except StaleLeaseError:
            return False
        if not placed:
            lease.ending, lease.detail = "parked", address
        return True

    # --- paths from outside ---

    def offered(self) -> Iterator[tuple[str, str, int]]:
        """Links found by other jobs: site, path, depth."""
        for lease in [lease for lease in self._slots.values() if lease.offers]:
            offers, lease.offers = lease.offers, {}
            for path, depth in offers.items():
                yield lease.site, path, depth

    def note_given(self, sites: Iterable[str]) -> None:
        """Mark sites whose new paths `take_given` loads."""
        self._given |= {site for site in sites if self.slot_of(site)}
        if self._given:
            self._outbox.due.set()

    async def take_given(self) -> None:
        """Load new paths into the frontiers.

        Skips sites with a delivery under way: it deletes list entries.
        """
        for site in list(self._given):
            lease = self.slot_of(site)
            if lease is not None and lease.loads:
                if lease.packed is not None:
                    continue
                entries = await self._queue.given(site, lease.paths_seen)
                # A site that ended during the call must not count them, so that `leave` sees there are more.
                if entries and self.slot_of(site) is lease:
                    _take_given(lease, entries)
                    self._settle(lease)
            self._given.discard(site)

    # --- going ---

    def end(self, lease: SiteLease, ending: Ending, reason: str = "", due_ms: int = 0) -> None:
        """Stop fetching; return the site once all is published."""
        lease.ending, lease.reason, lease.due_ms = ending, reason or lease.reason, due_ms
        self.keep_distance(lease)
        self._outbox.end(lease)
        self.asks.set()

    def keep_distance(self, lease: SiteLease) -> None:
        """Pass the site's delay on to its next lease."""
        seconds = lease.free_at - asyncio.get_running_loop().time()
        # A finished site may be reopened at once.
        if (not lease.loads or lease.ending == "finished") and lease.started_at and seconds > 0:
            lease.free_at_ms = self.due_ms(seconds)
        if lease.ending == "suspended" and seconds > KEEP_SECONDS:
            lease.ending = "later"
        if lease.ending not in ("returned", "later") or not lease.started_at or seconds <= 0:
            return
        lease.due_ms = max(lease.due_ms, self.due_ms(seconds))
        if seconds > KEEP_SECONDS:
            lease.ending = "later"

    def due_ms(self, seconds: float) -> int:
        """The server time in ms, `seconds` from now."""
        return int((self._session.server_time() + seconds) * 1000)

    def stop(self, sites: Iterable[str]) -> None:
        """Return sites paused or blocked by the operator."""
        for site in sites:
            if lease := self.slot_of(site):
                self.end(lease, "returned", "stopped by the operator")

    def suspend(self, sites: Iterable[str]) -> None:
        """Suspend sites that the plan excludes now."""
        for site in sites:
            if (lease := self.slot_of(site)) and lease.loads:
                self.end(lease, "suspended", "suspended by the plan")

    def count_turn(self, lease: SiteLease) -> None:
        """End leases for a probe or a comparison after a few turns."""
        if lease.probe_pages is not None and lease.live:
            lease.probe_pages -= 1
            if lease.probe_pages <= 0:
                self.end(lease, "suspended", "probed")
        if lease.to_compare is not None and lease.live:
            lease.to_compare -= 1
            if lease.to_compare <= 0:
                self.end(lease, "returned", "compared with another site's pages")

    def lose(self) -> None:
        """Drop all leases."""
        self._coming.clear()
        for lease in list(self._slots.values()):
            self._outbox.drop(lease)

    async def return_all(self, seconds: float) -> None:
        """End every lease; wait at most `seconds` for those being activated."""
        if self._tasks:
            taken, late = await asyncio.wait(self._tasks, timeout=seconds)
            for task in late:
                task.cancel()
            for error in filter(None, (task.exception() for task in taken)):
                logger.debug("not activated: %s", error)
        for lease in list(self._slots.values()):
            lease.in_flight = lease.parsing = 0  # the engine is closed: no response arrives any more
            if lease.live or lease.ending == "suspended":
                self.end(lease, "returned")

    async def find_orphans(self) -> None:
        """Return leases that only the server knows: the reply was lost.

        Only in the second call in a row, since a reply may be under way.
        """
        unknown = {
            site: token
            for site, token in (await self._queue.held(self._session.name)).items()
            if site not in self._slots and site not in self._coming and not self.elsewhere(site)
        }
        for site, token in unknown.items():
            if self._orphans.get(site) == token:
                # Stale if the lease has ended since.
                with suppress(StaleLeaseError):
                    await self._queue.leave(self._session.name, Leased(site, token, True, None), "returned")
        self._orphans = unknown

    def _lease_left(self, lease: SiteLease, gone: bool) -> None:
        """Called by the outbox; `gone` False: new paths were added."""
        if not gone:
            self._begin_task(self._reload(lease))
            return
        if self._slots.get(lease.site) is lease:
            del self._slots[lease.site]
        self.tell_unsent(lease)
        self.asks.set()

    @staticmethod
    def tell_unsent(lease: SiteLease) -> None:
        """Log how many own requests were not sent."""
        # Requests substituted for pages do not count: the page gets a turn in the next lease.
        own = sum(
            (context := request_context_of(one)) is None or context.own for one in lease.own_requests or ()
        )
        if own:
            logger.warning(
                "site %s: %d of the spider's own requests not sent, the site was returned", lease.site, own
            )

    async def _reload(self, lease: SiteLease) -> None:
        try:
            entries = await self._queue.given(lease.site, lease.paths_seen)
        except BaseException:
            self._outbox.end(lease)  # the server reports again that there are more
            raise
        if lease.lost:
            return
        _take_given(lease, entries)
        lease.ending, lease.checkpointed = None, False
        self._settle(lease)


def _take_given(lease: SiteLease, entries: Iterable[str]) -> None:
    bad = lease.take_given(entries)
    if bad:
        logger.warning(
            "site %s: %d invalid paths left out, the first is %.100r; expected /…",
            *(lease.site, len(bad), bad[0]),
        )
