"""The formula behind all named modes: the value of a visit minus the price of its cost.

    score = ahead * (visit * w * V(age) + stale * age^2/2 + linear * age * rate^x * weight^y)  -  price * cost

V: value of a visit (value.py); w: weight, moved towards 1 by `flatten`. Without a compiler law_arrays.py is used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from crawler.recheck import law_arrays, rates, signals, value
from crawler.recheck.columns import BLOCK, Hosts, Rows, touch
from crawler.recheck.compiling import COMPILED, compiled
from crawler.recheck.law_arrays import HEAD_BYTES, PROMISED, SURE, Terms

if TYPE_CHECKING:
    from crawler.recheck.view import PageView

# Shorter runs of neighbours skip the bound.
FEW = 4


class Figures(NamedTuple):
    """A host's figures, shared by its pages."""

    prior: float  # of pages never visited: scale of the estimated change rate
    recall: float
    false: float
    saves: float
    seconds: float  # of a slot per byte


@dataclass(frozen=True)
class Law:
    """A mode as coefficients of the formula; 0 leaves a term out."""

    priced: bool = True
    visit: float = 0.0
    flatten: float = 0.0  # 0: weights unchanged, 1: all equal
    stale: float = 0.0
    stale_by_rate: float = 0.0  # the same, as a multiple of the mean change rate
    linear: float = 0.0  # per period of paper 004
    rate_power: float = 0.0
    weight_power: float = 0.0
    ahead: bool = False  # multiply by the periods left to the horizon
    own_price: float = 0.0  # of a slot second, for modes without a found price

    def score(self, view: PageView) -> np.ndarray:
        """Exact above 0; other pages get an upper bound of at most 0."""
        found = np.empty(len(view.rows), np.float32)
        scored = _score if COMPILED else law_arrays.score
        scored(
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
    """Bounds whole runs of neighbouring rows, then computes the pages that the bound leaves."""
    begin = touched = 0
    sums = np.empty(1)
    simple = terms.visit != 0.0 and terms.linear == 0.0
    while begin < len(rows):
        if begin >= touched:
            touched = min(begin + BLOCK, len(rows))
            if rows[touched - 1] - rows[begin] >= 2 * (touched - begin):
                touch(rows[begin:touched], hosts_of[begin:touched], page, host, sums)
        h, first = hosts_of[begin], rows[begin]
        end = begin + 1
        while end < len(rows) and hosts_of[end] == h and rows[end] == first + end - begin:
            end += 1
        figures = _figures(host, h, pace[h], terms)
        if simple and end - begin >= FEW and figures.saves == 0.0 and figures.recall == 0.0:
            _bound(first, page, now, figures, terms, found[begin:end])
            for i in range(begin, end):
                if not found[i] <= 0.0:
                    found[i] = _exact(rows[i], page, now, figures, terms)
        else:
            for i in range(begin, end):
                found[i] = _exact(rows[i], page, now, figures, terms)
        begin = end


@compiled
def _figures(host: Hosts, h: int, seconds: float, terms: Terms) -> Figures:
    return Figures(
        prior=rates.PRIOR_SHAPE / terms.mean_rate * math.exp(-host.offset[h]),
        recall=signals.recall(host.seen[h, 0], host.seen[h, 1]),
        false=signals.false_share(host.seen[h, 2], host.seen[h, 3]),
        saves=host.saves[h],
        seconds=seconds,
    )


@compiled
def _bound(first: int, page: Rows, now: float, figures: Figures, terms: Terms, found: np.ndarray) -> None:
    """Upper bound of each score; 1 if that is above 0. Without branches, so that it vectorizes."""
    stale, visit, flatten = terms.stale / 2.0, terms.visit, terms.flatten
    dear, prior, longest = terms.price * figures.seconds, figures.prior, terms.longest
    # Unsigned indexes let the compiler vectorize the loop.
    begin = np.uint64(first)
    for i in range(np.uint64(len(found))):
        row = begin + i
        age = now - page.last[row]
        age = age if age > 0.0 else 0.0
        seen = page.shape[row] != 0.0
        a, b = (page.shape[row] if seen else rates.PRIOR_SHAPE), (page.time[row] if seen else prior)
        worth = visit * (page.weight[row] + flatten * (1.0 - page.weight[row]))
        most = worth * value.most(a, b, age) + stale * age * age
        cost = dear * page.size[row]
        sure = (most <= cost) & (page.fails[row] == 0) & (age < longest)
        found[i] = most - cost if sure else 1.0


@compiled
def _exact(row: int, page: Rows, now: float, figures: Figures, terms: Terms) -> float:
    age = max(now - float(page.last[row]), 0.0)
    if page.fails[row]:
        age *= 0.5 ** float(page.fails[row])
    if age >= terms.longest:
        return PROMISED * (age / terms.longest)
    a, b = float(page.shape[row]), float(page.time[row])
    if a == 0.0:
        a, b = rates.PRIOR_SHAPE, figures.prior
    weight, size = float(page.weight[row]), float(page.size[row])
    rest = terms.stale * age * age / 2.0
    if terms.linear != 0.0:
        rest += terms.linear * age * (a / b) ** terms.rate_power * weight**terms.weight_power
    cost = terms.price * figures.seconds * size
    if terms.visit == 0.0:
        return rest - _less(cost, figures.saves, size, a, b, age)
    worth = terms.visit * (weight + terms.flatten * (1.0 - weight))
    older = value.effective_age(a, b, age, page.signals[row], figures.recall, figures.false)
    most = worth * value.most(a, b, older) + rest
    if most <= SURE * cost and figures.saves == 0.0:
        return most - cost
    return worth * value.visit_value(a, b, older) + rest - _less(cost, figures.saves, size, a, b, older)


@compiled
def _less(cost: float, saves: float, size: float, a: float, b: float, age: float) -> float:
    # Unchanged pages may cost headers alone.
    if saves == 0.0:
        return cost
    same = saves * value.current(a, b, age)
    return cost * (1.0 - same * max(1.0 - HEAD_BYTES / size, 0.0))
