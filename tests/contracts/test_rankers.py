"""What every ranker promises, over all that are registered and one by dotted path.

A new ranker needs no line here: it is taken up by its entry in rankers.NAMES.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import rankers
from rankers import Graph, pieces, rank, ranking
from rankers.problem import Problem, Solution

OUTSIDER = "tests.contracts.outsider.most_linked"
MODES = (*rankers.NAMES, OUTSIDER)
# To which ranks of one graph in another order must be alike: sums are taken in that order.
ALIKE = 1e-6


class Links(NamedTuple):
    """What a caller has: links by page ids, and the block of each page."""

    source: np.ndarray
    target: np.ndarray
    block: np.ndarray

    def graph(self) -> Graph:
        return Graph.from_edges(*self)


def drawn(pages: int, links: int, blocks: int, seed: int = 1) -> Links:
    """Half of the links within blocks; pages of a block are not next to each other."""
    rng = np.random.default_rng(seed)
    block = rng.integers(-5, blocks - 5, pages)
    source, target = rng.integers(0, pages, (2, links))
    near = np.argsort(block, kind="stable")
    place = np.argsort(near)
    target[::2] = near[np.minimum(place[source[::2]] + 1, pages - 1)]
    return Links(source, target, block)


GRAPHS = {
    "one page": Links(*np.zeros((2, 0), int), np.zeros(1, int)),
    "one page that links to itself": Links(*np.zeros((2, 3), int), np.zeros(1, int)),
    "no links": Links(*np.zeros((2, 0), int), np.arange(7) % 3),
    "one block": drawn(40, 200, 1),
    "a block for each page": drawn(40, 200, 40)._replace(block=np.arange(40)),
    "blocks": drawn(300, 2000, 20),
    "many dangling": drawn(300, 80, 20),
    "two that know nothing of each other": Links(
        np.array([0, 1, 2, 3]), np.array([1, 0, 3, 2]), np.array([5, 5, 9, 9])
    ),
    "a ring": Links(np.arange(50), (np.arange(50) + 1) % 50, np.arange(50) // 10),
    "all link to one": Links(np.arange(1, 60), np.zeros(59, int), np.arange(60) % 4),
    "parallel links": Links(np.repeat([0, 1, 2], 50), np.repeat([1, 2, 1], 50), np.array([0, 0, 1])),
}
every_mode = pytest.mark.parametrize("mode", MODES)
every_graph = pytest.mark.parametrize("links", GRAPHS.values(), ids=list(GRAPHS))


def check(ranks: np.ndarray, pages: int) -> np.ndarray:
    """The ranks, after all that holds for any graph."""
    assert ranks.dtype == np.float64
    assert ranks.shape == (pages,)
    assert np.isfinite(ranks).all()
    assert (ranks >= 0).all()
    assert abs(ranks.sum() - 1) < 1e-9
    return ranks


@every_mode
@every_graph
def test_ranks_are_a_share_for_every_page(mode: str, links: Links) -> None:
    check(rank(links.graph(), mode), len(links.block))


@every_mode
def test_no_pages_have_no_ranks(mode: str) -> None:
    nothing = np.zeros(0, int)
    assert rank(Graph.from_edges(nothing, nothing, nothing), mode).shape == (0,)


@every_mode
@every_graph
def test_ranks_come_in_the_order_of_the_callers_ids(mode: str, links: Links) -> None:
    """Who calls his pages otherwise gets the same ranks under their other names, and so does who shuffles links."""
    rng = np.random.default_rng(3)
    name = rng.permutation(len(links.block))
    block = np.empty_like(links.block)
    block[name] = links.block
    shuffled = rng.permutation(len(links.source))
    other = Links(name[links.source[shuffled]], name[links.target[shuffled]], block)
    np.testing.assert_allclose(rank(other.graph(), mode)[name], rank(links.graph(), mode), atol=ALIKE)


@every_mode
def test_names_of_blocks_mean_nothing(mode: str) -> None:
    links = drawn(300, 2000, 20)
    other = links._replace(block=links.block * 1_000_003 - 2**40)
    np.testing.assert_array_equal(rank(links.graph(), mode), rank(other.graph(), mode))


@every_mode
@every_graph
def test_the_same_graph_gives_the_same_bits(mode: str, links: Links) -> None:
    first, second = rank(links.graph(), mode), rank(links.graph(), mode)
    assert first.tobytes() == second.tobytes()


@every_mode
def test_cores_change_no_bit(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "LEAST_WORK", 50)
    links = drawn(3000, 20_000, 300)
    found = []
    for cores in (1, 2, 7):
        monkeypatch.setattr(pieces, "cores", lambda cores=cores: cores)
        found.append(rank(links.graph(), mode).tobytes())
    assert len(set(found)) == 1


@every_mode
def test_who_is_preferred_gains(mode: str) -> None:
    links = drawn(300, 2000, 20)
    weights = np.ones(300)
    weights[17] = 100
    ranks = check(rank(links.graph(), mode, personalisation=weights), 300)
    assert ranks[17] > rank(links.graph(), mode)[17]


@every_mode
def test_of_a_personalisation_only_shares_count(mode: str) -> None:
    links = drawn(300, 2000, 20)
    weights = np.random.default_rng(5).random(300) + 0.1
    small, large = (rank(links.graph(), mode, personalisation=weights * by) for by in (1e-200, 1e300))
    np.testing.assert_allclose(small, large, atol=1e-12)
    alike = rank(links.graph(), mode, personalisation=np.full(300, 7.0))
    np.testing.assert_allclose(alike, rank(links.graph(), mode), atol=1e-12)


@every_mode
def test_a_weight_may_be_next_to_nothing(mode: str) -> None:
    links = drawn(300, 2000, 20)
    weights = np.where(links.block < 5, 1.0, 5e-324)
    check(rank(links.graph(), mode, personalisation=weights), 300)


@every_mode
@pytest.mark.parametrize("damping", [0.0, 0.5, 0.99])
def test_any_damping_goes(mode: str, damping: float) -> None:
    check(rank(drawn(300, 2000, 20).graph(), mode, damping=damping), 300)


@every_mode
def test_progress_ends_with_the_sweeps_that_are_told(mode: str) -> None:
    told: dict[str, int] = {}
    found = ranking(
        drawn(300, 2000, 20).graph(), mode, progress=lambda part, sweep, _: told.update({part: sweep})
    )
    assert told == found.sweeps


@every_mode
def test_block_ranks_are_one_for_each_block(mode: str) -> None:
    graph = drawn(300, 2000, 20).graph()
    blocks = ranking(graph, mode).blocks
    if blocks is not None:
        assert blocks.shape == graph.blocks.label.shape
        assert blocks.sum() == pytest.approx(1)


@pytest.mark.parametrize(
    "name", ["", "no", "Exact", "nowhere.at.all", "rankers.exact.nobody", "rankers.NAMES"]
)
def test_an_unknown_mode_is_told_the_right_ones(name: str) -> None:
    right = ", ".join(rankers.NAMES)
    with pytest.raises(ValueError, match=rf"mode is .*; expected one of {right}, or a dotted path"):
        rank(drawn(3, 3, 1).graph(), name)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"damping": 1.0}, "damping is 1.0; expected 0 <= damping < 1"),
        ({"damping": -0.1}, "damping is -0.1"),
        ({"damping": np.nan}, "damping is nan"),
        ({"tolerance": 0.0}, "tolerance is 0.0; expected a number above 0"),
        ({"tolerance": np.nan}, "tolerance is nan"),
        ({"tolerance": np.inf}, "tolerance is inf"),
        ({"personalisation": np.ones(4)}, r"has shape \(4,\); expected a weight for each of 3 pages"),
        ({"personalisation": np.zeros(3)}, "is 0 for every page"),
        ({"personalisation": np.array([1, -1, 1])}, r"personalisation\[1\] is -1.0; expected"),
        ({"personalisation": np.array([1, 1, np.nan])}, r"personalisation\[2\] is nan"),
        ({"personalisation": np.array([np.inf, 1, 1])}, r"personalisation\[0\] is inf"),
        ({"personalisation": "abc"}, "expected a weight for each page"),
    ],
    ids=lambda given: str(given)[:40],
)
@every_mode
def test_arguments_that_mean_nothing_are_refused(mode: str, given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        rank(drawn(3, 3, 1).graph(), mode, **given)


# --- that all this can fail ---


def gives_nan(problem: Problem) -> Solution:
    return Solution(np.full(problem.graph.pages, np.nan))


def gives_too_few(problem: Problem) -> Solution:
    return Solution(np.ones(problem.graph.pages - 1))


def gives_less_than_nothing(problem: Problem) -> Solution:
    return Solution(np.linspace(-0.1, 1, problem.graph.pages))


@pytest.mark.parametrize("ranker", [gives_nan, gives_too_few, gives_less_than_nothing])
def test_a_broken_ranker_is_named(ranker: Any) -> None:
    mode = f"{__name__}.{ranker.__name__}"
    with pytest.raises(ValueError, match=f"mode {mode} returned invalid ranks; expected 9 numbers >= 0"):
        rank(drawn(9, 20, 2).graph(), mode)


def test_the_suite_sees_ranks_in_another_order() -> None:
    links = GRAPHS["blocks"]
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(rank(links.graph())[::-1], rank(links.graph()), atol=ALIKE)
