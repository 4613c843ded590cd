"""Where every URL is that was ever accepted: the proof that none was lost.

Each place is counted by itself: the outcomes from the tables, what is still to be fetched from the frontiers, what is
on its way from the results stream. So a sum that is not what was accepted shows a loss. While agents work the figures
move under the eye that reads them; at rest they must agree to the last URL.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import case, func, select

from crawler.agent.frontier import CheckpointError, Frontier
from crawler.records import Page, RecordError, SiteEnded, decode, hash64
from crawler.sites import connection
from crawler.sites.queue import SiteQueue, read_entry
from crawler.store.database import transaction
from crawler.store.joining import joined
from crawler.store.reading import by_key
from crawler.store.server import ServerError
from crawler.store.stream import results_key
from crawler.store.tables import BLOCKED, FINISHED, QUEUED, fetches, pages, sites
from crawler.views.drawing import Bar, Picture, bars

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from crawler.options import Options
    from crawler.reports import Crawl

# Where a URL can be. `given_up`: known of a site that was blocked or turned out to be another's alias.
OUTCOMES = ("stored", "redirected", "duplicate", "failed", "dead", "denied", "filtered")
PLACES = (*OUTCOMES, "over_budget", "given_up", "pending", "in_stream")
# Sites whose pages are counted in one transaction: a long one would keep SQLite's log from being used again.
SITES_AT_A_TIME = 500
# Entries of the results stream, sites of the queue, rows of the history that are read at a time.
READ_AT_A_TIME = 1000
# Sites named in the text where something is wrong.
NAMED = 10

_ABOUT = {
    "redirected": "they answered with another URL",
    "duplicate": "same bytes as another page of the site",
    "failed": "no answer, or an error",
    "dead": "given up after all tries",
    "denied": "by robots.txt or as a trap, never fetched",
    "filtered": "fetched, of a kind that is not kept",
    "over_budget": "beyond MAX_PAGES_PER_SITE or a site's budget",
    "given_up": "of sites that are blocked, or another's alias",
    "pending": "still to fetch, or in flight",
    "in_stream": "fetched, on their way to the tables",
}


class _Site(NamedTuple):
    """What is known of one site outside of `pages`."""

    accepted: int
    over_budget: int
    pending: int
    given_up: int
    published: int  # page records of its present walk


class _Way(NamedTuple):
    """What the results stream holds: pages and ends of sites that the tables may not have yet."""

    pages: list[Page]
    ended: dict[str, SiteEnded]


class _Queue(NamedTuple):
    """What the server knows."""

    unfinished: dict[str, _Site]  # of all others the tables tell
    way: _Way
    working: bool  # agents are alive


def figures(crawl: Crawl) -> dict[str, Any]:
    """Accepted URLs and their places, in all and per site; `balanced` says whether every sum is what was accepted."""
    queue = _ask_queue(crawl)
    accounts = dict(_accounts(crawl, queue or _Queue({}, _Way([], {}), working=False)))
    total: Counter[str] = Counter()
    for account in accounts.values():
        total.update(account)
    wrong = {site: account for site, account in accounts.items() if _missing(account)}
    return {
        **{name: total[name] for name in ("accepted", *PLACES, "earlier")},
        "missing": _missing(total),
        "balanced": not wrong,
        "working": bool(queue and queue.working),
        "queue_seen": queue is not None,
        "sites": accounts,
    }


def text(found: dict[str, Any]) -> str:
    """The sum, and the sites that do not add up."""
    lines = [f"  {'accepted':<12} {found['accepted']:>12,}   URLs of {len(found['sites']):,} sites"]
    lines += [
        f"  {_words(place):<12} {found[place]:>12,}   {_ABOUT.get(place, '')}".rstrip()
        for place in PLACES
        if found[place]
    ]
    if found["earlier"]:
        lines.append(
            f"  {'(earlier':<12} {found['earlier']:>12,}   kept of earlier walks, no longer linked to)"
        )
    lines.append(_verdict(found))
    wrong = [(site, _missing(account)) for site, account in found["sites"].items() if _missing(account)]
    for site, missing in wrong[:NAMED]:
        lines.append(f"  {site}: {_surplus(missing)}")
    if len(wrong) > NAMED:
        lines.append(f"  … and {len(wrong) - NAMED:,} sites more")
    return "\n".join(lines)


def rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each site: what it accepted, where that is, and how many URLs of it are nowhere."""
    return [
        {"site": site, **account, "missing": _missing(account)} for site, account in found["sites"].items()
    ]


def pictures(found: dict[str, Any]) -> list[Picture]:
    """The places that hold a URL, as bars, and beside them what is nowhere."""
    if not found["accepted"]:
        return []
    shown = [Bar(_words(place), found[place], f"{found[place]:,}") for place in PLACES if found[place]]
    if found["missing"] > 0:
        shown.append(Bar("nowhere", found["missing"], f"{found['missing']:,}", "bad"))
    return [Picture("Where every accepted URL is", bars(shown, "accepted URLs by place"))]


def failed(found: dict[str, Any]) -> bool:
    """Whether the figures show a loss; those that move under agents at work prove nothing."""
    return not (found["balanced"] or found["working"])


def _words(place: str) -> str:
    return place.replace("_", " ")


def _verdict(found: dict[str, Any]) -> str:
    if found["balanced"]:
        words = "balanced: every URL is accounted for"
    elif found["working"]:
        words = f"{_surplus(found['missing'])}; agents are at work, so ask again when they have ended"
    else:
        words = f"NOT balanced: {_surplus(found['missing'])}"
    return words if found["queue_seen"] else f"{words} (the queue does not answer: as the tables have it)"


def _surplus(missing: int) -> str:
    return f"{missing:,} URLs are nowhere" if missing > 0 else f"{-missing:,} URLs are counted twice"


def _missing(account: dict[str, int]) -> int:
    return account["accepted"] - sum(account[place] for place in PLACES)


# --- The queue ----------------------------------------------------------------------------------------------


def _ask_queue(crawl: Crawl) -> _Queue | None:
    """None where there is no server to ask."""
    try:
        with joined(crawl.settings, crawl.options):
            return asyncio.run(_read_queue(crawl))
    except (connection.ServerAwayError, ServerError):
        return None


async def _read_queue(crawl: Crawl) -> _Queue:
    client = connection.connect(crawl.settings)
    try:
        queue = SiteQueue(client, crawl.options)
        working = any(agent["expires_ms"] > 0 for agent in await queue.agents())
        unfinished = await _read_sites(queue, crawl.options)
        return _Queue(unfinished, await _read_stream(client, crawl.options), working)
    finally:
        await client.aclose()


async def _read_sites(queue: SiteQueue, options: Options) -> dict[str, _Site]:
    unfinished: dict[str, _Site] = {}
    ended = ("finished", "alias", "blocked")
    names = [record.site async for record in queue.records() if record.state not in ended]
    for start in range(0, len(names), READ_AT_A_TIME):
        some = names[start : start + READ_AT_A_TIME]
        checkpoints = await asyncio.gather(*map(queue.checkpoint, some))
        unfinished |= {
            site: _by_frontier(options, *checkpoint)
            for site, checkpoint in zip(some, checkpoints, strict=True)
        }
    return unfinished


def _by_frontier(options: Options, entries: list[bytes], paths: list[str], budget: int | None) -> _Site:
    """What an agent would find that took the site up now; a checkpoint that cannot be read begins anew there too."""
    most = options.max_pages_per_site if budget is None else budget
    frontier = Frontier(most, options.max_depth)
    try:
        frontier.restore(entries)
    except CheckpointError:
        frontier = Frontier(most, options.max_depth)
    for given in map(read_entry, paths):
        frontier.add(given.paths, given.depth)
    if not frontier:
        frontier.add(("/",), 0)
    return _Site(len(frontier), frontier.over_budget, frontier.pending, 0, frontier.published)


async def _read_stream(
    client: Any, options: Options
) -> _Way:  # redis-py's annotations of XRANGE fit no reply
    way = _Way([], {})
    last = "-"
    while entries := await client.xrange(results_key(options.key_prefix), last, count=READ_AT_A_TIME):
        for _, fields in entries:
            try:
                record, _links = decode(fields)
            except RecordError:
                continue
            if isinstance(record, Page) and record.extracted_at:
                continue  # made anew from the archive: no turn of a page
            if isinstance(record, Page):
                way.pages.append(record)
            elif isinstance(record, SiteEnded):
                way.ended[record.site] = record
        last = f"({entries[-1][0].decode()}"
    return way


# --- The tables ---------------------------------------------------------------------------------------------


def _accounts(crawl: Crawl, queue: _Queue) -> Iterator[tuple[str, dict[str, int]]]:
    """One account for each site that the tables or the queue know, by name."""
    known = _known_sites(crawl, queue)
    coming = _coming(crawl, queue.way.pages)
    published = {hash64(site): max(0, known[site].published - coming[site]) for site in known}
    names = sorted(known, key=hash64)
    for start in range(0, len(names), SITES_AT_A_TIME):
        some = names[start : start + SITES_AT_A_TIME]
        counted = _outcomes(crawl, some, published)
        for site in some:
            figures = counted.get(hash64(site), Counter())
            row = known[site]
            yield (
                site,
                {
                    "accepted": row.accepted,
                    **{outcome: figures[outcome] for outcome in OUTCOMES},
                    "over_budget": row.over_budget,
                    "given_up": row.given_up,
                    "pending": row.pending,
                    "in_stream": coming[site],
                    "earlier": figures["earlier"],
                },
            )


def _known_sites(crawl: Crawl, queue: _Queue) -> dict[str, _Site]:
    columns = (sites.c.site_id, sites.c.site, sites.c.state, sites.c.known, sites.c.over_budget)
    more = (sites.c.pending, sites.c.published, sites.c.alias_of, sites.c.stopped)
    found: dict[str, _Site] = {}
    for rows in by_key(crawl.engine, select(*columns, *more), sites.c.site_id):
        found |= {row.site: _by_tables(row, queue) for row in rows}
    return found | queue.unfinished


def _by_tables(row: Any, queue: _Queue) -> _Site:
    """A site that no frontier tells of: finished, left for good, or of a queue that is lost."""
    ended = queue.way.ended.get(row.site)
    if ended is not None:
        known, over, pending, published = ended.known, ended.over_budget, ended.pending, ended.published
        left = bool(ended.alias_of)
    else:
        known, over, pending, published = row.known, row.over_budget, row.pending or 0, row.published
        left = bool(row.alias_of)
    if row.state == QUEUED and ended is None:
        known = pending = 1  # its root, which nobody has fetched
    left = left or row.stopped == BLOCKED or (row.state == FINISHED and pending > 0)
    return _Site(known, over, 0 if left else pending, pending if left else 0, published)


def _coming(crawl: Crawl, on_the_way: list[Page]) -> Counter[str]:
    """How many pages of each site are in the stream and not in the tables: an entry may be stored already."""
    coming: Counter[str] = Counter()
    for start in range(0, len(on_the_way), SITES_AT_A_TIME):
        some = on_the_way[start : start + SITES_AT_A_TIME]
        with transaction(crawl.engine) as db:
            stored = _stored(db, some)
        coming.update(page.site for page in some if (page.agent, page.run, page.seq) not in stored)
    return coming


def _stored(db: Connection, some: list[Page]) -> set[tuple[str, str, int]]:
    """Which of these are in the history."""
    stored: set[tuple[str, str, int]] = set()
    for agent, run in {(page.agent, page.run) for page in some}:
        numbers = [page.seq for page in some if (page.agent, page.run) == (agent, run)]
        asked = select(fetches.c.seq).where(
            fetches.c.agent == agent, fetches.c.run == run, fetches.c.seq.in_(numbers)
        )
        stored |= {(agent, run, seq) for seq in db.execute(asked).scalars()}
    return stored


def _outcomes(crawl: Crawl, names: list[str], published: dict[int, int]) -> dict[int, Counter[str]]:
    """Pages of these sites by outcome, by site id; `earlier` are those that only earlier walks met (`--again`).

    A walk publishes each page once, and its row then has that time: the last `published` ones are the present walk's.
    """
    place = case((pages.c.state == "dead", "dead"), else_=pages.c.outcome).label("place")
    counted: dict[int, Counter[str]] = {}
    with transaction(crawl.engine) as db:
        asked = select(pages.c.site_id, place, func.count()).where(pages.c.site_id.in_(map(hash64, names)))
        for number, outcome, many in db.execute(asked.group_by(pages.c.site_id, place)):
            counted.setdefault(number, Counter())[outcome] += many
        for number, found in counted.items():
            if found.total() > published[number]:
                counted[number] = _of_the_last_walk(db, number, place, published[number])
    return counted


def _of_the_last_walk(db: Connection, number: int, place: Any, published: int) -> Counter[str]:
    rows = db.execute(select(pages.c.fetched_at, place).where(pages.c.site_id == number)).all()
    newest = sorted(rows, key=lambda row: row.fetched_at, reverse=True)
    present = Counter(row.place for row in newest[:published])
    present["earlier"] = len(newest) - published
    return present
