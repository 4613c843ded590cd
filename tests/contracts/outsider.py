"""What somebody else might plug in, named by dotted path: the contracts hold for these as for our own."""

from __future__ import annotations

import numpy as np

from crawler.agent.pages import LoadedPage
from crawler.schedulers import SiteView


class LongestFirst:
    """The site with most pages left comes first."""

    def score(self, view: SiteView) -> np.ndarray:
        open_now = view.ready & (view.remaining > 0)
        return np.where(open_now, view.remaining, np.float32(-np.inf)).astype(np.float32)

    def keep(self, view: SiteView, running: np.ndarray) -> np.ndarray:
        return view.ready[running]


class WithoutScripts:
    """Pages that consist of a script are left out of the results."""

    def process(self, page: LoadedPage) -> None:
        if page.body.lstrip().lower().startswith(b"<script"):
            page.record.outcome = "filtered"
