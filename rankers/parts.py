"""A graph split into parts of whole blocks: the computation of one part, and its messages to others. Pure.

Steps of BlockRank: ranks within blocks, weights of links between blocks, ranks of blocks, product. `exact` repeats them
with sweeps over each part; a round is one exchange between parts and one with the block graph. 9 to 11 rounds reach
1e-8. Callers (rankers.spark) deliver messages in the order of their origin. Ranks are not normalised here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import NamedTuple

import numpy as np

from rankers import exact
from rankers.block_graph import BlockLinks, block_ranks
from rankers.graph import Blocks, Graph, block_sums
from rankers.in_links import InLinks, split
from rankers.local import local_ranks
from rankers.problem import Problem
from rankers.rows import from_pairs

# Sweeps of a round: one costs another round, three save none (20,000 and 100,000 pages in 4 to 64 parts).
SWEEPS = 2


class Far(NamedTuple):
    """Links from rows of a part to pages of others; may have duplicates."""

    source: np.ndarray  # row here
    part: np.ndarray  # the target's part,
    row: np.ndarray  # its row there,
    block: np.ndarray  # and the label of its block


@dataclass(frozen=True)
class Part:
    """Whole blocks with their pages in rows 0 .. n - 1, block by block, and all links of these pages."""

    label: np.ndarray  # (blocks,) int64, ascending: global id of the block
    block_start: np.ndarray  # (blocks + 1,) int64
    degree: np.ndarray  # (n,) int32: all links of a page
    inner_degree: np.ndarray  # (n,) int32: those into its own block
    inner_start: np.ndarray  # links into each page from its block
    inner_source: np.ndarray
    outer_start: np.ndarray  # links into each page from other blocks of this part
    outer_source: np.ndarray
    far_start: np.ndarray  # links by target in other parts, ordered by (part, row)
    far_source: np.ndarray
    far_part: np.ndarray
    far_row: np.ndarray
    pair_block: np.ndarray  # pairs of blocks with links between them: this one's number here,
    pair_label: np.ndarray  # and that one's label
    outer_pair: np.ndarray  # pair of each outer link
    far_pair: np.ndarray  # pair of each far link

    @classmethod
    def build(cls, block: np.ndarray, source: np.ndarray, target: np.ndarray, far: Far) -> Part:
        """The part whose row i is in the block of label block[i] (ascending), with its inner and far links."""
        first = np.flatnonzero(np.diff(block, prepend=block[0] - 1)) if len(block) else np.zeros(0, np.int64)
        start = np.append(first, len(block)).astype(np.int64)
        ptr, targets = from_pairs(source.astype(np.int32), target.astype(np.int32), len(block))
        near = split(ptr, targets, start)
        far, far_start = _grouped(far)
        number = np.repeat(np.arange(len(first)), np.diff(start))
        to = np.repeat(np.arange(len(block)), np.diff(near.outer.start))
        pairs = _Pairs.of(
            np.concatenate((number[near.outer.source], number[far.source])),
            np.concatenate((block[to], np.repeat(far.block, np.diff(far_start)))),
        )
        outer = len(near.outer.source)
        made = {
            "label": block[first],
            "block_start": start,
            "degree": np.diff(ptr) + np.bincount(far.source, minlength=len(block)),
            "inner_degree": near.inner_degree,
            "inner_start": near.inner.start,
            "inner_source": near.inner.source,
            "outer_start": near.outer.start,
            "outer_source": near.outer.source,
            "far_start": far_start,
            "far_source": far.source,
            "far_part": far.part,
            "far_row": far.row,
            "pair_block": pairs.block,
            "pair_label": pairs.label,
            "outer_pair": pairs.of_link[:outer],
            "far_pair": pairs.of_link[outer:],
        }
        return cls(**{name: np.ascontiguousarray(array, TYPES[name]) for name, array in made.items()})

    def pack(self) -> dict[str, bytes]:
        """The arrays as bytes, by name."""
        return {field.name: getattr(self, field.name).tobytes() for field in fields(self)}

    @classmethod
    def unpack(cls, packed: Mapping[str, bytes]) -> Part:
        """The inverse of `pack`."""
        # Copied: for read-only arrays numba would compile all kernels again.
        return cls(**{name: np.frombuffer(packed[name], kind).copy() for name, kind in TYPES.items()})

    @cached_property
    def graph(self) -> Graph:
        """The part without links to other parts, which still count in `degree`."""
        inner, outer = (
            InLinks(self.inner_start, self.inner_source),
            InLinks(self.outer_start, self.outer_source),
        )
        return Graph(Blocks(self.label, self.block_start, None), inner, outer, self.degree, self.inner_degree)

    @property
    def pages(self) -> int:
        """Number of pages."""
        return len(self.degree)

    @property
    def reach(self) -> Reach:
        """The part's data for the block graph."""
        return Reach(self.label, np.diff(self.block_start), self.pair_block, self.pair_label)


class Reach(NamedTuple):
    """A part's blocks and the blocks that they link to."""

    label: np.ndarray
    size: np.ndarray  # pages of each block
    pair_block: np.ndarray
    pair_label: np.ndarray


_LONG = {"label", "block_start", "inner_start", "outer_start", "far_start", "pair_label"}
TYPES: dict[str, type] = {field.name: np.int64 if field.name in _LONG else np.int32 for field in fields(Part)}


class Flow(NamedTuple):
    """Weights of the links of a part's blocks, as shares of what a block passes on."""

    weight: np.ndarray  # by pair of the part
    itself: np.ndarray  # by block: share that stays
    mass: np.ndarray  # by block: sum of its pages' ranks


class Told(NamedTuple):
    """A message to another part: what links bring to some of its pages."""

    part: int  # the receiver
    row: np.ndarray  # int32, ascending
    value: np.ndarray  # float64


class Swept(NamedTuple):
    """A part after a round."""

    rank: np.ndarray  # by row
    moved: float  # change of rank on links since their targets were swept
    passed: float  # rank passed on along links


# --- Steps of a part ---


def ranks_within(part: Part, damping: float, tolerance: float) -> np.ndarray:
    """By row: ranks within each block, summing to 1."""
    alike = np.full(part.pages, 1.0)
    return local_ranks(Problem(part.graph, alike, damping, tolerance, _silent), tolerance)


def weighed(part: Part, rank: np.ndarray) -> Flow:
    """Links between blocks, weighted by the rank along them."""
    share = rank / np.maximum(part.degree, 1)
    mass = block_sums(rank, part.block_start)
    weight = _by_pair(part, share[part.outer_source], share[part.far_source]) / mass[part.pair_block]
    return Flow(weight, block_sums(share * part.inner_degree, part.block_start) / mass, mass)


def counted(part: Part) -> Flow:
    """Links between blocks, weighted by their number, for mode `seed`."""
    number = _by_pair(part, np.ones(len(part.outer_source)), np.ones(len(part.far_source)))
    blocks = len(part.label)
    leave = np.bincount(part.pair_block, number, blocks)
    return Flow(number / leave[part.pair_block], np.zeros(blocks), np.ones(blocks))


def scaled(part: Part, rank: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """The ranks times their block's factor."""
    return np.asarray(rank * np.repeat(factor, np.diff(part.block_start)))


def tell(part: Part, rank: np.ndarray) -> list[Told]:
    """Messages with what links bring to other parts, before damping; one per part, in order."""
    if not len(part.far_row):
        return []
    share = rank / np.maximum(part.degree, 1)
    value = np.add.reduceat(share[part.far_source], part.far_start[:-1])
    whom, first = np.unique(part.far_part, return_index=True)
    ends = np.append(first[1:], len(part.far_row))
    return [
        Told(int(other), part.far_row[begin:end], value[begin:end])
        for other, begin, end in zip(whom, first, ends, strict=True)
    ]


def sweep(
    part: Part, rank: np.ndarray, heard: Iterable[tuple[np.ndarray, np.ndarray]], pages: int, damping: float
) -> Swept:
    """One round of sweeps; `heard`: rows and values of each message; `pages`: of all parts."""
    base = np.zeros(part.pages)
    for row, value in heard:
        base[row] += value
    base = 1 / pages + damping * base
    before = begun = rank / np.maximum(part.degree, 1)
    own = np.empty(part.pages)
    arrays = part.graph.arrays
    for _ in range(SWEEPS):
        share = np.empty(part.pages)
        moved, passed = exact.sweep_blocks(
            0, len(part.label), arrays, base, damping, exact.ROUNDS, before, share, own
        )
        before = share
    exact.gather_ranks(0, len(part.label), arrays, base, damping, share, own)
    left = np.abs(share - begun) @ np.bincount(part.far_source, minlength=part.pages)
    return Swept(own, float(moved + left), float(passed))


# --- The block graph ---


class BlockGraph:
    """The blocks of all parts and their links; weights are new in each round."""

    def __init__(self, parts: Sequence[Reach]) -> None:
        label = np.concatenate([part.label for part in parts])
        self._ends = np.cumsum([len(part.label) for part in parts])[:-1]
        self._size = np.concatenate([part.size for part in parts])
        order = np.argsort(label)
        pair_label = np.concatenate([part.pair_label for part in parts])
        target = order[np.searchsorted(label, pair_label, sorter=order)]
        first = np.concatenate(([0], self._ends)).tolist()
        source = np.concatenate([part.pair_block + at for part, at in zip(parts, first, strict=True)])
        self._order = np.argsort(target, kind="stable")
        self._source = source[self._order].astype(np.int32)
        self._start = np.searchsorted(target[self._order], np.arange(len(label) + 1))

    def factors(
        self, flows: Sequence[Flow], damping: float, tolerance: float, *, alike: bool = False
    ) -> list[np.ndarray]:
        """By part and block: factors that give the blocks their ranks. Raises RankError.

        `alike`: jumps go to all blocks equally (mode `seed`) instead of to all pages.
        """
        weight = np.concatenate([flow.weight for flow in flows])[self._order]
        itself = np.concatenate([flow.itself for flow in flows])
        mass = np.concatenate([flow.mass for flow in flows])
        jump = np.ones(len(mass)) if alike else self._size
        links = BlockLinks(self._start[:-1], self._start[1:], self._source, weight, itself)
        rank = block_ranks(links, jump / jump.sum(), damping, tolerance, _silent)
        passed = rank @ itself + rank[self._source] @ weight
        return np.split(rank / ((1 - damping * passed) * mass), self._ends)


def residual(swept: Sequence[Swept], damping: float) -> float:
    """Upper bound of the L1 residual, for ranks that sum to 1."""
    moved, passed = sum(one.moved for one in swept), sum(one.passed for one in swept)
    return 2 * damping * moved / (1 + damping * passed)


# --- Arrays ---


class _Pairs(NamedTuple):
    """Distinct pairs of blocks, and each link's pair."""

    block: np.ndarray
    label: np.ndarray
    of_link: np.ndarray

    @classmethod
    def of(cls, block: np.ndarray, label: np.ndarray) -> _Pairs:
        labels, number = np.unique(label, return_inverse=True)
        pairs, of_link = np.unique(block * len(labels) + number, return_inverse=True)
        return cls(pairs // max(len(labels), 1), labels[pairs % max(len(labels), 1)], of_link)


def _grouped(far: Far) -> tuple[Far, np.ndarray]:
    """Each link once, grouped by target: `source` by link, the rest by target; and the starts of targets' links."""
    order = np.lexsort((far.source, far.row, far.part))
    source, part, row, block = (column[order] for column in far)
    same_target = (np.diff(part, prepend=-1) == 0) & (np.diff(row, prepend=-1) == 0)
    kept = ~(same_target & (np.diff(source, prepend=-1) == 0))
    first = ~same_target
    start = np.append(np.flatnonzero(first[kept]), kept.sum())
    return Far(source[kept], part[first], row[first], block[first]), start


def _by_pair(part: Part, outer: np.ndarray, far: np.ndarray) -> np.ndarray:
    pairs = len(part.pair_block)
    return np.bincount(part.outer_pair, outer, pairs) + np.bincount(part.far_pair, far, pairs)


def _silent(_part: str, _sweeps: int, _residual: float) -> None:
    """Parts report through their results."""
