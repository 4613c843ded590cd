"""What a crawl found, in a few lines: shown at its end and by `scrapy report summary`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from crawler.store import reading
from crawler.views.drawing import Bar, Picture, bars
from crawler.views.words import size_word, status_word

if TYPE_CHECKING:
    from crawler.reports import Crawl

# Seeds that redirect, named in the text.
MOVED_SHOWN = 3


def figures(crawl: Crawl, since_ms: int = 0) -> dict[str, Any]:
    """All that the database holds, and the fetches since a time."""
    found: dict[str, Any] = dict(reading.summary(crawl.engine))
    fetched, first, last = reading.turns_since(crawl.engine, since_ms)
    seconds = (last - first) / 1000 if first is not None and last is not None else 0.0
    return {
        **found,
        "moved": reading.moved(crawl.engine),
        "fetched": fetched,
        "seconds": seconds,
        "pages_per_second": fetched / seconds if seconds else 0.0,
    }


def text(found: dict[str, Any]) -> str:
    """The figures as a person reads them; `later` and `next_due_ms` (leftover.Left) where the caller knows them."""
    rows = [
        ("sites", f"{found['sites']:,}", f"{found['sites_finished']:,} finished"),
        *([("later", f"{found['later']:,}", _next(found["next_due_ms"]))] if found.get("later") else []),
        *([("moved", f"{len(found['moved']):,}", _moved(found["moved"]))] if found["moved"] else []),
        ("pages", f"{found['stored']:,}", f"{size_word(found['bytes'])} of bodies"),
        ("duplicates", f"{found['duplicates']:,}", "same bytes as another page of the site"),
        ("redirects", f"{found['redirected']:,}", ""),
        ("errors", f"{found['failed']:,}", _failures(found["failed_by_status"])),
        ("denied", f"{found['denied']:,}", "by robots.txt or as a trap, never fetched"),
        (
            "pages/s",
            f"{found['pages_per_second']:,.1f}",
            f"{found['fetched']:,} fetched in {found['seconds']:.1f} s",
        ),
    ]
    if found["dead_letters"]:
        rows.append(("dead letters", f"{found['dead_letters']:,}", "records that could not be stored"))
    return "\n".join(f"  {name:<12} {number:>9}   {about}".rstrip() for name, number, about in rows)


def _moved(moved: dict[str, str]) -> str:
    """Where seeds redirect to."""
    shown = [f"{seed} redirects to {site}" for seed, site in list(moved.items())[:MOVED_SHOWN]]
    more = f", and {len(moved) - MOVED_SHOWN:,} more" if len(moved) > MOVED_SHOWN else ""
    return f"seeds: {', '.join(shown)}{more}"


def _next(due_ms: int) -> str:
    """When sites that rest go on, and what lets them."""
    at = time.localtime(due_ms / 1000)
    day = "" if at[:3] == time.localtime()[:3] else "%Y-%m-%d "
    return f"next at {time.strftime(f'{day}%H:%M:%S', at)}: `scrapy crawl site` goes on then, `--when-idle wait` waits"


def _failures(by_status: dict[int, int]) -> str:
    return ", ".join(f"{status_word(status)}: {number:,}" for status, number in by_status.items())


def rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each figure; failures by kind are rows of their own."""
    lists = ("failed_by_status", "moved")
    plain = [{"figure": name, "value": value} for name, value in found.items() if name not in lists]
    plain.append({"figure": "moved", "value": len(found["moved"])})
    return plain + [
        {"figure": f"failed: {status_word(status)}", "value": number}
        for status, number in found["failed_by_status"].items()
    ]


def pictures(found: dict[str, Any]) -> list[Picture]:
    """Pages by how their last turn ended."""
    places = ("stored", "duplicates", "redirected", "filtered", "failed", "denied")
    shown = [Bar(name, found[name], f"{found[name]:,}") for name in places]
    return [Picture("Pages by how their last turn ended", bars(shown, "pages by outcome"))]
