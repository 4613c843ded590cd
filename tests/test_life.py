"""A page's whole life, and sites that are opened again: real agents, coordinators and packers, seconds for days."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from crawler.local.server import Server
from tests.crawling import Place
from tests.drills import go_on, stop_process
from tests.outages import pass_time, tables_that_go
from tests.servers import eventually
from tests.small_site import Reply, SmallSite, links

pytestmark = pytest.mark.timeout(180)

HTML = {"Content-Type": "text/html"}
SECONDS = {
    "RECRAWL_MODE": "interval",
    "RECHECK_INTERVAL_SECONDS": 1,
    "REVIVE_FIRST_SECONDS": 1,
    "REVIVE_SECOND_SECONDS": 1,
}
GONE = Reply(404, HTML, "gone")


def one_after_the_other(*replies: Reply) -> Callable[[int], Reply]:
    """Each reply once, in order, and the last for ever."""
    return lambda times: replies[min(times, len(replies)) - 1]


def history(place: Place, path: str) -> list[tuple[str, int]]:
    """What became of every request for a page."""
    query = (
        "select f.outcome, f.status from fetches f join pages p using (site_id, url_hash) "
        f"where p.url like '%{path}' order by f.fetched_at, f.id"
    )
    return place.rows(query)


def state(place: Place, path: str) -> tuple[str, int]:
    """A page's state and straight failures."""
    (found,) = place.rows(f"select state, fails from pages where url like '%{path}'")
    return found  # type: ignore[return-value]


def has(place: Place, query: str) -> Callable[[], bool]:
    """Whether a query to tables that may not be there yet gives a row."""

    def look() -> bool:
        with suppress(sqlite3.OperationalError):
            return bool(place.rows(query))
        return False

    return look


def test_a_whole_life(tmp_path: Path) -> None:
    with SmallSite({"/": links("/p")}) as web, Place(tmp_path) as place:
        web.routes["/p"] = one_after_the_other(
            Reply(200, HTML, "<title>one</title>first"),
            Reply(200, HTML, "<title>two</title>second <a href=/later>x</a>"),
            GONE,
            Reply(200, HTML, "<title>two</title>second"),
            GONE,
        )
        web.routes["/later"] = links()
        run = place.start_crawl(
            [web.root], "--with", "recheck,revive", "--when-idle", "wait", SITE_SLOTS=4, **SECONDS
        )
        dead = has(place, "select 1 from pages where url like '%/p' and state = 'dead'")
        eventually(dead, "the page to be dead", 90)
        asked = web.pages["/p"]
        checked = web.pages["/"]
        eventually(lambda: web.pages["/"] >= checked + 2, "others to be rechecked", 30)
        assert web.pages["/p"] == asked, "the dead are not asked"
        run.end().succeeded()
        assert history(place, "/p") == [
            ("stored", 200),  # new
            ("stored", 200),  # changed
            ("silent", 404),  # gone, once
            ("answers", 200),  # back
            ("silent", 404),
            ("silent", 404),
            ("silent", 404),  # and dead
        ]
        assert state(place, "/p") == ("dead", 3)
        ((title, changed),) = place.rows(
            "select title, last_changed is not null from pages where url like '%/p'"
        )
        assert (title, changed) == ("two", 1)
        assert web.pages["/later"] >= 1, "a link found by recheck is loaded"
        assert state(place, "/later")[0] == "visited"


def test_a_page_that_head_finds_changed_is_loaded_and_none_else(tmp_path: Path) -> None:
    def tagged(tag: str) -> Reply:
        return Reply(200, {**HTML, "ETag": f'"{tag}"'}, f"<title>{tag}</title>text {tag}")

    with SmallSite({"/": links("/a", "/b")}) as web, Place(tmp_path) as place:
        web.routes |= {"/a": one_after_the_other(tagged("1"), tagged("2")), "/b": tagged("1")}
        web.routes["/"] = Reply(200, {**HTML, "ETag": '"0"'}, "<a href=/a>x</a><a href=/b>x</a>")
        given: dict[str, Any] = {**SECONDS, "RECHECK_METHOD": "head"}
        run = place.start_crawl([web.root], "--with", "recheck", "--when-idle", "wait", **given)
        eventually(has(place, "select 1 from pages where title = '2'"), "the changed page", 60)
        run.end().succeeded()
        gets = [asked.path for asked in web.log if asked.method == "GET" and asked.path != "/robots.txt"]
        assert sorted(gets) == ["/", "/a", "/a", "/b"]
        assert state(place, "/a") == ("visited", 0)
        place.run("report", "ledger").succeeded()


@pytest.mark.parametrize("seconds", [3.0, pytest.param(60.0, marks=pytest.mark.drill)])
def test_no_step_is_lost_or_taken_twice_while_redis_or_the_database_is_away(
    tmp_path: Path, seconds: float
) -> None:
    paths = [f"/{number}" for number in range(20)]
    silent = "select count(*) from fetches where outcome = 'silent'"
    with SmallSite({"/": links(*paths), "*": GONE}) as web, Place(tmp_path) as place:
        run = place.start_crawl(
            [web.root], "--with", "revive", "--when-idle", "wait", **{**SECONDS, "REVIVE_SECOND_SECONDS": 3}
        )
        eventually(has(place, f"select 1 from pages where ({silent}) > 0"), "the first question", 60)
        with closing(redis.Redis.from_url(Server(place.var).url)) as client:
            pid = int(client.info("server")["process_id"])
        stop_process(pid)
        pass_time(seconds)
        go_on(pid)
        with tables_that_go(f"sqlite:///{place.var / 'crawl.db'}") as tables:
            tables.take_away()
            pass_time(seconds)
        over = has(place, "select 1 where (select count(*) from pages where state = 'dead') = 20")
        eventually(over, "every page to be dead", 90)
        run.end().succeeded()
        assert {state(place, path) for path in paths} == {("dead", 3)}
        for path in paths:
            assert history(place, path) == [("failed", 404), ("silent", 404), ("silent", 404)]
        assert place.rows(silent) == [(40,)]
        assert place.rows("select count(*) from dead_letters") == [(0,)]
