"""The expected freshness gain of a visit. Age in seconds.

A page's change rate is a Gamma distribution of shape a and rate b (seconds); its mean is a/b changes per second.
"""

from __future__ import annotations

import math

from crawler.recheck.compiling import compiled

# Below this share of b use two terms of the series: the difference of nearly equal numbers would be noise.
SMALL = 1e-4
# Above this exponent the difference from 1 loses at most two digits.
APART = 0.05
# Limit of the exponent from signals.
LARGEST_EXPONENT = 60.0


@compiled
def current(a: float, b: float, age: float) -> float:
    """Probability that the copy is current."""
    return math.exp(-a * math.log1p(age / b))


@compiled
def visit_value(a: float, b: float, age: float) -> float:
    """Seconds of freshness that a visit now adds to a page visited each `age` seconds.

    The integral over u from 0 to age of current(u) - current(age). Rises with age; bounded by b/(a-1) for a > 1.
    """
    x = age / b
    if x < SMALL:
        return a * b * x * x * (0.5 - (a + 1.0) * x / 3.0)
    log = math.log1p(x)
    same = math.exp(-a * log)
    exponent = (1.0 - a) * log
    if a == 1.0:
        return b * log - age * same
    # (1 + x)^(1-a) - 1; expm1 only where the direct difference would lose precision.
    grown = (1.0 + x) * same - 1.0 if abs(exponent) > APART else math.expm1(exponent)
    return b * grown / (1.0 - a) - age * same


@compiled
def most(a: float, b: float, age: float) -> float:
    """A tight upper bound of `visit_value`, without logarithms and branches.

    With x = age/b the value is a*b times the integral of y*(1+y)^-(a+1) over y from 0 to x. (1+y)^(a+1) is at least
    1 + (a+1)*y, and the remaining logarithm at least 3z(2+z)/(6+6z+z^2), z = (a+1)*x.
    """
    x = age / b
    z = (a + 1.0) * x
    bound = a * b * x * x * (3.0 + z) / (6.0 + 6.0 * z + z * z)
    limit = b / (a - 1.0) if a > 1.0 else bound
    return limit if limit < bound else bound


@compiled
def effective_age(a: float, b: float, age: float, signals: int, recall: float, false: float) -> float:
    """The age at which a page without signals would be as likely current.

    `recall`: share of changes signalled; `false`: false signals per change. Exact at recall 0 and 1.
    """
    if recall <= 0.0:
        return age
    silent = b + (1.0 - recall) * age
    if signals == 0:
        return silent - b
    exponent = signals / a * math.log1p(recall / max(false, 1e-12))
    return silent * math.exp(min(exponent, LARGEST_EXPONENT)) - b
