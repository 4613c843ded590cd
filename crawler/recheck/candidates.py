"""WHICH PAGES A CHOICE LOOKS AT: hosts are scored in turn, and of each the few best are kept until its next turn.

Two levels, so that no choice scans all pages. A turn takes as many hosts as hold LOOKS pages for each one that a choice
takes, so all come round within 1/LOOKS of the time in which all pages are visited once; where there are few pages, all
of them each time. What a host keeps is as many as can be taken before its next turn; a choice looks at the first of
each, scored anew at the moment's price; where very many hosts have one, at those that were worth most at their turn.
"""

from __future__ import annotations

import numpy as np

from crawler.recheck.columns import Hosts
from crawler.recheck.compiling import compiled

# Pages scored for each one taken: hosts come round in 2 % of a sweep, which costs 0.2 points of freshness at most.
LOOKS = 50
# Pages scored in any case: numpy's calls take longer than so many pages.
LEAST_ROWS = 4096
# More scores than these are not sorted by moving one after the other to its place.
FEW = 24
# Scores by which a threshold is found.
SAMPLE = 8192
# What is kept is above "there is none", whatever a mode says of it.
LOWEST = np.finfo(np.float32).min
NOTHING = np.zeros(0, np.int64)


class Candidates:
    """The lists of all hosts, and whose turn it is."""

    def __init__(self) -> None:
        self.pool = np.zeros(1024, np.int64)  # rows; each host's list in one piece, best first
        self.used = 0
        self.scores = np.zeros(1024, np.float32)  # of the pool's rows, when it was their host's turn
        self.at = NOTHING  # per host: where the rest of its list begins
        self.left = NOTHING  # per host: how many are on it
        self.first_score = np.zeros(0, np.float32)  # per host: of the first on it; -inf: there is none
        self.ends = NOTHING  # per host in the order of turns: pages up to its last
        self.turn = 0
        self.came_round = False  # whether every host has had a turn
        self.urgent: set[int] = set()  # hosts whose turn comes at once

    @property
    def nbytes(self) -> int:
        """Memory of all lists."""
        kept = (self.pool, self.scores, self.at, self.left, self.first_score, self.ends)
        return sum(array.nbytes for array in kept)

    def changed(self, hosts: Hosts) -> None:
        """Hosts or their rows are others than before: all lists are void."""
        n = len(hosts.start)
        self.at, self.left = np.zeros(n, np.int64), np.zeros(n, np.int64)
        self.first_score = np.full(n, -np.inf, np.float32)
        self.used = 0
        self.ends = np.cumsum(hosts.pages)
        self.turn = self.turn if self.turn < n else 0

    def next_hosts(self, rows: int) -> np.ndarray:
        """Hosts whose turn it is, that hold at least so many pages together, or all; the urgent ones first."""
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
        """New lists for these hosts: `kept` rows each with their scores, one host's after the other."""
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
        """Hosts that have a list, and the first row of each: all, or `most`, about, that were worth most at their turn.

        `ready`: bool per host, who may be among them; None: all.
        """
        score = self.first_score if ready is None else np.where(ready, self.first_score, -np.inf)
        hosts = np.flatnonzero(score > _threshold(score, most))
        return hosts, self.pool[self.at[hosts]]

    def drop(self, hosts: np.ndarray) -> None:
        """The first of these hosts' lists is done with."""
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
    """Which about `most` of the scores exceed, by a sample; -inf where they are not many more."""
    if len(score) <= 2 * most:
        return -np.inf
    sample = score[:: max(len(score) // SAMPLE, 1)]
    place = len(sample) - 1 - int(most * (len(sample) / len(score)))
    return float(np.partition(sample, place)[place])


def best_first(score: np.ndarray) -> np.ndarray:
    """Places of the scores, rounded to float32, the highest first; of equal ones the earlier.

    Score and place are sorted as one whole number, which takes a fifth of the time of a stable argsort.
    """
    score = np.asarray(score, np.float32)
    bits = (-score + np.float32(0)).view(np.int32).astype(np.int64)
    bits ^= (bits >> 63) & 0x7FFF_FFFF
    keys = (bits << 32) | np.arange(len(score))
    keys.sort()
    order: np.ndarray = keys & 0xFFFF_FFFF
    return order


@compiled
def spread(start: np.ndarray, count: np.ndarray, host: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All rows of some hosts, and the host of each."""
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
    """Of each host's scores, `count` each, places of the best above `floor`, best first, and how many these are."""
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
    """As many of these places as there is room for, best first; of equal ones the earlier."""
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
    """Which of these, best first, are taken within the budget, and what is left of it.

    One that does not fit is passed over. The first is taken in any case where there is a budget at all, so that a page
    dearer than all of it has its turn; what is left is below 0 then.
    """
    taken = np.zeros(len(cost), np.bool_)
    left = budget
    for i in range(len(cost)):
        if cost[i] <= left or (i == 0 and left > 0.0):
            taken[i] = True
            left -= cost[i]
    return taken, left
