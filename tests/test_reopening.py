"""Finished sites that are opened again: what recheck and revive find is loaded by the next crawl, always.

What is new is found in the tables of every database; what is known opens nothing.
"""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from crawler.records import Page
from crawler.store.database import transaction
from crawler.store.reopening import HASHES_AT_A_TIME, unknown_of
from crawler.store.writing import Stored, store
from tests.conftest import OpenTables
from tests.crawling import Place
from tests.databases import KINDS
from tests.servers import eventually
from tests.small_site import Reply, SmallSite, links
from tests.test_offers import leaf, leaves, sites

A, B = "https://a.example", "https://b.example"
# Pages are due for recheck and revive at once.
AT_ONCE = {
    "RECRAWL_MODE": "interval",
    "RECHECK_INTERVAL_SECONDS": 1,
    "REVIVE_FIRST_SECONDS": 0.2,
    "REVIVE_SECOND_SECONDS": 60,
}


def put(engine: Engine, site: str, *paths: str) -> None:
    rows = [
        Page(site=site, path=path, fetched_at=number, outcome="stored", status=200)
        for number, path in enumerate(paths)
    ]
    with transaction(engine) as connection:
        store(connection, [Stored(f"{number + 1}-0", row) for number, row in enumerate(rows)])


@pytest.mark.parametrize("kind", KINDS)
def test_paths_that_the_tables_do_not_have(kind: str, filled: OpenTables) -> None:
    engine = filled(kind)
    many = [f"/{number}" for number in range(HASHES_AT_A_TIME + 9)]
    put(engine, A, "/", *many)
    put(engine, B, "/é")
    offered = {A: ["/", "/é", "/new", *many], B: ["/", "/é", "/1"], "https://c.example": ["/"]}
    assert unknown_of(engine, offered) == {
        A: {"/é", "/new"},
        B: {"/", "/1"},
        "https://c.example": {"/"},
    }
    assert unknown_of(engine, {}) == {}


@pytest.mark.parametrize("method", ["get", "head"])
def test_what_recheck_finds_is_loaded_by_the_next_crawl(place: Place, method: str) -> None:
    """Eight sites, so that no luck of time is enough."""
    with sites(*({"/": links("/a"), "/a": leaf("old")} for _ in range(8))) as found:
        seeds = [site.root for site in found]
        given = {**AT_ONCE, "RECHECK_METHOD": method}
        place.crawl(seeds, **given).succeeded()
        for site in found:
            site.routes |= {"/": links("/a", "/b"), "/b": leaf("new"), "/a": leaf("and newer than before")}
        run = place.start_crawl([], "--when-idle", "wait", spider="recheck", **given)
        eventually(
            lambda: all(min(site.pages["/"], site.pages["/a"]) >= 2 for site in found), "all are asked"
        )
        run.end().succeeded()
        place.crawl([], RECHECK_INTERVAL_SECONDS=0).succeeded()
        for site in found:
            assert site.pages["/b"] == 1, site.pages
        texts = place.rows("select count(*) from pages where url like '%/a' and size > 20")
        assert texts == [(8,)]
    assert "balanced" in place.run("report", "ledger").succeeded().out


def test_what_revive_finds_is_loaded_by_the_next_crawl(place: Place) -> None:
    with sites(*({"/": links("/late"), "/late": Reply(404)} for _ in range(8))) as found:
        place.crawl([site.root for site in found], **AT_ONCE).succeeded()
        for site in found:
            site.routes |= {"/late": links("/fresh"), **leaves("/fresh")}
        place.crawl([], spider="revive", **AT_ONCE).succeeded()
        place.crawl([], **AT_ONCE).succeeded()
        for site in found:
            assert site.pages["/fresh"] == 1, site.pages


def test_a_full_site_is_not_opened_for_more(place: Place) -> None:
    with SmallSite({"/": links("/a"), **leaves("/a", "/b")}) as site:
        place.crawl([site.root], MAX_PAGES_PER_SITE=2).succeeded()
        run = place.crawl([f"{site.root}b"], MAX_PAGES_PER_SITE=2).succeeded()
        assert set(site.pages) == {"/", "/a"}
        assert "1 URLs offered to it are left out" in run.err
        place.crawl([f"{site.root}b"], MAX_PAGES_PER_SITE=3).succeeded()
        assert set(site.pages) == {"/", "/a", "/b"}
