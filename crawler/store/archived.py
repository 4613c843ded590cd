"""Which pages say that the archive has them: their rows' own words, for whoever compares the two.

Reads in short ranges, so that no transaction stays open while files are read, and memory stays small. DatabaseError
where the database does not answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import bindparam, func, select

from crawler.store.database import transaction
from crawler.store.tables import pages

if TYPE_CHECKING:
    from sqlalchemy import Engine

# Rows read at a time.
RANGE = 1000


class ArchivedPage(NamedTuple):
    """What a row says of its capture."""

    url: str  # that was asked for
    sha256: str
    file: str
    offset: int
    length: int


def count(engine: Engine) -> int:
    """How many pages say so."""
    asked = select(func.count()).select_from(pages).where(pages.c.warc_file.is_not(None))
    with transaction(engine) as connection:
        return int(connection.execute(asked).scalar_one())


def archived_pages(engine: Engine) -> Iterator[ArchivedPage]:
    """All of them, in order of arrival, which is nearly that of the files."""
    last = 0
    while True:
        with transaction(engine) as connection:
            rows = connection.execute(_range, {"after": last}).all()
        if not rows:
            return
        last = rows[-1].id
        for _, url, sha256, *place in rows:
            yield ArchivedPage(url, sha256 or "", *place)


_range = (
    select(
        pages.c.id,
        func.coalesce(pages.c.asked_as, pages.c.url).label("asked_as"),
        pages.c.sha256,
        pages.c.warc_file,
        pages.c.warc_offset,
        pages.c.warc_length,
    )
    .where(pages.c.id > bindparam("after"), pages.c.warc_file.is_not(None))
    .order_by(pages.c.id)
    .limit(RANGE)
)
