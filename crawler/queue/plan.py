"""The plan of the hours in the site queue: lists of sites, probes, suspensions, and the lock of the planner."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from crawler.queue.errors import texts_of, whole_number
from crawler.queue.script import Script
from crawler.queue.sites import FILL_BATCH

# What one process at a time does: plan the hours, and open finished sites again.
Lock = Literal["planner", "opener"]


# Lists that the planner writes for an hour: sites in their order, and sites to be probed.
Listed = Literal["hour", "probe"]


class Plan(Script):
    """What the planner writes and reads: hours' lists, probes, suspensions, the planner's lock."""

    async def lock(self, lock: Lock, holder: str, seconds: float) -> int:
        """A fencing number while `holder` has this lock; 0: another one does."""
        return int(await self._call("lock", lock, holder, int(seconds * 1000)))

    async def fill(
        self, planner: str, number: int, hour: int, names: Sequence[str], *, lists: Listed = "hour"
    ) -> int:
        """Write an hour's list anew, in order; its length. LockLostError where the lock is another's."""
        length = 0
        # Kept through the next hour, so that a planner that comes late finds no slot idle.
        seconds = math.ceil(2 * self._hour_seconds) + 60
        for start in range(0, max(len(names), 1), FILL_BATCH):
            about = (planner, number, lists, hour, seconds, int(start == 0))
            length = await self._call("fill", *about, *names[start : start + FILL_BATCH])
        return length

    async def suspend(self, planner: str, number: int, sites: Sequence[str]) -> int:
        """Have these sites given back by their holders, to be gone on with when their turn comes; how many are held.

        LockLostError where the lock is another's.
        """
        told = 0
        for start in range(0, len(sites), FILL_BATCH):
            told += await self._call("suspend", planner, number, *sites[start : start + FILL_BATCH])
        return told

    async def tell_planned(self, planner: str, number: int, hour: int) -> None:
        """The hour's plan is whole, whatever becomes of its planner. LockLostError where the lock is another's."""
        await self._call("planned", planner, number, hour)

    async def planned_hour(self) -> int | None:
        """The last hour of which the plan is whole; None: there was none yet."""
        key = f"{self._base}count"
        hour = await self._client.hget(key, "planned")
        return None if hour is None else whole_number(key, "planned", hour)

    async def hour_length(self, hour: int) -> int:
        """Names left in an hour's list."""
        return int(await self._client.llen(f"{self._base}hour:{hour}"))

    async def parked(self) -> set[str]:
        """The sites that wait for a place; a few may have ceased to."""
        key = f"{self._base}parked"
        return set(texts_of(key, await self._client.smembers(key)))

    async def running(self) -> dict[str, tuple[int, int]]:
        """The sites that are held, for whatever work, with how many of their URLs are known and done by now."""
        return {one.site: (one.known, one.done) for one in await self.holdings()}

    async def hour_line(self, hour: int, most: int) -> list[str]:
        """The first names left in an hour's list, in their order."""
        key = f"{self._base}hour:{hour}"
        return texts_of(key, await self._client.lrange(key, 0, most - 1))

    async def parked_count(self) -> int:
        """How many sites wait for a place; a few may have ceased to."""
        return int(await self._client.scard(f"{self._base}parked"))
