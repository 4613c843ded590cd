"""Drills: however many agents there are, a site is asked by one of them, and no faster than it allows."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tests.crawling import Place, wait_for_hits
from tests.drills import Fleet, check_distance, key, most_at_a_time
from tests.farm import Farm
from tests.servers import RunningServer, eventually


def test_two_agents_share_one_host(place: Place, valkey: RunningServer) -> None:
    delay = 0.25
    with (
        Farm(sites=1, pages=14, kinds=(), names=()) as farm,
        Fleet(place, farm, valkey, DOWNLOAD_DELAY=delay) as fleet,
    ):
        runs = [fleet.agent(), fleet.agent()]
        for run in runs:
            fleet.until_joined(run)
        wait_for_hits(farm, 5)
        (holder,) = [run for run in runs if fleet.held(run)]
        holder.end(signal.SIGTERM).succeeded()  # the other one goes on, and keeps the distance
        fleet.wait()
        fleet.check_exact()
        assert len({hit.user_agent for hit in farm.hits()}) == 2
        check_distance(farm.hits(), delay)


def test_a_long_crawl_delay_outlives_its_agent(place: Place, valkey: RunningServer) -> None:
    """What robots.txt asks for holds for the next agent too, which has not read it yet."""
    with (
        Farm(sites=1, pages=3, kinds=(), names=(), crawl_delay=0.8) as farm,
        Fleet(place, farm, valkey, DOWNLOAD_DELAY=0) as fleet,
    ):
        first, second = fleet.agent(), fleet.agent()
        for run in (first, second):
            fleet.until_joined(run)
        wait_for_hits(farm, 2)
        (holder,) = [run for run in (first, second) if fleet.held(run)]
        holder.end(signal.SIGTERM).succeeded()
        fleet.wait()
        fleet.check_exact()
        check_distance(farm.hits(), 0.8)


def seconds_of_the_others(place: Place, valkey: RunningServer, given: dict[str, Any], delay: float) -> float:
    """How long all sites but the first take, by the farm's log."""
    valkey.client.flushall()
    with (
        Farm(kinds=(), names=(), **given) as farm,
        Fleet(place, farm, valkey, DOWNLOAD_DELAY=delay) as fleet,
    ):
        fleet.agent()
        fleet.wait(200)
        slow = farm.site(0).removeprefix("http://")
        times = [hit.monotonic for hit in farm.hits() if hit.host != slow]
        assert {hit.host for hit in farm.hits()} == {url.split("/")[2] for url in farm.seeds}
        return times[-1] - times[0]


@pytest.mark.drill
@pytest.mark.parametrize(
    ("sites", "pages", "delay", "tolerance"),
    [(10, 8, 0.25, 0.25), pytest.param(50, 60, 0.5, 0.05, marks=pytest.mark.drill)],
)
def test_a_slow_site_holds_up_nobody(
    place: Place, valkey: RunningServer, sites: int, pages: int, delay: float, tolerance: float
) -> None:
    given = {"sites": sites, "pages": pages}
    alone = seconds_of_the_others(place, valkey, given, delay)
    beside = seconds_of_the_others(place, valkey, {**given, "slow_ms": {0: 1.3 * delay * 1000}}, delay)
    print(f"the others took {alone:.2f} s without the slow site, {beside:.2f} s beside it")
    assert beside <= (1 + tolerance) * alone


def test_an_address_takes_its_number_of_sites(place: Place, valkey: RunningServer) -> None:
    names = tuple(f"s{number}.localhost" for number in range(6))
    with (
        Farm(sites=0, pages=6, kinds=(), names=names) as farm,
        Fleet(place, farm, valkey, DOWNLOAD_DELAY=0.1, SITES_PER_ADDRESS=2) as fleet,
    ):
        fleet.agent(), fleet.agent()
        seen: set[int] = set()

        def over() -> bool:
            seen.add(int(valkey.client.hget(key("busy"), "127.0.0.1") or 0))
            return not fleet.alive

        eventually(over, "the crawl is over", 60)
        fleet.wait()
        fleet.check_exact()
        assert max(seen) == 2
        assert most_at_a_time(farm.hits()) == 2
