"""What sitemaps say of pages in the tables: when each changed last, and when that was news to us.

A later time than the last one told is a signal for recheck (crawler.recheck.signals); so is the first, where the page
was last heard of before it. The same record twice changes nothing. Pages that are not in the tables yet are left: each
brings what its sitemap said with its own record (`Page.sitemap_lastmod`). What a database refuses passes to the caller.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import BigInteger, Connection, and_, bindparam, case, func, or_, update

from crawler.records import unpack_lastmods
from crawler.store.tables import pages

if TYPE_CHECKING:
    from sqlalchemy.sql.dml import Update

    from crawler.records import Page


class Lastmod(NamedTuple):
    """One page's, and when it was said."""

    site_id: int
    url_hash: int
    changed_at: int  # ms
    told_at: int  # ms


def of(sitemap: Page, site_id: int) -> list[Lastmod]:
    """All that a sitemap's record says."""
    return [
        Lastmod(site_id, url_hash, changed_at, sitemap.fetched_at)
        for url_hash, changed_at in unpack_lastmods(sitemap.lastmods)
    ]


def write(connection: Connection, found: list[Lastmod]) -> None:
    """Takes them in, in the order of their keys, so that two coordinators wait for each other one way round."""
    if found:
        values = [{f"new_{name}": value for name, value in one._asdict().items()} for one in sorted(found)]
        connection.execute(_statement(), values)


@cache
def _statement() -> Update:
    changed_at, told_at = (bindparam(f"new_{name}", type_=BigInteger()) for name in ("changed_at", "told_at"))
    # The web's own word counts from the second time on; the first, where it is of after our last look.
    heard = func.coalesce(pages.c.last_checked, pages.c.fetched_at)
    news = or_(pages.c.sitemap_lastmod.is_not(None), heard < changed_at)
    return (
        update(pages)
        .where(
            and_(
                pages.c.site_id == bindparam("new_site_id", type_=BigInteger()),
                pages.c.url_hash == bindparam("new_url_hash", type_=BigInteger()),
                or_(pages.c.sitemap_lastmod.is_(None), pages.c.sitemap_lastmod < changed_at),
            )
        )
        # In this order: MariaDB lets a later one see what an earlier one has set.
        .ordered_values(
            (pages.c.signalled_at, case((news, told_at), else_=pages.c.signalled_at)),
            (pages.c.sitemap_lastmod, changed_at),
        )
    )
