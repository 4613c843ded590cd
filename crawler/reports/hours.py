"""The hour table: the first sites of each of the next 24 hours (paper 000's table).

Computed as by the planner, with the policy of the last agent, else SITE_SCHEDULER.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from crawler.coordinator.planner_process import TableLoads
from crawler.local.local import joined
from crawler.planning.load import FULL, UNKNOWN
from crawler.planning.planner import Planner
from crawler.queue import connection
from crawler.queue.queue import SiteQueue
from crawler.views.drawing import HeatRow, Picture, heat, host

if TYPE_CHECKING:
    from collections.abc import Iterator

    from crawler.planning.planner import Seen
    from crawler.reports import Crawl

# Sites per column.
TOP = 10
# Columns side by side, and characters of a site's name, for 100 columns of a terminal.
SIDE_BY_SIDE, WIDTH = 4, 24
# Of the picture.
MOST_ROWS = 60


def figures(crawl: Crawl) -> dict[str, Any]:
    """The first TOP sites of each hour; loads in per cent, None: unknown."""
    with joined(crawl.settings, crawl.options):
        seen, columns = asyncio.run(_look(crawl))
    names, load = seen.prospects.names, seen.view.load
    return {
        "scheduler": seen.orders.scheduler,
        "sites": len(names),
        "hour_seconds": seen.orders.hour_seconds,
        "hours": [
            {
                "hour": seen.hour + step,
                "sites": [
                    {"site": names[row], "load": _per_cent(int(load[row, step]))} for row in columns[step]
                ],
            }
            for step in range(len(columns))
        ],
    }


async def _look(crawl: Crawl) -> tuple[Seen, list[list[int]]]:
    client = connection.connect(crawl.settings)
    loads = TableLoads(crawl.options)
    try:
        queue = SiteQueue(client, crawl.options)
        planner = Planner(queue, crawl.options, loads, "report")
        seen = await planner.see()
        return seen, planner.columns(seen, TOP)
    finally:
        loads.close()
        await client.aclose()


def _per_cent(load: int) -> int | None:
    return None if load == UNKNOWN else round(load / FULL * 100)


def text(found: dict[str, Any]) -> str:
    """SIDE_BY_SIDE hours per block, with each site's load."""
    if not found["sites"]:
        return f"hour table by {found['scheduler']}: no site waits"
    head = f"hour table by {found['scheduler']}, {found['sites']:,} sites, load in %"
    hours = found["hours"]
    blocks = [_block(hours[start : start + SIDE_BY_SIDE]) for start in range(0, len(hours), SIDE_BY_SIDE)]
    return "\n\n".join([head, *blocks])


def rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each hour and rank."""
    return [
        {"hour": one["hour"], "place": place, **site}
        for one in found["hours"]
        for place, site in enumerate(one["sites"], 1)
    ]


def pictures(found: dict[str, Any]) -> list[Picture]:
    """Sites by the hours in which they come first."""
    sites = list(dict.fromkeys(row["site"] for row in rows(found)))
    if not sites:
        return []
    shown = sites[:MOST_ROWS]
    more = f", {len(sites) - len(shown):,} later ones left out" if len(sites) > len(shown) else ""
    title = f"Sites that come first in each hour by {found['scheduler']}, by their loads{more}"
    named = [f"{_clock(one['hour'])}h" for one in found["hours"]]
    drawn = heat(
        list(_heat_rows(found, shown)), named, title, crossed=("later", f"not among the first {TOP}")
    )
    return [Picture(title, drawn, wide=True)]


def _heat_rows(found: dict[str, Any], sites: list[str]) -> Iterator[HeatRow]:
    first = [{one["site"]: one["load"] for one in hour["sites"]} for hour in found["hours"]]
    for site in sites:
        loads = [hour.get(site, 0) for hour in first]  # 0 in crossed-out cells
        cells = [None if load is None else load / 100 for load in loads]
        yield HeatRow(host(site), cells, [site in hour for hour in first])


def _block(hours: list[dict[str, Any]]) -> str:
    title = "  ".join(f"{'hour ' + _clock(one['hour']):<{WIDTH + 5}}" for one in hours)
    depth = max(len(one["sites"]) for one in hours)
    rows = [
        "  ".join(_cell(one["sites"][row]) if row < len(one["sites"]) else " " * (WIDTH + 5) for one in hours)
        for row in range(depth)
    ]
    return "\n".join(line.rstrip() for line in [title, *rows])


def _clock(hour: int) -> str:
    return f"{hour % 24:02}"


def _cell(one: dict[str, Any]) -> str:
    name = one["site"].partition("://")[2]
    name = name if len(name) <= WIDTH else name[: WIDTH - 1] + "…"
    load = "  ?" if one["load"] is None else f"{one['load']:3}"
    return f"{name:<{WIDTH}}  {load}"
