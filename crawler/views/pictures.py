"""Pictures that more than one view shows, drawn from crawler.views.figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from crawler.views.drawing import Column, HeatRow, Picture, columns, heat

HOURS_OF_DAY = 24


def load_heat(found: dict[str, Any], most: int) -> Picture:
    """Sites by the 24 hours to come, the busiest first, this hour marked; `found` is of figures.Loads."""
    shown = found["sites"][:most]
    hours = [f"{(found['hour'] + step) % HOURS_OF_DAY:02}h" for step in range(HOURS_OF_DAY)]
    rows = [HeatRow(host(one["site"]), one["load"], one["open"]) for one in shown]
    left = found["known"] - len(shown) if len(shown) > 1 else 0
    more = f", {left:,} less busy ones left out" if left else ""
    what = "Load" if len(shown) == 1 else f"Load of {len(shown):,} sites"
    title = f"{what} in the next 24 hours (UTC){more}"
    return Picture(title, heat(rows, hours, title), wide=True)


def pace_columns(found: Sequence[dict[str, Any]], title: str, most: int = 48) -> Picture:
    """Pages of each hour, stacked by scheduler: the last `most`, a day at least, of figures.pages_per_hour.

    There must be some.
    """
    schedulers = sorted({one["scheduler"] for one in found})
    by_hour: dict[int, dict[str, int]] = {}
    for one in found:
        by_hour.setdefault(one["hour"], {})[one["scheduler"]] = one["pages"]
    first, last = min(by_hour), max(by_hour)
    given = [
        Column(f"{hour % HOURS_OF_DAY:02}h", [by_hour.get(hour, {}).get(name, 0) for name in schedulers])
        for hour in range(max(min(first, last - HOURS_OF_DAY + 1), last - most + 1), last + 1)
    ]
    return Picture(title, columns(given, schedulers, title))


def host(site: str) -> str:
    """A site's name without its scheme: what there is room for."""
    return site.partition("://")[2] or site
