"""The exact optimum of an instance: the shortest crawl that any policy could make of it, by linear programming.

x[i, h] is the slot time that site i gets in hour h: at most the hour, at most all slots together, enough for all its
pages; the last hour's length is what is minimised. Any such x can be run on that many slots with no site on two at
once, by McNaughton's rule, so with free suspension this is the optimum and not only a bound. Outages are known to it,
each as a share of its hour that is lost; there it is a bound, to a part of an hour.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from benchmarks.simulator.instances import HOURS, Instance

# Below this the last hour is not needed at all.
NOTHING = 1e-7


def optimum(instance: Instance, reached: float) -> float:
    """Hours of the shortest crawl; `reached` is what some policy made of it."""
    hours = int(np.ceil(reached))
    last = _last_hour(instance, hours)
    while last is not None and last <= NOTHING and hours > 1:
        hours -= 1
        last = _last_hour(instance, hours)
    if last is None:
        return float(hours)
    return hours - 1 + last


def _last_hour(instance: Instance, hours: int) -> float | None:
    """The shortest last of so many hours; None where they do not suffice."""
    n, slots = len(instance.size), instance.case.slots
    up = _up(instance, hours)
    pace = instance.pace[:, np.arange(hours) % HOURS]
    # Columns: x by site and hour, then the last hour's length.
    columns = n * hours + 1
    site, column = np.repeat(np.arange(n), hours), np.arange(n * hours)
    pages = sparse.csr_matrix((-pace.ravel(), (site, column)), (n, columns))
    used = sparse.csr_matrix((np.ones(n * hours), (column % hours, column)), (hours, columns)).tolil()
    used[hours - 1, columns - 1] = -slots
    ends = np.arange(n) * hours + hours - 1
    inside = sparse.csr_matrix(
        (
            np.r_[np.ones(n), -up[:, -1]],
            (np.r_[np.arange(n), np.arange(n)], np.r_[ends, np.full(n, columns - 1)]),
        ),
        (n, columns),
    )
    bounds = np.r_[np.c_[np.zeros(n * hours), up.ravel()], [[0.0, 1.0]]]
    found = linprog(
        np.r_[np.zeros(n * hours), 1.0],
        A_ub=sparse.vstack([pages, used.tocsr(), inside]).tocsr(),
        b_ub=np.r_[-instance.size, np.full(hours - 1, float(slots)), 0.0, np.zeros(n)],
        bounds=bounds,
        method="highs",
    )
    return float(found.x[-1]) if found.status == 0 else None


def _up(instance: Instance, hours: int) -> np.ndarray:
    """(n, hours): share of each hour in which the site answers."""
    up = np.ones((len(instance.size), hours))
    begins = np.arange(hours)
    for site, outages in enumerate(instance.outages):
        for down, back in outages:
            up[site] -= np.clip(np.minimum(back, begins + 1) - np.maximum(down, begins), 0, None)
    return up.clip(0, 1)
