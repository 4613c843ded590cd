"""Compares queue and tables: numbers of pages by site, and a hash of their URLs (`records.set_hash`).

Pages in the results stream or dead letters count as stored; Redis is read first, so that no page is missed. A
finished site's pages are its newest rows; an unfinished site's checkpoint names each page.
"""

from __future__ import annotations

import asyncio
import json
from array import array
from base64 import b64decode
from bisect import bisect_left
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing, suppress
from heapq import merge
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from sqlalchemy import case, func, literal_column, select

from crawler.agent.frontier import CheckpointError, Frontier
from crawler.left_out import from_text
from crawler.local.local import joined
from crawler.queue import connection
from crawler.queue.queue import SiteQueue
from crawler.queue.results import results_key
from crawler.queue.sites import SiteRecord, read_entry
from crawler.reconcile.comparing import given_up, reset_ms, unknown_to_all
from crawler.records import (
    SET_HASHES,
    OperatorCommand,
    Page,
    Record,
    RecordError,
    SiteEnded,
    SiteOpened,
    decode,
    hash64,
    set_hash,
)
from crawler.store.database import check_version, open_database, transaction
from crawler.store.queries import by_key, counts_of
from crawler.store.tables import BLOCKED, FINISHED, QUEUED, dead_letters, pages, sites
from crawler.store.tables import UNFINISHED as STILL_OPEN

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings
    from sqlalchemy import Engine

    from crawler.options import Options
    from crawler.queue.sites import Holding


# --- Lost rows that the tables owe ------------------------------------------------------------------------


_NONE = "-"


class Owed(NamedTuple):
    """A site's debt: the rows that the tables must have again after a loss."""

    since_ms: int  # when the loss was detected, by the Redis clock
    rows: int  # minimum number of rows in `pages`
    rows_hash: int | None  # of these rows; None: unknown
    missing: int = 0  # number of lost rows; 0: unknown
    missing_hash: int | None = None  # of the lost rows; None: unknown

    @property
    def text(self) -> str:
        """As stored in Redis; `read_owed` parses it."""
        return " ".join(_NONE if value is None else str(value) for value in self)

    def and_before(self, before: Owed | None) -> Owed:
        """Combined with an earlier debt."""
        if before is None:
            return self
        missing = before.missing + self.missing if before.missing and self.missing else 0
        return Owed(before.since_ms, max(before.rows, self.rows), None, missing)


def read_owed(text: str) -> Owed | None:
    """Parses a stored value; None if invalid."""
    with suppress(ValueError, TypeError):
        since, rows, rows_hash, missing, missing_hash = [
            None if value == _NONE else int(value) for value in text.split(" ")
        ]
        if since is not None and rows is not None and missing is not None:
            return Owed(since, rows, rows_hash, missing, missing_hash)
    return None


def what_is_missing(owed: Owed, there: AbstractSet[int], not_asked: int) -> str:
    """What is missing, in words; empty: nothing.

    `there`: hashes of rows. `not_asked`: URLs that a limit leaves out.
    """
    more = len(there) - owed.rows
    if owed.rows_hash is None:
        more += not_asked
        return "" if more >= 0 else _not_found(owed, -more)
    if more < 0:
        return _not_found(owed, -more)
    found = _is_there(owed, there, more)
    if found is None:
        return f"it is unknown whether {_lost(owed)} are among later ones"
    return "" if found else _not_found(owed, 1)


def _lost(owed: Owed) -> str:
    return f"the {owed.missing:,} pages that were lost" if owed.missing else "the pages that were lost"


def _not_found(owed: Owed, least: int) -> str:
    return f"of {_lost(owed)}, {least:,} or more are not found again"


def _is_there(owed: Owed, there: AbstractSet[int], more: int) -> bool | None:
    """Whether the rows are among these `more` too many; None: unknown."""
    assert owed.rows_hash is not None
    differs = (set_hash(there) - owed.rows_hash) % SET_HASHES
    if not more:
        return not differs
    if owed.missing_hash is not None and 0 < owed.missing <= 2:
        return _adds_up(there, owed.missing, owed.missing_hash)
    return _adds_up(there, more, differs) if more <= 2 else None


def _adds_up(there: AbstractSet[int], many: int, total: int) -> bool:
    """Whether one or two of these hashes have this sum."""
    import numpy as np  # here, since most crawls end without losses

    hashes = np.fromiter(there, np.int64, len(there)).view(np.uint64)
    if many == 1:
        return bool((hashes == np.uint64(total)).any())
    rest = np.uint64(total) - hashes
    return bool((np.isin(rest, hashes) & (rest != hashes)).any())


# --- Rows by site: counts, hashes and places --------------------------------------------------------------


# Rows per fetch from the database.
_PIECEMEAL: dict[str, Any] = {"yield_per": 10_000}
# Places of pages that have no row.
ON_THE_WAY = ("in_stream", "refused")

# A page's place in the tables: the outcome of its last fetch, or dead.
PLACE = case((pages.c.state == "dead", "dead"), else_=pages.c.outcome).label("place")
# When it was last loaded by crawling.
_WALKED_AT = func.coalesce(pages.c.walked_at, pages.c.fetched_at).label("at")
# Sums of a hash's halves: SQLite's sum() of whole hashes would overflow.
_LOW = func.sum(pages.c.url_hash.bitwise_and(0xFFFFFFFF)).label("low")
_HIGH = func.sum(pages.c.url_hash.bitwise_rshift(literal_column("32"))).label("high")


class UnstoredPage(NamedTuple):
    """A page that may not be stored yet."""

    at: int  # when it was loaded, in ms on the agent's clock
    place: str  # in_stream, or refused (among the dead letters)


class SiteRows(NamedTuple):
    """A site's rows of `pages`."""

    places: Counter[str]
    hash: int


class FoundPages(NamedTuple):
    """The found pages of a site, and the missing ones."""

    places: Counter[str]
    rows: int  # of these, in the tables
    hash: int
    missing: set[int]


class Counts:
    """Rows and hash by site, 24 bytes each."""

    def __init__(self) -> None:
        self._ids, self._many, self._hashes = array("q"), array("q"), array("Q")

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, number: int, many: int, hash_: int) -> None:
        """Each site once."""
        self._ids.append(number)
        self._many.append(many)
        self._hashes.append(hash_)

    def sort(self) -> None:
        """By site id; databases may return groups in any order."""
        order = sorted(range(len(self._ids)), key=self._ids.__getitem__)
        for name in ("_ids", "_many", "_hashes"):
            column: array[int] = getattr(self, name)
            setattr(self, name, array(column.typecode, map(column.__getitem__, order)))

    def get(self, number: int) -> SiteRows | None:
        """The rows of a site, None without any. Call after `sort`."""
        place = bisect_left(self._ids, number)
        if place == len(self._ids) or self._ids[place] != number:
            return None
        return SiteRows(Counter({"": self._many[place]}), self._hashes[place])


class Tables(NamedTuple):
    """Rows of `pages` by site."""

    engine: Engine
    counted: Counts | dict[int, SiteRows]  # by site id

    def of(self, site: str) -> SiteRows:
        """All rows of a site."""
        return self.counted.get(hash64(site)) or SiteRows(Counter(), 0)

    def walked(self, site: str, many: int, coming: Mapping[int, UnstoredPage] | None = None) -> FoundPages:
        """A site's `many` newest pages."""
        there = self.of(site)
        if not many:
            return FoundPages(Counter(), 0, 0, set())
        if coming or there.places.total() > many:
            return _newest(self.engine, hash64(site), coming or {}, many)
        return FoundPages(there.places, there.places.total(), there.hash, set())


def count_pages(engine: Engine, *, by_place: bool = False, site: str = "") -> Tables:
    """Counts all rows, or a site's. Without places it reads an index only, 1/20 of the table."""
    if by_place:
        return Tables(engine, _by_place(engine, site))
    counts = Counts()
    for row in _groups(engine, site, by_place=False):
        counts.add(row.number, row.many, _hash_of(row))
    counts.sort()
    return Tables(engine, counts)


def _by_place(engine: Engine, site: str) -> dict[int, SiteRows]:
    found: dict[int, SiteRows] = {}
    for row in _groups(engine, site, by_place=True):
        before = found.get(row.number) or SiteRows(Counter(), 0)
        before.places[row.place] += row.many
        found[row.number] = before._replace(hash=(before.hash + _hash_of(row)) % SET_HASHES)
    return found


def _hash_of(row: Any) -> int:
    return (int(row.low) + (int(row.high) << 32)) % SET_HASHES


def _groups(engine: Engine, site: str, *, by_place: bool) -> Generator[Any]:
    # In one pass: without statistics PostgreSQL reads the whole table for each range.
    place = PLACE if by_place else literal_column("''").label("place")
    # Places are not in an index: `+ 0` makes SQLite read the rows in table order.
    number = (pages.c.site_id + literal_column("0") if by_place else pages.c.site_id).label("number")
    query = select(number, place, func.count().label("many"), _LOW, _HIGH)
    query = query.group_by(number, place) if by_place else query.group_by(number)
    if site:
        query = query.where(pages.c.site_id == hash64(site))
    with transaction(engine) as db, closing(db.execute(query.execution_options(**_PIECEMEAL))) as rows:
        yield from rows


def _rows_of(engine: Engine, site_id: int) -> Generator[tuple[int, int, str]]:
    """Time, URL hash and place of a site's pages, newest first."""
    query = select(_WALKED_AT, pages.c.url_hash, PLACE).where(pages.c.site_id == site_id)
    ordered = query.order_by(_WALKED_AT.desc(), pages.c.url_hash)
    with transaction(engine) as db, closing(db.execute(ordered.execution_options(**_PIECEMEAL))) as rows:
        for row in rows:
            yield row.at, row.url_hash, row.place


def hashes_of(engine: Engine, site_id: int) -> set[int]:
    """URL hashes of a site's pages."""
    with transaction(engine) as db:
        return set(db.execute(select(pages.c.url_hash).where(pages.c.site_id == site_id)).scalars())


def named_pages(
    engine: Engine, site_id: int, coming: Mapping[int, UnstoredPage], named: set[int]
) -> FoundPages:
    """Where the pages with these hashes are."""
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
    return FoundPages(places, rows, set_hash(named - missing), missing)


def _newest(engine: Engine, site_id: int, coming: Mapping[int, UnstoredPage], many: int) -> FoundPages:
    places: Counter[str] = Counter()
    rows, found = 0, 0
    waiting = set(coming)  # not counted yet
    on_the_way = sorted(((one.at, number, one.place) for number, one in coming.items()), reverse=True)
    # Rows come before unstored pages of the same time: the page is stored.
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
    return FoundPages(places, rows, found % SET_HASHES, set())


# Stream entries, or checkpoints, per read.
READ_AT_A_TIME = 1000
UNKNOWN = "the queue does not know it"
# Sites named in a message.
NAMED = 10
UNFINISHED = ("waiting", "suspended", "later")


class Records:
    """All sites' records by id; packed, since a million take 2 GB."""

    def __init__(self, packed: list[bytes], held: Iterable[Holding]) -> None:
        self._held = {one.site: one for one in held if one.known}
        self._packed = packed
        self._packed.sort()

    def __iter__(self) -> Iterator[SiteRecord]:
        """Records with their lease's last delivery."""
        for packed in self._packed:
            record = SiteRecord(*_decoder.decode(packed[_KEY_BYTES:]))
            held = self._held.get(record.site)
            if held is not None and record.work == "site":
                record = record._replace(
                    known=held.known, done=held.done, done_hash=held.done_hash, left_out=held.left_out
                )
            yield record


_KEY_BYTES = 8
_encoder, _decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder()


def _pack(record: SiteRecord) -> bytes:
    """Sorts by signed site id."""
    return (hash64(record.site) + 2**63).to_bytes(_KEY_BYTES) + _encoder.encode(record)


class ServerState(NamedTuple):
    """The contents of Redis."""

    records: Iterable[SiteRecord]  # in the order of their ids
    coming: dict[int, dict[int, UnstoredPage]]  # by site id and URL hash
    ended: dict[str, SiteEnded]  # the last one of each site in the stream
    ordered: set[str]  # sites with a command in the stream
    working: bool  # agents are running
    owed: Mapping[str, str] = {}  # Owed.text by site


class ExpectedUrls(NamedTuple):
    """A site's URLs by the queue, or else by its row."""

    accepted: int
    over_budget: int
    pending: int
    given_up: int
    done: int  # expected pages in the tables
    done_hash: int | None  # records.set_hash of them; None: unknown
    left_out: Mapping[str, int] = {}  # URLs outside the limits by reason, over_budget included


class Account(NamedTuple):
    """A site's expected and found pages."""

    site: str
    record: SiteRecord | None  # None: the queue does not know the site
    row: Any  # of table `sites`; None: no row
    owed: ExpectedUrls
    places: Counter[str]  # where the pages of its last crawl are
    hash: int  # records.set_hash of these
    earlier: int  # rows of earlier crawls
    missing: tuple[str, ...]  # missing paths, of unfinished sites only
    wrong: str  # the difference in words; empty: none
    rows: SiteRows = SiteRows(Counter(), 0)  # all rows
    lost: Owed | None = None  # lost and not found again

    @property
    def pages_differ(self) -> bool:
        """Whether pages are missing or replaced."""
        return self.owed.done != self.places.total() or self.owed.done_hash not in (None, self.hash)


# --- Reading Redis ----------------------------------------------------------------------------------------


async def read_server(queue: SiteQueue, client: Any, prefix: str) -> ServerState:
    """Reads Redis; redis-py's annotations do not fit XRANGE, so `client` is untyped."""
    working = any(agent["expires_ms"] > 0 for agent in await queue.agents())
    found = [_pack(record) async for record in queue.records()]
    held = Records(found, await queue.holdings())
    seen = ServerState(held, {}, {}, set(), working, await queue.owed())
    last = "-"
    while entries := await client.xrange(results_key(prefix), last, count=READ_AT_A_TIME):
        for _, fields in entries:
            _take_in(seen, _record(fields))
        last = f"({entries[-1][0].decode()}"
    return seen


def _take_in(seen: ServerState, record: Record | None) -> None:
    if isinstance(record, SiteEnded):
        seen.ended[record.site] = record
    elif isinstance(record, SiteOpened):
        seen.ended.pop(record.site, None)
    elif isinstance(record, OperatorCommand):
        seen.ordered.add(record.site)
    elif isinstance(record, Page):
        _note(seen.coming, record, "in_stream")


def _record(fields: dict[bytes, bytes]) -> Record | None:
    try:
        return decode(fields)[0]
    except RecordError:
        return None


def _note(coming: dict[int, dict[int, UnstoredPage]], page: Page, place: str) -> None:
    """Adds a crawled page; re-extracted or rechecked ones have rows."""
    if page.extracted_at or page.work != "site":
        return
    of_site, number = coming.setdefault(hash64(page.site), {}), hash64(page.url)
    before = of_site.get(number)
    if before is None or before.at < page.fetched_at:
        of_site[number] = UnstoredPage(page.fetched_at, place)


def _note_refused(engine: Engine, coming: dict[int, dict[int, UnstoredPage]]) -> None:
    """Adds pages among dead letters."""
    for rows in by_key(engine, select(dead_letters.c.id, dead_letters.c.fields), dead_letters.c.id):
        for row in rows:
            fields = {name.encode(): _bytes_of(value) for name, value in json.loads(row.fields).items()}
            if isinstance(record := _record(fields), Page):
                _note(coming, record, "refused")


def _bytes_of(value: str | dict[str, str]) -> bytes:
    return value.encode() if isinstance(value, str) else b64decode(value["base64"])


async def by_frontiers(queue: SiteQueue, names: Iterable[str], options: Options) -> dict[str, ExpectedUrls]:
    """Expected URLs of unfinished sites."""
    found: dict[str, ExpectedUrls] = {}
    left = list(names)
    while left:
        some, left = left[:READ_AT_A_TIME], left[READ_AT_A_TIME:]
        frontiers = await asyncio.gather(*(frontier_of(queue, site, options) for site in some))
        found |= {
            site: ExpectedUrls(
                len(one), one.over_budget, one.pending, 0, one.published, one.done_hash, one.left_out
            )
            for site, one in zip(some, frontiers, strict=True)
        }
    return found


async def frontier_of(queue: SiteQueue, site: str, options: Options) -> Frontier:
    """The frontier of the site's next agent; a new one if the checkpoint is invalid."""
    entries, paths, budget = await queue.checkpoint(site)
    most = options.max_pages_per_site if budget is None else budget
    frontier = Frontier(most, options.max_depth, site)
    try:
        frontier.restore(entries)
    except CheckpointError:
        frontier = Frontier(most, options.max_depth, site)
    for offer in map(read_entry, paths):
        frontier.add(offer.paths, offer.depth)
    if not frontier:
        frontier.add(("/",), 0)
    return frontier


# --- The comparison ---------------------------------------------------------------------------------------


def differences(settings: BaseSettings, options: Options) -> dict[str, str]:
    """Differences by site, in words; without leased or just changed sites.

    Raises the errors of `crawler.local.summary.look`, and DatabaseError.
    """
    with joined(settings, options):
        return asyncio.run(_differences(settings, options))


async def _differences(settings: BaseSettings, options: Options) -> dict[str, str]:
    client = connection.connect(settings)
    engine = open_database(options.database)
    try:
        queue = SiteQueue(client, options)
        seen = await read_server(queue, client, options.key_prefix)
        if check_version(engine) is None:
            return {}
        found = await compare(queue, engine, seen, settings, options)
        return {one.site: one.wrong for one in found if await _is_settled(queue, one)}
    finally:
        engine.dispose()
        await client.aclose()


async def _is_settled(queue: SiteQueue, account: Account) -> bool:
    """Whether the site is not leased and unchanged."""
    before = account.record
    return (before is None or before.work != "site") and await queue.record(account.site) == before


def in_words(wrong: Mapping[str, str]) -> str:
    """A message on how many sites differ, and what to do."""
    lines = [
        f"queue and tables differ on {len(wrong):,} sites; run `scrapy queue repair`, then `scrapy crawl site` to "
        "fetch missing pages",
        *(f"  {site}: {why}" for site, why in list(wrong.items())[:NAMED]),
    ]
    if len(wrong) > NAMED:
        lines.append(f"  … and {len(wrong) - NAMED:,} more sites")
    return "\n".join(lines)


async def compare(
    queue: SiteQueue,
    engine: Engine,
    seen: ServerState,
    settings: BaseSettings,
    options: Options,
    *,
    whole: bool = False,
) -> list[Account]:
    """The accounts of sites that differ; `whole`: of all."""
    _note_refused(engine, seen.coming)
    comparison = _Comparison(queue, count_pages(engine, by_place=whole), seen, settings, options, whole=whole)
    sides = _side_by_side(iter(seen.records), _site_rows(engine))
    found: list[Account] = []
    while batch := list(islice(sides, READ_AT_A_TIME)):
        found += await comparison.accounts(batch)
    return sorted(found, key=lambda one: one.site)


def _side_by_side(
    records: Iterator[SiteRecord], rows: Iterator[Any]
) -> Iterator[tuple[SiteRecord | None, Any]]:
    """Joins records and rows by site id; one of both may be None."""
    record, row = next(records, None), next(rows, None)
    while record is not None or row is not None:
        number = None if record is None else hash64(record.site)
        if row is None or (number is not None and number < row.site_id):
            yield record, None
            record = next(records, None)
        elif number is None or row.site_id < number:
            yield None, row
            row = next(rows, None)
        else:
            yield record, row
            record, row = next(records, None), next(rows, None)


class _Comparison:
    """Compares in batches, to save memory."""

    def __init__(
        self,
        queue: SiteQueue,
        tables: Tables,
        seen: ServerState,
        settings: BaseSettings,
        options: Options,
        *,
        whole: bool,
    ) -> None:
        self._queue = queue
        self._tables = tables
        self._seen = seen
        self._settings = settings
        self._options = options
        self._whole = whole

    async def accounts(self, sides: Sequence[tuple[SiteRecord | None, Any]]) -> list[Account]:
        """Of these sites, or those that differ."""
        frontiers: dict[str, ExpectedUrls] = {}
        if self._whole:
            unfinished = [record.site for record, _ in sides if record and record.state in UNFINISHED]
            frontiers = await by_frontiers(self._queue, unfinished, self._options)
        found = [await self._account(record, row, frontiers) for record, row in sides]
        found = self._without_foreign([one for one in found if self._whole or one.wrong])
        return [one for one in found if self._whole or one.wrong]

    async def _account(
        self, record: SiteRecord | None, row: Any, frontiers: Mapping[str, ExpectedUrls]
    ) -> Account:
        if record is None:
            return _unqueued(self._tables, self._seen, row)
        owed = frontiers.get(record.site)
        return await _account(self._queue, self._tables, self._seen, self._options, record, row, owed)

    def _without_foreign(self, accounts: list[Account]) -> list[Account]:
        """Without sites of other crawls, given up, or just added."""
        suspects = [one for one in accounts if one.record is None and one.wrong]
        if not suspects:
            return accounts
        client = connection.connect_blocking(self._settings)
        try:
            prefix = self._options.key_prefix
            reset = reset_ms(client, prefix)
            lost = unknown_to_all(client, prefix, [one.site for one in suspects])
        finally:
            client.close()
        lost -= {
            one.site for one in suspects if one.wrong == UNKNOWN and given_up(one.row.found_entry, reset)
        }
        return [
            one._replace(wrong="") if one.record is None and one.site not in lost else one for one in accounts
        ]


def of_tables(engine: Engine) -> list[Account]:
    """All accounts by the tables alone."""
    seen = ServerState((), {}, {}, set(), working=False)
    _note_refused(engine, seen.coming)
    tables = count_pages(engine, by_place=True)
    accounts = [_unqueued(tables, seen, row) for row in _site_rows(engine)]
    return [one._replace(wrong="") if one.wrong == UNKNOWN else one for one in accounts]


def lost_pages(engine: Engine, record: SiteRecord, now_ms: int) -> Owed | None:
    """What the tables lost of a finished site; None: nothing."""
    owed, tables = _owed(record, None, None), count_pages(engine, site=record.site)
    if not _pages_differ(owed, tables.walked(record.site, owed.done)):
        return None
    coming: dict[int, dict[int, UnstoredPage]] = {}
    _note_refused(engine, coming)
    walked = tables.walked(record.site, owed.done, coming.get(hash64(record.site)))
    if not _pages_differ(owed, walked):
        return None
    there = tables.of(record.site)
    account = Account(record.site, record, None, owed, walked.places, walked.hash, 0, (), "", there)
    return lost_of(account, now_ms)


def lost_of(account: Account, now_ms: int) -> Owed:
    """All rows and missing pages of a finished site, as a debt."""
    owed, places, all_rows = account.owed, account.places, account.rows.places.total()
    missing = owed.done - places.total()
    if missing <= 0:  # rows of earlier crawls are in their place
        return Owed(now_ms, owed.done, owed.done_hash)
    if owed.done_hash is None or any(places[place] for place in ON_THE_WAY):
        return Owed(now_ms, all_rows + missing, None, missing)
    of_missing = (owed.done_hash - account.hash) % SET_HASHES
    return Owed(
        now_ms, all_rows + missing, (account.rows.hash + of_missing) % SET_HASHES, missing, of_missing
    )


def _site_rows(engine: Engine) -> Iterator[Any]:
    columns = (sites.c.site_id, sites.c.site, sites.c.state, sites.c.known, sites.c.over_budget)
    more = (sites.c.pending, sites.c.published, sites.c.alias_of, sites.c.stopped)
    left_out = (sites.c.left_out, sites.c.left_out_by)
    return chain.from_iterable(
        by_key(engine, select(*columns, *more, *left_out, sites.c.found_entry), sites.c.site_id)
    )


def _owed(record: SiteRecord, row: Any, ended: SiteEnded | None) -> ExpectedUrls:
    known, done, left_out = record.known, record.done, from_text(record.left_out)
    if record.state == "alias":
        return by_row(row, ended) if row or ended else ExpectedUrls(0, 0, 0, 0, 0, None)
    if record.state == "blocked":
        known = known or 1  # its root, not fetched yet
        return ExpectedUrls(known, 0, 0, known - done, done, record.done_hash, left_out)
    over_budget = known - done if record.state == "finished" else 0
    pending = known - done - over_budget
    return ExpectedUrls(known, over_budget, pending, 0, done, record.done_hash, left_out)


def by_row(row: Any, ended: SiteEnded | None) -> ExpectedUrls:
    """Expected URLs by the row, or by a later record in the stream."""
    if ended is not None:
        known, over, pending, done = ended.known, ended.over_budget, ended.pending, ended.published
        left, left_out = bool(ended.alias_of), ended.left_out
    else:
        known, over, pending, done = row.known, row.over_budget, row.pending or 0, row.published
        left, left_out = bool(row.alias_of), counts_of(row)
    if ended is None and row.state == QUEUED:
        known = pending = 1  # its root, not fetched yet
    if row is not None:
        left = left or row.stopped == BLOCKED or (row.state == FINISHED and pending > 0)
    return ExpectedUrls(known, over, 0 if left else pending, pending if left else 0, done, None, left_out)


async def _account(
    queue: SiteQueue,
    tables: Tables,
    seen: ServerState,
    options: Options,
    record: SiteRecord,
    row: Any,
    owed: ExpectedUrls | None,
) -> Account:
    site, number = record.site, hash64(record.site)
    owed = owed or _owed(record, row, seen.ended.get(site))
    there, coming = tables.of(site), seen.coming.get(number, {})
    missing: tuple[str, ...] = ()
    if not coming and there.places.total() == owed.done and owed.done_hash in (None, there.hash):
        walked = FoundPages(there.places, owed.done, there.hash, set())
    elif record.state in UNFINISHED and owed.done:
        frontier = await frontier_of(queue, site, options)
        named = {hash64(site + path): path for path in frontier.done()}
        walked = named_pages(tables.engine, number, coming, set(named))
        owed = owed._replace(done=len(named), done_hash=set_hash(named))
        missing = tuple(sorted(named[one] for one in walked.missing))
    else:
        walked = tables.walked(site, owed.done, coming)
    wrong = _pages_differ(owed, walked) or _row_differs(record, row, seen)
    earlier = there.places.total() - walked.rows
    account = Account(site, record, row, owed, walked.places, walked.hash, earlier, missing, wrong, there)
    return await _with_lost(queue, tables, account, seen) if site in seen.owed else account


async def _with_lost(queue: SiteQueue, tables: Tables, account: Account, seen: ServerState) -> Account:
    """Adds the remaining debt; settles it if all is found."""
    site, record, text = account.site, account.record, seen.owed[account.site]
    lost = read_owed(text)
    if lost is None or record is None or record.state != "finished":
        return account
    there = hashes_of(tables.engine, hash64(site)) | seen.coming.get(hash64(site), {}).keys()
    missing = what_is_missing(lost, there, account.owed.over_budget)
    if missing:
        return account._replace(lost=lost, wrong=account.wrong or missing)
    if not account.wrong:
        await queue.settle(site, text)
    return account


def _unqueued(tables: Tables, seen: ServerState, row: Any) -> Account:
    """Of a site missing in the queue, which is correct without pending URLs."""
    site, owed = row.site, by_row(row, seen.ended.get(row.site))
    walked = tables.walked(site, owed.done, seen.coming.get(hash64(site)))
    wrong = _pages_differ(owed, walked)
    if not wrong and (owed.pending or _is_open(row, seen)) and site not in seen.ordered:
        wrong = UNKNOWN
    earlier = tables.of(site).places.total() - walked.rows
    return Account(site, None, row, owed, walked.places, walked.hash, earlier, (), wrong)


def _is_open(row: Any, seen: ServerState) -> bool:
    """Whether a finished site was reopened."""
    left = bool(row.alias_of) or row.stopped == BLOCKED or row.site in seen.ended
    return row.state == STILL_OPEN and not left


def _pages_differ(owed: ExpectedUrls, walked: FoundPages) -> str:
    lost = owed.done - walked.places.total()
    if lost:
        return f"{lost:,} of its {owed.done:,} pages are not in the tables"
    if owed.done_hash not in (None, walked.hash):
        return "the tables have other pages than those that were fetched"
    return ""


def _row_differs(record: SiteRecord, row: Any, seen: ServerState) -> str:
    if record.state in ("finished", "alias") and record.site not in seen.ended:
        if row is None:
            return "it is not in table sites"
        if row.state != FINISHED:
            return f"its state in table sites is {row.state}, expected {FINISHED}"
        if (
            record.state == "finished"
            and row.left_out is not None
            and counts_of(row) != from_text(record.left_out)
        ):
            return f"URLs left out: {row.left_out:,} in table sites, {record.left_out or 'none'} in the queue"
    if row is None and (record.paused or record.state == "blocked") and record.site not in seen.ordered:
        return "it is not in table sites"
    return ""
