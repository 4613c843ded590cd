"""Ranks in the tables, on every kind of database: whole or not there, while others read and write; `scrapy rank`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import Engine, func, select

from crawler.records import Page, hash64
from crawler.store import ranks
from crawler.store.database import migrate, open_database, transaction
from crawler.store.ranks import Ranked, RankingLostError, importance, replace
from crawler.store.tables import rankings, site_ranks
from crawler.store.tables import ranks as rank_rows
from crawler.store.write import Stored, forget, store
from rankers import Graph, rank
from rankers.folder import made_whole, read_manifest, write_manifest
from tests import warm
from tests.conftest import MakeDatabase, OpenTables
from tests.crawling import Place
from tests.databases import KINDS
from tests.servers import eventually

ROOT = Path(__file__).parent.parent
every_kind = pytest.mark.parametrize("kind", KINDS)


def ranked(pages: int = 100, sites: int = 7, seed: int = 0) -> Ranked:
    """Ranks of pages in no order, of sites whose numbers are both above and below 0."""
    rng = np.random.default_rng(seed)
    site = rng.integers(-(2**63), 2**63 - 1, sites)
    of_page = rng.integers(0, sites, pages)
    found = rng.random(pages)
    found /= found.sum()
    return Ranked(
        f"run-{seed}",
        "exact",
        "site",
        0.85,
        site[of_page],
        rng.integers(-(2**63), 2**63 - 1, pages),
        found,
        site,
        np.bincount(of_page, found, sites),
        np.bincount(of_page, minlength=sites),
    )


def read(engine: Engine) -> dict[int, dict[int, float]]:
    """The importance of all pages, by site, as readers get it."""
    with transaction(engine) as connection:
        sites = connection.execute(select(rank_rows.c.site_id).distinct()).scalars().all()
    return {site: importance(engine, site) for site in sites}


def wanted(given: Ranked) -> dict[int, dict[int, float]]:
    found: dict[int, dict[int, float]] = {}
    for site, url, value in zip(
        given.site_id.tolist(), given.url_hash.tolist(), given.rank.tolist(), strict=True
    ):
        found.setdefault(site, {})[url] = value * len(given.rank)
    return found


def runs_of(engine: Engine, table: Any) -> set[int]:
    with transaction(engine) as connection:
        return set(connection.execute(select(table.c.run).distinct()).scalars())


@every_kind
def test_ranks_are_stored_to_the_last_bit_and_replaced_whole(
    kind: str, filled: OpenTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "STRETCH_ROWS", 30)
    engine = filled(kind)
    assert importance(engine, 1) == {}
    for seed in (1, 2):
        given = ranked(seed=seed)
        told: list[tuple[int, int]] = []
        run = replace(engine, given, lambda done, total, told=told: told.append((done, total)))
        assert read(engine) == wanted(given)
        assert told[-1] == (107, 107)
        assert {run} == runs_of(engine, rank_rows) == runs_of(engine, site_ranks) == runs_of(engine, rankings)
    with transaction(engine) as connection:
        rows = connection.execute(select(site_ranks).where(site_ranks.c.run == run)).mappings().all()
        (about,) = connection.execute(select(rankings)).mappings().all()
    assert {row["site_id"]: row["rank"] for row in rows} == dict(
        zip(given.site.tolist(), given.site_rank.tolist(), strict=True)
    )
    assert sum(row["pages"] for row in rows) == 100
    assert np.mean([row["importance"] for row in rows]) == pytest.approx(1)
    assert (about["source"], about["mode"], about["damping"], about["pages"]) == ("run-2", "exact", 0.85, 100)


@every_kind
def test_readers_see_one_ranking_until_the_next_is_whole(
    kind: str, filled: OpenTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked at after every stretch of the writing and of the clearing."""
    monkeypatch.setattr(ranks, "STRETCH_ROWS", 20)
    engine = filled(kind)
    old, new = ranked(seed=1), ranked(seed=2)._replace(site=ranked(seed=1).site)
    new = new._replace(site_id=old.site_id, url_hash=old.url_hash)
    replace(engine, old)
    one = int(old.site_id[0])
    seen: list[str] = []

    def look(*_: Any) -> None:
        found = importance(engine, one)
        seen.append("old" if found == wanted(old)[one] else "new" if found == wanted(new)[one] else "torn")

    clear = ranks._clear_stretch

    def watched(*given: Any) -> bool:
        look()
        return clear(*given)

    monkeypatch.setattr(ranks, "_clear_stretch", watched)
    replace(engine, new, look)
    assert seen == ["old"] * 6 + ["new"] * len(seen[6:])
    assert len(seen) > 12


@every_kind
def test_what_a_killed_ranking_left_goes_with_the_next(kind: str, filled: OpenTables) -> None:
    engine = filled(kind)
    given = ranked(seed=1)
    replace(engine, given)
    lost = ranks._begin(engine, ranked(seed=2))
    for some in ranks._stretches(*ranks._pages(ranked(seed=2))):
        ranks._write(engine, ranks._PAGES, lost, some)
    assert wanted(given).items() <= read(engine).items()
    last = ranked(seed=3)
    run = replace(engine, last)
    assert read(engine) == wanted(last)
    assert {run} == runs_of(engine, rank_rows) == runs_of(engine, rankings)


@every_kind
def test_of_two_rankings_at_a_time_the_later_stays(kind: str, filled: OpenTables) -> None:
    engine = filled(kind)
    later = ranked(seed=2)

    def overtake(_done: int, _total: int, once: list[int] = []) -> None:  # noqa: B006 - once for all calls
        if not once:
            once.append(1)
            replace(engine, later)

    with pytest.raises(RankingLostError, match="another ranking that began later"):
        replace(engine, ranked(seed=1), overtake)
    assert read(engine) == wanted(later)
    assert len(runs_of(engine, rank_rows) | runs_of(engine, site_ranks) | runs_of(engine, rankings)) == 1


@every_kind
def test_a_forgotten_site_has_no_ranks(kind: str, filled: OpenTables) -> None:
    engine = filled(kind)
    given = ranked()
    name = "https://a.example"
    given.site_id[:10] = given.site[0] = hash64(name)
    replace(engine, given)
    with transaction(engine) as connection:
        forget(connection, name)
        left = connection.execute(select(func.count()).select_from(site_ranks)).scalar()
    assert importance(engine, hash64(name)) == {}
    assert left == 6


@pytest.mark.parametrize("column", ["site_id", "url_hash", "rank", "site", "site_rank", "site_pages"])
def test_columns_of_unequal_length_change_nothing(column: str, filled: OpenTables) -> None:
    engine = filled("sqlite")
    given = ranked(seed=1)
    run = replace(engine, given)
    short = ranked(seed=2)._asdict()
    short[column] = short[column][:-1]
    with pytest.raises(ValueError, match=rf"differ in length: .*{column} has {len(short[column])}\b"):
        replace(engine, Ranked(**short))
    assert read(engine) == wanted(given)
    assert {run} == runs_of(engine, rank_rows) == runs_of(engine, site_ranks) == runs_of(engine, rankings)


WRITER = """
import sys
from tests.test_ranks import *
engine = open_database(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
told = []

def tell(*_):
    print("row", flush=True)
    told.append(1)
    if len(told) == 2:
        sys.stdin.readline()  # which never comes: it is killed here, and not when it is done

replace(engine, ranked(60_000, seed=2), tell)
"""


@every_kind
def test_a_coordinator_writes_on_and_a_kill_changes_nothing(kind: str, make_database: MakeDatabase) -> None:
    """In a process of its own, which is killed in the middle of writing."""
    url = make_database(kind)
    engine = open_database(url)
    migrate(engine)
    given = ranked(seed=1)
    replace(engine, given)
    process = warm.popen(
        [sys.executable, "-c", WRITER, url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "row\n"
        page = Page(
            site="https://a.example",
            path="/",
            outcome="stored",
            status=200,
            fetched_at=1,
            agent="h",
            run="r",
            seq=1,
        )
        with transaction(engine) as connection:
            assert store(connection, [Stored("1-0", page, b"")])
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.communicate(timeout=60)
    # The server may still be busy with the last statement of the dead.
    eventually(lambda: wanted(given).items() <= read(engine).items(), "the ranks of before")
    assert len(runs_of(engine, rankings)) == 2
    engine.dispose()


# --- scrapy rank ------------------------------------------------------------------------------------------

LINKS = [(0, 1), (0, 2), (1, 2), (2, 3), (3, 0), (4, 3)]
SITES = [0, 0, 0, 1, 1]


def convert(place: Place, name: str, links: list[tuple[int, int]] = LINKS) -> Path:
    """A run of convert with two sites and five pages; page i has the hash 100 + i."""
    source, target = np.array(links).T
    folder = place.var / "convert" / name
    graph = folder.with_name("graph-alone")
    Graph.from_edges(source, target, np.array(SITES)).save(graph)
    with made_whole(folder) as made:
        (graph / "graph").rename(made / "graph")
        pages = {
            "page_id": pa.array(range(5), pa.int32()),
            "site_hash": [-9, -9, -9, 8, 8],
            "url_hash": [100 + page for page in range(5)],
        }
        pq.write_table(pa.table(pages).slice(0, 2), made / "pages-00000.parquet")
        pq.write_table(pa.table(pages).slice(2), made / "pages-00001.parquet")
        names = {"site": ["https://a.example", "https://b.example"], "site_hash": [-9, 8], "pages": [3, 2]}
        pq.write_table(pa.table(names), made / "sites.parquet")
        write_manifest(made, {"pages": 5})
    return folder


def tables(place: Place) -> Engine:
    place.var.mkdir(exist_ok=True)
    engine = open_database(f"sqlite:///{place.var}/crawl.db")
    migrate(engine)
    return engine


def test_rank_takes_the_newest_run_into_the_tables(place: Place) -> None:
    engine = tables(place)
    older = convert(place, "older", [(0, 4)])
    convert(place, "newest")
    told = json.loads(place.run("rank", "--json").succeeded().out)
    assert (told["pages"], told["links"], told["blocks"], told["ranking"]) == (5, 6, 2, 1)
    source, target = np.array(LINKS).T
    ours = rank(Graph.from_edges(source, target, np.array(SITES)))
    assert importance(engine, -9) == {100 + page: ours[page] * 5 for page in range(3)}
    assert importance(engine, 8) == {100 + page: ours[page] * 5 for page in (3, 4)}
    settings = {"RANK_MODE": "product", "RANK_BLOCK": "domain", "RANK_DAMPING": 0.5}
    words = ["--run", "older", "--mode", "seed", "--graphml", f"{place.var}/blocks.graphml"]
    ended = place.run("rank", *words, **settings).succeeded()
    assert "5 pages with 1 links in 2 blocks ranked (seed, by domain; " in ended.out
    assert "in force as ranking 2" in ended.out
    assert nx.read_graphml(place.var / "blocks.graphml").number_of_nodes() == 2
    told = read_manifest(older / "ranks/seed-domain")
    assert (told["mode"], told["block"], told["damping"]) == ("seed", "domain", 0.5)
    with transaction(engine) as connection:
        (about,) = connection.execute(select(rankings)).mappings().all()
    assert (about["run"], about["source"], about["mode"], about["damping"]) == (2, "older", "seed", 0.5)
    engine.dispose()


def test_rank_says_what_is_wrong(place: Place) -> None:
    place.run("rank").refused("no run of convert below", "`scrapy convert` first", code=1)
    folder = convert(place, "x")
    place.run("rank").refused("nothing was crawled yet", code=1)
    tables(place).dispose()
    place.run("rank", RANK_MODE="sideways").refused("mode is 'sideways'; expected one of exact", code=2)
    (folder / "graph/target.npy").write_bytes(b"")
    place.run("rank", "--run", "x").refused("target.npy has 0 bytes; expected", code=1)


def flip_last(path: Path) -> None:
    read = path.read_bytes()
    path.write_bytes(read[:-1] + bytes([read[-1] ^ 1]))


def replace_by_another(path: Path) -> None:
    """As many bytes of Parquet, of other hashes: nothing but its digest tells."""
    known = pq.read_table(path)
    column = known["site_hash"].to_pylist()
    pq.write_table(known.set_column(1, "site_hash", [column[::-1]]), path)


@pytest.mark.parametrize(
    ("name", "damage", "told"),
    [
        ("pages-00000.parquet", Path.unlink, "pages-00000.parquet is missing"),
        ("pages-00001.parquet", Path.unlink, "pages-00001.parquet is missing"),
        ("sites.parquet", Path.unlink, "sites.parquet is missing"),
        ("pages-00001.parquet", flip_last, "pages-00001.parquet is damaged"),
        ("sites.parquet", replace_by_another, "sites.parquet"),
    ],
)
def test_pages_that_are_not_those_of_the_run_get_no_ranks(
    place: Place, name: str, damage: Callable[[Path], None], told: str
) -> None:
    """The ranks of before stay, and no folder of new ones is written."""
    engine = tables(place)
    convert(place, "before")
    place.run("rank").succeeded()
    in_force = read(engine)
    folder = convert(place, "x", [(0, 4)])
    damage(folder / name)
    place.run("rank", "--run", "x").refused(told, code=1)
    assert read(engine) == in_force
    assert not (folder / "ranks").exists()
    engine.dispose()


def test_pages_that_the_manifest_does_not_name_are_none_of_the_run(place: Place) -> None:
    tables(place).dispose()
    folder = convert(place, "x")
    (folder / "pages-00000.parquet").rename(folder / "pages-00002.parquet")
    place.run("rank").refused("pages-00000.parquet is missing", code=1)
    (folder / "pages-00002.parquet").rename(folder / "pages-00000.parquet")
    (folder / "pages-00002.parquet").write_bytes(b"of nobody")
    place.run("rank").succeeded()
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"] = {name: told for name, told in manifest["files"].items() if "/" in name}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    place.run("rank").refused("has no pages-*.parquet in its manifest", code=1)
