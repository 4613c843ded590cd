"""What a site may be asked for within a day: so many requests, so many bytes.

Pure. A day is 24 hours (HOUR_SECONDS) of the server's clock, from midnight UTC, so all agents mean the same one. What
was spent of it (`Spent`) goes with the site's checkpoint, from agent to agent; of an agent that was killed what it had
not published yet is not counted. Each request counts when it is sent, robots.txt and a spider's own included; bytes are
those of bodies as they came, counted when a request has ended, so the last one may lead beyond the cap. A site that is
walked anew begins a new count.
"""

from __future__ import annotations

from typing import NamedTuple

HOURS = 24
REQUESTS_SETTING = "SITE_REQUESTS_PER_DAY"
BYTES_SETTING = "SITE_BYTES_PER_DAY"


class Spent(NamedTuple):
    """What a site was asked for on one day; days are numbered from 1970."""

    day: int
    requests: int
    size: int  # bytes


class DailyCaps:
    """What one day allows; 0: no limit."""

    def __init__(self, requests: int, size: int, hour_seconds: float) -> None:
        self._requests = requests
        self._size = size
        self._day_seconds = HOURS * hour_seconds

    def today(self, spent: Spent | None, now: float) -> Spent:
        """What is spent of the day that it is `now`, in seconds since 1970."""
        day = int(now // self._day_seconds)
        return spent if spent is not None and spent.day == day else Spent(day, 0, 0)

    def used_up(self, today: Spent) -> str:
        """Why nothing may be asked for any more on that day; empty: something may."""
        if 0 < self._requests <= today.requests:
            return f"its {self._requests} requests of the day are used up ({REQUESTS_SETTING})"
        if 0 < self._size <= today.size:
            return f"its {self._size} bytes of the day are used up ({BYTES_SETTING})"
        return ""

    def tomorrow(self, today: Spent) -> float:
        """When the next day begins, in seconds since 1970."""
        return (today.day + 1) * self._day_seconds
