"""Whether the queue knows all unfinished sites of the tables, so that a lost queue is noticed and named.

Every site comes into queue and results stream in one call. So the tables have no site that the queue does not know,
unless the queue lost it: its server was replaced, emptied, or forgot at a restart. Each coordinator counts such sites
in a thread of its own: when it starts, when the queue has shrunk, and again as long as any are lost. The answer is a
hash in Redis (`tables_key`). Agents never open the database; they read it before they end (crawler/agent/losses.py).

A site that `scrapy site forget` took out of the queue stays in the tables until the order has passed the stream; it is
not counted. Nor are sites that another crawl's queue on the same server knows: crawls may share tables.
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
from sqlalchemy import ColumnElement, func, or_, select, true

from crawler.sites.queue import bucket_of
from crawler.store.database import DatabaseError
from crawler.store.reading import by_key
from crawler.store.stream import Mark
from crawler.store.tables import BLOCKED, FINISHED, sites

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from crawler.options import Options

logger = logging.getLogger("coordinator")

# How often a coordinator looks whether the queue has shrunk.
LOOK_SECONDS = 3.0
# Share of the time that counting again may take while sites are lost.
COUNT_SHARE = 0.05
# Sites that the queue is asked about at a time.
BATCH = 1000
# Up to so many unknown sites are looked up a second time: orders to forget that many at once are not expected.
MOST_LOOKED_UP_AGAIN = 1000
# What a person does about it.
ADVICE = "`scrapy queue rebuild` brings them back, `scrapy queue reset --yes` gives them up"

_COUNT_SUFFIX = ":{0}:count"


def tables_key(prefix: str) -> str:
    """Where coordinators say what the queue lost: a hash of whole numbers.

    `added`: sites that the queue knew. `lost`: unfinished sites of the tables that it does not know, without those
    that a reset gave up (`forgiven`). `at`: when they were counted, in ms. `reset`: the queue was reset since.
    """
    return f"{prefix}:{{0}}:tables"


def count_lost(engine: Engine, client: Any, prefix: str) -> int:
    """Unfinished sites of the tables that the queue does not know now, without those that a reset gave up."""
    word = _numbers(client.hgetall(tables_key(prefix)))
    if "reset" in word:
        return 0
    unknown, _ = _unknown(engine, client, prefix)
    return max(0, unknown - word.get("forgiven", 0))


def lost_ids(engine: Engine, client: Any, prefix: str) -> set[int]:
    """Ids of these sites, as far as they are named: none where a reset gave up as many."""
    word = _numbers(client.hgetall(tables_key(prefix)))
    if "reset" in word:
        return set()
    many, some = _unknown(engine, client, prefix)
    return set(some) if many > word.get("forgiven", 0) else set()


class Comparison:
    """One coordinator's part. `start` once, `end` once."""

    def __init__(self, client: redis.Redis, options: Options) -> None:
        self._client: Any = client
        self._prefix = options.key_prefix
        self._key = tables_key(options.key_prefix)
        self._added = 0  # the most sites that the queue knew
        self._counted = False
        self._again_at = 0.0  # monotonic
        self._warned = 0
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, engine: Engine) -> None:
        """Begin to look, in a thread."""
        self._thread = threading.Thread(target=self._run, args=(engine,), name="comparing", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop after the look that is under way."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, engine: Engine) -> None:
        while not self._ending.is_set():
            with suppress(DatabaseError, redis.RedisError):  # said where writing waits for it, if it lasts
                self._look(engine)
            self._ending.wait(LOOK_SECONDS)

    def _look(self, engine: Engine) -> None:
        known = self._client.hmget(f"{self._prefix}{_COUNT_SUFFIX}", ["added"])
        added = _numbers({b"added": known[0] or b"0"}).get("added", 0)
        word = _numbers(self._client.hgetall(self._key))
        if self._holds(word, added):
            if added > word["added"]:
                self._client.hset(self._key, "added", added)
            self._added = added
            return
        began = time.monotonic()
        unknown = self._count(engine)
        if unknown is None:
            return
        forgiven = unknown if "reset" in word else min(unknown, word.get("forgiven", 0))
        self._write(added, unknown - forgiven, forgiven)
        self._added, self._counted = added, True
        now = time.monotonic()
        self._again_at = now + max(LOOK_SECONDS, (now - began) / COUNT_SHARE)

    def _holds(self, word: dict[str, int], added: int) -> bool:
        """Whether what stands in Redis was counted in this coordinator's time, and nothing was lost since."""
        if not self._counted or not {"added", "lost"} <= word.keys() or "reset" in word:
            return False
        if added < max(self._added, word["added"]):
            return False
        return word["lost"] == 0 or time.monotonic() < self._again_at

    def _count(self, engine: Engine) -> int | None:
        """How many there are; None: it is told to end."""
        many, some = _unknown(engine, self._client, self._prefix, stop=self._ending)
        if 0 < many <= MOST_LOOKED_UP_AGAIN:
            mark = Mark(self._client, self._prefix)
            while not mark.passed(self._client):
                if self._ending.wait(LOOK_SECONDS / 10):
                    return None
            many, _ = _unknown(engine, self._client, self._prefix, sites.c.site_id.in_(some))
        return None if self._ending.is_set() else many

    def _write(self, added: int, lost: int, forgiven: int) -> None:
        seconds, micros = self._client.time()
        at = seconds * 1000 + micros // 1000
        pipe = self._client.pipeline(transaction=False)
        pipe.hset(self._key, mapping={"added": added, "lost": lost, "forgiven": forgiven, "at": at})
        pipe.hdel(self._key, "reset")
        pipe.execute()
        if lost and not self._warned:
            logger.warning("the queue does not know %d unfinished sites of the tables; %s", lost, ADVICE)
        elif self._warned and not lost:
            logger.info("the queue knows all unfinished sites of the tables again")
        self._warned = lost


def _unknown(
    engine: Engine,
    client: Any,
    prefix: str,
    chosen: ColumnElement[bool] | None = None,
    stop: threading.Event | None = None,
) -> tuple[int, list[int]]:
    """How many unfinished sites of the tables no queue on this server knows, and the ids of the first of them."""
    many = 0
    some: list[int] = []
    others: list[str] | None = None
    for batch in _unfinished(engine, true() if chosen is None else chosen):
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
    """Ids and names of the sites that somebody has still to walk, as the tables have them."""
    asked = select(sites.c.site_id, sites.c.site).where(
        chosen,
        sites.c.state != FINISHED,
        func.coalesce(sites.c.alias_of, "") == "",
        or_(sites.c.stopped.is_(None), sites.c.stopped != BLOCKED),
    )
    for rows in by_key(engine, asked, sites.c.site_id, BATCH):
        yield [tuple(row) for row in rows]


def _not_known(client: Any, prefix: str, some: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """Those that the queue under this prefix does not know; all of them, where its keys may not be read."""
    pipe = client.pipeline(transaction=False)
    for _, site in some:
        pipe.hexists(bucket_of(f"{prefix}:{{0}}:", site), site)
    try:
        known = pipe.execute()
    except NoPermissionError:
        return list(some)
    return list(itertools.compress(some, [not one for one in known]))


def _numbers(fields: dict[bytes, bytes]) -> dict[str, int]:
    """The fields that are whole numbers; what somebody else wrote counts as not there."""
    return {name.decode(): int(value) for name, value in fields.items() if value.isdigit()}


def _other_prefixes(client: Any, prefix: str) -> list[str]:
    keys = client.scan_iter(match=f"*{_COUNT_SUFFIX}", count=10_000)
    found = {key.decode(errors="replace").removesuffix(_COUNT_SUFFIX) for key in keys}
    return sorted(found - {prefix})
