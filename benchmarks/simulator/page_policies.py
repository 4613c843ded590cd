"""What Recrawl is compared with: rates of visits that are known from the start, and intervals that follow changes.

`Rates` visits each page at a rate of its own, who is furthest behind first. `oracle_rates` reckons such rates from the
true change rates, which no crawler knows, as three papers do; `Nutch` is that crawler's adaptive schedule. All obey the
same budget and ask a host for one page a period.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.simulator.pages import PERIOD, SWEEP, World
from crawler.recheck.candidates import affordable, best

# Apache Nutch's AdaptiveFetchSchedule at its defaults.
LONGER, SHORTER = 1.2, 0.8
SHORTEST, LONGEST = 60.0, 365 * 86_400.0
HALVINGS = 200
# Changes in an interval, and what a visit at its end is then worth, as a share of the most that it can be.
CHANGES = np.geomspace(1e-7, 60.0, 200_000)
WORTH = -np.expm1(-CHANGES) - CHANGES * np.exp(-CHANGES)


class Rates:
    """Visits in proportion to `rate`, one per page; 0: never."""

    def __init__(self, world: World, rate: np.ndarray) -> None:
        self.world, self.rate = world, rate
        self.last = world.last * PERIOD
        self.count = np.bincount(world.host)
        self.debt = 0.0

    def choose(
        self, now: float, seconds_per_byte: Any, ready: Any = None, budget: float | None = None
    ) -> np.ndarray:
        """Who is furthest behind."""
        score = (
            np.where(np.isin(self.world.host, ready), self.behind(now), -1.0)
            if ready is not None
            else self.behind(now)
        )
        score = score.astype(np.float32)
        pages, _ = best(score, self.count, 1, 0.0)
        pages = pages[np.argsort(-score[pages], kind="stable")]
        cost = self.world.size[pages] * seconds_per_byte[self.world.host[pages]]
        taken, left = affordable(cost, (budget or 0.0) - self.debt)
        self.debt = max(-left, 0.0)
        return pages[taken]

    def behind(self, now: float) -> np.ndarray:
        """Visits that each page has had too few."""
        return (now - self.last) * self.rate

    def visited(self, pages: Any, now: float, changed: Any) -> None:
        """What was found changes nothing here."""
        del changed
        self.last[pages] = now

    def signalled(self, pages: Any, now: float) -> None:
        """Not heeded."""


class Nutch(Rates):
    """An interval per page: longer where it had not changed, shorter where it had."""

    def __init__(self, world: World) -> None:
        super().__init__(world, np.full(len(world.host), 1 / (SWEEP * PERIOD)))

    def behind(self, now: float) -> np.ndarray:
        """Seconds since each page was due; who was due first comes first."""
        return now - self.last - 1 / self.rate

    def visited(self, pages: Any, now: float, changed: Any) -> None:
        """Its default factors and bounds."""
        super().visited(pages, now, changed)
        interval = np.where(changed, SHORTER, LONGER) / self.rate[pages]
        self.rate[pages] = 1 / np.clip(interval, SHORTEST, LONGEST)


def cho(weight: np.ndarray, rate: np.ndarray, price: np.ndarray) -> np.ndarray:
    """Cho and Garcia-Molina: the optimum at fixed intervals."""
    return 1 / interval_worth(weight, rate, price)


def azar(weight: np.ndarray, rate: np.ndarray, price: np.ndarray) -> np.ndarray:
    """Azar and others: the optimum at random intervals."""
    found: np.ndarray = np.maximum(np.sqrt(weight * rate / price) - rate, 0.0)
    return found


def lambda_crawl(weight: np.ndarray, rate: np.ndarray, price: np.ndarray) -> np.ndarray:
    """Kolobov and others: under the harmonic penalty, where no page starves."""
    found: np.ndarray = (np.sqrt(rate * rate + 4 * weight * rate / price) - rate) / 2
    return found


def oracle_rates(world: World, law: Callable[..., np.ndarray], weight: np.ndarray) -> np.ndarray:
    """Visits a period of each page by this law, at the price at which they use up the budget."""
    cost = world.cost
    low, high = 1e-12, 1e12
    for _ in range(HALVINGS):
        price = np.sqrt(low * high)
        if (cost * law(weight, world.rate, price * cost)).sum() > world.budget:
            low = price
        else:
            high = price
    return law(weight, world.rate, high * cost)


def interval_worth(weight: np.ndarray, rate: np.ndarray, price: np.ndarray) -> np.ndarray:
    """Periods after which a visit of a page of known rate is worth its price; infinite where it never is."""
    # With x = rate * interval: (1 - (1 + x) exp(-x)) * weight / rate = price, solved by a table.
    wanted = price * rate / np.maximum(weight, 1e-12)
    return np.where(wanted < 1.0, np.interp(wanted, WORTH, CHANGES) / rate, np.inf)
