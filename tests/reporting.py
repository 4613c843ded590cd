"""A crawl in the tables for whoever tests reports and views: any number of sites and pages, strangers' words in them.

Every page follows from its number, so what a report must say can be reckoned by hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count, islice

import numpy as np
from sqlalchemy import Engine

from crawler.records import Page, Record, RunEvent, SiteEnded, SiteFound, Visit, hash64, pack_links
from crawler.store.database import migrate, transaction
from crawler.store.ranks import Ranked, replace
from crawler.store.write import Stored, store

HOUR_MS = 3_600_000
BEGIN_MS = 498_000 * HOUR_MS
# Titles that a page, a terminal, a spreadsheet or a line of a log would obey.
HOSTILE = (
    "<script>alert(1)</script>",
    "=HYPERLINK(1)",
    "a\x1b[31mred\u202eback",
    '"><img src=//evil.example onerror=alert(1)>',
    "서울시 공지사항 &amp; 자료실",
)
ENDS = ("co.kr", "com", "org", "de", "edu", "net")
LANGUAGES = ("ko", "en", "", "ja", "de")
BATCH = 5_000


def site_name(number: int) -> str:
    """Of each ten sites one has a name in Korean, as punycode."""
    middle = "xn--hu5b25b9vdfxu" if number % 10 == 9 else "site"
    return f"https://{middle}{number}.{ENDS[number % len(ENDS)]}"


def crawl(sites: int, pages_each: int, at_once: int = 1) -> Iterator[Record]:
    """All records of such a crawl, in order: two agents with a policy of their own each, so many sites in hand."""
    for agent, scheduler in (("a-1", "regret"), ("a-2", "hybrid")):
        yield RunEvent(agent=agent, run="r", spider="site", scheduler=scheduler, started_at=BEGIN_MS)
    seq = count(1)
    for first in range(0, sites, at_once):
        numbers = range(first, min(first + at_once, sites))
        for number in numbers:
            yield SiteFound(agent="a-1", run="r", seq=next(seq), site=site_name(number), found_at=BEGIN_MS)
        yield from (
            page(number, place, next(seq), sites) for place in range(pages_each) for number in numbers
        )
        for number in numbers:
            yield from _end(number, pages_each, seq)


def _end(number: int, published: int, seq: Iterator[int]) -> Iterator[Record]:
    site = site_name(number)
    known = {"site": site, "ended_at": BEGIN_MS, "published": published, "known": published}
    yield SiteEnded(agent="a-1", run="r", seq=next(seq), finished=True, **known)  # type: ignore[arg-type]
    hour, seconds = 498_000 + number % 24, 0.05 * (1 + number % 7)
    yield Visit(agent="a-1", run="r", seq=next(seq), site=site, hour=hour, pages=20, seconds=seconds)


def page(number: int, place: int, seq: int, sites: int) -> Page:
    """One page: of ten one fails with 404 or without an answer, one redirects, the rest is stored."""
    kind = (number + place) % 10
    path = "/" if place == 0 else f"/~kim{place}/" if place == 1 else f"/{place}"
    at = BEGIN_MS + seq * 7 % (48 * HOUR_MS)
    common = {"agent": f"a-{1 + number % 2}", "run": "r", "seq": seq, "site": site_name(number), "path": path}
    if kind == 3 and place:
        status = 404 if place % 2 else -3
        return Page(**common, fetched_at=at, outcome="failed", status=status, error="no answer")  # type: ignore[arg-type]
    if kind == 5 and place:
        return Page(
            **common, fetched_at=at, outcome="redirected", status=301, redirect=f"{site_name(number)}/"
        )  # type: ignore[arg-type]
    other = (number * 7 + place) % sites
    return Page(
        **common,  # type: ignore[arg-type]
        fetched_at=at,
        outcome="stored",
        status=200,
        size=1_000 + place,
        title=HOSTILE[place % len(HOSTILE)] if place % 4 == 0 else f"Page {place}",
        language=LANGUAGES[(number + place) % len(LANGUAGES)],
        content_type="application/pdf" if place % 25 == 24 else "text/html; charset=utf-8",
        media={"image": 3, "document": 1} if place % 3 == 0 else {},
        outside_hosts=[site_name(other).partition("://")[2]] if other != number else [],
        mail_domains=[f"mail{number}.example.kr"] if place == 0 else [],
        ftp_domains=[f"ftp.files{number % 3}.org"] if place == 2 else [],
        address=f"210.89.{number % 200}.7" if number % 2 else f"8.8.{number % 200}.8",
    )


def fill(engine: Engine, sites: int, pages_each: int, at_once: int = 1) -> None:
    """Put such a crawl into empty tables, with ranks."""
    migrate(engine)
    links = pack_links(["x"])
    for some in _batches(crawl(sites, pages_each, at_once)):
        rows = [Stored(f"{one.seq}-0", one, links) for one in some]
        with transaction(engine) as connection:
            store(connection, rows)
    rank(engine, sites, pages_each)


def rank(engine: Engine, sites: int, pages_each: int) -> None:
    """Ranks by the numbers of sites and pages: the first page of the first site has the most."""
    known = np.array([hash64(site_name(number)) for number in range(sites)])
    urls = np.array(
        [
            hash64(site_name(n) + page(n, p, 0, sites).path)
            for n in range(sites)
            for p in range(min(pages_each, 40))
        ]
    )
    weight = 1.0 / np.arange(1, len(urls) + 1)
    site_weight = 1.0 / np.arange(1, sites + 1)
    replace(
        engine,
        Ranked(
            "run", "exact", "site", 0.85, np.repeat(known, len(urls) // sites), urls, weight / weight.sum(),
            known, site_weight / site_weight.sum(), np.full(sites, len(urls) // sites),
        ),
    )  # fmt: skip


def _batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    waiting = iter(records)
    while some := list(islice(waiting, BATCH)):
        yield some
