"""What bounds leave out is counted: each URL once, in bounded memory, across leases, kills and walks."""

from __future__ import annotations

import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler.agent.frontier import CheckpointError, Frontier, Known, checkpoint_of
from crawler.left_out import (
    BOUNDS,
    MOST_HASHES,
    LeftOut,
    from_text,
    in_words,
    settings_of,
    to_text,
    unpacked,
)
from tests.test_frontier import drained, filled, restored

PATHS = [f"/page/{number}" for number in range(100_000)]


# --- Counting ---------------------------------------------------------------------------------------------


def test_each_url_counts_once_and_for_the_first_reason() -> None:
    left = LeftOut()
    left.add("depth", ["/a", "/b", "/a"])
    left.add("links", ["/a", "/c"])
    assert left.counts == {"depth": 2, "links": 1}
    left.take_out("/a")
    left.take_out("/unknown")
    assert left.counts == {"depth": 1, "links": 1}
    left.add("links", ["/a"])
    assert left.counts == {"depth": 1, "links": 2}


def test_few_are_counted_exactly_and_many_nearly() -> None:
    left = LeftOut()
    for many in (1, MOST_HASHES, 10_000, 100_000):
        left.add("depth", PATHS[:many])
        error = 0 if many <= MOST_HASHES else 0.15 * many
        assert left.counts["depth"] == pytest.approx(many, abs=error)
    before = left.counts["depth"]
    left.add("depth", PATHS)
    assert left.counts["depth"] == before, "known ones change nothing"


def test_memory_is_bounded_whatever_is_left_out() -> None:
    """A hostile site names 100,000 pages that are too deep, a thousand at a time, and each of them many times."""
    frontier = filled("/", max_depth=3)
    entries = [frontier.whole()]
    for start in range(0, len(PATHS), 1000):
        frontier.add(PATHS[start : start + 1000], 4)
        frontier.add(PATHS[start : start + 1000], 4)
        entries.append(frontier.delta())
    assert len(frontier) == 1
    assert frontier.left_out["depth"] == pytest.approx(100_000, rel=0.15)
    (sample,) = frontier._left.samples.values()
    assert len(sample.hashes) <= MOST_HASHES
    assert sys.getsizeof(sample.hashes) < 100_000
    assert len(frontier.whole()) < 5_000
    assert sum(map(len, entries)) < 50_000, "a journal too has each URL once at most"
    assert restored(entries, frontier).left_out == frontier.left_out


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["depth", "links", "out", "tell"]),
            st.lists(st.integers(0, 3_000).map(PATHS.__getitem__), max_size=2_000),
        ),
        max_size=8,
    )
)
def test_what_changed_gives_the_whole(steps: list[tuple[str, list[str]]]) -> None:
    left, journal = LeftOut(), LeftOut()
    for step, paths in [*steps, ("tell", [])]:
        if step == "tell":
            journal.replay(left.changes())
            left.tell()
        elif step == "out":
            for path in paths:
                left.take_out(path)
        else:
            left.add(step, paths)  # type: ignore[arg-type]
    whole = LeftOut()
    whole.replay(left.everything())
    assert journal.counts == whole.counts == left.counts
    assert not left.changes()


# --- In a frontier ----------------------------------------------------------------------------------------


def test_too_deep_is_counted_until_a_shorter_way_is_found() -> None:
    frontier = filled("/", max_depth=2)
    frontier.add(["/", "/a", "/b", "/a"], 3)
    assert frontier.left_out == {"depth": 2}
    frontier.add(["/a"], 2)
    assert frontier.left_out == {"depth": 1}
    assert "/a" in frontier


def test_links_into_traps_are_counted() -> None:
    frontier = filled("/")
    frontier.add(["/a", "/trap/1", "/trap/2", "/trap/1"], 1, lambda path: path.startswith("/trap"))
    assert frontier.left_out == {"family": 2}


def test_what_is_not_remembered_is_counted() -> None:
    frontier = filled("/", max_pages=5)
    frontier.add(PATHS[:11_000], 1)
    assert len(frontier) == 10_000
    assert frontier.left_out == {"memory": 1_001}
    drained(frontier)
    assert frontier.left_out == {"memory": 1_001, "pages": 9_995}


def test_beyond_the_limit_a_bounded_number_is_remembered() -> None:
    frontier = filled("/", max_pages=200_000)
    for start in range(0, 400_000, 100_000):
        frontier.add([f"/{number}" for number in range(start, start + 100_000)], 1)
    assert len(frontier) == 250_000
    assert frontier.left_out["memory"] == pytest.approx(150_001, rel=0.15)


def test_counts_go_on_with_another_agent_and_are_told_once() -> None:
    frontier = filled("/", "/a", max_depth=1)
    entries = [frontier.whole()]
    frontier.add(["/x", "/y"], 2)
    frontier.leave_out("size", ["/a"])
    entries.append(frontier.delta())
    frontier.add(["/x"], 1)
    frontier.add(["/z"], 2)
    entries.append(frontier.delta())
    other = restored(entries, frontier)
    assert other.left_out == frontier.left_out == {"depth": 2, "size": 1}
    other.add(["/y", "/z"], 2)
    assert other.left_out == {"depth": 2, "size": 1}
    drained(other)
    assert other.left_out == {"depth": 2}, "a page that has another turn is judged anew"


def test_a_walk_that_is_opened_again_counts_on() -> None:
    """Its checkpoint is made of the tables: what was beyond the budget is not known any more, but counted."""
    frontier = filled("/", "/a", "/b", "/c", max_pages=2, max_depth=1)
    frontier.add(["/deep"], 2)
    drained(frontier)
    assert frontier.left_out == {"depth": 1, "pages": 2}
    known = [Known("/", 0), Known("/a", 0, again=True)]
    again = restored([checkpoint_of("", known, frontier.pack_left_out())], frontier)
    assert again.left_out == {"depth": 1, "pages": 2}
    assert again.over_budget == 0
    again.add(["/b", "/deep"], 1)
    assert again.over_budget == 2
    assert again.left_out == {"pages": 3}, "each counts once: /b, /deep, and /c"
    assert restored([checkpoint_of("", known)], frontier).left_out == {}


def test_bytes_that_are_nothing_of_this_are_refused() -> None:
    for data in (b"x", b"\x91", b"\x91\x93\xa1x\x00\xc4\x03abc", b"\x91\x93\xa1x\x28\xc4\x00"):
        with pytest.raises(ValueError, match="bytes"):
            unpacked(data)
    assert unpacked(b"") == []
    frontier = Frontier(max_depth=1)
    frontier.add(["/deep"], 2)
    entry = msgspec.msgpack.decode(frontier.whole())
    (part,) = next(field for field in entry if isinstance(field, list) and field and field[0][0] == "depth")
    part[2] = b"abc"
    with pytest.raises(CheckpointError, match="multiple of 4"):
        Frontier().restore([msgspec.msgpack.encode(entry)])


# --- In words ---------------------------------------------------------------------------------------------


def test_counts_in_words_and_as_text() -> None:
    counts = {"depth": 120, "pages": 31_887, "links": 6_831, "size": 0}
    assert in_words(counts) == (
        "31,887 pages by MAX_PAGES_PER_SITE, about 6,831 links by MAX_LINKS_PER_PAGE, 120 pages by MAX_DEPTH"
    )
    assert settings_of({**counts, "memory": 5, "copy": 9}) == [
        *("MAX_PAGES_PER_SITE", "MAX_LINKS_PER_PAGE", "MAX_DEPTH"),
    ]
    assert from_text(to_text(counts)) == {"depth": 120, "pages": 31_887, "links": 6_831}
    assert (in_words({}), to_text({}), from_text("")) == ("", "", {})
    assert in_words({"novel": 2}) == "2 URLs by novel", "of a later version"
    assert from_text("x,7,depth,links3") == {"links": 3}


@pytest.mark.parametrize("reason", BOUNDS)
def test_every_reason_can_stand_in_the_queue(reason: str) -> None:
    assert reason.isascii()
    assert reason.isalpha()
    assert reason.islower()
