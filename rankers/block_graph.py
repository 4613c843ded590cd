"""The graph of blocks: weighted links between blocks, and blocks' ranks.

Weights of a block's links, including those to itself, sum to at most 1; the rest is the share of pages without links.
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
    """Links into block b: source[start[b]:end[b]], each source once."""

    start: np.ndarray  # (blocks,) int64
    end: np.ndarray  # (blocks,) int64
    source: np.ndarray  # int32; unused between a row's end and the next start
    weight: np.ndarray  # float64, parallel to `source`
    itself: np.ndarray  # (blocks,) float64: weight of its links to itself


def block_links(graph: Graph, weight: np.ndarray, itself: np.ndarray) -> BlockLinks:
    """The links between blocks; weight[i]: of each link of the page at place i; itself[b]: of block b's inner links."""
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
    """Ranks of blocks, summing to 1 as `teleport` does, to an L1 residual of `tolerance`. Raises RankError."""
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
    """Merges links into blocks begin .. last - 1: one per pair, ordered by first occurrence."""
    # Place of a block in the current row, valid only if that place has this block: never cleared.
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
    """One Gauss-Seidel sweep in place; returns the rank moved."""
    moved = 0.0
    for block in range(len(rank)):
        come = 0.0
        for place in range(start[block], end[block]):
            come += weight[place] * rank[source[place]]
        new = (teleport[block] + damping * come) / (1 - damping * itself[block])
        moved += abs(new - rank[block])
        rank[block] = new
    return moved
