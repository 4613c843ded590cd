"""Updates the estimates after visits."""

from __future__ import annotations

import math

import numpy as np

from crawler.recheck import rates, signals
from crawler.recheck.columns import BLOCK, Hosts, Rows, touch
from crawler.recheck.compiling import compiled


@compiled
def learn(
    rows: np.ndarray,
    hosts_of: np.ndarray,
    page: Rows,
    host: Hosts,
    mean: np.ndarray,
    now: float,
    changed: np.ndarray,
    since: np.ndarray,
) -> None:
    """One visit per row, in order; `since`: seconds since the page last changed, NaN: unknown."""
    sums = np.empty(1)
    for i in range(len(rows)):
        if i % BLOCK == 0:
            touch(rows[i : i + BLOCK], hosts_of[i : i + BLOCK], page, host, sums)
        row, h = rows[i], hosts_of[i]
        age = max(now - float(page.last[row]), 0.0)
        a, b = float(page.shape[row]), float(page.time[row])
        if a == 0.0:
            a, b = rates.PRIOR_SHAPE, rates.PRIOR_SHAPE * math.exp(-float(mean[0]) - float(host.offset[h]))
            rates.learn_first(mean, host.offset, host.information, h, age, changed[i])
        signals.judge(host.seen, h, int(page.signals[row]), age, changed[i], a, b)
        page.shape[row], page.time[row] = rates.learned(a, b, age, changed[i], float(since[i]))
        page.last[row] = now
        page.signals[row] = 0
        page.fails[row] = 0
