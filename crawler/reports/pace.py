"""Pages per hour, by scheduler (paper 000's figure 5)."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from crawler.views.drawing import Picture, pace_columns
from crawler.views.figures import pages_per_hour

if TYPE_CHECKING:
    from crawler.reports import Crawl

# Lines of the text, the last hours; --json has all.
MOST_LINES = 48
_WIDTH = 30


def figures(crawl: Crawl) -> dict[str, Any]:
    """Fetched, stored and failed pages by hour and scheduler; means."""
    hours = pages_per_hour(crawl.engine, crawl.options.hour_seconds)
    by_scheduler: dict[str, list[int]] = defaultdict(list)
    for one in hours:
        by_scheduler[one["scheduler"]].append(one["pages"])
    return {
        "hour_seconds": crawl.options.hour_seconds,
        "hours": hours,
        "schedulers": [
            {
                "scheduler": name,
                "hours": len(many),
                "pages": sum(many),
                "pages_per_hour": sum(many) / len(many),
            }
            for name, many in sorted(by_scheduler.items())
        ],
    }


def text(found: dict[str, Any]) -> str:
    """For the terminal."""
    if not found["hours"]:
        return "  nothing was fetched yet"
    lines = [
        f"  {one['scheduler'] or 'unknown':<12} {one['pages_per_hour']:>12,.0f} pages/h over {one['hours']} hours"
        for one in found["schedulers"]
    ]
    shown = found["hours"][-MOST_LINES:]
    most = max(one["pages"] for one in shown)
    lines.append("")
    for one in shown:
        at = time.strftime("%Y-%m-%d %H:%M", time.gmtime(one["hour"] * found["hour_seconds"]))
        bar = "█" * max(1, round(_WIDTH * one["pages"] / most))
        lines.append(f"  {at}  {one['scheduler']:<8} {one['pages']:>10,}  {bar}")
    return "\n".join(lines)


def rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """One table."""
    return list(found["hours"])


def pictures(found: dict[str, Any]) -> list[Picture]:
    """For a page."""
    if not found["hours"]:
        return []
    return [pace_columns(found["hours"], "Pages per hour by scheduler (hours in UTC)")]
