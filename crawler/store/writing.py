"""One batch of records into the tables, in the caller's transaction: the same batch twice changes nothing.

Hides the three dialects' upserts. A batch may come twice, late, out of order and beside another coordinator's:
the newer page wins, the earlier finding of a site, the later end of a site and of a run, the operator's last order,
whatever the order in which they are written. Only an order to forget a site takes away what is there, and only
once: what is found anew since stays. What cannot be stored as it is (NUL, lone surrogates) is cleaned here; all
other refusals of the database pass to the caller.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from functools import cache, lru_cache
from operator import gt, lt
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Table, delete, func, literal_column, or_, select
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.sql.dml import Insert

from crawler.records import Page, PageOutcome, Record, RunMoment, SiteEnded, SiteFound, SiteOrder, hash64
from crawler.store.tables import (
    BLOCKED,
    FINISHED,
    PAUSED,
    QUEUED,
    UNFINISHED,
    dead_letters,
    fetches,
    pages,
    runs,
    sites,
)

# Where a page's first turn leads in paper 001's life-cycle; a page that robots.txt forbids was never visited.
PAGE_STATES: dict[PageOutcome, str] = {
    "stored": "visited",
    "redirected": "visited",
    "duplicate": "visited",
    "filtered": "visited",
    "failed": "no_response_1",
    "denied": "init",
}

# What an order makes of a site that the agents are to leave alone, or not any more.
STOPPED = {"pause": PAUSED, "block": BLOCKED, "resume": None}

Row = dict[str, Any]
# Says of a column's two values whether the first is to replace the second.
Beats = Callable[[Any, Any], Any]
site_id = lru_cache(maxsize=65_536)(hash64)


class Stored(NamedTuple):
    """A record on its way into the tables: its entry in the stream, and its packed out-links."""

    stream_id: str
    record: Record
    links: bytes = b""


class Letter(NamedTuple):
    """An entry of the stream that cannot be stored, and why."""

    stream_id: str
    reason: str
    fields: dict[bytes, bytes]


class Counts(NamedTuple):
    """How many records of each kind a batch held, double ones included."""

    pages: int = 0
    found: int = 0
    ended: int = 0
    runs: int = 0
    orders: int = 0


def store(connection: Connection, batch: list[Stored]) -> Counts:
    """Writes the batch; the caller commits. Whatever the database refuses is raised as it comes."""
    counts: dict[type, int] = dict.fromkeys((Page, SiteFound, SiteEnded, RunMoment, SiteOrder), 0)
    rows = _Rows()
    for stored in batch:
        record = stored.record
        counts[type(record)] += 1
        if isinstance(record, SiteOrder) and record.order == "forget":
            rows.write(connection)  # what came before is forgotten too, what comes after is not
            rows = _Rows()
            _forget_order(connection, record.site, entry_number(stored.stream_id))
        else:
            rows.add(stored)
    rows.write(connection)
    return Counts(*counts.values())


def forget(connection: Connection, site: str) -> int:
    """Removes all that the tables hold of a site; how many pages."""
    key = site_id(site)
    gone = connection.execute(delete(pages).where(pages.c.site_id == key)).rowcount
    connection.execute(delete(fetches).where(fetches.c.site_id == key))
    connection.execute(delete(sites).where(sites.c.site_id == key))
    return gone


def _forget_order(connection: Connection, site: str, entry: int) -> None:
    """Forgets a site unless it was found anew since: the order may come a second time."""
    older = or_(sites.c.found_entry.is_(None), sites.c.found_entry < entry)
    asked = select(sites.c.site_id).where(sites.c.site_id == site_id(site), older)
    if connection.execute(asked).first():
        forget(connection, site)


def bury(connection: Connection, letters: list[Letter]) -> None:
    """Puts entries into the dead letters; one that is there already stays as it was."""
    now = time.time_ns() // 1_000_000
    rows = [
        {
            "stream_id": letter.stream_id,
            "received_at": now,
            "reason": clean(letter.reason),
            "fields": fields_to_json(letter.fields),
        }
        for letter in letters
    ]
    _insert_new(connection, dead_letters, ("stream_id",), rows)


def clean(words: str) -> str:
    """The text without NUL, each lone surrogate replaced: what every database takes."""
    if words.isascii() and "\0" not in words:
        return words
    words = words.replace("\0", "")
    try:
        words.encode()
    except UnicodeEncodeError:
        return words.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return words


def fields_to_json(fields: dict[bytes, bytes]) -> str:
    """An entry's fields as ASCII JSON; a value that is no UTF-8 as {"base64": "…"}."""
    return json.dumps(
        {name.decode(errors="backslashreplace"): _readable(value) for name, value in fields.items()}
    )


def _readable(value: bytes) -> object:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def entry_number(stream_id: str) -> int:
    """A stream id as a number in the stream's order, for a signed 64-bit column."""
    milliseconds, _, number = stream_id.partition("-")
    return int(milliseconds) << 20 | min(int(number or 0), (1 << 20) - 1)


class _Rows:
    """A batch as rows, one per key and table: PostgreSQL refuses to touch a row twice in one statement.

    Written in the order of their keys, so that two coordinators do not wait for each other in a ring.
    """

    def __init__(self) -> None:
        self._named: dict[int, Row] = {}
        self._found: dict[int, Row] = {}
        self._found_last: dict[int, Row] = {}
        self._pages: dict[tuple[int, int], Row] = {}
        self._fetches: dict[tuple[str, str, int], Row] = {}
        self._ended: dict[int, Row] = {}
        self._stops: dict[int, Row] = {}
        self._budgets: dict[int, Row] = {}
        self._runs: dict[tuple[str, str], Row] = {}

    def add(self, stored: Stored) -> None:
        """Takes in one record; of two for the same row the one that the tables would keep."""
        record = stored.record
        if isinstance(record, Page):
            self._add_page(record, stored.links)
            return
        entry = entry_number(stored.stream_id)
        if isinstance(record, SiteFound):
            row = _found_row(record, entry)
            _keep(self._found, row["site_id"], row, "found_at", lt)
            _keep(self._found_last, row["site_id"], row, "found_entry", gt)
        elif isinstance(record, SiteEnded):
            row = _ended_row(record, entry)
            _keep(self._ended, row["site_id"], row, "ended_entry", gt)
        elif isinstance(record, SiteOrder) and record.order == "budget":
            row = _budget_row(record, entry)
            _keep(self._budgets, row["site_id"], row, "budget_entry", gt)
        elif isinstance(record, SiteOrder):
            row = _stop_row(record, entry)
            _keep(self._stops, row["site_id"], row, "stopped_entry", gt)
        else:
            row = _run_row(record)
            _keep(self._runs, (row["agent"], row["run"]), row, "ended_at", _ended_later)

    def _add_page(self, page: Page, links: bytes) -> None:
        site = site_id(page.site)
        if site not in self._named:
            self._named[site] = _named_row(site, page.site)
        row = _page_row(page, site, links)
        _keep(self._pages, (site, row["url_hash"]), row, "fetched_at", gt)
        if page.agent:  # a record without an origin has no place in the history
            self._fetches.setdefault((page.agent, page.run, page.seq), _fetch_row(page, row))

    def write(self, connection: Connection) -> None:
        """Every table's rows in one statement each."""
        _insert_new(connection, sites, ("site_id",), _sorted(self._named))
        kind = connection.dialect.name
        for statement, rows in (
            (_earlier_finding(kind), _sorted(self._found)),
            (_later_finding(kind), _sorted(self._found_last)),
            (_newer_page(kind), _sorted(self._pages)),
            (_later_end(kind), _sorted(self._ended)),
            (_later_stop(kind), _sorted(self._stops)),
            (_later_budget(kind), _sorted(self._budgets)),
            (_later_moment(kind), _sorted(self._runs)),
        ):
            if rows:
                connection.execute(statement, rows)
        _insert_new(connection, fetches, ("agent", "run", "seq"), _sorted(self._fetches))


def _keep(rows: dict[Any, Row], key: Any, row: Row, column: str, beats: Beats) -> None:
    kept = rows.get(key)
    if kept is None or beats(row[column], kept[column]):
        rows[key] = row


def _sorted(rows: dict[Any, Row]) -> list[Row]:
    return [rows[key] for key in sorted(rows)]


def _ended_later(new: int | None, old: int | None) -> bool:
    return (new or 0) > (old or 0)


# --- Rows -------------------------------------------------------------------------------------------------


def _named_row(site: int, name: str) -> Row:
    """A site of which only the name is known: its own record comes later."""
    return {
        "site_id": site,
        "site": clean(name),
        "state": QUEUED,
        "published": 0,
        "known": 0,
        "over_budget": 0,
    }


def _found_row(record: SiteFound, entry: int) -> Row:
    row = _named_row(site_id(record.site), record.site)
    return row | {"found_at": record.found_at, "source": clean(record.source), "found_entry": entry}


def _stop_row(record: SiteOrder, entry: int) -> Row:
    stopped = STOPPED[record.order]
    row = _named_row(site_id(record.site), record.site)
    reason = clean(record.reason) if stopped else ""
    return row | {"stopped": stopped, "stopped_reason": reason or None, "stopped_entry": entry}


def _budget_row(record: SiteOrder, entry: int) -> Row:
    row = _named_row(site_id(record.site), record.site)
    return row | {"budget": record.pages, "budget_entry": entry}


def _ended_row(record: SiteEnded, entry: int) -> Row:
    return {
        "site_id": site_id(record.site),
        "site": clean(record.site),
        "state": FINISHED if record.finished else UNFINISHED,
        "published": record.published,
        "known": record.known,
        "over_budget": record.over_budget,
        "ended_at": record.ended_at,
        "reason": clean(record.reason) or None,
        "alias_of": clean(record.alias_of) or None,
        "ended_entry": entry,
    }


def _run_row(record: RunMoment) -> Row:
    return {
        "agent": clean(record.agent),
        "run": clean(record.run),
        "spider": clean(record.spider),
        "scheduler": clean(record.scheduler),
        "started_at": record.started_at,
        "ended_at": record.ended_at or None,
        "reason": clean(record.reason) or None,
    }


def _page_row(page: Page, site: int, links: bytes) -> Row:
    url = page.url
    return {
        "site_id": site,
        "url_hash": hash64(url),
        "url": clean(url),
        "state": PAGE_STATES[page.outcome],
        "outcome": page.outcome,
        "status": page.status,
        "depth": page.depth,
        "tries": page.tries,
        "error": clean(page.error) or None,
        "size": page.size,
        "latency_ms": page.latency_ms,
        "sha256": clean(page.sha256) or None,
        "duplicate_of": clean(page.site + page.duplicate_of) if page.duplicate_of else None,
        "redirect": clean(page.redirect) or None,
        "canonical": clean(page.canonical) or None,
        "content_type": clean(page.content_type) or None,
        "title": clean(page.title) or None,
        "description": clean(page.description) or None,
        "fetched_at": page.fetched_at,
        "links": links or None,
    }


def _fetch_row(page: Page, row: Row) -> Row:
    return {
        "agent": clean(page.agent),
        "run": clean(page.run),
        "seq": page.seq,
        "site_id": row["site_id"],
        "url_hash": row["url_hash"],
        "fetched_at": page.fetched_at,
        "status": page.status,
        "outcome": page.outcome,
        "size": page.size,
        "latency_ms": page.latency_ms,
    }


# --- Statements, made once per dialect --------------------------------------------------------------------


@cache
def _newer_page(dialect: str) -> Insert:
    key = ("site_id", "url_hash")
    kept = ("id", *key, "url", "fetched_at")
    changed = [column.name for column in pages.columns if column.name not in kept]
    return _upsert(dialect, pages, key, gt, [*changed, "fetched_at"])


@cache
def _earlier_finding(dialect: str) -> Insert:
    def beats(new: Any, old: Any) -> Any:
        return (new < old) | old.is_(None)

    return _upsert(dialect, sites, ("site_id",), beats, ["source", "found_at"])


def _is_later(new: Any, old: Any) -> Any:
    return (new > old) | old.is_(None)


@cache
def _later_finding(dialect: str) -> Insert:
    return _upsert(dialect, sites, ("site_id",), _is_later, ["found_entry"])


@cache
def _later_end(dialect: str) -> Insert:
    changed = ["state", "published", "known", "over_budget", "ended_at", "reason", "alias_of", "ended_entry"]
    return _upsert(dialect, sites, ("site_id",), _is_later, changed)


@cache
def _later_stop(dialect: str) -> Insert:
    changed = ["stopped", "stopped_reason", "stopped_entry"]
    return _upsert(dialect, sites, ("site_id",), _is_later, changed)


@cache
def _later_budget(dialect: str) -> Insert:
    return _upsert(dialect, sites, ("site_id",), _is_later, ["budget", "budget_entry"])


@cache
def _later_moment(dialect: str) -> Insert:
    def beats(new: Any, old: Any) -> Any:
        running: ColumnElement[int] = literal_column(
            "0"
        )  # spelt out: pymysql takes no parameters behind VALUES
        return func.coalesce(new, running) > func.coalesce(old, running)

    changed = ["spider", "scheduler", "started_at", "reason", "ended_at"]
    return _upsert(dialect, runs, ("agent", "run"), beats, changed)


def _upsert(dialect: str, table: Table, key: tuple[str, ...], beats: Beats, changed: list[str]) -> Insert:
    """An insert that takes over `changed` where the last of them beats the one that is there."""
    clock = changed[-1]
    if dialect in ("mysql", "mariadb"):
        # No WHERE there, and assignments see those before them: the column that decides comes last.
        ours = mysql.insert(table)
        wins = beats(ours.inserted[clock], table.c[clock])
        return ours.on_duplicate_key_update(
            [(name, func.if_(wins, ours.inserted[name], table.c[name])) for name in changed]
        )
    theirs = _conflicting(dialect, table)
    return theirs.on_conflict_do_update(
        index_elements=list(key),
        set_={name: theirs.excluded[name] for name in changed},
        where=beats(theirs.excluded[clock], table.c[clock]),
    )


def _insert_new(connection: Connection, table: Table, key: tuple[str, ...], rows: list[Row]) -> None:
    if rows:
        connection.execute(_new_only(connection.dialect.name, table, key), rows)


@cache
def _new_only(dialect: str, table: Table, key: tuple[str, ...]) -> Insert:
    if dialect in ("mysql", "mariadb"):
        # Not INSERT IGNORE, which would also cut values that do not fit.
        return mysql.insert(table).on_duplicate_key_update([(key[0], table.c[key[0]])])
    return _conflicting(dialect, table).on_conflict_do_nothing(index_elements=list(key))


def _conflicting(dialect: str, table: Table) -> sqlite.Insert | postgresql.Insert:
    return sqlite.insert(table) if dialect == "sqlite" else postgresql.insert(table)
