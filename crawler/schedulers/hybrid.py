"""Paper 000's own policy: first the sites whose best hour this is, then the rest, each by ascending load.

One column of its priority table (table.py has all 24). What the paper's step 5 compares when an hour begins is open
to reading, so it is an option: the load of the new hour with that of the hour after it, with the least or with the
mean of all later ones; a site whose new hour is the busier one is suspended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from crawler.schedulers import SchedulerError
from crawler.schedulers.law import UNKNOWN, blocks, by_key, filled, load_now, open_sites

if TYPE_CHECKING:
    from crawler.schedulers import SiteView

# Reading of step 5 -> from the loads of the 23 later hours, (23, m), what the new hour's load is compared with.
READINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "none": lambda later: np.full(later.shape[1], np.inf, np.float32),
    "next": lambda later: later[0],
    "min": lambda later: later.min(axis=0),
    "mean": lambda later: later.mean(axis=0),
}
# Added to the load of a site whose best hour is another one: behind all whose best hour this is.
REST = 256


class Hybrid:
    """Sites in their best hour first, by load; then the rest by load; equal ones in the order of listing.

    `keep`: the reading of step 5. `none` suspends nothing, `next` compares with the next hour, `min` with the idlest
    later hour, `mean` with the mean of the later ones.
    """

    def __init__(self, keep: str = "min") -> None:
        if keep not in READINGS:
            raise SchedulerError(f"keep is {keep!r}; wanted one of {', '.join(READINGS)}")
        self.compared = READINGS[keep]

    def score(self, view: SiteView) -> np.ndarray:
        """One column of the table."""
        open_now = open_sites(view)
        key = load_now(view).astype(np.uint16)
        key[~in_best_hour(view)] += REST
        return by_key(key, view, open_now)

    def keep(self, view: SiteView, running: np.ndarray) -> np.ndarray:
        """Whether this hour is no busier than what it is compared with."""
        open_now = open_sites(view)
        kept: np.ndarray = open_now[running]
        for block in blocks(len(running)):
            loads = filled(view.load[running[block]].T)
            kept[block] &= loads[0] <= self.compared(loads[1:])
        return kept


def in_best_hour(view: SiteView) -> np.ndarray:
    """(n,) bool: whether no hour is known to be idler than this one. A site to which all are alike has no best."""
    best = np.zeros(len(view.load), dtype=bool)
    for block in blocks(len(best)):
        loads = np.ascontiguousarray(view.load[block].T)
        best[block] = loads[0] == loads.min(axis=0)
    rows = np.flatnonzero(best)
    for block in blocks(len(rows)):
        loads = view.load[rows[block]].T
        best[rows[block]] = np.where(loads == UNKNOWN, 0, loads).max(axis=0) > loads[0]
    return best
