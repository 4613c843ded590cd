"""A site's checkpoint, made of its pages in the tables: with it any agent goes on, and loads what is asked.

Its known pages remain known, with their depths and checksums. To be loaded are those that recheck sent back, which the
tables hold as Init with a check later than their load, and paths that nobody knew. Of an unfinished site whose own
checkpoint is lost all pages are: the tables have their links as hashes, and what they led to must be found anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sqlalchemy import and_, select

from crawler.agent.frontier import Known, checkpoint_of
from crawler.records import hash64
from crawler.sites.canonical import path_of
from crawler.store.database import transaction
from crawler.store.tables import pages

if TYPE_CHECKING:
    from sqlalchemy import Engine

# A page that loading is to load again.
SENT_BACK = and_(pages.c.state == "init", pages.c.last_checked > pages.c.fetched_at)


def checkpoint_from_tables(
    engine: Engine, site: str, found: Iterable[str] = (), *, anew: bool = False
) -> bytes | None:
    """The whole checkpoint; None: nothing of the site is to be loaded.

    `found`: paths, known ones among them; `anew`: all pages that are known are to be loaded again.
    """
    columns = (
        *(pages.c.url, pages.c.depth, pages.c.sha256, pages.c.duplicate_of),
        SENT_BACK.label("sent_back"),
    )
    asked = select(*columns).where(pages.c.site_id == hash64(site)).order_by(pages.c.depth, pages.c.id)
    with transaction(engine) as db:
        rows = db.execute(asked).all()
    known = [
        Known(
            path_of(row.url),
            row.depth,
            bytes.fromhex(row.sha256) if row.sha256 and not row.duplicate_of else b"",
            anew or bool(row.sent_back),
        )
        for row in rows
    ]
    there = {page.path for page in known}
    new = [path for path in dict.fromkeys(found) if path not in there]
    if not new and not any(page.again for page in known):
        return None
    return checkpoint_of(known, new)
