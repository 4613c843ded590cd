"""The one script behind every operation of the site queue, and its errors.

Every operation is one atomic script call (lua/) on the server's clock. Nothing here blocks the event loop or retries.
Raises redis.exceptions.ConnectionError and TimeoutError, and BrokenRecordError for a value that no agent wrote.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from importlib import resources
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, ResponseError

from crawler.options import Options
from crawler.queue.errors import (
    BrokenRecordError,
    LockLostError,
    QueueOlderError,
    SessionGoneError,
    StaleLeaseError,
    found_in,
    text_of,
    whole_number,
)
from crawler.queue.sites import Holding, SiteRecord, bucket_of, of_bucket, read_holding, read_record

# Keys per step of a scan, and buckets of records per read (16 sites each at a million): 1 to 2 ms of the server's time.
SCAN_KEYS, READ_BUCKETS = 2_000, 512


# The script's files in the order in which they are joined: each needs those before it.
PARTS: Final = (
    *("keys", "common", "aliases", "sessions", "sites", "lease", "publish"),
    *("jobs", "decisions", "plan", "admin", "call"),
)


def source() -> str:
    """The whole script."""
    folder = resources.files("crawler.queue").joinpath("lua")
    return "\n".join(folder.joinpath(f"{part}.lua").read_text(encoding="utf-8") for part in PARTS)


class Script:
    """One crawl's queue under KEY_PREFIX: calls of its script, and the records of its sites."""

    def __init__(self, client: Redis, options: Options) -> None:
        self._client: Any = client
        self._base = f"{options.key_prefix}:{{0}}:"
        self._lease_ms = int(options.lease_seconds * 1000)
        self._hour_seconds = options.hour_seconds
        self._places = (
            options.sites_per_address,
            options.shared_address_after,
            max(options.sites_per_address, options.sites_per_shared_address),
        )
        self._offers: dict[str, int] = {}  # agent -> number of its last acknowledged `offer`
        self._source = source()
        self._sha: str | None = None

    async def _call(self, operation: str, *arguments: Any) -> Any:
        parts: Iterable[Any] = (f"{self._base}count", operation, *arguments)
        try:
            if self._sha is not None:
                with suppress(NoScriptError):
                    return await self._client.evalsha(self._sha, 1, *parts)
            # First call, or the server was restarted: the script did not run, so a repeat is safe.
            self._sha = str(await self._client.script_load(self._source))
            return await self._client.evalsha(self._sha, 1, *parts)
        except ResponseError as error:
            raise await self._named(error) from None

    async def _named(self, error: ResponseError) -> Exception:
        word, _, about = str(error).partition(" ")
        if word == "BROKEN":
            key, site, *_ = about.split(" ")
            return BrokenRecordError(key, found_in(site, await self._client.hget(key, site) or b""))
        kinds = {
            "GONE": SessionGoneError,
            "OLDER": QueueOlderError,
            "STALE": StaleLeaseError,
            "LOST": LockLostError,
        }
        return kinds[word](about) if word in kinds else error

    def _bucket(self, site: str) -> str:
        return bucket_of(self._base, site)

    def _pages_of(self, site: str, budget: bytes | None) -> int | None:
        return None if budget is None else whole_number(f"{self._base}budget", site, budget)

    async def _records_of(self, sites: Sequence[str]) -> dict[str, SiteRecord | None]:
        pipeline = self._client.pipeline(transaction=False)
        for site in sites:
            pipeline.hget(self._bucket(site), site)
        return {
            site: None if text is None else read_record(self._bucket(site), site, text)
            for site, text in zip(sites, await pipeline.execute(), strict=True)
        }

    async def _read_buckets(self, keys: Sequence[bytes]) -> list[SiteRecord]:
        if not keys:
            return []
        pipeline = self._client.pipeline(transaction=False)
        for key in keys:
            pipeline.hgetall(key)
        found = []
        for key, fields in zip(keys, await pipeline.execute(raise_on_error=False), strict=True):
            if isinstance(fields, Exception):
                raise of_bucket(key, fields)
            found += [read_record(key, site, text) for site, text in fields.items()]
        return found

    async def _sessions(self) -> dict[str, float]:
        """Agents with a session -> when it expires."""
        key = f"{self._base}agents"
        return {
            text_of(key, name): expiry
            for name, expiry in await self._client.zrange(key, 0, -1, withscores=True)
        }

    async def server_seconds(self) -> float:
        """Seconds since 1970 on the server's clock."""
        seconds, micros = await self._client.time()
        return float(seconds + micros / 1e6)

    async def record(self, site: str) -> SiteRecord | None:
        """One site's record; None for an unknown site. Raises BrokenRecordError for an invalid record."""
        key = self._bucket(site)
        try:
            text = await self._client.hget(key, site)
        except ResponseError as error:
            raise of_bucket(key, error) from None
        return None if text is None else read_record(key, site, text)

    async def records(self) -> AsyncIterator[SiteRecord]:
        """Every site's record, in no order; sites added during the scan may be missing. Raises BrokenRecordError."""
        seen: set[bytes] = set()  # a scan may give a key twice
        waiting: list[bytes] = []
        async for key in self._client.scan_iter(match=f"{self._base}sites:*", count=SCAN_KEYS):
            if key not in seen:
                seen.add(key)
                waiting.append(key)
            if len(waiting) >= READ_BUCKETS:
                for record in await self._read_buckets(waiting):
                    yield record
                waiting = []
        for record in await self._read_buckets(waiting):
            yield record

    async def holdings(self) -> list[Holding]:
        """All leased sites, agent by agent. Raises BrokenRecordError for invalid values."""
        found = []
        for agent in await self._sessions():
            for site, text in (await self._client.hgetall(f"{self._base}held:{agent}")).items():
                found.append(read_holding(f"{self._base}held:{agent}", site, agent, text))
        return found
