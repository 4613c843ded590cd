"""Ranks by Spark, in one local session without network, against ranks of the same graph on one machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankers import Graph, folder, packed, rank
from rankers import spark as module
from tests.servers import eventually
from tests.test_parts import web

PAGES, BLOCKS, LINKS = 1500, 120, 12_000
JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One session for the file; nothing of it is left."""
    if not shutil.which("java"):
        pytest.skip("no java on PATH")
    pytest.importorskip("pandas", reason="no pandas, which Spark needs for Arrow")
    sql = pytest.importorskip("pyspark.sql", reason="no pyspark")
    place = tmp_path_factory.mktemp("spark")
    before = dict(os.environ)
    os.environ |= {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(place),
    }
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": f"{JAVA} -Djava.io.tmpdir={place} -Dderby.system.home={place}",
        "spark.log.level": "OFF",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = sql.SparkSession.builder.master("local[2]").appName("test")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        os.environ.clear()
        os.environ.update(before)
        _end(session)


def _end(session: Any) -> None:
    """Stop the session and its Java, and wait for all below it."""
    gateway = session.sparkContext._gateway
    below = [gateway.proc.pid, *_below(gateway.proc.pid)]
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(30)
    from pyspark import SparkContext

    SparkContext._gateway = SparkContext._jvm = None
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in below), "no process is left", 30)


def _below(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            for child in (task / "children").read_text().split():
                found += [int(child), *_below(int(child))]
    return found


class Web(NamedTuple):
    """A graph, as arrays and as the folders that Spark reads."""

    graph: Graph
    hashes: np.ndarray  # of pages
    raw: Path
    converted: Path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Web:
    place = tmp_path_factory.mktemp("webs")
    source, target, block = web(PAGES, BLOCKS, LINKS)
    site = np.unique(block, return_inverse=True)[1]
    rng = np.random.default_rng(5)
    hashes = rng.permutation(np.unique(rng.integers(-(2**63), 2**63 - 1, PAGES + 2)))
    sites = rng.permutation(hashes)[: site.max() + 1]
    _raw(place / "raw", hashes, sites[site], source, target)
    _converted(place / "converted", site, source, target)
    return Web(Graph.from_edges(source, target, block), hashes[:PAGES], place / "raw", place / "converted")


def _raw(place: Path, hashes: np.ndarray, site: np.ndarray, source: np.ndarray, target: np.ndarray) -> None:
    """In several files and no order; links to and from pages that are not there, to itself, and twice."""
    place.mkdir()
    order = np.random.default_rng(6).permutation(PAGES)
    for number, part in enumerate(np.array_split(order, 3)):
        pages = pa.table(
            {"url_hash": hashes[part], "site_hash": site[part], "url": ["https://…"] * len(part)}
        )
        pq.write_table(pages, place / f"pages-{number}.parquet")
    beyond = np.array([[0, PAGES], [PAGES + 1, 1], [2, 2]])
    ends = np.concatenate([np.stack([source, target], 1), beyond, np.stack([source, target], 1)[:50]])
    links = pa.table({"source_hash": hashes[ends[:, 0]], "target_hash": hashes[ends[:, 1]]})
    pq.write_table(links, place / "links.parquet")


def _converted(place: Path, site: np.ndarray, source: np.ndarray, target: np.ndarray) -> None:
    ids = {"page_id": np.arange(PAGES), "site_id": site, "domain_id": site // 2, "community_id": site % 7}
    ends = np.unique(np.stack([source, target], 1), axis=0).T
    with folder.made_whole(place) as whole:
        pages = pa.table({name: pa.array(column, pa.int32()) for name, column in ids.items()})
        pq.write_table(pages, whole / "pages-00000.parquet")
        links = pa.table({"source": pa.array(ends[0], pa.int32()), "target": pa.array(ends[1], pa.int32())})
        pq.write_table(links, whole / "links-00000.parquet")
        folder.write_manifest(whole, {"pages": PAGES})


def by_page(table: pa.Table, key: str, pages: np.ndarray) -> np.ndarray:
    """Ranks in the order of `pages`, each of which has one."""
    found = dict(zip(table[key].to_pylist(), table["rank"].to_pylist(), strict=True))
    assert len(found) == table.num_rows == len(pages)
    return np.array([found[page] for page in pages.tolist()])


# --- with Spark -------------------------------------------------------------------------------------------


@pytest.mark.drill
@pytest.mark.needs("java")
@pytest.mark.parametrize(
    ("mode", "near"),
    [
        ("seed", 1e-6),
        ("product", 1e-6),
        ("exact", 1e-8),
    ],
)
def test_ranks_are_those_of_one_machine(spark: Any, made: Web, mode: str, near: float) -> None:
    rounds: list[int] = []
    found = module.rank(
        module.read(spark, str(made.raw)),
        mode,
        many=3,
        tolerance=1e-9,
        progress=lambda number, _residual: rounds.append(number),
    )
    ranks = by_page(found.pages.toArrow(), "page", made.hashes)
    assert ranks.sum() == pytest.approx(1)
    assert np.abs(ranks - rank(made.graph, mode, tolerance=1e-9)).sum() < near
    assert found.rounds == len(rounds) <= (12 if mode == "exact" else 0)


@pytest.mark.drill
@pytest.mark.needs("java")
def test_the_command_ranks_what_convert_wrote(
    spark: Any, made: Web, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "ranks"
    words = ["--block", "community", "--parts", "2", "--tolerance", "1e-3", "--json"]
    places = ["--out", str(out), "--checkpoints", str(tmp_path / "checkpoints")]
    assert module.main([str(made.converted), *words, *places]) == 0
    printed = capsys.readouterr()
    figures = json.loads(printed.out)
    assert (figures["pages"], figures["parts"]) == (PAGES, 2)
    assert figures["residual"] <= 1e-3
    assert printed.err.count("residual") == figures["rounds"] > 1
    assert list((tmp_path / "checkpoints").rglob("part-*")), "no round was kept"
    site = np.repeat(np.arange(len(made.graph.blocks.label)), np.diff(made.graph.blocks.start))
    ranks = by_page(pq.read_table(out / "pages.parquet"), "page_id", np.arange(PAGES))
    assert np.abs(ranks - rank(made.graph)).sum() < 1e-2
    blocks = by_page(pq.read_table(out / "communities.parquet"), "community_id", np.arange(7))
    assert np.allclose(blocks, np.bincount(site % 7, ranks))
    assert (out / "pages.parquet/_SUCCESS").exists()


@pytest.mark.drill
@pytest.mark.needs("java")
def test_what_cannot_be_ranked_is_told_in_a_line(
    spark: Any, made: Web, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = shutil.copytree(made.converted, tmp_path / "damaged")
    (damaged / "links-00000.parquet").write_bytes(b"PAR1")
    twice = shutil.copytree(made.raw, tmp_path / "twice")
    shutil.copy(twice / "pages-0.parquet", twice / "pages-9.parquet")
    empty = shutil.copytree(made.raw, tmp_path / "empty")
    for path in empty.glob("*.parquet"):
        pq.write_table(pq.read_table(path).slice(0, 0), path)
    torn = shutil.copytree(made.raw, tmp_path / "torn")
    (torn / "links.parquet").write_bytes(b"PAR1 and no more")
    for words, told in [
        ([str(tmp_path / "nowhere")], "nowhere"),
        ([str(damaged)], "links-00000.parquet has 4 bytes"),
        ([str(twice)], "2 pages have the url_hash"),
        ([str(empty)], "has no pages; expected one or more"),
        ([str(torn)], "links.parquet"),
        ([str(made.raw), "--block", "domain"], "expected page_id, domain_id, source and target"),
        (
            [str(made.raw), "--mode", "seed", "--damping", "0.999999999", "--parts", "1"],
            "local ranks: residual",
        ),
    ]:
        assert module.main(words) == 1, words
        printed = capsys.readouterr()
        assert told in printed.err
        assert printed.err.count("\n") == 1, printed.err
        assert printed.out == ""


@pytest.mark.drill
@pytest.mark.needs("java")
def test_the_command_as_a_process_of_its_own(spark: Any, made: Web, tmp_path: Path) -> None:
    """A session of its own, by the module's name: what the workers are sent is found by name there."""
    words = [
        str(made.raw),
        "--mode",
        "product",
        "--master",
        "local[1]",
        "--out",
        str(tmp_path / "ranks"),
        "--json",
    ]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    ended = subprocess.run(
        [sys.executable, "-m", "rankers.spark", *words], env=kept, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert json.loads(ended.stdout)["pages"] == PAGES
    ranks = by_page(pq.read_table(tmp_path / "ranks/pages.parquet"), "url_hash", made.hashes)
    assert np.abs(ranks - rank(made.graph, "product")).sum() < 1e-6


# --- without --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--mode", "sideways"], "invalid choice: 'sideways'"),
        (["--damping", "1"], "damping is 1.0; expected 0 <= damping < 1"),
        (["--tolerance", "0"], "tolerance is 0.0; expected a number above 0"),
        (["--parts", "-1"], "--parts is -1; expected an integer >= 1"),
        (["--out", "./folder/"], "--out is './folder/', the input folder; expected another one"),
    ],
)
def test_wrong_words_end_with_2(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        module.main(["folder", *words])
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_parts_are_built_alike_wherever_batches_end(rows: int) -> None:
    table = pa.table(
        {
            "part": pa.array([0, 0, 0, 0, 0, 2, 2, 3], pa.int32()),
            "row": pa.array([1, 0, 2, 0, 1, 0, 0, 0], pa.int32()),
            "page": pa.array([11, 10, 12, None, None, 20, None, 30], pa.int64()),
            "block": pa.array([5, 5, 6, 5, 9, 9, 6, 1], pa.int64()),
            "to_part": pa.array([None, None, None, 0, 2, None, 0, None], pa.int32()),
            "to_row": pa.array([None, None, None, 1, 0, None, 2, None], pa.int32()),
        }
    )
    found = [row for batch in packed.build(table.to_batches(rows)) for row in batch.to_pylist()]
    assert [row["part"] for row in found] == [0, 2, 3]
    assert np.frombuffer(found[0]["page"], np.int64).tolist() == [10, 11, 12]
    assert packed.array(found[0], "label").tolist() == [5, 6]
    assert packed.array(found[0], "degree").tolist() == [1, 1, 0]
    assert packed.array(found[0], "far_part").tolist() == [2]
    assert packed.array(found[1], "pair_label").tolist() == [6]
    assert packed.array(found[2], "degree").tolist() == [0]
