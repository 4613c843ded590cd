"""Drills of the way from the stream to the tables: whatever is killed, away, full or lost, nothing of it is missing.

Whole crawls of the farm by real agents, with coordinators that write to SQLite, PostgreSQL or MariaDB. The long forms
stand behind the short ones.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis
from sqlalchemy import event, text

from crawler.coordinator.coordinator import KILL_POINTS
from crawler.queue.results import GROUP
from crawler.store.database import LOCK_SECONDS, open_database, transaction
from crawler.store.tables import metadata
from tests.conftest import MakeDatabase
from tests.crawling import Place, Run, fetched
from tests.databases import KINDS
from tests.drills import ONCE, Fleet, key, moments
from tests.farm import Farm
from tests.outages import (
    FarTables,
    SmallDisk,
    Tables,
    frozen,
    pass_time,
    small_disk,
    synced_server,
    tables_that_go,
)
from tests.servers import RunningServer, eventually

SHORT: dict[str, Any] = {"sites": 8, "pages": 10, "kinds": ONCE, "names": (), "delay_ms": 20}
FULL: dict[str, Any] = {"sites": 21, "pages": 40, "kinds": ONCE, "names": (), "delay_ms": 20}
# A server that syncs each write is killed where the database syncs each commit too.
FSYNC = {"sqlite": "everysec", "postgres": "always", "mariadb": "everysec"}
# A reply is given up after a second: so commands are lost whose effect was not.
IMPATIENT = {"REDIS_PARAMS": {"socket_timeout": 1}}
every_kind = pytest.mark.parametrize("kind", KINDS)
# The others in `make drills`.
ONE_NOW = [
    KINDS[0],
    *(pytest.param(*kind.values, marks=[*kind.marks, pytest.mark.drill]) for kind in KINDS[1:]),
]


@pytest.fixture
def rng() -> random.Random:
    """Chance that can be had again: a drill that fails prints its seed."""
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed of this drill's chance: {seed}")
    return random.Random(seed)


# --- Killed -----------------------------------------------------------------------------------------------


def kill_coordinators(fleet: Fleet, point: str) -> None:
    """Kill the coordinators wherever they are, and then a successor at a named place."""
    fleet.kill_coordinators()
    run = fleet.coordinate(point).wait()
    assert run.code == -signal.SIGKILL, run.err


def kill_agent(fleet: Fleet, rng: random.Random, seeds: list[str]) -> None:
    """Kill an agent that works, and start another; it brings sites, so that whoever is killed next has work too."""
    at_work = [run for run in fleet.alive if fleet.held(run)]
    assert at_work, "the crawl was too short for this drill"
    fleet.kill(rng.choice(at_work))
    known = fleet.counts()["added"] + len(seeds)
    fleet.agent(seeds=seeds)
    eventually(lambda: fleet.counts()["added"] == known, "its sites are queued", 30)


def kill_server(fleet: Fleet) -> None:
    """Kill the server and start it again over its file."""
    fleet.server.kill()
    fleet.server.start()


def check_killed(fleet: Fleet) -> None:
    fleet.check_exact()
    fleet.check_ledger()
    fleet.check_loops()
    again, allowed = fleet.fetched_again(), fleet.allowed_again()
    print(f"{len(fleet.killed)} agents killed: {again} pages fetched again, {allowed} allowed")
    assert 0 <= again <= allowed


def check_archive(fleet: Fleet) -> None:
    """What the tables say of the archive is there, to the last byte."""
    assert fleet.rows("select count(warc_file) from pages")[0][0] > 0
    fleet.place.run("extract", "--check", DATABASE_URL=fleet.database).succeeded()


@pytest.mark.parametrize("kind", ONE_NOW)
def test_everybody_is_killed(
    kind: str, place: Place, make_database: MakeDatabase, rng: random.Random
) -> None:
    with (
        synced_server(place.folder / "server", FSYNC[kind]) as server,
        Farm(**SHORT) as farm,
        Fleet(place, farm, server, database=make_database(kind), watched=True, DOWNLOAD_DELAY=0.5) as fleet,
    ):
        fleet.agents_at_work(2, seeds=farm.seeds[:6])
        fleet.until_stored(5)
        kill_coordinators(fleet, KILL_POINTS[0])
        kill_agent(fleet, rng, farm.seeds[6:])
        kill_coordinators(fleet, KILL_POINTS[1])
        kill_server(fleet)
        kill_coordinators(fleet, KILL_POINTS[2])
        fleet.coordinate()
        fleet.wait()
        check_killed(fleet)


@pytest.mark.drill
@every_kind
def test_everybody_is_killed_many_times(
    kind: str, place: Place, make_database: MakeDatabase, rng: random.Random
) -> None:
    """And for a blink the database is away."""
    with (
        synced_server(place.folder / "server", FSYNC[kind]) as server,
        tables_that_go(make_database(kind)) as tables,
        Farm(**FULL) as farm,
        Fleet(
            place,
            farm,
            server,
            database=tables.url,
            through=tables.through,
            watched=True,
            DOWNLOAD_DELAY=0.4,
        ) as fleet,
    ):
        fleet.agents_at_work(3, seeds=farm.seeds[:9])
        fleet.until_stored(5)
        for turn, _ in enumerate(moments(rng, 6, 0.0, 0.5)):
            kill_coordinators(fleet, KILL_POINTS[turn % len(KILL_POINTS)])
            for _ in range(2):
                fleet.coordinate()
            kill_agent(fleet, rng, farm.seeds[9 + 2 * turn :][:2])
            tables.take_away()
            kill_server(fleet)
            tables.give_back()
        fleet.wait(200)
        check_killed(fleet)
        check_archive(fleet)


# --- Away -------------------------------------------------------------------------------------------------


class Crawl(NamedTuple):
    """A fleet, and its tables that can be taken away."""

    fleet: Fleet
    tables: Tables


def say(runs: Sequence[Run], text: str, before: Sequence[int]) -> bool:
    """Whether each has said this more often than before."""
    return all(run.err.count(text) > count for run, count in zip(runs, before, strict=True))


def pause(runs: Sequence[Run]) -> bool:
    """Whether each has paused for a stream that is full."""
    return say(runs, "fetching is paused", [0] * len(runs))


def go_through(crawls: list[Crawl], seconds: float, frozen_seconds: float) -> None:
    """Crawls side by side, and an outage in their midst that costs nothing."""
    for fleet, _ in crawls:
        fleet.until_stored(5)
    take_away(crawls, seconds, frozen_seconds)
    for fleet, _ in crawls:
        fleet.wait(200)
        check_through(fleet)


def take_away(crawls: list[Crawl], seconds: float, frozen_seconds: float) -> None:
    """The database is away for so long, from its middle on the server too: the stream takes what it may."""
    began = time.monotonic()
    for _, tables in crawls:
        tables.take_away()
    for fleet, _ in crawls:
        eventually(partial(pause, fleet.agents), "the stream is full", 60)
    pass_time(max(0.0, began + seconds / 2 - time.monotonic()))
    froze = time.monotonic()
    with ExitStack() as stack:
        for fleet, _ in crawls:
            stack.enter_context(frozen(fleet.server))
        pass_time(max(0.0, began + seconds - time.monotonic()))
        for fleet, tables in crawls:
            # SQLite waits for a lock itself before it says so.
            if isinstance(tables, FarTables) or seconds > 2 * LOCK_SECONDS:
                assert "waiting for the database" in fleet.coordinators[0].err
            tables.give_back()
        pass_time(max(0.0, froze + frozen_seconds - time.monotonic()))


def check_through(fleet: Fleet) -> None:
    """Agents paused and went on, none lost a site, nothing was fetched twice."""
    for run in fleet.agents:
        assert "fetching resumes" in run.err, run.err
        assert run.err.count("Redis is away") == run.err.count("Redis is back") >= 1, run.err
        assert "lost its" not in run.err, run.err
    fleet.check_exact()
    fleet.check_ledger()
    fleet.check_loops()
    assert {url: n for url, n in fetched(fleet.farm.hits()).items() if n > 1} == {}


def begin(stack: ExitStack, folder: Path, database: str, plan: dict[str, Any], **given: Any) -> Crawl:
    """A crawl by two agents with everything of its own, on tables that can be taken away."""
    place = stack.enter_context(Place(folder))
    server = stack.enter_context(synced_server(folder / "server"))
    tables = stack.enter_context(tables_that_go(database))
    farm = stack.enter_context(Farm(**plan))
    known = {"database": tables.url, "through": tables.through, "watched": True}
    fleet = stack.enter_context(Fleet(place, farm, server, **known, **given))
    for _ in range(2):
        fleet.agent()
    return Crawl(fleet, tables)


@pytest.mark.drill
@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(("sqlite",), id="sqlite"),
        pytest.param(
            ("postgres", "mariadb"), marks=pytest.mark.needs("postgres", "mariadb"), id="postgres-mariadb"
        ),
    ],
)
def test_database_and_server_are_away(
    kinds: tuple[str, ...], tmp_path: Path, make_database: MakeDatabase
) -> None:
    given = {"DOWNLOAD_DELAY": 0.25, "LEASE_SECONDS": 1.5, "STREAM_MAX_RECORDS": 40, **IMPATIENT}
    plan = {**SHORT, "pages": 4}
    with ExitStack() as stack:
        go_through(
            [begin(stack, tmp_path / kind, make_database(kind), plan, **given) for kind in kinds], 5.0, 3.2
        )


@pytest.mark.drill
@pytest.mark.needs("postgres", "mariadb")
def test_database_and_server_are_away_for_a_minute(tmp_path: Path, make_database: MakeDatabase) -> None:
    kinds = ("sqlite", "postgres", "mariadb")
    given = {"DOWNLOAD_DELAY": 0.7, "LEASE_SECONDS": 30, "STREAM_MAX_RECORDS": 100}
    plan = {**FULL, "sites": 12, "pages": 20}
    with ExitStack() as stack:
        go_through(
            [begin(stack, tmp_path / kind, make_database(kind), plan, **given) for kind in kinds], 60.0, 60.0
        )


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_line_that_breaks_behind_a_commit_is_not_told(
    kind: str, make_database: MakeDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection pool would tell of it with a traceback; whoever needs the database next is told in our words."""
    with tables_that_go(make_database(kind)) as tables:
        engine = open_database(tables.through)
        event.listen(engine, "reset", lambda *_: tables.take_away(), once=True)
        for _ in range(2):
            with transaction(engine) as connection:
                connection.execute(text("select 1"))
            tables.give_back()
        engine.dispose()
    assert caplog.text == ""


# --- Lost -------------------------------------------------------------------------------------------------


def fetches(fleet: Fleet) -> set[tuple[Any, ...]]:
    """Every record of a page that the tables have taken in."""
    return set(fleet.rows("select agent, run, seq, site_id, url_hash, outcome from fetches"))


def finished(fleet: Fleet) -> set[str]:
    """The sites that the tables call finished."""
    return {site for (site,) in fleet.rows("select site from sites where state = 'finished'")}


def check_rebuilt(fleet: Fleet, sites: int) -> None:
    """Every site is finished, every page stored once."""
    fleet.store_all()
    fleet.check_ledger()  # what the rebuild found missing is there again, and is owed no more
    fleet.check_nothing_left()
    assert fleet.counts()["finished"] == len(finished(fleet)) == sites
    assert fleet.stored() == fleet.farm.expected()
    assert fleet.rows("select count(*) from pages") == fleet.rows("select count(distinct url) from pages")
    assert fleet.rows("select * from dead_letters") == []


@pytest.mark.drill
@every_kind
def test_the_server_is_lost_with_its_data(kind: str, place: Place, make_database: MakeDatabase) -> None:
    database = make_database(kind)
    with (
        synced_server(place.folder / "server") as server,
        Farm(sites=6, pages=(2, 22), kinds=ONCE, names=()) as farm,
        Fleet(place, farm, server, database=database, watched=True, DOWNLOAD_DELAY=0.15) as fleet,
    ):
        runs = [fleet.agent("--when-idle", "wait") for _ in range(2)]
        eventually(lambda: fleet.counts().get("finished", 0) >= 2, "some sites are finished", 30)
        eventually(lambda: len(finished(fleet)) >= 2, "the tables know it", 30)
        server.lose()
        committed, done = fetches(fleet), finished(fleet)
        assert 0 < len(done) < 6
        walked = len(farm.hits())
        server.start()
        place.run("queue", "rebuild", REDIS_URL=server.url, DATABASE_URL=database).succeeded()
        eventually(lambda: fleet.counts().get("finished", 0) == 6, "all sites are finished", 60)
        for run in runs:
            run.end().succeeded()
        check_rebuilt(fleet, 6)
        fleet.check_loops()
        assert committed <= fetches(fleet)
        assert not done & {f"http://{hit.host}" for hit in farm.hits()[walked:]}


# --- Delivered twice --------------------------------------------------------------------------------------


class Walked(NamedTuple):
    """A crawl whose results nobody has stored yet."""

    farm: Farm
    entries: Any  # of redis-py, whose annotations fit no reply


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walked]:
    """A whole crawl while no coordinator is alive."""
    folder = tmp_path_factory.mktemp("walked")
    with (
        Place(folder) as place,
        synced_server(folder / "server") as server,
        Farm(sites=6, pages=6, kinds=ONCE, names=()) as farm,
    ):
        fleet = Fleet(place, farm, server, DOWNLOAD_DELAY=0.05)
        for _ in range(2):
            fleet.agent()
        fleet.wait()
        yield Walked(farm, server.client.xrange(key("results")))


def everything(fleet: Fleet, *, places: bool) -> dict[str, list[str]]:
    """All rows of all tables; without the records' places in the stream, if these are not to count."""
    found = {}
    for name, table in metadata.tables.items():
        columns = [column.name for column in table.columns]
        kept = ", ".join(column for column in columns if places or not column.endswith("_entry"))
        found[name] = sorted(map(repr, fleet.rows(f"select {kept} from {name}")))
    return found


def send(fleet: Fleet, walked: Walked, name_of: Callable[[bytes], Any], times: int = 1) -> None:
    """Put every entry into the stream, under the id that `name_of` gives."""
    pipe = fleet.server.client.pipeline()
    for name, fields in walked.entries:
        for _ in range(times):
            pipe.xadd(key("results"), fields, id=name_of(name))
    pipe.execute()


def deliver(fleet: Fleet, walked: Walked, name_of: Callable[[bytes], Any], times: int = 1) -> None:
    """As `send`, and wait until all are taken in."""
    send(fleet, walked, name_of, times)
    eventually(lambda: fleet.server.client.xlen(key("results")) == 0, "all is stored", 30)


@every_kind
def test_every_entry_is_delivered_again(
    kind: str, place: Place, valkey: RunningServer, make_database: MakeDatabase, walked: Walked
) -> None:
    with Fleet(place, walked.farm, valkey, database=make_database(kind)) as fleet:
        deliver(fleet, walked, lambda name: name)
        assert fleet.stored() == walked.farm.expected()
        fleet.check_published_once()
        once, somewhere = everything(fleet, places=True), everything(fleet, places=False)
        # The very same entries in a group that knows of none: a stream takes no id twice, so it begins anew.
        valkey.client.delete(key("results"))
        deliver(fleet, walked, lambda name: name)
        assert everything(fleet, places=True) == once
        deliver(fleet, walked, lambda _: "*", times=2)
        assert everything(fleet, places=False) == somewhere
        fleet.store_all()
        assert len(walked.entries) * 4 == records_taken_in(fleet.coordinators[0])


def records_taken_in(run: Run) -> int:
    """What a coordinator says at its end."""
    return int(run.err.rpartition(" records stored")[0].rpartition(" ")[2])


def test_an_acknowledgement_that_the_server_refuses_is_given_later(
    place: Place, valkey: RunningServer, make_database: MakeDatabase, walked: Walked
) -> None:
    """As a server does whose disk has filled up since the entries were read."""
    many = len(walked.entries)
    with tables_that_go(make_database("sqlite")) as tables:
        fleet = Fleet(place, walked.farm, valkey, database=tables.url)
        coordinator = fleet.coordinate(BATCH_RECORDS=many)
        coordinator.says("writes to")
        tables.take_away()
        send(fleet, walked, lambda name: name)
        eventually(lambda: pending(fleet) == many, "the batch is full and waits for the lock")
        valkey.client.config_set("min-replicas-to-write", 1)
        tables.give_back()
        coordinator.says("waiting for Redis")
        assert fleet.stored() == walked.farm.expected()
        assert pending(fleet) == many
        valkey.client.config_set("min-replicas-to-write", 0)
        fleet.store_all()
        assert fleet.stored() == walked.farm.expected()
        fleet.check_published_once()


def pending(fleet: Fleet) -> int:
    """Entries that a coordinator has read and not acknowledged."""
    with suppress(redis.ResponseError):  # nobody has read yet, so there is no group
        found: Any = fleet.server.client.xpending(key("results"), GROUP)
        return int(found["pending"])
    return 0


# --- Full disks -------------------------------------------------------------------------------------------


def fill_and_free(fleet: Fleet, disk: SmallDisk, runs: Sequence[Run], full: str, room: str) -> None:
    """Fill a disk until each of these says that it waits, free it, and see them go on."""
    wait, go = [run.err.count(full) for run in runs], [run.err.count(room) for run in runs]
    disk.fill()
    try:
        eventually(lambda: say(runs, full, wait), f"each says {full!r}", 30)
    finally:
        disk.free()
    eventually(lambda: say(runs, room, go), f"each says {room!r}", 30)
    fleet.until_stored(1)


def test_disks_are_full(place: Place) -> None:
    """First the server's, then the database's, then the archive's."""
    with (
        small_disk(place.folder / "server") as of_server,
        small_disk(place.folder / "tables") as of_tables,
        small_disk(place.var / "archive") as of_archive,
        synced_server(of_server.folder) as server,
        Farm(**SHORT) as farm,
        Fleet(
            place,
            farm,
            server,
            database=f"sqlite:///{of_tables.folder / 'crawl.db'}",
            watched=True,
            DOWNLOAD_DELAY=0.3,
        ) as fleet,
    ):
        agents = fleet.agents_at_work(2)
        fleet.until_stored(5)
        fill_and_free(fleet, of_server, agents, "Redis is away", "Redis is back")
        fill_and_free(fleet, of_tables, fleet.coordinators, "waiting for the database", "database is back")
        fill_and_free(fleet, of_archive, agents, "publishing is paused until", "publishing resumes")
        fleet.wait()
        fleet.check_exact()
        fleet.check_ledger()
        fleet.check_loops()
        check_archive(fleet)
