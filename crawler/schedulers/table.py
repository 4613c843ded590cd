"""The hour table of paper 000: which sites come first in each of the next 24 hours."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from crawler.schedulers.law import HOURS

if TYPE_CHECKING:
    from crawler.schedulers import SiteScheduler, SiteView


def hours(
    view: SiteView, scheduler: SiteScheduler, top: int | None = None, is_open: np.ndarray | None = None
) -> list[list[int]]:
    """24 columns, column 0 = now: at most `top` rows of the view, best first.

    Each column is the policy's order if that hour began with the sites as they are now. `is_open` (n, 24): sites that
    are ready in each hour; None: as now.
    """
    ready = np.repeat(view.ready[:, None], HOURS, axis=1) if is_open is None else is_open
    return [_column(view, scheduler, hour, top, ready[:, hour]) for hour in range(HOURS)]


def _column(
    view: SiteView, scheduler: SiteScheduler, hour: int, top: int | None, ready: np.ndarray
) -> list[int]:
    load = np.roll(view.load, -hour, axis=1)
    load.flags.writeable = False
    seen = view if hour == 0 else replace(view, load=load, ready=ready.copy(), hour_left=1.0)
    score = scheduler.score(seen)
    best = np.argsort(-score, kind="stable")[:top]
    rows: list[int] = best[np.isfinite(score[best])].tolist()
    return rows
