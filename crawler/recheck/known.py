"""What Recrawl knows of pages: sizes, weights, visits, signals. Raises RecrawlError for invalid arguments."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from crawler.recheck import RecrawlError, arguments, get, packing
from crawler.recheck.account import Mean
from crawler.recheck.candidates import Candidates
from crawler.recheck.columns import FURTHEST, ROW_TYPES, Columns, Hosts, Rows
from crawler.recheck.learning import learn
from crawler.recheck.view import PageView

DAY = 86_400.0
# Name -> default. Modes share one set of options, so that they can be compared.
OPTIONS = {
    # Longest interval of a page, whatever a visit is worth; None: unlimited.
    "longest_seconds": 30 * DAY,
    # Assumed change rate before the first visit: one change a week.
    "mean_rate": 1 / (7 * DAY),
    # Paper 004's period and horizon T; then the next horizon begins.
    "period_seconds": 60.0,
    "horizon_periods": 10_080.0,
    # Share of unchanged pages, per host or for all, that a conditional request gets at the cost of headers alone.
    "conditional": 0.0,
}
# Least bytes of a visit, so that every visit costs something.
LEAST_SIZE = 1e-9
MOST_FAILS = 15
MOST_SIGNALS = 255


class Known:
    """Pages of some hosts, a mode, and a price. Page numbers are permanent."""

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
        """One element per page: host (integer >= 0), bytes of a visit, weight (None: 1, the average).

        `last`: time of the last visit; None or NaN: the first `now`. Unknown sizes (0 or NaN) become the mean of the
        others. Arrays are copied.
        """
        unknown = set(options) - set(OPTIONS)
        if unknown:
            raise RecrawlError(
                f"unknown option {sorted(unknown)[0]!r}; expected some of {', '.join(OPTIONS)}"
            )
        self.options = {**OPTIONS, **options}
        self.mode = get(mode)
        self.price = 0.0  # value of a second of a slot; 0: unknown
        self._began: float | None = None  # the first `now`
        self._latest = math.nan
        self._same_pace = math.nan, np.zeros(0)
        self._mean = np.array([math.log(arguments.positive("mean_rate", self.options["mean_rate"])), 0.0])
        longest = self.options["longest_seconds"]
        self._longest = math.inf if longest is None else arguments.positive("longest_seconds", longest)
        self._period = arguments.positive("period_seconds", self.options["period_seconds"])
        self._horizon = arguments.positive("horizon_periods", self.options["horizon_periods"])
        n = np.atleast_1d(np.asarray(host)).size
        times = arguments.numbers("last", np.nan if last is None else last, n, np.float64)
        base = float(np.nanmax(times, initial=-np.inf, where=~np.isnan(times)))
        self._columns = Columns(np.asarray(host), self._new_rows(n, size, weight))
        if math.isfinite(base):
            self._columns.base = base
            order = self._columns.page_of
            self._columns.rows.last[:] = (times if order is None else times[order]) - base
        self._columns.hosts.saves[:] = arguments.shares("conditional", self.options["conditional"])
        self._candidates = Candidates()
        self._candidates.changed(self._columns.hosts)

    def __len__(self) -> int:
        """Number of pages."""
        return self._columns.pages

    @property
    def nbytes(self) -> int:
        """Bytes used by pages, hosts and candidates."""
        return self._columns.nbytes + self._candidates.nbytes

    @property
    def mean(self) -> Mean:
        """Estimated mean change rate."""
        return Mean(float(self._mean[0]), float(self._mean[1]))

    @mean.setter
    def mean(self, mean: Mean) -> None:
        self._mean[:] = mean

    def last_visits(self, pages: Any) -> np.ndarray:
        """Time of each page's last visit, to a second or better."""
        last: np.ndarray = self._columns.rows.last[self._columns.rows_of(pages)].astype(np.float64)
        last += self._columns.base
        return last

    def as_kept(self, times: Any) -> np.ndarray:
        """These times, rounded as in `last_visits`."""
        base = self._columns.base
        return (np.asarray(times, np.float64) - base).astype(np.float32).astype(np.float64) + base

    @property
    def mean_rate(self) -> float:
        """Mean changes per second of all pages."""
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

    # --- Updates ---

    def visited(
        self, pages: Any, now: float, changed: Any, *, changed_at: Any = None, size: Any = None
    ) -> None:
        """Records answered visits; `changed`: the content differs from the last visit.

        `changed_at`: trusted time of the change; None or NaN: unknown. `size`: bytes; None, 0 or NaN: unchanged.
        """
        clock = self._clock(now)
        rows = self._columns.rows_of(pages)
        n = len(rows)
        since = clock - (
            arguments.numbers("changed_at", np.nan if changed_at is None else changed_at, n, np.float64)
            - self._columns.base
        )
        different = np.broadcast_to(np.asarray(changed, bool), (n,)).copy()
        learn(
            rows,
            self._columns.host_of(rows),
            self._columns.rows,
            self._columns.hosts,
            self._mean,
            clock,
            different,
            since,
        )
        if size is not None:
            sizes = arguments.numbers("size", size, n, np.float32)
            known = sizes > 0
            self._columns.rows.size[rows[known]] = sizes[known]

    def failed(self, pages: Any, now: float) -> None:
        """Records failed visits; each doubles the page's waiting time."""
        self._clock(now)
        rows = np.unique(self._columns.rows_of(pages))
        fails = self._columns.rows.fails
        fails[rows] = np.minimum(fails[rows] + 1, MOST_FAILS)

    def signalled(self, pages: Any, now: float) -> None:
        """Records a hint (sitemap, feed, ping) that pages changed."""
        self._clock(now)
        rows = self._columns.rows_of(pages)
        count = self._columns.rows.signals
        again = np.minimum(count[rows].astype(np.int64) + 1, MOST_SIGNALS)
        count[rows] = again
        self._candidates.urgent.update(np.unique(self._columns.host_of(rows)).tolist())

    def signals(self, pages: Any) -> np.ndarray:
        """Number of signals since each page's last visit."""
        many: np.ndarray = self._columns.rows.signals[self._columns.rows_of(pages)]
        return many

    def note(self, pages: Any, *, size: Any = None, weight: Any = None, last: Any = None) -> None:
        """Replaces sizes, weights or last visits; None: unchanged."""
        rows = self._columns.rows_of(pages)
        if size is not None:
            self._columns.rows.size[rows] = np.maximum(
                arguments.numbers("size", size, len(rows), np.float32), LEAST_SIZE
            )
        if weight is not None:
            self._columns.rows.weight[rows] = arguments.numbers("weight", weight, len(rows), np.float32)
        if last is not None:
            times = arguments.numbers("last", last, len(rows), np.float64)
            self._columns.rows.last[rows] = times - self._columns.base

    def saves(self, host: int, share: float) -> None:
        """Sets the share of unchanged pages that costs headers alone."""
        self._columns.of(host)
        self._columns.hosts.saves[host] = arguments.shares("share", share)

    # --- Adding and removing ---

    def add(self, host: Any, size: Any, weight: Any = None, *, last: Any = None) -> np.ndarray:
        """Adds pages; returns their numbers. `last`: None: just loaded."""
        n = np.atleast_1d(np.asarray(host)).size
        rows = self._new_rows(n, size, weight)
        times = arguments.numbers("last", self._latest if last is None else last, n, np.float64)
        if math.isnan(self._columns.base) and n:
            self._columns.base = float(times.max())  # NaN where no time is known
        rows.last[:] = times - self._columns.base
        numbers = self._columns.add(np.asarray(host), rows)
        self._candidates.changed(self._columns.hosts)
        return numbers

    def remove(self, pages: Any) -> None:
        """Removes these pages."""
        self._columns.remove(np.atleast_1d(np.asarray(pages)))
        self._candidates.changed(self._columns.hosts)

    def pack(self, host: int) -> bytes:
        """One host and its pages as bytes."""
        at = self._columns.of(host)
        rows = Rows(*(column[at] for column in self._columns.rows))
        return packing.pack(rows, self._columns.hosts, host, self._columns.base)

    def unpack(self, host: int, packed: bytes) -> np.ndarray:
        """Replaces or adds a host by what `pack` returned; returns page numbers in packed order."""
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

    # --- Internals ---

    def _new_rows(self, n: int, size: Any, weight: Any) -> Rows:
        sizes = arguments.numbers("size", size, n, np.float32)
        known = sizes > 0
        sizes[~known] = sizes[known].mean() if known.any() else 1.0
        weights = arguments.numbers("weight", 1.0 if weight is None else weight, n, np.float32)
        weights[np.isnan(weights)] = 1.0
        rows = Rows(*(np.zeros(n, kind) for kind in ROW_TYPES))
        rows.last[:] = np.nan
        return rows._replace(size=sizes, weight=weights)

    def _clock(self, now: float) -> float:
        now = float(now)
        if not math.isfinite(now):
            raise RecrawlError(f"now is {now!r}; expected finite seconds")
        last = self._columns.rows.last
        if self._began is None:
            self._began = now
            if math.isnan(self._columns.base):
                self._columns.base = now
            last[np.isnan(last)] = now - self._columns.base
        self._latest = now
        if abs(now - self._columns.base) > FURTHEST:
            self._columns.rebase(now)
        return now - self._columns.base

    def _pace(self, seconds_per_byte: Any) -> np.ndarray:
        hosts = len(self._columns.hosts.start)
        if np.ndim(seconds_per_byte):
            return self._checked_pace(seconds_per_byte)
        figure, pace = self._same_pace
        if figure != seconds_per_byte or len(pace) != hosts:
            pace = self._checked_pace(seconds_per_byte)
            self._same_pace = float(seconds_per_byte), pace
        return pace

    def _checked_pace(self, seconds_per_byte: Any) -> np.ndarray:
        pace = arguments.numbers(
            "seconds_per_byte", seconds_per_byte, len(self._columns.hosts.start), np.float64
        )
        # Unknown or zero paces become the mean of the others.
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
