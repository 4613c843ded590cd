"""Drills: agents are killed, ended, frozen and misled about the time; nothing is lost, nothing published twice."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from crawler.agent.agent import INLET_SECONDS
from tests.crawling import ROOT, Place, fetched, wait_for_hits
from tests.drills import ONCE, Fleet, check_distance, go_on, key, moments, stop_process
from tests.farm import Farm
from tests.faults import HeldOffer, KilledAtLeave, KilledAtOffer, suffers
from tests.servers import RunningServer, eventually
from tests.small_site import SmallSite, links
from tests.told import outcomes

HOUR = 3600.0
SHORT = {"sites": 10, "pages": 15, "kinds": ONCE, "names": (), "delay_ms": 20}
FULL = {"sites": 30, "pages": 160, "kinds": ONCE, "names": (), "delay_ms": 20}


@pytest.fixture
def rng() -> random.Random:
    """Chance that can be had again: a drill that fails prints its seed."""
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed of this drill's chance: {seed}")
    return random.Random(seed)


def kill_agents(fleet: Fleet, rng: random.Random, many: int) -> None:
    """Kill agents that work, at random moments, and start another for each."""
    for _ in moments(rng, many, 0.05, 1.0):
        at_work = [run for run in fleet.alive if fleet.held(run)]
        assert at_work, "the crawl was too short for this drill"
        fleet.kill(rng.choice(at_work))
        fleet.until_joined(fleet.agent())


def kill_server(fleet: Fleet, rng: random.Random, many: int) -> None:
    """Kill the server at random moments and start it again over its file."""
    for _ in moments(rng, many, 0.05, 1.0):
        assert fleet.alive, "the crawl was too short for this drill"
        fleet.server.kill()
        next(moments(rng, 1, 0.0, 0.4))
        fleet.server.start()


def check_fetched_again(fleet: Fleet) -> None:
    """A kill costs the pages in flight and at most two seconds of that agent's work."""
    again, allowed = fleet.fetched_again(), fleet.allowed_again()
    print(f"{len(fleet.killed)} agents killed: {again} pages fetched again, {allowed} allowed")
    assert 0 <= again <= allowed


def test_agents_and_server_are_killed(place: Place, valkey: RunningServer, rng: random.Random) -> None:
    with Farm(**SHORT) as farm, Fleet(place, farm, valkey, DOWNLOAD_DELAY=0.25) as fleet:
        fleet.agents_at_work(2)
        kill_agents(fleet, rng, 1)
        kill_server(fleet, rng, 2)
        kill_agents(fleet, rng, 1)
        fleet.wait()
        fleet.check_exact()
        check_fetched_again(fleet)


@pytest.mark.drill
@pytest.mark.parametrize(("of_agents", "of_server"), [(20, 0), (0, 20), (20, 20)])
def test_twenty_kills(
    place: Place, valkey: RunningServer, rng: random.Random, of_agents: int, of_server: int
) -> None:
    with Farm(**FULL) as farm, Fleet(place, farm, valkey, DOWNLOAD_DELAY=0.5) as fleet:
        fleet.agents_at_work(3)
        for _ in range(10):
            kill_agents(fleet, rng, of_agents // 10)
            kill_server(fleet, rng, of_server // 10)
        fleet.wait(400)
        fleet.check_exact()
        check_fetched_again(fleet)


def roll_over(fleet: Fleet, many: int) -> None:
    """Start an agent for each that works, and end the old one when the new one has joined."""
    for run in fleet.agents_at_work(many):
        fleet.until_joined(fleet.agent())
        run.end(signal.SIGTERM, 20).succeeded()


def check_rolled_over(fleet: Fleet, delay: float) -> None:
    fleet.wait(200)
    fleet.check_exact()
    assert {url: n for url, n in fetched(fleet.farm.hits()).items() if n > 1} == {}
    check_distance(fleet.farm.hits(), delay)


@pytest.mark.drill
def test_agents_are_ended_in_turn(place: Place, valkey: RunningServer) -> None:
    with Farm(**SHORT) as farm, Fleet(place, farm, valkey, DOWNLOAD_DELAY=0.4) as fleet:
        roll_over(fleet, 2)
        check_rolled_over(fleet, 0.4)


@pytest.mark.drill
def test_many_agents_are_ended_in_turn(place: Place, valkey: RunningServer) -> None:
    with Farm(**FULL) as farm, Fleet(place, farm, valkey, DOWNLOAD_DELAY=0.5) as fleet:
        roll_over(fleet, 3)
        for run in list(fleet.alive):
            fleet.until_joined(fleet.agent())
            run.end(signal.SIGTERM, 20).succeeded()
        check_rolled_over(fleet, 0.5)


@pytest.mark.drill
def test_a_newcomer_gets_its_share(place: Place, valkey: RunningServer) -> None:
    """Also from agents that have no slot free and would ask for nothing themselves."""
    with (
        Farm(sites=6, pages=24, kinds=(), names=()) as farm,
        Fleet(place, farm, valkey, DOWNLOAD_DELAY=0.5, SITE_SLOTS=6) as fleet,
    ):
        first = fleet.agent()
        eventually(lambda: len(fleet.held(first)) == 6, "it has all sites")
        second = fleet.agent()
        eventually(lambda: len(fleet.held(second)) >= 2, "the newcomer has its share")
        fleet.wait()
        fleet.check_exact()
        assert set(fetched(farm.hits()).values()) == {1}


@pytest.mark.drill
def test_agents_of_different_size_pass_no_sites_to_and_fro(place: Place, valkey: RunningServer) -> None:
    """One has more than its share since the other cannot take more; that is no reason to give any back."""
    with Farm(sites=20, pages=60, links=30, kinds=(), names=()) as farm:
        fleet = Fleet(place, farm, valkey, DOWNLOAD_DELAY=0.5, LEASE_SECONDS=30)
        for slots in (16, 4):
            fleet.agent(SITE_SLOTS=slots)
        wait_for_hits(farm, 70)  # by then every site has pages enough to be worth a move
        eventually(lambda: sites_in_hand(fleet) == [16, 4], "all sites are in hand")
        assert leases_within(fleet, 2.0) == 0
        newcomer = fleet.agent()
        eventually(lambda: len(fleet.held(newcomer)) >= 6, "the newcomer has its share")
        eventually(lambda: sum(sites_in_hand(fleet)) == 20, "all sites are in hand again")
        assert leases_within(fleet, 1.0) <= 2
        for run in fleet.alive:
            run.process.send_signal(signal.SIGTERM)
        fleet.wait()


def sites_in_hand(fleet: Fleet) -> list[int]:
    return [len(fleet.held(run)) for run in fleet.alive]


def leases_within(fleet: Fleet, seconds: float) -> int:
    """How many leases are given in a span of time; every change of hands is one."""
    before = fleet.counts()["token"]
    time.sleep(seconds)
    return fleet.counts()["token"] - before


# --- killed between two steps -----------------------------------------------------------------------------


def faulty(valkey: RunningServer, fault: Any) -> dict[str, Any]:
    """Settings of an agent with this fault; another one has its sites soon."""
    return {
        "REDIS_URL": valkey.url,
        "LEASE_SECONDS": 1,
        "EXTENSIONS": suffers(fault),
        "env": {"PYTHONPATH": str(ROOT)},
    }


def test_sites_met_by_a_killed_agent_are_not_lost(place: Place, valkey: RunningServer) -> None:
    """It dies before they are queued: so the page that names them must not be published yet."""
    with SmallSite({"*": links("/1")}, "127.0.1.2") as other, SmallSite({"*": links(other.root)}) as site:
        run = place.crawl([site.root], SCOPE="any", **faulty(valkey, KilledAtOffer))
        assert run.code == -signal.SIGKILL
        assert site.pages == {"/": 1}
        assert outcomes(valkey) == {}
        place.crawl([], SCOPE="any", REDIS_URL=valkey.url, LEASE_SECONDS=1).succeeded()
        assert set(outcomes(valkey)) == {site.root, other.root, f"{other.site}/1"}


def test_nobody_ends_while_sites_are_being_queued(
    place: Place, valkey: RunningServer, tmp_path: Path
) -> None:
    """Neither the agent that met them, nor one that has nothing to do."""
    until = tmp_path / "until"
    given = {**faulty(valkey, HeldOffer), "LEASE_SECONDS": 30}
    given["env"]["FAULT_UNTIL"] = str(until)
    others = {"*": links(*(f"/{number}" for number in range(5)), seconds=0.2)}
    with SmallSite(others, "127.0.1.2") as two, SmallSite(others, "127.0.1.3") as three:
        with SmallSite({"*": links(two.root, three.root)}) as site:
            meets = place.start_crawl([site.root], SCOPE="any", SITE_SLOTS=1, USER_AGENT="meets", **given)
            meets.says("held: offer")
            idle = place.start_crawl([], SCOPE="any", USER_AGENT="idle", REDIS_URL=valkey.url)
            idle.says("Spider opened")
            eventually(lambda: valkey.client.zcard(key("agents")) == 2, "the idle one has joined")
            calls = script_calls(valkey)
            eventually(lambda: script_calls(valkey) > calls + 15, "both have looked for sites several times")
            assert (meets.process.poll(), idle.process.poll()) == (None, None)
            until.touch()
            meets.wait().succeeded()
            idle.wait().succeeded()
        assert len(outcomes(valkey)) == 13
        asked = {one.fields["User-Agent"] for one in (*two.log, *three.log)}
        assert asked == {"meets", "idle"}


def script_calls(valkey: RunningServer) -> int:
    """Operations of the site queue so far."""
    return int(valkey.client.info("commandstats")["cmdstat_evalsha"]["calls"])


def test_a_finished_site_of_a_killed_agent_is_not_walked_again(place: Place, valkey: RunningServer) -> None:
    """All of it is published, in one call, and then the agent dies before it has given the site back."""
    with SmallSite({"*": links(*(f"/{number}" for number in range(5)))}) as site:
        long = {"FLUSH_SECONDS": 60, "FLUSH_RECORDS": 1000, "FIND_ALIASES": False}
        run = place.crawl([site.root], **long, **faulty(valkey, KilledAtLeave))
        assert run.code == -signal.SIGKILL
        assert len(outcomes(valkey)) == 6
        place.crawl([], REDIS_URL=valkey.url, LEASE_SECONDS=1).succeeded()
        assert set(site.pages.values()) == {1}
        assert len(outcomes(valkey)) == 6
        assert valkey.client.hget(key("count"), "finished") == b"1"


def test_an_outage_lets_no_site_be_walked_anew_twice(place: Place, valkey: RunningServer) -> None:
    """`--again` is asked for once, whatever has to be asked again when the server is back."""
    with Farm(sites=4, pages=3, kinds=(), names=()) as farm:
        place.crawl(farm.seeds, REDIS_URL=valkey.url).succeeded()
        before = len(farm.hits())
        given = {"REDIS_URL": valkey.url, "DOWNLOAD_DELAY": 0.2, "SITE_SLOTS": 1}
        run = place.start_crawl(farm.seeds, "--again", **given)
        wait_for_hits(farm, 6, before)
        assert int(valkey.client.hget(key("count"), "finished")) in (1, 2)
        valkey.kill()
        time.sleep(1.5 * INLET_SECONDS)  # so that whoever takes in seeds meets the outage too
        valkey.start()
        run.wait().succeeded()
        assert "Redis is back" in run.err
        again = fetched(farm.hits()[before:])
        assert set(again) == {url for urls in farm.expected().values() for url in urls}
        assert set(again.values()) == {1}


def freeze_beyond_the_lease(fleet: Fleet, rng: random.Random) -> None:
    """Stop one agent until others have all its sites, and let it go on."""
    frozen = rng.choice([run for run in fleet.alive if fleet.held(run)])
    had, said = set(fleet.held(frozen)), len(frozen.err)
    others = [run for run in fleet.alive if run is not frozen]
    stop_process(frozen.pid)
    try:
        eventually(
            lambda: not fleet.session(frozen) and had <= {site for run in others for site in fleet.held(run)},
            "the others have the sites of the frozen agent",
        )
    finally:
        go_on(frozen.pid)
    eventually(lambda: "lost its" in frozen.err[said:], "it says that it lost its sites")
    fleet.until_working(frozen)


def check_frozen(fleet: Fleet, delay: float) -> None:
    fleet.wait(200)
    fleet.check_exact()
    check_distance(fleet.farm.hits(), delay)
    # What a frozen agent had and could not publish is asked for once more.
    assert all(n <= 2 for n in fetched(fleet.farm.hits()).values())


@pytest.mark.drill
def test_an_agent_is_frozen_beyond_its_lease(place: Place, valkey: RunningServer, rng: random.Random) -> None:
    with Farm(**SHORT) as farm, Fleet(place, farm, valkey, DOWNLOAD_DELAY=0.4) as fleet:
        fleet.agents_at_work(2)
        freeze_beyond_the_lease(fleet, rng)
        check_frozen(fleet, 0.4)


@pytest.mark.drill
def test_agents_are_frozen_beyond_their_leases(
    place: Place, valkey: RunningServer, rng: random.Random
) -> None:
    with Farm(**FULL) as farm, Fleet(place, farm, valkey, DOWNLOAD_DELAY=0.5) as fleet:
        fleet.agents_at_work(3)
        for _ in moments(rng, 6, 0.2, 2.0):
            freeze_beyond_the_lease(fleet, rng)
        check_frozen(fleet, 0.5)


@pytest.mark.drill
def test_agents_do_not_agree_on_the_time(place: Place, valkey: RunningServer) -> None:
    with (
        Farm(**{**SHORT, "sites": 8}, down=(6, 7)) as farm,
        Fleet(place, farm, valkey, DOWNLOAD_DELAY=0.15) as fleet,
    ):
        runs = [fleet.agent(clock=shift) for shift in (-HOUR, HOUR)]
        for run in runs:
            fleet.until_working(run)
        fleet.wait()
        fleet.store_all()
        assert place.stored() == farm.expected()
        fleet.check_published_once()
        assert fleet.fetched_again() == 0
        assert [run for run in runs if "lost its" in run.err] == []
        # Both sites that are down rest for a minute by the server's clock, whoever found out.
        seconds, _ = valkey.client.time()
        times = valkey.client.zrange(key("wake:site"), 0, -1, withscores=True)
        # Those of finished sites are their pauses.
        resting = [due / 1000 - seconds for site, due in times if site.decode() not in fleet.finished()]
        assert [due for due in resting if not 30 < due < 70] == []
        assert len(resting) == 2
        # And the clocks were really off.
        ((first, last),) = place.rows("select min(fetched_at), max(fetched_at) from fetches")
        assert last - first > 1.9 * HOUR * 1000
