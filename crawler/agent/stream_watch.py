"""Watches the results stream for an agent: says when nobody stores, and pauses fetching before the stream is too long.

A coordinator that has died is noticed by nobody else: agents go on, and their results pile up where a crash of the
server could take them. So its absence is told after a while, and again as long as it lasts.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crawler.queue.queue import Depth

logger = logging.getLogger("agent")

# Records that wait from which on new ones are packed: a coordinator that keeps up never has as many before it, and so
# what a person looks at with redis-cli stays readable.
LONG = 10_000
# What is wrong and lasts is said again after so long.
SAY_AGAIN_SECONDS = 300.0


class StreamWatch:
    """One agent's view; `look` is called every now and then."""

    def __init__(self, most: int, patience: float) -> None:
        self.paused = False  # the stream is too long: nothing may be fetched
        self.long = False  # so many records wait that each should be small
        self._most = most
        self._patience = patience  # seconds for which records may wait without a coordinator
        self._alone_since: float | None = None
        self._said_at: float | None = None

    def look(self, depth: Depth) -> bool:
        """Takes in how much waits now; whether fetching goes on that was paused."""
        self._look_for_coordinators(depth)
        self.long = depth.records >= LONG
        if depth.records >= self._most and not self.paused:
            self.paused = True
            logger.warning(
                "%d records wait in the results stream (STREAM_MAX_RECORDS %d): fetching pauses; is a coordinator "
                "running?",
                depth.records,
                self._most,
            )
        elif self.paused and depth.records <= self._most // 2:
            self.paused = False
            logger.warning("the results stream is down to %d records: fetching goes on", depth.records)
            return True
        return False

    def _look_for_coordinators(self, depth: Depth) -> None:
        now = time.monotonic()
        if depth.coordinated or not depth.records:
            if self._said_at is not None:
                logger.warning("a coordinator is there; %d records wait", depth.records)
            self._alone_since = self._said_at = None
            return
        if self._alone_since is None:
            self._alone_since = now
        said_enough = self._said_at is not None and now - self._said_at < SAY_AGAIN_SECONDS
        if now - self._alone_since >= self._patience and not said_enough:
            self._said_at = now
            logger.warning(
                "%d records wait in the results stream and no coordinator is alive: nothing is stored; wanted one: "
                "scrapy coordinate",
                depth.records,
            )
