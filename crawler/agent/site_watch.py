"""What a slot's ordinary traffic says of its site's health, so that a site in hand needs no check of its own. Pure.

A page is not its site: only what concerns all of it counts. An answer in time says that it is normal, a late one that
it is delayed, if so many in a row say so; 429 and 503 that it is delayed. The first page and robots.txt say whatever a
check would make of them; for the latter stands in what the site breaker found (crawler.agent.breaker). But a first page
that is forbidden or missing says nothing of a site that has just given another one, as the seed's may be. Told is the
first verdict, another one, and the same one again after an interval.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from crawler.status.health import ASKS_FOR_REST, health_of

if TYPE_CHECKING:
    from crawler.records import SiteHealth

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
