"""Watches the results stream for an agent: says when nobody stores, and pauses fetching before the stream is too long.

A coordinator that has died is noticed by nobody else: agents go on, and their results pile up where a crash of the
server could take them. So its absence is told after a while, and again as long as it lasts.
"""

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
                "%d records wait in the results stream and no coordinator is alive: nothing is stored; expected one: "
                "scrapy coordinate",
                depth.records,
            )


# ------------------------------------------------------------------------------------------------------------
# What coordinators say of sites that the queue lost: asked before an agent ends, since it knows no tables itself.
#
# An empty queue looks like a crawl that is done. So an agent that has nothing left waits for a coordinator's word
# (crawler/reconcile/comparing.py) before it ends: as long as one is alive or about to start, and a bounded time.


# How long an agent waits for a coordinator's word: one that starts with it needs a second, one that counts more.
WORD_SECONDS = 20.0
# The same where no coordinator is alive, for an agent that has fetched nothing: one may just be starting.
STRAY_SECONDS = 3.0
# Of `Losses.lost`: no coordinator has counted them.
UNCOUNTED = -1


class Losses:
    """One agent's view. `serves_itself`: a coordinator is started together with this agent."""

    def __init__(self, queue: SiteQueue, server_time: Callable[[], float], *, serves_itself: bool) -> None:
        self.lost = 0  # unfinished sites of the tables that the queue does not know, as last heard
        self.dropped = False  # this agent had sites, and its session was gone
        self._queue = queue
        self._server_time = server_time
        self._serves_itself = serves_itself
        self._since = math.inf  # monotonic: when the agent had nothing left
        self._since_ms = 0.0  # the same on the server's clock
        self._warned = False

    async def warn_if_lost(self) -> None:
        """Warn once where sites are lost, while the agent goes on with what there is."""
        word = await self._queue.tables_word()
        if word is not None and word.lost and not self._warned:
            self._warned = True
            logger.warning("%s", connection.sites_lost(word.lost))

    def note_emptied(self) -> None:
        """The queue took seeds of this agent, and knows no site now."""
        self.lost = self.lost or UNCOUNTED

    def begin_again(self) -> None:
        """The agent has something to do again."""
        self._since = math.inf

    async def known(self, depth: Depth, pages: int) -> bool:
        """Whether `lost` is known now, for an agent with nothing left that fetched so many pages; False: ask again."""
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
        """What is lost, for the person who runs the crawl."""
        if self.lost == UNCOUNTED:
            return f"the queue has lost its sites; if the tables have some that are unfinished, {connection.REBUILD}"
        return connection.sites_lost(self.lost)


def _uncounted(word: TablesWord | None, depth: Depth, *, dropped: bool) -> int:
    """What is lost where no coordinator gave a new word."""
    if word is not None and depth.added < word.added:
        return UNCOUNTED
    if word is not None:
        return word.lost
    return UNCOUNTED if dropped else 0
