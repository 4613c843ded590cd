"""What every policy promises, over all that are registered and one by dotted path.

A new policy needs no line here: it is taken up by its entry in crawler.schedulers.NAMES.
"""

from __future__ import annotations

import importlib
import inspect
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from crawler import schedulers
from crawler.schedulers import SiteScheduler, SiteView

POLICIES = (*schedulers.NAMES, "tests.contracts.outsider.LongestFirst")
# Around nothing, one, and more sites than slots.
SIZES = (0, 1, 2, 7, 1000)
UNKNOWN = 255


def view(n: int, **changed: Any) -> SiteView:
    """So many sites with everything in them: known and unknown loads, finished ones, ones that are not ready."""
    random = np.random.default_rng(n)
    load = random.integers(0, 256, (n, 24), dtype=np.uint8)
    load[random.random(n) < 0.3] = UNKNOWN
    made = SiteView(
        load=load,
        pages_per_hour=random.uniform(1, 10_000, n).astype(np.float32),
        pace_cap=random.uniform(1, 3600, n).astype(np.float32),
        remaining=random.integers(0, 4, n).astype(np.float32) * 100,
        ready=random.random(n) < 0.8,
        sequence=random.permutation(n).astype(np.int64),
        slots=5,
        hour_left=0.5,
    )
    return frozen(replace(made, **changed))


def frozen(made: SiteView) -> SiteView:
    """A policy that writes into what it was shown raises."""
    for array in vars(made).values():
        if isinstance(array, np.ndarray):
            array.flags.writeable = False
    return made


def seeded(name: str, seed: int) -> SiteScheduler:
    """The policy, with this seed where it takes one."""
    module, _, attribute = schedulers.check(name).rpartition(".")
    policy = getattr(importlib.import_module(module), attribute)
    takes = "seed" in inspect.signature(policy).parameters
    return schedulers.get(name, **({"seed": seed} if takes else {}))


def check(policy: SiteScheduler, shown: SiteView) -> np.ndarray:
    """The scores, after all that holds for any view."""
    score = policy.score(shown)
    open_now = shown.ready & (shown.remaining > 0)
    assert score.dtype == np.float32
    assert score.shape == shown.remaining.shape
    assert np.isfinite(score[open_now]).all(), "an unfinished, ready site has no score"
    assert np.isneginf(score[~open_now]).all(), "a finished site, or one that is not ready, has a score"
    return score


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("n", SIZES)
def test_open_sites_and_no_others_are_scored(name: str, n: int) -> None:
    check(schedulers.get(name), view(n))


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(
    "changed",
    [
        {"load": np.full((50, 24), UNKNOWN, np.uint8)},
        {"load": np.full((50, 24), 254, np.uint8)},
        {"load": np.zeros((50, 24), np.uint8)},
        {"pages_per_hour": np.zeros(50, np.float32)},
        {"pace_cap": np.zeros(50, np.float32)},
        {"remaining": np.zeros(50, np.float32)},
        {"remaining": np.full(50, 3e38, np.float32)},
        {"ready": np.zeros(50, bool)},
        {"sequence": np.arange(50, dtype=np.int64) + 2**53},
        {"slots": 0},
        {"slots": 10_000},
        {"hour_left": 0.0},
        {"hour_left": 1.0},
        {"exponent": 1.5},
    ],
    ids=lambda changed: "-".join(changed),
)
def test_extreme_views_are_scored_alike(name: str, changed: dict[str, Any]) -> None:
    """All loads unknown, no pace at all, nothing ready …: every warning of numpy is an error here."""
    check(schedulers.get(name), view(50, **changed))


@pytest.mark.parametrize("name", POLICIES)
def test_the_same_seed_gives_the_same_answer(name: str) -> None:
    shown = view(200)
    first = seeded(name, seed=7)
    scores = [first.score(shown), first.score(shown), seeded(name, seed=7).score(shown)]
    np.testing.assert_array_equal(scores[0], scores[1])
    np.testing.assert_array_equal(scores[0], scores[2])


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("running", [[], [0], [3, 1, 199]], ids=["none", "one", "three"])
def test_keep_answers_for_every_running_site(name: str, running: list[int]) -> None:
    kept = schedulers.get(name).keep(view(200), np.array(running, dtype=np.int64))
    assert kept.dtype == np.bool_
    assert kept.shape == (len(running),)


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_tells_what_it_is(name: str) -> None:
    assert inspect.getdoc(type(schedulers.get(name)))


def test_a_seed_changes_the_order_of_random() -> None:
    shown = view(200)
    scores = [schedulers.get("random", seed=seed).score(shown) for seed in (1, 2, None)]
    assert not np.array_equal(scores[0], scores[1])
    assert not np.array_equal(scores[0], scores[2])


@pytest.mark.parametrize("name", ["", "no", "Random", "nowhere.at.all", "crawler.schedulers.paper.Nobody"])
def test_an_unknown_name_is_told_the_right_ones(name: str) -> None:
    with pytest.raises(schedulers.SchedulerError, match=r"random, sorted.*or the path"):
        schedulers.get(name)


@pytest.mark.parametrize("name", POLICIES)
def test_no_cap_at_all_is_a_cap(name: str) -> None:
    check(schedulers.get(name), view(50, pace_cap=np.full(50, np.inf, np.float32)))


@pytest.mark.parametrize("name", POLICIES)
def test_a_finished_site_changes_nothing_for_the_others(name: str) -> None:
    """The order of open sites is the same whether finished ones stand in the view or not."""
    shown = view(200)
    open_now = np.flatnonzero(shown.ready & (shown.remaining > 0))
    alone = {
        key: value[open_now] if isinstance(value, np.ndarray) else value for key, value in vars(shown).items()
    }
    policy = seeded(name, seed=3)
    whole, part = policy.score(shown)[open_now], policy.score(SiteView(**alone))
    np.testing.assert_array_equal(np.argsort(-whole, kind="stable"), np.argsort(-part, kind="stable"))


@pytest.mark.parametrize("name", POLICIES)
def test_a_site_that_is_finished_does_not_go_on(name: str) -> None:
    """Whoever suspends anything suspends these; who keeps all may leave it to the caller."""
    policy, shown = schedulers.get(name), view(200)
    kept = policy.keep(shown, np.arange(200))
    closed = ~(shown.ready & (shown.remaining > 0))
    assert kept.all() or not kept[closed & ~shown.ready].any()


def test_a_view_takes_at_most_48_bytes_a_site() -> None:
    arrays = [array for array in vars(view(1000)).values() if isinstance(array, np.ndarray)]
    assert sum(array.nbytes for array in arrays) <= 48 * 1000


class WrongInType:
    """float64, and a score for everything."""

    def score(self, view: SiteView) -> np.ndarray:
        return np.zeros(len(view.ready))

    def keep(self, view: SiteView, running: np.ndarray) -> np.ndarray:
        return np.ones(len(running), dtype=bool)


class WritesIntoTheView(WrongInType):
    def score(self, view: SiteView) -> np.ndarray:
        view.load[view.load == UNKNOWN] = 0
        return super().score(view).astype(np.float32)


@pytest.mark.parametrize(
    ("policy", "error"), [(WrongInType(), AssertionError), (WritesIntoTheView(), ValueError)]
)
def test_the_suite_sees_a_broken_policy(policy: SiteScheduler, error: type[Exception]) -> None:
    with pytest.raises(error):
        check(policy, view(7))
