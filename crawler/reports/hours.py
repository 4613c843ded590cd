"""The hour table: which sites come first in each of the next 24 hours, by the crawl's policy (paper 000's table).

Made anew from the queue and the tables, as the planner would make it now; the crawl's own policy is the one its last
agent named, else SITE_SCHEDULER.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from crawler.sites import connection
from crawler.sites.load import FULL, UNKNOWN
from crawler.sites.planner import Planner
from crawler.sites.queue import SiteQueue
from crawler.store.joining import joined
from crawler.store.planning import TableLoads

if TYPE_CHECKING:
    from crawler.reports import Crawl
    from crawler.sites.planner import Seen

# Sites named in a column.
TOP = 10
# Hours side by side, and characters of a site's name, in 100 columns of a terminal.
SIDE_BY_SIDE, WIDTH = 4, 24


def figures(crawl: Crawl) -> dict[str, Any]:
    """The policy, and for each hour the sites in its order, the first TOP; loads in per cent, None where unknown."""
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
    """The table, SIDE_BY_SIDE hours at a time; behind each site its load in that hour."""
    if not found["sites"]:
        return f"hour table by {found['scheduler']}: no site waits"
    head = f"hour table by {found['scheduler']}, {found['sites']:,} sites, load in %"
    hours = found["hours"]
    blocks = [_block(hours[start : start + SIDE_BY_SIDE]) for start in range(0, len(hours), SIDE_BY_SIDE)]
    return "\n\n".join([head, *blocks])


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
