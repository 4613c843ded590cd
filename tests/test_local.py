"""The bundled server and its coordinator beside the agents of one machine: who waits for whom, and for how long."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
import redis

from crawler.local import local
from crawler.local.local import ServerKeeper
from crawler.local.server import Server
from crawler.local.supervisor import STOPPED, Child, Supervisor
from tests.crawling import ROOT, Place, parent_of, wait_for_hits
from tests.drills import key
from tests.farm import Farm
from tests.servers import eventually

SPIDER = """
from crawler.spiders.site import SiteSpider

class Other(SiteSpider):
    name = "other"
    custom_settings = {
        "SITE_OVERRIDES": {"127.0.1.1": {"headers": {"X-Key": "a-secret"}}},
        "DATABASE_URL": "sqlite:///%s/a-secret.db",
    }
"""


@pytest.fixture
def farm() -> Iterator[Farm]:
    with Farm(sites=2, pages=10, kinds=(), names=()) as started:
        yield started


def kill_server(place: Place) -> None:
    os.kill(int((place.var / "valkey" / "server.lock").read_text().split()[0]), signal.SIGKILL)


# --- What the coordinator is told -------------------------------------------------------------------------


def test_a_coordinator_learns_no_secrets_by_its_command_line(place: Place, farm: Farm) -> None:
    (place.folder / "other_spider.py").write_text(SPIDER % place.folder)
    run = place.start_crawl(
        farm.seeds,
        "--when-idle",
        "wait",
        spider="other",
        env={"PYTHONPATH": str(place.folder)},
        SPIDER_MODULES="other_spider",
    )
    run.says("writes to")
    lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in place.processes("coordinate")]
    assert len(lines) == 1
    assert f"VAR_DIR={place.var}".encode() in lines[0]
    assert b"a-secret" not in lines[0]
    assert b"SITE_OVERRIDES" not in lines[0]
    wait_for_hits(farm, 22)
    run.end().succeeded()
    place.check_nothing_left()
    with closing(sqlite3.connect(place.folder / "a-secret.db")) as database:
        assert database.execute("select count(*) from pages").fetchone() == (20,)


# What a coordinator runs, its planner included.
COORDINATING = (
    "coordinator/*",
    "reconcile/*",
    "planning/*",
    "recheck/planner",
    "recheck/revisits",
    "recheck/report",
)


def test_what_is_not_handed_on_is_of_agents_alone() -> None:
    files = [file for name in COORDINATING for file in (ROOT / "crawler").glob(f"{name}.py")]
    asked = {name for file in files for name in re.findall(r"options\.([a-z_]+)", file.read_text())}
    assert len(asked) > 20
    assert not {name.upper() for name in asked} & set(local._OF_AGENTS)


# --- The server dies --------------------------------------------------------------------------------------


def test_a_server_that_dies_while_the_last_agent_waits(place: Place, farm: Farm) -> None:
    # Commits so late that the agent has ended long before, and waits for it.
    run = place.start_crawl(farm.seeds, BATCH_SECONDS=3)
    run.says("Spider closed (finished)")
    run.says("writes to")
    kill_server(place)
    run.wait().succeeded()
    assert "the bundled server had ended; it was restarted" in run.err
    assert place.stored() == farm.expected()


def test_a_server_that_dies_under_a_coordinator_alone(place: Place, farm: Farm) -> None:
    run = place.start_crawl(farm.seeds, "--when-idle", "wait", BATCH_SECONDS=3)
    run.says("writes to")
    wait_for_hits(farm, 22)
    run.process.kill()
    kill_server(place)
    run.wait()
    place.check_nothing_left()
    place.run("coordinate").succeeded()
    assert len(place.rows("select url from pages")) > 0


@pytest.mark.parametrize(
    ("name", "about"), [(b"ghost", {"pid": "abc"}), (b"ghost", {"pid": 1 << 70}), (b"\xff", {})], ids=str
)
def test_a_watch_outlives_what_somebody_else_wrote(
    place: Place, farm: Farm, name: bytes, about: dict[str, object]
) -> None:
    run = place.start_crawl(farm.seeds, "--when-idle", "wait", LOG_LEVEL="DEBUG")
    run.says("writes to")
    wait_for_hits(farm, 22)
    with (
        Server(place.var).join("visitor") as server,
        closing(redis.Redis.from_url(server.url)) as client,
    ):
        told = json.dumps({"host": socket.gethostname(), **about})
        client.hset(key("agent:").encode() + name, "about", told)
        client.zadd(key("agents"), {name: 99_999_999_999_999})
        run.says("sessions could not be read")
        (first,) = place.processes("coordinate")
        os.kill(first, signal.SIGKILL)
        eventually(lambda: set(place.processes("coordinate")) - {first}, "another coordinator is started")
        client.zrem(key("agents"), name)
    run.end().succeeded()
    assert place.stored() == farm.expected()


def test_a_server_that_cannot_be_had_again_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "GONE_SECONDS", 0.3)
    server = Server(tmp_path / "var")
    membership = server.join("agent")
    keeper = ServerKeeper(server)
    assert keeper.look()
    pid = int((server.folder / "server.lock").read_text().split()[0])
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not server.running(), "the server is gone")
    assert keeper.look()
    assert server.running(), f"it was started again: {keeper.trouble}"
    pid = int((server.folder / "server.lock").read_text().split()[0])
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not server.running(), "the server is gone")
    (manifest,) = (server.folder / "appendonlydir").glob("*.manifest")
    manifest.write_text("nonsense\n")
    assert keeper.look(), "not at once"
    eventually(lambda: not keeper.look(), "it is given up")
    assert "ended while starting" in keeper.trouble
    membership.leave()
    assert keeper.look(), "nobody needs it"


# --- All are killed ---------------------------------------------------------------------------------------


def server_of(place: Place) -> int:
    return int((place.var / "valkey" / "server.lock").read_text())


@pytest.mark.parametrize("left", ["server and watchdog", "server"])
def test_no_server_is_left_of_a_crawl_that_was_killed(place: Place, farm: Farm, left: str) -> None:
    """All of its processes but the server, at one moment; the next run goes on with what the server has written."""
    run = place.start_crawl(farm.seeds, "--agents", "2", "--when-idle", "wait", DOWNLOAD_DELAY=0.05)
    wait_for_hits(farm, 8)
    spared = {server_of(place)}
    if "watchdog" in left:
        spared.add(parent_of(server_of(place)))
    for pid in set(place.processes()) - spared:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    run.wait()
    place.check_nothing_left()
    place.crawl(farm.seeds).succeeded()
    assert place.stored() == farm.expected()


def test_no_server_is_left_of_a_killed_process_group(place: Place, farm: Farm) -> None:
    """As a shell or a scheduler of jobs kills: the coordinator has a session of its own, stores, and ends."""
    run = place.start_crawl(farm.seeds, "--when-idle", "wait", DOWNLOAD_DELAY=0.05)
    wait_for_hits(farm, 8)
    for pid in {run.pid, *place.processes("crawl")}:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    run.wait()
    place.check_nothing_left()
    place.crawl(farm.seeds).succeeded()
    assert place.stored() == farm.expected()


# --- The database is away ---------------------------------------------------------------------------------


@pytest.mark.drill
@pytest.mark.timeout(120)
def test_who_is_told_to_end_does_not_wait_for_ever(place: Place, farm: Farm) -> None:
    run = place.start_crawl(farm.seeds[:1])
    run.wait().succeeded()
    with closing(sqlite3.connect(place.var / "crawl.db", isolation_level=None)) as database:
        database.execute("begin immediate")
        before = len(farm.hits())
        run = place.start_crawl(farm.seeds[1:], "--when-idle", "wait")
        wait_for_hits(farm, 11, before)
        run.end().refused(
            "nothing was stored for", "it waits for the database: DATABASE_URL sqlite://", code=3
        )
        assert "database is locked" in run.err
        assert "are kept in" in run.err
        assert "the coordinator retries" in run.err
        assert place.processes("coordinate")
    place.check_nothing_left()
    assert place.stored() == farm.expected()


# --- Several agents beside others -------------------------------------------------------------------------


def open_files(pid: int) -> list[str]:
    """What a process has open; what it opens or closes meanwhile may be missing."""
    names = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            names.append(str(entry.readlink()))
    return names


def test_several_agents_end_while_others_go_on(place: Place, farm: Farm) -> None:
    other = place.start_crawl(farm.seeds[:1], "--when-idle", "wait")
    wait_for_hits(farm, 11)
    run = place.start_crawl(farm.seeds[1:], "--agents", "2")
    eventually(lambda: len(place.processes("crawl", "--no-summary")) == 2, "two agents run")
    assert not [name for name in open_files(run.pid) if "eventpoll" in name], (
        "an event loop that nobody closes"
    )
    run.wait().succeeded()
    assert place.stored() == farm.expected()
    assert "  sites                2   2 finished" in run.out
    assert other.process.poll() is None
    other.end().succeeded()


def test_a_signal_ends_the_wait_for_results() -> None:
    supervisor = Supervisor([Child("one", [sys.executable, "-c", ""])])
    asked = threading.Event()

    def after() -> bool:
        if not asked.is_set():
            asked.set()
            os.kill(os.getpid(), signal.SIGTERM)
        return False

    assert supervisor.run(after) == STOPPED


def test_nobody_waits_for_results_after_a_child_went_wrong() -> None:
    supervisor = Supervisor([Child("one", [sys.executable, "-c", "raise SystemExit(3)"])])
    assert supervisor.run(lambda: False) == 3
