"""Finished pages on their way into the results stream, and sites on their way back to the queue.

A page leaves `in flight` only when the stream has its record; the journal goes in the same call. While Redis is
away everything waits here, bounded by SPOOL_RECORDS (`full`: the agent stops fetching), and is sent again with the
same numbers, so nothing is stored twice. A refused token drops what its slot holds: another agent fetches it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from crawler import left_out, records
from crawler.agent.session import Author, now_ms
from crawler.agent.site_lease import Slot
from crawler.queue.queue import Delivery, Published, SiteQueue, StaleLeaseError

logger = logging.getLogger("agent")

# Records sent in one script call: a longer call would hold up every other agent's lease.
CALL_RECORDS = 200
# Paths in one snapshot from which on a thread packs it (about 5 ms of work).
LARGE = 20_000
# Sites given back at a time.
LEAVES_AT_A_TIME = 4


class Outbox:
    """What one agent has to tell. Fetching pauses at `most` records, a flush is due at once at `enough`."""

    def __init__(self, queue: SiteQueue, author: Author, most: int, enough: int) -> None:
        self.packs = False  # records are sent packed: many wait in the stream already
        self.due = asyncio.Event()  # a flush should not wait for its time
        # Called with each slot that was given back or lost (True), or goes on, for it was given more paths (False).
        self.left: Callable[[Slot, bool], None] = lambda _slot, _gone: None
        # Asked for a slot of another work than loading: when it is due again (server's time, seconds; 0.0: it is not).
        self.next_due: Callable[[Slot], float] = lambda _slot: 0.0
        self._queue = queue
        self._author = author
        self._agent = author.name
        self._most = most
        self._enough = enough
        self._slots: dict[Slot, None] = {}  # with something to send or to leave, in order of arrival
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def full(self) -> bool:
        """Whether fetching must pause."""
        return self._size >= self._most

    @property
    def empty(self) -> bool:
        """Whether everything was told and every ending slot given back."""
        return not self._slots

    def add(self, slot: Slot, record: records.Record, links: bytes = b"") -> None:
        """Queue what is told of a finished page, or of the site itself; dropped where the slot is lost."""
        if slot.lost:
            return
        slot.records.append((self._author.numbered(record), links))
        self._slots[slot] = None
        self._size += 1
        if self._size >= self._enough:
            self.due.set()

    def end(self, slot: Slot) -> None:
        """The slot's `ending` is set: give it back once it is published."""
        self._slots[slot] = None
        self.due.set()

    def drop(self, slot: Slot) -> None:
        """The lease is another's: forget what the slot holds."""
        slot.lost = True
        self._slots.pop(slot, None)
        self._size -= slot.unpublished
        slot.records, slot.packed, slot.delivery = [], None, None
        self.left(slot, True)

    def pack(self) -> None:
        """Take what is finished by now, and what its frontier learned by it."""
        self.due.clear()
        for slot in self._slots:
            self._add_load(slot)
            if slot.unpublished or self._wants_checkpoint(slot):
                slot.pack()

    def _add_load(self, slot: Slot) -> None:
        """What a lease saw of its site's load goes with its last delivery."""
        if slot.ending is None or slot.busy or slot.load is None:
            return
        seen, slot.load = slot.load.take(), None
        if seen is not None:
            self.add(slot, slot.visit(seen))

    async def flush(self) -> None:
        """Send what was packed and give back what has ended. Connection errors go to the caller; call again."""
        for slots in self._calls():
            deliveries = [await self._deliver(slot) for slot in slots]
            published = await self._queue.publish(self._agent, deliveries)
            for slot, outcome in zip(slots, published, strict=True):
                self._settle(slot, outcome)
        ending = [slot for slot in self._slots if self._may_leave(slot)]
        for start in range(0, len(ending), LEAVES_AT_A_TIME):
            await asyncio.gather(*map(self._leave, ending[start : start + LEAVES_AT_A_TIME]))

    async def _deliver(self, slot: Slot) -> Delivery:
        """What the slot sends, made in a thread where packing its frontier would hold up the event loop."""
        packed = slot.packed
        assert packed is not None
        if slot.delivery is None:
            large = packed.snapshot is not None and len(packed.snapshot.paths) > LARGE
            delivery = await asyncio.to_thread(slot.seal, packed) if large else slot.seal(packed)
            slot.delivery = _small(delivery) if self.packs else delivery
        return slot.delivery

    def _calls(self) -> list[list[Slot]]:
        """The slots with something packed, in calls of bounded size."""
        calls: list[list[Slot]] = []
        room = 0
        for slot in self._slots:
            if slot.packed is None:
                continue
            if room <= 0:
                calls.append([])
                room = CALL_RECORDS
            calls[-1].append(slot)
            room -= max(1, len(slot.packed.records))
        return calls

    @staticmethod
    def _wants_checkpoint(slot: Slot) -> bool:
        """An unfinished site that goes back takes along what its frontier learned last."""
        unfinished = slot.ending in ("returned", "suspended", "later")
        return slot.loads and unfinished and not slot.busy and not slot.checkpointed

    def _may_leave(self, slot: Slot) -> bool:
        """Whether all of an ending slot is published; what it learned while that was under way is not yet."""
        if not slot.ending or slot.busy:
            return False
        # The plan may have it asked again at once: nobody may before its pause is over.
        if slot.ending == "suspended" and asyncio.get_running_loop().time() < slot.free_at:
            return False
        if slot.unpublished or slot.untold or self._wants_checkpoint(slot):
            self.due.set()
            return False
        return True

    def _settle(self, slot: Slot, outcome: Published) -> None:
        if slot.lost:
            return
        if outcome.verdict in ("STALE", "GAP"):
            reason = "the lease is not this agent's any more"
            if outcome.verdict == "GAP":
                reason = "Redis is older than this agent and lost its last delivery"
            logger.warning("%s: %s; its unpublished pages will be fetched again", slot.site, reason)
            self.drop(slot)
            return
        assert slot.packed is not None
        self._size -= len(slot.packed.records)
        slot.delivered()
        if outcome.alias_of:
            slot.begin_comparison(outcome.alias_of)
        if not slot.records and slot.ending is None:
            self._slots.pop(slot, None)

    async def _leave(self, slot: Slot) -> None:
        assert slot.ending is not None
        if not slot.loads:
            await self._leave_work(slot)
            return
        report = self._author.numbered(_report(slot))
        try:
            done = await self._queue.leave(
                self._agent,
                slot.leased,
                slot.ending,
                due_ms=slot.due_ms,
                detail=slot.paths_seen if slot.ending == "finished" else slot.detail,
                reason=slot.reason,
                report=report,
                known=len(slot.frontier),
                done=slot.frontier.published,
                done_hash=slot.frontier.done_hash,
                left_out=left_out.to_text(slot.frontier.left_out),
                rests_until_ms=slot.free_at_ms,
                seq=slot.seq,
            )
        except StaleLeaseError:
            self.drop(slot)
            return
        self._slots.pop(slot, None)
        self.left(slot, done)

    async def _leave_work(self, slot: Slot) -> None:
        """Another work has no frontier to tell of; what it did not come to, or is to do again, has its time."""
        assert slot.ending is not None
        due_ms = slot.due_ms
        if slot.ending == "finished":
            due_ms = int(self.next_due(slot) * 1000)
        rests = max(slot.rests_until_ms, slot.free_at_ms)
        try:
            await self._queue.leave(
                self._agent, slot.leased, slot.ending, due_ms=due_ms, rests_until_ms=rests, seq=slot.seq
            )
        except StaleLeaseError:
            self.drop(slot)
            return
        self._slots.pop(slot, None)
        self.left(slot, True)


def _small(delivery: Delivery) -> Delivery:
    return delivery._replace(records=[(records.pack(record), links) for record, links in delivery.records])


def _report(slot: Slot) -> records.SiteEnded:
    return records.SiteEnded(
        site=slot.site,
        ended_at=now_ms(),
        finished=slot.ending == "finished",
        published=slot.frontier.published,
        known=len(slot.frontier),
        over_budget=slot.frontier.over_budget,
        left_out=slot.frontier.left_out,
        left_out_hashes=slot.frontier.pack_left_out(),
        pending=slot.frontier.pending,
        reason=_why(slot),
    )


def _why(slot: Slot) -> str:
    """Why a site ended early or waits, and what of it was left out; nothing for one that was walked to its end."""
    words = left_out.in_words(slot.frontier.left_out)
    why = slot.reason if slot.ending != "finished" else ""
    if slot.ending == "finished" and slot.given_up:
        why = f"{records.GIVEN_UP}{slot.given_up[1]}"
    return "; ".join(
        filter(None, (why, words and f"left out: {words}", slot.traps.why if slot.traps else ""))
    )
