"""Links between pages as a compressed sparse matrix, with the block (site) each page belongs to.

Parallel links count once, links of a page to itself are dropped. Page ids are 0..n-1 in the caller's order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Graph:
    """n pages and their links, by target: who links to page i is `source[start[i]:start[i + 1]]`."""

    start: np.ndarray  # (n + 1,) int64
    source: np.ndarray  # (links,) int64
    out_degree: np.ndarray  # (n,) int64; 0 = a page without links (dangling)
    block: np.ndarray  # (n,) any ints

    @classmethod
    def from_edges(cls, source: np.ndarray, target: np.ndarray, block: np.ndarray) -> Graph:
        """A graph of len(block) pages; ValueError where an id is no page or the arrays differ in length."""
        n = len(block)
        source, target = np.asarray(source, np.int64), np.asarray(target, np.int64)
        if len(source) != len(target):
            raise ValueError(f"{len(source)} sources and {len(target)} targets; wanted as many of each")
        if len(source) and not (min(source.min(), target.min()) >= 0 and max(source.max(), target.max()) < n):
            raise ValueError(f"a link names a page outside 0 .. {n - 1}")
        links = np.unique((target * n + source)[source != target])
        target, source = links // n if n else links, links % n if n else links
        start = np.zeros(n + 1, np.int64)
        np.cumsum(np.bincount(target, minlength=n), out=start[1:])
        return cls(start, source, np.bincount(source, minlength=n), np.asarray(block))

    @property
    def pages(self) -> int:
        """How many pages there are."""
        return len(self.out_degree)
