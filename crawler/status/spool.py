"""Entries on their way into the results stream from a process that holds no leases: bounded, patient, in order.

What is put here is sent by one task, many entries to a round trip. While Redis is away, or refuses, they wait and are
sent again; a lost reply makes an entry stand in the stream twice, so whoever puts something here must not mind that.
While the stream holds `most_records` they wait too. `open` is clear where more must not be put, for the stream is too
long or `most_bytes` wait here; at half of either it opens again. What is not sent yet dies with the process.

An entry counts as sent when the stream has it, or, with `to_disk`, when the server has it on its disk: by default that
is up to a second later, and what a server that dies loses meanwhile is not counted, but sent again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

from redis.asyncio import Redis
from redis.exceptions import RedisError

from crawler.queue.results import results_key

logger = logging.getLogger("listener")

Fields = dict[bytes, bytes]

# Entries sent in one round trip: more gain nothing, and the server answers nobody else meanwhile. Where each round
# trip takes the second until the server's file is on the disk, more of them must go in one.
CALL_ENTRIES = 200
CALL_ENTRIES_TO_DISK = 5_000
# How long the disk may take; longer, and the entries are sent again. Below the time that a reply may take.
DISK_SECONDS = 5
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
# How often a stream that is too long is looked at.
LOOK_SECONDS = 0.2
# What an entry takes beside its bytes: the objects that hold it.
ENTRY_BYTES = 500


class _Waiting(NamedTuple):
    fields: Fields
    size: int
    parcel: _Parcel


class _Parcel:
    """Entries that were put together; `sent` is done when the stream has all of them."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def arrived(self) -> None:
        """One more of them is in the stream."""
        self.left -= 1
        if not self.left and not self.sent.done():
            self.sent.set_result(None)


class Spool:
    """One process's entries; `work` in a task of its own, `end` and wait for it at the end."""

    def __init__(
        self, client: Redis, prefix: str, *, most_bytes: int, most_records: int, to_disk: bool = False
    ) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.sent = 0  # entries that the stream has taken
        self._client: Any = client
        self._key = results_key(prefix)
        self._most_bytes = most_bytes
        self._most_records = most_records
        self._to_disk = to_disk
        self._waiting: deque[_Waiting] = deque()
        self._bytes = 0
        self._too_long = False  # the stream is
        self._away = False
        self._ending = False
        self._news = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, entries: Sequence[Fields]) -> asyncio.Future[None]:
        """Takes entries, whether `open` or not; what comes back is done when the stream has them all."""
        parcel = _Parcel(len(entries))
        if not entries:
            parcel.sent.set_result(None)
        for fields in entries:
            size = ENTRY_BYTES + sum(map(len, fields.values()))
            self._waiting.append(_Waiting(fields, size, parcel))
            self._bytes += size
        self._news.set()
        self._judge()
        return parcel.sent

    async def check(self) -> None:
        """RedisError where the server cannot do what is asked of it."""
        if self._to_disk:
            await self._client.execute_command("WAITAOF", 1, 0, 1)
        else:
            await self._client.ping()

    async def work(self) -> None:
        """Sends until `end` was called and nothing waits any more."""
        pause = FIRST_PAUSE_SECONDS
        while not self._ending or self._waiting:
            await self._something_to_do()
            try:
                await self._send()
            except (RedisError, OSError) as error:
                self._say_away(error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            else:
                self._say_back()
                pause = FIRST_PAUSE_SECONDS

    def end(self) -> None:
        """Nothing more is put."""
        self._ending = True
        self._news.set()

    async def _something_to_do(self) -> None:
        if self._too_long and not self._ending:
            await asyncio.sleep(LOOK_SECONDS)
        while not self._waiting and not self._ending and not self._too_long:
            self._news.clear()
            await self._news.wait()

    def _batch(self) -> list[_Waiting]:
        """What is sent now: nothing where the stream is too long, but at the end all."""
        if self._too_long and not self._ending:
            return []
        return list(islice(self._waiting, CALL_ENTRIES_TO_DISK if self._to_disk else CALL_ENTRIES))

    async def _send(self) -> None:
        """One round trip: entries, and how long the stream is now. RedisError where any was not taken."""
        batch = self._batch()
        pipe = self._client.pipeline(transaction=False)
        for waiting in batch:
            pipe.xadd(self._key, waiting.fields)
        pipe.xlen(self._key)
        if self._to_disk:
            pipe.execute_command("WAITAOF", 1, 0, DISK_SECONDS * 1000)
        answers = await pipe.execute(raise_on_error=False)
        disk = answers.pop() if self._to_disk else [1]
        length = answers.pop()
        if isinstance(length, int):
            self._watch(length)
        _check_disk(disk)
        self._settle(batch, answers)
        for answer in (*answers, length):
            if isinstance(answer, Exception):
                raise answer

    def _settle(self, batch: list[_Waiting], answers: list[object]) -> None:
        """Lets go of what was taken; the rest stays in front, in its order."""
        for _ in batch:
            self._waiting.popleft()
        kept = []
        for waiting, answer in zip(batch, answers, strict=True):
            if isinstance(answer, Exception):
                kept.append(waiting)
                continue
            self._bytes -= waiting.size
            self.sent += 1
            waiting.parcel.arrived()
        self._waiting.extendleft(reversed(kept))
        self._judge()

    def _watch(self, length: int) -> None:
        most = self._most_records
        if length >= most and not self._too_long:
            self._too_long = True
            logger.warning(
                "%d records wait in the results stream (STREAM_MAX_RECORDS %d): nothing is read; is a coordinator "
                "running?",
                length,
                most,
            )
        elif self._too_long and length <= most // 2:
            self._too_long = False
            logger.warning("the results stream is down to %d records: reading goes on", length)
        self._judge()

    def _judge(self) -> None:
        full = self._most_bytes if self.open.is_set() else self._most_bytes // 2
        if self._too_long or self._bytes >= max(1, full):
            self.open.clear()
        else:
            self.open.set()

    def _say_away(self, error: Exception) -> None:
        if not self._away:
            self._away = True
            logger.warning("Redis is away (%s); waiting for it, what comes in is kept", error)

    def _say_back(self) -> None:
        if self._away:
            self._away = False
            logger.warning("Redis is back")


def _check_disk(answer: object) -> None:
    """RedisError unless the server says that all before is on its own disk."""
    if isinstance(answer, Exception):
        raise answer
    assert isinstance(answer, list)
    if not answer[0]:
        raise RedisError(f"its file was not on the disk within {DISK_SECONDS} s")
