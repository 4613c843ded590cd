"""The site comes first to which waiting would cost most: no site is left for the end with its good hours gone.

`sorted` and `hybrid` ask how idle a site is; this one asks what the site has instead of now. One that is idle all day
waits, one whose good hours are ending does not (ahead.py has the arithmetic). It wants the shortest crawl.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from crawler.schedulers import ahead
from crawler.schedulers.law import HOURS, in_range, nothing_open, open_sites

if TYPE_CHECKING:
    from crawler.schedulers import SiteView


class Regret:
    """Descending cost of waiting, by the hours that what is left of a site needs until the crawl can end.

    `horizon_hours`: how far ahead hours are looked for; None: to the crawl's end at its earliest, reckoned anew each
    time. `prices`: whether an hour that many sites want counts as dearer, of use where most share a night and
    forecasts are good. `trust`: in forecasts, 0 none to 1 all. `hysteresis`: a running site goes on until its score
    is this share below that of the last one that would get a slot.
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

    def score(self, view: SiteView) -> np.ndarray:
        """Cost of waiting over cost of now; sites that cannot wait stand above all others."""
        open_now = open_sites(view)
        if not open_now.any():
            return nothing_open(view)
        return ahead.index(view, open_now, self._outlook(view, open_now))

    def keep(self, view: SiteView, running: np.ndarray) -> np.ndarray:
        """Those that would get a slot again, or nearly."""
        return ahead.nearly_best(self.score(view), view.slots, running, self.hysteresis)

    def _outlook(self, view: SiteView, open_now: np.ndarray) -> ahead.Outlook:
        price, delay = np.ones(HOURS, np.float32), np.zeros(HOURS, np.float32)
        drawn = ahead.sample(view, open_now, self.trust)
        hours = self._hours(view, drawn, price)
        if self.prices and hours > 0:
            price = ahead.prices_of(view, drawn, hours, delay, scaled=True)
            hours = self._hours(view, drawn, price)
        return ahead.Outlook(ahead.times_until(hours), price, delay, self.trust)

    def _hours(self, view: SiteView, drawn: ahead.Sample, price: np.ndarray) -> float:
        """From this hour's end to the horizon."""
        if self.horizon_hours is None:
            return ahead.horizon_of(view, drawn, price)
        return max(0.0, self.horizon_hours - view.hour_left)


# ------------------------------------------------------------------------------------------------------------
# Pages soon and the crawl's end soon: `regret`, to which a page that waits costs something for each hour.
#
# `regret` alone cares for the end and puts off easy pages for it; `sorted` takes the easy ones first and pays at the
# end. Here both are weighed: a page that is fetched at the horizon counts as dearer by `weight` times what a page
# costs on average, one of now by nothing. Prices are needed then, or all sites would want the first hours.


# The most that lateness may count for: beyond it nothing else does.
MOST_WAITING = 1000


class Early:
    """Descending cost of waiting, in slot-hours and in lateness of pages.

    `weight`: what lateness counts for; 0 is `regret` with prices, 1 has a crawl 7 % longer than the shortest, 2 one of
    11 %, with pages sooner. `trust`, `hysteresis`: as there.
    """

    def __init__(
        self, weight: float = 2.0, trust: float = ahead.TRUST, hysteresis: float = ahead.HYSTERESIS
    ) -> None:
        self.weight = in_range("weight", weight, 0, MOST_WAITING)
        self.trust = in_range("trust", trust, 0, 1)
        self.hysteresis = in_range("hysteresis", hysteresis, 0, 1)

    def score(self, view: SiteView) -> np.ndarray:
        """Cost of waiting over cost of now; sites that cannot wait stand above all others."""
        open_now = open_sites(view)
        if not open_now.any():
            return nothing_open(view)
        return ahead.index(view, open_now, self._outlook(view, open_now))

    def keep(self, view: SiteView, running: np.ndarray) -> np.ndarray:
        """Those that would get a slot again, or nearly."""
        return ahead.nearly_best(self.score(view), view.slots, running, self.hysteresis)

    def _outlook(self, view: SiteView, open_now: np.ndarray) -> ahead.Outlook:
        drawn = ahead.sample(view, open_now, self.trust)
        hours = ahead.horizon_of(view, drawn, np.ones(HOURS, np.float32))
        delay = ahead.delays(hours) * (np.float32(self.weight) * ahead.mean_cost(drawn))
        price = ahead.prices_of(view, drawn, hours, delay, scaled=False)
        return ahead.Outlook(ahead.times_until(hours), price, delay, self.trust)
