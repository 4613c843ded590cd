"""law.py's formula over numpy arrays, for machines without a compiler; six times slower.

Scores above 0 equal those of law.py to float32 precision; others are below 0 in both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from crawler.recheck import rates, signals, value

if TYPE_CHECKING:
    from crawler.recheck.columns import Hosts, Rows

# Bytes of a 304 response with its headers.
HEAD_BYTES = 500.0
# A page whose bound is below this share of its price is not computed exactly.
SURE = 0.85
# Score of a page past its longest interval: above all values, which are seconds of freshness.
PROMISED = 1e18
# Pages computed at a time: about 20 arrays of them fit the CPU cache.
PART = 8192


class Terms(NamedTuple):
    """The formula's coefficients for one call."""

    visit: float
    flatten: float
    stale: float
    linear: float
    rate_power: float
    weight_power: float
    price: float
    longest: float
    mean_rate: float


class _Pages(NamedTuple):
    """The formula's inputs per page, as float64."""

    a: np.ndarray
    b: np.ndarray
    age: np.ndarray  # seconds, halved for each failed visit
    weight: np.ndarray
    size: np.ndarray
    signals: np.ndarray
    recall: np.ndarray  # of its host, as are the next two
    false: np.ndarray
    saves: np.ndarray
    cost: np.ndarray  # its price, if it has changed

    def of(self, chosen: np.ndarray) -> _Pages:
        return _Pages(*(column[chosen] for column in self))


def score(
    rows: np.ndarray,
    hosts_of: np.ndarray,
    page: Rows,
    host: Hosts,
    now: float,
    pace: np.ndarray,
    terms: Terms,
    found: np.ndarray,
) -> None:
    """Writes the scores of these rows into `found`."""
    # 1/0 is infinite, as in compiled code.
    with np.errstate(all="ignore"):
        for begin in range(0, len(rows), PART):
            part = slice(begin, begin + PART)
            pages = _pages(rows[part], hosts_of[part], page, host, now, pace, terms)
            found[part] = _scored(pages, terms)


def _pages(
    rows: np.ndarray,
    hosts_of: np.ndarray,
    page: Rows,
    host: Hosts,
    now: float,
    pace: np.ndarray,
    terms: Terms,
) -> _Pages:
    shape, time, last, weight, size = (
        column[rows].astype(np.float64)
        for column in (page.shape, page.time, page.last, page.weight, page.size)
    )
    prior = rates.PRIOR_SHAPE / terms.mean_rate * np.exp(-host.offset[hosts_of].astype(np.float64))
    unseen = shape == 0.0
    seen = host.seen[hosts_of].astype(np.float64)
    signalled = 1.0 - (seen[:, 1] + signals.DOUBT) / (seen[:, 0] + signals.DOUBT)
    return _Pages(
        a=np.where(unseen, rates.PRIOR_SHAPE, shape),
        b=np.where(unseen, prior, time),
        age=np.maximum(now - last, 0.0) * 0.5 ** page.fails[rows].astype(np.float64),
        weight=weight,
        size=size,
        signals=page.signals[rows].astype(np.float64),
        recall=np.clip((signalled - signals.CHANCE) / (1.0 - signals.CHANCE), 0.0, 1.0),
        false=(seen[:, 2] + signals.FIRST_FALSE) / (seen[:, 3] + signals.FIRST_FALSE),
        saves=host.saves[hosts_of].astype(np.float64),
        cost=terms.price * pace[hosts_of] * size,
    )


def _scored(pages: _Pages, terms: Terms) -> np.ndarray:
    rest = terms.stale * pages.age * pages.age / 2.0
    if terms.linear != 0.0:
        rate = (pages.a / pages.b) ** terms.rate_power
        rest = rest + terms.linear * pages.age * rate * pages.weight**terms.weight_power
    result = rest - _less(pages, pages.age) if terms.visit == 0.0 else _visited(pages, rest, terms)
    promised = pages.age >= terms.longest
    return np.where(promised, PROMISED * (pages.age / terms.longest), result)


def _visited(pages: _Pages, rest: np.ndarray, terms: Terms) -> np.ndarray:
    worth = terms.visit * (pages.weight + terms.flatten * (1.0 - pages.weight))
    older = _effective_age(pages)
    most = worth * _most(pages.a, pages.b, older) + rest
    result: np.ndarray = most - pages.cost
    left = np.flatnonzero(~((most <= SURE * pages.cost) & (pages.saves == 0.0)))
    few, age = pages.of(left), older[left]
    result[left] = worth[left] * _visit_value(few.a, few.b, age) + rest[left] - _less(few, age)
    return result


def _less(pages: _Pages, age: np.ndarray) -> np.ndarray:
    same = pages.saves * np.exp(-pages.a * np.log1p(age / pages.b))
    less: np.ndarray = pages.cost * (1.0 - same * np.maximum(1.0 - HEAD_BYTES / pages.size, 0.0))
    return np.where(pages.saves == 0.0, pages.cost, less)


def _most(a: np.ndarray, b: np.ndarray, age: np.ndarray) -> np.ndarray:
    x = age / b
    z = (a + 1.0) * x
    bound = a * b * x * x * (3.0 + z) / (6.0 + 6.0 * z + z * z)
    limit = np.where(a > 1.0, b / (a - 1.0), bound)
    least: np.ndarray = np.where(limit < bound, limit, bound)
    return least


def _visit_value(a: np.ndarray, b: np.ndarray, age: np.ndarray) -> np.ndarray:
    x = age / b
    log = np.log1p(x)
    same = np.exp(-a * log)
    exponent = (1.0 - a) * log
    grown = np.where(np.abs(exponent) > value.APART, (1.0 + x) * same - 1.0, np.expm1(exponent))
    found = np.where(a == 1.0, b * log, b * grown / (1.0 - a)) - age * same
    few: np.ndarray = np.where(x < value.SMALL, a * b * x * x * (0.5 - (a + 1.0) * x / 3.0), found)
    return few


def _effective_age(pages: _Pages) -> np.ndarray:
    if not (pages.recall > 0.0).any():
        return pages.age
    silent = pages.b + (1.0 - pages.recall) * pages.age
    exponent = pages.signals / pages.a * np.log1p(pages.recall / np.maximum(pages.false, 1e-12))
    signalled = silent * np.exp(np.minimum(exponent, value.LARGEST_EXPONENT)) - pages.b
    older = np.where(pages.signals == 0, silent - pages.b, signalled)
    found: np.ndarray = np.where(pages.recall > 0.0, older, pages.age)
    return found
