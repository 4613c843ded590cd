"""Due times and request batches of the jobs recheck, revive and status, and the recheck budget."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

from redis.exceptions import ResponseError

from crawler.queue import connection
from crawler.queue.errors import text_of, texts_of
from crawler.queue.script import Script
from crawler.queue.sites import FILL_BATCH, read_about
from crawler.records import WORKS, Work

# As in lua/common.lua.
HELD_UP_MS = 4_000_000_000_000


class Jobs(Script):
    """Recheck, revive and status: due times, request batches, the recheck budget."""

    async def monitor(self, work: Work) -> None:
        """Give every site a due time for this job; sites without one are due now.

        Does nothing if that was done since the queue was made.
        """
        if await self._client.hget(f"{self._base}count", f"every:{work}"):
            return
        await self._client.hset(f"{self._base}count", f"every:{work}", 1)
        due = int(await self.server_seconds() * 1000)
        some: dict[str, float] = {}
        async for record in self.records():
            if record.state not in ("blocked", "alias"):
                some[record.site] = due
            if len(some) >= FILL_BATCH:
                await self.fall_due(work, some)
                some = {}
        await self.fall_due(work, some)

    async def fall_due(self, work: Work, dues: Mapping[str, float]) -> None:
        """Give known sites a due time (ms) for a job, unless they have one."""
        if dues:
            await self._client.zadd(f"{self._base}wake:{work}", dict(dues), nx=True)

    async def plan_work(self, site: str, work: str, due_ms: int) -> bool:
        """Set a site's due time for a job; False: the site is unknown."""
        return bool(await self._call("plan_work", site, work, due_ms))

    async def pack(self, site: str, work: Work, packet: bytes) -> bool:
        """Set the packet for the next lease of this job; False: the site is leased for it now."""
        return bool(await self._call("pack", site, work, packet))

    async def to_pack(self, work: Work, until_ms: int, most: int) -> list[str]:
        """Up to `most` sites that are due for a job until then and have no packet."""
        wake, again = f"{self._base}wake:{work}", f"{self._base}again:{work}"
        due = texts_of(wake, await self._client.zrangebyscore(wake, 0, until_ms, start=0, num=most))
        due += texts_of(again, await self._client.lrange(again, 0, most - 1))
        names = list(dict.fromkeys(due))
        pipeline = self._client.pipeline(transaction=False)
        for site in names:
            pipeline.hexists(f"{self._base}visit:{site}", work)
        return [site for site, there in zip(names, await pipeline.execute(), strict=True) if not there]

    async def account(self) -> dict[str, float]:
        """Recheck's budget (crawler.recheck.account) as last kept; empty if it is missing or invalid.

        An invalid budget is no error: a new price is found within one or two sweeps.
        """
        try:
            key = f"{self._base}recrawl"
            fields = await self._client.hgetall(key)
            account = {text_of(key, name): float(value) for name, value in fields.items()}
        except (ValueError, ResponseError) as error:
            if isinstance(error, ResponseError) and not connection.is_of_wrong_kind(error):
                raise
            return {}
        return account if all(map(math.isfinite, account.values())) else {}

    async def keep_account(self, account: Mapping[str, float]) -> None:
        """Replace the kept budget."""
        await self._call("keep_account", *itertools.chain.from_iterable(account.items()))

    async def hold_up(self, site: str, work: Work) -> int:
        """Reserve a site's due time until `release`; returns it in ms, 0: none."""
        return int(await self._call("hold_up", site, work))

    async def release(self, site: str, work: Work, due_ms: int) -> None:
        """Set the due time (0: none); a sooner one that was set in between stays."""
        await self._call("release", site, work, due_ms)

    async def take_back_held(self, work: Work) -> None:
        """Make sites due that a killed planner had reserved."""
        key, now_ms = f"{self._base}wake:{work}", int(await self.server_seconds() * 1000)
        held = await self._client.zrangebyscore(key, HELD_UP_MS, "+inf")
        if held:
            await self._client.zadd(key, dict.fromkeys(held, now_ms), xx=True)

    async def oldest_record_ms(self) -> int | None:
        """When the oldest unstored record was written, on the server's clock; None: all are stored."""
        oldest = await self._client.xrange(f"{self._base}results", count=1)
        return int(oldest[0][0].partition(b"-")[0]) if oldest else None

    async def due_now(self, work: Work, *, unpacked: bool = False) -> int:
        """Number of sites that are due for a job now, paused and leased ones included.

        `unpacked`: also those that had no packet when they were due.
        """
        return int(await self._call("due_now", work, int(unpacked)))

    async def dues(self) -> dict[Work, dict[str, int]]:
        """Per job with due sites: how many `sites`, and the soonest time (`next_ms`).

        Of the crawl only future times count: a past one does not hold a site back, and the site may be finished.
        """
        found: dict[Work, dict[str, int]] = {}
        now_ms = int(await self.server_seconds() * 1000)
        for work in WORKS:
            key, least = f"{self._base}wake:{work}", now_ms if work == "site" else 0
            soonest = await self._client.zrangebyscore(key, least, "+inf", start=0, num=1, withscores=True)
            if soonest:
                many = int(await self._client.zcount(key, least, "+inf"))
                found[work] = {"sites": many, "next_ms": int(soonest[0][1])}
        return found

    async def works_done(self) -> set[str]:
        """The jobs of all agents with a session. Raises BrokenRecordError as `agents`."""
        pipeline = self._client.pipeline(transaction=False)
        keys = [f"{self._base}agent:{name}" for name in await self._sessions()]
        for key in keys:
            pipeline.hget(key, "about")
        told = [
            read_about(key, about) for key, about in zip(keys, await pipeline.execute(), strict=True) if about
        ]
        return {work for about in told for work in about.get("works", ["site"])}
