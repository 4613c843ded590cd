"""The mode `seed`: paper 003's BlockRank as its figure 10 has it, for comparison with the paper.

A page's rank within its block times the block's rank, where a block's links count as many as its pages have to another
block, and a jump lands in every block as often. The paper leaves open whether links within a block count as the
block's links to itself: here they do not. Its ranks are worse than a count of in-links in most respects
(benchmarks/ranking.py); the mode `product` mends that at no cost.
"""

from __future__ import annotations

import numpy as np

from rankers.block_graph import BlockLinks, block_links, block_ranks
from rankers.graph import Graph, block_sums
from rankers.local import local_ranks
from rankers.problem import Problem, Solution


def rank(problem: Problem) -> Solution:
    """Local ranks times ranks by counted links, each to the problem's tolerance."""
    graph = problem.graph
    local = local_ranks(problem, problem.tolerance)
    blocks = block_ranks(
        counted(graph), block_teleport(problem), problem.damping, problem.tolerance, problem.progress
    )
    return Solution(local * np.repeat(blocks, np.diff(graph.blocks.start)), blocks)


def counted(graph: Graph) -> BlockLinks:
    """The links between blocks by their number, as shares of all that a block has to others."""
    outer = block_sums(graph.degree - graph.inner_degree, graph.blocks.start)
    share = 1 / np.maximum(outer, 1)
    return block_links(graph, np.repeat(share, np.diff(graph.blocks.start)), np.zeros(len(outer)))


def block_teleport(problem: Problem) -> np.ndarray:
    """Every block alike; with a personalisation as much as its pages have together."""
    start = problem.graph.blocks.start
    if (problem.teleport == problem.teleport[0]).all():
        return np.full(len(start) - 1, 1 / (len(start) - 1))
    return block_sums(problem.teleport, start)
