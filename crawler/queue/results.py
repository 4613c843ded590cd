"""The results stream: results wait here until a coordinator has committed them.

Hides consumer groups. Every entry reaches some coordinator at least once: what was read and not acknowledged comes
back, to the same reader after a lost connection, to another after `claim_seconds`. Reading and acknowledging need no
memory of the server, so a full server can be emptied. Nothing is trimmed: acknowledged entries are deleted, and agents
pause when the stream grows. Connection errors are redis-py's; every call may be repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import redis

GROUP = "coordinators"
# Shorter than the client's time limit for a reply (queue.connection.REPLY_SECONDS).
LONGEST_BLOCK_MS = 5_000

# What is due within this time is packed soon; clocks may differ by less.
SOON_SECONDS = 60.0
# Attempts to make a group in one call, if the stream is removed repeatedly.
GROUPS_MADE = 5

T = TypeVar("T")


def results_key(prefix: str) -> str:
    """The stream's key; it has the hash tag of the sites, so that one script can publish and check the lease."""
    return f"{prefix}:{{0}}:results"


def heartbeat_key(prefix: str, name: str) -> str:
    """The heartbeat of a coordinator: JSON, expires after 15 s."""
    return f"{prefix}:{{0}}:coordinator:{name}"


def sites_wait(client: redis.Redis, prefix: str) -> bool:
    """Whether sites wait for a slot, so that their order matters."""
    waiting = client.hmget(f"{prefix}:{{0}}:count", ["waiting", "suspended"])
    return any(int(number or 0) > 0 for number in waiting)


def works_wait(client: redis.Redis, prefix: str) -> bool:
    """Whether packets will be needed soon."""
    base, soon_ms = f"{prefix}:{{0}}:", (time.time() + SOON_SECONDS) * 1000
    pipe = client.pipeline(transaction=False)
    for work in ("recheck", "revive"):
        pipe.zcount(f"{base}wake:{work}", 0, soon_ms)
        pipe.exists(f"{base}again:{work}")
    return any(pipe.execute())


def alive_key(prefix: str) -> str:
    """Exists while any coordinator is alive; agents check it (crawler/queue/lua/lease.lua)."""
    return f"{prefix}:{{0}}:coordinated"


class Mark:
    """The newest entry when this is made; tells later whether everything up to it is stored."""

    def __init__(self, client: Any, prefix: str) -> None:  # as ResultsStream._ask
        self._key = results_key(prefix)
        newest = client.xrevrange(self._key, count=1)
        self._newest = _place(newest[0][0]) if newest else (0, 0)

    def passed(self, client: Any) -> bool:
        """Whether everything that was in the stream then is stored."""
        oldest = client.xrange(self._key, count=1)
        return not oldest or _place(oldest[0][0]) > self._newest


class Entry(NamedTuple):
    """One entry; `fields` is the argument of records.decode."""

    id: str
    fields: dict[bytes, bytes]


class ResultsStream:
    """One coordinator's view of the stream; `consumer` must be unique."""

    def __init__(self, client: redis.Redis, prefix: str, consumer: str, claim_seconds: float = 30.0) -> None:
        self._client = client
        # Replies are read raw: the library's own parsing takes 1 us per entry.
        client.set_response_callback("XREADGROUP", _as_it_came)
        self._key = results_key(prefix)
        self._consumer = consumer
        self._claim_seconds = claim_seconds
        self._own = "0"  # position in our unacknowledged entries; empty: all read
        self._after = "-"  # position of reading without a group
        self._claim_from = "0-0"
        self._claim_at = 0.0  # monotonic

    def read(self, count: int, block_ms: int = 0) -> list[Entry]:
        """Up to `count` entries to store; waits up to `block_ms` (0: not at all) if there are none.

        Own unacknowledged entries come first after a start or an error, then those left by others for `claim_seconds`,
        then new ones.
        """
        try:
            entries = self._with_group(lambda: self._pending_own(count) or self._abandoned(count))
            return entries or self._with_group(lambda: self._new(count, block_ms))
        except redis.exceptions.OutOfMemoryError:
            return self._oldest(count, block_ms)
        except redis.RedisError:
            self._own, self._after = "0", "-"  # the reply may be lost, but its entries are ours
            raise

    def acknowledge(self, ids: list[str]) -> None:
        """Remove these entries; missing ids are ignored."""
        if not ids:
            return
        # No transaction: a full Redis refuses every command in one. Delete first: an entry that is deleted and not
        # acknowledged is acknowledged later; the other way round it would stay forever.
        pipe: Any = self._client.pipeline(transaction=False)
        pipe.xdel(self._key, *ids)
        pipe.xack(self._key, GROUP, *ids)
        try:
            pipe.execute()
        except redis.RedisError:
            self._own, self._after = "0", "-"
            raise

    def length(self) -> int:
        """Number of entries that are not stored yet."""
        return int(self._ask().xlen(self._key))

    def pending(self) -> int:
        """Number of entries that were read and not acknowledged."""
        return int(self._with_group(lambda: self._ask().xpending(self._key, GROUP))["pending"])

    def drained(self) -> bool:
        """Whether every result is stored."""
        return self.length() == 0

    def close(self) -> None:
        """Leave the group, unless own entries are still to be stored."""
        if not self._history("0", 1):
            self._ask().xgroup_delconsumer(self._key, GROUP, self._consumer)

    def _pending_own(self, count: int) -> list[Entry]:
        if not self._own:
            return []
        entries = self._history(self._own, count)
        self._own = entries[-1].id if entries else ""
        return self._without_deleted(entries)

    def _history(self, after: str, count: int) -> list[Entry]:
        reply = self._ask().xreadgroup(GROUP, self._consumer, {self._key: after}, count=count)
        return _entries(reply)

    def _abandoned(self, count: int) -> list[Entry]:
        if time.monotonic() < self._claim_at:
            return []
        idle = int(self._claim_seconds * 1000)
        reply = self._ask().xautoclaim(
            self._key, GROUP, self._consumer, min_idle_time=idle, start_id=self._claim_from, count=count
        )
        self._claim_from = reply[0].decode()
        if self._claim_from == "0-0":
            self._claim_at = time.monotonic() + self._claim_seconds / 3
        return self._without_deleted(
            [Entry(name.decode(), fields or {}) for name, fields in reply[1] if name is not None]
        )

    def _new(self, count: int, block_ms: int) -> list[Entry]:
        block = min(block_ms, LONGEST_BLOCK_MS) or None  # 0 would mean forever
        reply = self._ask().xreadgroup(GROUP, self._consumer, {self._key: ">"}, count=count, block=block)
        return _entries(reply)

    def _oldest(self, count: int, block_ms: int) -> list[Entry]:
        """Entries read without a group, which a full server cannot make; another reader may have them too."""
        found = self._ask().xrange(self._key, min=self._after, count=count)
        entries = [Entry(name.decode(), fields) for name, fields in found]
        if entries:
            self._after = f"({entries[-1].id}"
        else:
            time.sleep(block_ms / 1000)
        return entries

    def _without_deleted(self, entries: list[Entry]) -> list[Entry]:
        """The entries without those that were deleted by hand, which come back empty."""
        self.acknowledge([entry.id for entry in entries if not entry.fields])
        return [entry for entry in entries if entry.fields]

    def _with_group(self, call: Callable[[], T]) -> T:
        """The call's result; makes the group if it is missing, also after the server lost it."""
        for _ in range(GROUPS_MADE):
            try:
                return call()
            except redis.ResponseError as error:
                # UNBLOCKED: Redis 7.0, if the stream is removed during the wait.
                if not str(error).startswith(("NOGROUP", "UNBLOCKED")):
                    raise
            self._make_group()
        return call()

    def _make_group(self) -> None:
        self._own, self._claim_from = "", "0-0"  # a new group holds nothing of ours
        try:
            self._ask().xgroup_create(self._key, GROUP, id="0", mkstream=True)
        except redis.ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise

    def _ask(self) -> Any:
        # redis-py's annotations promise an awaitable as well; this client never gives one.
        return self._client


def _place(name: bytes) -> tuple[int, int]:
    time_ms, _, number = name.partition(b"-")
    return int(time_ms), int(number)


def _as_it_came(reply: Any, **_options: Any) -> Any:
    return reply


def _entries(reply: Any) -> list[Entry]:
    """The entries of a reply: [[key, entries]], or {key: entries} with `protocol=3`."""
    if not reply:
        return []
    entries = next(iter(reply.values())) if isinstance(reply, dict) else reply[0][1]
    return [Entry(name.decode(), _fields(flat)) for name, flat in entries]


def _fields(flat: list[bytes] | None) -> dict[bytes, bytes]:
    """Alternating names and values as a dictionary; empty for a deleted entry."""
    each = iter(flat or ())
    return dict(zip(each, each, strict=True))
