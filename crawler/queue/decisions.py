"""What coordinators decide in the site queue, under their lock: reopening, aliases, lost rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from crawler.queue.errors import text_of, whole_number
from crawler.queue.script import Script
from crawler.queue.sites import (
    DISCOVER_BATCH,
    STATES,
    Likeness,
    Offer,
    Progress,
    Restored,
    SiteRecord,
    Suspect,
    Undecided,
    progress_of,
    progress_text,
    read_likeness,
    read_record,
)

LETTERS = {state: letter for letter, state in STATES.items()}


class Decisions(Script):
    """What coordinators decide: finished sites to reopen, aliases, redirected seeds, rows that the tables lost."""

    async def to_decide(self, most: int) -> dict[str, int]:
        """The first `most` sites with a pending decision -> since when (ms).

        Records that were published before that time must be stored before the decision.
        """
        key = f"{self._base}undecided"
        found = await self._client.zrange(key, 0, most - 1, withscores=True)
        return {text_of(key, site): int(since) for site, since in found}

    async def undecided(self) -> int:
        """Number of sites with a pending decision."""
        return int(await self._client.zcard(f"{self._base}undecided"))

    async def offered(self, sites: Sequence[str], most: int) -> list[Undecided]:
        """What is to be decided of each site, with up to `most` entries of its offered paths."""
        pipeline = self._client.pipeline(transaction=False)
        for site in sites:
            pipeline.hget(self._bucket(site), site)
            pipeline.lrange(f"{self._base}offered:{site}", 0, most - 1)
            pipeline.hget(f"{self._base}reopen", site)
            pipeline.zscore(f"{self._base}undecided", site)
        replies = iter(await pipeline.execute())
        return [
            Undecided(
                None if text is None else read_record(self._bucket(site), site, text),
                [entry.decode(errors="replace") for entry in entries],
                whole_number(f"{self._base}reopen", site, noted or b"0"),
                int(since or 0),
            )
            for site, (text, entries, noted, since) in zip(
                sites, zip(*[replies] * 4, strict=True), strict=True
            )
        ]

    async def decide(self, opener: str, number: int, known: Mapping[str, int]) -> None:
        """Drop the first entries of these sites, which hold nothing new. Raises LockLostError.

        All entries of unfinished sites go to their frontiers.
        """
        if known:
            parts = itertools.chain.from_iterable(known.items())
            await self._call("decide", opener, number, *parts)

    async def reopen(
        self,
        opener: str,
        number: int,
        site: str,
        checkpoint: bytes,
        taken: int,
        noted: int = 0,
        owed: str = "",
    ) -> bool:
        """Reopen a finished site with this checkpoint; False: it is not finished.

        `taken`: offered entries that go to its frontier. Without a checkpoint only these entries are consumed. `noted`:
        as `offered` returned it; later notes stay. `owed`: rows that the tables lost (crawler.reconcile.agreement).
        Raises LockLostError.
        """
        return bool(await self._call("reopen", opener, number, site, checkpoint, taken, noted, owed))

    async def refuse(
        self, opener: str, number: int, record: SiteRecord, taken: int, left_out: str, report: bytes
    ) -> bool:
        """Drop offered entries of a site that has reached its page limit; False: its state has changed.

        `left_out`: URLs that limits leave out now. `report`: record for the tables; empty: nothing changed. Raises
        LockLostError.
        """
        progress = (progress_of(record), progress_of(record._replace(left_out=left_out)))
        return bool(await self._call("refuse", opener, number, record.site, taken, *progress, report))

    async def suspects(self) -> int:
        """Number of possible aliases that wait to be compared."""
        return int(await self._client.zcard(f"{self._base}suspects"))

    async def to_compare(self, most: int) -> list[Suspect]:
        """The first `most` possible aliases to compare; removes entries that are no longer suspected."""
        key, suspected = f"{self._base}suspects", f"{self._base}suspected"
        found = await self._client.zrange(key, 0, most - 1, withscores=True)
        looked = {text_of(key, site): int(at) for site, at in found}
        if not looked:
            return []
        said = await self._client.hmget(suspected, [*looked])
        likeness = {
            site: read_likeness(suspected, site, text)
            for site, text in zip(looked, said, strict=True)
            if text
        }
        if gone := looked.keys() - likeness.keys():
            await self._client.zrem(key, *gone)
        records = await self._records_of([*likeness, *(one[1] for one in likeness.values())])
        budgets = await self._client.hmget(
            f"{self._base}budget", [one[1] for one in likeness.values()] or [""]
        )
        return [
            Suspect(record, state, records[first], first, since, looked[site], budget is not None)
            for (site, (state, first, since)), budget in zip(likeness.items(), budgets, strict=False)
            if (record := records[site])
        ]

    async def judge(self, coordinator: str, number: int, judged: Iterable[tuple[Suspect, Likeness]]) -> None:
        """Store results of comparisons; `no` opens a site that was left out as an alias. Raises LockLostError."""
        parts: list[str | int] = []
        for one, state in judged:
            parts += (one.record.site, one.name, state, one.looked_ms)
        if parts:
            await self._call("judge", coordinator, number, *parts)

    async def hand_on(self, coordinator: str, number: int, site: str, offers: Iterable[Offer]) -> None:
        """Send a site the paths that were found under the name of its alias. Raises LockLostError."""
        entries = [part.entry for offer in offers for part in offer.parts()]
        for start in range(0, len(entries), DISCOVER_BATCH):
            await self._call("hand_on", coordinator, number, site, *entries[start : start + DISCOVER_BATCH])

    async def give_back(self, coordinator: str, number: int, one: Suspect) -> None:
        """Ask the holder to release a site that will be left out as an alias. Raises LockLostError."""
        await self._call("leave_out", coordinator, number, one.record.site, one.name, "", "", "")

    async def leave_out(
        self, coordinator: str, number: int, one: Suspect, progress: Progress, record: bytes
    ) -> bool:
        """Leave a site out as an alias and report it to the tables; False: its state has changed.

        Raises LockLostError.
        """
        before = progress_of(one.record)
        after = progress_text(progress.done, progress.known, progress.done_hash or 0, progress.left_out)
        about = (one.record.site, one.name, before, after, record)
        return bool(await self._call("leave_out", coordinator, number, *about))

    async def note_moved(self, moved: Iterable[tuple[str, str, str]]) -> None:
        """Note that seeds of a site redirect to another site's path."""
        pipeline = self._client.pipeline(transaction=False)
        for seeds_site, site, path in moved:
            pipeline.hset(f"{self._base}moved:{seeds_site}", site + path, path)
        await pipeline.execute()

    async def moved(self, sites: Sequence[str]) -> list[tuple[str, str]]:
        """Where seeds of these sites redirect to: other sites and their paths."""
        pipeline = self._client.pipeline(transaction=False)
        keys = [f"{self._base}moved:{site}" for site in sites]
        for key in keys:
            pipeline.hgetall(key)
        found = zip(keys, await pipeline.execute(), strict=True)
        texts = ((text_of(key, url), text_of(key, path)) for key, some in found for url, path in some.items())
        # Older versions kept one path of each site, under the site's name.
        return [(url.removesuffix(path), path) for url, path in texts]

    async def note_rootless(self, sites: Sequence[str]) -> None:
        """Note that these sites started with other pages than their roots."""
        if sites:
            await self._client.sadd(f"{self._base}rootless", *sites)

    async def plan_reopening(self, sites: Sequence[str]) -> None:
        """Note that these sites have pages to crawl again; they are reopened when they are finished."""
        if sites:
            await self._call("plan_reopening", *sites)

    async def owed(self) -> dict[str, str]:
        """Sites of which the tables lost rows that were not found again yet -> what `read_owed` reads."""
        key = f"{self._base}owed"
        fields = await self._client.hgetall(key)
        return {text_of(key, site): text_of(key, text) for site, text in fields.items()}

    async def settle(self, site: str, owed: str) -> bool:
        """Clear what is owed of a site; False: it has changed."""
        return bool(await self._call("settle", site, owed))

    async def give_checkpoint(self, site: str, checkpoint: bytes) -> None:
        """Replace the checkpoint of a site that the queue does not know yet."""
        await self._call("give_checkpoint", site, checkpoint)

    async def mend(
        self,
        record: SiteRecord,
        checkpoint: bytes,
        done: int,
        done_hash: int,
        *,
        known: int = 0,
        owed: str = "",
    ) -> bool:
        """Let a site continue from this checkpoint (empty: from its root); a blocked site only gets the figures.

        `known`: its URLs, if more than in the record. `owed`: as in `reopen`. Returns False and changes nothing if the
        site is leased or differs from `record`.
        """
        before = progress_of(record)
        # A crawl from the root has left nothing out yet.
        left_out = record.left_out if checkpoint or record.state == "blocked" else ""
        known = max(known, record.known)
        after = progress_text(done, known, done_hash, left_out) if known else ""
        return bool(await self._call("mend", record.site, before, checkpoint, after, owed))

    async def restore(self, sites: Sequence[Restored]) -> int:
        """Add sites to a queue that was lost; returns how many were unknown, the others stay unchanged.

        A suspended site needs its checkpoint first (`give_checkpoint`).
        """
        new = 0
        for start in range(0, len(sites), DISCOVER_BATCH):
            parts: list[str | int] = []
            for one in sites[start : start + DISCOVER_BATCH]:
                letter = LETTERS[one.state]
                parts += (one.site, letter.upper() if one.paused else letter, one.address or "-")
                progress = progress_text(one.done, one.known, one.done_hash, one.left_out)
                parts += (progress if one.known else "",)
                parts += ("" if one.budget is None else one.budget, one.why, int(one.linked), one.owed)
            new += await self._call("restore", *parts)
        return new

    async def known(self, sites: Sequence[str]) -> set[str]:
        """The sites among these that the queue knows."""
        pipeline = self._client.pipeline(transaction=False)
        for site in sites:
            pipeline.hexists(self._bucket(site), site)
        return set(itertools.compress(sites, await pipeline.execute()))
