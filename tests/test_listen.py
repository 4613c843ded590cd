"""`scrapy listen` as a process, over real sockets, servers and databases: what it takes, refuses, waits for and keeps.

Senders are sockets of the test, or crawler.status.packets. What a test calls acknowledged was answered with OK.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import re
import resource
import signal
import socket
import sqlite3
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from scrapy.settings import Settings
from sqlalchemy import select, text

from crawler import options
from crawler.queue import connection
from crawler.queue.results import results_key
from crawler.records import Check, RecordError, decode
from crawler.status import listener as listening
from crawler.status.listener import CALL_ENTRIES, Spool
from crawler.status.packets import Client, join, packets_of
from crawler.store.database import migrate, open_database, transaction
from crawler.store.tables import checks
from crawler.store.write import Counts, Stored, store
from tests import warm
from tests.conftest import MakeDatabase
from tests.crawling import ROOT, Place, Run
from tests.databases import KINDS
from tests.servers import RunningServer, eventually

KEY = results_key("lt")
OF = "packet of 127.0.0.1: "
CONNECT_SECONDS = 60.0


class Ear:
    """A `scrapy listen` that is up, and ways to talk to it."""

    def __init__(self, place: Place, *words: str, **given: Any) -> None:
        self.run: Run = place.start("listen", *words, **{"LISTEN_PORT": 0, **given})
        self.run.says("listening on ")
        found = re.search(r"listening on (\S+) port (\d+)", self.run.err)
        assert found
        self.port = int(found[2])

    def line(self) -> socket.socket:
        """A connection to it."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=CONNECT_SECONDS)

    def tell(self, *pieces: bytes, pause: float = 0.0) -> bytes:
        """What it answers to these bytes on a connection of their own, whose sender's end is closed behind them."""
        with self.line() as line:
            with suppress(OSError):  # it has heard enough
                for piece in pieces:
                    line.sendall(piece)
                    time.sleep(pause)
                line.shutdown(socket.SHUT_WR)
            return everything_of(line)

    def client(self, **given: Any) -> Client:
        return Client("127.0.0.1", self.port, **given)

    def has_read(self, line: socket.socket) -> bool:
        """Whether it has let this connection in, and read all that was sent on it."""
        ports = (self.port, line.getsockname()[1])
        return any(row.ports == ports and row.inode != "0" and not row.waiting for row in sockets())

    def lets_in(self) -> bool:
        """Whether it still listens."""
        return any(row.ports == (self.port, 0) and row.state == LISTENS for row in sockets())

    def end(self) -> dict[str, Any]:
        """Ends it well; the figures that it prints, where it was called with --json."""
        self.run.end().succeeded()
        return dict(json.loads(self.run.out)) if self.run.out.startswith("{") else {}

    @property
    def memory(self) -> int:
        """Bytes that it has at most taken so far."""
        status = Path(f"/proc/{self.run.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found
        return int(found[1]) * 1024


class SocketRow(NamedTuple):
    """One TCP socket of this machine, as the kernel tells it."""

    ports: tuple[int, int]  # its own, and the other side's
    state: str
    waiting: int  # bytes that its process has not read
    inode: str  # "0": no process has it yet


LISTENS = "0A"


def sockets() -> Iterator[SocketRow]:
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        words = line.split()
        own, other = (int(address.rpartition(":")[2], 16) for address in words[1:3])
        yield SocketRow((own, other), words[3], int(words[4].rpartition(":")[2], 16), words[9])


def everything_of(line: socket.socket) -> bytes:
    said = b""
    with suppress(ConnectionResetError):
        while more := line.recv(65_536):
            said += more
    return said


def a_packet(code: int, *more: str, status: int = 200, crawler: int = 7) -> bytes:
    return join([str(crawler), str(code), str(status), "20200101120000", *more])


def numbered(codes: range, run: str = "r") -> list[bytes]:
    return [a_packet(code, f"run={run}", f"seq={code}") for code in codes]


def in_stream(server: RunningServer) -> list[Check]:
    """The checks that the stream holds."""
    found = []
    for _, fields in server.client.xrange(KEY):
        with suppress(RecordError):
            record, _ = decode(fields)
            assert isinstance(record, Check)
            found.append(record)
    return found


def refusals(server: RunningServer) -> dict[str, bytes]:
    """Why, and which bytes."""
    return {
        fields[b"why"].decode(): fields[b"packet"]
        for _, fields in server.client.xrange(KEY)
        if b"why" in fields
    }


def stored(place: Place, columns: str = "code") -> list[Any]:
    """What the table has, in order."""
    with suppress(sqlite3.OperationalError):  # there is none yet
        return sorted(
            row if "," in columns else row[0] for row in place.rows(f"select {columns} from checks")
        )
    return []


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less of it, for tests within this process."""
    monkeypatch.setattr(listening, "QUIET_SECONDS", 0.05)


# --- From a packet to the tables --------------------------------------------------------------------------


def test_on_one_machine_nothing_else_is_needed(place: Place) -> None:
    """The paper's way: a packet on a connection of its own, and no answer."""
    ear = Ear(place, "--json")
    packet = a_packet(1042, "url=https://example.org/a||b", "depth=1", "run=mon", "seq=9", "latency_ms=35")
    assert ear.tell(packet) == b""
    assert ear.tell(b"GET / HTTP/1.1\r\n\r\n") == b""
    eventually(lambda: stored(place) and place.rows("select 1 from dead_letters"), "all is in the tables")
    names = "crawler, run, seq, code, checked_at, status, latency_ms, url, more"
    assert stored(place, names) == [
        (7, "mon", 9, 1042, 1577880000000, 200, 35, "https://example.org/a||b", '["depth=1"]')
    ]
    ((reason, fields),) = place.rows("select reason, fields from dead_letters")
    assert reason == OF + "a packet begins with b'GET / HTTP'; expected 8 digits and ||"
    assert json.loads(fields)["packet"] == "GET / HTTP/1.1\r\n\r\n"
    assert not place.rows("select 1 from pages union select 1 from sites union select 1 from fetches")
    figures = ear.end()
    assert figures == {
        "connections": 2,
        "turned_away": 0,
        "silent": 0,
        "taken": 1,
        "refused": 1,
        "refused_by": {"length": 1},
        "sent": 2,
        "waiting": 0,
    }


def test_the_bundled_server_is_started_again_under_it(place: Place) -> None:
    ear = Ear(place, LISTEN_ACKNOWLEDGE="disk", LISTEN_SEVERAL=1)
    (server,) = [
        pid for pid in place.processes() if "valkey-server" in Path(f"/proc/{pid}/cmdline").read_text()
    ]
    with closing(ear.client(acknowledged=True, several=True)) as client:
        assert client.send(numbered(range(50))) == [""] * 50
        os.kill(server, signal.SIGKILL)
        assert client.send(numbered(range(50, 100))) == [""] * 50
    ear.end()
    eventually(lambda: stored(place) == list(range(100)), "all is stored")


def test_where_nothing_can_be_stored_it_ends(place: Place) -> None:
    place.var.mkdir()
    (place.var / "crawl.db").write_bytes(b"a letter to my aunt\n" * 1000)
    run = place.start("listen", LISTEN_PORT=0).wait()
    run.refused("no coordinator can run, so nothing would be stored", code=3)


def test_every_refusal_is_counted_and_kept(place: Place, valkey: RunningServer) -> None:
    ear = Ear(place, "--json", REDIS_URL=valkey.url, LISTEN_PACKET_BYTES=100)
    good = a_packet(1)
    wrong = {
        "length": b"length=",
        "short": b"00000012||1||",
        "long": b"00000101||1||",
        "cut": good[:-1],
        "trailing": good + b"\n",
        "text": good[:-1] + b"\xff",
        "escape": join(["7", "1", "200", "20200101120000", "xx"]).replace(b"xx", b"\\x"),
        "fields": join(["7", "1000000000", "200", "x"])[:-1].replace(b"00000037", b"00000036"),
        "crawler": join(["x", "1", "200", "20200101120000"]),
        "code": join(["7", "x", "200", "20200101120000"]),
        "status": a_packet(1, status=999),
        "time": join(["7", "1", "200", "2026-11-18 noon"]),
        "ahead": join(["7", "1", "200", "99991118120000"]),
        "named": a_packet(1, "run=r"),
    }
    wrong["fields"] = join(["7", "1000000000000000", "200"])
    for packet in wrong.values():
        ear.tell(packet)
    ear.line().close()
    ear.tell(good)
    eventually(lambda: in_stream(valkey), "the good one is taken")
    figures = ear.end()
    assert figures["refused_by"] == dict.fromkeys(wrong, 1)
    assert (figures["taken"], figures["refused"], figures["silent"]) == (1, len(wrong), 1)
    kept = refusals(valkey)
    assert sorted(kept.values()) == sorted(wrong.values())
    assert all(why.startswith(OF) for why in kept)


@pytest.mark.parametrize("pause", [0.0, 0.01], ids=["at once", "byte by byte"])
def test_pieces_do_not_matter(place: Place, valkey: RunningServer, pause: float) -> None:
    ear = Ear(place, REDIS_URL=valkey.url)
    packet = a_packet(1)
    ear.tell(*(packet[n : n + 1] for n in range(len(packet))), pause=pause)
    ear.tell(packet, b"x", pause=10 * pause)
    eventually(lambda: refusals(valkey), "both are judged")
    assert len(in_stream(valkey)) == 1
    assert list(refusals(valkey).values()) == [packet + b"x"]
    ear.end()


def test_several_on_one_connection(place: Place, valkey: RunningServer) -> None:
    ear = Ear(place, REDIS_URL=valkey.url, LISTEN_SEVERAL=1)
    data = (
        b"".join(numbered(range(1000)))
        + a_packet(1, status=999)
        + a_packet(1000)
        + b"rubbish"
        + a_packet(1001)
    )
    assert ear.tell(data) == b""
    eventually(lambda: valkey.client.xlen(KEY) == 1003, "all is judged")
    assert [check.code for check in in_stream(valkey)] == list(range(1001))
    assert sorted(refusals(valkey)) == [
        OF + "a packet begins with b'rubbish000'; expected 8 digits and ||",
        OF + "status is '999'; expected 100 to 599, or -14 to -1",
    ]
    ear.end()


def test_any_bytes(place: Place, valkey: RunningServer) -> None:
    """Rubbish of all sizes, cut anywhere, from many at a time: it stays up, small, and takes what is good."""
    ear = Ear(
        place,
        "--json",
        REDIS_URL=valkey.url,
        LISTEN_SEVERAL=1,
        LISTEN_ACKNOWLEDGE="stream",
        LISTEN_CONNECTIONS=20,
    )
    ear.tell(a_packet(0))
    before = ear.memory
    rng = random.Random(7)
    good = b"".join(numbered(range(5)))

    def rubbish() -> None:
        for _ in range(60):
            head = rng.choice([b"", good, b"%08d||" % rng.randrange(20_000), b"00000060||"])
            ear.tell(head + rng.randbytes(rng.choice([0, 1, 50, 5_000, 300_000])))

    threads = [threading.Thread(target=rubbish) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert ear.tell(a_packet(1)) == b"OK\n"
    assert ear.memory - before < 20_000_000
    figures = ear.end()
    assert "ended by a bug" not in ear.run.err
    assert figures["connections"] == 482
    assert figures["refused"] > 200


# --- Acknowledgements -------------------------------------------------------------------------------------


def test_answers_come_in_order(place: Place, valkey: RunningServer) -> None:
    ear = Ear(place, REDIS_URL=valkey.url, LISTEN_SEVERAL=1, LISTEN_ACKNOWLEDGE="stream")
    said = ear.tell(a_packet(1) + a_packet(2, status=999) + a_packet(3) + b"x" * 100_000)
    assert said.decode().splitlines() == [
        "OK",
        "NO status is '999'; expected 100 to 599, or -14 to -1",
        "OK",
        "NO a packet begins with b'xxxxxxxxxx'; expected 8 digits and ||",
    ]
    assert [check.code for check in in_stream(valkey)] == [1, 3]
    ear.end()


def test_one_packet_a_connection_is_answered_too(place: Place, valkey: RunningServer) -> None:
    ear = Ear(place, REDIS_URL=valkey.url, LISTEN_ACKNOWLEDGE="stream", LISTEN_SECONDS=1)
    assert ear.tell(a_packet(1)) == b"OK\n"
    with ear.line() as line:  # that leaves its end open
        line.sendall(a_packet(2))
        assert everything_of(line) == b"OK\n"
    ear.end()


def test_what_is_sent_again_is_stored_once(place: Place, valkey: RunningServer) -> None:
    ear = Ear(place, REDIS_URL=valkey.url, LISTEN_ACKNOWLEDGE="stream")
    twice = [*numbered(range(3)), a_packet(50), a_packet(51)]
    other = [
        a_packet(50, "run=r", "seq=90"),
        a_packet(50, "run=r", "seq=91"),
        a_packet(50, "run=q", "seq=90"),
    ]
    with closing(ear.client(acknowledged=True)) as client:
        assert client.send([*twice, *other, *twice]) == [""] * 13
    ear.end()
    assert len(in_stream(valkey)) == 13
    coordinator = place.start("coordinate", REDIS_URL=valkey.url)
    eventually(lambda: not valkey.client.xlen(KEY), "all is stored")
    coordinator.end().succeeded()
    assert stored(place) == [0, 1, 2, 50, 50, 50, 50, 51]


def test_nothing_is_acknowledged_that_is_not_in_the_stream(place: Place, valkey: RunningServer) -> None:
    ear = Ear(place, REDIS_URL=valkey.url, LISTEN_SEVERAL=1, LISTEN_ACKNOWLEDGE="disk")
    with ear.line() as line:
        line.sendall(a_packet(1))
        assert line.recv(100) == b"OK\n"
        os.kill(valkey.pid, signal.SIGSTOP)
        line.sendall(a_packet(2))
        line.settimeout(1)
        with pytest.raises(TimeoutError):
            line.recv(100)
        os.kill(valkey.pid, signal.SIGCONT)
        line.settimeout(CONNECT_SECONDS)
        assert line.recv(100) == b"OK\n"
        valkey.kill()
        line.sendall(a_packet(3))
        ear.run.says("Redis is away")
        valkey.start()
        assert line.recv(100) == b"OK\n"
        ear.run.says("Redis is back")
    ear.end()
    assert {check.code for check in in_stream(valkey)} == {1, 2, 3}


# --- Who may come, and how many ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"LISTEN_ADDRESS": "0.0.0.0"},
            "which other machines reach, and LISTEN_ALLOW is empty; expected LISTEN_ALLOW",
        ),
        ({"LISTEN_ADDRESS": "::"}, "LISTEN_ADDRESS is '::', which other machines reach"),
        ({"LISTEN_ADDRESS": "192.0.2.1"}, "LISTEN_ADDRESS is '192.0.2.1', which other machines reach"),
        ({"LISTEN_ADDRESS": "myhost"}, "LISTEN_ADDRESS is 'myhost'; expected an IP address of this machine"),
        ({"LISTEN_ALLOW": "10.0.0.0/8,neighbours"}, "LISTEN_ALLOW is '10.0.0.0/8,neighbours': "),
        ({"LISTEN_PORT": "65536"}, "LISTEN_PORT is '65536'; expected "),
        ({"LISTEN_PACKET_BYTES": "20"}, "LISTEN_PACKET_BYTES is '20'; expected "),
        (
            {"LISTEN_UTC_OFFSET": "9"},
            "LISTEN_UTC_OFFSET: '9' is not an offset from UTC; expected one such as +09:00",
        ),
    ],
    ids=str,
)
def test_settings_that_cannot_be_used(place: Place, given: dict[str, str], said: str) -> None:
    place.run("listen", **given).refused(said, code=2)
    assert not place.var.exists()


def test_a_port_that_is_taken(place: Place, valkey: RunningServer) -> None:
    ear = Ear(place, REDIS_URL=valkey.url)
    run = place.run("listen", REDIS_URL=valkey.url, LISTEN_PORT=ear.port)
    run.refused(
        f"LISTEN_PORT is {ear.port}: Address already in use at 127.0.0.1; expected a free port",
        code=2,
    )
    ear.end()


def test_a_redis_that_is_away_at_the_start(place: Place) -> None:
    place.run("listen", REDIS_URL="redis://127.0.0.1:1/0").refused("does not answer", code=1)
    place.run("listen", env={"SCRAPY_PROJECT": "cluster"}).refused("REDIS_URL is empty", code=2)


def test_a_server_that_cannot_tell_what_is_on_its_disk(place: Place, valkey: RunningServer) -> None:
    valkey.client.config_set("appendonly", "no")
    run = place.run("listen", REDIS_URL=valkey.url, LISTEN_PORT=0, LISTEN_ACKNOWLEDGE="disk")
    run.refused(
        "LISTEN_ACKNOWLEDGE is 'disk', but the server cannot confirm", "appendonly yes, or 'stream'", code=2
    )


def test_over_ipv6(place: Place, valkey: RunningServer) -> None:
    ear = Ear(place, REDIS_URL=valkey.url, LISTEN_ADDRESS="::1")
    with socket.create_connection(("::1", ear.port), timeout=CONNECT_SECONDS) as line:
        line.sendall(a_packet(1))
    eventually(lambda: in_stream(valkey), "it is taken")
    ear.end()


def test_only_those_of_the_list_may_send(place: Place, valkey: RunningServer) -> None:
    ear = Ear(
        place, "--json", REDIS_URL=valkey.url, LISTEN_ADDRESS="0.0.0.0", LISTEN_ALLOW="127.0.0.2/32, ::1"
    )
    assert ear.tell(a_packet(1)) == b""
    with socket.create_connection(("127.0.0.1", ear.port), source_address=("127.0.0.2", 0)) as line:
        line.sendall(a_packet(2))
    eventually(lambda: in_stream(valkey), "who may send was heard")
    figures = ear.end()
    assert [check.code for check in in_stream(valkey)] == [2]
    assert (figures["turned_away"], figures["connections"]) == (1, 1)


def test_who_comes_when_all_places_are_taken_waits(place: Place, valkey: RunningServer) -> None:
    ear = Ear(place, REDIS_URL=valkey.url, LISTEN_CONNECTIONS=2, LISTEN_SECONDS=30)
    sitting = [ear.line(), ear.line()]
    for code in range(20):
        with ear.line() as line:
            line.sendall(a_packet(code))
    time.sleep(0.3)
    assert not in_stream(valkey)
    sitting.pop().close()
    eventually(lambda: len(in_stream(valkey)) == 20, "those that waited are served")
    sitting.pop().close()
    ear.end()


def test_nobody_holds_a_place_by_sending_slowly(place: Place, valkey: RunningServer) -> None:
    ear = Ear(place, "--json", REDIS_URL=valkey.url, LISTEN_CONNECTIONS=1, LISTEN_SECONDS=0.5)
    with ear.line() as slow, ear.line() as next_one:
        next_one.sendall(a_packet(2))
        next_one.shutdown(socket.SHUT_WR)
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            for byte in a_packet(1)[:-1]:
                slow.sendall(bytes([byte]))
                time.sleep(0.1)
    eventually(lambda: in_stream(valkey), "the next one is served")
    figures = ear.end()
    assert figures["refused_by"] == {"cut": 1}
    (why,) = refusals(valkey)
    assert re.fullmatch(OF + r"0.5 s were over after \d bytes; expected a length of 8 digits", why)


def test_one_who_never_reads_its_answers_is_left(place: Place, valkey: RunningServer) -> None:
    ear = Ear(
        place,
        REDIS_URL=valkey.url,
        LISTEN_SEVERAL=1,
        LISTEN_ACKNOWLEDGE="stream",
        LISTEN_SECONDS=0.5,
        LISTEN_CONNECTIONS=1,
    )
    wrong = b"".join(a_packet(n, "run=r") for n in range(2000))  # refused with long answers
    with ear.line() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with suppress(ConnectionResetError, BrokenPipeError):
            for _ in range(40):
                line.sendall(wrong)
        assert ear.tell(a_packet(1)) == b"OK\n"
    ear.end()


def test_no_descriptor_left(place: Place, valkey: RunningServer) -> None:
    ear = Ear(place, REDIS_URL=valkey.url)
    ear.tell(a_packet(0))
    eventually(lambda: in_stream(valkey), "it is connected to Redis")
    most = len(list(Path(f"/proc/{ear.run.pid}/fd").iterdir()))
    resource.prlimit(ear.run.pid, resource.RLIMIT_NOFILE, (most, most + 1000))
    with ear.line() as line:
        line.sendall(a_packet(1))
    ear.run.says("cannot accept connections now: Too many open files")
    resource.prlimit(ear.run.pid, resource.RLIMIT_NOFILE, (most + 1000, most + 1000))
    eventually(lambda: len(in_stream(valkey)) == 2, "who waited is served")
    ear.end()


# --- Back-pressure ----------------------------------------------------------------------------------------


@contextmanager
def sending(data: bytes, ear: Ear) -> Iterator[threading.Thread]:
    """Somebody sends all of this on one connection, without end if it is not read."""

    def send() -> None:
        with ear.line() as line:
            line.settimeout(60)
            line.sendall(data)

    thread = threading.Thread(target=send)
    thread.start()
    yield thread
    thread.join(60)
    assert not thread.is_alive()


def test_a_stream_that_is_too_long_stops_the_reading(place: Place, valkey: RunningServer) -> None:
    ear = Ear(
        place, REDIS_URL=valkey.url, LISTEN_SEVERAL=1, STREAM_MAX_RECORDS=5000, LISTEN_SPOOL_BYTES=1_000_000
    )
    many = 30_000
    with sending(b"".join(a_packet(n, "x" * 500) for n in range(many)), ear) as thread:
        ear.run.says("records wait in the results stream (STREAM_MAX_RECORDS 5000): reading paused")
        time.sleep(1)
        assert thread.is_alive()
        assert valkey.client.xlen(KEY) < 5000 + CALL_ENTRIES
        coordinator = place.start("coordinate", REDIS_URL=valkey.url)
        thread.join(60)
    eventually(lambda: stored(place, "count(*)") == [many], "all is stored", 60)
    assert "reading resumes" in ear.run.err
    ear.end()
    coordinator.end().succeeded()


def test_while_redis_is_away_no_more_is_read_than_the_spool_holds(
    place: Place, valkey: RunningServer
) -> None:
    ear = Ear(place, "--json", REDIS_URL=valkey.url, LISTEN_SEVERAL=1, LISTEN_SPOOL_BYTES=2_000_000)
    valkey.kill()
    before = ear.memory
    large = [a_packet(n, "x" * 10_000) for n in range(1, 3001)]  # 30 MB; sockets alone hold a few
    with sending(b"".join(large), ear) as thread:
        ear.run.says("Redis is away")
        time.sleep(1)
        assert thread.is_alive()
        assert ear.memory - before < 12_000_000
        valkey.start()
    eventually(lambda: valkey.client.xlen(KEY) == 3000, "all is in the stream", 60)
    figures = ear.end()
    assert (figures["taken"], figures["waiting"]) == (3000, 0)


# --- The end ----------------------------------------------------------------------------------------------


def test_told_to_end_it_finishes_what_it_has_begun(place: Place, valkey: RunningServer) -> None:
    ear = Ear(place, "--json", REDIS_URL=valkey.url, LISTEN_CONNECTIONS=2, LISTEN_ACKNOWLEDGE="stream")
    packet = a_packet(1)
    with ear.line() as half, ear.line() as silent, ear.line() as at_the_door:
        half.sendall(packet[:10])
        at_the_door.sendall(a_packet(2))
        at_the_door.shutdown(socket.SHUT_WR)
        eventually(lambda: ear.has_read(half) and ear.has_read(silent), "both have places")
        ear.run.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        half.sendall(packet[10:])
        half.shutdown(socket.SHUT_WR)
        assert everything_of(half) == b"OK\n"
        assert everything_of(at_the_door) == b"OK\n"
        assert everything_of(silent) == b""
    ear.run.wait().succeeded()
    assert json.loads(ear.run.out)["taken"] == 2
    assert {check.code for check in in_stream(valkey)} == {1, 2}


def test_it_does_not_wait_for_those_that_say_nothing(place: Place, valkey: RunningServer) -> None:
    ear = Ear(place, REDIS_URL=valkey.url, LISTEN_SEVERAL=1, LISTEN_SECONDS=60)
    with ear.line() as silent, ear.line() as done:
        done.sendall(a_packet(1))
        eventually(lambda: in_stream(valkey), "it is read")
        ear.end()
        assert everything_of(silent) == b""


def test_a_second_signal_ends_it_at_once(place: Place, valkey: RunningServer) -> None:
    ear = Ear(place, REDIS_URL=valkey.url, LISTEN_SECONDS=60)
    with ear.line() as line:
        line.sendall(b"0000")
        eventually(lambda: ear.has_read(line), "it has begun")
        ear.run.process.send_signal(signal.SIGINT)
        eventually(lambda: not ear.lets_in(), "it was told to end")
        assert ear.run.process.poll() is None
        ear.run.end(signal.SIGINT, 40).refused("second signal: ending at once", code=1)


def test_what_does_not_reach_redis_at_the_end_is_told(
    valkey: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience: None
) -> None:
    monkeypatch.setattr(listening, "LAST_SECONDS", 0.3)
    with within(valkey, tmp_path) as inner:
        inner.send(a_packet(1))
        eventually(lambda: in_stream(valkey), "it is up")
        valkey.kill()
        inner.send(a_packet(2))
        eventually(lambda: "Redis is away" in inner.log, "it has heard")
    assert inner.figures["waiting"] == 1
    valkey.start()


# --- The log ----------------------------------------------------------------------------------------------


class Inner:
    """A listener in a thread of this process, for what only constants decide."""

    def __init__(self, server: RunningServer, folder: Path, lines: Lines, **given: Any) -> None:
        self.figures: dict[str, Any] = {}
        self._lines = lines
        self._settings = Settings()
        self._settings.setmodule("settings.base")
        self._settings.update({"REDIS_URL": server.url, "VAR_DIR": str(folder), "LISTEN_PORT": 0, **given})
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._work()))
        self._thread.start()

    @property
    def log(self) -> str:
        return self._lines.text

    async def _work(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        self.figures = await listening.listen(self._settings, options.read(self._settings), self._stop)

    def send(self, packet: bytes) -> None:
        eventually(lambda: "listening on" in self.log, "it listens")
        found = re.search(r"port (\d+)", self.log)
        assert found
        with socket.create_connection(("127.0.0.1", int(found[1]))) as line:
            line.sendall(packet)

    def end(self) -> None:
        self._ready.wait(60)
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)
        assert not self._thread.is_alive()


class Lines(logging.Handler):
    """What the listener's log says."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text += record.getMessage() + "\n"


@contextmanager
def within(server: RunningServer, folder: Path, **given: Any) -> Iterator[Inner]:
    logger, lines = logging.getLogger("listener"), Lines()
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    inner = Inner(server, folder, lines, **given)
    try:
        yield inner
    finally:
        inner.end()
        logger.removeHandler(lines)


def test_a_line_a_minute(
    valkey: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience: None
) -> None:
    monkeypatch.setattr(listening, "TELL_SECONDS", 0.5)
    with within(valkey, tmp_path) as inner:
        inner.send(a_packet(1))
        inner.send(a_packet(1, status=999))
        inner.send(b"rubbish")
        eventually(lambda: "1 packets taken, 2 refused" in inner.log, "the line comes")
        eventually(lambda: "0 packets taken, 0 refused in" in inner.log, "and another")
    assert re.search(
        r"1 packets taken, 2 refused \((status 1, length 1|length 1, status 1)\) in 0 s; 0 connections, "
        r"0 records wait for Redis",
        inner.log,
    )


# --- The spool --------------------------------------------------------------------------------------------


def test_what_redis_refuses_waits_and_the_rest_does_not_come_twice(valkey: RunningServer) -> None:
    """Half of a round trip is refused (no memory): the other half is not sent again."""

    async def work() -> tuple[int, int]:
        settings = Settings({"REDIS_URL": valkey.url})
        client = connection.connect(settings)
        spool = Spool(client, "lt", most_bytes=10_000, most_records=1000)
        used = int(valkey.client.info("memory")["used_memory"])
        valkey.client.config_set("maxmemory", used + 2_000_000)
        sent = spool.put([{b"v": b"1", b"n": b"%d" % n, b"x": b"x" * 50_000} for n in range(100)])
        assert not spool.open.is_set()
        working = asyncio.create_task(spool.work())
        await asyncio.sleep(0.5)
        before = len(spool)
        assert not sent.done()
        valkey.client.config_set("maxmemory", 0)
        await sent
        assert spool.open.is_set()
        spool.end()
        await working
        await client.aclose()
        return before, len(spool)

    before, after = asyncio.run(work())
    assert 0 < before < 100
    assert after == 0
    numbers = [int(fields[b"n"]) for _, fields in valkey.client.xrange(KEY)]
    assert sorted(numbers) == list(range(100))


# --- The table --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_check_is_a_row_once(kind: str, make_database: MakeDatabase) -> None:
    engine = open_database(make_database(kind))
    migrate(engine)
    full = Check(
        agent="packets-7",
        run="r",
        seq=2**63 - 1,
        crawler=10**18 - 1,
        code=0,
        checked_at=-1,
        status=-14,
        digest="a" * 32,
        site="https://example.org",
        path="/\ud55c\0",
        latency_ms=2**31 - 1,
        more=["", "\ud55c|"],
    )
    bare = Check(crawler=7, code=1, checked_at=5, status=200, digest="b" * 32)
    batch = [Stored(f"{n}-0", record) for n, record in enumerate((full, bare, full))]
    for _ in range(2):
        with transaction(engine) as db:
            assert store(db, batch) == Counts(checks=3)
    with transaction(engine) as db:
        rows = [tuple(row)[1:] for row in db.execute(select(checks).order_by(checks.c.digest))]
        assert not db.execute(text("select 1 from pages union select 1 from sites")).first()
    assert [row[0] for row in rows] == [10**18 - 1, 7]
    named = dict(zip([column.name for column in checks.columns][1:], rows[0], strict=True))
    assert (named["run"], named["seq"], named["url"]) == ("r", 2**63 - 1, "https://example.org/\ud55c")
    assert json.loads(named["more"]) == ["", "\ud55c|"]
    assert rows[1][1:] == (None, None, 1, 5, 200, *[None] * 5, "b" * 32)
    engine.dispose()


# --- The client -------------------------------------------------------------------------------------------


def test_lines_become_packets() -> None:
    lines = ["1 42 200  20200101120000\n", "\n", "1 43 -1 20200101120000 url=https://example.org/a|b x\n"]
    assert list(packets_of(lines)) == [
        join(["1", "42", "200", "20200101120000"]),
        join(["1", "43", "-1", "20200101120000", "url=https://example.org/a|b", "x"]),
    ]
    assert [packet.rpartition(b"||")[2] for packet in packets_of(lines, "r")] == [b"seq=1", b"seq=2"]


@pytest.mark.parametrize("several", [False, True], ids=["one each", "several"])
@pytest.mark.parametrize("acknowledged", [False, True], ids=["unanswered", "acknowledged"])
def test_the_clients_command(
    place: Place, valkey: RunningServer, *, several: bool, acknowledged: bool
) -> None:
    ear = Ear(
        place,
        REDIS_URL=valkey.url,
        LISTEN_SEVERAL=int(several),
        LISTEN_ACKNOWLEDGE="stream" if acknowledged else "never",
    )
    lines = place.folder / "checks.txt"
    lines.write_text(
        "".join(f"1 {code} 200 20200101120000\n" for code in range(450)) + "1 x 200 20200101120000\n"
    )
    flags = [*["--several"] * several, *["--acknowledged"] * acknowledged]
    command = [sys.executable, "-m", "crawler.status.packets", str(lines), "--run", "m", *flags]
    ended = warm.run(
        [*command, "--port", str(ear.port)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.stdout, ended.returncode) == (
        ("451 packets sent, 1 refused\n", 1) if acknowledged else ("451 packets sent, 0 refused\n", 0)
    )
    assert ended.stderr == (
        "refused: code is 'x'; expected an integer of at most 18 digits\n" if acknowledged else ""
    )
    eventually(lambda: valkey.client.xlen(KEY) == 451, "all is judged")
    assert sorted((check.code, check.run, check.seq) for check in in_stream(valkey)) == [
        (code, "m", code + 1) for code in range(450)
    ]
    ear.end()


def test_a_client_that_reaches_nobody(place: Place) -> None:
    command = [sys.executable, "-m", "crawler.status.packets", "-", "--port", "1", "--seconds", "0.2"]
    ended = warm.run(
        command,
        cwd=ROOT,
        input="1 2 200 20200101120000\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("0 packets sent, 0 refused, then: ")


# --- Killed -----------------------------------------------------------------------------------------------


class Monitor(threading.Thread):
    """A crawler that sends numbered packets and keeps which of them were acknowledged; goes on until all are."""

    def __init__(self, crawler: int, many: int, port: int) -> None:
        super().__init__()
        self.acknowledged: set[int] = set()
        self.error: BaseException | None = None
        self._packets = [a_packet(n, "run=r", f"seq={n}", crawler=crawler) for n in range(many)]
        self._client = Client("127.0.0.1", port, acknowledged=True, several=True, seconds=60)

    def run(self) -> None:
        try:
            for start in range(0, len(self._packets), 50):
                assert not any(self._client.send(self._packets[start : start + 50]))
                self.acknowledged |= set(range(start, min(start + 50, len(self._packets))))
                time.sleep(0.01)
        except BaseException as error:
            self.error = error
        finally:
            self._client.close()


def drill(
    place: Place, server: RunningServer, database: str, *, kills: int, many: int, redis_too: bool
) -> None:
    """Kill the listener at random moments, and the server too, while crawlers send; then compare as sets."""
    rng = random.Random(11)
    given = {
        "REDIS_URL": server.url,
        "LISTEN_SEVERAL": 1,
        "LISTEN_ACKNOWLEDGE": "disk" if redis_too else "stream",
    }
    ear = Ear(place, **given)
    coordinator = place.start("coordinate", REDIS_URL=server.url, DATABASE_URL=database, BATCH_SECONDS=0.1)
    monitors = [Monitor(crawler, many, ear.port) for crawler in (1, 2, 3)]
    for monitor in monitors:
        monitor.start()
    killed = 0
    while killed < kills and any(monitor.is_alive() for monitor in monitors):
        time.sleep(rng.uniform(0.05, 0.4))
        ear.run.end(signal.SIGKILL)
        killed += 1
        if redis_too and killed % 3 == 0:
            server.kill()
            server.start()
        seen = {monitor: set(monitor.acknowledged) for monitor in monitors}
        ear = Ear(place, **{**given, "LISTEN_PORT": ear.port})
        assert all(seen[monitor] <= monitor.acknowledged for monitor in monitors)
    for monitor in monitors:
        monitor.join(120)
        assert not monitor.is_alive()
        assert monitor.error is None, monitor.error
    assert killed == kills
    ear.end()
    eventually(lambda: not server.client.xlen(KEY), "all is stored", 60)
    coordinator.end().succeeded()
    engine = open_database(database)
    with transaction(engine) as db:
        rows = Counter(map(tuple, db.execute(text("select crawler, seq from checks"))))
        assert not db.execute(text("select reason from dead_letters")).all()
    engine.dispose()
    acknowledged = {
        (number, seq) for number, monitor in enumerate(monitors, 1) for seq in monitor.acknowledged
    }
    assert acknowledged == {(number, seq) for number in (1, 2, 3) for seq in range(many)}
    assert set(rows) == acknowledged
    assert set(rows.values()) == {1}


def test_killed_it_loses_nothing_that_was_acknowledged(
    place: Place, valkey: RunningServer, make_database: MakeDatabase
) -> None:
    drill(place, valkey, make_database("sqlite"), kills=3, many=8_000, redis_too=False)


@pytest.mark.drill
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_killed_often_and_redis_with_it(
    kind: str, place: Place, valkey: RunningServer, make_database: MakeDatabase
) -> None:
    drill(place, valkey, make_database(kind), kills=20, many=50_000, redis_too=True)
