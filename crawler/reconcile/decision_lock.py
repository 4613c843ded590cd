"""The lock under which one of several coordinators decides which sites are opened, or left out as aliases.

Redis takes it back after LOCK_SECONDS; what is decided then is refused by the queue (LockLostError), and decided again
at the next look. Questions to the tables may take longer than that, and would be asked again for ever.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar

from crawler.queue.queue import LockLostError

if TYPE_CHECKING:
    from collections.abc import Callable

    from crawler.queue.queue import SiteQueue

LOCK_SECONDS: Final = 10.0

T = TypeVar("T")


class DecisionLock:
    """The lock as one coordinator has it."""

    def __init__(self, queue: SiteQueue, name: str, number: int) -> None:
        self.holder = (name, number)  # as the queue's operations take it
        self._queue = queue

    @classmethod
    async def acquire(cls, queue: SiteQueue, name: str) -> DecisionLock | None:
        """None: another coordinator has it."""
        number = await queue.lock("opener", name, LOCK_SECONDS)
        return cls(queue, name, number) if number else None

    async def keep(self, work: Callable[[], T]) -> T:
        """The result of work over the tables, in a thread; the lock is held until it is there. LockLostError."""
        working = asyncio.create_task(asyncio.to_thread(work))
        done = False
        while not done:
            if await self._queue.lock("opener", self.holder[0], LOCK_SECONDS) != self.holder[1]:
                raise LockLostError(self.holder[0])
            done = bool((await asyncio.wait({working}, timeout=LOCK_SECONDS / 3))[0])
        return await working
