"""How good are the communities of a graph of sites, and how long do they take? Ours beside other libraries.

    python benchmarks/communities.py                   # 3 minutes
    pip install networkit                              # who is not installed is left out

Graphs: sites in planted groups, with so many links of a site into its group and to anywhere (weights 1 to 4), from
clear groups to ones that hardly stand out. Quality is modularity,
with that of the planted groups beside it. Each library finds each graph's communities in this process, after one small
graph that loads it; links are sorted and added up before the clock runs. networkx is asked up to NETWORKX_LINKS links.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from rankers import communities  # noqa: E402

Find = Callable[[int, communities._Links], np.ndarray]
# Name -> groups, sites of each, links of a site inside its group, and to anywhere.
PLANTED = {
    "clear, 400 sites": (20, 20, 8, 0.5),
    "vague, 300 sites": (10, 30, 3, 2),
    "clear, 3,000 sites": (20, 150, 8, 2),
    "vague, 10,000 sites": (100, 100, 4, 3),
    "vague, 30,000 sites": (300, 100, 5, 4),
    "vague, 60,000 sites": (1000, 60, 5, 4),
}
NETWORKX_LINKS = 50_000


def planted(groups: int, size: int, inside: int, outside: float) -> tuple[communities._Links, np.ndarray]:
    """Links of sites in groups, and the group of each site."""
    rng = np.random.default_rng(0)
    sites = groups * size
    near = np.repeat(np.arange(sites), inside)
    far = rng.integers(0, sites, int(sites * outside))
    source = np.concatenate([near, far])
    target = np.concatenate(
        [near // size * size + rng.integers(0, size, len(near)), rng.integers(0, sites, len(far))]
    )
    weight = rng.integers(1, 5, len(source)).astype(float)
    return communities._links(sites, source, target, weight), np.arange(sites) // size


def modularity(sites: int, links: communities._Links, label: np.ndarray) -> float:
    """How much more weight lies within communities than chance would put there."""
    total = links.weight.sum()
    inside = links.weight[label[links.low] == label[links.high]].sum() / total
    of_site = np.bincount(links.low, links.weight, sites) + np.bincount(links.high, links.weight, sites)
    return float(inside - ((np.bincount(label, of_site) / (2 * total)) ** 2).sum())


def ours() -> Find:
    """What `scrapy convert` uses."""
    return lambda sites, links: communities._leiden(sites, links, 1.0, 0)


def by_networkx() -> Find:
    """Louvain's method, in Python."""
    import networkx

    def find(sites: int, links: communities._Links) -> np.ndarray:
        graph = networkx.Graph()
        graph.add_nodes_from(range(sites))
        graph.add_weighted_edges_from(zip(*(column.tolist() for column in links), strict=True))
        label = np.empty(sites, np.int64)
        for number, members in enumerate(networkx.community.louvain_communities(graph, seed=0)):
            label[list(members)] = number
        return label

    return find


def by_networkit() -> Find:
    """Louvain's method with refinement, in C++, with one thread: with two each run gives another answer."""
    import networkit

    networkit.setNumberOfThreads(1)

    def find(sites: int, links: communities._Links) -> np.ndarray:
        ends = (links.low.astype(np.uint64), links.high.astype(np.uint64))
        graph = networkit.GraphFromCoo((links.weight, ends), n=sites, weighted=True, directed=False)
        found = networkit.community.PLM(graph, refine=True, par="none").run().getPartition()
        return np.array(found.getVector(), np.int64)

    return find


LIBRARIES: dict[str, Callable[[], Find]] = {"ours": ours, "networkit": by_networkit, "networkx": by_networkx}


def loaded() -> dict[str, Find]:
    """Those that are installed, after a first graph each."""
    found = {}
    links, _ = planted(4, 10, 4, 0.5)
    for name, made in LIBRARIES.items():
        try:
            found[name] = made()
        except ImportError as error:
            print(f"{name} left out: {error}", file=sys.stderr)
            continue
        found[name](40, links)
    return found


def measure(sites: int, links: communities._Links, finders: dict[str, Find], rounds: int) -> dict[str, Any]:
    """Modularity and the least seconds of each; RuntimeError where one of ours differs from the one before."""
    found: dict[str, Any] = {}
    for name, find in finders.items():
        if name == "networkx" and len(links.low) > NETWORKX_LINKS:
            continue
        labels, seconds = [], []
        for _ in range(rounds):
            began = time.perf_counter()
            labels.append(find(sites, links))
            seconds.append(time.perf_counter() - began)
        if any((label != labels[0]).any() for label in labels):
            raise RuntimeError(f"{name}: the same graph gave two answers")
        found[name] = {"modularity": modularity(sites, links, labels[0]), "seconds": min(seconds)}
    return found


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--rounds", type=int, default=3, help="runs of each library over each graph (default 3)"
    )
    parser.add_argument("--graphs", nargs="*", choices=PLANTED, default=list(PLANTED))
    parser.add_argument("--json", action="store_true", help="every figure, as JSON")
    given = parser.parse_args(arguments)
    finders = loaded()
    told: dict[str, Any] = {}
    for name in given.graphs:
        links, group = planted(*PLANTED[name])
        told[name] = {
            "links": len(links.low),
            "planted": modularity(len(group), links, group),
            "libraries": measure(len(group), links, finders, given.rounds),
        }
        if not given.json:
            print(line(name, told[name]), flush=True)
    if given.json:
        print(json.dumps(told))
    return 0


def line(name: str, one: dict[str, Any]) -> str:
    """One graph."""
    libraries = "".join(
        f"  {library} {found['modularity']:.4f} {found['seconds']:7.3f} s"
        for library, found in one["libraries"].items()
    )
    return f"{name:22}{one['links']:>9,} links, planted {one['planted']:.4f}{libraries}"


if __name__ == "__main__":
    sys.exit(main())
