"""The mode `product`: a page's rank within its block times the block's rank. One pass over the links.

Links between blocks weigh the local rank along them; jumps go to a block as often as to its pages. Exact if no link
leaves a block, else an approximation (benchmarks/ranking.py).
"""

from __future__ import annotations

import numpy as np

from rankers.block_graph import BlockLinks, block_links, block_ranks
from rankers.graph import Graph, block_sums
from rankers.local import local_ranks
from rankers.problem import Problem, Solution


def rank(problem: Problem) -> Solution:
    """Local ranks times block ranks, each to the problem's tolerance."""
    return product(problem, problem.tolerance)


def product(problem: Problem, tolerance: float) -> Solution:
    """As `rank`, with another tolerance."""
    graph = problem.graph
    local = local_ranks(problem, tolerance)
    teleport = block_sums(problem.teleport, graph.blocks.start)
    blocks = block_ranks(weighed(graph, local), teleport, problem.damping, tolerance, problem.progress)
    return Solution(local * np.repeat(blocks, np.diff(graph.blocks.start)), blocks)


def weighed(graph: Graph, local: np.ndarray) -> BlockLinks:
    """The links between blocks, weighted by the local rank along them."""
    share = local / np.maximum(graph.degree, 1)
    return block_links(graph, share, block_sums(share * graph.inner_degree, graph.blocks.start))
