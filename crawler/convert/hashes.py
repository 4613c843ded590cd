"""Hash tables over arrays of hashes: key -> first row with it.

Open addressing in int32 arrays of rows, -1 for empty; sizes are powers of two, at most two thirds full.
"""

from __future__ import annotations

import numpy as np

from rankers.compiling import compiled

NOTHING = -1


def table_for(rows: int) -> np.ndarray:
    """An empty table for this many rows."""
    slots = 1 << max(4, (rows * 3 // 2).bit_length())
    return np.full(slots, NOTHING, np.int32)


@compiled
def put_all(table: np.ndarray, keys: np.ndarray) -> int:
    """Inserts every row under its key (uint64). Returns the first row with a repeated key, -1: none."""
    mask = np.uint64(len(table) - 1)
    for row in range(len(keys)):
        slot = keys[row] & mask
        while table[slot] >= 0:
            if keys[table[slot]] == keys[row]:
                return row
            slot = (slot + np.uint64(1)) & mask
        table[slot] = row
    return NOTHING


@compiled
def find_all(table: np.ndarray, keys: np.ndarray, wanted: np.ndarray, found: np.ndarray) -> None:
    """Fills `found` (int32) with the row of each wanted key; -1: missing."""
    mask = np.uint64(len(table) - 1)
    for place in range(len(wanted)):
        slot = wanted[place] & mask
        while table[slot] >= 0 and keys[table[slot]] != wanted[place]:
            slot = (slot + np.uint64(1)) & mask
        found[place] = table[slot]


@compiled
def find_one(table: np.ndarray, keys: np.ndarray, wanted: np.uint64) -> int:
    """The row with this key; -1: missing."""
    mask = np.uint64(len(table) - 1)
    slot = wanted & mask
    while table[slot] >= 0 and keys[table[slot]] != wanted:
        slot = (slot + np.uint64(1)) & mask
    return int(table[slot])


@compiled
def first_with(table: np.ndarray, digests: np.ndarray, member: np.ndarray, first: np.ndarray) -> None:
    """Fills `first` (int32) with the first row of equal digest (rows, 2 uint64), for member rows only.

    Rows without a digest (zeros) get themselves; other rows are not changed.
    """
    mask = np.uint64(len(table) - 1)
    for row in range(len(digests)):
        if not member[row]:
            continue
        first[row] = row
        if digests[row, 0] == 0 and digests[row, 1] == 0:
            continue
        slot = digests[row, 0] & mask
        while table[slot] >= 0 and (
            digests[table[slot], 0] != digests[row, 0] or digests[table[slot], 1] != digests[row, 1]
        ):
            slot = (slot + np.uint64(1)) & mask
        if table[slot] < 0:
            table[slot] = row
        first[row] = table[slot]
