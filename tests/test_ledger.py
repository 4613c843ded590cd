"""`scrapy report ledger`: every accepted URL is somewhere, each place counted by itself; a loss shows."""

from __future__ import annotations

import csv
import io
import json
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from crawler.reports.ledger import PLACES, pictures, rows, text
from tests.crawling import Place, wait_for_hits
from tests.farm import Farm


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with Place(tmp_path) as found:
        yield found


def ledger(place: Place, code: int = 0) -> dict[str, Any]:
    run = place.run("report", "ledger", "--json")
    assert run.code == code, run.err + run.out
    found: dict[str, Any] = json.loads(run.out)["ledger"]
    return found


def check_balanced(place: Place) -> dict[str, Any]:
    found = ledger(place)
    assert found["balanced"], found["sites"]
    assert found["accepted"] == sum(found[name] for name in PLACES)
    return found


def test_a_finished_crawl_balances_to_the_farm(place: Place) -> None:
    """Every kind of page that the farm has, each where it belongs."""
    with Farm(sites=3, pages=12) as farm:
        place.crawl(farm.seeds).succeeded()
        found = check_balanced(place)
        stored = dict(place.rows("select outcome, count(*) from pages group by outcome"))
        assert {name: found[name] for name in stored} == stored
        assert found["accepted"] == sum(stored.values())
        assert (found["pending"], found["in_stream"], found["given_up"]) == (0, 0, 0)
        assert set(found["sites"]) == set(farm.expected())
        assert found["stored"] + found["duplicate"] >= sum(map(len, farm.expected().values()))
        told = place.run("report", "ledger").succeeded().out
        assert "balanced: every URL is accounted for" in told
        table = list(csv.DictReader(io.StringIO(place.run("report", "ledger", "--csv").succeeded().out)))
        assert {row["site"]: int(row["accepted"]) for row in table} == {
            site: account["accepted"] for site, account in found["sites"].items()
        }
        assert [int(row["accepted"]) for row in table] == [
            sum(int(row[name]) for name in PLACES) for row in table
        ]
        assert {row["missing"] for row in table} == {"0"}
        (picture,) = pictures(found)
        drawn = {name for name in (*PLACES, "nowhere") if f">{name.replace('_', ' ')}<" in picture.svg}
        assert drawn == {name for name in PLACES if found[name]}


def test_what_is_still_to_fetch_is_counted_in_the_frontiers(place: Place) -> None:
    """An agent that is ended and one that is killed leave pages to fetch; the next run leaves none."""
    with Farm(sites=3, pages=40, delay_ms=30) as farm:
        for how in (signal.SIGTERM, signal.SIGKILL):
            before = len(farm.hits())
            run = place.start_crawl(farm.seeds)
            wait_for_hits(farm, 25, since=before)
            run.process.send_signal(how)
            run.wait()
            found = check_balanced(place)
            assert found["pending"] > 0, found
        place.crawl(farm.seeds).succeeded()
        assert check_balanced(place)["pending"] == 0


def test_what_a_budget_leaves_out_is_told(place: Place) -> None:
    with Farm(sites=2, pages=30, kinds=[]) as farm:
        place.crawl(farm.seeds, MAX_PAGES_PER_SITE=7).succeeded()
        found = check_balanced(place)
        assert found["stored"] == 14
        assert found["over_budget"] > 0
        assert found["accepted"] == found["stored"] + found["over_budget"]


def test_pages_of_an_earlier_walk_are_told_apart(place: Place) -> None:
    with Farm(sites=2, pages=20, kinds=[]) as farm:
        place.crawl(farm.seeds).succeeded()
        place.crawl(farm.seeds, "--again", MAX_PAGES_PER_SITE=5).succeeded()
        found = check_balanced(place)
        assert found["stored"] == 10
        assert found["earlier"] == 30
        assert "kept of earlier crawls" in place.run("report", "ledger").out
        with closing(sqlite3.connect(place.var / "crawl.db")) as db, db:
            db.execute("delete from fetches")  # FETCHES_DAYS may have taken them
        assert check_balanced(place)["earlier"] == 30


def test_what_a_block_gives_up_is_told(place: Place) -> None:
    with Farm(sites=2, pages=40, kinds=[], delay_ms=30) as farm:
        run = place.start_crawl(farm.seeds)
        wait_for_hits(farm, 20)
        run.process.send_signal(signal.SIGTERM)
        run.wait()
        site = sorted(farm.expected())[0]
        place.run("site", "block", site).succeeded()
        place.crawl(farm.seeds).succeeded()
        found = check_balanced(place)
        assert found["sites"][site]["given_up"] > 0
        assert found["pending"] == 0


def test_a_lost_page_is_found_and_fails(place: Place) -> None:
    with Farm(sites=2, pages=10, kinds=[]) as farm:
        place.crawl(farm.seeds).succeeded()
    with closing(sqlite3.connect(place.var / "crawl.db")) as db, db:
        (site,) = db.execute("select site from sites order by site_id").fetchone()
        db.execute("delete from pages where id = (select min(id) from pages where url like ?)", [f"{site}/%"])
    found = ledger(place, code=1)
    assert (found["balanced"], found["missing"]) == (False, 1)
    assert {row["site"]: row["missing"] for row in rows(found)} == {
        one: int(one == site) for one in found["sites"]
    }
    (picture,) = pictures(found)
    assert ">nowhere<" in picture.svg
    run = place.run("report", "ledger")
    assert run.code == 1
    assert "NOT balanced: 1 URLs are nowhere" in run.out
    assert f"{site}: 1 of its 10 pages are not in the tables" in run.out
    assert "scrapy queue repair" in run.out


def test_the_words_for_a_queue_that_does_not_answer() -> None:
    nothing = dict.fromkeys((*PLACES, "accepted", "earlier", "missing"), 0)
    found = {**nothing, "balanced": True, "working": False, "queue_seen": False, "wrong": {}, "sites": {}}
    assert text(found).splitlines()[-1].endswith("(the queue does not answer: as the tables have it)")
