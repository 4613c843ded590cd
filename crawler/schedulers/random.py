"""The order of listing, or shuffled by a seed: paper 000's first policy, the base line of all others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from crawler.schedulers import SiteView


class Random:
    """Unfinished, ready sites in the order of listing; `seed` not None shuffles them, the same way each time."""

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed

    def score(self, view: SiteView) -> np.ndarray:
        """Earlier listed = higher."""
        order = np.argsort(np.argsort(view.sequence, kind="stable"), kind="stable")
        if self.seed is not None:
            order = np.random.default_rng(self.seed).permutation(len(order))[order]
        return np.where(view.ready & (view.remaining > 0), -order.astype(np.float32), np.float32(-np.inf))

    def keep(self, view: SiteView, running: np.ndarray) -> np.ndarray:  # noqa: ARG002 - part of the contract
        """All go on."""
        return np.ones(len(running), dtype=bool)
