"""What one slot sees of its site's load: pages timed and requests refused, hour by hour. No input or output.

Timed are pages that came at their first try, whole, as HTML, and on a connection that was there already: what is left
is the site's own time and the way to it. One number an hour is told (`Seen`), and only where it says something.
"""

from __future__ import annotations

from statistics import median
from typing import Final, NamedTuple

# Of fewer pages the median says little.
LEAST_PAGES: Final = 3
# Times that are kept of an hour; of a site with more, every second, fourth, … page is kept.
MOST_TIMES: Final = 256


class Seen(NamedTuple):
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

    def answered(self, hour: int, seconds: float | None) -> Seen | None:
        """An answer came; `seconds` where it is to be timed."""
        before = None if hour == self._hour else self._change(hour)
        self._asked += 1
        if seconds is not None and seconds > 0.0:
            if self._pages % self._step == 0:
                self._keep(seconds)
            self._pages += 1
        return before

    def refused(self, hour: int) -> Seen | None:
        """The site had no answer for us, or not in time."""
        before = None if hour == self._hour else self._change(hour)
        self._asked += 1
        self._refused += 1
        return before

    @property
    def tells(self) -> bool:
        """Whether this hour is worth telling by now."""
        return self._pages >= LEAST_PAGES or self._refused > 0

    def take(self) -> Seen | None:
        """What is to be told of this hour; nothing of it is left."""
        return self._change(self._hour)

    def _keep(self, seconds: float) -> None:
        self._times.append(seconds)
        if len(self._times) >= MOST_TIMES:
            del self._times[1::2]
            self._step *= 2

    def _change(self, hour: int) -> Seen | None:
        seen = None
        if self.tells:
            seconds = median(self._times) if self._times else 0.0
            seen = Seen(self._hour, self._pages, seconds, self._refused / self._asked)
        self._begin(hour)
        return seen

    def _begin(self, hour: int) -> None:
        self._hour = hour
        self._times: list[float] = []
        self._step = 1
        self._pages = self._asked = self._refused = 0
