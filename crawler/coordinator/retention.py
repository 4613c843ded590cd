"""Takes rows out of the histories that are older than their settings say, a small stretch at a time.

Hides the turns: of all coordinators of a crawl one walks through the tables, once in a while. A stretch is one short
transaction, and between two there is time for everything else, so writing never waits longer than for one of them. The
newest rows are never looked at: no lock of a walk is where another coordinator writes. A walk that is cut off (a kill,
an outage) is begun anew by whoever has the next turn.
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


# ------------------------------------------------------------------------------------------------------------
# SQLite's write-ahead log, kept from growing without end while others read.
#
# The log can begin anew only at a moment when nobody reads from it. Readers that come and go leave no such moment
# where one begins before the other has ended, and the log grows for as long as they do; a single long one does the
# same. Who writes can make that moment: it keeps the next write back until those who read now have ended. The readers
# of this project read in short stretches (reading.in_stretches), so that is soon; for others it is not waited long.


logger = logging.getLogger("coordinator")

# Twice what it has where nobody reads (wal_autocheckpoint).
MOST_BYTES = 2 * 10_000 * 8_192
# How long writing may be held up for it; how soon again, and where readers keep it from that, how soon at last.
WAIT_SECONDS = 0.2
AGAIN_SECONDS, LONGEST_AGAIN_SECONDS = 1.0, 60.0
# SQLite waits for the readers in steps that soon are longer than a reader reads, and so meets the next one. Asked anew
# after so many ms it makes short ones: then each try of 150 succeeded, and before half of them.
TRY_MS = 15
# A log that was kept from beginning anew and has so many times its measure is told.
TOLD_FACTOR = 10


class WalCheckpoints:
    """Of one writer; on other databases it does nothing."""

    def __init__(self, engine: Engine, most_bytes: int = MOST_BYTES) -> None:
        self._engine = engine
        self._most = most_bytes
        self._log = Path(f"{engine.url.database}-wal") if engine.dialect.name == "sqlite" else None
        self._again = 0.0  # monotonic
        self._kept = 0  # times in a row
        self._told = False

    def look(self) -> None:
        """Called after a commit: begins the log anew where it is too long and can be. DatabaseError passes."""
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
                "%s has %.1f GB, since somebody reads the database for long", self._log, size / 1e9
            )

    def _is_kept(self) -> bool:
        """Begins it anew; whether readers keep it from that."""
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
# Rows of one stretch: some 10 ms on SQLite, where nobody else can write meanwhile.
STRETCH_ROWS = 2_000
# Between two stretches of a walk.
IDLE_PAUSE_SECONDS = 0.2
# While records come a walk takes at most this share of a coordinator's time, so it is faster than any writing.
BUSY_SHARE = 0.1
# A walk begins this part of the least age after the last one, so rows live at most so much longer; a day at most.
WALK_SHARE, LONGEST_REST_SECONDS = 0.1, DAY_SECONDS
# Who has the turn and says nothing for so long has lost it.
TURN_SECONDS = 60.0


def turn_key(prefix: str) -> str:
    """Held by the coordinator whose turn it is, and after its walk until it is time for the next."""
    return f"{prefix}:{{0}}:thinning"


class History(NamedTuple):
    """A table that grows for ever, and for how long it keeps a row."""

    time: Column[Any]  # of the row; beside it stands the table's `id`, which rises as rows are stored
    unit_seconds: float  # of that column
    days: float  # 0: for ever


def histories(options: Options) -> list[History]:
    """What the settings say of each."""
    return [
        History(fetches.c.fetched_at, 0.001, options.fetches_days),
        History(visits.c.hour, options.hour_seconds, options.visits_days),
        History(checks.c.checked_at, 0.001, options.checks_days),
        History(health.c.checked_at, 0.001, options.health_days),
        # Of one that is still to be told there is no such time: it stays.
        History(health_changes.c.told_at, 0.001, options.health_days),
    ]


class _Walk(NamedTuple):
    """A way through the first of these: rows of ids above `after`, up to `last`, go if they are older than `before`."""

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
        """One stretch, if it is time for it; DatabaseError and RedisError pass: the walk is then given up."""
        if not self._histories or time.monotonic() < self._due:
            return
        walk, self._walk = self._walk, None  # an error leaves none
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
        """On from a table whose end is reached."""
        if walk.gone:
            history = walk.histories[0]
            logger.info(
                "%d rows of %s that were older than %g days are gone",
                *(walk.gone, history.time.table.name, history.days),
            )
        return self._first(engine, walk.histories[1:])

    def _first(self, engine: Engine, left: Sequence[History]) -> _Walk | None:
        """The walk through the first of these tables that has rows to look at; None: the turn is over."""
        for place, history in enumerate(left):
            walk = _walk(engine, left[place:], history)
            if walk.after < walk.last:
                return walk
        self._client.set(self._key, "done", px=max(1, int(self._rest_seconds * 1000)))
        self._due = time.monotonic() + self._rest_seconds
        return None

    def _keep_turn(self, walk: _Walk) -> _Walk | None:
        # Two calls: should the turn change hands between them, two walk for a minute, which harms nobody.
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
