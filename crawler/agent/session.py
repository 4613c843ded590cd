"""One agent's standing with the server: its name, its session, the server's clock, and loops that outlive outages.

Whoever uses it may rely on three things: `holds` is False from the moment on when the agent's leases may have run
out, also when the machine slept; `server_time` is the server's, whatever this machine's clock says; and a loop given
to `keep` goes on after the server was away or the session was swept, without a word to Scrapy.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from crawler import records
from crawler.queue import connection
from crawler.queue.errors import QueueOlderError, SessionGoneError
from crawler.queue.queue import SiteQueue
from crawler.queue.sites import Renewed

if TYPE_CHECKING:
    from crawler.options import Options

logger = logging.getLogger("agent")

# Of the lease time: an agent whose last renewal is older fetches nothing, for its sites may be another's.
STALE_SHARE = 0.8
FIRST_BACK_OFF_SECONDS = 0.1
LONGEST_BACK_OFF_SECONDS = 5.0

Loop = Callable[[], Awaitable[None]]


class PrefixTakenError(Exception):
    """Another spider's crawl lives under this key prefix."""


class BackOff:
    """How long to wait before the next try: doubling, and from the start again after a try that held for a while."""

    def __init__(self, longest: float = LONGEST_BACK_OFF_SECONDS) -> None:
        self._longest = longest
        self._seconds = FIRST_BACK_OFF_SECONDS
        self._told_at = 0.0

    def next(self) -> float:
        """Seconds to wait now."""
        now = time.monotonic()
        if now - self._told_at > 2 * self._longest:
            self._seconds = FIRST_BACK_OFF_SECONDS
        self._told_at = now
        seconds, self._seconds = self._seconds, min(2 * self._seconds, self._longest)
        return seconds


class Author:
    """Who a record is from: with its number every record is told apart from every other of the crawl."""

    def __init__(self, kind: str) -> None:
        self.name = f"{kind}-{os.getpid()}-{os.urandom(2).hex()}"
        self.run = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        self._seq = 0

    def numbered(self, record: records.Record) -> bytes:
        """The record with its author and number, encoded."""
        self._seq += 1
        record.agent, record.run, record.seq = self.name, self.run, self._seq
        return records.encode(record)


class Session:
    """One agent's session. `lost` is called when all its leases are others' now."""

    def __init__(self, queue: SiteQueue, options: Options, lost: Callable[[], None]) -> None:
        self.author = Author(socket.gethostname().split(".")[0])
        self.name = self.author.name
        self.pages = 0  # whose turn has ended; shown to the operator
        self.stopping = asyncio.Event()
        self._queue = queue
        self._options = options
        self._lost = lost
        self._spider = ""
        self._works: tuple[str, ...] = ()
        self._started_at = 0
        self._renewed = 0.0  # on the clock that counts suspension
        self._server_ahead = 0.0  # the server's clock beyond that one
        self._rejoining = asyncio.Lock()
        self._told_away = False

    # --- standing ---

    @property
    def holds(self) -> bool:
        """Whether this agent's leases hold for certain."""
        return _boottime() - self._renewed < STALE_SHARE * self._options.lease_seconds

    def server_time(self) -> float:
        """Seconds since 1970 on the server's clock: this machine's own may be an hour off."""
        return _boottime() + self._server_ahead

    async def open(self, spider: str, works: tuple[str, ...]) -> None:
        """Join the crawl; PrefixTakenError where its prefix is another spider's. Who loads nothing joins any crawl."""
        self._spider = spider
        self._works = works
        self._started_at = now_ms()
        if "site" in works:
            await self._claim()
        await self._join()

    async def renew(self) -> Renewed:
        """Keep all leases for another lease time; tells which sites to give back."""
        before = _boottime()
        renewed = await self._queue.renew(self.name, self.pages)
        self._server_ahead = renewed.server_ms / 1000 - before
        self._renewed = before
        return renewed

    def moment(self, reason: str = "", *, ended: bool = False) -> records.RunEvent:
        """What the tables keep of a run: its beginning, or its end."""
        return records.RunEvent(
            spider=self._spider,
            started_at=self._started_at,
            ended_at=now_ms() if ended else 0,
            reason=reason,
            scheduler=self._options.site_scheduler,
        )

    async def _claim(self) -> None:
        holder = await self._queue.claim_prefix(self._spider)
        if holder != self._spider:
            raise PrefixTakenError(
                f"KEY_PREFIX {self._options.key_prefix!r} holds the crawl of spider {holder!r}, not of "
                f"{self._spider!r}; expected a VAR_DIR of its own (-s VAR_DIR=var/{self._spider}), or on a Redis that "
                f"crawls share a prefix of its own (-s KEY_PREFIX={self._spider})"
            )

    async def _join(self) -> None:
        about = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "spider": self._spider,
            "works": self._works,
            "slots": self._options.site_slots if "site" in self._works else 0,
            # What the planner goes by: it follows the agents, wherever it runs.
            "scheduler": self._options.site_scheduler,
            "scheduler_options": self._options.site_scheduler_options,
            "hour_seconds": self._options.hour_seconds,
            "delay_seconds": self._options.download_delay,
            "pages_per_site": self._options.max_pages_per_site,
        }
        before = _boottime()
        self._server_ahead = await self._queue.join(self.name, about) / 1000 - before
        self._renewed = before

    async def _rejoin(self) -> None:
        """The session was swept: all sites are others' now. Several loops may hear of it; the first one acts."""
        async with self._rejoining:
            try:
                with suppress(SessionGoneError):
                    await self._queue.renew(self.name, self.pages)
                    return
                logger.warning("this agent was silent for too long and lost its sites; it starts over")
                self._lost()
                await self._join()
            except (RedisError, OSError) as error:
                self.say_away(error)

    async def _start_over(self) -> None:
        """The server came back as of an earlier time: what is in hand is fetched again.

        Several loops may hear of it; the first one acts.
        """
        async with self._rejoining:
            try:
                if not await self._queue.is_older(self.name):
                    return
                logger.warning(
                    "Redis is older than this agent: it lost what it had acknowledged; this agent gives its sites back "
                    "and starts over"
                )
                self._lost()
                await self._queue.part(self.name)
                await self._join()
            except (RedisError, OSError) as error:
                self.say_away(error)

    # --- loops ---

    async def keep(self, loop: Loop) -> None:
        """Run a loop until it ends or the agent stops: a server that is away, or cannot do it now, is waited for.

        Raised is what lasts: a RedisError that says that we may not, or that a key is of the wrong kind, and whatever
        is none, as BrokenRecordError.
        """
        # Well within the one lease time that the first to return gives everybody.
        back_off = BackOff(min(LONGEST_BACK_OFF_SECONDS, self._options.lease_seconds / 3))
        while not self.stopping.is_set():
            try:
                await loop()
                return
            except SessionGoneError:
                await self._rejoin()
            except QueueOlderError:
                await self._start_over()
            except (RedisError, OSError) as error:
                if connection.lasts(error):
                    raise
                self.say_away(error)
                await self.pause(back_off.next())

    async def pause(self, seconds: float) -> None:
        """Sleep, but not beyond the agent's end."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.stopping.wait(), seconds)

    def say_away(self, error: Exception) -> None:
        """The server does not answer, or has no memory left: logged once."""
        if not self._told_away:
            self._told_away = True
            trouble = "full" if connection.is_full(error) else "away"
            logger.warning("Redis is %s (%s); waiting for it, finished pages are kept", trouble, error)

    def say_back(self) -> None:
        """It answered."""
        if self._told_away:
            self._told_away = False
            logger.warning("Redis is back")


def now_ms() -> int:
    """Milliseconds since 1970 on this machine's clock."""
    return int(time.time() * 1000)


def _boottime() -> float:
    """Seconds on a clock that goes on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
