"""What ranking costs beside other libraries, how near the approximate modes come, and how far it is from the machine.

    python benchmarks/ranking.py [--pages 100k 1M] [--large] [--rounds 3] [--tools NAME …] [--folder FOLDER] [--json]

The graphs are synthetic and seeded (`links`): sites of power-law sizes, contiguous; within a site links to its first
pages, to near ones and to some; between sites to a few friends and to popular ones, half of them to the first page.
Every tool ranks the same files (a folder as convert writes it) to an L1 residual of 1e-8 in a process of its own, so
that its peak memory is its own: `build` is from the files to its graph, `compute` from there to the ranks. --large adds
10 million pages, for our own modes and the bounds alone. Times are medians over rounds, of the tools in turn.

Exit code 1: a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.goals import Goal, goals_table, goals_told  # noqa: E402

DAMPING, TOLERANCE = 0.85, 1e-8
# To which sweeps are counted.
TOLERANCES = (1e-3, 1e-6, 1e-8)
SEED = 1
OURS = ("exact", "product", "seed")
OTHERS = ("networkx", "networkit", "scipy", "igraph")
LARGE = 10_000_000
# Paper 003's table 8, pages a second: nine machines of its time.
TABLE_8 = {100_000: 25_000, 1_000_000: 30_303, 10_000_000: 37_453}
# How many pages Kendall's tau is taken over.
TAU_PAGES = 100_000
# How many links the machine's bounds are taken over at least.
LEAST_GATHERED = 20_000_000

# --- graphs ---

# Of all draws; repeated ones and those of a page to itself are dropped, so links are fewer.
INNER_SHARE, FRIEND_SHARE, DANGLING_SHARE, LINKS_A_PAGE = 0.85, 0.6, 0.08, 11.5
SIZE_EXPONENT = 1.9
FRIENDS = 4
# Drawn at a time: some 0.5 GB of passing arrays.
STRETCH_PAGES = 500_000


def site_sizes(pages: int, rng: np.random.Generator) -> np.ndarray:
    """Pages of each site: a power law, the largest a fiftieth of all."""
    found: list[np.ndarray] = []
    while sum(map(np.sum, found)) < pages:
        drawn = np.floor(rng.random(100_000) ** (-1 / (SIZE_EXPONENT - 1)))
        found.append(np.minimum(drawn, max(1, pages // 50)).astype(np.int64))
    sizes = np.concatenate(found)
    sizes = sizes[: np.searchsorted(np.cumsum(sizes), pages) + 1]
    sizes[-1] -= sizes.sum() - pages
    return sizes


class Web(NamedTuple):
    """The sites of a graph."""

    first: np.ndarray  # (sites + 1,) first page of each, and the end
    friends: np.ndarray  # (sites, FRIENDS) sites that it links to
    popular: np.ndarray  # (sites,) the sites, the most popular first


def links(web: Web, begin: int, end: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Links of the pages begin .. end - 1: source and target, repeats among them."""
    many = np.where(rng.random(end - begin) < DANGLING_SHARE, 0, rng.geometric(1 / LINKS_A_PAGE, end - begin))
    source = np.repeat(np.arange(begin, end), many)
    draws, sites = len(source), len(web.popular)
    site = np.searchsorted(web.first, source, "right") - 1
    inner = rng.random(draws) < INNER_SHARE
    friend = web.friends[site, rng.integers(0, FRIENDS, draws)]
    popular = web.popular[(sites * rng.random(draws) ** 5).astype(np.int64)]
    to = np.where(inner, site, np.where(rng.random(draws) < FRIEND_SHARE, friend, popular))
    start, size = web.first[to], np.diff(web.first)[to]
    kind, place = rng.random(draws), rng.random(draws)
    some = (size * place**2).astype(np.int64)
    near = np.clip(source - start + np.rint(rng.normal(0, 8, draws)).astype(np.int64), 0, size - 1)
    menu = np.minimum((6 * place).astype(np.int64), size - 1)
    within = np.where(kind < 0.4, menu, np.where(kind < 0.7, near, some))
    target = start + np.where(inner, within, np.where(kind < 0.5, 0, some))
    return source.astype(np.int32), target.astype(np.int32)


def make(folder: Path, pages: int) -> dict[str, Any]:
    """Writes the graph of so many pages; what it is like."""
    from rankers import Graph

    rng = np.random.default_rng(SEED)
    sizes = site_sizes(pages, rng)
    first = np.concatenate(([0], np.cumsum(sizes)))
    friends = rng.integers(0, len(sizes), (len(sizes), FRIENDS))
    web = Web(first, friends, rng.permutation(len(sizes)))
    drawn = [
        links(web, begin, min(begin + STRETCH_PAGES, pages), rng) for begin in range(0, pages, STRETCH_PAGES)
    ]
    source, target = (np.concatenate(part) for part in zip(*drawn, strict=True))
    graph = Graph.from_edges(source, target, np.repeat(np.arange(len(sizes)), sizes))
    graph.save(folder)
    come = np.diff(graph.inner.start) + np.diff(graph.outer.start)
    return {
        "pages": pages,
        "links": graph.links,
        "sites": len(sizes),
        "one_page_sites": float((sizes == 1).mean()),
        "largest_site": int(sizes.max()),
        "inner": len(graph.inner.source) / graph.links,
        "dangling": float((graph.degree == 0).mean()),
        "most_linked": int(come.max()),
    }


# --- tools: each from the folder's files to its graph, and from that to ranks ---

Build = Callable[[Path], Any]
Compute = Callable[[Any], np.ndarray]


def edges(folder: Path) -> tuple[np.ndarray, np.ndarray, int]:
    """Source and target of every link, and how many pages there are."""
    ptr, target = np.load(folder / "graph/ptr.npy"), np.load(folder / "graph/target.npy")
    pages = len(ptr) - 1
    return np.repeat(np.arange(pages, dtype=np.int32), np.diff(ptr)), target, pages


def ours(mode: str) -> tuple[Build, Compute]:
    from rankers import Graph, rank

    # Compiled, or read from where it was kept, before anything is timed.
    rank(Graph.from_edges(np.array([0, 1]), np.array([1, 2]), np.arange(3)), mode)
    return Graph.load, lambda graph: rank(graph, mode, damping=DAMPING, tolerance=TOLERANCE)


def by_networkx() -> tuple[Build, Compute]:
    import networkx

    def build(folder: Path) -> Any:
        source, target, pages = edges(folder)
        graph = networkx.DiGraph()
        graph.add_nodes_from(range(pages))
        graph.add_edges_from(zip(source.tolist(), target.tolist(), strict=True))
        return graph

    def compute(graph: Any) -> np.ndarray:
        pages = len(graph)
        found = networkx.pagerank(graph, DAMPING, tol=TOLERANCE / pages, max_iter=1000)
        return np.fromiter((found[page] for page in range(pages)), float, pages)

    return build, compute


def by_networkit() -> tuple[Build, Compute]:
    import networkit

    def build(folder: Path) -> Any:
        source, target, pages = edges(folder)
        pairs = (source.astype(np.uint64), target.astype(np.uint64))
        return networkit.GraphFromCoo(pairs, n=pages, directed=True)

    def compute(graph: Any) -> np.ndarray:
        spread = networkit.centrality.SinkHandling.DistributeSinks
        ranker = networkit.centrality.PageRank(graph, DAMPING, TOLERANCE, distributeSinks=spread)
        ranker.norm = networkit.centrality.Norm.L1_NORM
        ranker.run()
        found = np.array(ranker.scores())
        return found / found.sum()

    return build, compute


def by_scipy() -> tuple[Build, Compute]:
    import scipy.sparse as sparse

    def build(folder: Path) -> Any:
        ptr, target = np.load(folder / "graph/ptr.npy"), np.load(folder / "graph/target.npy")
        pages = len(ptr) - 1
        degree = np.diff(ptr)
        share = np.repeat(1 / np.maximum(degree, 1), degree)
        rows = sparse.csr_array((share, target, ptr.astype(np.int32)), (pages, pages))
        return rows.T.tocsr(), degree == 0

    def compute(graph: Any) -> np.ndarray:
        come, dangling = graph
        pages = len(dangling)
        found, moved = np.full(pages, 1 / pages), 1.0
        while moved > TOLERANCE:
            jumps = (1 - DAMPING + DAMPING * found[dangling].sum()) / pages
            new = DAMPING * (come @ found) + jumps
            moved, found = np.abs(new - found).sum(), new
        return found

    return build, compute


def by_igraph() -> tuple[Build, Compute]:
    import igraph

    def build(folder: Path) -> Any:
        source, target, pages = edges(folder)
        return igraph.Graph(pages, np.stack((source, target), axis=1), directed=True)

    return build, lambda graph: np.array(graph.pagerank(damping=DAMPING))


def tool(name: str) -> tuple[Build, Compute]:
    """The two steps of a tool; ImportError where it is not installed."""
    others = {"networkx": by_networkx, "networkit": by_networkit, "scipy": by_scipy, "igraph": by_igraph}
    return others[name]() if name in others else ours(name)


def take(name: str, folder: Path, out: Path) -> dict[str, Any]:
    """One tool's ranks into a file, and what they took; to be called in a process of its own."""
    build, compute = tool(name)
    began = time.perf_counter()
    graph = build(folder)
    built = time.perf_counter()
    ranks = compute(graph)
    done = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    np.save(out, ranks)
    return {"build": built - began, "compute": done - built, "peak_mib": peak}


# --- what one process each finds out ---


def sweeps(folder: Path) -> dict[str, Any]:
    """How many sweeps exact ranks take, from the product and from equal ranks; what a sweep takes, in ns a link."""
    from rankers import Graph, exact, product
    from rankers.problem import Problem

    graph = Graph.load(folder, check=False)
    found: dict[str, Any] = {}
    teleport = np.full(graph.pages, 1 / graph.pages)
    steps = power_steps(graph)
    for tolerance in TOLERANCES:
        times: list[float] = []
        problem = Problem(
            graph,
            teleport,
            DAMPING,
            tolerance,
            lambda part, *_, times=times: times.append(time.perf_counter()) if part == exact.PART else None,
        )
        counts = {"power": steps[tolerance]}
        for name, start in (
            ("equal", teleport),
            ("product", product.product(problem, exact.START_TOLERANCE).pages),
        ):
            times.clear()
            exact.solve(problem, start)
            counts[name] = len(times)
        found[f"{tolerance:g}"] = counts
        found["ns_a_link"] = float(np.median(np.diff(times))) / graph.links * 1e9
    return found


def power_steps(graph: Any) -> dict[float, int]:
    """Steps of plain power iteration to each residual: from equal ranks it takes as long as damping says."""
    pages = graph.pages
    to = [
        np.repeat(np.arange(pages, dtype=np.int32), np.diff(one.start)) for one in (graph.inner, graph.outer)
    ]
    ranks, steps, found = np.full(pages, 1 / pages), 0, dict.fromkeys(TOLERANCES, 0)
    while not all(found.values()):
        share = ranks / np.maximum(graph.degree, 1)
        new = np.full(pages, (1 - DAMPING + DAMPING * ranks[graph.degree == 0].sum()) / pages)
        for part, target in zip((graph.inner, graph.outer), to, strict=True):
            new += DAMPING * np.bincount(target, share[part.source], pages)
        moved, ranks, steps = np.abs(new - ranks).sum(), new, steps + 1
        found = {tolerance: many or (steps if moved <= tolerance else 0) for tolerance, many in found.items()}
    return found


def bounds(folder: Path) -> dict[str, Any]:
    """What the machine takes for the least that a sweep must do, ns a link: by all its cores, best of three."""
    from rankers import pieces
    from rankers.compiling import compiled

    pages = len(np.load(folder / "graph/ptr.npy", mmap_mode="r")) - 1
    count = len(np.load(folder / "graph/target.npy", mmap_mode="r"))
    rng = np.random.default_rng(SEED)
    ids, values = rng.integers(0, pages, count, np.int32), rng.random(pages)

    # So often that starting threads is nothing beside it.
    rounds = 1 + LEAST_GATHERED // count

    @compiled
    def gather(first: int, last: int, ids: np.ndarray, values: np.ndarray, rounds: int) -> float:
        total = 0.0
        for _ in range(rounds):
            for place in range(np.uint64(first), np.uint64(last)):
                total += values[np.uint32(ids[place])]
        return total

    cuts = np.linspace(0, count, pieces.cores() + 1).astype(np.int64)
    gather(0, 1, ids, values, 1)
    random = best(lambda: pieces.over(cuts, lambda first, last: gather(first, last, ids, values, rounds)))
    out = np.empty(len(values))

    def stream(first: int, last: int) -> None:
        for _ in range(rounds):
            np.add(values[first:last], 1.0, out=out[first:last])

    halves = np.linspace(0, pages, pieces.cores() + 1).astype(np.int64)
    passed = best(lambda: pieces.over(halves, stream))
    # A link is 4 bytes, a page five numbers of 8: two row starts, its rank, what jumps and other sites bring.
    streamed = passed / (24 * pages) * (4 * count + 40 * pages)
    done = count * rounds
    return {"random_gather_ns": random / done * 1e9, "stream_ns": streamed / done * 1e9}


def best(work: Callable[[], Any]) -> float:
    """Seconds of the quickest of three."""
    taken = []
    for _ in range(3):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return min(taken)


def in_degree(folder: Path) -> np.ndarray:
    """In-links of each page, as shares."""
    _, target, pages = edges(folder)
    found = np.bincount(target, minlength=pages).astype(float)
    return found / found.sum()


def nearness(ranks: np.ndarray, exact: np.ndarray) -> dict[str, float]:
    """How near ranks come to the exact ones."""
    from scipy.stats import kendalltau

    pages = len(exact)
    some = np.random.default_rng(SEED).permutation(pages)[:TAU_PAGES]
    top = {many: _overlap(ranks, exact, many) for many in (100, pages // 100)}
    return {
        "l1": float(np.abs(ranks - exact).sum()),
        "tau": float(kendalltau(ranks[some], exact[some]).statistic),
        "top_100": top[100],
        "top_1_percent": top[pages // 100],
    }


def _overlap(ranks: np.ndarray, exact: np.ndarray, many: int) -> float:
    tops = [set(np.argpartition(-array, many - 1)[:many].tolist()) for array in (ranks, exact)]
    return len(tops[0] & tops[1]) / many


# --- processes ---

STEPS: dict[str, Callable[..., Any]] = {"make": make, "take": take, "sweeps": sweeps, "bounds": bounds}


def apart(step: str, *arguments: object) -> dict[str, Any]:
    """A step in a process of its own; what it found. `missing`: a library is not there."""
    command = [sys.executable, __file__, "--step", step, *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        sys.exit(f"{step} {arguments} ended with {ended.returncode}:\n{ended.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def do_step(step: str, arguments: list[str]) -> None:
    """What `apart` starts."""
    if step == "make":
        found = make(Path(arguments[0]), int(arguments[1]))
    elif step == "take":
        try:
            found = take(arguments[0], Path(arguments[1]), Path(arguments[2]))
        except ImportError as error:
            found = {"missing": str(error)}
    else:
        found = STEPS[step](Path(arguments[0]))
    print(json.dumps(found))


def measure(pages: int, tools: tuple[str, ...], rounds: int, below: Path) -> dict[str, Any]:
    """All figures of one graph."""
    folder = below / f"graph-{pages}"
    if not (folder / "manifest.json").exists():
        print(f"{pages:,} pages: making the graph", file=sys.stderr)
        (below / f"graph-{pages}.json").write_text(json.dumps(apart("make", folder, pages)))
    found: dict[str, Any] = {"graph": json.loads((below / f"graph-{pages}.json").read_text()), "tools": {}}
    apart("take", "exact", folder, below / "exact.npy")  # the files are in memory for whoever comes first
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in tools}
    for number in range(rounds):
        for name in tools:
            print(f"{pages:,} pages, round {number + 1}: {name}", file=sys.stderr)
            runs[name].append(apart("take", name, folder, below / f"{name}.npy"))
    exact = np.load(below / "exact.npy")
    for name, taken in runs.items():
        if "missing" in taken[0]:
            found["tools"][name] = taken[0]
            continue
        middle = {key: statistics.median(one[key] for one in taken) for key in taken[0]}
        ranks = np.load(below / f"{name}.npy")
        found["tools"][name] = {**middle, "l1_to_exact": float(np.abs(ranks - exact).sum())}
    found["quality"] = {
        name: nearness(np.load(below / f"{name}.npy"), exact) for name in ("product", "seed") if name in tools
    }
    found["quality"]["in-degree"] = nearness(in_degree(folder), exact)
    found["sweeps"] = apart("sweeps", folder)
    found["bounds"] = apart("bounds", folder)
    return found


# --- goals and tables ---


def goals_of(found: dict[int, dict[str, Any]]) -> list[Goal]:
    """What is owed at a million pages and at ten."""
    goals: list[Goal] = []
    if 1_000_000 in found:
        goals += goals_of_million(found[1_000_000])
    if LARGE in found:
        tools = found[LARGE]["tools"]
        whole = {name: tools[name]["build"] + tools[name]["compute"] for name in OURS if name in tools}
        goals += [
            Goal("10M exact, seconds from the files", whole["exact"], 0, 18),
            Goal("10M exact, GiB", tools["exact"]["peak_mib"] / 1024, 0, 2.5),
            Goal("10M product, seconds of compute", tools["product"]["compute"], 0, 6),
        ]
    return goals


def goals_of_million(found: dict[str, Any]) -> list[Goal]:
    """Ratios to the others, and nearness."""
    tools, quality = found["tools"], found["quality"]
    goals = []
    for name, least in (("networkx", 40), ("networkit", 5), ("scipy", 2.5), ("igraph", 2.5)):
        if "compute" in tools.get(name, {}):
            ratio = tools[name]["compute"] / tools["exact"]["compute"]
            goals.append(Goal(f"1M, compute of {name} / ours", ratio, least, np.inf))
            goals.append(Goal(f"1M, L1 of {name} to ours", tools[name]["l1_to_exact"], 0, 1e-6))
    if "product" not in quality:  # not asked for
        return goals
    goals.append(Goal("1M, tau of product", quality["product"]["tau"], 0.8, 1))
    for measure_name, better in (("l1", -1), ("tau", 1), ("top_100", 1), ("top_1_percent", 1)):
        gain = (quality["product"][measure_name] - quality["in-degree"][measure_name]) * better
        goals.append(Goal(f"1M, product better than in-degree by {measure_name}", gain, 1e-9, np.inf))
    return goals


def text(pages: int, found: dict[str, Any]) -> str:
    """All figures of one graph."""
    graph = found["graph"]
    return "\n".join(
        [
            f"{pages:,} pages, {graph['links']:,} links, {graph['sites']:,} sites ({graph['one_page_sites']:.0%} of "
            f"one page, the largest {graph['largest_site']:,}), {graph['inner']:.0%} of links within sites, "
            f"{graph['dangling']:.1%} dangling, most in-links {graph['most_linked']:,}",
            tools_table(found),
            quality_table(found["quality"]),
            sweeps_text(found),
            rates_text(pages, found),
        ]
    )


def tools_table(found: dict[str, Any]) -> str:
    """One line a tool."""
    lines = [f"{'':<12}{'build s':>9}{'compute s':>11}{'x ours':>8}{'peak MiB':>10}{'L1 to ours':>12}"]
    ours_takes = found["tools"].get("exact", {}).get("compute", np.nan)
    for name, one in found["tools"].items():
        if "missing" in one:
            lines.append(f"{name:<12} left out: {one['missing']}")
            continue
        lines.append(
            f"{name:<12}{one['build']:>9.2f}{one['compute']:>11.2f}{one['compute'] / ours_takes:>8.1f}"
            f"{one['peak_mib']:>10,.0f}{one['l1_to_exact']:>12.1e}"
        )
    return "\n".join(lines)


def quality_table(found: dict[str, dict[str, float]]) -> str:
    """One line a mode."""
    lines = [f"{'near exact':<12}{'L1':>9}{'tau':>8}{'top 100':>9}{'top 1 %':>9}"]
    lines += [
        f"{name:<12}{one['l1']:>9.3f}{one['tau']:>8.3f}{one['top_100']:>9.0%}{one['top_1_percent']:>9.0%}"
        for name, one in found.items()
    ]
    return "\n".join(lines)


def sweeps_text(found: dict[str, Any]) -> str:
    """Counts, and a sweep beside what the machine can do."""
    taken, least = found["sweeps"], found["bounds"]
    counts = [
        f"to {tolerance}: {one['product']} sweeps from the product, {one['equal']} from equal ranks, "
        f"{one['power']} steps of power iteration"
        for tolerance, one in taken.items()
        if tolerance != "ns_a_link"
    ]
    return "\n".join(
        [
            *counts,
            f"a sweep {taken['ns_a_link']:.2f} ns a link; the machine: {least['random_gather_ns']:.2f} were all links "
            f"gathered at random, {least['stream_ns']:.2f} were all read in their order",
        ]
    )


def rates_text(pages: int, found: dict[str, Any]) -> str:
    """Pages a second beside the paper's."""
    rates = [
        f"{name} {pages / (one['build'] + one['compute']):,.0f}"
        for name, one in found["tools"].items()
        if name in OURS
    ]
    paper = (
        f"; paper 003, table 8: {TABLE_8[pages]:,} on nine machines of its time" if pages in TABLE_8 else ""
    )
    return f"pages/s from the files: {', '.join(rates)}{paper}"


def _pages(told: str) -> int:
    """10k, 1M, 250000."""
    factor = {"k": 1_000, "M": 1_000_000}.get(told[-1:], 1)
    return int(float(told.rstrip("kM")) * factor)


def main(arguments: list[str] | None = None) -> int:
    """Parse, make, measure, print; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--pages", type=_pages, nargs="*", default=[100_000, 1_000_000], help="(default 100k 1M)"
    )
    parser.add_argument("--large", action="store_true", help="10 million pages too, by our own modes")
    parser.add_argument("--rounds", type=int, default=3, help="how often each tool ranks (default 3)")
    parser.add_argument("--tools", nargs="*", choices=(*OURS, *OTHERS), default=(*OURS, *OTHERS))
    parser.add_argument("--folder", type=Path, help="keep the graphs here for the next time")
    parser.add_argument("--json", action="store_true", help="every figure, as JSON")
    given = parser.parse_args(arguments)
    found: dict[int, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="lowtide-ranking-") as passing:
        below = given.folder or Path(passing)
        below.mkdir(parents=True, exist_ok=True)
        for pages in given.pages:
            found[pages] = measure(pages, tuple(given.tools), given.rounds, below)
        if given.large:
            found[LARGE] = measure(LARGE, OURS, 1, below)
    goals = goals_of(found)
    if given.json:
        print(json.dumps({"graphs": found, "goals": goals_told(goals)}, indent=2))
    else:
        print("\n\n".join([*(text(pages, one) for pages, one in found.items()), goals_table(goals)]))
    return int(not all(goal.met for goal in goals))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--step"]:
        do_step(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(main())
