"""One agent: keeps its session, leases sites, says which page is fetched next, and takes in how it went.

Everything that talks to Redis runs in tasks of its own beside the event loop's other work, waits out a server that
is away (said once, back-off up to 5 s), and never raises into Scrapy. What it promises: one request at a time per
site, never earlier than the site's delay; nothing fetched on a lease that may have run out; a finished page is
published together with what it taught the frontier, or fetched again by whoever holds the site next.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import os
import random
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from crawler import engine, records
from crawler.agent import robots
from crawler.agent.answers import LONGEST_REST_SECONDS, rest_of
from crawler.agent.frontier import CheckpointError, Frontier
from crawler.agent.outbox import Outbox
from crawler.agent.seeding import NoContactError, Seeding
from crawler.agent.slots import Slot
from crawler.sites import connection
from crawler.sites.canonical import host_of
from crawler.sites.queue import Depth, Leased, Newcomer, SessionGoneError, SiteQueue, StaleLeaseError
from crawler.sites.scope import Scope

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler

    from crawler.agent.names import Names
    from crawler.options import Options

logger = logging.getLogger("agent")

# A site due a minute or more from now goes back to the queue; its slot is worth more to another site.
KEEP_SECONDS = 59.0
# An agent with idle slots asks this often.
ASK_SECONDS = 0.25
LONGEST_BACK_OFF_SECONDS = 5.0
# How often the inlet is looked at.
INLET_SECONDS = 1.0
# Of the lease time: an agent whose last renewal is older fetches nothing, for its sites may be another's.
STALE_SHARE = 0.8
# How long an ending agent tries to tell Redis what it has.
PARTING_SECONDS = 15.0
# A rest is up to this share longer than its rule says.
REST_SPREAD = 0.1
# Sites beyond its fair share that an agent keeps, and pages left that make a site worth moving to another.
LEAST_SURPLUS = 2
LEAST_PENDING = 10
# Sites named in the last lines that are due later.
NAMED_AT_THE_END = 10
# Sites asked for in one lease call.
LEASE_AT_A_TIME = 16


class Agent:
    """The state and the tasks of one agent. `wake` is called whenever a page may have become ready."""

    def __init__(self, crawler: Crawler, options: Options, names: Names, wake: Callable[[], None]) -> None:
        self.options = options
        self.crawler = crawler
        self.scope = Scope(options)
        self.name = f"{socket.gethostname().split('.')[0]}-{os.getpid()}-{os.urandom(2).hex()}"
        self.run = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        self.user_agent = robots.product(crawler.settings["USER_AGENT"])
        self.max_url_length: int = crawler.settings.getint("URLLENGTH_LIMIT")
        self.ended = False  # nothing is left anywhere, or something went wrong for good
        self.pages = 0
        self._names = names
        self._wake = wake
        self._client = connection.connect(crawler.settings)
        self.queue = SiteQueue(self._client, options)
        self.outbox = Outbox(self.queue, self.name, self.run, options.spool_records, self._slot_left)
        self.seeding = Seeding(
            self._client, self.queue, options, self.scope, self.outbox, crawler.settings["USER_AGENT"]
        )
        self._slots: dict[str, Slot] = {}  # by site; ending ones stay until they were given back
        self._ready: list[tuple[float, int, Slot]] = []  # heap: due, tie-break
        self._tie = itertools.count()
        self._renewed = 0.0
        self._server_ahead = 0.0  # the server's clock beyond ours that counts suspension
        self._rejoining = asyncio.Lock()
        self._paused = False  # the results stream is too long
        self._tasks: list[asyncio.Task[None]] = []
        self._stop = asyncio.Event()
        self._flush_now = asyncio.Event()
        self._lease_now = asyncio.Event()
        self._found: dict[str, list[str]] = {}  # sites met in links, to be queued
        self._asked_for: set[str] = set()  # sites this agent has queued or seen refused
        self._share = 1  # sites that the next lease call may ask for by fairness
        self._told_away = False
        self._orphans: dict[str, str] = {}  # held by the server's account only: site -> token
        self._closing: asyncio.Task[None] | None = None

    # --- life ---

    async def open(self, spider: Spider) -> None:
        """Join the crawl and start working; where that cannot be, the reason is told and the crawl ends."""
        self._started_at = _now_ms()
        try:
            await self.claim(spider.name)
            await self._join(spider.name)
            await self._tell_run(spider.name, ended=False)
        except PrefixTakenError as error:
            logger.error("%s", error)
            self._give_up("prefix_taken")
            return
        except (RedisError, OSError) as error:
            logger.error("REDIS_URL %s does not answer: %s", connection.told(self.crawler.settings), error)
            self._give_up("redis_away")
            return
        loops = (self._lease_loop, self._renew_loop, self._flush_loop, self._seed_loop)
        self._tasks = [
            asyncio.ensure_future(self._persist(loop, str(getattr(spider, "seeds", "") or "")))
            for loop in loops
        ]

    async def claim(self, spider: str) -> None:
        """Make sure that the prefix's crawl is this spider's."""
        holder = await self.queue.claim_prefix(spider)
        if holder != spider:
            prefix = self.options.key_prefix
            raise PrefixTakenError(
                f"KEY_PREFIX {prefix!r} holds the crawl of spider {holder!r}, not of {spider!r}; wanted a prefix of "
                f"its own (-s KEY_PREFIX={spider})"
            )

    async def close(self, spider: Spider, reason: str) -> None:
        """Give everything back; what cannot be told within PARTING_SECONDS is left to the next holder."""
        await self._stop_loops()
        for slot in list(self._slots.values()):
            slot.in_flight = 0  # the engine is closed: no answer comes any more
            if slot.live:
                self._end(slot, "returned")
        try:
            if not self._tasks:
                return  # never joined
            async with asyncio.timeout(PARTING_SECONDS):
                await self._part(spider, reason)
        except (RedisError, OSError, TimeoutError) as error:
            logger.warning(
                "%d finished pages could not be published and will be fetched again: %s",
                len(self.outbox),
                error,
            )
        await self._client.aclose()

    async def _stop_loops(self) -> None:
        """Let every loop end by itself, for a Redis command that is cancelled half way spoils its connection."""
        for event in (self._stop, self._flush_now, self._lease_now):
            event.set()
        left = set(self._tasks)
        while left:
            _, left = await asyncio.wait(left, timeout=PARTING_SECONDS / 3)
            for task in left:
                task.cancel()

    async def _pause(self, seconds: float) -> None:
        """Sleep, but not beyond the agent's end."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

    async def _part(self, spider: Spider, reason: str) -> None:
        delay = 0.1
        while True:
            try:
                while not self.outbox.empty:
                    await self.outbox.flush()
                await self._discover()
                await self._tell_run(spider.name, ended=True, reason=reason)
                await self.queue.part(self.name)
            except (RedisError, OSError):
                await asyncio.sleep(delay)
                delay = min(delay * 2, LONGEST_BACK_OFF_SECONDS)
            else:
                return

    async def _tell_run(self, spider: str, *, ended: bool, reason: str = "") -> None:
        moment = records.RunMoment(
            spider=spider,
            started_at=self._started_at,
            ended_at=_now_ms() if ended else 0,
            reason=reason,
            scheduler=self.options.site_scheduler,
        )
        await self.queue.tell([self.outbox.numbered(moment)])

    async def _join(self, spider: str) -> None:
        about = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "spider": spider,
            "slots": self.options.site_slots,
        }
        before = _boottime()
        self._server_ahead = await self.queue.join(self.name, about) / 1000 - before
        self._renewed = before

    def _server_time(self) -> float:
        """Seconds since 1970 on the server's clock: this machine's own may be an hour off."""
        return _boottime() + self._server_ahead

    async def _persist(self, loop: Callable[[str], Awaitable[None]], seeds: str) -> None:
        """Run a loop for ever: a server that is away is waited for, anything else ends the crawl."""
        delay = 0.1
        while not self._stop.is_set():
            try:
                await loop(seeds)
                return
            except SessionGoneError:
                await self._rejoin()
            except (RedisError, OSError) as error:
                self._say_away(error)
                await self._pause(delay)
                delay = min(delay * 2, LONGEST_BACK_OFF_SECONDS)
            except NoContactError as error:
                logger.error("%s", error)
                self._give_up("no_contact")
                return
            except Exception:
                logger.exception("the agent cannot go on")
                self._give_up("agent_failed")
                return

    def _say_away(self, error: Exception) -> None:
        if not self._told_away:
            self._told_away = True
            logger.warning("Redis is away (%s); waiting for it, finished pages are kept", error)

    def _say_back(self) -> None:
        if self._told_away:
            self._told_away = False
            logger.warning("Redis is back")

    async def _rejoin(self) -> None:
        """The session was swept: all sites are others' now. Several loops may hear of it; the first one acts."""
        assert self.crawler.spider
        async with self._rejoining:
            try:
                with suppress(SessionGoneError):
                    await self.queue.renew(self.name, self.pages)
                    return
                logger.warning(
                    "this agent was silent for too long and lost its %d sites; it starts over",
                    len(self._slots),
                )
                for slot in list(self._slots.values()):
                    self.outbox.drop(slot)
                await self._join(self.crawler.spider.name)
            except (RedisError, OSError) as error:
                self._say_away(error)

    def _give_up(self, reason: str) -> None:
        """Close the crawl with this reason; the engine's own end (`ended`) would call it finished."""
        self._closing = asyncio.ensure_future(engine.close(self.crawler, reason))

    # --- the loops ---

    async def _renew_loop(self, _seeds: str) -> None:
        while not self._stop.is_set():
            before = _boottime()
            stop = await self.queue.renew(self.name, self.pages)
            self._renewed = before
            self._say_back()
            for site in stop:
                self._stop_site(site)
            self._watch_stream(await self.queue.depth())
            await self._find_orphans()
            await self.seeding.refresh_scope()
            await self._pause(self.options.lease_seconds / 3)

    async def _flush_loop(self, _seeds: str) -> None:
        while not self._stop.is_set():
            self._flush_now.clear()
            if not self.outbox.empty:
                await self.outbox.flush()
                self._say_back()
            await self._discover()
            if len(self.outbox) < self.options.flush_records:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._flush_now.wait(), self.options.flush_seconds)

    async def _seed_loop(self, seeds: str) -> None:
        await self.seeding.take_in(seeds)
        self._lease_now.set()
        while not self._stop.is_set():
            if await self.seeding.drain_inlet():
                self._lease_now.set()
            await self._pause(INLET_SECONDS)

    async def _lease_loop(self, _seeds: str) -> None:
        while not self._stop.is_set():
            self._lease_now.clear()
            got = await self._lease()
            if not got and await self._nothing_left():
                await self._finish()
                return
            if not got or self._share <= 0:
                await self._idle()

    async def _idle(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._lease_now.wait(), ASK_SECONDS)

    async def _lease(self) -> int:
        if self.outbox.full:
            return 0
        free = self.options.site_slots - sum(slot.live for slot in self._slots.values())
        # With no slot free it asks for none, and yet hears of dead agents' sites and of agents that have too few.
        wanted = max(0, min(free, LEASE_AT_A_TIME, max(1, self._share)))
        hour = int(self._server_time() // self.options.hour_seconds)
        hand = await self.queue.lease(self.name, "site", wanted, hour)
        everything = hand.ready + hand.leased
        held = sum(slot.live for slot in self._slots.values()) + len(hand.sites)
        # What is fair now bounds the next call; an agent that has its share asks for one more at each look only,
        # so that the first to come does not take all there is and yet no slot idles.
        self._share = -(-everything // max(1, hand.agents)) - held
        taken = await asyncio.gather(*map(self._take_up, hand.sites), return_exceptions=True)
        for error in taken:
            if isinstance(error, BaseException):
                raise error  # what was not taken up is found as an orphan
        if not hand.ready:
            self._share_out(-self._share)
        return len(hand.sites)

    def _share_out(self, surplus: int) -> None:
        """Nothing waits for agents that came later: give them what is beyond a fair share and worth the move."""
        if surplus < LEAST_SURPLUS:
            return
        worth = [
            slot for slot in self._slots.values() if slot.live and slot.frontier.pending >= LEAST_PENDING
        ]
        for slot in worth[:surplus]:
            self._end(slot, "returned", reason="shared out")

    async def _find_orphans(self) -> None:
        """Sites that the server says are ours and that we do not know, twice in a row: a lease's reply was lost.

        Once is no proof: a reply may be on its way.
        """
        unknown = {
            site: token
            for site, token in (await self.queue.held(self.name)).items()
            if site not in self._slots
        }
        for site, token in unknown.items():
            if self._orphans.get(site) == token:
                # Refused where it went its way meanwhile.
                with suppress(StaleLeaseError):
                    await self.queue.leave(self.name, Leased(site, token, True, None), "returned")
        self._orphans = unknown

    # --- sites ---

    async def _take_up(self, leased: Leased) -> None:
        """Make a slot of a leased site: its checkpoint, its address, its place among the ready."""
        entries, paths, budget = await self.queue.checkpoint(leased.site) if leased.more else ([], [], None)
        frontier = self._frontier(leased.site, entries, budget)
        frontier.add(
            itertools.chain.from_iterable(text.split("\n") for text in paths) if paths else ("/",), 0
        )
        slot = Slot(leased, frontier, len(paths), self.crawler.settings.getfloat("DOWNLOAD_DELAY"))
        self._slots[leased.site] = slot
        try:
            if not await self._find_place(slot):
                return
        except BaseException:
            self._slots.pop(leased.site, None)  # nobody would ever turn to it; so it is found as an orphan
            raise
        self._push(slot, asyncio.get_running_loop().time())
        self._wake()

    def _frontier(self, site: str, entries: list[bytes], budget: int | None) -> Frontier:
        pages = self.options.max_pages_per_site if budget is None else budget
        frontier = Frontier(pages, self.options.max_depth)
        try:
            frontier.restore(entries)
        except CheckpointError as error:
            logger.warning("%s: its checkpoint cannot be read (%s); the site begins anew", site, error)
            frontier = Frontier(pages, self.options.max_depth)
            frontier.replace_checkpoint()
        return frontier

    async def _find_place(self, slot: Slot) -> bool:
        """Take a place on the site's address; where all are taken, the site waits for one in the queue."""
        try:
            address = (await self._names.resolve(host_of(slot.site)))[0]
        except Exception as error:
            # Whatever is wrong with the name, the fetch will meet it too and record it.
            logger.debug("%s: %s", slot.site, error)
            return True
        slot.address = address
        try:
            placed = await self.queue.locate(self.name, slot.leased, address)
        except StaleLeaseError:
            self.outbox.drop(slot)
            return False
        if not placed:
            slot.detail = address
            self._end(slot, "parked")
        return placed

    def _push(self, slot: Slot, due: float) -> None:
        slot.due = due
        heapq.heappush(self._ready, (due, next(self._tie), slot))

    def _end(self, slot: Slot, ending: Any, reason: str = "", due_ms: int = 0) -> None:
        slot.ending, slot.reason, slot.due_ms = ending, reason or slot.reason, due_ms
        self._keep_distance(slot)
        self.outbox.end(slot)
        self._flush_now.set()
        self._lease_now.set()

    def _keep_distance(self, slot: Slot) -> None:
        """Whoever holds a returned site next asks it no earlier than this agent would have."""
        seconds = max(slot.due, slot.started_at + slot.delay) - asyncio.get_running_loop().time()
        if slot.ending == "returned" and slot.started_at and seconds > 0:
            slot.due_ms = int((self._server_time() + seconds) * 1000)
            if seconds > KEEP_SECONDS:
                slot.ending = "later"

    def _slot_left(self, slot: Slot) -> None:
        """Called by the outbox: the slot was given back, lost, or goes on with paths given meanwhile."""
        if slot.ending is None and not slot.lost:
            asyncio.ensure_future(self._reload(slot))  # noqa: RUF006
            return
        if self._slots.get(slot.site) is slot:
            del self._slots[slot.site]
        self._lease_now.set()

    async def _reload(self, slot: Slot) -> None:
        try:
            _, paths, _ = await self.queue.checkpoint(slot.site)
        except (RedisError, OSError) as error:
            self._say_away(error)
            self._end(slot, "returned")
            return
        slot.frontier.add(itertools.chain.from_iterable(text.split("\n") for text in paths), 0)
        slot.paths_seen = len(paths)
        slot.checkpointed = False
        self.settle(slot)

    def _stop_site(self, site: str) -> None:
        slot = self._slots.get(site)
        if slot and slot.live:
            self._end(slot, "returned", reason="stopped by the operator")

    # --- pages ---

    def next_slot(self) -> Slot | None:
        """A slot that may send a request now, taken from the ready ones; None: nothing is due (or may be)."""
        now = asyncio.get_running_loop().time()
        if not self._may_fetch():
            return None
        while self._ready and self._ready[0][0] <= now:
            due, _, slot = heapq.heappop(self._ready)
            # An entry older than the slot's last word on when it is due counts for nothing.
            if slot.live and not slot.in_flight and due == slot.due:
                return slot
        return None

    def seconds_until_ready(self) -> float | None:
        """When `next_slot` is worth asking again; None: not before `wake` is called."""
        if not self._may_fetch():
            return ASK_SECONDS
        if not self._ready:
            return None
        return max(0.0, self._ready[0][0] - asyncio.get_running_loop().time())

    def settle(self, slot: Slot) -> None:
        """A request of this slot has ended, or was not needed: find when it is asked next, or that it is finished."""
        if not slot.live or slot.in_flight:
            if slot.ending is not None:
                self._keep_distance(slot)
                self._flush_now.set()
            return
        now = asyncio.get_running_loop().time()
        due = now if slot.own_requests else slot.frontier.next_due(now)
        if due is None:
            if not slot.parsing:
                self._end(slot, "finished")
            return
        due = max(due, slot.started_at + slot.delay)
        if slot.due > now:  # the site rests
            due = max(due, slot.due)
        if due - now > KEEP_SECONDS:
            self._end(slot, "later", slot.reason, int((self._server_time() + due - now) * 1000))
        else:
            self._push(slot, due)
            self._wake()

    def rest(self, slot: Slot, seconds: float | None, reason: str) -> None:
        """Leave the site alone for a while; None: as long as its record of failures asks."""
        if seconds is None:
            # Spread, so that sites that failed together do not come back together.
            seconds = rest_of(slot.frontier.strikes) * random.uniform(1.0, 1.0 + REST_SPREAD)
        seconds = min(seconds, LONGEST_REST_SECONDS)
        slot.frontier.strikes += 1
        slot.reason = reason
        slot.due = asyncio.get_running_loop().time() + seconds
        logger.info("%s rests for %.0f s: %s", slot.site, seconds, reason)

    def publish(self, slot: Slot, page: records.Page, links: bytes = b"") -> None:
        """A page's turn has ended: its record goes out with the next flush."""
        self.pages += 1
        self.outbox.add(slot, page, links)
        if len(self.outbox) >= self.options.flush_records:
            self._flush_now.set()

    def ask_for_alias(self, slot: Slot, sha256: str) -> None:
        """The site's root page is loaded: is it another site's under this name? Asked with the next flush, soon."""
        slot.root = f"{slot.address} {sha256[:16]}"
        self._flush_now.set()

    def discover(self, site: str, paths: list[str]) -> None:
        """A link leads to another site: it is queued with the next flush, if the scope has it."""
        if site in self._asked_for or not self.scope.discovers or not self.scope.has_site(site):
            return
        if not self.seeding.may_visit(site):
            return
        self._asked_for.add(site)
        self._found[site] = paths[:4]

    def hold(self, slot: Slot, request: Any, *, first: bool = False) -> None:
        """Keep a user's own request to a site in hand until the site's delay allows it."""
        if slot.own_requests is None:
            slot.own_requests = deque()
        (slot.own_requests.appendleft if first else slot.own_requests.append)(request)
        self.settle(slot)

    def slot_of(self, site: str) -> Slot | None:
        """The slot of a site that is in hand and goes on."""
        slot = self._slots.get(site)
        return slot if slot and slot.live else None

    async def _discover(self) -> None:
        if not self._found:
            return
        found, self._found = self._found, {}
        newcomers = [
            Newcomer(
                site,
                self.outbox.numbered(records.SiteFound(site=site, found_at=_now_ms(), source="link")),
                ("/", *paths),
            )
            for site, paths in found.items()
        ]
        try:
            await self.queue.discover(newcomers, self.options.max_sites)
        except BaseException:
            self._found = {**found, **self._found}
            raise
        self._lease_now.set()

    def may_send(self, slot: Slot) -> bool:
        """Asked when a connection is there and the request about to leave: the process may have slept since its turn.

        From this moment the site's delay counts, not from the turn.
        """
        slot.started_at = asyncio.get_running_loop().time()
        return not slot.lost and self._leases_hold()

    def _may_fetch(self) -> bool:
        return self._leases_hold() and not self._paused and not self.outbox.full

    def _leases_hold(self) -> bool:
        return _boottime() - self._renewed < STALE_SHARE * self.options.lease_seconds

    def _watch_stream(self, depth: Depth) -> None:
        most = self.options.stream_max_records
        if depth.records >= most and not self._paused:
            self._paused = True
            logger.warning(
                "%d records wait in the results stream (STREAM_MAX_RECORDS %d): fetching pauses; is a coordinator "
                "running?",
                depth.records,
                most,
            )
        elif self._paused and depth.records <= most // 2:
            self._paused = False
            logger.warning("the results stream is down to %d records: fetching goes on", depth.records)
            self._wake()

    # --- the end ---

    async def _nothing_left(self) -> bool:
        if self._slots or self._found or not self.seeding.done or self.options.when_idle == "wait":
            return False
        if not self.outbox.empty or await self.seeding.inlet_length():
            return False
        return (await self.queue.depth()).open == 0

    async def _finish(self) -> None:
        """Say what is left for later, and let the engine end."""
        depth = await self.queue.depth()
        if depth.added == 0:
            logger.error(
                "no seeds: wanted -a seeds=FILE or -a seeds=URL,URL, or `redis-cli lpush %s URL` with --when-idle wait",
                self.options.start_urls_key,
            )
            self._give_up("no_seeds")
            return
        if not self.pages and not depth.later:
            logger.info(
                "nothing was left to do: %d sites are finished; --again walks them anew", depth.finished
            )
        if depth.later:
            waiting = await self.queue.due("site", NAMED_AT_THE_END)
            logger.info(
                "%d sites wait until later and go on in the next run: %s", depth.later, _listed(waiting)
            )
        if depth.paused:
            logger.info("%d sites are paused and stay so", depth.paused)
        self.ended = True
        self._wake()


class PrefixTakenError(Exception):
    """Another spider's crawl lives under this key prefix."""


def _listed(waiting: list[tuple[str, int, str]]) -> str:
    return "; ".join(
        f"{site} until {time.strftime('%H:%M:%S', time.localtime(due / 1000))}" + (f" ({why})" if why else "")
        for site, due, why in waiting
    )


def _now_ms() -> int:
    return int(time.time() * 1000)


def _boottime() -> float:
    """Seconds on a clock that goes on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
