"""Recrawl: which pages to visit again, and what was learned from it.

Two ways to ask. `choose` is for who sees all pages: the best now, at most one of a host, within a budget. `candidates`
is for who holds one site: its pages that are worth their price before a time, and when to come back. `visited`,
`failed` and `signalled` tell what came of it. All pages are numbers that `add`, `unpack` or the order at the beginning
gave. Raises RecrawlError for pages, hosts, times and options that mean nothing.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from crawler.recrawl import RecrawlError, get, packing, rates, signals
from crawler.recrawl import price as prices
from crawler.recrawl.account import Mean
from crawler.recrawl.candidates import LEAST_ROWS, LOOKS, Candidates, affordable, best, spread
from crawler.recrawl.columns import ROW_TYPES, Columns, Hosts, Rows
from crawler.recrawl.compiling import compiled
from crawler.recrawl.view import PageView

DAY = 86_400.0
# Name -> default. Of all modes, so that one set of options serves to compare them.
OPTIONS = {
    # A page's interval at most, whatever a visit is worth; None: none.
    "longest_seconds": 30 * DAY,
    # What is thought of change rates before the first visit tells better: one change a week.
    "mean_rate": 1 / (7 * DAY),
    # Paper 004's time period, and its horizon T; behind it the next one begins.
    "period_seconds": 60.0,
    "horizon_periods": 10_080.0,
    # Share of unchanged pages, per host or of all, that a conditional request asks for at the cost of a head.
    "conditional": 0.0,
}
# Share of its price that a page must be worth to stand by for time that would be lost.
NEARLY = 0.9
# Bytes of a visit at least, so that none is free.
LEAST_SIZE = 1e-9
# What may be below 0.
TIMES = ("last", "changed_at")
MOST_FAILS = 15
MOST_SIGNALS = 255
# Pages by which the first price is found, and the mean cost in each call.
SAMPLE, SMALL_SAMPLE = 50_000, 1_000
# How near the time of waking is found: this share of what lies between.
WAKE_STEPS = 12


class Recrawl:
    """Pages of some hosts, a mode, and a price."""

    def __init__(
        self,
        host: Any,
        size: Any,
        weight: Any = None,
        *,
        last: Any = None,
        mode: str = "default",
        **options: Any,
    ) -> None:
        """One element per page: host (0 and up), size of a visit in bytes, importance (1 on average; None: all 1).

        `last`: time of the last visit; None or NaN: when the clock is first seen, for a page comes here when it was
        loaded. A size of 0, or NaN, is an unknown one and taken to be the mean of the others. The arrays are copied,
        not kept.
        """
        unknown = set(options) - set(OPTIONS)
        if unknown:
            raise RecrawlError(
                f"there is no option {sorted(unknown)[0]!r}; wanted some of {', '.join(OPTIONS)}"
            )
        self.options = {**OPTIONS, **options}
        self.mode = get(mode)
        self.price = 0.0  # value of a second of a slot; 0: not found yet
        self.looks = self.taken = 0  # pages scored, and pages given, by `choose`
        self._debt = 0.0
        self._began: float | None = None  # when the clock was first seen
        self._latest = math.nan
        self._mean = np.array([math.log(_positive("mean_rate", self.options["mean_rate"])), 0.0])
        longest = self.options["longest_seconds"]
        self._longest = math.inf if longest is None else _positive("longest_seconds", longest)
        self._period = _positive("period_seconds", self.options["period_seconds"])
        self._horizon = _positive("horizon_periods", self.options["horizon_periods"])
        n = np.atleast_1d(np.asarray(host)).size
        times = _numbers("last", np.nan if last is None else last, n, np.float64)
        base = float(np.nanmax(times, initial=-np.inf, where=~np.isnan(times)))
        self._columns = Columns(np.asarray(host), self._new_rows(n, size, weight))
        if math.isfinite(base):
            self._columns.base = base
            order = self._columns.page_of
            self._columns.rows.last[:] = (times if order is None else times[order]) - base
        self._columns.hosts.saves[:] = _shares("conditional", self.options["conditional"])
        self._candidates = Candidates()
        self._candidates.changed(self._columns.hosts)

    # --- what is asked ---

    def choose(
        self, now: float, seconds_per_byte: Any, ready: Any = None, budget: float | None = None
    ) -> np.ndarray:
        """Pages to visit now, best first, at most one of a host; moves the price.

        `seconds_per_byte`: of a slot, one figure or one per host. `ready`: hosts that may be asked, as one bool per
        host or as their numbers; None: all. `budget`: seconds of slots until the next call; None: what is worth its
        price. A page dearer than the whole budget is taken alone, and what it took is missing from the next budgets.
        """
        clock = self._clock(now)
        pace = self._pace(seconds_per_byte)
        if budget is not None and not budget >= 0:
            raise RecrawlError(f"budget is {budget!r}; wanted seconds, 0 or more")
        if not self._columns.pages:
            return np.zeros(0, np.int64)
        if self.mode.priced and self.price <= 0 and budget:
            self.price = self._first_price(clock, pace, budget)
        self._take_turn(clock, pace, budget)
        hosts, rows = self._first_of(ready)
        score = self.mode.score(self._view(rows, hosts, clock, pace))
        order = np.argsort(-score, kind="stable")
        hosts, rows, score = hosts[order], rows[order], score[order]
        taken = score > self._least if budget is None else self._within(rows, hosts, score, pace, budget)
        self._candidates.drop(hosts[taken])
        self.taken += int(taken.sum())
        if not self.mode.priced and taken.any():
            self.price = float(score[taken][-1])
        return self._columns.pages_of(rows[taken])

    def candidates(
        self, host: int, now: float, until: float, seconds_per_byte: float
    ) -> tuple[np.ndarray, float]:
        """For a leased site: its pages worth visiting before `until`, best first, and when it is to be leased again.

        The second is the first time at which one of its pages is worth its price, given that these are visited; never
        before `until`, and at most the longest interval after it, or a year where there is none.
        """
        at = self._columns.of(host)
        clock = self._clock(now)
        until = max(clock, float(until) - self._columns.base)
        pace = np.array([_positive("seconds_per_byte", seconds_per_byte)])
        site = Rows(*(column[at] for column in self._columns.rows))
        score = self._site_score(site, host, until, pace)
        chosen = np.flatnonzero(score > self._floor)
        chosen = chosen[np.argsort(-score[chosen], kind="stable")]
        last = site.last.copy()
        last[chosen] = until
        wake = self._wake(site._replace(last=last), host, until, pace)
        return self._columns.pages_of(np.arange(at.start, at.stop))[chosen], wake + self._columns.base

    def __len__(self) -> int:
        """How many pages there are."""
        return self._columns.pages

    @property
    def nbytes(self) -> int:
        """Memory of all that is kept of pages, hosts and candidates."""
        return self._columns.nbytes + self._candidates.nbytes

    @property
    def mean(self) -> Mean:
        """What is known of the mean change rate: it may be carried from one Recrawl to the next."""
        return Mean(float(self._mean[0]), float(self._mean[1]))

    @mean.setter
    def mean(self, mean: Mean) -> None:
        self._mean[:] = mean

    def last_visits(self, pages: Any) -> np.ndarray:
        """When each of these was last visited; true to a second, or better while a crawl is young."""
        last: np.ndarray = self._columns.rows.last[self._columns.rows_of(pages)].astype(np.float64)
        last += self._columns.base
        return last

    @property
    def mean_rate(self) -> float:
        """Changes a second, the mean of all pages; what new pages are thought to have."""
        return math.exp(self._mean[0])

    def pages(self, host: int) -> np.ndarray:
        """Numbers of a host's pages."""
        at = self._columns.of(host)
        return np.array(self._columns.pages_of(np.arange(at.start, at.stop)))

    def view(self, pages: Any, now: float, seconds_per_byte: Any) -> PageView:
        """What the mode sees of these pages."""
        rows = self._columns.rows_of(pages)
        clock = self._clock(now)
        return self._view(rows, self._columns.host_of(rows), clock, self._pace(seconds_per_byte))

    # --- what is told ---

    def visited(
        self, pages: Any, now: float, changed: Any, *, changed_at: Any = None, size: Any = None
    ) -> None:
        """These pages answered; `changed`: whether the content is another than at the last visit.

        `changed_at`: when it last changed, where that is known and can be trusted; None or NaN: some time since the
        last visit. `size`: bytes of the page as it is now; None, 0 or NaN: as before.
        """
        clock = self._clock(now)
        rows = self._columns.rows_of(pages)
        n = len(rows)
        since = clock - (
            _numbers("changed_at", np.nan if changed_at is None else changed_at, n, np.float64)
            - self._columns.base
        )
        told = np.broadcast_to(np.asarray(changed, bool), (n,)).copy()
        _learn(
            rows,
            self._columns.host_of(rows),
            self._columns.rows,
            self._columns.hosts,
            self._mean,
            clock,
            told,
            since,
        )
        if size is not None:
            sizes = _numbers("size", size, n, np.float32)
            known = sizes > 0
            self._columns.rows.size[rows[known]] = sizes[known]

    def failed(self, pages: Any, now: float) -> None:
        """These pages did not answer: nothing is learned, and each waits twice as long as otherwise, and again."""
        self._clock(now)
        rows = np.unique(self._columns.rows_of(pages))
        fails = self._columns.rows.fails
        fails[rows] = np.minimum(fails[rows] + 1, MOST_FAILS)

    def signalled(self, pages: Any, now: float) -> None:
        """Somebody said that these pages have changed: a sitemap, a feed, a ping. Their hosts are looked at next."""
        self._clock(now)
        rows = self._columns.rows_of(pages)
        count = self._columns.rows.signals
        again = np.minimum(count[rows].astype(np.int64) + 1, MOST_SIGNALS)
        count[rows] = again
        self._candidates.urgent.update(np.unique(self._columns.host_of(rows)).tolist())

    def note(self, pages: Any, *, size: Any = None, weight: Any = None) -> None:
        """Other sizes or importances for these pages than they came with; None: as before."""
        rows = self._columns.rows_of(pages)
        if size is not None:
            self._columns.rows.size[rows] = np.maximum(
                _numbers("size", size, len(rows), np.float32), LEAST_SIZE
            )
        if weight is not None:
            self._columns.rows.weight[rows] = _numbers("weight", weight, len(rows), np.float32)

    def saves(self, host: int, share: float) -> None:
        """Tells which share of a host's unchanged pages answers a conditional request with a head alone."""
        self._columns.of(host)
        self._columns.hosts.saves[host] = _shares("share", share)

    # --- who is there ---

    def add(self, host: Any, size: Any, weight: Any = None, *, last: Any = None) -> np.ndarray:
        """New pages; hosts may be new. Their numbers, in the order given. `last`: as above; None: just loaded."""
        n = np.atleast_1d(np.asarray(host)).size
        rows = self._new_rows(n, size, weight)
        times = _numbers("last", self._latest if last is None else last, n, np.float64)
        if math.isnan(self._columns.base) and n:
            self._columns.base = float(times.max())  # NaN where no time is known
        rows.last[:] = times - self._columns.base
        numbers = self._columns.add(np.asarray(host), rows)
        self._candidates.changed(self._columns.hosts)
        return numbers

    def remove(self, pages: Any) -> None:
        """These are not to be visited again."""
        self._columns.remove(np.atleast_1d(np.asarray(pages)))
        self._candidates.changed(self._columns.hosts)

    def pack(self, host: int) -> bytes:
        """All that is known of one host and its pages."""
        at = self._columns.of(host)
        rows = Rows(*(column[at] for column in self._columns.rows))
        return packing.pack(rows, self._columns.hosts, host, self._columns.base)

    def unpack(self, host: int, packed: bytes) -> np.ndarray:
        """What `pack` gave, in the place of what the host has here, which may be new; numbers in the packed order."""
        rows, base, figures = packing.unpack(packed)
        if host < len(self._columns.hosts.start):
            self._columns.remove(self.pages(host))
        if math.isnan(self._columns.base):
            self._columns.base = base
        rows.last[:] += np.float32(base - self._columns.base)
        rows.last[np.isnan(rows.last)] = self._latest - self._columns.base
        numbers = self._columns.add(np.full(len(rows.shape), host, np.int64), rows)
        self._columns.reach(host)
        hosts = self._columns.hosts
        hosts.offset[host], hosts.information[host] = figures[:2]
        hosts.seen[host], hosts.saves[host] = figures[2:6], figures[6]
        self._candidates.changed(hosts)
        return numbers

    # --- inside ---

    @property
    def _floor(self) -> float:
        return 0.0 if self.mode.priced else self.price

    def _new_rows(self, n: int, size: Any, weight: Any) -> Rows:
        sizes = _numbers("size", size, n, np.float32)
        known = sizes > 0
        sizes[~known] = sizes[known].mean() if known.any() else 1.0
        weights = _numbers("weight", 1.0 if weight is None else weight, n, np.float32)
        weights[np.isnan(weights)] = 1.0
        rows = Rows(*(np.zeros(n, kind) for kind in ROW_TYPES))
        rows.last[:] = np.nan
        return rows._replace(size=sizes, weight=weights)

    def _clock(self, now: float) -> float:
        """The time from the columns' base."""
        now = float(now)
        if not math.isfinite(now):
            raise RecrawlError(f"now is {now!r}; wanted seconds")
        last = self._columns.rows.last
        if self._began is None:
            self._began = now
            if math.isnan(self._columns.base):
                self._columns.base = now
            last[np.isnan(last)] = now - self._columns.base
        self._latest = now
        if abs(now - self._columns.base) > self._columns.furthest:
            self._columns.rebase(now)
        return now - self._columns.base

    def _pace(self, seconds_per_byte: Any) -> np.ndarray:
        pace = _numbers("seconds_per_byte", seconds_per_byte, len(self._columns.hosts.start), np.float64)
        # Unknown ones are as the others; nothing is free.
        known = pace > 0
        if not known.all():
            pace[~known] = pace[known].mean() if known.any() else 1.0
        return pace

    def _view(
        self, rows: np.ndarray, host: np.ndarray, clock: float, pace: np.ndarray, price: float | None = None
    ) -> PageView:
        return self._seen(self._columns.rows, self._columns.hosts, rows, host, clock, pace, price)

    def _seen(
        self,
        columns: Rows,
        hosts: Hosts,
        rows: np.ndarray,
        host: np.ndarray,
        clock: float,
        pace: np.ndarray,
        price: float | None = None,
    ) -> PageView:
        assert self._began is not None
        begun = (clock + self._columns.base - self._began) / self._period
        return PageView(
            rows=rows,
            host=host,
            columns=columns,
            hosts=hosts,
            now=clock,
            seconds_per_byte=pace,
            price=self.price if price is None else price,
            period=self._period,
            ahead=max(self._horizon - math.fmod(max(begun, 0.0), self._horizon), 1.0),
            mean_rate=self.mean_rate,
            longest=self._longest,
        )

    def _take_turn(self, clock: float, pace: np.ndarray, budget: float | None) -> None:
        """Scores the hosts whose turn it is, and keeps the best of each."""
        total = self._columns.pages
        looked = total if budget is None else self._rows_a_call(pace, budget)
        hosts = self._candidates.next_hosts(looked)
        count = self._columns.hosts.pages[hosts]
        rows, host = spread(self._columns.hosts.start[hosts], count, hosts)
        self.looks += len(rows)
        price = self.price * (NEARLY if budget is not None else 1.0)
        score = self.mode.score(self._view(rows, host, clock, pace, price))
        most = math.ceil(total / max(looked, 1)) + 1
        places, kept = best(score, count, most, self._least)
        self._candidates.keep(hosts, rows[places], kept)

    def _rows_a_call(self, pace: np.ndarray, budget: float) -> int:
        """LOOKS for each page that the budget takes."""
        return int(min(max(LOOKS * budget / self._mean_cost(pace), LEAST_ROWS), self._columns.pages))

    def _mean_cost(self, pace: np.ndarray) -> float:
        """Of a visit, by a sample."""
        rows, host = self._columns.sample(SMALL_SAMPLE)
        return float((self._columns.rows.size[rows] * pace[host]).mean())

    def _first_of(self, ready: Any) -> tuple[np.ndarray, np.ndarray]:
        hosts, rows = self._candidates.first()
        if ready is None:
            return hosts, rows
        may = self._ready(ready)[hosts]
        return hosts[may], rows[may]

    def _ready(self, ready: Any) -> np.ndarray:
        ready = np.asarray(ready)
        n = len(self._columns.hosts.start)
        if ready.dtype == bool:
            if ready.shape != (n,):
                raise RecrawlError(f"ready is of shape {ready.shape}; wanted one per host, ({n},)")
            told: np.ndarray = ready
            return told
        may = np.zeros(n, bool)
        if ready.size:
            if ready.dtype.kind not in "iu" or not 0 <= ready.min() <= ready.max() < n:
                raise RecrawlError(f"ready names hosts that are not there; wanted numbers from 0 to {n - 1}")
            may[ready] = True
        return may

    @property
    def _least(self) -> float:
        """Score that a page must exceed to be visited where all pages are seen."""
        return 0.0 if self.mode.priced else -math.inf

    def _within(
        self, rows: np.ndarray, hosts: np.ndarray, score: np.ndarray, pace: np.ndarray, budget: float
    ) -> np.ndarray:
        """Which of these the budget takes; moves the price towards the one at which it takes all that are worth it.

        What is nearly worth its price fills what the others leave: time that is not used now is lost.
        """
        cost = self._columns.rows.size[rows].astype(np.float64) * pace[hosts]
        taken, left = affordable(cost, budget - self._debt)
        self._debt = max(-left, 0.0)
        if self.mode.priced:
            # Where a whole page's time is left, those that did not fit are no reason to ask for more.
            wanted = taken & (score > 0) if left >= self._mean_cost(pace) else score > 0
            self.price = prices.moved(self.price, float(cost[wanted].sum()), budget)
        return taken

    def _first_price(self, clock: float, pace: np.ndarray, budget: float) -> float:
        """At which a sample of the pages would use up its share of the budget now; 0 where none is worth anything."""
        rows, host = self._columns.sample(SAMPLE)
        view = self._view(rows, host, clock, pace, price=0.0)
        cost = view.cost
        worth = self.mode.score(view) / cost
        order = np.argsort(-worth)
        spent = np.cumsum(cost[order])
        at = min(int(np.searchsorted(spent, budget * len(rows) / self._columns.pages)), len(order) - 1)
        return min(float(worth[order[at]]), prices.MOST)

    def _site_score(self, site: Rows, host: int, clock: float, pace: np.ndarray) -> np.ndarray:
        """Scores of one host's pages, by columns of its own."""
        hosts = Hosts(*(column[host : host + 1] for column in self._columns.hosts))
        n = len(site.shape)
        none = np.zeros(n, np.int64)
        return self.mode.score(self._seen(site, hosts, np.arange(n), none, clock, pace))

    def _wake(self, site: Rows, host: int, until: float, pace: np.ndarray) -> float:
        """The first time at which a page is worth its price: doubled until one is, then halved."""
        longest = self._longest if math.isfinite(self._longest) else 365 * DAY
        early, late = 0.0, min(60.0, longest)
        if not len(site.shape):
            return until + longest
        while not (self._site_score(site, host, until + late, pace) > self._floor).any():
            if late >= longest:
                return until + longest
            early, late = late, min(late * 2, longest)
        for _ in range(WAKE_STEPS):
            middle = (early + late) / 2
            if (self._site_score(site, host, until + middle, pace) > self._floor).any():
                late = middle
            else:
                early = middle
        return until + late


@compiled
def _learn(
    rows: np.ndarray,
    hosts_of: np.ndarray,
    page: Rows,
    host: Hosts,
    mean: np.ndarray,
    now: float,
    changed: np.ndarray,
    since: np.ndarray,
) -> None:
    """One visit each: signals are judged, means learn from first visits, and the page's belief is renewed."""
    for i in range(len(rows)):
        row, h = rows[i], hosts_of[i]
        age = max(now - page.last[row], 0.0)
        mean_rate = math.exp(mean[0])
        a, b = float(page.shape[row]), float(page.time[row])
        if a == 0.0:
            a, b = rates.PRIOR_SHAPE, rates.PRIOR_SHAPE / mean_rate * math.exp(-host.offset[h])
            rates.learn_first(mean, host.offset, host.information, h, age, changed[i])
        signals.judge(host.seen, h, page.signals[row], age, changed[i], a, b)
        page.shape[row], page.time[row] = rates.learned(a, b, age, changed[i], since[i])
        page.last[row] = now
        page.signals[row] = 0
        page.fails[row] = 0


def _positive(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 < value < math.inf:
        raise RecrawlError(f"{name} is {value!r}; wanted a number above 0")
    return float(value)


def _shares(name: str, value: Any) -> np.ndarray:
    shares = np.asarray(value, np.float32)
    if not ((shares >= 0) & (shares <= 1)).all():
        raise RecrawlError(f"{name} is {value!r}; wanted shares, 0 to 1")
    return shares


def _numbers(name: str, values: Any, n: int, kind: type) -> np.ndarray:
    """A copy, one number for each of n; NaN passes, what is infinite or below 0 does not. Times may be below 0."""
    try:
        found: np.ndarray = np.array(np.broadcast_to(np.asarray(values), (n,)), dtype=kind)
    except (ValueError, TypeError):
        raise RecrawlError(f"{name} is of shape {np.shape(values)}; wanted one number, or {n}") from None
    least = -math.inf if name in TIMES else 0.0
    wrong = np.isinf(found) | (found < least)
    if wrong.any():
        raise RecrawlError(f"{name} is {found[wrong][0]}; wanted finite numbers, {least:g} or more")
    return found
