"""THE PRICE of a slot's second, found by feedback: up while more is worth it than the budget takes, down else.

One price for all sites makes their visits worth the same at the margin, which is what an optimum has; nobody reckons
it. Multiplied, so that no unit matters and it is never below 0.
"""

from __future__ import annotations

import math

# A step where what is worth it and the budget are nearly equal.
STEP = 0.01
# How much faster it goes where they are far apart, and the largest step of all.
HASTE = 0.02
LARGEST = 0.1
# It stays within what float32 scores can tell apart.
LEAST, MOST = 1e-12, 1e18
_WHOLE_WAY = float(math.ceil(math.log(MOST / LEAST)))


def moved(price: float, wanted: float, allowed: float) -> float:
    """The price after a time in which visits of `wanted` cost were worth it, and `allowed` were to be had."""
    if not allowed > 0.0:
        return price
    apart = math.log(max(wanted, 1e-9 * allowed) / allowed)
    size = min(STEP + HASTE * max(abs(apart) - 1.0, 0.0), LARGEST)
    return stepped(price, math.copysign(size, apart))


def stepped(price: float, by: float) -> float:
    """The price moved by a factor, given as its logarithm; one that was not found yet stays so."""
    if price <= 0.0:
        return price
    # A page can cost so many windows that the factor alone is no number any more.
    return min(max(price * math.exp(min(by, _WHOLE_WAY)), LEAST), MOST)
