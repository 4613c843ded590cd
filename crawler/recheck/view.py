"""What a mode sees: some pages at one moment and price."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from crawler.recheck import rates, signals
from crawler.recheck.columns import Hosts, Rows


@dataclass(frozen=True)
class PageView:
    """m pages, at `rows` of the complete columns, which must not be written."""

    rows: np.ndarray  # (m,) int64: the pages' rows in the columns
    host: np.ndarray  # (m,) int64: of each of them
    columns: Rows
    hosts: Hosts
    now: float  # seconds, on the scale of columns.last
    seconds_per_byte: np.ndarray  # (hosts,) float64: of a slot, at this hour
    price: float  # value of a second of a slot
    period: float  # of paper 004, seconds
    ahead: float  # its T - t: periods to the horizon, 1 or more
    mean_rate: float  # changes a second, mean of all pages
    longest: float  # seconds after which a page is visited, whatever it is worth

    @property
    def age(self) -> np.ndarray:
        """Seconds since each page's last visit, halved for each failure."""
        age = np.maximum(self.now - self.columns.last[self.rows], 0.0)
        halved: np.ndarray = age * 0.5 ** self.columns.fails[self.rows]
        return halved

    @property
    def rate(self) -> np.ndarray:
        """Estimated changes per second of each page."""
        a, b = self.belief
        mean: np.ndarray = a / b
        return mean

    @property
    def belief(self) -> tuple[np.ndarray, np.ndarray]:
        """Shape and scale of each page's estimated change rate."""
        a = self.columns.shape[self.rows].astype(np.float64)
        b = self.columns.time[self.rows].astype(np.float64)
        prior = rates.PRIOR_SHAPE / self.mean_rate * np.exp(-self.hosts.offset[self.host])
        unseen = a == 0
        return np.where(unseen, rates.PRIOR_SHAPE, a), np.where(unseen, prior, b)

    @property
    def weight(self) -> np.ndarray:
        """Weight of each page, 1 on average."""
        weight: np.ndarray = self.columns.weight[self.rows]
        return weight

    @property
    def cost(self) -> np.ndarray:
        """Slot seconds that each visit takes if the page has changed."""
        found: np.ndarray = self.columns.size[self.rows] * self.seconds_per_byte[self.host]
        return found

    def recall(self, host: int) -> float:
        """Share of its changes that a host signals."""
        return float(signals.recall(*self.hosts.seen[host, :2]))
