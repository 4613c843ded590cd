"""What the site queue promises to checks of status: due times for all sites, and many handed in together."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from crawler.queue.sites import HandedIn, Leased, Newcomer, Restored
from tests.queue_driver import BASE, Driver, driver
from tests.servers import RunningServer

A, B, C = "http://a.example", "http://b.example", "http://c.example"
LEASE_MS = 10_000


@pytest.fixture
def queue(valkey: RunningServer) -> Iterator[Driver]:
    with driver(valkey, lease_seconds=LEASE_MS / 1000, sites_per_address=2) as made:
        made.join("one", {"host": "here"})
        made.join("two", {"host": "there"})
        yield made


def due(queue: Driver) -> dict[str, int]:
    return {site: at for site, at, _ in queue.due("status", 99)}


def handed(leased: Leased, due_ms: int = 7, rests: int = 0, permit: str = "", record: str = "") -> HandedIn:
    return HandedIn(leased.site, leased.token, due_ms, rests, permit, record.encode())


def told(queue: Driver) -> list[str]:
    """The words of all records in the stream that are not of sites found."""
    return [json.loads(fields[b"r"])["word"] for _, fields in queue.raw.xrange(BASE + "results")]


def test_nobody_has_a_due_time_before_it_is_said_that_all_are_to_have_one(queue: Driver) -> None:
    queue.add(A)
    assert due(queue) == {}
    queue.monitor("status")
    assert set(due(queue)) == {A}
    queue.add(B)
    assert set(due(queue)) == {A, B}
    assert all(0 <= queue.server_ms() - at < 60_000 for at in due(queue).values())


def test_what_has_a_due_time_keeps_it(queue: Driver) -> None:
    queue.add(A, B)
    queue.fall_due("status", {A: 5})
    queue.monitor("status")
    assert due(queue)[A] == 5
    assert due(queue)[B] > 5
    queue.fall_due("status", {A: 9, B: 9})
    assert due(queue)[A] == 5
    queue.monitor("status")
    queue.discover([Newcomer(A, b"")], 0)
    assert due(queue)[A] == 5


def test_who_is_blocked_or_an_alias_has_none_until_it_is_resumed(queue: Driver) -> None:
    queue.add(A, B)
    queue.order(A, "block")
    queue.restore([Restored(C, "alias", why=B)])
    queue.monitor("status")
    assert set(due(queue)) == {B}
    queue.order(A, "resume")
    queue.order(C, "resume")
    assert set(due(queue)) == {A, B, C}


def test_sites_are_handed_in_together(queue: Driver) -> None:
    queue.add(A, B, C)
    queue.fall_due("status", {A: 1, B: 2, C: 3})
    held = queue.take("one", 3, "status")
    assert len(held) == 3
    assert due(queue) == {}
    later = queue.server_ms() + 50_000
    queue.hand_in("one", [handed(one, later + n, permit=f"p{n}") for n, one in enumerate(held)])
    assert sorted(due(queue).values()) == [later, later + 1, later + 2]
    assert queue.held("one") == {}
    assert queue.permits([one.site for one in held] + ["http://no.example"]) == ["p0", "p1", "p2", ""]
    assert queue.depth().waiting == 3, "they can be loaded as before"
    queue.fall_due("status", {})


def test_what_is_kept_of_robots_txt_stays_until_there_is_more_or_the_site_is_forgotten(queue: Driver) -> None:
    queue.add(A)
    for permit, kept in (("first", "first"), ("", "first"), ("second", "second")):
        queue.plan_work(A, "status", 1)
        queue.hand_in("one", [handed(queue.take_one("one", "status"), permit=permit)])
        assert queue.permits([A]) == [kept]
    queue.forget(A)
    assert queue.permits([A]) == [""]
    assert due(queue) == {}


def test_what_was_seen_is_told_also_where_the_lease_is_anothers(queue: Driver) -> None:
    queue.add(A)
    queue.plan_work(A, "status", 1)
    lost = queue.take_one("one", "status")
    queue.part("one")
    mine = queue.take_one("two", "status")
    queue.hand_in("two", [handed(lost, record='{"word": "late"}'), handed(mine, record='{"word": "mine"}')])
    assert told(queue) == ["late", "mine"]
    queue.hand_in("two", [handed(mine, due_ms=99, record='{"word": "again"}')])
    assert told(queue) == ["late", "mine", "again"]
    assert due(queue) == {A: 7}, "the second time ends no lease"


def test_a_site_is_asked_by_nobody_before_its_pause_is_over(queue: Driver) -> None:
    queue.add(A)
    queue.plan_work(A, "status", 1)
    soon = queue.server_ms() + 60_000
    queue.hand_in("one", [handed(queue.take_one("one", "status"), rests=soon)])
    assert queue.take("two") == []
    assert queue.take("two", work="status") == []
    assert due(queue)[A] == soon


def test_a_site_blocked_meanwhile_is_not_due_again(queue: Driver) -> None:
    queue.add(A)
    queue.plan_work(A, "status", 1)
    held = queue.take_one("one", "status")
    queue.order(A, "block")
    queue.hand_in("one", [handed(held, rests=queue.server_ms() + 60_000)])
    assert due(queue) == {}
    assert queue.record(A).state == "blocked"


def test_many_sites_of_one_address_take_turns_quickly(queue: Driver) -> None:
    queue.add(A, B, C)
    for site in (A, B, C):
        queue.plan_work(site, "status", 1)
        held = queue.take_one("one", "status")
        assert queue.locate("one", held, "192.0.2.1")
        queue.hand_in("one", [handed(held, due_ms=queue.server_ms() + 60_000)])
    for site in (A, B, C):
        queue.plan_work(site, "status", 1)
    before = queue.server_ms()
    first = queue.take("one", 3, "status")
    assert len(first) == 2
    (at,) = due(queue).values()
    assert before < at <= queue.server_ms() + 1000
