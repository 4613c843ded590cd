"""One check of one site (paper 002): its robots.txt where that is not known, its first page, and what it leads to.

Asks as politely as loading does: robots.txt first and obeyed, the pause between two requests, no try more than
STATUS_TRIES, none at all of a site that asks for a rest. What it met is judged by crawler.status.health. It knows
nothing of leases and Redis; it never raises for what a site does.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapy import Request
from scrapy.exceptions import DownloadCancelledError
from scrapy.http import Response, TextResponse

from crawler import engine
from crawler.agent.fetcher import note_times
from crawler.agent.request_context import CHECKS, PAGE_META
from crawler.agent.responses import REDIRECTS
from crawler.content import html
from crawler.fetch.context import KEY, FetchContext
from crawler.fetch.errors import CUT_SHORT, OTHER, ROBOTS_DENIED, TooLarge, in_one_line, status_code_of
from crawler.records import Health
from crawler.robots import policy
from crawler.status.health import health_of, wants_another_try

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from scrapy.crawler import Crawler

    from crawler.agent.daily import SiteDay
    from crawler.agent.overrides import Dress
    from crawler.options import Options
    from crawler.records import SiteHealth

logger = logging.getLogger("agent")

# Redirects that are followed within the site, of robots.txt and of a page.
HOPS = 5
# Of a path that is remembered as one that robots.txt allows.
LONGEST_KEPT = 200
# All checks share one download slot, which holds nothing back.
META: dict[str, Any] = {**PAGE_META, "download_slot": CHECKS}
# The worst first.
_WORST: tuple[SiteHealth, ...] = ("disconnected", "error", "delayed", "normal")


class Permit(NamedTuple):
    """What robots.txt said of the pages that are asked, kept with the site from check to check."""

    until: float  # server's seconds; then it is read anew
    delay: float  # seconds between two requests
    agent: str  # the name that it was read for
    paths: tuple[str, ...]  # that may be asked: the first page, and where it leads by redirects

    def __str__(self) -> str:
        return " ".join((str(int(self.until)), f"{self.delay:g}", self.agent, *self.paths))

    @classmethod
    def read(cls, text: str) -> Permit | None:
        """What `str` gave; None for anything else."""
        try:
            until, delay, agent, *paths = text.split(" ")
            return cls(float(until), float(delay), agent, tuple(paths))
        except ValueError:
            return None


@dataclass(slots=True)
class Met:
    """What one page's last try brought."""

    path: str
    status: int
    tries: int = 1
    response: Response | None = None
    error: str = ""
    seconds: float | None = None  # until the answer's head; None: none came
    times: dict[str, Any] | None = None
    at_ms: int = 0  # when the answer, or its absence, was there
    address: str = ""  # of whoever answered
    health: SiteHealth | None = None


class Found(NamedTuple):
    """What a check came to."""

    health: Health | None  # None: the site could not be asked, and nothing is known of it
    permit: Permit | None  # what is to be kept
    closed_seconds: float = 0.0  # robots.txt lets nobody in for so long


class Asker(NamedTuple):
    """What all checks of an agent share."""

    crawler: Crawler
    options: Options
    server_time: Callable[[], float]
    max_url_length: int


class NotAskedError(Exception):
    """The lease may have run out, or the site's day has nothing left: the rest of the check is for later."""


class SiteCheck:
    """One site's check; `run` once."""

    def __init__(
        self,
        asker: Asker,
        site: str,
        dress: Dress,
        delay: float,
        permit: Permit | None,
        may_send: Callable[[], bool],
        day: SiteDay | None = None,
    ) -> None:
        """`may_send` is asked right before each request leaves; `day` None: the site's days are not capped."""
        self.last_asked = 0.0  # loop's time of the last request; 0: none was sent
        self.delay = delay  # between two requests, with what robots.txt asks for
        self._asker = asker
        self._options = asker.options
        self._site = site
        self._dress = dress
        self._least_delay = delay
        self._allowed = may_send
        self._day = day
        self._permit = permit
        self._rules: policy.Rules | None = None
        self._loop = asyncio.get_running_loop()

    async def run(self) -> Found:
        """Ask, and judge; NotAskedError where the lease may have run out, or the site's day is used up."""
        read: Met | None = None
        if not self._knows_permit() or self._options.status_depth:
            read = await self._read_robots()
            if self._rules is None:
                return Found(self._told([self._judged(read)]), None)
        assert self._permit is not None
        self.delay = max(self._least_delay, self._permit.delay)
        window = self._rules.window if self._rules else None
        if window is not None and (closed := window.wait(self._asker.server_time())):
            return Found(None, None, closed)
        if "/" in self._permit.paths:
            met = await self._ask_pages()
        else:
            met = [self._robots_alone(read or await self._ask_robots())]
        # Without the hours of its visits a permit would be half of what robots.txt says.
        return Found(self._told(met), self._permit if window is None else None)

    # --- robots.txt ---

    def _knows_permit(self) -> bool:
        permit = self._permit
        return (
            permit is not None
            and permit.until > self._asker.server_time()
            and permit.agent == self._dress.user_agent
        )

    async def _read_robots(self) -> Met:
        """Know what may be asked; `_rules` stay None where nothing may be, since robots.txt cannot be had."""
        met = await self._ask_robots()
        body = met.response.body if met.response is not None else b""
        if met.response is not None and policy.LOSSES.intersection(met.response.flags):
            met.status, met.error = CUT_SHORT, "robots.txt is cut short or damaged"
        rules = policy.rules(
            met.status, body, self._site, self._dress.user_agent, self._options.robots_max_bytes
        )
        if not rules.available:
            return met
        self._rules = rules
        asked = min(rules.crawl_delay or 0.0, self._options.max_crawl_delay_seconds)
        until = self._asker.server_time() + self._options.robots_lifetime_seconds
        paths = ("/",) if self._rules_allow("/") else ()
        self._permit = Permit(until, asked, self._dress.user_agent, paths)
        return met

    def _rules_allow(self, path: str) -> bool:
        return self._rules is not None and self._rules.allows(self._site + path, self._dress.user_agent)

    async def _may_hop(self, path: str) -> bool:
        """Whether a redirect may be followed; robots.txt is read for it where it has not said so before."""
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
        """The verdict where nothing but robots.txt may be asked: that it answers is all that can be known."""
        if met.status >= 0 and met.status < 500 and met.status != 429:
            met.status = ROBOTS_DENIED
        return self._judged(met)

    # --- pages ---

    async def _ask_pages(self) -> list[Met]:
        """The first page, and breadth first what it leads to, as far as that is asked for."""
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
        """Up to STATUS_TRIES tries, until one is beyond doubt."""
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
        self._dress.put_on(request)
        self._count_request()
        self.last_asked = self._loop.time()
        try:
            response = await engine.download(self._asker.crawler, request)
        except Exception as error:
            # Held back, or the agent ends; a body that is too large is the site's doing.
            cancelled = isinstance(error, DownloadCancelledError) and not isinstance(error, TooLarge)
            status = status_code_of(error)
            if cancelled or (status == OTHER and not self._may_send()):
                raise NotAskedError from None
            return Met(path, status, error=in_one_line(error), times=request.meta, at_ms=_now_ms())
        finally:
            if self._day is not None:
                self._day.count(0, context.received)
        self._dress.take_in(response)
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
        """Asked when the request is about to leave: from then on the pause counts."""
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
            met.error = f"its text has {pattern[:100]!r}"
        limit = self._options.status_delay_seconds
        return health_of(met.status, met.seconds, limit, looks_broken=bool(pattern))

    def _error_words(self, met: Met) -> str:
        """What of STATUS_ERROR_PATTERNS stands in a page that answers 2xx; empty: nothing."""
        patterns, response = self._options.error_pages, met.response
        if not patterns or not isinstance(response, TextResponse) or not 200 <= response.status < 300:
            return ""
        found = (pattern.search(response.text) for pattern in patterns)
        return next((one[0] or one.re.pattern for one in found if one), "")

    def _judged(self, met: Met) -> Met:
        met.health = self._health(met)
        return met

    def _told(self, met: list[Met]) -> Health | None:
        """The record: of the page that fared worst, the first of several."""
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
    """Let what another site said of robots.txt stand for what this one says; `own` is this one's last answer."""
    if met.status < 0:
        # Another's silence, or another's address that nobody may visit: the pages lie here.
        met.status = OTHER
    met.seconds, met.times, met.address = own.seconds, own.times, own.address


def _now_ms() -> int:
    return int(time.time() * 1000)
