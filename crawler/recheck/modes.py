"""The named modes, as coefficients of the formula in law.py.

The first four are priced. The others reproduce papers and other crawlers, for comparison; they visit the best scores.
"""

from __future__ import annotations

from crawler.recheck.law import Law

# Freshness weighted by importance: unimportant pages may wait for the longest interval.
IMPORTANCE = Law(visit=1.0)

# Freshness, all pages equal.
FRESHNESS = Law(visit=1.0, flatten=1.0)

# Least mean time since the last visit; intervals grow with the square root of the cost.
STALENESS = Law(stale=1.0)

# Half importance, half equal, some staleness so that no page waits long. Better than the paper's rule in staleness,
# in freshness with and without importance, and in copies' age. benchmarks/recrawl.py
DEFAULT = Law(visit=1.0, flatten=0.5, stale_by_rate=0.14)

# Paper 004: the largest (T - t) * s - p * g, in its periods.
PAPER = Law(priced=False, linear=1.0, ahead=True, own_price=1.0)

# Longest wait first.
ROUND_ROBIN = Law(priced=False, linear=1.0)

# Visits in proportion to the change rate.
CHANGE_FREQUENCY = Law(priced=False, linear=1.0, rate_power=1.0)

# Visits in proportion to importance.
IMPORTANCE_PROPORTIONAL = Law(priced=False, linear=1.0, weight_power=1.0)
