"""Publishes finished pages to the results stream, and returns sites to the queue.

Records and journal are sent in one call. While Redis is away, SPOOL_RECORDS wait here; resent ones keep their numbers,
so none is stored twice. Lost leases drop theirs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from crawler import left_out, records
from crawler.agent.session import Author, now_ms
from crawler.agent.site_lease import SiteLease
from crawler.queue.errors import StaleLeaseError
from crawler.queue.queue import SiteQueue
from crawler.queue.sites import Delivery, Published

logger = logging.getLogger("agent")

# Records per script call; longer calls would delay other agents' leases.
CALL_RECORDS = 200
# Snapshots with more paths are encoded in a thread (about 5 ms of work).
LARGE = 20_000
# Sites returned concurrently.
LEAVES_AT_A_TIME = 4


class Outbox:
    """One agent's unsent records: fetching pauses at `most`, `enough` trigger a flush."""

    def __init__(self, queue: SiteQueue, author: Author, most: int, enough: int) -> None:
        self.packs = False  # compress records, since the stream is long
        self.due = asyncio.Event()  # set when a flush should start at once
        # Called with a lease that was returned or lost (True), or continues with new paths (False).
        self.left: Callable[[SiteLease, bool], None] = lambda _slot, _gone: None
        # When another job than crawling is due again at a site (server time in seconds; 0.0: not due).
        self.next_due: Callable[[SiteLease], float] = lambda _slot: 0.0
        self._queue = queue
        self._author = author
        self._agent = author.name
        self._most = most
        self._enough = enough
        self._slots: dict[SiteLease, None] = {}  # with records to send or to be returned, in order of arrival
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def full(self) -> bool:
        """Whether fetching must pause."""
        return self._size >= self._most

    @property
    def empty(self) -> bool:
        """Whether all is published and all ending leases returned."""
        return not self._slots

    def add(self, lease: SiteLease, record: records.Record, links: bytes = b"") -> None:
        """Queue a record; dropped if the lease is lost."""
        if lease.lost:
            return
        lease.records.append((self._author.numbered(record), links))
        self._slots[lease] = None
        self._size += 1
        if self._size >= self._enough:
            self.due.set()

    def end(self, lease: SiteLease) -> None:
        """Return the lease once its records are published."""
        self._slots[lease] = None
        self.due.set()

    def drop(self, lease: SiteLease) -> None:
        """Forget the records of a lost lease."""
        lease.lost = True
        self._slots.pop(lease, None)
        self._size -= lease.unpublished
        lease.records, lease.packed, lease.delivery = [], None, None
        self.left(lease, True)

    def pack(self) -> None:
        """Take the finished records and frontier snapshots for the next flush."""
        self.due.clear()
        for lease in self._slots:
            self._add_load(lease)
            if lease.unpublished or self._wants_checkpoint(lease):
                lease.pack()

    def _add_load(self, lease: SiteLease) -> None:
        if lease.ending is None or lease.busy or lease.load is None:
            return
        seen, lease.load = lease.load.take(), None
        if seen is not None:
            self.add(lease, lease.visit(seen))

    async def flush(self) -> None:
        """Publish what was packed; return ended sites. After a connection error, call again."""
        for slots in self._calls():
            deliveries = [await self._deliver(lease) for lease in slots]
            published = await self._queue.publish(self._agent, deliveries)
            for lease, outcome in zip(slots, published, strict=True):
                self._settle(lease, outcome)
        ending = [lease for lease in self._slots if self._may_leave(lease)]
        for start in range(0, len(ending), LEAVES_AT_A_TIME):
            await asyncio.gather(*map(self._leave, ending[start : start + LEAVES_AT_A_TIME]))

    async def _deliver(self, lease: SiteLease) -> Delivery:
        packed = lease.packed
        assert packed is not None
        if lease.delivery is None:
            large = packed.snapshot is not None and len(packed.snapshot.paths) > LARGE
            delivery = await asyncio.to_thread(lease.seal, packed) if large else lease.seal(packed)
            lease.delivery = _small(delivery) if self.packs else delivery
        return lease.delivery

    def _calls(self) -> list[list[SiteLease]]:
        """In calls of bounded size."""
        calls: list[list[SiteLease]] = []
        room = 0
        for lease in self._slots:
            if lease.packed is None:
                continue
            if room <= 0:
                calls.append([])
                room = CALL_RECORDS
            calls[-1].append(lease)
            room -= max(1, len(lease.packed.records))
        return calls

    @staticmethod
    def _wants_checkpoint(lease: SiteLease) -> bool:
        unfinished = lease.ending in ("returned", "suspended", "later")
        return lease.loads and unfinished and not lease.busy and not lease.checkpointed

    def _may_leave(self, lease: SiteLease) -> bool:
        """Whether an ending lease is fully published."""
        if not lease.ending or lease.busy:
            return False
        # The plan may reopen the site at once: first wait for its delay.
        if lease.ending == "suspended" and asyncio.get_running_loop().time() < lease.free_at:
            return False
        if lease.unpublished or lease.untold or self._wants_checkpoint(lease):
            self.due.set()
            return False
        return True

    def _settle(self, lease: SiteLease, outcome: Published) -> None:
        if lease.lost:
            return
        if outcome.verdict in ("STALE", "GAP"):
            reason = "the lease has expired"
            if outcome.verdict == "GAP":
                reason = "Redis lost this agent's last delivery"
            logger.warning("site %s: %s; its unpublished pages will be fetched again", lease.site, reason)
            self.drop(lease)
            return
        assert lease.packed is not None
        self._size -= len(lease.packed.records)
        lease.delivered()
        if outcome.alias_of:
            lease.begin_comparison(outcome.alias_of)
        if not lease.records and lease.ending is None:
            self._slots.pop(lease, None)

    async def _leave(self, lease: SiteLease) -> None:
        assert lease.ending is not None
        if not lease.loads:
            await self._leave_work(lease)
            return
        report = self._author.numbered(_report(lease))
        try:
            done = await self._queue.leave(
                self._agent,
                lease.leased,
                lease.ending,
                due_ms=lease.due_ms,
                detail=lease.paths_seen if lease.ending == "finished" else lease.detail,
                reason=lease.reason,
                report=report,
                known=len(lease.frontier),
                done=lease.frontier.published,
                done_hash=lease.frontier.done_hash,
                left_out=left_out.to_text(lease.frontier.left_out),
                rests_until_ms=lease.free_at_ms,
                seq=lease.seq,
            )
        except StaleLeaseError:
            self.drop(lease)
            return
        self._slots.pop(lease, None)
        self.left(lease, done)

    async def _leave_work(self, lease: SiteLease) -> None:
        assert lease.ending is not None
        due_ms = lease.due_ms
        if lease.ending == "finished":
            due_ms = int(self.next_due(lease) * 1000)
        rests = max(lease.rests_until_ms, lease.free_at_ms)
        try:
            await self._queue.leave(
                self._agent, lease.leased, lease.ending, due_ms=due_ms, rests_until_ms=rests, seq=lease.seq
            )
        except StaleLeaseError:
            self.drop(lease)
            return
        self._slots.pop(lease, None)
        self.left(lease, True)


def _small(delivery: Delivery) -> Delivery:
    return delivery._replace(records=[(records.pack(record), links) for record, links in delivery.records])


def _report(lease: SiteLease) -> records.SiteEnded:
    return records.SiteEnded(
        site=lease.site,
        ended_at=now_ms(),
        finished=lease.ending == "finished",
        published=lease.frontier.published,
        known=len(lease.frontier),
        over_budget=lease.frontier.over_budget,
        left_out=lease.frontier.left_out,
        left_out_hashes=lease.frontier.pack_left_out(),
        pending=lease.frontier.pending,
        reason=_why(lease),
    )


def _why(lease: SiteLease) -> str:
    """Empty for a complete walk."""
    words = left_out.in_words(lease.frontier.left_out)
    why = lease.reason if lease.ending != "finished" else ""
    if lease.ending == "finished" and lease.given_up:
        why = f"{records.GIVEN_UP}{lease.given_up[1]}"
    return "; ".join(
        filter(None, (why, words and f"left out: {words}", lease.traps.why if lease.traps else ""))
    )
