"""Estimated freshness of the copy, the cost of rechecks, and the next ones.

`--url`: when recheck fetches that page, and why.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from crawler.local.local import joined
from crawler.local.server import ServerError
from crawler.options import PLAIN
from crawler.queue import connection
from crawler.queue.connection import ServerAwayError
from crawler.queue.queue import SiteQueue
from crawler.views.drawing import Bar, Picture, bars

if TYPE_CHECKING:
    from crawler.options import Options
    from crawler.reports import Crawl

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0


def figures(crawl: Crawl) -> dict[str, Any]:
    """`why` if there is nothing."""
    if not crawl.options.recheck_chooses:
        return {"pages": 0, "why": _why_nothing(crawl.options)}
    import numpy as np

    from crawler.recheck import report
    from crawler.recheck.change_model import extent

    account = report.account_of(_fields(crawl))
    if crawl.url:
        return report.explained(crawl.engine, crawl.options, account, crawl.url)
    found = report.standing(crawl.engine, crawl.options, account)
    if not found:
        return {"pages": 0}
    current, age, weight = (
        np.concatenate([getattr(site, name) for site in found]) for name in ("current", "age", "weight")
    )
    whole = extent(crawl.engine)
    return {
        "pages": len(current),
        "pages_in_all": whole.pages,
        "sites": len(found),
        "sites_in_all": whole.sites,
        "believed_fresh": float(current.mean()),
        "believed_fresh_by_importance": float((current * weight).sum() / max(float(weight.sum()), 1e-12)),
        "staleness_median_seconds": float(np.median(age)),
        "staleness_mean_seconds": float(age.mean()),
        "staleness_longest_seconds": float(age.max()),
        "staleness_shares": {f"{bound:.0f}": float((age <= bound).mean()) for bound in report.STALE_BOUNDS},
        "asked_last_hour": int((age <= HOUR).sum()),
        "budget_per_hour": report.budget(crawl.engine, crawl.options),
        "price": account.price if account else None,
        "due_within_hours": {
            str(hours): sum(site.due.get(hours, 0) for site in found) for hours in report.AHEAD
        }
        if account and account.price > 0
        else None,
    }


def text(found: dict[str, Any]) -> str:
    """For the terminal."""
    if "url" in found:
        return _page_text(found)
    if not found["pages"]:
        return str(found.get("why", "Recheck has considered no page yet."))
    lines = [
        f"{found['pages']:,} of {found['pages_in_all']:,} pages, on {found['sites']:,} of "
        f"{found['sites_in_all']:,} sites, considered so far; estimated to be unchanged: "
        f"{found['believed_fresh']:.1%}, by importance {found['believed_fresh_by_importance']:.1%}",
        f"last fetched: half within {span(found['staleness_median_seconds'])}, "
        f"on average {span(found['staleness_mean_seconds'])} ago, "
        f"longest {span(found['staleness_longest_seconds'])} ago",
        *(
            f"  within {span(float(bound)):12} {share:7.1%}"
            for bound, share in found["staleness_shares"].items()
        ),
        f"rechecked in the last hour: {found['asked_last_hour']:,} pages; the budget has "
        f"{found['budget_per_hour']:,.1f} requests an hour",
    ]
    if found["due_within_hours"] is None:
        return "\n".join([*lines, "next rechecks unknown: there is no price yet, or Redis is unavailable"])
    lines.append("worth a visit, if nothing is fetched before:")
    lines += [f"  within {hours:>2} h {many:12,}" for hours, many in found["due_within_hours"].items()]
    return "\n".join(lines)


def pictures(found: dict[str, Any]) -> list[Picture]:
    """Pages by time of the last fetch, and pages soon worth a visit."""
    if not found.get("pages"):
        return []
    recent = [
        Bar(f"within {span(float(bound))}", share, f"{share:.1%}")
        for bound, share in found["staleness_shares"].items()
    ]
    drawn = [Picture("Share of the pages that were last fetched", bars(recent, "pages by staleness"))]
    if found["due_within_hours"]:
        due = [
            Bar(f"within {hours} h", many, f"{many:,}") for hours, many in found["due_within_hours"].items()
        ]
        title = "Pages worth a visit, if nothing is fetched before"
        drawn.append(Picture(title, bars(due, "pages worth a visit")))
    return drawn


def _why_nothing(options: Options) -> str:
    if options.recrawl_mode == PLAIN:
        return f"RECRAWL_MODE is {PLAIN!r}: recheck fetches all pages at the same interval."
    return "RECHECK_INTERVAL_SECONDS is 0: recheck fetches no page."


def span(seconds: float) -> str:
    """`5 minutes`, in the largest fitting unit."""
    for unit, size in (("days", DAY), ("hours", HOUR), ("minutes", MINUTE)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"


def _page_text(found: dict[str, Any]) -> str:
    rate = found["changes_a_day"]
    lines = [
        found["url"],
        f"  last fetched {span(found['age_seconds'])} ago; state {found['state']}",
        f"  it is estimated to change {rate:.3g} times a day (once in {span(DAY / rate)})",
        f"  so the copy is still the page with a probability of {found['current']:.1%}",
        f"  importance {found['importance']:.2f}, where 1 is the average page's",
        f"  a visit now is worth {found['value_seconds']:,.0f} seconds of freshness, before importance",
        f"  it costs {found['cost_seconds']:,.2f} seconds of the budget",
    ]
    if "score" not in found:
        return "\n".join([*lines, "  next recheck unknown: there is no price yet, or Redis is unavailable"])
    wait = found["worth_it_in_seconds"]
    when = "not within a year" if wait is None else "now" if not wait else f"in {span(wait)}"
    lines += [
        f"  at a price of {found['price']:.3g} its score in mode {found['mode']} is {found['score']:.3g}; "
        f"pages above {found['floor']:.3g} are fetched",
        f"  it is worth a visit {when}",
    ]
    return "\n".join(lines)


def _fields(crawl: Crawl) -> dict[str, float]:
    """Recheck's budget in the queue; empty if Redis is unavailable."""
    with suppress(ServerAwayError, ServerError), joined(crawl.settings, crawl.options):
        return asyncio.run(_ask(crawl))
    return {}


async def _ask(crawl: Crawl) -> dict[str, float]:
    client = connection.connect(crawl.settings)
    try:
        return await SiteQueue(client, crawl.options).account()
    finally:
        await client.aclose()
