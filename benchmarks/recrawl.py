"""Which way of visiting pages again keeps a copy fresh, how near each comes to the best there could be, what it costs.

    python benchmarks/recrawl.py [--parts S1 S2 S3 S4 model load signals choice] [--seeds 3] [--short] [--large]
                                 [--json]

Worlds S1 to S4 (benchmarks/simulator/pages.py): a budget of slot seconds that visits each page once in 472 minutes,
one page a minute of a host; S2 all visits cost the same, S3 five times as many changes, S4 a fifth. Each policy lives
through the same drawn worlds, the modes in the very object that the crawler uses; none knows the change rates but
those marked as oracles. Bounds are reckoned beside them (page_bounds.py). `model`: paper 004's own, no host limit.
`load`: with less budget. `signals`: with sites that tell of changes. `choice`: 10 million pages, or 100 with --large,
on one core.
`--short` shrinks everything, to see that it works: goals are not judged then.

Exit code 1: a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.goals import Goal, at_least, at_most, goals_table, goals_told  # noqa: E402
from benchmarks.simulator import page_bounds, page_policies  # noqa: E402
from benchmarks.simulator.pages import PERIOD, PERIODS_A_DAY, WORLDS, Kind, Policy, World, draw, run  # noqa: E402
from crawler.recheck import NAMES, Recrawl  # noqa: E402

PARTS = (*WORLDS, "model", "load", "signals", "choice")
ORACLES = {"Cho, oracle": "cho", "Azar, oracle": "azar", "LambdaCrawl, oracle": "lambda_crawl"}
POLICIES = (*NAMES, "Nutch", *ORACLES)
# Paper 004's experiment: its staleness of 235.4 is that of so many pages and threads.
MODEL_PAGES, MODEL_THREADS, MODEL_DAYS = 1888, 4, 6
# Its other two methods, as multiples of its own.
BY_CHANGE, BY_IMPORTANCE = 2.24, 3.81
SHORT = {"pages": 400, "hosts": 8, "days": 2, "measured_days": 1}
# Choices of one call, and the share of hosts' sizes: Zipf with this exponent.
PICKS, ZIPF = 10_000, 0.8
TICKS = 120


class Means(NamedTuple):
    """A policy's figures, mean over the worlds of one kind."""

    fresh: float
    weighted: float
    age: float
    stale: float
    spent: float
    first_day: float  # weighted


def policy(name: str, world: World) -> Policy:
    """By its name here."""
    if name == "Nutch":
        return page_policies.Nutch(world)
    if name in ORACLES:
        weight = np.ones(len(world.host)) if name.startswith("Cho") else world.weight
        law = getattr(page_policies, ORACLES[name])
        return page_policies.Rates(world, page_policies.oracle_rates(world, law, weight))
    return Recrawl(world.host, world.size, world.weight, last=world.last * PERIOD, mode=name)


def means(kind: Kind, seeds: int, name: str) -> Means:
    """Over so many worlds."""
    told = []
    for seed in range(seeds):
        world = draw(kind, seed)
        one = run(world, policy(name, world))
        told.append((one.fresh, one.weighted, one.age, one.stale, one.spent, one.weighted_by_day[0]))
    return Means(*(float(value) for value in np.mean(told, axis=0)))


def bounds(kind: Kind, seeds: int) -> tuple[float, float, float]:
    """Of freshness, weighted freshness and staleness, mean over worlds."""
    worlds = [draw(kind, seed) for seed in range(seeds)]
    found = [
        (
            page_bounds.freshness(w, np.ones(len(w.host))),
            page_bounds.freshness(w, w.weight),
            page_bounds.staleness(w),
        )
        for w in worlds
    ]
    return tuple(float(value) for value in np.mean(found, axis=0))  # type: ignore[return-value]


# --- the worlds ---


def world_part(
    part: str, kind: Kind, seeds: int, say: Callable[[str], None]
) -> tuple[dict[str, Any], list[Goal]]:
    """One of S1 to S4: all policies, the bounds, and the goals."""
    best = bounds(kind, seeds)
    say(f"\n{part}: bounds F {best[0]:.3f}  wF {best[1]:.3f}  staleness {best[2]:.1f}")
    say(f"{'':26}{'stale':>8}{'F':>8}{'wF':>8}{'age':>8}{'spent':>8}{'wF, day 1':>11}")
    seen: dict[str, Means] = {}
    for name in POLICIES:
        one = seen[name] = means(kind, seeds, name)
        say(
            f"{name:26}{one.stale:8.1f}{one.fresh:8.3f}{one.weighted:8.3f}{one.age:8.1f}{one.spent:8.3f}"
            f"{one.first_day:11.3f}"
        )
    goals = everywhere(part, seen) + (first_world(part, seen, best) if part == "S1" else [])
    figures = {"bounds": best, **{name: one._asdict() for name, one in seen.items()}}
    return figures, goals


def everywhere(part: str, seen: dict[str, Means]) -> list[Goal]:
    """What is to hold in every world."""
    paper, ours = seen["paper"], seen["importance"]
    known = 0.0 if part in ("S1", "S3") else -0.5
    return [
        at_least(
            f"{part}: importance: stale answers, paper's as a multiple of ours",
            (1 - paper.weighted) / (1 - ours.weighted),
            2.1 if part == "S2" else 2.2,
        ),
        *(
            at_least(
                f"{part}: importance: wF over {name}, points",
                points(ours.weighted, seen[name].weighted),
                known,
            )
            for name in ("LambdaCrawl, oracle", "Azar, oracle")
        ),
        at_least(
            f"{part}: freshness: F over Cho, oracle, points",
            points(seen["freshness"].fresh, seen["Cho, oracle"].fresh),
            -1.0,
        ),
    ]


def first_world(part: str, seen: dict[str, Means], best: tuple[float, float, float]) -> list[Goal]:
    """What is to hold in S1."""
    importance, fresh, stale, ours = (seen[n] for n in ("importance", "freshness", "staleness", "default"))
    paper, turns, nutch = seen["paper"], seen["round_robin"], seen["Nutch"]
    by_change, by_importance = seen["change_frequency"], seen["importance_proportional"]
    return [
        at_most(f"{part}: staleness: as a multiple of the lower bound", stale.stale / best[2], 1.03),
        at_most(f"{part}: staleness: as a multiple of paper's", stale.stale / paper.stale, 0.90),
        at_most(f"{part}: staleness: as a multiple of round robin's", stale.stale / turns.stale, 0.90),
        at_least(f"{part}: importance: wF as a share of the bound", importance.weighted / best[1], 0.99),
        at_least(
            f"{part}: importance: wF over paper, points", points(importance.weighted, paper.weighted), 13
        ),
        at_least(
            f"{part}: importance: wF over round robin, points",
            points(importance.weighted, turns.weighted),
            13,
        ),
        at_least(
            f"{part}: importance: wF over Nutch, points", points(importance.weighted, nutch.weighted), 14
        ),
        at_least(
            f"{part}: importance: wF over change frequency, points",
            points(importance.weighted, by_change.weighted),
            20,
        ),
        at_least(
            f"{part}: importance: wF over importance-proportional, points",
            points(importance.weighted, by_importance.weighted),
            4,
        ),
        at_least(
            f"{part}: importance: wF on day 1 over round robin, points",
            points(importance.first_day, turns.first_day),
            12,
        ),
        at_least(f"{part}: freshness: F as a share of the bound", fresh.fresh / best[0], 0.985),
        at_least(f"{part}: freshness: F over paper, points", points(fresh.fresh, paper.fresh), 5),
        at_least(f"{part}: freshness: F over round robin, points", points(fresh.fresh, turns.fresh), 5),
        at_least(f"{part}: freshness: F over Nutch, points", points(fresh.fresh, nutch.fresh), 5),
        at_most(f"{part}: freshness: age as a multiple of paper's", fresh.age / paper.age, 1.0),
        at_least(
            f"{part}: freshness: F over change frequency, points", points(fresh.fresh, by_change.fresh), 11
        ),
        at_most(f"{part}: default: staleness as a multiple of paper's", ours.stale / paper.stale, 1.0),
        at_least(f"{part}: default: F over paper, points", points(ours.fresh, paper.fresh), 4),
        at_least(f"{part}: default: wF over paper, points", points(ours.weighted, paper.weighted), 10),
        at_most(f"{part}: default: age as a multiple of paper's", ours.age / paper.age, 0.9),
    ]


def points(ours: float, other: float) -> float:
    """Difference of two shares, in hundredths."""
    return 100 * (ours - other)


# --- paper 004's model ---


def model_part(short: bool, say: Callable[[str], None]) -> tuple[dict[str, Any], list[Goal]]:
    """So many pages, so many threads, no host limit: what the paper's three figures are."""
    pages, days = (188, 2) if short else (MODEL_PAGES, MODEL_DAYS)
    threads = MODEL_THREADS
    bound = (pages / threads - 1) / 2
    random = np.random.default_rng(0)
    seen = {
        name: model_staleness(name, pages, threads, days) / bound
        for name in ("paper", "round_robin", "staleness")
    }
    for label, ratio in (("by change", BY_CHANGE), ("by importance", BY_IMPORTANCE)):
        seen[label] = (
            model_staleness("importance_proportional", pages, threads, days, scores(random, pages, ratio))
            / bound
        )
    say(f"\nmodel: {pages} pages, {threads} a period, staleness as a multiple of the bound {bound}")
    for name, ratio in seen.items():
        say(f"{name:26}{ratio:8.3f}")
    goals = [
        *(
            at_most(f"model: {name}: distance from the bound", abs(seen[name] - 1), 0.01)
            for name in ("paper", "staleness")
        ),
        at_most(
            f"model: scores spread to {BY_CHANGE}: distance", abs(seen["by change"] / BY_CHANGE - 1), 0.05
        ),
        at_most(
            f"model: scores spread to {BY_IMPORTANCE}: distance",
            abs(seen["by importance"] / BY_IMPORTANCE - 1),
            0.05,
        ),
    ]
    return seen, goals


def model_staleness(
    mode: str, pages: int, threads: int, days: int, weight: np.ndarray | None = None
) -> float:
    """Mean periods since the last visit, over the second half. Each page is a host of its own, so there is no limit."""
    sweep = pages / threads
    last = np.arange(pages) * -sweep / pages
    recrawl = Recrawl(np.arange(pages), np.ones(pages), weight, last=last * PERIOD, mode=mode)
    looks = []
    for period in range(days * PERIODS_A_DAY):
        chosen = recrawl.choose(period * PERIOD, 1.0, budget=float(threads))
        recrawl.visited(chosen, period * PERIOD, False)
        last[chosen] = period
        if period > days * PERIODS_A_DAY / 2:
            looks.append(float((period - last).mean()))
    return float(np.mean(looks))


def scores(random: np.random.Generator, n: int, ratio: float) -> np.ndarray:
    """Log-normal, spread so that visits in proportion to them have this multiple of the least staleness."""
    drawn = random.normal(size=n)
    low, high = 0.0, 5.0
    for _ in range(60):
        spread = (low + high) / 2
        x = np.exp(spread * drawn)
        low, high = (spread, high) if x.mean() * (1 / x).mean() < ratio else (low, spread)
    return x / x.mean()


# --- less load, and signals ---


def load_part(kind: Kind, seeds: int, say: Callable[[str], None]) -> tuple[dict[str, Any], list[Goal]]:
    """The paper's freshness at a share of its budget."""
    paper = means(kind, seeds, "paper")
    fifth = means(replace(kind, budget=0.2), seeds, "importance")
    half = means(replace(kind, budget=0.5), seeds, "freshness")
    say(
        f"\nload: paper F {paper.fresh:.3f} wF {paper.weighted:.3f}; importance with a fifth of the budget "
        f"wF {fifth.weighted:.3f}; freshness with half of it F {half.fresh:.3f}"
    )
    return {"paper": paper._asdict(), "fifth": fifth._asdict(), "half": half._asdict()}, [
        at_least(
            "load: importance at 20 % of the budget: wF over paper's at all of it, points",
            points(fifth.weighted, paper.weighted),
            0,
        ),
        at_least(
            "load: freshness at 50 % of the budget: F over paper's at all of it, points",
            points(half.fresh, paper.fresh),
            0,
        ),
    ]


SIGNALS = {
    "good: 0.8 told, 0.2 false": (1.0, 0.8, 0.2),
    "good, of 30 % of the pages": (0.3, 0.8, 0.2),
    "bad: 0.5 told, 1.0 false": (1.0, 0.5, 1.0),
    "worthless: none told, 2.0 false": (1.0, 0.0, 2.0),
}


def signals_part(kind: Kind, seeds: int, say: Callable[[str], None]) -> tuple[dict[str, Any], list[Goal]]:
    """With signals of known worth, which the policy must find out."""
    without = means(kind, seeds, "importance")
    seen = {
        name: means(replace(kind, signals=share, recall=recall, alarms=alarms), seeds, "importance")
        for name, (share, recall, alarms) in SIGNALS.items()
    }
    say(f"\nsignals: wF without {without.weighted:.3f}")
    for name, one in seen.items():
        say(f"{name:34}{one.weighted:8.3f}")
    gains = {name: points(one.weighted, without.weighted) for name, one in seen.items()}
    first, *others = gains
    return {"without": without._asdict(), **{n: one._asdict() for n, one in seen.items()}}, [
        at_least(f"signals: {first}: wF over none, points", gains[first], 4),
        *(at_least(f"signals: {name}: wF over none, points", gains[name], -0.2) for name in others),
    ]


# --- what a choice costs ---


class Choice(NamedTuple):
    """Choices among many pages, on one core; seconds are of its time, so that others on the machine matter less."""

    pages: int
    hosts: int
    picks_a_second: float
    bytes: int
    scan_seconds: float  # one decision by scoring all pages
    tick_seconds: float  # one decision of ours, learning from its visits included
    looks: float  # pages scored for each one taken


def choice_part(
    pages: int, hosts: int, ticks: int, say: Callable[[str], None]
) -> tuple[dict[str, Any], list[Goal]]:
    """Calls of PICKS each; the first are left out, until price and lists have settled."""
    found = choice(pages, hosts, min(PICKS, pages // 100), ticks)
    say(
        f"\nchoice: {found.pages:,} pages on {found.hosts:,} hosts: {found.picks_a_second / 1e6:.2f} M choices/s, "
        f"{found.bytes / 2**30:.2f} GiB, {1000 * found.tick_seconds:.1f} ms a call, {found.looks:.0f} looks a choice; "
        f"a full scan {found.scan_seconds:.2f} s"
    )
    return found._asdict(), [
        at_least("choice: choices a second, millions", found.picks_a_second / 1e6, 0.4),
        at_most("choice: bytes a page", found.bytes / found.pages, 2.5 * 2**30 / 1e8),
        at_least(
            "choice: a full scan, as a multiple of a call",
            found.scan_seconds / found.tick_seconds,
            100 if pages >= 10**8 else 10,
        ),
    ]


def choice(pages: int, hosts: int, picks: int, ticks: int) -> Choice:
    """Measured over the second half of the calls."""
    random = np.random.default_rng(0)
    recrawl = many(random, pages, hosts, picks)
    taken = seconds = 0.0
    for tick in range(ticks):
        began = time.process_time()
        chosen = recrawl.choose(tick * PERIOD, 1.0, budget=float(picks))
        changed = random.random(len(chosen)) < 0.5
        recrawl.visited(chosen, tick * PERIOD, changed)
        if tick >= ticks // 2:
            taken += len(chosen)
            seconds += time.process_time() - began
    calls = ticks - ticks // 2
    return Choice(
        len(recrawl),
        hosts,
        taken / seconds,
        recrawl.nbytes,
        scan_seconds(recrawl, len(recrawl), picks, ticks * PERIOD),
        seconds / calls,
        recrawl.looks / max(recrawl.taken, 1),
    )


def many(random: np.random.Generator, pages: int, hosts: int, picks: int) -> Recrawl:
    """Pages of unit size, visited some time within the last sweep."""
    share = 1 / np.arange(1, hosts + 1) ** ZIPF
    count = np.maximum((pages * share / share.sum()).astype(np.int64), 1)
    host = np.repeat(np.arange(hosts, dtype=np.int32), count)
    n = len(host)
    sweep = n / picks * PERIOD
    last = random.random(n, np.float32) * -sweep
    weight = random.random(n, np.float32) * 2
    return Recrawl(host, 1.0, weight, last=last, mean_rate=1 / sweep, longest_seconds=None)


def scan_seconds(recrawl: Recrawl, pages: int, picks: int, now: float) -> float:
    """All pages scored, and the best found."""
    began = time.process_time()
    score = np.concatenate(
        [
            recrawl.mode.score(recrawl.view(some, now, 1.0))
            for some in np.array_split(np.arange(pages), max(pages // 10**6, 1))
        ]
    )
    np.argpartition(-score, picks)
    return time.process_time() - began


# --- all of it ---


def measured(arguments: argparse.Namespace, say: Callable[[str], None]) -> tuple[dict[str, Any], list[Goal]]:
    """Every part that was asked for."""
    shrunk = SHORT if arguments.short else {}
    figures: dict[str, Any] = {}
    goals: list[Goal] = []
    for part in arguments.parts:
        first = replace(WORLDS["S1"], **shrunk)
        if part in WORLDS:
            found = world_part(part, replace(WORLDS[part], **shrunk), arguments.seeds, say)
        elif part == "model":
            found = model_part(arguments.short, say)
        elif part == "load":
            found = load_part(first, arguments.seeds, say)
        elif part == "signals":
            found = signals_part(first, arguments.seeds, say)
        else:
            found = choice_part(*sizes(arguments), say)
        figures[part] = found[0]
        goals += found[1]
    return figures, goals


def sizes(arguments: argparse.Namespace) -> tuple[int, int, int]:
    """Pages, hosts and calls of the part `choice`."""
    if arguments.short:
        return 100_000, 1_000, 20
    # Half of the calls are a round of all hosts in either case, and more.
    return (100_000_000, 1_000_000, 5 * TICKS) if arguments.large else (10_000_000, 100_000, TICKS)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, metavar="PART")
    parser.add_argument("--seeds", type=int, default=3, help="worlds of each kind")
    parser.add_argument("--short", action="store_true", help="small worlds and few calls; no goal is judged")
    parser.add_argument("--large", action="store_true", help="100 million pages")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def silent(_line: str) -> None:
    """Where JSON is expected."""


def aloud(line: str) -> None:
    print(line, flush=True)


def main() -> int:
    arguments = parsed()
    figures, goals = measured(arguments, silent if arguments.json else aloud)
    if arguments.json:
        print(json.dumps({"figures": figures, "goals": goals_told(goals)}))
    else:
        print("", goals_table(goals), sep="\n")
    return 0 if arguments.short or all(goal.met for goal in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
