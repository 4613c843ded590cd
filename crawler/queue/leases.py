"""Sessions, leases and deliveries: the agent's side of the site queue.

A site has one holder at a time; its token fences off an agent that lost it. Safe to repeat after a lost reply: join,
renew, discover, offer, publish (by its seq), held. After a lost reply to `lease` read `held`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from crawler.queue.errors import text_of, texts_of, whole_number
from crawler.queue.script import Script
from crawler.queue.sites import (
    DISCOVER_BATCH,
    Delivery,
    Hand,
    HandedIn,
    Leased,
    Newcomer,
    Offer,
    Published,
    Renewed,
    parts_of,
    progress_text,
    read_token,
)
from crawler.records import VERSION, Work

# How a lease ends. Unfinished sites: `returned` is leased next, `suspended` waits for the plan, `later` has a due time,
# `parked` waits for a slot of its address.
Ending = Literal["finished", "returned", "suspended", "later", "parked"]


# Names that one lease call tries at most: bounds the script's time if many are not eligible.
LOOK = 64


# Calls in a row without a site: a list may start with many names that are finished or wait for a slot.
LOOKS = 50


class Leases(Script):
    """The agent's side: sessions, leases, checkpoints, deliveries, new sites and paths."""

    async def join(self, agent: str, about: dict[str, object]) -> int:
        """Open or renew the session of `agent`; returns the server's time in ms."""
        time = int(await self._call("join", agent, self._lease_ms, json.dumps(about)))
        self._offers.pop(agent, None)
        return time

    async def renew(self, agent: str, pages: int) -> Renewed:
        """Extend all leases of `agent` by another lease time."""
        server_ms, stopped, suspended, *sites = await self._call("renew", agent, self._lease_ms, pages)
        behind = stopped + suspended
        return Renewed(
            server_ms,
            texts_of(f"{self._base}stop:{agent}", sites[:stopped]),
            texts_of(f"{self._base}suspend:{agent}", sites[stopped:behind]),
            texts_of(f"{self._base}given:{agent}", sites[behind:]),
        )

    async def part(self, agent: str) -> None:
        """End the session; its sites go to other agents."""
        await self._call("part", agent)

    async def claim_prefix(self, spider: str) -> str:
        """The spider that owns this prefix: `spider`, or the first one that claimed it.

        Converts what older versions wrote.
        """
        return text_of(f"{self._base}crawl", await self._call("claim", spider))

    async def lease(
        self, agent: str, work: Work, wanted: int, hour: int, *, hungry: bool = False, packed: bool = False
    ) -> Hand:
        """Up to `wanted` sites for the job `work`, held by `agent` alone from now on.

        A `hungry` agent counts as starved by what it does not get (`Hand.missing` of the others), until it gets enough,
        calls without `hungry`, or has not called for 2 s. With `packed` only sites that have a packet are leased.
        Raises SessionGoneError and QueueOlderError.
        """
        for _ in range(LOOKS):
            reply = await self._call(
                "lease",
                agent,
                self._lease_ms,
                work,
                wanted,
                *self._places,
                hour,
                LOOK + wanted,
                int(hungry),
                int(packed),
                self._offers.get(agent, 0),
            )
            more_to_look_at = reply[3] and len(reply) == 5
            if not more_to_look_at:
                break
        parts = texts_of(f"{self._base}held:{agent}", reply[5:])
        sites = [
            Leased(
                site,
                token,
                flags[0] == "s",
                None if address == "-" else address,
                "+" in flags,
                "?" in flags,
                work,
                "~" in flags,
            )
            for site, token, flags, address in zip(*[iter(parts)] * 4, strict=True)
        ]
        ready, leased, agents, _, missing = reply[:5]
        return Hand(sites, ready, leased, agents, missing)

    async def held(self, agent: str) -> dict[str, str]:
        """The sites that the server lists for this agent -> token. Raises BrokenRecordError for invalid values."""
        key = f"{self._base}held:{agent}"
        fields = await self._client.hgetall(key)
        return {text_of(key, site): read_token(key, site, text) for site, text in fields.items()}

    async def locate(self, agent: str, leased: Leased, address: str) -> bool:
        """Take a slot of the site's address; False: none is free, release the site with `parked`."""
        return bool(await self._call("locate", agent, leased.site, leased.token, address, *self._places))

    async def checkpoint(self, site: str) -> tuple[list[bytes], list[str], int | None]:
        """A site's journal entries in order, its entries of paths from outside, and its own page budget.

        Raises BrokenRecordError for an invalid budget.
        """
        pipeline = self._client.pipeline(transaction=False)
        pipeline.lrange(f"{self._base}checkpoint:{site}", 0, -1)
        pipeline.lrange(f"{self._base}paths:{site}", 0, -1)
        pipeline.hget(f"{self._base}budget", site)
        entries, paths, budget = await pipeline.execute()
        # The reader reports what is not a path.
        given = [path.decode(errors="replace") for path in paths]
        return entries, given, self._pages_of(site, budget)

    async def given(self, site: str, start: int) -> list[str]:
        """Entries of paths from outside, from the `start`th on; `read_entry` reads each."""
        entries = await self._client.lrange(f"{self._base}paths:{site}", start, -1)
        return [entry.decode(errors="replace") for entry in entries]

    async def publish(self, agent: str, deliveries: Sequence[Delivery]) -> list[Published]:
        """Add records to the stream together with the journal, per site all or nothing.

        Raises QueueOlderError; then nothing is published.
        """
        parts: list[bytes | str | int] = []
        for one in deliveries:
            parts += (one.site, one.token, one.seq, one.delta, int(one.fold), one.root)
            progress = ""
            if one.known is not None:
                progress = progress_text(one.done, one.known, one.done_hash, one.left_out)
            parts += (one.delay_ms, one.until_ms, progress, one.given, int(one.sends_back), len(one.records))
            for record, links in one.records:
                parts += (record, links)
        replies = await self._call("publish", agent, self._offers.get(agent, 0), *parts)
        verdicts = texts_of(f"{self._base}suspected", replies)
        return [Published(*verdict.split(" ", 1)) for verdict in verdicts]  # type: ignore[arg-type]

    async def leave(
        self,
        agent: str,
        leased: Leased,
        how: Ending,
        *,
        due_ms: int = 0,
        detail: str | int = "",
        reason: str = "",
        report: bytes = b"",
        known: int = 0,
        done: int = 0,
        done_hash: int = 0,
        left_out: str = "",
        rests_until_ms: int = 0,
        seq: int = 0,
    ) -> bool:
        """Release a site, with a last record; returns False if it is not finished: new paths came for it.

        `detail`: for `finished` the number of entries of paths that were taken in, for `parked` the address. `reason`
        is shown for a site that is due later. The site's record keeps `known` (0: unchanged), `done`, `done_hash` and
        `left_out`. For other jobs than the crawl `due_ms` is the next due time; 0 means none for `finished`, else at
        once. No request goes to the site before `rests_until_ms`; for the crawl that counts for `finished` only, the
        others have `due_ms`. A possible alias is due when a coordinator has compared it, or after 30 s. `seq` is the
        number of the lease's last delivery. Raises StaleLeaseError if the server has lost that delivery.
        """
        last = detail if detail != "" else 0
        lease = (agent, leased.site, leased.token)
        more = (progress_text(done, known, done_hash, left_out) if known else "", rests_until_ms, seq)
        return bool(await self._call("leave", *lease, how, due_ms, last, reason, report, *more))

    async def hand_in(self, agent: str, done: Sequence[HandedIn]) -> None:
        """Add records to the stream and end the leases of their sites, if they are still this agent's.

        Safe to repeat: a record that is sent twice is stored once.
        """
        parts: list[bytes | str | int] = []
        for one in done:
            parts += one
        await self._call("hand_in", agent, *parts)

    async def permits(self, sites: Sequence[str]) -> list[str]:
        """The robots.txt of each site as `hand_in` kept it; empty: none."""
        key = f"{self._base}permits"
        return texts_of(key, [kept or b"" for kept in await self._client.hmget(key, sites)])

    async def spend(self, day: int, spent: Mapping[str, tuple[int, int]], keep_seconds: int) -> None:
        """Add to the requests and bytes of sites on a day; expires `keep_seconds` after the last call."""
        key = f"{self._base}spent:{day}"
        pipeline = self._client.pipeline(transaction=False)
        for site, (requests, size) in spent.items():
            pipeline.hincrby(key, f"requests {site}", requests)
            pipeline.hincrby(key, f"bytes {site}", size)
        pipeline.expire(key, keep_seconds)
        await pipeline.execute()

    async def spent(self, day: int, sites: Sequence[str]) -> list[tuple[int, int]]:
        """Requests and bytes of sites on a day, as all agents have reported them."""
        fields = [f"{kind} {site}" for site in sites for kind in ("requests", "bytes")]
        key = f"{self._base}spent:{day}"
        values = await self._client.hmget(key, fields)
        found = [whole_number(key, field, value or b"0") for field, value in zip(fields, values, strict=True)]
        return list(zip(found[::2], found[1::2], strict=True))

    async def discover(
        self, newcomers: Sequence[Newcomer], max_sites: int, *, again: bool = False
    ) -> list[int]:
        """Queue seeds. Per site: 1 new, 0 known, 2 crawled `again`, -1 refused by `max_sites`, -2 blocked.

        `max_sites` 0 means no limit. Paths of a known site go to its frontier; those of a finished site reopen it if a
        coordinator finds new ones among them (`to_decide`); those of a blocked site are dropped. A seed is never an
        alias: a site that was left out as one is opened. Idempotent except for `again`; a path that is given twice is
        fetched once.
        """
        verdicts: dict[int, int] = {}  # the first one of several entries
        entries = [
            (number, "" if paths in ((), ("/",)) else "\n".join(paths))
            for number, one in enumerate(newcomers)
            for paths in parts_of(one.paths)
        ]
        for start in range(0, len(entries), DISCOVER_BATCH):
            parts: list[bytes | str] = []
            some = entries[start : start + DISCOVER_BATCH]
            for number, entry in some:
                parts += (newcomers[number].site, newcomers[number].record, entry)
            replies = await self._call("discover", max_sites, int(again), *parts)
            for (number, _), reply in zip(some, replies, strict=True):
                verdicts.setdefault(number, reply)
        return list(verdicts.values())

    async def offer(self, offers: Sequence[Offer], max_sites: int = 0, *, agent: str = "") -> list[int]:
        """Send paths to other sites, as `discover`; those of an alias go to its original.

        Per offer: 1 new site, 0 known, -1 refused by `max_sites`, -2 the site is blocked or forgotten, -3 too many
        entries wait for the site. If the server has lost an offer of `agent`, this, `publish` and `lease` raise
        QueueOlderError.
        """
        answers: dict[int, int] = {}  # the first one of several entries, or a refusal
        entries = [(number, part) for number, one in enumerate(offers) for part in one.parts()]
        for start in range(0, len(entries), DISCOVER_BATCH):
            parts: list[bytes | str | int] = []
            some = entries[start : start + DISCOVER_BATCH]
            for _, one in some:
                parts += (one.site, one.record, int(one.with_root), int(one.seeded), one.entry)
            call = self._offers.get(agent, 0)
            *replies, self._offers[agent] = await self._call("offer", max_sites, agent, call, *parts)
            for (number, _), reply in zip(some, replies, strict=True):
                answers[number] = reply if reply < 0 else answers.get(number, reply)
        return list(answers.values())

    async def is_older(self, agent: str) -> bool:
        """Whether the server lacks acknowledged offers of this agent."""
        key = f"{self._base}agent:{agent}"
        kept = await self._client.hget(key, "offers")
        return whole_number(key, "offers", kept or b"0") < self._offers.get(agent, 0)

    async def packet(self, site: str, work: Work) -> bytes:
        """The packet for a job, which ends with the lease; empty: none."""
        return await self._client.hget(f"{self._base}visit:{site}", work) or b""

    async def tell(self, encoded: Sequence[bytes], links: Sequence[bytes] = ()) -> None:
        """Add records without a lease to the stream, each with its packed out-links, if any."""
        pipeline = self._client.pipeline(transaction=False)
        for record, packed in itertools.zip_longest(encoded, links, fillvalue=b""):
            more = {b"l": packed} if packed else {}
            pipeline.xadd(f"{self._base}results", {b"v": VERSION, b"r": record, **more})
        await pipeline.execute()

    async def widen_scope(self, roots: Iterable[str]) -> None:
        """Add to the scope of all agents; empty roots add nothing."""
        if kept := set(filter(None, roots)):
            await self._client.sadd(f"{self._base}scope", *kept)
