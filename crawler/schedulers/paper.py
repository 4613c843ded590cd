"""The policies of paper 000; `random` is the baseline of all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from crawler.schedulers import SchedulerError
from crawler.schedulers.law import UNKNOWN, blocks, by_key, filled, load_now, open_sites

if TYPE_CHECKING:
    from crawler.schedulers import SiteView


class Random:
    """Order of listing; a `seed` shuffles it. A site's place depends on seed and listing number alone."""

    def __init__(self, seed: int | None = None) -> None:
        if seed is not None and not isinstance(seed, int):
            raise SchedulerError(f"seed is {seed!r}; expected an integer")
        self.seed = seed

    def score(self, view: SiteView) -> np.ndarray:
        """Earlier listed = higher, or by shuffled number."""
        open_now = open_sites(view)
        if self.seed is None:
            return by_key(np.zeros(len(open_now), np.uint8), view, open_now)
        return np.where(open_now, _shuffled(view.sequence, self.seed), np.float32(-np.inf))

    def keep(self, view: SiteView, running: np.ndarray) -> np.ndarray:  # noqa: ARG002 - part of the contract
        """All continue."""
        return np.ones(len(running), dtype=bool)


def _shuffled(sequence: np.ndarray, seed: int) -> np.ndarray:
    mixed = sequence.astype(np.uint64) + np.uint64((seed * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(40)).astype(np.float32) / np.float32(2**24)


# --- Ascending load of this hour: the second policy ---


class Sorted:
    """Lowest load now comes first; equal loads in the order of listing."""

    def score(self, view: SiteView) -> np.ndarray:
        """Lower load = higher; unknown loads count as the site's mean."""
        open_now = open_sites(view)
        return by_key(load_now(view), view, open_now)

    def keep(self, view: SiteView, running: np.ndarray) -> np.ndarray:  # noqa: ARG002 - part of the contract
        """All continue."""
        return np.ones(len(running), dtype=bool)


# --- The paper's own policy ---
# One column of its priority table (table.py). Step 5, at the start of an hour, is ambiguous in the paper, so its
# reading is an option.


# Reading of step 5 -> load to compare the new hour's with, from the loads of the 23 later hours, (23, m).
READINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "none": lambda later: np.full(later.shape[1], np.inf, np.float32),
    "next": lambda later: later[0],
    "min": lambda later: later.min(axis=0),
    "mean": lambda later: later.mean(axis=0),
}
# Added to the load of sites that have a better hour later.
REST = 256


class Hybrid:
    """Sites in their best hour first, then the rest; each by load, then by order of listing.

    `keep` suspends a site if its load now exceeds: nothing (`none`), the next hour's (`next`), the least (`min`) or the
    mean (`mean`) of later hours.
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
        """Sites whose load does not exceed the compared one."""
        open_now = open_sites(view)
        kept: np.ndarray = open_now[running]
        for block in blocks(len(running)):
            loads = filled(view.load[running[block]].T)
            kept[block] &= loads[0] <= self.compared(loads[1:])
        return kept


def in_best_hour(view: SiteView) -> np.ndarray:
    """(n,) bool: no later hour is known to be less loaded; False if all hours are equal."""
    best = np.zeros(len(view.load), dtype=bool)
    for block in blocks(len(best)):
        loads = np.ascontiguousarray(view.load[block].T)
        best[block] = loads[0] == loads.min(axis=0)
    rows = np.flatnonzero(best)
    for block in blocks(len(rows)):
        loads = view.load[rows[block]].T
        best[rows[block]] = np.where(loads == UNKNOWN, 0, loads).max(axis=0) > loads[0]
    return best
