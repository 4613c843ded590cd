"""Pages' lives in the tables, on every database: guarded steps, the same told twice, late, and out of order."""

from __future__ import annotations

import random
from typing import Any

import pytest
from sqlalchemy import Engine, select

from crawler.agent.frontier import Frontier
from crawler.coordinator import coordinator
from crawler.recheck.planner import PAGES_AT_A_TIME, read_asking
from crawler.reconcile.reopening import checkpoint_from_tables
from crawler.records import Answer, Health, Page, PageState, RecheckResult, Record, SiteEnded, pack_lastmods
from crawler.states import STATES, IllegalTransitionError, load_event
from crawler.store.database import transaction
from crawler.store.tables import fetches, pages
from crawler.store.write import Counts, Stored, store
from tests.conftest import OpenTables
from tests.databases import KINDS
from tests.life import Life, lived
from tests.queue_driver import queue_options
from tests.servers import RunningServer

SITE = "https://a.example"
every_kind = pytest.mark.parametrize("kind", KINDS)
DELAYS = (10.0, 100.0)


def loaded(at: int, path: str = "/", status: int = 200, **more: Any) -> Page:
    failed = status < 0 or status >= 400
    given: dict[str, Any] = {
        "outcome": "failed" if failed else "stored",
        "sha256": "" if failed else "ab" * 32,
    }
    given |= {"agent": "h", "run": "r", "seq": at, **more}
    return Page(site=SITE, path=path, fetched_at=at, status=status, **given)


def asked(
    at: int, before: PageState, answer: Answer, path: str = "/", status: int = 0, **more: Any
) -> RecheckResult:
    status = status or {"silent": 404, "delayed": 503}.get(answer, 200)
    given: dict[str, Any] = {"agent": "h", "run": "r", "seq": at, "work": "revive", **more}
    return RecheckResult(
        site=SITE, path=path, asked_at=at, before=before, answer=answer, status=status, **given
    )


def put(engine: Engine, *records: Record) -> Counts:
    with transaction(engine) as connection:
        return store(connection, [Stored(f"{n + 1}-0", one) for n, one in enumerate(records)], DELAYS)


def row(engine: Engine, path: str = "/") -> Any:
    with engine.connect() as connection:
        return connection.execute(select(pages).where(pages.c.url == SITE + path)).one()


def life(engine: Engine, path: str = "/") -> tuple[str, int, int | None, int | None]:
    found = row(engine, path)
    return found.state, found.fails, found.last_checked, found.next_check


@every_kind
def test_a_life_step_by_step(kind: str, filled: OpenTables) -> None:
    engine = filled(kind)
    steps: list[tuple[Record, tuple[str, int, int | None, int | None]]] = [
        (loaded(1_000, status=-2), ("no_response_1", 1, 1_000, 11_000)),
        (asked(12_000, "no_response_1", "delayed"), ("no_response_1", 1, 12_000, 22_000)),
        (asked(23_000, "no_response_1", "silent"), ("no_response_2", 2, 23_000, 123_000)),
        (asked(124_000, "no_response_2", "answers", status=200), ("init", 0, 124_000, None)),
        (loaded(130_000), ("visited", 0, 130_000, None)),
        (asked(140_000, "visited", "unchanged"), ("visited", 0, 140_000, None)),
        (asked(150_000, "visited", "changed"), ("init", 0, 150_000, None)),
        (loaded(151_000), ("visited", 0, 151_000, None)),
        (asked(160_000, "visited", "silent"), ("no_response_1", 1, 160_000, 170_000)),
        (loaded(165_000, status=-3), ("no_response_1", 1, 165_000, 170_000)),
        (asked(171_000, "no_response_1", "silent"), ("no_response_2", 2, 171_000, 271_000)),
        (asked(272_000, "no_response_2", "silent"), ("dead", 3, 272_000, None)),
        (loaded(300_000, status=404), ("dead", 3, 300_000, None)),
        (loaded(400_000), ("visited", 0, 400_000, None)),
    ]
    for record, expected in steps:
        assert put(engine, record).refused == 0
        assert life(engine) == expected, record
    # A second time, one by one, and all in one batch.
    final = row(engine)
    for record, _ in steps:
        put(engine, record)
    assert put(engine, *(record for record, _ in reversed(steps))).refused == 8
    assert row(engine) == final
    with engine.connect() as connection:
        assert len(connection.execute(select(fetches)).all()) == len(steps)


@every_kind
def test_a_page_that_answers_without_a_body_to_have_is_visited(kind: str, filled: OpenTables) -> None:
    engine = filled(kind)
    put(engine, loaded(1_000, status=-2), asked(12_000, "no_response_1", "answers", status=403))
    assert life(engine)[0] == "visited"
    put(engine, loaded(1_000, "/b", sha256="cd" * 32), asked(2_000, "visited", "silent", "/b"))
    put(engine, asked(13_000, "no_response_1", "answers", "/b"))
    assert life(engine, "/b")[0] == "visited", "its body is there"


@every_kind
def test_what_is_elsewhere_or_was_heard_of_since_is_left_alone(kind: str, filled: OpenTables) -> None:
    engine = filled(kind)
    put(engine, loaded(1_000, content_hash="1" * 32), asked(50_000, "visited", "silent"))
    before = row(engine)
    refused = [
        asked(60_000, "no_response_2", "silent"),  # it is not that far
        asked(60_000, "visited", "silent"),  # another agent asked the same
        asked(40_000, "no_response_1", "silent"),  # late
        asked(50_000, "no_response_1", "silent"),  # at the very same time
        asked(60_000, "no_response_1", "changed"),  # no such arrow
        asked(60_000, "init", "silent"),
        asked(60_000, "dead", "answers"),
        asked(60_000, "visited", "unchanged", "/nobody"),
    ]
    assert put(engine, *refused).refused == len(refused)
    assert row(engine) == before
    # A load that comes late gives its content, and no life.
    put(engine, loaded(40_000, content_hash="2" * 32, title="new"))
    found = row(engine)
    assert (found.title, found.fetched_at, found.last_changed) == ("new", 40_000, 40_000)
    assert life(engine) == ("no_response_1", 1, 50_000, 60_000)


@every_kind
def test_a_row_keeps_when_its_walk_loaded_it(kind: str, filled: OpenTables) -> None:
    engine = filled(kind)
    steps = [
        (loaded(1_000), 1_000, None),
        (loaded(2_000, work="recheck", sha256="cd" * 32), 2_000, 1_000),
        (loaded(3_000, work="recheck", status=500), 3_000, 1_000),
        (loaded(2_500), 3_000, 1_000),  # late: the row is of a newer load
        (loaded(4_000), 4_000, None),
        (loaded(5_000, error="odd"), 5_000, None),
        (loaded(6_000, work="revive"), 6_000, 5_000),
    ]
    for record, fetched_at, walked_at in steps:
        put(engine, record)
        assert (row(engine).fetched_at, row(engine).walked_at) == (fetched_at, walked_at)
    put(engine, loaded(1_000, "/b", work="recheck"))
    assert row(engine, "/b").walked_at == 0, "no walk loaded it"


@every_kind
def test_a_change_is_one_of_the_text(kind: str, filled: OpenTables) -> None:
    engine = filled(kind)
    one, two = "1" * 32, "2" * 32
    expected = [
        (loaded(1_000, content_hash=one, sha256="aa" * 32), None),
        (loaded(2_000, content_hash=one, sha256="bb" * 32), None),
        (loaded(3_000, content_hash=two), 3_000),
        (loaded(4_000, content_hash=two), 3_000),
        (loaded(5_000, status=503), 3_000),
        (
            loaded(6_000, content_hash=one),
            3_000,
        ),  # of what was before the failure nothing is there to compare with
    ]
    for record, changed in expected:
        put(engine, record)
        assert row(engine).last_changed == changed, record
    put(engine, loaded(1_000, "/b"), loaded(2_000, "/b", sha256="cd" * 32))
    put(engine, loaded(3_000, "/b", sha256="ef" * 32))
    assert row(engine, "/b").last_changed == 3_000, "where there is no text, of the bytes"


@every_kind
def test_any_order_any_batches_and_many_times_kill_nobody_before_three_failures(
    kind: str, filled: OpenTables
) -> None:
    """The rules of crawler.states, kept by the tables, whatever comes when; in the order of time they agree exactly."""
    engine = filled(kind)
    chance = random.Random(7)
    for number in range(12):
        path = f"/{number}"
        records, model = _random_life(chance, path)
        for record in records:
            put(engine, record)
        assert life(engine, path)[:2] == model
        shuffled = _random_life(chance, other := f"/other-{number}")[0]
        told = [*shuffled, *chance.choices(shuffled, k=6)]
        chance.shuffle(told)
        while told:
            some = [told.pop() for _ in range(min(len(told), chance.randint(1, 5)))]
            put(engine, *some)
        state, fails, *_ = life(engine, other)
        failures = {
            record.seq
            for record in shuffled
            if (isinstance(record, RecheckResult) and record.answer == "silent")
            or (isinstance(record, Page) and record.outcome == "failed")
        }
        assert state in STATES
        assert fails <= len(failures)
        if state == "dead":
            assert fails == 3


def _random_life(chance: random.Random, path: str) -> tuple[list[Record], tuple[str, int]]:
    """A page's records in the order of time, none of which is refused, and where they lead."""
    records: list[Record] = [loaded(1_000, path, status=chance.choice((200, -2)))]
    first = records[0]
    assert isinstance(first, Page)
    now = lived(Life("init"), load_event(first.outcome, first.status))
    has_body = first.outcome == "stored"
    at = 1_000
    for _ in range(12):
        at += chance.randint(1, 1_000)
        if chance.random() < 0.3:
            page = loaded(at, path, status=chance.choice((200, -2, 404)))
            now, has_body = lived(now, load_event(page.outcome, page.status)), page.outcome == "stored"
            records.append(page)
            continue
        answer: Answer = chance.choice(("silent", "silent", "answers", "changed", "unchanged", "delayed"))
        try:
            following = lived(now, answer, has_body=has_body)
        except IllegalTransitionError:
            continue
        records.append(asked(at, now.state, answer, path))
        now = following
    return records, now


# --- what follows from it: due times, askings, checkpoints ---


def test_what_falls_due_is_told_of_what_was_stored() -> None:
    records: list[Record] = [
        loaded(1_000, status=-2),
        loaded(500, "/b", status=404),
        loaded(700, "/c"),
        asked(9_000, "no_response_1", "silent"),
        loaded(1_000, "/d", status=-10),
        SiteEnded(site="https://b.example", ended_at=1, finished=True, published=1, known=1),
    ]
    due = coordinator.due_of(records, DELAYS, 50.0)
    assert due == ({SITE: 10_500}, {SITE: 50_700}, {}, {})
    assert coordinator.due_of(records, DELAYS, 0.0).recheck == {}
    again = coordinator.due_of(
        [asked(1_000, "visited", "changed"), asked(1_000, "visited", "unchanged", "/b")], DELAYS, 50
    )
    assert not any(again), "the delivery itself notes that pages are to be loaded again"
    said = loaded(2_000, "/map.xml", lastmods=pack_lastmods([(1, 1)]))
    assert coordinator.due_of([said], DELAYS, 50.0) == ({}, {SITE: 52_000}, {SITE: 2_000}, {})
    assert not any(coordinator.due_of([asked(1_000, "dead", "answers")], DELAYS, 0.0))
    looks = [
        Health(site=SITE, checked_at=at, health="normal", status=200, seen_by=by)
        for at, by in ((3_000, "traffic"), (2_000, "traffic"), (4_000, "check"))
    ]
    assert coordinator.due_of(looks, DELAYS, 0.0).seen == {SITE: 3_000}


def test_what_loading_saw_puts_off_a_check_that_has_a_time(valkey: RunningServer) -> None:
    given = queue_options(status_interval_seconds=10.0)
    key, others = "lt:{0}:wake:status", {"https://a.example": 5_000.0, "https://b.example": 90_000.0}
    valkey.client.zadd(key, others)
    sites = (*others, "https://unwatched.example")
    looks = [
        Health(site=site, checked_at=7_000, health="normal", status=200, seen_by="traffic") for site in sites
    ]
    coordinator.tell_due(valkey.client, given.key_prefix, given, looks)
    assert valkey.client.zrange(key, 0, -1, withscores=True) == [
        (b"https://a.example", 17_000.0),
        (b"https://b.example", 90_000.0),
    ]


@every_kind
def test_an_asking_has_the_pages_that_are_due_and_the_time_of_the_next(kind: str, filled: OpenTables) -> None:
    engine = filled(kind)
    put(
        engine,
        loaded(1_000, "/visited", etag='"1"', last_modified="then", size=7, depth=2),
        loaded(2_000, "/silent", status=-2),
        loaded(3_000, "/later", status=-2),
        loaded(90_000, "/fresh"),
        loaded(3_000, "/forbidden", outcome="denied", status=-9, sha256=""),
    )
    given = queue_options(
        recheck_interval_seconds=50.0, revive_first_seconds=10.0, revive_second_seconds=100.0
    )
    revive = read_asking(engine, SITE, "revive", given, 12_000)
    assert [(page.path, page.state, page.loaded) for page in revive.pages] == [
        ("/silent", "no_response_1", False)
    ]
    assert revive.next_due_ms == 13_000
    recheck = read_asking(engine, SITE, "recheck", given, 51_000)
    (page,) = recheck.pages
    assert page == type(page)("/visited", "visited", 2, True, 7, '"1"', "then", bytes.fromhex("ab" * 8))
    assert recheck.next_due_ms == 140_000
    nothing = read_asking(engine, SITE, "recheck", queue_options(recheck_interval_seconds=0.0), 10**9)
    assert (nothing.pages, nothing.next_due_ms) == ([], 0)


def test_what_an_asking_has_no_room_for_is_due_at_once(filled: OpenTables) -> None:
    engine = filled("sqlite")
    put(engine, *(loaded(1_000 + n, f"/{n}") for n in range(PAGES_AT_A_TIME + 5)))
    found = read_asking(engine, SITE, "recheck", queue_options(recheck_interval_seconds=1.0), 10**6)
    assert [page.path for page in found.pages] == [f"/{n}" for n in range(PAGES_AT_A_TIME)]
    assert found.next_due_ms == 2_000 + PAGES_AT_A_TIME


@every_kind
def test_a_site_is_opened_for_what_was_sent_back_and_for_what_is_new(kind: str, filled: OpenTables) -> None:
    engine = filled(kind)
    put(
        engine,
        loaded(1_000, "/", depth=0, sha256="aa" * 32),
        loaded(1_000, "/a", depth=1, sha256="bb" * 32),
        loaded(1_000, "/b", depth=2, sha256="bb" * 32, outcome="duplicate", duplicate_of="/a"),
        loaded(1_000, "/c", depth=2, status=-2),
        loaded(1_000, "/d", depth=1, outcome="denied", status=-9, sha256=""),
    )
    assert checkpoint_from_tables(engine, SITE) is None
    assert checkpoint_from_tables(engine, SITE, more=True) is not None, (
        "there are new pages beside the known ones"
    )
    put(engine, asked(2_000, "visited", "changed", "/a"))
    checkpoint = checkpoint_from_tables(engine, SITE)
    assert checkpoint is not None
    frontier = Frontier()
    frontier.restore([checkpoint])
    assert (len(frontier), frontier.published, frontier.pending) == (5, 4, 1)
    assert frontier.add(["/new", "/a"], 1) == 1
    first, second = (frontier.take(0.0) for _ in range(2))
    assert first and second
    assert [(turn.path, turn.depth, turn.tries) for turn in (first, second)] == [("/a", 1, 1), ("/new", 1, 1)]
    assert frontier.take(0.0) is None
    assert frontier.add(["/", "/b", "/c", "/d"], 1) == 0, "what is known remains known"
    assert frontier.first_with(first, bytes.fromhex("bb" * 32)) is None, "it is its own original"
    assert frontier.first_with(second, bytes.fromhex("aa" * 32)) == "/"
    anew = checkpoint_from_tables(engine, SITE, again=True)
    assert anew is not None
    frontier = Frontier()
    frontier.restore([anew])
    turns = [frontier.take(0.0) for _ in range(5)]
    by_depth = [("/", 0), ("/a", 1), ("/d", 1), ("/b", 2), ("/c", 2)]
    assert sorted((turn.path, turn.depth) for turn in turns if turn) == sorted(by_depth)
    assert (len(frontier), frontier.published, frontier.take(0.0)) == (5, 0, None)
