"""Sites' health in the tables, on every kind of database, and the hooks that hear of its changes."""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import Engine, delete, insert, select

from crawler.coordinator.notify import Hooks, turn_key
from crawler.options import OptionError, Options
from crawler.options import read as read_options
from crawler.records import Health, OperatorCommand, Record, SiteFound, SiteHealth, hash64
from crawler.reports import Crawl, status
from crawler.store.database import transaction
from crawler.store.tables import health, health_changes, sites
from crawler.store.write import Stored, store
from tests.conftest import OpenTables
from tests.databases import KINDS
from tests.servers import RunningServer, eventually, start_valkey

SITE = "https://a.example"
DAMPING = 1800.0
every_kind = pytest.mark.parametrize("kind", KINDS)


def check(at: int, word: SiteHealth, site: str = SITE, seq: int = 0, **more: Any) -> Health:
    status = {"normal": 200, "delayed": 503, "error": 500, "disconnected": -2}[word]
    given = {"status": status, "agent": "h-1", "run": "r", "seq": seq or at} | more
    return Health(site=site, checked_at=at, health=word, **given)


def put(engine: Engine, *records: Record, damping: float = DAMPING) -> None:
    batch = [Stored(f"{n + 1}-0", record) for n, record in enumerate(records)]
    with transaction(engine) as connection:
        store(connection, batch, damping_seconds=damping)


def asked(engine: Engine, *columns: Any) -> list[tuple[Any, ...]]:
    with transaction(engine) as connection:
        return [tuple(row) for row in connection.execute(select(*columns))]


def course(engine: Engine, site: str = SITE) -> tuple[Any, ...]:
    found = asked(
        engine, sites.c.site, sites.c.health, sites.c.health_since, sites.c.health_at, sites.c.health_status
    )
    return next(rest for name, *rest in found if name == site)  # type: ignore[return-value]


def changes(engine: Engine) -> list[tuple[Any, ...]]:
    columns = (health_changes.c.seen_at, health_changes.c.was, health_changes.c.now, health_changes.c.since)
    return sorted(asked(engine, *columns))


# --- Tables -----------------------------------------------------------------------------------------------


@every_kind
def test_a_check_is_a_row_of_the_history_and_the_sites_course(kind: str, filled: OpenTables) -> None:
    engine = filled(kind)
    whole = check(
        5_000,
        "delayed",
        status=200,
        path="/a?b=1",
        pages=3,
        tries=2,
        seen_by="traffic",
        latency_ms=3_100,
        connect_ms=20,
        head_ms=3_080,
        body_ms=7,
        address="192.0.2.7",
        error="late\0",
    )
    put(engine, whole, check(6_000, "normal", "https://b.example"))
    row = next(row for row in asked(engine, health) if row.count(5_000))  # type: ignore[arg-type]
    assert row[1:] == (
        *("h-1", "r", 5_000, hash64(SITE), 5_000, "delayed", 200, "/a?b=1", 3, 2, "traffic"),
        *(3_100, 20, 3_080, 7, "192.0.2.7", "late"),
    )
    assert course(engine) == ["delayed", 5_000, 5_000, 200]
    assert changes(engine) == [(5_000, "normal", "delayed", 5_000)]


@every_kind
def test_since_when_is_kept_while_it_stays_so(kind: str, filled: OpenTables) -> None:
    engine = filled(kind)
    put(engine, check(1_000, "normal"), check(2_000, "error"))
    put(engine, check(3_000, "error", status=502))
    put(engine, check(4_000, "error", status=503), check(5_000, "error", status=500))
    assert course(engine) == ["error", 2_000, 5_000, 500]
    assert changes(engine) == [(2_000, "normal", "error", 2_000)]


@every_kind
def test_the_same_checks_again_late_and_mixed_add_nothing_and_undo_nothing(
    kind: str, filled: OpenTables
) -> None:
    engine = filled(kind)
    words: list[SiteHealth] = ["normal", "disconnected", "normal", "error", "error", "normal"]
    batch = [
        check((n + 1) * 7_200_000, word, site)
        for n, word in enumerate(words)
        for site in (SITE, "https://b.example")
    ]
    batch = [msgspec.structs.replace(one, seq=n) for n, one in enumerate(batch)]
    put(engine, *batch)
    before = (asked(engine, health), course(engine), changes(engine))
    assert len(before[0]) == 12
    assert course(engine)[0] == "normal"
    assert [row[2] for row in before[2]] == ["disconnected"] * 2 + ["normal"] * 2 + ["error"] * 2 + [
        "normal"
    ] * 2
    for seed in range(3):
        dice = random.Random(seed)
        put(engine, *dice.sample(batch, len(batch)))
        for one in dice.sample(batch, 4):
            put(engine, one)
    assert (asked(engine, health), course(engine), changes(engine)) == before
    put(engine, check(1, "error", seq=77))
    assert len(asked(engine, health)) == 13
    assert (course(engine), changes(engine)) == before[1:], "a late one is history alone"


@every_kind
def test_checks_in_whatever_batches_give_the_same_course(kind: str, filled: OpenTables) -> None:
    engine = filled(kind)
    dice = random.Random(5)
    words: list[SiteHealth] = [dice.choice(["normal", "normal", "error", "delayed"]) for _ in range(60)]
    made = [check(n * 60_000, word, seq=n + 1) for n, word in enumerate(words)]
    put(engine, *made)
    other = [msgspec.structs.replace(one, site="https://b.example", agent="h-2") for one in made]
    while other:
        cut = dice.randint(1, 5)
        put(engine, *other[:cut])
        other = other[cut:]
    assert course(engine) == course(engine, "https://b.example")
    told = asked(engine, health_changes.c.site, health_changes.c.seen_at, health_changes.c.now)
    by_site = [{row[1:] for row in told if row[0] == site} for site in (SITE, "https://b.example")]
    assert by_site[0] == by_site[1]
    assert len(by_site[0]) >= 2


@every_kind
def test_two_writers_at_once_miss_no_change_and_make_none_twice(kind: str, filled: OpenTables) -> None:
    engine = filled(kind)
    put(engine, check(1, "normal"), check(1, "normal", "https://b.example", seq=2))
    failed: list[BaseException] = []

    def writer(number: int) -> None:
        # Each sees an outage of its own clock's seconds: whatever the order, some words change.
        try:
            for n in range(20):
                at = 1_000_000 * (n + 1)
                word: SiteHealth = "error" if n % 2 else "normal"
                some = [
                    check(at, word, site, seq=n + 1, agent=f"w-{number}-{site}")
                    for site in (SITE, "https://b.example")
                ]
                put(engine, *some, damping=0.0)
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=writer, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    for site in (SITE, "https://b.example"):
        found = asked(
            engine,
            health_changes.c.seen_at,
            health_changes.c.was,
            health_changes.c.now,
            health_changes.c.site,
        )
        told = sorted(row[:3] for row in found if row[3] == site)
        assert len({at for at, *_ in told}) == len(told), "one change for one moment"
        assert [was for _, was, _ in told] == ["normal", *[now for *_, now in told[:-1]]], "no gap"
    assert course(engine)[0] == "error"


@every_kind
def test_a_forgotten_sites_health_is_gone_too(kind: str, filled: OpenTables) -> None:
    engine = filled(kind)
    put(engine, check(1_000, "error"), check(1_000, "error", "https://b.example", seq=2))
    put(engine, OperatorCommand(site=SITE, ordered_at=9, order="forget"))
    assert asked(engine, health.c.site_id) == [(hash64("https://b.example"),)]
    assert asked(engine, health_changes.c.site) == [("https://b.example",)]


# --- Hooks ------------------------------------------------------------------------------------------------


NOT_HTTP = 0


class Receiver:
    """A webhook that answers what it is told to, and keeps what was posted."""

    def __init__(self) -> None:
        self.answers: list[int] = []  # of the next posts; then 204
        self.got: list[dict[str, Any]] = []
        self.led_astray = False  # a redirect was followed
        self.look: Callable[[], int] = lambda: 0  # at each post
        self.looks: list[int] = []  # what came of it
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                answer = receiver.answers.pop(0) if receiver.answers else 204
                if answer == NOT_HTTP:
                    self.wfile.write(b"SSH-2.0-OpenSSH_9.2\r\n")
                    return
                if answer < 300:
                    receiver.got.append(json.loads(body))
                    receiver.looks.append(receiver.look())
                self.send_response(answer)
                if 300 <= answer < 400:
                    self.send_header("Location", "/elsewhere")
                self.end_headers()

            def do_GET(self) -> None:
                receiver.led_astray = True
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/told"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A webhook."""
    made = Receiver()
    yield made
    made.close()


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server for the turns."""
    server = start_valkey(tmp_path_factory.mktemp("valkey"))
    yield server
    server.stop()


def told(engine: Engine) -> list[bool]:
    return [at is not None for (at,) in asked(engine, health_changes.c.told_at)]


def options_with(**given: Any) -> Options:
    from scrapy.settings import Settings

    made = Settings()
    made.setmodule("settings.base")
    made.setdict({"STATUS_HOOK_TIMEOUT_SECONDS": 5, **given})
    return read_options(made)


@every_kind
def test_every_hook_hears_of_every_change_in_order(
    kind: str, filled: OpenTables, receiver: Receiver, valkey: RunningServer, tmp_path: Path
) -> None:
    engine = filled(kind)
    kept = tmp_path / "kept"
    refused = check(2_000, "disconnected", error="connect to 192.0.2.1 port 80 failed: Connection refused")
    put(engine, check(1_000, "normal"), refused, check(3_000, "normal"))
    script = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read() + chr(10))"
    command = f"{sys.executable} -c \"{script}\" '{kept}'"
    hooks = Hooks(valkey.client, options_with(STATUS_WEBHOOK=receiver.url, STATUS_COMMAND=command), "one")
    hooks.start(engine)
    eventually(lambda: all(told(engine)), "both changes are told")
    put(engine, check(9_000_000, "error", error="ORA-00942"))
    eventually(lambda: len(receiver.got) == 3, "the third one")
    eventually(lambda: all(told(engine)), "the third one is noted")
    hooks.end()
    assert [(one["was"], one["now"], one["why"]) for one in receiver.got] == [
        ("normal", "disconnected", "refused"),
        ("disconnected", "normal", "HTTP 200"),
        ("normal", "error", "ORA-00942"),
    ]
    assert receiver.got[2] == {
        **receiver.got[2],
        "id": "h-1/r/9000000",
        "site": SITE,
        "since": 9_000_000,
        "seen_at": 9_000_000,
        "status": 500,
    }
    assert [json.loads(line) for line in kept.read_text().splitlines()] == receiver.got
    assert valkey.client.get(turn_key("lt")) is None


def test_a_hook_that_fails_is_asked_again_and_holds_up_no_other(
    filled: OpenTables, receiver: Receiver, valkey: RunningServer, tmp_path: Path
) -> None:
    engine = filled("sqlite")
    receiver.answers = [500, 429, 404]
    gate = tmp_path / "gate"
    put(engine, check(1_000, "error"), check(2_000, "normal"))
    script = "import sys, os; sys.exit(not os.path.exists(sys.argv[1]))"
    command = f"{sys.executable} -c '{script}' {gate}"
    hooks = Hooks(valkey.client, options_with(STATUS_WEBHOOK=receiver.url, STATUS_COMMAND=command), "one")
    hooks.start(engine)
    # 500 and 429 pass; what is answered 404 is refused for good, and the next change is told.
    eventually(lambda: len(receiver.got) == 1, "the second change")
    assert receiver.got[0]["now"] == "normal"
    assert told(engine) == [False, False], "the command has not heard of them"
    gate.touch()
    eventually(lambda: told(engine) == [True, True], "the command heard of them")
    hooks.end()
    assert len(receiver.got) == 1, "the webhook heard of none twice"


def test_more_changes_than_are_told_at_a_time_wait_for_a_dead_hook_alone(
    filled: OpenTables,
    receiver: Receiver,
    valkey: RunningServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("crawler.coordinator.notify.CHANGES_AT_A_TIME", 2)
    engine = filled("sqlite")
    put(engine, *(check(n * 1_000, "normal" if n % 2 else "error") for n in range(1, 8)), damping=0.001)
    many = len(changes(engine))
    assert many > 4
    settings = {"STATUS_WEBHOOK": receiver.url, "STATUS_COMMAND": "false"}
    hooks = Hooks(valkey.client, options_with(**settings), "one")
    with caplog.at_level("INFO", logger="coordinator"):
        hooks.start(engine)
        eventually(lambda: len(receiver.got) == many, "the webhook heard of all")
        hooks.end()
    lines = [one.getMessage() for one in caplog.records if one.getMessage().startswith(SITE)]
    assert len(lines) == many
    assert told(engine) == [False] * many, "the command has heard of none"
    # Whose hook is no more waits for nobody.
    hooks = Hooks(valkey.client, options_with(STATUS_WEBHOOK=receiver.url), "two")
    hooks.start(engine)
    eventually(lambda: all(told(engine)), "nothing waits")
    hooks.end()
    assert len(receiver.got) == many


def test_a_hook_keeps_the_others_waiting_for_one_change_at_a_time(
    filled: OpenTables, receiver: Receiver, valkey: RunningServer, tmp_path: Path
) -> None:
    engine, heard = filled("sqlite"), tmp_path / "heard"
    put(engine, *(check(n, "error", f"https://{n}.example", seq=n) for n in range(1, 9)))
    receiver.look = lambda: len(heard.read_text())
    command = f"sh -c 'printf x >> {heard}'"
    hooks = Hooks(valkey.client, options_with(STATUS_WEBHOOK=receiver.url, STATUS_COMMAND=command), "one")
    hooks.start(engine)
    eventually(lambda: all(told(engine)), "both heard of all")
    hooks.end()
    assert receiver.looks == list(range(1, 9)), "the command had heard of as many as the webhook"


def test_a_change_that_comes_to_light_behind_later_ones_is_told(
    filled: OpenTables, receiver: Receiver, valkey: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two coordinators, the one that began first may be the last to end its transaction."""
    monkeypatch.setattr("crawler.coordinator.notify.ALL_SECONDS", 0.1)
    engine = filled("sqlite")
    put(engine, *(check(n, "error", f"https://{n}.example", seq=n) for n in (1, 2)))
    with transaction(engine) as connection:
        first = connection.execute(select(health_changes).order_by(health_changes.c.id)).first()
        assert first is not None
        connection.execute(delete(health_changes).where(health_changes.c.id == first.id))
    hooks = Hooks(valkey.client, options_with(STATUS_WEBHOOK=receiver.url), "one")
    looks = valkey.client.info("commandstats")
    hooks.start(engine)
    eventually(lambda: looked_since(valkey, looks) > 4, "it has heard of the later one, and looked again")
    with transaction(engine) as connection:
        connection.execute(insert(health_changes), dict(first._mapping))
    eventually(lambda: all(told(engine)), "it heard of the first one too")
    hooks.end()
    assert [one["site"] for one in receiver.got] == ["https://2.example", "https://1.example"]


def test_tables_that_cannot_be_written_make_nobody_hear_again(
    filled: OpenTables, receiver: Receiver, valkey: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    engine = filled("sqlite")
    put(engine, check(1_000, "error"))
    with transaction(engine) as connection:
        connection.exec_driver_sql(
            "CREATE TRIGGER full BEFORE UPDATE ON health_changes BEGIN SELECT RAISE(ABORT, 'full'); END"
        )
    hooks = Hooks(valkey.client, options_with(STATUS_WEBHOOK=receiver.url), "one")
    looks = valkey.client.info("commandstats")
    with caplog.at_level("INFO", logger="coordinator"):
        hooks.start(engine)
        eventually(lambda: looked_since(valkey, looks) > 8, "it looked again and again")
        with transaction(engine) as connection:
            connection.exec_driver_sql("DROP TRIGGER full")
        eventually(lambda: all(told(engine)), "it is noted")
        hooks.end()
    assert len(receiver.got) == 1
    assert len([one for one in caplog.records if SITE in one.getMessage()]) == 1


def looked_since(valkey: RunningServer, before: dict[str, Any]) -> int:
    """How often a coordinator took or kept its turn."""
    now = valkey.client.info("commandstats")
    return int(now["cmdstat_set"]["calls"]) - int(before.get("cmdstat_set", {"calls": 0})["calls"])


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (NOT_HTTP, "STATUS_WEBHOOK sent no valid HTTP response"),
        *(
            (code, f"STATUS_WEBHOOK answered {code} and points at /elsewhere, which is not followed")
            for code in (301, 302, 303, 307, 308)
        ),
    ],
)
def test_a_webhook_that_answers_otherwise_is_asked_again(
    answer: int,
    words: str,
    filled: OpenTables,
    receiver: Receiver,
    valkey: RunningServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = filled("sqlite")
    receiver.answers = [answer]
    put(engine, check(1_000, "error"))
    hooks = Hooks(valkey.client, options_with(STATUS_WEBHOOK=receiver.url), "one")
    hooks.start(engine)
    eventually(lambda: all(told(engine)), "it was told")
    hooks.end()
    assert len(receiver.got) == 1
    assert not receiver.led_astray
    assert [one.getMessage() for one in caplog.records if one.getMessage().endswith(words)]


def test_a_status_that_says_nothing_is_told_at_length(
    filled: OpenTables, receiver: Receiver, valkey: RunningServer
) -> None:
    engine = filled("sqlite")
    put(engine, check(1_000, "disconnected", status=-13, error="an answer in 7 pieces"))
    hooks = Hooks(valkey.client, options_with(STATUS_WEBHOOK=receiver.url), "one")
    hooks.start(engine)
    eventually(lambda: all(told(engine)), "it was told")
    hooks.end()
    assert [one["why"] for one in receiver.got] == ["an answer in 7 pieces"]


def test_what_could_not_be_told_is_told_by_the_next_coordinator(
    filled: OpenTables, receiver: Receiver, valkey: RunningServer
) -> None:
    engine = filled("sqlite")
    put(engine, check(1_000, "error"))
    receiver.answers = [500] * 2
    first = Hooks(valkey.client, options_with(STATUS_WEBHOOK=receiver.url), "one")
    first.start(engine)
    eventually(lambda: len(receiver.answers) < 2, "it was tried")
    second = Hooks(valkey.client, options_with(STATUS_WEBHOOK=receiver.url), "two")
    second.start(engine)
    first.end()
    eventually(lambda: all(told(engine)), "it was told")
    second.end()
    assert len(receiver.got) == 1


def test_without_hooks_a_change_is_a_line_of_the_log(
    filled: OpenTables, valkey: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    engine = filled("sqlite")
    put(engine, check(1_000, "error"))
    hooks = Hooks(valkey.client, options_with(), "one")
    with caplog.at_level("INFO", logger="coordinator"):
        hooks.start(engine)
        eventually(lambda: all(told(engine)), "it was told")
        hooks.end()
    lines = [one.getMessage() for one in caplog.records if SITE in one.getMessage()]
    assert len(lines) == 1
    assert lines[0].startswith(f"{SITE} is error since 1970-01-01")
    assert lines[0].endswith("(HTTP 500), was normal")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("STATUS_ERROR_PATTERNS", "fine\n(", r"STATUS_ERROR_PATTERNS has '\('"),
        ("STATUS_COMMAND", "mail 'me", 'STATUS_COMMAND is "mail \'me"'),
        ("STATUS_WEBHOOK", "ftp://x.example/", "STATUS_WEBHOOK is 'ftp://x.example/'"),
        ("STATUS_TRIES", "0", "STATUS_TRIES is '0'"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(name: str, value: str, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        options_with(**{name: value})


# --- The report -------------------------------------------------------------------------------------------

MINUTE, DAY = 60_000, 86_400_000


@every_kind
def test_the_report_tells_who_is_ill_how_often_sites_answered_and_how_fast(
    kind: str, filled: OpenTables
) -> None:
    engine = filled(kind)
    assert status.text(status.figures(crawl_of(engine))).startswith("status: no site was checked yet")
    now = time.time_ns() // 1_000_000
    put(engine, SiteFound(site="https://never.example", found_at=1))
    # A hundred checks today of which ten went wrong, and as many good ones six days ago; one before the windows.
    today = [
        check(now - n * MINUTE, "error" if n < 10 else "normal", seq=n + 1, latency_ms=n + 1)
        for n in range(100)
    ]
    before = [check(now - 6 * DAY - n * MINUTE, "normal", seq=200 + n, latency_ms=1_000) for n in range(100)]
    put(engine, *before, *today, check(now - 8 * DAY, "error", seq=900))
    put(engine, check(now - 5 * MINUTE, "disconnected", "https://b.example", seq=901))
    found = status.figures(crawl_of(engine))
    assert (found["sites"], found["never_checked"]) == (2, 1)
    assert found["by_health"] == {"disconnected": 1, "error": 1, "delayed": 0, "normal": 0}
    worst, ill = status.rows(found)
    assert (worst["site"], worst["why"], worst["p50_ms_7d"]) == ("https://b.example", "refused", None)
    assert (ill["since"], ill["checked_at"]) == (now - 9 * MINUTE, now)
    assert (ill["checks_1d"], ill["availability_1d"]) == (100, 0.9)
    assert (ill["p50_ms_1d"], ill["p95_ms_1d"], ill["p99_ms_1d"]) == (50, 95, 99)
    assert (ill["checks_7d"], ill["availability_7d"], ill["p99_ms_7d"]) == (200, 0.95, 1_000)
    said = status.text(found)
    assert "status of 2 sites: 1 disconnected, 1 error; 1 were never checked" in said
    assert f"{SITE}: HTTP 500" in said
    assert "lowest availability in 7 days:" in said
    assert "95.00% of 200 checks" in said


def test_the_report_tells_how_long_a_site_that_is_late_took(filled: OpenTables) -> None:
    engine = filled("sqlite")
    now = int(time.time() * 1000)
    put(engine, check(now - 9, "delayed", status=200, latency_ms=9_000, seq=1))
    put(engine, check(now, "delayed", status=200, latency_ms=3_140, seq=2))
    put(engine, check(now, "delayed", "https://b.example", seq=3, latency_ms=20))
    late, busy = sorted(status.rows(status.figures(crawl_of(engine))), key=lambda one: str(one["site"]))
    assert late["why"] == "HTTP 200 after 3.1 s, above STATUS_DELAY_SECONDS (3)"
    assert busy["why"] == "HTTP 503"


def crawl_of(engine: Engine) -> Crawl:
    from scrapy.settings import Settings

    return Crawl(engine, Settings(), options_with())
