"""What each operation of the site queue promises, on a real server. Every test ends with an audit of the whole queue.

Time passes by shifting what is compared with the server's clock (`pass_time`); the few tests about that clock
itself read it from the server.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from hashlib import sha1
from select import select

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from crawler.queue.errors import (
    BrokenRecordError,
    LockLostError,
    QueueOlderError,
    SessionGoneError,
    StaleLeaseError,
)
from crawler.queue.leases import LOOK
from crawler.queue.sites import DISCOVER_BATCH, FILL_BATCH, Depth, Leased, Newcomer, Offer, Progress, Restored
from crawler.records import VERSION, WORKS, SiteOpened, decode
from tests.queue_driver import BASE, Driver, audit, delivery, driver, whole
from tests.servers import RunningServer

A, B, C = "http://a.example", "http://b.example", "http://c.example"
LEASE_MS = 10_000
HALF = LEASE_MS // 2
ADDRESS, OTHER = "192.0.2.1", "192.0.2.2"
OTHER_WORKS = WORKS[1:]
COUNTED = [name for name in Depth._fields if name not in ("records", "agents", "coordinated")]


@pytest.fixture
def queue(valkey: RunningServer) -> Iterator[Driver]:
    with driver(
        valkey,
        lease_seconds=LEASE_MS / 1000,
        sites_per_address=2,
        shared_address_after=5,
        sites_per_shared_address=4,
    ) as made:
        yield made


@pytest.fixture
def agents(queue: Driver) -> tuple[str, str]:
    queue.join("one", {"host": "here"})
    queue.join("two", {"host": "there"})
    return "one", "two"


def numbered(many: int, host: str = "s") -> list[str]:
    return [f"https://{host}{number}.example" for number in range(many)]


def drop(queue: Driver, agent: str) -> None:
    """The agent is silent for a lease time, the others are not."""
    others = [name for name in map(bytes.decode, queue.raw.zrange(BASE + "agents", 0, -1)) if name != agent]
    for _ in range(3):
        queue.pass_time(LEASE_MS // 3 + 1)
        for other in others:
            queue.renew(other, 0)


# --- discover ---


def test_discover_is_idempotent(queue: Driver) -> None:
    newcomers = [Newcomer(A, b"record a"), Newcomer(B, b"record b"), Newcomer(A, b"record a again")]
    assert queue.discover(newcomers, 0) == [1, 1, 0]
    assert queue.discover(newcomers, 0) == [0, 0, 0]
    assert queue.names("fresh") == [A, B]
    assert [entry[1][b"r"] for entry in queue.raw.xrange(BASE + "results")] == [b"record a", b"record b"]
    depth = queue.depth()
    assert (depth.waiting, depth.added, depth.records, depth.open) == (2, 2, 2, 2)


def test_discover_takes_any_number_in_bounded_calls(queue: Driver) -> None:
    sites = numbered(2 * DISCOVER_BATCH + 7)
    queue.raw.config_resetstat()
    assert queue.discover([Newcomer(site, b"") for site in sites], 0) == [1] * len(sites)
    assert queue.raw.info("commandstats")["cmdstat_evalsha"]["calls"] == 3
    assert sorted(one.site for one in queue.records()) == sorted(sites)


def test_most_sites_is_counted_over_all_calls(queue: Driver) -> None:
    assert queue.discover([Newcomer(site, b"record", ("/x",)) for site in (A, B, C)], 2) == [1, 1, -1]
    assert queue.discover([Newcomer(C, b"record"), Newcomer(A, b"")], 2) == [-1, 0]
    assert queue.record(C) is None
    assert queue.checkpoint(C) == ([], [], None)
    assert queue.depth().records == 2
    assert queue.forget(A) == 1
    assert queue.discover([Newcomer(C, b"")], 2) == [1]


def test_paths_given_for_a_site_are_kept_until_its_checkpoint_has_them(
    queue: Driver, agents: tuple[str, str]
) -> None:
    queue.discover([Newcomer(A, b"", ("/",)), Newcomer(B, b"", ("/", "/x y"))], 0)
    queue.discover([Newcomer(B, b"", ("/later",))], 0)
    assert queue.checkpoint(A) == ([], [], None)
    assert queue.checkpoint(B) == ([], ["/\n/x y", "/later"], None)
    first, second = queue.take("one", 2)
    assert (first.more, second.more) == (False, True)
    assert queue.leave("one", second, "finished", detail=1) is False, "more paths were given meanwhile"
    queue.send("one", delivery(second, 1, given=1))
    assert queue.checkpoint(B)[1] == ["/later"]
    assert queue.given(B, 0) == ["/later"]
    assert queue.leave("one", second, "finished", detail=0) is False
    queue.send("one", delivery(second, 2, given=1), delivery(second, 2, given=1))
    queue.discover([Newcomer(B, b"", ("/last",))], 0)
    assert queue.checkpoint(B)[1] == ["/last"], "a delivery that comes twice takes nothing twice"
    assert queue.leave("one", second, "finished", detail=1) is True
    assert queue.checkpoint(B) == ([], [], None)


def test_a_holder_hears_of_given_paths_with_its_next_renewal(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(A, B, C)
    queue.take("one", 2)
    queue.discover([Newcomer(A, b"", ("/x",)), Newcomer(C, b"", ("/x",))], 0)
    queue.offer([Offer(B, ["/y", "/z"], 2, 1)])
    assert set(queue.renew("one", 0).given) == {A, B}
    assert queue.renew("one", 0).given == []
    assert queue.given(B, 0) == ["/", "2 1\n/y\n/z"]
    assert queue.given(B, 1) == ["2 1\n/y\n/z"]


ROOT, PATH = ("/",), ("/x",)


@pytest.mark.parametrize("given", [(ROOT, PATH), (PATH, ROOT), ((), PATH), (PATH, ROOT, ROOT, ())])
def test_a_root_and_a_path_given_in_any_order_are_both_walked(
    queue: Driver, agents: tuple[str, str], given: tuple[tuple[str, ...], ...]
) -> None:
    for paths in given:
        queue.discover([Newcomer(A, b"", paths)], 0)
    assert sorted(queue.checkpoint(A)[1]) == ["/", "/x"]
    assert queue.take_one("one").more


def test_a_site_that_is_given_its_root_alone_keeps_no_paths(queue: Driver, agents: tuple[str, str]) -> None:
    for paths in (ROOT, (), ROOT):
        queue.discover([Newcomer(A, b"", paths)], 0)
    assert queue.checkpoint(A)[1] == []
    queue.discover([Newcomer(B, b"", PATH)], 0)
    assert queue.checkpoint(B)[1] == ["/x"], "who gives a path does not ask for the root"


@pytest.mark.parametrize("published", [False, True])
def test_a_path_given_while_a_site_is_walked_from_its_root(
    queue: Driver, agents: tuple[str, str], published: bool
) -> None:
    queue.add(A)
    leased = queue.take_one("one")
    if published:
        queue.send("one", delivery(leased, 1))
    queue.discover([Newcomer(A, b"", PATH)], 0)
    queue.part("one")
    entries, paths, _ = queue.checkpoint(A)
    assert paths == (["/x"] if entries else ["/", "/x"]), "the root is in the checkpoint, or in the list"


def test_paths_of_a_site_that_rests_without_a_checkpoint(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(A)
    queue.leave("one", queue.take_one("one"), "later", due_ms=queue.server_ms() + HALF)
    queue.discover([Newcomer(A, b"", PATH)], 0)
    assert queue.checkpoint(A)[1] == ["/", "/x"]


def test_nothing_is_kept_for_sites_that_are_not_walked(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(A, B, C)
    finished, blocked = queue.take("one", 2)
    queue.leave("one", finished, "finished")
    queue.order(B, "block")
    queue.leave("one", blocked, "returned")
    for paths in (PATH, ROOT, ("/", "/y")):
        assert queue.discover([Newcomer(site, b"", paths) for site in (A, B)], 0) == [0, -2]
        assert queue.discover([Newcomer(B, b"", paths)], 0, again=True) == [-2]
    assert whole(queue.raw).paths == {}
    found = [one.entries for one in queue.offered([A, B], 9)]
    assert found == [["/x", "/\n/y"], []]
    assert [*queue.to_decide(9)] == [A]


@pytest.mark.parametrize("given", [(PATH, ROOT), (ROOT, PATH)])
def test_again_counts_all_that_is_given(
    queue: Driver, agents: tuple[str, str], given: tuple[tuple[str, ...], ...]
) -> None:
    finished_once(queue, A)
    for paths in given:
        queue.discover([Newcomer(A, b"", paths)], 0, again=True)
    assert sorted(queue.checkpoint(A)[1]) == ["/", "/x"]


def test_again_walks_finished_sites_anew_and_nothing_else(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(A, B)
    leased = queue.take_one("one")
    queue.leave("one", leased, "finished")
    assert queue.discover([Newcomer(A, b""), Newcomer(B, b""), Newcomer(C, b"")], 0) == [0, 0, 1]
    again = [Newcomer(A, b"record", ("/x",)), Newcomer(B, b"")]
    assert queue.discover(again, 0, again=True) == [2, 0]
    assert queue.state(A) == "waiting"
    assert queue.checkpoint(A)[1] == ["/x"]
    told = [decode(fields)[0] for _, fields in queue.raw.xrange(BASE + "results")]
    assert [(type(one), one.site) for one in told] == [(SiteOpened, A)], "a site that is known is no find"
    assert [one.site for one in queue.take("one", 9)] == [B, C, A]


def test_again_reaches_a_finished_site_that_is_held_for_another_work(
    queue: Driver, agents: tuple[str, str]
) -> None:
    finished_once(queue, A)
    queue.plan_work(A, "recheck", 1)
    recheck = queue.take_one("two", "recheck")
    assert queue.discover([Newcomer(A, b"")], 0, again=True) == [2]
    assert queue.take("one") == []
    queue.leave("two", recheck, "returned")
    queue.pass_time(LEASE_MS // 3 + 1)
    assert queue.take_one("one").site == A


# --- lease ---


def test_one_holder_and_rising_tokens(queue: Driver, agents: tuple[str, str]) -> None:
    sites = numbered(20)
    queue.add(*sites)
    taken: list[Leased] = []
    for number in range(20):
        taken += queue.take(agents[number % 2])
    assert [one.site for one in taken] == sites
    assert queue.take("one") == queue.take("two") == []
    tokens = [int(one.token) for one in taken]
    assert tokens == sorted(set(tokens))
    assert queue.held("one") == {one.site: one.token for one in taken[::2]}
    queue.leave("one", taken[0], "returned")
    again = queue.take_one("two")
    assert again.site == taken[0].site
    assert int(again.token) > max(tokens)


def test_lease_gives_as_many_as_are_wanted_and_tells_what_it_saw(
    queue: Driver, agents: tuple[str, str]
) -> None:
    queue.add(*numbered(5))
    hand = queue.lease("one", "site", 3, 0)
    assert (len(hand.sites), hand.ready, hand.leased, hand.agents) == (3, 5, 0, 2)
    hand = queue.lease("two", "site", 3, 0)
    assert (len(hand.sites), hand.ready, hand.leased, hand.agents) == (2, 2, 3, 2)
    assert queue.lease("one", "site", 0, 0).sites == []


def test_lease_takes_returned_sites_then_the_hour_then_fresh_ones(
    queue: Driver, agents: tuple[str, str]
) -> None:
    queue.add(A, B, C)
    number = queue.lock("planner", "planner", 10)
    queue.fill("planner", number, 7, [C])
    assert queue.take_one("one", hour=7).site == C
    first = queue.take_one("one", hour=7)
    assert first.site == A
    queue.leave("one", first, "returned")
    queue.fill("planner", number, 7, [B])
    assert [one.site for one in queue.take("one", 3, hour=7)] == [A, B]


def test_hungry_agents_are_heard_of_by_the_others(queue: Driver, agents: tuple[str, str]) -> None:
    queue.join("three", {})
    queue.add(A, B)
    assert queue.lease("one", "site", 5, 0, hungry=True).missing == 0, "it does not hear of itself"
    assert queue.lease("two", "site", 2, 0, hungry=True).missing == 3
    assert queue.lease("three", "site", 0, 0).missing == 5
    assert queue.lease("one", "site", 1, 0, hungry=True).missing == 2
    assert queue.lease("three", "site", 0, 0).missing == 3
    assert queue.lease("three", "recheck", 0, 0).missing == 0, "they miss sites to load"
    queue.lease("two", "recheck", 1, 0)
    assert queue.lease("three", "site", 0, 0).missing == 3, "another work of theirs says nothing of it"
    queue.add(C)
    assert queue.lease("two", "site", 1, 0, hungry=True).sites
    assert queue.lease("three", "site", 0, 0).missing == 1, "it got enough"
    queue.lease("one", "site", 1, 0)
    assert queue.lease("three", "site", 0, 0).missing == 0, "it asks without hunger"


@pytest.mark.parametrize("how", ["parts", "dies", "stops asking"])
def test_a_hungry_agent_that_asks_no_more_is_forgotten(
    queue: Driver, agents: tuple[str, str], how: str
) -> None:
    queue.lease("one", "site", 5, 0, hungry=True)
    if how == "parts":
        queue.part("one")
    elif how == "dies":
        queue.raw.zadd(BASE + "agents", {"one": queue.server_ms() - 1})
    else:
        queue.pass_time(1000)
        assert queue.lease("two", "site", 0, 0).missing == 5
        queue.pass_time(1001)
    assert queue.lease("two", "site", 0, 0).missing == 0
    assert queue.raw.hlen(BASE + "hungry") == (how == "stops asking")


def test_an_agent_that_may_find_more_at_once_is_not_hungry(queue: Driver, agents: tuple[str, str]) -> None:
    queue.restore([Restored(A, "waiting"), *(Restored(site, "finished") for site in numbered(LOOK + 9))])
    queue.fill("planner", queue.lock("planner", "planner", 10), 7, [A, *numbered(LOOK + 9)])
    assert len(queue.lease("one", "site", 2, 7, hungry=True).sites) == 1
    assert queue.lease("two", "site", 0, 7).missing == 0
    queue.lease("one", "site", 2, 7, hungry=True)
    assert queue.lease("two", "site", 0, 7).missing == 2


def test_names_that_are_not_to_be_had_are_passed_over_in_bounded_calls(
    queue: Driver, agents: tuple[str, str]
) -> None:
    dead = numbered(LOOK * 3)
    queue.restore([Restored(site, "finished") for site in dead])
    queue.add(A)
    number = queue.lock("planner", "planner", 10)
    queue.fill("planner", number, 7, dead)
    assert queue.take_one("one", hour=7).site == A
    assert queue.hour_length(7) == 0


def test_a_session_is_needed(queue: Driver) -> None:
    queue.add(A)
    for act in (
        lambda: queue.take("nobody"),
        lambda: queue.renew("nobody", 0),
    ):
        with pytest.raises(SessionGoneError, match="nobody"):
            act()
    assert queue.state(A) == "waiting"


def test_a_renewal_tells_the_server_s_clock(queue: Driver, agents: tuple[str, str]) -> None:
    before = queue.server_ms()
    assert before <= queue.renew("one", 0).server_ms <= queue.server_ms()


def test_agents_tell_of_themselves(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(A)
    queue.take("one")
    queue.renew("one", 12)
    one, two = sorted(queue.agents(), key=lambda agent: agent["agent"])
    assert (one["agent"], one["held"], one["pages"], one["host"]) == ("one", 1, 12, "here")
    assert 0 < two["expires_ms"] <= LEASE_MS


def test_prefix_belongs_to_the_first_spider(queue: Driver) -> None:
    assert queue.claim_prefix("site") == "site"
    assert queue.claim_prefix("other") == "site"


# --- fencing ---


def test_every_write_with_a_stale_token_is_refused(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(A)
    old = queue.take_one("one")
    assert queue.send("one", delivery(old, 1)) == ["OK"]
    drop(queue, "one")
    new = queue.take_one("two")
    assert new.site == A
    before = snapshot(queue)
    assert queue.send("one", delivery(old, 2)) == ["STALE"]
    for agent, leased in (("one", old), ("one", new), ("two", old), ("two", new._replace(token="0"))):
        assert queue.send(agent, delivery(leased, 2)) == ["STALE"]
        for how in ("finished", "returned", "suspended", "later"):
            with pytest.raises(StaleLeaseError, match=A):
                queue.leave(agent, leased, how, report=b"ended", due_ms=9, detail="0")
        with pytest.raises(StaleLeaseError, match=A):
            queue.locate(agent, leased, ADDRESS)
    assert snapshot(queue) == before


def snapshot(queue: Driver) -> dict[bytes, bytes | None]:
    """Every key's content, but for the times of sessions."""
    return {
        key: queue.raw.dump(key)
        for key in queue.raw.scan_iter(count=1000)
        if not key.startswith((BASE.encode() + b"agent", BASE.encode() + b"renewed"))
    }


# --- publish ---


def test_publish_puts_records_and_journal_together(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(A)
    leased = queue.take_one("one")
    records = [(b"page 1", b""), (b"page 2", b"12345678")]
    assert queue.send("one", delivery(leased, 1, records=0)._replace(records=records)) == ["OK"]
    assert [fields for _, fields in queue.raw.xrange(BASE + "results")] == [
        {b"v": b"1", b"r": b"page 1"},
        {b"v": b"1", b"r": b"page 2", b"l": b"12345678"},
    ]
    assert queue.checkpoint(A)[0] == [b"delta 1"]


def test_publish_answers_by_the_sequence(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(A)
    leased = queue.take_one("one")
    assert queue.send("one", delivery(leased, 1)) == ["OK"]
    assert queue.send("one", delivery(leased, 1)) == ["AGAIN"]
    assert queue.send("one", delivery(leased, 3)) == ["GAP"]
    assert queue.send("one", delivery(leased, 2)) == ["OK"]
    assert queue.send("one", delivery(leased, 1)) == ["GAP"], "older than the last is no resend"
    assert queue.checkpoint(A)[0] == [b"delta 1", b"delta 2"]
    assert queue.depth().records == 2


def test_publish_folds_the_journal(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(A)
    leased = queue.take_one("one")
    queue.send("one", delivery(leased, 1), delivery(leased, 2))
    assert queue.send("one", delivery(leased, 3, delta=b"all", fold=True)) == ["OK"]
    assert queue.send("one", delivery(leased, 4, delta=b"")) == ["OK"]
    assert queue.checkpoint(A)[0] == [b"all"]
    assert queue.send("one", delivery(leased, 5, delta=b"", fold=True)) == ["OK"]
    assert queue.checkpoint(A)[0] == []


def test_publish_judges_each_site_by_itself(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(A, B, C)
    a, b, c = queue.take("one", 3)
    queue.send("one", delivery(b, 1))
    verdicts = queue.send(
        "one",
        delivery(a._replace(token="99"), 1),
        delivery(b, 1, records=3),
        delivery(c, 1, records=2),
    )
    assert verdicts == ["STALE", "AGAIN", "OK"]
    assert queue.depth().records == 1 + 2


def test_publish_takes_a_spool_that_grew_during_an_outage(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(A)
    leased = queue.take_one("one")
    assert queue.send("one", delivery(leased, 1, records=10_000)) == ["OK"]
    assert queue.depth().records == 10_000


def test_the_sequence_begins_anew_with_each_lease(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(A)
    leased = queue.take_one("one")
    queue.send("one", delivery(leased, 1), delivery(leased, 2))
    queue.leave("one", leased, "returned")
    leased = queue.take_one("one")
    assert leased.suspended
    assert leased.more
    assert queue.send("one", delivery(leased, 1, delta=b"third")) == ["OK"]
    assert queue.checkpoint(A)[0] == [b"delta 1", b"delta 2", b"third"]


def test_what_a_full_site_is_offered_is_left_out_of_it(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(A)
    queue.leave("one", queue.take_one("one"), "finished", known=9, done=8, done_hash=7)
    queue.offer([Offer(A, ["/a"]), Offer(A, ["/b"])])
    number, found = queue.lock("opener", "star", 10), queue.record(A)
    assert not queue.refuse("star", number, found._replace(done=7), 1, "pages2", b"more"), "it has changed"
    assert queue.refuse("star", number, found, 1, "pages2", b"more")
    assert queue.record(A) == found._replace(left_out="pages2")
    assert (queue.depth().records, queue.undecided()) == (1, 1)
    assert queue.refuse("star", number, queue.record(A), 1, "pages2", b"")
    assert (queue.depth().records, queue.undecided()) == (1, 0)
    with pytest.raises(LockLostError):
        queue.refuse("comet", number, queue.record(A), 1, "", b"")


# --- aliases ---

ROOT_MARK = f"{ADDRESS} 80 robots 0123456789abcdef"


def link(queue: Driver, *sites: str) -> None:
    """Queue sites that links led to."""
    offers = [Offer(site, ["/"], record=b"found") for site in sites]
    assert queue.offer(offers) == [1] * len(sites)


def take_roots(queue: Driver, *sites: str) -> dict[str, Leased]:
    """Lease sites, and publish one root page for all of them, in this order."""
    held = {one.site: one for one in queue.take("one", len(sites))}
    for site in sites:
        queue.publish("one", [delivery(held[site], 1, root=ROOT_MARK, given=1)])
    return held


def judged(queue: Driver, state: str) -> list[str]:
    """Say this of all that is to be compared; their names."""
    number = queue.lock("opener", "star", 10)
    found = queue.to_compare(9)
    queue.judge("star", number, [(one, state) for one in found])
    return [one.record.site for one in found]


def left_out(queue: Driver, site: str) -> bool:
    """Leave a site out, which is to be compared, as a coordinator does that has read its frontier."""
    number = queue.lock("opener", "star", 10)
    (one,) = [one for one in queue.to_compare(9) if one.record.site == site]
    return bool(queue.leave_out("star", number, one, Progress(9, 3, 7), b"left out"))


def likeness(queue: Driver, site: str) -> dict[str, str]:
    """What is known of a site that may be another one."""
    kinds = ("may_be_alias_of", "same_pages_as", "no_alias_of")
    return {name: value for name, value in queue.details(site).items() if name in kinds}


def test_a_site_with_the_root_of_an_earlier_one_may_be_its_alias(
    queue: Driver, agents: tuple[str, str]
) -> None:
    link(queue, A, B, C)
    a, b, c = (queue.take_one("one") for _ in range(3))
    assert queue.publish("one", [delivery(a, 1, root=ROOT_MARK)]) == [("OK", "")]
    assert queue.publish("one", [delivery(b, 1, root=ROOT_MARK)]) == [("OK", A)]
    assert queue.publish("one", [delivery(b, 1, root=ROOT_MARK)]) == [("AGAIN", A)], "a resend hears it again"
    assert queue.publish("one", [delivery(c, 1, root=f"{OTHER} 80 x y")]) == [("OK", "")]
    assert [likeness(queue, one) for one in (A, B, C)] == [{}, {"may_be_alias_of": A}, {}]
    queue.leave("one", b, "returned")
    assert queue.take("two") == [], "it waits for the comparison"
    assert judged(queue, "open") == [B]
    assert queue.take_one("two").may_be_alias


def test_no_seed_is_an_alias(queue: Driver, agents: tuple[str, str]) -> None:
    """Of a seed and a site that a link led to, the latter may be one, whoever was first."""
    link(queue, A)
    queue.add(B, C)
    held = take_roots(queue, A, B, C)
    assert [likeness(queue, one) for one in (A, B, C)] == [{"may_be_alias_of": B}, {}, {"may_be_alias_of": B}]
    assert queue.renew("one", 0).suspend == [A], "its holder did not know"
    for one in held.values():
        queue.leave("one", one, "returned")
    assert {one.site for one in queue.take("two", 9)} == {B, C}, "only what may be left out waits"
    assert not left_out(queue, C)
    assert left_out(queue, A)
    assert queue.state(A) == "alias"


def test_a_site_that_is_given_as_a_seed_is_opened(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(A)
    link(queue, B)
    held = take_roots(queue, A, B)
    queue.leave("one", held[B], "returned", known=9, done=3, done_hash=7)
    assert left_out(queue, B)
    before = queue.depth().records
    assert queue.discover([Newcomer(B, b"seed", ("/x",))], 0) == [0]
    assert queue.depth().records == before + 2, "the tables are told that it is a seed, and that it is open"
    assert queue.state(B) == "suspended", "it goes on where it was"
    leased = queue.take_one("two")
    assert (leased.site, leased.may_be_alias) == (B, False)
    assert queue.checkpoint(B)[:2] == ([b"delta 1"], ["/x"])
    assert queue.discover([Newcomer(B, b"seed")], 0) == [0]
    assert queue.depth().records == before + 2


@pytest.mark.parametrize("how", ["block", "pause", "forget", "resume"])
def test_who_is_not_crawled_has_no_aliases(queue: Driver, agents: tuple[str, str], how: str) -> None:
    queue.add(A)
    link(queue, B, C)
    held = take_roots(queue, A, B, C)
    for one in held.values():
        queue.leave("one", one, "returned", known=9, done=3, done_hash=7)
    assert left_out(queue, B)
    assert queue.offer([Offer(B, ["/x"], 2)]) == [0]
    assert queue.checkpoint(A)[1] == ["2 0\n/x"], "what is offered to an alias goes to its original"
    if how == "forget":
        assert queue.forget(A) == 1
    else:
        queue.order(B if how == "resume" else A, how)
    assert queue.state(B) == "suspended"
    assert queue.checkpoint(B)[:2] == ([b"delta 1"], ["2 0\n/x"]), "and comes to it as well"
    assert queue.details(B)["why"] == ""
    assert likeness(queue, B) == ({"no_alias_of": A} if how == "resume" else {})
    assert likeness(queue, C) == ({"may_be_alias_of": A} if how == "resume" else {})
    assert B in {one.site for one in queue.take("two", 9)}


def test_what_differs_is_never_compared_again(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(A)
    link(queue, B)
    held = take_roots(queue, A, B)
    queue.leave("one", held[B], "returned")
    assert judged(queue, "no") == [B]
    again = queue.take_one("one")
    assert not again.may_be_alias
    assert queue.publish("one", [delivery(again, 1, root=ROOT_MARK)]) == [("OK", "")]
    assert likeness(queue, B) == {"no_alias_of": A}
    queue.leave("one", again, "finished")
    queue.leave("one", held[A], "finished")
    assert queue.to_compare(9) == []


def test_a_site_that_is_walked_again_is_compared_anew(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(A)
    link(queue, B)
    held = take_roots(queue, A, B)
    queue.leave("one", held[A], "finished")
    queue.leave("one", held[B], "returned")
    assert left_out(queue, B)
    time = queue.server_ms()
    assert queue.discover([Newcomer(A, b"")], 0, again=True) == [2]
    assert queue.state(B) == "waiting", "from its root"
    assert queue.to_compare(9) == []
    assert likeness(queue, B) == {"may_be_alias_of": A}
    queue.leave("one", queue.take_one("one"), "returned")
    queue.leave("one", queue.take_one("one"), "returned")
    (one,) = queue.to_compare(9)
    assert (one.record.site, one.name) == (B, A)
    assert one.since_ms >= time, "by pages that are loaded from then on"


def test_aliases_of_an_alias_are_its_original_s(queue: Driver, agents: tuple[str, str]) -> None:
    """The first of three was found by a link; the one that is given as a seed has the same pages."""
    link(queue, A, B)
    held = take_roots(queue, A, B)
    queue.leave("one", held[B], "returned", known=9, done=3, done_hash=7)
    assert left_out(queue, B)
    queue.add(C)
    take_roots(queue, C)
    queue.leave("one", held[A], "returned", known=9, done=3, done_hash=7)
    assert likeness(queue, A) == {"may_be_alias_of": C}
    assert left_out(queue, A)
    assert [queue.details(one)["why"] for one in (A, B)] == [C, C]
    assert queue.offer([Offer(B, ["/x"])]) == [0]
    assert "/x" in queue.checkpoint(C)[1]
    queue.order(C, "block")
    assert [queue.state(one) for one in (A, B)] == ["suspended", "suspended"]


def test_what_comes_while_a_site_is_left_out_goes_to_its_original(
    queue: Driver, agents: tuple[str, str]
) -> None:
    """After a coordinator has read its frontier; and what had come before it was opened once more."""
    queue.add(A)
    link(queue, B)
    held = take_roots(queue, A, B)
    queue.leave("one", held[A], "returned")
    queue.leave("one", held[B], "finished", detail=1, known=9, done=9, done_hash=7)
    assert queue.offer([Offer(B, ["/early"])]) == [0]
    queue.mend(queue.record(B), b"checkpoint", 3, 7)
    assert queue.offer([Offer(B, ["/late"], 2)]) == [0]
    assert left_out(queue, B)
    assert queue.checkpoint(A)[1] == ["2 0\n/late"]
    queue.decide("star", queue.lock("opener", "star", 10), {B: 0})
    assert queue.checkpoint(A)[1] == ["2 0\n/late", "/early"]
    assert queue.undecided() == 0


def test_an_alias_that_is_mended_is_opened(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(A)
    link(queue, B)
    held = take_roots(queue, A, B)
    queue.leave("one", held[B], "returned", known=9, done=3, done_hash=7)
    assert left_out(queue, B)
    before = queue.depth().records
    assert queue.mend(queue.record(B), b"checkpoint", 2, 7)
    assert queue.state(B) == "suspended"
    assert queue.details(B)["why"] == ""
    assert queue.depth().records == before + 1, "the tables are told that it is open"


def test_an_alias_is_not_left_out_while_it_is_held(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(A)
    link(queue, B)
    held = take_roots(queue, A, B)
    number = queue.lock("opener", "star", 10)
    (one,) = queue.to_compare(9)
    assert not queue.leave_out("star", number, one, Progress(9, 3, 7), b"left out")
    queue.give_back("star", number, one)
    assert queue.renew("one", 0).suspend == [B]
    queue.leave("one", held[B], "suspended", known=9, done=4)
    assert not queue.leave_out("star", number, one, Progress(9, 3, 7), b"left out"), "it was read before"
    assert left_out(queue, B)
    with pytest.raises(LockLostError):
        queue.judge("comet", number, [(one, "no")])
    with pytest.raises(LockLostError):
        queue.hand_on("comet", number, A, [Offer(A, ["/x"])])


def test_an_alias_of_an_older_version_may_be_opened(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(A, B)
    queue.leave("one", queue.take_one("one"), "finished")
    queue.leave("one", queue.take_one("one"), "finished")
    queue.raw.hset(bucket(B), B, f"a {ADDRESS}")
    queue.raw.hincrby(BASE + "count", "finished", -1)
    queue.raw.hincrby(BASE + "count", "alias", 1)
    queue.raw.hset(BASE + "why", B, A)
    assert queue.offer([Offer(B, ["/x"])]) == [0]
    assert [one.entries for one in queue.offered([A], 9)] == [["/x"]]
    queue.order(B, "resume")
    assert queue.take_one("one").site == B


def test_a_root_whose_site_was_forgotten_goes_to_the_next(queue: Driver, agents: tuple[str, str]) -> None:
    link(queue, A, B)
    a, b = queue.take("one", 2)
    queue.send("one", delivery(a, 1, root=ROOT_MARK, given=1))
    queue.leave("one", a, "finished")
    queue.forget(A)
    assert queue.publish("one", [delivery(b, 1, root=ROOT_MARK)]) == [("OK", "")]
    link(queue, A)
    a = queue.take_one("one")
    assert queue.publish("one", [delivery(a, 1, root=ROOT_MARK)]) == [("OK", B)]


# --- leave ---


def test_leave_finished(queue: Driver, agents: tuple[str, str]) -> None:
    queue.discover([Newcomer(A, b"", ("/x",))], 0)
    leased = queue.take_one("one")
    queue.send("one", delivery(leased, 1))
    assert queue.leave("one", leased, "finished", detail=1, report=b"ended")
    assert queue.state(A) == "finished"
    assert queue.checkpoint(A) == ([], [], None)
    assert queue.held("one") == {}
    assert [fields[b"r"] for _, fields in queue.raw.xrange(BASE + "results")] == [b"record 1.0", b"ended"]
    assert queue.take("two") == []
    with pytest.raises(StaleLeaseError):
        queue.leave("one", leased, "finished", report=b"ended")
    assert queue.depth().records == 2


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("how", ["returned", "suspended", "later"])
def test_leave_unfinished(queue: Driver, agents: tuple[str, str], how: str, published: bool) -> None:
    queue.add(A)
    leased = queue.take_one("one")
    if published:
        queue.send("one", delivery(leased, 1))
    due = queue.server_ms() + 60_000
    queue.leave("one", leased, how, due_ms=due if how == "later" else 0, reason="rests")
    unfinished = "suspended" if published else "waiting"
    if how == "later":
        assert queue.state(A) == "later"
        assert queue.due("site", 9) == [(A, due, "rests")]
        assert queue.take("two") == []
        assert queue.depth().open == 0
        queue.pass_time(60_001)
        queue.join("two", {})
    elif how == "suspended":
        assert queue.state(A) == unfinished
        queue.add(B)
        queue.fill("planner", queue.lock("planner", "planner", 10), 0, [B])
        assert queue.take_one("two").site == B, "it waits for the plan, as long as that names others"
    else:
        assert queue.state(A) == unfinished
    again = queue.take_one("two")
    assert (again.site, again.suspended) == (A, published)
    assert queue.due("site", 9) == []
    assert queue.details(A)["why"] == ""


def test_leave_tells_how_much_is_known_and_done(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(A, B)
    a, b = queue.take("one", 2)
    assert queue.raw.hget(bucket(A), A).decode() == f"w - {a.token} one site", "no byte before the first"
    queue.leave("one", a, "returned", known=12, done=5)
    queue.leave("one", b, "finished")
    assert figures(queue, A) == (12, 5)
    assert figures(queue, B) == (0, 0)
    again = queue.take_one("two")
    record = queue.record(A)
    assert (record.known, record.done, record.token, record.agent) == (12, 5, again.token, "two")
    queue.leave("two", again, "returned")
    assert figures(queue, A) == (12, 5), "whoever knows nothing of it says nothing"
    queue.plan_work(A, "recheck", queue.server_ms())
    queue.leave("two", queue.take_one("two", "recheck"), "returned", known=1, done=1)
    assert figures(queue, A) == (12, 5), "another work has no frontier"
    queue.leave("two", queue.take_one("two"), "finished", known=20, done=20)
    assert figures(queue, A) == (20, 20)
    queue.discover([Newcomer(A, b"")], 0, again=True)
    assert figures(queue, A) == (20, 0), "walked anew, nothing is done"


def test_what_is_blocked_and_resumed_has_nothing_done(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(A)
    leased = queue.take_one("one")
    queue.send("one", delivery(leased, 1))
    queue.leave("one", leased, "returned", known=12, done=5)
    queue.order(A, "pause")
    queue.order(A, "resume")
    assert figures(queue, A) == (12, 5)
    queue.order(A, "block")
    queue.order(A, "resume")
    assert figures(queue, A) == (12, 0)


def test_a_site_is_mended_as_it_was_looked_at(queue: Driver) -> None:
    queue.join("one", {})
    queue.add(A, B)
    for leased in queue.take("one", 2):
        queue.send("one", delivery(leased, 1, known=9, done=9, done_hash=5))
        queue.leave("one", leased, "finished", known=9, done=9, done_hash=5)
    found = queue.record(A)
    assert not queue.mend(found._replace(done=8), b"checkpoint", 7, 3), "it is not what was looked at"
    assert queue.record(A) == found
    assert queue.mend(found, b"checkpoint", 7, 3)
    assert queue.record(A) == found._replace(state="suspended", done=7, done_hash=3)
    queue.order(B, "pause")
    assert queue.mend(queue.record(B), b"", 0, 0)
    assert queue.state(B) == "WAITING", "it stays paused"
    leased = queue.take_one("one")
    assert (leased.site, queue.checkpoint(A)[0]) == (A, [b"checkpoint"])
    assert not queue.mend(queue.record(A), b"", 0, 0), "an agent holds it"
    queue.leave("one", leased, "returned", known=9, done=8, done_hash=4)


def figures(queue: Driver, site: str) -> tuple[int, int]:
    record = queue.record(site)
    return record.known, record.done


def bucket(site: str) -> str:
    return BASE + "sites:" + sha1(site.encode()).hexdigest()[:4]


def test_a_returned_site_may_keep_its_distance(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(A)
    leased = queue.take_one("one")
    queue.leave("one", leased, "returned", due_ms=queue.server_ms() + HALF)
    assert queue.depth().open == 1
    queue.fill("planner", queue.lock("planner", "planner", 10), 0, [A])
    queue.order(A, "resume")
    assert queue.take("two") == [], "whatever else names it"
    queue.pass_time(HALF + 1)
    assert queue.take_one("two").site == A


def test_due_times_are_milliseconds_of_the_server(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(A, B)
    a, b = queue.take("one", 2)
    due = queue.server_ms() + 300
    queue.leave("one", a, "later", due_ms=due)
    queue.leave("one", b, "later", due_ms=due + 3_600_000)
    while not (taken := queue.take("two", 9)):
        assert queue.server_ms() < due + 5_000
    assert [one.site for one in taken] == [A]
    assert queue.server_ms() >= due


# --- places ---


def test_one_host_is_never_held_under_two_names(queue: Driver, agents: tuple[str, str]) -> None:
    hosts = ("h.example", "[2001:db8::1]")
    variants = ("http://{}", "https://{}", "http://{}:8080")
    queue.add(*(variant.format(host) for host in hosts for variant in variants))
    for _ in variants:
        taken = queue.take("one", 9)
        assert sorted(one.site.split("//")[1].removesuffix(":8080") for one in taken) == sorted(hosts)
        assert queue.take("two", 9) == []
        for one in taken:
            queue.leave("one", one, "finished")
    assert queue.depth().finished == 6


def test_a_host_that_is_an_address_takes_one_place_of_it(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(f"http://{ADDRESS}:1", f"http://{ADDRESS}:2", "http://named.example")
    single = queue.but(sites_per_address=1)
    leased = single.take_one("one")
    assert single.locate("one", leased, ADDRESS)
    named = single.take_one("one")
    assert named.site == "http://named.example", "the other port is the same host"
    assert not single.locate("one", named, ADDRESS)


def test_an_address_takes_so_many_sites(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(*numbered(3))
    taken = queue.take("one", 3)
    assert [queue.locate("one", one, ADDRESS) for one in taken] == [True, True, False]
    assert queue.locate("one", taken[0], ADDRESS), "asked again"
    queue.leave("one", taken[2], "parked", detail=ADDRESS)
    assert queue.take("two") == [], "its address is known now, and full"
    queue.leave("one", taken[0], "returned")
    assert queue.take("two", 9)[0].site == taken[2].site, "who waited goes first"
    assert queue.take("two", 9) == []


def test_an_address_that_empties_between_locate_and_leave_strands_nobody(
    queue: Driver, agents: tuple[str, str]
) -> None:
    queue.add(*numbered(3))
    taken = queue.take("one", 3)
    assert [queue.locate("one", one, ADDRESS) for one in taken] == [True, True, False]
    queue.leave("one", taken[0], "finished")
    queue.leave("one", taken[1], "finished")
    queue.leave("one", taken[2], "parked", detail=ADDRESS)
    assert queue.take_one("two").site == taken[2].site


def test_a_site_may_move_to_another_address(queue: Driver, agents: tuple[str, str]) -> None:
    queue.restore([Restored(site, "waiting", ADDRESS) for site in numbered(3)])
    taken = queue.take("one", 3)
    assert len(taken) == 2
    assert queue.locate("one", taken[0], OTHER)
    assert queue.take_one("two").site == numbered(3)[2]
    assert not queue.locate("one", taken[0], ADDRESS)
    assert queue.record(taken[0].site).address is None


@pytest.mark.parametrize("how", ["forget", "block", "pause", "elsewhere"])
def test_a_turn_is_not_lost_on_a_site_that_has_no_use_for_it(
    queue: Driver, agents: tuple[str, str], how: str
) -> None:
    sites = numbered(5)
    queue.restore([Restored(site, "waiting", ADDRESS) for site in sites])
    taken = queue.take("one", 9)
    first, second, third = queue.names(f"park:{ADDRESS}")
    if how == "forget":
        queue.forget(second)
        assert queue.take("two") == [], "who was given its turn waits again, at the end"
    elif how == "elsewhere":
        queue.order(first, "resume")
        moved = queue.but(sites_per_address=3).take_one("two")
        assert queue.locate("two", moved, OTHER)
        queue.leave("two", moved, "suspended")
        queue.raw.delete(BASE + "fresh")  # where it waits for the plan
        queue.raw.lpush(BASE + f"park:{ADDRESS}", first)  # an older mention of it
        assert queue.take("two") == [], "who was given its turn waits again, at the end"
    else:
        queue.order(first, how)
    queue.leave("one", taken[0], "finished")
    assert queue.take_one("two").site == (third if how in ("forget", "elsewhere") else second)


def test_a_place_on_a_host_and_one_on_an_address_wait_for_each_other(
    queue: Driver, agents: tuple[str, str]
) -> None:
    http, https = "http://h.example", "https://h.example"
    single = queue.but(sites_per_address=1)
    single.restore(
        [
            Restored(A, "waiting", ADDRESS),
            Restored(http, "waiting", ADDRESS),
            Restored(B, "waiting", ADDRESS),
            Restored(https, "waiting", OTHER),
        ]
    )
    a, other = single.take("one", 9)
    assert (a.site, other.site) == (A, https)
    single.leave("one", a, "finished")
    assert single.take_one("one").site == B, "the turn passes over the site whose host is held"
    single.leave("one", other, "finished")
    assert single.take("one", 9) == []
    audit(queue.raw)


def test_many_waiting_sites_make_a_shared_front_end(queue: Driver, agents: tuple[str, str]) -> None:
    sites = numbered(7)
    queue.restore([Restored(site, "waiting", ADDRESS) for site in sites[:6]])
    first = queue.take("one", 9)
    assert [one.site for one in first] == sites[:2]
    assert queue.names(f"park:{ADDRESS}") == sites[2:6]
    queue.restore([Restored(sites[6], "waiting", ADDRESS)])
    assert [one.site for one in queue.take("two", 9)] == sites[2:4], (
        "the fifth to wait opens the places to all"
    )
    assert whole(queue.raw).busy[ADDRESS] == 4
    for one in first:
        queue.leave("one", one, "finished")
    assert len(queue.take("one", 9)) == 2
    assert whole(queue.raw).busy[ADDRESS] == 4


def test_a_larger_limit_reaches_those_who_wait(queue: Driver, agents: tuple[str, str]) -> None:
    queue.restore([Restored(site, "waiting", ADDRESS) for site in numbered(6)])
    first = queue.take("one", 9)
    assert len(first) == 2
    queue.leave("one", first[0], "finished")
    assert len(queue.but(sites_per_address=4).take("two", 9)) == 3, "no further one has to leave for them"


def test_few_sites_that_wait_often_are_no_shared_front_end(queue: Driver, agents: tuple[str, str]) -> None:
    queue.restore([Restored(site, "waiting", ADDRESS) for site in numbered(4)])
    taken = queue.take("one", 9)
    for _ in range(10):
        queue.leave("one", taken.pop(0), "returned")
        taken += queue.take("one", 9)
        assert len(taken) == 2


# --- works ---


@pytest.mark.parametrize("work", OTHER_WORKS)
def test_works_share_the_one_lease(queue: Driver, agents: tuple[str, str], work: str) -> None:
    finished_once(queue, A)
    queue.add(B)
    now = queue.server_ms()
    assert queue.plan_work(A, work, now - 1)
    assert queue.plan_work(B, work, now - 1)
    assert not queue.plan_work(C, work, now)
    held = queue.take_one("one")
    assert held.site == B
    (leased,) = queue.take("two", 9, work)
    assert leased.site == A
    assert queue.record(A).work == work
    assert queue.state(A) == "finished"
    assert queue.take("one", 9, work) == []
    assert queue.depth().leased == 1, "only sites that are being loaded count"
    queue.leave("one", held, "finished")
    assert queue.take_one("one", work).site == B
    queue.leave("two", leased, "finished", due_ms=now + 3_600_000)
    assert queue.state(A) == "finished"
    assert queue.due(work, 9) == [(A, now + 3_600_000, "")]


def test_a_work_is_not_finished_by_paths_that_wait(queue: Driver, agents: tuple[str, str]) -> None:
    queue.discover([Newcomer(A, b"", ("/x",))], 0)
    queue.plan_work(A, "status", 1)
    assert queue.leave("one", queue.take_one("one", "status"), "finished")
    assert queue.checkpoint(A)[1] == ["/x"]
    assert queue.take_one("one").site == A


def test_a_site_passed_over_while_another_work_has_it_comes_back(
    queue: Driver, agents: tuple[str, str]
) -> None:
    queue.add(A)
    queue.plan_work(A, "recheck", 1)
    recheck = queue.take_one("one", "recheck")
    assert queue.take("two") == []
    queue.leave("one", recheck, "returned")
    assert queue.take_one("two").site == A


def test_a_site_that_falls_due_while_another_work_has_it_comes_back(
    queue: Driver, agents: tuple[str, str]
) -> None:
    queue.add(A)
    queue.leave("one", queue.take_one("one"), "later", due_ms=queue.server_ms() + HALF)
    queue.plan_work(A, "recheck", queue.server_ms())
    queue.pass_time(HALF + 1)
    recheck = queue.take_one("one", "recheck")
    assert queue.take("two") == []
    queue.leave("one", recheck, "returned")
    assert queue.take_one("two").site == A


@pytest.mark.parametrize("work", OTHER_WORKS)
def test_no_work_shortens_a_rest(queue: Driver, agents: tuple[str, str], work: str) -> None:
    queue.add(A)
    queue.leave("one", queue.take_one("one"), "returned", due_ms=queue.server_ms() + HALF)
    queue.plan_work(A, work, queue.server_ms())
    queue.order(A, "resume")  # a mention in a list
    assert queue.take("one") == queue.take("two", 9, work) == []
    queue.pass_time(LEASE_MS // 3 + 1)
    assert queue.take("one") == queue.take("two", 9, work) == []
    queue.pass_time(HALF - LEASE_MS // 3)
    queue.leave("two", queue.take_one("two", work), "finished")
    assert queue.take_one("one").site == A


@pytest.mark.parametrize("work", OTHER_WORKS)
@pytest.mark.parametrize("why", ["host", "address", "paused"])
def test_a_work_that_cannot_be_done_now_is_kept(
    queue: Driver, agents: tuple[str, str], work: str, why: str
) -> None:
    site, other = "http://h.example", "https://h.example" if why == "host" else A
    single = queue.but(sites_per_address=1)
    single.restore([Restored(site, "finished", ADDRESS), Restored(other, "waiting", ADDRESS)])
    single.plan_work(site, work, 1)
    holder = single.take_one("one")
    if why == "paused":
        single.order(site, "pause")
    assert single.take("two", 9, work) == []
    single.leave("one", holder, "finished")
    if why == "paused":
        single.order(site, "resume")
    single.pass_time(60_001)
    single.join("two", {})
    assert single.take_one("two", work).site == site


def test_a_site_parked_and_then_held_for_another_work_comes_back(
    queue: Driver, agents: tuple[str, str]
) -> None:
    queue.restore([Restored(site, "waiting", ADDRESS) for site in numbered(3)])
    taken = queue.take("one", 9)
    parked = numbered(3)[2]
    assert queue.names(f"park:{ADDRESS}") == [parked]
    queue.plan_work(parked, "recheck", 1)
    recheck = queue.but(sites_per_address=3).take_one("two", "recheck")
    for one in taken:
        queue.leave("one", one, "finished")
    assert queue.take("one", 9) == []
    queue.leave("two", recheck, "returned")
    queue.pass_time(LEASE_MS // 3 + 1)
    assert queue.take_one("one").site == parked


# --- agents that die, fall silent, part ---


def test_sites_of_a_dead_agent_come_back_by_themselves(queue: Driver, agents: tuple[str, str]) -> None:
    finished_once(queue, C)
    queue.plan_work(C, "recheck", 1)
    recheck = queue.take_one("one", "recheck")
    queue.add(*numbered(2))
    taken = queue.take("one", 2)
    queue.locate("one", taken[0], ADDRESS)
    queue.send("one", delivery(taken[0], 1))
    drop(queue, "one")
    queue.raw.config_resetstat()
    back = queue.take("two", 9)
    calls = {name.removeprefix("cmdstat_") for name in queue.raw.info("commandstats")}
    assert not {"keys", "scan", "hscan", "sscan", "zscan"} & calls
    assert {one.site: one.suspended for one in back} == {taken[0].site: True, taken[1].site: False}
    assert queue.take_one("two", "recheck").site == recheck.site
    assert [agent["agent"] for agent in queue.agents()] == ["two"]
    with pytest.raises(SessionGoneError):
        queue.renew("one", 0)


@pytest.mark.parametrize("end", ["killed", "parted"])
@pytest.mark.parametrize(("delay", "until"), [(HALF, 0), (100, HALF), (HALF, 100)])
def test_a_dead_agent_s_site_is_not_asked_before_its_time(
    queue: Driver, agents: tuple[str, str], delay: int, until: int, end: str
) -> None:
    queue.add(A, B)
    a, b = queue.take("one", 2)
    began = queue.server_ms()
    until_ms = began + until if until else 0
    assert queue.send("one", delivery(a, 1, delay_ms=delay, until_ms=until_ms), delivery(b, 1)) == [
        "OK",
        "OK",
    ]
    end_of(queue, "one", end)
    assert [one.site for one in queue.take("two", 9)] == [B]
    ((site, due, _),) = queue.due("site", 9)
    assert site == A
    assert began + HALF <= due + 10 <= queue.server_ms() + HALF + 10
    depth = queue.depth()
    assert (depth.suspended, depth.later, depth.open) == (1, 0, 2), "somebody could have it soon"
    queue.fill("planner", queue.lock("planner", "planner", 10), 0, [A])
    assert queue.take("two", 9) == [], "whatever else names it"
    queue.pass_time(HALF + 1)
    assert queue.take_one("two").site == A


def test_a_rest_that_is_over_holds_nobody_up(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(A)
    queue.send("one", delivery(queue.take_one("one"), 1, until_ms=queue.server_ms() - 1))
    queue.part("one")
    assert queue.take_one("two").site == A


def test_the_last_delivery_tells_the_pause(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(A)
    leased = queue.take_one("one")
    queue.send("one", delivery(leased, 1, delay_ms=HALF, until_ms=queue.server_ms() + HALF))
    assert queue.send("one", delivery(leased, 2)) == ["OK"]
    assert queue.send("one", delivery(leased, 2, delay_ms=HALF)) == ["AGAIN"]
    assert queue.send("one", delivery(leased, 9, delay_ms=HALF)) == ["GAP"]
    assert queue.held("one") == {A: leased.token}
    queue.part("one")
    assert queue.take_one("two").site == A


def test_a_dead_agent_s_paused_site_keeps_its_distance_when_resumed(
    queue: Driver, agents: tuple[str, str]
) -> None:
    queue.add(A)
    queue.send("one", delivery(queue.take_one("one"), 1, delay_ms=HALF))
    queue.order(A, "pause")
    queue.part("one")
    queue.order(A, "resume")
    assert queue.take("two") == []
    queue.pass_time(HALF + 1)
    assert queue.take_one("two").site == A


@pytest.mark.parametrize("work", OTHER_WORKS)
def test_a_dead_agent_s_site_is_not_asked_before_its_time_for_any_work(
    queue: Driver, agents: tuple[str, str], work: str
) -> None:
    queue.add(A)
    queue.plan_work(A, work, queue.server_ms())
    held = queue.take_one("one", work)
    queue.send("one", delivery(held, 1, delta=b"", delay_ms=HALF))
    end_of(queue, "one", "killed")
    assert queue.take("two", 9, work) == queue.take("two", 9) == []
    queue.pass_time(HALF + 1)
    assert queue.take_one("two").site == A


def end_of(queue: Driver, agent: str, how: str) -> None:
    """The agent ends, and nobody else has noticed yet."""
    if how == "parted":
        queue.part(agent)
    else:
        queue.raw.zadd(BASE + "agents", {agent: queue.server_ms() - 1})


@pytest.mark.parametrize("act", ["renew", "lease"])
def test_a_session_that_is_half_swept_is_gone(queue: Driver, agents: tuple[str, str], act: str) -> None:
    sites = numbered(150)
    queue.add(*sites)
    taken = queue.take("one", 150)
    queue.send("one", delivery(taken[0], 1))
    drop(queue, "one")
    hand = queue.lease("two", "recheck", 1, 0)
    assert len(queue.held("one")) == 50
    assert hand.agents == queue.depth().agents == 1
    with pytest.raises(SessionGoneError, match="one"):
        queue.renew("one", 0) if act == "renew" else queue.take("one")
    queue.pass_time(100 * LEASE_MS)
    assert queue.renew("two", 0).stop == [], "after such a silence sessions are saved"
    with pytest.raises(SessionGoneError, match="one"):
        queue.renew("one", 0)
    assert [one["expires_ms"] for one in queue.agents() if one["agent"] == "one"] == [0] * (act == "renew")
    assert len(queue.take("two", 150)) == 150
    assert queue.held("one") == {}


def test_an_agent_joins_again_while_it_is_swept(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(*numbered(150))
    queue.take("one", 150)
    drop(queue, "one")
    queue.lease("two", "recheck", 1, 0)
    queue.join("one", {})
    held = queue.held("one")
    assert len(held) == 50
    assert len(queue.take("two", 150)) == 100
    for site, token in held.items():
        queue.leave("one", Leased(site, token, False, None), "returned")
    assert len(queue.take("two", 150)) == 50


def test_a_dead_agent_with_many_sites_is_emptied_call_by_call(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(*numbered(250))
    assert len(queue.take("one", 250)) == 250
    drop(queue, "one")
    left = []
    for _ in range(3):
        queue.lease("two", "recheck", 1, 0)
        left.append(len(queue.held("one")))
    assert left == [150, 50, 0]
    assert len(queue.take("two", 250)) == 250


def test_a_late_renewal_that_nobody_forestalled_loses_nothing(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(A)
    leased = queue.take_one("one")
    queue.pass_time(2 * LEASE_MS)
    assert queue.renew("one", 0).stop == []
    assert queue.send("one", delivery(leased, 1)) == ["OK"]


@pytest.mark.parametrize("act", ["renew", "lease", "join"])
def test_after_a_silence_of_the_server_nobody_is_swept_by_the_first_to_return(
    queue: Driver, agents: tuple[str, str], act: str
) -> None:
    queue.add(A, B)
    leased = queue.take_one("one")
    queue.pass_time(100 * LEASE_MS)
    if act == "renew":
        queue.renew("two", 0)
    elif act == "join":
        queue.join("three", {})
    assert [one.site for one in queue.take("two", 9)] == [B]
    assert queue.renew("one", 0).stop == []
    assert queue.send("one", delivery(leased, 1)) == ["OK"]
    drop(queue, "one")
    assert queue.take_one("two").site == A, "once, not for ever"


def test_part_hands_back_what_is_held(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(A, B)
    queue.take("one", 2)
    queue.part("one")
    assert queue.held("one") == {}
    assert len(queue.take("two", 9)) == 2
    assert queue.depth().agents == 1
    queue.part("one")


# --- the operator ---


def test_pause_and_resume(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(A, B)
    assert queue.order(A, "pause", "asked to") == "waiting"
    assert queue.order(A, "pause") == "paused"
    assert [one.site for one in queue.take("one", 9)] == [B]
    depth = queue.depth()
    assert (depth.paused, depth.waiting, depth.open) == (1, 0, 1)
    assert queue.state(A) == "WAITING"
    assert queue.details(A)["why"] == "asked to"
    assert queue.order(A, "resume") == "paused"
    assert queue.details(A)["why"] == ""
    assert queue.take_one("one").site == A
    assert queue.order(C, "pause") is None


@pytest.mark.parametrize("order", ["pause", "block"])
def test_an_order_for_a_held_site_reaches_its_holder(
    queue: Driver, agents: tuple[str, str], order: str
) -> None:
    queue.add(A)
    leased = queue.take_one("one")
    assert queue.order(A, order) == "leased"
    assert queue.renew("two", 0).stop == []
    assert queue.renew("one", 0).stop == [A]
    assert queue.send("one", delivery(leased, 1)) == ["OK"], "what it has is still taken"
    queue.leave("one", leased, "returned")
    assert queue.renew("one", 0).stop == []
    assert queue.take("two", 9) == []
    depth = queue.depth()
    assert (depth.paused, depth.blocked) == ((1, 0) if order == "pause" else (0, 1))
    assert queue.checkpoint(A)[0] == ([b"delta 1"] if order == "pause" else [])
    queue.order(A, "resume")
    again = queue.take_one("two")
    assert again.suspended == (order == "pause")


def test_orders_are_told_to_the_tables(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(A)
    for order in ("pause", "resume", "block"):
        queue.order(A, order, record=order.encode())
        queue.order(B, order, record=b"of an unknown site")
    assert queue.order(A, "pause", record=b"nothing left to pause") == "blocked"
    assert queue.state(A) == "blocked"
    queue.order(A, "resume", record=b"resume")
    assert queue.set_budget(A, 7, record=b"budget")
    assert queue.set_budget(A, None, record=b"no budget")
    assert not queue.set_budget(B, 7, record=b"of an unknown site")
    assert queue.details(B)["budget"] is None
    leased = queue.take_one("one")
    assert queue.forget(A, record=b"held") == -1
    queue.leave("one", leased, "finished")
    assert queue.forget(A, record=b"forget") == 1
    assert queue.forget(A, record=b"of an unknown site") == 0
    told = [fields[b"r"] for _, fields in queue.raw.xrange(BASE + "results")]
    opened = decode({b"v": VERSION, b"r": told.pop(4)})[0]
    assert isinstance(opened, SiteOpened)
    assert (opened.site, opened.known, opened.pending) == (A, 0, 0)
    assert told == [b"pause", b"resume", b"block", b"resume", b"budget", b"no budget", b"forget"]


def test_an_order_that_is_taken_back_reaches_nobody(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(A)
    leased = queue.take_one("one")
    queue.order(A, "block")
    queue.order(A, "resume")
    assert queue.renew("one", 0).stop == []
    queue.leave("one", leased, "returned")
    assert queue.take_one("two").site == A


def test_what_is_blocked_and_resumed_does_not_wait_for_an_old_due_time(
    queue: Driver, agents: tuple[str, str]
) -> None:
    queue.add(A)
    queue.leave("one", queue.take_one("one"), "later", due_ms=queue.server_ms() + HALF)
    queue.order(A, "block")
    assert queue.due("site", 9) == []
    queue.order(A, "resume")
    assert queue.take_one("two").site == A


def test_a_block_that_is_taken_back_while_another_work_has_the_site_changes_nothing(
    queue: Driver, agents: tuple[str, str]
) -> None:
    queue.add(A)
    leased = queue.take_one("one")
    queue.send("one", delivery(leased, 1))
    queue.leave("one", leased, "returned")
    queue.plan_work(A, "recheck", 1)
    recheck = queue.take_one("two", "recheck")
    queue.order(A, "block")
    queue.order(A, "resume")
    queue.leave("two", recheck, "returned")
    assert queue.take_one("one").suspended


def test_a_paused_site_that_rests_keeps_its_due_time(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(A)
    leased = queue.take_one("one")
    queue.order(A, "pause")
    queue.leave("one", leased, "later", due_ms=queue.server_ms() + HALF)
    assert queue.state(A) == "LATER"
    queue.order(A, "resume")
    assert queue.state(A) == "later"
    assert queue.take("two") == []
    queue.pass_time(HALF + 1)
    assert queue.take_one("two").site == A


def test_a_blocked_site_leaves_no_checkpoint_behind_a_dead_agent(
    queue: Driver, agents: tuple[str, str]
) -> None:
    queue.discover([Newcomer(A, b"", ("/x",))], 0)
    leased = queue.take_one("one")
    queue.send("one", delivery(leased, 1))
    queue.order(A, "block")
    drop(queue, "one")
    assert queue.take("two", 9) == []
    assert queue.checkpoint(A) == ([], [], None)
    queue.order(A, "resume")
    assert not queue.take_one("two").suspended


def test_forget(queue: Driver, agents: tuple[str, str]) -> None:
    queue.discover([Newcomer(A, b"", ("/x",))], 0)
    leased = queue.take_one("one")
    assert queue.forget(A) == -1
    queue.send("one", delivery(leased, 1))
    queue.set_budget(A, 5)
    queue.leave("one", leased, "later", due_ms=queue.server_ms() + HALF, reason="rests")
    queue.plan_work(A, "recheck", queue.server_ms() + HALF)
    assert queue.forget(A) == 1
    assert queue.forget(A) == 0
    assert queue.record(A) is None
    gone = {
        "why": "",
        "budget": None,
        "journal_entries": 0,
        "paths_given": 0,
        "paths_offered": 0,
        "due_ms": {},
    }
    assert queue.details(A) == gone
    assert queue.depth().added == 0
    queue.add(A)
    assert queue.take_one("one").suspended is False


def test_a_site_may_have_a_budget_of_its_own(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(A)
    queue.set_budget(A, 7)
    leased = queue.take_one("one")
    assert leased.more
    assert queue.checkpoint(A) == ([], [], 7)
    queue.leave("one", leased, "returned")
    queue.set_budget(A, None)
    assert not queue.take_one("one").more
    assert queue.checkpoint(A)[2] is None


def test_paths_may_be_given_to_a_held_site(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(A)
    leased = queue.take_one("one")
    assert queue.offer([Offer(A, ["/x", "/y"])]) == [0]
    assert not queue.leave("one", leased, "finished")
    assert queue.checkpoint(A)[1] == ["/", "/x\n/y"]
    assert queue.leave("one", leased, "finished", detail=2)


def kept(queue: Driver) -> dict[bytes, bytes]:
    """The server's data as they are now."""
    return {key: queue.raw.dump(key) for key in queue.raw.keys("*")}


def set_back(queue: Driver, data: dict[bytes, bytes]) -> None:
    """As a power cut or a failover leaves the server."""
    queue.raw.flushdb()
    for key, value in data.items():
        queue.raw.restore(key, 0, value)


def test_an_agent_whose_offers_the_server_lost_has_to_start_over(
    queue: Driver, agents: tuple[str, str]
) -> None:
    """Before it publishes the page that names them, and before it is given a page to fetch again."""
    queue.add(A, B)
    leased = queue.take_one("one")
    queue.offer([Offer(B, ["/x"])], agent="one")
    data = kept(queue)
    queue.offer([Offer(B, ["/y"])], agent="one")
    queue.offer([Offer(B, ["/z"])], agent="two")
    queue.send("one", delivery(leased, 1))
    set_back(queue, data)
    before = queue.depth().records
    for call in (
        lambda: queue.send("one", delivery(leased, 1)),
        lambda: queue.take("one"),
        lambda: queue.offer([Offer(B, ["/x"])], agent="one"),
        lambda: queue.take("two"),
    ):
        with pytest.raises(QueueOlderError):
            call()
    assert queue.depth().records == before
    assert queue.is_older("one")
    queue.part("one")
    queue.join("one", {})
    assert not queue.is_older("one")
    assert {one.site for one in queue.take("one", 2)} == {A, B}
    assert queue.given(B, 0) == ["/", "/x"]
    assert queue.is_older("two"), "each agent starts over by itself"


def test_offers_that_the_server_has_hold_nobody_up(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(A, B)
    queue.offer([Offer(B, ["/x"])], agent="one")
    data = kept(queue)
    leased = queue.take_one("one")
    set_back(queue, data)
    assert not queue.is_older("one")
    assert queue.send("one", delivery(leased, 1)) == ["STALE"]
    assert queue.take_one("one").site == A
    # An agent that was swept has no session to lose offers of.
    queue.offer([Offer(B, ["/x"])], agent="nobody")
    assert queue.raw.exists(BASE + "agent:nobody") == 0


def test_a_site_whose_last_delivery_the_server_lost_is_not_finished(
    queue: Driver, agents: tuple[str, str]
) -> None:
    queue.add(A)
    leased = queue.take_one("one")
    queue.send("one", delivery(leased, 1))
    data = kept(queue)
    queue.send("one", delivery(leased, 2))
    set_back(queue, data)
    with pytest.raises(StaleLeaseError):
        queue.leave("one", leased, "finished", seq=2)
    assert queue.leave("one", leased, "returned", seq=1)


def test_restore_brings_back_what_is_not_known(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(A)
    many = [Restored(site, "finished", ADDRESS) for site in numbered(DISCOVER_BATCH + 1)]
    assert (
        queue.restore([Restored(A, "finished", OTHER), Restored(B, "waiting", OTHER), *many])
        == DISCOVER_BATCH + 2
    )
    assert queue.state(A) == "waiting"
    assert queue.record(B).address == OTHER
    assert [one.site for one in queue.take("one", 9)] == [A, B]
    assert queue.depth().finished == DISCOVER_BATCH + 1


def test_restore_brings_back_an_unfinished_site_with_its_checkpoint(
    queue: Driver, agents: tuple[str, str]
) -> None:
    for checkpoint in (b"of a rebuild that died", b"checkpoint"):
        queue.give_checkpoint(A, checkpoint)
    assert queue.restore([Restored(A, "suspended", known=9), Restored(B, "waiting")]) == 2
    assert queue.depth().suspended == 1
    leased = queue.take("one", 9)
    assert [(one.site, one.suspended) for one in leased] == [(B, False), (A, True)]
    assert queue.checkpoint(A)[0] == [b"checkpoint"]


def test_restore_brings_back_what_the_operator_wanted(queue: Driver, agents: tuple[str, str]) -> None:
    paused, blocked, alias, done = numbered(4)
    rows = [
        Restored(A, "waiting", known=9, done=4),
        Restored(paused, "waiting", paused=True, why="asked to"),
        Restored(blocked, "blocked", budget=0, why="its owner asked"),
        Restored(alias, "alias", why=A),
        Restored(done, "finished", paused=True, known=3, done=3, budget=7),
    ]
    assert queue.known([A, B, alias]) == set()
    assert queue.restore(rows) == 5
    assert queue.known([A, B, alias]) == {A, alias}
    assert [queue.state(one.site) for one in rows] == ["waiting", "WAITING", "blocked", "alias", "FINISHED"]
    assert [queue.details(one.site)["why"] for one in rows] == ["", "asked to", "its owner asked", A, ""]
    assert [queue.details(one.site)["budget"] for one in rows] == [None, None, 0, None, 7]
    assert [figures(queue, one.site) for one in rows] == [(9, 4), (0, 0), (0, 0), (0, 0), (3, 3)]
    assert queue.names("fresh") == [A]
    assert [one.site for one in queue.take("one", 9)] == [A]
    queue.order(paused, "resume")
    queue.order(blocked, "resume")
    assert {one.site for one in queue.take("one", 9)} == {paused, blocked}


# --- the plan ---


def test_fill_writes_an_hour_in_order(queue: Driver, agents: tuple[str, str]) -> None:
    number = queue.lock("planner", "planner", 10)
    assert queue.fill("planner", number, 7, [A, B]) == 2
    assert queue.fill("planner", number, 7, [C, B]) == 2, "anew, not behind it"
    assert queue.names("hour:7") == [C, B]
    many = numbered(FILL_BATCH + 1)
    assert queue.fill("planner", number, 8, many) == len(many)
    assert queue.names("hour:8") == many
    assert queue.names("hour:7") == [C, B], "the next hour is written while this one goes on"
    assert queue.hour_length(8) == len(many)
    assert queue.fill("planner", number, 7, []) == 0
    assert queue.names("hour:7") == []
    assert queue.fill("planner", number, 7, [A], lists="probe") == 1
    assert (queue.names("probe:7"), queue.names("hour:7")) == ([A], [])


def test_the_last_planned_hour_is_known_to_the_next_planner(queue: Driver, agents: tuple[str, str]) -> None:
    assert queue.planned_hour() is None
    number = queue.lock("planner", "planner", 10)
    queue.tell_planned("planner", number, 7)
    assert queue.planned_hour() == 7
    with pytest.raises(LockLostError):
        queue.tell_planned("other", number, 8)
    assert queue.planned_hour() == 7


def test_a_site_about_to_be_suspended_keeps_its_place_in_the_hour(
    queue: Driver, agents: tuple[str, str]
) -> None:
    queue.add(A, B, C)
    held = queue.take_one("one")
    queue.send("one", delivery(held, 1))
    number = queue.lock("planner", "planner", 10)
    queue.fill("planner", number, 7, [held.site, B, C])
    queue.suspend("planner", number, [held.site])
    assert queue.take_one("two", hour=7).site == B, "its holder has its last page in flight"
    assert queue.names("hour:7") == [held.site, C]
    queue.leave("one", held, "suspended")
    assert queue.take_one("two", hour=7).site == held.site


def test_a_probed_site_goes_before_the_hour_and_is_marked(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(A, B)
    number = queue.lock("planner", "planner", 10)
    queue.fill("planner", number, 7, [A])
    queue.fill("planner", number, 7, [B], lists="probe")
    assert [(one.site, one.probe) for one in queue.take("one", 2, hour=7)] == [(B, True), (A, False)]


def test_suspend_reaches_the_holder_of_a_site_that_is_loaded(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(A, B)
    number = queue.lock("planner", "planner", 10)
    held = queue.take_one("one")
    queue.plan_work(B, "recheck", 1)
    queue.lease("two", "recheck", 1, 0)
    assert queue.suspend("planner", number, [A, B, C]) == 1, "another work goes on, and C is nobody's"
    assert (queue.renew("one", 0).suspend, queue.renew("one", 0).stop) == ([A], [])
    assert queue.renew("two", 0).suspend == []
    queue.send("one", delivery(held, 1))
    queue.leave("one", held, "suspended")
    assert queue.renew("one", 0).suspend == []
    with pytest.raises(LockLostError):
        queue.suspend("other", number, [A])


def test_an_idle_slot_takes_a_suspended_site_that_no_list_names(
    queue: Driver, agents: tuple[str, str]
) -> None:
    queue.add(A, B)
    held = queue.take_one("one")
    queue.send("one", delivery(held, 1))
    queue.leave("one", held, "suspended")
    assert [one.site for one in queue.take("two", 2)] == [B, A], "after those that stand in a list"


def test_how_far_a_held_site_is_can_be_seen_and_outlives_its_holder(
    queue: Driver, agents: tuple[str, str]
) -> None:
    queue.add(A)
    held = queue.take_one("one")
    assert queue.running() == {A: (0, 0)}
    queue.send("one", delivery(held, 1, known=9, done=4))
    assert queue.running() == {A: (9, 4)}
    queue.part("one")
    record = queue.record(A)
    assert (record.known, record.done) == (9, 4)


def test_an_hour_begun_by_a_planner_that_died_does_not_stay(queue: Driver) -> None:
    number = queue.lock("planner", "planner", 10)
    queue.raw.delete(BASE + "planner")
    queue.raw.set(BASE + "planner", f"planner {number}")
    queue._call("fill", "planner", number, "hour", 7, 7200, 1, A)
    assert 0 < queue.raw.ttl(BASE + "hour:7") <= 7200


def test_one_planner_at_a_time(queue: Driver) -> None:
    first = queue.lock("planner", "planner", 10)
    assert first > 0
    assert queue.lock("planner", "other", 10) == 0
    assert queue.lock("planner", "planner", 10) == first, "it holds on"
    queue.fill("planner", first, 7, [A])
    assert 0 < queue.raw.pttl(BASE + "planner") <= 10_000
    queue.raw.pexpire(BASE + "planner", 0)
    with pytest.raises(LockLostError, match="planner"):
        queue.fill("planner", first, 7, [B])
    second = queue.lock("planner", "other", 10)
    assert second > first
    with pytest.raises(LockLostError):
        queue.fill("planner", first, 7, [B])
    with pytest.raises(LockLostError):
        queue.fill("other", first, 7, [B])
    assert queue.names("hour:7") == [A]
    queue.fill("other", second, 7, [B])
    assert queue.names("hour:7") == [B]


# --- the scripts themselves ---


def test_scripts_survive_a_flush_and_a_restart(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(A)
    queue.raw.script_flush()
    assert queue.take_one("one").site == A
    queue.raw.script_flush()
    with pytest.raises(SessionGoneError):
        queue.renew("nobody", 0)
    queue.raw.script_flush()
    with pytest.raises(StaleLeaseError):
        queue.leave("two", Leased(A, "1", False, None), "returned")
    queue.raw.bgrewriteaof()
    queue.server.kill()
    with pytest.raises(RedisConnectionError):
        queue.depth()
    queue.server.start()
    with suppress(RedisConnectionError):
        queue.depth()  # a connection of before may say so once more
    assert queue.renew("one", 0).stop == []
    assert set(queue.held("one")) == {A}


def test_nothing_is_sent_twice_when_a_reply_is_lost(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(A, B)
    with Deaf(queue.server) as relay, driver(relay) as far:
        far.depth()
        relay.deaf = True
        with pytest.raises(RedisConnectionError):
            far.lease("one", "site", 1, 0)
    assert set(queue.held("one")) == {A}, "taken once, and told by `held`"


class Deaf:
    """A way to the server that can lose replies: what is asked arrives, then the connection ends."""

    def __init__(self, server: RunningServer) -> None:
        self.deaf = False
        self.client = server.client
        self._path = server.url.removeprefix("unix://")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._serve)]

    def __enter__(self) -> Deaf:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self._threads.append(threading.Thread(target=self._carry, args=(near,)))
                self._threads[-1].start()

    def _carry(self, near: socket.socket) -> None:
        with near, socket.socket(socket.AF_UNIX) as far, suppress(OSError):
            far.connect(self._path)
            while True:
                # A call may come in several parts.
                for ready in select([near, far], [], [])[0]:
                    data = ready.recv(1 << 20)
                    if not data or (self.deaf and ready is far):
                        return
                    (far if ready is near else near).sendall(data)


def test_an_unknown_operation_is_refused(queue: Driver) -> None:
    with pytest.raises(ResponseError, match="no such operation: fetch"):
        queue._call("fetch", "one")
    assert queue.raw.dbsize() == 0


def test_all_keys_share_one_tag(queue: Driver, agents: tuple[str, str]) -> None:
    everything(queue)
    keys = [key.decode() for key in queue.raw.scan_iter(count=1000)]
    assert len({key.removeprefix(BASE).partition(":")[0] for key in keys}) >= 15
    assert [key for key in keys if not key.startswith(BASE)] == []


def test_depth_is_a_full_recount(queue: Driver, agents: tuple[str, str]) -> None:
    everything(queue)
    found = audit(queue.raw)
    depth = queue.depth()._asdict()
    assert depth.pop("records") == queue.raw.xlen(BASE + "results") > 0
    assert depth.pop("agents") == 2
    assert depth.pop("coordinated") == 0
    assert depth == {name: found.counts.get(name, 0) for name in depth}
    assert min(depth.values()) > 0, f"not every state occurs: {depth}"
    states = {one.site: one.state for one in queue.records()}
    assert len(states) == depth["added"]


# --- what somebody else wrote -----------------------------------------------------------------------------


def harm(queue: Driver, site: str, text: str | bytes = "garbage") -> bytes:
    """Another text in the place of a site's record; what it was."""
    record: bytes = queue.raw.hget(bucket(site), site)
    queue.raw.hset(bucket(site), site, text)
    return record


def names_it(site: str, text: str = "garbage") -> AbstractContextManager[object]:
    told = f"{bucket(site)} in Redis has '{text}' for '{site}'; expected sites' records"
    return pytest.raises(BrokenRecordError, match=re.escape(told))


NO_RECORDS = {
    "garbage": "garbage",
    "": "",
    "q -": "q -",
    "w": "w",
    "w - 1/many": "w - 1/many",
    "w - 1/2 token agent": "w - 1/2 token agent",
    b"w \xff": r"w \xff",
    b"w - \xff a site": r"w - \xff a site",
}


@pytest.mark.parametrize(("text", "shown"), NO_RECORDS.items())
def test_what_is_no_record_is_met_by_every_agent_and_not_lost(
    queue: Driver, agents: tuple[str, str], text: str | bytes, shown: str
) -> None:
    queue.add(A, B)
    record = harm(queue, A, text)
    for agent in (*agents, *agents):
        with names_it(A, shown):
            queue.take(agent)
    with names_it(A, shown):
        queue.order(A, "pause")
    queue.raw.hset(bucket(A), A, record)
    assert {leased.site for leased in queue.take("one", 2)} == {A, B}


@pytest.mark.parametrize("leaves", ["swept", "parts"])
def test_an_agent_that_is_gone_had_what_is_no_record(
    queue: Driver, agents: tuple[str, str], leaves: str
) -> None:
    queue.add(A, B)
    queue.take("one", 2)
    harm(queue, A)
    if leaves == "parts":
        queue.part("one")
    else:
        drop(queue, "one")
    for _ in range(2):
        with names_it(A):
            queue.take("two", 2)
    assert [agent["agent"] for agent in queue.agents()] == ["two"], "its session is over"
    assert A in queue.names("again:site")
    queue.reset()


def test_who_holds_what_is_no_record_cannot_give_it_back(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(A)
    leased = queue.take_one("one")
    record = harm(queue, A)
    for call in (
        lambda: queue.locate("one", leased, ADDRESS),
        lambda: queue.leave("one", leased, "finished"),
        lambda: queue.add(A),
    ):
        with names_it(A):
            call()
    queue.renew("one", 0)
    queue.raw.hset(bucket(A), A, record)
    assert queue.leave("one", leased, "finished")


def test_a_root_of_what_is_no_record_holds_up_nobody_else(queue: Driver, agents: tuple[str, str]) -> None:
    queue.add(A, B)
    one, two = queue.take("one", 2)
    assert queue.send("one", delivery(one, 1, root="192.0.2.1 abc")) == ["OK"]
    record = harm(queue, one.site)
    assert queue.send("one", delivery(two, 1, root="192.0.2.1 abc")) == ["OK"]
    queue.raw.hset(bucket(one.site), one.site, record)


@pytest.mark.parametrize(
    "about",
    [
        "notjson",
        "[]",
        b"\xff",
        '{"pid": "abc"}',
        '{"pid": -1}',
        '{"pid": 99999999999999999999}',
        '{"works": 5}',
        '{"works": [[]]}',
        '{"slots": "two"}',
        '{"hour_seconds": 0}',
    ],
)
def test_what_an_agent_did_not_say_of_itself_is_named(
    queue: Driver, agents: tuple[str, str], about: str | bytes
) -> None:
    queue.raw.hset(BASE + "agent:one", "about", about)
    for call in (queue.agents, queue.works_done):
        with pytest.raises(BrokenRecordError, match=re.escape(f"{BASE}agent:one in Redis has '")):
            call()
    assert queue.at_work() == ["one", "two"]


def test_what_an_agent_says_takes_no_other_fact_s_place(queue: Driver) -> None:
    queue.join("one", {"agent": "two", "held": "many", "pid": 5})
    (agent,) = queue.agents()
    assert (agent["agent"], agent["held"], agent["pid"]) == ("one", 0, 5)


def test_an_agent_s_name_that_is_none_is_named(queue: Driver, agents: tuple[str, str]) -> None:
    queue.raw.zadd(BASE + "agents", {b"\xff": 99_999_999_999_999})
    for call in (queue.agents, queue.works_done, queue.holdings, queue.running):
        with pytest.raises(
            BrokenRecordError, match=re.escape(f"{BASE}agents in Redis has '\\xff'; expected")
        ):
            call()
    assert set(queue.at_work()) == {"one", "two", r"\xff"}
    queue.raw.zrem(BASE + "agents", b"\xff")


@pytest.mark.parametrize(("site", "text"), [(A, ""), (A, b"\xff"), (b"\xff", "1 0 0 0 0/0")])
def test_what_an_agent_cannot_hold_is_named(
    queue: Driver, agents: tuple[str, str], site: str | bytes, text: str | bytes
) -> None:
    queue.raw.hset(BASE + "held:one", site, text)
    with pytest.raises(BrokenRecordError, match=re.escape(f"{BASE}held:one in Redis has '")):
        queue.held("one")
    queue.raw.delete(BASE + "held:one")


def test_a_name_that_is_none_is_named_by_its_key(queue: Driver) -> None:
    queue.raw.zadd(BASE + "wake:status", {b"\xff": 1})
    queue.raw.zadd(BASE + "undecided", {b"\xff": 1})
    queue.raw.sadd(BASE + "parked", b"\xff")
    queue.raw.rpush(BASE + "hour:5", b"\xff")
    for name, call in {
        "wake:status": lambda: queue.due("status", 5),
        "undecided": lambda: queue.to_decide(5),
        "parked": queue.parked,
        "hour:5": lambda: queue.hour_line(5, 5),
    }.items():
        with pytest.raises(BrokenRecordError, match=re.escape(f"{BASE}{name} in Redis has '\\xff'")):
            call()
    queue.reset()


def test_a_number_that_is_none_is_named_by_its_key(queue: Driver) -> None:
    queue.raw.hset(BASE + "spent:7", f"bytes {A}", "many")
    queue.raw.hset(BASE + "count", "planned", "never")
    with pytest.raises(
        BrokenRecordError, match=re.escape(f"{BASE}spent:7 in Redis has 'many' for 'bytes {A}'")
    ):
        queue.spent(7, [A])
    with pytest.raises(BrokenRecordError, match=re.escape(f"{BASE}count in Redis has 'never' for 'planned'")):
        queue.planned_hour()
    queue.reset()


@pytest.mark.parametrize("text", ["abc", "", "1.5"])
@pytest.mark.parametrize("name", COUNTED)
def test_a_count_that_is_none_is_named(queue: Driver, name: str, text: str) -> None:
    queue.raw.hset(BASE + "count", name, text)
    with pytest.raises(BrokenRecordError, match=re.escape(f"{BASE}count in Redis has '{text}' for '{name}'")):
        queue.depth()
    queue.raw.hdel(BASE + "count", name)


def test_reset_leaves_nothing_and_touches_nothing_else(queue: Driver, agents: tuple[str, str]) -> None:
    everything(queue)
    queue.raw.set("another:{0}:count", 1)
    keys = queue.raw.dbsize()
    assert queue.reset() == keys - 1
    assert queue.raw.keys() == [b"another:{0}:count"]


def everything(queue: Driver) -> None:
    """Sites in every state, in every list."""
    sites = numbered(20)
    queue.restore(
        [Restored(site, "waiting", ADDRESS if number > 15 else None) for number, site in enumerate(sites)]
    )
    queue.discover([Newcomer(A, b"record", ("/x",)), Newcomer(B, b"")], 0)
    queue.claim_prefix("site")
    queue.set_budget(A, 3)
    taken = queue.take("one", 8)
    for number, leased in enumerate(taken):
        queue.send("one", delivery(leased, 1, root=f"root {min(number, 2)}"))
    later = queue.server_ms() + 60_000
    queue.leave("one", taken[0], "finished")
    queue.leave("one", taken[1], "suspended")
    queue.leave("one", taken[2], "later", due_ms=later, reason="rests")
    queue.leave("one", taken[3], "finished")
    queue.restore([Restored(C, "alias", why=sites[2])])
    queue.order(taken[4].site, "pause")
    queue.order(sites[9], "pause")
    queue.order(sites[10], "block")
    queue.plan_work(sites[0], "recheck", later)
    queue.leave("one", taken[5], "returned")
    queue.fill("planner", queue.lock("planner", "planner", 60), 0, sites[16:])
    assert len(queue.take("two", 4)) == 4
    queue.renew("one", 5)


def finished_once(queue: Driver, site: str) -> None:
    queue.add(site)
    queue.leave("one", queue.take_one("one"), "finished")


def test_a_site_that_is_named_again_while_it_is_parked_waits_once(
    queue: Driver, agents: tuple[str, str]
) -> None:
    sites = numbered(4)
    queue.restore([Restored(site, "waiting", ADDRESS) for site in sites])
    assert len(queue.take("one", 9)) == 2
    waiting = queue.names(f"park:{ADDRESS}")
    assert queue.parked() == set(waiting) and len(waiting) == 2
    number = queue.lock("planner", "planner", 10)
    for _ in range(5):
        queue.fill("planner", number, 7, waiting)
        assert queue.take("two", 9, hour=7) == []
    assert queue.names(f"park:{ADDRESS}") == waiting
    assert queue.raw.hget(BASE + "crowd", ADDRESS) == b"2", "five times two are no crowd"
