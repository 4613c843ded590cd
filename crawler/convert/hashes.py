"""Hash tables over arrays of hashes: from a URL's hash to its row, from a checksum to the first row that has it.

Open addressing; a table is an int32 array of rows, -1 where it is empty, of a power of two of slots and at most two
thirds full. What is looked up is a hash already, so its low bits are as good a slot as any. At 10 million rows a table
takes 64 MiB beside its keys.
"""

from __future__ import annotations

import numpy as np

from rankers.compiling import compiled

NOTHING = -1


def table_for(rows: int) -> np.ndarray:
    """An empty table for so many rows."""
    slots = 1 << max(4, (rows * 3 // 2).bit_length())
    return np.full(slots, NOTHING, np.int32)


@compiled
def put_all(table: np.ndarray, keys: np.ndarray) -> int:
    """Puts every row under its key (uint64); the first row whose key an earlier one has, -1: all differ."""
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
    """Fills `found` (int32) with the row of each wanted key, -1: none has it."""
    mask = np.uint64(len(table) - 1)
    for place in range(len(wanted)):
        slot = wanted[place] & mask
        while table[slot] >= 0 and keys[table[slot]] != wanted[place]:
            slot = (slot + np.uint64(1)) & mask
        found[place] = table[slot]


@compiled
def find_one(table: np.ndarray, keys: np.ndarray, wanted: np.uint64) -> int:
    """The row with this key, -1: none has it."""
    mask = np.uint64(len(table) - 1)
    slot = wanted & mask
    while table[slot] >= 0 and keys[table[slot]] != wanted:
        slot = (slot + np.uint64(1)) & mask
    return int(table[slot])


@compiled
def first_with(table: np.ndarray, digests: np.ndarray, member: np.ndarray, first: np.ndarray) -> None:
    """Fills `first` (int32) with the first row that has the same digest (rows, 2 uint64), for rows that are members.

    A row without a digest (all zeros) is its own first. Others than members are left out, and as they are.
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
