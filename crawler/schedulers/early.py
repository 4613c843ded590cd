"""Pages soon and the crawl's end soon: `regret`, to which a page that waits costs something for each hour.

`regret` alone cares for the end and puts off easy pages for it; `sorted` takes the easy ones first and pays at the
end. Here both are weighed: a page that is fetched at the horizon counts as dearer by `weight` times what a page costs
on average, one of now by nothing. Prices are needed then, or all sites would want the first hours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from crawler.schedulers import ahead
from crawler.schedulers.law import HOURS, in_range, nothing_open, open_sites

if TYPE_CHECKING:
    from crawler.schedulers import SiteView

# The most that lateness may count for: beyond it nothing else does.
MOST = 1000


class Early:
    """Descending cost of waiting, in slot-hours and in lateness of pages.

    `weight`: what lateness counts for; 0 is `regret` with prices, 1 has a crawl 7 % longer than the shortest, 2 one of
    11 %, with pages sooner. `trust`, `hysteresis`: as there.
    """

    def __init__(
        self, weight: float = 2.0, trust: float = ahead.TRUST, hysteresis: float = ahead.HYSTERESIS
    ) -> None:
        self.weight = in_range("weight", weight, 0, MOST)
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
