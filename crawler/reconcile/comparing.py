"""Whether the queue knows all unfinished sites of the tables, so that a lost queue is noticed and named.

Every site comes into queue and results stream in one call. So the tables have no site that the queue does not know,
unless the queue lost it: its server was replaced, emptied, or forgot at a restart. Each coordinator counts such sites
in a thread of its own: when it starts, when the queue has shrunk, and again as long as any are lost. The answer is a
hash in Redis (`tables_key`). Agents never open the database; they read it before they end (crawler/agent/watch.py).

Not counted are sites that `scrapy site forget` took out of the queue, which stay in the tables until the order has
passed the stream; sites that another crawl's queue on the same server knows, for crawls may share tables; and sites
that were found before the queue was reset.
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

# How often a coordinator looks whether the queue has shrunk.
LOOK_SECONDS = 3.0
# Share of the time that counting again may take while sites are lost.
COUNT_SHARE = 0.05
# Sites that the queue is asked about at a time.
BATCH = 1000
# Up to so many missing sites are looked up a second time: orders to forget that many at once are not expected.
MOST_LOOKED_UP_AGAIN = 1000

_COUNT_SUFFIX = ":{0}:count"


def tables_key(prefix: str) -> str:
    """Where coordinators say what the queue lost: a hash of whole numbers.

    `reset`: when the queue was last reset, in ms. `added`: sites that the queue knew. `lost`: unfinished sites of the
    tables that it does not know. `at`: when they were counted, in ms; `counted_with`: the reset that was known then.
    """
    return f"{prefix}:{{0}}:tables"


def count_lost(engine: Engine, client: Any, prefix: str) -> int:
    """Unfinished sites of the tables that the queue does not know now, without those that a reset gave up."""
    return _lost(engine, client, prefix, reset_ms(client, prefix))[0]


def reset_ms(client: Any, prefix: str) -> int:
    """When the queue was last reset, by the server's clock; 0: never, or the tables' sites came back since."""
    return _numbers(client.hgetall(tables_key(prefix))).get("reset", 0)


def given_up(found_entry: int | None, reset: int) -> bool:
    """Whether a reset at this time gave up a site that was last found by this entry of the stream."""
    return (found_entry or 0) < entry_number(f"{reset}-0")


def unknown_to_all(client: Any, prefix: str, names: Sequence[str]) -> set[str]:
    """Those of the sites that no queue on this server knows now."""
    left = _not_known(client, prefix, list(enumerate(names)))
    for other in _other_prefixes(client, prefix) if left else ():
        left = _not_known(client, other, left) if left else left
    return {name for _, name in left}


class Comparison:
    """One coordinator's part. `start` once, `end` once."""

    def __init__(self, client: redis.Redis, options: Options) -> None:
        self._client: Any = client
        self._prefix = options.key_prefix
        self._key = tables_key(options.key_prefix)
        self._added = 0  # the most sites that the queue knew
        self._reset = 0  # the reset that was counted with
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
                self._count_if_due(engine)
            self._ending.wait(LOOK_SECONDS)

    def _count_if_due(self, engine: Engine) -> None:
        known = self._client.hmget(f"{self._prefix}{_COUNT_SUFFIX}", ["added"])
        added = _numbers({b"added": known[0] or b"0"}).get("added", 0)
        word = _numbers(self._client.hgetall(self._key))
        if self._holds(word, added):
            if added > word["added"]:
                self._client.hset(self._key, "added", added)
            self._added = added
            return
        began = time.monotonic()
        reset = word.get("reset", 0)
        lost = self._count(engine, reset)
        if lost is None:
            return
        self._write(added, lost, reset)
        self._added, self._reset, self._counted = added, reset, True
        now = time.monotonic()
        self._again_at = now + max(LOOK_SECONDS, (now - began) / COUNT_SHARE)

    def _holds(self, word: dict[str, int], added: int) -> bool:
        """Whether what stands in Redis was counted in this coordinator's time, and nothing was lost since."""
        if not self._counted or not {"added", "lost"} <= word.keys() or word.get("reset", 0) != self._reset:
            return False
        if added < max(self._added, word["added"]):
            return False
        return word["lost"] == 0 or time.monotonic() < self._again_at

    def _count(self, engine: Engine, reset: int) -> int | None:
        """How many sites are lost; None: the coordinator ends."""
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
            logger.info("the queue knows all unfinished sites of the tables again")
        self._warned = lost


def _lost(
    engine: Engine,
    client: Any,
    prefix: str,
    reset: int,
    chosen: ColumnElement[bool] | None = None,
    stop: threading.Event | None = None,
) -> tuple[int, list[int]]:
    """How many unfinished sites of the tables, found since the reset, no queue on this server knows; the first ids."""
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
    """Ids and names of the sites that are still to be walked, as the tables have them."""
    asked = select(sites.c.site_id, sites.c.site).where(
        chosen,
        sites.c.state != FINISHED,
        func.coalesce(sites.c.alias_of, "") == "",
        or_(sites.c.stopped.is_(None), sites.c.stopped != BLOCKED),
    )
    for rows in by_key(engine, asked, sites.c.site_id, BATCH):
        yield [tuple(row) for row in rows]


def _not_known(client: Any, prefix: str, some: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Those that the queue under this prefix does not know; all of them, where its keys may not be read."""
    pipe = client.pipeline(transaction=False)
    for _, site in some:
        pipe.hexists(bucket_of(f"{prefix}:{{0}}:", site), site)
    try:
        known = pipe.execute()
    except NoPermissionError:
        return some
    return list(itertools.compress(some, [not one for one in known]))


def _numbers(fields: dict[bytes, bytes]) -> dict[str, int]:
    """The fields that are whole numbers; any other one counts as not there."""
    return {name.decode(): int(value) for name, value in fields.items() if value.isdigit()}


def _other_prefixes(client: Any, prefix: str) -> list[str]:
    keys = client.scan_iter(match=f"*{_COUNT_SUFFIX}", count=10_000)
    found = {key.decode(errors="replace").removesuffix(_COUNT_SUFFIX) for key in keys}
    return sorted(found - {prefix})
