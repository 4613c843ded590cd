"""The site breaker: what trips it, what does not, and what becomes of a dead site's pages. By real agents."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from pathlib import Path

import pytest

from crawler.agent import politeness
from tests.crawling import Place
from tests.raw_server import Exchange
from tests.servers import eventually
from tests.small_site import RecheckResult, Reply, SmallSite, links, moved, text

pytestmark = pytest.mark.timeout(120)

# Nobody listens there, and nobody will: below the range that the kernel deals out.
NOBODY = "http://127.0.1.9:9"


def test_rules() -> None:
    silent = {status for status in range(-20, 600) if politeness.is_silence(status)}
    assert silent == {-1, -2, -3, -4, -6, -7}
    assert not silent & politeness.BAD_ANSWER
    assert {status for status in range(-20, 600) if politeness.shuts(status)} == silent | {-5, -8, -11, -12}
    assert [politeness.next_step(-2, straight) for straight in (1, 2, 3)] == ["go_on", "trip", "trip"]
    assert [politeness.next_step(-4, straight) for straight in (1, 2, 3)] == ["go_on", "probe", "probe"]
    assert [politeness.pause_after(times, 60.0) for times in (1, 2, 3, 99)] == [60, 120, 240, 86_400]


def outcomes(place: Place) -> Counter[tuple[str, int]]:
    return Counter(place.rows("select outcome, status from pages"))


def test_a_site_that_never_answers_is_probed_and_then_given_up(tmp_path: Path) -> None:
    with Place(tmp_path) as place:
        seeds = [f"{NOBODY}/", f"{NOBODY}/a", f"{NOBODY}/b"]
        first = place.crawl(seeds, SITE_PROBE_SECONDS=0.01, MAX_TRIES=2).stored_nothing()
        assert f"{NOBODY}: backing off for 0 s" in first.err
        if "given up after" not in first.err:  # else the site was due again before the agent had ended
            assert outcomes(place) == {}
            assert (
                "given up after" in place.crawl([], SITE_PROBE_SECONDS=0.01, MAX_TRIES=2).stored_nothing().err
            )
        assert outcomes(place) == {("failed", -2): 3}
        assert place.rows("select distinct state, error like '%does not answer%' from pages") == [
            ("no_response_1", 1)
        ]
        assert place.rows("select state, published from sites") == [("finished", 3)]
        place.run("report", "ledger").succeeded()


def test_a_site_that_cannot_be_asked_is_left_alone_longer_and_longer_and_then_given_up(
    tmp_path: Path,
) -> None:
    # Half a character cannot be sent.
    odd = {"127.0.1.1": {"headers": {"X-Odd": "\ud800"}}}
    given = {"SITE_PROBE_SECONDS": 600, "MAX_TRIES": 3, "SITE_OVERRIDES": odd}
    with SmallSite({"*": links()}) as web, Place(tmp_path) as place:
        for number, seconds in enumerate((600, 1200)):
            run = place.crawl([] if number else [web.root, f"{web.root}a"], **given).stored_nothing()
            assert f"{web.site}: request failed to build: UnicodeEncodeError" in run.err
            found = re.search(rf"{web.site}: backing off for (\d+) s: UnicodeEncodeError", run.err)
            assert found, run.err
            assert seconds <= int(found[1]) <= seconds * 1.1
            assert outcomes(place) == {}
            place.run("site", "resume", web.site).succeeded()
        last = place.crawl([], **given).stored_nothing()
        assert f"site {web.site}: given up after 3 attempts: request failed to build" in last.err
        assert "are due later" not in last.err
        assert web.paths == []
        assert outcomes(place) == {("failed", -13): 2}
        assert place.rows("select distinct error like 'request failed to build: %' from pages") == [(1,)]
        assert place.rows("select state, published from sites") == [("finished", 2)]
        place.run("report", "ledger").succeeded()


class EndlessRobots(SmallSite):
    """A site whose robots.txt begins and never ends; of its pages nobody may ask."""

    async def _serve(self, exchange: Exchange) -> None:
        self.log.append(RecheckResult(time.monotonic(), (await exchange.request()).decode().split()[1], {}))
        await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nUser-agent: *\n")
        while True:
            await asyncio.sleep(0.05)
            await exchange.send(b"#")


def test_a_site_whose_robots_txt_never_ends_has_its_verdict(tmp_path: Path) -> None:
    given = {"SITE_PROBE_SECONDS": 0.01, "MAX_TRIES": 2, "BODY_TIMEOUT_SECONDS": 0.3}
    with EndlessRobots({}) as web, Place(tmp_path) as place:
        run = place.crawl([web.root, f"{web.root}a"], **given).stored_nothing()
        if "given up after" not in run.err:  # else the site was due again before the agent had ended
            run = place.crawl([], **given).stored_nothing()
        assert "given up after" in run.err
        assert set(web.paths) == {"/robots.txt"}
        assert outcomes(place) == {("failed", -5): 2}
        assert place.rows("select distinct state from pages") == [("no_response_1",)]
        assert ("error",) in place.rows("select distinct health from health")


def test_a_site_that_is_silent_where_its_robots_txt_leads_has_its_verdict(tmp_path: Path) -> None:
    given = {"SITE_PROBE_SECONDS": 0.01, "MAX_TRIES": 2, "HEAD_TIMEOUT_SECONDS": 0.5}
    routes = {"/robots.txt": moved("/rules"), "/rules": text("", seconds=60)}
    with SmallSite(routes) as web, Place(tmp_path) as place:
        run = place.crawl([web.root], **given).stored_nothing()
        if "given up after" not in run.err:  # else the site was due again before the agent had ended
            run = place.crawl([], **given).stored_nothing()
        assert "given up after" in run.err
        assert set(web.paths) == {"/robots.txt", "/rules"}
        assert outcomes(place) == {("failed", -4): 1}


def test_a_site_that_dies_keeps_its_pages_until_they_have_their_verdict(tmp_path: Path) -> None:
    paths = [f"/{number}" for number in range(80)]
    with Place(tmp_path) as place:
        with SmallSite({"/": links(*paths), "*": links(seconds=0.05), "/robots.txt": Reply(404)}) as web:
            run = place.start_crawl([web.root], SITE_PROBE_SECONDS=600)
            eventually(lambda: len(web.pages) > 5, "some pages", 60)
        run.wait().succeeded()
        assert "backing off for" in run.err
        loaded = sum(many for (_, status), many in outcomes(place).items() if status == 200)
        assert 5 <= loaded <= web.pages.total()
        assert outcomes(place).total() - loaded <= 1, "the others have no verdict yet"
        assert place.rows("select pending >= 60 from sites") == [(1,)]
        place.run("site", "resume", web.site).succeeded()
        last = place.crawl([], SITE_PROBE_SECONDS=600, MAX_TRIES=2).succeeded()
        assert "given up after" in last.err
        assert outcomes(place).total() == 81
        assert {state for (state,) in place.rows("select state from pages where outcome = 'failed'")} == {
            "no_response_1"
        }
        place.run("report", "ledger").succeeded()


def test_two_bad_pages_of_a_good_site_trip_nothing(tmp_path: Path) -> None:
    slow = links(seconds=30)
    bad = {f"/slow{number}": slow for number in range(3)} | {
        f"/gone{number}": Reply(404) for number in range(3)
    }
    good = {f"/good{number}": links() for number in range(5)}
    with SmallSite({"/": links(*bad, *good), **bad, **good}) as web, Place(tmp_path) as place:
        given = {"HEAD_TIMEOUT_SECONDS": 0.4, "MAX_TRIES": 1, "ADAPTIVE_TIMEOUTS": False}
        run = place.crawl([web.root], **given).succeeded()
        assert "backing off for" not in run.err
        found = Counter(status for _, status in outcomes(place).elements())
        assert found == {200: 6, -4: 3, 404: 3}
        robots = web.paths.count("/robots.txt")
        assert robots >= 2, "it was asked whether the site is there"
