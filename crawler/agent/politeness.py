"""The site breaker and the daily caps. Pure rules.

Two connection failures in a row suspend a site; two other missing responses lead to a robots.txt probe, whose failure
does too. After MAX_TRIES suspensions in a row the site is given up: its pages fail, for `revive` to retry. Any response
resets the count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from crawler.queue.queue import SiteQueue


# Different unanswered URLs in a row that suspend a site.
STRAIGHT: Final = 2
# Different failed URLs in a row before a site backs off: pages often link to several bad URLs of one kind.
IN_A_ROW: Final = 5
# Status codes (crawler.fetch.errors): no address, refused, connect timeout, TLS failure; and no response headers.
NO_CONNECTION: Final = frozenset({-1, -2, -3, -7})
NO_HEAD: Final = frozenset({-4, -6})
# Responses, if bad: late, truncated, too large or malformed body.
BAD_ANSWER: Final = frozenset({-5, -8, -11, -12})
# Also typical of an overloaded site: no response, a late or truncated body.
MAY_BE_THE_SITE: Final = NO_CONNECTION | NO_HEAD | {-5, -8}
# The longest pause between two probes.
LONGEST_PAUSE_SECONDS: Final = 86_400.0

BreakerStep = Literal["go_on", "probe", "trip"]


class FailureRow:
    """Different URLs of a site that failed in a row."""

    __slots__ = ("_urls", "first_tries")

    def __init__(self) -> None:
        self._urls: set[str] = set()
        self.first_tries = 0  # different URLs whose first try failed

    def end(self) -> None:
        """Reset after a success."""
        if self._urls:
            self._urls.clear()
            self.first_tries = 0

    def add(self, url: str, tries: int, strikes: int, known: int) -> bool:
        """Count a failed try. Returns whether the site seems to be the cause.

        After a back-off (`strikes` > 0) one URL is enough, as are failures of all `known` ones.
        """
        new = url not in self._urls
        self._urls.add(url)
        if len(self._urls) >= known:
            return True
        if tries > 1 or not new:
            return False
        self.first_tries += 1
        return strikes > 0 or self.first_tries >= IN_A_ROW


def is_silence(status: int) -> bool:
    """Whether the site may be gone."""
    return status in NO_CONNECTION or status in NO_HEAD


def shuts(status: int) -> bool:
    """Whether a failed robots.txt suspends its site."""
    return is_silence(status) or status in BAD_ANSWER


def silence_of(path: str, tries: int, status: int) -> tuple[str, int]:
    """The URL, or for connection failures the try."""
    return (path, tries if status in NO_CONNECTION else 0)


def next_step(status: int, straight: int) -> BreakerStep:
    """After the `straight`th different failure in a row."""
    if straight < STRAIGHT:
        return "go_on"
    return "trip" if status in NO_CONNECTION else "probe"


def pause_after(parkings: int, first_seconds: float) -> float:
    """Seconds of pause after `parkings` suspensions in a row."""
    return min(first_seconds * 2.0 ** min(parkings - 1, 20), LONGEST_PAUSE_SECONDS)


# --- Daily caps ---


HOURS = 24
REQUESTS_SETTING = "SITE_REQUESTS_PER_DAY"
BYTES_SETTING = "SITE_BYTES_PER_DAY"


class Spent(NamedTuple):
    """Requests and body bytes of a site on one day."""

    requests: int = 0
    size: int = 0  # bytes

    def and_more(self, requests: int, size: int) -> Spent:
        """The sum."""
        return Spent(self.requests + requests, self.size + size)


class DailyCaps:
    """Limits per site and day, for all agents and jobs; 0: no limit.

    Days start at 00:00 UTC on the server's clock and have 24 HOUR_SECONDS. The last response may exceed the limit.
    """

    def __init__(self, requests: int, size: int, hour_seconds: float) -> None:
        self._requests = requests
        self._size = size
        self.seconds = HOURS * hour_seconds

    def day(self, now: float) -> int:
        """The day's number at `now` (s since 1970)."""
        return int(now // self.seconds)

    def tomorrow(self, now: float) -> float:
        """When the next day begins (s since 1970)."""
        return (self.day(now) + 1) * self.seconds

    def used_up(self, spent: Spent) -> str:
        """The reason; empty: not used up."""
        if 0 < self._requests <= spent.requests:
            return f"all {self._requests} requests of the day are used ({REQUESTS_SETTING})"
        if 0 < self._size <= spent.size:
            return f"all {self._size} bytes of the day are used ({BYTES_SETTING})"
        return ""


class SiteDay:
    """The daily budget of a leased site."""

    def __init__(self, days: Days, site: str, day: int, spent: Spent) -> None:
        self._days = days
        self._site = site
        self._day = day
        self._spent = spent

    def count(self, requests: int, size: int) -> None:
        """Add requests and bytes."""
        self._roll_over()
        self._spent = self._spent.and_more(requests, size)
        self._days.note(self._day, self._site, requests, size)

    def used_up(self) -> str:
        """The reason; empty: not used up."""
        self._roll_over()
        return self._days.caps.used_up(self._spent)

    @property
    def tomorrow(self) -> float:
        """When the next day begins (s since 1970)."""
        return self._days.caps.tomorrow(self._days.now())

    def _roll_over(self) -> None:
        today = self._days.caps.day(self._days.now())
        if today != self._day:
            self._day, self._spent = today, Spent()


class Days:
    """One agent's counts per site and day; connection errors are raised, call again.

    Added in Redis at every flush. A killed agent's unsent counts are lost.
    """

    def __init__(self, queue: SiteQueue, caps: DailyCaps, now: Callable[[], float]) -> None:
        """`now` is the server's clock (s since 1970)."""
        self.caps = caps
        self.now = now
        self._queue = queue
        self._unsent: dict[int, dict[str, Spent]] = {}  # day -> site

    async def open(self, sites: Sequence[str]) -> list[SiteDay]:
        """The budgets of leased sites."""
        today = self.caps.day(self.now())
        spent = await self._queue.spent(today, sites)
        return [SiteDay(self, site, today, Spent(*one)) for site, one in zip(sites, spent, strict=True)]

    def note(self, day: int, site: str, requests: int, size: int) -> None:
        """Count for the next `tell`."""
        sites = self._unsent.setdefault(day, {})
        sites[site] = sites.get(site, Spent()).and_more(requests, size)

    async def tell(self) -> None:
        """Add the new counts to those of all agents."""
        while self._unsent:
            day, sites = self._unsent.popitem()
            try:
                await self._queue.spend(day, sites, int(2 * self.caps.seconds) + 1)
            except BaseException:
                for site, spent in sites.items():
                    self.note(day, site, *spent)
                raise
