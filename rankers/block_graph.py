"""Blocks as pages of a graph of their own: the links between them, and their ranks.

A block's link to another weighs what its pages' links there weigh together. Weights of one block's links, those to
itself included, sum to 1 at most; what is missing is the share of its pages without links, and goes where jumps go.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankers import pieces
from rankers.compiling import compiled
from rankers.graph import Graph
from rankers.problem import MOST_SWEEPS, Progress, not_reached

PART = "block ranks"


class BlockLinks(NamedTuple):
    """Block b is linked to by the others source[place], each once, for place in range(start[b], end[b])."""

    start: np.ndarray  # (blocks,) int64
    end: np.ndarray  # (blocks,) int64
    source: np.ndarray  # int32; between one row's end and the next one's start it holds nothing
    weight: np.ndarray  # float64, beside `source`
    itself: np.ndarray  # (blocks,) float64: the weight of its links to itself


def block_links(graph: Graph, weight: np.ndarray, itself: np.ndarray) -> BlockLinks:
    """The links between blocks, where each link of the page at place i weighs weight[i].

    itself[b] is what those of block b to itself weigh together.
    """
    blocks = len(graph.blocks.label)
    first = graph.outer.start[graph.blocks.start]
    block_of = np.repeat(np.arange(blocks, dtype=np.int32), np.diff(graph.blocks.start))
    made = BlockLinks(
        first[:-1],
        np.empty(blocks, np.int64),
        np.empty(first[-1], np.int32),
        np.empty(first[-1]),
        itself,
    )
    outer = graph.outer

    def piece(begin: int, last: int) -> None:
        _merge(begin, last, first, outer.source, block_of, weight, made.end, made.source, made.weight)

    pieces.over(graph.pieces, piece)
    return made


def block_ranks(
    links: BlockLinks, teleport: np.ndarray, damping: float, tolerance: float, progress: Progress
) -> np.ndarray:
    """Ranks of blocks to an L1 residual of `tolerance`; they sum to 1, as `teleport` does. RankError: not reached."""
    rank = teleport.copy()
    for sweep in range(1, MOST_SWEEPS + 1):
        moved = _relax(*links, teleport, damping, rank)
        residual = 2 * damping * moved / rank.sum()
        progress(PART, sweep, residual)
        if residual <= tolerance:
            return np.asarray(rank / rank.sum())
    raise not_reached(PART, tolerance, MOST_SWEEPS, residual)


@compiled
def _merge(
    begin: int,
    last: int,
    first: np.ndarray,
    page_source: np.ndarray,
    block_of: np.ndarray,
    page_weight: np.ndarray,
    end: np.ndarray,
    source: np.ndarray,
    weight: np.ndarray,
) -> None:
    """Links into the blocks begin .. last - 1; several from one block become one, in the order of the first of each."""
    # Where a block stands in the row that is being made, if what stands there is that block: never cleared.
    stands = np.zeros(len(first) - 1, np.int32)
    for block in range(begin, last):
        row = first[block]
        filled = row
        for place in range(row, first[block + 1]):
            page = page_source[place]
            other = block_of[page]
            at = row + stands[other]
            if at >= filled or source[at] != other:
                at = filled
                stands[other] = at - row
                source[at] = other
                weight[at] = 0.0
                filled += 1
            weight[at] += page_weight[page]
        end[block] = filled


@compiled
def _relax(
    start: np.ndarray,
    end: np.ndarray,
    source: np.ndarray,
    weight: np.ndarray,
    itself: np.ndarray,
    teleport: np.ndarray,
    damping: float,
    rank: np.ndarray,
) -> float:
    """One Gauss-Seidel sweep over all blocks, in place; how much rank moved."""
    moved = 0.0
    for block in range(len(rank)):
        come = 0.0
        for place in range(start[block], end[block]):
            come += weight[place] * rank[source[place]]
        new = (teleport[block] + damping * come) / (1 - damping * itself[block])
        moved += abs(new - rank[block])
        rank[block] = new
    return moved
