"""Finds pages that may link to lost pages of other sites, so that fetching them again finds those.

A page qualifies if it links to a host with losses and has a link hash without a row. Memory: 8 bytes a page, and a
batch.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy import select

from crawler.agent.frontier import Frontier
from crawler.reconcile.agreement import UNFINISHED, frontier_of
from crawler.reconcile.reopening import HASHES_AT_A_TIME, checkpoint_from_tables
from crawler.records import MOST_HOSTS, hash64, hash_of
from crawler.store.database import transaction
from crawler.store.queries import by_key
from crawler.store.tables import pages, sites
from crawler.urls.url import host_of

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from crawler.options import Options
    from crawler.queue.queue import SiteQueue
    from crawler.queue.sites import SiteRecord

# Rows of `pages` per read: usually 0.5 MB of links, 200 MB if each page has MAX_LINKS_PER_PAGE.
_BATCH = 500
# Hashes per fetch from the database.
_PIECEMEAL: dict[str, Any] = {"yield_per": 50_000}


def naming_pages(engine: Engine, lost: Mapping[str, int]) -> dict[str, set[int]]:
    """URL hashes by site of pages that may link to `lost` sites, fetched before the loss (ms)."""
    if not lost:
        return {}
    search = _Search(engine, lost)
    chosen = (pages.c.id, pages.c.site_id, pages.c.url_hash, pages.c.fetched_at)
    query = select(*chosen, pages.c.links, pages.c.outside_hosts, pages.c.redirect)
    found: dict[int, set[int]] = {}
    for rows in by_key(engine, query, pages.c.id, _BATCH):
        for row in search.naming(rows):
            found.setdefault(row.site_id, set()).add(row.url_hash)
    return {site: found[number] for number, site in _names(engine, found).items()}


class _Search:
    def __init__(self, engine: Engine, lost: Mapping[str, int]) -> None:
        self._since: dict[str, int] = {}  # by host
        for site, since in lost.items():
            host = host_of(site)
            self._since[host] = max(since, self._since.get(host, 0))
        self._latest = max(self._since.values())
        self._neighbours = _neighbours(engine, lost)
        self._known = _known(engine)

    def naming(self, rows: Collection[Any]) -> list[Any]:
        """The rows with an unknown link that may be lost."""
        some = [row for row in rows if row.fetched_at < self._time(row)]
        if not some:
            return []
        named = [_named(row) for row in some]
        hashes = np.concatenate(named)
        places = np.minimum(np.searchsorted(self._known, hashes), len(self._known) - 1)
        unknown = np.concatenate(([0], np.cumsum(self._known[places] != hashes)))
        ends = np.cumsum([len(one) for one in named])
        return [
            row
            for row, one, end in zip(some, named, ends, strict=True)
            if unknown[end] > unknown[end - len(one)]
        ]

    def _time(self, row: Any) -> int:
        """Rows fetched before this qualify; 0: none."""
        since = self._since
        latest = self._neighbours.get(row.site_id, 0)
        if row.outside_hosts:
            hosts = json.loads(row.outside_hosts)
            latest = max([latest, *(since[host] for host in hosts if host in since)])
            if len(hosts) >= MOST_HOSTS:
                latest = self._latest
        if row.redirect:
            latest = max(latest, since.get(host_of(row.redirect), 0))
        return latest


def _named(row: Any) -> np.ndarray:
    """Hashes of a page's links and redirect."""
    links = np.frombuffer(row.links or b"", "<u8")
    return np.append(links, np.uint64(hash_of(row.redirect))) if row.redirect else links


def _known(engine: Engine) -> np.ndarray:
    """All pages' hashes, sorted."""
    parts = [np.zeros(1, np.int64)]  # a dummy, so that the array is not empty
    with transaction(engine) as db:
        query = select(pages.c.url_hash).execution_options(**_PIECEMEAL)
        with closing(db.execute(query)) as rows:
            parts += [np.array(some, np.int64) for some in rows.scalars().partitions()]
    known = np.concatenate(parts).view(np.uint64)
    known.sort()
    return known


def _neighbours(engine: Engine, lost: Mapping[str, int]) -> dict[int, int]:
    """Sites that share a host: their links to each other are not in outside_hosts."""
    of_host: dict[str, dict[str, int]] = {}
    for site, since in lost.items():
        of_host.setdefault(host_of(site), {})[site] = since
    found: dict[int, int] = {}
    for rows in by_key(engine, select(sites.c.site_id, sites.c.site), sites.c.site_id):
        for row in rows:
            others = of_host.get(host_of(row.site), {})
            since = max((since for site, since in others.items() if site != row.site), default=0)
            if since:
                found[row.site_id] = since
    return found


def _names(engine: Engine, numbers: Collection[int]) -> dict[int, str]:
    wanted, found = sorted(numbers), dict[int, str]()
    for start in range(0, len(wanted), HASHES_AT_A_TIME):
        some = wanted[start : start + HASHES_AT_A_TIME]
        query = select(sites.c.site_id, sites.c.site).where(sites.c.site_id.in_(some))
        with transaction(engine) as db:
            found.update((row.site_id, row.site) for row in db.execute(query))
    return found


# --- Fetching them again ----------------------------------------------------------------------------------


class Again:
    """Schedules pages to be fetched again."""

    def __init__(self, queue: SiteQueue, engine: Engine, options: Options) -> None:
        self._queue = queue
        self._engine = engine
        self._options = options

    async def fetch(self, site: str, hashes: Collection[int]) -> int | None:
        """Returns how many pages are scheduled; None: the site is leased or just changed."""
        record = await self._queue.record(site)
        if record is None or record.state in ("blocked", "alias"):
            return 0
        if record.agent:
            return None
        if record.state in UNFINISHED:
            return await self._of_unfinished(record, hashes)
        frontier, checkpoint = opened(self._engine, site, hashes)
        figures = (frontier.published, frontier.done_hash)
        mended = await self._queue.mend(record, checkpoint, *figures, known=len(frontier))
        return len(hashes) if mended else None

    async def _of_unfinished(self, record: SiteRecord, hashes: Collection[int]) -> int | None:
        frontier = await frontier_of(self._queue, record.site, self._options)
        undone = frontier.undo([path for path in frontier.done() if hash64(record.site + path) in hashes])
        if not undone:
            return 0
        figures = (frontier.published, frontier.done_hash)
        mended = await self._queue.mend(record, frontier.whole(), *figures, known=len(frontier))
        return undone if mended else None


def opened(engine: Engine, site: str, hashes: Collection[int]) -> tuple[Frontier, bytes]:
    """A finished site's frontier with these pages pending, and its checkpoint."""
    checkpoint = checkpoint_from_tables(engine, site, again=hashes, more=True) or b""
    frontier = Frontier(site=site)
    frontier.restore([checkpoint])
    return frontier, checkpoint
