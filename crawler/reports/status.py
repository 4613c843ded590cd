"""Which sites have errors, since when and why; availability and response times (paper 002)."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import func, select

from crawler.printable import printable
from crawler.records import status_in_words
from crawler.store.database import transaction
from crawler.store.queries import by_key
from crawler.store.tables import health, sites
from crawler.views.drawing import Bar, Picture, bars, host

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from crawler.reports import Crawl

# Days of availability and times, up to now.
WINDOWS = (1, 7)
PERCENTILES = (50, 95, 99)
DAY_MS = 86_400_000
# Lines of each list in the text; --json and --csv have every site.
MOST_LINES = 20
MOST_BARS = 10
# Sites whose checks are read at a time: a week of 20 is 40,000 rows at five minutes.
SITES_AT_A_TIME = 20
_ANSWERS = ("normal", "delayed")
_COLOUR = {"normal": "good", "delayed": "warn", "disconnected": "bad", "error": "s3"}
_WORST = ("disconnected", "error", "delayed", "normal")


class _Seen(NamedTuple):
    at: int
    health: str
    latency_ms: int | None


def figures(crawl: Crawl) -> dict[str, Any]:
    """Every checked site, the worst and longest first.

    Availability: share of checks with health normal or delayed. Percentiles: ms to the head. None: no check
    or response in that window. Times: Unix milliseconds.
    """
    now = time.time_ns() // 1_000_000
    with transaction(crawl.engine) as connection:
        unknown = connection.execute(
            select(func.count()).select_from(sites).where(sites.c.health.is_(None))
        ).scalar_one()
    delay_seconds = crawl.options.status_delay_seconds
    found = [_figures_of(row, seen, now, delay_seconds) for row, seen in _checked(crawl.engine, now)]
    found.sort(key=lambda one: (_WORST.index(one["health"]), one["since"], one["site"]))
    many = Counter(one["health"] for one in found)
    return {
        "now": now,
        "sites": len(found),
        "never_checked": unknown,
        "by_health": {word: many[word] for word in _WORST},
        "by_site": found,
    }


def _checked(engine: Engine, now: int) -> Iterator[tuple[Any, list[_Seen]]]:
    query = select(
        *(sites.c.site_id, sites.c.site, sites.c.health, sites.c.health_since),
        *(sites.c.health_status, sites.c.health_at, sites.c.health_told),
    ).where(sites.c.health.is_not(None))
    checked = select(health.c.site_id, health.c.checked_at, health.c.health, health.c.latency_ms).where(
        health.c.checked_at > now - max(WINDOWS) * DAY_MS
    )
    for rows in by_key(engine, query, sites.c.site_id, SITES_AT_A_TIME):
        seen: dict[int, list[_Seen]] = {row.site_id: [] for row in rows}
        with transaction(engine) as connection:
            for site, *check in connection.execute(checked.where(health.c.site_id.in_(seen))):
                seen[site].append(_Seen(*check))
        for row in rows:
            yield row, seen[row.site_id]


def _figures_of(row: Any, seen: list[_Seen], now: int, delay_seconds: float) -> dict[str, Any]:
    found = {
        "site": row.site,
        "health": row.health,
        "since": row.health_since,
        "why": _why(row, seen, delay_seconds),
        "status": row.health_status,
        "checked_at": row.health_at,
        "flaps": row.health_told != row.health,
    }
    for days in WINDOWS:
        found |= _window([one for one in seen if one.at > now - days * DAY_MS], days)
    return found


def _why(row: Any, seen: list[_Seen], delay_seconds: float) -> str:
    """For a slow site, with the time it took."""
    words = status_in_words(row.health_status)
    late_ms = max((one.latency_ms or 0 for one in seen if one.at == row.health_at), default=0)
    if row.health != "delayed" or late_ms <= delay_seconds * 1000:
        return words
    return f"{words} after {late_ms / 1000:.1f} s, above STATUS_DELAY_SECONDS ({delay_seconds:g})"


def _window(seen: list[_Seen], days: int) -> dict[str, Any]:
    answered = sum(one.health in _ANSWERS for one in seen)
    times = sorted(one.latency_ms for one in seen if one.latency_ms is not None)
    figures: dict[str, Any] = {
        f"checks_{days}d": len(seen),
        f"availability_{days}d": round(answered / len(seen), 6) if seen else None,
    }
    for percentile in PERCENTILES:
        figures[f"p{percentile}_ms_{days}d"] = _percentile(times, percentile)
    return figures


def _percentile(times: list[int], percentile: int) -> int | None:
    """By nearest rank."""
    return times[max(0, math.ceil(len(times) * percentile / 100) - 1)] if times else None


def rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """One table."""
    sites_found: list[dict[str, Any]] = found["by_site"]
    return sites_found


def text(found: dict[str, Any]) -> str:
    """For the terminal."""
    if not found["sites"]:
        return "status: no site was checked yet: `scrapy crawl status` checks sites, and so does `scrapy crawl site`"
    counts = ", ".join(f"{many:,} {word}" for word, many in found["by_health"].items() if many)
    head = f"status of {found['sites']:,} {'site' if found['sites'] == 1 else 'sites'}: {counts}"
    if found["never_checked"]:
        head += f"; {found['never_checked']:,} were never checked"
    ill = [one for one in found["by_site"] if one["health"] != "normal"]
    worst = _away_most(found)
    parts = [head]
    if ill:
        parts.append(_list("ill now", [_ill(one, found["now"]) for one in ill]))
    if worst:
        parts.append(_list(f"lowest availability in {WINDOWS[-1]} days", [_away(one) for one in worst]))
    return "\n\n".join(parts)


def pictures(found: dict[str, Any]) -> list[Picture]:
    """Sites by health, and the lowest availabilities."""
    if not found["sites"]:
        return []
    many = [
        Bar(word, found["by_health"][word], f"{found['by_health'][word]:,}", _COLOUR[word])
        for word in _COLOUR
    ]
    drawn = [Picture("Sites by current health", bars(many, "sites by health"))]
    away = [
        Bar(host(one["site"]), 1 - one[_AVAILABILITY], f"{1 - one[_AVAILABILITY]:.1%}", "bad")
        for one in _away_most(found)[:MOST_BARS]
    ]
    if away:
        title = f"Share of failed checks in {WINDOWS[-1]} days"
        drawn.append(Picture(title, bars(away, "checks that failed, by site")))
    return drawn


def _away_most(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Sites with failed checks, the worst first."""
    some = [one for one in found["by_site"] if one[_AVAILABILITY] is not None and one[_AVAILABILITY] < 1]
    return sorted(some, key=lambda one: one[_AVAILABILITY])


_AVAILABILITY = f"availability_{WINDOWS[-1]}d"


def _list(title: str, lines: list[str]) -> str:
    more = len(lines) - MOST_LINES
    shown = lines[:MOST_LINES] + ([f"  … and {more:,} more"] if more > 0 else [])
    return "\n".join([f"{title}:", *shown])


def _ill(one: dict[str, Any], now: int) -> str:
    since = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(one["since"] / 1000))
    flaps = ", flaps" if one["flaps"] else ""
    lasts = _duration((now - one["since"]) / 1000)
    return f"  {one['health']:<12}  since {since} ({lasts})  {printable(one['site'])}: {one['why']}{flaps}"


def _away(one: dict[str, Any]) -> str:
    times = ", ".join(
        f"p{percentile} {one[f'p{percentile}_ms_{WINDOWS[-1]}d']:,} ms"
        for percentile in PERCENTILES
        if one[f"p{percentile}_ms_{WINDOWS[-1]}d"] is not None
    )
    checks = one[f"checks_{WINDOWS[-1]}d"]
    return f"  {one[_AVAILABILITY]:7.2%} of {checks:,} checks  {printable(one['site'])}{f'  {times}' if times else ''}"


def _duration(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
