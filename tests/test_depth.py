"""MAX_DEPTH by the shortest way to a page, whatever fails first and whoever asks: real crawls of small webs."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import suppress
from pathlib import Path

import pytest

from tests.crawling import Place
from tests.servers import eventually
from tests.small_site import RESET, Reply, Route, SmallSite, at_first, moved

pytestmark = pytest.mark.timeout(120)

HTML = {"Content-Type": "text/html"}
CUT = Reply(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n<p>")


def page(name: str, *targets: str) -> Reply:
    """A page with words of its own: copies are not looked through."""
    return Reply(200, HTML, f"<p>{name}" + "".join(f"<a href={target}>x</a>" for target in targets))


def web(**more: Route) -> dict[str, Route]:
    """Two ways to /x: by /a in two links, by /b in three; /far lies two links behind it."""
    plain = {"/": ["/a", "/b"], "/b": ["/c"], "/c": ["/x"], "/x": ["/y"], "/y": ["/z"], "/z": ["/far"]}
    pages: dict[str, Route] = {path: page(path, *targets) for path, targets in plain.items()}
    return {**pages, "/a": page("/a", "/x"), **{f"/{name}": route for name, route in more.items()}}


def depths(place: Place) -> dict[str, int]:
    rows = place.rows("select url, depth from pages")
    return {"/" + url.split("/", 3)[3]: depth for url, depth in rows}


# What is on the short way to /x, and how deep /x and /y are then.
SLOW_WAYS: dict[str, tuple[dict[str, Route], int, int]] = {
    "an error that heals": ({"a": at_first(Reply(500), page("/a", "/x"))}, 2, 3),
    "a cut body": ({"a": at_first(CUT, page("/a", "/x"))}, 2, 3),
    "a reset": ({"a": at_first(RESET, page("/a", "/x"))}, 2, 3),
    "two redirects": ({"a": moved("/a2"), "a2": moved("/a3"), "a3": page("/a3", "/x")}, 2, 3),
    "a copy of a deeper page": (
        {"a": at_first(Reply(500), page("same", "/y")), "x": page("same", "/y")}, 3, 2
    ),
    "a sitemap": (
        {
            "robots.txt": Reply(200, {}, "Sitemap: /map.xml"),
            "map.xml": at_first(Reply(500), Reply(200, {}, "<urlset><url><loc>/x</loc></url></urlset>")),
            "a": page("/a"),
        }, 1, 2
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", SLOW_WAYS)
def test_pages_within_the_depth_are_loaded_whatever_fails_first(tmp_path: Path, way: str) -> None:
    routes, depth_of_x, depth_of_y = SLOW_WAYS[way]
    with SmallSite(web(**routes)) as site, Place(tmp_path) as place:
        place.crawl([site.root], MAX_DEPTH=3, RETRY_DELAY_SECONDS=1, DOWNLOAD_DELAY=0.05).succeeded()
        found = depths(place)
        assert (found["/x"], found["/y"]) == (depth_of_x, depth_of_y)
        assert ("/z" in found) == (depth_of_y < 3)
        assert "/far" not in found
        assert max(site.pages.values()) <= 2
        assert place.run("report", "ledger").succeeded()


def test_a_page_that_is_less_deep_than_it_seemed_is_taken_again_by_the_next_agent(tmp_path: Path) -> None:
    """The agent dies while the short way is still slow, and all else is in the tables."""
    slow = page("/a", "/x")._replace(seconds=60.0)
    with SmallSite(web(a=slow)) as site, Place(tmp_path) as place:
        given = {"MAX_DEPTH": 3, "LEASE_SECONDS": 3, "SITE_OVERRIDES": {site.site: {"connections": 2}}}
        run = place.start_crawl([site.root], **given)

        def told() -> bool:
            with suppress(sqlite3.Error):
                return "/x" in depths(place)
            return False

        eventually(told, "the deep page is in the tables", 30)
        run.end(signal.SIGKILL)
        site.routes["/a"] = page("/a", "/x")
        place.crawl([], **given).succeeded()
        assert depths(place) == {"/": 0, "/a": 1, "/b": 1, "/c": 2, "/x": 2, "/y": 3}
        assert site.pages["/x"] == 2


def test_a_shorter_way_from_another_site_opens_a_finished_one(tmp_path: Path) -> None:
    chain = {f"/{number}": page(f"/{number}", f"/{number + 1}") for number in range(1, 6)}
    with SmallSite({"/": page("/", "/1"), **chain}) as deep, SmallSite({}, "127.0.1.2") as other:
        other.routes["/"] = page("other", f"{deep.site}/3")
        with Place(tmp_path) as place:
            place.crawl([deep.root], MAX_DEPTH=3).succeeded()
            assert set(deep.pages) == {"/", "/1", "/2", "/3"}
            place.crawl([deep.root, other.root], MAX_DEPTH=3).succeeded()
            assert set(deep.pages) == {"/", "/1", "/2", "/3", "/4", "/5"}
            assert {path: depth for path, depth in depths(place).items() if path > "/2"} == {
                "/3": 1,
                "/4": 2,
                "/5": 3,
            }
            place.crawl([deep.root, other.root], "--again", MAX_DEPTH=3).succeeded()
        assert deep.pages["/3"] <= 4


def test_a_site_that_dies_leaves_pages_that_were_to_be_taken_again_as_they_were(tmp_path: Path) -> None:
    with SmallSite(web()) as site, Place(tmp_path) as place:

        def dies(_times: int) -> Reply:
            if "/x" not in site.pages:
                return Reply(500)
            site.routes = {"*": RESET}
            return page("/a", "/x", "/e1", "/e2", "/e3")

        site.routes["/a"] = dies
        given = {"RETRY_DELAY_SECONDS": 0.3, "SITE_PROBE_SECONDS": 0.01, "MAX_TRIES": 4, "MAX_DEPTH": 3}
        place.crawl([site.root], **given).succeeded()
        while len(place.rows("select 1 from pages where outcome = 'failed'")) < 3:
            place.crawl([], **given).succeeded()
        told = "select substr(url, -2), outcome, sha256 is not null from pages where depth = 2"
        given_up = [(f"e{one}", "failed", 0) for one in (1, 2, 3)]
        assert sorted(place.rows(told)) == [("/c", "stored", 1), *given_up]
        assert place.rows("select depth, outcome from pages where url like '%/x'") == [(3, "stored")]


def test_recheck_keeps_the_depth_of_pages_and_moves_no_limit(tmp_path: Path) -> None:
    """Every page changes each time, and the last but one leads to the next by a redirect."""
    chain = {f"/{one}": f"/{one + 1}" for one in range(1, 9)}

    def changing(path: str, target: str) -> Route:
        return lambda times: page(f"{path}, {times}", target)

    routes = {path: changing(path, target) for path, target in chain.items()}
    with SmallSite({"/": changing("/", "/1"), **routes}) as site, Place(tmp_path) as place:
        site.routes["/2"] = moved("/3")
        given = {"MAX_DEPTH": 2, "RECRAWL_MODE": "interval", "RECHECK_INTERVAL_SECONDS": 1}
        place.crawl([site.root], **given).succeeded()
        expected = {"/": 0, "/1": 1, "/2": 2, "/3": 2}
        assert depths(place) == expected
        for _ in range(2):
            before = site.pages["/1"]
            place.crawl([], spider="recheck", **given).succeeded()
            assert site.pages["/1"] > before
            place.crawl([], **given).succeeded()
            assert depths(place) == expected


REDIRECTS = {f"/r{number}": moved(f"/r{number + 1}") for number in range(1, 7)} | {"/r7": page("behind")}


@pytest.mark.parametrize(
    "ways",
    [
        {"/": page("/", "/r1", "/late"), "/late": page("late", "/r4")},
        {"/": page("/", "/r1", "/late"), "/late": page("late", "/s"), "/s": moved("/r3")},
        {"/": page("/", "/r1", "/r2")},
        {"/": page("/", "/r1", "/a"), "/a": moved("/b"), "/b": moved("/r4")},
    ],
)
def test_the_least_redirects_count_whichever_way_was_met_first(
    tmp_path: Path, ways: dict[str, Route]
) -> None:
    """Six lead one behind the other from /r1, and REDIRECT_MAX_TIMES is 5; another way leads into the midst of them."""
    with SmallSite({**REDIRECTS, **ways}) as site, Place(tmp_path) as place:
        place.crawl([site.root]).succeeded()
        assert site.pages["/r7"] == 1
        assert max(site.pages.values()) <= 2
        assert place.rows("select url, error from pages where error is not null") == []
