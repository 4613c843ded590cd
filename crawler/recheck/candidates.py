"""Candidates: hosts are scored round robin, and each keeps its best pages until its next turn.

Each call scores about LOOKS pages per page taken, so no choice scans all pages.
"""

from __future__ import annotations

import numpy as np

from crawler.recheck.columns import Hosts
from crawler.recheck.compiling import compiled

# Pages scored for each page taken: a round takes 2 % of a sweep, which costs at most 0.2 points of freshness.
LOOKS = 50
# Pages scored in any case: below this, the overhead of numpy's calls dominates.
LEAST_ROWS = 4096
# Up to this many scores are sorted by insertion.
FEW = 24
# Scores sampled to find a threshold.
SAMPLE = 8192
# Least score of a candidate; -inf means an empty list.
LOWEST = np.finfo(np.float32).min
NOTHING = np.zeros(0, np.int64)


class Candidates:
    """The candidate lists of all hosts."""

    def __init__(self) -> None:
        self.pool = np.zeros(1024, np.int64)  # rows; each host's list in one piece, best first
        self.used = 0
        self.scores = np.zeros(1024, np.float32)  # of the pool's rows, when it was their host's turn
        self.at = NOTHING  # per host: where the rest of its list begins
        self.left = NOTHING  # per host: how many are on it
        self.first_score = np.zeros(0, np.float32)  # per host: of its first row; -inf: the list is empty
        self.ends = NOTHING  # per host in the order of turns: pages up to its last
        self.turn = 0
        self.came_round = False  # whether every host has had a turn
        self.urgent: set[int] = set()  # hosts scored at the next call

    @property
    def nbytes(self) -> int:
        """Bytes used by all lists."""
        kept = (self.pool, self.scores, self.at, self.left, self.first_score, self.ends)
        return sum(array.nbytes for array in kept)

    def changed(self, hosts: Hosts) -> None:
        """Discards all lists after hosts or rows have changed."""
        n = len(hosts.start)
        self.at, self.left = np.zeros(n, np.int64), np.zeros(n, np.int64)
        self.first_score = np.full(n, -np.inf, np.float32)
        self.used = 0
        self.ends = np.cumsum(hosts.pages)
        self.turn = self.turn if self.turn < n else 0

    def next_hosts(self, rows: int) -> np.ndarray:
        """The next hosts to score, urgent ones first, until they hold at least `rows` pages."""
        total = int(self.ends[-1]) if len(self.ends) else 0
        if rows >= total:
            self.came_round = True
            self.urgent.clear()
            return np.arange(len(self.ends))
        before = int(self.ends[self.turn - 1]) if self.turn else 0
        end = int(np.searchsorted(self.ends, before + rows)) + 1
        found = np.arange(self.turn, min(end, len(self.ends)))
        self.came_round |= end >= len(self.ends)
        self.turn = 0 if end >= len(self.ends) else end
        if self.urgent:
            found = np.union1d(found, np.fromiter(self.urgent, np.int64))
            self.urgent.clear()
        return found

    def keep(self, hosts: np.ndarray, rows: np.ndarray, scores: np.ndarray, kept: np.ndarray) -> None:
        """Replaces these hosts' lists; `kept` elements per host."""
        self.left[hosts] = 0
        if self.used + len(rows) > len(self.pool):
            self._compact(len(rows))
        self.at[hosts] = self.used + np.cumsum(kept) - kept
        self.left[hosts] = kept
        new = slice(self.used, self.used + len(rows))
        self.pool[new], self.scores[new] = rows, scores
        self.used += len(rows)
        self._note_first(hosts)

    def first(self, most: int, ready: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Hosts with candidates and their first rows: all, or about `most` of the best. `ready`: bool per host."""
        score = self.first_score if ready is None else np.where(ready, self.first_score, -np.inf)
        hosts = np.flatnonzero(score > _threshold(score, most))
        return hosts, self.pool[self.at[hosts]]

    def drop(self, hosts: np.ndarray) -> None:
        """Removes the first candidate of these hosts."""
        self.at[hosts] += 1
        self.left[hosts] -= 1
        self._note_first(hosts)

    def _note_first(self, hosts: np.ndarray) -> None:
        left = self.left[hosts] > 0
        at = np.where(left, self.at[hosts], 0)
        self.first_score[hosts] = np.where(left, np.maximum(self.scores[at], LOWEST), -np.inf)

    def _compact(self, more: int) -> None:
        hosts = np.flatnonzero(self.left)
        left = self.left[hosts]
        rows, _ = spread(self.at[hosts], left, hosts)
        live, scores = self.pool[rows], self.scores[rows]
        size = max(2 * (len(live) + more), len(self.pool))
        self.pool, self.scores = np.zeros(size, np.int64), np.zeros(size, np.float32)
        self.pool[: len(live)], self.scores[: len(live)] = live, scores
        self.at[hosts] = np.cumsum(left) - left
        self.used = len(live)


def _threshold(score: np.ndarray, most: int) -> float:
    if len(score) <= 2 * most:
        return -np.inf
    sample = score[:: max(len(score) // SAMPLE, 1)]
    place = len(sample) - 1 - int(most * (len(sample) / len(score)))
    return float(np.partition(sample, place)[place])


def best_first(score: np.ndarray) -> np.ndarray:
    """Indexes of the scores as float32, highest first, equal ones in order."""
    score = np.asarray(score, np.float32)
    bits = (-score + np.float32(0)).view(np.int32).astype(np.int64)
    bits ^= (bits >> 63) & 0x7FFF_FFFF
    keys = (bits << 32) | np.arange(len(score))
    keys.sort()
    order: np.ndarray = keys & 0xFFFF_FFFF
    return order


@compiled
def spread(start: np.ndarray, count: np.ndarray, host: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All rows of these hosts, and each row's host."""
    total = count.sum()
    rows, hosts = np.empty(total, np.int64), np.empty(total, np.int64)
    at = 0
    for i in range(len(start)):
        for row in range(start[i], start[i] + count[i]):
            rows[at], hosts[at] = row, host[i]
            at += 1
    return rows, hosts


@compiled
def best(score: np.ndarray, count: np.ndarray, most: int, floor: float) -> tuple[np.ndarray, np.ndarray]:
    """Indexes of each host's scores above `floor`, best first, at most `most` per host, and their counts."""
    kept = np.zeros(len(count), np.int64)
    places = np.empty(min(most * len(count), len(score)), np.int64)
    above = np.empty(count.max() if len(count) else 0, np.int64)
    at = begin = 0
    for i in range(len(count)):
        n = 0
        for place in range(begin, begin + count[i]):
            if score[place] > floor:
                above[n] = place
                n += 1
        kept[i] = min(n, most)
        _sort(score, above[:n], places[at : at + kept[i]])
        at += kept[i]
        begin += count[i]
    return places[:at], kept


@compiled
def _sort(score: np.ndarray, above: np.ndarray, into: np.ndarray) -> None:
    """As many of the best as `into` holds; equal scores in order."""
    if len(above) > FEW:
        order = np.argsort(-score[above], kind="mergesort")
        for n in range(len(into)):
            into[n] = above[order[n]]
        return
    n = 0
    for place in above:
        if n == len(into) and score[place] <= score[into[n - 1]]:
            continue
        if n < len(into):
            n += 1
        slot = n - 1
        while slot > 0 and score[into[slot - 1]] < score[place]:
            into[slot] = into[slot - 1]
            slot -= 1
        into[slot] = place


@compiled
def affordable(cost: np.ndarray, budget: float) -> tuple[np.ndarray, float]:
    """Which visits, best first, fit the budget, and what is left; visits that do not fit are skipped.

    The first is always taken if the budget is above 0; the rest may then be negative.
    """
    taken = np.zeros(len(cost), np.bool_)
    left = budget
    for i in range(len(cost)):
        if cost[i] <= left or (i == 0 and left > 0.0):
            taken[i] = True
            left -= cost[i]
    return taken, left
