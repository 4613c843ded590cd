"""Estimates how often pages change, as Gamma distributions (value.py).

`learned` is exact if the page had not changed or the time of change is known; else it matches the posterior's moments.
Hosts' means use first visits only, since later visits depend on earlier results.
"""

from __future__ import annotations

import math

import numpy as np

from crawler.recheck.compiling import compiled

PRIOR_SHAPE = 0.5
# Number of changes that an estimate remembers.
MEMORY = 60.0
# Variance of the logarithm of hosts' mean rates: that of a Gamma distribution of shape 2.
HOST_SPREAD = 0.65
# Most that one page moves a mean (logarithm of a factor).
LARGEST_STEP = 1.0
# Below this share of b since the last visit, use the limits: the quotients would be 0/0.
SMALL = 1e-6


@compiled
def learned(a: float, b: float, age: float, changed: bool, since: float) -> tuple[float, float]:
    """The estimate after a visit; `age`: seconds since the last one, `since`: since the last change, NaN: unknown."""
    if not changed:
        return a, b + age
    if since >= 0.0:
        a, b = a + 1.0, b + min(since, age)
    else:
        a, b = _changed_sometime(a, b, age)
    if a > MEMORY:
        a, b = MEMORY, b * MEMORY / a
    return a, b


@compiled
def _changed_sometime(a: float, b: float, age: float) -> tuple[float, float]:
    """Matches mean and variance of the exact posterior."""
    x = age / b
    if x * max(a, 1.0) < SMALL:
        return a + 1.0, b + age / 2.0
    log = math.log1p(x)
    happened = -math.expm1(-a * log)
    mean = a / b * -math.expm1(-(a + 1.0) * log) / happened
    square = a * (a + 1.0) / (b * b) * -math.expm1(-(a + 2.0) * log) / happened
    variance = max(square - mean * mean, 1e-9 * mean * mean)
    return mean * mean / variance, mean / variance


@compiled
def step(log_rate: float, age: float, changed: bool) -> tuple[float, float]:
    """Score and information about a mean rate's logarithm, from a first visit."""
    x = age * math.exp(log_rate)
    slope = x / (1.0 + x / PRIOR_SHAPE)
    stayed = math.exp(-PRIOR_SHAPE * math.log1p(x / PRIOR_SHAPE))
    odds = stayed / max(1.0 - stayed, 1e-12)
    return (slope * odds if changed else -slope), slope * slope * odds


@compiled
def bounded(move: float) -> float:
    """A step limited to LARGEST_STEP."""
    return min(max(move, -LARGEST_STEP), LARGEST_STEP)


@compiled
def learn_first(
    mean: np.ndarray, offset: np.ndarray, information: np.ndarray, host: int, age: float, changed: bool
) -> None:
    """Applies a first visit to the mean (log rate, information) and the host's offset, in place."""
    if not age > 0.0:
        return
    score, gained = step(float(mean[0]) + float(offset[host]), age, changed)
    information[host] = float(information[host]) + gained
    moved = bounded(score / (1.0 / HOST_SPREAD + float(information[host])))
    offset[host] = float(offset[host]) + moved
    score, gained = step(float(mean[0]), age, changed)
    mean[1] = float(mean[1]) + gained
    mean[0] = float(mean[0]) + bounded(score / max(float(mean[1]), 1e-12))
