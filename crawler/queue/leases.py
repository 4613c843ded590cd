"""Sessions, leases and deliveries: what an agent asks of the site queue.

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

# How a lease ends. `returned`: unfinished, next in line. `suspended`: unfinished, waits for the plan. `later`:
# unfinished, due at a time. `parked`: its address has no free place.
Ending = Literal["finished", "returned", "suspended", "later", "parked"]


# Names one lease call looks at at most: bounds the script's time when many are not eligible.
LOOK = 64


# Such calls in a row while none gives a site: a list may begin with many names that are finished or wait for a place.
LOOKS = 50


class Leases(Script):
    """What an agent asks of the queue: sessions, leases, checkpoints, deliveries, new sites and paths."""

    async def join(self, agent: str, about: dict[str, object]) -> int:
        """Open or renew the session of `agent`; the server's time in ms."""
        time = int(await self._call("join", agent, self._lease_ms, json.dumps(about)))
        self._offers.pop(agent, None)
        return time

    async def renew(self, agent: str, pages: int) -> Renewed:
        """Keep all leases of `agent` for another lease time."""
        server_ms, stopped, suspended, *sites = await self._call("renew", agent, self._lease_ms, pages)
        behind = stopped + suspended
        return Renewed(
            server_ms,
            texts_of(f"{self._base}stop:{agent}", sites[:stopped]),
            texts_of(f"{self._base}suspend:{agent}", sites[stopped:behind]),
            texts_of(f"{self._base}given:{agent}", sites[behind:]),
        )

    async def part(self, agent: str) -> None:
        """End the session; what it still holds is handed to the next."""
        await self._call("part", agent)

    async def claim_prefix(self, spider: str) -> str:
        """The spider whose crawl this prefix is: `spider`, or the one that came first.

        What an older version wrote in another form gets the form of this one.
        """
        return text_of(f"{self._base}crawl", await self._call("claim", spider))

    async def lease(
        self, agent: str, work: Work, wanted: int, hour: int, *, hungry: bool = False, packed: bool = False
    ) -> Hand:
        """Up to `wanted` sites for `work`, each held by `agent` alone from now on.

        A `hungry` agent misses what it does not get, and the others hear of it (`Hand.missing`) until it gets enough,
        asks without hunger, or has not asked for 2 s. Of a `packed` work only sites are given that have a packet.
        SessionGoneError, QueueOlderError.
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
        """What the server says this agent holds: site -> token. BrokenRecordError where that cannot be read."""
        key = f"{self._base}held:{agent}"
        fields = await self._client.hgetall(key)
        return {text_of(key, site): read_token(key, site, text) for site, text in fields.items()}

    async def locate(self, agent: str, leased: Leased, address: str) -> bool:
        """Take a place on the site's address; False: full, leave the site with `parked`."""
        return bool(await self._call("locate", agent, leased.site, leased.token, address, *self._places))

    async def checkpoint(self, site: str) -> tuple[list[bytes], list[str], int | None]:
        """The journal entries of a site in order, the entries of paths given for it from outside, its own page budget.

        BrokenRecordError for a budget that is none.
        """
        pipeline = self._client.pipeline(transaction=False)
        pipeline.lrange(f"{self._base}checkpoint:{site}", 0, -1)
        pipeline.lrange(f"{self._base}paths:{site}", 0, -1)
        pipeline.hget(f"{self._base}budget", site)
        entries, paths, budget = await pipeline.execute()
        # What is no path is told by whoever reads it.
        given = [path.decode(errors="replace") for path in paths]
        return entries, given, self._pages_of(site, budget)

    async def given(self, site: str, start: int) -> list[str]:
        """The entries of paths given for a site from outside, from the `start`th on: `read_entry` reads each."""
        entries = await self._client.lrange(f"{self._base}paths:{site}", start, -1)
        return [entry.decode(errors="replace") for entry in entries]

    async def publish(self, agent: str, deliveries: Sequence[Delivery]) -> list[Published]:
        """Records into the stream and the journal with them, per site all or nothing. QueueOlderError: nothing."""
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
        """Give a site back, with a last record; False: not finished, more paths were given meanwhile.

        `detail`: for `finished` the number of paths from outside that were taken in, for `parked` the address.
        `reason` is shown for a site that is due later. The site's record keeps how many of its URLs are `known` (0:
        what it said before stays) and `done`, the hash of the latter, and what bounds leave out. Of another work
        `due_ms` is when it is due next: 0 for `finished` that it is not, else that it is at once. The site is not asked
        before `rests_until_ms`; for loading this holds for `finished` alone, the others have `due_ms`. A site that may
        be another's alias is due once a coordinator has compared the two, or after half a minute. `seq` is the number
        of the lease's last delivery: StaleLeaseError where the server has lost it.
        """
        last = detail if detail != "" else 0
        lease = (agent, leased.site, leased.token)
        more = (progress_text(done, known, done_hash, left_out) if known else "", rests_until_ms, seq)
        return bool(await self._call("leave", *lease, how, due_ms, last, reason, report, *more))

    async def hand_in(self, agent: str, done: Sequence[HandedIn]) -> None:
        """Records into the stream, and the leases of their sites ended: those that still are this agent's.

        Safe to ask again: a record that is told twice is stored once.
        """
        parts: list[bytes | str | int] = []
        for one in done:
            parts += one
        await self._call("hand_in", agent, *parts)

    async def permits(self, sites: Sequence[str]) -> list[str]:
        """What `hand_in` kept of each site's robots.txt; empty: nothing."""
        key = f"{self._base}permits"
        return texts_of(key, [kept or b"" for kept in await self._client.hmget(key, sites)])

    async def spend(self, day: int, spent: Mapping[str, tuple[int, int]], keep_seconds: int) -> None:
        """Add requests and bytes to what sites were asked for on a day; kept for so long from now on."""
        key = f"{self._base}spent:{day}"
        pipeline = self._client.pipeline(transaction=False)
        for site, (requests, size) in spent.items():
            pipeline.hincrby(key, f"requests {site}", requests)
            pipeline.hincrby(key, f"bytes {site}", size)
        pipeline.expire(key, keep_seconds)
        await pipeline.execute()

    async def spent(self, day: int, sites: Sequence[str]) -> list[tuple[int, int]]:
        """Requests and bytes that sites were asked for on a day, by all agents, as far as they have told."""
        fields = [f"{kind} {site}" for site in sites for kind in ("requests", "bytes")]
        key = f"{self._base}spent:{day}"
        values = await self._client.hmget(key, fields)
        found = [whole_number(key, field, value or b"0") for field, value in zip(fields, values, strict=True)]
        return list(zip(found[::2], found[1::2], strict=True))

    async def discover(
        self, newcomers: Sequence[Newcomer], max_sites: int, *, again: bool = False
    ) -> list[int]:
        """Queue sites: per site 1 new, 0 known, 2 walked `again`, -1 refused by `max_sites`, -2 blocked.

        `max_sites` 0 means no limit. Paths given for a site that is known come to its frontier; a finished site is
        opened for those that it does not have, once a coordinator has looked (`to_decide`). Those of a blocked site go
        nowhere. What is given here is a seed: no such site is an alias, and one that was left out as such is opened.
        Idempotent but for `again`; a path that is given twice is fetched once.
        """
        verdicts: dict[int, int] = {}  # of a newcomer with several entries the first one
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
        """Paths that were found outside of their site, as `discover` takes them; those of an alias go to its original.

        Per offer 1 the site is new, 0 known, -1 refused by `max_sites`, -2 nothing of the site is loaded by now, -3 too
        many such entries wait for the site. An `agent` with a session publishes nothing once the server has lost an
        offer of it: QueueOlderError, also of `publish` and `lease`.
        """
        answers: dict[int, int] = {}  # of an offer with several entries the first one, or a refusal
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
        """Whether the server lacks offers of this agent that it had acknowledged."""
        key = f"{self._base}agent:{agent}"
        kept = await self._client.hget(key, "offers")
        return whole_number(key, "offers", kept or b"0") < self._offers.get(agent, 0)

    async def packet(self, site: str, work: Work) -> bytes:
        """What was packed for a work; empty: nothing is. It goes with the lease."""
        return await self._client.hget(f"{self._base}visit:{site}", work) or b""

    async def tell(self, encoded: Sequence[bytes], links: Sequence[bytes] = ()) -> None:
        """Records that belong to no lease into the results stream, each with its packed out-links where these are."""
        pipeline = self._client.pipeline(transaction=False)
        for record, packed in itertools.zip_longest(encoded, links, fillvalue=b""):
            more = {b"l": packed} if packed else {}
            pipeline.xadd(f"{self._base}results", {b"v": VERSION, b"r": record, **more})
        await pipeline.execute()

    async def widen_scope(self, roots: Iterable[str]) -> None:
        """What seeds add to the scope, for all agents; empty ones add nothing."""
        if kept := set(filter(None, roots)):
            await self._client.sadd(f"{self._base}scope", *kept)
