"""Ranks against networkx and against plain linear algebra; graphs in and out of folders; `python -m rankers`.

What holds for every mode is in contracts/test_rankers.py.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from rankers import Graph, exact, local, pieces, rank, ranking, reference, results
from rankers.__main__ import main
from rankers.folder import FolderError, read_manifest, write_manifest
from rankers.graph import load_groups
from rankers.problem import Problem, RankError, Solution
from tests.outages import small_disk

ROOT = Path(__file__).parent.parent
Pairs = list[tuple[int, int]]


def graph_of(links: Pairs, block: Any) -> Graph:
    source, target = np.array(links, int).reshape(-1, 2).T
    return Graph.from_edges(source, target, np.asarray(block))


def drawn(pages: int, links: int, blocks: int, seed: int = 1) -> tuple[Pairs, np.ndarray]:
    rng = np.random.default_rng(seed)
    source, target = rng.integers(0, pages, (2, links))
    return list(zip(source.tolist(), target.tolist(), strict=True)), rng.integers(0, blocks, pages)


# --- what the ranks should be -----------------------------------------------------------------------------


def by_networkx(
    links: Pairs, pages: int, damping: float = 0.85, weights: np.ndarray | None = None
) -> np.ndarray:
    graph = nx.DiGraph()
    graph.add_nodes_from(range(pages))
    graph.add_edges_from((source, target) for source, target in links if source != target)
    wanted = None if weights is None else dict(enumerate(weights.tolist()))
    found = nx.pagerank(graph, damping, personalization=wanted, tol=1e-13 / pages, max_iter=5000)
    return np.array([found[page] for page in range(pages)])


def solved(passes: np.ndarray, teleport: np.ndarray, damping: float = 0.85) -> np.ndarray:
    """PageRank where row i of `passes` says which shares of its rank i passes to whom; the rest jumps."""
    ranks = np.linalg.solve(np.eye(len(teleport)) - damping * passes.T, teleport)
    return ranks / ranks.sum()


def matrix(links: Pairs, pages: int) -> np.ndarray:
    """1 where a page links to another."""
    found = np.zeros((pages, pages))
    for source, target in links:
        found[source, target] = source != target
    return found


def shares(found: np.ndarray) -> np.ndarray:
    total = found.sum(axis=1, keepdims=True)
    return found / np.where(total == 0, 1, total)


def by_blocks(links: Pairs, block: np.ndarray, counted: bool) -> np.ndarray:
    """Local ranks times block ranks: of links as they are counted (seed), or weighed (product)."""
    pages = len(block)
    member = (block[:, None] == np.unique(block)[None, :]).astype(float)
    there = matrix(links, pages)
    inside = there * (member @ member.T)
    within = np.zeros(pages)
    for column in member.T:
        rows = np.flatnonzero(column)
        within[rows] = solved(shares(inside[np.ix_(rows, rows)]), np.full(len(rows), 1 / len(rows)))
    if counted:
        blocks = len(member.T)
        ranks = solved(shares(member.T @ (there - inside) @ member), np.full(blocks, 1 / blocks))
    else:
        ranks = solved((member * within[:, None]).T @ shares(there) @ member, member.sum(axis=0) / pages)
    return within * (member @ ranks)


@pytest.mark.parametrize(
    ("pages", "links", "blocks"),
    [(1, 0, 1), (2, 1, 2), (50, 0, 3), (200, 100, 20), (500, 4000, 1), (500, 4000, 500), (3000, 20_000, 100)],
)
def test_exact_equals_networkx(pages: int, links: int, blocks: int) -> None:
    pairs, block = drawn(pages, links, blocks)
    for damping in (0.85, 0.3, 0.98):
        ranks = rank(graph_of(pairs, block), damping=damping, tolerance=1e-12)
        assert np.abs(ranks - by_networkx(pairs, pages, damping)).sum() < 1e-8


some_pages = some.integers(1, 12)


@some.composite
def some_graph(draw: Callable[..., Any]) -> tuple[Pairs, np.ndarray, np.ndarray]:
    """Links with repeats and of pages to themselves, blocks, and weights some of which are 0."""
    pages = draw(some_pages)
    page = some.integers(0, pages - 1)
    links = draw(some.lists(some.tuples(page, page), max_size=40))
    block = draw(some.lists(some.integers(-2, 4), min_size=pages, max_size=pages))
    weights = draw(some.lists(some.integers(0, 3), min_size=pages, max_size=pages))
    return links, np.array(block), np.array(weights, float)


@settings(max_examples=60, deadline=None)
@given(some_graph(), some.sampled_from([0.0, 0.5, 0.85, 0.97]))
def test_any_graph_has_the_ranks_of_networkx(
    drawn_graph: tuple[Pairs, np.ndarray, np.ndarray], damping: float
) -> None:
    links, block, weights = drawn_graph
    graph = graph_of(links, block)
    ranks = rank(graph, damping=damping, tolerance=1e-13)
    assert np.abs(ranks - by_networkx(links, len(block), damping)).sum() < 1e-8
    if weights.any():
        ranks = rank(graph, damping=damping, tolerance=1e-13, personalisation=weights)
        assert np.abs(ranks - by_networkx(links, len(block), damping, weights)).sum() < 1e-8


@settings(max_examples=60, deadline=None)
@given(some_graph())
def test_any_graph_has_the_product_and_the_seed_that_matrices_say(
    drawn_graph: tuple[Pairs, np.ndarray, np.ndarray],
) -> None:
    links, block, _ = drawn_graph
    graph = graph_of(links, block)
    for mode, counted in (("product", False), ("seed", True)):
        ranks = rank(graph, mode, tolerance=1e-13)
        np.testing.assert_allclose(ranks, by_blocks(links, block, counted), atol=1e-9)


@settings(max_examples=30, deadline=None)
@given(some_graph(), some.integers(1, 4))
def test_the_product_of_blocks_that_know_nothing_of_each_other_is_exact(
    drawn_graph: tuple[Pairs, np.ndarray, np.ndarray], parts: int
) -> None:
    links, block, weights = drawn_graph
    block = block % parts
    links = [(source, target) for source, target in links if block[source] == block[target]]
    graph = graph_of(links, block)
    for given_weights in (None, weights if weights.any() else None):
        product, whole = (
            rank(graph, mode, tolerance=1e-13, personalisation=given_weights) for mode in ("product", "exact")
        )
        np.testing.assert_allclose(product, whole, atol=1e-9)


def residual(graph: Graph, ranks: np.ndarray, damping: float = 0.85) -> float:
    """How far one step of power iteration moves these ranks, L1."""
    ranks = graph.to_places(ranks)
    come = np.zeros(graph.pages)
    for links in (graph.inner, graph.outer):
        to = np.repeat(np.arange(graph.pages), np.diff(links.start))
        come += np.bincount(to, (ranks / np.maximum(graph.degree, 1))[links.source], graph.pages)
    jumps = 1 - damping + damping * ranks[graph.degree == 0].sum()
    return float(np.abs(damping * come + jumps / graph.pages - ranks).sum())


@pytest.mark.parametrize("tolerance", [1e-2, 1e-5, 1e-8, 1e-11])
@pytest.mark.parametrize("work", [100, 10**9], ids=["many pieces", "one piece"])
def test_the_residual_is_at_most_what_was_asked_and_not_far_below(
    tolerance: float, work: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "LEAST_WORK", work)
    pairs, block = drawn(3000, 15_000, 200)
    graph = graph_of(pairs, block)
    left: list[float] = []
    found = ranking(
        graph,
        tolerance=tolerance,
        progress=lambda part, _, told: left.append(told) if part == exact.PART else None,
    )
    assert residual(graph, found.pages) <= left[-1] <= tolerance
    assert len(left) < 3 or left[-2] > tolerance


def test_what_cannot_be_reached_is_an_error_that_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs, block = drawn(300, 2000, 20)
    for module, words in ((exact, "exact ranks"), (local, "local ranks")):
        with (
            monkeypatch.context() as patch,
            pytest.raises(RankError, match=f"{words}: residual .* after 2 sweeps"),
        ):
            patch.setattr(module, "MOST_SWEEPS", 2)
            rank(graph_of(pairs, block), "exact" if module is exact else "product")
    graph_of(pairs, block).save(tmp_path / "run")
    monkeypatch.setattr(exact, "MOST_SWEEPS", 1)
    assert main([str(tmp_path / "run")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("rankers: exact ranks: residual ")
    assert said.endswith("expected a larger tolerance or a smaller damping\n")


def test_a_page_with_a_million_links_to_it() -> None:
    """Of the star every rank is known: each leaf has that of a jump, the middle that of all leaves besides."""
    leaves = 1_000_000
    source = np.arange(1, leaves + 1, dtype=np.int32)
    ranks = rank(Graph.from_edges(source, np.zeros(leaves, np.int32), np.arange(leaves + 1) // 1000))
    middle = 1 + 0.85 * leaves
    assert ranks[0] == pytest.approx(middle / (middle + leaves), rel=1e-7)
    assert np.ptp(ranks[1:]) == 0


# --- graphs -----------------------------------------------------------------------------------------------


def test_parallel_links_count_once_and_self_links_not_at_all() -> None:
    twice = graph_of([(0, 1), (0, 1), (1, 1), (1, 2)], [0, 0, 0])
    assert (twice.links, twice.pages) == (2, 3)
    np.testing.assert_array_equal(rank(twice), rank(graph_of([(0, 1), (1, 2)], [0, 0, 0])))


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64, np.float64])
def test_whole_numbers_of_any_type_are_taken(kind: type) -> None:
    graph = Graph.from_edges(np.array([0, 1], kind), np.array([1, 2], kind), np.array([3, 3, 1], kind))
    np.testing.assert_array_equal(rank(graph), rank(graph_of([(0, 1), (1, 2)], [3, 3, 1])))


@pytest.mark.parametrize(
    ("source", "target", "block", "words"),
    [
        ([0], [2], [0, 0], r"target\[0\] is 2, a page outside 0 \.\. 1"),
        ([0, -1], [1, 1], [0, 0], r"source\[1\] is -1, a page outside"),
        ([0, 1], [1], [0, 0], "2 sources and 1 targets"),
        ([0.5], [1], [0, 0], r"source\[0\] is 0.5; expected integers"),
        ([0], [np.nan], [0, 0], r"target\[0\] is nan"),
        ([0], [1], [0, np.inf], r"block\[1\] is inf"),
        (["a"], [1], [0, 0], "source is an array of <U1"),
        ([[0]], [1], [0, 0], r"source has shape \(1, 1\)"),
        ([0], [1], [], r"a page outside 0 \.\. -1; expected one of the 0 pages"),
    ],
)
def test_what_is_no_graph_is_named(source: Any, target: Any, block: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Graph.from_edges(np.array(source), np.array(target), np.array(block))


def test_ranks_are_summed_by_block() -> None:
    graph = graph_of([(0, 1), (2, 3), (1, 3)], [7, 2, 7, 2])
    ranks = rank(graph)
    assert graph.blocks.label.tolist() == [2, 7]
    np.testing.assert_allclose(graph.by_block(ranks), [ranks[1] + ranks[3], ranks[0] + ranks[2]])


# --- folders ----------------------------------------------------------------------------------------------

# Eight pages of four sites; two domains; communities that are not next to each other.
SITES = [0, 0, 0, 1, 1, 2, 3, 3]
DOMAIN, COMMUNITY = [0, 0, 1, 1], [0, 1, 1, 0]
LINKS: Pairs = [(0, 1), (0, 3), (1, 0), (2, 5), (3, 4), (4, 0), (5, 6), (6, 7), (7, 0), (7, 3)]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    graph_of(LINKS, SITES).save(folder, np.array(DOMAIN), np.array(COMMUNITY))
    return folder


@pytest.mark.parametrize(
    ("block", "of_page"),
    [
        ("site", SITES),
        ("domain", [DOMAIN[site] for site in SITES]),
        ("community", [COMMUNITY[site] for site in SITES]),
    ],
)
@pytest.mark.parametrize("mode", ["exact", "product", "seed"])
def test_a_folder_gives_the_graph_that_was_saved(
    saved: Path, block: str, of_page: list[int], mode: str
) -> None:
    graph = Graph.load(saved, block)
    assert (graph.pages, graph.links) == (len(SITES), len(LINKS))
    np.testing.assert_array_equal(rank(graph, mode), rank(graph_of(LINKS, of_page), mode))
    sums = load_groups(saved).sums(rank(graph))[block]
    np.testing.assert_allclose(sums, graph.by_block(rank(graph)))


def test_the_same_graph_is_saved_in_the_same_bytes(saved: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    Graph.load(saved).save(again, np.array(DOMAIN), np.array(COMMUNITY))
    assert read_manifest(again) == read_manifest(saved)


def test_sites_without_pages_and_no_pages_at_all(tmp_path: Path) -> None:
    graph_of(LINKS, SITES).save(tmp_path / "run")
    rewrite(tmp_path / "run", "site", lambda first: np.array([0, 0, *first[1:], first[-1]]))
    for name in ("domain", "community"):
        rewrite(tmp_path / "run", name, lambda _: np.arange(6, dtype=np.int32))
    write_manifest(tmp_path / "run", {})
    for block in ("site", "domain", "community"):
        graph = Graph.load(tmp_path / "run", block)
        np.testing.assert_array_equal(rank(graph), rank(graph_of(LINKS, SITES)))
    assert load_groups(tmp_path / "run").sums(np.ones(8))["site"].tolist() == [0, 3, 2, 1, 2, 0]
    graph_of([], []).save(tmp_path / "none")
    assert rank(Graph.load(tmp_path / "none")).shape == (0,)


def rewrite(folder: Path, name: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    path = folder / "graph" / f"{name}.npy"
    np.save(path, change(np.load(path)))


def put(place: int, value: int) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        array[place] = value
        return array

    return change


DAMAGES = {
    "a target that is no page": ("target", put(3, 8), "links of page 2 are not ascending ids of other pages"),
    "a target below 0": ("target", put(3, -1), "links of page 2 are not"),
    "a page's link to itself": ("target", put(2, 1), "links of page 1 are not"),
    "targets out of order": ("target", put(0, 4), "links of page 0 are not"),
    "another type": (
        "target",
        lambda array: array.astype(np.int64),
        "holds int64 of shape .* expected one dimension of int32",
    ),
    "a table": ("target", lambda array: array.reshape(2, 5), r"shape \(2, 5\)"),
    "a link too few": (
        "target",
        lambda array: array[:-1],
        "expected numbers ascending from 0 to 9, the number of links",
    ),
    "rows out of order": ("ptr", put(2, 0), "ptr.npy is invalid"),
    "a first row too late": ("ptr", put(0, 1), "ptr.npy is invalid"),
    "no rows": ("ptr", lambda array: array[:0], "ptr.npy is invalid"),
    "sites beyond the pages": (
        "site",
        put(-1, 9),
        "site.npy is invalid; expected numbers ascending from 0 to 8, the number of pages",
    ),
    "sites out of order": ("site", put(1, 7), "site.npy is invalid"),
    "a domain too few": (
        "domain",
        lambda array: array[:-1],
        "domain.npy has 3 numbers; expected one per site",
    ),
    "a domain below 0": ("domain", put(1, -1), "domain.npy has numbers outside 0 .. 3"),
    "a file cut short": ("target", None, "cannot be read"),
}


@pytest.mark.parametrize(("name", "change", "words"), DAMAGES.values(), ids=list(DAMAGES))
def test_damage_is_told_whether_digests_are_looked_at_or_not(
    saved: Path, name: str, change: Callable[[np.ndarray], np.ndarray] | None, words: str
) -> None:
    path = saved / "graph" / f"{name}.npy"
    if change is None:
        os.truncate(path, path.stat().st_size - 4)
    else:
        rewrite(saved, name, change)
    block = "domain" if name == "domain" else "site"
    with pytest.raises(FolderError, match=f"{name}.npy (is damaged|has .* bytes; expected)"):
        Graph.load(saved, block)
    with pytest.raises(FolderError, match=words):
        Graph.load(saved, block, check=False)


@pytest.mark.parametrize(
    ("name", "change"), [("site", put(1, 4)), ("domain", put(2, 0)), ("community", put(3, 1))]
)
def test_groups_other_than_those_that_were_written_are_none(
    saved: Path, name: str, change: Callable[[np.ndarray], np.ndarray]
) -> None:
    """Groups like any others, which nothing but the digest tells from the right ones."""
    rewrite(saved, name, change)
    with pytest.raises(FolderError, match=f"{name}.npy is damaged"):
        load_groups(saved)


def test_a_folder_that_is_not_whole_is_none(saved: Path, tmp_path: Path) -> None:
    (saved / "graph/site.npy").unlink()
    with pytest.raises(FolderError, match=r"site.npy is missing"):
        Graph.load(saved)
    with pytest.raises(FolderError, match=r"site.npy cannot be read"):
        Graph.load(saved, check=False)
    with pytest.raises(FolderError, match="has no manifest"):
        Graph.load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="block is 'host'; expected one of site, domain, community"):
        Graph.load(saved, "host")


@pytest.mark.parametrize("given", [[0, 1], [0, 1, 2, 4], [0, -1, 1, 1]])
def test_groups_that_are_none_are_not_saved(tmp_path: Path, given: list[int]) -> None:
    with pytest.raises(ValueError, match=r"domain has . numbers; expected one per block \(4\)"):
        graph_of(LINKS, SITES).save(tmp_path / "run", np.array(given))
    assert list(tmp_path.iterdir()) == []


# --- results ----------------------------------------------------------------------------------------------


def test_results_are_the_ranks_by_id(saved: Path) -> None:
    assert main([str(saved), "--mode", "product", "--block", "community"]) == 0
    folder = saved / "ranks/product-community"
    found = ranking(graph := Graph.load(saved, "community"), "product")
    np.testing.assert_array_equal(results.read_pages(folder), found.pages)
    pages = pq.read_table(folder / "pages.parquet")
    assert pages["page_id"].to_pylist() == list(range(8))
    for name, sums in load_groups(saved).sums(found.pages).items():
        table = pq.read_table(folder / results.FILES[name])
        assert table[f"{name}_id"].to_pylist() == list(range(len(sums)))
        np.testing.assert_array_equal(table["rank"].to_numpy(), sums)
        assert ("block_rank" in table.column_names) is (name == "community")
        assert table["rank"].to_numpy().sum() == pytest.approx(1)
    own = pq.read_table(folder / "communities.parquet")["block_rank"].to_numpy()
    np.testing.assert_array_equal(own[graph.blocks.label], found.blocks)
    told = read_manifest(folder)
    assert (told["mode"], told["block"], told["pages"], told["blocks"]) == ("product", "community", 8, 2)


def test_the_same_ranking_writes_the_same_bytes(saved: Path, tmp_path: Path) -> None:
    for name in ("one", "two", "one"):
        assert main([str(saved), "--out", str(tmp_path / name)]) == 0
    assert read_manifest(tmp_path / "one") == read_manifest(tmp_path / "two")


def test_a_full_disk_leaves_the_results_that_were_there(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_disk(tmp_path / "small", megabytes=1) as disk:
        out = disk.folder / "ranks"
        assert main([str(saved), "--out", str(out)]) == 0
        before = read_manifest(out)
        disk.fill()
        assert main([str(saved), "--mode", "seed", "--out", str(out)]) == 1
        assert "No space left" in capsys.readouterr().err
        with pytest.raises(OSError, match="No space left"):
            graph_of(LINKS, SITES).save(disk.folder / "run")
        disk.free()
        assert read_manifest(out) == before
        assert {path.name for path in disk.folder.iterdir()} == {"ranks"}


# --- networkx ---------------------------------------------------------------------------------------------


def test_the_reference_is_networkx(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs, block = drawn(200, 900, 20)
    graph = graph_of(pairs, block)
    weights = np.random.default_rng(0).random(200)
    for given_weights in (None, weights):
        ranks = reference.pagerank(graph, tolerance=1e-12, personalisation=given_weights)
        assert np.abs(ranks - by_networkx(pairs, 200, weights=given_weights)).sum() < 1e-9
    monkeypatch.setattr(reference, "MOST_SWEEPS", 2)
    with pytest.raises(RankError, match=r"networkx: .*expected a larger tolerance than 1e-12"):
        reference.pagerank(graph, tolerance=1e-12)


def test_the_graph_of_blocks() -> None:
    pairs, block = drawn(60, 300, 7)
    graph = graph_of(pairs, block)
    found = reference.block_graph(graph, names=[f"site {label}" for label in range(7)])
    assert sum(found.nodes[node]["pages"] for node in found) == 60
    assert sum(found.nodes[node]["rank"] for node in found) == pytest.approx(1)
    assert found.nodes[3]["name"] == "site 3"
    linked = {(block[s], block[t]) for s, t in pairs if s != t}
    assert set(found.edges) == linked
    # What a block passes on by links, and what its dangling pages keep, is all it has.
    passed = np.array(
        [sum(weight for *_, weight in found.out_edges(node, data="weight")) for node in range(7)]
    )
    assert (passed <= 1 + 1e-12).all()
    assert (passed > 0.8).all()
    assert len(reference.block_graph(graph_of([], []))) == 0


# --- the command ------------------------------------------------------------------------------------------


def test_the_command_in_a_process_of_its_own(saved: Path, tmp_path: Path) -> None:
    words = [str(saved), "--json", "--graphml", str(tmp_path / "blocks.graphml"), "--block", "domain"]
    command = [sys.executable, "-W", "error", "-m", "rankers", *words]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    told = json.loads(ended.stdout)
    assert (told["pages"], told["links"], told["blocks"], told["mode"]) == (8, 10, 2, "exact")
    assert told["folder"] == str(saved / "ranks/exact-domain")
    assert sorted(nx.read_graphml(tmp_path / "blocks.graphml").nodes) == ["0", "1"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["FOLDER/nowhere"], 1, "nowhere has no manifest.json"),
        (["FOLDER", "--mode", "sideways"], 2, "mode is 'sideways'; expected one of exact"),
        (["FOLDER", "--block", "host"], 2, "invalid choice: 'host'"),
        (["FOLDER", "--damping", "1"], 2, "damping is 1.0; expected 0 <= damping < 1"),
        (["FOLDER", "--damping", "often"], 2, "invalid float value: 'often'"),
        (["FOLDER", "--tolerance", "0"], 2, "tolerance is 0.0; expected a number above 0"),
        (["FOLDER", "--personalisation", "FOLDER/none.csv"], 1, "No such file"),
        (["FOLDER", "--out", "FOLDER/manifest.json/x"], 1, "Not a directory"),
        (
            ["FOLDER", "--out", "FOLDER"],
            1,
            "exists without 'mode' in its manifest.json; expected another folder",
        ),
        (["FOLDER", "--out", "FOLDER/.."], 1, "has no manifest.json"),
        (["FOLDER", "--out", "FOLDER/graph"], 1, "graph has no manifest.json"),
        (["FOLDER", "--out", "FOLDER/manifest.json"], 1, "manifest.json has no manifest.json"),
        (["FOLDER", "--graphml", "FOLDER/none/x"], 1, "No such file"),
    ],
)
def test_what_goes_wrong_is_one_line_and_a_code(
    saved: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, said: str
) -> None:
    words = [word.replace("FOLDER", str(saved)) for word in words]
    if code == 2:
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 2
    else:
        assert main(words) == 1
    err = capsys.readouterr().err
    assert said in err.splitlines()[-1]
    assert code == 2 or len(err.splitlines()) == 1


def interrupted(_problem: Problem) -> Solution:
    """As Ctrl-C in the middle of a ranker."""
    raise KeyboardInterrupt


def test_an_interrupt_is_one_line_and_leaves_nothing(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(saved), "--mode", f"{__name__}.interrupted"]) == 1
    assert capsys.readouterr().err == "rankers: stopped; nothing was written\n"
    assert not (saved / "ranks").exists() or list((saved / "ranks").iterdir()) == []


@pytest.mark.parametrize("suffix", ["csv", "npy"])
def test_a_personalisation_comes_from_a_file(saved: Path, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"weights.{suffix}"
    weights = np.array([0, 2.5, 0, 0, 0, 1, 0, 0])
    if suffix == "csv":
        path.write_text("page_id,weight\n1,2.5\n5,0.25\n5,0.75\n")
    else:
        np.save(path, weights)
    assert main([str(saved), "--personalisation", str(path)]) == 0
    wanted = rank(Graph.load(saved), personalisation=weights)
    np.testing.assert_array_equal(results.read_pages(saved / "ranks/exact-site"), wanted)


def test_a_personalisation_by_site_is_spread_over_its_pages(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "weights.csv"
    path.write_text("site_id,weight\n0,3\n3,1\n")
    assert main([str(saved), "--personalisation", str(path)]) == 0
    wanted = rank(Graph.load(saved), personalisation=np.array([1, 1, 1, 0, 0, 0, 0.5, 0.5]))
    np.testing.assert_allclose(results.read_pages(saved / "ranks/exact-site"), wanted, rtol=1e-12)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "the header is ''"),
        (b"url,weight\n", "the header is 'url,weight'; expected page_id,weight or site_id,weight"),
        (b"page_id,weight\n1\n", "line 2 is '1'; expected an id and a weight"),
        (b"page_id,weight\n1,2\nx,1\n", "line 3 is 'x,1'"),
        (b"page_id,weight\n8,1\n", "line 2 has page_id 8; expected 0 .. 7"),
        (b"site_id,weight\n4,1\n", "line 2 has site_id 4; expected 0 .. 3"),
        (b"page_id,weight\n1,-1\n", "personalisation[1] is -1.0"),
        (b"page_id,weight\n1,nan\n", "personalisation[1] is nan"),
        (b"page_id,weight\n", "personalisation is 0 for every page"),
        (b"page_id,weight\n\xff\xfe,1\n", "can't decode"),
    ],
)
def test_a_file_that_is_no_personalisation_is_told(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: bytes, said: str
) -> None:
    path = tmp_path / "weights.csv"
    path.write_bytes(text)
    assert main([str(saved), "--personalisation", str(path)]) == 1
    assert said in capsys.readouterr().err
    path.with_suffix(".npy").write_bytes(text)
    assert main([str(saved), "--personalisation", str(path.with_suffix(".npy"))]) == 1
    assert "expected an array with a weight per page" in capsys.readouterr().err


# --- compiled functions -----------------------------------------------------------------------------------

PROGRAM = """
import numpy as np
from rankers import rows
print(rows.first_fault(rows.Rows(np.array([0, 1, 2]), np.array([1, 1], np.int32))))
"""


@pytest.mark.parametrize("cache", ["cache", "no-folder/cache"], ids=["the user's cache", "no cache"])
def test_it_works_where_nobody_may_write_beside_it(tmp_path: Path, cache: str) -> None:
    """A file in the place of __pycache__ keeps everybody out, root too."""
    package = tmp_path / "rankers"
    shutil.copytree(ROOT / "rankers", package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "__pycache__").touch()
    (tmp_path / "no-folder").touch()
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / cache), "XDG_CACHE_HOME": str(tmp_path / cache)}
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.stdout, ended.stderr, ended.returncode) == ("1\n", "", 0)
    kept = [path for path in tmp_path.rglob("*.nbi") if "_first_fault" in path.name]
    assert len(kept) == (cache == "cache")
