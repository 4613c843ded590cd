"""Ranks: the first pages, and how importance is distributed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy import select

from crawler.printable import printable
from crawler.store.database import transaction
from crawler.store.tables import rankings, ranks
from crawler.views.drawing import Picture, curve
from crawler.views.figures import ranked_stretches, top_pages

if TYPE_CHECKING:
    from crawler.reports import Crawl

MOST_PAGES = 20
# Points of the curve: quarter powers of ten around the mean.
LEVELS = np.array([10 ** (step / 4) for step in range(-16, 25)])


def figures(crawl: Crawl) -> dict[str, Any]:
    """The ranking in force; `run`: None before the first.

    Importance is rank times pages: 1 on average.
    """
    above = np.zeros(len(LEVELS), np.int64)
    run = None
    for run, first, last in ranked_stretches(crawl.engine):  # the last one counts
        query = select(ranks.c.importance).where(ranks.c.run == run, ranks.c.site_id.between(first, last))
        with transaction(crawl.engine) as db:
            found = np.sort(np.array(db.execute(query).scalars().all(), float))
        above += len(found) - np.searchsorted(found, LEVELS)
    spread = [
        {"importance": float(f"{level:.4g}"), "pages": int(many)}
        for level, many in zip(LEVELS, above, strict=True)
        if many
    ]
    return {**_about(crawl, run), "top": top_pages(crawl.engine, MOST_PAGES), "spread": _ends(spread)}


def _about(crawl: Crawl, run: int | None) -> dict[str, Any]:
    names = ("run", "mode", "block", "damping", "pages", "finished_at")
    query = select(*(rankings.c[name] for name in names)).where(rankings.c.run == run)
    with transaction(crawl.engine) as db:
        row = db.execute(query).mappings().first()
    return dict(row) if row else dict.fromkeys(names)


def _ends(spread: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the flat start."""
    whole = spread[0]["pages"] if spread else 0
    flat = sum(one["pages"] == whole for one in spread)
    return spread[max(0, flat - 1) :]


def text(found: dict[str, Any]) -> str:
    """For the terminal."""
    if found["run"] is None:
        return "  nothing is ranked yet: `scrapy convert`, then `scrapy rank`"
    lines = [
        f"  {found['pages']:,} pages by {found['mode']}, blocks are {found['block']}s; importance is 1 on average"
    ]
    lines += [
        f"  {one['importance']:>12,.2f}  {printable(one['url'])}  {printable(one['title'])}".rstrip()
        for one in found["top"]
    ]
    return "\n".join(lines)


def rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """One table."""
    return list(found["top"])


def pictures(found: dict[str, Any]) -> list[Picture]:
    """Pages above each importance, on logarithmic scales."""
    points = [(one["importance"], float(one["pages"])) for one in found["spread"]]
    if len(points) < 2:
        return []
    title = "Pages with at least this importance (1 is the average)"
    return [Picture(title, curve(points, "importance", "pages", title))]
