"""The mode `product`: a page's rank within its block times the block's rank. One pass, no iteration over all links.

A link between blocks weighs as much as the local rank that its pages pass along it, links within a block count as the
block's links to itself, and a jump lands in a block as often as on its pages. So where no page links to another
block's, the product is the exact rank; else it comes near (benchmarks/ranking.py shows how near).
"""

from __future__ import annotations

import numpy as np

from rankers.block_graph import BlockLinks, block_links, block_ranks
from rankers.graph import Graph, block_sums
from rankers.local import local_ranks
from rankers.problem import Problem, Solution


def rank(problem: Problem) -> Solution:
    """Local ranks and block ranks, each to the problem's tolerance, multiplied."""
    return product(problem, problem.tolerance)


def product(problem: Problem, tolerance: float) -> Solution:
    """The same to another tolerance."""
    graph = problem.graph
    local = local_ranks(problem, tolerance)
    teleport = block_sums(problem.teleport, graph.blocks.start)
    blocks = block_ranks(weighed(graph, local), teleport, problem.damping, tolerance, problem.progress)
    return Solution(local * np.repeat(blocks, np.diff(graph.blocks.start)), blocks)


def weighed(graph: Graph, local: np.ndarray) -> BlockLinks:
    """The links between blocks, by the local rank that goes along them."""
    share = local / np.maximum(graph.degree, 1)
    return block_links(graph, share, block_sums(share * graph.inner_degree, graph.blocks.start))
