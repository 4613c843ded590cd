"""The one law from load to pace, and what else every policy asks of a view: which sites are open, in what order.

Hides how ten million rows are read without a second copy of them: in blocks, hours first, so that each step of numpy
is one long run over an hour. Promises what `SiteView` says: an unknown hour counts as the mean of the site's known
ones; a site none of whose hours are known is flat.
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
# Where a site none of whose hours are known stands among loads: in the middle, neither favoured nor put off.
MIDDLE = 127
# Rows of one block: temporary arrays of 24 hours stay in the processor's cache, and numpy's calls cost little each.
BLOCK = 8192


def open_sites(view: SiteView) -> np.ndarray:
    """Which sites may be worked on now and have pages left."""
    open_now: np.ndarray = view.ready & (view.remaining > 0)
    return open_now


def nothing_open(view: SiteView) -> np.ndarray:
    """The scores of a view without open sites."""
    return np.full(len(view.remaining), -np.inf, dtype=np.float32)


def in_range(name: str, value: float, low: float, high: float) -> float:
    """A policy's option, if it is within its bounds; SchedulerError else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise SchedulerError(f"{name} is {value!r}; expected a number from {low:g} to {high:g}")
    return value


def blocks(n: int) -> Iterator[slice]:
    """All rows, in order, a block at a time."""
    return (slice(start, min(start + BLOCK, n)) for start in range(0, n, BLOCK))


def pace(view: SiteView, rows: slice | np.ndarray = slice(None)) -> np.ndarray:
    """(n, 24) float32: pages per slot-hour of these rows, from now on."""
    return np.ascontiguousarray(pace_by_hour(view, rows).T)


def pace_by_hour(view: SiteView, rows: slice | np.ndarray) -> np.ndarray:
    """(24, n) float32: the same with a row for each hour, as it is reckoned with."""
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
    """(24, n) float32 of such uint8: unknown ones as the mean of the site's known ones, or MIDDLE."""
    unknown = loads == UNKNOWN
    mean = _mean_known(loads, unknown)
    mean[unknown.all(axis=0)] = MIDDLE
    return np.where(unknown, mean, loads.astype(np.float32))


def load_now(view: SiteView) -> np.ndarray:
    """(n,) uint8: this hour's load, 0 .. 254; an unknown one as `filled` says, rounded."""
    now = view.load[:, 0].copy()
    unknown = np.flatnonzero(now == UNKNOWN)
    for block in blocks(len(unknown)):
        rows = unknown[block]
        now[rows] = np.rint(filled(view.load[rows].T)[0])
    return now


def by_key(key: np.ndarray, view: SiteView, open_now: np.ndarray) -> np.ndarray:
    """Scores by ascending key (uint8 or uint16), equal ones in the order of listing; -inf where not open.

    The best has 0, the next -1 …: exact in float32 for 16 million sites; behind those neighbours tie.
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
    """Rows in the order of listing; None where they stand in it."""
    sequence = view.sequence
    if (sequence[1:] >= sequence[:-1]).all():
        return None
    return np.argsort(sequence)


def _stable(key: np.ndarray) -> np.ndarray:
    # Radix for these widths: linear, where sorting wider keys would not be.
    return np.argsort(key, kind="stable")


def _share(exponent: float) -> np.ndarray:
    """Of the pace at load 0, what is left at each load; 0 for the unknown one."""
    share = (1.0 - np.arange(256) / FULL).clip(0.0) ** exponent
    share[UNKNOWN] = 0.0
    return share.astype(np.float32)


def _mean_known(loads: np.ndarray, unknown: np.ndarray) -> np.ndarray:
    """Mean of each site's known loads; 0 where none is known."""
    known = HOURS - unknown.sum(axis=0, dtype=np.float32)
    total = loads.sum(axis=0, dtype=np.float32) - (HOURS - known) * UNKNOWN
    mean: np.ndarray = total / np.maximum(known, 1)
    return mean
