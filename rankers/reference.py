"""PageRank and the graph of blocks by networkx, to verify the kernels; also the mode `rankers.reference.solve`.

Slow, about 3 kB a page: for up to 100,000 pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import networkx as nx
import numpy as np

from rankers import Graph, rank
from rankers.local import local_ranks
from rankers.problem import MOST_SWEEPS, Problem, RankError, Solution
from rankers.product import weighed

# Tolerance of the local ranks that weigh links of blocks.
LOCAL_TOLERANCE = 1e-8


def solve(problem: Problem) -> Solution:
    """PageRank by power iteration. Raises RankError."""
    graph = _page_graph(problem.graph)
    weights = dict(enumerate(problem.teleport.tolist()))
    pages = problem.graph.pages
    try:
        found = nx.pagerank(
            graph,
            alpha=problem.damping,
            personalization=weights,
            dangling=weights,
            max_iter=MOST_SWEEPS,
            tol=problem.tolerance / pages,  # networkx multiplies it by the number of pages
        )
    except nx.PowerIterationFailedConvergence as error:
        raise RankError(
            f"networkx: {error}; expected a larger tolerance than {problem.tolerance:g}"
        ) from None
    return Solution(np.array([found[page] for page in range(pages)]))


def pagerank(
    graph: Graph,
    *,
    damping: float = 0.85,
    tolerance: float = 1e-8,
    personalisation: np.ndarray | None = None,
) -> np.ndarray:
    """As `rankers.rank` in mode exact."""
    return rank(
        graph,
        f"{__name__}.solve",
        damping=damping,
        tolerance=tolerance,
        personalisation=personalisation,
    )


def block_graph(
    graph: Graph,
    ranks: np.ndarray | None = None,
    *,
    damping: float = 0.85,
    names: Sequence[str] | None = None,
) -> nx.DiGraph:
    """A node per block label: `pages`, `rank` (sum over its pages), `name` if given.

    Edge `weight`: share of the block's rank along its links, as in mode product. `ranks`: by page; None: mode exact.
    """
    found = nx.DiGraph()
    if not graph.pages:
        return found
    ranks = rank(graph, damping=damping) if ranks is None else ranks
    sizes = np.diff(graph.blocks.start).tolist()
    labels = graph.blocks.label.tolist()
    for label, pages, total in zip(labels, sizes, graph.by_block(ranks).tolist(), strict=True):
        named = {} if names is None else {"name": names[label]}
        found.add_node(label, pages=pages, rank=total, **named)
    found.add_weighted_edges_from(_block_edges(graph, damping, labels))
    return found


def write_graphml(graph: nx.DiGraph, path: Path) -> None:
    """Writes the graph as GraphML, atomically. Raises OSError."""
    unfinished = path.with_name(path.name + ".tmp")
    try:
        nx.write_graphml(graph, unfinished)
        unfinished.rename(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _block_edges(graph: Graph, damping: float, labels: list[int]) -> list[tuple[int, int, float]]:
    teleport = np.full(graph.pages, 1 / graph.pages)
    problem = Problem(graph, teleport, damping, LOCAL_TOLERANCE, lambda *_: None)
    links = weighed(graph, local_ranks(problem, LOCAL_TOLERANCE))
    edges = [
        (labels[block], labels[block], weight) for block, weight in enumerate(links.itself.tolist()) if weight
    ]
    for block, (begin, end) in enumerate(zip(links.start.tolist(), links.end.tolist(), strict=True)):
        sources, weights = links.source[begin:end].tolist(), links.weight[begin:end].tolist()
        edges += [(labels[one], labels[block], weight) for one, weight in zip(sources, weights, strict=True)]
    return edges


def _page_graph(graph: Graph) -> nx.DiGraph:
    found = nx.DiGraph()
    found.add_nodes_from(range(graph.pages))
    for links in (graph.inner, graph.outer):
        target = np.repeat(np.arange(graph.pages), np.diff(links.start))
        found.add_edges_from(zip(links.source.tolist(), target.tolist(), strict=True))
    return found
