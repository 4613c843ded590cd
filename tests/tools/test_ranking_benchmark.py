"""benchmarks/ranking.py in short form: tools agree on what they rank, and goals see what must not be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import ranking
from rankers import Graph


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("ranking") / "graph"
    ranking.make(made, 3000)
    return made


def test_the_graph_is_like_a_web(folder: Path) -> None:
    graph = Graph.load(folder)
    assert graph.pages == 3000
    assert 5 < graph.links / graph.pages < 12
    assert 0.7 < len(graph.inner.source) / graph.links < 0.95
    assert 0.03 < (graph.degree == 0).mean() < 0.2
    sizes = np.diff(graph.blocks.start)
    assert sizes.max() == 60
    assert 0.3 < (sizes == 1).mean() < 0.6


def test_all_tools_rank_alike(folder: Path, tmp_path: Path) -> None:
    found = {}
    for name in ("exact", *ranking.OTHERS):
        try:
            taken = ranking.take(name, folder, tmp_path / f"{name}.npy")
        except ImportError:
            assert name in ("igraph", "networkit"), "only these may be absent"
            continue
        assert taken["compute"] > 0
        found[name] = np.load(tmp_path / f"{name}.npy")
    assert len(found) >= 3
    for ranks in found.values():
        assert np.abs(ranks - found["exact"]).sum() < 1e-6


def test_what_is_near_is_told_from_what_is_not(folder: Path) -> None:
    exact = ranking.by_scipy()[1](ranking.by_scipy()[0](folder))
    same, counted = ranking.nearness(exact, exact), ranking.nearness(ranking.in_degree(folder), exact)
    assert same == {"l1": 0, "tau": pytest.approx(1), "top_100": 1, "top_1_percent": 1}
    assert counted["l1"] > 0.1
    assert counted["tau"] < 0.9
    assert counted["top_100"] < 1


def test_a_process_of_its_own_tells_what_it_took(folder: Path, tmp_path: Path) -> None:
    taken = ranking.apart("take", "product", folder, tmp_path / "product.npy")
    assert set(taken) == {"build", "compute", "peak_mib"}
    assert 50 < taken["peak_mib"] < 2000
    counts = ranking.sweeps(folder)
    assert 1 < counts["1e-08"]["product"] < counts["1e-08"]["power"] < 200
    least = ranking.bounds(folder)
    assert all(value > 0 for value in least.values())


def test_goals_are_missed_where_ours_is_slow_or_far_off() -> None:
    tool = {"build": 1.0, "compute": 1.0, "peak_mib": 100.0, "l1_to_exact": 1e-9}
    near = {"l1": 0.2, "tau": 0.83, "top_100": 0.9, "top_1_percent": 0.8}
    far = {"l1": 0.5, "tau": 0.5, "top_100": 0.6, "top_1_percent": 0.6}
    tools = {"exact": tool, "product": tool, "scipy": {**tool, "compute": 3.0}, "igraph": {"missing": "no"}}
    found = {"tools": tools, "quality": {"product": near, "in-degree": far}}
    assert all(goal.met for goal in ranking.goals_of({1_000_000: found, ranking.LARGE: found}))
    slow = {**found, "tools": {**tools, "scipy": {**tool, "compute": 2.0, "l1_to_exact": 1e-3}}}
    swapped = {**found, "quality": {"product": far, "in-degree": near}}
    large = {**found, "tools": {**tools, "exact": {**tool, "build": 18.0, "peak_mib": 3000.0}}}
    missed = [
        sum(not goal.met for goal in ranking.goals_of(given))
        for given in ({1_000_000: slow}, {1_000_000: swapped}, {ranking.LARGE: large})
    ]
    assert missed == [2, 5, 2]
