"""The frontier of one site: order, budgets, tries, duplicates, and a checkpoint that never lies.

A state machine runs the frontier beside a plain model of it, and after every step restores the checkpoint and
compares what the next agent would fetch. Damaged checkpoints are refused, or harmless; nothing else.
"""

from __future__ import annotations

import copy
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import msgspec
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from crawler.agent.frontier import FOLD_ABOVE, CheckpointError, Frontier, Snapshot, Turn, encode
from crawler.records import hash_of, set_hash
from crawler.urls.url import page_of
from tests.costs import ratio

NEVER = math.inf
SITE = "https://a.example"

# A whole and a delta as version 1 has always written them; agents that were updated must go on from these.
WHOLE_V1 = bytes.fromhex(
    "9c0100c4132f0a2f610a2f623f633d640a2fed959c0a2f65c2929200039201020392920100920201c40630313233343591000103"
    "02"
)
DELTA_V1 = bytes.fromhex(
    "9c0105c48328b52ffd605d00cd030074032f6c6973742f300a313233343536373839313131313131313131323232323232323232"
    "32333333333333333333380a2f6c6973742f333926208093d20344c8258c08728425420e614490230c11728425424ec2ba897093"
    "db264c9b4836396cc2ae895893ab26412d97d92cf9649645becc6401f96e885cc3919202280492920300920201c4066162636465"
    "669103020302"
)


def filled(*paths: str, site: str = "", **limits: int) -> Frontier:
    frontier = Frontier(**limits, site=site)
    frontier.add(paths, 0)
    return frontier


def restored(entries: list[bytes], like: Frontier) -> Frontier:
    frontier = Frontier(like.max_pages, like.max_depth, SITE)
    frontier.restore(entries)
    return frontier


def drained(frontier: Frontier) -> list[Turn]:
    """Every turn that is left, in order."""
    return list(iter(lambda: frontier.take(NEVER), None))


# --- One thing at a time ----------------------------------------------------------------------------------


def test_paths_come_breadth_first_and_once() -> None:
    frontier = filled("/", "/a")
    assert frontier.add(["/b", "/a", "/b"], 1) == 1
    assert [(turn.path, turn.depth, turn.tries) for turn in drained(frontier)] == [
        ("/", 0, 1),
        ("/a", 0, 1),
        ("/b", 1, 1),
    ]
    assert "/b" in frontier
    assert "/c" not in frontier
    assert len(frontier) == 3
    assert frontier.add(["/"], 0) == 0


def test_a_path_has_the_number_of_its_place() -> None:
    frontier = Frontier()
    frontier.add(["/", "/a"], 0)
    frontier.add(["/b"], 1)
    assert frontier.numbers(["/b", "/x", "/"]) == [2, -1, 0]


def test_too_deep_is_not_accepted() -> None:
    frontier = filled("/", max_depth=2)
    assert frontier.add(["/2"], 2) == 1
    assert frontier.add(["/3"], 3) == 0
    assert "/3" not in frontier


def test_no_site_makes_known_what_will_never_be_fetched() -> None:
    """Ten URLs for each page that may be fetched, ten thousand at least; no limit where pages have none."""
    many = [f"/{number}" for number in range(35_000)]
    for max_pages, known in ((5, 10_000), (3_000, 30_000), (0, 35_001)):
        frontier = filled("/", max_pages=max_pages)
        assert frontier.add(many[:20_000], 1) == min(known - 1, 20_000)
        frontier.add(many, 2)
        assert len(frontier) == known
        assert len(restored([frontier.whole()], frontier)) == len(frontier)
        frontier.max_pages = 4_000  # a larger budget has room again
        frontier.add(many, 2)
        assert len(frontier) == 35_001


def test_depths_above_a_byte_are_kept_and_limited() -> None:
    frontier = filled("/", max_depth=1000)
    assert frontier.add(["/deep"], 1000) == 1
    assert frontier.add(["/deeper"], 1001) == 0
    assert drained(restored([frontier.whole()], frontier))[1].depth == 1000


def test_a_depth_beyond_all_counting_is_kept_as_the_deepest() -> None:
    frontier = Frontier()
    frontier.add(["/x"], 10**9)
    assert drained(frontier)[0].depth == 65_535


def test_the_budget_counts_pages_taken_and_gives_back_those_never_fetched() -> None:
    frontier = filled("/", "/a", "/b", "/c", max_pages=2)
    first, second = drained(frontier)
    assert frontier.over_budget == 2
    assert frontier.pending == 2
    assert frontier.next_due(0.0) is None
    frontier.finish(first)
    assert frontier.take(NEVER) is None
    frontier.finish(second, counts=False)
    assert frontier.over_budget == 0
    assert frontier.pending == 2
    assert [turn.path for turn in drained(frontier)] == ["/b"]
    assert frontier.published == 2


def test_a_page_set_back_is_due_later_and_counts_its_tries() -> None:
    frontier = filled("/", "/a")
    turn = frontier.take(0.0)
    assert turn is not None
    frontier.set_back(turn, 10.0)
    assert frontier.next_due(0.0) == 0.0
    other = frontier.take(0.0)
    assert other is not None
    assert other.path == "/a"
    assert frontier.take(9.9) is None
    assert frontier.next_due(3.0) == 10.0
    assert frontier.next_due(12.0) == 12.0
    assert frontier.take(10.0) == turn._replace(tries=2)
    assert frontier.next_due(12.0) is None


def test_a_page_put_back_is_due_at_once_with_the_same_try() -> None:
    frontier = filled("/", "/a", max_pages=1)
    turn = frontier.take(5.0)
    assert turn is not None
    frontier.put_back(turn)
    assert frontier.in_flight == 0
    assert frontier.next_due(5.0) == 5.0
    assert frontier.take(5.0) == turn


def test_the_first_page_with_the_same_bytes_is_found_across_a_checkpoint() -> None:
    frontier = filled("/", "/a", "/b")
    one, two, three = drained(frontier)
    same, other = sha256(b"same").digest(), sha256(b"other").digest()
    assert frontier.first_with(one, same) is None
    assert frontier.first_with(two, same) == "/"
    assert frontier.first_with(three, other) is None
    # Fetched again, a page is no duplicate of itself.
    assert frontier.first_with(one, same) is None
    again = restored([frontier.whole()], frontier)
    one, two, three = drained(again)
    assert again.first_with(one, same) is None
    assert again.first_with(two, same) == "/"
    assert again.first_with(two, other) == "/b"


def test_what_the_next_agent_fetches_again_comes_in_the_order_of_acceptance_and_untried_pages_first() -> None:
    frontier = filled(*map(str, range(9)))
    turns = drained(frontier)
    for due, turn in enumerate(reversed(turns[:5])):
        frontier.set_back(turn, float(due))
    assert [turn.path for turn in drained(restored([frontier.whole()], frontier))] == list("567801234")


def test_an_empty_frontier_and_an_empty_path_have_a_checkpoint() -> None:
    assert len(restored([Frontier().whole()], Frontier())) == 0
    assert [turn.path for turn in drained(restored([filled("").whole()], Frontier()))] == [""]


def test_a_long_journal_wants_to_be_folded() -> None:
    frontier = filled(*(f"/{sha256(b'%d' % number).hexdigest()}" for number in range(100)))
    frontier.whole()
    assert not frontier.wants_fold()
    size = 0
    while not frontier.wants_fold():
        size += len(frontier.delta())
    assert size > FOLD_ABOVE
    frontier.whole()
    assert not frontier.wants_fold()


def test_nothing_is_told_twice() -> None:
    frontier = filled(*PATHS)
    for turn in drained(frontier):
        frontier.first_with(turn, sha256(turn.path.encode()).digest())
        frontier.finish(turn)
    assert len(frontier.delta()) > 100
    assert len(frontier.delta()) < 40
    assert len(frontier.whole()) > 100
    assert len(frontier.delta()) < 40


def test_the_length_of_a_journal_is_known_after_a_restore() -> None:
    frontier = filled("/")
    journal = [frontier.whole()]
    while not frontier.wants_fold():
        journal.append(frontier.delta())
    assert restored(journal, frontier).wants_fold()
    assert not restored(journal[:-1], frontier).wants_fold()


@pytest.mark.parametrize("taken", [Frontier.everything, Frontier.changes])
def test_a_snapshot_is_of_its_moment_however_late_it_is_encoded(
    taken: Callable[[Frontier], Snapshot],
) -> None:
    frontier = filled("/", "/a", "/b")
    first = frontier.take(0.0)
    assert first is not None
    frontier.first_with(first, BODIES[0])
    expected = copy.deepcopy(frontier).whole()
    snapshot = taken(frontier)
    frontier.add(PATHS, 0)
    frontier.add(["/deep"], 3)
    for turn in (first, *drained(frontier)):
        frontier.first_with(turn, BODIES[turn.number % 3])
        frontier.finish(turn)
    frontier.strikes = 3
    assert encode(snapshot) == expected
    again = restored([expected, frontier.delta()], frontier)
    assert (len(again), again.published, again.pending) == (len(frontier), frontier.published, 0)


def test_checkpoints_of_version_1_are_read() -> None:
    frontier = Frontier()
    frontier.restore([WHOLE_V1])
    assert (len(frontier), frontier.published, frontier.strikes) == (5, 1, 2)
    assert [(turn.path, turn.depth, turn.tries) for turn in drained(frontier)] == [
        ("/a", 0, 1),
        ("/\ud55c", 1, 1),
        ("/e", 1, 1),
        ("/b?c=d", 0, 2),
    ]
    frontier = Frontier()
    frontier.restore([WHOLE_V1, DELTA_V1])
    assert (len(frontier), frontier.published, frontier.in_flight) == (45, 2, 0)
    turns = drained(frontier)
    assert [turn.path for turn in turns[:2]] == ["/\ud55c", "/e"]
    assert turns[-2] == Turn(44, "/list/39", 2, 1, "/list/39")
    assert (turns[-1].path, turns[-1].tries) == ("/b?c=d", 2)
    assert frontier.first_with(turns[-1], b"0123456789") == "/"
    assert frontier.first_with(turns[-1], b"abcdefghij") == "/\ud55c"


def test_what_is_written_today_is_what_version_1_wrote_and_more() -> None:
    frontier = filled("/", "/a", "/b?c=d", site=SITE)
    for path in ("/\ud55c", "/e"):
        frontier.add_page(path, path, 1)
    one, _, three = (frontier.take(0.0) for _ in range(3))
    assert one is not None
    assert three is not None
    frontier.first_with(one, b"0123456789")
    frontier.finish(one)
    frontier.set_back(three, 9.0)
    frontier.strikes = 2
    parts = msgspec.msgpack.decode(frontier.whole())
    assert msgspec.msgpack.encode(parts[:12]) == WHOLE_V1
    assert parts[12:] == [0, hash_of(f"{SITE}/"), [], b"", [], [], [], [], None, [], b""]


def test_a_checkpoint_of_version_1_has_the_hash_that_it_does_not_name() -> None:
    frontier = Frontier(site=SITE)
    frontier.restore([WHOLE_V1, DELTA_V1])
    assert frontier.done_hash == set_hash(hash_of(SITE + path) for path in ("/", "/a"))
    assert list(frontier.done()) == ["/", "/a"]


# --- Against a model --------------------------------------------------------------------------------------

PATHS = [f"/{number}" for number in range(12)] + ["/%ED%95%9C?%EB%82%98=1", "/a" * 120]
# Some pages in several spellings.
WRITTEN = [
    *PATHS,
    "/%ed%95%9c?%EB%82%98=1",
    "/%31",
    "/2?",
    "/w?b=2&a=1",
    "/w?a=1&b=2",
    "/w?a=1&&b=2",
    "/x;",
    "/x?q",
]
BODIES = [sha256(bytes([number])).digest() for number in range(3)]


@dataclass
class Model:
    """What a frontier is, without any thought for speed or size."""

    max_pages: int
    max_depth: int
    known: list[tuple[str, int]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)  # of these
    head: int = 0
    taken: int = 0
    published: int = 0
    flying: dict[int, int] = field(default_factory=dict)  # index -> tries, this one included
    back: dict[int, tuple[float, int]] = field(default_factory=dict)  # index -> due, tries so far
    owners: dict[bytes, int] = field(default_factory=dict)
    depths: dict[int, int] = field(default_factory=dict)  # of those in flight, as they were taken
    retakes: set[int] = field(default_factory=set)  # that were done before
    deferred: set[int] = field(default_factory=set)  # of these, those that wait for their turn
    left_out: dict[str, str] = field(default_factory=dict)  # path -> reason

    @property
    def full(self) -> bool:
        return self.max_pages > 0 and self.taken >= self.max_pages

    @property
    def waiting(self) -> int:
        return len(self.known) - self.head

    def done(self) -> dict[int, str]:
        unfinished = self.flying.keys() | self.back.keys() | self.deferred
        return {
            number: path
            for number, (path, _) in enumerate(self.known[: self.head])
            if number not in unfinished
        }

    def add(self, paths: list[str], depth: int) -> int:
        before = len(self.known)
        if 0 < self.max_depth < depth:
            for path in map(page_of, paths):
                if path not in dict(self.known):
                    self.left_out.setdefault(path, "depth")
            return 0
        for written in paths:
            path = page_of(written)
            if path not in dict(self.known):
                self.known.append((path, depth))
                self.left_out.pop(path, None)
                self.asked.append(written)
            elif depth < dict(self.known)[path]:
                self.lower([path for path, _ in self.known].index(path), depth)
        return len(self.known) - before

    def lower(self, index: int, depth: int) -> None:
        done = index in self.done()
        if not done or self.max_depth:
            self.known[index] = (self.known[index][0], depth)
        if done and self.max_depth:
            self.defer(index)

    def defer(self, index: int) -> None:
        self.published -= 1
        self.deferred.add(index)
        self.retakes.add(index)

    def finish(self, turn: Turn, *, counts: bool) -> None:
        del self.flying[turn.number], self.depths[turn.number]
        self.published += 1
        self.taken = max(0, self.taken - (not counts and turn.number not in self.retakes))
        self.retakes.discard(turn.number)
        if self.max_depth and self.known[turn.number][1] < turn.depth:
            self.defer(turn.number)

    def retake(self) -> int | None:
        """The page to take again: less deep than whatever is left to fetch."""
        if not self.deferred:
            return None
        depth, index = min((self.known[index][1], index) for index in self.deferred)
        if self.waiting and not self.full and self.known[self.head][1] <= depth:
            return None
        return None if any(self.known[one][1] < depth for one in (*self.flying, *self.back)) else index

    def take(self, now: float) -> Turn | None:
        due = [(when, index) for index, (when, tries) in self.back.items() if when <= now and tries]
        untried = [(0.0, index) for index, (_, tries) in self.back.items() if not tries]
        goes_on, retake = bool(self.waiting) and not self.full, self.retake()
        if untried or (due and not goes_on):
            index = min(untried or due)[1]
            tries = self.back.pop(index)[1] + 1
        elif retake is not None:
            index, tries = retake, 1
            self.deferred.remove(index)
        elif goes_on:
            index, tries = self.head, 1
            self.head += 1
            self.taken += 1
        else:
            return None
        self.flying[index], self.depths[index] = tries, self.known[index][1]
        self.left_out.pop(self.known[index][0], None)
        return self.turn(index)

    def turn(self, index: int) -> Turn:
        """The turn of a page under way, with its depth as it is known by now."""
        return Turn(index, *self.known[index], self.flying[index], self.asked[index])

    def left_out_by_reason(self) -> dict[str, int]:
        counts = Counter(self.left_out.values())
        counts["pages"] = self.waiting if self.full else 0
        return {reason: many for reason, many in counts.items() if many}

    def next_due(self, now: float) -> float | None:
        if (self.waiting and not self.full) or self.retake() is not None:
            return now
        return max(now, min(when for when, _ in self.back.values())) if self.back else None

    def handed_over(self) -> Model:
        """What another agent goes on with."""
        other = copy.deepcopy(self)
        other.back = {index: (0.0, tries) for index, (_, tries) in self.back.items()}
        other.back |= {index: (0.0, tries - 1) for index, tries in self.flying.items()}
        other.flying, other.depths = {}, {}
        other.deferred |= {
            index for index in other.retakes if index in other.back and not other.back[index][1]
        }
        other.back = {index: back for index, back in other.back.items() if index not in other.deferred}
        return other


class FrontierMachine(RuleBasedStateMachine):
    @initialize(max_pages=st.sampled_from([0, 1, 4, 9]), max_depth=st.sampled_from([0, 1, 3]))
    def begin(self, max_pages: int, max_depth: int) -> None:
        self.frontier = Frontier(max_pages, max_depth, SITE)
        self.model = self.told = Model(max_pages, max_depth)
        self.journal: list[bytes] = []
        self.now = 0.0

    @rule(paths=st.lists(st.sampled_from(WRITTEN), max_size=6), depth=st.integers(0, 4))
    def add(self, paths: list[str], depth: int) -> None:
        assert self.frontier.add(paths, depth) == self.model.add(paths, depth)

    @rule(paths=st.lists(st.sampled_from(PATHS), max_size=3), reason=st.sampled_from(["links", "size"]))
    def leave_out(self, paths: list[str], reason: Any) -> None:
        self.frontier.leave_out(reason, paths)
        for path in paths:
            self.model.left_out.setdefault(path, reason)

    @rule(seconds=st.integers(0, 5))
    def take(self, seconds: int) -> None:
        self.now += seconds
        assert self.frontier.take(self.now) == self.model.take(self.now)

    def some_turn(self, data: st.DataObject) -> Turn:
        index = data.draw(st.sampled_from(sorted(self.model.flying)))
        turn = self.model.turn(index)._replace(depth=self.model.depths[index])
        now = self.frontier.now(turn)
        assert now == self.model.turn(index)
        return data.draw(st.sampled_from([turn, now]))

    @precondition(lambda self: self.model.flying)
    @rule(data=st.data(), counts=st.booleans())
    def finish(self, data: st.DataObject, counts: bool) -> None:
        turn = self.some_turn(data)
        self.frontier.finish(turn, counts=counts)
        self.model.finish(turn, counts=counts)

    @precondition(lambda self: self.model.flying)
    @rule(data=st.data(), seconds=st.integers(0, 9))
    def set_back(self, data: st.DataObject, seconds: int) -> None:
        turn = self.some_turn(data)
        self.frontier.set_back(turn, self.now + seconds)
        self.model.back[turn.number] = self.now + seconds, self.model.flying.pop(turn.number)
        del self.model.depths[turn.number]

    @precondition(lambda self: self.model.flying)
    @rule(data=st.data())
    def put_back(self, data: st.DataObject) -> None:
        turn = self.some_turn(data)
        self.frontier.put_back(turn)
        self.model.back[turn.number] = 0.0, self.model.flying.pop(turn.number) - 1
        del self.model.depths[turn.number]

    @precondition(lambda self: self.model.flying)
    @rule(data=st.data(), body=st.sampled_from(BODIES))
    def first_with(self, data: st.DataObject, body: bytes) -> None:
        turn = self.some_turn(data)
        owner = self.model.owners.setdefault(body, turn.number)
        expected = None if owner == turn.number else self.model.known[owner][0]
        assert self.frontier.first_with(turn, body) == expected

    @rule(paths=st.lists(st.sampled_from(PATHS), max_size=3))
    def undo(self, paths: list[str]) -> None:
        done = self.model.done()
        undone = {number: path for number, path in done.items() if path in paths}
        assert self.frontier.undo(paths) == len(undone)
        self.model.back |= dict.fromkeys(undone, (0.0, 0))
        self.model.published -= len(undone)

    @precondition(lambda self: self.model.deferred)
    @rule()
    def leave_retakes(self) -> None:
        self.frontier.leave_retakes()
        model = self.model
        left = model.deferred | {index for index in model.back if index in model.retakes}
        model.published += len(left)
        model.back = {index: back for index, back in model.back.items() if index not in left}
        model.deferred, model.retakes = set(), model.retakes - left

    @rule()
    def delta(self) -> None:
        self.journal.append(self.frontier.delta())
        self.told = copy.deepcopy(self.model)

    @rule()
    def whole(self) -> None:
        self.journal = [self.frontier.whole()]
        self.told = copy.deepcopy(self.model)

    @rule()
    def another_agent_goes_on_from_what_was_told_last(self) -> None:
        self.frontier = restored(self.journal, self.frontier)
        if not self.journal:
            self.told = Model(self.model.max_pages, self.model.max_depth)
        self.model = self.told.handed_over()

    @invariant()
    def figures_agree(self) -> None:
        frontier, model = self.frontier, self.model
        assert len(frontier) == len(model.known)
        assert all(path in frontier for path, _ in model.known)
        numbers = frontier.numbers(WRITTEN)
        assert [number >= 0 for number in numbers] == [page_of(path) in dict(model.known) for path in WRITTEN]
        assert frontier.published == model.published
        assert frontier.left_out == model.left_out_by_reason()
        assert frontier.in_flight == len(model.flying)
        assert frontier.over_budget == (model.waiting if model.full else 0)
        reachable = 0 if model.full else model.waiting
        assert frontier.pending == reachable + len(model.flying) + len(model.back) + len(model.deferred)
        assert frontier.next_due(self.now) == model.next_due(self.now)
        done = list(model.done().values())
        assert list(frontier.done()) == done
        assert frontier.done_hash == set_hash(hash_of(SITE + path) for path in done)

    @invariant()
    def a_checkpoint_holds_everything(self) -> None:
        as_delta = restored([*self.journal, copy.deepcopy(self.frontier).delta()], self.frontier)
        as_whole = restored([copy.deepcopy(self.frontier).whole()], self.frontier)
        model = self.model.handed_over()
        figures = len(model.known), model.published, model.waiting if model.full else 0
        firsts = {body: model.known[owner][0] for body, owner in model.owners.items()}
        left_out = model.left_out_by_reason()
        left = list(iter(lambda: model.take(NEVER), None))
        nobody = Turn(-1, "", 0, 1, "")
        for other in (as_delta, as_whole):
            assert (len(other), other.published, other.over_budget) == figures
            assert other.left_out == left_out
            assert other.done_hash == self.frontier.done_hash
            assert drained(other) == left
            assert {body: other.first_with(nobody, body) for body in firsts} == firsts


FrontierMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestFrontierAgainstAModel = FrontierMachine.TestCase


# --- Damaged checkpoints ----------------------------------------------------------------------------------


def usable(entries: list[bytes]) -> None:
    """Restores and drains; CheckpointError is the only way it may fail."""
    frontier = Frontier()
    try:
        frontier.restore(entries)
    except CheckpointError:
        return
    turns = drained(frontier)
    assert len({turn.number for turn in turns}) == len(turns)
    for number, turn in enumerate(turns):
        frontier.first_with(turn, b"%06d" % number)
        frontier.first_with(turn, b"012345")
        frontier.finish(turn)
    restored([frontier.whole()], frontier)


@given(st.sampled_from([WHOLE_V1, DELTA_V1]), st.data())
@settings(max_examples=300, deadline=None)
def test_a_changed_checkpoint_is_refused_or_harmless(entry: bytes, data: st.DataObject) -> None:
    damaged = bytearray(entry)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(entry) - 1))] = data.draw(st.integers(0, 255))
    usable([bytes(damaged)] if entry is WHOLE_V1 else [WHOLE_V1, bytes(damaged)])


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=3))
@settings(max_examples=100, deadline=None)
def test_random_bytes_are_refused(entries: list[bytes]) -> None:
    with pytest.raises(CheckpointError):
        Frontier().restore(entries)


@pytest.mark.parametrize("entry", [WHOLE_V1, DELTA_V1], ids=["whole", "delta"])
def test_every_truncation_is_refused(entry: bytes) -> None:
    before = [] if entry is WHOLE_V1 else [WHOLE_V1]
    for length in range(len(entry)):
        with pytest.raises(CheckpointError):
            Frontier().restore([*before, entry[:length]])


def test_entries_out_of_order_are_refused() -> None:
    for entries in ([DELTA_V1], [WHOLE_V1, WHOLE_V1], [WHOLE_V1, DELTA_V1, DELTA_V1]):
        with pytest.raises(CheckpointError, match="starts at URL"):
            Frontier().restore(entries)


@pytest.mark.parametrize("folded", [False, True])
def test_what_sitemaps_say_is_known_across_a_checkpoint(folded: bool) -> None:
    frontier = filled("/", "/map", "/list", "/a")
    entries = [frontier.whole()]
    frontier.name_sitemaps(["/map", "/nobody"], 0)
    root, sitemap = frontier.take(0.0), frontier.take(0.0)
    assert (
        root and sitemap and frontier.indexes_before(root) is None and frontier.indexes_before(sitemap) == 0
    )
    entries.append(frontier.delta())
    frontier.add(["/b"], 1)
    frontier.name_sitemaps(["/list", "/map"], 2)
    frontier.name_sitemaps(["/list"], 1)
    frontier.note_changes([("/a", 5_000), ("/b", 2**50), ("/", 7_999), ("/nobody", 1), ("/a", 4_000)])
    assert [frontier.changed_at(turn) for turn in (root, sitemap)] == [7_000, 0]
    frontier.finish(root)
    entries = [frontier.whole()] if folded else [*entries, frontier.delta()]
    again = restored(entries, frontier)
    turns = {turn.path: turn for turn in drained(again)}
    assert {path: again.indexes_before(turn) for path, turn in turns.items()} == {
        "/map": 0, "/list": 1, "/a": None, "/b": None
    }  # fmt: skip
    found = {path: again.changed_at(turn) for path, turn in turns.items()}
    assert found == {"/map": 0, "/list": 0, "/a": 5_000, "/b": (2**32 - 1) * 1000}
    assert msgspec.msgpack.decode(again.delta())[14:] == [[], b"", [], [], [], [], None, [], b""], (
        "nothing is told twice"
    )


@pytest.mark.parametrize("folded", [False, True])
def test_a_page_is_asked_for_as_it_was_first_written(folded: bool) -> None:
    written = ["/a", "/?p=x.git;a=summary", "/wiki?FrontPage", "/?z=1&a=2", "/?a=2&z=1", "/x;", "/x"]
    frontier = filled("/", *written[:3])
    entries = [frontier.whole()]
    frontier.add(written, 1)
    entries = [frontier.whole()] if folded else [*entries, frontier.delta()]
    assert [asked for asked, _ in frontier.to_fetch()] == ["/", *written[:4], "/x;"]
    assert [turn.asked for turn in drained(frontier)] == ["/", *written[:4], "/x;"]
    turns = drained(restored(entries, frontier))
    assert [turn.asked for turn in turns] == ["/", *written[:4], "/x;"]
    assert [turn.path for turn in turns[2:]] == [
        "/?p=x.git%3Ba%3Dsummary",
        "/wiki?FrontPage=",
        "/?a=2&z=1",
        "/x",
    ]
    assert [turn.asked_as for turn in turns[:2]] == ["", ""]
    # From its next turn on, where its own redirect says so.
    again = restored(entries, frontier)
    again.delta()
    again.spell(turns[2], "/?p=x.git%3ba=summary")
    for entry in ([*entries, again.delta()], [again.whole()]):
        assert drained(restored(entry, again))[2].asked == "/?p=x.git%3ba=summary"
    assert again.numbers(["/?p=x.git%3ba=summary", "/?p=x.git;a=summary"]) == [2, 2]
    plain = filled(*(f"/{number}" for number in range(9)))
    assert msgspec.msgpack.decode(plain.whole())[-2:] == [[], b""], "they take no room where there are none"


@pytest.mark.parametrize(
    ("spelt", "spellings", "said"),
    [
        ([5], zstandard.compress(b"/x"), "URL 5"),
        ([-1], zstandard.compress(b"/x"), ">= 0"),
        ([1, 2], zstandard.compress(b"/x"), "cannot be read"),
        ([1], b"/x", "cannot be read"),
        ([1], zstandard.compress(b"\xff"), "cannot be read"),
    ],
)
def test_spellings_that_cannot_be_are_refused(spelt: list[int], spellings: bytes, said: str) -> None:
    parts = [*msgspec.msgpack.decode(WHOLE_V1), 0, None, [], b"", [], [], [], [], None, spelt, spellings]
    with pytest.raises(CheckpointError, match=said):
        Frontier().restore([msgspec.msgpack.encode(parts)])


@pytest.mark.parametrize(
    ("sitemaps", "changes", "said"),
    [
        ([(5, 0)], b"", "URL 5"),
        ([(-1, 0)], b"", ">= 0"),
        ([], bytes(7), "7 bytes"),
        ([], b"\5" + bytes(7), "URL 5"),
    ],
)
def test_what_sitemaps_cannot_say_is_refused(
    sitemaps: list[tuple[int, int]], changes: bytes, said: str
) -> None:
    parts = [*msgspec.msgpack.decode(WHOLE_V1), 0, None, sitemaps, changes]
    with pytest.raises(CheckpointError, match=said):
        Frontier().restore([msgspec.msgpack.encode(parts)])


VERSION, FIRST, PATHS_AT, PACKED, DEPTHS, HEAD, EXCEPTIONS, DIGESTS, OWNERS, PUBLISHED, TAKEN, STRIKES = (
    range(12)
)


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (VERSION, 2, "version 2; expected 1"),
        (VERSION, "1", "Expected `int`"),
        (FIRST, -1, ">= 0"),
        (PATHS_AT, b"/\n/a", "2 paths with 5 depths"),
        (PATHS_AT, b"/\n/a\n/a\n/b\n/c", "5 paths, of which 4 distinct"),
        (PATHS_AT, b"\xff\n\n\n\n", "cannot be read"),
        (PACKED, True, "cannot be read"),
        (DEPTHS, [(0, 2**40)], "5 paths with 1099511627776 depths"),
        (DEPTHS, [(65_536, 5)], "<= 65535"),
        (DEPTHS, [(0, 6), (0, -1)], ">= 0"),
        (HEAD, 6, "head at 6"),
        (HEAD, -1, ">= 0"),
        (EXCEPTIONS, [(3, 0)], "distinct ones below 3"),
        (EXCEPTIONS, [(1, 0), (1, 0)], "distinct ones below 3"),
        (EXCEPTIONS, [(1, -1)], ">= 0"),
        (OWNERS, [5], "of 5 pages"),
        (OWNERS, [], "6 bytes of digests for 0"),
        (TAKEN, 4, "4 taken"),
        (STRIKES, -1, ">= 0"),
        (PUBLISHED, 1.5, "Expected `int`"),
    ],
)
def test_what_cannot_be_is_refused_and_named(place: int, value: object, said: str) -> None:
    parts = msgspec.msgpack.decode(WHOLE_V1)
    parts[place] = value
    with pytest.raises(CheckpointError) as caught:
        Frontier().restore([msgspec.msgpack.encode(parts)])
    assert said in str(caught.value)


def test_deep_nesting_behind_a_checkpoint_is_refused() -> None:
    parts = msgspec.msgpack.decode(WHOLE_V1)
    more = msgspec.msgpack.encode([*parts, None])[:-1] + b"\x91" * 100_000 + b"\xc0"
    with pytest.raises(CheckpointError):
        Frontier().restore([more])


# --- Size -------------------------------------------------------------------------------------------------


def realistic_paths(count: int) -> list[str]:
    """Articles with rising numbers, dated posts with words in them, boards with queries."""
    chance = random.Random(7)
    words = [
        f"{chance.choice('bcdfgklmnprst')}{chance.choice('aeiou')}{part}" for part in ("n", "rt", "ll", "st")
    ]
    words += [first + second for first in words for second in words]
    kinds = (
        lambda number: f"/news/articleView.html?idxno={400_000 + number}",
        lambda number: (
            f"/20{10 + number % 15}/{1 + number % 12:02}/{'-'.join(chance.choices(words, k=4))}-{number}"
        ),
        lambda number: f"/board/{chance.choice(words)}/view?no={number}&page={number // 20}",
    )
    return [chance.choice(kinds)(number) for number in range(count)]


def test_a_hundred_thousand_paths_are_small_and_quick() -> None:
    count = 100_000
    paths = realistic_paths(count)

    def filled() -> Frontier:
        frontier = Frontier()
        for start in range(0, count, 50):
            frontier.add(paths[start : start + 50], start // 10_000)
        return frontier

    frontier = filled()
    entry = frontier.whole()
    again = restored([entry], frontier)
    assert len(again) == len(frontier) == count
    assert len(entry) <= 15 * count
    assert ratio(lambda: restored([entry], frontier), filled, 1) < 1, "restored sooner than it was filled"


# --- The shortest way -------------------------------------------------------------------------------------


def walked(
    links: dict[int, list[int]], max_depth: int, chance: random.Random
) -> tuple[dict[str, int], list[str]]:
    """A site by a frontier: pages fail, several are in flight, agents die; each page's last depth, and all fetches."""
    frontier = Frontier(0, max_depth, SITE)
    frontier.add(["/0"], 0)
    entries, done, fetches, now = [frontier.whole()], dict[str, int](), list[str](), 0.0
    flying: list[Turn] = []
    while frontier.pending:
        now += 1.0
        while len(flying) < 3 and (turn := frontier.take(now)):
            flying.append(turn)
        if flying:
            turn = frontier.now(flying.pop(chance.randrange(len(flying))))
            fetches.append(turn.path)
            if turn.tries < 3 and chance.random() < 0.2:
                frontier.set_back(turn, now + chance.randrange(40))
                continue
            done[turn.path] = turn.depth
            frontier.add([f"/{one}" for one in links[int(turn.path[1:])]], turn.depth + 1)
            frontier.finish(turn)
        entries.append(frontier.delta())
        if chance.random() < 0.02:
            frontier, flying = restored(entries, frontier), []
            entries = entries if chance.random() < 0.5 else [frontier.whole()]
    return done, fetches


@pytest.mark.parametrize("seed", range(40))
def test_pages_are_as_deep_as_the_shortest_way_whatever_fails_first(seed: int) -> None:
    chance = random.Random(seed)
    pages, max_depth = 120, chance.randrange(2, 7)
    links = {one: chance.sample(range(pages), chance.randrange(4)) for one in range(pages)}
    shortest, ring = {0: 0}, [0]
    for depth in range(1, max_depth + 1):
        ring = [one for page in ring for one in links[page] if one not in shortest]
        shortest |= dict.fromkeys(ring, depth)
    done, fetches = walked(links, max_depth, chance)
    assert done == {f"/{page}": depth for page, depth in shortest.items()}
    assert len(fetches) <= 3 * len(shortest)


def test_without_a_limit_nothing_is_fetched_again() -> None:
    frontier = filled("/")
    root = frontier.take(0.0)
    assert root
    frontier.add(["/deep", "/open"], 5)
    deep = frontier.take(0.0)
    assert deep
    frontier.finish(deep)
    frontier.add(["/deep", "/open"], 1)
    frontier.finish(root)
    again = restored([frontier.whole()], frontier)
    assert [(turn.path, turn.depth) for turn in drained(again)] == [("/open", 1)]


def test_a_page_that_was_denied_and_is_less_deep_now_gives_its_place_back_once() -> None:
    frontier = Frontier(5, 3, SITE)
    frontier.add(["/no"], 3)
    for depth in (2, 1, 0):
        turn = frontier.take(0.0)
        assert turn
        frontier.finish(turn, counts=False)
        frontier.add(["/no"], depth)
    assert frontier.pending == 1
    assert [turn.path for turn in drained(restored([frontier.whole()], frontier))] == ["/no"]


def test_shorter_ways_that_cannot_be_are_refused() -> None:
    parts = [*msgspec.msgpack.decode(WHOLE_V1), 0, None, [], b""]
    with pytest.raises(CheckpointError, match="lowered of URL 5"):
        Frontier().restore([msgspec.msgpack.encode([*parts, [(5, 0)], []])])
    frontier = Frontier()
    frontier.restore([msgspec.msgpack.encode([*parts, [(4, 0)], [99, 0]])])
    assert list(frontier.done()) == ["/"]


# --- Redirects --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folded", [False, True])
def test_a_circle_of_redirects_is_known_across_a_checkpoint(folded: bool) -> None:
    frontier = filled("/a", "/b", "/c", "/d")
    entries = [frontier.whole()]
    one, two, three, four = drained(frontier)
    assert frontier.note_redirect(one, "/b") == []
    assert frontier.note_redirect(four, "/nowhere") == []
    frontier.finish(one)
    entries.append(frontier.delta())
    assert frontier.note_redirect(two, "/c") == []
    assert frontier.note_redirect(four, "/b") == []
    frontier.note_loaded(four)
    frontier.finish(two)
    frontier.finish(four)
    entries = [frontier.whole()] if folded else [*entries, frontier.delta()]
    again = restored(entries, frontier)
    assert [again.has_redirected(path) for path in ("/a", "/b", "/c", "/d", "/x")] == [True, True] + [
        False
    ] * 3
    assert drained(again) == [three]
    assert again.note_redirect(three, "/c") == ["/c"]
    assert again.note_redirect(three, "/a") == ["/a", "/b", "/c"]


def test_a_page_that_is_asked_again_comes_first_and_is_done_once() -> None:
    frontier = filled("/a", "/b", site=SITE)
    one = frontier.take(0.0)
    assert one
    frontier.ask_again("/a")
    frontier.ask_again("/b")
    frontier.ask_again("/x")
    frontier.finish(one)
    frontier.ask_again("/a")
    frontier.ask_again("/a")
    assert (frontier.published, list(frontier.done())) == (0, [])
    assert [turn.path for turn in drained(frontier)] == ["/a", "/b"]


def test_no_more_redirects_are_remembered_however_often_a_site_is_taken_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("crawler.agent.frontier.MOST_REDIRECTS", 10)
    frontier = filled("/", site=SITE)
    entries = [frontier.whole()]
    for lease in range(5):
        frontier = restored(entries, frontier)
        frontier.add([f"/{lease}/{number}" for number in range(7)], 1)
        for turn in drained(frontier):
            frontier.note_redirect(turn, "/")
            frontier.finish(turn)
        entries.append(frontier.delta())
    paths = [f"/{lease}/{number}" for lease in range(5) for number in range(7)]
    latest = [number >= len(paths) - 10 for number in range(len(paths))]
    assert [frontier.has_redirected(path) for path in paths] == latest
    assert [restored(entries, frontier).has_redirected(path) for path in paths] == latest


def test_redirects_that_cannot_be_are_refused() -> None:
    parts = [*msgspec.msgpack.decode(WHOLE_V1), 0, None, [], b"", [], [], []]
    for redirects, said in ([(5, 0)], "redirects of URL 5"), ([(0, 5)], "a redirect's target of URL 5"):
        with pytest.raises(CheckpointError, match=said):
            Frontier().restore([msgspec.msgpack.encode([*parts, redirects])])
