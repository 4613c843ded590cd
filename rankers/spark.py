"""Ranks more pages than one machine holds: the modes of rankers, by Spark.

    python -m rankers.spark FOLDER --mode exact --master local[2]

FOLDER: output of `scrapy convert`, or pages*.parquet (url_hash, site_hash) and links*.parquet (source_hash,
target_hash). Spark distributes parts of whole blocks (rankers.parts) and their messages; the driver has the block
graph. Losing a machine ends the run, unless --checkpoints names a folder that survives. Complete with _SUCCESS.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rankers import extras

try:
    import pyarrow as pa
except ImportError as error:
    if __name__ != "__main__":
        raise
    # The options need the library: exit with the code of a wrong option.
    sys.exit(extras.told_at_end("rankers.spark", error))

from rankers import NAMES, check_numbers, folder, packed, parts
from rankers.graph import BLOCKS
from rankers.packed import array, ddl
from rankers.parts import BlockGraph, Flow, Reach, Swept
from rankers.problem import RankError, not_reached

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Takes 25 MB in the cache with its links, and ten times that while it is built.
PAGES_PER_PART = 250_000
# Several per core: parts differ in size.
PARTS_PER_CORE = 4
# Tolerance of the start of `exact`, which need not be closer than the product.
START_TOLERANCE = 1e-3
# 1e-8 takes about ten; a damping near 1 needs more.
MOST_ROUNDS = 500

# Called after each round with its number and residual.
Progress = Callable[[int, float], None]


class SparkError(Exception):
    """No input, or no Spark; says what is expected."""


class Input(NamedTuple):
    """The pages and links to rank."""

    pages: DataFrame  # page, block: bigint; each page once
    links: DataFrame  # source, target: bigint; links of unknown pages are ignored
    key: str  # the folder's name of the page column


class Ranked(NamedTuple):
    """The result."""

    pages: DataFrame  # page, block, rank; ranks sum to 1; unordered
    rounds: int  # rounds of `exact`; 0 in the other modes
    residual: float  # of `exact`: upper bound, L1


# --- Input ---


def read(spark: SparkSession, place: str, block: str = "site") -> Input:
    """Reads a folder. Raises SparkError for unknown columns, FolderError for damaged files.

    Digests are compared if a local folder has a manifest.
    """
    if (Path(place) / folder.MANIFEST).is_file():
        names = folder.read_manifest(Path(place))["files"]
        folder.check(Path(place), [name for name in names if name.startswith(("pages-", "links-"))])
    pages, links = (spark.read.parquet(f"{place}/{name}*.parquet") for name in ("pages", "links"))
    there = {*pages.columns, *links.columns}
    if {"page_id", f"{block}_id", "source", "target"} <= there:
        return _input(pages, "page_id", f"{block}_id", links, "source", "target")
    if block == "site" and {"url_hash", "site_hash", "source_hash", "target_hash"} <= there:
        found = _input(pages, "url_hash", "site_hash", links, "source_hash", "target_hash")
        _check_once(found.pages)
        return found
    raise SparkError(
        f"{place} has the columns {', '.join(sorted(there))}; expected page_id, {block}_id, source and target, or "
        "url_hash, site_hash, source_hash and target_hash (blocks by site)"
    )


def _input(pages: DataFrame, key: str, block: str, links: DataFrame, source: str, target: str) -> Input:
    return Input(
        pages.selectExpr(f"bigint({key}) page", f"bigint({block}) block"),
        links.selectExpr(f"bigint({source}) source", f"bigint({target}) target"),
        key,
    )


def _check_once(pages: DataFrame) -> None:
    # Equal hashes would merge the links of two pages; docs/decisions/0005-past-one-machine.md has the probability.
    twice = pages.groupBy("page").count().where("count > 1").first()
    if twice:
        raise SparkError(f"{twice['count']} pages have the url_hash {twice['page']}; expected each hash once")


# --- Ranking ---


def rank(
    given: Input,
    mode: str = "exact",
    *,
    many: int,
    damping: float = 0.85,
    tolerance: float = 1e-8,
    reliable: bool = False,
    progress: Progress = lambda _round, _residual: None,
) -> Ranked:
    """The ranks of at least one page, in `many` parts. Raises RankError.

    `reliable`: write each round to the context's checkpoint folder.
    """
    graph = _dealt(given, many)
    start = max(tolerance, START_TOLERANCE) if mode == "exact" else tolerance
    state = _State.of(_within(graph, mode, damping, start), reliable)
    reaches = _reaches(graph)
    blocks = BlockGraph(reaches)
    factors = blocks.factors(state.flows, damping, start, alike=mode == "seed")
    if mode != "exact":
        return Ranked(_answer(graph, state, factors), 0, 0.0)
    pages = sum(int(reach.size.sum()) for reach in reaches)
    for number in range(1, MOST_ROUNDS + 1):
        state = _State.of(_round(graph, state, factors, pages, damping), reliable)
        left = parts.residual(state.swept, damping)
        progress(number, left)
        if left <= tolerance:
            return Ranked(_answer(graph, state, [np.ones(len(f.mass)) for f in state.flows]), number, left)
        factors = blocks.factors(state.flows, damping, min(START_TOLERANCE, left / 10))
    raise not_reached("exact ranks", tolerance, MOST_ROUNDS, left)


class _State(NamedTuple):
    """All parts after a round; lists are ordered by part number."""

    frame: DataFrame  # columns of packed.STATE
    number: list[int]
    flows: list[Flow]
    swept: list[Swept]  # without ranks, which stay in `frame`

    @classmethod
    def of(cls, made: DataFrame, reliable: bool) -> _State:
        """Computes the frame once; without a checkpoint each round would compute earlier ones twice."""
        frame = made.checkpoint() if reliable else made.localCheckpoint()
        rows = _in_order(frame.drop("rank"))
        return cls(
            frame,
            [row["part"] for row in rows],
            [Flow(*(np.frombuffer(row[name], np.float64) for name in Flow._fields)) for row in rows],
            [Swept(np.zeros(0), row["moved"], row["passed"]) for row in rows],
        )


def _dealt(given: Input, many: int) -> DataFrame:
    """The parts, cached: columns of packed.PARTS.

    A block's part is a hash of its label, so a repeated task gives the same part.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    within = Window.partitionBy("part").orderBy("block", "page")
    placed = given.pages.withColumn("part", f.expr(f"int(pmod(xxhash64(block), {many}))"))
    placed = placed.withColumn("row", f.row_number().over(within) - 1).persist()
    here = placed.selectExpr("page source", "part", "row")
    there = placed.selectExpr("page target", "part to_part", "row to_row", "block")
    links = given.links.join(here, "source").join(there, "target").drop("source", "target")
    rows = placed.unionByName(links, allowMissingColumns=True).repartition(many, "part")
    made = rows.sortWithinPartitions("part").mapInArrow(packed.build, ddl(packed.PARTS))
    # mapInArrow loses the partitioning: partition once more, so that rounds move no parts.
    dealt = made.repartition(many, "part").persist()
    dealt.count()
    placed.unpersist()
    return dealt


def _reaches(graph: DataFrame) -> list[Reach]:
    rows = _in_order(graph.select("part", "label", "block_start", "pair_block", "pair_label"))
    return [
        Reach(
            array(row, "label"),
            np.diff(array(row, "block_start")),
            array(row, "pair_block"),
            array(row, "pair_label"),
        )
        for row in rows
    ]


def _in_order(frame: DataFrame) -> list[dict[str, Any]]:
    return sorted(frame.toArrow().to_pylist(), key=lambda row: int(row["part"]))


def _within(graph: DataFrame, mode: str, damping: float, tolerance: float) -> DataFrame:
    work = partial(packed.rank_within, mode=mode, damping=damping, tolerance=tolerance)
    return graph.drop("page").mapInArrow(work, ddl(packed.STATE))


def _round(
    graph: DataFrame, state: _State, factors: list[np.ndarray], pages: int, damping: float
) -> DataFrame:
    from pyspark.sql import functions as f

    bare = graph.drop("page")
    scaled = bare.join(state.frame.select("part", "rank"), "part").join(
        _by_part(graph, state, factors), "part"
    )
    messages = scaled.mapInArrow(packed.tell, ddl(packed.TOLD))
    heard = messages.groupBy("part").agg(f.collect_list(f.struct("origin", "row", "value")).alias("heard"))
    return bare.join(heard, "part").mapInArrow(
        partial(packed.sweep, pages=pages, damping=damping), ddl(packed.STATE)
    )


def _answer(graph: DataFrame, state: _State, factors: list[np.ndarray]) -> DataFrame:
    total = sum(float(flow.mass @ factor) for flow, factor in zip(state.flows, factors, strict=True))
    ranks = graph.select("part", "page", "label", "block_start").join(
        state.frame.select("part", "rank"), "part"
    )
    scaled = ranks.join(_by_part(graph, state, [factor / total for factor in factors]), "part")
    return scaled.mapInArrow(packed.spread, ddl(packed.ANSWER))


def _by_part(graph: DataFrame, state: _State, factors: list[np.ndarray]) -> DataFrame:
    rows = {"part": pa.array(state.number, pa.int32()), "factor": [factor.tobytes() for factor in factors]}
    return graph.sparkSession.createDataFrame(pa.table(rows))


# --- The command ---


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0: done; 1: failed; 2: invalid arguments."""
    given = _given(arguments)
    try:
        with _Session(given.master, given.checkpoints) as spark:
            figures = _run(spark, given)
    except _errors() as error:
        print(f"rankers.spark: {_one_line(error)}", file=sys.stderr)
        return 1
    print(json.dumps(figures, indent=2) if given.json else _text(figures))
    return 0


def _given(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m rankers.spark", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "folder", metavar="FOLDER", help="output of convert, or pages*.parquet and links*.parquet"
    )
    parser.add_argument("--mode", default="exact", choices=sorted(NAMES), help="default exact")
    parser.add_argument("--block", default="site", choices=BLOCKS, help="default site")
    parser.add_argument("--damping", type=float, default=0.85, help="default 0.85")
    parser.add_argument("--tolerance", type=float, default=1e-8, help="L1, default 1e-8")
    parser.add_argument("--out", help="default FOLDER/ranks/spark-MODE-BLOCK; is replaced")
    parser.add_argument(
        "--parts", type=int, default=0, help=f"default: parts of at most {PAGES_PER_PART} pages"
    )
    parser.add_argument("--master", help="such as local[2]; default: spark-submit's, else local[*]")
    parser.add_argument("--checkpoints", help="a folder reachable from all machines")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    given = parser.parse_args(arguments)
    try:
        extras.require("pyspark", "pandas", "numba", "pyarrow")
        check_numbers(given.damping, given.tolerance)
    except ValueError as error:
        parser.error(str(error))
    if given.out and os.path.normpath(given.out) == os.path.normpath(given.folder):
        parser.error(f"--out is {given.out!r}, the input folder; expected another one")
    if given.parts < 0:
        parser.error(f"--parts is {given.parts}; expected an integer >= 1, or 0 for the default")
    return given


class _Session:
    """An existing Spark session, or a new one that is stopped at the end."""

    def __init__(self, master: str | None, checkpoints: str | None) -> None:
        self._master, self._checkpoints = master, checkpoints
        self._ours: SparkSession | None = None

    def __enter__(self) -> SparkSession:
        spark = _active()
        if spark is None:
            spark = self._ours = _start(self._master)
        if self._checkpoints:
            spark.sparkContext.setCheckpointDir(self._checkpoints)
        # A row is a part: merging small partitions would leave few tasks.
        spark.conf.set("spark.sql.adaptive.coalescePartitions.enabled", "false")
        return spark

    def __exit__(self, *error: object) -> None:
        if self._ours:
            self._ours.stop()


def _active() -> SparkSession | None:
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def _start(master: str | None) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("rank").config("spark.ui.showConsoleProgress", "false")
    if not master and "PYSPARK_GATEWAY_PORT" not in os.environ:  # which spark-submit sets
        master = "local[*]"
    if master:
        builder = builder.master(master)
    if master and master.startswith("local"):
        # Listen on loopback only; workers use this Python.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = builder.config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
        builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.log.level", "OFF")
    return builder.getOrCreate()


def _errors() -> tuple[type[Exception], ...]:
    ours = (SparkError, RankError, folder.FolderError, OSError)
    try:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException
    except ImportError:
        return ours
    return (*ours, PySparkException, Py4JError)


def _run(spark: SparkSession, given: argparse.Namespace) -> dict[str, Any]:
    begun = time.perf_counter()
    found = read(spark, given.folder, given.block)
    pages = found.pages.count()
    if not pages:
        raise SparkError(f"{given.folder} has no pages; expected one or more")
    many = given.parts or max(
        PARTS_PER_CORE * spark.sparkContext.defaultParallelism, -(-pages // PAGES_PER_PART)
    )
    spark.conf.set("spark.sql.shuffle.partitions", str(many))
    ranked = rank(
        found,
        given.mode,
        many=many,
        damping=given.damping,
        tolerance=given.tolerance,
        reliable=bool(given.checkpoints),
        progress=_shown,
    )
    out = given.out or f"{given.folder}/ranks/spark-{given.mode}-{given.block}"
    _write(ranked.pages, out, found.key, given.block)
    return {
        "pages": pages,
        "parts": many,
        "rounds": ranked.rounds,
        "residual": ranked.residual,
        "seconds": round(time.perf_counter() - begun, 3),
        "out": out,
    }


def _write(pages: DataFrame, out: str, key: str, block: str) -> None:
    # Blocks first, so that the pages' _SUCCESS means that all is complete.
    plural = {"site": "sites", "domain": "domains", "community": "communities"}[block]
    sums = (
        pages.groupBy("block")
        .agg({"rank": "sum"})
        .toDF(f"{block}_id" if key == "page_id" else "site_hash", "rank")
    )
    sums.write.mode("overwrite").parquet(f"{out}/{plural}.parquet")
    pages.selectExpr(f"page {key}", "rank").write.mode("overwrite").parquet(f"{out}/pages.parquet")


def _shown(number: int, residual: float) -> None:
    print(f"round {number}: residual {residual:.2e}", file=sys.stderr)


def _text(figures: dict[str, Any]) -> str:
    return "\n".join(f"{name:<10}{value}" for name, value in figures.items())


def _one_line(error: Exception) -> str:
    """The root cause: the end of a worker's traceback, or Java's last cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    for mark in ("rankers.problem.RankError: ", "Caused by: "):
        found = [line.removeprefix(mark) for line in lines if line.startswith(mark)]
        if found:
            return found[-1]
    return lines[0]


if __name__ == "__main__":
    # Import under the module's own name, so that workers find its functions.
    from rankers.spark import main as named

    sys.exit(named())
