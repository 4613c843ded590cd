"""The modes that have names, each as figures of the one formula (law.py).

The first four are ours and priced. The others are what papers and other crawlers do, to be compared with: they take
the best, whatever its score. Weights are importances, 1 on average.
"""

from __future__ import annotations

from crawler.recheck.law import Law

# Freshness weighted by importance alone: unimportant pages may wait for the longest interval.
IMPORTANCE = Law(visit=1.0)

# Freshness, every page alike.
FRESHNESS = Law(visit=1.0, flatten=1.0)

# The mean time since the last visit, as little as the budget allows: its intervals go with the root of the cost.
STALENESS = Law(stale=1.0)

# Half importance, half all alike, and some staleness, so that no page waits long: better than the paper's rule in
# staleness, in freshness with and without importance, and in the age of copies at once. benchmarks/recrawl.py
DEFAULT = Law(visit=1.0, flatten=0.5, stale_by_rate=0.14)

# Paper 004: those with the largest (T - t) * s - p * g, in its periods.
PAPER = Law(priced=False, linear=1.0, ahead=True, own_price=1.0)

# Who waited longest.
ROUND_ROBIN = Law(priced=False, linear=1.0)

# As often as it changes, in proportion.
CHANGE_FREQUENCY = Law(priced=False, linear=1.0, rate_power=1.0)

# As often as it is important, in proportion.
IMPORTANCE_PROPORTIONAL = Law(priced=False, linear=1.0, weight_power=1.0)
