"""Where every accepted URL is: the proof that none was lost.

Outcomes come from the tables, pending URLs from the frontiers, records from the results stream. Their sum
must be the accepted URLs, and the tables must agree with the queue (`crawler.reconcile.agreement`). While
agents work the figures move.

URLs excluded by limits (`crawler.left_out`) are listed by reason.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

from crawler import left_out
from crawler.local.local import joined
from crawler.local.server import ServerError
from crawler.queue import connection
from crawler.queue.queue import SiteQueue
from crawler.reconcile import agreement
from crawler.reconcile.agreement import ON_THE_WAY
from crawler.views.drawing import Bar, Picture, bars

if TYPE_CHECKING:
    from collections.abc import Mapping

    from crawler.reconcile.agreement import Account
    from crawler.reports import Crawl

# Where a URL can be. `given_up`: of a blocked site or an alias.
OUTCOMES = ("stored", "redirected", "duplicate", "failed", "dead", "denied", "filtered")
PLACES = (*OUTCOMES, "over_budget", "given_up", "pending", "in_stream", "refused")
# Sites with many excluded URLs that the text names.
CUT_SHOWN = 10

_ABOUT = {
    "redirected": "they answered with another URL",
    "duplicate": "same bytes as another page of the site",
    "failed": "no answer, or an error",
    "dead": "given up after all tries",
    "denied": "by robots.txt or as a trap, never fetched",
    "filtered": "fetched, content type not kept",
    "over_budget": "beyond MAX_PAGES_PER_SITE or a site's budget",
    "given_up": "of blocked sites and aliases",
    "pending": "still to fetch, or in flight",
    "in_stream": "fetched, on their way to the tables",
    "refused": "by the database; kept in dead_letters with the reason",
}


def figures(crawl: Crawl) -> dict[str, Any]:
    """Accepted URLs and their places, in all and per site.

    `balanced`: sums match, queue and tables agree. `wrong`: errors by site.
    """
    found = _ask_queue(crawl)
    queue_seen, working, accounts = found or (False, False, agreement.of_tables(crawl.engine))
    counted = {one.site: _placed(one) for one in accounts}
    total: Counter[str] = Counter()
    cut: Counter[str] = Counter()
    for places in counted.values():
        total.update({place: many for place, many in places.items() if place != "left_out"})
        cut.update(places["left_out"])
    wrong = {one.site: one.wrong for one in accounts if one.wrong}
    return {
        **{name: total[name] for name in ("accepted", *PLACES, "earlier")},
        "left_out": dict(cut.most_common()),
        "missing": _missing(total),
        "balanced": not wrong and not any(map(_missing, counted.values())),
        "working": working,
        "queue_seen": queue_seen,
        "wrong": wrong,
        "sites": counted,
    }


def text(found: dict[str, Any]) -> str:
    """For the terminal."""
    lines = [f"  {'accepted':<12} {found['accepted']:>12,}   URLs of {len(found['sites']):,} sites"]
    lines += [
        f"  {_words(place):<12} {found[place]:>12,}   {_ABOUT.get(place, '')}".rstrip()
        for place in PLACES
        if found[place]
    ]
    if found["earlier"]:
        lines.append(
            f"  {'(earlier':<12} {found['earlier']:>12,}   kept of earlier crawls, no longer linked)"
        )
    lines += _cuts(found)
    lines.append(_verdict(found))
    wrong = _in_words(found)
    lines += [f"  {site}: {why}" for site, why in list(wrong.items())[: agreement.NAMED]]
    if len(wrong) > agreement.NAMED:
        lines.append(f"  … and {len(wrong) - agreement.NAMED:,} sites more")
    if failed(found):
        lines.append("  `scrapy queue repair` lets the next crawl fetch what is missing")
    return "\n".join(lines)


def rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each site."""
    wrong = _in_words(found)
    return [
        {
            "site": site,
            **account,
            "missing": _missing(account),
            "wrong": wrong.get(site, ""),
            "left_out": sum(account["left_out"].values()),
            **{f"left_out_{reason}": account["left_out"].get(reason, 0) for reason in left_out.BOUNDS},
        }
        for site, account in found["sites"].items()
    ]


def pictures(found: dict[str, Any]) -> list[Picture]:
    """A bar for each place, and for missing URLs."""
    if not found["accepted"]:
        return []
    shown = [Bar(_words(place), found[place], f"{found[place]:,}") for place in PLACES if found[place]]
    if found["missing"] > 0:
        shown.append(Bar("nowhere", found["missing"], f"{found['missing']:,}", "bad"))
    return [Picture("Where every accepted URL is", bars(shown, "accepted URLs by place"))]


def failed(found: dict[str, Any]) -> bool:
    """Whether URLs are missing; False while agents work."""
    return not (found["balanced"] or found["working"])


def _cuts(found: dict[str, Any]) -> list[str]:
    cut = {site: sum(one["left_out"].values()) for site, one in found["sites"].items() if one["left_out"]}
    if not cut:
        return []
    words = left_out.in_words(found["left_out"])
    lines = [f"  {'left out':<12} {sum(cut.values()):>12,}   URLs of {len(cut):,} sites by bounds: {words}"]
    first = sorted(cut, key=lambda site: (-cut[site], site))
    lines += [
        f"    {site}: {left_out.in_words(found['sites'][site]['left_out'])}" for site in first[:CUT_SHOWN]
    ]
    if len(cut) > CUT_SHOWN:
        lines.append(f"    … and {len(cut) - CUT_SHOWN:,} sites more (--csv has them all)")
    return lines


def _words(place: str) -> str:
    return place.replace("_", " ")


def _verdict(found: dict[str, Any]) -> str:
    if found["balanced"]:
        words = "balanced: every URL is accounted for"
    elif found["working"]:
        words = f"{_surplus(found['missing'])}; agents are at work; run it again when they have ended"
    else:
        missing, sites = found["missing"], len(_in_words(found))
        words = f"NOT balanced: {_surplus(missing) if missing else f'{sites:,} sites differ'}"
    return words if found["queue_seen"] else f"{words} (the queue does not answer: as the tables have it)"


def _surplus(missing: int) -> str:
    return f"{missing:,} URLs are nowhere" if missing > 0 else f"{-missing:,} URLs are counted twice"


def _in_words(found: dict[str, Any]) -> dict[str, str]:
    """The errors of each site that has any."""
    sums = {site: _surplus(_missing(one)) for site, one in found["sites"].items() if _missing(one)}
    return {**sums, **found["wrong"]}


def _missing(account: Mapping[str, Any]) -> int:
    missing: int = account["accepted"] - sum(account[place] for place in PLACES)
    return missing


# --- Accounts ---


def _ask_queue(crawl: Crawl) -> tuple[bool, bool, list[Account]] | None:
    """Whether the queue was read, whether agents work, all accounts. None: no server."""
    try:
        with joined(crawl.settings, crawl.options):
            return asyncio.run(_compare(crawl))
    except (connection.ServerAwayError, ServerError):
        return None


async def _compare(crawl: Crawl) -> tuple[bool, bool, list[Account]]:
    client = connection.connect(crawl.settings)
    try:
        queue = SiteQueue(client, crawl.options)
        seen = await agreement.read_server(queue, client, crawl.options.key_prefix)
        accounts = await agreement.compare(
            queue, crawl.engine, seen, crawl.settings, crawl.options, whole=True
        )
        return True, seen.working, accounts
    finally:
        await client.aclose()


def _placed(account: Account) -> dict[str, Any]:
    owed, places = account.owed, account.places
    return {
        "accepted": owed.accepted,
        **{place: places[place] for place in OUTCOMES},
        "over_budget": owed.over_budget,
        "given_up": owed.given_up,
        "pending": owed.pending,
        **{place: places[place] for place in ON_THE_WAY},
        "earlier": account.earlier,
        "left_out": dict(owed.left_out),
    }
