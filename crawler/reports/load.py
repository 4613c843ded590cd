"""How busy each site will be in the next 24 hours, the busiest first: when it is best visited is seen at once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from crawler.sites.load import FULL, UNKNOWN
from crawler.store.loads import load_table

if TYPE_CHECKING:
    from crawler.reports import Crawl

# Lines of the text; --json has every site.
MOST_LINES = 40
HOURS = 24
# One block an hour: the taller, the busier.
_BLOCKS = "▁▂▃▄▅▆▇█"
_CLOSED, _NOTHING = "-", "."
# Of a site's name.
_WIDTH = 40


def figures(crawl: Crawl) -> dict[str, Any]:
    """All sites of which something is known, the busiest first; loads 0 to 1 from this hour on, None: unknown."""
    hour_seconds = crawl.options.hour_seconds
    hour = int(time.time() // hour_seconds)
    table = load_table(crawl.engine)
    found, reference = table.forecast(hour)
    is_open = table.is_open(hour, hour_seconds)
    known = found != UNKNOWN
    loads = np.where(known, found / FULL, 0.0)
    mean = loads.sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    order = sorted(range(len(table)), key=lambda row: (-mean[row], table.names[row]))
    return {
        "hour": hour,
        "hour_seconds": hour_seconds,
        "begins_at": int(hour * hour_seconds * 1000),
        "pages_per_hour_idle": reference * hour_seconds / 3600,
        "sites": [
            {
                "site": table.names[row],
                "load": [
                    round(float(load), 3) if there else None
                    for load, there in zip(loads[row], known[row], strict=True)
                ],
                "open": is_open[row].tolist(),
                "mean_load": round(float(mean[row]), 3),
                "pages_per_hour": _pace(reference, hour_seconds, found[row, 0], table.delays[row]),
                "visits": table.visits[row],
                "delay_seconds": _told(table.delays[row]),
                "hours_open": table.windows[row],
                "imported": bool((table.imported[row] != UNKNOWN).any()),
            }
            for row in order
        ],
    }


def text(found: dict[str, Any]) -> str:
    """A line for each of the busiest sites."""
    sites = found["sites"]
    if not sites:
        return "  no load is known yet: agents tell it of sites with three pages and more in an hour"
    lines = [f"  {'site':<{_WIDTH}} {_scale(found):<{HOURS}} pages/h  visits"]
    shown = sites if len(sites) < MOST_LINES else sites[: MOST_LINES - 2]
    lines += map(_line, shown)
    if len(shown) < len(sites):
        lines.append(
            f"  … and {len(sites) - len(shown):,} sites more, all of them less busy: --json has them"
        )
    return "\n".join(lines)


def _scale(found: dict[str, Any]) -> str:
    """The hour of the day (UTC) above the first column and every sixth behind it."""
    hours = [found["hour"] + step for step in range(0, HOURS, 6)]
    return "".join(f"{hour % HOURS:02}h   " for hour in hours)


def _line(one: dict[str, Any]) -> str:
    name = one["site"] if len(one["site"]) <= _WIDTH else one["site"][: _WIDTH - 1] + "…"
    hours = "".join(map(_block, one["load"], one["open"]))
    pace = "-" if one["pages_per_hour"] is None else f"{one['pages_per_hour']:,.0f}"
    told = f"{one['visits']:,}" + (", imported" if one["imported"] else "")
    return f"  {name:<{_WIDTH}} {hours} {pace:>7}  {told}"


def _block(load: float | None, is_open: bool) -> str:
    if not is_open:
        return _CLOSED
    return _NOTHING if load is None else _BLOCKS[min(int(load * len(_BLOCKS)), len(_BLOCKS) - 1)]


def _pace(reference: float, hour_seconds: float, load: int, delay: float) -> float | None:
    """Pages of this hour by one connection; None: nobody knows."""
    if not reference or load == UNKNOWN:
        return None
    pace = reference * hour_seconds / 3600 * (1 - int(load) / FULL)
    return round(min(pace, hour_seconds / float(delay)) if delay > 0 else pace, 1)


def _told(delay: float) -> float | None:
    return None if np.isnan(delay) else round(float(delay), 3)
