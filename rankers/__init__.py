"""Ranks pages by the links between them. Needs neither Scrapy nor Redis.

    ranks = rank(Graph.from_edges(source, target, block))
    ranks = rank(Graph.load("var/convert/20261119T001500Z", block="domain"), "product")

Modes: exact (PageRank), product (weighted BlockRank), seed (BlockRank as in paper 003), or a dotted path to a Ranker.
Ranks do not depend on the number of cores.
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

# Name -> dotted path. Checked without importing a ranker, so that the command line starts fast.
NAMES = {
    "exact": "rankers.exact.rank",
    "product": "rankers.product.rank",
    "seed": "rankers.seed.rank",
}


@dataclass(frozen=True)
class Ranking:
    """The result of a ranking."""

    pages: np.ndarray  # by the caller's page ids; sums to 1
    blocks: (
        np.ndarray | None
    )  # ranks of the blocks, by graph.blocks.label; sums to 1; None: the mode has none
    sweeps: dict[str, int] = field(default_factory=dict)  # part -> sweeps


def rank(
    graph: Graph,
    mode: str = "exact",
    *,
    damping: float = 0.85,
    tolerance: float = 1e-8,
    personalisation: np.ndarray | None = None,
) -> np.ndarray:
    """A rank for each page, by the caller's page ids; they sum to 1. Without pages: an empty array.

    `damping` (0 <= damping < 1): probability to follow a link instead of a jump. `personalisation`: weights of pages
    as targets of jumps; None: all equal. `tolerance`: L1 residual of what the mode solves. Raises ValueError for
    invalid arguments, RankError if the tolerance cannot be reached.
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
    """As `rank`, with all results; calls `progress` after every sweep."""
    ranker = _get(mode)
    check_numbers(damping, tolerance)
    teleport = graph.to_places(_weights(personalisation, graph.pages))
    if not graph.pages:
        return Ranking(np.zeros(0), None)
    from rankers.problem import Problem

    sweeps: dict[str, int] = {}

    def report(part: str, sweep: int, residual: float) -> None:
        sweeps[part] = sweep
        if progress:
            progress(part, sweep, residual)

    found = ranker(Problem(graph, teleport, damping, tolerance, report))
    ranks = graph.to_caller(_normal(mode, found.pages, graph.pages))
    return Ranking(ranks, found.blocks, sweeps)


def check(mode: str) -> str:
    """The dotted path of a mode. Raises ValueError, with the names, for an unknown one."""
    if mode in NAMES:
        return NAMES[mode]
    module, _, attribute = mode.rpartition(".")
    if module and callable(_attribute(module, attribute)):
        return mode
    raise ValueError(f"mode is {mode!r}; expected one of {', '.join(NAMES)}, or a dotted path to a Ranker")


def check_numbers(damping: float, tolerance: float) -> None:
    """Raises ValueError for an invalid damping or tolerance."""
    if not 0 <= damping < 1:
        raise ValueError(f"damping is {damping}; expected 0 <= damping < 1")
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
        if missing := extras.missing(error):
            raise missing from None
        return None


def _weights(personalisation: np.ndarray | None, pages: int) -> np.ndarray:
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
            f"personalisation has shape {given.shape}; expected a weight for each of {pages} pages"
        )
    wrong = np.flatnonzero(~np.isfinite(given) | (given < 0))
    if len(wrong):
        raise ValueError(f"personalisation[{wrong[0]}] is {given[wrong[0]]}; expected a finite weight >= 0")
    # Divide by the largest first: the sum could overflow.
    most = given.max(initial=0.0)
    if pages and not most > 0:
        raise ValueError("personalisation is 0 for every page; expected at least one weight above 0")
    return np.asarray(given / most / (given / most).sum()) if pages else given


def _normal(mode: str, ranks: np.ndarray, pages: int) -> np.ndarray:
    total = ranks.sum()
    if ranks.shape != (pages,) or not np.isfinite(total) or not total > 0 or ranks.min() < 0:
        raise ValueError(f"mode {mode} returned invalid ranks; expected {pages} numbers >= 0")
    return np.asarray(ranks / total)
