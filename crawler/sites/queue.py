"""The site queue: which sites wait, who holds which, and what a holder publishes. One SiteQueue per process.

Every method is one atomic script call (queue.lua) on the server's clock. A site has one holder, whatever the
work; its token fences off whoever lost it. Nothing here blocks the event loop, retries, or remembers: a
connection error reaches the caller (redis.exceptions.ConnectionError, TimeoutError), who backs off and asks
again. Safe to ask again: join, renew, discover, publish (by its seq), depth, held. After a lost reply to `lease`
read `held`: it tells what this agent really has.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any, Literal, NamedTuple, cast

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, ResponseError

from crawler.records import VERSION

# How a lease ends. `returned`: unfinished, next in line. `suspended`: unfinished, waits for the plan.
# `later`: unfinished, due at a time. `parked`: its address has no free place.
Ending = Literal["finished", "returned", "suspended", "later", "parked"]
Verdict = Literal["OK", "AGAIN", "STALE", "GAP"]
# Names one lease call looks at at most: bounds the script's time when many are not eligible.
LOOK = 64
# Sites one discover call adds: a longer call would hold up every other agent's lease.
DISCOVER_BATCH = 100


class SessionGoneError(Exception):
    """The server knows no session of this agent any more: drop every lease, join again."""


class StaleLeaseError(Exception):
    """The token is not the site's: another agent may hold it now. Drop the frontier."""


class Leased(NamedTuple):
    """A site in hand. `address` is None until somebody has looked it up."""

    site: str
    token: str
    suspended: bool  # it has a checkpoint
    address: str | None


class Hand(NamedTuple):
    """What a lease call gave, and what it saw before: for a fair share among the agents."""

    sites: list[Leased]
    ready: int  # sites that waited, suspended ones included
    leased: int
    agents: int


class Newcomer(NamedTuple):
    """A site to be queued: its record for the tables (JSON), and paths to begin with besides `/`."""

    site: str
    record: bytes
    paths: tuple[str, ...] = ()


class Delivery(NamedTuple):
    """What one site's holder publishes in one go; seq counts the deliveries of a lease from 1."""

    site: str
    token: str
    seq: int
    delta: bytes  # journal entry; the whole checkpoint if `fold`
    fold: bool
    records: Sequence[tuple[bytes, bytes]]  # JSON, packed out-links


class Depth(NamedTuple):
    """How much there is, in sites; `records` in the results stream, `agents` with a session."""

    waiting: int
    suspended: int
    leased: int
    later: int
    paused: int
    finished: int
    added: int
    records: int
    agents: int

    @property
    def open(self) -> int:
        """Sites that somebody has or could have right now."""
        return self.waiting + self.suspended + self.leased


class SiteQueue:
    """One crawl's queue under one key prefix."""

    def __init__(self, client: Redis, prefix: str, lease_seconds: float) -> None:
        self._client = client
        self._base = f"{prefix}:{{0}}:"
        self._lease_ms = int(lease_seconds * 1000)
        self._source = resources.files("crawler.sites").joinpath("queue.lua").read_text()
        self._sha: str | None = None

    async def join(self, agent: str, about: dict[str, object]) -> int:
        """Open or renew the session of `agent`; the server's time in ms."""
        return int(await self._call("join", agent, self._lease_ms, json.dumps(about)))

    async def renew(self, agent: str, pages: int) -> list[str]:
        """Keep all leases of `agent` for another lease time; sites it must give back."""
        return [_text(site) for site in await self._call("renew", agent, self._lease_ms, pages)]

    async def part(self, agent: str) -> None:
        """End the session; what it still holds is handed to the next."""
        await self._call("part", agent)

    async def discover(
        self, newcomers: Sequence[Newcomer], max_sites: int, *, again: bool = False
    ) -> list[int]:
        """Queue sites: per site 1 new, 0 known, 2 finished before and walked `again`, -1 refused by `max_sites`.

        `max_sites` 0 means no limit. Idempotent but for `again`.
        """
        answers: list[int] = []
        for start in range(0, len(newcomers), DISCOVER_BATCH):
            batch = newcomers[start : start + DISCOVER_BATCH]
            parts: list[bytes | str] = []
            for site, record, paths in batch:
                parts += (site, record, "\n".join(paths))
            answers += await self._call("discover", max_sites, int(again), *parts)
        return answers

    async def tell(self, encoded: Sequence[bytes]) -> None:
        """Records that belong to no lease into the results stream."""
        pipeline = self._client.pipeline(transaction=False)
        for record in encoded:
            pipeline.xadd(f"{self._base}results", {b"v": VERSION, b"r": record})
        await pipeline.execute()

    async def lease(self, agent: str, work: str, wanted: int, per_address: int, hour: int) -> Hand:
        """Up to `wanted` sites for `work`, each held by `agent` alone from now on."""
        reply = await self._call(
            "lease", agent, self._lease_ms, work, wanted, per_address, hour, LOOK + wanted
        )
        parts = iter(reply[3:])
        sites = [
            Leased(_text(site), _text(token), state == b"s", None if address == b"-" else _text(address))
            for site, token, state, address in zip(parts, parts, parts, parts, strict=True)
        ]
        return Hand(sites, *reply[:3])

    async def locate(self, agent: str, leased: Leased, address: str, per_address: int) -> bool:
        """Take a place on the site's address; False: full, leave the site with `parked`."""
        return bool(await self._call("locate", agent, leased.site, leased.token, address, per_address))

    async def publish(self, agent: str, deliveries: Sequence[Delivery]) -> list[Verdict]:
        """Records into the stream and the journal with them, per site all or nothing."""
        parts: list[bytes | str | int] = []
        for one in deliveries:
            parts += (one.site, one.token, one.seq, one.delta, int(one.fold), len(one.records))
            for record, links in one.records:
                parts += (record, links)
        return [cast("Verdict", _text(verdict)) for verdict in await self._call("publish", agent, *parts)]

    async def leave(
        self,
        agent: str,
        leased: Leased,
        how: Ending,
        *,
        due_ms: int = 0,
        paths_seen: int = 0,
        parked_at: str = "",
        report: bytes = b"",
    ) -> bool:
        """Give a site back, with a last record; False: not finished, more paths were given meanwhile."""
        last = parked_at if how == "parked" else paths_seen
        done = await self._call("leave", agent, leased.site, leased.token, how, due_ms, last, report)
        return bool(done)

    async def checkpoint(self, site: str) -> tuple[list[bytes], list[str]]:
        """The journal entries of a site, in order, and the paths that were given for it from outside."""
        pipeline = self._client.pipeline(transaction=False)
        pipeline.lrange(f"{self._base}checkpoint:{site}", 0, -1)
        pipeline.lrange(f"{self._base}paths:{site}", 0, -1)
        entries, paths = await pipeline.execute()
        return entries, [_text(path) for path in paths]

    async def held(self, agent: str) -> dict[str, str]:
        """What the server says this agent holds: site -> token."""
        fields = await self._client.hgetall(f"{self._base}held:{agent}")
        return {_text(site): _text(token).split()[0] for site, token in fields.items()}

    async def depth(self) -> Depth:
        """How much of everything there is now."""
        return Depth(*await self._call("depth"))

    async def due(self, work: str, most: int) -> list[tuple[str, int]]:
        """The sites that wait for a time, soonest first: name and due time in ms."""
        rows: Any = await self._client.zrange(f"{self._base}wake:{work}", 0, most - 1, withscores=True)
        return [(_text(site), int(due)) for site, due in rows]

    async def claim_prefix(self, spider: str) -> str:
        """The spider whose crawl this prefix is: `spider`, or whoever came first."""
        key = f"{self._base}crawl"
        await self._client.set(key, spider, nx=True)
        return _text(await self._client.get(key) or b"")

    async def _call(self, operation: str, *arguments: Any) -> Any:
        if self._sha is None:
            self._sha = _text(await self._client.script_load(self._source))
        parts: Iterable[Any] = (f"{self._base}count", operation, *arguments)
        try:
            return await self._client.evalsha(self._sha, 1, *parts)
        except NoScriptError:
            # The server was restarted since; the script ran not at all, so asking again is safe.
            self._sha = _text(await self._client.script_load(self._source))
            return await self._client.evalsha(self._sha, 1, *parts)
        except ResponseError as error:
            raise _named(error) from None


def _named(error: ResponseError) -> Exception:
    word, _, about = str(error).partition(" ")
    if word == "GONE":
        return SessionGoneError(about)
    if word == "STALE":
        return StaleLeaseError(about)
    return error


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
