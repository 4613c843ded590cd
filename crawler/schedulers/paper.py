"""The order of listing, or shuffled by a seed: paper 000's first policy, the base line of all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from crawler.schedulers import SchedulerError
from crawler.schedulers.law import UNKNOWN, blocks, by_key, filled, load_now, open_sites

if TYPE_CHECKING:
    from crawler.schedulers import SiteView


class Random:
    """Unfinished, ready sites in the order of listing; `seed` not None shuffles them, the same way each time.

    A site's place in the shuffled order hangs on its number in the listing alone: sites that are found meanwhile or
    finished change no other's place.
    """

    def __init__(self, seed: int | None = None) -> None:
        if seed is not None and not isinstance(seed, int):
            raise SchedulerError(f"seed is {seed!r}; expected a whole number")
        self.seed = seed

    def score(self, view: SiteView) -> np.ndarray:
        """Earlier listed = higher; or by a number drawn from seed and listing."""
        open_now = open_sites(view)
        if self.seed is None:
            return by_key(np.zeros(len(open_now), np.uint8), view, open_now)
        return np.where(open_now, _shuffled(view.sequence, self.seed), np.float32(-np.inf))

    def keep(self, view: SiteView, running: np.ndarray) -> np.ndarray:  # noqa: ARG002 - part of the contract
        """All go on."""
        return np.ones(len(running), dtype=bool)


def _shuffled(sequence: np.ndarray, seed: int) -> np.ndarray:
    """float32 in 0 .. 1 for each number: SplitMix64, whose outputs are uniform for inputs that are not."""
    mixed = sequence.astype(np.uint64) + np.uint64((seed * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(40)).astype(np.float32) / np.float32(2**24)


# ------------------------------------------------------------------------------------------------------------
# Ascending load of this hour: paper 000's second policy.


class Sorted:
    """The site that is idlest now comes first; equal loads in the order of listing."""

    def score(self, view: SiteView) -> np.ndarray:
        """Lower load = higher; an unknown one counts as the mean of the site's known ones."""
        open_now = open_sites(view)
        return by_key(load_now(view), view, open_now)

    def keep(self, view: SiteView, running: np.ndarray) -> np.ndarray:  # noqa: ARG002 - part of the contract
        """All go on."""
        return np.ones(len(running), dtype=bool)


# ------------------------------------------------------------------------------------------------------------
# Paper 000's own policy: first the sites whose best hour this is, then the rest, each by ascending load.
#
# One column of its priority table (table.py has all 24). What the paper's step 5 compares when an hour begins is open
# to reading, so it is an option: the load of the new hour with that of the hour after it, with the least or with the
# mean of all later ones; a site whose new hour is the busier one is suspended.


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
            raise SchedulerError(f"keep is {keep!r}; expected one of {', '.join(READINGS)}")
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
