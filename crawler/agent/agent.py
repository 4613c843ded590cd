"""One agent: joins the crawl, schedules requests, publishes results and stops when nothing is left.

Guarantees per site: its concurrency (one by default) and delay, and no request on an expired lease. A page's record and
links are published together; otherwise the page is fetched again.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import random
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

from crawler import engine, records
from crawler.agent import jobs, politeness
from crawler.agent.feed_file import FEEDS_GO_ON
from crawler.agent.jobs.status import CHECKING, Checking
from crawler.agent.leasing import KEEP_SECONDS, LOADING, Leasing
from crawler.agent.offers import Offers
from crawler.agent.page import NotKeptError
from crawler.agent.politeness import DailyCaps, Days
from crawler.agent.publisher import Outbox
from crawler.agent.responses import LONGEST_REST_SECONDS
from crawler.agent.seeding import Added, NoContactError, Seeding
from crawler.agent.session import BackOff, Loop, PrefixTakenError, Session
from crawler.agent.site_lease import SiteLease
from crawler.agent.watch import Losses, StreamWatch
from crawler.queue import connection
from crawler.queue.errors import BrokenRecordError, QueueOlderError
from crawler.queue.queue import SiteQueue
from crawler.queue.sites import Depth, root_marks
from crawler.records import WORKS
from crawler.robots import policy
from crawler.urls.scope import Scope

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler

    from crawler.agent.page import Chain
    from crawler.fetch.dns import Names
    from crawler.options import Options
    from crawler.records import Work

logger = logging.getLogger("agent")

# Interval of lease calls while slots are idle.
ASK_SECONDS = 0.25
# Renewals deliver operator commands, which must take effect within a minute.
LONGEST_RENEWAL_SECONDS = 20.0
# Renewals also deliver suspensions by the plan, which must not be late in the hour.
RENEWALS_PER_HOUR = 60
# Polling interval of the list of start URLs.
INLET_SECONDS = 1.0
# Time for publishing the last records at the end.
PARTING_SECONDS = 15.0
# Random addition to each back-off, as a share.
REST_SPREAD = 0.1
# How long an idle agent waits for due jobs to be packed: without a coordinator, and with one, which must first store
# all earlier results.
PACKING_SECONDS = 10.0
PACKING_BEHIND_SECONDS = 60.0
# How long an idle agent waits for a coordinator to decide on links to finished sites.
COORDINATOR_SECONDS = 60.0
# How long it waits for a coordinator to start and compare possible aliases.
COMPARISON_SECONDS = 5.0
# Sites named in the final log lines.
NAMED_AT_THE_END = 10


class NoCoordinatorError(Exception):
    """No coordinator decides on links to finished sites."""


class Agent:
    """State and tasks of one agent. `wake` is called when a page may be ready."""

    def __init__(
        self, crawler: Crawler, options: Options, names: Names, chain: Chain, wake: Callable[[], None]
    ) -> None:
        settings = crawler.settings
        self.options = options
        self.crawler = crawler
        self.scope = Scope(options)
        self.max_url_length: int = settings.getint("URLLENGTH_LIMIT") or sys.maxsize
        self.ended = False  # nothing is left in the whole crawl, or a permanent error occurred
        # True until the queue says otherwise: a feed that is emptied is lost.
        self.goes_on = True
        self._all_blocked = False  # all seeds of the argument belong to blocked sites
        self.works = _works(crawler, options)
        self._chain = chain
        self._stuck = False  # the archive is not writable
        self._wake = wake
        self._client = connection.connect(settings)
        self.queue = SiteQueue(self._client, options)
        self.session = Session(self.queue, options, lost=self._lose)
        serves_itself = connection.serves_itself(crawler)
        self._losses = Losses(self.queue, self.session.server_time, serves_itself=serves_itself)
        author = self.session.author
        self.outbox = Outbox(self.queue, author, options.spool_records, options.flush_records)
        self.seeding = Seeding(self._client, self.queue, options, self.scope, author, settings["USER_AGENT"])
        self.seeding.starting = partial(engine.starting, crawler)
        self.offers = Offers(self.queue, options, self.scope, author, self.seeding)
        self._days = _days(options, self.queue, self.session)
        self.leasing = self._make_leasing(names)
        self.checking = self._make_checking(names)
        self.leasing.elsewhere = self.checking.holds
        self._ready: list[tuple[float, int, SiteLease]] = []  # heap: due, tie-break
        self._tie = itertools.count()
        self._last_in_hand = 0.0  # loop time when a site was last leased; initially that of the first check
        self._seeded = False  # seeds were queued
        self._sites_known = 0  # number of sites in the queue at the last check
        self._idle_since_ms = 0  # server time when nothing was left to crawl; 0: something is
        self._stream = StreamWatch(options.stream_max_records, options.lease_seconds)
        self._tasks: list[asyncio.Task[None]] = []
        self._closing: asyncio.Task[None] | None = None

    def _make_leasing(self, names: Names) -> Leasing:
        settings = self.crawler.settings
        return Leasing(
            self.session,
            self.queue,
            self.outbox,
            names,
            self.options,
            tuple(work for work in self.works if work != CHECKING),
            settings.getfloat("DOWNLOAD_DELAY"),
            policy.product(settings["USER_AGENT"]),
            self._days,
            self.settle,
        )

    def _make_checking(self, names: Names) -> Checking:
        settings = self.crawler.settings
        return Checking(
            self.crawler,
            self.session,
            self.queue,
            names,
            self.options,
            settings.getfloat("DOWNLOAD_DELAY"),
            policy.product(settings["USER_AGENT"]),
            self.max_url_length,
            self._days,
        )

    def _lose(self) -> None:
        self._losses.dropped = True
        self.leasing.lose()
        self.checking.lose()
        self.offers.forget()

    # --- life ---

    async def open(self, spider: Spider) -> None:
        """Join the crawl and start the loops; on failure, close the crawl."""
        self._seeds = str(getattr(spider, "seeds", "") or "")
        try:
            self.goes_on = await self._has_begun()
            await self.session.open(spider.name, self.works)
            await self._report_run()
        except PrefixTakenError as error:
            self._give_up("prefix_taken", str(error))
            return
        except (RedisError, OSError) as error:
            if isinstance(error, RedisError) and (connection.lasts(error) or connection.is_full(error)):
                reason = "redis_away" if connection.is_full(error) else "queue_broken"
                self._give_up(reason, connection.explained(self.crawler.settings, error))
                return
            where = connection.told(self.crawler.settings)
            self._give_up("redis_away", f"REDIS_URL {where} does not answer: {error}")
            return
        loops: tuple[Loop, ...] = (self._lease_loop, self._renew_loop, self._flush_loop, self._seed_loop)
        if CHECKING in self.works:
            loops += (self.checking.lease_loop, self.checking.hand_in_loop)
        self._tasks = [asyncio.ensure_future(self._run(loop)) for loop in loops]

    async def _has_begun(self) -> bool:
        known = self.crawler.settings.get(FEEDS_GO_ON)
        if known is not None:
            return self.crawler.settings.getbool(FEEDS_GO_ON)
        try:
            return await self.queue.has_begun(again=self.options.walk_again)
        except (BrokenRecordError, ResponseError):  # the loops meet and report the same error
            return True

    async def close(self, reason: str) -> None:
        """Return all leases, within PARTING_SECONDS."""
        joined = bool(self._tasks)
        await self._stop_loops()
        await self.checking.close(PARTING_SECONDS / 3)
        await self.leasing.return_all(PARTING_SECONDS / 3)
        try:
            if joined:
                async with asyncio.timeout(PARTING_SECONDS):
                    await self._part(reason)
        except (RedisError, OSError, TimeoutError, BrokenRecordError) as error:
            logger.warning(
                "%d finished pages not published, they will be fetched again: %s",
                len(self.outbox),
                str(error) or f"no answer within {PARTING_SECONDS:.0f} s",
            )
        self._chain.close()
        await self._client.aclose()

    async def _stop_loops(self) -> None:
        """Loops end by themselves: cancelling a Redis command breaks its connection."""
        for event in (self.session.stopping, self.outbox.due, self.leasing.asks, self.seeding.given):
            event.set()
        left = set(self._tasks)
        while left:
            _, left = await asyncio.wait(left, timeout=PARTING_SECONDS / 3)
            for task in left:
                task.cancel()

    async def _part(self, reason: str) -> None:
        back_off = BackOff()
        if self.offers.waits:
            self.leasing.lose()  # pages of unsent offers must not be published; other agents fetch them again
        while True:
            try:
                while not self.outbox.empty:
                    await self._flush()
                    await asyncio.sleep(0)  # yield so that PARTING_SECONDS can elapse
                await self.checking.hand_in()
                if self._days is not None:
                    await self._days.tell()
                await self._report_run(reason, ended=True)
                await self.queue.part(self.session.name)
            except QueueOlderError:
                self._lose()
            except (RedisError, OSError, NotKeptError) as error:
                if connection.lasts(error):
                    raise
                await asyncio.sleep(back_off.next())
            else:
                return

    async def _report_run(self, reason: str = "", *, ended: bool = False) -> None:
        moment = self.session.author.numbered(self.session.moment(reason, ended=ended))
        try:
            await self.queue.tell([moment])
        except RedisConnectionError:
            # The server closed the connection: a new one works, or raises the reason.
            await self.queue.tell([moment])

    def _give_up(self, reason: str, message: str) -> None:
        """Close the crawl; the first reason wins, and `ended` would report success."""
        if self._closing:
            return
        logger.error("%s", message)
        self.crawler.stats.set_value("finish_why", message)
        self._closing = asyncio.ensure_future(engine.close(self.crawler, reason))

    # --- the loops ---

    async def _run(self, loop: Loop) -> None:
        try:
            await self.session.keep(loop)
        except NoContactError as error:
            self._give_up("no_contact", str(error))
        except NoCoordinatorError as error:
            self._give_up("no_coordinator", str(error))
        except BrokenRecordError as error:
            self._give_up("queue_broken", str(error))
        except RedisError as error:
            self._give_up("queue_broken", connection.explained(self.crawler.settings, error))
        except Exception:
            logger.exception("unexpected error in the agent")
            self._give_up("agent_failed", "the agent stopped after an unexpected error")

    async def _renew_loop(self) -> None:
        while not self.session.stopping.is_set():
            renewed = await self.session.renew()
            self.leasing.stop(renewed.stop)
            self.leasing.suspend(renewed.suspend)
            self.leasing.note_given(renewed.given)
            self.session.say_back()
            depth = await self.queue.depth()
            if self._stream.look(depth):
                self._wake()
            self.outbox.packs = self._stream.long
            await self._losses.warn_if_lost()
            await self.leasing.find_orphans()
            if await self.seeding.refresh_scope() or depth.added != self._sites_known:
                self._sites_known = depth.added
                self.offers.look_again()
            await self.session.pause(self._renewal_seconds)

    @property
    def _renewal_seconds(self) -> float:
        shortest = min(self.options.lease_seconds / 3, LONGEST_RENEWAL_SECONDS)
        return min(shortest, self.options.hour_seconds / RENEWALS_PER_HOUR)

    async def _flush_loop(self) -> None:
        while not self.session.stopping.is_set():
            try:
                await self._flush()
            except NotKeptError as error:
                self._warn_stuck(error)
            with suppress(TimeoutError):
                await asyncio.wait_for(self.outbox.due.wait(), self.options.flush_seconds)

    def _warn_stuck(self, error: NotKeptError) -> None:
        if not self._stuck:
            self._stuck = True
            logger.warning("%s; publishing is paused until the archive is writable", error)

    async def _flush(self) -> None:
        """Publish finished pages; links to other sites go first, since they are found only once."""
        self.outbox.pack()
        await self._chain.flush()
        if self._stuck:
            self._stuck = False
            logger.warning("the archive is writable again, publishing resumes")
        if self.outbox.full or self.offers.full:
            self.seeding.stop_waiting()
        for site, path, depth in self.leasing.offered():
            self.offers.add(site, (path,), depth)
        if not self.offers.empty and await self.offers.send():
            self.leasing.asks.set()
        if self._days is not None:
            await self._days.tell()
        if not self.outbox.empty and not self.offers.waits:
            await self.outbox.flush()
            self.session.say_back()
        await self.leasing.take_given()

    async def _seed_loop(self) -> None:
        added = await self.seeding.take_in(self._seeds)
        self._all_blocked = added.blocked == sum(added) > 0
        self._seeded = added.new + added.known + added.again > 0
        if added.bad + added.left_out == sum(added) > 0:
            self._give_up("no_seeds", _no_seeds(added))
            return
        self.leasing.asks.set()
        while not self.session.stopping.is_set():
            if await self.seeding.queue_given() + await self.seeding.drain_inlet():
                self.leasing.asks.set()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.seeding.given.wait(), INLET_SECONDS)

    async def _lease_loop(self) -> None:
        self._last_in_hand = asyncio.get_running_loop().time()
        while not self.session.stopping.is_set():
            self.leasing.asks.clear()
            got = 0 if self.outbox.full else await self.leasing.lease()
            if self.leasing:
                self._last_in_hand = asyncio.get_running_loop().time()
                self._idle_since_ms = 0
            if got or not await self._nothing_left():
                self._losses.begin_again()
            elif await self._losses.known(await self.queue.depth(), self.session.pages):
                await self._finish()
                return
            if not got or self.leasing.sated:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.leasing.asks.wait(), ASK_SECONDS)

    # --- pages ---

    def next_lease(self) -> SiteLease | None:
        """A site that may send a request now. Returns None when none is due."""
        now = asyncio.get_running_loop().time()
        if not self._may_fetch():
            return None
        while self._ready and self._ready[0][0] <= now:
            due, _, lease = heapq.heappop(self._ready)
            # Skip outdated entries: the due time has changed since, or the entry is a duplicate.
            if lease.live and lease.has_room and due == lease.due:
                lease.due = 0.0
                return lease
        return None

    def seconds_until_ready(self) -> float | None:
        """Seconds until a site may be ready. Returns None when only `wake` can tell."""
        if not self._may_fetch():
            return ASK_SECONDS
        if not self._ready:
            return None
        return max(0.0, self._ready[0][0] - asyncio.get_running_loop().time())

    def settle(self, lease: SiteLease) -> None:
        """Schedule a site's next request, or end its lease."""
        if not lease.live or not lease.has_room:
            if lease.ending is not None:
                self.leasing.keep_distance(lease)
                self.outbox.due.set()
            return
        now = asyncio.get_running_loop().time()
        due = now if lease.own_requests or lease.robots_hop else lease.frontier.next_due(now)
        if due is None:
            if not lease.busy:
                self.leasing.end(lease, "finished")
            return
        due = now if lease.given_up else max(due, lease.free_at)
        closed = 0.0 if lease.robots_hop else self._closed_for(lease, due - now)
        due += closed
        if due - now > KEEP_SECONDS:
            window = f"robots.txt allows visits {lease.window.in_words}" if closed and lease.window else ""
            self.leasing.end(lease, "later", window or lease.reason, self.leasing.due_ms(due - now))
            return
        lease.due = due
        heapq.heappush(self._ready, (due, next(self._tie), lease))
        self._wake()

    @property
    def hour(self) -> int:
        """The current hour of the server, HOUR_SECONDS long."""
        return int(self.session.server_time() // self.options.hour_seconds)

    def _closed_for(self, lease: SiteLease, seconds: float) -> float:
        return lease.window.wait(self.session.server_time() + seconds) if lease.window else 0.0

    def rest(self, lease: SiteLease, seconds: float, reason: str) -> None:
        """Back off, unless a longer back-off is active."""
        # Random, so that sites that failed together are not retried together.
        seconds = min(seconds * random.uniform(1.0, 1.0 + REST_SPREAD), LONGEST_REST_SECONDS)
        lease.frontier.strikes += 1
        until = asyncio.get_running_loop().time() + seconds
        if until > lease.rests_until:
            lease.rests_until, lease.rests_until_ms = until, self.leasing.due_ms(seconds)
            lease.reason = reason
            logger.info("site %s: backing off for %.0f s: %s", lease.site, seconds, reason)

    def park(self, lease: SiteLease, reason: str) -> None:
        """Return an unreachable site for a pause."""
        lease.frontier.parkings += 1
        seconds = politeness.pause_after(lease.frontier.parkings, self.options.site_probe_seconds)
        seconds *= random.uniform(1.0, 1.0 + REST_SPREAD)
        logger.info("site %s: backing off for %.0f s: %s", lease.site, seconds, reason)
        self.leasing.end(lease, "later", reason, self.leasing.due_ms(seconds))

    def publish(self, lease: SiteLease, page: records.Page, links: bytes = b"") -> None:
        """Publish a page's record with the next flush."""
        self.session.pages += 1
        self.outbox.add(lease, page, links)
        if page.outcome != "denied":
            self.leasing.count_turn(lease)

    def tell(self, lease: SiteLease, record: records.Record) -> None:
        """Publish another job's record with the next flush."""
        self.session.pages += 1
        self.outbox.add(lease, record)

    def ask_for_alias(self, lease: SiteLease, sha256: str) -> None:
        """Check with the next flush whether the site is an alias."""
        lease.root = root_marks(lease.site, lease.address, sha256, lease.robots)
        self.outbox.due.set()

    def hold(self, lease: SiteLease, request: Any) -> None:
        """Hold a user's own request until the site's delay allows it."""
        if lease.own_requests is None:
            lease.own_requests = deque()
        lease.own_requests.append(request)
        self.settle(lease)

    def may_send(self, lease: SiteLease) -> bool:
        """Whether a request may still be sent; the process may have slept since it was scheduled.

        The site's delay counts from here.
        """
        now = asyncio.get_running_loop().time()
        if lease.lost or now < lease.rests_until or not self.session.holds:
            return False
        for_page = lease.rules is not None and not lease.robots_hop
        if for_page and self._closed_for(lease, 0.0):
            return False
        lease.started_at = now
        if lease.has_room:
            self.settle(lease)
        return True

    def _may_fetch(self) -> bool:
        full = self._stream.paused or self.outbox.full or self.offers.full or self._chain.full
        return self.session.holds and not full

    # --- the end ---

    async def _nothing_left(self) -> bool:
        if self._closing or self.options.when_idle == "wait" or engine.starting(self.crawler):
            return False
        if self.leasing or not self.seeding.done:
            return False
        if not (self.outbox.empty and self.offers.empty) or await self.seeding.inlet_length():
            return False
        for work in self.works:
            if await self._has_work(work):
                return False
        return CHECKING not in self.works or not self.checking.busy

    async def _has_work(self, work: Work) -> bool:
        depth = await self.queue.depth()
        if work == LOADING:
            return await self._has_pages(depth)
        idle = asyncio.get_running_loop().time() - self._last_in_hand
        patience = PACKING_BEHIND_SECONDS if depth.coordinated else PACKING_SECONDS
        waits = jobs.is_packed(work) and idle < patience
        return await self.queue.due_now(work, unpacked=waits) > 0

    async def _has_pages(self, depth: Depth) -> bool:
        """Raises NoCoordinatorError if none decides on links to finished sites."""
        if depth.open:
            self._idle_since_ms = 0
            return True
        now_ms = int(self.session.server_time() * 1000)
        self._idle_since_ms = self._idle_since_ms or now_ms
        undecided = await self.queue.undecided()
        if undecided and not depth.coordinated and now_ms - self._idle_since_ms > COORDINATOR_SECONDS * 1000:
            raise NoCoordinatorError(
                f"{undecided} finished sites may have new pages, but no coordinator is running; start one: "
                "`scrapy coordinate`"
            )
        if undecided:
            return True
        # Without a coordinator no sites are compared; that loses nothing.
        comes = depth.coordinated or now_ms - self._idle_since_ms < COMPARISON_SECONDS * 1000
        return bool(comes and await self.queue.suspects())

    async def _finish(self) -> None:
        depth = await self.queue.depth()
        if depth.added == 0 and self._seeded:
            self._losses.note_emptied()
        if self._losses.lost:
            self._give_up("queue_lost", self._losses.in_words)
            return
        if depth.added == 0 and self.seeding.left_out:
            self._give_up("no_seeds", _no_seeds(Added(left_out=self.seeding.left_out)))
            return
        if depth.added == 0:
            self._give_up(
                "no_seeds",
                "no seeds: expected -a seeds=FILE or -a seeds=URL,URL, or "
                f"`redis-cli lpush {self.options.start_urls_key} URL` with --when-idle wait",
            )
            return
        if LOADING in self.works and not self.session.pages and not depth.later:
            if self._all_blocked:
                self._give_up("no_seeds", _ALL_BLOCKED)
                return
            logger.info("nothing left to do: %s", _at_rest(depth))
        await self._log_due()
        if depth.later:
            waiting = await self.queue.later(NAMED_AT_THE_END)
            logger.info(
                "%d sites are due later and continue in the next run: %s",
                depth.later,
                _listed("until", waiting),
            )
        if depth.paused:
            logger.info("%d sites remain paused", depth.paused)
        self.ended = True
        self._wake()

    async def _log_due(self) -> None:
        for work in self.works:
            if work != LOADING and (waiting := await self.queue.due(work, NAMED_AT_THE_END)):
                logger.info("%s: sites are due in a later run: %s", work, _listed("from", waiting))


def _at_rest(depth: Depth) -> str:
    others = (("paused", depth.paused), ("blocked", depth.blocked), ("aliases", depth.alias))
    more = "".join(f", {many} are {state}" for state, many in others if many)
    return f"{depth.finished} sites are finished{more}; --again crawls finished sites again"


_ALL_BLOCKED = (
    "no seeds: the sites of all seeds are blocked, and nothing else is left to do; expected "
    "other seeds, or `scrapy site resume SITE` first"
)


def _no_seeds(added: Added) -> str:
    if not added.left_out:
        return f"no seeds: all {added.bad} lines given are invalid; expected URLs"
    bad = f", and {added.bad} lines are invalid" if added.bad else ""
    return (
        f"no seeds: SCOPE_INCLUDE or SCOPE_EXCLUDE excludes all {added.left_out} URLs given{bad}; expected "
        "at least one URL that matches"
    )


def _days(given: Options, queue: SiteQueue, session: Session) -> Days | None:
    """Returns None without a daily limit."""
    requests, size = given.site_requests_per_day, given.site_bytes_per_day
    caps = DailyCaps(requests, size, given.hour_seconds)
    return Days(queue, caps, session.server_time) if requests or size else None


def _works(crawler: Crawler, options: Options) -> tuple[Work, ...]:
    """Crawling comes last, so that no job waits for it."""
    own: Work = getattr(crawler.spidercls, "work", LOADING)
    named = {own, *options.works}
    return tuple(sorted(named, key=lambda work: (work == LOADING, WORKS.index(work))))


def _listed(word: str, waiting: list[tuple[str, int, str]]) -> str:
    return "; ".join(
        f"{site} {word} {_clock_time(due / 1000)}" + (f" ({why})" if why else "")
        for site, due, why in waiting
    )


def _clock_time(at: float) -> str:
    """Local time, with the date unless it is today."""
    then, today = time.localtime(at), time.localtime()
    same = (then.tm_year, then.tm_yday) == (today.tm_year, today.tm_yday)
    return time.strftime("%H:%M:%S" if same else "%Y-%m-%d %H:%M:%S", then)
