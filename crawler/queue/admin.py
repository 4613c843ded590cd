"""The operator's side of the site queue: figures, and commands to sites."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Literal

from crawler.queue.errors import BrokenRecordError, found_in, shown, text_of, whole_number
from crawler.queue.script import Script
from crawler.queue.sites import LIKENESS, Depth, TablesWord, is_later, read_about, read_likeness
from crawler.records import WORKS

Order = Literal["pause", "resume", "block"]


class Admin(Script):
    """Commands to sites, depth, due times, sessions, reset."""

    async def order(self, site: str, order: Order, reason: str = "", *, record: bytes = b"") -> str | None:
        """Pause, resume or block a site; returns its state before, None for an unknown site.

        `record` is the command's record for the tables; it enters the results stream in the same call, if the command
        is accepted. A blocked site stays blocked.
        """
        before = await self._call("order", site, order, reason, record)
        return None if before is None else str(before.decode())

    async def forget(self, site: str, *, record: bytes = b"") -> Literal[1, 0, -1]:
        """Remove a site from the queue: 1 removed, 0 unknown, -1 leased."""
        return await self._call("forget", site, record, *WORKS)  # type: ignore[no-any-return]

    async def set_budget(self, site: str, pages: int | None, *, record: bytes = b"") -> bool:
        """Set a site's own MAX_PAGES_PER_SITE from its next lease on; None removes it. False: unknown site."""
        return bool(await self._call("budget", site, "" if pages is None else pages, record))

    async def depth(self) -> Depth:
        """Current counts. Raises BrokenRecordError for invalid counts."""
        counted = await self._call("depth")
        if None not in counted:
            return Depth(*counted)
        key, name = f"{self._base}count", Depth._fields[counted.index(None)]
        text = await self._client.hget(key, name) or b""
        raise BrokenRecordError(key, found_in(name, text), "whole numbers")

    async def tables_word(self) -> TablesWord | None:
        """The coordinators' last count; None: none since the queue was made or reset."""
        key, names = f"{self._base}tables", ("added", "lost", "at")
        *values, reset, counted_with = await self._client.hmget(key, *names, "reset", "counted_with")
        if None in values or (reset or b"0") != (counted_with or b"0"):
            return None
        return TablesWord(*map(whole_number, itertools.repeat(key), names, values))

    async def count_tables_again(self, *, owes_all: bool = False) -> None:
        """Discard the coordinators' last count; with `owes_all` also what a reset gave up."""
        await self._client.hdel(
            f"{self._base}tables", "lost", *(["reset", "counted_with"] if owes_all else [])
        )

    async def has_begun(self, *, again: bool) -> bool:
        """Whether done pages exist that will not be fetched again; `again`: finished sites are crawled again.

        Raises BrokenRecordError if the queue cannot be read.
        """
        depth = await self.depth()
        if depth.suspended or depth.later or depth.paused:
            return True
        if not again and (depth.finished or depth.alias or depth.blocked):
            return True
        held = [f"{self._base}checkpoint:{holding.site}" for holding in await self.holdings()]
        return bool(held and await self._client.exists(*held))

    async def due(self, work: str, most: int) -> list[tuple[str, int, str]]:
        """Sites with a due time, soonest first: name, due time in ms, reason."""
        key = f"{self._base}wake:{work}"
        rows = await self._client.zrange(key, 0, most - 1, withscores=True)
        if not rows:
            return []
        why = await self._client.hmget(f"{self._base}why", [site for site, _ in rows])
        return [
            (text_of(key, site), int(due), (reason or b"").decode(errors="replace"))
            for (site, due), reason in zip(rows, why, strict=True)
        ]

    async def later(self, most: int) -> list[tuple[str, int, str]]:
        """As `due`, for sites that are crawled later; finished sites may have a due time too and are left out."""
        many = most
        while True:
            waiting = await self.due("site", many)
            pipeline = self._client.pipeline(transaction=False)
            for site, _, _ in waiting:
                pipeline.hget(self._bucket(site), site)
            records = await pipeline.execute(raise_on_error=False)
            found = [one for one, text in zip(waiting, records, strict=True) if is_later(text)]
            if len(found) >= most or len(waiting) < many:
                return found[:most]
            many *= 4

    async def reasons(self, sites: Sequence[str]) -> list[str]:
        """Why each site is paused, blocked or delayed; of an alias its original."""
        found = await self._client.hmget(f"{self._base}why", sites) if sites else []
        return [(why or b"").decode(errors="replace") for why in found]

    async def details(self, site: str) -> dict[str, Any]:
        """More of a site: reason, budget, due times (ms) by job, journal entries, number of paths.

        Raises BrokenRecordError as `checkpoint`.
        """
        pipeline = self._client.pipeline(transaction=False)
        pipeline.hget(f"{self._base}why", site)
        pipeline.hget(f"{self._base}budget", site)
        pipeline.llen(f"{self._base}checkpoint:{site}")
        pipeline.llen(f"{self._base}paths:{site}")
        pipeline.llen(f"{self._base}offered:{site}")
        pipeline.hget(f"{self._base}suspected", site)
        for work in WORKS:
            pipeline.zscore(f"{self._base}wake:{work}", site)
        why, budget, entries, paths, offered, likeness, *due = await pipeline.execute()
        known = read_likeness(f"{self._base}suspected", site, likeness) if likeness else None
        return {
            "why": (why or b"").decode(errors="replace"),
            **({LIKENESS[known[0]]: known[1]} if known else {}),
            "budget": self._pages_of(site, budget),
            "journal_entries": entries,
            "paths_given": paths,
            "paths_offered": offered,
            "due_ms": {work: int(when) for work, when in zip(WORKS, due, strict=True) if when is not None},
        }

    async def agents(self) -> list[dict[str, Any]]:
        """Agents with a session: name, ms until it expires, sites held, and what they reported at `join`.

        0 ms: the session has expired and its sites are being released. `joined_ms` is on the server's clock. Raises
        BrokenRecordError for invalid values.
        """
        time = await self._client.time()
        now = time[0] * 1000 + time[1] // 1000
        found = []
        for name, expiry in (await self._sessions()).items():
            key = f"{self._base}agent:{name}"
            fields = await self._client.hgetall(key)
            about = read_about(key, fields.get(b"about", b"{}"))
            held = await self._client.hlen(f"{self._base}held:{name}")
            pages = whole_number(key, "pages", fields.get(b"pages", b"0"))
            left = int(expiry) - now if expiry else 0
            joined = whole_number(key, "joined", fields.get(b"joined", b"0"))
            found.append(
                {
                    "agent": name,
                    "expires_ms": left,
                    "held": held,
                    "pages": pages,
                    "joined_ms": joined,
                    **about,
                }
            )
        return found

    async def at_work(self) -> list[str]:
        """Names of the agents whose session has not expired, for messages."""
        seconds, _ = await self._client.time()
        names = await self._client.zrangebyscore(f"{self._base}agents", f"({seconds * 1000}", "+inf")
        return [shown(name) for name in names]

    async def lists(self) -> dict[str, int]:
        """Lengths of all non-empty lists and sorted sets of sites."""
        patterns = ("fresh", "again:*", "hour:*", "probe:*", "wake:*", "park:*")
        lengths: dict[str, int] = {}
        for pattern in patterns:
            async for key in self._client.scan_iter(match=self._base + pattern, count=10_000):
                measure = self._client.zcard if b":wake:" in key else self._client.llen
                lengths[shown(key)] = int(await measure(key))
        return lengths

    async def reset(self, *, gives_up: bool = False) -> int:
        """Remove every key of this crawl, the results stream included; returns how many.

        `gives_up`: unfinished sites of the tables do not count as lost afterwards.
        """
        removed = 0
        batch: list[bytes] = []
        last = {f"{self._base}{name}".encode() for name in ("count", "tables")}
        async for key in self._client.scan_iter(match=f"{self._base}*", count=10_000):
            batch += [key] if key not in last else []
            if len(batch) >= 1000:
                removed += await self._client.unlink(*batch)
                batch = []
        removed += await self._client.unlink(*batch) if batch else 0
        return removed + int(await self._call("empty", int(gives_up)))
