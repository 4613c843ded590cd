"""A site's estimated change rates: loads them from the tables, applies the visits since, stores them.

A crash loses nothing: missing or unreadable estimates are rebuilt from `pages`. Raises DatabaseError.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sqlalchemy import and_, delete, func, insert, select

from crawler.recheck import Recrawl
from crawler.store.database import transaction
from crawler.store.queries import in_stretches
from crawler.store.ranks import importance
from crawler.store.tables import beliefs, pages

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sqlalchemy import Engine

    from crawler.recheck.account import Mean

logger = logging.getLogger("planner")


class Believed(NamedTuple):
    """One site as host 0 of `recrawl`, and its pages' rows by page number."""

    recrawl: Recrawl
    rows: dict[int, Any]


def believed(engine: Engine, site_id: int, mode: str, mean: Mean | None, **options: Any) -> Believed:
    """A site's estimates, updated with the visits and signals since."""
    rows = _rows(engine, site_id)
    recrawl = Recrawl([], [], mode=mode, **options)
    if mean is not None:
        recrawl.mean = mean
    numbers = _kept(engine, site_id, recrawl)
    _forget_gone(recrawl, numbers, rows)
    _learn(recrawl, numbers, rows)
    _add_new(recrawl, numbers, rows)
    weights = importance(engine, site_id)
    found = {numbers[row.url_hash]: row for row in rows}
    if weights and found:
        recrawl.note(list(found), weight=[weights.get(row.url_hash, 1.0) for row in found.values()])
    return Believed(recrawl, found)


def keep(engine: Engine, site_id: int, site: Believed, looked_ms: int, wake_ms: int) -> None:
    """Stores the estimates and their times (ms)."""
    _settle(site)
    order = site.recrawl.pages(0)
    hashes = np.array([site.rows[int(number)].url_hash for number in order], dtype="<i8")
    values = {
        "site_id": site_id,
        "pages": len(order),
        "looked_at": looked_ms,
        "wake_at": wake_ms,
        "url_hashes": hashes.tobytes(),
        "packed": site.recrawl.pack(0),
    }
    with transaction(engine) as connection:
        connection.execute(delete(beliefs).where(beliefs.c.site_id == site_id))
        connection.execute(insert(beliefs), values)


def many(engine: Engine) -> int:
    """Pages under recheck, of the sites planned so far."""
    with transaction(engine) as connection:
        return int(connection.execute(select(func.sum(beliefs.c.pages))).scalar() or 0)


class Extent(NamedTuple):
    """Sites and pages under recheck."""

    pages: int
    sites: int


def extent(engine: Engine) -> Extent:
    """Counts all pages under recheck. Reads every row: for reports only."""
    query = select(pages.c.site_id, func.count()).where(_LOOKED_AFTER).group_by(pages.c.site_id)
    many_of: Counter[int] = Counter()
    for site_id, found in in_stretches(engine, pages, query):
        many_of[site_id] += found
    return Extent(many_of.total(), len(many_of))


def last_seen_ms(row: Any) -> int:
    """Time of the last check of a page, ms."""
    return int(max(row.fetched_at, row.last_checked or 0))


def _settle(site: Believed) -> None:
    # Moving the time base has rounded last visits twice: use the tables' times.
    visited = {
        number: last_seen_ms(row) / 1000 for number, row in site.rows.items() if row.state == "visited"
    }
    site.recrawl.note(list(visited), last=list(visited.values()))


def _rows(engine: Engine, site_id: int) -> list[Any]:
    query = select(*_COLUMNS).where(and_(pages.c.site_id == site_id, _LOOKED_AFTER))
    with transaction(engine) as connection:
        return list(connection.execute(query).all())


_LOOKED_AFTER = and_(pages.c.sha256.is_not(None), pages.c.state != "dead")
_COLUMNS = (
    *(
        pages.c.url_hash,
        pages.c.url,
        pages.c.asked_as,
        pages.c.state,
        pages.c.depth,
        pages.c.sha256,
        pages.c.size,
        pages.c.etag,
    ),
    *(
        pages.c.last_modified,
        pages.c.fetched_at,
        pages.c.last_checked,
        pages.c.last_changed,
        pages.c.signalled_at,
    ),
)


def _kept(engine: Engine, site_id: int, recrawl: Recrawl) -> dict[int, int]:
    """URL hash -> page number."""
    query = select(beliefs.c.url_hashes, beliefs.c.packed).where(beliefs.c.site_id == site_id)
    with transaction(engine) as connection:
        row = connection.execute(query).first()
    if row is None:
        return {}
    try:
        hashes = np.frombuffer(row.url_hashes, dtype="<i8")
        numbers = recrawl.unpack(0, row.packed)
    except ValueError as error:  # UnreadableError is one
        return _rebuilt(site_id, str(error))
    if len(hashes) != len(numbers):
        recrawl.remove(numbers)
        return _rebuilt(site_id, f"{len(hashes)} URL hashes for {len(numbers)} pages")
    return dict(zip(hashes.tolist(), numbers.tolist(), strict=True))


def _rebuilt(site_id: int, why: str) -> dict[int, int]:
    logger.warning(
        "site %d: stored change estimates are unusable, rebuilding from its pages: %s", site_id, why
    )
    return {}


def _forget_gone(recrawl: Recrawl, numbers: dict[int, int], rows: list[Any]) -> None:
    gone = set(numbers) - {row.url_hash for row in rows}
    recrawl.remove([numbers.pop(one) for one in gone])


def _learn(recrawl: Recrawl, numbers: Mapping[int, int], rows: list[Any]) -> None:
    known = [row for row in rows if row.url_hash in numbers]
    if not known:
        return
    numbered = [numbers[row.url_hash] for row in known]
    last = dict(zip(numbered, recrawl.last_visits(numbered).tolist(), strict=True))
    # Compute the visits before the first update, which may move the time base.
    visits = sorted(_visits(recrawl, numbers, known, last))
    _hear(recrawl, dict(zip(numbered, known, strict=True)))
    for at, number, changed in visits:
        recrawl.visited([number], at, changed)
    _hear(recrawl, dict(zip(numbered, known, strict=True)))


def _visits(
    recrawl: Recrawl, numbers: Mapping[int, int], known: list[Any], last: Mapping[int, float]
) -> Iterator[tuple[float, int, bool]]:
    """Time, page number and whether the content had changed, of each visit since the last stored one."""
    visited = [row for row in known if row.state == "visited"]
    seen = _as_kept(recrawl, [last_seen_ms(row) for row in visited])
    changed = _as_kept(recrawl, [row.last_changed or 0 for row in visited])
    for row, at, changed_at in zip(visited, seen, changed, strict=True):
        number = numbers[row.url_hash]
        if at > last[number]:
            yield last_seen_ms(row) / 1000, number, changed_at > last[number]


def _as_kept(recrawl: Recrawl, times_ms: list[int]) -> list[float]:
    kept: list[float] = recrawl.as_kept(np.array(times_ms, np.float64) / 1000).tolist()
    return kept


def _hear(recrawl: Recrawl, known: dict[int, Any]) -> None:
    """Applies each signal since a page's last visit once. Called before and after the visits, which judge signals."""
    signalled = [number for number, row in known.items() if row.signalled_at is not None]
    if not signalled:
        return
    last, heard = recrawl.last_visits(signalled), recrawl.signals(signalled)
    signal_times = _as_kept(recrawl, [known[number].signalled_at for number in signalled])
    new = [
        number
        for number, at, since, many in zip(signalled, signal_times, last, heard, strict=True)
        if at > since and not many
    ]
    if new:
        recrawl.signalled(new, max(known[number].signalled_at for number in new) / 1000)


def _add_new(recrawl: Recrawl, numbers: dict[int, int], rows: list[Any]) -> None:
    new = [row for row in rows if row.url_hash not in numbers]
    if not new:
        return
    times = [last_seen_ms(row) / 1000 for row in new]
    added = recrawl.add(np.zeros(len(new), np.int64), [row.size for row in new], last=times)
    numbers.update(zip((row.url_hash for row in new), added.tolist(), strict=True))
