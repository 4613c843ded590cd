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

from crawler.store import local
from crawler.store.local import ServerKeeper
from crawler.store.server import Server
from crawler.supervisor import STOPPED, Child, Supervisor
from tests.crawling import Place, wait_for_hits
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
    assert b"BATCH_SECONDS=0.1" in lines[0]
    assert b"a-secret" not in lines[0]
    assert b"SITE_OVERRIDES" not in lines[0]
    wait_for_hits(farm, 22)
    run.end().succeeded()
    place.check_nothing_left()
    with closing(sqlite3.connect(place.folder / "a-secret.db")) as database:
        assert database.execute("select count(*) from pages").fetchone() == (20,)


# --- The server dies --------------------------------------------------------------------------------------


# What a setting is called where an option of another name is made of it, or none is.
OF_OTHER_NAME = {
    "database": "DATABASE_URL",
    "var": "VAR_DIR",
    "revive_delays": "REVIVE_FIRST_SECONDS",
    "first_recheck_seconds": "RECHECK_INTERVAL_SECONDS",
    "recheck_chooses": "RECRAWL_MODE",
    "status_command_words": "STATUS_COMMAND",
    "webhook": "STATUS_WEBHOOK",
}
COORDINATING = (
    "coordinator",
    "due_times",
    "packing",
    "revisits",
    "planning",
    "hooks",
    "thinning",
    "comparing",
    "freshness",
)


def test_a_coordinator_of_an_agents_own_is_told_what_it_goes_by() -> None:
    folder = Path(local.__file__).parent
    files = [folder / f"{name}.py" for name in COORDINATING] + [folder.parent / "sites" / "planner.py"]
    asked = {name for file in files for name in re.findall(r"options\.([a-z_]+)", file.read_text())}
    assert len(asked) > 20
    wanted = {OF_OTHER_NAME.get(name, name.upper()) for name in asked}
    assert wanted <= {*local._NEEDED, *local._NEEDED_UNSEEN}


def test_a_server_that_dies_while_the_last_agent_waits(place: Place, farm: Farm) -> None:
    # Commits so late that the agent has ended long before, and waits for it.
    run = place.start_crawl(farm.seeds, BATCH_SECONDS=3)
    run.says("Spider closed (finished)")
    run.says("writes to")
    kill_server(place)
    run.wait(30).succeeded()
    assert "the bundled server was gone; it is started again" in run.err
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
        run.says("sessions could not be looked at")
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


# --- The database is away ---------------------------------------------------------------------------------


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
        assert "the coordinator goes on trying" in run.err
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
