"""The links of a converted folder, as Parquet and as npy arrays.

graph/ptr.npy     int64 (pages + 1,)   page i links to target[ptr[i]:ptr[i + 1]]
graph/target.npy  int32 (links,)       ascending within a page
graph/site.npy    int64 (sites + 1,)   first page of each site, then the number of pages
graph/domain.npy, graph/community.npy  int32 (sites,)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from crawler.convert import arrays, hashes, writing
from crawler.convert.numbering import Numbering
from crawler.convert.pages import Pages
from crawler.convert.reading import in_order
from crawler.convert.spill import Spill
from rankers.compiling import compiled

# --- Links between pages ---
# A page has the links of all its copies, resolved through redirects. Unknown targets, links to the page itself and
# parallel links are counted and left out.


# Hashes per piece: 16 MB, which bounds memory.
PIECE_LINKS = 2_000_000
# Up to this many targets are sorted by insertion, as fast as numba's sort.
_FEW = 24


class Piece(NamedTuple):
    """Links of the pages first .. first + len(counts) - 1."""

    range: int  # the pages' range
    first: int
    counts: np.ndarray  # int64, links of each page
    target: np.ndarray  # int32, ascending within a page
    read: int  # hashes read
    unknown: int  # links to unknown pages
    own: int  # links of a page to itself
    parallel: int  # repeated links between two pages


class _Task(NamedTuple):
    range: int
    first: int  # page
    last: int  # page behind the last one


def found(spill: Spill, pages: Pages, threads: int) -> Iterator[Piece]:
    """All links in pieces, in page order; no piece spans two ranges. Independent of the number of threads."""
    sources = _Sources(spill, pages)

    def resolve(task: _Task) -> Piece:
        hashed, starts, lengths, ends = sources.read(task)
        to_row = np.empty(len(hashed), np.int32)
        hashes.find_all(pages.table, pages.keys, hashed, to_row)
        target = np.empty(int(lengths.sum()), np.int32)
        counts = np.empty(task.last - task.first, np.int64)
        unknown, own = _gather(to_row, pages.page, starts, lengths, ends, task.first, target, counts)
        kept = int(counts.sum())
        parallel = len(target) - unknown - own - kept
        return Piece(
            task.range, task.first, counts, target[:kept].copy(), len(target), unknown, own, parallel
        )

    return in_order(resolve, sources.tasks(), threads)


def between_sites(piece: Piece, site: np.ndarray, many: int) -> tuple[np.ndarray, np.ndarray]:
    """Links between sites: source * many + target, each pair once, and its number of links."""
    source = np.repeat(site[piece.first : piece.first + len(piece.counts)].astype(np.int64), piece.counts)
    target = site[piece.target]
    pairs = (source * many + target)[source != target]
    return np.unique(pairs, return_counts=True)


class _Sources:
    """Locates the hashes of each page: in its own row and in rows of its copies, in any range."""

    def __init__(self, spill: Spill, pages: Pages) -> None:
        self._spill, self._pages = spill, pages
        links = spill.rows.links
        rows = np.flatnonzero((links > 0) & (pages.content == np.arange(len(links))))
        page = pages.page[rows]
        # Rows with links, by their page.
        self._rows = rows[np.argsort(page, kind="stable")]
        self._end_of_page = np.cumsum(np.bincount(page, minlength=pages.many))
        self._links = links
        self._first_link = np.zeros(len(links) + 1, np.int64)
        np.cumsum(links, out=self._first_link[1:])

    def tasks(self) -> Iterator[_Task]:
        """Neighbouring pages of one range with about PIECE_LINKS hashes, or one larger page."""
        total = np.concatenate(([0], np.cumsum(self._links[self._rows], dtype=np.int64)))
        before = np.concatenate(([0], total[self._end_of_page]))
        bounds = np.searchsorted(self._pages.row, self._spill.first)
        for number, (first, end) in enumerate(pairwise(bounds.tolist())):
            while first < end:
                last = int(np.searchsorted(before, before[first] + PIECE_LINKS, "right")) - 1
                last = min(max(last, int(first) + 1), int(end))
                yield _Task(number, int(first), last)
                first = last

    def read(self, task: _Task) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Hashes; start and count of each row's hashes; and per page, the number of rows up to its end."""
        begin = int(self._end_of_page[task.first - 1]) if task.first else 0
        ends = self._end_of_page[task.first : task.last] - begin
        rows = self._rows[begin : begin + int(ends[-1])]
        lengths = self._links[rows]
        low, high = int(self._pages.row[task.first]), int(self._pages.row[task.last - 1])
        near = (rows >= low) & (rows <= high)
        starts = self._first_link[rows] - self._first_link[low]
        held = int(self._first_link[high + 1] - self._first_link[low])
        parts = [self._spill.links(task.range, self._in_file(task.range, low), held)]
        for place in np.flatnonzero(~near):
            parts.append(self._of_row(int(rows[place])))
            starts[place] = held
            held += len(parts[-1])
        return np.concatenate(parts) if len(parts) > 1 else parts[0], starts, lengths, ends

    def _of_row(self, row: int) -> np.ndarray:
        number = int(np.searchsorted(self._spill.first, row, "right")) - 1
        return self._spill.links_of_row(number, self._in_file(number, row), int(self._links[row]))

    def _in_file(self, number: int, row: int) -> int:
        return int(self._first_link[row] - self._first_link[self._spill.first[number]])


@compiled
def _gather(
    to_row: np.ndarray,
    page: np.ndarray,
    starts: np.ndarray,
    lengths: np.ndarray,
    ends: np.ndarray,
    first: int,
    target: np.ndarray,
    counts: np.ndarray,
) -> tuple[int, int]:
    """Fills `target` and `counts` per page; returns the numbers of unknown links and links to the page itself."""
    unknown, own, kept, row = 0, 0, 0, 0
    for place in range(len(ends)):
        begin = kept
        while row < ends[place]:
            for link in range(starts[row], starts[row] + lengths[row]):
                to = page[to_row[link]] if to_row[link] >= 0 else -1
                if to < 0:
                    unknown += 1
                elif to == first + place:
                    own += 1
                else:
                    target[kept] = to
                    kept += 1
            row += 1
        kept = begin + _distinct(target[begin:kept])
        counts[place] = kept - begin
    return unknown, own


@compiled
def _distinct(values: np.ndarray) -> int:
    if len(values) > _FEW:
        values.sort()
    else:
        for place in range(1, len(values)):
            value = values[place]
            hole = place
            while hole > 0 and values[hole - 1] > value:
                values[hole] = values[hole - 1]
                hole -= 1
            values[hole] = value
    kept = 0
    for place in range(len(values)):
        if place == 0 or values[place] != values[place - 1]:
            values[kept] = values[place]
            kept += 1
    return kept


# Pairs held before they are added up; bounds memory.
_HELD_PAIRS = 4_000_000


class SitePairs:
    """Number of links between each pair of sites."""

    def __init__(self, sites: int) -> None:
        self._sites = sites
        self._pairs: list[np.ndarray] = []
        self._weights: list[np.ndarray] = []

    def add(self, pairs: np.ndarray, weights: np.ndarray) -> None:
        """Adds distinct pairs, as `between_sites` returns them."""
        self._pairs.append(pairs)
        self._weights.append(weights)
        if sum(map(len, self._pairs[1:])) > _HELD_PAIRS:
            self._add_up()

    def edges(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Source, target and weight of each pair, in order."""
        self._add_up()
        source, target = np.divmod(self._pairs[0], max(1, self._sites))
        return source, target, self._weights[0]

    def _add_up(self) -> None:
        pairs = np.concatenate([np.zeros(0, np.int64), *self._pairs])
        weights = np.concatenate([np.zeros(0, np.int64), *self._weights])
        distinct, place = np.unique(pairs, return_inverse=True)
        summed = np.bincount(place, weights=weights, minlength=len(distinct)).astype(np.int64)
        self._pairs, self._weights = [distinct], [summed]


def write_links(
    folder: Path, pieces: Iterable[Piece], numbering: Numbering, ranges: int
) -> tuple[SitePairs, Counter[str]]:
    """Writes all links, one Parquet file per range; returns pairs of sites and link counts."""
    counts: Counter[str] = Counter()
    pairs = SitePairs(numbering.many)
    per_page = np.zeros(int(numbering.first_page[-1]), np.int64)
    files = [writing.table_writer(folder / f"links-{number:05}.parquet", "links") for number in range(ranges)]
    (folder / "graph").mkdir()
    try:
        with arrays.GrowingArray(folder / "graph/target.npy", np.int32) as target:
            for piece in pieces:
                per_page[piece.first : piece.first + len(piece.counts)] = piece.counts
                if len(piece.target):
                    files[piece.range].write_table(_table(piece), row_group_size=len(piece.target))
                target.append(piece.target)
                pairs.add(*between_sites(piece, numbering.site, numbering.many))
                for name in ("read", "unknown", "own", "parallel"):
                    counts[name] += getattr(piece, name)
            counts["links"] = target.length
    finally:
        for file in files:
            file.close()
    arrays.save_array(folder / "graph/ptr.npy", np.concatenate(([0], np.cumsum(per_page))).astype(np.int64))
    return pairs, counts


def write_blocks(folder: Path, numbering: Numbering, community: np.ndarray) -> None:
    """Writes first pages, domains and communities of the sites."""
    arrays.save_array(folder / "graph/site.npy", numbering.first_page)
    arrays.save_array(folder / "graph/domain.npy", numbering.domain)
    arrays.save_array(folder / "graph/community.npy", community)


def _table(piece: Piece) -> pa.Table:
    page = np.arange(piece.first, piece.first + len(piece.counts), dtype=np.int32)
    arrays = [pa.array(np.repeat(page, piece.counts)), pa.array(piece.target)]
    return pa.Table.from_arrays(arrays, schema=writing.SCHEMAS["links"])
