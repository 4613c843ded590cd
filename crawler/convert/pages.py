"""Selects the rows that are pages, numbers them, and resolves each URL to its page.

A page is a row with content (outcome `stored` or `duplicate`) that represents its copies: pages with equal, non-empty
bytes on any site, and named duplicates. The shortest, then smallest URL represents them. Redirects are followed;
rel=canonical is ignored. Pages are numbered by (domain, site, url_hash).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from crawler.convert import ConvertError, hashes
from crawler.convert.spill import REDIRECTED, Rows, Spill
from rankers.compiling import compiled

# Longest chain of redirects; longer ones are loops.
MOST_HOPS = 10
NOWHERE, ENDLESS = -1, -2
_MOST_ROWS = 2**31 - 1


class Pages(NamedTuple):
    """The pages, and the page of every row."""

    row: np.ndarray  # int32 of each page: its row
    content: np.ndarray  # int32 of each row: the row with the content of its URL; NOWHERE, ENDLESS
    page: np.ndarray  # int32 of each row: the page of that content; NOWHERE
    table: np.ndarray  # hash table: hash of a URL -> row
    keys: np.ndarray  # uint64, the table's keys

    @property
    def many(self) -> int:
        """Number of pages."""
        return len(self.row)


def find(spill: Spill) -> Pages:
    """The pages among the spilled rows. Raises ConvertError for equal hashes of two URLs and for too many rows."""
    rows = spill.rows
    if rows.many > _MOST_ROWS:
        raise ConvertError(
            f"{rows.many:,} rows are too many for 32-bit page ids; expected at most {_MOST_ROWS:,}"
        )
    keys = rows.url_hash.view(np.uint64)
    table = _table(spill, keys)
    named = _named_rows(rows, table, keys)
    content = np.empty(rows.many, np.int32)
    _follow(rows.kind, named, content)
    standing = _standing(spill, named)
    row = np.flatnonzero(standing == np.arange(rows.many)).astype(np.int32)
    number = np.full(rows.many, NOWHERE, np.int32)
    number[row] = np.arange(len(row), dtype=np.int32)
    page = np.full(rows.many, NOWHERE, np.int32)
    leads = content >= 0
    page[leads] = number[standing[content[leads]]]
    return Pages(row, content, page, table, keys)


def _table(spill: Spill, keys: np.ndarray) -> np.ndarray:
    table = hashes.table_for(len(keys))
    second = hashes.put_all(table, keys)
    if second >= 0:
        first = hashes.find_one(table, keys, keys[second])
        one, other = spill.urls(np.array([first, second]))
        raise ConvertError(
            f"{one} and {other} have the same hash ({spill.rows.url_hash[second]}); expected different ones; "
            "forget the site of one of them"
        )
    return table


def _named_rows(rows: Rows, table: np.ndarray, keys: np.ndarray) -> np.ndarray:
    named = np.full(rows.many, NOWHERE, np.int32)
    naming = np.flatnonzero(rows.named)
    found = np.empty(len(naming), np.int32)
    hashes.find_all(table, keys, rows.named[naming], found)
    named[naming] = found
    return named


def _standing(spill: Spill, named: np.ndarray) -> np.ndarray:
    """The row that represents each row with content; NOWHERE for redirects."""
    rows = spill.rows
    has_content = rows.kind != REDIRECTED
    group = np.full(rows.many, NOWHERE, np.int32)
    hashes.first_with(hashes.table_for(rows.many), rows.digest, has_content, group)
    _unite(rows.kind, named, group)
    best = np.full(rows.many, NOWHERE, np.int32)
    tied = np.zeros(rows.many, np.bool_)
    _shortest(group, rows.url_length, best, tied)
    _smallest(spill, group, best, np.flatnonzero(tied))
    return np.where(group >= 0, best[group], NOWHERE)


def _smallest(spill: Spill, group: np.ndarray, best: np.ndarray, tied: np.ndarray) -> None:
    # Among the shortest URLs, the smallest wins.
    smallest: dict[int, tuple[str, int]] = {}
    for row, url in zip(tied.tolist(), spill.urls(tied), strict=True):
        key = int(group[row])
        smallest[key] = min(smallest.get(key, (url, row)), (url, row))
    for key, (_, row) in smallest.items():
        best[key] = row


@compiled
def _follow(kind: np.ndarray, named: np.ndarray, content: np.ndarray) -> None:
    for row in range(len(kind)):
        at = row
        hops = 0
        while at >= 0 and kind[at] == REDIRECTED and hops <= MOST_HOPS:
            at = named[at]
            hops += 1
        content[row] = ENDLESS if hops > MOST_HOPS else at


@compiled
def _root(group: np.ndarray, row: int) -> int:
    while group[row] != row:
        group[row] = group[group[row]]
        row = group[row]
    return row


@compiled
def _unite(kind: np.ndarray, named: np.ndarray, group: np.ndarray) -> None:
    """Joins duplicates with the rows that they name; a group's id is its first row."""
    for row in range(len(kind)):
        if kind[row] != REDIRECTED and named[row] >= 0 and kind[named[row]] != REDIRECTED:
            one, other = _root(group, row), _root(group, named[row])
            group[max(one, other)] = min(one, other)
    for row in range(len(kind)):
        if kind[row] != REDIRECTED:
            group[row] = _root(group, row)


@compiled
def _shortest(group: np.ndarray, length: np.ndarray, best: np.ndarray, tied: np.ndarray) -> None:
    """Fills `best` with the first shortest row of each group; marks ties."""
    for row in range(len(group)):
        key = group[row]
        if key >= 0 and (best[key] < 0 or length[row] < length[best[key]]):
            best[key] = row
    for row in range(len(group)):
        key = group[row]
        if key >= 0 and row != best[key] and length[row] == length[best[key]]:
            tied[row] = True
            tied[best[key]] = True
