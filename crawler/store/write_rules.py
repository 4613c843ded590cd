"""SQL rules for pages' states (crawler.states) and sites' health (crawler.status.health).

Repeated, late and out-of-order records change no state. Passes the database's errors on.
"""

from __future__ import annotations

from functools import cache
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Connection,
    String,
    and_,
    bindparam,
    case,
    func,
    literal_column,
    or_,
    select,
    update,
)

from crawler import states
from crawler.status.health import StatusHistory, follow
from crawler.store.rows import NAMED_COLUMNS, Row, clean, named_row, site_id
from crawler.store.tables import health, health_changes, pages, sites
from crawler.store.upsert import Upsert, write

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sqlalchemy.sql.dml import Update

    from crawler.records import Health, RecheckResult
    from crawler.status.health import Change
    from crawler.store.upsert import Rule


def _word(text: str) -> Any:
    """An inline literal: upserts have placeholders for the row only."""
    return literal_column(f"'{text}'", String)


_INIT, _VISITED = _word("init"), _word("visited")
# States that a failed load does not change.
_STAYS = [_word(state) for state in (*states.SILENT, "dead")]
_NONE: Any = literal_column("NULL", BigInteger)


def _is_stale(new: Any, old: Any) -> Any:
    return old.last_checked > new.fetched_at


def _last_changed(new: Any, old: Any) -> Any:
    """By the hash of the text, or else of the body."""
    content = func.coalesce(new.content_hash, new.sha256)
    differs = content != func.coalesce(old.content_hash, old.sha256)
    return case((differs, new.fetched_at), else_=old.last_changed)


def _next_check(new: Any, old: Any) -> Any:
    return case(
        (_is_stale(new, old), old.next_check),
        (new.state == _VISITED, _NONE),
        (or_(new.state == _INIT, old.state.in_(_STAYS)), old.next_check),
        else_=new.next_check,
    )


def _fails(new: Any, old: Any) -> Any:
    return case(
        (_is_stale(new, old), old.fails),
        (new.state == _VISITED, new.fails),
        (or_(new.state == _INIT, old.state.in_(_STAYS)), old.fails),
        else_=old.fails + new.fails,
    )


def _state(new: Any, old: Any) -> Any:
    return case(
        (_is_stale(new, old), old.state),
        (new.state == _VISITED, new.state),
        (or_(new.state == _INIT, old.state.in_(_STAYS)), old.state),
        else_=new.state,
    )


def _last_checked(new: Any, old: Any) -> Any:
    return case((_is_stale(new, old), old.last_checked), else_=new.fetched_at)


def _walked_at(new: Any, old: Any) -> Any:
    """Jobs other than `site` have 0 here: the time of its last load stays."""
    return case((new.walked_at.is_(None), _NONE), else_=func.coalesce(old.walked_at, old.fetched_at))


def _sitemap_lastmod(new: Any, old: Any) -> Any:
    """The later one of both."""
    known = old.sitemap_lastmod
    return case((or_(known.is_(None), known < new.sitemap_lastmod), new.sitemap_lastmod), else_=known)


# Columns that a load computes, in this order: each rule reads columns that later ones change.
OF_A_LOAD: tuple[tuple[str, Rule], ...] = (
    ("last_changed", _last_changed),
    ("next_check", _next_check),
    ("fails", _fails),
    ("state", _state),
    ("last_checked", _last_checked),
    ("walked_at", _walked_at),
    ("sitemap_lastmod", _sitemap_lastmod),
)


class LifeStep(NamedTuple):
    """A recheck's effect on a page in state `before`."""

    site_id: int
    url_hash: int
    asked_at: int
    before: str
    after: str
    unloaded: str  # the state instead of `after` if its content was never stored
    failed: int  # 1: one more consecutive failure; 0: no change; -1: reset to 0
    next_check: int | None


def life_step(asked: RecheckResult, site_id: int, url_hash: int, delays: tuple[float, float]) -> LifeStep:
    """The step of a recheck's result; raises IllegalTransitionError."""
    state = states.after(asked.before, asked.answer)
    brings_content = asked.answer == "answers" and 200 <= asked.status < 300
    unloaded = states.after(asked.before, asked.answer, has_body=not brings_content)
    seconds = states.delay_until_next(state, delays)
    moved = -1 if asked.answer in ("answers", "unchanged", "changed") else int(asked.answer == "silent")
    due = None if seconds is None else asked.asked_at + int(seconds * 1000)
    return LifeStep(site_id, url_hash, asked.asked_at, asked.before, state, unloaded, moved, due)


def write_lives(connection: Connection, steps: list[LifeStep]) -> int:
    """Applies the steps in order of time; returns how many took effect."""
    if not steps:
        return 0
    ordered = sorted(steps)
    taken: int = connection.execute(_statement(), [_values(one) for one in ordered]).rowcount
    return taken


def _values(one: LifeStep) -> dict[str, Any]:
    return {f"new_{name}": value for name, value in one._asdict().items()}


@cache
def _statement() -> Update:
    def new(name: str, kind: Any = BigInteger) -> Any:
        return bindparam(f"new_{name}", type_=kind() if isinstance(kind, type) else kind)

    found = and_(
        pages.c.site_id == new("site_id"),
        pages.c.url_hash == new("url_hash"),
        pages.c.state == new("before", pages.c.state.type),
        or_(pages.c.last_checked.is_(None), pages.c.last_checked < new("asked_at")),
    )
    unloaded = pages.c.sha256.is_(None)
    word = pages.c.state.type
    return (
        update(pages)
        .where(found)
        .ordered_values(
            ("fails", case((new("failed") < 0, 0), else_=pages.c.fails + new("failed"))),
            ("next_check", new("next_check")),
            ("last_checked", new("asked_at")),
            ("state", case((unloaded, new("unloaded", word)), else_=new("after", word))),
        )
    )


# --- Health checks of sites -------------------------------------------------------------------------------


_COURSE_COLUMNS = (
    *("health", "health_since", "health_status", "health_told", "health_penalty", "health_damped"),
    "health_at",
)
_HISTORY_COLUMNS = (
    *("agent", "run", "seq", "site_id", "checked_at", "health", "status", "path", "pages", "tries"),
    *("seen_by", "latency_ms", "connect_ms", "head_ms", "body_ms", "address", "error"),
)
_CHANGE_COLUMNS = (
    *("agent", "run", "seq", "site_id", "site", "was", "now", "since", "seen_at", "status", "error"),
)


def _is_later(new: Any, old: Any) -> Any:
    return (new > old) | old.is_(None)


COURSES = Upsert(
    "courses", sites, (*NAMED_COLUMNS, *_COURSE_COLUMNS), ("site_id",), _COURSE_COLUMNS, _is_later
)
HISTORY = Upsert("health", health, _HISTORY_COLUMNS, ("agent", "run", "seq"))
CHANGES = Upsert("health_changes", health_changes, _CHANGE_COLUMNS, ("agent", "run", "seq"))
# Sites per SELECT.
_AT_A_TIME = 500


def store_healths(connection: Connection, checks: list[Health], half_life_seconds: float) -> None:
    """Writes checks, sites' new health and its changes; sites must have rows.

    These are locked until commit, so that each change is stored once.
    """
    if not checks:
        return
    checks = sorted(checks, key=attrgetter("site", "checked_at", "agent", "run", "seq"))
    write(connection, HISTORY, sorted(map(_history_row, checks)))
    courses = _courses(connection, {site_id(check.site) for check in checks})
    rows: list[Row] = []
    changes: list[Row] = []
    for site, of_site in groupby(checks, key=attrgetter("site")):
        before = courses.get(site_id(site))
        course, last = before, None
        for check in of_site:
            followed, change = follow(course, check.health, check.checked_at, half_life_seconds)
            if followed != course:
                course, last = followed, check
            if change is not None:
                changes.append(_change_row(check, change))
        if course is not None and last is not None:
            rows.append(_course_row(site, course, last.status))
    write(connection, COURSES, sorted(rows))
    write(connection, CHANGES, sorted(changes))


def _courses(connection: Connection, numbers: Iterable[int]) -> dict[int, StatusHistory]:
    """The sites' status history, FOR UPDATE in key order (avoids deadlocks)."""
    found: dict[int, StatusHistory] = {}
    for some in _in_parts(sorted(numbers)):
        query = (
            select(
                sites.c.site_id,
                *(sites.c.health, sites.c.health_since, sites.c.health_at, sites.c.health_told),
                *(sites.c.health_penalty, sites.c.health_damped),
            )
            .where(sites.c.site_id.in_(some))
            .order_by(sites.c.site_id)
            .with_for_update()
        )
        for number, state, since, at, reported, penalty, damped in connection.execute(query):
            if state is not None:
                found[number] = StatusHistory(state, since, at, reported, penalty, bool(damped))
    return found


def _in_parts(numbers: list[int]) -> Iterator[list[int]]:
    for start in range(0, len(numbers), _AT_A_TIME):
        yield numbers[start : start + _AT_A_TIME]


def _course_row(site: str, course: StatusHistory, status: int) -> Row:
    return (
        *named_row(site),
        *(course.health, course.since, status, course.told, course.penalty, int(course.damped)),
        course.at,
    )


def _history_row(check: Health) -> Row:
    return (
        *(clean(check.agent), clean(check.run), check.seq, site_id(check.site), check.checked_at),
        *(check.health, check.status, clean(check.path), check.pages, check.tries, check.seen_by),
        *(check.latency_ms, check.connect_ms, check.head_ms, check.body_ms),
        *(clean(check.address) or None, clean(check.error) or None),
    )


def _change_row(check: Health, change: Change) -> Row:
    return (
        *(clean(check.agent), clean(check.run), check.seq, site_id(check.site), clean(check.site)),
        *(change.was, change.now, change.since, check.checked_at, check.status, clean(check.error) or None),
    )
