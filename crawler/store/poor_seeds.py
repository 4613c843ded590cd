"""Seeds of which no page is stored, or a single one that leads nowhere: what the tables know of each.

A seed is a site that somebody named, or the one to which such a site redirects: that stands in its place. Reads only,
in short stretches; DatabaseError where the database does not answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Engine, Select, exists, func, or_, select, true

from crawler.records import MOVED, hash64
from crawler.store import queries
from crawler.store.database import transaction
from crawler.store.tables import FINISHED, pages, sites
from crawler.urls.url import UrlError, resolve

if TYPE_CHECKING:
    from sqlalchemy.sql import ColumnElement

# A site with no more pages than these is looked at page by page: the seed, and where it redirects to.
FEW = 3
# Sites whose pages are asked for at a time: databases bound what one question may name.
CHUNK = 500
STORED = ("stored", "duplicate")


class PoorPage(NamedTuple):
    """The page that tells most of its site: the first that is no redirect, else the first."""

    url: str
    outcome: str
    status: int
    error: str
    size: int
    content_type: str
    has_text: bool
    outside_hosts: str  # JSON, a list; empty: it links to no other site
    redirect: str  # where it leads to; empty: it is no redirect


class PoorSeed(NamedTuple):
    """A seed without pages, or with one that leads to no other."""

    site: str
    found_at: int  # ms since 1970
    asked_as: str  # the site that redirects to it; empty: it was named itself
    state: str
    stopped: str  # paused or blocked; empty: neither
    reason: str  # why it ended early, or waits; empty: nothing is said
    stored: int  # pages: 0 or 1
    page: PoorPage | None  # None: no turn of any page has ended
    redirect: str  # where a page of it leads to; empty: none redirects


def count(engine: Engine) -> int:
    """Seeds that were named; the sites to which they redirect are none more."""
    with transaction(engine) as connection:
        asked = select(func.count()).select_from(sites).where(sites.c.source == "seed")
        return int(connection.execute(asked).scalar_one())


def poor_seeds(engine: Engine) -> Iterator[PoorSeed]:
    """Those that are poor, in no order."""
    led_on = {seed for seed, _ in queries.moved(engine)}
    for rows in queries.by_key(engine, _candidates(), sites.c.site_id):
        for first in range(0, len(rows), CHUNK):
            some = [row for row in rows[first : first + CHUNK] if row.site not in led_on]
            yield from _of_chunk(engine, some)


def _is_seed() -> ColumnElement[bool]:
    named = or_(sites.c.source == "seed", sites.c.source.startswith(MOVED))
    return named & sites.c.alias_of.is_(None)


def _candidates() -> Select[Any]:
    stored = exists().where(pages.c.site_id == sites.c.site_id, pages.c.outcome.in_(STORED))
    names = (
        "site_id",
        "site",
        "source",
        "found_at",
        "state",
        "stopped",
        "reason",
        "published",
        "known",
        "left_out",
    )
    columns = [sites.c[name] for name in names]
    return select(*columns).where(_is_seed(), or_(sites.c.published <= FEW, ~stored))


def _of_chunk(engine: Engine, rows: Sequence[Any]) -> Iterator[PoorSeed]:
    found = _pages(engine, rows)
    for row in rows:
        mine = found[row.site_id]
        stored = [page for page in mine if page.outcome in STORED]
        if stored and not _is_single(row, mine, stored):
            continue
        seed = _seed(row, mine, stored)
        if stored or not _leads_to_stored(engine, seed):
            yield seed


def _is_single(row: Any, mine: Sequence[Any], stored: Sequence[Any]) -> bool:
    """Whether all that is known of the site is one page, and redirects to it."""
    others = sum(page.outcome != "redirected" for page in mine) - 1
    return (
        row.state == FINISHED
        and len(stored) == 1
        and not others
        and row.known <= len(mine)
        and not row.left_out
    )


def _pages(engine: Engine, rows: Iterable[Any]) -> dict[int, list[Any]]:
    """Pages by site: all of a small one; of others the first, the first no redirect, the first one not followed."""
    found: dict[int, list[Any]] = defaultdict(list)
    small = [row.site_id for row in rows if row.published <= FEW]
    large = [row.site_id for row in rows if row.published > FEW]
    with transaction(engine) as connection:
        numbers: list[int] = []
        redirected = pages.c.outcome == "redirected"
        for kind in (true(), ~redirected, redirected & (pages.c.error != "")) if large else ():
            first = select(func.min(pages.c.id)).where(pages.c.site_id.in_(large), kind)
            numbers += connection.execute(first.group_by(pages.c.site_id)).scalars()
        for which in (pages.c.site_id.in_(small), pages.c.id.in_(numbers)):
            for page in connection.execute(select(*_PAGE).where(which).order_by(pages.c.id)):
                found[page.site_id].append(page)
    return found


_PAGE = (
    pages.c.site_id,
    pages.c.url,
    pages.c.outcome,
    pages.c.status,
    pages.c.error,
    pages.c.size,
    pages.c.content_type,
    pages.c.content_hash,
    pages.c.outside_hosts,
    pages.c.redirect,
)


def _seed(row: Any, mine: Sequence[Any], stored: Sequence[Any]) -> PoorSeed:
    others = [page for page in mine if page.outcome != "redirected"]
    told = next(iter(stored or others or [page for page in mine if page.error] or mine), None)
    # The order is not that of the fetches where pages came in one batch; of a chain any link will do.
    led = next((page for page in mine if page.outcome == "redirected"), None)
    return PoorSeed(
        site=row.site,
        found_at=row.found_at or 0,
        asked_as=row.source.removeprefix(MOVED) if row.source.startswith(MOVED) else "",
        state=row.state,
        stopped=row.stopped or "",
        reason=row.reason or "",
        stored=len(stored),
        page=_page(told) if told is not None else None,
        redirect=(led.redirect or "") if led is not None else "",
    )


def _page(row: Any) -> PoorPage:
    return PoorPage(
        url=row.url,
        outcome=row.outcome,
        status=row.status,
        error=row.error or "",
        size=row.size,
        content_type=row.content_type or "",
        has_text=row.content_hash is not None,
        outside_hosts=row.outside_hosts or "",
        redirect=row.redirect or "",
    )


def _leads_to_stored(engine: Engine, seed: PoorSeed) -> bool:
    """Whether it redirects to a site that was known before, so that this is no seed, and has pages."""
    if seed.page is None or not seed.page.redirect:
        return False
    try:
        site, _ = resolve(seed.page.redirect)
    except UrlError:
        return False
    asked = select(pages.c.id).where(pages.c.site_id == hash64(site), pages.c.outcome.in_(STORED)).limit(1)
    with transaction(engine) as connection:
        return connection.execute(asked).first() is not None
