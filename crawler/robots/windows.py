"""The hours of the day in which a site lets itself be visited: robots.txt's Visit-time, UTC. Pure.

A window may cross midnight. What it says holds by real time, however long an hour of the plan is.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, Self

DAY_SECONDS: Final = 86_400.0
DAY_MINUTES: Final = 1440
_TEXT: Final = re.compile(r"(\d\d)(\d\d)-(\d\d)(\d\d)")


class Window(NamedTuple):
    """From a minute of the day until another one, that one left out; `closes` below `opens`: on the next day."""

    opens: int
    closes: int

    @classmethod
    def between(cls, opens: int, closes: int) -> Self | None:
        """The window of these minutes of the day; None where it is the whole day, as people write it."""
        if closes == DAY_MINUTES - 1:
            closes = DAY_MINUTES
        return None if opens == closes % DAY_MINUTES else cls(opens, closes)

    @classmethod
    def read(cls, text: str) -> Self | None:
        """What `str` gave; None for an empty text: open at all times. ValueError for any other."""
        if not text:
            return None
        if found := _TEXT.fullmatch(text):
            opens, closes = _minutes(found[1], found[2]), _minutes(found[3], found[4])
            if opens < DAY_MINUTES and closes <= DAY_MINUTES:
                return cls(opens, closes)
        raise ValueError(f"{text!r} is no window of the day; wanted HHMM-HHMM")

    def __str__(self) -> str:
        return f"{self.opens // 60:02}{self.opens % 60:02}-{self.closes // 60:02}{self.closes % 60:02}"

    @property
    def in_words(self) -> str:
        """The window as a person reads it."""
        (opens, closes) = (f"{minute // 60:02}:{minute % 60:02}" for minute in self)
        return f"from {opens} to {closes} UTC"

    def wait(self, at: float) -> float:
        """Seconds from a time (since 1970) until it is open; 0.0: it is."""
        opens, closes = 60.0 * self.opens, 60.0 * self.closes
        second = at % DAY_SECONDS
        is_open = opens <= second < closes if opens < closes else second >= opens or second < closes
        return 0.0 if is_open else (opens - second) % DAY_SECONDS

    def share(self, at: float, seconds: float) -> float:
        """The share of so many seconds from a time on in which it is open, 0 to 1."""
        length = 60.0 * ((self.closes - self.opens) % DAY_MINUTES)
        first = (at // DAY_SECONDS - 1) * DAY_SECONDS + 60.0 * self.opens
        days = int(seconds // DAY_SECONDS) + 3
        starts = (first + DAY_SECONDS * day for day in range(days))
        overlaps = (min(start + length, at + seconds) - max(start, at) for start in starts)
        return sum(max(0.0, overlap) for overlap in overlaps) / seconds


def _minutes(hours: str, minutes: str) -> int:
    return int(hours) * 60 + int(minutes) if int(minutes) < 60 else DAY_MINUTES + 1
