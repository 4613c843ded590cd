"""Links in compressed sparse rows: row i is target[ptr[i]:ptr[i + 1]], ascending, without i and duplicates.

ptr is int64, target int32.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankers.compiling import compiled

# Page ids have 32 bits in memory and in files.
MOST_PAGES = 2**31 - 1


class Rows(NamedTuple):
    """The links of len(ptr) - 1 pages."""

    ptr: np.ndarray
    target: np.ndarray


def from_pairs(source: np.ndarray, target: np.ndarray, pages: int) -> Rows:
    """Rows of these links (int32, 0 .. pages - 1), without duplicates and links of a page to itself."""
    # Two counting sorts, by target, then by source.
    ptr, found = _turned(*_by_target(source, target, pages), pages)
    return _read_only(ptr, found[: _drop_repeats(ptr, found)])


def renumbered(rows: Rows, order: np.ndarray, place: np.ndarray) -> Rows:
    """The links with page order[i] renamed i, and page p place[p]; targets are unordered."""
    ptr = np.zeros(len(rows.ptr), np.int64)
    np.cumsum(np.diff(rows.ptr)[order], out=ptr[1:])
    target = np.empty(len(rows.target), np.int32)
    _renumber(rows.ptr, rows.target, order, place, ptr, target)
    return _read_only(ptr, target)


def first_fault(rows: Rows) -> int | None:
    """The first invalid row (see the module); None: all are valid. `ptr` must ascend."""
    found = int(_first_fault(rows.ptr, rows.target))
    return found if found >= 0 else None


def _read_only(ptr: np.ndarray, target: np.ndarray) -> Rows:
    # Read-only, like arrays of files: otherwise functions would be compiled twice.
    ptr.flags.writeable = target.flags.writeable = False
    return Rows(ptr, target)


@compiled
def _by_target(source: np.ndarray, target: np.ndarray, pages: int) -> tuple[np.ndarray, np.ndarray]:
    end = np.zeros(pages + 1, np.int64)
    for link in range(len(source)):
        if source[link] != target[link]:
            end[target[link]] += 1
    total = 0
    for page in range(pages + 1):
        total += end[page]
        end[page] = total
    found = np.empty(total, np.int32)
    for link in range(len(source)):
        if source[link] != target[link]:
            end[target[link]] -= 1
            found[end[target[link]]] = source[link]
    return end, found


@compiled
def _turned(start: np.ndarray, index: np.ndarray, pages: int) -> tuple[np.ndarray, np.ndarray]:
    """Transposes rows."""
    end = np.zeros(pages + 1, np.int64)
    for place in range(len(index)):
        end[index[place]] += 1
    total = 0
    for row in range(pages + 1):
        total += end[row]
        end[row] = total
    found = np.empty(len(index), np.int32)
    for row in range(pages - 1, -1, -1):
        for place in range(start[row], start[row + 1]):
            to = index[place]
            end[to] -= 1
            found[end[to]] = row
    return end, found


@compiled
def _drop_repeats(ptr: np.ndarray, target: np.ndarray) -> int:
    """Removes duplicates in place; returns the number of links left."""
    kept = 0
    begin = ptr[0]
    for row in range(len(ptr) - 1):
        end = ptr[row + 1]
        ptr[row] = kept
        for place in range(begin, end):
            if place == begin or target[place] != target[place - 1]:
                target[kept] = target[place]
                kept += 1
        begin = end
    ptr[-1] = kept
    return kept


@compiled
def _renumber(
    ptr: np.ndarray,
    target: np.ndarray,
    order: np.ndarray,
    place: np.ndarray,
    new_ptr: np.ndarray,
    new_target: np.ndarray,
) -> None:
    for row in range(len(order)):
        begin, to = ptr[order[row]], new_ptr[row]
        for link in range(new_ptr[row + 1] - to):
            new_target[to + link] = place[target[begin + link]]


@compiled
def _first_fault(ptr: np.ndarray, target: np.ndarray) -> int:
    pages = len(ptr) - 1
    for row in range(pages):
        before = -1
        for place in range(ptr[row], ptr[row + 1]):
            to = target[place]
            if to <= before or to >= pages or to == row:
                return row
            before = to
    return -1
