"""The mode `exact`: PageRank of the whole graph, by Gauss-Seidel sweeps, block by block.

Solves (I - damping * P^T) y = teleport; y scaled to a sum of 1 is the rank. A sweep gathers links from other blocks
once, then sweeps the block's own links ROUNDS times. Pieces run in parallel on each other's previous ranks, so the
result does not depend on timing.
"""

from __future__ import annotations

import numpy as np

from rankers import pieces
from rankers.compiling import compiled
from rankers.graph import Arrays
from rankers.local import gathered, relax
from rankers.problem import MOST_SWEEPS, Problem, Solution, not_reached
from rankers.product import product

PART = "sweeps"
# Sweeps over a block's own links. A million pages took 41, 22, 20 and 20 sweeps with 1, 2, 3 and 4,
# and 2.6, 2.0, 2.4 and 2.7 s of CPU.
ROUNDS = 2
# Tolerance of the product at the start. The same pages took 22 sweeps from products to 0.1, 0.01 and 0.001 alike,
# and 25 from equal ranks, which costs about the same. Weighting blocks again between sweeps took 18, and no less time.
START_TOLERANCE = 0.1


def rank(problem: Problem) -> Solution:
    """PageRank to the problem's tolerance (L1 residual), starting from `product`."""
    start = product(problem, START_TOLERANCE)
    return Solution(solve(problem, start.pages), start.blocks)


def solve(problem: Problem, start: np.ndarray) -> np.ndarray:
    """PageRank, starting from ranks that sum to 1."""
    graph = problem.graph
    share, before = _shares(problem, start), np.empty(graph.pages)
    base = np.empty(graph.pages)
    for sweep in range(1, MOST_SWEEPS + 1):
        share, before = before, share
        residual = _sweep(problem, before, share, base)
        problem.progress(PART, sweep, residual)
        if residual <= problem.tolerance:
            return _ranks(problem, share, base)
    raise not_reached("exact ranks", problem.tolerance, MOST_SWEEPS, residual)


def _shares(problem: Problem, start: np.ndarray) -> np.ndarray:
    passed = start[problem.graph.degree > 0].sum()
    return np.asarray(start / (1 - problem.damping * passed) / np.maximum(problem.graph.degree, 1))


def _sweep(problem: Problem, before: np.ndarray, share: np.ndarray, base: np.ndarray) -> float:
    """One sweep over all pieces; returns an upper bound of the residual, for ranks that sum to 1."""
    graph = problem.graph

    def piece(first: int, last: int) -> tuple[float, float]:
        return sweep_blocks(
            first, last, graph.arrays, problem.teleport, problem.damping, ROUNDS, before, share, base
        )

    found = pieces.over(graph.pieces, piece)
    moved, passed = sum(moved for moved, _ in found), sum(passed for _, passed in found)
    return 2 * problem.damping * moved / (1 + problem.damping * passed)


def _ranks(problem: Problem, share: np.ndarray, rank: np.ndarray) -> np.ndarray:
    graph = problem.graph
    pieces.over(
        graph.pieces,
        lambda first, last: gather_ranks(
            first, last, graph.arrays, problem.teleport, problem.damping, share, rank
        ),
    )
    rank /= rank.sum()
    return rank


@compiled
def sweep_blocks(
    first: int,
    last: int,
    graph: Arrays,
    teleport: np.ndarray,
    damping: float,
    rounds: int,
    before: np.ndarray,
    share: np.ndarray,
    base: np.ndarray,
) -> tuple[float, float]:
    """Sweeps blocks first .. last - 1 from `before` into `share`; returns rank moved and rank passed on."""
    low, high = graph.block_start[first], graph.block_start[last]
    share[low:high] = before[low:high]
    moved, passed = 0.0, 0.0
    for block in range(first, last):
        begin, end = graph.block_start[block], graph.block_start[block + 1]
        _gather_outer(begin, end, low, high, graph, teleport, damping, before, share, base)
        inside, through = 0.0, 0.0
        for _ in range(rounds):
            inside, through = relax(
                begin, end, graph.inner, graph.degree, graph.inner_degree, base, damping, share
            )
        moved, passed = moved + inside, passed + through
        for page in range(begin, end):
            moved += abs(share[page] - before[page]) * (graph.degree[page] - graph.inner_degree[page])
    return moved, passed


@compiled
def _gather_outer(
    begin: int,
    end: int,
    low: int,
    high: int,
    graph: Arrays,
    teleport: np.ndarray,
    damping: float,
    before: np.ndarray,
    share: np.ndarray,
    base: np.ndarray,
) -> None:
    """Rank from jumps and other blocks for the pages of a block; pages low .. high - 1 have new shares."""
    start, sources = graph.outer
    for page in range(np.uint64(begin), np.uint64(end)):
        if graph.degree[page] == 0:
            continue
        come = 0.0
        for place in range(np.uint64(start[page]), np.uint64(start[page + np.uint64(1)])):
            source = np.uint32(sources[place])
            come += share[source] if low <= source < high else before[source]
        base[page] = teleport[page] + damping * come


@compiled
def gather_ranks(
    first: int,
    last: int,
    graph: Arrays,
    teleport: np.ndarray,
    damping: float,
    share: np.ndarray,
    rank: np.ndarray,
) -> None:
    """Turns shares into ranks; ranks of pages without links are gathered here."""
    for page in range(graph.block_start[first], graph.block_start[last]):
        if graph.degree[page] > 0:
            rank[page] = share[page] * graph.degree[page]
        else:
            come = gathered(page, graph.inner, share) + gathered(page, graph.outer, share)
            rank[page] = teleport[page] + damping * come
