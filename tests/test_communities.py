"""Communities of sites: planted ones are found, whatever the order of links; files by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankers.communities import communities, read_csv

ROOT = Path(__file__).resolve().parent.parent
Links = tuple[np.ndarray, np.ndarray, np.ndarray]
NAMES = [f"https://{letter}.example" for letter in "abcdef"]


def planted(groups: int, size: int, *, inside: int = 8, outside: float = 0.5, seed: int = 0) -> Links:
    """Groups of `size` sites in a row; so many links of a site inside its group, and to anywhere."""
    rng = np.random.default_rng(seed)
    sites = groups * size
    near = np.repeat(np.arange(sites), inside)
    far = rng.integers(0, sites, int(sites * outside))
    source = np.concatenate([near, far])
    target = np.concatenate(
        [near // size * size + rng.integers(0, size, len(near)), rng.integers(0, sites, len(far))]
    )
    return source, target, rng.integers(1, 5, len(source)).astype(float)


def ring_of_cliques(cliques: int, size: int) -> Links:
    """The graph on which the resolution limit is shown: each clique has one link to the next."""
    edges = list(nx.ring_of_cliques(cliques, size).edges)
    source, target = np.array(edges).T
    return source, target, np.ones(len(edges))


def modularity(links: Links, community: np.ndarray) -> float:
    """How much more weight lies inside the communities than chance would put there, by networkx."""
    graph = nx.Graph()
    graph.add_nodes_from(range(len(community)))
    for source, target, weight in zip(*(column.tolist() for column in links), strict=True):
        if source != target:
            before = graph.get_edge_data(source, target, {"weight": 0})["weight"]
            graph.add_edge(source, target, weight=before + weight)
    groups = [set(np.flatnonzero(community == one).tolist()) for one in np.unique(community)]
    return float(nx.community.modularity(graph, groups))


# --- what is found ---


def test_planted_communities_are_found() -> None:
    found = communities(400, *planted(20, 20))
    assert np.array_equal(found, np.arange(400) // 20)
    assert found.dtype == np.int32


def test_a_large_graph_is_done_as_a_small_one() -> None:
    source, target, weight = planted(20, 150)
    assert np.array_equal(communities(3000, source, target, weight), np.arange(3000) // 150)


def test_the_order_of_links_and_their_direction_mean_nothing() -> None:
    """Vague communities and weights whose sums round differently: any dependence on order would show."""
    rng = np.random.default_rng(1)
    source, target, weight = planted(10, 30, inside=3, outside=2)
    weight = rng.random(len(weight))
    once = communities(300, source, target, weight)
    for _ in range(3):
        order = rng.permutation(len(source))
        source, target, weight = source[order], target[order], weight[order]
        turned = rng.random(len(source)) < 0.5
        source, target = np.where(turned, target, source), np.where(turned, source, target)
        assert np.array_equal(communities(300, source, target, weight), once)


def test_hash_seeds_and_runs_mean_nothing() -> None:
    script = (
        "from tests.test_communities import planted; from rankers.communities import communities\n"
        "print(communities(300, *planted(10, 30, inside=3, outside=2)).tolist())"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1


def test_a_seed_gives_the_same_again() -> None:
    links = planted(10, 30, inside=3, outside=2)
    for seed in (0, 7):
        assert np.array_equal(communities(300, *links, seed=seed), communities(300, *links, seed=seed))


def test_seeds_differ_where_communities_are_vague() -> None:
    links = planted(10, 30, inside=2, outside=3)
    assert len({communities(300, *links, seed=seed).tobytes() for seed in range(5)}) > 1


def test_weights_decide() -> None:
    """A square of four sites: its heavy sides stay together, whichever they are."""
    source, target = np.array([0, 1, 2, 3]), np.array([1, 2, 3, 0])
    assert communities(4, source, target, np.array([9.0, 1, 9, 1])).tolist() == [0, 0, 1, 1]
    assert communities(4, source, target, np.array([1.0, 9, 1, 9])).tolist() == [0, 1, 1, 0]


def test_resolution_makes_them_smaller_or_larger() -> None:
    """30 cliques in a ring: modularity itself joins neighbours, a higher resolution tells them apart."""
    links = ring_of_cliques(30, 4)
    counts = [communities(120, *links, resolution=r).max() + 1 for r in (0.2, 1.0, 4.0)]
    assert counts[0] < counts[1] < counts[2] == 30


@pytest.mark.parametrize("scale", [1e-300, 5e-324, 1e308])
def test_only_the_ratio_of_weights_counts(scale: float) -> None:
    """Sums of squares of these are 0 or infinite."""
    source, target, _ = planted(5, 10)
    weight = np.full(len(source), scale)
    assert communities(50, source, target, weight).tolist() == (np.arange(50) // 10).tolist()


def test_parallel_links_add_up_and_links_to_itself_say_nothing() -> None:
    source, target, weight = planted(5, 10)
    own = np.arange(50)
    more = (np.concatenate([part, own]) for part in (source, target))
    assert np.array_equal(
        communities(50, *more, np.concatenate([weight, np.full(50, 1000.0)])),
        communities(50, source, target, weight),
    )
    once = communities(4, np.array([0, 1, 2, 3]), np.array([1, 2, 3, 0]), np.array([2.0, 1, 2, 1]))
    twice = communities(4, np.array([0, 1, 1, 2, 2, 3]), np.array([1, 0, 2, 3, 3, 0]), np.ones(6))
    assert np.array_equal(once, twice)


@pytest.mark.parametrize("sites", [0, 1, 5])
def test_without_links_every_site_stands_alone(sites: int) -> None:
    none = np.zeros(0, np.int64)
    assert communities(sites, none, none, none).tolist() == list(range(sites))
    own = np.arange(sites)
    assert communities(sites, own, own, np.ones(sites)).tolist() == own.tolist()
    assert communities(sites, own, own[::-1], np.zeros(sites)).tolist() == own.tolist()


def test_sites_without_links_stand_between_the_others() -> None:
    found = communities(7, np.array([1, 5]), np.array([4, 6]), np.ones(2))
    assert found.tolist() == [0, 1, 2, 3, 1, 4, 4]


@given(st.integers(1, 30), st.data())
def test_any_graph_is_parted_whole(sites: int, data: st.DataObject) -> None:
    """Every site has a community, numbers have no gaps and come in the order of the smallest site."""
    site = st.integers(0, sites - 1)
    links = data.draw(st.lists(st.tuples(site, site, st.floats(0, allow_infinity=False)), max_size=60))
    source, target, weight = (
        np.array(column) for column in (zip(*links, strict=True) if links else [[]] * 3)
    )
    found = communities(sites, source, target, weight)
    assert len(found) == sites
    assert list(dict.fromkeys(found.tolist())) == list(range(found.max() + 1))


def test_what_is_found_is_no_worse_than_what_was_planted() -> None:
    links = planted(20, 20, outside=2)
    found = communities(400, *links)
    assert modularity(links, found) >= modularity(links, np.arange(400) // 20) - 1e-9


@pytest.mark.parametrize("seed", range(3))
def test_vague_communities_are_no_worse_than_those_of_networkx(seed: int) -> None:
    """Three of five links of a site lead anywhere: no planted community stands out."""
    links = planted(10, 30, inside=2, outside=3, seed=seed)
    found = communities(300, *links)
    graph = nx.Graph()
    graph.add_nodes_from(range(300))
    graph.add_weighted_edges_from(zip(*(column.tolist() for column in links), strict=True))
    other = np.empty(300, np.int64)
    for number, members in enumerate(nx.community.louvain_communities(graph, seed=0)):
        other[list(members)] = number
    assert modularity(links, found) >= modularity(links, other)


# --- what is refused ---


@pytest.mark.parametrize(
    ("source", "target", "weight", "words"),
    [
        ([0, 2], [1, 1], [1, 1], r"source holds 0 \.\. 2; expected sites 0 \.\. 1"),
        ([0], [-1], [1], r"target holds -1 \.\. -1"),
        ([0.5], [1], [1], "source holds float64; expected integer"),
        ([0], [1], [-1], "a weight is negative"),
        ([0], [1], [np.nan], "a weight is negative, infinite or NaN"),
        ([0], [1], [np.inf], "a weight is negative, infinite or NaN"),
        ([0], [1, 0], [1], "1 sources, 2 targets and 1 weights"),
    ],
)
def test_what_is_no_graph_is_named(source: list, target: list, weight: list, words: str) -> None:
    links = np.array(source), np.array(target), np.array(weight)
    with pytest.raises(ValueError, match=words):
        communities(2, *links)


@pytest.mark.parametrize("resolution", [0, -1, np.nan, np.inf])
def test_resolution_is_above_zero(resolution: float) -> None:
    none = np.zeros(0, np.int64)
    with pytest.raises(ValueError, match=r"resolution is .*; expected a number above 0"):
        communities(2, none, none, none, resolution=resolution)


# --- the file by hand ---


def test_a_file_by_hand() -> None:
    lines = [
        "site,community\n",
        f"{NAMES[4]},news\n",
        "\n",
        f" {NAMES[1]} , news\n",
        f'"{NAMES[5]}","own, too"\n',
    ]
    assert read_csv(lines, NAMES).tolist() == [0, 1, 2, 3, 1, 4]


def test_bytes_of_a_spreadsheet() -> None:
    lines = ["\ufeffsite,community\r\n", f"{NAMES[2]},뉴스\r\n", f"{NAMES[0]},뉴스\r\n", ",\r\n"]
    assert read_csv([line.encode() for line in lines], NAMES[:3]).tolist() == [0, 1, 0]


def test_no_file_is_everybody_alone() -> None:
    assert read_csv([], NAMES).tolist() == list(range(6))
    assert read_csv([], []).tolist() == []


def test_a_community_with_a_sites_name_or_number_is_one_like_any() -> None:
    assert read_csv([f"{NAMES[1]},{NAMES[0]}", f"{NAMES[3]},0"], NAMES[:4]).tolist() == [0, 1, 2, 3]


def test_the_same_line_twice_is_one() -> None:
    assert read_csv([f"{NAMES[1]},x", f"{NAMES[1]},x", f"{NAMES[0]},x"], NAMES[:2]).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([f"{NAMES[0]},x", NAMES[1]], r"line 2: \['https://b\.example'\]; expected site,community"),
        ([f"{NAMES[0]},x,y"], "line 1: .*; expected site,community"),
        ([f"{NAMES[0]},"], "line 1: .*; expected site,community"),
        ([f"{NAMES[0]},x", f"{NAMES[0]},y"], "line 2: site 'https://a.example' is in 'x' and in 'y'"),
        (["https://else.example,x"], "unknown sites: 'https://else.example'; expected some of the 6 sites"),
        ([f"{n},x" for n in range(8)], "unknown sites: '0', '1', '2', '3', '4' and 3 more; expected"),
        ([b"\xff\xfe\x00,x"], r"line 1: b'\\xff\\xfe\\x00,x' is not UTF-8"),
        ([f'"{NAMES[0]},x', f"{NAMES[1]},y"], "line 2: unexpected end of data; expected site,community"),
        (["x" * 200_000 + ",y"], "line 1: field larger than field limit"),
        ([b"\x00,\x00"], "unknown sites|NUL"),
        (["\x1b[31m\udcff,x"], r"unknown sites: '\\x1b\[31m\\udcff'"),
    ],
)
def test_what_is_no_such_file_is_named(lines: list, words: str) -> None:
    with pytest.raises(ValueError, match=words) as raised:
        read_csv(lines, NAMES)
    assert len(str(raised.value)) < 1000
    assert str(raised.value).isprintable()


@given(st.lists(st.binary(max_size=40)))
def test_any_bytes_are_read_or_refused(lines: list[bytes]) -> None:
    try:
        assert len(read_csv(lines, NAMES)) == len(NAMES)
    except ValueError as error:
        assert "expected" in str(error)
