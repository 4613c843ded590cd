"""Recrawl: chooses pages to visit again, from all hosts (`choose`) or from one leased site (`candidates`)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from crawler.recheck import RecrawlError, arguments
from crawler.recheck import price as prices
from crawler.recheck.candidates import LEAST_ROWS, LOOKS, affordable, best, best_first, spread
from crawler.recheck.columns import Hosts, Rows
from crawler.recheck.known import DAY, Known

# Share of its price that a page must be worth to fill time that would otherwise be unused.
NEARLY = 0.9
# Candidates considered per page that the budget takes.
SURPLUS = 3
# Pages sampled for the first price, and for the mean cost of each call.
SAMPLE, SMALL_SAMPLE = 50_000, 1_000
# Bisection steps to find the time of the next look.
WAKE_STEPS = 12


class Recrawl(Known):
    """Known pages, and the choice among them. Raises RecrawlError for invalid arguments."""

    # Statistics of `choose`: pages scored, pages returned, seconds over the budget.
    looks = 0
    taken = 0
    _debt = 0.0

    def choose(
        self, now: float, seconds_per_byte: Any, ready: Any = None, budget: float | None = None
    ) -> np.ndarray:
        """Pages to visit now, best first, at most one per host; moves the price.

        `seconds_per_byte`: of a slot, one number or one per host. `ready`: bool per host, or host numbers; None: all.
        `budget`: slot seconds until the next call; None: all pages worth their price. A page dearer than the whole
        budget is taken alone; the next budgets pay for it.
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
        """A site's pages worth visiting before `until`, best first, and the time of the next look.

        That is `until` or later, at most `longest_seconds` (or a year) after it.
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
        return int(min(max(LOOKS * budget / self._mean_cost(pace), LEAST_ROWS), self._columns.pages))

    def _mean_cost(self, pace: np.ndarray) -> float:
        rows, host = self._columns.sample(SMALL_SAMPLE)
        return float((self._columns.rows.size[rows] * pace[host]).mean())

    def _first_of(self, ready: Any, pace: np.ndarray, budget: float | None) -> tuple[np.ndarray, np.ndarray]:
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
            mask: np.ndarray = ready
            return mask
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
        return 0.0 if self.mode.priced else -math.inf

    def _within(
        self, rows: np.ndarray, hosts: np.ndarray, score: np.ndarray, pace: np.ndarray, budget: float
    ) -> np.ndarray:
        """Which pages fit the budget; moves the price."""
        cost = self._columns.rows.size[rows].astype(np.float64) * pace[hosts]
        taken, left = affordable(cost, budget - self._debt)
        self._debt = max(-left, 0.0)
        # Before the first full round some good candidates are unknown: keep the first price.
        if self.mode.priced and self._candidates.came_round:
            # If the time left would fit a whole page, those that did not fit do not raise the price.
            wanted = taken & (score > 0) if left >= self._mean_cost(pace) else score > 0
            self.price = prices.moved(self.price, float(cost[wanted].sum()), budget)
        return taken

    def _first_price(self, clock: float, pace: np.ndarray, budget: float) -> float:
        """A sampled price; 0 if no page is worth anything."""
        rows, host = self._columns.sample(SAMPLE)
        view = self._view(rows, host, clock, pace, price=0.0)
        cost = view.cost
        worth = self.mode.score(view) / cost
        order = np.argsort(-worth)
        spent = np.cumsum(cost[order])
        at = min(int(np.searchsorted(spent, budget * len(rows) / self._columns.pages)), len(order) - 1)
        return min(float(worth[order[at]]), prices.MOST)

    def _site_score(self, site: Rows, host: int, clock: float, pace: np.ndarray) -> np.ndarray:
        hosts = Hosts(*(column[host : host + 1] for column in self._columns.hosts))
        n = len(site.shape)
        none = np.zeros(n, np.int64)
        return self.mode.score(self._seen(site, hosts, np.arange(n), none, clock, pace))

    def _wake(self, site: Rows, host: int, until: float, pace: np.ndarray) -> float:
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
