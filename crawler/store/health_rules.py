"""What checks say of sites into the tables: every check into the history, a site's course, and changes to be told.

A check that comes twice, late or out of order changes the history alone: a site's course goes by the clock of its
checks. The rows of the sites are locked while their courses are read and written, so two coordinators make no change
twice and miss none.
"""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from crawler.status.health import Course, follow
from crawler.store.rows import NAMED_COLUMNS, Row, clean, named_row, site_id
from crawler.store.tables import health, health_changes, sites
from crawler.store.upsert import Upsert, write

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sqlalchemy import Connection

    from crawler.records import Health
    from crawler.status.health import Change

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
# Sites whose courses are read by one statement.
_AT_A_TIME = 500


def store(connection: Connection, checks: list[Health], half_life_seconds: float) -> None:
    """Writes the checks of a batch; the sites have rows by now."""
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


def _courses(connection: Connection, numbers: Iterable[int]) -> dict[int, Course]:
    """What is known of these sites, locked until the transaction ends; in the order of keys, as all writers go."""
    found: dict[int, Course] = {}
    for some in _in_parts(sorted(numbers)):
        asked = (
            select(
                sites.c.site_id,
                *(sites.c.health, sites.c.health_since, sites.c.health_at, sites.c.health_told),
                *(sites.c.health_penalty, sites.c.health_damped),
            )
            .where(sites.c.site_id.in_(some))
            .order_by(sites.c.site_id)
            .with_for_update()
        )
        for number, word, since, at, told, penalty, damped in connection.execute(asked):
            if word is not None:
                found[number] = Course(word, since, at, told, penalty, bool(damped))
    return found


def _in_parts(numbers: list[int]) -> Iterator[list[int]]:
    for start in range(0, len(numbers), _AT_A_TIME):
        yield numbers[start : start + _AT_A_TIME]


def _course_row(site: str, course: Course, status: int) -> Row:
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
