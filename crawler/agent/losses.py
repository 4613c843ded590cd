"""What coordinators say of sites that the queue lost: asked before an agent ends, since it knows no tables itself.

An empty queue looks like a crawl that is done. So an agent that has nothing left waits for a coordinator's word
(crawler/reconcile/comparing.py) before it ends: as long as one is alive or about to start, and a bounded time.
"""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING

from crawler.queue import connection

if TYPE_CHECKING:
    from collections.abc import Callable

    from crawler.queue.queue import Depth, SiteQueue, TablesWord

logger = logging.getLogger("agent")

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
