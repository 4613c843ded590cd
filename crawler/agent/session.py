"""One agent's session with Redis: leases, server clock, and loops that survive outages."""

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

# Share of the lease time after which an unrenewed agent stops fetching.
STALE_SHARE = 0.8
FIRST_BACK_OFF_SECONDS = 0.1
LONGEST_BACK_OFF_SECONDS = 5.0

Loop = Callable[[], Awaitable[None]]


class PrefixTakenError(Exception):
    """Another spider's crawl uses this key prefix."""


class BackOff:
    """Doubling waits; restarts after a longer success."""

    def __init__(self, longest: float = LONGEST_BACK_OFF_SECONDS) -> None:
        self._longest = longest
        self._seconds = FIRST_BACK_OFF_SECONDS
        self._called_at = 0.0

    def next(self) -> float:
        """Seconds to wait now."""
        now = time.monotonic()
        if now - self._called_at > 2 * self._longest:
            self._seconds = FIRST_BACK_OFF_SECONDS
        self._called_at = now
        seconds, self._seconds = self._seconds, min(2 * self._seconds, self._longest)
        return seconds


class Author:
    """The source of records: name, run and number identify each one."""

    def __init__(self, kind: str) -> None:
        self.name = f"{kind}-{os.getpid()}-{os.urandom(2).hex()}"
        self.run = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        self._seq = 0

    def numbered(self, record: records.Record) -> bytes:
        """The record with author and number, encoded."""
        self._seq += 1
        record.agent, record.run, record.seq = self.name, self.run, self._seq
        return records.encode(record)


class Session:
    """One agent's session. `lost` is called when its leases have expired."""

    def __init__(self, queue: SiteQueue, options: Options, lost: Callable[[], None]) -> None:
        self.author = Author(socket.gethostname().split(".")[0])
        self.name = self.author.name
        self.pages = 0  # ended turns, shown to the operator
        self.stopping = asyncio.Event()
        self._queue = queue
        self._options = options
        self._lost = lost
        self._spider = ""
        self._works: tuple[str, ...] = ()
        self._started_at = 0
        self._renewed = 0.0  # on the clock that counts suspension
        self._server_ahead = 0.0  # server clock minus that one
        self._rejoining = asyncio.Lock()
        self._logged_away = False

    # --- leases and clock ---

    @property
    def holds(self) -> bool:
        """Whether the leases are valid, also after the machine slept."""
        return _boottime() - self._renewed < STALE_SHARE * self._options.lease_seconds

    def server_time(self) -> float:
        """Seconds since 1970 on the server's clock."""
        return _boottime() + self._server_ahead

    async def open(self, spider: str, works: tuple[str, ...]) -> None:
        """Raises PrefixTakenError if this agent crawls and the prefix is another spider's."""
        self._spider = spider
        self._works = works
        self._started_at = now_ms()
        if "site" in works:
            await self._claim()
        await self._join()

    async def renew(self) -> Renewed:
        """Renew all leases. Returns commands."""
        before = _boottime()
        renewed = await self._queue.renew(self.name, self.pages)
        self._server_ahead = renewed.server_ms / 1000 - before
        self._renewed = before
        return renewed

    def moment(self, reason: str = "", *, ended: bool = False) -> records.RunEvent:
        """The record of a run's start or end."""
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
                f"KEY_PREFIX {self._options.key_prefix!r} belongs to spider {holder!r}, not "
                f"{self._spider!r}; expected a separate VAR_DIR (-s VAR_DIR=var/{self._spider}), or for a "
                f"shared Redis a separate prefix (-s KEY_PREFIX={self._spider})"
            )

    async def _join(self) -> None:
        about = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "spider": self._spider,
            "works": self._works,
            "slots": self._options.site_slots if "site" in self._works else 0,
            # Read by the planner, which follows the agents.
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
        """The session expired; the first of several calls acts."""
        async with self._rejoining:
            try:
                with suppress(SessionGoneError):
                    await self._queue.renew(self.name, self.pages)
                    return
                logger.warning("the session expired and its leases are lost; starting over")
                self._lost()
                await self._join()
            except (RedisError, OSError) as error:
                self.say_away(error)

    async def _start_over(self) -> None:
        """The server was restored to an earlier state; the first of several calls acts."""
        async with self._rejoining:
            try:
                if not await self._queue.is_older(self.name):
                    return
                logger.warning(
                    "Redis was restored to an earlier state and lost acknowledged data; returning all sites "
                    "and starting over"
                )
                self._lost()
                await self._queue.part(self.name)
                await self._join()
            except (RedisError, OSError) as error:
                self.say_away(error)

    # --- loops ---

    async def keep(self, loop: Loop) -> None:
        """Run a loop until it ends or the agent stops; retry while Redis is away or full.

        Raises permanent Redis errors and all others.
        """
        # Well within the lease time that others get after an outage.
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
        """Sleep until the agent stops."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.stopping.wait(), seconds)

    def say_away(self, error: Exception) -> None:
        """Log once that Redis is away or full."""
        if not self._logged_away:
            self._logged_away = True
            trouble = "full" if connection.is_full(error) else "away"
            logger.warning("Redis is %s (%s); waiting for it, finished pages are kept", trouble, error)

    def say_back(self) -> None:
        """Log once that Redis is back."""
        if self._logged_away:
            self._logged_away = False
            logger.warning("Redis is back")


def now_ms() -> int:
    """Milliseconds since 1970 on this machine's clock."""
    return int(time.time() * 1000)


def _boottime() -> float:
    """Includes suspension."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
