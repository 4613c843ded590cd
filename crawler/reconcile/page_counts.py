"""Which pages the tables have of each site: how many rows there are, the hash of their URLs, and their places.

Large tables are read once, in one pass over an index; single rows are looked at only where a site has more of them than
its walk, or where some are on their way (`UnstoredPage`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import closing
from heapq import merge
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import case, func, literal_column, select

from crawler.records import SET_HASHES, hash64, set_hash
from crawler.store.database import transaction
from crawler.store.tables import pages

if TYPE_CHECKING:
    from sqlalchemy import Engine

# Rows that a database hands over at a time.
_PIECEMEAL: dict[str, Any] = {"yield_per": 10_000}
# Places of pages that have no row.
ON_THE_WAY = ("in_stream", "refused")

# A page's place in the tables: how its last turn ended, or that it was given up.
PLACE = case((pages.c.state == "dead", "dead"), else_=pages.c.outcome).label("place")
# When its site's walk loaded it.
_WALKED_AT = func.coalesce(pages.c.walked_at, pages.c.fetched_at).label("at")
# Sums of a hash's halves: SQLite's sum() of whole hashes would overflow.
_LOW = func.sum(pages.c.url_hash.bitwise_and(0xFFFFFFFF)).label("low")
_HIGH = func.sum(pages.c.url_hash.bitwise_rshift(literal_column("32"))).label("high")


class UnstoredPage(NamedTuple):
    """A page that the tables may not have yet."""

    at: int  # when it was loaded, in ms on the agent's clock
    place: str  # in_stream, or refused for one among the dead letters


class SiteRows(NamedTuple):
    """The rows of `pages` of one site."""

    places: Counter[str]
    hash: int


class FoundPages(NamedTuple):
    """The pages of a site's walk that are somewhere, and which of the named ones are not."""

    places: Counter[str]
    rows: int  # of these, in the tables
    hash: int
    missing: set[int]


class Counts:
    """How many rows of `pages` each site has, and their hash; 24 bytes a site, since there may be millions."""

    def __init__(self) -> None:
        self._ids, self._many, self._hashes = array("q"), array("q"), array("Q")

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, number: int, many: int, hash_: int) -> None:
        """A site, once."""
        self._ids.append(number)
        self._many.append(many)
        self._hashes.append(hash_)

    def sort(self) -> None:
        """By site id; databases need not give groups in their order."""
        order = sorted(range(len(self._ids)), key=self._ids.__getitem__)
        for name in ("_ids", "_many", "_hashes"):
            column: array[int] = getattr(self, name)
            setattr(self, name, array(column.typecode, map(column.__getitem__, order)))

    def get(self, number: int) -> SiteRows | None:
        """Of one site, once they are sorted; None: it has none. Places are not told apart."""
        place = bisect_left(self._ids, number)
        if place == len(self._ids) or self._ids[place] != number:
            return None
        return SiteRows(Counter({"": self._many[place]}), self._hashes[place])


class Tables(NamedTuple):
    """The rows of `pages`, counted by site."""

    engine: Engine
    counted: Counts | dict[int, SiteRows]  # by site id

    def of(self, site: str) -> SiteRows:
        """All rows of a site."""
        return self.counted.get(hash64(site)) or SiteRows(Counter(), 0)

    def walked(self, site: str, many: int, coming: Mapping[int, UnstoredPage] | None = None) -> FoundPages:
        """The newest pages of a site, so many; without a look at single rows where it has no more."""
        there = self.of(site)
        if not many:
            return FoundPages(Counter(), 0, 0, set())
        if coming or there.places.total() > many:
            return _newest(self.engine, hash64(site), coming or {}, many)
        return FoundPages(there.places, there.places.total(), there.hash, set())


def count(engine: Engine, *, by_place: bool = False, site: str = "") -> Tables:
    """Count all rows, or those of one site. Without places this reads an index alone, a twentieth of the table."""
    if by_place:
        return Tables(engine, _by_place(engine, site))
    counts = Counts()
    for row in _groups(engine, site, by_place=False):
        counts.add(row.number, row.many, _hash_of(row))
    counts.sort()
    return Tables(engine, counts)


def _by_place(engine: Engine, site: str) -> dict[int, SiteRows]:
    found: dict[int, SiteRows] = {}
    for row in _groups(engine, site, by_place=True):
        before = found.get(row.number) or SiteRows(Counter(), 0)
        before.places[row.place] += row.many
        found[row.number] = before._replace(hash=(before.hash + _hash_of(row)) % SET_HASHES)
    return found


def _hash_of(row: Any) -> int:
    return (int(row.low) + (int(row.high) << 32)) % SET_HASHES


def _groups(engine: Engine, site: str, *, by_place: bool) -> Generator[Any]:
    # In one pass: PostgreSQL without statistics reads the whole table for each stretch of it.
    place = PLACE if by_place else literal_column("''").label("place")
    # Places stand in the rows alone. By `+ 0` SQLite reads these in their own order, and not in that of an index.
    number = (pages.c.site_id + literal_column("0") if by_place else pages.c.site_id).label("number")
    asked = select(number, place, func.count().label("many"), _LOW, _HIGH)
    asked = asked.group_by(number, place) if by_place else asked.group_by(number)
    if site:
        asked = asked.where(pages.c.site_id == hash64(site))
    with transaction(engine) as db, closing(db.execute(asked.execution_options(**_PIECEMEAL))) as rows:
        yield from rows


def _rows_of(engine: Engine, site_id: int) -> Generator[tuple[int, int, str]]:
    """Time, URL hash and place of each page of a site, the newest first."""
    asked = select(_WALKED_AT, pages.c.url_hash, PLACE).where(pages.c.site_id == site_id)
    ordered = asked.order_by(_WALKED_AT.desc(), pages.c.url_hash)
    with transaction(engine) as db, closing(db.execute(ordered.execution_options(**_PIECEMEAL))) as rows:
        for row in rows:
            yield row.at, row.url_hash, row.place


def hashes_of(engine: Engine, site_id: int) -> set[int]:
    """The hashes of all pages of a site."""
    with transaction(engine) as db:
        return set(db.execute(select(pages.c.url_hash).where(pages.c.site_id == site_id)).scalars())


def named_pages(
    engine: Engine, site_id: int, coming: Mapping[int, UnstoredPage], named: set[int]
) -> FoundPages:
    """Of the pages with these hashes."""
    places: Counter[str] = Counter()
    missing, rows = set(named), 0
    for at, number, place in _rows_of(engine, site_id):
        newer = coming.get(number)
        if number in missing and not (newer and newer.at > at):
            missing.discard(number)
            places[place] += 1
            rows += 1
    for number in missing & coming.keys():
        missing.discard(number)
        places[coming[number].place] += 1
    return FoundPages(places, rows, set_hash(named - missing), missing)


def _newest(engine: Engine, site_id: int, coming: Mapping[int, UnstoredPage], many: int) -> FoundPages:
    """Of the newest pages, so many."""
    places: Counter[str] = Counter()
    rows, found = 0, 0
    waiting = set(coming)  # not met yet, as a row or by itself
    on_the_way = sorted(((one.at, number, one.place) for number, one in coming.items()), reverse=True)
    # Of equal times the row comes first: then the page is stored already.
    with closing(_rows_of(engine, site_id)) as there:
        for _, number, place in merge(there, on_the_way, key=lambda one: -one[0]):
            if places.total() == many:
                break
            if number in coming and number not in waiting:
                continue
            waiting.discard(number)
            places[place] += 1
            rows += place not in ON_THE_WAY
            found += number
    return FoundPages(places, rows, found % SET_HASHES, set())
