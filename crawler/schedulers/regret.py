"""Sites first to which waiting would cost most (ahead.py). Aims at the shortest crawl.

A site that is idle all day waits; one whose good hours end does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from crawler.schedulers import ahead
from crawler.schedulers.law import HOURS, in_range, nothing_open, open_sites

if TYPE_CHECKING:
    from crawler.schedulers import SiteView


class _ByOutlook:
    """Scores by what waiting costs, as an outlook on the next hours says."""

    hysteresis: float

    def score(self, view: SiteView) -> np.ndarray:
        """Cost of waiting over cost of now; sites that cannot wait score above all others."""
        open_now = open_sites(view)
        if not open_now.any():
            return nothing_open(view)
        return ahead.index(view, open_now, self._outlook(view, open_now))

    def keep(self, view: SiteView, running: np.ndarray) -> np.ndarray:
        """Sites that would get a slot again, or nearly."""
        return ahead.nearly_best(self.score(view), view.slots, running, self.hysteresis)

    def _outlook(self, view: SiteView, open_now: np.ndarray) -> ahead.Outlook:
        raise NotImplementedError


class Regret(_ByOutlook):
    """Descending cost of waiting, relative to the cost of now.

    `horizon_hours`: how far to look ahead; None: to the earliest end of the crawl. `prices`: raise the price of hours
    that many sites need. `trust`: in forecasts, 0 to 1. `hysteresis`: a running site continues until its score is this
    share below the last one that would get a slot.
    """

    def __init__(
        self,
        horizon_hours: float | None = None,
        prices: bool = False,
        trust: float = ahead.TRUST,
        hysteresis: float = ahead.HYSTERESIS,
    ) -> None:
        if horizon_hours is not None:
            in_range("horizon_hours", horizon_hours, 0, ahead.FURTHEST)
        self.horizon_hours = horizon_hours
        self.prices = prices
        self.trust = in_range("trust", trust, 0, 1)
        self.hysteresis = in_range("hysteresis", hysteresis, 0, 1)

    def _outlook(self, view: SiteView, open_now: np.ndarray) -> ahead.Outlook:
        price, delay = np.ones(HOURS, np.float32), np.zeros(HOURS, np.float32)
        drawn = ahead.sample(view, open_now, self.trust)
        hours = self._hours(view, drawn, price)
        if self.prices and hours > 0:
            price = ahead.prices_of(view, drawn, hours, delay, scaled=True)
            hours = self._hours(view, drawn, price)
        return ahead.Outlook(ahead.times_until(hours), price, delay, self.trust)

    def _hours(self, view: SiteView, drawn: ahead.Sample, price: np.ndarray) -> float:
        # From the end of this hour to the horizon.
        if self.horizon_hours is None:
            return ahead.horizon_of(view, drawn, price)
        return max(0.0, self.horizon_hours - view.hour_left)


# --- `regret` with a cost for each hour that a page waits ---
# `regret` puts off easy pages for an early end; `sorted` fetches them first and pays at the end. `early` weighs both.
# It always uses prices, or all sites would need the first hours.


# Maximum weight of lateness: above it nothing else counts.
MOST_WAITING = 1000


class Early(_ByOutlook):
    """Descending cost of waiting, in slot-hours and in lateness of pages.

    `weight` of lateness: 0 is `regret` with prices; 1 makes crawls 7 % longer than the shortest, 2 11 %, with pages
    sooner. `trust`, `hysteresis`: as there.
    """

    def __init__(
        self, weight: float = 2.0, trust: float = ahead.TRUST, hysteresis: float = ahead.HYSTERESIS
    ) -> None:
        self.weight = in_range("weight", weight, 0, MOST_WAITING)
        self.trust = in_range("trust", trust, 0, 1)
        self.hysteresis = in_range("hysteresis", hysteresis, 0, 1)

    def _outlook(self, view: SiteView, open_now: np.ndarray) -> ahead.Outlook:
        drawn = ahead.sample(view, open_now, self.trust)
        hours = ahead.horizon_of(view, drawn, np.ones(HOURS, np.float32))
        delay = ahead.delays(hours) * (np.float32(self.weight) * ahead.mean_cost(drawn))
        price = ahead.prices_of(view, drawn, hours, delay, scaled=False)
        return ahead.Outlook(ahead.times_until(hours), price, delay, self.trust)
