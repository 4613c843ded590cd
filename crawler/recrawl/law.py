"""THE ONE FORMULA that all of our modes are cases of: what a visit is worth, minus the price of its cost.

    score = ahead * (visit * w * V(age) + stale * age^2/2 + linear * age * rate^x * weight^y)  -  price * cost

V is the value of a visit (value.py), w the weight, drawn towards 1 by `flatten`. A mode of ours is this formula with
some of its terms at 0. It is compiled: one pass over the rows, in which most pages are seen to be worth less than
their price by a bound that needs no logarithm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from crawler.recrawl import rates, signals, value
from crawler.recrawl.columns import Hosts, Rows
from crawler.recrawl.compiling import compiled

if TYPE_CHECKING:
    from crawler.recrawl.view import PageView

# Bytes that an answer "not modified" takes, with its head.
HEAD_BYTES = 500.0
# A page whose value is below this share of its price by the bound is not reckoned further.
SURE = 0.5
# Score of a page whose longest interval is over: above all values, which are seconds of freshness.
PROMISED = 1e18


class Terms(NamedTuple):
    """The formula's figures for one call, as compiled code takes them."""

    visit: float
    flatten: float
    stale: float
    linear: float
    rate_power: float
    weight_power: float
    price: float
    longest: float
    mean_rate: float


@dataclass(frozen=True)
class Law:
    """A mode as figures; each is 0 unless the mode has use for its term."""

    priced: bool = True
    visit: float = 0.0
    flatten: float = 0.0  # 0: weights as they are, 1: all alike
    stale: float = 0.0
    stale_by_rate: float = 0.0  # the same, as a multiple of the mean change rate
    linear: float = 0.0  # per period of paper 004
    rate_power: float = 0.0
    weight_power: float = 0.0
    ahead: bool = False  # what is worth something counts for each period to the horizon
    own_price: float = 0.0  # of a second of a slot, where no price is found

    def score(self, view: PageView) -> np.ndarray:
        """Exact but for pages worth less than half their price: of these only that."""
        found = np.empty(len(view.rows), np.float32)
        _score(
            view.rows,
            view.host,
            view.columns,
            view.hosts,
            view.now,
            view.seconds_per_byte,
            self._terms(view),
            found,
        )
        return found

    def _terms(self, view: PageView) -> Terms:
        ahead = view.ahead if self.ahead else 1.0
        return Terms(
            visit=self.visit * ahead,
            flatten=self.flatten,
            stale=(self.stale + self.stale_by_rate * view.mean_rate) * ahead,
            linear=self.linear * ahead / view.period,
            rate_power=self.rate_power,
            weight_power=self.weight_power,
            price=view.price if self.priced else self.own_price,
            longest=view.longest if self.priced else math.inf,
            mean_rate=view.mean_rate,
        )


@compiled
def _score(
    rows: np.ndarray,
    hosts_of: np.ndarray,
    page: Rows,
    host: Hosts,
    now: float,
    pace: np.ndarray,
    terms: Terms,
    found: np.ndarray,
) -> None:
    """Neighbours are of one host, so what is the host's is looked up when it changes."""
    known = -1
    prior = recall = false = saves = seconds = 0.0
    for i in range(len(rows)):
        row, h = rows[i], hosts_of[i]
        if h != known:
            known = h
            prior = rates.PRIOR_SHAPE / terms.mean_rate * math.exp(-host.offset[h])
            recall = signals.recall(host.seen[h, 0], host.seen[h, 1])
            false = signals.false_share(host.seen[h, 2], host.seen[h, 3])
            saves, seconds = host.saves[h], pace[h]
        age = max(now - page.last[row], 0.0)
        if page.fails[row]:
            age *= 0.5 ** page.fails[row]
        if age >= terms.longest:
            found[i] = PROMISED * (age / terms.longest)
            continue
        a, b = float(page.shape[row]), float(page.time[row])
        if a == 0.0:
            a, b = rates.PRIOR_SHAPE, prior
        weight, size = float(page.weight[row]), float(page.size[row])
        rest = terms.stale * age * age / 2.0
        if terms.linear != 0.0:
            rest += terms.linear * age * (a / b) ** terms.rate_power * weight**terms.weight_power
        cost = terms.price * seconds * size
        if terms.visit == 0.0:
            found[i] = rest - _less(cost, saves, size, a, b, age)
            continue
        worth = terms.visit * (weight + terms.flatten * (1.0 - weight))
        older = value.effective_age(a, b, age, page.signals[row], recall, false)
        # V is at most rate * age^2 / 2, and at most the age.
        most = worth * older * min(a / b * older / 2.0, 1.0) + rest
        if most <= SURE * cost and saves == 0.0:
            found[i] = most - cost
            continue
        found[i] = worth * value.visit_value(a, b, older) + rest - _less(cost, saves, size, a, b, older)


@compiled
def _less(cost: float, saves: float, size: float, a: float, b: float, age: float) -> float:
    """The cost, where some hosts answer "not modified" with a head alone."""
    if saves == 0.0:
        return cost
    same = saves * value.current(a, b, age)
    return cost * (1.0 - same * max(1.0 - HEAD_BYTES / size, 0.0))
