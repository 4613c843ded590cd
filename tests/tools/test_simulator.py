"""The simulator of benchmarks/schedulers.py: it does what crawls do, and the policies keep their order in it.

The goals are measured by the benchmark over 200 seeds; here over few, with wider bounds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import schedulers as benchmark
from benchmarks.simulator.cases import CASES, OUTAGES
from benchmarks.simulator.crawl import Crawl, crawl
from benchmarks.simulator.instances import (
    EXPONENT,
    FULL,
    PACE,
    REFERENCE,
    SHARED_NIGHT,
    Case,
    Instance,
    draw,
    smoothed,
)
from benchmarks.simulator.optimum import optimum
from crawler import schedulers
from crawler.schedulers import SiteView
from tests.costs import FLOOR_SECONDS, STEEP

ROOT = Path(__file__).resolve().parents[2]
SEEDS = 20


class InTurn:
    """Rows in their order; suspends everything, or nothing."""

    def __init__(self, goes_on: bool = True) -> None:
        self.goes_on = goes_on
        self.views: list[SiteView] = []

    def score(self, view: SiteView) -> np.ndarray:
        self.views.append(view)
        order = -np.arange(len(view.ready), dtype=np.float32)
        return np.where(view.ready & (view.remaining > 0), order, np.float32(-np.inf))

    def keep(self, view: SiteView, running: np.ndarray) -> np.ndarray:
        return np.full(len(running), self.goes_on)


def made(load: list[list[float]], size: list[float], slots: int = 1, **changed: object) -> Instance:
    """Sites of such sizes, whose days begin with these loads and go on with the last of them."""
    days = np.array([[*one, *[one[-1]] * (24 - len(one))] for one in load])
    case = replace(REFERENCE, sites=len(size), slots=slots, pace=1.0, **changed)  # type: ignore[arg-type]
    outages: list[list[tuple[float, float]]] = [[] for _ in size]
    return Instance(case, days, np.rint(days * FULL).astype(np.uint8), np.array(size), outages)


# --- one crawl ---


def test_pace_changes_with_the_hour() -> None:
    """One page at pace 1, two hours at a quarter of it, then one again."""
    quarter = 1 - 0.25 ** (1 / EXPONENT)
    done = crawl(made([[0.0, quarter, quarter, 0.0]], [2.0]), InTurn())
    assert done.finish == pytest.approx(3.5)
    assert done.pages == pytest.approx([1, 0.25, 0.25, 0.5])
    assert done.page_time == pytest.approx((0.5 * 1 + 1.5 * 0.25 + 2.5 * 0.25 + 3.25 * 0.5) / 2)
    assert done.starts == 1


def test_a_slot_takes_the_next_site_at_once() -> None:
    done = crawl(made([[0.0]] * 5, [0.3, 0.3, 0.3, 0.3, 0.3], slots=2), InTurn())
    assert done.finish == pytest.approx(0.9)
    assert done.pages == pytest.approx([1.5])
    assert done.starts == 5


def test_a_suspended_site_may_be_taken_again_and_nothing_is_lost() -> None:
    """Every hour all is suspended and taken again: the same crawl, no start more."""
    instance = draw(REFERENCE, 1)
    kept, again = crawl(instance, InTurn()), crawl(instance, InTurn(goes_on=False))
    assert sum(again.pages) == pytest.approx(instance.size.sum())
    assert kept.starts == again.starts == 100
    assert again.finish == pytest.approx(kept.finish, rel=0.3)


def test_a_policy_sees_what_is_left_and_the_hours_from_now_on() -> None:
    policy = InTurn()
    loads = [h / 100 for h in range(24)]
    crawl(made([loads, loads], [1.4, 0.2]), policy)
    first, second = policy.views[:2]
    assert (first.load[0] == np.rint(np.array(loads) * FULL)).all()
    assert (second.load[0] == np.roll(first.load[0], -1)).all()
    np.testing.assert_allclose(first.remaining, [1.4, 0.2])
    np.testing.assert_allclose(second.remaining, [0.4, 0.2], rtol=1e-5)
    assert (first.slots, first.hour_left, first.exponent) == (1, 1.0, EXPONENT)
    assert not first.load.flags.writeable


def test_sizes_that_are_not_known_are_guessed() -> None:
    """The mean size until that much is done, then a share of what is done."""
    policy = InTurn()
    crawl(made([[0.0]], [2.5], sizes_known=False), policy)
    np.testing.assert_allclose([view.remaining[0] for view in policy.views], [1.0, 0.3, 0.6], rtol=1e-5)


def test_a_policy_that_never_ends_is_told() -> None:
    class Never(InTurn):
        def score(self, view: SiteView) -> np.ndarray:
            return np.full(len(view.ready), -np.inf, np.float32)

    with pytest.raises(RuntimeError, match="Never has not ended after 2000 hours"):
        crawl(made([[0.0]], [1.0]), Never())


def test_an_outage_is_waited_for() -> None:
    instance = replace(made([[0.0]], [1.0]), outages=[[(0.25, 1.75)]])
    assert crawl(instance, InTurn()).finish == pytest.approx(2.5)


def test_a_site_that_is_out_is_left_and_taken_again_when_it_answers() -> None:
    """Out from 0.25 to 0.75, left at 0.35; the other is fetched until then, and the first goes on when it is due."""
    instance = made([[0.0]] * 3, [1.0, 0.6, 0.2], patience_hours=0.1)
    instance = replace(instance, outages=[[(0.25, 0.75)], [], []])
    done = crawl(instance, InTurn())
    assert done.starts == 4
    assert done.finish == pytest.approx(1.8 + 0.1)


def test_a_slot_without_other_work_waits_for_the_site_to_answer() -> None:
    instance = replace(made([[0.0]], [0.5], patience_hours=0.1), outages=[[(0.2, 0.6)]])
    assert crawl(instance, InTurn()).finish == pytest.approx(0.9)


@pytest.mark.parametrize("name", schedulers.NAMES)
@pytest.mark.parametrize("case", ["combined II", "pace capped at 0.25", "20 sites, 4 slots"])
def test_every_policy_fetches_every_page(name: str, case: str) -> None:
    for seed in range(2):
        instance = draw(CASES[case][0], seed)
        done = crawl(instance, schedulers.get(name))
        assert sum(done.pages) == pytest.approx(instance.size.sum())
        assert 0 < done.page_time < done.finish <= len(done.pages)
        assert done.starts >= len(instance.size)


# --- instances ---


def test_the_reference_instance_is_what_it_is_said_to_be() -> None:
    instances = [draw(REFERENCE, seed) for seed in range(30)]
    load = np.concatenate([one.load for one in instances])
    size = np.concatenate([one.size for one in instances])
    assert load.shape == (3000, 24)
    assert (load.min(), load.max()) >= (0.02, 0.5)
    assert load.max() <= 0.97
    assert (size.min(), size.max()) == pytest.approx((0.1, 1.9), abs=0.01)
    assert size.mean() == pytest.approx(1, abs=0.03)
    swing = load.max(axis=1) - load.min(axis=1)
    assert (swing < 0.15).mean() == pytest.approx(0.5, abs=0.02)
    assert ((swing < 0.15) & (load.mean(axis=1) < 0.4)).mean() == pytest.approx(0.25, abs=0.02)
    assert ((swing > 0.15) & (load.min(axis=1) > 0.3)).mean() == pytest.approx(0.25, abs=0.02)
    for one in instances:
        assert np.abs(one.told / FULL - one.load).max() <= 0.5 / FULL + 1e-9
    assert instances[0].pace.max() < PACE


def test_cases_differ_in_what_they_say_alone() -> None:
    plain = draw(REFERENCE, 4)
    told = draw(replace(REFERENCE, error=0.1, sizes_known=False, **OUTAGES), 4)
    np.testing.assert_array_equal(plain.load, told.load)
    np.testing.assert_array_equal(plain.size, told.size)
    assert np.abs(told.told / FULL - plain.load).std() == pytest.approx(0.06, abs=0.02)
    assert sum(map(len, told.outages)) > 0 == sum(map(len, plain.outages))
    night = draw(SHARED_NIGHT, 4).load
    swinging = night[night.max(axis=1) - night.min(axis=1) > 0.2]
    quietest = np.bincount(swinging.argmin(axis=1), minlength=24)
    assert max(quietest[np.arange(start, start + 8) % 24].sum() for start in range(24)) > 0.6 * len(swinging)


@pytest.mark.parametrize("sizes", ["equal", "exponential", "lognormal", "pareto"])
def test_sizes_have_mean_1(sizes: str) -> None:
    drawn = np.concatenate([draw(replace(REFERENCE, sizes=sizes), seed).size for seed in range(60)])
    assert drawn.mean() == pytest.approx(1, abs=0.15)
    assert drawn.min() > 0


def test_smoothing_leaves_slow_waves_alone() -> None:
    hours = np.arange(24)
    slow = 0.5 + 0.2 * np.cos(hours * np.pi / 12) + 0.1 * np.sin(hours * np.pi / 6)
    fast = 0.1 * np.cos(hours * np.pi / 2)
    np.testing.assert_allclose(smoothed((slow + fast)[None], 2)[0], slow)


# --- the optimum ---


def test_the_optimum_of_sites_that_swap_their_hours() -> None:
    """Each is idle while the other is not: the best order has both done at full pace; in turn it takes longer."""
    busy = 1 - 0.1 ** (1 / EXPONENT)
    instance = made([[busy, 0.0], [0.0, busy]], [1.0, 1.0])
    assert optimum(instance, 9.0) == pytest.approx(2.0)
    assert crawl(instance, InTurn()).finish > 2.5


@pytest.mark.parametrize(
    ("sizes", "slots", "wanted"),
    [([3.0], 1, 3.0), ([1.0, 1.0, 1.0], 2, 1.5), ([2.0, 0.5], 2, 2.0), ([0.25, 0.25], 1, 0.5)],
)
def test_the_optimum_of_flat_sites(sizes: list[float], slots: int, wanted: float) -> None:
    """All slots busy, or the longest site alone; three equal sites on two slots need a suspension."""
    assert optimum(made([[0.0]] * len(sizes), sizes, slots), 4.0) == pytest.approx(wanted, abs=1e-6)


def test_the_optimum_waits_for_outages_too() -> None:
    instance = replace(made([[0.0]], [1.5]), outages=[[(0.75, 2.0)]])
    assert optimum(instance, 4.0) == pytest.approx(2.75, abs=1e-6)


# --- the policies, in short ---


@pytest.fixture(scope="module")
def reference() -> benchmark.Results:
    return benchmark.measure(
        REFERENCE, SEEDS, ("random", "sorted", "hybrid", "hybrid, next", "regret", "early")
    )


def test_the_papers_order_of_policies(reference: benchmark.Results) -> None:
    assert reference.hours("random").mean() == pytest.approx(26, abs=1.5)
    assert reference.ratio("sorted", "random") == pytest.approx(0.804, abs=0.04)
    assert reference.ratio("hybrid", "random") == pytest.approx(0.749, abs=0.04)
    assert (reference.hours("hybrid") < reference.hours("sorted")).mean() >= 0.8
    by_hour = {policy: reference.by_hour(policy) for policy in reference.crawls}
    assert by_hour["sorted"].argmax() == 0
    assert by_hour["sorted"][0] > by_hour["hybrid"][0] > by_hour["random"][0]
    assert (by_hour["hybrid"][2:6] > by_hour["sorted"][2:6]).sum() >= 3


def test_no_policy_beats_the_optimum(reference: benchmark.Results) -> None:
    for policy in reference.crawls:
        assert reference.to_best(policy).min() >= 1 - 1e-6


def test_regret_and_early_are_near_the_optimum(reference: benchmark.Results) -> None:
    assert reference.to_best("regret").mean() < 1.03
    assert reference.to_best("regret").max() < 1.08
    assert reference.ratio("regret", "hybrid") < 0.80
    assert reference.to_best("early").mean() < 1.15
    assert reference.ratio("early", "hybrid") < 0.88
    assert reference.page_time("early") < 0.95 * reference.page_time("sorted")


def test_prices_pay_where_all_share_a_night() -> None:
    found = benchmark.measure(SHARED_NIGHT, 6, ("sorted", "regret", "regret, prices"))
    assert found.ratio("regret, prices", "regret") < 0.999


@pytest.mark.parametrize(
    "case",
    [
        "forecast error 0.10",
        "sizes lognormal",
        "sizes unknown",
        "combined II, smoothed",
    ],
)
def test_no_better_policy_is_much_worse_than_sorted(case: str) -> None:
    found = benchmark.measure(CASES[case][0], 4, ("sorted", "hybrid", "regret", "early"))
    assert found.ratio("regret", "sorted") < 1.03
    assert found.ratio("early", "sorted") < 1.05


# --- the benchmark ---


def test_the_benchmark_tells_figures_and_draws_them(tmp_path: Path) -> None:
    """As a person starts it. So few seeds may miss goals: exit code 1 then, and each named."""
    picture = tmp_path / "figure.svg"
    command = [
        sys.executable,
        "benchmarks/schedulers.py",
        "--seeds=2",
        "--case-seeds=0",
        "--sites",
        "5k",
        "20k",
    ]
    ended = subprocess.run(
        [*command, "--json", f"--figure={picture}"], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    told = json.loads(ended.stdout)
    missed = [goal["name"] for goal in told["goals"] if not goal["met"]]
    assert ended.returncode == (1 if missed else 0), ended.stderr[-2000:]
    assert all(f"goal missed: {name}" in ended.stderr for name in missed)
    assert set(told["reference"]) == set(benchmark.POLICIES)
    for figures in told["reference"].values():
        assert len(figures["hours"]) == 2
        assert sum(figures["pages_by_hour"]) == pytest.approx(1)
        assert 1 <= figures["to_optimum"] < 2.5
    costs = {(cost["policy"], cost["sites"]): cost["seconds"] for cost in told["costs"]}
    assert set(costs) == {(name, sites) for name in schedulers.NAMES for sites in (5_000, 20_000)}
    for name in schedulers.NAMES:
        assert costs[name, 20_000] < STEEP * max(FLOOR_SECONDS, costs[name, 5_000])
    assert picture.read_text().count("<polyline") == 5


def results(**hours: list[float]) -> benchmark.Results:
    """Crawls that took so long, with an optimum of 10 hours."""
    crawls = {
        policy: [Crawl(finish=one, page_time=one / 2, pages=[1.0]) for one in took]
        for policy, took in hours.items()
    }
    count = len(next(iter(hours.values())))
    return benchmark.Results(crawls, np.full(count, 10.0), np.ones(count))


def test_a_missed_goal_is_seen() -> None:
    good = results(random=[26, 26], sorted=[21, 21], hybrid=[19.5, 19.5], regret=[10.2, 10.3], early=[11, 11])
    assert [goal.name for goal in benchmark.goals_of_reference(good) if not goal.met] == []
    bad = results(random=[20, 20], sorted=[21, 21], hybrid=[19.5, 19.5], regret=[10.2, 10.9], early=[22, 22])
    missed = {goal.name for goal in benchmark.goals_of_reference(bad) if not goal.met}
    assert {"random, hours", "regret / optimum, worst", "early / optimum, mean"} <= missed
    cases = {"forecast error 0.10": bad, "combined I, smoothed": good, "combined I": good}
    missed = {goal.name for goal in benchmark.goals_of_cases(cases) if not goal.met}
    assert missed == {"early / sorted, worst case (forecast error 0.10)"}


def test_tables_name_every_policy_and_case() -> None:
    found = benchmark.measure(Case(sites=8, slots=2), 2, benchmark.POLICIES)
    printed = benchmark.reference_table(found)
    assert all(policy in printed for policy in benchmark.POLICIES)
    assert "hour" in benchmark.hours_table(found)
    assert "one case" in benchmark.cases_table({"one case": found})
    view = benchmark.view_of(1000)
    assert benchmark.view_bytes(view) <= benchmark.VIEW_BYTES
    assert "regret" in benchmark.costs_table([benchmark.cost_of(view, "regret")])
