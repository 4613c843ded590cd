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
        """From now on every site has a due time for this work; those that have none yet are due at once.

        Cheap where that was said before, and the queue was not lost since.
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
        """Give these sites (known ones) a due time in ms for a work, where they have none."""
        if dues:
            await self._client.zadd(f"{self._base}wake:{work}", dict(dues), nx=True)

    async def plan_work(self, site: str, work: str, due_ms: int) -> bool:
        """Let a work fall due for a site; False: the site is not known."""
        return bool(await self._call("plan_work", site, work, due_ms))

    async def pack(self, site: str, work: Work, packet: bytes) -> bool:
        """What is to be asked of a site by whoever leases it for this work next; False: it is in hand for just that."""
        return bool(await self._call("pack", site, work, packet))

    async def to_pack(self, work: Work, until_ms: int, most: int) -> list[str]:
        """Sites that are due for a work until then and have nothing packed; up to `most`."""
        wake, again = f"{self._base}wake:{work}", f"{self._base}again:{work}"
        due = texts_of(wake, await self._client.zrangebyscore(wake, 0, until_ms, start=0, num=most))
        due += texts_of(again, await self._client.lrange(again, 0, most - 1))
        names = list(dict.fromkeys(due))
        pipeline = self._client.pipeline(transaction=False)
        for site in names:
            pipeline.hexists(f"{self._base}visit:{site}", work)
        return [site for site, there in zip(names, await pipeline.execute(), strict=True) if not there]

    async def account(self) -> dict[str, float]:
        """Recheck's account (crawler.recheck.account), as it was kept last; empty where there is none that can be read.

        A price is found anew within a sweep or two: what somebody else wrote there is no reason to stop.
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
        """For the next look, of whichever coordinator; in the place of whatever was there."""
        await self._call("keep_account", *itertools.chain.from_iterable(account.items()))

    async def hold_up(self, site: str, work: Work) -> int:
        """Hold up a site's due time until `release`; what it was, in ms, 0: it had none."""
        return int(await self._call("hold_up", site, work))

    async def release(self, site: str, work: Work, due_ms: int) -> None:
        """Let the site be due then (0: not at all), or at the time that somebody told meanwhile, if it is sooner."""
        await self._call("release", site, work, due_ms)

    async def take_back_held(self, work: Work) -> None:
        """What a packer that was killed held up is due now."""
        key, now_ms = f"{self._base}wake:{work}", int(await self.server_seconds() * 1000)
        held = await self._client.zrangebyscore(key, HELD_UP_MS, "+inf")
        if held:
            await self._client.zadd(key, dict.fromkeys(held, now_ms), xx=True)

    async def oldest_record_ms(self) -> int | None:
        """When the oldest record came that no coordinator has stored yet, by the server's clock; None: all are."""
        oldest = await self._client.xrange(f"{self._base}results", count=1)
        return int(oldest[0][0].partition(b"-")[0]) if oldest else None

    async def due_now(self, work: Work, *, unpacked: bool = False) -> int:
        """How many sites a work has to do with by now, paused ones and those in another's hand among them.

        `unpacked`: also those that it found not packed yet when they were due.
        """
        return int(await self._call("due_now", work, int(unpacked)))

    async def dues(self) -> dict[Work, dict[str, int]]:
        """Per work with any: how many `sites` wait for a time, and the soonest one (`next_ms`).

        Of loading only times to come: one that has passed keeps nobody from the site, and it may be finished.
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
        """The works that some agent with a session does. BrokenRecordError as `agents`."""
        pipeline = self._client.pipeline(transaction=False)
        keys = [f"{self._base}agent:{name}" for name in await self._sessions()]
        for key in keys:
            pipeline.hget(key, "about")
        told = [
            read_about(key, about) for key, about in zip(keys, await pipeline.execute(), strict=True) if about
        ]
        return {work for about in told for work in about.get("works", ["site"])}
