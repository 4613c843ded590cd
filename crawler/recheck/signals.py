"""Quality of a host's signals (sitemap lastmod, feeds, pings): recall, and false signals per change.

Recall is estimated from pages without a signal: do they change less often than expected? It starts at 0.
"""

from __future__ import annotations

import numpy as np

from crawler.recheck import value
from crawler.recheck.compiling import compiled

# Prior: unsignalled changes of a host.
DOUBT = 8.0
# Share found for uninformative signals: pages that change often have more signals, so those without change less
# often in any case.
CHANCE = 0.15
# Prior: false signals and expected changes.
FIRST_FALSE = 1.0


@compiled
def recall(expected: float, silent: float) -> float:
    """Share of changes that are signalled, 0 to 1."""
    seen = 1.0 - (silent + DOUBT) / (expected + DOUBT)
    return min(max((seen - CHANCE) / (1.0 - CHANCE), 0.0), 1.0)


@compiled
def false_share(false: float, expected: float) -> float:
    """False signals for each change."""
    return (false + FIRST_FALSE) / (expected + FIRST_FALSE)


@compiled
def judge(seen: np.ndarray, host: int, signals: int, age: float, changed: bool, a: float, b: float) -> None:
    """Records one visit in seen[host]; a and b are the estimate before it.

    Columns: expected and actual changes without a signal; false signals and expected changes without a change.
    """
    if signals == 0:
        same = value.current(a, b, age)
        seen[host, 0] = float(seen[host, 0]) + (1.0 - same) * same
        seen[host, 1] = float(seen[host, 1]) + (same if changed else 0.0)
    if not changed:
        seen[host, 2] = float(seen[host, 2]) + signals
        seen[host, 3] = float(seen[host, 3]) + a / (b + age) * age
