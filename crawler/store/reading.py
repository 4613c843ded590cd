"""Questions to the tables whose answers others show: the figures at the end of a crawl.

Reads only, in one transaction; DatabaseError where the database does not answer.
"""

from __future__ import annotations

from typing import TypedDict

from sqlalchemy import Connection, Engine, func, select

from crawler.store.database import transaction
from crawler.store.tables import FINISHED, dead_letters, pages, sites

# How many kinds of failure are told apart; the rest is rarely worth a line.
TOP_STATUSES = 10


class Summary(TypedDict):
    """A crawl in figures; counts are of sites or pages, times milliseconds since 1970 or None without a page."""

    sites: int
    sites_finished: int
    stored: int
    duplicates: int
    redirected: int
    filtered: int
    failed: int
    failed_by_status: dict[int, int]  # the most frequent first; negative: no answer came
    denied: int
    bytes: int  # of stored pages' bodies, decoded
    first_fetch: int | None
    last_fetch: int | None
    dead_letters: int


def summary(engine: Engine) -> Summary:
    """The figures of everything in the database."""
    with transaction(engine) as connection:
        turns = _turns(connection)
        site_states = _site_states(connection)
        times = [time for _, _, first, last in turns.values() for time in (first, last)]
        return Summary(
            sites=sum(site_states.values()),
            sites_finished=site_states.get(FINISHED, 0),
            stored=_number(turns, "stored"),
            duplicates=_number(turns, "duplicate"),
            redirected=_number(turns, "redirected"),
            filtered=_number(turns, "filtered"),
            failed=_number(turns, "failed"),
            failed_by_status=_failed_by_status(connection),
            denied=_number(turns, "denied"),
            bytes=turns["stored"][1] if "stored" in turns else 0,
            first_fetch=min(times, default=None),
            last_fetch=max(times, default=None),
            dead_letters=connection.execute(select(func.count()).select_from(dead_letters)).scalar_one(),
        )


def _site_states(connection: Connection) -> dict[str, int]:
    asked = select(sites.c.state, func.count()).group_by(sites.c.state)
    return dict(connection.execute(asked).all())


# By outcome: pages, bytes, first and last fetch.
_Turns = dict[str, tuple[int, int, int, int]]


def _turns(connection: Connection) -> _Turns:
    fetched = pages.c.fetched_at
    asked = select(
        pages.c.outcome, func.count(), func.sum(pages.c.size), func.min(fetched), func.max(fetched)
    ).group_by(pages.c.outcome)
    return {
        outcome: (count, int(size), first, last)
        for outcome, count, size, first, last in connection.execute(asked)
    }


def _number(turns: _Turns, outcome: str) -> int:
    return turns[outcome][0] if outcome in turns else 0


def _failed_by_status(connection: Connection) -> dict[int, int]:
    count = func.count()
    asked = (
        select(pages.c.status, count)
        .where(pages.c.outcome == "failed")
        .group_by(pages.c.status)
        .order_by(count.desc(), pages.c.status)
        .limit(TOP_STATUSES)
    )
    return dict(connection.execute(asked).all())
