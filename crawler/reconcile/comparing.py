"""Detects a lost queue: counts unfinished sites of the tables that it lacks, in a thread of each coordinator.

Agents read the result before they end (`tables_key`, crawler/agent/watch.py). Not counted: forgotten sites, sites in
other queues of the server, and sites found before the last reset.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import redis
from redis.exceptions import NoPermissionError
from sqlalchemy import ColumnElement, and_, func, or_, select, true

from crawler.queue.connection import sites_lost
from crawler.queue.results import Mark
from crawler.queue.sites import bucket_of
from crawler.store.database import DatabaseError
from crawler.store.queries import by_key
from crawler.store.tables import BLOCKED, FINISHED, sites
from crawler.store.write import entry_number

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from crawler.options import Options

logger = logging.getLogger("coordinator")

# How often a coordinator checks whether the queue has shrunk.
LOOK_SECONDS = 3.0
# Share of the time spent on counting while sites are lost.
COUNT_SHARE = 0.05
# Sites per pipeline.
BATCH = 1000
# At most this number of missing sites is checked again, since forget commands may be in the stream; more are lost.
MOST_LOOKED_UP_AGAIN = 1000

_COUNT_SUFFIX = ":{0}:count"


def tables_key(prefix: str) -> str:
    """A Redis hash of integers; times in ms.

    `reset`: the last reset. `added`: sites in the queue. `lost`: sites it lacks, counted `at`; `counted_with`: the
    reset known then.
    """
    return f"{prefix}:{{0}}:tables"


def count_lost(engine: Engine, client: Any, prefix: str) -> int:
    """Unfinished sites that the queue lacks, found since the last reset."""
    return _lost(engine, client, prefix, reset_ms(client, prefix))[0]


def reset_ms(client: Any, prefix: str) -> int:
    """The last reset by the Redis clock; 0: none, or sites were restored since."""
    return _numbers(client.hgetall(tables_key(prefix))).get("reset", 0)


def given_up(found_entry: int | None, reset: int) -> bool:
    """Whether this reset gave up a site found by this entry."""
    return (found_entry or 0) < entry_number(f"{reset}-0")


def unknown_to_all(client: Any, prefix: str, names: Sequence[str]) -> set[str]:
    """The sites in no queue of this server."""
    left = _not_known(client, prefix, list(enumerate(names)))
    for other in _other_prefixes(client, prefix) if left else ():
        left = _not_known(client, other, left) if left else left
    return {name for _, name in left}


class Comparison:
    """`start` once, `end` once."""

    def __init__(self, client: redis.Redis, options: Options) -> None:
        self._client: Any = client
        self._prefix = options.key_prefix
        self._key = tables_key(options.key_prefix)
        self._added = 0  # most sites in the queue so far
        self._reset = 0  # the reset at the last count
        self._counted = False
        self._again_at = 0.0  # monotonic
        self._warned = 0
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, engine: Engine) -> None:
        """Starts the thread."""
        self._thread = threading.Thread(target=self._run, args=(engine,), name="comparing", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stops the thread after the current count."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, engine: Engine) -> None:
        while not self._ending.is_set():
            with suppress(DatabaseError, redis.RedisError):  # logged by the coordinator, if it lasts
                self._count_if_due(engine)
            self._ending.wait(LOOK_SECONDS)

    def _count_if_due(self, engine: Engine) -> None:
        known = self._client.hmget(f"{self._prefix}{_COUNT_SUFFIX}", ["added"])
        added = _numbers({b"added": known[0] or b"0"}).get("added", 0)
        stored = _numbers(self._client.hgetall(self._key))
        if self._holds(stored, added):
            if added > stored["added"]:
                self._client.hset(self._key, "added", added)
            self._added = added
            return
        began = time.monotonic()
        reset = stored.get("reset", 0)
        lost = self._count(engine, reset)
        if lost is None:
            return
        self._write(added, lost, reset)
        self._added, self._reset, self._counted = added, reset, True
        now = time.monotonic()
        self._again_at = now + max(LOOK_SECONDS, (now - began) / COUNT_SHARE)

    def _holds(self, stored: dict[str, int], added: int) -> bool:
        """Whether the count in Redis is still valid."""
        if (
            not self._counted
            or not {"added", "lost"} <= stored.keys()
            or stored.get("reset", 0) != self._reset
        ):
            return False
        if added < max(self._added, stored["added"]):
            return False
        return stored["lost"] == 0 or time.monotonic() < self._again_at

    def _count(self, engine: Engine, reset: int) -> int | None:
        """Lost sites; None: the coordinator ends."""
        many, some = _lost(engine, self._client, self._prefix, reset, stop=self._ending)
        if 0 < many <= MOST_LOOKED_UP_AGAIN:
            mark = Mark(self._client, self._prefix)
            while not mark.passed(self._client):
                if self._ending.wait(LOOK_SECONDS / 10):
                    return None
            many, _ = _lost(engine, self._client, self._prefix, reset, sites.c.site_id.in_(some))
        return None if self._ending.is_set() else many

    def _write(self, added: int, lost: int, reset: int) -> None:
        seconds, micros = self._client.time()
        at = seconds * 1000 + micros // 1000
        fields = {"added": added, "lost": lost, "at": at, "counted_with": reset}
        self._client.hset(self._key, mapping=fields)
        if lost and not self._warned:
            logger.warning("%s", sites_lost(lost))
        elif self._warned and not lost:
            logger.info("the queue has all unfinished sites of the tables again")
        self._warned = lost


def _lost(
    engine: Engine,
    client: Any,
    prefix: str,
    reset: int,
    chosen: ColumnElement[bool] | None = None,
    stop: threading.Event | None = None,
) -> tuple[int, list[int]]:
    """The number of lost sites, and the first ids."""
    many = 0
    some: list[int] = []
    others: list[str] | None = None
    since = sites.c.found_entry >= entry_number(f"{reset}-0") if reset else true()
    for batch in _unfinished(engine, since if chosen is None else and_(since, chosen)):
        if stop is not None and stop.is_set():
            break
        left = _not_known(client, prefix, batch)
        if left and others is None:
            others = _other_prefixes(client, prefix)
        for other in others or ():
            left = _not_known(client, other, left) if left else left
        many += len(left)
        some += [number for number, _ in left[: MOST_LOOKED_UP_AGAIN - len(some)]]
    return many, some


def _unfinished(engine: Engine, chosen: ColumnElement[bool]) -> Iterator[list[tuple[int, str]]]:
    """Batches of ids and names."""
    query = select(sites.c.site_id, sites.c.site).where(
        chosen,
        sites.c.state != FINISHED,
        func.coalesce(sites.c.alias_of, "") == "",
        or_(sites.c.stopped.is_(None), sites.c.stopped != BLOCKED),
    )
    for rows in by_key(engine, query, sites.c.site_id, BATCH):
        yield [tuple(row) for row in rows]


def _not_known(client: Any, prefix: str, some: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """The sites that this queue lacks; all of them if its keys are unreadable."""
    pipe = client.pipeline(transaction=False)
    for _, site in some:
        pipe.hexists(bucket_of(f"{prefix}:{{0}}:", site), site)
    try:
        known = pipe.execute()
    except NoPermissionError:
        return some
    return list(itertools.compress(some, [not one for one in known]))


def _numbers(fields: dict[bytes, bytes]) -> dict[str, int]:
    """The fields that are integers."""
    return {name.decode(): int(value) for name, value in fields.items() if value.isdigit()}


def _other_prefixes(client: Any, prefix: str) -> list[str]:
    keys = client.scan_iter(match=f"*{_COUNT_SUFFIX}", count=10_000)
    found = {key.decode(errors="replace").removesuffix(_COUNT_SUFFIX) for key in keys}
    return sorted(found - {prefix})
