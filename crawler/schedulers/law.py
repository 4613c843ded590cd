"""Converts load to pace, and selects and orders open sites, for all policies.

Works in blocks, so that ten million rows need no second copy. An unknown hour counts as the mean of the site's known
ones; a site without known hours is flat.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from crawler.schedulers import SchedulerError

if TYPE_CHECKING:
    from crawler.schedulers import SiteView

HOURS = 24
FULL, UNKNOWN = 254, 255
# Load of sites without known hours, when ordering by load.
MIDDLE = 127
# Rows of one block: temporary arrays fit the CPU cache.
BLOCK = 8192


def open_sites(view: SiteView) -> np.ndarray:
    """Sites that may be crawled now and have pages left."""
    open_now: np.ndarray = view.ready & (view.remaining > 0)
    return open_now


def nothing_open(view: SiteView) -> np.ndarray:
    """The scores of a view without open sites."""
    return np.full(len(view.remaining), -np.inf, dtype=np.float32)


def in_range(name: str, value: float, low: float, high: float) -> float:
    """The option's value. Raises SchedulerError if it is out of bounds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise SchedulerError(f"{name} is {value!r}; expected a number from {low:g} to {high:g}")
    return value


def blocks(n: int) -> Iterator[slice]:
    """Slices of all rows, in order."""
    return (slice(start, min(start + BLOCK, n)) for start in range(0, n, BLOCK))


def pace(view: SiteView, rows: slice | np.ndarray = slice(None)) -> np.ndarray:
    """(n, 24) float32: pages per slot-hour of these rows, from now on."""
    return np.ascontiguousarray(pace_by_hour(view, rows).T)


def pace_by_hour(view: SiteView, rows: slice | np.ndarray) -> np.ndarray:
    """As `pace`, transposed: (24, n)."""
    loads = np.ascontiguousarray(view.load[rows].T)
    share: np.ndarray = _share(view.exponent)[loads]
    unknown = loads == UNKNOWN
    if unknown.any():
        mean = np.float32(1) - _mean_known(loads, unknown) / np.float32(FULL)
        share += unknown * mean ** np.float32(view.exponent)
    share *= view.pages_per_hour[rows]
    np.minimum(share, view.pace_cap[rows], out=share)
    return share


def filled(loads: np.ndarray) -> np.ndarray:
    """(24, n) float32 of such uint8: unknown hours get the site's mean, or MIDDLE."""
    unknown = loads == UNKNOWN
    mean = _mean_known(loads, unknown)
    mean[unknown.all(axis=0)] = MIDDLE
    return np.where(unknown, mean, loads.astype(np.float32))


def load_now(view: SiteView) -> np.ndarray:
    """(n,) uint8: this hour's load, 0 to 254, rounded."""
    now = view.load[:, 0].copy()
    unknown = np.flatnonzero(now == UNKNOWN)
    for block in blocks(len(unknown)):
        rows = unknown[block]
        now[rows] = np.rint(filled(view.load[rows].T)[0])
    return now


def by_key(key: np.ndarray, view: SiteView, open_now: np.ndarray) -> np.ndarray:
    """Scores by ascending key (uint8 or uint16), then order of listing; 0 for the best, then -1 …; -inf if not open.

    Neighbours tie beyond 16 million sites (float32).
    """
    listed = in_order_of_listing(view)
    score = np.full(len(key), -np.inf, dtype=np.float32)
    best_first = _stable(key if listed is None else key[listed])
    if listed is not None:
        best_first = listed[best_first]
    best_first = best_first[open_now[best_first]]
    score[best_first] = -np.arange(len(best_first), dtype=np.float32)
    return score


def in_order_of_listing(view: SiteView) -> np.ndarray | None:
    """Rows in the order of listing; None if they already are."""
    sequence = view.sequence
    if (sequence[1:] >= sequence[:-1]).all():
        return None
    return np.argsort(sequence)


def _stable(key: np.ndarray) -> np.ndarray:
    # Radix sort for these widths: linear.
    return np.argsort(key, kind="stable")


def _share(exponent: float) -> np.ndarray:
    share = (1.0 - np.arange(256) / FULL).clip(0.0) ** exponent
    share[UNKNOWN] = 0.0
    return share.astype(np.float32)


def _mean_known(loads: np.ndarray, unknown: np.ndarray) -> np.ndarray:
    known = HOURS - unknown.sum(axis=0, dtype=np.float32)
    total = loads.sum(axis=0, dtype=np.float32) - (HOURS - known) * UNKNOWN
    mean: np.ndarray = total / np.maximum(known, 1)
    return mean
