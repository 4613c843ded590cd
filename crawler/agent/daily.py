"""What a site may be asked for within a day: so many requests, so many bytes, by all agents and works together.

A day is 24 hours (HOUR_SECONDS) of the server's clock, from midnight UTC, so all agents mean the same one. Each request
counts when it is sent: for pages, robots.txt, recheck, revive, checks of status and a spider's own. Bytes are those of
bodies as they came, counted when a request has ended, so the last one may lead beyond the cap.

What was spent stands in Redis until the day after. Who leases a site reads it, and adds what was asked at every flush;
of an agent that was killed what it had not told yet is not counted. Where a connection broke it may count twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from crawler.queue.queue import SiteQueue

HOURS = 24
REQUESTS_SETTING = "SITE_REQUESTS_PER_DAY"
BYTES_SETTING = "SITE_BYTES_PER_DAY"


class Spent(NamedTuple):
    """What a site was asked for on one day."""

    requests: int = 0
    size: int = 0  # bytes

    def and_more(self, requests: int, size: int) -> Spent:
        """The same with so much more."""
        return Spent(self.requests + requests, self.size + size)


class DailyCaps:
    """What one day allows; 0: no limit. Days are numbered from 1970."""

    def __init__(self, requests: int, size: int, hour_seconds: float) -> None:
        self._requests = requests
        self._size = size
        self.seconds = HOURS * hour_seconds

    def day(self, now: float) -> int:
        """The day that it is `now`, in seconds since 1970."""
        return int(now // self.seconds)

    def tomorrow(self, now: float) -> float:
        """When the next day begins, in seconds since 1970."""
        return (self.day(now) + 1) * self.seconds

    def used_up(self, spent: Spent) -> str:
        """Why nothing may be asked for any more on the day that saw so much; empty: something may."""
        if 0 < self._requests <= spent.requests:
            return f"its {self._requests} requests of the day are used up ({REQUESTS_SETTING})"
        if 0 < self._size <= spent.size:
            return f"its {self._size} bytes of the day are used up ({BYTES_SETTING})"
        return ""


class SiteDay:
    """The day of a site that is in hand."""

    def __init__(self, days: Days, site: str, day: int, spent: Spent) -> None:
        self._days = days
        self._site = site
        self._day = day
        self._spent = spent

    def count(self, requests: int, size: int) -> None:
        """So much more was asked for, or came."""
        self._look()
        self._spent = self._spent.and_more(requests, size)
        self._days.note(self._day, self._site, requests, size)

    def used_up(self) -> str:
        """Why the site may be asked for nothing more until `tomorrow`; empty: it may."""
        self._look()
        return self._days.caps.used_up(self._spent)

    @property
    def tomorrow(self) -> float:
        """When it may be asked again, in seconds since 1970."""
        return self._days.caps.tomorrow(self._days.now())

    def _look(self) -> None:
        today = self._days.caps.day(self._days.now())
        if today != self._day:
            self._day, self._spent = today, Spent()


class Days:
    """One agent's account of the sites' days. Connection errors of the server go to the caller; call again."""

    def __init__(self, queue: SiteQueue, caps: DailyCaps, now: Callable[[], float]) -> None:
        """`now` is the server's clock, in seconds since 1970."""
        self.caps = caps
        self.now = now
        self._queue = queue
        self._untold: dict[int, dict[str, Spent]] = {}  # day -> site

    async def open(self, sites: Sequence[str]) -> list[SiteDay]:
        """The days of sites that were leased."""
        today = self.caps.day(self.now())
        spent = await self._queue.spent(today, sites)
        return [SiteDay(self, site, today, Spent(*one)) for site, one in zip(sites, spent, strict=True)]

    def note(self, day: int, site: str, requests: int, size: int) -> None:
        """To be told with the next `tell`."""
        sites = self._untold.setdefault(day, {})
        sites[site] = sites.get(site, Spent()).and_more(requests, size)

    async def tell(self) -> None:
        """Add what was asked since the last time to what all agents know."""
        while self._untold:
            day, sites = self._untold.popitem()
            try:
                await self._queue.spend(day, sites, int(2 * self.caps.seconds) + 1)
            except BaseException:
                for site, spent in sites.items():
                    self.note(day, site, *spent)
                raise
