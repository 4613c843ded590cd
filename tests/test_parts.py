"""Graphs in parts against the same graphs whole: every mode, however the blocks are dealt out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankers import Graph, parts, rank
from rankers.parts import BlockGraph, Far, Part

MODES = ("seed", "product", "exact")
Edges = tuple[np.ndarray, np.ndarray, np.ndarray]


def web(pages: int, blocks: int, links: int, seed: int = 0) -> Edges:
    """Source, target and block of a web where most links stay in their block, and some blocks are popular."""
    rng = np.random.default_rng(seed)
    block = np.sort((blocks * rng.random(pages) ** 2).astype(np.int64))
    source = rng.integers(0, pages, links)
    first, size = np.searchsorted(block, block), np.bincount(block, minlength=blocks)[block]
    inside = first[source] + (rng.random(links) ** 2 * size[source]).astype(np.int64)
    anywhere = (pages * rng.random(links) ** 3).astype(np.int64)
    target = np.where(rng.random(links) < 0.8, inside, anywhere)
    return source[source % 11 > 0], target[source % 11 > 0], block * 7 - 3


class World:
    """All parts of a graph in one process: block b lies in part deal[b]."""

    def __init__(self, source: np.ndarray, target: np.ndarray, block: np.ndarray, deal: np.ndarray) -> None:
        _, number = np.unique(block, return_inverse=True)
        part = deal[number]
        self.pages = [np.flatnonzero(part == one) for one in np.unique(deal)]
        self.pages = [pages[np.argsort(block[pages], kind="stable")] for pages in self.pages]
        part = np.searchsorted(np.unique(deal), part)
        row = np.empty(len(block), np.int64)
        for pages in self.pages:
            row[pages] = np.arange(len(pages))
        self.parts = []
        for one, pages in enumerate(self.pages):
            ours = part[source] == one
            near, far = ours & (part[target] == one), ours & (part[target] != one)
            to = target[far]
            built = Part.build(
                block[pages],
                row[source[near]],
                row[target[near]],
                Far(row[source[far]], part[to], row[to], block[to]),
            )
            self.parts.append(Part.unpack(built.pack()))
        self.rounds = 0

    def rank(self, mode: str, damping: float = 0.85, tolerance: float = 1e-10) -> np.ndarray:
        pages, blocks = (
            sum(part.pages for part in self.parts),
            BlockGraph([part.reach for part in self.parts]),
        )
        ranks = [parts.ranks_within(part, damping, tolerance) for part in self.parts]
        if mode == "seed":
            flows = [parts.counted(part) for part in self.parts]
        else:
            flows = [parts.weighed(*one) for one in zip(self.parts, ranks, strict=True)]
        factors = blocks.factors(flows, damping, tolerance, alike=mode == "seed")
        ranks = self._scaled(ranks, factors)
        left = 0.0 if mode != "exact" else 1.0
        while left > tolerance:
            swept = self._round(ranks, pages, damping)
            ranks, left = [one.rank for one in swept], parts.residual(swept, damping)
            self.rounds += 1
            if left > tolerance:
                flows = [parts.weighed(*one) for one in zip(self.parts, ranks, strict=True)]
                ranks = self._scaled(ranks, blocks.factors(flows, damping, min(1e-3, left / 10)))
        whole = np.empty(pages)
        for own, found in zip(self.pages, ranks, strict=True):
            whole[own] = found
        return whole / whole.sum()

    def _scaled(self, ranks: list[np.ndarray], factors: list[np.ndarray]) -> list[np.ndarray]:
        return [parts.scaled(*one) for one in zip(self.parts, ranks, factors, strict=True)]

    def _round(self, ranks: list[np.ndarray], pages: int, damping: float) -> list[parts.Swept]:
        heard: list[list] = [[] for _ in self.parts]
        for part, own in zip(self.parts, ranks, strict=True):
            for told in parts.tell(part, own):
                heard[told.part].append((told.row, told.value))
        return [
            parts.sweep(part, own, one, pages, damping)
            for part, own, one in zip(self.parts, ranks, heard, strict=True)
        ]


def dealt(block: np.ndarray, many: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, many, len(np.unique(block)))


@pytest.mark.parametrize("many", [1, 2, 30])
@pytest.mark.parametrize("mode", MODES)
def test_parts_are_ranked_as_the_whole(mode: str, many: int) -> None:
    source, target, block = web(3000, 200, 24_000)
    whole = rank(Graph.from_edges(source, target, block), mode, tolerance=1e-10)
    found = World(source, target, block, dealt(block, many)).rank(mode)
    assert np.abs(found - whole).sum() < 1e-8


def test_few_rounds_are_enough() -> None:
    """Each is an exchange over a network: without block ranks between sweeps there would be some 24."""
    source, target, block = web(20_000, 2000, 160_000)
    world = World(source, target, block, dealt(block, 16))
    world.rank("exact", tolerance=1e-8)
    assert world.rounds <= 11


@settings(deadline=None)
@given(st.integers(1, 20), st.data())
def test_any_graph_in_any_parts(pages: int, data: st.DataObject) -> None:
    page = st.integers(0, pages - 1)
    links = data.draw(st.lists(st.tuples(page, page), max_size=60))
    source, target = np.array(links or np.zeros((0, 2)), np.int64).T
    block = np.sort(np.array(data.draw(st.lists(st.integers(-5, 5), min_size=pages, max_size=pages))))
    many = len(np.unique(block))
    deal = np.array(data.draw(st.lists(st.integers(0, 3), min_size=many, max_size=many)))
    damping = data.draw(st.sampled_from([0.0, 0.5, 0.85]))
    graph = Graph.from_edges(source, target, block)
    for mode in MODES:
        whole = rank(graph, mode, damping=damping, tolerance=1e-12)
        assert np.abs(World(source, target, block, deal).rank(mode, damping, 1e-12) - whole).sum() < 1e-9


def test_a_part_packs_and_unpacks() -> None:
    source, target, block = web(300, 20, 2000)
    for part in World(source, target, block, dealt(block, 3)).parts:
        packed = part.pack()
        assert Part.unpack(packed).pack() == packed
        assert set(packed) == set(parts.TYPES)


def test_links_count_once_and_those_to_itself_not_at_all() -> None:
    source, target, block = web(300, 20, 2000)
    deal = dealt(block, 3)
    once = World(source, target, block, deal).parts
    own = np.arange(300)
    again = World(
        np.concatenate([source, source[::-1], own]), np.concatenate([target, target[::-1], own]), block, deal
    ).parts
    assert [part.pack() for part in again] == [part.pack() for part in once]
