"""WHAT A HOST'S SIGNALS ARE WORTH: share of changes that it tells of, and how many it tells of that were none.

A signal is any word from outside that a page has changed: lastmod in a sitemap, an entry in a feed, a ping. Each visit
judges the signals since the last one against what was believed of the page without them. Recall comes from silence: of
a host that signals most changes, pages without a signal have changed less often than believed. So a host whose signals
say nothing is found to say nothing, however many they are, and none is believed before that is seen (DOUBT). False
signals are counted for each change that is expected of a page, since pages that change often are signalled in vain more
often too; a host that stamps all its pages anew each night has so many that a signal weighs nothing.
"""

from __future__ import annotations

import numpy as np

from crawler.recheck import value
from crawler.recheck.compiling import compiled

# Changes without a signal that a host begins with.
DOUBT = 8.0
# Share that shows where signals say nothing: pages that change often have more of them, so silent ones change less
# often than believed in any case.
CHANCE = 0.15
# False signals, and changes expected, that it begins with.
FIRST_FALSE = 1.0


@compiled
def recall(expected: float, silent: float) -> float:
    """Share of changes that are signalled, from 0 to 1."""
    seen = 1.0 - (silent + DOUBT) / (expected + DOUBT)
    return min(max((seen - CHANCE) / (1.0 - CHANCE), 0.0), 1.0)


@compiled
def false_share(false: float, expected: float) -> float:
    """False signals for each change."""
    return (false + FIRST_FALSE) / (expected + FIRST_FALSE)


@compiled
def judge(seen: np.ndarray, host: int, signals: int, age: float, changed: bool, a: float, b: float) -> None:
    """One visit, into seen[host]; a and b are what was believed before it.

    Of visits without a signal: changes that were to be expected, and that were; those that were nearly sure say little
    and count for as little. Of visits without a change: signals, and changes to be expected in that time.
    """
    if signals == 0:
        same = value.current(a, b, age)
        seen[host, 0] = float(seen[host, 0]) + (1.0 - same) * same
        seen[host, 1] = float(seen[host, 1]) + (same if changed else 0.0)
    if not changed:
        seen[host, 2] = float(seen[host, 2]) + signals
        seen[host, 3] = float(seen[host, 3]) + a / (b + age) * age
