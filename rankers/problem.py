"""What a ranker is asked and what it answers.

A ranker is a function `rank(problem) -> Solution`, in a file of this folder or anywhere else. It sees pages by place
(rankers.graph.Graph) and never the caller's page ids; what it gives need not sum to 1. There is at least one page.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from rankers.graph import Graph

# Told after every sweep: of what part, how many it has had, and the L1 residual that is left.
Progress = Callable[[str, int, float], None]
# Tolerances that floating point cannot reach end here: at damping 0.99 a rank to 1e-8 takes some 500 sweeps.
MOST_SWEEPS = 10_000


class RankError(Exception):
    """Ranks that cannot be computed as they were asked for; says what was reached and what to change."""


@dataclass(frozen=True)
class Problem:
    """One graph to be ranked."""

    graph: Graph
    # (n,) sums to 1: where a jump lands, and where the rank of pages without links goes.
    teleport: np.ndarray
    damping: float  # 0 .. 1: how often a link is followed in place of a jump
    tolerance: float  # L1, of ranks that sum to 1
    progress: Progress


class Solution(NamedTuple):
    """Ranks, by place; `blocks` are the ranks of the blocks themselves, by block; None: there are none."""

    pages: np.ndarray
    blocks: np.ndarray | None = None


class Ranker(Protocol):
    """One way to rank pages."""

    def __call__(self, problem: Problem) -> Solution:
        """The ranks of this problem; RankError where there are none. A page with more `teleport` gets more."""


def not_reached(part: str, tolerance: float, sweeps: int, residual: float) -> RankError:
    """The error of a part that took too many sweeps."""
    return RankError(
        f"{part} did not come to a residual of {tolerance:g} in {sweeps} sweeps, but to {residual:.3g}; "
        "expected a larger tolerance or a smaller damping"
    )
