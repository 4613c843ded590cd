"""Ascending load of this hour: paper 000's second policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from crawler.schedulers.law import by_key, load_now, open_sites

if TYPE_CHECKING:
    from crawler.schedulers import SiteView


class Sorted:
    """The site that is idlest now comes first; equal loads in the order of listing."""

    def score(self, view: SiteView) -> np.ndarray:
        """Lower load = higher; an unknown one counts as the mean of the site's known ones."""
        open_now = open_sites(view)
        return by_key(load_now(view), view, open_now)

    def keep(self, view: SiteView, running: np.ndarray) -> np.ndarray:  # noqa: ARG002 - part of the contract
        """All go on."""
        return np.ones(len(running), dtype=bool)
