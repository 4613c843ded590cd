"""Takes rows out of the history that are older than FETCHES_DAYS, a small stretch at a time.

Hides the turns: of all coordinators of a crawl one walks through the table, once in a while. A stretch is one short
transaction, and between two there is time for everything else, so writing never waits longer than for one of them. The
newest rows are never looked at: no lock of a walk is where another coordinator writes. A walk that is cut off (a kill,
an outage) is begun anew by whoever has the next turn.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import delete, func, select

from crawler.store.database import transaction
from crawler.store.tables import fetches

if TYPE_CHECKING:
    import redis
    from sqlalchemy import Engine

logger = logging.getLogger("coordinator")

DAY_SECONDS = 86_400.0
# Rows of one stretch: some 10 ms on SQLite, where nobody else can write meanwhile.
STRETCH_ROWS = 2_000
# Between two stretches of a walk.
IDLE_PAUSE_SECONDS = 0.2
# While records come a walk takes at most this share of a coordinator's time, so it is faster than any writing.
BUSY_SHARE = 0.1
# A walk begins this part of FETCHES_DAYS after the last one, so rows live at most so much longer; once a day is enough.
WALK_SHARE, LONGEST_REST_SECONDS = 0.1, DAY_SECONDS
# Who has the turn and says nothing for so long has lost it.
TURN_SECONDS = 60.0


def turn_key(prefix: str) -> str:
    """Held by the coordinator whose turn it is, and after its walk until it is time for the next."""
    return f"{prefix}:{{0}}:thinning"


class _Walk(NamedTuple):
    """One way through the table: rows of ids above `after`, up to `last`, go if they are older than `before_ms`."""

    after: int
    last: int
    before_ms: int
    gone: int = 0


class Thinning:
    """One coordinator's part; `days` 0: the history is kept for ever."""

    def __init__(self, client: redis.Redis, prefix: str, name: str, days: float) -> None:
        self._client = client
        self._key = turn_key(prefix)
        self._name = name
        self._days = days
        self._walk: _Walk | None = None
        self._due = 0.0  # monotonic

    def step(self, engine: Engine, *, busy: bool) -> None:
        """One stretch, if it is time for it; DatabaseError and RedisError pass: the walk is then given up."""
        if not self._days or time.monotonic() < self._due:
            return
        walk, self._walk = self._walk, None  # an error leaves none
        self._due = time.monotonic() + TURN_SECONDS
        walk = self._keep_turn(walk) if walk else self._begin(engine)
        if walk is None:
            return
        began = time.monotonic()
        walk = _stretch(engine, walk)
        took = time.monotonic() - began
        if walk.after >= walk.last:
            self._end(walk)
            return
        self._walk = walk
        self._due = time.monotonic() + max(IDLE_PAUSE_SECONDS, took / BUSY_SHARE if busy else 0.0)

    def _begin(self, engine: Engine) -> _Walk | None:
        if not self._client.set(self._key, self._name, nx=True, px=int(TURN_SECONDS * 1000)):
            self._due = time.monotonic() + min(TURN_SECONDS, self._rest_seconds)
            return None
        with transaction(engine) as connection:
            first, last = connection.execute(select(func.min(fetches.c.id), func.max(fetches.c.id))).one()
        before = (time.time() - self._days * DAY_SECONDS) * 1000
        walk = _Walk(first - 1, last - STRETCH_ROWS, int(before)) if first is not None else _Walk(0, 0, 0)
        if walk.after >= walk.last:
            self._end(walk)
            return None
        return walk

    def _keep_turn(self, walk: _Walk) -> _Walk | None:
        # Two calls: should the turn change hands between them, two walk for a minute, which harms nobody.
        if self._client.get(self._key) != self._name.encode():
            return None
        self._client.pexpire(self._key, int(TURN_SECONDS * 1000))
        return walk

    def _end(self, walk: _Walk) -> None:
        self._client.set(self._key, "done", px=max(1, int(self._rest_seconds * 1000)))
        self._due = time.monotonic() + self._rest_seconds
        if walk.gone:
            logger.info("%d rows of fetches that were older than %g days are gone", walk.gone, self._days)

    @property
    def _rest_seconds(self) -> float:
        return min(LONGEST_REST_SECONDS, self._days * DAY_SECONDS * WALK_SHARE)


def _stretch(engine: Engine, walk: _Walk) -> _Walk:
    until = min(walk.after + STRETCH_ROWS, walk.last)
    old = delete(fetches).where(
        fetches.c.id > walk.after, fetches.c.id <= until, fetches.c.fetched_at < walk.before_ms
    )
    with transaction(engine) as connection:
        gone = connection.execute(old).rowcount
    return walk._replace(after=until, gone=walk.gone + gone)
