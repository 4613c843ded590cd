"""Ranks of pages and sites in the tables: written as a whole beside those in force, which then give way.

A ranking is written stretch by stretch under a run's number of its own, while coordinators write and readers read what
was in force before; one short transaction at the end puts it in force. What was in force before it, and what killed
rankings left, is taken away after that, again in stretches. Of two rankings at a time the one that began later stays.
Raises DatabaseError as crawler.store.database does; RankingLostError where another took its place.
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

# Rows of one transaction: some 50 ms on SQLite, where nobody else can write meanwhile.
STRETCH_ROWS = 10_000
# Behind each stretch so long a pause, as a share of what it took: on SQLite whoever waits for the lock looks again only
# after a while, and would find it taken each time.
PAUSE_SHARE = 0.25
_PAGES = Upsert(
    "ranks", ranks, ("run", "site_id", "url_hash", "rank", "importance"), ("run", "site_id", "url_hash")
)
_SITES = Upsert(
    "site_ranks", site_ranks, ("run", "site_id", "rank", "importance", "pages"), ("run", "site_id")
)

# Told how many rows of how many are written.
Progress = Callable[[int, int], None]


class RankingLostError(DatabaseError):
    """Another ranking, that began later, has finished first: its ranks are in force."""


class Ranked(NamedTuple):
    """Ranks to be stored: of pages, arrays of one length, and of sites, likewise."""

    source: str  # the run of convert
    mode: str
    block: str
    damping: float
    site_id: np.ndarray  # int64, of each page's site
    url_hash: np.ndarray  # int64
    rank: np.ndarray  # float64; sums to 1
    site: np.ndarray  # int64, as in the table sites
    site_rank: np.ndarray  # float64; sums to 1
    site_pages: np.ndarray  # how many pages of it were ranked


def replace(engine: Engine, ranked: Ranked, progress: Progress | None = None) -> int:
    """Puts these ranks in force in the place of those that were; the number of the run.

    ValueError, with all as it was, for columns that are not of one length: nobody could say whose ranks they are.
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
    """The number of the run whose ranks are in force, as a question; it has the answer NULL where there is none."""
    return select(func.max(rankings.c.run)).where(rankings.c.finished_at.is_not(None))


def importance(engine: Engine, site_id: int) -> dict[int, float]:
    """The importance of a site's pages by their URLs' hashes, 1 on average over the crawl.

    A page that is not there has not been ranked yet and counts as 1; so no page is, before the first ranking.
    """
    run = in_force().scalar_subquery()
    asked = select(ranks.c.url_hash, ranks.c.importance).where(ranks.c.run == run, ranks.c.site_id == site_id)
    with transaction(engine) as connection:
        return dict(connection.execute(asked).all())


def forget(connection: Connection, site_id: int) -> None:
    """Removes a site's ranks, and its pages'."""
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
            told = ", ".join(f"{name} has {many}" for name, many in rows.items())
            raise ValueError(f"ranks in columns of unequal length: {told} rows; expected as many of each")


def _pages(ranked: Ranked) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    return (ranked.site_id, ranked.url_hash), (ranked.rank, ranked.rank * len(ranked.rank))


def _sites(ranked: Ranked) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    return (ranked.site,), (ranked.site_rank, ranked.site_rank * len(ranked.site), ranked.site_pages)


def _stretches(keys: tuple[np.ndarray, ...], values: tuple[np.ndarray, ...]) -> Any:
    """Columns of some rows at a time, in the order of their keys: each row then goes behind the one before."""
    import numpy as np  # not above: whoever forgets a site needs none of it

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
        raise RankingLostError(
            "another ranking that began later has finished meanwhile; its ranks are in force"
        )


# --- clearing ---------------------------------------------------------------------------------------------


def _clear(engine: Engine) -> None:
    """Takes away what is older than the run in force; a run that is still being written then finds itself gone."""
    with transaction(engine) as connection:
        current = connection.execute(in_force()).scalar()
        if current is None:
            return
        connection.execute(delete(rankings).where(rankings.c.run < current))
    for table in (ranks, site_ranks):
        while _clear_stretch(engine, table, current):
            pass


def _clear_stretch(engine: Engine, table: Table, current: int) -> bool:
    """One stretch of the oldest run in the table; whether there was an older one than `current`."""
    run, *key = table.primary_key.columns
    began = time.monotonic()
    with transaction(engine) as connection:
        oldest = connection.execute(select(func.min(run))).scalar()
        if oldest is None or oldest >= current:
            return False
        asked = select(*key).where(run == oldest).order_by(run, *key).offset(STRETCH_ROWS).limit(1)
        bound = connection.execute(asked).first()
        rows = [run == oldest, _before(key, bound)] if bound else [run == oldest]
        connection.execute(delete(table).where(*rows))
    time.sleep((time.monotonic() - began) * PAUSE_SHARE)
    return True


def _before(key: list[Any], bound: Any) -> Any:
    """Keys below this one, spelt so that each database finds them in the order of its key."""
    if len(key) == 1:
        return key[0] < bound[0]
    return or_(key[0] < bound[0], and_(key[0] == bound[0], key[1] < bound[1]))


def _now() -> int:
    return time.time_ns() // 1_000_000
