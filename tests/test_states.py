"""Paper 001's life of a URL: every state with every event, and what follows from them."""

from __future__ import annotations

from itertools import product

import pytest

from crawler import states
from crawler.records import PageState
from crawler.states import EVENTS, NEXT, SILENT, STATES, Event, IllegalTransitionError, after
from tests.life import Life, lived

INIT, VISITED, ONCE, TWICE, DEAD = STATES
EVERY: tuple[PageState | None, ...] = (None, *STATES)

# The figures 3.2 and 3.3 of the paper, arrow by arrow.
PAPER: list[tuple[PageState | None, Event, PageState]] = [
    (None, "found", INIT),
    (INIT, "loaded", VISITED),
    (INIT, "not_loaded", ONCE),
    (VISITED, "unchanged", VISITED),
    (VISITED, "changed", INIT),
    (VISITED, "silent", ONCE),
    (ONCE, "answers", VISITED),
    (ONCE, "silent", TWICE),
    (TWICE, "answers", VISITED),
    (TWICE, "silent", DEAD),
]
# What is ours: the state does not change, or a load says more than all questions before it.
STAYS: dict[Event, tuple[PageState | None, ...]] = {
    "found": STATES,
    "left_out": STATES,
    "not_loaded": (ONCE, TWICE, DEAD),
    "delayed": (VISITED, ONCE, TWICE),
}
OURS: list[tuple[PageState | None, Event, PageState]] = [
    *((state, event, state) for event, kept in STAYS.items() for state in kept if state),
    *((state, "loaded", VISITED) for state in EVERY if state != INIT),
    (None, "not_loaded", ONCE),
    (VISITED, "not_loaded", ONCE),
    (None, "left_out", INIT),
]
ARROWS = {(state, event): following for state, event, following in [*PAPER, *OURS]}


@pytest.mark.parametrize(("state", "event"), list(product(EVERY, EVENTS)))
def test_every_pair(state: PageState | None, event: Event) -> None:
    if (state, event) in ARROWS:
        assert after(state, event) == ARROWS[state, event]
    else:
        with pytest.raises(IllegalTransitionError, match=f"a page in state {state} does not allow {event}"):
            after(state, event)


def test_no_arrow_is_there_twice_or_beside_these() -> None:
    assert len(ARROWS) == len(PAPER) + len(OURS)
    assert ARROWS == NEXT


def test_a_page_that_was_never_loaded_goes_back_to_be_loaded() -> None:
    for state in SILENT:
        assert after(state, "answers", has_body=False) == INIT
    assert after(INIT, "loaded", has_body=False) == VISITED


def test_nothing_but_a_load_wakes_the_dead() -> None:
    assert {event for event in EVENTS if NEXT.get((DEAD, event), DEAD) != DEAD} == {"loaded"}


def test_a_life_ends_by_three_straight_failures_and_no_fewer() -> None:
    """Of all ways of up to six events from a page that is new, those that end in death, and those alone, have three."""
    ways: list[tuple[Life, tuple[Event, ...]]] = [(Life(INIT), ())]
    deaths = 0
    for _ in range(6):
        following = []
        for (life, way), event in product(ways, EVENTS):
            if (life.state, event) in NEXT:
                following.append((lived(life, event), (*way, event)))
        ways = [(life, way) for life, way in following if life.state != DEAD]
        for life, way in following:
            steps = [event for event in way if event not in ("found", "left_out", "delayed")]
            failures = [event for event in steps if event in ("silent", "not_loaded")]
            assert life.fails <= len(failures)
            if life.state == DEAD:
                deaths += 1
                assert life.fails == 3
                assert steps.count("silent") >= 2, "loading alone kills nobody"
    assert deaths > 100


def test_failures_count_from_the_last_answer() -> None:
    life = Life(INIT)
    told: list[tuple[Event, PageState, int]] = [
        ("not_loaded", ONCE, 1),
        ("delayed", ONCE, 1),
        ("not_loaded", ONCE, 1),
        ("silent", TWICE, 2),
        ("answers", VISITED, 0),
        ("silent", ONCE, 1),
        ("silent", TWICE, 2),
        ("silent", DEAD, 3),
    ]
    for event, state, fails in told:
        life = lived(life, event)
        assert life == (state, fails)


@pytest.mark.parametrize(
    ("outcome", "status", "event"),
    [
        *(("stored", 200, "loaded"), ("duplicate", 200, "loaded"), ("redirected", 301, "loaded")),
        *(("filtered", 200, "loaded"), ("denied", -9, "left_out"), ("denied", -15, "left_out")),
        *(
            ("failed", status, "not_loaded")
            for status in (404, 410, 408, 429, 500, 503, -1, -2, -3, -5, -8, -12)
        ),
        *(("failed", status, "loaded") for status in (400, 401, 403, 405, 451, 302)),
        *(("failed", status, "left_out") for status in (-10, -11, -13, -14)),
    ],
)
def test_what_a_turn_means(outcome: str, status: int, event: str) -> None:
    assert states.load_event(outcome, status) == event  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("status", "event"),
    [
        *((status, "silent") for status in (404, 410, -1, -2, -3, -4, -5, -6, -7, -8, -12)),
        *((status, "delayed") for status in (408, 425, 429, 500, 503, 599, -9, -10, -11, -14)),
        *((status, "answers") for status in (200, 204, 206, 301, 304, 401, 403, 405, 451)),
    ],
)
def test_what_an_answer_means(status: int, event: str) -> None:
    assert states.ask_event(status) == event


def test_delays_grow_and_the_others_have_none() -> None:
    delays = {state: states.delay_until_next(state, (10.0, 99.0)) for state in STATES}
    assert delays == {INIT: None, VISITED: None, ONCE: 10.0, TWICE: 99.0, DEAD: None}
