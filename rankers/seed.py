"""The mode `seed`: BlockRank as in paper 003, figure 10, for comparison.

A block's links count the links of its pages to other blocks; jumps go to all blocks equally. The paper does not define
links within a block: here they do not count. `product` is better at the same cost (benchmarks/ranking.py).
"""

from __future__ import annotations

import numpy as np

from rankers.block_graph import BlockLinks, block_links, block_ranks
from rankers.graph import Graph, block_sums
from rankers.local import local_ranks
from rankers.problem import Problem, Solution


def rank(problem: Problem) -> Solution:
    """Local ranks times ranks of blocks by counted links."""
    graph = problem.graph
    local = local_ranks(problem, problem.tolerance)
    blocks = block_ranks(
        counted(graph), block_teleport(problem), problem.damping, problem.tolerance, problem.progress
    )
    return Solution(local * np.repeat(blocks, np.diff(graph.blocks.start)), blocks)


def counted(graph: Graph) -> BlockLinks:
    """The links between blocks by number, as shares of all links to other blocks."""
    outer = block_sums(graph.degree - graph.inner_degree, graph.blocks.start)
    share = 1 / np.maximum(outer, 1)
    return block_links(graph, np.repeat(share, np.diff(graph.blocks.start)), np.zeros(len(outer)))


def block_teleport(problem: Problem) -> np.ndarray:
    """All blocks equal, or by the sums of the personalisation."""
    start = problem.graph.blocks.start
    if (problem.teleport == problem.teleport[0]).all():
        return np.full(len(start) - 1, 1 / (len(start) - 1))
    return block_sums(problem.teleport, start)
