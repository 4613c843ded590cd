"""Ranks of pages within their block: the first step of block ranks.

Ignores links to other blocks. Each block reaches the tolerance by Gauss-Seidel sweeps of its own.
"""

from __future__ import annotations

import numpy as np

from rankers import pieces
from rankers.compiling import compiled
from rankers.graph import Graph, block_sums
from rankers.in_links import InLinks
from rankers.problem import MOST_SWEEPS, Problem, not_reached

PART = "local ranks"


def local_ranks(problem: Problem, tolerance: float) -> np.ndarray:
    """By place; sums to 1 per block. Jumps go to the block's pages by their teleport weights. Raises RankError."""
    # Equal weights would give worse products: L1 distance 0.79 instead of 0.33 with jumps to one page in a hundred.
    graph = problem.graph
    rank = np.empty(graph.pages)
    teleport = within_blocks(graph, problem.teleport)

    def piece(first: int, last: int) -> tuple[int, float]:
        bounds = graph.blocks.start[first : last + 1]
        return rank_blocks(
            bounds, graph.inner, graph.inner_degree, teleport, problem.damping, tolerance, MOST_SWEEPS, rank
        )

    found = pieces.over(graph.pieces, piece)
    sweeps, residual = max(most for most, _ in found), max(left for _, left in found)
    problem.progress(PART, sweeps, residual)
    if not residual <= tolerance:
        raise not_reached(PART, tolerance, sweeps, residual)
    return rank


def within_blocks(graph: Graph, teleport: np.ndarray) -> np.ndarray:
    """Teleport weights scaled to a sum of 1 per block; equal in blocks that have almost none."""
    start = graph.blocks.start
    size = np.diff(start)
    total = block_sums(teleport, start)
    none = total < np.finfo(np.float64).tiny  # too small to divide by
    share = teleport * np.repeat(np.divide(1.0, total, where=~none, out=np.zeros(len(total))), size)
    return np.asarray(share + np.repeat(np.where(none, 1 / size, 0.0), size))


@compiled
def rank_blocks(
    block_start: np.ndarray,
    inner: InLinks,
    degree: np.ndarray,
    teleport: np.ndarray,
    damping: float,
    tolerance: float,
    most_sweeps: int,
    rank: np.ndarray,
) -> tuple[int, float]:
    """Fills `rank` for these blocks; returns the most sweeps of a block and the largest residual.

    `degree` counts links within the block; `teleport` sums to 1 per block.
    """
    most, largest = 0, 0.0
    for block in range(len(block_start) - 1):
        begin, end = block_start[block], block_start[block + 1]
        for page in range(begin, end):
            rank[page] = teleport[page] / max(degree[page], 1)
        # The residual is at most `damping` times the rank moved; twice that after scaling to a sum of 1.
        sweeps, left = 0, 2.0
        while left > tolerance and sweeps < most_sweeps:
            moved, passed = relax(begin, end, inner, degree, degree, teleport, damping, rank)
            left = 2 * damping * moved / (1 + damping * passed)
            sweeps += 1
        most, largest = max(most, sweeps), max(largest, left)
        _finish(begin, end, inner, degree, teleport, damping, rank)
    return most, largest


@compiled
def relax(
    begin: int,
    end: int,
    inner: InLinks,
    degree: np.ndarray,
    inner_degree: np.ndarray,
    base: np.ndarray,
    damping: float,
    share: np.ndarray,
) -> tuple[float, float]:
    """One sweep over a block, in place: share = (base + damping * shares of in-links) / degree.

    Skips pages of degree 0. Returns rank moved and rank passed on within the block.
    """
    moved, passed = 0.0, 0.0
    # Unsigned indexes, here and in `gathered`, skip the check for negative ones: 17 instead of 23 ms per
    # sweep of a million pages.
    for page in range(np.uint64(begin), np.uint64(end)):
        if degree[page] == 0:
            continue
        new = (base[page] + damping * gathered(page, inner, share)) / degree[page]
        moved += abs(new - share[page]) * inner_degree[page]
        passed += new * degree[page]
        share[page] = new
    return moved, passed


@compiled
def gathered(page: int, links: InLinks, share: np.ndarray) -> float:
    """Sum of the shares of these links."""
    start, source = links
    come = 0.0
    row = np.uint64(page)
    for place in range(np.uint64(start[row]), np.uint64(start[row + np.uint64(1)])):
        come += share[np.uint32(source[place])]
    return come


@compiled
def _finish(
    begin: int,
    end: int,
    inner: InLinks,
    degree: np.ndarray,
    base: np.ndarray,
    damping: float,
    share: np.ndarray,
) -> None:
    """Turns shares into ranks that sum to 1, including pages without links."""
    total = 0.0
    for page in range(begin, end):
        if degree[page] == 0:
            # No page gathers from a page without links: its rank may replace its share.
            share[page] = base[page] + damping * gathered(page, inner, share)
        total += share[page] * max(degree[page], 1)
    for page in range(begin, end):
        share[page] *= max(degree[page], 1) / total
