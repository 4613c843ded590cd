"""Ascending load of this hour: paper 000's second policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from crawler.schedulers import SiteView

UNKNOWN = 255


class Sorted:
    """The site that is idlest now comes first; equal and unknown loads in the order of listing."""

    def score(self, view: SiteView) -> np.ndarray:
        """Lower load = higher; an unknown load counts as the middle."""
        now = view.load[:, 0].astype(np.float32) if len(view.load) else np.zeros(0, np.float32)
        now[now == UNKNOWN] = 127.0
        rank = np.empty(len(now), dtype=np.float32)
        rank[np.lexsort((view.sequence, now))] = np.arange(len(now), dtype=np.float32)
        return np.where(view.ready & (view.remaining > 0), -rank, np.float32(-np.inf))

    def keep(self, view: SiteView, running: np.ndarray) -> np.ndarray:  # noqa: ARG002 - part of the contract
        """All go on."""
        return np.ones(len(running), dtype=bool)
