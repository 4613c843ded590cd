"""Start URLs in a key of Redis: a list, a set or a sorted set, as scrapy-redis's users fill it.

Values stay in the key until `remove`, so a crash loses none. A key of another type is logged once and counts as empty.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redis.asyncio import Redis

logger = logging.getLogger("seeds")

# Values read in one go.
BATCH = 1000
_KINDS = ("list", "set", "zset")


class StartUrls:
    """One key and its values."""

    def __init__(self, client: Redis, key: str) -> None:
        self.key = key
        self._client: Any = client
        self._told = ""

    async def length(self) -> int:
        """Number of waiting values."""
        kind = await self._kind()
        if kind not in _KINDS:
            return 0
        count = {"list": self._client.llen, "set": self._client.scard, "zset": self._client.zcard}[kind]
        return int(await count(self.key))

    async def peek(self) -> list[bytes]:
        """Up to BATCH of the next values: a list's oldest, a sorted set's highest; empty: none waits."""
        kind = await self._kind()
        if kind == "list":
            return list(await self._client.lrange(self.key, -BATCH, -1))
        if kind == "set":
            return list(await self._client.srandmember(self.key, BATCH))
        if kind == "zset":
            return list(await self._client.zrevrange(self.key, 0, BATCH - 1))
        return []

    async def all(self) -> AsyncIterator[list[bytes]]:
        """Every value, in batches, next ones first; a batch may be removed during the iteration.

        Values that are added or removed during the iteration may come twice or not at all: iterate again.
        """
        kind = await self._kind()
        if kind == "set":
            async for batch in self._scanned():
                yield batch
            return
        # From the end that `remove` takes from: what is left keeps its place.
        read = self._client.lrange if kind == "list" else self._client.zrange
        for end in range(await self.length(), 0, -BATCH):
            yield list(await read(self.key, max(0, end - BATCH), end - 1))

    async def _scanned(self) -> AsyncIterator[list[bytes]]:
        batch: list[bytes] = []
        async for value in self._client.sscan_iter(self.key, count=BATCH):
            batch.append(value)
            if len(batch) >= BATCH:
                yield batch
                batch = []
        if batch:
            yield batch

    async def remove(self, values: list[bytes]) -> None:
        """Remove each of these values once."""
        kind = await self._kind()
        pipeline = self._client.pipeline(transaction=False)
        if kind == "list":
            for value in values:
                pipeline.lrem(self.key, -1, value)
        elif kind == "set" and values:
            pipeline.srem(self.key, *values)
        elif kind == "zset" and values:
            pipeline.zrem(self.key, *values)
        await pipeline.execute()

    async def _kind(self) -> str:
        kind = bytes(await self._client.type(self.key)).decode()
        if kind not in (*_KINDS, "none") and kind != self._told:
            self._told = kind
            logger.warning("%s is a %s; expected a list, set or sorted set of URLs", self.key, kind)
        return kind
