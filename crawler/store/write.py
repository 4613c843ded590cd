"""Writes batches of records in the caller's transaction; repeated, late and concurrent ones too.

The newest page, the earliest finding of a site, the last end and command win. Removes NUL and lone surrogates; passes
the database's errors on.
"""

from __future__ import annotations

import base64
import json
import time
from functools import cache
from operator import gt, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    and_,
    bindparam,
    case,
    delete,
    func,
    literal_column,
    or_,
    select,
    update,
)

from crawler.records import (
    Check,
    Health,
    OperatorCommand,
    Page,
    RecheckResult,
    Record,
    RunEvent,
    SiteEnded,
    SiteFound,
    SiteOpened,
    Visit,
    hash64,
    unpack_lastmods,
)
from crawler.states import IllegalTransitionError
from crawler.store import rows as row_of
from crawler.store import write_rules
from crawler.store.ranks import forget as forget_ranks
from crawler.store.rows import LIFE_COLUMNS, PAGE_COLUMNS, Row, clean, site_id
from crawler.store.tables import (
    beliefs,
    checks,
    dead_letters,
    fetches,
    health,
    health_changes,
    pages,
    profiles,
    runs,
    sites,
    visits,
)
from crawler.store.upsert import Upsert, write

if TYPE_CHECKING:
    from sqlalchemy.sql.dml import Update


# --- Sitemaps' lastmod ------------------------------------------------------------------------------------


class Lastmod(NamedTuple):
    """A page's lastmod, and its sitemap's fetch time."""

    site_id: int
    url_hash: int
    changed_at: int  # ms
    told_at: int  # ms


def lastmods_of(sitemap: Page, site_id: int) -> list[Lastmod]:
    """The lastmods of a sitemap's record."""
    return [
        Lastmod(site_id, url_hash, changed_at, sitemap.fetched_at)
        for url_hash, changed_at in unpack_lastmods(sitemap.lastmods)
    ]


def write_lastmods(connection: Connection, found: list[Lastmod]) -> None:
    """Updates known pages, in key order."""
    if found:
        values = [{f"new_{name}": value for name, value in one._asdict().items()} for one in sorted(found)]
        connection.execute(_statement(), values)


@cache
def _statement() -> Update:
    changed_at, told_at = (bindparam(f"new_{name}", type_=BigInteger()) for name in ("changed_at", "told_at"))
    # A signal for recheck: the second and later ones, or a first one after the page's last check.
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
        # In this order: on MariaDB later assignments see earlier ones.
        .ordered_values(
            (pages.c.signalled_at, case((news, told_at), else_=pages.c.signalled_at)),
            (pages.c.sitemap_lastmod, changed_at),
        )
    )


# --- Pages extracted again from the archive ---------------------------------------------------------------


_KEY = ("site_id", "url_hash")
# Not a fetch: the life cycle stays unchanged.
_KEPT = (*_KEY, "url", *LIFE_COLUMNS)
_FETCHED_AT = PAGE_COLUMNS.index("fetched_at")
_EXTRACTED_AT = PAGE_COLUMNS.index("extracted_at")


def is_later(new: Row, old: Row) -> bool:
    """Whether the new row wins: by fetch time, then extraction time."""
    return (new[_FETCHED_AT], new[_EXTRACTED_AT]) > (old[_FETCHED_AT], old[_EXTRACTED_AT])


def write_extracted(connection: Connection, rows: list[Row]) -> None:
    """Updates older rows; at most one per page."""
    if rows:
        names = [_place(name) for name in PAGE_COLUMNS]
        connection.execute(_extracted_statement(), [dict(zip(names, row, strict=True)) for row in rows])


@cache
def _extracted_statement() -> Update:
    fetched, extracted = _value("fetched_at"), _value("extracted_at")
    never: Any = literal_column("0")
    same = and_(
        pages.c.fetched_at == fetched,
        func.coalesce(pages.c.extracted_at, never) < extracted,
    )
    beaten = or_(pages.c.fetched_at < fetched, same)
    found = and_(*(pages.c[name] == _value(name) for name in _KEY), beaten)
    return update(pages).where(found).values({n: _value(n) for n in PAGE_COLUMNS if n not in _KEPT})


def _value(name: str) -> Any:
    return bindparam(_place(name), type_=pages.c[name].type)


def _place(name: str) -> str:
    return f"new_{name}"


# The defaults of REVIVE_FIRST_SECONDS and REVIVE_SECOND_SECONDS, for callers without settings.
REVIVE_DELAYS = (3600.0, 86_400.0)
# The default of STATUS_DAMPING_SECONDS.
DAMPING_SECONDS = 1800.0


class Stored(NamedTuple):
    """A record with its stream id and packed out-links."""

    stream_id: str
    record: Record
    links: bytes = b""
    plain: bool = False  # known to need no cleaning (records.is_plain)


class DeadLetter(NamedTuple):
    """A stream entry that cannot be stored."""

    stream_id: str
    reason: str
    fields: dict[bytes, bytes]


class Counts(NamedTuple):
    """Numbers of records by kind, repeated ones included."""

    pages: int = 0
    found: int = 0
    ended: int = 0
    runs: int = 0
    orders: int = 0
    checks: int = 0
    visits: int = 0
    asked: int = 0
    health: int = 0
    opened: int = 0
    refused: int = 0  # of `asked`: without effect, since the page's state differs or is newer, or repeated


# --- The rules --------------------------------------------------------------------------------------------


def _is_earlier(new: Any, old: Any) -> Any:
    return (new < old) | old.is_(None)


def _is_later(new: Any, old: Any) -> Any:
    return (new > old) | old.is_(None)


def _ends_later(new: Any, old: Any) -> Any:
    running: ColumnElement[int] = literal_column("0")  # inline: placeholders are for the row's values only
    return func.coalesce(new, running) > func.coalesce(old, running)


def _is_seeded(new: Any, old: Any) -> Any:
    link: ColumnElement[str] = literal_column("'link'")  # as above
    return (new != link) & (old == link)


def _but(columns: tuple[str, ...], *left_out: str) -> tuple[str, ...]:
    return tuple(name for name in columns if name not in left_out)


_SITE = ("site_id",)
NAMED = Upsert("named_sites", sites, row_of.NAMED_COLUMNS, _SITE)
FOUND = Upsert("found_sites", sites, row_of.FOUND_COLUMNS, _SITE, ("source", "found_at"), _is_earlier)
FOUND_LAST = Upsert("last_found_sites", sites, row_of.FOUND_COLUMNS, _SITE, ("found_entry",), _is_later)
# A site found by a link became a seed.
SEEDED = Upsert("seeded_sites", sites, row_of.FOUND_COLUMNS, _SITE, ("source",), _is_seeded)
ENDED = Upsert(
    "ended_sites",
    sites,
    row_of.ENDED_COLUMNS,
    _SITE,
    (*_but(row_of.ENDED_COLUMNS, "site_id", "site", "ended_entry"), "ended_entry"),
    _is_later,
)
# The same columns and stream position as ENDED: the last record wins.
OPENED = Upsert(
    "opened_sites",
    sites,
    row_of.OPENED_COLUMNS,
    _SITE,
    (*_but(row_of.OPENED_COLUMNS, "site_id", "site", "ended_entry"), "ended_entry"),
    _is_later,
)
STOPPED = Upsert(
    "stopped_sites",
    sites,
    row_of.STOP_COLUMNS,
    _SITE,
    ("stopped", "stopped_reason", "stopped_entry"),
    _is_later,
)
BUDGETS = Upsert("budgets", sites, row_of.BUDGET_COLUMNS, _SITE, ("budget", "budget_entry"), _is_later)
PAGES = Upsert(
    "pages",
    pages,
    row_of.PAGE_COLUMNS,
    ("site_id", "url_hash"),
    (
        *_but(row_of.PAGE_COLUMNS, "site_id", "url_hash", "url", "fetched_at", *row_of.LIFE_COLUMNS),
        "fetched_at",
    ),
    gt,
    write_rules.OF_A_LOAD,
)
USUAL_PAGES = PAGES._replace(name="usual_pages", columns=row_of.USUAL_COLUMNS)
FETCHES = Upsert("fetches", fetches, row_of.FETCH_COLUMNS, ("agent", "run", "seq"))
RUNS = Upsert(
    "runs",
    runs,
    row_of.RUN_COLUMNS,
    ("agent", "run"),
    (*_but(row_of.RUN_COLUMNS, "agent", "run", "ended_at"), "ended_at"),
    _ends_later,
)
CHECKS = Upsert("checks", checks, row_of.CHECK_COLUMNS, ("digest",))
VISITS = Upsert("visits", visits, row_of.VISIT_COLUMNS, ("agent", "run", "seq"))
LETTERS = Upsert(
    "dead_letters", dead_letters, ("stream_id", "received_at", "reason", "fields"), ("stream_id",)
)

_FOUND_AT = row_of.FOUND_COLUMNS.index("found_at")
_ENDED_ENTRY = row_of.ENDED_COLUMNS.index("ended_entry")
_OPENED_ENTRY = row_of.OPENED_COLUMNS.index("ended_entry")
_RUN_ENDED_AT = row_of.RUN_COLUMNS.index("ended_at")
# In all other rows the stream position is the last value.
_ENTRY = -1


# --- One batch --------------------------------------------------------------------------------------------


def store(
    connection: Connection,
    batch: list[Stored],
    revive_delays: tuple[float, float] = REVIVE_DELAYS,
    damping_seconds: float = DAMPING_SECONDS,
) -> Counts:
    """Writes the batch; the caller commits.

    `revive_delays`: seconds before revive's two retries. `damping_seconds`: see crawler.status.health.
    """
    kinds = (
        Page,
        SiteFound,
        SiteEnded,
        RunEvent,
        OperatorCommand,
        Check,
        Visit,
        RecheckResult,
        Health,
        SiteOpened,
    )
    counts: dict[type, int] = dict.fromkeys(kinds, 0)
    rows = _Rows(revive_delays, damping_seconds)
    refused = 0
    for stored in batch:
        record = stored.record
        counts[type(record)] += 1
        if isinstance(record, Page):
            rows.add_page(record, stored.links, plain=stored.plain)
        elif isinstance(record, OperatorCommand) and record.order == "forget":
            refused += rows.write(connection)  # earlier records are deleted too, later ones are not
            rows = _Rows(revive_delays, damping_seconds)
            _forget_order(connection, record.site, entry_number(stored.stream_id))
        elif isinstance(record, RecheckResult):
            rows.add_asked(record)
        else:
            rows.add(record, entry_number(stored.stream_id))
    refused += rows.write(connection)
    return Counts(*counts.values())._replace(refused=refused)


def forget(connection: Connection, site: str) -> int:
    """Deletes all rows of a site; returns the number of pages."""
    key = site_id(site)
    gone = connection.execute(delete(pages).where(pages.c.site_id == key)).rowcount
    connection.execute(delete(fetches).where(fetches.c.site_id == key))
    connection.execute(delete(checks).where(checks.c.site_id == key))
    connection.execute(delete(visits).where(visits.c.site_id == key))
    connection.execute(delete(health).where(health.c.site_id == key))
    connection.execute(delete(health_changes).where(health_changes.c.site_id == key))
    connection.execute(delete(profiles).where(profiles.c.site_id == key))
    forget_ranks(connection, key)
    connection.execute(delete(beliefs).where(beliefs.c.site_id == key))
    connection.execute(delete(sites).where(sites.c.site_id == key))
    return gone


def _forget_order(connection: Connection, site: str, entry: int) -> None:
    """Forgets the site unless it was found again later."""
    older = or_(sites.c.found_entry.is_(None), sites.c.found_entry < entry)
    query = select(sites.c.site_id).where(sites.c.site_id == site_id(site), older)
    if connection.execute(query).first():
        forget(connection, site)


def bury(connection: Connection, letters: list[DeadLetter]) -> None:
    """Inserts dead letters; keeps existing ones."""
    now = time.time_ns() // 1_000_000
    write(
        connection,
        LETTERS,
        [
            (letter.stream_id, now, clean(letter.reason), fields_to_json(letter.fields))
            for letter in sorted(letters, key=lambda letter: letter.stream_id)
        ],
    )


def fields_to_json(fields: dict[bytes, bytes]) -> str:
    """Fields as ASCII JSON; values that are not UTF-8 as {"base64": "…"}."""
    return json.dumps(
        {name.decode(errors="backslashreplace"): _readable(value) for name, value in fields.items()}
    )


def _readable(value: bytes) -> object:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def entry_number(stream_id: str) -> int:
    """A stream id as a 64-bit number in the same order."""
    milliseconds, _, number = stream_id.partition("-")
    return int(milliseconds) << 20 | min(int(number or 0), (1 << 20) - 1)


class _Rows:
    """A batch as rows: the winner per key and kind."""

    def __init__(self, revive_delays: tuple[float, float], damping_seconds: float) -> None:
        self._damping_seconds = damping_seconds
        self._delays = revive_delays
        self._revive_ms = int(revive_delays[0] * 1000)
        self._steps: list[write_rules.LifeStep] = []
        self._illegal = 0
        self._named: dict[int, str] = {}
        self._pages: dict[tuple[int, int], Row] = {}
        self._extracted: dict[tuple[int, int], Row] = {}
        self._fetches: list[Row] = []  # repeated ones are ignored by the upsert
        self._found: dict[int, Row] = {}
        self._found_last: dict[int, Row] = {}
        self._seeded: dict[int, Row] = {}
        self._ended: dict[int, Row] = {}
        self._opened: dict[int, Row] = {}
        self._stops: dict[int, Row] = {}
        self._budgets: dict[int, Row] = {}
        self._runs: dict[tuple[str, str], Row] = {}
        self._checks: dict[str, Row] = {}
        self._visits: list[Row] = []
        self._health: list[Health] = []
        self._lastmods: list[Lastmod] = []

    def add_page(self, page: Page, links: bytes, *, plain: bool) -> None:
        """Adds a fetched or extracted page."""
        name = page.site
        site, url_hash = site_id(name), hash64(name + page.path)
        if not plain:
            page = row_of.clean_page(page)
        if page.extracted_at:
            self._add_extracted(row_of.page_row(page, site, url_hash, links))
            return
        self._named[site] = name
        if page.lastmods:
            self._lastmods += lastmods_of(page, site)
        place = (site, url_hash)
        kept = self._pages.get(place)
        # Of two fetches in the same millisecond, the later one in the stream wins.
        if kept is None or page.fetched_at >= kept[_FETCHED_AT]:
            self._pages[place] = row_of.page_row(page, site, url_hash, links, self._revive_ms)
        if page.agent:  # records without an agent are not part of the history
            self._fetches.append(row_of.fetch_row(page, site, url_hash))

    def _add_extracted(self, row: Row) -> None:
        kept = self._extracted.get(row[:2])
        if kept is None or is_later(row, kept):
            self._extracted[row[:2]] = row

    def add_asked(self, asked: RecheckResult) -> None:
        """Adds a recheck's result: to the history, and as a step if the transition is legal."""
        asked = row_of.clean_asked(asked)
        site, url_hash = site_id(asked.site), hash64(asked.url)
        if asked.agent:
            self._fetches.append(row_of.asked_row(asked, site, url_hash))
        try:
            self._steps.append(write_rules.life_step(asked, site, url_hash, self._delays))
        except IllegalTransitionError:
            self._illegal += 1

    def add(
        self,
        record: SiteFound | SiteEnded | SiteOpened | OperatorCommand | RunEvent | Check | Visit | Health,
        entry: int,
    ) -> None:
        """Adds any other record."""
        if isinstance(record, SiteFound):
            row = row_of.found_row(record, entry)
            kept = self._found.get(row[0])
            if kept is None or row[_FOUND_AT] < kept[_FOUND_AT]:
                self._found[row[0]] = row
            _keep_later(self._found_last, row[0], row, _ENTRY)
            if record.source != "link":
                self._seeded[row[0]] = row
        elif isinstance(record, SiteEnded):
            row = row_of.ended_row(record, entry)
            _keep_later(self._ended, row[0], row, _ENDED_ENTRY)
        elif isinstance(record, SiteOpened):
            row = row_of.opened_row(record, entry)
            _keep_later(self._opened, row[0], row, _OPENED_ENTRY)
        elif isinstance(record, RunEvent):
            row = row_of.run_row(record)
            _keep_later(self._runs, row[:2], row, _RUN_ENDED_AT)
        elif isinstance(record, Check):
            self._checks.setdefault(record.digest, row_of.check_row(record))
        elif isinstance(record, Visit):
            self._named[site_id(record.site)] = record.site
            if record.agent:  # as for pages
                self._visits.append(row_of.visit_row(record))
        elif isinstance(record, Health):
            self._named[site_id(record.site)] = record.site
            if record.agent:
                self._health.append(record)
        elif record.order == "budget":
            row = row_of.budget_row(record, entry)
            _keep_later(self._budgets, row[0], row, _ENTRY)
        else:
            row = row_of.stop_row(record, entry)
            _keep_later(self._stops, row[0], row, _ENTRY)

    def write(self, connection: Connection) -> int:
        """Writes all rows, sites first; returns how many recheck results had no effect."""
        write(connection, NAMED, sorted(map(row_of.named_row, self._named.values())))
        write(connection, FOUND, _sorted(self._found))
        write(connection, FOUND_LAST, _sorted(self._found_last))
        write(connection, SEEDED, _sorted(self._seeded))
        write_pages(connection, _sorted(self._pages))
        write_lastmods(connection, self._lastmods)
        refused = self._illegal + len(self._steps) - write_rules.write_lives(connection, self._steps)
        write_extracted(connection, _sorted(self._extracted))
        write(connection, ENDED, _sorted(self._ended))
        write(connection, OPENED, _sorted(self._opened))
        write(connection, STOPPED, _sorted(self._stops))
        write(connection, BUDGETS, _sorted(self._budgets))
        write(connection, RUNS, _sorted(self._runs))
        write(connection, FETCHES, sorted(self._fetches, key=itemgetter(0, 1, 2)))
        write(connection, CHECKS, _sorted(self._checks))
        write(connection, VISITS, sorted(self._visits, key=itemgetter(0, 1, 2)))
        write_rules.store_healths(connection, self._health, self._damping_seconds)
        return refused


def write_pages(connection: Connection, found: list[Row]) -> None:
    """Needs key order and at most one row per page."""
    usual = len(row_of.USUAL_COLUMNS)
    write(connection, USUAL_PAGES, [row for row in found if len(row) == usual])
    write(connection, PAGES, [row for row in found if len(row) != usual])


def _keep_later(rows: dict[Any, Row], key: Any, row: Row, place: int) -> None:
    """Keeps the row with the higher value at `place`; None counts as 0."""
    kept = rows.get(key)
    if kept is None or (row[place] or 0) > (kept[place] or 0):
        rows[key] = row


def _sorted(rows: dict[Any, Row]) -> list[Row]:
    return [rows[key] for key in sorted(rows)]
