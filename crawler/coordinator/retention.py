"""Deletes old rows in short transactions, and keeps SQLite's WAL small.

One coordinator at a time deletes (a lock in Redis); an aborted run restarts later. The newest rows are not scanned,
so inserts never wait.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Column, delete, func, select

from crawler.store.database import LOCK_SECONDS, transaction
from crawler.store.tables import checks, fetches, health, health_changes, visits

if TYPE_CHECKING:
    import redis
    from sqlalchemy import Engine

    from crawler.options import Options


# --- SQLite's WAL -----------------------------------------------------------------------------------------


logger = logging.getLogger("coordinator")

# Twice its usual size (wal_autocheckpoint).
MOST_BYTES = 2 * 10_000 * 8_192
# How long a checkpoint may delay writing; the time to the next one, and its maximum while readers prevent it. SQLite
# resets the WAL only while nothing reads, so the writer waits for a gap between readers.
WAIT_SECONDS = 0.2
AGAIN_SECONDS, LONGEST_AGAIN_SECONDS = 1.0, 60.0
# SQLite's busy handler soon sleeps longer than a reader reads and misses the gaps. With this timeout all of 150
# attempts succeeded, without it half of them.
TRY_MS = 15
# Warn if readers prevent checkpoints and the WAL has this multiple of its maximum.
TOLD_FACTOR = 10


class WalCheckpoints:
    """Does nothing on other databases."""

    def __init__(self, engine: Engine, most_bytes: int = MOST_BYTES) -> None:
        self._engine = engine
        self._most = most_bytes
        self._log = Path(f"{engine.url.database}-wal") if engine.dialect.name == "sqlite" else None
        self._again = 0.0  # monotonic
        self._kept = 0  # times in a row
        self._told = False

    def look(self) -> None:
        """Call after a commit: truncates a long WAL. Passes DatabaseError on."""
        if self._log is None or not self._log.exists():
            return
        size = self._log.stat().st_size
        if size <= self._most or time.monotonic() < self._again:
            return
        self._kept = self._kept + 1 if self._is_kept() else 0
        self._again = time.monotonic() + min(AGAIN_SECONDS * 2**self._kept, LONGEST_AGAIN_SECONDS)
        if not self._kept:
            self._told = False
        elif size > TOLD_FACTOR * self._most and not self._told:
            self._told = True
            logger.warning(
                "%s has %.1f GB: a long read transaction prevents its checkpoint", self._log, size / 1e9
            )

    def _is_kept(self) -> bool:
        """Tries to truncate; returns whether readers prevented it."""
        until = time.monotonic() + WAIT_SECONDS
        with transaction(self._engine) as connection:
            connection.exec_driver_sql(f"PRAGMA busy_timeout={TRY_MS}")
            try:
                while connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").scalar():
                    if time.monotonic() > until:
                        return True
                return False
            finally:
                connection.exec_driver_sql(f"PRAGMA busy_timeout={LOCK_SECONDS * 1000}")


DAY_SECONDS = 86_400.0
# Rows per transaction: about 10 ms, during which SQLite has no other writer.
STRETCH_ROWS = 2_000
# Between two transactions of a run.
IDLE_PAUSE_SECONDS = 0.2
# Share of a coordinator's time while it stores records; enough to delete faster than it inserts.
BUSY_SHARE = 0.1
# Time between two runs, as a share of the shortest retention, at most a day: rows are kept at most this much longer.
WALK_SHARE, LONGEST_REST_SECONDS = 0.1, DAY_SECONDS
# The lock's TTL.
TURN_SECONDS = 60.0


def turn_key(prefix: str) -> str:
    """The key of the lock, kept until the next run is due."""
    return f"{prefix}:{{0}}:thinning"


class History(NamedTuple):
    """A growing table, and how long it keeps rows."""

    time: Column[Any]  # of the row; its table has an ascending `id`
    unit_seconds: float  # of that column
    days: float  # 0: for ever


def histories(options: Options) -> list[History]:
    """The tables with retention settings."""
    return [
        History(fetches.c.fetched_at, 0.001, options.fetches_days),
        History(visits.c.hour, options.hour_seconds, options.visits_days),
        History(checks.c.checked_at, 0.001, options.checks_days),
        History(health.c.checked_at, 0.001, options.health_days),
        # NULL while pending: not deleted.
        History(health_changes.c.told_at, 0.001, options.health_days),
    ]


class _Walk(NamedTuple):
    """Deletes ids above `after` up to `last` that are older than `before`."""

    histories: Sequence[History]
    after: int
    last: int
    before: int
    gone: int = 0


class Retention:
    """One coordinator's part."""

    def __init__(self, client: redis.Redis, prefix: str, name: str, kept: Sequence[History]) -> None:
        self._client = client
        self._key = turn_key(prefix)
        self._name = name
        self._histories = [one for one in kept if one.days]
        self._walk: _Walk | None = None
        self._due = 0.0  # monotonic

    def step(self, engine: Engine, *, busy: bool) -> None:
        """Deletes one range if due. Passes errors on, which abort the run."""
        if not self._histories or time.monotonic() < self._due:
            return
        walk, self._walk = self._walk, None  # an error aborts the run
        self._due = time.monotonic() + TURN_SECONDS
        walk = self._keep_turn(walk) if walk else self._begin(engine)
        if walk is None:
            return
        began = time.monotonic()
        walk = _stretch(engine, walk)
        took = time.monotonic() - began
        self._walk = walk if walk.after < walk.last else self._next(engine, walk)
        if self._walk:
            self._due = time.monotonic() + max(IDLE_PAUSE_SECONDS, took / BUSY_SHARE if busy else 0.0)

    def _begin(self, engine: Engine) -> _Walk | None:
        if not self._client.set(self._key, self._name, nx=True, px=int(TURN_SECONDS * 1000)):
            self._due = time.monotonic() + min(TURN_SECONDS, self._rest_seconds)
            return None
        return self._first(engine, self._histories)

    def _next(self, engine: Engine, walk: _Walk) -> _Walk | None:
        if walk.gone:
            history = walk.histories[0]
            logger.info(
                "deleted %d rows of %s older than %g days",
                *(walk.gone, history.time.table.name, history.days),
            )
        return self._first(engine, walk.histories[1:])

    def _first(self, engine: Engine, left: Sequence[History]) -> _Walk | None:
        """The run on the first non-empty table; None: all done."""
        for place, history in enumerate(left):
            walk = _walk(engine, left[place:], history)
            if walk.after < walk.last:
                return walk
        self._client.set(self._key, "done", px=max(1, int(self._rest_seconds * 1000)))
        self._due = time.monotonic() + self._rest_seconds
        return None

    def _keep_turn(self, walk: _Walk) -> _Walk | None:
        # Not atomic: if the lock expires between the calls, two coordinators delete for a minute, which is harmless.
        if self._client.get(self._key) != self._name.encode():
            return None
        self._client.pexpire(self._key, int(TURN_SECONDS * 1000))
        return walk

    @property
    def _rest_seconds(self) -> float:
        least = min(one.days for one in self._histories)
        return min(LONGEST_REST_SECONDS, least * DAY_SECONDS * WALK_SHARE)


def _walk(engine: Engine, left: Sequence[History], history: History) -> _Walk:
    number = history.time.table.c.id
    with transaction(engine) as connection:
        first, last = connection.execute(select(func.min(number), func.max(number))).one()
    before = int((time.time() - history.days * DAY_SECONDS) / history.unit_seconds)
    return _Walk(left, first - 1, last - STRETCH_ROWS, before) if first is not None else _Walk(left, 0, 0, 0)


def _stretch(engine: Engine, walk: _Walk) -> _Walk:
    until = min(walk.after + STRETCH_ROWS, walk.last)
    column = walk.histories[0].time
    number = column.table.c.id
    old = delete(column.table).where(number > walk.after, number <= until, column < walk.before)
    with transaction(engine) as connection:
        gone = connection.execute(old).rowcount
    return walk._replace(after=until, gone=walk.gone + gone)
