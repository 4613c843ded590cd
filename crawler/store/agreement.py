"""Do the queue and the tables agree? Site by site, by counts and by a hash of URLs.

The queue counts the URLs of a site whose turn has ended and adds up their hashes (`records.set_hash`); the tables have
a row for each page. Pages that are on their way, in the results stream or among the dead letters, count as stored. The
server is read first and the tables last, so a page that a coordinator stores in between is found once.

A finished site's pages are the newest rows of the site, as many as the queue counts: older ones are of earlier walks
(`--again`). An unfinished site has a checkpoint, which names every page: what is missing of it is known by its path.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from contextlib import closing
from heapq import merge
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import case, func, literal_column, select

from crawler.agent.frontier import CheckpointError, Frontier
from crawler.records import (
    SET_HASHES,
    Page,
    Record,
    RecordError,
    SiteEnded,
    SiteOrder,
    decode,
    hash64,
    set_hash,
)
from crawler.sites import connection
from crawler.sites.queue import SiteQueue, read_entry
from crawler.store.comparing import lost_ids
from crawler.store.database import check_version, open_database, transaction
from crawler.store.joining import joined
from crawler.store.reading import by_key
from crawler.store.stream import results_key
from crawler.store.tables import BLOCKED, FINISHED, QUEUED, dead_letters, pages, sites

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings
    from sqlalchemy import Engine

    from crawler.options import Options
    from crawler.sites.queue import SiteRecord

# Entries of the results stream, and checkpoints, that are read at a time.
READ_AT_A_TIME = 1000
# Rows that a database hands over at a time.
_PIECEMEAL: dict[str, Any] = {"yield_per": 10_000}
UNKNOWN = "the queue does not know it"
# Sites named in a message.
NAMED = 10
# Places of pages that have no row.
ON_THE_WAY = ("in_stream", "refused")
UNFINISHED = ("waiting", "suspended", "later")

# A page's place in the tables: how its last turn ended, or that it was given up.
PLACE = case((pages.c.state == "dead", "dead"), else_=pages.c.outcome).label("place")
# When its site's walk loaded it.
_WALKED_AT = func.coalesce(pages.c.walked_at, pages.c.fetched_at).label("at")
# Sums of a hash's halves: SQLite's sum() of whole hashes would overflow.
_LOW = func.sum(pages.c.url_hash.bitwise_and(0xFFFFFFFF)).label("low")
_HIGH = func.sum(pages.c.url_hash.bitwise_rshift(literal_column("32"))).label("high")


class Coming(NamedTuple):
    """A page that the tables may not have yet."""

    at: int  # when it was loaded, in ms on the agent's clock
    place: str  # in_stream, or refused for one among the dead letters


class Seen(NamedTuple):
    """What the server holds."""

    records: dict[str, SiteRecord]  # by site, with what its holder delivered last
    coming: dict[int, dict[int, Coming]]  # by site id and URL hash
    ended: dict[str, SiteEnded]  # the last of each site in the stream
    ordered: set[str]  # sites of which the stream has an order
    working: bool  # agents are alive


class Owed(NamedTuple):
    """The URLs of a site by the queue, or by its row where the queue does not know it."""

    accepted: int
    over_budget: int
    pending: int
    given_up: int
    done: int  # pages that the tables must hold
    done_hash: int | None  # records.set_hash of them; None: not known


class Account(NamedTuple):
    """One site: what is owed, what is there, and where the two differ."""

    site: str
    record: SiteRecord | None  # None: the queue does not know the site
    row: Any  # of table `sites`; None: it has none
    owed: Owed
    places: Counter[str]  # where the pages of its walk are
    hash: int  # records.set_hash of these
    earlier: int  # rows of earlier walks
    missing: tuple[str, ...]  # paths that are known to be missing: of an unfinished site alone
    wrong: str  # where queue and tables differ, in words; empty: they agree

    @property
    def pages_differ(self) -> bool:
        """Whether pages are nowhere, or others are in their place."""
        return self.owed.done != self.places.total() or self.owed.done_hash not in (None, self.hash)


# --- What the server holds --------------------------------------------------------------------------------


async def look(queue: SiteQueue, client: Any, prefix: str) -> Seen:
    """Read the server. redis-py's annotations fit no reply of XRANGE, so `client` has no type."""
    working = any(agent["expires_ms"] > 0 for agent in await queue.agents())
    records = {record.site: record async for record in queue.records()}
    for held in await queue.holdings():
        record = records.get(held.site)
        if record is not None and held.known and record.work == "site":
            records[held.site] = record._replace(known=held.known, done=held.done, done_hash=held.done_hash)
    seen = Seen(records, {}, {}, set(), working)
    last = "-"
    while entries := await client.xrange(results_key(prefix), last, count=READ_AT_A_TIME):
        for _, fields in entries:
            _take_in(seen, _record(fields))
        last = f"({entries[-1][0].decode()}"
    return seen


def _take_in(seen: Seen, record: Record | None) -> None:
    if isinstance(record, SiteEnded):
        seen.ended[record.site] = record
    elif isinstance(record, SiteOrder):
        seen.ordered.add(record.site)
    elif isinstance(record, Page):
        _note(seen.coming, record, "in_stream")


def _record(fields: dict[bytes, bytes]) -> Record | None:
    try:
        return decode(fields)[0]
    except RecordError:
        return None


def _note(coming: dict[int, dict[int, Coming]], page: Page, place: str) -> None:
    """A page that a walk has loaded. One that was made again from the archive, or loaded by recheck, has its row."""
    if page.extracted_at or page.work != "site":
        return
    of_site, number = coming.setdefault(hash64(page.site), {}), hash64(page.url)
    before = of_site.get(number)
    if before is None or before.at < page.fetched_at:
        of_site[number] = Coming(page.fetched_at, place)


def _note_refused(engine: Engine, coming: dict[int, dict[int, Coming]]) -> None:
    """The pages among the dead letters."""
    for rows in by_key(engine, select(dead_letters.c.id, dead_letters.c.fields), dead_letters.c.id):
        for row in rows:
            fields = {name.encode(): _bytes_of(value) for name, value in json.loads(row.fields).items()}
            if isinstance(record := _record(fields), Page):
                _note(coming, record, "refused")


def _bytes_of(value: str | dict[str, str]) -> bytes:
    return value.encode() if isinstance(value, str) else b64decode(value["base64"])


async def by_frontiers(queue: SiteQueue, names: Iterable[str], options: Options) -> dict[str, Owed]:
    """What is owed of unfinished sites, by the frontiers that their next agents would have."""
    found: dict[str, Owed] = {}
    left = list(names)
    while left:
        some, left = left[:READ_AT_A_TIME], left[READ_AT_A_TIME:]
        frontiers = await asyncio.gather(*(frontier_of(queue, site, options) for site in some))
        found |= {
            site: Owed(len(one), one.over_budget, one.pending, 0, one.published, one.done_hash)
            for site, one in zip(some, frontiers, strict=True)
        }
    return found


async def frontier_of(queue: SiteQueue, site: str, options: Options) -> Frontier:
    """The frontier of the site's next agent, which begins again where the checkpoint cannot be read."""
    entries, paths, budget = await queue.checkpoint(site)
    most = options.max_pages_per_site if budget is None else budget
    frontier = Frontier(most, options.max_depth, site)
    try:
        frontier.restore(entries)
    except CheckpointError:
        frontier = Frontier(most, options.max_depth, site)
    for given in map(read_entry, paths):
        frontier.add(given.paths, given.depth)
    if not frontier:
        frontier.add(("/",), 0)
    return frontier


# --- What the tables hold ---------------------------------------------------------------------------------


class _Rows(NamedTuple):
    """The rows of `pages` of one site."""

    places: Counter[str]
    hash: int


class Walked(NamedTuple):
    """The pages of a site's walk that are somewhere, and which of the named ones are not."""

    places: Counter[str]
    rows: int  # of these, in the tables
    hash: int
    missing: set[int]


class Tables(NamedTuple):
    """The rows of `pages`, counted by site."""

    engine: Engine
    counted: dict[int, _Rows]  # by site id

    def of(self, site: str) -> _Rows:
        """All rows of a site."""
        return self.counted.get(hash64(site)) or _Rows(Counter(), 0)

    def walked(self, site: str, many: int, coming: Mapping[int, Coming] | None = None) -> Walked:
        """The newest pages of a site, so many; without a look at single rows where it has no more."""
        there = self.of(site)
        if not many:
            return Walked(Counter(), 0, 0, set())
        if coming or there.places.total() > many:
            return _newest(self.engine, hash64(site), coming or {}, many)
        return Walked(there.places, there.places.total(), there.hash, set())


def count(engine: Engine, *, by_place: bool = False, site: str = "") -> Tables:
    """Count all rows, or those of one site. Without places this reads an index alone, a twentieth of the table."""
    return Tables(engine, _count(engine, site, by_place=by_place))


def _count(engine: Engine, site: str, *, by_place: bool) -> dict[int, _Rows]:
    # In one pass: PostgreSQL without statistics reads the whole table for each stretch of it.
    place = PLACE if by_place else literal_column("''").label("place")
    # Places stand in the rows alone. By `+ 0` SQLite reads these in their own order, and not in that of an index.
    number = (pages.c.site_id + literal_column("0") if by_place else pages.c.site_id).label("number")
    asked = select(number, place, func.count().label("many"), _LOW, _HIGH)
    asked = asked.group_by(number, place) if by_place else asked.group_by(number)
    if site:
        asked = asked.where(pages.c.site_id == hash64(site))
    found: dict[int, _Rows] = {}
    with transaction(engine) as db, closing(db.execute(asked.execution_options(**_PIECEMEAL))) as rows:
        for row in rows:
            before = found.get(row.number) or _Rows(Counter(), 0)
            before.places[row.place] += row.many
            halves = int(row.low) + (int(row.high) << 32)
            found[row.number] = before._replace(hash=(before.hash + halves) % SET_HASHES)
    return found


def _rows_of(engine: Engine, site_id: int) -> Generator[tuple[int, int, str]]:
    """Time, URL hash and place of each page of a site, the newest first."""
    asked = select(_WALKED_AT, pages.c.url_hash, PLACE).where(pages.c.site_id == site_id)
    ordered = asked.order_by(_WALKED_AT.desc(), pages.c.url_hash)
    with transaction(engine) as db, closing(db.execute(ordered.execution_options(**_PIECEMEAL))) as rows:
        for row in rows:
            yield row.at, row.url_hash, row.place


def _named(engine: Engine, site_id: int, coming: Mapping[int, Coming], named: set[int]) -> Walked:
    """Of the pages with these hashes."""
    places: Counter[str] = Counter()
    missing, rows = set(named), 0
    for at, number, place in _rows_of(engine, site_id):
        newer = coming.get(number)
        if number in missing and not (newer and newer.at > at):
            missing.discard(number)
            places[place] += 1
            rows += 1
    for number in missing & coming.keys():
        missing.discard(number)
        places[coming[number].place] += 1
    return Walked(places, rows, set_hash(named - missing), missing)


def _newest(engine: Engine, site_id: int, coming: Mapping[int, Coming], many: int) -> Walked:
    """Of the newest pages, so many."""
    places: Counter[str] = Counter()
    rows, found = 0, 0
    waiting = set(coming)  # not met yet, as a row or by itself
    on_the_way = sorted(((one.at, number, one.place) for number, one in coming.items()), reverse=True)
    # Of equal times the row comes first: then the page is stored already.
    with closing(_rows_of(engine, site_id)) as there:
        for _, number, place in merge(there, on_the_way, key=lambda one: -one[0]):
            if places.total() == many:
                break
            if number in coming and number not in waiting:
                continue
            waiting.discard(number)
            places[place] += 1
            rows += place not in ON_THE_WAY
            found += number
    return Walked(places, rows, found % SET_HASHES, set())


# --- The comparison ---------------------------------------------------------------------------------------


def differences(settings: BaseSettings, options: Options) -> dict[str, str]:
    """Where queue and tables differ, by site, in words.

    Also while agents work: what an agent holds, or what has changed since it was looked at, is left out. Errors as of
    `crawler.store.leftover.look`, and DatabaseError.
    """
    with joined(settings, options):
        return asyncio.run(_differences(settings, options))


async def _differences(settings: BaseSettings, options: Options) -> dict[str, str]:
    client = connection.connect(settings)
    engine = open_database(options.database)
    try:
        queue = SiteQueue(client, options)
        seen = await look(queue, client, options.key_prefix)
        if check_version(engine) is None:
            return {}
        found = await compare(queue, engine, seen, settings, options)
        return {one.site: one.wrong for one in found if await _is_settled(queue, one)}
    finally:
        engine.dispose()
        await client.aclose()


async def _is_settled(queue: SiteQueue, account: Account) -> bool:
    """Whether no agent loads the site, and it is as it was when it was looked at."""
    before = account.record
    return (before is None or before.work != "site") and await queue.record(account.site) == before


def in_words(wrong: Mapping[str, str]) -> str:
    """For the person who runs the crawl: how many sites differ, the first of them, and what to do."""
    lines = [
        f"queue and tables differ on {len(wrong):,} sites; `scrapy queue repair`, then `scrapy crawl site` fetches "
        "what is missing",
        *(f"  {site}: {why}" for site, why in list(wrong.items())[:NAMED]),
    ]
    if len(wrong) > NAMED:
        lines.append(f"  … and {len(wrong) - NAMED:,} sites more")
    return "\n".join(lines)


async def compare(
    queue: SiteQueue,
    engine: Engine,
    seen: Seen,
    settings: BaseSettings,
    options: Options,
    *,
    whole: bool = False,
) -> list[Account]:
    """The accounts of the sites where queue and tables differ; `whole`: of all sites, with what is still to fetch."""
    frontiers: dict[str, Owed] = {}
    if whole:
        unfinished = [site for site, record in seen.records.items() if record.state in UNFINISHED]
        frontiers = await by_frontiers(queue, unfinished, options)
    _note_refused(engine, seen.coming)
    tables, rows = count(engine, by_place=whole), _site_rows(engine)
    accounts = [
        await _account(queue, tables, seen, options, record, rows.get(site), frontiers.get(site))
        for site, record in seen.records.items()
    ]
    unqueued = [_unqueued(tables, seen, row) for site, row in rows.items() if site not in seen.records]
    if any(one.wrong == UNKNOWN for one in unqueued):
        lost = _lost_ids(engine, settings, options)
        unqueued = [
            one._replace(wrong="") if one.wrong == UNKNOWN and hash64(one.site) not in lost else one
            for one in unqueued
        ]
    accounts += unqueued
    return sorted((one for one in accounts if whole or one.wrong), key=lambda one: one.site)


def _lost_ids(engine: Engine, settings: BaseSettings, options: Options) -> set[int]:
    client = connection.connect_blocking(settings)
    try:
        return lost_ids(engine, client, options.key_prefix)
    finally:
        client.close()


def of_tables(engine: Engine) -> list[Account]:
    """All accounts as the tables alone have them, where the server does not answer."""
    seen = Seen({}, {}, {}, set(), working=False)
    _note_refused(engine, seen.coming)
    tables = count(engine, by_place=True)
    accounts = [_unqueued(tables, seen, row) for row in _site_rows(engine).values()]
    return [one._replace(wrong="") if one.wrong == UNKNOWN else one for one in accounts]


def lacks_pages(engine: Engine, record: SiteRecord) -> bool:
    """Whether pages of a finished site are gone from the tables, which have all that was told of it."""
    owed, tables = _owed(record, None, None), count(engine, site=record.site)
    if not _pages_differ(owed, tables.walked(record.site, owed.done)):
        return False
    coming: dict[int, dict[int, Coming]] = {}
    _note_refused(engine, coming)
    walked = tables.walked(record.site, owed.done, coming.get(hash64(record.site)))
    return bool(_pages_differ(owed, walked))


def _site_rows(engine: Engine) -> dict[str, Any]:
    columns = (sites.c.site_id, sites.c.site, sites.c.state, sites.c.known, sites.c.over_budget)
    more = (sites.c.pending, sites.c.published, sites.c.alias_of, sites.c.stopped)
    found = by_key(engine, select(*columns, *more), sites.c.site_id)
    return {row.site: row for rows in found for row in rows}


def _owed(record: SiteRecord, row: Any, ended: SiteEnded | None) -> Owed:
    known, done = record.known, record.done
    if record.state == "alias":
        return by_row(row, ended) if row or ended else Owed(0, 0, 0, 0, 0, None)
    if record.state == "blocked":
        known = known or 1  # its root, which no agent has fetched
        return Owed(known, 0, 0, known - done, done, record.done_hash)
    over_budget = known - done if record.state == "finished" else 0
    return Owed(known, over_budget, known - done - over_budget, 0, done, record.done_hash)


def by_row(row: Any, ended: SiteEnded | None) -> Owed:
    """What is owed of a site by its row in the tables, or by its last record in the stream, which is younger."""
    if ended is not None:
        known, over, pending, done = ended.known, ended.over_budget, ended.pending, ended.published
        left = bool(ended.alias_of)
    else:
        known, over, pending, done = row.known, row.over_budget, row.pending or 0, row.published
        left = bool(row.alias_of)
    if ended is None and row.state == QUEUED:
        known = pending = 1  # its root, which no agent has fetched
    if row is not None:
        left = left or row.stopped == BLOCKED or (row.state == FINISHED and pending > 0)
    return Owed(known, over, 0 if left else pending, pending if left else 0, done, None)


async def _account(
    queue: SiteQueue,
    tables: Tables,
    seen: Seen,
    options: Options,
    record: SiteRecord,
    row: Any,
    owed: Owed | None,
) -> Account:
    site, number = record.site, hash64(record.site)
    owed = owed or _owed(record, row, seen.ended.get(site))
    there, coming = tables.of(site), seen.coming.get(number, {})
    missing: tuple[str, ...] = ()
    if not coming and there.places.total() == owed.done and owed.done_hash in (None, there.hash):
        walked = Walked(there.places, owed.done, there.hash, set())
    elif record.state in UNFINISHED and owed.done:
        frontier = await frontier_of(queue, site, options)
        named = {hash64(site + path): path for path in frontier.done()}
        walked = _named(tables.engine, number, coming, set(named))
        owed = owed._replace(done=len(named), done_hash=set_hash(named))
        missing = tuple(sorted(named[one] for one in walked.missing))
    else:
        walked = tables.walked(site, owed.done, coming)
    wrong = _pages_differ(owed, walked) or _row_differs(record, row, seen)
    earlier = there.places.total() - walked.rows
    return Account(site, record, row, owed, walked.places, walked.hash, earlier, missing, wrong)


def _unqueued(tables: Tables, seen: Seen, row: Any) -> Account:
    """A site that the tables have and the queue does not: that is in order where it has nothing left to fetch."""
    site, owed = row.site, by_row(row, seen.ended.get(row.site))
    walked = tables.walked(site, owed.done, seen.coming.get(hash64(site)))
    wrong = _pages_differ(owed, walked)
    if not wrong and owed.pending and site not in seen.ordered:
        wrong = UNKNOWN
    earlier = tables.of(site).places.total() - walked.rows
    return Account(site, None, row, owed, walked.places, walked.hash, earlier, (), wrong)


def _pages_differ(owed: Owed, walked: Walked) -> str:
    lost = owed.done - walked.places.total()
    if lost:
        return f"{lost:,} of its {owed.done:,} pages are not in the tables"
    if owed.done_hash not in (None, walked.hash):
        return "the tables hold other pages than those that were fetched"
    return ""


def _row_differs(record: SiteRecord, row: Any, seen: Seen) -> str:
    if record.state in ("finished", "alias") and record.site not in seen.ended:
        if row is None:
            return "table sites does not have it"
        if row.state != FINISHED:
            return f"table sites has it as {row.state}"
    if row is None and (record.paused or record.state == "blocked") and record.site not in seen.ordered:
        return "table sites does not have it"
    return ""
