"""Drills: the server is killed, frozen, out of reach or emptied in mid-crawl; agents wait, and lose nothing."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
import redis

from crawler import records
from crawler.local.server import Server
from crawler.queue.sites import Restored
from tests.crawling import Place, fetched, wait_for_hits
from tests.drills import ONCE, Fleet, go_on, key, longest_pause, stop_process
from tests.farm import Farm
from tests.queue_driver import driver
from tests.servers import RunningServer, eventually

SHORT = {"sites": 8, "pages": 24, "kinds": ONCE, "names": (), "delay_ms": 20}
# An agent that stops its event loop for longer answers nobody and renews nothing.
LONGEST_PAUSE = 1.0


class Listening(NamedTuple):
    """A server that somebody else runs."""

    url: str
    client: redis.Redis


def tables(place: Place) -> str:
    """The database that this place's coordinators write to."""
    return f"sqlite:///{place.var / 'crawl.db'}"


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


@pytest.mark.drill
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
        place.run("queue", "rebuild", REDIS_URL=valkey.url, DATABASE_URL=tables(place)).succeeded()
        walked = len(farm.hits())
        with Fleet(place, farm, valkey) as fleet:
            fleet.agent(seeds=[])
            fleet.wait()
            fleet.store_all()
            fleet.check_ledger()  # what the rebuild found missing is there again, and is owed no more
            fleet.check_nothing_left()
            assert fleet.counts()["finished"] == 6
        assert place.stored() == farm.expected()
        ((rows, pages),) = place.rows("select count(*), count(distinct url) from pages")
        assert rows == pages
        assert not finished & {f"http://{hit.host}" for hit in farm.hits()[walked:]}


def test_a_rebuilt_queue_knows_what_the_operator_wanted(place: Place, valkey: RunningServer) -> None:
    names = [f"n{number}.localhost" for number in range(6)]
    aliases = {"www.n0.localhost": names[0]}
    with Farm(sites=0, pages=4, kinds=(), names=names, aliases=aliases) as farm:
        first, blocked, paused, held_short, forgotten, resumed = (farm.site(name) for name in names)
        second = first.replace("//n0", "//www.n0")
        seeds = [*map(farm.site, names)]

        def operate(*words: str) -> str:
            return place.run(*words, REDIS_URL=valkey.url, DATABASE_URL=tables(place)).succeeded().out

        def listed() -> list[dict[str, object]]:
            kept = ("site", "state", "paused", "known", "done")
            return [
                {name: one[name] for name in kept} for one in json.loads(operate("site", "list", "--json"))
            ]

        with Fleet(place, farm, valkey, SCOPE="host", SITE_SLOTS=1) as fleet:
            fleet.agent(seeds=seeds).wait().succeeded()
            operate("site", "block", blocked, "--reason", "its owner asked")
            operate("site", "block", resumed)
            operate("site", "resume", resumed)
            fleet.agent(seeds=[]).wait().succeeded()
            operate("site", "pause", paused)
            operate("site", "budget", held_short, "2")
            # Where no database is named, the order alone takes it out of the tables.
            place.run("site", "forget", forgotten, REDIS_URL=valkey.url).succeeded()
            linked = records.SiteFound(site="http://linked.localhost", found_at=1, source="link")
            alias = records.SiteFound(site=second, found_at=1, source="link")
            left_out = records.SiteEnded(
                site=second, ended_at=2, finished=True, published=0, known=4, pending=4, alias_of=first
            )
            for record in (linked, alias, left_out):
                valkey.client.xadd(key("results"), {b"v": records.VERSION, b"r": records.encode(record)})
            with driver(valkey) as queue:
                queue.restore([Restored(second, "alias", known=4, why=first, linked=True)])
        before, scope = listed(), valkey.client.smembers(key("scope"))
        assert {one["state"] for one in before} == {"finished", "blocked", "alias"}
        assert [one["known"] for one in before if one["state"] == "finished"] == [4, 4, 4, 4]
        assert len(scope) == 6
        valkey.client.flushall()
        counts = json.loads(operate("queue", "rebuild", "--json", "-s", "SCOPE=host"))
        assert counts == {
            "finished": 4,
            "unfinished": 1,
            "alias": 1,
            "blocked": 1,
            "paused": 1,
            "held": 0,
            "known": 0,
        }
        operate("site", "forget", linked.site)
        assert listed() == before
        assert valkey.client.smembers(key("scope")) == scope - {
            forgotten.split("//")[1].split(":")[0].encode()
        }
        assert "its owner asked" in operate("site", "show", blocked)
        assert valkey.client.hgetall(key("budget")) == {held_short.encode(): b"2"}
        with Fleet(place, farm, valkey) as fleet:
            walked = len(farm.hits())
            fleet.agent("--again", seeds=[blocked, paused, held_short]).wait().succeeded()
        hits = [f"http://{hit.host}" for hit in farm.hits()[walked:]]
        assert set(hits) == {held_short}
        assert json.loads(operate("queue", "rebuild", "--json"))["known"] == 6


def test_a_session_of_another_machine_is_left_to_its_time(place: Place) -> None:
    """Containers share the server through VAR_DIR, and each counts its processes from 1."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    with Farm(sites=1, pages=2, kinds=(), names=()) as farm:
        run = place.start_crawl(farm.seeds, "--no-summary", "--when-idle", "wait")
        wait_for_hits(farm, 2)
        with (
            Server(place.var).join("visitor") as server,
            closing(redis.Redis.from_url(server.url)) as client,
            driver(Listening(server.url, client)) as queue,
        ):

            def sessions() -> set[str]:
                return {one["agent"] for one in queue.agents()}

            # The one whose session ends first is looked at first.
            queue.join("elsewhere", {"host": "another", "pid": gone.pid})
            queue.join("here", {"host": socket.gethostname(), "pid": gone.pid})
            eventually(lambda: "here" not in sessions(), "the session of a process that is gone is ended", 30)
            assert "elsewhere" in sessions()
            queue.part("elsewhere")
        run.end().succeeded()
