"""The coordinator against a real Valkey and real databases: killed, cut off, fed with rubbish, and two at once.

The proof of each is the same: what was put into the stream and what the tables hold, compared as sets.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from scrapy.settings import Settings
from sqlalchemy import Table, make_url, select, text

from benchmarks.producers import Author
from crawler import options
from crawler.coordinator.coordinator import (
    BATCH_BYTES,
    KILL_POINTS,
    KILL_VARIABLE,
    READ_AT_A_TIME,
    Coordinator,
)
from crawler.queue.results import GROUP, Mark, ResultsStream, alive_key, heartbeat_key, results_key
from crawler.records import Page, Record, RunEvent, SiteEnded, SiteFound, encode, pack_links
from crawler.store.database import DatabaseError, migrate, open_database
from crawler.store.tables import dead_letters, fetches, pages, runs, sites
from tests import warm
from tests.conftest import MakeDatabase
from tests.databases import KINDS
from tests.servers import Line, RunningServer, eventually

ROOT = Path(__file__).parent.parent
KEY = results_key("lt")
SITE = "https://a.example"
every_kind = pytest.mark.parametrize("kind", KINDS)

# A coordinator in a process of its own that ends when the stream is empty. The kill point is set late: in the
# environment it would be taken for a setting.
PROCESS = """
import os, sys, threading, warnings
warnings.simplefilter("error")
from tests.test_coordinator import make_coordinator
coordinator = make_coordinator(sys.argv[1], sys.argv[2], name=sys.argv[3], BATCH_RECORDS=50)
os.environ["LOWTIDE_KILL_POINT"] = sys.argv[4]
print("ready", flush=True)
sys.stdin.read(1)
coordinator.run(threading.Event(), lambda drained: drained())
"""


def make_coordinator(redis_url: str, database_url: str, *, name: str = "", **given: Any) -> Coordinator:
    """A coordinator that takes over from a dead one after a second and commits small batches at once."""
    settings = Settings()
    settings.setmodule("settings.base")
    settings.update(
        {"REDIS_URL": redis_url, "DATABASE_URL": database_url, "LEASE_SECONDS": 1, "BATCH_SECONDS": 0.05}
    )
    settings.update(given)
    return Coordinator(settings, options.read(settings), name=name)


class Worker:
    """A coordinator in a thread; `end` stops it and raises what it raised."""

    def __init__(
        self, coordinator: Coordinator, leave: Callable[[Callable[[], bool]], bool] | None = None
    ) -> None:
        self.coordinator = coordinator
        self.stop = threading.Event()
        self.error: BaseException | None = None
        self._leave = leave
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.coordinator.run(self.stop, self._leave)
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        self.stop.set()
        self.thread.join(timeout=60)
        assert not self.thread.is_alive(), "the coordinator did not stop"
        if self.error:
            raise self.error


@contextmanager
def working(coordinator: Coordinator) -> Iterator[Worker]:
    worker = Worker(coordinator)
    try:
        yield worker
    finally:
        worker.end()


@contextmanager
def in_process(
    redis_url: str, database_url: str, name: str = "", kill_point: str = ""
) -> Iterator[subprocess.Popen[str]]:
    """A coordinator's process, ready to be started with a byte; killed at the end if it still runs."""
    command = [sys.executable, "-c", PROCESS, redis_url, database_url, name, kill_point]
    process = warm.popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()[1]
        yield process
    finally:
        process.kill()
        process.communicate(timeout=60)


def finish(process: subprocess.Popen[str]) -> int:
    """Lets the process work to its end; its exit code."""
    said = process.communicate("x", timeout=60)[1]
    assert process.returncode in (0, -signal.SIGKILL), said
    return process.returncode


def a_page(number: int, **more: Any) -> Page:
    given: dict[str, Any] = {"site": SITE, "outcome": "stored", "status": 200, "agent": "h-1", "run": "r"}
    return Page(path=f"/{number}", fetched_at=1_000 + number, seq=number + 1, **(given | more))


def publish(client: redis.Redis, *records: Record, times: int = 1) -> None:
    """Puts each record into the stream, `times` in all, the way the agents' script does."""
    pipe = client.pipeline(transaction=False)
    for _ in range(times):
        for record in records:
            pipe.xadd(KEY, {"v": "1", "r": encode(record), "l": pack_links([SITE + "/next"])})
    pipe.execute()


def numbers(database_url: str, table: Table = fetches, name: str = "seq") -> list[Any]:
    """The sorted values of one column."""
    engine = open_database(database_url)
    try:
        with engine.connect() as connection:
            return sorted(connection.execute(select(table.c[name])).scalars())
    finally:
        engine.dispose()


def drained(server: RunningServer) -> Callable[[], bool]:
    return lambda: server.client.xlen(KEY) == 0


def drain(server: RunningServer, database_url: str, **given: Any) -> Coordinator:
    """One coordinator until the stream is empty."""
    coordinator = make_coordinator(server.url, database_url, **given)
    worker = Worker(coordinator, leave=lambda empty: empty())
    worker.thread.join(timeout=60)
    worker.end()
    return coordinator


# --- From the stream to the tables ------------------------------------------------------------------------


@every_kind
def test_entries_that_come_twice_are_stored_once(
    kind: str, valkey: RunningServer, make_database: MakeDatabase
) -> None:
    url = make_database(kind)
    moments: list[Record] = [
        SiteFound(site=SITE, found_at=1),
        RunEvent(agent="h-1", run="r", spider="site", started_at=1),
        SiteEnded(site=SITE, ended_at=9, finished=True, published=700, known=700),
    ]
    publish(valkey.client, *(a_page(n) for n in range(700)), *moments, times=2)
    coordinator = drain(valkey, url)
    assert coordinator.written == 2 * 703
    assert numbers(url) == list(range(1, 701))
    assert len(numbers(url, pages, "id")) == 700
    assert (numbers(url, sites, "state"), numbers(url, runs, "spider")) == (["finished"], ["site"])
    assert numbers(url, dead_letters, "id") == []
    assert valkey.client.xpending(KEY, GROUP)["pending"] == 0


def test_what_is_no_record_becomes_a_dead_letter(
    valkey: RunningServer, make_database: MakeDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    url = make_database("sqlite")
    good = encode(a_page(1))
    rubbish: list[dict[str, Any]] = [
        {"v": "1", "r": "{"},
        {"v": "2", "r": good},
        {"r": good},
        {"v": "1"},
        {"v": "1", "r": b"\xff\xfe\x00"},
        {"v": "1", "r": good, "l": "odd"},
        {"v": "1", "r": '{"kind":"page"}'},
        {"v": "1", "r": '{"kind":"poem","lines":3}'},
        {"v": "1", "r": good.replace(b'"path":"/1"', b'"path":"\\ud800"')},
    ]
    ids = [valkey.client.xadd(KEY, fields) for fields in rubbish]  # type: ignore[arg-type]
    publish(valkey.client, a_page(7))
    with caplog.at_level(logging.WARNING):
        drain(valkey, url)
    assert numbers(url) == [8]
    assert numbers(url, dead_letters, "stream_id") == sorted(name.decode() for name in ids)  # type: ignore[union-attr]
    reasons = " ".join(numbers(url, dead_letters, "reason"))
    assert "record version b'2': expected b'1'" in reasons
    assert "3 bytes of links: expected a multiple of 8" in reasons
    assert caplog.text.count("is invalid, moved to dead_letters") == len(rubbish)


@every_kind
def test_record_that_the_database_refuses_is_singled_out(
    kind: str, valkey: RunningServer, make_database: MakeDatabase
) -> None:
    url = make_database(kind)
    poisoned = {17, 400}
    publish(valkey.client, *(a_page(n, size=2**63 if n in poisoned else 1) for n in range(500)))
    drain(valkey, url)
    assert numbers(url) == [n + 1 for n in range(500) if n not in poisoned]
    letters = [json.loads(json.loads(fields)["r"])["seq"] for fields in numbers(url, dead_letters, "fields")]
    assert sorted(letters) == [18, 401]
    assert all("DATABASE_URL" in reason for reason in numbers(url, dead_letters, "reason"))


def test_records_keep_coming_while_it_works(valkey: RunningServer, make_database: MakeDatabase) -> None:
    url = make_database("sqlite")
    with working(make_coordinator(valkey.url, url)):
        for start in range(0, 300, 30):
            publish(valkey.client, *(a_page(n) for n in range(start, start + 30)))
        eventually(drained(valkey), "the stream is empty")
    assert numbers(url) == list(range(1, 301))


@every_kind
def test_texts_that_no_database_takes_come_clean_through_the_stream(
    kind: str, valkey: RunningServer, make_database: MakeDatabase
) -> None:
    url = make_database(kind)
    publish(
        valkey.client, a_page(1, title="a\0b\\u0000c", keywords=["d\0e"]), *(a_page(n) for n in range(2, 50))
    )
    drain(valkey, url)
    assert numbers(url, dead_letters, "id") == []
    assert [title for title in numbers_of(url, pages, "title") if title] == ["ab\\u0000c"]
    assert [json.loads(words) for words in numbers_of(url, pages, "keywords") if words] == [["de"]]


def numbers_of(database_url: str, table: Table, name: str) -> list[Any]:
    """The values of one column, in no order."""
    engine = open_database(database_url)
    try:
        with engine.connect() as connection:
            return list(connection.execute(select(table.c[name])).scalars())
    finally:
        engine.dispose()


def test_a_backlog_takes_little_more_than_its_bytes_and_drains_by_itself(
    valkey: RunningServer, make_database: MakeDatabase
) -> None:
    """In short what benchmarks/coordinator.py measures with 200,000 records."""
    many = 10_000
    url = make_database("sqlite")
    results = list(Author(0).results(many))
    before = valkey.client.info("memory")["used_memory"]
    for start in range(0, many, 500):
        pipe = valkey.client.pipeline(transaction=False)
        for page, links in results[start : start + 500]:
            pipe.xadd(KEY, {"v": "1", "r": encode(page), "l": links})
        pipe.execute()
    own = sum(len(encode(page)) + len(links) for page, links in results)
    held = valkey.client.info("memory")["used_memory"] - before
    assert held < 1.2 * own
    drain(valkey, url)
    assert numbers(url) == list(range(1, many + 1))
    assert valkey.client.xlen(KEY) == 0


def test_a_batch_is_bounded_in_bytes(valkey: RunningServer, make_database: MakeDatabase) -> None:
    """Pages of a hostile site, each with as many links as MAX_LINKS_PER_PAGE allows: 120 MB of them."""
    links = bytes(8 * 50_000)
    pipe = valkey.client.pipeline(transaction=False)
    for number in range(300):
        pipe.xadd(KEY, {"v": "1", "r": encode(a_page(number)), "l": links})
    pipe.execute()
    made = make_coordinator(valkey.url, make_database("sqlite"))
    batch = made._gather(threading.Event())
    assert BATCH_BYTES <= len(batch) * len(links) < BATCH_BYTES + READ_AT_A_TIME * len(links)


# --- Kills ------------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("point", KILL_POINTS)
def test_killed_anywhere_nothing_is_lost_or_stored_twice(
    point: str, kind: str, valkey: RunningServer, make_database: MakeDatabase
) -> None:
    url = make_database(kind)
    publish(valkey.client, *(a_page(n) for n in range(120)))
    # On SQLite the successor has another name, and must wait until the dead one's entries are anybody's.
    dead, successor = ("dead", "next") if kind == "sqlite" else ("same", "same")
    with in_process(valkey.url, url, dead, point) as process:
        assert finish(process) == -signal.SIGKILL
    stored = numbers(url)
    assert stored == ([] if point == "before-commit" else list(range(1, 51)))
    assert valkey.client.xlen(KEY) == 120, "something was acknowledged too early"
    drain(valkey, url, name=successor)
    assert numbers(url) == list(range(1, 121))
    assert len(numbers(url, pages, "id")) == 120


@pytest.mark.drill
@every_kind
def test_twenty_random_kills(kind: str, valkey: RunningServer, make_database: MakeDatabase) -> None:
    url = make_database(kind)
    dice = random.Random(20)
    for turn in range(20):
        publish(valkey.client, *(a_page(n) for n in range(turn * 2_000, (turn + 1) * 2_000)))
        with in_process(valkey.url, url) as process:
            assert process.stdin is not None
            process.stdin.write("x")
            process.stdin.flush()
            time.sleep(dice.uniform(0.05, 0.6))
    drain(valkey, url, BATCH_RECORDS=500)
    assert numbers(url) == list(range(1, 40_001))
    assert len(numbers(url, pages, "id")) == 40_000
    assert numbers(url, dead_letters, "id") == []


def test_successor_of_the_same_name_takes_up_at_once(
    valkey: RunningServer, make_database: MakeDatabase
) -> None:
    url = make_database("sqlite")
    publish(valkey.client, *(a_page(n) for n in range(10)))
    dead = ResultsStream(valkey.client, "lt", "local")
    assert len(dead.read(10)) == 10
    started, lease_seconds = time.monotonic(), 60
    drain(valkey, url, name="local", LEASE_SECONDS=lease_seconds)
    assert time.monotonic() - started < lease_seconds
    assert numbers(url) == list(range(1, 11))


def test_unknown_kill_point_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings_given = ("unix:///nowhere", f"sqlite:///{tmp_path / 'crawl.db'}")
    make_coordinator(*settings_given)
    monkeypatch.setenv(KILL_VARIABLE, "at-tea-time")
    with pytest.raises(
        options.OptionError, match="LOWTIDE_KILL_POINT is 'at-tea-time'; expected one of before-commit"
    ):
        make_coordinator(*settings_given)


# --- Several ----------------------------------------------------------------------------------------------


@every_kind
def test_coordinators_share_the_work_and_store_all_of_it_once(
    kind: str, valkey: RunningServer, make_database: MakeDatabase
) -> None:
    url = make_database(kind)
    publish(valkey.client, *(a_page(n % 1_500) for n in range(3_000)))
    with ExitStack() as stack:
        processes = [stack.enter_context(in_process(valkey.url, url)) for _ in range(2)]
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("x")
            process.stdin.flush()
        assert [finish(process) for process in processes] == [0, 0]
    assert numbers(url) == list(range(1, 1_501))
    assert len(numbers(url, pages, "id")) == 1_500
    assert numbers(url, dead_letters, "id") == []
    assert valkey.client.xinfo_consumers(KEY, GROUP) == []


# --- Outages ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS[1:])
def test_database_away_is_waited_for(
    kind: str, valkey: RunningServer, make_database: MakeDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    url = make_database(kind)
    real = make_url(url)
    line = Line(real.host or "", real.port or 0)
    line.cut()
    through = real.set(port=line.port).render_as_string(hide_password=False)
    try:
        with working(make_coordinator(valkey.url, through)) as worker:
            publish(valkey.client, *(a_page(n) for n in range(100)))
            eventually(lambda: "waiting for the database" in caplog.text, "the outage at the start is told")
            line.mend()
            eventually(lambda: worker.coordinator.written == 100, "it starts when the database is there")
            line.cut()
            publish(valkey.client, *(a_page(n) for n in range(100, 200)))
            eventually(
                lambda: caplog.text.count("waiting for the database") == 2, "the second outage is told"
            )
            eventually(lambda: _sign(valkey).get("waits_for") == "the database", "and shown")
            assert "DATABASE_URL" in _sign(valkey)["why"]
            assert valkey.client.xlen(KEY) == 100
            line.mend()
            eventually(drained(valkey), "the rest is stored")
    finally:
        line.cut()
    assert numbers(url) == list(range(1, 201))
    assert caplog.text.count("the database is back") == 2
    assert caplog.text.count("waiting for the database") == 2


def test_redis_away_is_waited_for(
    valkey: RunningServer, make_database: MakeDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    url = make_database("sqlite")
    publish(valkey.client, *(a_page(n) for n in range(100)))
    with working(make_coordinator(valkey.url, url)):
        eventually(drained(valkey), "the first are stored")
        valkey.kill()
        eventually(lambda: "waiting for Redis" in caplog.text, "the outage is told")
        valkey.start()
        publish(valkey.client, *(a_page(n) for n in range(100, 200)))
        eventually(drained(valkey), "the rest is stored")
    assert numbers(url) == list(range(1, 201))
    assert "is back" in caplog.text


def test_stream_and_group_that_were_lost_are_made_anew(
    valkey: RunningServer, make_database: MakeDatabase
) -> None:
    url = make_database("sqlite")
    with working(make_coordinator(valkey.url, url)) as worker:
        publish(valkey.client, a_page(1))
        eventually(lambda: worker.coordinator.written == 1, "the first is stored")
        valkey.client.flushall()
        publish(valkey.client, a_page(2))
        eventually(lambda: worker.coordinator.written == 2, "the second is stored")
    assert numbers(url) == [2, 3]


def test_stop_while_redis_is_away(valkey: RunningServer, make_database: MakeDatabase) -> None:
    valkey.kill()
    worker = Worker(make_coordinator(valkey.url, make_database("sqlite")))
    worker.end()
    assert worker.coordinator.written == 0


def test_wrong_password_is_no_outage(valkey: RunningServer, make_database: MakeDatabase) -> None:
    valkey.client.config_set("requirepass", "other")
    with pytest.raises(redis.AuthenticationError):
        make_coordinator(valkey.url, make_database("sqlite")).run(threading.Event())


def test_tables_of_another_version_end_it(valkey: RunningServer, make_database: MakeDatabase) -> None:
    url = make_database("sqlite")
    engine = open_database(url)
    migrate(engine)
    with engine.begin() as connection:
        connection.execute(text("UPDATE lowtide_version SET version_num = '9999'"))
    engine.dispose()
    with pytest.raises(DatabaseError, match="version 9999"):
        make_coordinator(valkey.url, url).run(threading.Event())


def test_tables_that_vanish_end_it_and_lose_nothing(
    valkey: RunningServer, make_database: MakeDatabase
) -> None:
    url = make_database("sqlite")
    worker = Worker(make_coordinator(valkey.url, url))
    publish(valkey.client, a_page(1))
    eventually(lambda: worker.coordinator.written == 1, "the first is stored")
    engine = open_database(url)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE pages"))
    engine.dispose()
    publish(valkey.client, a_page(2))
    eventually(lambda: not worker.thread.is_alive(), "the coordinator gives up")
    with pytest.raises(DatabaseError, match="no such table"):
        worker.end()
    assert valkey.client.xlen(KEY) == 1
    assert numbers(url, dead_letters, "id") == []


# --- Beginning and end ------------------------------------------------------------------------------------


def _sign(server: RunningServer) -> dict[str, Any]:
    keys = server.client.keys(heartbeat_key("lt", "*").replace("{0}", "?0?"))
    value = server.client.get(keys[0]) if keys else None
    found: dict[str, Any] = json.loads(value) if value else {}
    return found


def test_heartbeat_shows_a_living_coordinator(valkey: RunningServer, make_database: MakeDatabase) -> None:
    with working(make_coordinator(valkey.url, make_database("sqlite"), name="one")):
        eventually(lambda: _sign(valkey), "a heartbeat")
        sign = _sign(valkey)
        assert 0 < valkey.client.pttl(heartbeat_key("lt", "one")) <= 15_000
        assert valkey.client.get(alive_key("lt")) == b"one", "agents are told that somebody stores"
        assert 0 < valkey.client.pttl(alive_key("lt")) <= 15_000
    assert sign["pid"] == os.getpid()
    assert set(sign) == {"pid", "host", "since", "written", "refused", "lag", "waits_for", "why"}
    assert _sign(valkey) == {}
    assert not valkey.client.exists(alive_key("lt"))


def test_leave_is_asked_only_when_idle_and_again_until_it_agrees(
    valkey: RunningServer, make_database: MakeDatabase
) -> None:
    url = make_database("sqlite")
    publish(valkey.client, *(a_page(n) for n in range(100)))
    answers: list[bool] = []

    def leave(empty: Callable[[], bool]) -> bool:
        answers.append(empty())
        return len(answers) == 3

    worker = Worker(make_coordinator(valkey.url, url), leave)
    worker.thread.join(timeout=60)
    worker.end()
    assert answers == [True, True, True]
    assert numbers(url) == list(range(1, 101))


def test_stop_finishes_the_batch_in_hand(valkey: RunningServer, make_database: MakeDatabase) -> None:
    url = make_database("sqlite")
    publish(valkey.client, *(a_page(n) for n in range(5_000)))
    worker = Worker(make_coordinator(valkey.url, url, BATCH_RECORDS=100))
    eventually(lambda: worker.coordinator.written > 0, "some are stored")
    worker.end()
    assert len(numbers(url)) == worker.coordinator.written == 5_000 - valkey.client.xlen(KEY)
    assert worker.coordinator.written % 100 == 0


def test_folder_of_the_default_database_is_made(valkey: RunningServer, tmp_path: Path) -> None:
    var = tmp_path / "deep" / "var"
    publish(valkey.client, a_page(1))
    drain(valkey, "", VAR_DIR=str(var))
    assert numbers(f"sqlite:///{var / 'crawl.db'}") == [2]


# --- The stream alone -------------------------------------------------------------------------------------


def test_reading_order_and_claims(valkey: RunningServer) -> None:
    client = valkey.client
    publish(client, *(a_page(n) for n in range(6)))
    dead = ResultsStream(client, "lt", "dead")
    lost = [entry.id for entry in dead.read(2)]
    live = ResultsStream(client, "lt", "live")
    mine = [entry.id for entry in live.read(2)]
    assert (live.pending(), live.length(), live.drained()) == (4, 6, False)

    again = ResultsStream(client, "lt", "live")
    assert [entry.id for entry in again.read(10)] == mine
    again.acknowledge(mine)
    # What a dead reader left is anybody's after claim_seconds, and not before.
    eventually(lambda: len(client.xpending_range(KEY, GROUP, "-", "+", 10, idle=200)) == 2, "both are old")
    late = ResultsStream(client, "lt", "late", claim_seconds=0.2)
    assert [entry.id for entry in late.read(10)] == lost
    late.acknowledge(lost)
    rest = late.read(10)
    assert len(rest) == 2
    late.acknowledge([entry.id for entry in rest])
    assert (late.pending(), late.length(), late.drained()) == (0, 0, True)


@pytest.mark.parametrize("query", ["", "?protocol=2", "?protocol=3"])
def test_replies_of_both_protocols(valkey: RunningServer, make_database: MakeDatabase, query: str) -> None:
    url = make_database("sqlite")
    publish(valkey.client, *(a_page(n) for n in range(3)))
    with redis.Redis.from_url(valkey.url + query) as client:
        ResultsStream(client, "lt", "dead").read(1)
    with working(make_coordinator(valkey.url + query, url, LEASE_SECONDS=1)):
        eventually(drained(valkey), "new entries and those of the dead one are stored")
    assert numbers(url) == [1, 2, 3]


def test_a_mark_is_passed_when_all_before_it_is_stored(valkey: RunningServer) -> None:
    client = valkey.client
    assert Mark(client, "lt").passed(client), "nothing waits"
    publish(client, a_page(1), a_page(2))
    mark = Mark(client, "lt")
    publish(client, a_page(3))
    stream = ResultsStream(client, "lt", "one")
    for done in (False, False, True):
        assert mark.passed(client) is done
        stream.acknowledge([entry.id for entry in stream.read(1)])


def test_entries_deleted_by_hand_are_forgotten(valkey: RunningServer) -> None:
    publish(valkey.client, a_page(1), a_page(2))
    first, second = ResultsStream(valkey.client, "lt", "one").read(2)
    valkey.client.xdel(KEY, first.id)
    again = ResultsStream(valkey.client, "lt", "one")
    assert [entry.id for entry in again.read(10)] == [second.id]
    assert again.pending() == 1


def test_reader_with_unstored_entries_stays_in_the_group(valkey: RunningServer) -> None:
    publish(valkey.client, a_page(1))
    stream = ResultsStream(valkey.client, "lt", "one")
    (entry,) = stream.read(5)
    stream.close()
    assert stream.pending() == 1
    stream.acknowledge([entry.id])
    stream.close()
    assert valkey.client.xinfo_consumers(KEY, GROUP) == []
