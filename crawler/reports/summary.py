"""Results of a crawl in a few lines."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from crawler import left_out
from crawler.reports import seeds
from crawler.store import queries
from crawler.views.drawing import Bar, Picture, bars
from crawler.views.words import size_word, status_word

if TYPE_CHECKING:
    from crawler.reports import Crawl

# Redirected seeds and cut sites that the text names.
MOVED_SHOWN = 3
CUT_SHOWN = 3
# Seeds without a page, and with one page, that the text names.
SEEDS_SHOWN = 5


def figures(crawl: Crawl, since_ms: int = 0) -> dict[str, Any]:
    """The whole database, and the fetches since a time."""
    found: dict[str, Any] = dict(queries.summary(crawl.engine))
    fetched, first, last = queries.turns_since(crawl.engine, since_ms)
    cuts = queries.cuts(crawl.engine, CUT_SHOWN)
    seconds = (last - first) / 1000 if first is not None and last is not None else 0.0
    return {
        **found,
        "moved": queries.moved(crawl.engine),
        "left_out": {"sites": cuts.sites, "by": cuts.by, "most": [one._asdict() for one in cuts.most]},
        "poor_seeds": seeds.latest(crawl.engine, SEEDS_SHOWN),
        "fetched": fetched,
        "seconds": seconds,
        "pages_per_second": fetched / seconds if seconds else 0.0,
    }


def text(found: dict[str, Any]) -> str:
    """The caller may add `later`, `next_due_ms` and `why` (summary.Left)."""
    rows = [
        ("sites", f"{found['sites']:,}", _stand(found)),
        *(
            [("later", f"{found['later']:,}", _next(found["next_due_ms"], found["why"]))]
            if found.get("later")
            else []
        ),
        *([("moved", f"{len(found['moved']):,}", _moved(found["moved"]))] if found["moved"] else []),
        *_aliases(found),
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
    lines = [f"  {name:<12} {number:>9}   {about}".rstrip() for name, number, about in rows]
    return "\n".join(_cuts(found["left_out"]) + lines + seeds.short(found["poor_seeds"]))


def _cuts(cuts: dict[str, Any]) -> list[str]:
    """URLs excluded by limits, and the settings to change."""
    if not cuts["sites"]:
        return []
    urls = sum(cuts["by"].values())
    lines = [f"  {'left out':<12} {urls:>9,}   URLs of {cuts['sites']:,} sites, by bounds; most of all"]
    for one in cuts["most"]:
        words = left_out.in_words(one["left_out"])
        if one["budget"] is not None:
            words = words.replace("by MAX_PAGES_PER_SITE", "by its budget (scrapy site budget)")
        lines.append(f"{'':<27}{one['site']}: {words}")
    if settings := left_out.settings_of(cuts["by"]):
        lines.append(f"{'':<27}to fetch more: change {', '.join(settings)}, then `scrapy crawl site --again`")
    return lines


def _stand(found: dict[str, Any]) -> str:
    others = {name: found[f"sites_{name}"] for name in ("paused", "blocked", "aliases")}
    others["unfinished"] = found["sites"] - found["sites_finished"] - sum(others.values())
    more = [f", {many:,} {name}" for name, many in others.items() if many]
    return f"{found['sites_finished']:,} finished{''.join(more)}"


def _aliases(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    rows = []
    if found["aliases"]:
        not_asked = f"{found['aliases_not_asked']:,} of their URLs were not fetched"
        about = f"sites left out as aliases of others; {not_asked}"
        rows.append(("aliases", f"{found['aliases']:,}", about))
    if found["same"]:
        rows.append(
            ("same pages", f"{found['same']:,}", "sites with another one's pages, crawled nevertheless")
        )
    return rows


def _moved(moved: list[tuple[str, str]]) -> str:
    shown = [f"{seed} redirects to {site}" for seed, site in moved[:MOVED_SHOWN]]
    more = f", and {len(moved) - MOVED_SHOWN:,} more" if len(moved) > MOVED_SHOWN else ""
    return f"seeds: {', '.join(shown)}{more}"


def _next(due_ms: int, why: str) -> str:
    at = time.localtime(due_ms / 1000)
    day = "" if at[:3] == time.localtime()[:3] else "%Y-%m-%d "
    due = time.strftime(f"{day}%H:%M:%S", at)
    reason = f" ({why})" if why else ""
    return f"next at {due}{reason}: `scrapy crawl site` resumes then, `--when-idle wait` waits"


def _failures(by_status: dict[int, int]) -> str:
    return ", ".join(f"{status_word(status)}: {number:,}" for status, number in by_status.items())


def rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each figure and kind of failure."""
    lists = ("failed_by_status", "moved", "left_out", "poor_seeds")
    plain = [{"figure": name, "value": value} for name, value in found.items() if name not in lists]
    plain.append({"figure": "moved", "value": len(found["moved"])})
    plain += [
        {"figure": f"seeds: {name}", "value": found["poor_seeds"][key]}
        for name, key in (("in all", "seeds"), ("no page", "without_a_page"), ("one page", "with_one_page"))
    ]
    plain.append({"figure": "left out: sites", "value": found["left_out"]["sites"]})
    plain += [
        {"figure": f"left out: {reason}", "value": many} for reason, many in found["left_out"]["by"].items()
    ]
    return plain + [
        {"figure": f"failed: {status_word(status)}", "value": number}
        for status, number in found["failed_by_status"].items()
    ]


def pictures(found: dict[str, Any]) -> list[Picture]:
    """Pages by the outcome of their last fetch."""
    places = ("stored", "duplicates", "redirected", "filtered", "failed", "denied")
    shown = [Bar(name, found[name], f"{found[name]:,}") for name in places]
    return [Picture("Pages by the outcome of their last fetch", bars(shown, "pages by outcome"))]
