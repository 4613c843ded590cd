"""Figures of views and reports, from the tables and the queue.

Tables (blocking): short transactions; raises DatabaseError. Queue (asyncio): constant cost, but `progress`
reads every site's record; redis.RedisError propagates.

Times are Unix milliseconds, hours multiples of HOUR_SECONDS, shares 0 to 1.
"""

from __future__ import annotations

import heapq
import json
import time
from collections import Counter
from collections.abc import Iterator
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sqlalchemy import and_, func, select

from crawler.planning.load import FULL, UNKNOWN
from crawler.planning.load_store import LoadedTable
from crawler.queue.results import GROUP, heartbeat_key, results_key
from crawler.records import hash64
from crawler.store.database import transaction
from crawler.store.queries import by_key, in_stretches
from crawler.store.ranks import in_force
from crawler.store.tables import dead_letters, fetches, pages, ranks, runs, site_ranks, sites
from crawler.views.words import status_word

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from sqlalchemy import Engine

    from crawler.options import Options
    from crawler.queue.queue import SiteQueue
    from crawler.queue.sites import Depth, Holding, SiteRecord

HOURS = 24
# Fetches at the end of the history for pace and errors: some 10 ms.
TAIL_TURNS = 5_000
# Longest period of a pace.
PACE_SECONDS = 30.0
# Sites whose ranked pages are searched in one transaction.
SITES_AT_A_TIME = 500
# Characters shown of each value of users' page pipelines.
LONGEST_EXTRA = 200


# --- The history ---


class Turn(NamedTuple):
    """One fetch of a page."""

    fetched_at: int
    status: int
    outcome: str


class Tail(NamedTuple):
    """The end of the history, oldest first."""

    turns: list[Turn]

    def pace(self, now_ms: int, seconds: float = PACE_SECONDS) -> float:
        """Fetches per second over the last `seconds`; 0: none."""
        since = now_ms - seconds * 1000
        lately = [turn.fetched_at for turn in self.turns if turn.fetched_at >= since]
        if not lately:
            return 0.0
        span = seconds if len(lately) < len(self.turns) else (now_ms - min(lately)) / 1000
        return len(lately) / max(span, 1.0)

    def errors(self) -> Counter[str]:
        """Failed fetches by kind, as text."""
        return Counter(status_word(turn.status) for turn in self.turns if turn.outcome == "failed")


def tail(engine: Engine, most: int = TAIL_TURNS) -> Tail:
    """The last stored fetches."""
    columns = (fetches.c.fetched_at, fetches.c.status, fetches.c.outcome)
    with transaction(engine) as db:
        rows = db.execute(select(*columns).order_by(fetches.c.id.desc()).limit(most)).all()
    return Tail([Turn(*row) for row in reversed(rows)])


def recent_errors(engine: Engine, most: int = 12) -> list[dict[str, Any]]:
    """Failed fetches of the last TAIL_TURNS, newest first: time, status as text, URL, error."""
    with transaction(engine) as db:
        top = db.execute(select(func.max(fetches.c.id))).scalar() or 0
        same_page = and_(pages.c.site_id == fetches.c.site_id, pages.c.url_hash == fetches.c.url_hash)
        query = (
            select(fetches.c.fetched_at, fetches.c.status, pages.c.url, pages.c.error)
            .join(pages, same_page)
            .where(fetches.c.id > top - TAIL_TURNS, fetches.c.outcome == "failed")
            .order_by(fetches.c.id.desc())
            .limit(most)
        )
        rows = db.execute(query).all()
    return [
        {"at": at, "status": status, "kind": status_word(status), "url": url, "error": error or ""}
        for at, status, url, error in rows
    ]


def pages_per_hour(engine: Engine, hour_seconds: float) -> list[dict[str, Any]]:
    """Fetches by hour and scheduler, in order: all, stored, failed."""
    hour = (fetches.c.fetched_at // int(hour_seconds * 1000)).label("hour")
    query = select(hour, fetches.c.agent, fetches.c.run, fetches.c.outcome, func.count()).group_by(
        hour, fetches.c.agent, fetches.c.run, fetches.c.outcome
    )
    return _by_hour(engine, in_stretches(engine, fetches, query))


def last_hours(engine: Engine, hour_seconds: float, now_ms: int, hours: int = HOURS) -> list[dict[str, Any]]:
    """As `pages_per_hour`, but reads only the last hours."""
    width = int(hour_seconds * 1000)
    since = (now_ms // width - hours + 1) * width
    return _by_hour(engine, _backwards(engine, width, since))


def _backwards(engine: Engine, width: int, since: int) -> Iterator[tuple[Any, ...]]:
    """Groups of hour, agent, run and outcome, newest part first."""
    hour = (fetches.c.fetched_at // width).label("hour")
    grouped = (hour, fetches.c.agent, fetches.c.run, fetches.c.outcome)
    top = 2**62
    while True:
        newest = select(fetches.c.id).where(fetches.c.id <= top).order_by(fetches.c.id.desc())
        some = newest.limit(TAIL_TURNS).subquery()
        with transaction(engine) as db:
            bottom = db.execute(select(func.min(some.c.id))).scalar()
            if bottom is None:
                return
            lately = (fetches.c.id.between(bottom, top), fetches.c.fetched_at >= since)
            rows = db.execute(select(*grouped, func.count()).where(*lately).group_by(*grouped)).all()
        if not rows:
            return
        yield from (tuple(row) for row in rows)
        top = bottom - 1


def _by_hour(engine: Engine, rows: Iterator[Any]) -> list[dict[str, Any]]:
    schedulers = _schedulers(engine)
    found: dict[tuple[int, str], Counter[str]] = {}
    for hour, agent, run, outcome, many in rows:
        key = int(hour), schedulers.get((agent, run), "")
        found.setdefault(key, Counter())[outcome] += many
    return [
        {
            "hour": hour,
            "scheduler": scheduler,
            "pages": counted.total(),
            "stored": counted["stored"],
            "failed": counted["failed"],
        }
        for (hour, scheduler), counted in sorted(found.items())
    ]


def _schedulers(engine: Engine) -> dict[tuple[str, str], str]:
    with transaction(engine) as db:
        rows = db.execute(select(runs.c.agent, runs.c.run, runs.c.scheduler)).all()
    return {(agent, run): scheduler for agent, run, scheduler in rows}


# --- Loads ---


class Loads:
    """Loads of sites, read once and then updated; thread-safe."""

    def __init__(self) -> None:
        self._table = LoadedTable()
        self._lock = Lock()

    def picture(
        self, engine: Engine, options: Options, most: int | None = None, only: str | None = None
    ) -> dict[str, Any]:
        """Sites with a known load, the busiest first; loads from this hour on, None: unknown.

        `most` of them, or `only` one by name; `known`: their number.
        """
        with self._lock:
            self._table.refresh(engine)
            return _picture(self._table, options, most, only)


def _picture(table: LoadedTable, options: Options, most: int | None, only: str | None) -> dict[str, Any]:
    hour_seconds = options.hour_seconds
    hour = int(time.time() // hour_seconds)
    found, reference = table.forecast(hour)
    is_open = table.is_open(hour, hour_seconds)
    known = found != UNKNOWN
    loads = np.where(known, found / FULL, 0.0)
    mean = loads.sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    return {
        "hour": hour,
        "hour_seconds": hour_seconds,
        "begins_at": int(hour * hour_seconds * 1000),
        "pages_per_hour_idle": reference * hour_seconds / 3600,
        "known": len(table),
        "sites": [
            {
                "site": table.names[row],
                "load": [
                    round(float(load), 3) if there else None
                    for load, there in zip(loads[row], known[row], strict=True)
                ],
                "open": is_open[row].tolist(),
                "mean_load": round(float(mean[row]), 3),
                "pages_per_hour": _pace(reference, hour_seconds, found[row, 0], table.delays[row]),
                "visits": table.visits[row],
                "delay_seconds": _told(table.delays[row]),
                "hours_open": table.windows[row],
                "imported": bool((table.imported[row] != UNKNOWN).any()),
            }
            for row in _busiest(table, mean, most, only)
        ],
    }


def _busiest(table: LoadedTable, mean: np.ndarray, most: int | None, only: str | None) -> list[int]:
    """Rows by falling mean, then by name."""
    if only is not None:
        return [table.rows[only]] if only in table.rows else []
    rows = list(range(len(table)))
    if most is not None and most < len(table):
        # A partial sort is enough for the first few of a million.
        rows = np.flatnonzero(mean >= np.partition(mean, -most)[-most]).tolist()
    return sorted(rows, key=lambda row: (-mean[row], table.names[row]))[:most]


def _pace(reference: float, hour_seconds: float, load: int, delay: float) -> float | None:
    """Pages of this hour over one connection; None: unknown."""
    if not reference or load == UNKNOWN:
        return None
    pace = reference * hour_seconds / 3600 * (1 - int(load) / FULL)
    return round(min(pace, hour_seconds / float(delay)) if delay > 0 else pace, 1)


def _told(delay: float) -> float | None:
    return None if np.isnan(delay) else round(float(delay), 3)


# --- Ranks ---


def top_pages(engine: Engine, most: int = 20) -> list[dict[str, Any]]:
    """First pages of the ranking in force: URL, title, importance (1 on average)."""
    best: list[tuple[float, int, int]] = []
    columns = (ranks.c.importance, ranks.c.site_id, ranks.c.url_hash)
    for run, first, last in ranked_stretches(engine):
        query = select(*columns).where(ranks.c.run == run, ranks.c.site_id.between(first, last))
        with transaction(engine) as db:
            rows = db.execute(query.order_by(ranks.c.importance.desc()).limit(most)).all()
        best = heapq.nlargest(most, [*best, *(tuple(row) for row in rows)])
    return [
        {"url": url, "title": title or "", "importance": round(float(importance), 4)}
        for importance, site_id, url_hash in best
        for url, title in _page(engine, site_id, url_hash)
    ]


def ranked_stretches(engine: Engine) -> Iterator[tuple[int, int, int]]:
    """The ranking in force in parts: run, first and last site id, in order."""
    with transaction(engine) as db:
        run = db.execute(in_force()).scalar()
    last = -(2**63)
    while run is not None:
        query = (
            select(site_ranks.c.site_id)
            .where(site_ranks.c.run == run, site_ranks.c.site_id > last)
            .order_by(site_ranks.c.site_id)
            .limit(SITES_AT_A_TIME)
        )
        with transaction(engine) as db:
            some = db.execute(query).scalars().all()
        if not some:
            return
        yield run, some[0], some[-1]
        last = some[-1]


def _page(engine: Engine, site_id: int, url_hash: int) -> list[Any]:
    query = select(pages.c.url, pages.c.title).where(pages.c.site_id == site_id, pages.c.url_hash == url_hash)
    with transaction(engine) as db:
        return list(db.execute(query).all())


# --- One site ---


def site_pages(engine: Engine, site: str, most: int = 50) -> dict[str, Any] | None:
    """A site's row, pages by outcome, newest pages; None: unknown site."""
    number = hash64(site)
    shown = (
        *(pages.c.url, pages.c.title, pages.c.status, pages.c.outcome, pages.c.size, pages.c.fetched_at),
        pages.c.extra,
    )
    of_site = pages.c.site_id == number
    with transaction(engine) as db:
        row = db.execute(select(sites).where(sites.c.site_id == number)).mappings().first()
        if row is None:
            return None
        counted = db.execute(select(pages.c.outcome, func.count()).where(of_site).group_by(pages.c.outcome))
        outcomes: dict[str, int] = dict(counted.all())
        newest = select(*shown).where(of_site).order_by(pages.c.fetched_at.desc()).limit(most)
        found = [{**one, "extra": _in_words(one["extra"])} for one in db.execute(newest).mappings()]
    return {**row, "outcomes": outcomes, "pages": found}


def _in_words(extra: str | None) -> list[tuple[str, str]]:
    """Values of users' page pipelines: names, and values as JSON."""
    values = json.loads(extra) if extra else {}
    return [(name, json.dumps(value, ensure_ascii=False)[:LONGEST_EXTRA]) for name, value in values.items()]


def site_names(engine: Engine) -> Iterator[tuple[int, str]]:
    """In the order of ids."""
    for rows in by_key(engine, select(sites.c.site_id, sites.c.site), sites.c.site_id):
        yield from (tuple(row) for row in rows)


class Standing(NamedTuple):
    """Totals of the tables over all sites."""

    healths: dict[str, int]  # sites by health at the last check; unchecked ones are in none
    dead_letters: int


def standing(engine: Engine) -> Standing:
    """Sites by health, and the number of dead letters."""
    healths: Counter[str] = Counter()
    for rows in by_key(engine, select(sites.c.site_id, sites.c.health), sites.c.site_id):
        healths.update(row.health for row in rows if row.health is not None)
    with transaction(engine) as db:
        letters = db.execute(select(func.count()).select_from(dead_letters)).scalar_one()
    return Standing(dict(healths), letters)


# --- The queue ---


class QueueNow(NamedTuple):
    """The site queue at one moment."""

    depth: Depth
    agents: list[dict[str, Any]]  # as SiteQueue.agents
    coordinators: list[dict[str, Any]]  # name, pid, host, since (ms), written, lag (s), waits_for, why
    holdings: list[Holding]
    hour: int
    hour_seconds: float  # of the agents, else of the settings
    scheduler: str  # likewise
    line: list[str]  # the next sites of this hour
    line_length: int
    parked: int
    ever_published: int  # entries of the results stream since its creation
    pending: int  # of these, read by a coordinator and not stored yet
    lost: int | None  # unfinished sites of the tables that are missing in the queue; None: not counted


async def queue_now(client: Redis, queue: SiteQueue, options: Options, most: int = 10) -> QueueNow:
    """Counts, agents, leases, the next sites, and the results stream."""
    agents = await queue.agents()
    newest = max(agents, key=lambda agent: agent["joined_ms"], default={})
    hour_seconds = float(newest.get("hour_seconds", options.hour_seconds))
    hour = int(await queue.server_seconds() // hour_seconds)
    published, pending, names = await _stream(client, options.key_prefix)
    word = await queue.tables_word()
    return QueueNow(
        depth=await queue.depth(),
        agents=agents,
        coordinators=await _coordinators(client, options.key_prefix, names),
        holdings=await queue.holdings(),
        hour=hour,
        hour_seconds=hour_seconds,
        scheduler=str(newest.get("scheduler", options.site_scheduler)),
        line=await queue.hour_line(hour, most),
        line_length=await queue.hour_length(hour),
        parked=await queue.parked_count(),
        ever_published=published,
        pending=pending,
        lost=None if word is None else word.lost,
    )


async def _stream(client: Any, prefix: str) -> tuple[int, int, list[str]]:
    """Entries ever added, entries pending, names of readers."""
    key = results_key(prefix)
    if not await client.exists(key):
        return 0, 0, []
    stream = await client.xinfo_stream(key)
    groups = {one["name"]: one for one in await client.xinfo_groups(key)}
    group = groups.get(GROUP.encode())
    if group is None:
        return int(stream["entries-added"]), 0, []
    readers = await client.xinfo_consumers(key, GROUP)
    names = [one["name"].decode() for one in readers]
    return int(stream["entries-added"]), int(group["pending"]), names


async def _coordinators(client: Any, prefix: str, names: list[str]) -> list[dict[str, Any]]:
    """Those seen within the last 15 s."""
    signs = await client.mget([heartbeat_key(prefix, name) for name in names]) if names else []
    return [
        {"name": name, **json.loads(sign)}
        for name, sign in zip(names, signs, strict=True)
        if sign is not None
    ]


class Progress(NamedTuple):
    """URLs of all sites that were released or are leased."""

    known: int
    done: int
    unseen: int  # never fetched

    @property
    def left(self) -> int:
        """URLs to fetch, without those of unseen sites."""
        return max(0, self.known - self.done)


async def progress(queue: SiteQueue) -> Progress:
    """Sums every site's record: some seconds for a million."""
    held = {one.site: one for one in await queue.holdings()}
    known = done = unseen = 0
    async for record in queue.records():
        if record.state in ("alias", "blocked"):
            continue
        site_known, site_done = _how_far(record, held.get(record.site))
        known, done = known + site_known, done + site_done
        unseen += site_known == 0 and record.state != "finished"
    return Progress(known, done, unseen)


def _how_far(record: SiteRecord, held: Holding | None) -> tuple[int, int]:
    if held is not None and held.known:
        return held.known, held.done
    return record.known, record.known if record.state == "finished" else record.done
