"""Recrawl: which pages to visit again, and what was learned from it.

Two ways to ask. `choose` is for who sees all pages: the best now, at most one of a host, within a budget. `candidates`
is for who holds one site: its pages that are worth their price before a time, and when to come back. What came of it is
told as crawler.recheck.known has it. Raises RecrawlError as that does.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from crawler.recheck import RecrawlError, arguments
from crawler.recheck import price as prices
from crawler.recheck.candidates import LEAST_ROWS, LOOKS, affordable, best, best_first, spread
from crawler.recheck.columns import Hosts, Rows
from crawler.recheck.known import DAY, Known

# Share of its price that a page must be worth to stand by for time that would be lost.
NEARLY = 0.9
# Candidates that a choice looks at, for each page that its budget takes: the rest were worth less a moment ago.
SURPLUS = 3
# Pages by which the first price is found, and the mean cost in each call.
SAMPLE, SMALL_SAMPLE = 50_000, 1_000
# How near the time of waking is found: this share of what lies between.
WAKE_STEPS = 12


class Recrawl(Known):
    """Pages of some hosts, a mode, and a price; made as Known is."""

    # Of `choose`: pages scored, pages given, and seconds that were taken over the budget.
    looks = 0
    taken = 0
    _debt = 0.0

    def choose(
        self, now: float, seconds_per_byte: Any, ready: Any = None, budget: float | None = None
    ) -> np.ndarray:
        """Pages to visit now, best first, at most one of a host; moves the price.

        `seconds_per_byte`: of a slot, one figure or one per host. `ready`: hosts that may be asked, as one bool per
        host or as their numbers; None: all. `budget`: seconds of slots until the next call; None: what is worth its
        price. A page dearer than the whole budget is taken alone, and what it took is missing from the next budgets.
        """
        clock = self._clock(now)
        pace = self._pace(seconds_per_byte)
        if budget is not None and not budget >= 0:
            raise RecrawlError(f"budget is {budget!r}; expected seconds, 0 or more")
        if not self._columns.pages:
            return np.zeros(0, np.int64)
        if self.mode.priced and self.price <= 0 and budget:
            self.price = self._first_price(clock, pace, budget)
        self._take_turn(clock, pace, budget)
        hosts, rows = self._first_of(ready, pace, budget)
        score = self.mode.score(self._view(rows, hosts, clock, pace))
        order = best_first(score)
        hosts, rows, score = hosts[order], rows[order], score[order]
        taken = score > self._least if budget is None else self._within(rows, hosts, score, pace, budget)
        self._candidates.drop(hosts[taken])
        self.taken += int(taken.sum())
        if not self.mode.priced and taken.any():
            self.price = float(score[taken][-1])
        return self._columns.pages_of(rows[taken])

    def candidates(
        self, host: int, now: float, until: float, seconds_per_byte: float
    ) -> tuple[np.ndarray, float]:
        """For a leased site: its pages worth visiting before `until`, best first, and when it is to be leased again.

        The second is the first time at which one of its pages is worth its price, given that these are visited; never
        before `until`, and at most the longest interval after it, or a year where there is none.
        """
        at = self._columns.of(host)
        clock = self._clock(now)
        until = max(clock, float(until) - self._columns.base)
        pace = np.array([arguments.positive("seconds_per_byte", seconds_per_byte)])
        site = Rows(*(column[at] for column in self._columns.rows))
        score = self._site_score(site, host, until, pace)
        chosen = np.flatnonzero(score > self._floor)
        chosen = chosen[np.argsort(-score[chosen], kind="stable")]
        last = site.last.copy()
        last[chosen] = until
        wake = self._wake(site._replace(last=last), host, until, pace)
        return self._columns.pages_of(np.arange(at.start, at.stop))[chosen], wake + self._columns.base

    @property
    def _floor(self) -> float:
        return 0.0 if self.mode.priced else self.price

    def _take_turn(self, clock: float, pace: np.ndarray, budget: float | None) -> None:
        """Scores the hosts whose turn it is, and keeps the best of each."""
        total = self._columns.pages
        looked = total if budget is None else self._rows_a_call(pace, budget)
        hosts = self._candidates.next_hosts(looked)
        count = self._columns.hosts.pages[hosts]
        rows, host = spread(self._columns.hosts.start[hosts], count, hosts)
        self.looks += len(rows)
        price = self.price * (NEARLY if budget is not None else 1.0)
        score = self.mode.score(self._view(rows, host, clock, pace, price))
        most = math.ceil(total / max(looked, 1)) + 1
        places, kept = best(score, count, most, self._least)
        self._candidates.keep(hosts, rows[places], score[places], kept)

    def _rows_a_call(self, pace: np.ndarray, budget: float) -> int:
        """LOOKS for each page that the budget takes."""
        return int(min(max(LOOKS * budget / self._mean_cost(pace), LEAST_ROWS), self._columns.pages))

    def _mean_cost(self, pace: np.ndarray) -> float:
        """Of a visit, by a sample."""
        rows, host = self._columns.sample(SMALL_SAMPLE)
        return float((self._columns.rows.size[rows] * pace[host]).mean())

    def _first_of(self, ready: Any, pace: np.ndarray, budget: float | None) -> tuple[np.ndarray, np.ndarray]:
        """Hosts and rows of the candidates that a call looks at."""
        most = self._columns.pages
        if budget is not None:
            most = int(min(max(SURPLUS * budget / self._mean_cost(pace), LEAST_ROWS), most))
        return self._candidates.first(most, None if ready is None else self._ready(ready))

    def _ready(self, ready: Any) -> np.ndarray:
        ready = np.asarray(ready)
        n = len(self._columns.hosts.start)
        if ready.dtype == bool:
            if ready.shape != (n,):
                raise RecrawlError(f"ready is of shape {ready.shape}; expected one per host, ({n},)")
            told: np.ndarray = ready
            return told
        may = np.zeros(n, bool)
        if ready.size:
            if ready.dtype.kind not in "iu" or not 0 <= ready.min() <= ready.max() < n:
                raise RecrawlError(
                    f"ready names hosts that are not there; expected numbers from 0 to {n - 1}"
                )
            may[ready] = True
        return may

    @property
    def _least(self) -> float:
        """Score that a page must exceed to be visited where all pages are seen."""
        return 0.0 if self.mode.priced else -math.inf

    def _within(
        self, rows: np.ndarray, hosts: np.ndarray, score: np.ndarray, pace: np.ndarray, budget: float
    ) -> np.ndarray:
        """Which of these the budget takes; moves the price towards the one at which it takes all that are worth it.

        What is nearly worth its price fills what the others leave: time that is not used now is lost.
        """
        cost = self._columns.rows.size[rows].astype(np.float64) * pace[hosts]
        taken, left = affordable(cost, budget - self._debt)
        self._debt = max(-left, 0.0)
        # Before all hosts had a turn, some of what is worth it is out of sight: the first price is better than this.
        if self.mode.priced and self._candidates.came_round:
            # Where a whole page's time is left, those that did not fit are no reason to ask for more.
            wanted = taken & (score > 0) if left >= self._mean_cost(pace) else score > 0
            self.price = prices.moved(self.price, float(cost[wanted].sum()), budget)
        return taken

    def _first_price(self, clock: float, pace: np.ndarray, budget: float) -> float:
        """At which a sample of the pages would use up its share of the budget now; 0 where none is worth anything."""
        rows, host = self._columns.sample(SAMPLE)
        view = self._view(rows, host, clock, pace, price=0.0)
        cost = view.cost
        worth = self.mode.score(view) / cost
        order = np.argsort(-worth)
        spent = np.cumsum(cost[order])
        at = min(int(np.searchsorted(spent, budget * len(rows) / self._columns.pages)), len(order) - 1)
        return min(float(worth[order[at]]), prices.MOST)

    def _site_score(self, site: Rows, host: int, clock: float, pace: np.ndarray) -> np.ndarray:
        """Scores of one host's pages, by columns of its own."""
        hosts = Hosts(*(column[host : host + 1] for column in self._columns.hosts))
        n = len(site.shape)
        none = np.zeros(n, np.int64)
        return self.mode.score(self._seen(site, hosts, np.arange(n), none, clock, pace))

    def _wake(self, site: Rows, host: int, until: float, pace: np.ndarray) -> float:
        """The first time at which a page is worth its price: doubled until one is, then halved."""
        longest = self._longest if math.isfinite(self._longest) else 365 * DAY
        early, late = 0.0, min(60.0, longest)
        if not len(site.shape):
            return until + longest
        while not (self._site_score(site, host, until + late, pace) > self._floor).any():
            if late >= longest:
                return until + longest
            early, late = late, min(late * 2, longest)
        for _ in range(WAKE_STEPS):
            middle = (early + late) / 2
            if (self._site_score(site, host, until + middle, pace) > self._floor).any():
                late = middle
            else:
                early = middle
        return until + late
