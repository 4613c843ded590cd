"""The links of a converted folder: Parquet for questions, npy for ranking; both written as they are found.

graph/ptr.npy     int64 (pages + 1,)   page i links to target[ptr[i]:ptr[i + 1]]
graph/target.npy  int32 (links,)       ascending within a page
graph/site.npy    int64 (sites + 1,)   first page of each site, the number of pages at the end
graph/domain.npy, graph/community.npy  int32 (sites,)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa

from crawler.convert import arrays, links, parquet
from crawler.convert.numbering import Numbering

# Pairs of sites that wait to be added up; bounds the memory for a web in which every link leads to another site.
_HELD_PAIRS = 4_000_000


class SitePairs:
    """How many links lead from one site to another, added up as they come."""

    def __init__(self, sites: int) -> None:
        self._sites = sites
        self._pairs: list[np.ndarray] = []
        self._weights: list[np.ndarray] = []

    def add(self, pairs: np.ndarray, weights: np.ndarray) -> None:
        """Takes in distinct pairs, as `links.between_sites` gives them."""
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
    folder: Path, pieces: Iterable[links.Piece], numbering: Numbering, ranges: int
) -> tuple[SitePairs, Counter[str]]:
    """Writes all links, one Parquet file a range; pairs of sites, and how many links there were and were left out."""
    counts: Counter[str] = Counter()
    pairs = SitePairs(numbering.many)
    per_page = np.zeros(int(numbering.first_page[-1]), np.int64)
    files = [parquet.writer(folder / f"links-{number:05}.parquet", "links") for number in range(ranges)]
    (folder / "graph").mkdir()
    try:
        with arrays.GrowingArray(folder / "graph/target.npy", np.int32) as target:
            for piece in pieces:
                per_page[piece.first : piece.first + len(piece.counts)] = piece.counts
                if len(piece.target):
                    files[piece.range].write_table(_table(piece), row_group_size=len(piece.target))
                target.append(piece.target)
                pairs.add(*links.between_sites(piece, numbering.site, numbering.many))
                for name in ("read", "unknown", "own", "parallel"):
                    counts[name] += getattr(piece, name)
            counts["links"] = target.length
    finally:
        for file in files:
            file.close()
    arrays.save(folder / "graph/ptr.npy", np.concatenate(([0], np.cumsum(per_page))).astype(np.int64))
    return pairs, counts


def write_blocks(folder: Path, numbering: Numbering, community: np.ndarray) -> None:
    """Writes which pages are whose."""
    arrays.save(folder / "graph/site.npy", numbering.first_page)
    arrays.save(folder / "graph/domain.npy", numbering.domain)
    arrays.save(folder / "graph/community.npy", community)


def _table(piece: links.Piece) -> pa.Table:
    page = np.arange(piece.first, piece.first + len(piece.counts), dtype=np.int32)
    arrays = [pa.array(np.repeat(page, piece.counts)), pa.array(piece.target)]
    return pa.Table.from_arrays(arrays, schema=parquet.SCHEMAS["links"])
