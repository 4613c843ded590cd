"""Drills: the server is killed, frozen, out of reach or emptied in mid-crawl; agents wait, and lose nothing."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.crawling import Place, fetched, wait_for_hits
from tests.drills import ONCE, Fleet, go_on, longest_pause, stop_process
from tests.farm import Farm
from tests.servers import RunningServer, eventually

SHORT = {"sites": 8, "pages": 24, "kinds": ONCE, "names": (), "delay_ms": 20}
# An agent that stops its event loop for longer answers nobody and renews nothing.
LONGEST_PAUSE = 1.0


def freeze(server: RunningServer, seconds: float) -> None:
    """The server does not answer for so long, and does not know it."""
    stop_process(server.pid)
    try:
        pass_time(seconds)
    finally:
        go_on(server.pid)


def take_away(server: RunningServer, seconds: float) -> None:
    """The server refuses connections for so long."""
    server.kill()
    pass_time(seconds)
    server.start()


def pass_time(seconds: float) -> None:
    """The outage itself: there is nothing to wait for but the time."""
    time.sleep(seconds)


def go_through(fleet: Fleet, folder: Path, seconds: float, **given: object) -> None:
    """Two agents crawl through an outage of each kind; then nothing is lost, swept or fetched again."""
    watches = [folder / "watch-0", folder / "watch-1"]
    runs = [fleet.agent(watch=watch, **given) for watch in watches]
    for run in runs:
        fleet.until_working(run)
    for outage in (freeze, take_away):
        wait_for_hits(fleet.farm, 5, len(fleet.farm.hits()))
        backs = [run.err.count("Redis is back") for run in runs]
        outage(fleet.server, seconds)
        for run, before in zip(runs, backs, strict=True):
            eventually(lambda run=run, before=before: run.err.count("Redis is back") > before, "it is back")
    fleet.wait(300)
    for run, watch in zip(runs, watches, strict=True):
        assert run.err.count("Redis is away") == run.err.count("Redis is back") >= 2, run.err
        assert "lost its" not in run.err, run.err
        assert longest_pause(watch) < LONGEST_PAUSE
    fleet.check_exact()
    assert {url: n for url, n in fetched(fleet.farm.hits()).items() if n > 1} == {}


def test_the_server_is_away_for_three_leases(place: Place, valkey: RunningServer, tmp_path: Path) -> None:
    with (
        Farm(**SHORT) as farm,
        Fleet(place, farm, valkey, DOWNLOAD_DELAY=0.2, LEASE_SECONDS=1.5) as fleet,
    ):
        # A reply is given up after a second: so commands are lost whose effect was not.
        go_through(fleet, tmp_path, 4.5, REDIS_PARAMS={"socket_timeout": 1})


@pytest.mark.drill
def test_the_server_is_away_for_two_long_leases(place: Place, valkey: RunningServer, tmp_path: Path) -> None:
    with (
        Farm(sites=20, pages=120, kinds=ONCE, names=(), delay_ms=20) as farm,
        Fleet(place, farm, valkey, DOWNLOAD_DELAY=0.5, LEASE_SECONDS=30) as fleet,
    ):
        go_through(fleet, tmp_path, 60.0)


def test_the_queue_is_rebuilt_after_its_loss(place: Place, valkey: RunningServer) -> None:
    with Farm(sites=6, pages=(2, 30), kinds=ONCE, names=()) as farm:
        with Fleet(place, farm, valkey, DOWNLOAD_DELAY=0.1) as fleet:
            runs = fleet.agents_at_work(2)
            eventually(lambda: fleet.counts().get("finished", 0) >= 2, "some sites are finished")
            for run in runs:
                run.end().succeeded()
        finished = {site for (site,) in place.rows("select site from sites where state = 'finished'")}
        assert 2 <= len(finished) < 6
        valkey.client.flushall()
        place.run("queue", "rebuild", REDIS_URL=valkey.url).succeeded()
        walked = len(farm.hits())
        with Fleet(place, farm, valkey) as fleet:
            fleet.agent(seeds=[])
            fleet.wait()
            fleet.store_all()
            fleet.check_nothing_left()
            assert fleet.counts()["finished"] == 6
        assert place.stored() == farm.expected()
        ((rows, pages),) = place.rows("select count(*), count(distinct url) from pages")
        assert rows == pages
        assert not finished & {f"http://{hit.host}" for hit in farm.hits()[walked:]}
