"""Job `status` of one agent: leases due sites, checks them and publishes the results, all in batches.

A result is published in the call that ends its lease, even if the lease was lost. Slow checks free their slot.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import RedisError
from scrapy import Request
from scrapy.exceptions import CannotResolveHostError, DownloadCancelledError
from scrapy.http import Response, TextResponse

from crawler import engine
from crawler.agent.fetcher import note_times
from crawler.agent.overrides import Overrides, SiteSession
from crawler.agent.requests import CHECKS, PAGE_META
from crawler.agent.responses import REDIRECTS
from crawler.content import html
from crawler.fetch.context import KEY, FetchContext
from crawler.fetch.errors import CUT_SHORT, OTHER, ROBOTS_DENIED, TooLargeError, in_one_line, status_code_of
from crawler.queue.errors import BrokenRecordError, StaleLeaseError
from crawler.queue.queue import SiteQueue
from crawler.queue.sites import HandedIn, Leased
from crawler.records import Health
from crawler.robots import policy
from crawler.status.health import health_of, wants_another_try
from crawler.urls.url import host_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from scrapy.crawler import Crawler

    from crawler.agent.politeness import Days, SiteDay
    from crawler.agent.session import Session
    from crawler.fetch.dns import Names
    from crawler.options import Options
    from crawler.records import SiteHealth, Work


# --- One check of one site ---


logger = logging.getLogger("agent")

# Redirects followed within the site, for robots.txt and pages.
HOPS = 5
# Longest path that is cached as allowed.
LONGEST_KEPT = 200
# All checks share one download slot without a delay.
META: dict[str, Any] = {**PAGE_META, "download_slot": CHECKS}
# Worst first.
_WORST: tuple[SiteHealth, ...] = ("disconnected", "error", "delayed", "normal")


class RobotsCache(NamedTuple):
    """What robots.txt allows for the checked pages."""

    until: float  # expiry, server time in seconds
    delay: float  # seconds between requests
    agent: str  # the user agent it was read for
    paths: tuple[str, ...]  # allowed paths: the first page and its redirects

    def __str__(self) -> str:
        return " ".join((str(int(self.until)), f"{self.delay:g}", self.agent, *self.paths))

    @classmethod
    def read(cls, text: str) -> RobotsCache | None:
        """Returns None when the text is invalid."""
        try:
            until, delay, agent, *paths = text.split(" ")
            return cls(float(until), float(delay), agent, tuple(paths))
        except ValueError:
            return None


@dataclass(slots=True)
class Met:
    """One page's last try."""

    path: str
    status: int
    tries: int = 1
    response: Response | None = None
    error: str = ""
    seconds: float | None = None  # until the response headers; None: no response
    times: dict[str, Any] | None = None
    at_ms: int = 0  # time of the response or failure
    address: str = ""  # of the responding server
    health: SiteHealth | None = None


class Found(NamedTuple):
    """The result of a check."""

    health: Health | None  # None: the site was not requestable, its health is unknown
    permit: RobotsCache | None  # to be cached
    closed_seconds: float = 0.0  # robots.txt closes the site for this long


class Asker(NamedTuple):
    """Shared by all checks of an agent."""

    crawler: Crawler
    options: Options
    server_time: Callable[[], float]
    max_url_length: int


class NotAskedError(Exception):
    """The lease may have expired, or the daily budget is used up."""


class SiteCheck:
    """One site's check (paper 002): robots.txt, then the first page, its redirects and links."""

    def __init__(
        self,
        asker: Asker,
        site: str,
        site_session: SiteSession,
        delay: float,
        permit: RobotsCache | None,
        may_send: Callable[[], bool],
        day: SiteDay | None = None,
    ) -> None:
        """`may_send` is called before each request; `day` None: no daily limit."""
        self.last_asked = 0.0  # loop time of the last request; 0: none
        self.delay = delay  # seconds between requests, including Crawl-delay
        self._asker = asker
        self._options = asker.options
        self._site = site
        self._site_session = site_session
        self._least_delay = delay
        self._allowed = may_send
        self._day = day
        self._permit = permit
        self._rules: policy.Rules | None = None
        self._loop = asyncio.get_running_loop()

    async def run(self) -> Found:
        """Raises NotAskedError if the lease may have expired or the daily budget is used up."""
        read: Met | None = None
        if not self._knows_permit() or self._options.status_depth:
            read = await self._read_robots()
            if self._rules is None:
                return Found(self._record([self._judged(read)]), None)
        assert self._permit is not None
        self.delay = max(self._least_delay, self._permit.delay)
        window = self._rules.window if self._rules else None
        if window is not None and (closed := window.wait(self._asker.server_time())):
            return Found(None, None, closed)
        if "/" in self._permit.paths:
            met = await self._ask_pages()
        else:
            met = [self._robots_alone(read or await self._ask_robots())]
        # Visiting hours are not part of the cache entry.
        return Found(self._record(met), self._permit if window is None else None)

    # --- robots.txt ---

    def _knows_permit(self) -> bool:
        permit = self._permit
        return (
            permit is not None
            and permit.until > self._asker.server_time()
            and permit.agent == self._site_session.user_agent
        )

    async def _read_robots(self) -> Met:
        """`_rules` stays None if robots.txt is unavailable."""
        met = await self._ask_robots()
        body = met.response.body if met.response is not None else b""
        if met.response is not None and policy.LOSSES.intersection(met.response.flags):
            met.status, met.error = CUT_SHORT, "robots.txt is truncated or damaged"
        rules = policy.rules(
            met.status, body, self._site, self._site_session.user_agent, self._options.robots_max_bytes
        )
        if not rules.available:
            return met
        self._rules = rules
        delay = min(rules.crawl_delay or 0.0, self._options.max_crawl_delay_seconds)
        until = self._asker.server_time() + self._options.robots_lifetime_seconds
        paths = ("/",) if self._rules_allow("/") else ()
        self._permit = RobotsCache(until, delay, self._site_session.user_agent, paths)
        return met

    def _rules_allow(self, path: str) -> bool:
        return self._rules is not None and self._rules.allows(
            self._site + path, self._site_session.user_agent
        )

    async def _may_hop(self, path: str) -> bool:
        """Whether a redirect may be followed."""
        assert self._permit is not None
        if path in self._permit.paths:
            return True
        if self._rules is None:
            await self._read_robots()
        allowed = self._rules_allow(path)
        if allowed and len(path) <= LONGEST_KEPT:
            self._permit = self._permit._replace(paths=(*self._permit.paths, path)[:HOPS])
        return allowed

    async def _ask_robots(self) -> Met:
        return await self._tried("/robots.txt", self._robots_once)

    async def _robots_once(self, path: str) -> Met:
        met = own = await self._fetch(path, self._site + path)
        for _ in range(HOPS):
            place = self._redirected(met)
            if place is None:
                break
            met = await self._fetch(path, "".join(place))
            if place[0] == self._site:
                own = met
            else:
                _take_for_own(met, own)
        return met

    def _robots_alone(self, met: Met) -> Met:
        """With all pages disallowed, only a response is known."""
        if met.status >= 0 and met.status < 500 and met.status != 429:
            met.status = ROBOTS_DENIED
        return self._judged(met)

    # --- pages ---

    async def _ask_pages(self) -> list[Met]:
        """The first page and links up to STATUS_DEPTH."""
        met = [await self._page("/")]
        level, seen = met, {"/"}
        for _ in range(self._options.status_depth):
            following: list[Met] = []
            for path in [path for one in level for path in self._links(one)]:
                if len(met) > self._options.status_links:
                    return met
                if path not in seen and self._rules_allow(path):
                    seen.add(path)
                    following.append(await self._page(path))
                    met.append(following[-1])
            level = following
        return met

    def _links(self, met: Met) -> list[str]:
        response = met.response
        if met.health not in ("normal", "delayed") or not isinstance(response, TextResponse):
            return []
        content_type = (response.headers.get("Content-Type") or b"").decode("latin-1")
        root = html.document(response.body[: self._options.max_html_bytes], content_type)
        most = self._options.max_links_per_page
        return html.links(root, response.url, self._site, most, self._asker.max_url_length).inside

    async def _page(self, path: str) -> Met:
        return self._judged(await self._tried(path, self._page_once))

    async def _page_once(self, path: str) -> Met:
        met = await self._fetch(path, self._site + path)
        for _ in range(HOPS):
            place = self._redirected(met)
            if place is None or place[0] != self._site or not await self._may_hop(place[1]):
                break
            met = await self._fetch(path, "".join(place))
        return met

    # --- one request ---

    async def _tried(self, path: str, ask: Callable[[str], Awaitable[Met]]) -> Met:
        """Up to STATUS_TRIES tries."""
        for number in range(1, self._options.status_tries + 1):
            if number > 1:
                await asyncio.sleep(self._options.retry_delay_seconds)
            met = await ask(path)
            met.tries = number
            health = self._health(met)
            if health is None or not wants_another_try(health, met.status):
                break
        return met

    async def _fetch(self, path: str, url: str) -> Met:
        wait = self.last_asked + self.delay - self._loop.time() if self.last_asked else 0.0
        if wait > 0:
            await asyncio.sleep(wait)
        context = FetchContext(self._may_send)
        request = Request(url, meta={**META, KEY: context}, dont_filter=True)
        self._site_session.apply(request)
        self._count_request()
        self.last_asked = self._loop.time()
        try:
            response = await engine.download(self._asker.crawler, request)
        except Exception as error:
            # Held back, or the agent stops; an oversized body is a result.
            cancelled = isinstance(error, DownloadCancelledError) and not isinstance(error, TooLargeError)
            status = status_code_of(error)
            if cancelled or (status == OTHER and not self._may_send()):
                raise NotAskedError from None
            return Met(path, status, error=in_one_line(error), times=request.meta, at_ms=_now_ms())
        finally:
            if self._day is not None:
                self._day.count(0, context.received)
        self._site_session.take_in(response)
        met = Met(path, response.status, response=response, times=response.meta, at_ms=_now_ms())
        met.seconds = response.meta.get("download_latency")
        met.address = str(response.ip_address or "")
        return met

    def _count_request(self) -> None:
        if self._day is None:
            return
        if self._day.used_up():
            raise NotAskedError
        self._day.count(1, 0)

    def _may_send(self) -> bool:
        """Called right before sending; the delay counts from here."""
        self.last_asked = self._loop.time()
        return self._allowed()

    def _redirected(self, met: Met) -> tuple[str, str] | None:
        location = met.response.headers.get("Location") if met.response is not None else None
        if met.status not in REDIRECTS or not location or met.response is None:
            return None
        return html.target(met.response.url, location.decode("latin-1"), self._asker.max_url_length)

    # --- judging ---

    def _health(self, met: Met) -> SiteHealth | None:
        pattern = self._error_words(met)
        if pattern:
            met.error = f"its text contains {pattern[:100]!r}"
        limit = self._options.status_delay_seconds
        return health_of(met.status, met.seconds, limit, looks_broken=bool(pattern))

    def _error_words(self, met: Met) -> str:
        """The match of STATUS_ERROR_PATTERNS; empty: none."""
        patterns, response = self._options.error_pages, met.response
        if not patterns or not isinstance(response, TextResponse) or not 200 <= response.status < 300:
            return ""
        found = (pattern.search(response.text) for pattern in patterns)
        return next((one[0] or one.re.pattern for one in found if one), "")

    def _judged(self, met: Met) -> Met:
        met.health = self._health(met)
        return met

    def _record(self, met: list[Met]) -> Health | None:
        """The record of the worst page."""
        judged = [one for one in met if one.health is not None]
        if not judged:
            return None
        worst = min(judged, key=lambda one: _WORST.index(one.health))
        assert worst.health is not None
        record = Health(
            site=self._site,
            checked_at=worst.at_ms,
            health=worst.health,
            status=worst.status,
            path=worst.path,
            pages=len(judged),
            tries=worst.tries,
            error=worst.error,
            address=worst.address,
        )
        note_times(record, worst.times or {})
        return record


def _take_for_own(met: Met, own: Met) -> None:
    """Use another site's robots.txt; `own` is this site's last response."""
    if met.status < 0:
        # The redirect's target is unreachable or forbidden, but the pages are on this site.
        met.status = OTHER
    met.seconds, met.times, met.address = own.seconds, own.times, own.address


def _now_ms() -> int:
    return int(time.time() * 1000)


CHECKING: Work = "status"
# Sites per lease call and per hand-in call.
LEASE_AT_A_TIME = HAND_IN_AT_A_TIME = 64
# Fewer free slots are not worth a call.
LEAST_AT_A_TIME = 16
# A longer check frees its slot for quick ones.
SLOW_SECONDS = 1.0
# Interval of lease calls while slots are idle.
ASK_SECONDS = 0.25
# Interval for adding missing due times, which a lost queue lacks.
ENROL_SECONDS = 5.0
# Open files reserved for everything else.
OTHER_FILES = 256
# Retry delay for a site whose address is busy or that was not requested.
AGAIN_SECONDS = 1.0


class Checking:
    """One agent's checks; the session runs `lease_loop` and `hand_in_loop`."""

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
        self._slow: set[str] = set()  # those of them that are slow
        self._least = max(1, min(LEAST_AT_A_TIME, options.status_slots // 4))
        self._slow_after = min(SLOW_SECONDS, options.status_delay_seconds)
        self._most_slow = min(options.status_slow_slots, _files())
        self._done: list[HandedIn] = []  # results not yet handed in
        self._going: set[str] = set()  # their sites
        self._enough = asyncio.Event()  # set when a batch of results is complete
        self._free = asyncio.Event()  # set when a slot is free
        self._enrol_at = 0.0
        self._losses = 0  # number of times all leases were lost
        # True while a lease call is due or under way; its sites are not listed yet.
        self._asking = True

    @property
    def busy(self) -> bool:
        """Whether sites are leased or results unpublished."""
        return bool(self._asking or self._running or self._done)

    def holds(self, site: str) -> bool:
        """Whether the site is leased here or being returned."""
        return site in self._running or site in self._going

    # --- coming ---

    async def lease_loop(self) -> None:
        """Lease due sites and check them."""
        while not self._session.stopping.is_set():
            self._free.clear()
            await self._enrol()
            got = await self._lease()
            if not got:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._free.wait(), ASK_SECONDS)

    async def _enrol(self) -> None:
        """Give every site a due time."""
        now = asyncio.get_running_loop().time()
        if now < self._enrol_at:
            return
        await self._queue.monitor(CHECKING)
        self._enrol_at = now + ENROL_SECONDS

    async def _lease(self) -> int:
        room = min(self._room, LEASE_AT_A_TIME)
        # A closing engine waits for all requests: start no new checks.
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
        """0 while results cannot be published or too many checks are slow."""
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
        # After a loss the same site may be leased again.
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
            SiteSession(leased.site, override, self._user_agent),
            override.delay_or(self._delay),
            RobotsCache.read(permit),
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
            logger.exception("site %s: status check failed", leased.site)
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
        """Reserve a slot of the address; True for unknown hosts, which the check reports."""
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
        """Whether a lease from after `losses` losses is valid."""
        return losses == self._losses and self._session.holds and not engine.closing(self._asker.crawler)

    # --- going ---

    async def hand_in_loop(self) -> None:
        """Publish results in batches."""
        while not self._session.stopping.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._enough.wait(), self._options.flush_seconds)
            await self.hand_in()

    async def hand_in(self) -> None:
        """Publish all results; after a connection error, call again."""
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
        """Invalidate all leases; results are still published."""
        self._losses += 1

    async def close(self, seconds: float) -> None:
        """Wait at most `seconds` for running checks."""
        running = list(self._running.values())
        if running:
            _, late = await asyncio.wait(running, timeout=seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)


def _files() -> int:
    """Slow checks allowed by the limit of open files."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if most == resource.RLIM_INFINITY else max(1, (most - OTHER_FILES) // 2)
