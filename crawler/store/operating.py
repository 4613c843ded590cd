"""What an operator asks of sites and queue: list, show, pause, block, forget, budgets, rebuild, reset.

Each function does one thing over the queue, and over the tables where they are there. OperationError says in words
for the person why something could not be done; RedisError and DatabaseError pass through.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, func, select

from crawler.sites import connection
from crawler.sites.canonical import UrlError, host_of, path_of, split
from crawler.sites.queue import Order, SiteQueue, SiteRecord
from crawler.store.database import check_version, open_database, transaction
from crawler.store.tables import FINISHED, fetches, pages, sites

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings
    from sqlalchemy import Engine

    from crawler.options import Options

# Sites read from the tables, and paths given to one site, at a time.
BATCH = 1000


class OperationError(Exception):
    """It cannot be done, and why."""


@asynccontextmanager
async def the_queue(settings: BaseSettings, options: Options) -> AsyncIterator[SiteQueue]:
    """The crawl's queue for one command."""
    client = connection.connect(settings)
    try:
        yield SiteQueue(client, options)
    finally:
        await client.aclose()


def the_tables(options: Options) -> Engine | None:
    """The database, where there is one with our tables; None otherwise."""
    if not options.database_url and not Path(options.var / "crawl.db").exists():
        return None
    engine = open_database(options.database)
    return engine if check_version(engine) is not None else None


async def list_sites(queue: SiteQueue, state: str, most: int) -> list[SiteRecord]:
    """Up to `most` sites (0: all) in a state ("" = any; "paused" and "held" too), by name."""
    found = [record async for record in queue.records() if _is(record, state)]
    return sorted(found)[: most or None]


async def show_site(queue: SiteQueue, name: str, engine: Engine | None) -> dict[str, Any]:
    """All that is known of one site."""
    record = await _known(queue, name)
    figures: dict[str, Any] = {**record._asdict(), **await queue.details(record.site)}
    if record.state == "alias":
        figures["alias_of"] = figures.pop("why")
    if engine is not None:
        figures |= _row(engine, record.site)
    return figures


async def order_site(queue: SiteQueue, name: str, order: Order, reason: str) -> tuple[str, str]:
    """Pause, resume or block a site: its name, and its state before."""
    record = await _known(queue, name)
    before = await queue.order(record.site, order, reason)
    return record.site, before or ""


async def set_budget(queue: SiteQueue, name: str, pages_most: int | None) -> str:
    """Give a site its own limit of pages, from its next lease on; its name."""
    record = await _known(queue, name)
    await queue.set_budget(record.site, pages_most)
    return record.site


async def forget_site(queue: SiteQueue, name: str, engine: Engine | None) -> tuple[str, int]:
    """Remove a site from queue and tables: its name, and how many pages went."""
    record = await _known(queue, name)
    if await queue.forget(record.site) < 0:
        raise OperationError(
            f"{record.site} is held by {record.agent}; block it first, and ask again in a minute"
        )
    if engine is None:
        return record.site, 0
    with transaction(engine) as db:
        site_id = select(sites.c.site_id).where(sites.c.site == record.site).scalar_subquery()
        gone = db.execute(delete(pages).where(pages.c.site_id == site_id)).rowcount
        db.execute(delete(fetches).where(fetches.c.site_id == site_id))
        db.execute(delete(sites).where(sites.c.site == record.site))
    return record.site, gone


async def rebuild(queue: SiteQueue, engine: Engine) -> dict[str, int]:
    """Put the tables' sites into a queue that lost them; sites that are known there stay as they are.

    A site counts as finished only if the tables hold as many pages as its last record published; any other is
    walked again, beginning with every page that is known of it.
    """
    counts = {"finished": 0, "unfinished": 0, "known": 0}
    for batch in _stored_sites(engine):
        rows = [(site, "f" if done else "w", "-") for site, done in batch]
        fresh = [site for site, done in batch if not done and await queue.record(site) is None]
        for site in fresh:  # before the site itself: a rebuild that dies half way is simply run again
            for paths in _paths(engine, site):
                await queue.give_paths(site, paths)
        new = await queue.restore(rows)
        counts["known"] += len(rows) - new
        counts["unfinished"] += len(fresh)
        counts["finished"] += new - len(fresh)
    return counts


def _stored_sites(engine: Engine) -> Iterator[list[tuple[str, bool]]]:
    """The tables' sites in batches: name, and whether it is finished for certain."""
    held = select(func.count()).where(pages.c.site_id == sites.c.site_id).scalar_subquery()
    chosen = select(sites.c.site, sites.c.state, sites.c.published, held, sites.c.site_id)
    last = None
    while True:
        page = chosen.order_by(sites.c.site_id).limit(BATCH)
        with transaction(engine) as db:
            rows = db.execute(page if last is None else page.where(sites.c.site_id > last)).all()
        if not rows:
            return
        last = rows[-1][4]
        yield [
            (site, state == FINISHED and stored >= (published or 0))
            for site, state, published, stored, _ in rows
        ]


def _paths(engine: Engine, site: str) -> Iterator[list[str]]:
    site_id = select(sites.c.site_id).where(sites.c.site == site).scalar_subquery()
    with transaction(engine) as db:
        urls = db.execute(
            select(pages.c.url).where(pages.c.site_id == site_id).order_by(pages.c.depth, pages.c.id)
        )
        for batch in urls.scalars().partitions(BATCH):
            yield [path_of(url) for url in batch]


async def _known(queue: SiteQueue, name: str) -> SiteRecord:
    """The record of a site given as URL or host; a host alone may stand for its only site."""
    try:
        site, _ = split(name if "://" in name else f"https://{name}")
    except UrlError as error:
        raise OperationError(str(error)) from None
    record = await queue.record(site)
    if record is not None:
        return record
    found = [] if "://" in name else [r async for r in queue.records() if host_of(r.site) == name.lower()]
    if len(found) == 1:
        return found[0]
    if found:
        raise OperationError(
            f"{name!r} is {len(found)} sites; wanted one of {', '.join(r.site for r in found)}"
        )
    raise OperationError(f"no site {name!r} in this crawl; `scrapy site list` shows them")


def _is(record: SiteRecord, state: str) -> bool:
    if state in ("", record.state):
        return True
    return (state == "paused" and record.paused) or (state == "held" and bool(record.agent))


def _row(engine: Engine, site: str) -> dict[str, Any]:
    wanted = (
        sites.c.found_at,
        sites.c.source,
        sites.c.published,
        sites.c.known,
        sites.c.over_budget,
        sites.c.reason,
    )
    with transaction(engine) as db:
        row = db.execute(select(*wanted).where(sites.c.site == site)).mappings().first()
    return dict(row) if row else {}
