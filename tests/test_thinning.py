"""The history thinned: what is too old goes, by one coordinator at a time, and nobody waits for it."""

from __future__ import annotations

import time
from typing import Any

import pytest
from sqlalchemy import Engine, func, select, update

from crawler.coordinator import retention
from crawler.coordinator.retention import DAY_SECONDS, Retention, histories, turn_key
from crawler.records import Check, Health, Page, Visit
from crawler.store.database import open_database, transaction
from crawler.store.tables import checks, fetches, health_changes, pages, visits
from crawler.store.write import Stored, store
from tests.conftest import MakeDatabase, OpenTables
from tests.databases import KINDS
from tests.queue_driver import queue_options
from tests.servers import RunningServer, eventually
from tests.test_coordinator import drain, drained, make_coordinator, publish, working

SITE = "https://a.example"
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def small_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many stretches for few rows, and no pause between them."""
    monkeypatch.setattr(retention, "STRETCH_ROWS", 10)
    monkeypatch.setattr(retention, "IDLE_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(retention, "BUSY_SHARE", 1e9)


def turn(number: int, days_ago: float) -> Page:
    """A page's turn so many days ago."""
    at = int((time.time() - days_ago * DAY_SECONDS) * 1000)
    given: dict[str, Any] = {"site": SITE, "outcome": "stored", "status": 200, "agent": "h-1", "run": "r"}
    return Page(path=f"/{number}", fetched_at=at, seq=number, **given)


def ill(number: int, at: int) -> Health:
    """A check that finds a site of its own ill."""
    given: dict[str, Any] = {"status": 500, "agent": "h-1", "run": "r", "seq": number}
    return Health(site=f"https://{number}.example", checked_at=at, health="error", **given)


def put(engine: Engine, *turns: Page | Visit | Check | Health) -> None:
    with transaction(engine) as connection:
        store(connection, [Stored("1-0", one) for one in turns])


def left(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return sorted(connection.execute(select(fetches.c.seq)).scalars())


def thinning_of(valkey: RunningServer, name: str, fetches_days: float, **changes: float) -> Retention:
    options = queue_options(
        **{"fetches_days": fetches_days, "visits_days": 0.0, "health_days": 0.0, **changes}
    )
    return Retention(valkey.client, "lt", name, histories(options))


def steps(one: Retention, engine: Engine, many: int = 100) -> None:
    for _ in range(many):
        one.step(engine, busy=False)


@every_kind
def test_what_is_too_old_goes_and_the_pages_stay(
    kind: str, filled: OpenTables, valkey: RunningServer
) -> None:
    engine = filled(kind)
    put(engine, *(turn(n, 40 if n % 3 else 5) for n in range(1, 101)), *(turn(n, 5) for n in range(101, 121)))
    steps(thinning_of(valkey, "one", 30), engine)
    assert left(engine) == [n for n in range(1, 121) if n > 100 or not n % 3]
    with engine.connect() as connection:
        assert connection.execute(select(func.count(pages.c.id))).scalar() == 120


@every_kind
def test_the_newest_rows_are_never_looked_at(kind: str, filled: OpenTables, valkey: RunningServer) -> None:
    """There another coordinator writes; by the next walk they are no longer the newest."""
    engine = filled(kind)
    put(engine, *(turn(n, 40) for n in range(1, 31)))
    steps(thinning_of(valkey, "one", 30), engine)
    assert left(engine) == list(range(21, 31))


@every_kind
def test_one_coordinator_at_a_time(kind: str, filled: OpenTables, valkey: RunningServer) -> None:
    engine = filled(kind)
    put(engine, *(turn(n, 40) for n in range(1, 101)))
    one, two = (thinning_of(valkey, name, 30) for name in ("one", "two"))
    steps(one, engine, 3)
    assert len(left(engine)) == 70
    steps(two, engine)
    assert len(left(engine)) == 70, "it is the other's turn"
    assert valkey.client.get(turn_key("lt")) == b"one"
    assert 0 < valkey.client.pttl(turn_key("lt")) <= 60_000
    steps(one, engine)
    assert len(left(engine)) == 10
    assert valkey.client.get(turn_key("lt")) == b"done"
    assert 86_000_000 < valkey.client.pttl(turn_key("lt")) <= 86_400_000, "the next walk is tomorrow's"


def test_a_walk_whose_coordinator_died_is_begun_anew(filled: OpenTables, valkey: RunningServer) -> None:
    engine = filled("sqlite")
    put(engine, *(turn(n, 40) for n in range(1, 101)))
    dead = thinning_of(valkey, "dead", 30)
    steps(dead, engine, 3)
    valkey.client.delete(turn_key("lt"))  # as after its time
    steps(thinning_of(valkey, "next", 30), engine)
    assert left(engine) == list(range(91, 101))
    steps(dead, engine)
    assert valkey.client.get(turn_key("lt")) == b"done", "it has lost its turn, and knows"


@every_kind
def test_all_histories_are_walked_through_in_one_turn(
    kind: str, filled: OpenTables, valkey: RunningServer
) -> None:
    engine = filled(kind)
    now = time.time()
    seen = [
        Visit(
            site=SITE,
            hour=int(now / 3600) - (24 * 200 if n <= 50 else 0),
            pages=3,
            agent="h-1",
            run="r",
            seq=n,
        )
        for n in range(1, 101)
    ]
    asked = [
        Check(
            crawler=1, code=n, checked_at=int((now - 40 * DAY_SECONDS) * 1000), status=200, digest=f"{n:032x}"
        )
        for n in range(1, 101)
    ]
    put(engine, *(turn(n, 40) for n in range(1, 101)), *seen, *asked)
    steps(thinning_of(valkey, "one", 0, visits_days=180.0, checks_days=30.0), engine)
    with engine.connect() as connection:
        counts = [
            connection.execute(select(func.count(one.c.id))).scalar() for one in (fetches, visits, checks)
        ]
    assert counts == [100, 50, 10], "for ever; half a year; a month, but for the newest"
    assert valkey.client.get(turn_key("lt")) == b"done"


@every_kind
def test_changes_that_were_told_of_go_and_those_that_wait_stay(
    kind: str, filled: OpenTables, valkey: RunningServer
) -> None:
    engine = filled(kind)
    old = int((time.time() - 40 * DAY_SECONDS) * 1000)
    put(engine, *(ill(n, old + n) for n in range(1, 41)))
    with transaction(engine) as connection:
        many = connection.execute(select(func.count(health_changes.c.id))).scalar()
        assert many == 40
        told = health_changes.c.id % 2 == 0
        connection.execute(update(health_changes).where(told).values(told_at=old))
    steps(thinning_of(valkey, "one", 0, health_days=30.0), engine)
    with engine.connect() as connection:
        waits = connection.execute(select(health_changes.c.told_at).order_by(health_changes.c.id)).scalars()
        # But for the newest ten.
        assert [at is None for at in waits] == [True] * 15 + [n % 2 == 1 for n in range(31, 41)]


def test_no_days_mean_for_ever(filled: OpenTables, valkey: RunningServer) -> None:
    engine = filled("sqlite")
    put(engine, *(turn(n, 4_000) for n in range(1, 51)))
    steps(thinning_of(valkey, "one", 0), engine)
    assert len(left(engine)) == 50
    assert not valkey.client.exists(turn_key("lt"))


def test_an_empty_history_is_looked_at_and_left(filled: OpenTables, valkey: RunningServer) -> None:
    steps(thinning_of(valkey, "one", 30), filled("sqlite"))
    assert valkey.client.get(turn_key("lt")) == b"done"


@every_kind
def test_a_coordinator_thins_while_it_writes(
    kind: str, make_database: MakeDatabase, valkey: RunningServer
) -> None:
    url = make_database(kind)
    publish(valkey.client, *(turn(n, 40) for n in range(1, 201)))
    drain(valkey, url)
    valkey.client.delete(turn_key("lt"))  # as a day later
    engine = open_database(url)
    with working(make_coordinator(valkey.url, url, FETCHES_DAYS=30)):
        for start in range(201, 1_201, 50):
            publish(valkey.client, *(turn(n, 1) for n in range(start, start + 50)))
        eventually(drained(valkey), "all is stored")
        eventually(lambda: set(left(engine)) & set(range(1, 191)) == set(), "the old ones are gone")
    assert left(engine)[-1_000:] == list(range(201, 1_201))
    engine.dispose()
