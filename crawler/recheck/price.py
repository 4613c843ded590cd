"""The price of a slot second: rises while more visits are worth it than the budget allows."""

from __future__ import annotations

import math

# Step (logarithm of a factor) when demand and budget are nearly equal.
STEP = 0.01
# How much faster it moves when they are far apart, and the largest step.
HASTE = 0.02
LARGEST = 0.1
# The range that float32 scores can resolve.
LEAST, MOST = 1e-12, 1e18
_WHOLE_WAY = float(math.ceil(math.log(MOST / LEAST)))


def moved(price: float, wanted: float, allowed: float) -> float:
    """The price after visits costing `wanted` were worth it and `allowed` was available."""
    if not allowed > 0.0:
        return price
    apart = math.log(max(wanted, 1e-9 * allowed) / allowed)
    size = min(STEP + HASTE * max(abs(apart) - 1.0, 0.0), LARGEST)
    return stepped(price, math.copysign(size, apart))


def stepped(price: float, by: float) -> float:
    """The price multiplied by exp(by); 0 (unknown) stays 0."""
    if price <= 0.0:
        return price
    # The factor alone may overflow: limit its logarithm.
    return min(max(price * math.exp(min(by, _WHOLE_WAY)), LEAST), MOST)
