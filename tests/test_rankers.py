"""Ranks against networkx on the same graphs."""

import networkx as nx
import numpy as np
import pytest

from rankers import Graph, rank


def edges(pages: int, links: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, pages, links), rng.integers(0, pages, links)


@pytest.mark.parametrize(("pages", "links"), [(1, 0), (2, 1), (50, 0), (200, 100), (500, 4000)])
def test_exact_equals_networkx(pages: int, links: int) -> None:
    source, target = edges(pages, links, pages)
    scores = rank(Graph.from_edges(source, target, np.zeros(pages)), tolerance=1e-12)
    oracle = nx.DiGraph()
    oracle.add_nodes_from(range(pages))
    oracle.add_edges_from((s, t) for s, t in zip(source.tolist(), target.tolist(), strict=True) if s != t)
    wanted = nx.pagerank(oracle, alpha=0.85, tol=1e-14, max_iter=1000)
    assert np.abs(scores - np.array([wanted[page] for page in range(pages)])).sum() < 1e-8
    assert scores.sum() == pytest.approx(1)


def test_parallel_links_count_once_and_self_links_not_at_all() -> None:
    twice = Graph.from_edges(np.array([0, 0, 1, 1]), np.array([1, 1, 1, 2]), np.zeros(3))
    once = Graph.from_edges(np.array([0, 1]), np.array([1, 2]), np.zeros(3))
    assert np.array_equal(rank(twice), rank(once))


def test_no_pages() -> None:
    assert len(rank(Graph.from_edges(np.zeros(0), np.zeros(0), np.zeros(0)))) == 0


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match=r"outside 0 \.\. 1"):
        Graph.from_edges(np.array([0]), np.array([2]), np.zeros(2))
    with pytest.raises(ValueError, match="wanted one of exact"):
        rank(Graph.from_edges(np.zeros(0), np.zeros(0), np.zeros(1)), "sideways")
