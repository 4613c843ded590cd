"""In-links of pages, split into own block and others. Built without a sort; sources ascend within a page."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankers import pieces
from rankers.compiling import compiled

# Every thread scans all links for those into its pages.
MOST_THREADS = 8


class InLinks(NamedTuple):
    """Page i has in-links from source[start[i]:start[i + 1]]."""

    start: np.ndarray  # (pages + 1,) int64
    source: np.ndarray  # (links,) int32


class Split(NamedTuple):
    """In-links from the own block and from others, and each page's number of links into its block."""

    inner: InLinks
    outer: InLinks
    inner_degree: np.ndarray  # (pages,) int32


def split(ptr: np.ndarray, target: np.ndarray, block_start: np.ndarray) -> Split:
    """Transposes rows target[ptr[i]:ptr[i + 1]]; block b has pages block_start[b] .. block_start[b + 1] - 1."""
    pages = int(block_start[-1])
    inner, outer = np.zeros(pages + 1, np.int64), np.zeros(pages + 1, np.int64)
    inner_degree = np.zeros(pages, np.int32)
    parts = _parts(ptr, block_start)
    pieces.over(
        parts, lambda first, last: _count(first, last, block_start, ptr, target, inner, outer, inner_degree)
    )
    inner.cumsum(out=inner)
    outer.cumsum(out=outer)
    inner_source, outer_source = np.empty(inner[-1], np.int32), np.empty(outer[-1], np.int32)
    pieces.over(
        parts,
        lambda first, last: _fill(
            first, last, block_start, ptr, target, inner, inner_source, outer, outer_source
        ),
    )
    return Split(InLinks(inner, inner_source), InLinks(outer, outer_source), inner_degree)


def _parts(ptr: np.ndarray, block_start: np.ndarray) -> np.ndarray:
    found = pieces.cut(ptr[block_start] + block_start)
    many = min(MOST_THREADS, pieces.cores(), len(found) - 1)
    return found[np.linspace(0, len(found) - 1, many + 1).astype(np.int64)]


@compiled
def _count(
    first: int,
    last: int,
    block_start: np.ndarray,
    ptr: np.ndarray,
    target: np.ndarray,
    inner: np.ndarray,
    outer: np.ndarray,
    inner_degree: np.ndarray,
) -> None:
    """Counts links into the pages of blocks first .. last - 1."""
    low, high = block_start[first], block_start[last]
    for block in range(len(block_start) - 1):
        begin, end = block_start[block], block_start[block + 1]
        ours = first <= block < last
        for page in range(begin, end):
            for place in range(ptr[page], ptr[page + 1]):
                to = target[place]
                if begin <= to < end:
                    if ours:
                        inner[to] += 1
                        inner_degree[page] += 1
                elif low <= to < high:
                    outer[to] += 1


@compiled
def _fill(
    first: int,
    last: int,
    block_start: np.ndarray,
    ptr: np.ndarray,
    target: np.ndarray,
    inner: np.ndarray,
    inner_source: np.ndarray,
    outer: np.ndarray,
    outer_source: np.ndarray,
) -> None:
    """Places each source; `inner` and `outer` enter as ends of rows and leave as starts."""
    low, high = block_start[first], block_start[last]
    for block in range(len(block_start) - 2, -1, -1):
        begin, end = block_start[block], block_start[block + 1]
        ours = first <= block < last
        for page in range(end - 1, begin - 1, -1):
            for place in range(ptr[page], ptr[page + 1]):
                to = target[place]
                if begin <= to < end:
                    if ours:
                        inner[to] -= 1
                        inner_source[inner[to]] = page
                elif low <= to < high:
                    outer[to] -= 1
                    outer_source[outer[to]] = page
