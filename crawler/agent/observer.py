"""What one slot sees of its site's load: pages timed and requests refused, hour by hour. No input or output.

Timed are pages that came at their first try, whole, as HTML, and on a connection that was there already: what is left
is the site's own time and the way to it. One number an hour is told (`Seen`), and only where it says something.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from crawler.status.health import ASKS_FOR_REST, health_of

if TYPE_CHECKING:
    from crawler.records import SiteHealth


# Of fewer pages the median says little.
LEAST_PAGES: Final = 3
# Times that are kept of an hour; of a site with more, every second, fourth, … page is kept.
MOST_TIMES: Final = 256


class LoadSample(NamedTuple):
    """One hour of a site."""

    hour: int
    pages: int  # that were timed
    seconds: float  # that the median one took; 0.0: none was timed
    refused: float  # share of the requests


class SiteLoad:
    """The hour that goes on. `answered` and `refused` give the hour before it, once, if it is worth telling."""

    __slots__ = ("_asked", "_hour", "_pages", "_refused", "_step", "_times")

    def __init__(self) -> None:
        self._begin(0)

    def answered(self, hour: int, seconds: float | None) -> LoadSample | None:
        """An answer came; `seconds` where it is to be timed."""
        before = None if hour == self._hour else self._change(hour)
        self._asked += 1
        if seconds is not None and seconds > 0.0:
            if self._pages % self._step == 0:
                self._keep(seconds)
            self._pages += 1
        return before

    def refused(self, hour: int) -> LoadSample | None:
        """The site had no answer for us, or not in time."""
        before = None if hour == self._hour else self._change(hour)
        self._asked += 1
        self._refused += 1
        return before

    @property
    def tells(self) -> bool:
        """Whether this hour is worth telling by now."""
        return self._pages >= LEAST_PAGES or self._refused > 0

    def take(self) -> LoadSample | None:
        """What is to be told of this hour; nothing of it is left."""
        return self._change(self._hour)

    def _keep(self, seconds: float) -> None:
        self._times.append(seconds)
        if len(self._times) >= MOST_TIMES:
            del self._times[1::2]
            self._step *= 2

    def _change(self, hour: int) -> LoadSample | None:
        seen = None
        if self.tells:
            seconds = median(self._times) if self._times else 0.0
            seen = LoadSample(self._hour, self._pages, seconds, self._refused / self._asked)
        self._begin(hour)
        return seen

    def _begin(self, hour: int) -> None:
        self._hour = hour
        self._times: list[float] = []
        self._step = 1
        self._pages = self._asked = self._refused = 0


# ------------------------------------------------------------------------------------------------------------
# What a slot's ordinary traffic says of its site's health, so that a site in hand needs no check of its own. Pure.
#
# A page is not its site: only what concerns all of it counts. An answer in time says that it is normal, a late one
# that it is delayed, if so many in a row say so; 429 and 503 that it is delayed. The first page and robots.txt say
# whatever a check would make of them; for the latter stands in what the site breaker found
# (crawler.agent.politeness). But a first page that is forbidden or missing says nothing of a site that has just given
# another one, as the seed's may be. Told is the first verdict, another one, and the same one again after an interval.


_OF_THE_SITE: Final = ("/", "/robots.txt")


class SiteWatch:
    """One lease's. `limit`: seconds from which an answer is late; `pages`: late answers in a row; times in seconds."""

    __slots__ = ("_again_at", "_gives_pages", "_interval", "_late", "_limit", "_pages", "_told")

    def __init__(self, limit: float, pages: int, interval: float) -> None:
        self._limit = limit
        self._pages = pages
        self._interval = interval
        self._late = 0
        self._gives_pages = False
        self._told: SiteHealth | None = None
        self._again_at = 0.0

    def saw(self, path: str, status: int, seconds: float | None, now: float) -> SiteHealth | None:
        """What is to be told after this answer, or after the last try without one; None: nothing."""
        verdict = self._verdict(path, status, seconds)
        if verdict is None or (verdict == self._told and now < self._again_at):
            return None
        self._told, self._again_at = verdict, now + self._interval
        return verdict

    def _verdict(self, path: str, status: int, seconds: float | None) -> SiteHealth | None:
        verdict = health_of(status, seconds, self._limit)
        self._gives_pages = self._gives_pages or 200 <= status < 300
        if 200 <= status < 400:
            self._late = self._late + 1 if verdict == "delayed" else 0
            return verdict if self._late in (0, self._pages) or self._late > self._pages else None
        if status in ASKS_FOR_REST:
            return verdict
        if path not in _OF_THE_SITE or (self._gives_pages and 400 <= status < 500):
            return None
        return verdict
