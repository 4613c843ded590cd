"""What falls due by what was just stored: told to the queue between the commit and the acknowledgement.

So a due time is in the queue for every page that the tables say is to be asked: where the coordinator dies in between,
the records come again and it is told again. One that is too early costs a look, for whoever packs goes by the tables.
What loading saw of its site's health puts off the site's next check.

A server that is full takes no due time. Then the records that made one are not acknowledged either (`witnesses`), but
all others are, which frees memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from crawler import states
from crawler.records import Asked, Health, Page, Record

if TYPE_CHECKING:
    from collections.abc import Iterable

    import redis

    from crawler.options import Options
    from crawler.store.write import Stored


class Due(NamedTuple):
    """What is to be told."""

    revive: dict[str, int]  # site -> ms since 1970, the soonest
    recheck: dict[str, int]
    signalled: dict[str, int]  # site -> when its sitemap last said that pages have changed
    seen: dict[str, int]  # site -> ms since 1970 of the last look at its health that was no check


def due_of(records: Iterable[Record], delays: tuple[float, float], recheck_seconds: float) -> Due:
    """What these records make due; `recheck_seconds` 0: nothing is rechecked."""
    due = Due({}, {}, {}, {})
    for record in records:
        if isinstance(record, Page):
            if (
                record.outcome == "failed"
                and states.load_event(record.outcome, record.status) == "not_loaded"
            ):
                _sooner(due.revive, record.site, record.fetched_at + int(delays[0] * 1000))
            elif recheck_seconds and record.site not in due.recheck:
                due.recheck[record.site] = record.fetched_at + int(recheck_seconds * 1000)
            if recheck_seconds and record.lastmods:
                due.signalled[record.site] = record.fetched_at
        elif isinstance(record, Asked):
            _note_asked(due, record, delays)
            if recheck_seconds and record.answer == "answers":
                _sooner(due.recheck, record.site, record.asked_at + int(recheck_seconds * 1000))
        elif isinstance(record, Health) and record.seen_by == "traffic":
            due.seen[record.site] = max(record.checked_at, due.seen.get(record.site, 0))
    return due


def _note_asked(due: Due, record: Asked, delays: tuple[float, float]) -> None:
    following = states.NEXT.get((record.before, record.answer))
    if following is None:
        return
    seconds = states.delay_until_next(following, delays)
    if seconds is not None:
        _sooner(due.revive, record.site, record.asked_at + int(seconds * 1000))


def witnesses(stored: Iterable[Stored], options: Options) -> list[Stored]:
    """A few of these records, with which the same falls due as with all of them: the first that says so each time."""
    known: set[tuple[str, str]] = set()
    chosen = []
    for one in stored:
        due = due_of([one.record], options.revive_delays, options.first_recheck_seconds)
        facts = {(kind, site) for kind, sites in due._asdict().items() for site in sites}
        if not facts <= known:
            known |= facts
            chosen.append(one)
    return chosen


def _sooner(times: dict[str, int], site: str, at: int) -> None:
    times[site] = min(at, times.get(site, at))


def tell(client: redis.Redis, prefix: str, options: Options, records: Iterable[Record]) -> None:
    """Into the queue; a site that is due sooner stays so, and one that recheck has a time for keeps it.

    A check is put off where it has a time already: no other site is watched.
    """
    due = due_of(records, options.revive_delays, options.first_recheck_seconds)
    if not any(due):
        return
    base = f"{prefix}:{{0}}:"
    pipe = client.pipeline(transaction=False)
    if due.revive:
        pipe.zadd(f"{base}wake:revive", due.revive, lt=True)
    if due.recheck:
        pipe.zadd(f"{base}wake:recheck", due.recheck, nx=True)
    if due.signalled:
        # Of a site that waits to be looked at. One that is in hand, or was never looked at, is looked at soon.
        pipe.zadd(f"{base}wake:recheck", due.signalled, xx=True, lt=True)
    if due.seen:
        ms = int(options.status_interval_seconds * 1000)
        checks = {site: at + ms for site, at in due.seen.items()}
        pipe.zadd(f"{base}wake:status", checks, xx=True, gt=True)
    pipe.execute()
