"""Pages that were made anew from the archive, into the rows that are there.

Such a record is no new fetch: it adds nothing to the history and no row to `pages`, so what was forgotten stays so. It
replaces a row of the same fetch if it is the later one of two that were made anew, and a row of an older fetch always;
whatever the order in which records come, the same row is left.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, and_, bindparam, func, literal_column, or_, update

from crawler.store.rows import LIFE_COLUMNS, PAGE_COLUMNS, Row
from crawler.store.tables import pages

if TYPE_CHECKING:
    from sqlalchemy.sql.dml import Update

_KEY = ("site_id", "url_hash")
# Nobody asked the page anything: its life goes on as it was.
_KEPT = (*_KEY, "url", *LIFE_COLUMNS)
_FETCHED_AT = PAGE_COLUMNS.index("fetched_at")
_EXTRACTED_AT = PAGE_COLUMNS.index("extracted_at")


def is_later(new: Row, old: Row) -> bool:
    """Which of two such rows of one page is to be written."""
    return (new[_FETCHED_AT], new[_EXTRACTED_AT]) > (old[_FETCHED_AT], old[_EXTRACTED_AT])


def write(connection: Connection, rows: list[Row]) -> None:
    """Writes the rows, each of another page."""
    if rows:
        names = [_place(name) for name in PAGE_COLUMNS]
        connection.execute(_statement(), [dict(zip(names, row, strict=True)) for row in rows])


@cache
def _statement() -> Update:
    fetched, extracted = _value("fetched_at"), _value("extracted_at")
    never: Any = literal_column("0")
    same = and_(
        pages.c.fetched_at == fetched,
        func.coalesce(pages.c.extracted_at, never) < extracted,
    )
    beaten = or_(pages.c.fetched_at < fetched, same)
    found = and_(*(pages.c[name] == _value(name) for name in _KEY), beaten)
    return update(pages).where(found).values({n: _value(n) for n in PAGE_COLUMNS if n not in _KEPT})


def _value(name: str) -> Any:
    return bindparam(_place(name), type_=pages.c[name].type)


def _place(name: str) -> str:
    """A column's own name is taken by SQLAlchemy."""
    return f"new_{name}"
