"""A server that has no memory left: coordinators empty it, whatever runs waits, and nothing is lost."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from scrapy.settings import Settings

from crawler.coordinator import coordinator
from crawler.options import Options
from crawler.queue import connection
from crawler.queue.results import GROUP, ResultsStream
from crawler.records import Page, SiteFound
from crawler.store.write import Stored
from tests.crawling import Place
from tests.drills import key
from tests.queue_driver import queue_options
from tests.servers import RunningServer, eventually, server_binary
from tests.small_site import Reply, SmallSite, links

pytestmark = [pytest.mark.timeout(180)]

RESULTS = key("results")
SITES, PAGES = 3, 150
# Long paths, so that few records fill the server.
PADDING = "x" * 1500
# Of a site: its page that is due for a recheck, and a look at its health.
DUES = 2 * SITES


@pytest.fixture(params=["bundled", pytest.param("redis", marks=pytest.mark.needs("redis-server"))])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunningServer]:
    """Valkey as it is bundled, and the machine's own Redis, which refuses more when it is full."""
    program = server_binary()
    if request.param == "redis":
        found = shutil.which("redis-server")
        if found is None:
            pytest.skip("no redis-server on this machine")
        program = Path(found)
    folder = tmp_path / "server"
    folder.mkdir()
    running = RunningServer(folder, program=program, **{"maxmemory-policy": "noeviction"})
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
def webs() -> Iterator[list[SmallSite]]:
    """Sites whose results take more memory than a server is given below."""
    pages = [f"/{number}?{PADDING}" for number in range(PAGES)]
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                SmallSite({"/": links(*pages), "*": links(), "/robots.txt": Reply(404)}, f"127.0.5.{host}")
            )
            for host in range(1, SITES + 1)
        ]


def used(server: RunningServer) -> int:
    return int(server.client.info("memory")["used_memory"])


def is_full(server: RunningServer) -> bool:
    try:
        server.client.set("room", "x", px=1)
    except redis.exceptions.OutOfMemoryError:
        return True
    return False


def fill(server: RunningServer) -> bool:
    """Leave the server no memory; buffers of its clients come and go."""
    server.client.config_set("maxmemory", used(server) - 30_000)
    return is_full(server)


def start_filled(place: Place, server: RunningServer, webs: list[SmallSite], **given: Any) -> Any:
    """An agent that has met a full server, and goes on once that is full no longer."""
    agent = place.start_crawl([web.root for web in webs], REDIS_URL=server.url, **given)
    eventually(lambda: server.client.xlen(RESULTS) > 250, "results wait")
    server.client.config_set("maxmemory", used(server) + 50_000)
    agent.says("Redis is full", 60)
    # Whole deliveries were refused; now small commands are too.
    eventually(lambda: fill(server), "the server is full")
    return agent


def check_complete(place: Place, server: RunningServer) -> None:
    """Each page is in the tables, each site is due for its first recheck, and both sides agree."""
    expected = SITES * (1 + PAGES)
    assert place.rows("select count(*) from pages where outcome in ('stored', 'duplicate')") == [(expected,)]
    assert place.rows("select count(*) from dead_letters") == [(0,)]
    assert server.client.zcard(key("wake:recheck")) == SITES
    assert server.client.xlen(RESULTS) == 0
    given = {"REDIS_URL": server.url, "DATABASE_URL": f"sqlite:///{place.var / 'crawl.db'}"}
    place.run("report", "ledger", **given).succeeded()


# --- a crawl ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", ["a group", "no group"])
def test_a_coordinator_empties_a_full_server_and_the_crawl_goes_on(
    place: Place, server: RunningServer, webs: list[SmallSite], group: str
) -> None:
    given = {"REDIS_URL": server.url, "LEASE_SECONDS": 3, "BATCH_RECORDS": 20}
    if group == "a group":  # of a coordinator that was killed
        first = place.start("coordinate", **given)
        eventually(lambda: server.client.exists(RESULTS), "it has joined")
        first.end(signal.SIGKILL)
    agent = start_filled(place, server, webs, SITE_SLOTS=1, LEASE_SECONDS=3)
    coordinator = place.start("coordinate", **given)
    agent.wait().succeeded()
    eventually(lambda: not server.client.xlen(RESULTS), "all is stored")
    coordinator.end().succeeded()
    assert "planner ended" not in coordinator.err
    check_complete(place, server)


def test_a_coordinator_outlives_a_server_that_fills_up(
    place: Place, server: RunningServer, webs: list[SmallSite]
) -> None:
    """Due times wait, and what they are made of; all else is stored and goes."""
    given = {"REDIS_URL": server.url, "LEASE_SECONDS": 2, "BATCH_RECORDS": 50}
    coordinator = place.start("coordinate", **given)
    agent = place.start_crawl([web.root for web in webs], REDIS_URL=server.url, DOWNLOAD_DELAY=0.01)
    eventually(lambda: sum(web.pages.total() for web in webs) > 30, "pages are loaded")
    server.client.config_set("maxmemory", used(server) // 2)
    server.client.delete(key("wake:recheck"))
    coordinator.says("is full", 60)
    eventually(lambda: server.client.xlen(RESULTS) <= DUES, "what needs no memory is done")
    assert agent.process.poll() is coordinator.process.poll() is None
    server.client.config_set("maxmemory", 0)
    agent.wait().succeeded()
    eventually(lambda: not server.client.xlen(RESULTS), "all is stored")
    coordinator.says("has memory again")
    coordinator.end().succeeded()
    check_complete(place, server)


def test_due_times_that_were_not_told_outlive_their_coordinator(
    place: Place, server: RunningServer, webs: list[SmallSite]
) -> None:
    given = {"REDIS_URL": server.url, "LEASE_SECONDS": 1, "BATCH_RECORDS": 50}
    place.crawl([web.root for web in webs], REDIS_URL=server.url).succeeded()
    server.client.config_set("maxmemory", used(server) // 4)
    first = place.start("coordinate", **given)
    eventually(lambda: 0 < server.client.xlen(RESULTS) <= DUES, "all but their records is done")
    stored = place.rows("select count(*) from pages")
    assert stored == [(SITES * (1 + PAGES),)]
    assert not server.client.exists(key("wake:recheck"))
    first.end(signal.SIGKILL)
    server.client.config_set("maxmemory", 0)
    second = place.start("coordinate", **given)
    eventually(lambda: not server.client.xlen(RESULTS), "all is acknowledged")
    second.end().succeeded()
    check_complete(place, server)


def test_commands_say_that_the_server_is_full(place: Place, server: RunningServer) -> None:
    given = {"REDIS_URL": server.url}
    place.run("seed", "http://127.0.5.1/", **given).succeeded()
    server.client.config_set("maxmemory", used(server) // 2)
    full = ("is full", "scrapy coordinate", "maxmemory")
    place.run("seed", "http://127.0.5.2/", **given).refused(*full)
    place.run("site", "pause", "http://127.0.5.1", **given).refused(*full)
    place.crawl(["http://127.0.5.3/"], **given).refused(*full)
    place.run("queue", "show", **given).refused(*full)
    for words in (("site", "list"), ("top", "--once")):
        place.run(*words, **given).succeeded()
    doctor = place.run("doctor", **given)
    assert "Traceback" not in doctor.err
    assert "is full" in doctor.out
    assert doctor.code == 1


# --- parts --------------------------------------------------------------------------------------------------


def out_of_memory(call: Callable[[], object]) -> redis.RedisError:
    with pytest.raises(redis.exceptions.OutOfMemoryError) as met:
        call()
    return met.value


def test_what_a_full_server_says_is_known_however_it_is_asked(server: RunningServer) -> None:
    client: Any = server.client
    client.set("a", "b")
    client.config_set("maxmemory", used(server) // 2)
    for transaction in (False, True):
        pipe = client.pipeline(transaction=transaction)
        pipe.zadd("z", {"a": 1})
        error = out_of_memory(pipe.execute)
        assert connection.passes(error)
    for call in (
        lambda: client.zadd("z", {"a": 1}),
        lambda: client.eval("return redis.call('SET', KEYS[1], 'x')", 1, "k"),
    ):
        error = out_of_memory(call)
        assert connection.passes(error)
        assert not connection.lasts(error)
        told = connection.explained(Settings({"REDIS_URL": "redis://a:6379/0"}), error)
        assert told.startswith("REDIS_URL redis://a:6379/0 is full: command not allowed when used memory")


def test_a_stream_is_read_and_acknowledged_on_a_full_server(server: RunningServer) -> None:
    client: Any = server.client
    for number in range(30):
        client.xadd(RESULTS, {"n": number, "x": PADDING})
    room = used(server)
    client.config_set("maxmemory", room // 2)
    stream = ResultsStream(client, "lt", "one")
    entries = stream.read(10)
    assert [entry.fields[b"n"] for entry in entries] == [b"%d" % number for number in range(10)]
    stream.acknowledge([entry.id for entry in entries])
    entries = stream.read(10)
    assert entries[0].fields[b"n"] == b"10", "there is no group, and what is done is gone"
    with suppress(redis.RedisError):
        assert not client.xinfo_groups(RESULTS)
    # With a group, and a new consumer, likewise.
    client.config_set("maxmemory", 0)
    client.xgroup_create(RESULTS, GROUP, id="0")
    client.config_set("maxmemory", room // 2)
    stream = ResultsStream(client, "lt", "two")
    done = []
    while entries := stream.read(7):
        stream.acknowledge([entry.id for entry in entries])
        done += [entry.fields[b"n"] for entry in entries]
    assert done == [b"%d" % number for number in range(10, 30)]
    assert stream.drained()
    assert stream.pending() == 0
    stream.close()


def test_an_empty_stream_of_a_full_server_is_waited_for(server: RunningServer) -> None:
    server.client.config_set("maxmemory", used(server) // 2)
    assert ResultsStream(server.client, "lt", "one").read(10, 20) == []


def a_page(site: str, number: int, outcome: Any = "stored", status: int = 200) -> Page:
    return Page(site=site, path=f"/{number}", fetched_at=1_000 + number, outcome=outcome, status=status)


def test_few_records_stand_for_all_due_times() -> None:
    options: Options = queue_options()
    records = [
        SiteFound(site="http://a", found_at=1),
        *(a_page("http://a", number) for number in range(50)),
        a_page("http://a", 50, "failed", 404),
        *(a_page("http://b", number, "failed", -4) for number in range(50, 0, -1)),
        a_page("http://b", 99),
    ]
    stored = [Stored(f"{number}-0", record) for number, record in enumerate(records)]
    chosen = coordinator.witnesses(stored, options)
    assert [one.stream_id for one in chosen] == ["1-0", "51-0", "52-0", "102-0"]

    def facts(some: list[Stored]) -> list[set[str]]:
        due = coordinator.due_of(
            [one.record for one in some], options.revive_delays, options.first_recheck_seconds
        )
        return [set(kind) for kind in due]

    assert facts(chosen) == facts(stored)
