"""Large tables are read stretch by stretch: the figures are those of the whole, and SQLite's log stays short."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event, func, select

from crawler.coordinator import retention
from crawler.coordinator.retention import WalCheckpoints
from crawler.records import Page, SiteFound, hash64, pack_links
from crawler.store import queries
from crawler.store.database import migrate, open_database, transaction
from crawler.store.queries import by_key, in_stretches, summary, turns_since
from crawler.store.tables import fetches, pages, sites
from crawler.store.write import Stored, store
from tests.conftest import MakeDatabase
from tests.databases import KINDS
from tests.servers import eventually

SITE = "https://a.example"
OUTCOMES = ("stored", "failed", "redirected")
DENIED = Page(
    site=SITE, path="/no", fetched_at=2_000, outcome="denied", status=-9, agent="h-1", run="r", seq=1
)


def turn(number: int, fetched_at: int) -> Page:
    status = 404 if number % 3 == 1 else 200
    given: dict[str, Any] = {"agent": "h-1", "run": "r", "size": 10, "title": "x" * 300}
    outcome: Any = OUTCOMES[number % 3]
    return Page(
        site=SITE,
        path=f"/{number}",
        fetched_at=fetched_at,
        seq=fetched_at,
        outcome=outcome,
        status=status,
        **given,
    )


def put(engine: Engine, turns: list[Page]) -> None:
    links = pack_links(map(str, range(50)))
    with transaction(engine) as connection:
        store(connection, [Stored("1-0", one, links) for one in turns])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("many", [0, 1, 6, 7])
def test_rows_by_their_key_are_those_of_the_whole(
    kind: str, many: int, make_database: MakeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_database(make_database(kind))
    migrate(engine)
    names = [f"https://{number}.example" for number in range(many)]
    with transaction(engine) as connection:
        store(connection, [Stored("1-0", SiteFound(site=name, found_at=1)) for name in names])
    asked = select(sites.c.site_id, sites.c.site)
    stretches = list(by_key(engine, asked, sites.c.site_id, 3))
    assert [len(rows) for rows in stretches] == [3] * (many // 3) + [many % 3] * (many % 3 > 0)
    assert [row.site for rows in stretches for row in rows] == sorted(names, key=hash64)
    monkeypatch.setattr(queries, "STRETCH_ROWS", 2)
    assert [row for rows in by_key(engine, asked, sites.c.site_id) for row in rows] == [
        row for rows in stretches for row in rows
    ]
    engine.dispose()


@pytest.mark.parametrize("kind", KINDS)
def test_figures_of_many_stretches_are_those_of_the_whole(
    kind: str, make_database: MakeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_database(make_database(kind))
    migrate(engine)
    for start in range(0, 300, 60):
        put(engine, [turn(n, 1_000 + n) for n in range(start, start + 60)])
    put(
        engine, [turn(n, 5_000 + n) for n in range(0, 300, 50)]
    )  # some again: ids have gaps on two of the three
    put(engine, [DENIED])  # which was not fetched
    whole, since = summary(engine), turns_since(engine, 1_100)
    assert (whole["stored"], whole["failed"], whole["redirected"]) == (100, 100, 100)
    assert (whole["bytes"], whole["failed_by_status"]) == (1_000, {404: 100})
    assert (whole["first_fetch"], whole["last_fetch"]) == (1_001, 5_250)
    assert since == (206, 1_100, 5_250)
    with transaction(engine) as connection:  # and a hole
        connection.execute(pages.delete().where(pages.c.id.between(40, 199)))
    for rows in (7, 60, 1_000):
        monkeypatch.setattr(queries, "STRETCH_ROWS", rows)
        asked = select(func.count(), func.min(pages.c.id), func.max(pages.c.id))
        parts = [row for row in in_stretches(engine, pages, asked) if row[0]]
        with transaction(engine) as connection:
            assert sum(row[0] for row in parts) == connection.execute(select(func.count(pages.c.id))).scalar()
        assert [row[1] for row in parts] == sorted(row[1] for row in parts)
        assert max(row[0] for row in parts) <= rows
        assert turns_since(engine, 1_100) == since
    engine.dispose()


def test_an_empty_table_has_no_stretch(make_database: MakeDatabase) -> None:
    engine = open_database(make_database("sqlite"))
    migrate(engine)
    assert list(in_stretches(engine, fetches, select(func.count()))) == []
    assert turns_since(engine, 0) == (0, None, None)
    engine.dispose()


# --- beside a writer --------------------------------------------------------------------------------------

PAGES = 12_000
# The reader is slowed to some seconds for all pages, as on a table a hundred times as large.
STEPS_BETWEEN_RESTS, REST_SECONDS = 1_000, 0.008
# As many: each stretch then takes some hundredths of a second, as a real one does.
STRETCHES = 150
# Of the log, where it is carried over: a fiftieth of what a coordinator has, as the table is.
LOG_PAGES, PAGE_BYTES = 200, 8_192


@pytest.fixture
def slow_reader(tmp_path: Path) -> Iterator[Engine]:
    """An engine over many pages that reads slowly."""
    url = f"sqlite:///{tmp_path / 'crawl.db'}"
    engine = open_database(url)
    migrate(engine)
    for start in range(0, PAGES, 2_000):
        put(engine, [turn(n, 1_000 + n) for n in range(start, start + 2_000)])
    engine.dispose()
    slow = open_database(url)

    @event.listens_for(slow, "connect")
    def rest(connection: Any, _record: object) -> None:
        connection.set_progress_handler(lambda: time.sleep(REST_SECONDS), STEPS_BETWEEN_RESTS)

    yield slow
    slow.dispose()


@contextmanager
def writing(url: str) -> Iterator[threading.Event]:
    """A writer that goes on and on; what is given is set by whoever has seen it at work."""
    engine = open_database(url)

    @event.listens_for(engine, "connect")
    def carry_over_early(connection: Any, _record: object) -> None:
        connection.execute(f"PRAGMA wal_autocheckpoint={LOG_PAGES}")

    stop, wrote = threading.Event(), threading.Event()
    keeper = WalCheckpoints(engine, 2 * LOG_PAGES * PAGE_BYTES)

    def work() -> None:
        at = 1_000_000
        while not stop.is_set():
            put(engine, [turn(n, at + n) for n in range(100)])
            keeper.look()
            at += 100
            wrote.set()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        eventually(wrote.is_set, "the writer writes")
        yield wrote
    finally:
        stop.set()
        thread.join(timeout=60)
        engine.dispose()


def longest_log(engine: Engine, read: Callable[[], object]) -> tuple[int, float]:
    """The most bytes that the log had while this was read, and for how many seconds it was read."""
    log = Path(f"{engine.url.database}-wal")
    with transaction(engine) as connection:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    over = threading.Event()
    sizes = [0]

    def watch() -> None:
        while not over.wait(0.005):
            sizes.append(log.stat().st_size)

    watcher = threading.Thread(target=watch)
    with writing(str(engine.url)):
        watcher.start()
        began = time.monotonic()
        read()
        seconds = time.monotonic() - began
        over.set()
    watcher.join()
    return max(sizes), seconds


def test_a_report_beside_a_writer_leaves_the_log_short(
    slow_reader: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(queries, "STRETCH_ROWS", PAGES // STRETCHES)
    short, seconds = longest_log(slow_reader, lambda: summary(slow_reader))
    monkeypatch.setattr(queries, "STRETCH_ROWS", 10 * PAGES)
    long, _ = longest_log(slow_reader, lambda: summary(slow_reader))
    assert seconds > 1, "so quick that it shows nothing"
    assert long > 3 * short, f"in stretches {short:,} bytes, in one {long:,}"
    assert short < 60 * LOG_PAGES * PAGE_BYTES, f"{short:,} bytes"
