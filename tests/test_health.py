"""How a site is, by what was met, and which changes are told: the rules alone, over everything that can be met."""

from __future__ import annotations

import itertools
import random
from typing import get_args

import pytest

from crawler.fetch import errors
from crawler.records import STATUS_WORDS, SiteHealth, status_in_words
from crawler.status.health import CALM, FLAPS, Change, StatusHistory, follow, health_of, wants_another_try

LIMIT = 3.0
WORDS: tuple[SiteHealth, ...] = get_args(SiteHealth)
PAIRS = list(itertools.product(WORDS, WORDS))
HOUR = 3_600_000
HALF_LIFE = 1800.0


# --- What one check says ----------------------------------------------------------------------------------


def test_an_answer_in_time_is_normal_below_400_and_an_error_from_there() -> None:
    for status in set(range(200, 600)) - {429, 503}:
        wanted = "normal" if status < 400 else "error"
        assert health_of(status, 0.1, LIMIT) == health_of(status, LIMIT, LIMIT) == wanted


def test_a_late_answer_is_delayed() -> None:
    assert {health_of(status, LIMIT + 0.001, LIMIT) for status in range(200, 400)} == {"delayed"}


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("broken", [False, True])
def test_who_asks_for_a_rest_is_delayed_and_not_asked_again_at_once(status: int, *, broken: bool) -> None:
    assert health_of(status, 0.1, LIMIT, looks_broken=broken) == "delayed"
    assert not wants_another_try("delayed", status)


@pytest.mark.parametrize("status", [404, 500, 502])
def test_an_error_that_is_late_is_an_error(status: int) -> None:
    assert health_of(status, 60.0, LIMIT) == "error"


def test_an_error_page_that_answers_200_is_an_error() -> None:
    assert health_of(200, 0.1, LIMIT, looks_broken=True) == "error"


NO_ANSWER: dict[int, SiteHealth | None] = {
    **dict.fromkeys((-1, -2, -3, -4, -6, -10), "disconnected"),
    **dict.fromkeys((-5, -7, -8, -11, -12), "error"),
    -9: "normal",
    **dict.fromkeys((-13, -14, -15), None),
}


@pytest.mark.parametrize(("status", "health"), list(NO_ANSWER.items()))
def test_every_reason_why_no_answer_came_has_its_word(status: int, health: SiteHealth | None) -> None:
    assert health_of(status, None, LIMIT) == health


def test_there_is_no_other_reason() -> None:
    assert set(NO_ANSWER) == set(STATUS_WORDS)
    assert {code for _, code in errors.STATUS_CODES} <= set(NO_ANSWER)


def test_what_robots_txt_forbids_is_judged_by_its_own_answer() -> None:
    assert health_of(-9, 0.1, LIMIT) == "normal"
    assert health_of(-9, 3.1, LIMIT) == "delayed"


@pytest.mark.parametrize(
    ("health", "status", "again"),
    [
        ("disconnected", -2, True),
        ("disconnected", -10, False),
        ("delayed", 200, True),
        ("delayed", 503, False),
        ("error", 500, False),
        ("normal", 200, False),
    ],
)
def test_what_may_be_a_moment_is_looked_at_again(health: SiteHealth, status: int, *, again: bool) -> None:
    assert wants_another_try(health, status) == again


@pytest.mark.parametrize(("status", "words"), [(404, "HTTP 404"), (-2, "refused"), (-99, "-99")])
def test_a_status_in_words(status: int, words: str) -> None:
    assert status_in_words(status) == words


# --- What is told -----------------------------------------------------------------------------------------


def told(seen: list[tuple[int, SiteHealth]], half_life: float = HALF_LIFE) -> list[tuple[int, SiteHealth]]:
    """When and what, of checks at these times."""
    course: StatusHistory | None = None
    found: list[tuple[int, SiteHealth]] = []
    for at, health in seen:
        course, change = follow(course, health, at, half_life)
        if change:
            found.append((at, change.now))
    return found


@pytest.mark.parametrize("health", WORDS)
def test_a_site_begins_as_normal(health: SiteHealth) -> None:
    course, change = follow(None, health, 7, HALF_LIFE)
    assert course == StatusHistory(health, 7, 7, health)
    assert change == (None if health == "normal" else Change("normal", health, 7))


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_every_change_of_a_quiet_site_is_told_at_once(before: SiteHealth, after: SiteHealth) -> None:
    course, _ = follow(None, before, 0, HALF_LIFE)
    course, change = follow(course, after, 100, HALF_LIFE)
    assert change == (None if before == after else Change(before, after, 100))
    assert (course.health, course.since, course.at) == (after, 0 if before == after else 100, 100)


def test_an_outage_and_its_end_are_told_at_once() -> None:
    seen: list[tuple[int, SiteHealth]] = [(0, "normal"), (1000, "disconnected"), (2000, "normal")]
    assert told(seen) == [(1000, "disconnected"), (2000, "normal")]


@pytest.mark.parametrize(("before", "after"), PAIRS)
@pytest.mark.parametrize("at", [0, 50, 100])
def test_a_check_that_is_late_or_comes_twice_changes_nothing(
    before: SiteHealth, after: SiteHealth, at: int
) -> None:
    course, _ = follow(None, before, 100, HALF_LIFE)
    assert follow(course, after, at, HALF_LIFE) == (course, None)


def flapping(times: int, pause: int) -> list[tuple[int, SiteHealth]]:
    return [(n * pause, "error" if n % 2 else "normal") for n in range(times)]


def test_flapping_is_told_twice_and_then_not() -> None:
    assert told(flapping(100, 60_000)) == [(60_000, "error"), (120_000, "normal")]


def test_without_damping_all_is_told() -> None:
    assert len(told(flapping(100, 60_000), 0.0)) == 99


def test_rare_changes_are_no_flapping() -> None:
    assert len(told(flapping(100, 2 * HOUR))) == 99


@pytest.mark.parametrize("last", ["error", "normal"])
def test_after_flapping_what_is_the_case_is_told_once_it_is_calm(last: SiteHealth) -> None:
    seen = flapping(20, 60_000)
    end = seen[-1][0]
    seen += [(end + n * 300_000, last) for n in range(1, 60)]
    found = told(seen)
    assert found[:2] == [(60_000, "error"), (120_000, "normal")]
    assert [health for _, health in found[2:]] == ([last] if last == "error" else [])
    # Some half-lives later, and not at once.
    assert all(end + HALF_LIFE * 1000 < at < end + 2.5 * HALF_LIFE * 1000 for at, _ in found[2:])


def test_what_is_known_is_right_whether_it_is_told_or_not() -> None:
    chance = random.Random(3)
    course: StatusHistory | None = None
    last_told: SiteHealth = "normal"
    since, before = 0, None
    for at in range(0, 400 * 60_000, 60_000):
        health = chance.choice(WORDS) if chance.random() < 0.2 else (before or "normal")
        since = at if health != before else since
        course, change = follow(course, health, at, HALF_LIFE)
        if change:
            assert (change.was, change.now, change.since) == (last_told, health, since)
            last_told = health
        assert (course.health, course.since, course.at, course.told) == (health, since, at, last_told)
        assert course.damped or last_told == health
        assert course.damped == (course.penalty >= CALM) if course.damped else course.penalty < FLAPS
        before = health
