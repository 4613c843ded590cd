"""One ranking of one folder: options, run, figures. Used by `python -m rankers` and `scrapy rank`.

User errors are those in `errors()`, each with a one-line text.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rankers.folder import FolderError
from rankers.graph import BLOCKS

if TYPE_CHECKING:
    import argparse

    from rankers import Graph, Ranking
    from rankers.problem import Progress

RANKS = "ranks"


@dataclass(frozen=True)
class Job:
    """What to rank, how, and where to write."""

    folder: Path  # output of convert
    mode: str = "exact"
    block: str = "site"
    damping: float = 0.85
    tolerance: float = 1e-8
    personalisation: Path | None = None  # rankers.weights; None: jumps go to all pages equally
    out: Path | None = None  # None: below the folder, by mode and block
    graphml: Path | None = None  # None: not written

    @property
    def target(self) -> Path:
        """The folder of the ranks."""
        return self.out or self.folder / RANKS / f"{self.mode}-{self.block}"


def add_options(parser: argparse.ArgumentParser, *, from_settings: bool = False) -> None:
    """Adds the options; with `from_settings`, options that have a setting default to None."""
    mode, block, damping = (None, None, None) if from_settings else (Job.mode, Job.block, Job.damping)
    parser.add_argument(
        "--mode",
        default=mode,
        help=f"exact, product (faster, near), seed (paper 003) or a dotted path (default: {mode or 'RANK_MODE'})",
    )
    parser.add_argument(
        "--block",
        choices=BLOCKS,
        default=block,
        help=f"group pages by (default: {block or 'RANK_BLOCK'})",
    )
    parser.add_argument(
        "--damping",
        type=float,
        default=damping,
        metavar="SHARE",
        help=f"probability to follow a link, 0 <= damping < 1 (default: {damping or 'RANK_DAMPING'})",
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        default=Job.tolerance,
        metavar="L1",
        help="L1 residual of ranks (default: 1e-8)",
    )
    parser.add_argument(
        "--personalisation",
        type=Path,
        metavar="FILE",
        help="weights of jumps: a .csv with page_id,weight or site_id,weight, or a .npy (default: all equal)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="write the ranks here (default: FOLDER/ranks/MODE-BLOCK)"
    )
    parser.add_argument(
        "--graphml", type=Path, metavar="FILE", help="also write the graph of blocks, with ranks"
    )


def job_of(opts: argparse.Namespace, folder: Path) -> Job:
    """The job of these options. Raises ValueError for invalid options and missing extras."""
    from rankers import check, check_numbers, extras

    extras.require("numba", "pyarrow", *(["networkx"] if opts.graphml else []))
    check(opts.mode)
    check_numbers(opts.damping, opts.tolerance)
    return Job(
        folder,
        opts.mode,
        opts.block,
        opts.damping,
        opts.tolerance,
        opts.personalisation,
        opts.out,
        opts.graphml,
    )


def run(job: Job, progress: Progress | None = None) -> dict[str, Any]:
    """Ranks the folder and writes the results; returns the figures."""
    from rankers import Graph, ranking, results, weights
    from rankers.graph import load_groups

    results.check_place(job.target)  # fail early; checked again when writing
    graph = Graph.load(job.folder, job.block)
    groups = load_groups(job.folder)
    wanted = None if job.personalisation is None else weights.read(job.personalisation, groups.site)
    found = ranking(
        graph,
        job.mode,
        damping=job.damping,
        tolerance=job.tolerance,
        personalisation=wanted,
        progress=progress,
    )
    figures = _figures(job, graph, found)
    results.write(
        job.target, graph, groups, found, job.block, {**figures, "personalisation": _digest(wanted)}
    )
    if job.graphml is not None:
        _write_graph(job, graph, found)
    return {**figures, "folder": str(job.target)}


def errors() -> tuple[type[Exception], ...]:
    """Exceptions of `run` that are shown to the user."""
    from rankers.problem import RankError

    return (FolderError, RankError, ValueError, OSError)


def told(error: Exception) -> str:
    """One line."""
    return " ".join(str(error).split()) or type(error).__name__


def text(figures: dict[str, Any]) -> str:
    """The figures as text."""
    sweeps = ", ".join(f"{part} {many}" for part, many in figures["sweeps"].items())
    return (
        f"{figures['pages']:,} pages with {figures['links']:,} links in {figures['blocks']:,} blocks ranked "
        f"({figures['mode']}, by {figures['block']}; {sweeps or 'no sweeps'})\n{figures['folder']}"
    )


def shown(out: TextIO = sys.stderr) -> Progress | None:
    """Shows sweeps in one line of a terminal; None if `out` is not a terminal."""
    if not out.isatty():
        return None

    def tell(part: str, sweep: int, residual: float) -> None:
        out.write(f"\r\x1b[2K{part}: sweep {sweep}, residual {residual:.1e}")
        out.flush()

    return tell


def end_shown(out: TextIO = sys.stderr) -> None:
    """Clears that line."""
    if out.isatty():
        out.write("\r\x1b[2K")
        out.flush()


def _figures(job: Job, graph: Graph, found: Ranking) -> dict[str, Any]:
    return {
        "mode": job.mode,
        "block": job.block,
        "damping": job.damping,
        "tolerance": job.tolerance,
        "pages": graph.pages,
        "links": graph.links,
        "blocks": len(graph.blocks.label),
        "sweeps": found.sweeps,
    }


def _digest(weights: Any) -> str | None:
    import hashlib

    return None if weights is None else hashlib.sha256(weights.tobytes()).hexdigest()


def _write_graph(job: Job, graph: Graph, found: Ranking) -> None:
    from rankers import reference

    assert job.graphml is not None
    made = reference.block_graph(graph, found.pages, damping=job.damping, names=_names(job))
    reference.write_graphml(made, job.graphml)


def _names(job: Job) -> list[str] | None:
    import pyarrow.parquet as pq

    path = job.folder / f"{job.block}s.parquet"
    if job.block == "community" or not path.is_file():
        return None
    return list(pq.read_table(path, columns=[job.block])[job.block].to_pylist())
