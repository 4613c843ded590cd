"""The site breaker: a site that does not answer is left alone as a whole, and not page by page. Pure rules.

Two straight pages without a connection park the site: its pages wait, and its next lease begins with robots.txt, which
is the probe. Two straight pages without a head may be two bad pages of a good site; so robots.txt is asked at once, and
its silence parks the site. So does a robots.txt that begins and cannot be read to its end, for without it no page may
be asked. A site that was silent at MAX_TRIES leases in a row is given up: each page that was still to be fetched has
failed, and is revive's from then on. Any answer, whatever its status, begins anew; a page's body that is late, cut
short or malformed is an answer too. A site for which no request can be made, not even for robots.txt, is parked and
given up alike; its pages are left out then.

One URL is not its site: what counts is different URLs that fail one after the other (`Row`). A URL that is tried again
says nothing new of its site.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from crawler.queue.queue import SiteQueue


# Different URLs without an answer, one after the other, that trip it.
STRAIGHT: Final = 2
# Different URLs that fail in a row, however they fail, before the whole site rests. A page often links to several bad
# URLs of one kind; and five requests do no harm to a site that is overloaded.
IN_A_ROW: Final = 5
# Status codes (crawler.fetch.errors): no address, refused, no connection in time, no TLS; and no head.
NO_CONNECTION: Final = frozenset({-1, -2, -3, -7})
NO_HEAD: Final = frozenset({-4, -6})
# Somebody answered, if badly: late body, cut short, too large, malformed.
BAD_ANSWER: Final = frozenset({-5, -8, -11, -12})
# What an overloaded site does to its visitors as well: no answer, a late body, one that is cut short.
MAY_BE_THE_SITE: Final = NO_CONNECTION | NO_HEAD | {-5, -8}
# The longest pause between two probes.
LONGEST_PAUSE_SECONDS: Final = 86_400.0

BreakerStep = Literal["go_on", "probe", "trip"]


class FailureRow:
    """The URLs of a site that failed one after the other: 503, time-outs, resets. A success ends the row."""

    __slots__ = ("_urls", "first_tries")

    def __init__(self) -> None:
        self._urls: set[str] = set()
        self.first_tries = 0  # different URLs whose first try failed

    def end(self) -> None:
        """The site answered a URL as a working site does."""
        if self._urls:
            self._urls.clear()
            self.first_tries = 0

    def add(self, url: str, tries: int, strikes: int, known: int) -> bool:
        """A try of this URL failed, its `tries`th; whether the site as a whole seems to be the cause.

        `strikes` counts the site's rests since its last success: above 0 one more URL is enough. `known` URLs are all
        that is known of the site; when each of them fails, no other one can tell.
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
    """Whether a page's failure says that its site may be gone."""
    return status in NO_CONNECTION or status in NO_HEAD


def shuts(status: int) -> bool:
    """Whether a robots.txt that could not be had says that nobody gets into its site: no answer, or no whole one."""
    return is_silence(status) or status in BAD_ANSWER


def silence_of(path: str, tries: int, status: int) -> tuple[str, int]:
    """What tells one silence from another: the URL; where there was no connection, which no URL decides, each try."""
    return (path, tries if status in NO_CONNECTION else 0)


def next_step(status: int, straight: int) -> BreakerStep:
    """What to do after a page's silence, with which `straight` different ones came in a row."""
    if straight < STRAIGHT:
        return "go_on"
    return "trip" if status in NO_CONNECTION else "probe"


def pause_after(parkings: int, first_seconds: float) -> float:
    """How long a site is left alone that was parked so many times in a row, this one included."""
    return min(first_seconds * 2.0 ** min(parkings - 1, 20), LONGEST_PAUSE_SECONDS)


# ------------------------------------------------------------------------------------------------------------
# What a site may be asked for within a day: so many requests, so many bytes, by all agents and works together.
#
# A day is 24 hours (HOUR_SECONDS) of the server's clock, from midnight UTC, so all agents mean the same one. Each
# request counts when it is sent: for pages, robots.txt, recheck, revive, checks of status and a spider's own. Bytes
# are those of bodies as they came, counted when a request has ended, so the last one may lead beyond the cap.
#
# What was spent stands in Redis until the day after. Who leases a site reads it, and adds what was asked at every
# flush; of an agent that was killed what it had not told yet is not counted. Where a connection broke it may count
# twice.


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
