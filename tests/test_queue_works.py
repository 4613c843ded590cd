"""The queue of works beside loading: what is packed, when it is due, and finished sites that are opened again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from crawler.queue.errors import LockLostError
from crawler.queue.jobs import HELD_UP_MS
from crawler.queue.sites import ENTRY_CHARACTERS, Newcomer, Offer, read_entry
from tests.queue_driver import BASE, Driver, delivery, driver
from tests.servers import RunningServer

A, B, C = "https://a.example", "https://b.example", "https://c.example"
LEASE_MS = 6_000


@pytest.fixture
def queue(valkey: RunningServer) -> Iterator[Driver]:
    with driver(valkey, lease_seconds=LEASE_MS / 1000) as made:
        made.join("one", {"works": ["recheck"]})
        made.join("two", {"works": ["site", "revive"]})
        yield made


def finished(queue: Driver, *sites: str) -> None:
    queue.add(*sites)
    for _ in sites:
        queue.leave("two", queue.take_one("two"), "finished", known=3, done=3)


def test_a_rest_that_is_over_makes_no_site_due(queue: Driver) -> None:
    finished(queue, A, B)
    now_ms = int(queue.server_seconds() * 1000)
    queue.fall_due("site", {A: now_ms - 1})
    assert queue.dues() == {}
    queue.fall_due("site", {B: now_ms + 600_000})
    queue.fall_due("recheck", {A: 1})
    assert queue.dues() == {
        "site": {"sites": 1, "next_ms": now_ms + 600_000},
        "recheck": {"sites": 1, "next_ms": 1},
    }


def test_a_packed_work_is_leased_with_what_was_packed_and_not_before(queue: Driver) -> None:
    finished(queue, A, B)
    queue.plan_work(A, "recheck", 1)
    assert queue.lease("one", "recheck", 9, 0, packed=True).sites == []
    assert queue.pack(A, "recheck", b"asking")
    assert queue.packet(A, "recheck") == b"asking"
    assert queue.packet(A, "revive") == b""
    queue.pass_time(600)
    (leased,) = queue.lease("one", "recheck", 9, 0, packed=True).sites
    assert (leased.site, leased.work) == (A, "recheck")
    assert not queue.pack(A, "recheck", b"anew"), "it is in hand for just that"
    assert queue.pack(A, "revive", b"other")
    queue.leave("one", leased, "finished")
    assert queue.packet(A, "recheck") == b"", "it goes with the lease"
    assert queue.packet(A, "revive") == b"other"
    assert queue.due("recheck", 9) == []
    assert not queue.pack("https://nobody.example", "recheck", b"x")


def test_a_dead_agent_s_asking_goes_too_and_its_site_is_due_at_once(queue: Driver) -> None:
    finished(queue, A)
    queue.plan_work(A, "recheck", 1)
    queue.pack(A, "recheck", b"asking")
    (_,) = queue.lease("one", "recheck", 1, 0, packed=True).sites
    for _ in range(4):  # in steps, since the first to come after a silence forgives it
        queue.pass_time(LEASE_MS // 3)
        queue.renew("two", 0)
    queue.lease("two", "site", 0, 0)
    assert queue.packet(A, "recheck") == b""
    assert queue.to_pack("recheck", queue.server_ms() + 1, 9) == [A]


def test_who_asks_for_none_hears_how_many_could_be_had(queue: Driver) -> None:
    finished(queue, A, B)
    for site in (A, B):
        queue.plan_work(site, "recheck", 1)
    assert queue.lease("one", "recheck", 0, 0, packed=True).ready == 0
    queue.pack(A, "recheck", b"asking")
    assert queue.lease("one", "recheck", 0, 0, packed=True).ready == 1
    assert queue.lease("one", "recheck", 0, 0).ready == 2
    assert queue.lease("one", "recheck", 1, 0, packed=True).ready == 0


def test_another_work_s_deliveries_leave_the_site_s_progress_alone(queue: Driver) -> None:
    finished(queue, A)
    queue.plan_work(A, "recheck", 1)
    leased = queue.take_one("one", "recheck")
    assert queue.send("one", delivery(leased, 1, delta=b"", known=None, done=7)) == ["OK"]
    assert queue.running() == {A: (3, 3)}
    queue.leave("one", leased, "finished", due_ms=5)
    assert (queue.record(A).known, queue.record(A).done) == (3, 3)


def test_a_site_that_was_not_done_with_is_due_again(queue: Driver) -> None:
    finished(queue, A)
    for how, least in (("returned", 0), ("suspended", 0), ("parked", 4_000)):
        queue.plan_work(A, "status", 1)
        now = queue.server_ms()
        queue.leave("one", queue.take_one("one", "status"), how)
        ((_, due, _),) = queue.due("status", 9)
        assert least <= due - now <= least + 2_000
        queue.pass_time(6_000)
    now = queue.server_ms()
    leased = queue.take_one("one", "status")
    queue.plan_work(A, "status", now + 5_000)
    queue.leave("one", leased, "finished", due_ms=now + 9_000)
    assert queue.due("status", 9) == [(A, now + 5_000, "")], "the sooner one holds"


def test_the_pause_between_two_requests_goes_on_after_another_work(queue: Driver) -> None:
    queue.add(A)
    queue.plan_work(A, "status", 1)
    now = queue.server_ms()
    queue.leave("one", queue.take_one("one", "status"), "finished", rests_until_ms=now + 3_000)
    assert queue.take("two") == []
    queue.pass_time(3_500)
    assert queue.take_one("two").site == A


def test_who_waits_for_a_site_in_hand_is_woken_when_it_is_given_back(queue: Driver) -> None:
    finished(queue, A, B)
    for site in (A, B):
        queue.plan_work(site, "recheck", 1)
    leased, other = queue.take("one", 2, "recheck")
    for work in ("revive", "status"):
        queue.fall_due(work, {A: 2, B: 2})
        assert queue.take("two", 2, work) == []
        ((_, due, _), _) = queue.due(work, 9)
        assert due - queue.server_ms() > LEASE_MS / 4, "in case that its holder is never heard of again"
    later = queue.server_ms() + 90_000
    queue.plan_work(B, "revive", later)
    for one in (leased, other):
        queue.leave("one", one, "finished")
    assert [one.site for one in queue.take("two", 2, "revive")] == [A], (
        "the other was given a time of its own"
    )
    assert queue.due("revive", 9) == [(B, later, "")]
    assert [one.site for one in queue.take("one", 2, "status")] == [B]


def test_what_is_due_is_counted_also_while_it_is_being_packed(queue: Driver) -> None:
    finished(queue, A)
    assert queue.due_now("revive") == 0
    queue.plan_work(A, "revive", queue.server_ms() + 60_000)
    assert queue.due_now("revive") == 0
    queue.plan_work(A, "revive", 7)
    assert queue.due_now("revive") == 1
    assert queue.hold_up(A, "revive") == 7
    assert queue.due_now("revive") == 1
    assert queue.hold_up(A, "revive") == 0
    assert queue.hold_up(B, "revive") == 0


def test_a_site_that_was_not_packed_when_it_was_due_counts_where_that_is_asked_for(queue: Driver) -> None:
    finished(queue, A, B)
    queue.plan_work(A, "recheck", 1)
    assert queue.lease("one", "recheck", 9, 0, packed=True).sites == []
    assert queue.due_now("recheck") == 0
    assert queue.due_now("recheck", unpacked=True) == 1
    assert queue.plan_work(B, "revive", queue.server_ms() + 60_000)
    assert queue.due_now("revive", unpacked=True) == 0


def test_a_due_time_is_held_up_and_one_that_is_told_meanwhile_is_kept(queue: Driver) -> None:
    finished(queue, A)
    queue.plan_work(A, "revive", 7)
    queue.hold_up(A, "revive")
    queue.release(A, "revive", 0)
    assert queue.due("revive", 9) == [], "nothing of it is due"
    queue.plan_work(A, "revive", 7)
    queue.hold_up(A, "revive")
    queue.plan_work(A, "revive", 9_000)
    queue.release(A, "revive", 0)
    assert queue.due("revive", 9) == [(A, 9_000, "")]
    queue.hold_up(A, "revive")
    queue.release(A, "revive", 20_000)
    assert queue.due("revive", 9) == [(A, 20_000, "")]
    queue.hold_up(A, "revive")
    assert queue.due("revive", 9) == [(A, HELD_UP_MS, "")]
    queue.take_back_held("revive")
    ((_, due, _),) = queue.due("revive", 9)
    assert abs(due - queue.server_ms()) < 2_000


def test_the_packer_hears_of_what_is_due_and_not_packed(queue: Driver) -> None:
    finished(queue, A, B)
    later = queue.server_ms() + 90_000
    queue.fall_due("recheck", {A: 5, B: later})
    queue.fall_due("recheck", {A: 1})
    assert queue.due("recheck", 9) == [(A, 5, ""), (B, later, "")], "who has a time keeps it"
    assert queue.to_pack("recheck", 10, 9) == [A]
    assert queue.to_pack("recheck", later, 1) == [A]
    assert queue.to_pack("recheck", later, 9) == [A, B]
    queue.lease("two", "recheck", 0, 0, packed=True)  # which puts it into the list of those that are due
    assert queue.to_pack("recheck", 10, 9) == [A]
    queue.pack(A, "recheck", b"asking")
    assert queue.to_pack("recheck", 10, 9) == []
    assert queue.works_done() == {"recheck", "site", "revive"}


def test_the_oldest_record_is_told(queue: Driver) -> None:
    queue.raw.delete("lt:{0}:results")
    assert queue.oldest_record_ms() is None
    queue.tell([b"record"])
    assert abs(queue.oldest_record_ms() - queue.server_ms()) < 2_000


def test_a_finished_site_is_opened_again_for_what_was_offered(queue: Driver) -> None:
    finished(queue, A, B)
    assert queue.offer([Offer(A, ["/x", "/y"], 3, 1), Offer(B, ["/x"])]) == [0, 0]
    assert queue.offer([Offer(A, ["/z"])]) == [0]
    assert ([*queue.to_decide(9)], queue.undecided()) == ([A, B], 2)
    assert offered(queue, A, B) == [["3 1\n/x\n/y", "/z"], ["/x"]]
    assert queue.offered([A], 1)[0].entries == ["3 1\n/x\n/y"]
    number = queue.lock("opener", "c", 10)
    queue.decide("c", number, {B: 1})
    assert (queue.state(B), [*queue.to_decide(9)]) == ("finished", [A]), "nothing of it was new"
    queue.offer([Offer(A, ["/late"])])
    assert queue.reopen("c", number, A, b"checkpoint", 2)
    assert queue.state(A) == "suspended"
    assert queue.checkpoint(A)[:2] == ([b"checkpoint"], ["3 1\n/x\n/y", "/z"])
    assert offered(queue, A) == [["/late"]]
    assert not queue.reopen("c", number, A, b"checkpoint", 1)
    assert queue.checkpoint(A)[1] == ["3 1\n/x\n/y", "/z", "/late"], "what came late goes along"
    assert queue.undecided() == 0
    leased = queue.take_one("two")
    assert (leased.site, leased.suspended) == (A, True)
    assert queue.leave("two", leased, "finished", detail=3)
    queue.offer([Offer(A, ["/more"])])
    assert queue.reopen("c", number, A, b"", 1), "nothing is to be loaded after all"
    assert (queue.state(A), queue.undecided(), offered(queue, A)) == ("finished", 0, [[]])


def test_what_is_noted_since_the_tables_were_read_keeps_a_site_to_be_opened(queue: Driver) -> None:
    finished(queue, A)
    number = queue.lock("opener", "c", 10)
    queue.plan_reopening([A])
    assert queue.offered([A], 9)[0].noted == 1
    queue.plan_reopening([A])
    assert queue.reopen("c", number, A, b"checkpoint", 0, noted=1)
    assert queue.offered([A], 9)[0].noted == 2
    queue.leave("two", queue.take_one("two"), "finished")
    assert queue.reopen("c", number, A, b"checkpoint", 0, noted=2)
    assert queue.undecided() == 0


def test_one_coordinator_decides(queue: Driver) -> None:
    finished(queue, A)
    queue.offer([Offer(A, ["/x"])])
    number = queue.lock("opener", "c", 10)
    assert queue.lock("opener", "other", 10) == 0
    for call in (
        lambda: queue.decide("other", number, {A: 1}),
        lambda: queue.reopen("c", number - 1, A, b"checkpoint", 1),
    ):
        with pytest.raises(LockLostError):
            call()
    assert [*queue.to_decide(9)] == [A]


def test_a_site_that_is_being_loaded_is_given_what_is_offered(queue: Driver) -> None:
    queue.add(A)
    assert queue.offer([Offer(A, ["/", "/x"])]) == [0]
    assert queue.checkpoint(A)[1] == ["/\n/x"]
    assert queue.undecided() == 0
    queue.order(A, "block")
    assert queue.offer([Offer(A, ["/y"]), Offer(C, ["/y"])]) == [-2, -2]
    assert queue.record(C) is None


def test_a_site_that_is_new_is_queued_by_an_offer_with_a_record(queue: Driver) -> None:
    queue.raw.delete(BASE + "results")
    found = [
        Offer(A, ["/x"], 2, 1, b"record", True),
        Offer(B, ["/x"], record=b"record"),
        Offer(C, ["/"], record=b"r"),
    ]
    assert queue.offer(found, 2) == [1, 1, -1]
    assert queue.checkpoint(A)[1] == ["/", "2 1\n/x"]
    assert queue.checkpoint(B)[1] == ["/x"]
    assert queue.depth().records == 2
    assert queue.offer([Offer(A, ["/"], 1), Offer(B, ["/"], 1)]) == [0, 0]
    assert queue.checkpoint(A)[1] == ["/", "2 1\n/x"], "it has its root already"
    assert queue.checkpoint(B)[1] == ["/x", "1 0\n/"], "this one began without"


def offered(queue: Driver, *sites: str) -> list[list[str]]:
    """The entries that wait for a coordinator."""
    return [one.entries for one in queue.offered(sites, 99)]


def test_what_is_noted_of_an_unfinished_site_waits_until_it_is_finished(queue: Driver) -> None:
    queue.add(A)
    leased = queue.take_one("two")
    queue.send("two", delivery(leased, 1, 0))
    queue.leave("two", leased, "suspended", known=1)
    queue.plan_reopening([A, "https://not-known.example"])
    assert queue.undecided() == 0, "nothing of it can be decided now"
    queue.send("two", delivery(leased := queue.take_one("two"), 1, 0, sends_back=True))
    queue.leave("two", leased, "later", due_ms=queue.server_ms() + 60_000)
    queue.order(A, "pause")
    assert queue.undecided() == 0
    queue.order(A, "resume")
    queue.pass_time(60_000)
    queue.leave("two", queue.take_one("two"), "finished")
    before = queue.server_ms()
    ((site, since),) = queue.to_decide(9).items()
    assert (site, since <= before) == (A, True)
    assert queue.offered([A], 9)[0].noted == 2


def test_a_site_that_is_finished_since_it_was_read_keeps_what_was_offered(queue: Driver) -> None:
    """A coordinator has read that it is unfinished, and compared nothing."""
    finished(queue, A)
    queue.offer([Offer(A, ["/x"]), Offer(A, ["/y"])])
    number = queue.lock("opener", "c", 10)
    assert queue.reopen("c", number, A, b"checkpoint", 1)
    ((_, before),) = queue.to_decide(9).items()
    leased = queue.take_one("two")
    queue.raw.zadd(BASE + "undecided", {A: before - 5})
    assert queue.leave("two", leased, "finished", detail=1)
    assert queue.to_decide(9)[A] >= before, "its last pages are to be stored first"
    queue.decide("c", number, {A: 0})
    assert offered(queue, A) == [["/y"]]
    queue.discover([Newcomer(A, b"")], 0, again=True)
    queue.decide("c", number, {A: 0})
    assert (queue.checkpoint(A)[1], queue.undecided()) == (["/", "/y"], 0)


def test_what_is_published_later_is_waited_for_too(queue: Driver) -> None:
    """Pages that a second delivery sends back come to the tables behind it."""
    finished(queue, A)
    queue.plan_reopening([A])
    queue.raw.zadd(BASE + "undecided", {A: 5})
    queue.offer([Offer(A, ["/x"])])
    assert queue.to_decide(9) == {A: 5}, "an offer comes with no page"
    queue.plan_reopening([A])
    assert queue.to_decide(9)[A] > 5


def test_sites_are_decided_of_in_the_order_in_which_they_wait(queue: Driver) -> None:
    sites = [f"https://s{number}.example" for number in range(30)]
    finished(queue, *sites)
    for number, site in enumerate(reversed(sites)):
        queue.offer([Offer(site, ["/x"])])
        queue.raw.zadd(BASE + "undecided", {site: number})
    assert [*queue.to_decide(9)] == sites[::-1][:9]


def test_a_root_that_is_refused_is_taken_later(queue: Driver) -> None:
    queue.discover([Newcomer(A, b"", ("/x",))], 0)
    queue.raw.rpush(BASE + f"paths:{A}", *["/x"] * 10_000)
    assert queue.offer([Offer(A, ["/"])]) == [-3]
    queue.raw.ltrim(BASE + f"paths:{A}", 10_000, -1)
    assert queue.offer([Offer(A, ["/"])]) == [0]
    assert queue.checkpoint(A)[1][-1] == "/"


def test_what_waits_for_a_site_is_bounded_by_its_size(queue: Driver) -> None:
    paths = [f"/{number:0100}" for number in range(1000)]
    finished(queue, B)
    queue.add(A)
    assert queue.offer([Offer(A, paths, 2), Offer(B, paths), Offer(C, paths, record=b"r")]) == [0, 0, 1]
    assert queue.discover([Newcomer(B, b"", tuple(paths)), Newcomer(A, b"")], 0) == [0, 0]
    given = {site: queue.checkpoint(site)[1] for site in (A, C)} | {B: offered(queue, B)[0]}
    for site, entries in given.items():
        assert max(map(len, entries)) <= ENTRY_CHARACTERS + 10
        found = [path for entry in entries for path in read_entry(entry).paths]
        assert found == {A: ["/", *paths], B: paths * 2, C: paths}[site]
    queue.raw.rpush(BASE + f"offered:{B}", *["/x"] * 9_950)
    assert queue.offer([Offer(B, paths)]) == [-3]


def test_keys_of_the_version_before_are_read(queue: Driver) -> None:
    queue.claim_prefix("site")
    finished(queue, A, B)
    queue.add(C)
    queue.offer([Offer(A, ["/x"])])
    queue.raw.delete(BASE + "undecided")
    queue.raw.sadd(BASE + "undecided", A)
    queue.raw.sadd(BASE + "reopen", B, C)
    queue.raw.hset(BASE + "count", "plan", 7)
    assert queue.claim_prefix("site") == "site"
    assert sorted(queue.to_decide(9)) == [A, B]
    assert [one.noted for one in queue.offered([A, B, C], 9)] == [0, 1, 1]
    assert queue.lock("opener", "c", 10) > 7


def test_links_to_one_site_are_bounded(queue: Driver) -> None:
    queue.add(A)
    queue.raw.rpush(BASE + f"paths:{A}", *["/x"] * 10_000)
    assert queue.offer([Offer(A, ["/y"])]) == [-3]
    queue.discover([Newcomer(A, b"", ("/seed",))], 0)
    assert queue.given(A, 9_999) == ["/x\n/seed"], "seeds are not refused"


def test_paths_that_come_one_by_one_wait_together(queue: Driver) -> None:
    """Each of many pages names one page of a site that is known to all."""
    depths = {f"/{number}": number % 3 for number in range(12_000)}
    finished(queue, B)
    queue.add(A)
    for site in (A, B):
        assert set(queue.offer([Offer(site, [path], depth) for path, depth in depths.items()])) == {0}
    for entries in (queue.checkpoint(A)[1], queue.offered([B], len(depths))[0].entries):
        assert len(entries) < 1_100
        assert max(map(len, entries)) <= ENTRY_CHARACTERS
        given = [read_entry(entry) for entry in entries]
        assert {path: one.depth for one in given for path in one.paths if path != "/"} == depths
    queue.join("one", {})
    held, seen = queue.take_one("one"), len(queue.checkpoint(A)[1])
    queue.offer([Offer(A, ["/later"])])
    assert queue.given(A, seen) == ["/later"], "its holder has read those before"
    queue.leave("one", held, "returned")


def test_what_is_forgotten_or_paused_is_not_opened(queue: Driver) -> None:
    finished(queue, A, B)
    queue.offer([Offer(A, ["/x"])])
    queue.pack(A, "revive", b"asking")
    assert queue.forget(A) == 1
    assert (queue.undecided(), offered(queue, A), queue.packet(A, "revive")) == (0, [[]], b"")
    queue.order(B, "pause")
    queue.plan_reopening([B, "https://nobody.example"])
    number = queue.lock("opener", "c", 10)
    assert queue.reopen("c", number, B, b"checkpoint", 0, noted=1)
    assert queue.take("two", 9) == []
    queue.order(B, "resume")
    assert queue.take_one("two").site == B
    assert queue.reopen("c", number, "https://nobody.example", b"checkpoint", 0)
    assert queue.undecided() == 0
