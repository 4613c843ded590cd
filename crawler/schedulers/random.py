"""The order of listing, or shuffled by a seed: paper 000's first policy, the base line of all others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from crawler.schedulers import SchedulerError
from crawler.schedulers.law import by_key, open_sites

if TYPE_CHECKING:
    from crawler.schedulers import SiteView


class Random:
    """Unfinished, ready sites in the order of listing; `seed` not None shuffles them, the same way each time.

    A site's place in the shuffled order hangs on its number in the listing alone: sites that are found meanwhile or
    finished change no other's place.
    """

    def __init__(self, seed: int | None = None) -> None:
        if seed is not None and not isinstance(seed, int):
            raise SchedulerError(f"seed is {seed!r}; wanted a whole number")
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
