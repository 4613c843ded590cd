"""What every mode of recrawling promises, over all that are registered and one by dotted path.

A new mode needs no line here: it is taken up by its entry in crawler.recheck.NAMES.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from crawler import recheck
from crawler.recheck import Recrawl, RecrawlError
from crawler.recheck.view import PageView

MODES = (*recheck.NAMES, "tests.contracts.outsider.SmallestFirst")
# No page, one, fewer and more than hosts.
SIZES = (0, 1, 3, 500)
HOSTS = 7
MINUTE = 60.0


def made(mode: str, n: int = 500, **changed: Any) -> Recrawl:
    """So many pages with everything in them: unknown sizes and ages, no importance, much of it."""
    random = np.random.default_rng(n)
    size = random.lognormal(10, 1, n)
    size[random.random(n) < 0.1] = 0.0
    last = random.uniform(-1e5, 0, n)
    last[random.random(n) < 0.1] = np.nan
    given: dict[str, Any] = {"size": size, "weight": random.pareto(1.2, n), "last": last, **changed}
    return Recrawl(random.integers(0, HOSTS, n), given.pop("size"), mode=mode, **given)


def hosts_of(pages: np.ndarray, n: int = 500) -> np.ndarray:
    """As `made` drew them."""
    random = np.random.default_rng(n)
    (
        random.lognormal(10, 1, n),
        random.random(n),
        random.uniform(-1e5, 0, n),
        random.random(n),
        random.pareto(1.2, n),
    )
    drawn: np.ndarray = random.integers(0, HOSTS, n)
    return drawn[pages]


def live(policy: Recrawl, calls: int, pace: float = 1e-5, budget: float | None = 2.0) -> list[np.ndarray]:
    """So many minutes of choosing and visiting; every third page has changed."""
    random = np.random.default_rng(1)
    chosen = []
    for call in range(calls):
        chosen.append(policy.choose(call * MINUTE, pace, budget=budget))
        policy.visited(chosen[-1], call * MINUTE, random.random(len(chosen[-1])) < 0.3)
    return chosen


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n", SIZES)
def test_a_choice_is_of_pages_each_once_one_of_a_host_within_the_budget(mode: str, n: int) -> None:
    policy = made(mode, n)
    size = np.array(policy._columns.rows.size[policy._columns.rows_of(np.arange(n))]) if n else np.zeros(0)
    for call in range(40):
        chosen = policy.choose(call * MINUTE, 1e-5, budget=2.0)
        hosts = hosts_of(chosen, n)
        assert len(np.unique(hosts)) == len(hosts)
        cost = float(size[chosen].sum()) * 1e-5
        assert cost <= 2.0 + 1e-6 or len(chosen) == 1
        policy.visited(chosen, call * MINUTE, False)
    assert np.isfinite(policy.price)


@pytest.mark.parametrize("mode", MODES)
def test_scores_are_numbers_of_one_kind(mode: str) -> None:
    policy = made(mode)
    live(policy, 30)
    view = policy.view(np.arange(500), 31 * MINUTE, 1e-5)
    score = policy.mode.score(view)
    assert score.dtype == np.float32
    assert score.shape == (500,)
    assert not np.isnan(score).any()
    assert (score < np.inf).all()
    np.testing.assert_array_equal(score, policy.mode.score(view))


@pytest.mark.parametrize("mode", MODES)
def test_a_page_that_waits_longer_is_worth_no_less(mode: str) -> None:
    policy = made(mode, horizon_periods=1e9)
    live(policy, 30)
    ages = [policy.mode.score(policy.view(np.arange(500), t, 1e-5)) for t in (1e4, 1e5, 1e6, 1e7)]
    for sooner, later in itertools.pairwise(ages):
        worth = sooner > 0  # how far below is no figure to compare
        assert (later[worth] >= sooner[worth] * (1 - 1e-3)).all()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "changed",
    [
        {"size": np.zeros(500)},
        {"size": np.full(500, np.nan)},
        {"size": np.full(500, 1e12)},
        {"weight": np.zeros(500)},
        {"weight": np.full(500, 1e6)},
        {"last": np.full(500, -1e9)},
        {"last": np.full(500, 1e9)},
        {"last": np.zeros(500)},
        {"mean_rate": 1e-12},
        {"mean_rate": 1e3},
        {"conditional": 1.0},
        {"longest_seconds": 60.0},
        {"longest_seconds": None},
    ],
    ids=lambda changed: "-".join(f"{k}" for k in changed),
)
def test_extreme_pages_are_chosen_from_alike(mode: str, changed: dict[str, Any]) -> None:
    """Nothing known of sizes, all due at once, visited in the future …: every warning of numpy is an error here."""
    policy = made(mode, **changed)
    chosen = live(policy, 40)
    assert all(len(one) <= HOSTS for one in chosen)
    assert np.isfinite(policy.price)
    assert np.isfinite(policy.mean_rate)


@pytest.mark.parametrize("mode", MODES)
def test_a_clock_that_stands_or_jumps_back_harms_nobody(mode: str) -> None:
    policy = made(mode)
    times = [0.0] * 5 + [1e6] * 3 + [10.0] * 5 + [2e9] + list(np.arange(20) * MINUTE)
    for now in times:
        chosen = policy.choose(now, 1e-5, budget=2.0)
        policy.visited(chosen, now, True)
        policy.failed(chosen[:1], now)
        policy.signalled(chosen[:2], now)
    score = policy.mode.score(policy.view(np.arange(500), 2e9, 1e-5))
    assert not np.isnan(score).any()
    assert np.isfinite([policy.price, policy.mean_rate]).all()


@pytest.mark.parametrize("mode", MODES)
def test_hosts_that_are_not_ready_are_left_alone(mode: str) -> None:
    policy = made(mode)
    ready = np.zeros(HOSTS, bool)
    ready[2] = True
    for told in (ready, np.array([2])):
        chosen = policy.choose(1e6, 1e-5, ready=told, budget=5.0)
        assert set(hosts_of(chosen).tolist()) <= {2}
    assert not len(policy.choose(1e6, 1e-5, ready=np.zeros(HOSTS, bool), budget=5.0))
    assert not len(policy.choose(1e6, 1e-5, budget=0.0))


@pytest.mark.parametrize("mode", MODES)
def test_one_site_alone_is_asked_for_what_is_worth_its_price_and_woken_when_more_is(mode: str) -> None:
    policy = made(mode)
    live(policy, 200)
    now = 200 * MINUTE
    pages, wake = policy.candidates(3, now, now + 600, 1e-5)
    assert set(hosts_of(pages).tolist()) <= {3}
    assert len(np.unique(pages)) == len(pages)
    assert now + 600 <= wake <= now + 600 + 366 * 86_400
    # These visited, nothing is worth it a little before waking, and something is at waking.
    policy.note(pages, last=now + 600)
    floor, own = 0.0 if policy.mode.priced else policy.price, policy.pages(3)
    early, late = (
        policy.mode.score(policy.view(own, at, 1e-5)) for at in (wake - 0.1 * (wake - now - 600), wake + 1)
    )
    assert (early <= floor).all()
    assert (late > floor).any()


@pytest.mark.parametrize("mode", MODES)
def test_a_site_is_the_same_after_packing(mode: str) -> None:
    policy, other = made(mode), made(mode, 0)
    live(policy, 100)
    now = 100 * MINUTE
    other.choose(now, 1e-5)
    packed = policy.pack(3)
    own = policy.pages(3)
    assert len(packed) <= 24 * len(own) + 64
    numbers = other.unpack(3, packed)
    assert len(numbers) == len(own)
    assert other.pack(3)[-len(own) * 8 :] == packed[-len(own) * 8 :]
    other.price, other._mean[:] = policy.price, policy._mean
    ours = policy.mode.score(policy.view(own, now + 1e5, 1e-5))
    theirs = other.mode.score(other.view(numbers, now + 1e5, np.full(4, 1e-5)))
    if mode != "paper":  # which counts to a horizon from its own beginning
        np.testing.assert_allclose(theirs, ours, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("mode", MODES)
def test_pages_come_and_go(mode: str) -> None:
    policy = made(mode)
    live(policy, 20)
    random = np.random.default_rng(2)
    there = set(range(500))
    for call in range(20, 60):
        new = policy.add(random.integers(0, 2 * HOSTS, 10), random.lognormal(10, 1, 10))
        assert not set(new.tolist()) & there
        there |= set(new.tolist())
        gone = random.choice(sorted(there), 8, replace=False)
        policy.remove(gone)
        there -= set(gone.tolist())
        chosen = policy.choose(call * MINUTE + 1e6, 1e-5, budget=3.0)
        assert set(chosen.tolist()) <= there
        policy.visited(chosen, call * MINUTE + 1e6, True)
    assert len(policy) == len(there)
    assert {int(p) for h in range(2 * HOSTS) for p in policy.pages(h)} == there
    with pytest.raises(RecrawlError, match="was removed"):
        policy.visited(gone[:1], 1e7, True)


@pytest.mark.parametrize("mode", MODES)
def test_everything_is_visited_where_there_is_time(mode: str) -> None:
    """Nobody is forgotten: with a budget for all, all have been visited after some days."""
    policy = made(mode, weight=None, longest_seconds=86_400.0)
    seen: set[int] = set()
    for call in range(600):
        chosen = policy.choose(call * 600.0, 1e-5, budget=100.0)
        policy.visited(chosen, call * 600.0, False)
        seen |= set(chosen.tolist())
    assert len(seen) == 500


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_tells_what_it_is(mode: str) -> None:
    found = recheck.get(mode)
    assert isinstance(found.priced, bool)
    assert isinstance(found.score(made(mode, 3).view([0], 1.0, 1.0)), np.ndarray)


def test_the_outsider_sees_what_a_view_says() -> None:
    policy = made("default")
    live(policy, 30)
    view = policy.view(np.arange(500), 31 * MINUTE, 1e-5)
    assert isinstance(view, PageView)
    a, b = view.belief
    np.testing.assert_allclose(view.rate, a / b)
    assert (view.age >= 0).all()
    assert (view.cost > 0).all()
    assert (0 <= view.recall(0) <= 1) and view.weight.shape == (500,)


@pytest.mark.parametrize(
    "name", ["no_such", "crawler.recheck.modes.NOTHING", "crawler.no.such", "math.pi", ""]
)
def test_what_is_no_mode_is_refused_with_the_names(name: str) -> None:
    with pytest.raises(RecrawlError, match="expected one of default, importance"):
        recheck.get(name)
