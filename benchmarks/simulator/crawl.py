"""One simulated crawl: slots, sites and a scheduler that is asked when an hour begins, as the planner asks it.

Time is continuous inside an hour: a slot that ends its site takes the next of the hour's list at once. When an hour
begins, the policy says which running sites go on (`keep`) and orders all others (`score`); a suspended site stands in
the new list like any other, so no slot idles while a site is left. A site's pace changes with the hour. One slot
works on a site at a time. Where slots have no endless patience, a site that is out rests until it answers again, and is
then due before all others.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from benchmarks.simulator.instances import HOURS, Instance
from crawler.schedulers import SiteScheduler, SiteView

# Of a site of unknown size: what is thought to be left is at least this share of what is done.
LEAST_LEFT = 0.3
# A crawl that takes longer is a fault of the policy.
MOST_HOURS = 2000
DONE = 1e-9


@dataclass
class Crawl:
    """What came of it. Hours since its start; pages in mean sizes of a site."""

    finish: float = 0.0
    page_time: float = 0.0  # mean over pages
    starts: int = 0  # how often a slot took up a site
    pages: list[float] = field(default_factory=list)  # in each hour of the instance


def crawl(instance: Instance, policy: SiteScheduler, start: float = 0.0) -> Crawl:
    """Until the last page; it begins when so many of the instance's hours are over."""
    return _Running(instance, policy, start).crawl()


class _Running:
    """The state of one crawl."""

    def __init__(self, instance: Instance, policy: SiteScheduler, start: float) -> None:
        self.instance, self.policy, self.start = instance, policy, start
        self.pace = instance.pace
        self.left = instance.size.copy()
        self.slots: list[int] = []  # sites at work
        self.resting: list[tuple[float, int]] = []  # a heap: when they answer again, sites that were left
        self.told = Crawl()
        self.page_hours = 0.0

    def crawl(self) -> Crawl:
        hour = int(self.start)
        self.told.pages = [0.0] * hour
        while (self.left > 0).any():
            if hour >= MOST_HOURS:
                raise RuntimeError(f"{type(self.policy).__name__} has not ended after {MOST_HOURS} hours")
            self._hour(hour)
            hour += 1
        self.told.page_time = self.page_hours / float(self.instance.size.sum()) - self.start
        self.told.finish -= self.start
        return self.told

    def _hour(self, hour: int) -> None:
        begin = max(float(hour), self.start)
        view = self._view(hour, hour + 1 - begin)
        running = np.array(self.slots, dtype=np.int64)
        kept = running[self.policy.keep(view, running)]
        score = self.policy.score(view)
        self.resting = [(up, site) for up, site in self.resting if up > hour]
        heapq.heapify(self.resting)
        score[kept] = -np.inf
        order = np.argsort(-score, kind="stable")
        waiting = iter(order[np.isfinite(score[order])].tolist())
        self.told.pages.append(0.0)
        at_work = set(self.slots)
        ends = [(self._work(site, hour, float(hour)), site) for site in kept.tolist()]
        free = [begin] * (self.instance.case.slots - len(ends))
        self.slots = []
        heap = [(at, -1) for at in free] + ends
        heapq.heapify(heap)
        while heap:
            at, site = heapq.heappop(heap)
            if at >= hour + 1:
                if site >= 0 and self.left[site] > 0:
                    self.slots.append(site)
                continue
            at, new = self._next(at, hour, waiting)
            if new >= 0:
                self.told.starts += new not in at_work
                at = self._work(new, hour, at)
            heapq.heappush(heap, (at, new))

    def _next(self, at: float, hour: int, waiting: Iterator[int]) -> tuple[float, int]:
        """What a free slot takes, and when: a site whose rest is over goes first; -1 and the hour's end for none."""
        if self.resting and self.resting[0][0] <= at:
            return at, heapq.heappop(self.resting)[1]
        new = next(waiting, -1)
        if new >= 0:
            return at, new
        if self.resting and self.resting[0][0] < hour + 1:
            return heapq.heappop(self.resting)
        return hour + 1.0, -1

    def _work(self, site: int, hour: int, at: float) -> float:
        """Fetch until the site, the hour or patience ends; when that is. Patience does not outlive the hour."""
        pace, end = float(self.pace[site, hour % HOURS]), hour + 1.0
        for down, up in [*self.instance.outages[site], (np.inf, np.inf)]:
            if up <= at:
                continue
            until = max(at, min(down, end))
            needed = self.left[site] / pace
            if needed <= until - at + DONE:
                return self._fetched(site, hour, at, at + needed, pace, last=True)
            at = self._fetched(site, hour, at, until, pace)
            if at >= end:
                break
            if min(up, end) - at > self.instance.case.patience_hours:
                at += self.instance.case.patience_hours
                heapq.heappush(self.resting, (up, site))
                return at
            at = min(up, end)
        return end

    def _fetched(
        self, site: int, hour: int, start: float, end: float, pace: float, last: bool = False
    ) -> float:
        self.told.pages[hour] += (end - start) * pace
        self.page_hours += (end * end - start * start) / 2 * pace
        self.left[site] = 0.0 if last else self.left[site] - (end - start) * pace
        if last:
            self.told.finish = max(self.told.finish, end)
        return end

    def _view(self, hour: int, hour_left: float) -> SiteView:
        instance, case = self.instance, self.instance.case
        n = len(self.left)
        load = np.roll(instance.told, -(hour % HOURS), axis=1)
        remaining = self._estimate().astype(np.float32)
        ready = np.ones(n, bool)
        ready[[site for up, site in self.resting if up > hour]] = False
        view = SiteView(
            load=load,
            pages_per_hour=np.full(n, case.pace, np.float32),
            pace_cap=np.full(n, case.pace * case.cap, np.float32),
            remaining=remaining,
            ready=ready,
            sequence=np.arange(n, dtype=np.int64),
            slots=case.slots,
            hour_left=hour_left,
            exponent=case.assumed_exponent,
        )
        for array in vars(view).values():
            if isinstance(array, np.ndarray):
                array.flags.writeable = False
        return view

    def _estimate(self) -> np.ndarray:
        if self.instance.case.sizes_met:
            return self._met()
        if self.instance.case.sizes_known:
            return self.left
        done = self.instance.size - self.left
        return np.where(self.left > 0, np.maximum(1 - done, LEAST_LEFT * done), 0)

    def _met(self) -> np.ndarray:
        """What a crawler thinks whose sites list all their pages on the first one; of the others it takes the mean."""
        met = self.left < self.instance.size
        at_hand = self.instance.size[met & (self.left > 0)]
        mean = at_hand.mean() if len(at_hand) else 1.0
        return np.where(met, self.left, mean)
