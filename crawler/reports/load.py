"""Load of each site in the next 24 hours, the busiest first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crawler.views.drawing import load_heat
from crawler.views.figures import Loads

if TYPE_CHECKING:
    from crawler.reports import Crawl
    from crawler.views.drawing import Picture

# Lines of the text; --json has every site.
MOST_LINES = 40
# Of the picture.
MOST_ROWS = 60
HOURS = 24
# One block per hour: the taller, the busier.
_BLOCKS = "▁▂▃▄▅▆▇█"
_CLOSED, _NOTHING = "-", "."
# Of a site's name.
_WIDTH = 40


def figures(crawl: Crawl) -> dict[str, Any]:
    """Sites with a known load, the busiest first; 0 to 1 from this hour on, None: unknown."""
    return Loads().picture(crawl.engine, crawl.options)


def text(found: dict[str, Any]) -> str:
    """For the terminal."""
    sites = found["sites"]
    if not sites:
        return "  no load is known yet: agents measure it on sites with three or more pages in an hour"
    lines = [f"  {'site':<{_WIDTH}} {_scale(found):<{HOURS}} pages/h  visits"]
    shown = sites if len(sites) < MOST_LINES else sites[: MOST_LINES - 2]
    lines += map(_line, shown)
    if len(shown) < len(sites):
        lines.append(
            f"  … and {len(sites) - len(shown):,} sites more, all of them less busy: --json has them"
        )
    return "\n".join(lines)


def _scale(found: dict[str, Any]) -> str:
    """The hour (UTC) above every sixth column."""
    hours = [found["hour"] + step for step in range(0, HOURS, 6)]
    return "".join(f"{hour % HOURS:02}h   " for hour in hours)


def _line(one: dict[str, Any]) -> str:
    name = one["site"] if len(one["site"]) <= _WIDTH else one["site"][: _WIDTH - 1] + "…"
    hours = "".join(map(_block, one["load"], one["open"]))
    pace = "-" if one["pages_per_hour"] is None else f"{one['pages_per_hour']:,.0f}"
    visits = f"{one['visits']:,}" + (", imported" if one["imported"] else "")
    return f"  {name:<{_WIDTH}} {hours} {pace:>7}  {visits}"


def _block(load: float | None, is_open: bool) -> str:
    if not is_open:
        return _CLOSED
    return _NOTHING if load is None else _BLOCKS[min(int(load * len(_BLOCKS)), len(_BLOCKS) - 1)]


def rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each site; h00 is the current hour."""
    return [
        {
            **{name: value for name, value in one.items() if name not in ("load", "open")},
            **{f"h{step:02}": load for step, load in enumerate(one["load"])},
        }
        for one in found["sites"]
    ]


def pictures(found: dict[str, Any]) -> list[Picture]:
    """The sites by hours."""
    return [load_heat(found, MOST_ROWS)] if found["sites"] else []
