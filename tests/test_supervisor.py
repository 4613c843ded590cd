"""Agents, coordinator and supervisor that are killed or told to end, at any moment: nothing is lost, nothing is left.

Each kill is a real one, of a process that is found by its parent and its command line.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from crawler import records
from crawler.local.supervisor import MOST_DEATHS, Child, Supervisor, numbered_file
from tests.crawling import Place, Run, fetched, parent_of, wait_for_hits
from tests.farm import Farm
from tests.servers import RunningServer, eventually
from tests.told import told

# A dead agent's sites come back after this.
LEASE = 1
# Pages that an agent may have fetched and not published when it is killed: one flush (0.1 s) and one in flight per
# site, at 40 ms a page.
UNPUBLISHED_PER_SITE = 5


@pytest.fixture
def farm() -> Iterator[Farm]:
    """Four sites that keep two agents busy for two seconds."""
    with Farm(sites=4, pages=40, kinds=(), names=(), delay_ms=40) as started:
        yield started


def agents_of(place: Place, supervisor: Run) -> list[int]:
    return [pid for pid in place.processes("crawl") if parent_of(pid) == supervisor.pid]


def coordinators(place: Place) -> list[int]:
    return place.processes("coordinate")


def check_exact(place: Place, farm: Farm, most_again: int) -> None:
    """Every page is stored, and no more were fetched twice than a kill may cost."""
    assert place.stored() == farm.expected()
    asked = fetched(farm.hits())
    again = asked.total() - len(asked)
    assert again <= most_again, f"{again} pages were fetched again"
    assert place.rows("select * from dead_letters") == []


# --- Kills ------------------------------------------------------------------------------------------------


def test_a_killed_agent_is_started_again(place: Place, farm: Farm) -> None:
    run = place.start_crawl(farm.seeds, "--agents", "2", LEASE_SECONDS=LEASE)
    wait_for_hits(farm, 30)
    killed = agents_of(place, run)[0]
    os.kill(killed, signal.SIGKILL)
    run.says("ended with signal SIGKILL, restarting in 0.5 s")
    eventually(lambda: len(set(agents_of(place, run)) - {killed}) == 2, "two agents run")
    run.wait().succeeded()
    check_exact(place, farm, 4 * UNPUBLISHED_PER_SITE)


SPIDER = """
from crawler.spiders.site import SiteSpider


class Urls(SiteSpider):
    name = "urls"

    def parse(self, response):
        # Longer than what a file keeps back before it writes.
        yield {"url": response.url, "filling": "x" * 10_000}
"""


def test_a_killed_agent_goes_on_and_does_not_begin_anew(place: Place, valkey: RunningServer) -> None:
    """It walks nothing a second time that `--again` has led it to, and empties no file that `-O` was given for."""
    (place.folder / "urls_spider.py").write_text(SPIDER)
    feed = place.folder / "items-1.jsonl"
    given = {
        "spider": "urls",
        "env": {"PYTHONPATH": str(place.folder)},
        "SPIDER_MODULES": "urls_spider",
        "REDIS_URL": valkey.url,
    }
    with Farm(sites=5, pages=6, kinds=(), names=()) as farm:
        place.start_crawl(farm.seeds, **given).wait().succeeded()
        before, told_before = len(farm.hits()), len(told(valkey))
        run = place.start_crawl(
            farm.seeds,
            *("--again", "--agents", "2", "-O", f"{place.folder}/items.jsonl"),
            **{**given, "DOWNLOAD_DELAY": 0.12, "SITE_SLOTS": 1, "LEASE_SECONDS": LEASE},
        )

        def finished() -> set[str]:
            ends = [one for one in told(valkey)[told_before:] if isinstance(one, records.SiteEnded)]
            return {one.site for one in ends if one.finished}

        eventually(lambda: len(finished()) >= 2, "two sites are walked anew")
        done, items = finished(), urls_in(feed)
        (first,) = place.processes("WALK_AGAIN=1")
        os.kill(first, signal.SIGKILL)
        run.says("ended with signal SIGKILL, restarting in 0.5 s")
        run.wait().succeeded()
        again = fetched(farm.hits()[before:])
        assert set(again) == {url for urls in farm.expected().values() for url in urls}
        assert {again[url] for site in done for url in farm.expected()[site]} == {1}
        assert items
        assert items <= urls_in(feed)


def urls_in(feed: Path) -> set[str]:
    """The pages whose items are in a feed; a last line may be half written."""
    lines = feed.read_text().split("\n")[:-1] if feed.exists() else []
    return {json.loads(line)["url"] for line in lines}


def test_a_killed_coordinator_is_replaced(place: Place, farm: Farm) -> None:
    run = place.start_crawl(farm.seeds, LEASE_SECONDS=600)
    run.says("writes to")
    (killed,) = coordinators(place)
    os.kill(killed, signal.SIGKILL)
    run.says("the coordinator ended with code -9; starting another one")
    # Long before LEASE_SECONDS: what the killed one had read is taken up at once.
    run.wait().succeeded()
    assert run.err.count("writes to") == 2
    check_exact(place, farm, 0)


def test_a_coordinator_killed_while_it_drains_is_replaced(place: Place) -> None:
    with Farm(sites=2, pages=5, kinds=(), names=()) as farm:
        # Commits so late that the agent has ended long before, and the crawl waits for what was read.
        run = place.start_crawl(farm.seeds, BATCH_SECONDS=3)
        run.says("Spider closed (finished)")
        run.says("writes to")
        (killed,) = coordinators(place)
        os.kill(killed, signal.SIGKILL)
        run.says("the coordinator ended before everything was stored; starting another one")
        eventually(lambda: run.err.count("writes to") == 2, "another coordinator")
        # One that is told to end stores the batch in hand; the next looks whether that was all.
        os.kill(coordinators(place)[0], signal.SIGTERM)
        run.wait().succeeded()
        check_exact(place, farm, 0)


def test_agents_end_with_their_supervisor(place: Place, farm: Farm) -> None:
    run = place.start_crawl(farm.seeds, "--agents", "2")
    wait_for_hits(farm, 30)
    run.process.kill()
    run.wait()
    place.check_nothing_left()
    asked = set(fetched(farm.hits()))
    assert len(asked) < 160, "the crawl was over before the kill"
    assert {url for (url,) in place.rows("select url from pages")} == asked


def test_the_next_run_adopts_what_a_power_cut_left(place: Place, farm: Farm) -> None:
    run = place.start_crawl(farm.seeds, "--agents", "2", LEASE_SECONDS=LEASE)
    wait_for_hits(farm, 50)
    place.kill_all()
    assert run.code == -signal.SIGKILL
    asked = fetched(farm.hits())
    assert len(asked) < 160, "the crawl was over before the kill"
    place.crawl((), LEASE_SECONDS=LEASE).succeeded()
    check_exact(place, farm, 4 * UNPUBLISHED_PER_SITE)


# --- Signals ----------------------------------------------------------------------------------------------


def test_a_first_signal_drains(place: Place, farm: Farm) -> None:
    run = place.start_crawl(farm.seeds, "--agents", "2")
    wait_for_hits(farm, 30)
    run.end(signal.SIGTERM).succeeded()
    place.check_nothing_left()
    assert "[supervisor] " in run.err
    assert "SIGTERM: agents finish their pages in flight and end" in run.err
    asked = fetched(farm.hits())
    assert len(asked) < 160, "it was not interrupted"
    assert {url for (url,) in place.rows("select url from pages")} == set(asked)


def test_a_second_signal_ends_at_once(place: Place) -> None:
    with Farm(sites=2, pages=2, kinds=(), names=(), slow_ms={0: 90_000, 1: 90_000}) as farm:
        # The robots.txt of each site is asked for, and not answered within this test.
        run = place.start_crawl(farm.seeds, "--agents", "2", HEAD_TIMEOUT_SECONDS=90)
        eventually(lambda: len(agents_of(place, run)) == 2, "two agents run")
        eventually(lambda: run.err.count("Spider opened") == 2, "both agents work")
        run.process.send_signal(signal.SIGINT)
        run.says("SIGINT: agents finish their pages in flight and end")
        run.end(signal.SIGINT)
        assert run.code == 1
        place.check_nothing_left()


# --- One child, with the clock in hand --------------------------------------------------------------------


def child_that(code: str) -> Child:
    return Child("agent 7", [sys.executable, "-c", code])


def until_it_ends(child: Child, now: float, *, stopping: bool = False) -> None:
    def ended() -> bool:
        child.look(now, stopping=stopping)
        return child.pid is None

    eventually(ended, "the child has ended")


def test_a_child_that_dies_in_a_row_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    child = child_that("raise SystemExit(1)")
    now = 0.0
    pauses = []
    for _ in range(MOST_DEATHS):
        child.look(now, stopping=False)
        assert child.pid is not None
        until_it_ends(child, now)
        pause = 0.0
        while not child.over and pause < 60:
            child.look(now + pause, stopping=False)
            if child.pid is not None:
                break
            pause += 0.25
        pauses.append(pause)
        if child.pid is not None:
            child.send(signal.SIGKILL)
            until_it_ends(child, now + pause)
        now += pause + 60
        if child.over:
            break
    assert child.code is not None
    assert sorted(pauses) == pauses
    assert "agent 7 ended with code 1" in caplog.text
    assert "not restarted" in caplog.text


def test_a_child_may_be_started_again_by_another_command(tmp_path: Path) -> None:
    began = tmp_path / "began"
    commands = [
        [sys.executable, "-c", f"open({str(began)!r}, 'a').write({word!r}); raise SystemExit(1)"]
        for word in ("first ", "again ")
    ]
    child = Child("agent 7", commands[0], again=commands[1])
    for now in (0.0, 100.0, 200.0):
        child.look(now, stopping=False)
        until_it_ends(child, now)
    assert began.read_text() == "first again again "


@pytest.mark.parametrize("code", [0, 2, 3])
def test_an_end_that_is_meant_is_final(code: int) -> None:
    child = child_that(f"raise SystemExit({code})")
    child.look(0.0, stopping=False)
    until_it_ends(child, 0.0)
    assert (child.over, child.code) == (True, code)
    child.look(1000.0, stopping=False)
    assert child.pid is None


def test_nothing_is_started_once_it_stops() -> None:
    child = child_that("raise SystemExit(1)")
    child.look(0.0, stopping=True)
    assert (child.over, child.code, child.pid) == (True, 0, None)


@pytest.mark.parametrize(("codes", "whole"), [((0, 0), 0), ((0, 3), 3), ((2, 3), 3)])
def test_the_highest_code_is_the_supervisors(codes: tuple[int, int], whole: int) -> None:
    children = [child_that(f"raise SystemExit({code})") for code in codes]
    assert Supervisor(children).run() == whole


def test_it_waits_for_what_comes_after() -> None:
    answers = iter([False, False, True])
    after: Callable[[], bool] = lambda: next(answers)  # noqa: E731 - a name for the type
    assert Supervisor([child_that("")]).run(after) == 0
    assert next(answers, None) is None


@pytest.mark.parametrize(
    ("uri", "second"),
    [
        ("items.jsonl", "items-2.jsonl"),
        ("out/items.jsonl", "out/items-2.jsonl"),
        ("s3://bucket/items.jsonl.gz", "s3://bucket/items.jsonl-2.gz"),
        ("out.d/items", "out.d/items-2"),
        ("items", "items-2"),
    ],
)
def test_each_agent_writes_a_file_of_its_own(uri: str, second: str) -> None:
    assert numbered_file(uri, 2) == second


def test_a_killed_server_is_started_again(place: Place) -> None:
    with Farm(sites=3, pages=60, kinds=(), names=(), delay_ms=50) as farm:
        run = place.start_crawl(farm.seeds)
        eventually(lambda: len(farm.hits()) > 12, "the crawl is under way")
        os.kill(int((place.var / "valkey" / "server.lock").read_text().split()[0]), signal.SIGKILL)
        run.wait().succeeded()
        assert "the bundled server had ended; it was restarted" in run.err
        assert place.stored() == farm.expected()
