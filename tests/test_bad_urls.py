"""One bad URL is not its site: what belongs to a URL, what slows the whole site down, and what ends that again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from crawler.agent.frontier import MOST_BEHIND, Frontier
from crawler.agent.politeness import IN_A_ROW, FailureRow
from tests.crawling import Place
from tests.small_site import RESET, Reply, SmallSite, at_first, links, text

pytestmark = pytest.mark.timeout(120)

MANY = 1000
BUSY = Reply(503)
STUBBORN = ("/stubborn/1", "/stubborn/2", "/stubborn/3")
# Tries that are far enough from one another to be told apart, and a limit that a page which hangs soon meets.
GIVEN: dict[str, Any] = {"RETRY_DELAY_SECONDS": 0.3, "HEAD_TIMEOUT_SECONDS": 0.5, "ADAPTIVE_TIMEOUTS": False}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with Place(tmp_path) as place:
        yield place


def failed(place: Place, site: SmallSite) -> dict[str, tuple[int, int]]:
    """Status and tries of the pages that have failed, by path."""
    found = place.rows("select url, status, tries from pages where outcome = 'failed'")
    return {url.removeprefix(site.site): (status, tries) for url, status, tries in found}


# --- the rule -----------------------------------------------------------------------------------------------


def test_different_urls_in_a_row_are_the_site() -> None:
    row = FailureRow()
    assert [row.add(f"/{number}", 1, 0, MANY) for number in range(IN_A_ROW + 1)] == [
        *[False] * (IN_A_ROW - 1),
        True,
        True,
    ]
    row.end()
    assert not row.add("/another", 1, 0, MANY)


def test_a_url_that_fails_again_says_nothing_new() -> None:
    row = FailureRow()
    assert not any(row.add("/a", tries, 3 * (tries > 1), MANY) for tries in range(1, 20))
    # Nor do many that failed before a success, and fail again now that nothing else is left.
    assert not any(row.add(f"/{number}", 2, 0, MANY) for number in range(20))
    assert not any(row.add(f"/new/{number}", 1, 0, MANY) for number in range(IN_A_ROW - 2))
    assert row.add("/new/last", 1, 0, MANY)


def test_one_more_url_is_enough_after_a_rest() -> None:
    assert FailureRow().add("/a", 1, 1, MANY)
    assert not FailureRow().add("/a", 2, 1, MANY)


def test_a_site_of_which_every_url_fails_needs_no_more_of_them() -> None:
    row = FailureRow()
    assert [row.add("/a", 1, 0, 2), row.add("/b", 1, 0, 2), row.add("/a", 2, 1, 2)] == [False, True, True]
    assert FailureRow().add("/", 2, 1, 1)


def test_pages_that_failed_wait_behind_those_that_were_not_tried() -> None:
    frontier = Frontier()
    frontier.add([f"/{number}" for number in range(4)], 0)
    first, second = frontier.take(0.0), frontier.take(0.0)
    assert first
    assert second
    frontier.set_back(first, 1.0)
    frontier.put_back(second)  # no try of it was made
    taken = [frontier.take(9.0) for _ in range(5)]
    assert [(turn.path, turn.tries) for turn in taken if turn] == [("/1", 1), ("/2", 1), ("/3", 1), ("/0", 2)]


def test_pages_that_failed_wait_behind_the_others_after_a_kill() -> None:
    frontier = Frontier()
    frontier.add([f"/{number}" for number in range(4)], 0)
    turn = frontier.take(0.0)
    assert turn
    frontier.set_back(turn, 1.0)
    assert frontier.take(0.0)  # in flight when the agent dies
    restored = Frontier()
    restored.restore([frontier.whole()])
    taken = [restored.take(9.0) for _ in range(5)]
    assert [(turn.path, turn.tries) for turn in taken if turn] == [("/1", 1), ("/2", 1), ("/3", 1), ("/0", 2)]


def test_more_pages_than_a_checkpoint_should_name_do_not_wait() -> None:
    frontier = Frontier()
    frontier.add([f"/{number}" for number in range(MOST_BEHIND + 3)], 0)
    for _ in range(MOST_BEHIND + 1):
        turn = frontier.take(0.0)
        assert turn
        frontier.set_back(turn, 1.0)
    taken = [frontier.take(9.0) for _ in range(2)]
    assert [turn.tries for turn in taken if turn] == [2, 1]


# --- one bad URL --------------------------------------------------------------------------------------------


def test_stubborn_urls_hold_up_none_of_the_others(place: Place) -> None:
    """They are recorded as failed, after all others, in the same run."""
    bad = (*STUBBORN, "/hangs", "/resets")
    # Stubborn ones one behind the other, and between good ones.
    listed = ["/1", *STUBBORN, *(f"/{number}" for number in range(2, 30)), "/hangs", "/resets"]
    listed += [f"/{number}" for number in range(30, 61)]
    routes = {
        "/": links(*listed),
        **dict.fromkeys(STUBBORN, BUSY),
        "/hangs": links(seconds=30),
        "/resets": RESET,
        "*": links(),
        "/robots.txt": Reply(404),
    }
    with SmallSite(routes) as site:
        run = place.crawl([site.root], **GIVEN).succeeded()
        assert "backing off for" not in run.err
        assert "are due later" not in run.err
        good = {path for path in ("/", *listed) if path not in bad}
        assert place.stored()[site.site] == {site.site + path for path in good}
        assert failed(place, site) == {
            **dict.fromkeys(STUBBORN, (503, 3)),
            "/hangs": (-4, 3),
            "/resets": (-6, 3),
        }
        # libcurl itself sends a request again whose connection was reset after an earlier answer.
        assert site.pages == {
            **dict.fromkeys(good, 1),
            **dict.fromkeys(bad, 3),
            "/resets": site.pages["/resets"],
        }
        assert place.rows("select state from sites") == [("finished",)]
        last_good = max(site.times(path)[0] for path in good)
        for path in (*STUBBORN, "/hangs"):
            first, second, third = site.times(path)
            assert first < last_good < second, "the others come first"
            assert second - first >= 0.3
            assert third - second >= 0.6
        place.run("report", "ledger").succeeded()


def test_a_section_that_always_fails_is_not_the_site(place: Place) -> None:
    """A page that was loaded before is asked again and answers, so nothing rests."""
    broken = [f"/broken/{number}" for number in range(2 * IN_A_ROW + 1)]
    routes = {"/": links("/a", *broken, "/b"), **dict.fromkeys(broken, BUSY), "*": links()}
    with SmallSite({**routes, "/robots.txt": Reply(404)}) as site:
        run = place.crawl([site.root], **GIVEN).succeeded()
        assert "backing off for" not in run.err
        assert failed(place, site) == dict.fromkeys(broken, (503, 3))
        assert site.pages["/"] + site.pages["/a"] == 2 + 2, "one trial for each five bad URLs"
        assert site.pages["/b"] == 1
        place.run("report", "ledger").succeeded()


def test_a_trial_obeys_robots_txt_as_it_is_by_now(place: Place) -> None:
    broken = [f"/broken/{number}" for number in range(IN_A_ROW + 1)]
    rules = at_first(Reply(404), text("User-agent: *\nDisallow: /$\n"))
    with SmallSite({"/": links(*broken), "/robots.txt": rules, "*": BUSY}) as site:
        given = {**GIVEN, "ROBOTS_LIFETIME_SECONDS": 1, "DOWNLOAD_DELAY": 0.4}
        run = place.crawl([site.root], **given).succeeded()
        assert site.paths.count("/robots.txt") > 1
        assert site.pages["/"] == 1
        assert f"{site.site}: backing off for" in run.err


def test_the_only_page_that_is_left_is_tried_and_has_failed(place: Place) -> None:
    with SmallSite({"/": links("/stubborn/1"), "/stubborn/1": BUSY, "/robots.txt": Reply(404)}) as site:
        run = place.crawl([site.root], **GIVEN).succeeded()
        assert "backing off for" not in run.err
        assert failed(place, site) == {"/stubborn/1": (503, 3)}


def test_a_url_that_gives_no_answer_is_no_reason_to_look_whether_its_site_is_there(place: Place) -> None:
    with ExitStack() as stack:
        sites = [
            stack.enter_context(
                SmallSite({"/": links("/bad"), "/bad": bad, "/robots.txt": Reply(404)}, f"127.0.3.{number}")
            )
            for number, bad in enumerate((links(seconds=30), RESET), 1)
        ]
        run = place.crawl([site.root for site in sites], **GIVEN).succeeded()
        assert "backing off for" not in run.err
        assert [failed(place, site)["/bad"] for site in sites] == [(-4, 3), (-6, 3)]
        assert [site.paths.count("/robots.txt") for site in sites] == [1, 1]


# --- the whole site -----------------------------------------------------------------------------------------


def rests(err: str, site: SmallSite) -> list[int]:
    """How many seconds each of the site's rests is to take."""
    return [int(seconds) for seconds in re.findall(rf"{site.site}: backing off for (\d+) s", err)]


def check_rests(err: str, sites: list[SmallSite], seconds: int) -> None:
    for site in sites:
        (rest,) = rests(err, site)
        assert seconds <= rest <= 1.1 * seconds


def test_a_site_of_which_every_page_fails_rests_after_few_requests(place: Place) -> None:
    """However they fail; and for longer each time, until a page succeeds."""
    pages = [f"/{number}" for number in range(50)]
    with ExitStack() as stack:
        sites = [
            stack.enter_context(SmallSite({"*": bad, "/robots.txt": Reply(404)}, f"127.0.3.{number}"))
            for number, bad in enumerate((BUSY, RESET, links(seconds=30)), 1)
        ]
        names = [site.site for site in sites]
        run = place.crawl([name + page for name in names for page in pages], **GIVEN).stored_nothing()
        assert "3 sites are due later" in run.err
        assert [len(site.pages) for site in sites] == [IN_A_ROW] * 3
        assert sites[0].pages.total() == IN_A_ROW
        check_rests(run.err, sites, 60)
        # One more URL, and it rests for twice as long.
        place.run("site", "resume", *names).succeeded()
        check_rests(place.crawl([], **GIVEN).stored_nothing().err, sites, 120)
        assert [len(site.pages) for site in sites] == [IN_A_ROW + 1] * 3
        for site in sites:
            site.routes |= {f"/{IN_A_ROW + 1}": Reply(404)}
        place.run("site", "resume", *names).succeeded()
        check_rests(place.crawl([], **GIVEN).stored_nothing().err, sites, 60)
        assert [len(site.pages) for site in sites] == [IN_A_ROW + 2 + IN_A_ROW] * 3


def test_a_site_that_gets_overloaded_rests_once_a_loaded_page_fails_too(place: Place) -> None:
    pages = [f"/{number}" for number in range(30)]
    with SmallSite({"/": at_first(links(*pages), BUSY), "*": BUSY, "/robots.txt": Reply(404)}) as site:
        run = place.crawl([site.root], **GIVEN).succeeded()
        assert "1 sites are due later" in run.err
        assert site.paths[-1] == "/", "the trial"
        assert site.pages.total() == 1 + IN_A_ROW + 1


def test_a_site_whose_first_page_alone_is_known_and_fails_rests(place: Place) -> None:
    with SmallSite({"/": BUSY, "/robots.txt": Reply(404)}) as site:
        run = place.crawl([site.root], **GIVEN).stored_nothing()
        assert f"{site.site}: backing off for 6" in run.err
        assert site.pages == {"/": 1}
        for _ in range(2):
            place.run("site", "resume", site.site).succeeded()
            place.crawl([], **GIVEN).stored_nothing()
        assert failed(place, site) == {"/": (503, 3)}
        assert place.rows("select state from sites") == [("finished",)]


def test_a_site_that_asks_for_a_rest_once_gets_it_as_a_whole(place: Place) -> None:
    pages = [f"/{number}" for number in range(6)]
    with ExitStack() as stack:
        sites: dict[int, SmallSite] = {}
        for status in (429, 503, 500, 404, 302):
            asks = at_first(Reply(status, {"Location": "/0", "Retry-After": "120"}), links())
            routes = {"/": links(*pages), "/1": asks, "*": links(), "/robots.txt": Reply(404)}
            sites[status] = stack.enter_context(SmallSite(routes, f"127.0.3.{len(sites) + 1}"))
        silent = {**routes, "/1": at_first(Reply(429), links())}
        unsaid = stack.enter_context(SmallSite(silent, "127.0.4.1"))
        every = [*sites.values(), unsaid]
        run = place.crawl([site.root for site in every], **GIVEN).succeeded()
        assert [site.paths for site in every] == [["/robots.txt", "/", "/0", "/1"]] * 6
        check_rests(run.err, [*sites.values()], 120)
        check_rests(run.err, [unsaid], 60)
        assert "6 sites are due later" in run.err
        place.run("site", "resume", *(site.site for site in every)).succeeded()
        place.crawl([], **GIVEN).succeeded()
        once = dict.fromkeys(("/", *pages), 1)
        for status, site in (*sites.items(), (429, unsaid)):
            assert site.pages == {**once, "/1": 2 if status in (429, 500, 503) else 1}


def test_a_field_of_a_page_that_was_loaded_asks_for_no_rest(place: Place) -> None:
    with SmallSite({"/": links()._replace(fields={"Retry-After": "120"})}) as site:
        assert "backing off for" not in place.crawl([site.root], **GIVEN).succeeded().err
