"""Pages in columns, grouped by host. 22 bytes a page, 44 a host.

A page number is permanent; its row may move. Times are float32 seconds from `base`, which moves along.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from crawler.recheck import RecrawlError
from crawler.recheck.compiling import COMPILED, compiled

# Room that a host gets when it moves, as a multiple of what it needs.
SPARE = 1.5
# Seconds from the base beyond which float32 is coarser than a second; then the base moves.
FURTHEST = 2.0**23


class Rows(NamedTuple):
    """One element per page."""

    shape: np.ndarray  # float32: shape of its estimated change rate; 0 before the first visit: use the host's
    time: np.ndarray  # float32: scale of that estimate, seconds
    last: np.ndarray  # float32: last visit, seconds from the base; NaN: unknown until the first `now`
    weight: np.ndarray  # float32: importance, 1 on average
    size: np.ndarray  # float32: bytes of a visit
    signals: np.ndarray  # uint8: since the last visit
    fails: np.ndarray  # uint8: failed visits since the last answer


class Hosts(NamedTuple):
    """One element per host."""

    start: np.ndarray  # int64: first row
    pages: np.ndarray  # int64: how many
    room: np.ndarray  # int64: rows reserved for it
    offset: np.ndarray  # float32: logarithm of its mean change rate over that of all pages
    information: np.ndarray  # float32: about that
    seen: np.ndarray  # float32 (n, 4): quality of its signals (signals.py)
    saves: (
        np.ndarray
    )  # float32: share of unchanged pages that a conditional request gets at the cost of headers alone


# Rows prefetched at a time.
BLOCK = 64
# From this many rows on, sort before finding hosts.
MANY = 256
ROW_TYPES: tuple[type[np.generic], ...] = (*[np.float32] * 5, np.uint8, np.uint8)
NO_PAGE = -1


class Columns:
    """All pages. Any call that adds may replace the arrays."""

    def __init__(self, host: np.ndarray, given: Rows) -> None:
        """`host` of each page: integers from 0, in any order. Raises RecrawlError for others."""
        host = _hosts(host)
        self.base = math.nan  # until a time is known
        self.row_of: np.ndarray | None = None
        self.page_of: np.ndarray | None = None
        self.numbers = len(host)
        if (host[1:] < host[:-1]).any():
            order = np.argsort(host, kind="stable")
            given = Rows(*(column[order] for column in given))
            self.page_of = order.astype(np.int64)
            self.row_of = np.empty(len(host), np.int64)
            self.row_of[order] = np.arange(len(host))
        self.rows = given
        count = np.bincount(host).astype(np.int64)
        self.hosts = _new_hosts(count, np.cumsum(count) - count)
        self.used = len(host)
        # Caches until hosts change: hosts by first row; samples by size.
        self._by_start: tuple[np.ndarray, np.ndarray] | None = None
        self._samples: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    @property
    def pages(self) -> int:
        """Number of pages."""
        return int(self.hosts.pages.sum())

    @property
    def nbytes(self) -> int:
        """Bytes used by all columns and maps."""
        maps = [one for one in (self.row_of, self.page_of) if one is not None]
        return sum(array.nbytes for array in (*self.rows, *self.hosts, *maps))

    def rows_of(self, pages: np.ndarray) -> np.ndarray:
        """Rows of these pages. Raises RecrawlError for unknown and removed pages."""
        pages = np.atleast_1d(np.asarray(pages, dtype=np.int64))
        if len(pages) and not (pages.min() >= 0 and pages.max() < self.numbers):
            raise RecrawlError(
                f"page {pages[(pages < 0) | (pages >= self.numbers)][0]} does not exist; expected 0..{self.numbers - 1}"
            )
        if self.row_of is None:
            return pages
        rows: np.ndarray = self.row_of[pages]
        if len(rows) and rows.min() < 0:
            raise RecrawlError(f"page {pages[rows < 0][0]} was removed; expected an existing page")
        return rows

    def pages_of(self, rows: np.ndarray) -> np.ndarray:
        """Page numbers of these rows."""
        if self.page_of is None:
            return rows
        found: np.ndarray = self.page_of[rows]
        return found

    def host_of(self, rows: np.ndarray) -> np.ndarray:
        """Host of each of these rows."""
        if len(rows) >= MANY:
            # Sorted rows find their hosts close together in memory.
            order = np.argsort(rows)
            found = np.empty(len(rows), np.int64)
            found[order] = self._host_of(rows[order])
            return found
        return self._host_of(rows)

    def _host_of(self, rows: np.ndarray) -> np.ndarray:
        if self._by_start is None:
            order = np.argsort(self.hosts.start, kind="stable")
            order = order[self.hosts.room[order] > 0]
            self._by_start = order, self.hosts.start[order]
        order, start = self._by_start
        found: np.ndarray = order[np.searchsorted(start, rows, side="right") - 1]
        return found

    def sample(self, most: int) -> tuple[np.ndarray, np.ndarray]:
        """About `most` rows spread over all pages, and their hosts."""
        if most not in self._samples:
            ends = np.cumsum(self.hosts.pages)
            places = np.arange(0, self.pages, max(self.pages // most, 1))
            host = np.searchsorted(ends, places, side="right")
            rows = self.hosts.start[host] + places - (ends - self.hosts.pages)[host]
            self._samples[most] = rows, host
        return self._samples[most]

    def of(self, host: int) -> slice:
        """The rows of one host. Raises RecrawlError for unknown hosts."""
        if not 0 <= host < len(self.hosts.start):
            raise RecrawlError(f"host {host} does not exist; expected a number below {len(self.hosts.start)}")
        start = int(self.hosts.start[host])
        return slice(start, start + int(self.hosts.pages[host]))

    def add(self, host: np.ndarray, given: Rows) -> np.ndarray:
        """Adds pages, possibly of new hosts; returns their numbers in order."""
        host = _hosts(host)
        self._map()
        self._grow_hosts(int(host.max(initial=-1)) + 1)
        numbers = np.arange(self.numbers, self.numbers + len(host))
        self.numbers += len(host)
        rows = np.empty(len(host), np.int64)
        order = np.argsort(host, kind="stable")
        for some in np.split(order, np.flatnonzero(np.diff(host[order])) + 1) if len(host) else []:
            rows[some] = self._make_room(int(host[some[0]]), len(some))
        for column, values in zip(self.rows, given, strict=True):
            column[rows] = values
        assert self.row_of is not None and self.page_of is not None
        self.row_of = np.concatenate([self.row_of, rows])
        self.page_of[rows] = numbers
        return numbers

    def remove(self, pages: np.ndarray) -> np.ndarray:
        """Removes these pages; returns their hosts."""
        rows = self.rows_of(np.unique(pages))
        hosts = self.host_of(rows)
        self._map()
        self._forget()
        assert self.row_of is not None and self.page_of is not None
        # From the last row on: a removal moves only rows behind it.
        for row, host in sorted(zip(rows.tolist(), hosts.tolist(), strict=True), reverse=True):
            self.hosts.pages[host] -= 1
            last = int(self.hosts.start[host] + self.hosts.pages[host])
            self.row_of[self.page_of[row]] = NO_PAGE
            if last != row:
                self._move(slice(last, last + 1), slice(row, row + 1))
            self.page_of[last] = NO_PAGE
        return np.unique(hosts)

    def reach(self, host: int) -> None:
        """Creates hosts up to this one, without pages."""
        self._grow_hosts(host + 1)

    def rebase(self, base: float) -> None:
        """Sets the base of times; unknown times become the base if no time was known."""
        last = self.rows.last
        last += np.float32(self.base - base)
        self.base = base

    def _forget(self) -> None:
        self._by_start = None
        self._samples = {}

    def _map(self) -> None:
        if self.row_of is None:
            self.row_of = np.arange(self.numbers, dtype=np.int64)
            self.page_of = np.full(len(self.rows.shape), NO_PAGE, np.int64)
            self.page_of[: self.numbers] = self.row_of

    def _grow_hosts(self, wanted: int) -> None:
        missing = wanted - len(self.hosts.start)
        if missing > 0:
            nothing = np.zeros(missing, np.int64)
            new = _new_hosts(nothing, nothing + self.used)
            self._forget()
            self.hosts = Hosts(*(np.concatenate(pair) for pair in zip(self.hosts, new, strict=True)))

    def _make_room(self, host: int, more: int) -> np.ndarray:
        hosts = self.hosts
        needed = int(hosts.pages[host]) + more
        if needed > hosts.room[host]:
            self._relocate(host, int(needed * SPARE) if hosts.pages[host] else needed)
        first = int(hosts.start[host] + hosts.pages[host])
        hosts.pages[host] = needed
        self._forget()
        return np.arange(first, first + more)

    def _relocate(self, host: int, room: int) -> None:
        old = self.of(host)
        self._reserve(self.used + room)
        new = slice(self.used, self.used + old.stop - old.start)
        self._move(old, new)
        self.hosts.start[host] = self.used
        self.hosts.room[host] = room
        self._forget()
        self.used += room

    def _move(self, old: slice, new: slice) -> None:
        assert self.row_of is not None and self.page_of is not None
        for column in self.rows:
            column[new] = column[old]
        pages = self.page_of[old].copy()
        self.page_of[old] = NO_PAGE
        self.page_of[new] = pages
        self.row_of[pages] = np.arange(new.start, new.stop)

    def _reserve(self, rows: int) -> None:
        there = len(self.rows.shape)
        if rows <= there:
            return
        more = max(rows, int(there * SPARE)) - there
        self.rows = Rows(*(np.concatenate([c, np.zeros(more, c.dtype)]) for c in self.rows))
        assert self.page_of is not None
        self.page_of = np.concatenate([self.page_of, np.full(more, NO_PAGE, np.int64)])


@compiled
def touch(rows: np.ndarray, hosts_of: np.ndarray, page: Rows, host: Hosts, sums: np.ndarray) -> None:
    """Prefetches scattered rows and their hosts. `sums` is written only to keep the compiler from removing the loop."""
    if not COMPILED:
        return
    total = 0.0
    for row in rows:
        total += page.shape[row] + page.time[row] + page.last[row] + page.weight[row] + page.size[row]
        total += page.signals[row] + page.fails[row]
    for h in hosts_of:
        total += host.offset[h] + host.information[h] + host.seen[h, 0] + host.saves[h]
    sums[0] = total


def _hosts(host: np.ndarray) -> np.ndarray:
    found = np.atleast_1d(np.asarray(host))
    if not len(found):
        return np.zeros(0, np.int64)
    if found.dtype.kind not in "iu" or found.min() < 0:
        raise RecrawlError(f"hosts are {found.dtype} with minimum {found.min()}; expected integers >= 0")
    return found


def _new_hosts(count: np.ndarray, start: np.ndarray) -> Hosts:
    n = len(count)
    return Hosts(
        start=start,
        pages=count,
        room=count.copy(),
        offset=np.zeros(n, np.float32),
        information=np.zeros(n, np.float32),
        seen=np.zeros((n, 4), np.float32),
        saves=np.zeros(n, np.float32),
    )
