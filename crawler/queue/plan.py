"""The plan of the hours in the site queue: lists of sites, probes, suspensions, and the lock of the planner."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from crawler.queue.errors import texts_of, whole_number
from crawler.queue.script import Script
from crawler.queue.sites import FILL_BATCH

# Tasks of one process at a time: planning the hours, and decisions about finished sites.
Lock = Literal["planner", "opener"]


# The planner's lists for an hour: sites in order, and sites to probe.
Listed = Literal["hour", "probe"]


class Plan(Script):
    """What the planner writes and reads: hours' lists, probes, suspensions, the planner's lock."""

    async def lock(self, lock: Lock, holder: str, seconds: float) -> int:
        """A fencing number if `holder` has this lock now; 0: another process has it."""
        return int(await self._call("lock", lock, holder, int(seconds * 1000)))

    async def fill(
        self, planner: str, number: int, hour: int, names: Sequence[str], *, lists: Listed = "hour"
    ) -> int:
        """Replace an hour's list; returns its length. Raises LockLostError."""
        length = 0
        # Kept during the next hour, so that no slot idles if the planner is late.
        seconds = math.ceil(2 * self._hour_seconds) + 60
        for start in range(0, max(len(names), 1), FILL_BATCH):
            about = (planner, number, lists, hour, seconds, int(start == 0))
            length = await self._call("fill", *about, *names[start : start + FILL_BATCH])
        return length

    async def suspend(self, planner: str, number: int, sites: Sequence[str]) -> int:
        """Ask the holders of these sites to suspend them; returns how many are leased. Raises LockLostError."""
        told = 0
        for start in range(0, len(sites), FILL_BATCH):
            told += await self._call("suspend", planner, number, *sites[start : start + FILL_BATCH])
        return told

    async def tell_planned(self, planner: str, number: int, hour: int) -> None:
        """Mark an hour's plan as complete. Raises LockLostError."""
        await self._call("planned", planner, number, hour)

    async def planned_hour(self) -> int | None:
        """The last hour with a complete plan; None: not yet."""
        key = f"{self._base}count"
        hour = await self._client.hget(key, "planned")
        return None if hour is None else whole_number(key, "planned", hour)

    async def hour_length(self, hour: int) -> int:
        """Names left in an hour's list."""
        return int(await self._client.llen(f"{self._base}hour:{hour}"))

    async def parked(self) -> set[str]:
        """Sites that wait for a slot of their host or address; a few may no longer wait."""
        key = f"{self._base}parked"
        return set(texts_of(key, await self._client.smembers(key)))

    async def running(self) -> dict[str, tuple[int, int]]:
        """Leased sites of all jobs -> (known URLs, done URLs)."""
        return {one.site: (one.known, one.done) for one in await self.holdings()}

    async def hour_line(self, hour: int, most: int) -> list[str]:
        """The first names left in an hour's list, in order."""
        key = f"{self._base}hour:{hour}"
        return texts_of(key, await self._client.lrange(key, 0, most - 1))

    async def parked_count(self) -> int:
        """Number of sites in `parked`."""
        return int(await self._client.scard(f"{self._base}parked"))
