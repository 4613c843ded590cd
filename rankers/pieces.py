"""Splits work over blocks into pieces for threads.

The cuts depend on the graph alone, so results do not depend on the number of cores.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TypeVar

import numpy as np

_Result = TypeVar("_Result")

# Enough to load the cores of one machine evenly. Ranks of other pieces are one sweep old: 100,000 pages took 20,
# 20, 22 and 23 sweeps with 1, 2, 16 and 64 pieces.
MOST_PIECES = 16
# Least links and pages of a piece: below, starting a thread costs more than its work.
LEAST_WORK = 100_000


def cut(work: np.ndarray) -> np.ndarray:
    """Boundaries of pieces with about equal work; `work` (blocks + 1,) is cumulative."""
    total = int(work[-1])
    many = max(1, min(MOST_PIECES, total // LEAST_WORK))
    bounds = np.searchsorted(work, np.arange(1, many) * (total / many))
    return np.unique(np.concatenate(([0], bounds, [len(work) - 1])))


def over(pieces: np.ndarray, function: Callable[[int, int], _Result]) -> list[_Result]:
    """function(first, last) of every piece, in threads; results in order."""
    ranges = [(int(first), int(last)) for first, last in pairwise(pieces)]
    if len(ranges) <= 1:
        return [function(*piece) for piece in ranges]
    with ThreadPoolExecutor(min(len(ranges), cores())) as threads:
        return list(threads.map(lambda piece: function(*piece), ranges))


def cores() -> int:
    """Number of processors available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
