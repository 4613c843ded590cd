"""Pages that name what the tables do not have: fetched again, they offer to other sites what was lost there.

The tables have out-links as hashes, which tell a URL that is known from one that is not, and nothing else. So pages are
looked for that link to a host of which something was lost, and name a hash that no row has. Which site that is of
cannot be told: a page whose links are out of scope may be fetched for nothing, but once only for each loss.

One pass over an index of `pages`, one over the table: 8 bytes of memory a page, and what a batch takes.
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

# Rows of `pages` that are read at a time: half a megabyte of links mostly, 200 of pages with MAX_LINKS_PER_PAGE each.
_BATCH = 500
# Hashes that a database hands over at a time.
_PIECEMEAL: dict[str, Any] = {"yield_per": 50_000}


def naming_pages(engine: Engine, lost: Mapping[str, int]) -> dict[str, set[int]]:
    """Pages of other sites that may name what was `lost` of these, as URL hashes by site; each site with a time (ms).

    A page that was fetched since then has offered what it names already.
    """
    if not lost:
        return {}
    search = _Search(engine, lost)
    chosen = (pages.c.id, pages.c.site_id, pages.c.url_hash, pages.c.fetched_at)
    asked = select(*chosen, pages.c.links, pages.c.outside_hosts, pages.c.redirect)
    found: dict[int, set[int]] = {}
    for rows in by_key(engine, asked, pages.c.id, _BATCH):
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
        """Those of the rows that name something unknown, and may mean what was lost."""
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
        """Before which a page must have been fetched; 0: it names no host of which something was lost."""
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
    """Hashes of what a page links to and redirects to."""
    links = np.frombuffer(row.links or b"", "<u8")
    return np.append(links, np.uint64(hash_of(row.redirect))) if row.redirect else links


def _known(engine: Engine) -> np.ndarray:
    """The hashes of all pages, sorted."""
    parts = [np.zeros(1, np.int64)]  # stands for no page, so that there is one
    with transaction(engine) as db:
        asked = select(pages.c.url_hash).execution_options(**_PIECEMEAL)
        with closing(db.execute(asked)) as rows:
            parts += [np.array(some, np.int64) for some in rows.scalars().partitions()]
    known = np.concatenate(parts).view(np.uint64)
    known.sort()
    return known


def _neighbours(engine: Engine, lost: Mapping[str, int]) -> dict[int, int]:
    """Sites that share a host with another one of these: their pages do not name it as an outside host."""
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
        asked = select(sites.c.site_id, sites.c.site).where(sites.c.site_id.in_(some))
        with transaction(engine) as db:
            found.update((row.site_id, row.site) for row in db.execute(asked))
    return found


# --- Fetching them again ----------------------------------------------------------------------------------


class Again:
    """Lets pages of sites that the queue knows be fetched again."""

    def __init__(self, queue: SiteQueue, engine: Engine, options: Options) -> None:
        self._queue = queue
        self._engine = engine
        self._options = options

    async def fetch(self, site: str, hashes: Collection[int]) -> int | None:
        """How many pages of the site are fetched again by that; None: an agent holds it, or it has changed just now."""
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
    """A finished site's frontier in which these pages alone are to be fetched, and its checkpoint."""
    checkpoint = checkpoint_from_tables(engine, site, again=hashes, more=True) or b""
    frontier = Frontier(site=site)
    frontier.restore([checkpoint])
    return frontier, checkpoint
