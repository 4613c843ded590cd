"""Operators' commands on sites and queue.

Raise OperationError with the reason if a command is impossible; pass RedisError and DatabaseError on.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from sqlalchemy import func, select

from crawler import records
from crawler.left_out import from_text, in_words, to_text
from crawler.queue import connection
from crawler.queue.admin import Order
from crawler.queue.queue import SiteQueue
from crawler.queue.sites import LIKENESS, Restored, SiteRecord, State
from crawler.recheck.planner import PACKED, due_pages
from crawler.reconcile import agreement
from crawler.reconcile.agreement import Owed
from crawler.reconcile.naming import Again, naming_pages, opened
from crawler.reconcile.reopening import SENT_BACK, checkpoint_from_tables, unknown_of
from crawler.store.database import check_version, open_database, transaction
from crawler.store.queries import by_key, counts_of
from crawler.store.tables import BLOCKED, FINISHED, PAUSED, beliefs, pages, sites
from crawler.store.write import forget
from crawler.urls.url import UrlError, host_of, split_page

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings
    from sqlalchemy import Engine, Row

    from crawler.options import Options
    from crawler.records import Work
    from crawler.urls.scope import Scope

# SiteFound.source of a seed and of a link.
SEED, LINK = "seed", "link"
# Sites per query.
BATCH = 1000


class OperationError(Exception):
    """The command is impossible; the message says why."""


@asynccontextmanager
async def the_queue(settings: BaseSettings, options: Options) -> AsyncIterator[SiteQueue]:
    """The crawl's queue for one command."""
    client = connection.connect(settings)
    try:
        yield SiteQueue(client, options)
    finally:
        await client.aclose()


def the_tables(options: Options) -> Engine | None:
    """The database, or None without tables."""
    if not options.database_url and not Path(options.var / "crawl.db").exists():
        return None
    engine = open_database(options.database)
    return engine if check_version(engine) is not None else None


async def list_sites(queue: SiteQueue, state: str, most: int) -> list[SiteRecord]:
    """Up to `most` sites (0: all) in a state ("": any; also "paused" and "leased"), by name."""
    found = [record async for record in queue.records() if _is(record, state)]
    return sorted(found)[: most or None]


async def aliases(queue: SiteQueue, listed: Sequence[SiteRecord]) -> dict[str, str]:
    """The aliases among the sites, each with its original."""
    names = [record.site for record in listed if record.state == "alias"]
    return dict(zip(names, await queue.reasons(names), strict=True))


async def show_site(queue: SiteQueue, name: str, engine: Engine | None) -> dict[str, Any]:
    """All figures of one site."""
    record = await known_site(queue, name)
    figures: dict[str, Any] = {**record._asdict(), **await queue.details(record.site)}
    figures["left_out"] = in_words(from_text(record.left_out))
    if record.state == "alias":
        figures = {name: value for name, value in figures.items() if name not in LIKENESS.values()}
        figures["alias_of"] = figures.pop("why")
        figures["not_asked"] = record.known - record.done
    if engine is not None:
        figures |= _row(engine, record.site)
    return figures


async def order_site(queue: SiteQueue, name: str, order: Order, reason: str) -> tuple[str, str]:
    """Pauses, resumes or blocks a site; returns its name and previous state."""
    record = await known_site(queue, name)
    if order == "pause" and record.state == "blocked":
        raise OperationError(f"{record.site} is blocked and cannot be paused; resume it first")
    before = await queue.order(record.site, order, reason, record=_ordered(record.site, order, reason=reason))
    return record.site, before or ""


async def set_budget(queue: SiteQueue, name: str, pages_most: int | None) -> str:
    """Sets a site's page limit from its next lease on; returns its name."""
    record = await known_site(queue, name)
    command = _ordered(record.site, "budget", pages=pages_most)
    await queue.set_budget(record.site, pages_most, record=command)
    return record.site


async def forget_site(queue: SiteQueue, name: str, engine: Engine | None) -> tuple[str, int]:
    """Deletes a site (its records in the stream follow with the command); returns name and pages."""
    record = await known_site(queue, name)
    if await queue.forget(record.site, record=_ordered(record.site, "forget")) < 0:
        raise OperationError(
            f"{record.site} is leased by {record.agent}; block it first, and try again in a minute"
        )
    if engine is None:
        return record.site, 0
    with transaction(engine) as db:
        return record.site, forget(db, record.site)


def _ordered(site: str, order: records.OrderWord, *, reason: str = "", pages: int | None = None) -> bytes:
    at = time.time_ns() // 1_000_000
    return records.encode(
        records.OperatorCommand(site=site, ordered_at=at, order=order, reason=reason, pages=pages)
    )


class Rebuilt(TypedDict):
    """The restored sites; paused ones also count by their state."""

    finished: int
    unfinished: int
    alias: int
    blocked: int
    paused: int
    known: int  # already in the queue, unchanged
    held: int  # leased: their pages that may link to lost ones are not fetched again


async def rebuild(
    queue: SiteQueue,
    engine: Engine,
    scope: Scope,
    options: Options,
    only: Collection[str] | None = None,
) -> Rebuilt:
    """Restores the tables' sites (`only`: these) to the queue, with the operator's commands.

    A site is finished if all its published pages are stored; others are crawled again with all known pages. Restores
    seeds' scope and due times of other jobs. Seeds' paths that were not fetched are lost.
    """
    counts = Rebuilt(finished=0, unfinished=0, alias=0, blocked=0, paused=0, known=0, held=0)
    now_ms = int(await queue.server_seconds() * 1000)
    tables = agreement.count_pages(engine)
    named = naming_pages(engine, dict.fromkeys(await _to_look_for(queue, engine, only), now_ms))
    aliases: list[Restored] = []
    for batch in _stored_sites(engine, tables, only, now_ms):
        known = await queue.known([one.site for one, _ in batch])
        fresh = [
            await _unfinished(queue, engine, one, named.pop(one.site, ()))
            for one, _ in batch
            if one.site not in known
        ]
        await queue.restore([one for one in fresh if one.state != "alias"])
        aliases += [one for one in fresh if one.state == "alias"]
        await queue.tell(_openings(batch, fresh, now_ms))
        await queue.note_rootless(_rootless(engine, fresh))
        # Of known sites too: a killed rebuild may have restored them in part.
        await _restore_works(queue, engine, [one.site for one, _ in batch if one.state != "blocked"], options)
        await _restore_scope(queue, scope, {one.site: row.source or "" for one, row in batch})
        _count(counts, fresh)
        counts["known"] += len(known)
    # After their originals: a coordinator opens aliases of unknown sites.
    await queue.restore(aliases)
    counts["held"] = await _fetch_again(queue, engine, options, named)
    await _restore_status(queue, engine, options, only)
    await queue.count_tables_again(owes_all=only is None)
    return counts


async def _restore_scope(queue: SiteQueue, scope: Scope, sources: Mapping[str, str]) -> None:
    """Restores seeds' scope and that of their redirects."""
    moved = {site: source for site, source in sources.items() if source.startswith(records.MOVED)}
    seeds = [site for site, source in sources.items() if source == SEED]
    await queue.widen_scope(chain.from_iterable(map(scope.roots_of, [*seeds, *moved])))
    await queue.note_moved((source.removeprefix(records.MOVED), site, "/") for site, source in moved.items())


async def _fetch_again(
    queue: SiteQueue, engine: Engine, options: Options, named: Mapping[str, Collection[int]]
) -> int:
    """Schedules pages; returns how many leased sites were skipped."""
    again = Again(queue, engine, options)
    return [await again.fetch(site, hashes) for site, hashes in named.items()].count(None)


async def _restore_status(
    queue: SiteQueue, engine: Engine, options: Options, only: Collection[str] | None
) -> None:
    for dues in _status_dues(engine, options.status_interval_seconds):
        await queue.fall_due(
            "status", {site: at for site, at in dues.items() if only is None or site in only}
        )


def _rootless(engine: Engine, restored: Sequence[Restored]) -> list[str]:
    """The sites whose root was never requested."""
    roots = {one.site: {"/": 0} for one in restored if one.known}
    return [site for site, unknown in unknown_of(engine, roots).items() if unknown]


async def _restore_works(queue: SiteQueue, engine: Engine, names: list[str], options: Options) -> None:
    """Restores due times of other jobs, and pages to load again."""
    of_id = {records.hash64(name): name for name in names}
    of_these = pages.c.site_id.in_(of_id)
    for work in PACKED:
        dues = _dues(engine, work, options, of_id)
        if work == "recheck" and options.recheck_chooses:
            dues = _looks(engine, options, dues)
        await queue.fall_due(work, {of_id[number]: at for number, at in dues.items()})
    with transaction(engine) as db:
        sent_back = db.execute(select(pages.c.site_id).where(of_these, SENT_BACK).distinct()).scalars().all()
    await queue.plan_reopening([of_id[number] for number in sent_back])


def _dues(engine: Engine, work: Work, options: Options, of_these: Collection[int]) -> dict[int, int]:
    """A job's earliest due time by site id."""
    chosen, due, _ = due_pages(work, options)
    query = select(pages.c.site_id, func.min(due)).where(pages.c.site_id.in_(of_these), chosen)
    with transaction(engine) as db:
        return {number: int(at) for number, at in db.execute(query.group_by(pages.c.site_id)).all()}


def _looks(engine: Engine, options: Options, dues: Mapping[int, int]) -> dict[int, int]:
    """Recheck's own time for these sites, else relative to their load."""
    query = select(beliefs.c.site_id, beliefs.c.wake_at).where(beliefs.c.site_id.in_(dues))
    with transaction(engine) as db:
        planned = {number: int(at) for number, at in db.execute(query).all()}
    sooner = int((options.recheck_interval_seconds - options.first_recheck_seconds) * 1000)
    return {number: at - sooner for number, at in dues.items()} | planned


def _count(counts: Rebuilt, restored: list[Restored]) -> None:
    for one in restored:
        if one.state == "waiting" or one.state == "suspended":
            counts["unfinished"] += 1
        else:
            counts[one.state] += 1
        counts["paused"] += one.paused


def _stored_sites(
    engine: Engine, tables: agreement.Tables, only: Collection[str] | None, now_ms: int
) -> Iterator[list[tuple[Restored, Any]]]:
    """The tables' sites in batches, each with its row."""
    for rows in by_key(engine, select(sites), sites.c.site_id, BATCH):
        some = [row for row in rows if only is None or row.site in only]
        if some:
            yield [
                (_restored(row, tables.walked(row.site, row.published), tables.of(row.site), now_ms), row)
                for row in some
            ]


def _status_dues(engine: Engine, interval_seconds: float) -> Iterator[dict[str, int]]:
    """The next status checks."""
    chosen = select(sites.c.site_id, sites.c.site, sites.c.health_at).where(sites.c.health_at.is_not(None))
    for rows in by_key(engine, chosen, sites.c.site_id, BATCH):
        yield {row.site: row.health_at + int(interval_seconds * 1000) for row in rows}


def _restored(
    row: Row[Any], walked: agreement.FoundPages, there: agreement.SiteRows, now_ms: int
) -> Restored:
    """A site by its row; blocked beats alias beats finished."""
    held = walked.places.total()
    # Older versions left out seeds too; these are crawled.
    linked = row.source == LINK
    ended = row.state == FINISHED and (linked if row.alias_of else held >= row.published)
    state: State = "waiting"
    if row.stopped == BLOCKED:
        state = "blocked"
    elif ended:
        state = "alias" if row.alias_of else "finished"
    return Restored(
        row.site,
        state,
        paused=row.stopped == PAUSED,
        known=row.known,
        done=0 if state == "waiting" else held,
        done_hash=0 if state == "waiting" else walked.hash,
        budget=row.budget,
        why=(row.alias_of if state == "alias" else row.stopped_reason) or "",
        left_out=to_text(counts_of(row)),
        linked=linked,
        owed=_owed(row, there, now_ms) if state == "waiting" else "",
    )


def _owed(row: Row[Any], there: agreement.SiteRows, now_ms: int) -> str:
    """The debt of a site that is crawled again."""
    rows = max(row.published, row.known - row.over_budget)
    missing = rows - there.places.total()
    return Owed(now_ms, rows, None, missing).text if missing > 0 else ""


async def _to_look_for(queue: SiteQueue, engine: Engine, only: Collection[str] | None) -> list[str]:
    """Unfinished sites that the queue lost."""
    found: list[str] = []
    chosen = select(sites.c.site_id, sites.c.site, sites.c.stopped).where(sites.c.state != FINISHED)
    for rows in by_key(engine, chosen, sites.c.site_id, BATCH):
        names = [row.site for row in rows if row.stopped != BLOCKED and (only is None or row.site in only)]
        known = await queue.known(names)
        found += [site for site in names if site not in known]
    return found


def _openings(batch: Sequence[tuple[Restored, Any]], fresh: Sequence[Restored], now_ms: int) -> list[bytes]:
    """Records for sites that continue, though their rows say finished."""
    finished = {one.site for one, row in batch if row.state == FINISHED}
    return [
        records.encode(
            records.SiteOpened(
                site=one.site,
                opened_at=now_ms,
                published=one.done,
                known=one.known,
                pending=max(one.known - one.done, 0),
            )
        )
        for one in fresh
        if one.site in finished and one.state in ("waiting", "suspended")
    ]


async def _unfinished(queue: SiteQueue, engine: Engine, one: Restored, naming: Collection[int]) -> Restored:
    """Writes a checkpoint if the site has pages to fetch; before the site, so that a rebuild is repeatable.

    `naming`: hashes of a finished site's pages to fetch again.
    """
    if one.state == "finished" and naming:
        frontier, made = opened(engine, one.site, naming)
        await queue.give_checkpoint(one.site, made)
        return one._replace(
            state="suspended",
            known=max(one.known, len(frontier)),
            done=frontier.published,
            done_hash=frontier.done_hash,
        )
    checkpoint = checkpoint_from_tables(engine, one.site, again=True) if one.state == "waiting" else None
    if checkpoint is None:
        return one
    await queue.give_checkpoint(one.site, checkpoint)
    return one._replace(state="suspended")


async def known_site(queue: SiteQueue, name: str) -> SiteRecord:
    """The record of a URL, or of a host with a single site; raises OperationError."""
    try:
        site, _ = split_page(name if "://" in name else f"https://{name}")
    except UrlError as error:
        raise OperationError(str(error)) from None
    record = await queue.record(site)
    if record is not None:
        return record
    found = [] if "://" in name else [r async for r in queue.records() if _is_named(r.site, site)]
    if len(found) == 1:
        return found[0]
    if found:
        raise OperationError(
            f"{name!r} is {len(found)} sites; expected one of {', '.join(r.site for r in found)}"
        )
    raise OperationError(f"no site {name!r} in this crawl; `scrapy site list` shows all sites")


def _is_named(site: str, asked: str) -> bool:
    """Whether the host, and the port if given, match."""
    place = asked.partition("://")[2]
    return site.partition("://")[2] == place or host_of(site) == place.strip("[]")


def _is(record: SiteRecord, state: str) -> bool:
    if state == "paused":
        return record.paused
    return state in ("", "leased" if record.agent else record.state)


def _row(engine: Engine, site: str) -> dict[str, Any]:
    wanted = (
        sites.c.found_at,
        sites.c.source,
        sites.c.published,
        sites.c.over_budget,
        sites.c.reason,
        sites.c.same_as,
    )
    with transaction(engine) as db:
        row = db.execute(select(*wanted).where(sites.c.site == site)).mappings().first()
    return dict(row) if row else {}
