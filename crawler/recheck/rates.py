"""HOW OFTEN A PAGE CHANGES: what a visit tells of it, page by page, and what is thought of a page before its first.

A page's belief is a Gamma distribution (value.py). `learned` is exact for a page that had not changed and for one
whose time of change is known; where it changed at an unknown time, any number of times, it takes the moments of the
exact posterior. What is older fades: shape is held at MEMORY changes.

A page before its first visit has shape PRIOR_SHAPE and its host's mean rate. Hosts' means, and the mean of all, are
found from first visits alone, since who is visited later depends on what was seen: each moves the logarithm of the
mean by the score of what was seen over the information gathered so far. A host is thought to be like all others until
its own pages say otherwise (HOST_SPREAD).
"""

from __future__ import annotations

import math

import numpy as np

from crawler.recheck.compiling import compiled

PRIOR_SHAPE = 0.5
# Changes that are remembered: a page whose habits change is found out after about so many.
MEMORY = 60.0
# Variance of the logarithm of hosts' mean rates: that of a Gamma distribution of shape 2.
HOST_SPREAD = 0.65
# No single page moves a mean by more than this factor's logarithm.
LARGEST_STEP = 1.0
# Below this share of b since the last visit, the moments' quotients are 0/0; their limits are simple.
SMALL = 1e-6


@compiled
def learned(a: float, b: float, age: float, changed: bool, since: float) -> tuple[float, float]:
    """The belief after a visit `age` seconds after the last; `since`: how long ago it last changed, NaN: unknown."""
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
    """Mean and variance of the exact posterior, as those of a Gamma distribution."""
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
    """What a first visit says of a mean rate: score and information of its logarithm."""
    x = age * math.exp(log_rate)
    slope = x / (1.0 + x / PRIOR_SHAPE)
    stayed = math.exp(-PRIOR_SHAPE * math.log1p(x / PRIOR_SHAPE))
    odds = stayed / max(1.0 - stayed, 1e-12)
    return (slope * odds if changed else -slope), slope * slope * odds


@compiled
def bounded(move: float) -> float:
    """A step that no single page exceeds."""
    return min(max(move, -LARGEST_STEP), LARGEST_STEP)


@compiled
def learn_first(
    mean: np.ndarray, offset: np.ndarray, information: np.ndarray, host: int, age: float, changed: bool
) -> None:
    """One first visit moves the mean of all (log rate, information) and its host's offset from it, in place."""
    if not age > 0.0:
        return
    score, gained = step(float(mean[0]) + float(offset[host]), age, changed)
    information[host] = float(information[host]) + gained
    moved = bounded(score / (1.0 / HOST_SPREAD + float(information[host])))
    offset[host] = float(offset[host]) + moved
    score, gained = step(float(mean[0]), age, changed)
    mean[1] = float(mean[1]) + gained
    mean[0] = float(mean[0]) + bounded(score / max(float(mean[1]), 1e-12))
