"""Finished pages on their way into the results stream, and sites on their way back to the queue.

A page leaves `in flight` only when the stream has its record; the journal goes in the same call. While Redis is
away everything waits here, bounded by SPOOL_RECORDS (`full`: the agent stops fetching), and is sent again with the
same numbers, so nothing is stored twice. A refused token drops what its slot holds: another agent fetches it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from crawler import records
from crawler.agent.slots import Slot
from crawler.sites.queue import Delivery, Published, SiteQueue, StaleLeaseError

logger = logging.getLogger("agent")

# Records sent in one script call: a longer call would hold up every other agent's lease.
CALL_RECORDS = 200
# Paths in one snapshot from which on a thread packs it (about 5 ms of work).
LARGE = 20_000
# Sites given back at a time.
LEAVES_AT_A_TIME = 16


class Outbox:
    """What one agent has to tell; `left` is called with each slot that was given back or lost."""

    def __init__(
        self, queue: SiteQueue, agent: str, run: str, most_records: int, left: Callable[[Slot], None]
    ) -> None:
        self._queue = queue
        self._agent = agent
        self._run = run
        self._most = most_records
        self._left = left
        self._slots: dict[Slot, None] = {}  # with something to send or to leave, in order of arrival
        self._seq = 0
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

    def add(self, slot: Slot, record: records.Page, links: bytes = b"") -> None:
        """Queue a finished page's record; dropped where the slot is lost."""
        if slot.lost:
            return
        slot.records.append((self.numbered(record), links))
        self._slots[slot] = None
        self._size += 1

    def end(self, slot: Slot) -> None:
        """The slot's `ending` is set: give it back once it is published."""
        self._slots[slot] = None

    def drop(self, slot: Slot) -> None:
        """The lease is another's: forget what the slot holds."""
        slot.lost = True
        self._slots.pop(slot, None)
        self._size -= slot.unpublished
        slot.records, slot.packed, slot.delivery = [], None, None
        self._left(slot)

    def numbered(self, record: records.Record) -> bytes:
        """The record with its maker and number, encoded."""
        self._seq += 1
        record.agent, record.run, record.seq = self._agent, self._run, self._seq
        return records.encode(record)

    async def flush(self) -> None:
        """Send what there is and give back what has ended. Connection errors go to the caller; call again."""
        for slots in self._calls():
            deliveries = [await self._deliver(slot) for slot in slots]
            published = await self._queue.publish(self._agent, deliveries)
            for slot, outcome in zip(slots, published, strict=True):
                self._settle(slot, outcome)
        ending = [slot for slot in self._slots if slot.ending and not slot.busy and not slot.unpublished]
        for start in range(0, len(ending), LEAVES_AT_A_TIME):
            await asyncio.gather(*map(self._leave, ending[start : start + LEAVES_AT_A_TIME]))

    @staticmethod
    async def _deliver(slot: Slot) -> Delivery:
        """What the slot sends, made in a thread where packing its frontier would hold up the event loop."""
        packed = slot.pack()
        if slot.delivery is None:
            large = packed.snapshot is not None and len(packed.snapshot.paths) > LARGE
            slot.delivery = await asyncio.to_thread(slot.seal, packed) if large else slot.seal(packed)
        return slot.delivery

    def _calls(self) -> list[list[Slot]]:
        """The slots with something to say, in calls of bounded size."""
        calls: list[list[Slot]] = []
        room = 0
        for slot in self._slots:
            if not slot.unpublished and not self._wants_checkpoint(slot):
                continue
            if room <= 0:
                calls.append([])
                room = CALL_RECORDS
            calls[-1].append(slot)
            room -= max(1, slot.unpublished)
        return calls

    @staticmethod
    def _wants_checkpoint(slot: Slot) -> bool:
        """An unfinished site that goes back takes along what its frontier learned last."""
        return slot.ending in ("returned", "suspended", "later") and not slot.busy and not slot.checkpointed

    def _settle(self, slot: Slot, outcome: Published) -> None:
        if slot.lost:
            return
        if outcome.verdict in ("STALE", "GAP"):
            logger.warning(
                "%s: the lease is another agent's now; its unpublished pages are left to it", slot.site
            )
            self.drop(slot)
            return
        assert slot.packed is not None
        self._size -= len(slot.packed.records)
        slot.delivered()
        if outcome.alias and slot.live:
            slot.ending, slot.detail, slot.reason = "alias", outcome.alias, f"alias of {outcome.alias}"
            logger.info(
                "%s has the address and the root page of %s: left out as its alias", slot.site, outcome.alias
            )
        if not slot.records and slot.ending is None:
            self._slots.pop(slot, None)

    async def _leave(self, slot: Slot) -> None:
        assert slot.ending is not None
        report = self.numbered(_report(slot))
        try:
            done = await self._queue.leave(
                self._agent,
                slot.leased,
                slot.ending,
                due_ms=slot.due_ms,
                detail=slot.paths_seen if slot.ending == "finished" else slot.detail,
                reason=slot.reason,
                report=report,
            )
        except StaleLeaseError:
            self.drop(slot)
            return
        self._slots.pop(slot, None)
        if not done:
            slot.ending = None
        self._left(slot)


def _report(slot: Slot) -> records.SiteEnded:
    return records.SiteEnded(
        site=slot.site,
        ended_at=int(time.time() * 1000),
        finished=slot.ending in ("finished", "alias"),
        published=slot.frontier.published,
        known=len(slot.frontier),
        over_budget=slot.frontier.over_budget,
        reason=_why(slot),
    )


def _why(slot: Slot) -> str:
    """Why a site ended early or waits; nothing for one that was walked to its end."""
    if slot.ending != "finished":
        return slot.reason
    return f"page budget of {slot.frontier.max_pages} reached" if slot.frontier.over_budget else ""
