"""PageRank by power iteration over the whole graph; the rank of dangling pages is spread like a jump."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from rankers.graph import Graph

# A guard against tolerances that floating point cannot reach.
MOST_ITERATIONS = 1000


def pagerank(
    graph: Graph, *, damping: float, tolerance: float, personalisation: np.ndarray | None = None
) -> np.ndarray:
    """Scores that sum to 1; `personalisation` (n,) says where a jump lands, None: anywhere alike."""
    n = graph.pages
    if n == 0:
        return np.zeros(0)
    jump = np.full(n, 1 / n) if personalisation is None else personalisation / personalisation.sum()
    share = np.where(graph.out_degree > 0, 1 / np.maximum(graph.out_degree, 1), 0.0)
    target = np.repeat(np.arange(n), np.diff(graph.start))
    score = jump.copy()
    for _ in range(MOST_ITERATIONS):
        flow = np.bincount(target, weights=(score * share)[graph.source], minlength=n)
        dangling = score[graph.out_degree == 0].sum()
        new = damping * (flow + dangling * jump) + (1 - damping) * jump
        moved = np.abs(new - score).sum()
        score = new
        if moved < tolerance:
            break
    return np.asarray(score / score.sum())
