"""Which policy ends a crawl soonest, how far each is from the best there could be, and what it costs to ask one.

    python benchmarks/schedulers.py [--seeds 200] [--case-seeds 200] [--first-seed 0] [--sites 1M 10M]
                                    [--figure FILE.svg] [--json]

Three parts. The reference instance (benchmarks/simulator/instances.py), over paired seeds: every policy on the same
sites, against the exact optimum and against paper 000's three results. The cases (cases.py): the same with one thing
changed, where a policy may fail. The cost of one score for so many sites, on one core, and what the view and the
arithmetic take. `--figure` writes the paper's figure 5, pages an hour by policy. A single run proves nothing: one
standard deviation of a crawl is 1.5 to 3 hours.

Exit code 1: a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import tracemalloc
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.goals import Goal, goals_table, goals_told  # noqa: E402
from benchmarks.simulator.cases import CASES  # noqa: E402
from benchmarks.simulator.crawl import Crawl, crawl  # noqa: E402
from benchmarks.simulator.instances import REFERENCE, Case, draw  # noqa: E402
from benchmarks.simulator.optimum import optimum  # noqa: E402
from crawler import schedulers  # noqa: E402
from crawler.schedulers import SiteView  # noqa: E402

# As they are printed: name of the policy, its options. `hybrid` alone is its default, the reading `min`.
POLICIES: dict[str, tuple[str, dict[str, Any]]] = {
    "random": ("random", {}),
    "sorted": ("sorted", {}),
    "hybrid": ("hybrid", {}),
    "hybrid, next": ("hybrid", {"keep": "next"}),
    "hybrid, mean": ("hybrid", {"keep": "mean"}),
    "hybrid, none": ("hybrid", {"keep": "none"}),
    "regret": ("regret", {}),
    "regret, prices": ("regret", {"prices": True}),
    "early": ("early", {}),
}
IN_CASES = ("random", "sorted", "hybrid", "hybrid, next", "regret", "early")
# Hours that the table of pages shows, those of which the paper speaks.
SHOWN_HOURS = 9
# 95 % of a normal distribution.
SPREAD = 1.96
REPEATS = 3
VIEW_BYTES = 48
SCORE_SECONDS_A_MILLION = 0.2


@dataclass(frozen=True)
class Results:
    """Every policy's crawls of one case, in the order of seeds."""

    crawls: dict[str, list[Crawl]]
    best: np.ndarray  # the optimum's hours
    pages: np.ndarray  # of each crawl

    def hours(self, policy: str) -> np.ndarray:
        """Of each crawl."""
        return np.array([one.finish for one in self.crawls[policy]])

    def page_time(self, policy: str) -> float:
        """Mean over crawls of the mean over pages, in hours."""
        return float(np.mean([one.page_time for one in self.crawls[policy]]))

    def to_best(self, policy: str) -> np.ndarray:
        """Hours, as a multiple of the optimum's."""
        return self.hours(policy) / self.best

    def ratio(self, policy: str, other: str) -> float:
        """Of mean hours."""
        return float(self.hours(policy).mean() / self.hours(other).mean())

    def by_hour(self, policy: str) -> np.ndarray:
        """Share of all pages in each hour, mean over crawls."""
        longest = max(len(one.pages) for one in self.crawls[policy])
        shares = [
            np.pad(one.pages, (0, longest - len(one.pages))) / total
            for one, total in zip(self.crawls[policy], self.pages, strict=True)
        ]
        found: np.ndarray = np.mean(shares, axis=0)
        return found


def measure(case: Case, seeds: int, policies: Iterable[str], first: int = 0) -> Results:
    """The same instances for every policy, by seeds from `first` on, and the optimum of each."""
    crawls: dict[str, list[Crawl]] = {policy: [] for policy in policies}
    best, pages = [], []
    for seed in range(first, first + seeds):
        instance = draw(case, seed)
        for policy, done in crawls.items():
            name, options = POLICIES[policy]
            done.append(crawl(instance, schedulers.get(name, **options)))
        best.append(optimum(instance, min(done[-1].finish for done in crawls.values())))
        pages.append(float(instance.size.sum()))
    return Results(crawls, np.array(best), np.array(pages))


# --- what a score costs ---


class Cost(NamedTuple):
    """One policy asked about so many sites: CPU seconds, median; bytes a site while it reckons, over the view."""

    policy: str
    sites: int
    seconds: float
    bytes_a_site: float


def view_of(sites: int) -> SiteView:
    """A crawl under way: a third of the sites without any load, a third with half a day of it, sizes with a tail."""
    rng = np.random.default_rng(1)
    least, swing = rng.random((2, sites), dtype=np.float32) * np.float32(0.5)
    peak = rng.random(sites, dtype=np.float32) * 24
    load = np.empty((sites, 24), np.uint8)
    for hour in range(24):
        load[:, hour] = (least + swing * (1 + np.cos((hour - peak) * np.float32(np.pi / 12))) / 2) * 254
    load[0::3] = 255
    load[1::3, 6:18] = 255
    remaining = (30 * (rng.pareto(1.2, sites) + 1)).astype(np.float32)
    remaining[rng.random(sites) < 0.1] = 0
    return SiteView(
        load=load,
        pages_per_hour=rng.uniform(500, 4000, sites).astype(np.float32),
        pace_cap=np.full(sites, 3600, np.float32),
        remaining=remaining,
        ready=rng.random(sites) < 0.9,
        sequence=rng.permutation(sites),
        slots=max(64, sites // 1000),
        hour_left=1.0,
    )


def view_bytes(view: SiteView) -> float:
    """Of a site."""
    arrays = [array for array in vars(view).values() if isinstance(array, np.ndarray)]
    return sum(array.nbytes for array in arrays) / len(view.remaining)


def cost_of(view: SiteView, policy: str) -> Cost:
    """Median of a few, CPU of this process; memory in a turn of its own, since counting it takes time."""
    name, options = POLICIES[policy]
    scheduler = schedulers.get(name, **options)
    taken = []
    for _ in range(REPEATS):
        began = time.process_time()
        scheduler.score(view)
        taken.append(time.process_time() - began)
    tracemalloc.start()
    scheduler.score(view)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return Cost(policy, len(view.remaining), float(np.median(taken)), most / len(view.remaining))


# --- goals ---


def goals_of_reference(found: Results) -> list[Goal]:
    """The paper's results, and what the better policies owe."""
    below = {
        policy: float(1 - (found.hours(policy) / found.hours("hybrid")).mean())
        for policy in ("regret", "early")
    }
    readings = [policy for policy in found.crawls if policy in ("hybrid", "hybrid, next")]
    return [
        Goal("random, hours", float(found.hours("random").mean()), 25.5, 26.5),
        Goal("sorted / random", found.ratio("sorted", "random"), 0.804 - 0.015, 0.804 + 0.015),
        *(
            Goal(f"{policy} / random", found.ratio(policy, "random"), 0.741 - 0.015, 0.757 + 0.015)
            for policy in readings
        ),
        Goal("regret / optimum, mean", float(found.to_best("regret").mean()), 1, 1.03),
        Goal("regret / optimum, worst", float(found.to_best("regret").max()), 1, 1.08),
        Goal("regret below hybrid", below["regret"], 0.22, 1),
        Goal("early / optimum, mean", float(found.to_best("early").mean()), 1, 1.15),
        Goal("early below hybrid", below["early"], 0.14, 1),
        Goal("early / sorted, mean page time", found.page_time("early") / found.page_time("sorted"), 0, 0.95),
    ]


def goals_of_cases(found: dict[str, Results]) -> list[Goal]:
    """Where forecasts err or sizes are not known; and nowhere much worse than `sorted`."""
    goals = [
        Goal(f"{case}: regret / optimum", float(found[case].to_best("regret").mean()), 1, most)
        for case, most in (
            ("forecast error 0.10", 1.20),
            ("sizes unknown", 1.07),
            ("sizes Pareto 1.5", 1.03),
        )
        if case in found
    ]
    for case, least in (("forecast error 0.10", 0.10), ("combined I, smoothed", 0.09)):
        if case in found:
            # The better of hybrid's two: with the forecast as it is and smoothed.
            hybrid = min(
                float(found[name].hours("hybrid").mean())
                for name in (case, case.removesuffix(", smoothed"))
                if name in found
            )
            below = 1 - float(found[case].hours("regret").mean()) / hybrid
            goals.append(Goal(f"{case}: regret below hybrid", below, least, 1))
    if "combined II, smoothed" in found:
        tailed = found["combined II, smoothed"]
        goals.append(Goal("combined II, smoothed: regret / sorted", tailed.ratio("regret", "sorted"), 0, 1))
    for policy in ("regret", "early"):
        worst = max(found, key=lambda case: found[case].ratio(policy, "sorted"))
        goals.append(
            Goal(f"{policy} / sorted, worst case ({worst})", found[worst].ratio(policy, "sorted"), 0, 1.02)
        )
    return goals


def goals_of_costs(costs: list[Cost], view: float) -> list[Goal]:
    """So long a score may take, so many bytes a site may have."""
    goals = [
        Goal(
            f"{one.policy}, seconds for {one.sites:,} sites",
            one.seconds,
            0,
            SCORE_SECONDS_A_MILLION * one.sites / 1e6,
        )
        for one in costs
    ]
    return [*goals, Goal("bytes a site in the view", view, 0, VIEW_BYTES)]


# --- what is printed ---


def reference_table(found: Results) -> str:
    """One line a policy."""
    lines = [
        f"{'':<16}{'hours':>14}{'/ optimum':>11}{'worst':>7}{'/ random':>10}{'page time':>11}{'starts':>8}"
        f"{'sooner than sorted':>20}"
    ]
    for policy in found.crawls:
        hours, best = found.hours(policy), found.to_best(policy)
        starts = np.mean([one.starts for one in found.crawls[policy]])
        sooner = (hours < found.hours("sorted")).mean()
        lines.append(
            f"{policy:<16}{hours.mean():>7.2f} +-{_spread(hours):>4.2f}{best.mean():>11.3f}{best.max():>7.2f}"
            f"{found.ratio(policy, 'random'):>10.3f}{found.page_time(policy):>9.2f} h{starts:>8.0f}{sooner:>20.1%}"
        )
    lines.append(f"{'optimum':<16}{found.best.mean():>7.2f} +-{_spread(found.best):>4.2f}{1:>11.3f}")
    return "\n".join(lines)


def hours_table(found: Results) -> str:
    """Pages an hour, in percent of all, and where the paper's claim of hours 2 to 9 stands."""
    shown = ("random", "sorted", "hybrid", "regret", "early")
    lines = [
        f"{'% of pages, hour':<18}" + "".join(f"{hour:>6}" for hour in range(1, SHOWN_HOURS + 1)) + "   sum"
    ]
    for policy in shown:
        shares = found.by_hour(policy)[:SHOWN_HOURS] * 100
        lines.append(
            f"{policy:<18}" + "".join(f"{share:>6.1f}" for share in shares) + f"{shares.sum():>6.1f}"
        )
    return "\n".join(lines)


def cases_table(found: dict[str, Results]) -> str:
    """Hours as multiples of the optimum's."""
    lines = [f"{'hours / optimum':<36}{'seeds':>6}{'optimum':>9}" + "".join(f"{p:>14}" for p in IN_CASES)]
    for case, results in found.items():
        figures = "".join(f"{results.to_best(policy).mean():>14.3f}" for policy in IN_CASES)
        lines.append(f"{case:<36}{len(results.best):>6}{results.best.mean():>9.2f}{figures}")
    return "\n".join(lines)


def costs_table(costs: list[Cost]) -> str:
    """One line a policy and number of sites."""
    lines = [f"{'a score':<16}{'sites':>12}{'CPU s':>8}{'bytes a site':>14}"]
    lines += [f"{c.policy:<16}{c.sites:>12,}{c.seconds:>8.3f}{c.bytes_a_site:>14.0f}" for c in costs]
    return "\n".join(lines)


def _spread(values: np.ndarray) -> float:
    return float(SPREAD * values.std() / len(values) ** 0.5)


# --- figure 5 ---

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 760, 420, 60, 50, 20
COLOURS = {
    "random": "#888888",
    "sorted": "#1f77b4",
    "hybrid": "#d62728",
    "regret": "#2ca02c",
    "early": "#9467bd",
}


def figure(found: Results) -> str:
    """Pages an hour by policy, as the paper draws them: an SVG."""
    shares = {policy: found.by_hour(policy) * 100 for policy in COLOURS if policy in found.crawls}
    hours = int(np.ceil(found.hours("random").mean())) + 4
    most = max(float(share.max()) for share in shares.values())
    across, up = (WIDTH - LEFT - 20) / (hours - 1), (HEIGHT - BOTTOM - TOP) / most
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<path d="M{LEFT},{TOP} V{HEIGHT - BOTTOM} H{WIDTH - 20}" fill="none" stroke="black"/>',
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 12}" text-anchor="middle">hour</text>',
        f'<text x="16" y="{HEIGHT / 2}" text-anchor="middle" transform="rotate(-90 16 {HEIGHT / 2})">'
        "% of all pages</text>",
    ]
    for hour in range(0, hours, 2):
        place = f'x="{LEFT + hour * across:.1f}" y="{HEIGHT - BOTTOM + 16}"'
        parts.append(f'<text {place} text-anchor="middle">{hour + 1}</text>')
    for value in range(0, int(most) + 1, 5):
        at = HEIGHT - BOTTOM - value * up
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{value}</text>')
    for number, (policy, share) in enumerate(shares.items()):
        points = " ".join(
            f"{LEFT + hour * across:.1f},{HEIGHT - BOTTOM - value * up:.1f}"
            for hour, value in enumerate(share[:hours])
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[policy]}" stroke-width="2"/>')
        at = TOP + 14 + 18 * number
        parts.append(f'<text x="{WIDTH - 120}" y="{at}" fill="{COLOURS[policy]}">{policy}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _sites(text: str) -> int:
    """10k, 1M, 250000."""
    factor = {"k": 1_000, "M": 1_000_000}.get(text[-1:], 1)
    return int(float(text.rstrip("kM")) * factor)


def as_json(
    reference: Results, cases: dict[str, Results], costs: list[Cost], goals: list[Goal]
) -> dict[str, Any]:
    """Every figure, by its name."""
    return {
        "reference": {
            policy: {
                "hours": reference.hours(policy).tolist(),
                "to_optimum": float(reference.to_best(policy).mean()),
                "page_time": reference.page_time(policy),
                "pages_by_hour": reference.by_hour(policy).tolist(),
            }
            for policy in reference.crawls
        },
        "optimum": reference.best.tolist(),
        "cases": {
            name: {policy: float(found.to_best(policy).mean()) for policy in found.crawls}
            for name, found in cases.items()
        },
        "costs": [one._asdict() for one in costs],
        "goals": goals_told(goals),
    }


def main(arguments: list[str] | None = None) -> int:
    """Parse, simulate, measure, print; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--seeds", type=int, default=200, help="crawls of the reference instance (default 200)"
    )
    parser.add_argument(
        "--case-seeds", type=int, default=200, help="crawls of each case at most (default 200; 0: no cases)"
    )
    parser.add_argument(
        "--first-seed", type=int, default=0, help="seeds begin here (default 0): others than were tuned by"
    )
    parser.add_argument(
        "--sites",
        type=_sites,
        nargs="*",
        default=[1_000_000, 10_000_000],
        help="sites that a score is measured for (default 1M 10M; none: not measured)",
    )
    parser.add_argument("--figure", type=Path, help="where the figure of pages an hour is written, as SVG")
    parser.add_argument("--json", action="store_true", help="every figure, as JSON")
    given = parser.parse_args(arguments)
    reference = measure(REFERENCE, given.seeds, POLICIES, given.first_seed)
    goals, parts = goals_of_reference(reference), [reference_table(reference), hours_table(reference)]
    cases: dict[str, Results] = {}
    for name, (case, most) in CASES.items() if given.case_seeds else ():
        print(f"case: {name}", file=sys.stderr)
        cases[name] = measure(case, min(most, given.case_seeds), IN_CASES, given.first_seed)
    if cases:
        goals += goals_of_cases(cases)
        parts.append(cases_table(cases))
    costs: list[Cost] = []
    for sites in given.sites:
        print(f"score: {sites:,} sites", file=sys.stderr)
        view = view_of(sites)
        here = [cost_of(view, policy) for policy in ("random", "sorted", "hybrid", "regret", "early")]
        goals += goals_of_costs(here, view_bytes(view))
        costs += here
    if costs:
        parts.append(costs_table(costs))
    if given.figure:
        given.figure.write_text(figure(reference), encoding="utf-8")
    told = json.dumps(as_json(reference, cases, costs, goals), indent=1)
    print(told if given.json else "\n\n".join([*parts, goals_table(goals)]))
    missed = [goal.name for goal in goals if not goal.met]
    print("".join(f"goal missed: {name}\n" for name in missed), file=sys.stderr, end="")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
