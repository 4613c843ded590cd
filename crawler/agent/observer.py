"""Load and health of a site as seen by its own requests. Pure."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from crawler.status.health import ASKS_FOR_REST, health_of

if TYPE_CHECKING:
    from crawler.records import SiteHealth


# With fewer pages the median is not reported.
LEAST_PAGES: Final = 3
# Times kept per hour; above that, every second, fourth, … page.
MOST_TIMES: Final = 256


class LoadSample(NamedTuple):
    """One hour of a site."""

    hour: int
    pages: int  # number of timed pages
    seconds: float  # median time; 0.0: no page was timed
    refused: float  # share of the requests


class SiteLoad:
    """The current hour; each call may return the previous one.

    Timed are whole HTML pages at the first try on an open connection.
    """

    __slots__ = ("_hour", "_pages", "_refused", "_requests", "_step", "_times")

    def __init__(self) -> None:
        self._begin(0)

    def answered(self, hour: int, seconds: float | None) -> LoadSample | None:
        """Count a response; `seconds` if it is timed."""
        before = None if hour == self._hour else self._change(hour)
        self._requests += 1
        if seconds is not None and seconds > 0.0:
            if self._pages % self._step == 0:
                self._keep(seconds)
            self._pages += 1
        return before

    def refused(self, hour: int) -> LoadSample | None:
        """Count a refusal or timeout."""
        before = None if hour == self._hour else self._change(hour)
        self._requests += 1
        self._refused += 1
        return before

    @property
    def tells(self) -> bool:
        """Whether this hour is worth a record."""
        return self._pages >= LEAST_PAGES or self._refused > 0

    def take(self) -> LoadSample | None:
        """Return and reset this hour."""
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
            seen = LoadSample(self._hour, self._pages, seconds, self._refused / self._requests)
        self._begin(hour)
        return seen

    def _begin(self, hour: int) -> None:
        self._hour = hour
        self._times: list[float] = []
        self._step = 1
        self._pages = self._requests = self._refused = 0


# --- Health from ordinary requests ---


_OF_THE_SITE: Final = ("/", "/robots.txt")


class SiteWatch:
    """Health of a leased site from its own requests.

    `limit` (s) makes a response late; `pages` late ones in a row, 429 and 503 mean "delayed". Failures count only for
    `/` and robots.txt. Health is reported if changed, or after `interval` seconds.
    """

    __slots__ = ("_again_at", "_gives_pages", "_interval", "_late", "_limit", "_pages", "_reported")

    def __init__(self, limit: float, pages: int, interval: float) -> None:
        self._limit = limit
        self._pages = pages
        self._interval = interval
        self._late = 0
        self._gives_pages = False
        self._reported: SiteHealth | None = None
        self._again_at = 0.0

    def saw(self, path: str, status: int, seconds: float | None, now: float) -> SiteHealth | None:
        """Returns None when there is nothing to report."""
        verdict = self._verdict(path, status, seconds)
        if verdict is None or (verdict == self._reported and now < self._again_at):
            return None
        self._reported, self._again_at = verdict, now + self._interval
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
