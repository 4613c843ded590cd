"""What somebody else might plug in, named by dotted path: the contracts hold for these as for our own."""

from __future__ import annotations

import numpy as np

from crawler.agent.page import LoadedPage
from crawler.recheck.view import PageView
from crawler.schedulers import SiteView
from rankers.problem import Problem, Solution


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


class Scripts:
    """An attribute that no field is there for."""

    def process(self, page: LoadedPage) -> None:
        page.record.extra["scripts"] = {"many": page.body.lower().count(b"<script")}


def most_linked(problem: Problem) -> Solution:
    """A page counts as much as jumps and pages that link to it."""
    graph = problem.graph
    return Solution(problem.teleport + np.diff(graph.inner.start) + np.diff(graph.outer.start))


class SmallestFirst:
    """Pages that cost least, once they are a minute old."""

    priced = True

    def score(self, view: PageView) -> np.ndarray:
        worth = np.where(view.age >= 60, view.age, 0.0) - view.price * view.cost
        return worth.astype(np.float32)
