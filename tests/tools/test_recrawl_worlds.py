"""The simulator of benchmarks/recrawl.py: worlds are what they say, and the modes keep their order in them.

The goals are measured by the benchmark over larger worlds; here over small ones, with wider bounds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from benchmarks import recrawl as benchmark
from benchmarks.simulator import page_bounds
from benchmarks.simulator.page_policies import HALVINGS, Rates, cho, interval_worth, oracle_rates
from benchmarks.simulator.pages import S1, SWEEP, Kind, Told, World, draw, run

ROOT = Path(__file__).resolve().parents[2]
SMALL = replace(S1, pages=600, hosts=12, days=3, measured_days=2)


@cache
def told(name: str, kind: Kind = SMALL) -> Told:
    world = draw(kind, 1)
    return run(world, benchmark.policy(name, world))


def test_a_world_is_what_its_kind_says() -> None:
    world = draw(SMALL, 1)
    assert len(world.host) == 600
    assert world.rate.mean() * SWEEP == pytest.approx(1.0)
    assert world.weight.mean() == pytest.approx(1.0)
    assert world.budget == pytest.approx(600 * world.cost.mean() / SWEEP)
    np.testing.assert_array_equal(world.size, draw(SMALL, 1).size)
    assert (draw(SMALL, 2).size != world.size).any()


def test_changes_come_at_their_rates() -> None:
    """Each page visited once a sweep: what is found changed is what such intervals show."""
    kind = replace(SMALL, unit=True, days=6, measured_days=4)
    world = draw(kind, 3)
    seen = run(world, Rates(world, np.full(600, 1 / SWEEP)))
    x = world.rate * seen.stale * 2
    assert seen.fresh == pytest.approx((-np.expm1(-x) / x).mean(), abs=0.03)


@pytest.mark.parametrize("name", ["default", "importance", "paper", "Nutch", "Cho, oracle"])
def test_nobody_takes_more_than_the_budget(name: str) -> None:
    assert 0.8 < told(name).spent <= 1.02


def test_oracles_use_up_the_budget_at_their_price() -> None:
    world = draw(SMALL, 1)
    rates = oracle_rates(world, cho, world.weight)
    assert (rates * world.cost).sum() == pytest.approx(world.budget, rel=1e-3)
    assert HALVINGS > 100


def test_an_interval_is_worth_its_price_at_its_end() -> None:
    rate, price = np.array([0.01, 0.02, 3.0]), np.array([5.0, 1.0, 9.0])
    interval = interval_worth(np.ones(3), rate, price)
    x = (rate * interval)[:2]
    np.testing.assert_allclose((1 - (1 + x) * np.exp(-x)) / rate[:2], price[:2], rtol=1e-3)
    assert interval[2] == np.inf


def test_bounds_are_above_what_anybody_reaches() -> None:
    world: World = draw(SMALL, 1)
    fresh = page_bounds.freshness(world, np.ones(600))
    weighted = page_bounds.freshness(world, world.weight)
    assert told("freshness").fresh <= fresh + 0.02
    assert told("importance").weighted <= weighted + 0.02
    assert told("staleness").stale >= 0.9 * page_bounds.staleness(world)
    assert weighted > fresh


def test_each_mode_is_best_at_what_it_wants() -> None:
    paper, default = told("paper"), told("default")
    assert told("importance").weighted > paper.weighted + 0.08
    assert told("freshness").fresh > paper.fresh + 0.03
    assert told("staleness").stale < 0.95 * paper.stale
    assert default.fresh > paper.fresh + 0.02
    assert default.weighted > paper.weighted + 0.05
    assert default.stale < 1.05 * paper.stale
    assert default.age < paper.age


def test_signals_of_known_worth_pay() -> None:
    """And worthless ones harm nobody."""
    without = told("importance").weighted
    good = told("importance", replace(SMALL, signals=1.0, recall=0.8, alarms=0.2)).weighted
    worthless = told("importance", replace(SMALL, signals=1.0, recall=0.0, alarms=2.0)).weighted
    assert good > without + 0.015
    assert worthless > without - 0.01


def test_the_benchmark_runs_and_judges() -> None:
    command = [
        sys.executable,
        "benchmarks/recrawl.py",
        "--json",
        "--short",
        "--seeds",
        "1",
        "--parts",
        "model",
        "choice",
    ]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = json.loads(ended.stdout)
    assert found["figures"]["model"]["paper"] == pytest.approx(1.0, abs=0.02)
    assert found["figures"]["choice"]["pages"] == pytest.approx(100_000, rel=0.02)
    assert {goal["name"].partition(":")[0] for goal in found["goals"]} == {"model", "choice"}
