"""How important a page is, from the links between pages. Runs without Scrapy and Redis.

    ranks = rank(Graph.from_edges(source, target, block))
    ranks = rank(Graph.load("var/convert/20261119T001500Z", block="domain"), "product")

A way to rank, a mode, is one file here and one line in NAMES, or any dotted path: a function as rankers.problem.Ranker
says. The modes: exact (PageRank to a residual), product (BlockRank: ranks within blocks times ranks of blocks), seed
(BlockRank as paper 003 has it). Ranks are the same to the last bit however many cores there are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from rankers import extras
from rankers.graph import Graph

if TYPE_CHECKING:
    from rankers.problem import Progress, Ranker

__all__ = ["NAMES", "Graph", "Ranking", "check", "check_numbers", "rank", "ranking"]

# name -> dotted path. Read without importing a ranker, so that a command line is checked at once.
NAMES = {
    "exact": "rankers.exact.rank",
    "product": "rankers.product.rank",
    "seed": "rankers.seed.rank",
}


@dataclass(frozen=True)
class Ranking:
    """What a ranker found."""

    pages: np.ndarray  # by the caller's page ids; sums to 1
    blocks: (
        np.ndarray | None
    )  # of the blocks themselves, by graph.blocks.label; sums to 1; None: the mode has none
    sweeps: dict[str, int] = field(default_factory=dict)  # part -> how many it took


def rank(
    graph: Graph,
    mode: str = "exact",
    *,
    damping: float = 0.85,
    tolerance: float = 1e-8,
    personalisation: np.ndarray | None = None,
) -> np.ndarray:
    """A rank for each page, in the order of the caller's page ids; they sum to 1. No pages: an empty array.

    `damping` (0 up to below 1) is how often a link is followed; else one jumps, and so one does from a page without
    links. `personalisation` weighs pages by how often a jump lands there (at least 0 each, with any sum above 0); None:
    all alike. `tolerance` bounds the L1 residual of what the mode solves: of the ranks for exact, of the ranks within
    blocks and of blocks for product and seed. ValueError for arguments of another kind or an unknown mode,
    rankers.problem.RankError where the tolerance cannot be reached.
    """
    found = ranking(graph, mode, damping=damping, tolerance=tolerance, personalisation=personalisation)
    return found.pages


def ranking(
    graph: Graph,
    mode: str = "exact",
    *,
    damping: float = 0.85,
    tolerance: float = 1e-8,
    personalisation: np.ndarray | None = None,
    progress: Progress | None = None,
) -> Ranking:
    """The same with all else that was found; `progress` is told after every sweep."""
    ranker = _get(mode)
    check_numbers(damping, tolerance)
    teleport = graph.to_places(_weights(personalisation, graph.pages))
    if not graph.pages:
        return Ranking(np.zeros(0), None)
    from rankers.problem import Problem

    sweeps: dict[str, int] = {}

    def told(part: str, sweep: int, residual: float) -> None:
        sweeps[part] = sweep
        if progress:
            progress(part, sweep, residual)

    found = ranker(Problem(graph, teleport, damping, tolerance, told))
    ranks = graph.to_caller(_normal(mode, found.pages, graph.pages))
    return Ranking(ranks, found.blocks, sweeps)


def check(mode: str) -> str:
    """The dotted path that `mode` means; ValueError that lists the names if nothing is there."""
    if mode in NAMES:
        return NAMES[mode]
    module, _, attribute = mode.rpartition(".")
    if module and callable(_attribute(module, attribute)):
        return mode
    raise ValueError(
        f"mode is {mode!r}; expected one of {', '.join(NAMES)}, or a dotted path to a function of a problem"
    )


def check_numbers(damping: float, tolerance: float) -> None:
    """ValueError for a damping or a tolerance that no ranker can do anything with."""
    if not 0 <= damping < 1:
        raise ValueError(f"damping is {damping}; expected 0 up to below 1")
    if not 0 < tolerance < np.inf:
        raise ValueError(f"tolerance is {tolerance}; expected a number above 0")


def _get(mode: str) -> Ranker:
    module, _, attribute = check(mode).rpartition(".")
    return cast("Ranker", _attribute(module, attribute))


def _attribute(module: str, attribute: str) -> Any:
    from importlib import import_module

    try:
        return getattr(import_module(module), attribute, None)
    except ImportError as error:
        if told := extras.missing(error):
            raise told from None
        return None


def _weights(personalisation: np.ndarray | None, pages: int) -> np.ndarray:
    """By page, summing to 1."""
    if personalisation is None:
        return np.full(pages, 1 / max(pages, 1))
    try:
        given = np.asarray(personalisation, np.float64)
    except (TypeError, ValueError):
        raise ValueError(
            f"personalisation is {personalisation!r:.60}; expected a weight for each page"
        ) from None
    if given.shape != (pages,):
        raise ValueError(
            f"personalisation has the shape {given.shape}; expected a weight for each of {pages} pages"
        )
    wrong = np.flatnonzero(~np.isfinite(given) | (given < 0))
    if len(wrong):
        raise ValueError(
            f"personalisation[{wrong[0]}] is {given[wrong[0]]}; expected a finite weight of at least 0"
        )
    # By the largest first: the sum of huge weights is no number.
    most = given.max(initial=0.0)
    if pages and not most > 0:
        raise ValueError("personalisation is 0 for every page; expected a weight above 0 for one at least")
    return np.asarray(given / most / (given / most).sum()) if pages else given


def _normal(mode: str, ranks: np.ndarray, pages: int) -> np.ndarray:
    total = ranks.sum()
    if ranks.shape != (pages,) or not np.isfinite(total) or not total > 0 or ranks.min() < 0:
        raise ValueError(f"mode {mode} gave no rank of at least 0 for each of {pages} pages")
    return np.asarray(ranks / total)
