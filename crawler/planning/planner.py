"""Plans the hours: which sites come first, and which running ones are suspended. One planner holds the lock.

It plans when an hour begins, and within an hour when the plan no longer fits (see `_why_plan`). If it stops, another
takes over within LOCK_SECONDS; without a planner agents use the remaining lists, then the order of listing. Raises
connection errors; call `look` again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from redis.exceptions import RedisError

from crawler import schedulers
from crawler.planning import site_view
from crawler.planning.site_view import Hours, Prospects
from crawler.queue.errors import LockLostError
from crawler.queue.queue import SiteQueue
from crawler.queue.sites import PROBE_PAGES, Depth
from crawler.schedulers import SchedulerError, SiteScheduler, SiteView, table

if TYPE_CHECKING:
    from crawler.options import Options

logger = logging.getLogger("planner")

# How often to check whether the plan still fits; more often if hours are short.
LOOK_SECONDS = 1.0
LOOKS_PER_HOUR = 50
# A planner without a renewal for this long loses the lock.
LOCK_SECONDS = 5.0
# Names left in the hour's list per slot at which it is refilled.
LOW_WATER = 4
# Replan when errors freed this share of the slots, or the number of sites grew by this share.
ERRORS_SHARE, FOUND_SHARE = 0.2, 0.2
# Replan when a site has this many times the planned pages, and at least LEAST_GROWTH.
GROWTH, LEAST_GROWTH = 2.0, 100
# Up to this many visits, replan whenever their number has doubled: the first ones reveal sizes and paces. Without it a
# simulated crawl of 100 sites took 16.7 hours instead of 14.8.
FEW_VISITS = 1000
# Replanning within an hour takes at most this share of the planner's time.
BUSY_SHARE = 0.1
# Share of all slots' time for probes.
PROBE_SHARE = 0.01


class Loads(Protocol):
    """Source of sites' loads."""

    def hours(self, sites: Sequence[str], hour: int, hour_seconds: float) -> Hours:
        """Hours of these sites from this one on (counted since 1970, each of `hour_seconds`)."""

    def visits(self) -> int:
        """Number of visits known."""


class Orders(NamedTuple):
    """What the agents announce; without agents, the planner's own settings."""

    scheduler: str
    scheduler_options: str  # JSON
    hour_seconds: float
    delay_seconds: float
    pages_per_site: int  # at most; 0: no limit
    slots: int

    @property
    def options(self) -> dict[str, Any]:
        """The policy's arguments."""
        found: dict[str, Any] = json.loads(self.scheduler_options)
        return found


class Moment(NamedTuple):
    """Now, by the server's clock."""

    hour: int  # since 1970
    hour_left: float  # share of it
    orders: Orders
    loads: bool = True  # some agent has slots for crawling, or no agent has joined yet


class Why(NamedTuple):
    """The reason for a plan, and whether it may suspend running sites."""

    words: str
    suspends: bool
    begins: bool = False  # the first plan of the hour


class Seen(NamedTuple):
    """The sites as the policy sees them."""

    hour: int
    orders: Orders
    prospects: Prospects
    hours: Hours
    view: SiteView


class Plan(NamedTuple):
    """The inputs of the hour's plan, to detect when it no longer fits."""

    hour: int
    orders: Orders
    added: int  # sites known to the queue
    later: int  # sites in back-off
    left: dict[str, float]  # running sites -> pages still to fetch, as estimated
    visits: int  # known at that time
    seconds: float  # spent on planning
    made_at: float  # monotonic
    said: tuple[str, int]  # reason, and number of waiting sites


class Chosen(NamedTuple):
    """A policy's choice, as rows."""

    line: np.ndarray  # waiting, best first
    suspended: np.ndarray  # running, to be suspended


class Planner:
    """Call `look` repeatedly."""

    def __init__(self, queue: SiteQueue, options: Options, loads: Loads, name: str) -> None:
        self._queue = queue
        self._options = options
        self._loads = loads
        self._name = name
        self._plan: Plan | None = None
        self._scheduler: tuple[str, str, SiteScheduler] | None = None
        self._holds = False

    async def look(self) -> float:
        """Plans if needed; returns the seconds until the next call."""
        if not await self._lock():
            self._plan = None
            return LOOK_SECONDS
        moment = await self._moment()
        if moment.loads and (why := await self._why_plan(moment)):
            with suppress(LockLostError):
                async with self._holding():
                    await self._make(moment, why)
        until_change = moment.hour_left * moment.orders.hour_seconds
        return max(0.01, min(LOOK_SECONDS, moment.orders.hour_seconds / LOOKS_PER_HOUR, until_change))

    async def see(self) -> Seen:
        """The sites as the policy would see them now, without planning."""
        return await self._see(await self._moment())

    def columns(self, seen: Seen, top: int) -> list[list[int]]:
        """The hour table: rows of the best `top` sites in each of the next 24 hours."""
        return table.hours(seen.view, self._policy(seen.orders), top, seen.hours.is_open)

    async def _moment(self) -> Moment:
        agents = await self._queue.agents()
        orders = self._orders(agents)
        hour, passed = divmod(await self._queue.server_seconds(), orders.hour_seconds)
        loads = not agents or any(one.get("slots", 1) for one in agents)
        return Moment(int(hour), 1 - passed / orders.hour_seconds, orders, loads)

    async def _lock(self) -> int:
        number = await self._queue.lock("planner", self._name, LOCK_SECONDS)
        if bool(number) != self._holds:
            self._holds = bool(number)
            logger.info(
                "%s %s",
                self._name,
                "plans the hours" if number else "is on standby: another planner holds the lock",
            )
        return number

    @asynccontextmanager
    async def _holding(self) -> AsyncIterator[None]:
        task = asyncio.ensure_future(self._keep_lock())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError, RedisError, OSError):
                await task

    async def _keep_lock(self) -> None:
        while True:
            await asyncio.sleep(LOCK_SECONDS / 3)
            await asyncio.shield(self._queue.lock("planner", self._name, LOCK_SECONDS))

    # --- When to plan ---

    async def _why_plan(self, moment: Moment) -> Why | None:
        hour, _, orders, _ = moment
        plan = self._plan
        if plan is None or plan.hour != hour:
            if await self._queue.planned_hour() == hour:
                return Why("another planner made its plan", suspends=False)
            return Why("a new hour", suspends=True, begins=True)
        if plan.orders != orders:
            return Why("agents came or went", suspends=False)
        if time.monotonic() - plan.made_at < plan.seconds / BUSY_SHARE:
            return None
        depth = await self._queue.depth()
        if depth.later - plan.later > orders.slots * ERRORS_SHARE:
            return Why(f"{depth.later - plan.later} sites backed off", suspends=True)
        if depth.added > plan.added * (1 + FOUND_SHARE):
            return Why(f"{depth.added - plan.added} sites were found", suspends=False)
        if await self._runs_low(hour, orders, depth):
            return Why("its list runs low", suspends=False)
        if await self._knows_more(plan):
            return Why("twice as many visits are known", suspends=True)
        grown = await self._grown(plan)
        return Why(grown, suspends=True) if grown else None

    async def _runs_low(self, hour: int, orders: Orders, depth: Depth) -> bool:
        left = await self._queue.hour_length(hour)
        if left >= LOW_WATER * orders.slots or left >= depth.waiting + depth.suspended:
            return False
        return left < depth.waiting + depth.suspended - len(await self._queue.parked())

    async def _knows_more(self, plan: Plan) -> bool:
        if plan.visits > FEW_VISITS:
            return False
        return await asyncio.to_thread(self._loads.visits) >= max(plan.orders.slots, GROWTH * plan.visits)

    async def _grown(self, plan: Plan) -> str:
        for site, (known, done) in (await self._queue.running()).items():
            reckoned = plan.left.get(site)
            if reckoned is not None and known - done > max(GROWTH * reckoned, reckoned + LEAST_GROWTH):
                return f"{site} has {known - done} pages to go, {reckoned:.0f} planned"
        return ""

    # --- What the agents announce ---

    def _orders(self, agents: list[dict[str, Any]]) -> Orders:
        alive = sorted((one for one in agents if one["expires_ms"] > 0), key=lambda one: one["joined_ms"])
        own = self._options
        newest = alive[-1] if alive else {}
        return Orders(
            newest.get("scheduler", own.site_scheduler),
            json.dumps(newest.get("scheduler_options", own.site_scheduler_options), sort_keys=True),
            float(newest.get("hour_seconds", own.hour_seconds)),
            float(newest.get("delay_seconds", own.download_delay)),
            int(newest.get("pages_per_site", own.max_pages_per_site)),
            sum(int(one.get("slots", 0)) for one in alive) or own.site_slots,
        )

    def _policy(self, orders: Orders) -> SiteScheduler:
        """The agents' policy; if it is unavailable here, our own. Cached, so a warning is logged once."""
        wanted = (orders.scheduler, orders.scheduler_options)
        if self._scheduler is None or self._scheduler[:2] != wanted:
            self._scheduler = (*wanted, self._built(orders))
        return self._scheduler[2]

    def _built(self, orders: Orders) -> SiteScheduler:
        own = self._options
        try:
            # Redis must not choose code to import: other paths must equal this process's setting.
            if orders.scheduler not in (*schedulers.NAMES, own.site_scheduler):
                raise SchedulerError(
                    f"{orders.scheduler} is not set here; expected the same SITE_SCHEDULER in all processes"
                )
            return schedulers.get(orders.scheduler, **orders.options)
        except (SchedulerError, TypeError) as error:
            logger.warning(
                "the agents' SITE_SCHEDULER is unavailable: %s; using %s", error, own.site_scheduler
            )
            return schedulers.get(own.site_scheduler, **own.site_scheduler_options)

    # --- Planning ---

    async def _make(self, moment: Moment, why: Why) -> None:
        began = time.monotonic()
        depth = await self._queue.depth()
        seen = await self._see(moment)
        hour, _, orders, _ = moment
        policy = self._policy(orders)
        running = seen.prospects.running
        chosen = await asyncio.to_thread(choose, policy, seen.view, running, suspends=why.suspends)
        coming = site_view.next_hour(seen.view, seen.hours.is_open)
        ahead = await asyncio.to_thread(lambda: best_first(policy.score(coming)))
        number = await self._queue.lock("planner", self._name, LOCK_SECONDS)
        await self._write(number, hour, seen.prospects.names, chosen, ahead)
        if why.begins:
            await self._probe(number, seen)
            await self._queue.tell_planned(self._name, number, hour)
        visits = await asyncio.to_thread(self._loads.visits)
        seconds = time.monotonic() - began
        left = {seen.prospects.names[row]: float(seen.view.remaining[row]) for row in np.flatnonzero(running)}
        said = (why.words, len(chosen.line))
        # Near the end of a crawl, short lists run low every second: log the repeats at DEBUG.
        level = logging.DEBUG if self._plan and self._plan.said == said and not why.begins else logging.INFO
        self._plan = Plan(
            hour, orders, depth.added, depth.later, left, visits, seconds, time.monotonic(), said
        )
        logger.log(
            level,
            "hour %d, %s: %d sites in line by %s, %d suspended (%.2f s)",
            hour,
            why.words,
            len(chosen.line),
            orders.scheduler,
            len(chosen.suspended),
            seconds,
        )

    async def _see(self, moment: Moment) -> Seen:
        hour, hour_left, orders, _ = moment
        found = await self._prospects()
        hours = await asyncio.to_thread(self._loads.hours, found.names, hour, orders.hour_seconds)
        view = site_view.view(
            found,
            hours,
            slots=orders.slots,
            hour_left=hour_left,
            hour_seconds=orders.hour_seconds,
            delay=orders.delay_seconds,
            most_pages=orders.pages_per_site,
        )
        return Seen(hour, orders, found, hours, view)

    async def _prospects(self) -> Prospects:
        records = [record async for record in self._queue.records()]
        progress, parked = await self._queue.running(), await self._queue.parked()
        return await asyncio.to_thread(site_view.open_sites, records, progress, parked)

    async def _write(
        self, number: int, hour: int, names: list[str], chosen: Chosen, ahead: np.ndarray
    ) -> None:
        # Lists first: agents of suspended sites then find the better ones.
        most = self._options.site_queue_size
        if self._plan is not None and self._plan.hour != hour:
            await self._queue.fill(self._name, number, self._plan.hour, [])
        await self._queue.fill(self._name, number, hour, [names[row] for row in chosen.line[:most]])
        await self._queue.fill(self._name, number, hour + 1, [names[row] for row in ahead[:most]])
        if len(chosen.suspended):
            await self._queue.suspend(self._name, number, [names[row] for row in chosen.suspended])

    async def _probe(self, number: int, seen: Seen) -> None:
        rows = worth_probing(seen.view, seen.prospects.running, seen.hours.is_seen)[: probes_of(seen.view)]
        if len(rows):
            names = [seen.prospects.names[row] for row in rows]
            await self._queue.fill(self._name, number, seen.hour, names, lists="probe")


# --- Pure functions ---


def best_first(score: np.ndarray) -> np.ndarray:
    """Rows by descending score, equal ones in order; without those scored -inf."""
    rows = np.argsort(-score, kind="stable")
    best: np.ndarray = rows[np.isfinite(score[rows])]
    return best


def choose(policy: SiteScheduler, view: SiteView, running: np.ndarray, *, suspends: bool = True) -> Chosen:
    """The waiting sites in order, and the running ones to suspend (none unless `suspends`).

    A running site that the policy does not keep still continues if it is among the best for the slots left.
    """
    score = policy.score(view)
    order = best_first(score)
    rows = np.flatnonzero(running & np.isfinite(score))
    suspended = _gives_way(policy, view, running, order, rows) if suspends else rows[:0]
    stays = running.copy()
    stays[suspended] = False
    return Chosen(order[~stays[order]], suspended)


def _gives_way(
    policy: SiteScheduler, view: SiteView, running: np.ndarray, order: np.ndarray, rows: np.ndarray
) -> np.ndarray:
    kept = rows[policy.keep(view, rows)]
    going = np.zeros(len(running), bool)
    going[kept] = True
    taken = int(running.sum()) - len(rows) + len(kept)  # running sites scored -inf occupy slots too
    going[order[~going[order]][: max(0, view.slots - taken)]] = True
    found: np.ndarray = rows[~going[rows]]
    return found


def worth_probing(view: SiteView, running: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Rows without data for this hour and with work for more than one slot-hour, largest first."""
    pace = np.minimum(view.pages_per_hour, view.pace_cap)
    rows = np.flatnonzero(view.ready & ~running & ~seen & (view.remaining > pace))
    largest: np.ndarray = rows[np.argsort(-(view.remaining[rows] / pace[rows]), kind="stable")]
    return largest


def probes_of(view: SiteView) -> int:
    """Number of probes that fit the hour."""
    pace = float(np.minimum(view.pages_per_hour, view.pace_cap).mean()) if len(view.remaining) else 0.0
    return int(PROBE_SHARE * view.slots * pace / PROBE_PAGES)
