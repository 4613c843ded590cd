"""How important a page is, from the links between pages. Runs without Scrapy and Redis.

    scores = rank(Graph.from_edges(source, target, block))

So far the mode `exact`: PageRank to an L1 residual of `tolerance`. Blocks (a page's site) are kept with the graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankers.graph import Graph

if TYPE_CHECKING:
    import numpy as np

__all__ = ["MODES", "Graph", "rank"]

MODES = ("exact",)


def rank(
    graph: Graph,
    mode: str = "exact",
    *,
    damping: float = 0.85,
    tolerance: float = 1e-8,
    personalisation: np.ndarray | None = None,
) -> np.ndarray:
    """A score per page, in the caller's page order, that sums to 1; ValueError for an unknown mode."""
    if mode not in MODES:
        raise ValueError(f"mode is {mode!r}; wanted one of {', '.join(MODES)}")
    from rankers.pagerank import pagerank

    return pagerank(graph, damping=damping, tolerance=tolerance, personalisation=personalisation)
