"""Logs a missing coordinator, and pauses fetching before the results stream is too long."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING

from crawler.queue import connection

if TYPE_CHECKING:
    from collections.abc import Callable

    from crawler.queue.queue import SiteQueue
    from crawler.queue.sites import Depth, TablesWord


logger = logging.getLogger("agent")

# Records are compressed above this backlog, which a coordinator that keeps up never has; below it, redis-cli shows
# them readable.
LONG = 10_000
# Interval of repeated warnings.
SAY_AGAIN_SECONDS = 300.0


class StreamWatch:
    """One agent's view of the stream."""

    def __init__(self, most: int, patience: float) -> None:
        self.paused = False  # the stream is too long: fetch nothing
        self.long = False  # the backlog is long: compress records
        self._most = most
        self._patience = patience  # seconds that records may wait without a coordinator
        self._alone_since: float | None = None
        self._said_at: float | None = None

    def look(self, depth: Depth) -> bool:
        """Update from the backlog. Returns whether fetching resumes."""
        self._look_for_coordinators(depth)
        self.long = depth.records >= LONG
        if depth.records >= self._most and not self.paused:
            self.paused = True
            logger.warning(
                "%d records wait in the results stream (STREAM_MAX_RECORDS %d): fetching is paused; is a coordinator "
                "running?",
                depth.records,
                self._most,
            )
        elif self.paused and depth.records <= self._most // 2:
            self.paused = False
            logger.warning("the results stream is down to %d records: fetching resumes", depth.records)
            return True
        return False

    def _look_for_coordinators(self, depth: Depth) -> None:
        now = time.monotonic()
        if depth.coordinated or not depth.records:
            if self._said_at is not None:
                logger.warning("a coordinator is running again; %d records wait", depth.records)
            self._alone_since = self._said_at = None
            return
        if self._alone_since is None:
            self._alone_since = now
        said_enough = self._said_at is not None and now - self._said_at < SAY_AGAIN_SECONDS
        if now - self._alone_since >= self._patience and not said_enough:
            self._said_at = now
            logger.warning(
                "%d records wait in the results stream, but no coordinator is running to store them; start one: "
                "scrapy coordinate",
                depth.records,
            )


# --- Sites that the queue lost ---


# How long an agent waits for a count: a coordinator starting with it needs 1 s, a large count more.
WORD_SECONDS = 20.0
# The same for an agent that fetched nothing without a coordinator: one may be starting.
STRAY_SECONDS = 3.0
# Value of `Losses.lost`: not counted by a coordinator.
UNCOUNTED = -1


class Losses:
    """Sites the queue lost, as coordinators count them. `serves_itself`: this agent starts one.

    An empty queue looks like a finished crawl, so an agent waits a bounded time for the count.
    """

    def __init__(self, queue: SiteQueue, server_time: Callable[[], float], *, serves_itself: bool) -> None:
        self.lost = 0  # unfinished sites in the tables that the queue does not have, by the last count
        self.dropped = False  # this agent lost its session while it had sites
        self._queue = queue
        self._server_time = server_time
        self._serves_itself = serves_itself
        self._since = math.inf  # monotonic time at which nothing was left
        self._since_ms = 0.0  # the same on the server's clock
        self._warned = False

    async def warn_if_lost(self) -> None:
        """Log lost sites once."""
        word = await self._queue.tables_word()
        if word is not None and word.lost and not self._warned:
            self._warned = True
            logger.warning("%s", connection.sites_lost(word.lost))

    def note_emptied(self) -> None:
        """The queue accepted seeds, and has no site now."""
        self.lost = self.lost or UNCOUNTED

    def begin_again(self) -> None:
        """The agent has something to do again."""
        self._since = math.inf

    async def known(self, depth: Depth, pages: int) -> bool:
        """Whether `lost` is final, for an idle agent that fetched `pages`."""
        if self._since == math.inf:
            self._since, self._since_ms = time.monotonic(), self._server_time() * 1000
        word = await self._queue.tables_word()
        shrunk = word is not None and depth.added < word.added
        if word is not None and not shrunk and (not word.lost or word.at_ms > self._since_ms):
            self.lost = word.lost
            return True
        dropped = (self.dropped or pages > 0) and not depth.added
        if time.monotonic() - self._since < self._patience(depth, pages, certain=shrunk or dropped):
            return False
        self.lost = _uncounted(word, depth, dropped=dropped)
        return True

    def _patience(self, depth: Depth, pages: int, *, certain: bool) -> float:
        if certain or self._serves_itself or depth.coordinated:
            return WORD_SECONDS
        return 0.0 if pages else STRAY_SECONDS

    @property
    def in_words(self) -> str:
        """Describe the loss and its repair."""
        if self.lost == UNCOUNTED:
            return f"the queue has lost its sites; if the tables have unfinished sites, {connection.REBUILD}"
        return connection.sites_lost(self.lost)


def _uncounted(word: TablesWord | None, depth: Depth, *, dropped: bool) -> int:
    """Lost sites without a new count."""
    if word is not None and depth.added < word.added:
        return UNCOUNTED
    if word is not None:
        return word.lost
    return UNCOUNTED if dropped else 0
