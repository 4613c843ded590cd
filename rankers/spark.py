"""Ranks of more pages than one machine holds: the modes of rankers, by Spark.

    python -m rankers.spark FOLDER --mode exact --master local[2]

FOLDER is what `scrapy convert` wrote, or holds pages*.parquet (url_hash, site_hash) and links*.parquet (source_hash,
target_hash), anywhere that Spark reads from. Spark joins hashes and ids, deals whole blocks out to parts, and carries
what parts tell each other; what a part computes stands in rankers.parts, and is asked for once for all its blocks. The
links between blocks come together in the driver.

A part is one row, its arrays as bytes: so a round moves no row per page, and the links stay in Spark's cache where
they were put. Ranks equal those of one machine as near as the tolerance says. A machine that is lost in a round takes
the run with it, unless --checkpoints names a folder that outlives it. An answer is whole where its _SUCCESS is.
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
    # Its options could not be read without: the same last line and code that a wrong option has.
    sys.exit(extras.told_at_end("rankers.spark", error))

from rankers import NAMES, check_numbers, folder, packed, parts
from rankers.graph import BLOCKS
from rankers.packed import array, ddl
from rankers.parts import BlockGraph, Flow, Reach, Swept
from rankers.problem import RankError, not_reached

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# With its links such a part takes 25 MB in the cache, and ten times that in the process that makes it.
PAGES_PER_PART = 250_000
# Parts differ in size: several for each core let the cores end together.
PARTS_PER_CORE = 4
# The start of `exact` need not be nearer than the product is to the ranks.
START_TOLERANCE = 1e-3
# 1e-8 takes ten or so; a damping near 1 wants more.
MOST_ROUNDS = 500

# Told after each round: which it was, and the residual that is left.
Progress = Callable[[int, float], None]


class SparkError(Exception):
    """Nothing to rank, or no Spark to do it; says what came and what is expected."""


class Input(NamedTuple):
    """What is to be ranked."""

    pages: DataFrame  # page, block: bigint; each page once
    links: DataFrame  # source, target: bigint; links from and to other pages than those are left out
    key: str  # what the folder calls a page


class Ranked(NamedTuple):
    """What came out."""

    pages: DataFrame  # page, block, rank; ranks sum to 1; in no order
    rounds: int  # exchanges that `exact` took; 0 in the other modes
    residual: float  # of `exact`: L1, at most


# --- the input --------------------------------------------------------------------------------------------


def read(spark: SparkSession, place: str, block: str = "site") -> Input:
    """The pages and links of a folder. SparkError where it has other columns; FolderError where one is damaged.

    Digests are compared where the folder has a manifest and lies on this machine.
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
    """Two pages with one hash would each get the links of both; docs/decisions/0005-past-one-machine.md: how likely."""
    twice = pages.groupBy("page").count().where("count > 1").first()
    if twice:
        raise SparkError(f"{twice['count']} pages have the url_hash {twice['page']}; expected each hash once")


# --- ranking ----------------------------------------------------------------------------------------------


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
    """The ranks of one page or more, dealt out to `many` parts.

    `reliable`: what a round found is written to the context's checkpoint folder. RankError where the tolerance cannot
    be reached.
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
    """All parts after a round; lists are in the order of `number`."""

    frame: DataFrame  # columns of packed.STATE
    number: list[int]
    flows: list[Flow]
    swept: list[Swept]  # without ranks, which stay where they are

    @classmethod
    def of(cls, made: DataFrame, reliable: bool) -> _State:
        """Has it computed, once: without a checkpoint each round would compute all before it twice."""
        frame = made.checkpoint() if reliable else made.localCheckpoint()
        rows = _in_order(frame.drop("rank"))
        return cls(
            frame,
            [row["part"] for row in rows],
            [Flow(*(np.frombuffer(row[name], np.float64) for name in Flow._fields)) for row in rows],
            [Swept(np.zeros(0), row["moved"], row["passed"]) for row in rows],
        )


def _dealt(given: Input, many: int) -> DataFrame:
    """The parts, in the cache: columns of packed.PARTS.

    A block's part follows from its label alone, so that no table of blocks is needed and a lost task makes the same.
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
    # Spark forgets what mapInArrow's rows are partitioned by; dealt out once more, no round moves them again.
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
    """Rows by part; sorted here, as Spark would look at all twice for it."""
    return sorted(frame.toArrow().to_pylist(), key=lambda row: int(row["part"]))


def _within(graph: DataFrame, mode: str, damping: float, tolerance: float) -> DataFrame:
    work = partial(packed.rank_within, mode=mode, damping=damping, tolerance=tolerance)
    return graph.drop("page").mapInArrow(work, ddl(packed.STATE))


def _round(
    graph: DataFrame, state: _State, factors: list[np.ndarray], pages: int, damping: float
) -> DataFrame:
    """Ranks times factors, told to all parts, and swept there."""
    from pyspark.sql import functions as f

    bare = graph.drop("page")
    scaled = bare.join(state.frame.select("part", "rank"), "part").join(
        _by_part(graph, state, factors), "part"
    )
    told = scaled.mapInArrow(packed.tell, ddl(packed.TOLD))
    heard = told.groupBy("part").agg(f.collect_list(f.struct("origin", "row", "value")).alias("heard"))
    return bare.join(heard, "part").mapInArrow(
        partial(packed.sweep, pages=pages, damping=damping), ddl(packed.STATE)
    )


def _answer(graph: DataFrame, state: _State, factors: list[np.ndarray]) -> DataFrame:
    """Ranks times factors, brought to a sum of 1."""
    total = sum(float(flow.mass @ factor) for flow, factor in zip(state.flows, factors, strict=True))
    ranks = graph.select("part", "page", "label", "block_start").join(
        state.frame.select("part", "rank"), "part"
    )
    scaled = ranks.join(_by_part(graph, state, [factor / total for factor in factors]), "part")
    return scaled.mapInArrow(packed.spread, ddl(packed.ANSWER))


def _by_part(graph: DataFrame, state: _State, factors: list[np.ndarray]) -> DataFrame:
    rows = {"part": pa.array(state.number, pa.int32()), "factor": [factor.tobytes() for factor in factors]}
    return graph.sparkSession.createDataFrame(pa.table(rows))


# --- the command ------------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Ranks a folder; 0 done, 1 it did not work, 2 the call was wrong."""
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
        "folder", metavar="FOLDER", help="a run of convert, or pages*.parquet and links*.parquet"
    )
    parser.add_argument("--mode", default="exact", choices=sorted(NAMES), help="default exact")
    parser.add_argument("--block", default="site", choices=BLOCKS, help="default site")
    parser.add_argument("--damping", type=float, default=0.85, help="default 0.85")
    parser.add_argument("--tolerance", type=float, default=1e-8, help="L1, default 1e-8")
    parser.add_argument("--out", help="default FOLDER/ranks/spark-MODE-BLOCK; what is there gives way")
    parser.add_argument("--parts", type=int, default=0, help=f"default: of {PAGES_PER_PART} pages or smaller")
    parser.add_argument("--master", help="as local[2]; default: what spark-submit gave, else local[*]")
    parser.add_argument("--checkpoints", help="a folder that all machines reach and that outlives them")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    given = parser.parse_args(arguments)
    try:
        extras.require("pyspark", "pandas", "numba", "pyarrow")
        check_numbers(given.damping, given.tolerance)
    except ValueError as error:
        parser.error(str(error))
    if given.out and os.path.normpath(given.out) == os.path.normpath(given.folder):
        parser.error(f"--out is {given.out!r}, the folder that is ranked; expected another place")
    if given.parts < 0:
        parser.error(f"--parts is {given.parts}; expected 1 or more, or 0 for the default")
    return given


class _Session:
    """A Spark session; one that was there before stays, one that was not is stopped at the end."""

    def __init__(self, master: str | None, checkpoints: str | None) -> None:
        self._master, self._checkpoints = master, checkpoints
        self._ours: SparkSession | None = None

    def __enter__(self) -> SparkSession:
        spark = _active()
        if spark is None:
            spark = self._ours = _start(self._master)
        if self._checkpoints:
            spark.sparkContext.setCheckpointDir(self._checkpoints)
        # Merged, small rows would be few tasks however long their work is: a row here is a part.
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
        # Nobody else is to reach it, and its workers are to be this Python.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = builder.config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
        builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.log.level", "OFF")
    return builder.getOrCreate()


def _errors() -> tuple[type[Exception], ...]:
    """What is told in one line; anything else is a fault of ours."""
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
    """Blocks first: whoever sees the pages' _SUCCESS sees all."""
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
    """What is at the bottom of it: a worker's error ends its trace, and Java's first cause comes last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    for mark in ("rankers.problem.RankError: ", "Caused by: "):
        found = [line.removeprefix(mark) for line in lines if line.startswith(mark)]
        if found:
            return found[-1]
    return lines[0]


if __name__ == "__main__":
    # Under its own name, so that workers find the functions that are sent to them by name.
    from rankers.spark import main as named

    sys.exit(named())
