"""Top-level domains of the stored pages (paper 001, table 2.1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select

from crawler.store.queries import in_stretches
from crawler.store.tables import pages
from crawler.urls.url import host_of
from crawler.views.drawing import Bar, Picture, bars
from crawler.views.figures import site_names

if TYPE_CHECKING:
    from crawler.reports import Crawl

# The rows of the paper's table; the rest is its "other" (기타).
TABLE = ("com", "edu", "gov", "net", "mil", "org")
MOST_LINES = 20
# For hosts that are addresses or single labels.
NO_NAME = "no name"


def figures(crawl: Crawl) -> dict[str, Any]:
    """Stored pages by top-level domain, and as in the paper."""
    query = select(pages.c.site_id, func.count()).where(pages.c.outcome == "stored").group_by(pages.c.site_id)
    by_site: Counter[int] = Counter()
    for site_id, many in in_stretches(crawl.engine, pages, query):
        by_site[site_id] += many
    found: Counter[str] = Counter()
    for site_id, site in site_names(crawl.engine):
        found[top_level(site)] += by_site[site_id]
    return {"pages": found.total(), "domains": shares(found), "table": shares(as_table(found), TABLE)}


def top_level(site: str) -> str:
    """NO_NAME if the host has none."""
    host = host_of(site)
    last = host.rpartition(".")[2]
    return NO_NAME if ":" in host or last.isdigit() or "." not in host else last


def as_table(found: Mapping[str, int]) -> Counter[str]:
    """In the rows of the paper's table."""
    table = Counter(dict.fromkeys((*TABLE, "other"), 0))
    for name, many in found.items():
        table[name if name in TABLE else "other"] += many
    return table


def shares(found: Mapping[str, int], order: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Pages and shares (0 to 1), in this order, then by number."""
    whole = sum(found.values())
    rest = sorted((name for name in found if name not in order), key=lambda name: (-found[name], name))
    return [
        {"domain": name, "pages": found[name], "share": round(found[name] / whole, 4) if whole else 0.0}
        for name in (*order, *rest)
        if found[name] or order
    ]


def text(found: dict[str, Any]) -> str:
    """For the terminal."""
    if not found["pages"]:
        return "  no page is stored yet"
    lines = [_line(one) for one in found["table"]]
    lines += [f"  {'all':<12} {found['pages']:>12,}", "", *map(_line, found["domains"][:MOST_LINES])]
    left = len(found["domains"]) - MOST_LINES
    return "\n".join([*lines, f"  … and {left} more: --json has them"] if left > 0 else lines)


def _line(one: dict[str, Any]) -> str:
    return f"  {one['domain']:<12} {one['pages']:>12,}  {one['share']:>6.1%}"


def rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """One table."""
    return list(found["domains"])


def pictures(found: dict[str, Any]) -> list[Picture]:
    """For a page."""
    shown = [
        Bar(one["domain"], one["pages"], f"{one['pages']:,}   {one['share']:.1%}")
        for one in found["domains"][:MOST_LINES]
    ]
    return [Picture("Stored pages by top-level domain", bars(shown, "pages by domain"))] if shown else []
