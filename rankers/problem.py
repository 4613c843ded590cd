"""What rankers take and return.

A ranker is a function `rank(problem) -> Solution`. Pages go by place (rankers.graph.Graph), and there is at least one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from rankers.graph import Graph

# Called after every sweep with the part, its number of sweeps, and its L1 residual.
Progress = Callable[[str, int, float], None]
# Limit for tolerances that floating point cannot reach; at damping 0.99 a rank to 1e-8 takes about 500 sweeps.
MOST_SWEEPS = 10_000


class RankError(Exception):
    """Ranks cannot be computed; says what was reached and what to change."""


@dataclass(frozen=True)
class Problem:
    """One graph to rank."""

    graph: Graph
    # (n,) sums to 1: targets of jumps and of the rank of pages without links.
    teleport: np.ndarray
    damping: float  # 0 .. 1: probability to follow a link instead of a jump
    tolerance: float  # L1, of ranks that sum to 1
    progress: Progress


class Solution(NamedTuple):
    """Ranks by place, of any sum; `blocks`: ranks by block, None: the mode has none."""

    pages: np.ndarray
    blocks: np.ndarray | None = None


class Ranker(Protocol):
    """A way to rank pages."""

    def __call__(self, problem: Problem) -> Solution:
        """The ranks. More `teleport` must give a higher rank. Raises RankError."""


def not_reached(part: str, tolerance: float, sweeps: int, residual: float) -> RankError:
    """The error after too many sweeps."""
    return RankError(
        f"{part}: residual {residual:.3g} after {sweeps} sweeps, above the tolerance of {tolerance:g}; "
        "expected a larger tolerance or a smaller damping"
    )
