"""WHAT A VISIT IS WORTH: from what is believed of a page's change rate to the freshness that one visit brings.

A page's change rate is not known: it is a Gamma distribution of shape a and rate b, b in seconds, so its mean is a/b
changes a second. Everything here is that distribution's own answer and not the one at its mean: a page of which little
is known is worth more. All functions take numbers, age in seconds, and are compiled.
"""

from __future__ import annotations

import math

from crawler.recheck.compiling import compiled

# Below this share of b, the difference of two nearly equal numbers would be noise: the first two terms of its series.
SMALL = 1e-4
# Above this exponent a power is so far from 1 that their difference has all but two of its digits.
APART = 0.05
# A page said to have changed so often since its visit that more would change nothing.
LARGEST_EXPONENT = 60.0


@compiled
def current(a: float, b: float, age: float) -> float:
    """Probability that the copy is still the page."""
    return math.exp(-a * math.log1p(age / b))


@compiled
def visit_value(a: float, b: float, age: float) -> float:
    """Seconds of freshness that a visit now adds to a page visited each `age` seconds.

    The integral over u from 0 to age of current(u) - current(age): what more frequent visits would add at the margin.
    Rises with age; bounded by (b/(a-1)) for a > 1, without bound else, so that nobody is given up unknown.
    """
    x = age / b
    if x < SMALL:
        return a * b * x * x * (0.5 - (a + 1.0) * x / 3.0)
    log = math.log1p(x)
    same = math.exp(-a * log)
    exponent = (1.0 - a) * log
    if a == 1.0:
        return b * log - age * same
    # (1 + x)^(1-a) - 1, by a third logarithm or power only where it would be the difference of nearly equal numbers.
    grown = (1.0 + x) * same - 1.0 if abs(exponent) > APART else math.expm1(exponent)
    return b * grown / (1.0 - a) - age * same


@compiled
def most(a: float, b: float, age: float) -> float:
    """A bound of `visit_value` from above, near it, that needs no logarithm and no branch.

    With x = age/b the value is a*b times the integral of y*(1+y)^-(a+1) over y from 0 to x. 1 + (a+1)*y is at most
    (1+y)^(a+1), and what is integrated then has a logarithm that is at least 3z(2+z)/(6+6z+z^2), z = (a+1)*x. For a
    above 1 it is also at most b/(a-1).
    """
    x = age / b
    z = (a + 1.0) * x
    bound = a * b * x * x * (3.0 + z) / (6.0 + 6.0 * z + z * z)
    limit = b / (a - 1.0) if a > 1.0 else bound
    return limit if limit < bound else bound


@compiled
def effective_age(a: float, b: float, age: float, signals: int, recall: float, false: float) -> float:
    """The age at which a page of a host without signals would be as surely current as this one is.

    `recall`: share of changes that the host signals; `false`: signals without a change, for each change. Silence of a
    host that signals most changes keeps a page young; each signal makes it older, the more the rarer false ones are.
    Exact where recall is 0 or 1, between them an interpolation.
    """
    if recall <= 0.0:
        return age
    silent = b + (1.0 - recall) * age
    if signals == 0:
        return silent - b
    exponent = signals / a * math.log1p(recall / max(false, 1e-12))
    return silent * math.exp(min(exponent, LARGEST_EXPONENT)) - b
