"""Writes ranks in ranges, puts them in force in one transaction, then deletes older runs.

Previous ranks stay in force until then, also after a crash; of concurrent rankings the one begun later wins. Raises
DatabaseError if the database does not answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Select, Table, and_, delete, func, insert, or_, select, update

from crawler.store.database import DatabaseError, transaction
from crawler.store.tables import rankings, ranks, site_ranks
from crawler.store.upsert import Upsert, write

if TYPE_CHECKING:
    import numpy as np
    from sqlalchemy import Connection, Engine

# Rows per transaction: about 50 ms, during which SQLite has no other writer.
STRETCH_ROWS = 10_000
# Pause after each transaction, as a share of its duration: SQLite's waiting writers poll for the lock.
PAUSE_SHARE = 0.25
_PAGES = Upsert(
    "ranks", ranks, ("run", "site_id", "url_hash", "rank", "importance"), ("run", "site_id", "url_hash")
)
_SITES = Upsert(
    "site_ranks", site_ranks, ("run", "site_id", "rank", "importance", "pages"), ("run", "site_id")
)

# Called with the numbers of written rows and of all rows.
Progress = Callable[[int, int], None]


class RankingLostError(DatabaseError):
    """A ranking that began later is in force."""


class Ranked(NamedTuple):
    """Ranks to store: arrays of equal length for pages, and for sites."""

    source: str  # the run of convert
    mode: str
    block: str
    damping: float
    site_id: np.ndarray  # int64, of each page's site
    url_hash: np.ndarray  # int64
    rank: np.ndarray  # float64; sums to 1
    site: np.ndarray  # int64, as in the table sites
    site_rank: np.ndarray  # float64; sums to 1
    site_pages: np.ndarray  # number of ranked pages


def replace(engine: Engine, ranked: Ranked, progress: Progress | None = None) -> int:
    """Replaces the ranks in force; returns the run's number.

    Raises ValueError if columns differ in length, RankingLostError if a later ranking finished first.
    """
    _check_lengths(ranked)
    run = _begin(engine, ranked)
    total = len(ranked.rank) + len(ranked.site)
    done = 0
    for upsert, keys, values in ((_PAGES, *_pages(ranked)), (_SITES, *_sites(ranked))):
        for some in _stretches(keys, values):
            _write(engine, upsert, run, some)
            done += len(some[0])
            if progress:
                progress(done, total)
    _finish(engine, run)
    _clear(engine)
    return run


def in_force() -> Select[int | None]:
    """A query for the number of the run in force; NULL without one."""
    return select(func.max(rankings.c.run)).where(rankings.c.finished_at.is_not(None))


def importance(engine: Engine, site_id: int) -> dict[int, float]:
    """Importance by URL hash, 1 on average over the crawl; pages not yet ranked are missing."""
    run = in_force().scalar_subquery()
    query = select(ranks.c.url_hash, ranks.c.importance).where(ranks.c.run == run, ranks.c.site_id == site_id)
    with transaction(engine) as connection:
        return dict(connection.execute(query).all())


def forget(connection: Connection, site_id: int) -> None:
    """Deletes the ranks of a site and its pages."""
    runs = select(rankings.c.run)
    for table in (ranks, site_ranks):
        connection.execute(delete(table).where(table.c.run.in_(runs), table.c.site_id == site_id))


# --- writing ----------------------------------------------------------------------------------------------


def _begin(engine: Engine, ranked: Ranked) -> int:
    row = {
        "source": ranked.source,
        "mode": ranked.mode,
        "block": ranked.block,
        "damping": ranked.damping,
        "pages": len(ranked.rank),
        "began_at": _now(),
    }
    with transaction(engine) as connection:
        made = connection.execute(insert(rankings), row).inserted_primary_key
    assert made is not None
    return int(made[0])


def _check_lengths(ranked: Ranked) -> None:
    for names in (("site_id", "url_hash", "rank"), ("site", "site_rank", "site_pages")):
        rows = {name: len(getattr(ranked, name)) for name in names}
        if len(set(rows.values())) > 1:
            lengths = ", ".join(f"{name} has {many}" for name, many in rows.items())
            raise ValueError(f"columns of ranks differ in length: {lengths} rows; expected equal lengths")


def _pages(ranked: Ranked) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    return (ranked.site_id, ranked.url_hash), (ranked.rank, ranked.rank * len(ranked.rank))


def _sites(ranked: Ranked) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    return (ranked.site,), (ranked.site_rank, ranked.site_rank * len(ranked.site), ranked.site_pages)


def _stretches(keys: tuple[np.ndarray, ...], values: tuple[np.ndarray, ...]) -> Any:
    import numpy as np  # here, since deleting a site's ranks does not need it

    order = np.lexsort(keys[::-1])
    for first in range(0, len(order), STRETCH_ROWS):
        rows = order[first : first + STRETCH_ROWS]
        yield [column[rows].tolist() for column in (*keys, *values)]


def _write(engine: Engine, upsert: Upsert, run: int, columns: list[list[Any]]) -> None:
    rows = list(zip([run] * len(columns[0]), *columns, strict=True))
    began = time.monotonic()
    with transaction(engine) as connection:
        write(connection, upsert, rows)
    time.sleep((time.monotonic() - began) * PAUSE_SHARE)


def _finish(engine: Engine, run: int) -> None:
    finished = update(rankings).where(rankings.c.run == run).values(finished_at=_now())
    with transaction(engine) as connection:
        there = connection.execute(finished).rowcount
        newest = connection.execute(in_force()).scalar()
    if not there or newest != run:
        _clear(engine)
        raise RankingLostError("another ranking that began later has finished first; its ranks are in force")


# --- clearing ---------------------------------------------------------------------------------------------


def _clear(engine: Engine) -> None:
    """Deletes runs older than the one in force."""
    with transaction(engine) as connection:
        current = connection.execute(in_force()).scalar()
        if current is None:
            return
        connection.execute(delete(rankings).where(rankings.c.run < current))
    for table in (ranks, site_ranks):
        while _clear_stretch(engine, table, current):
            pass


def _clear_stretch(engine: Engine, table: Table, current: int) -> bool:
    """Deletes a range of the oldest run; returns whether one was older than `current`."""
    run, *key = table.primary_key.columns
    began = time.monotonic()
    with transaction(engine) as connection:
        oldest = connection.execute(select(func.min(run))).scalar()
        if oldest is None or oldest >= current:
            return False
        query = select(*key).where(run == oldest).order_by(run, *key).offset(STRETCH_ROWS).limit(1)
        bound = connection.execute(query).first()
        rows = [run == oldest, _before(key, bound)] if bound else [run == oldest]
        connection.execute(delete(table).where(*rows))
    time.sleep((time.monotonic() - began) * PAUSE_SHARE)
    return True


def _before(key: list[Any], bound: Any) -> Any:
    """Keys below this one, in a form that uses indexes."""
    if len(key) == 1:
        return key[0] < bound[0]
    return or_(key[0] < bound[0], and_(key[0] == bound[0], key[1] < bound[1]))


def _now() -> int:
    return time.time_ns() // 1_000_000
