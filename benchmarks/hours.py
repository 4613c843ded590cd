"""Whether real crawls end as the simulator says: each policy at work on a web whose sites have their hours.

    python benchmarks/hours.py [--rounds 3] [--first-seed 0] [--sites 100] [--slots 4] [--pages 30]
                               [--hour-seconds 15] [--only RUN …] [--quick] [--json]

The reference instance (benchmarks/simulator/instances.py) as a web (web.py there), with hours of some seconds. In each
round one instance is crawled by every policy at the same time, each by processes of its own (server, coordinator,
planner, agents), from the same moment on. The loads were imported before, except for "no profile": there the crawl
has nothing but what it sees. Then the simulator gets the same instance, with sizes in whole pages, a site's size known
from its first page on, and the start in mid-hour that the crawl really had.

Told beside: how often sites were suspended and gone on with, what slots lost by that, and the CPU of agent and planner.

Exit code 1: a page was lost, or fetched twice.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import meters  # noqa: E402
from benchmarks.crawls import KEYS, PATIENCE_SECONDS, Crawl, end_in_order  # noqa: E402
from benchmarks.goals import Goal, goals_table, goals_told  # noqa: E402
from benchmarks.simulator.crawl import crawl as simulated  # noqa: E402
from benchmarks.simulator.instances import REFERENCE, Instance, draw  # noqa: E402
from benchmarks.simulator.optimum import optimum  # noqa: E402
from benchmarks.simulator.web import HOURS, ROBOTS, Hit, Paced, PacedWeb  # noqa: E402
from crawler import schedulers  # noqa: E402
from crawler.planning.load import UNKNOWN  # noqa: E402
from tests.crawling import Run  # noqa: E402


class How(NamedTuple):
    """One way to crawl an instance."""

    policy: str
    profile: bool = True  # whether loads are imported
    agents: int = 1


RUNS = {
    "random": How("random"),
    "sorted": How("sorted"),
    "hybrid": How("hybrid"),
    "regret": How("regret"),
    "early": How("early"),
    "regret, two agents": How("regret", agents=2),
    "regret, no profile": How("regret", profile=False),
}
# What seconds do not matter for in a real hour is done at once; what a page costs is measured elsewhere.
PROMPT = {"FLUSH_SECONDS": 0.2, "BATCH_SECONDS": 0.3, "ARCHIVE_CONTENT_TYPES": "", "LANGUAGE_ENABLED": False}
# The page of a site that is at its busiest for many hours.
LONGEST_PAGE_HOURS = 24
# Seconds that preparing takes, and for each crawl more: the hour that the instance begins with must be known before.
# Where they are too few, the crawls begin later in its day, and so do the simulator's.
PREPARATION_SECONDS, PREPARATION_SECONDS_EACH = 2.0, 3.0
# When agents join: by then the hour's plan is written.
INTO_THE_HOUR_SECONDS = 0.25
# Each starts in its own time, and waits for the others.
START_SECONDS_EACH = 1.0
QUICK = {
    "rounds": 1,
    "sites": 8,
    "slots": 2,
    "pages": 8,
    "hour_seconds": 1.0,
    "only": ["regret", "regret, no profile"],
}
WITHIN, REGRET_BELOW_HYBRID, UNKNOWN_TO_RANDOM = 0.10, 0.10, 1.03
# From this share of slot time on in which sites were not asked on, the machine has slowed the crawls down.
MOST_LATE = 0.03


class Size(NamedTuple):
    """How large the crawls are."""

    sites: int
    slots: int
    pages: int  # of a site, mean
    hour_seconds: float


class Figures(NamedTuple):
    """One crawl, and the simulator's of the same. Times in hours, but for CPU and `gap`, in seconds."""

    hours: float
    simulated: float
    start: float  # into the instance's first hour
    optimum: float
    leases: int  # a site's first and all that go on with it
    simulated_leases: int
    idle: float  # of all slots together, while some site waited
    gap: float  # of a slot, from one site's last page to the next one's first request
    late: float  # share of slot time in which a site in hand was not asked on: the machine was busy
    agent_cpu: float
    planner_cpu: float
    pages: int
    lost: int
    twice: int


Round = dict[str, Figures]


# --- one round --------------------------------------------------------------------------------------------


def instance_of(size: Size, seed: int) -> tuple[Instance, list[int]]:
    """The instance of a seed, and how many pages each site has; its sizes are those."""
    case = replace(REFERENCE, sites=size.sites, slots=size.slots, sizes_met=True)
    drawn = draw(case, seed)
    pages = [max(2, round(one * size.pages)) for one in drawn.size]
    return replace(drawn, size=np.array(pages) / size.pages), pages


def measure(size: Size, seed: int, runs: Sequence[str]) -> Round:
    """One instance by all of these runs at a time."""
    instance, pages = instance_of(size, seed)
    shape = Paced(pages, (instance.pace * size.pages).tolist(), size.hour_seconds)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        crawls = {}
        for number, run in enumerate(runs):
            folder = Path(name) / str(number)
            folder.mkdir()
            crawls[run] = stack.enter_context(RealCrawl(folder, RUNS[run], shape, size.slots))
        first_hour = _prepare(list(crawls.values()), instance, size.hour_seconds)
        opens_at = _opening(len(crawls), first_hour, size.hour_seconds)
        for one in crawls.values():
            one.start(opens_at)
        for one in crawls.values():
            one.wait()
        return {run: one.figures(instance, first_hour) for run, one in crawls.items()}


def _prepare(crawls: list[RealCrawl], instance: Instance, hour_seconds: float) -> int:
    """Import and queue everything, and wait for the plans; the hour with which the instance begins."""
    seconds = PREPARATION_SECONDS + PREPARATION_SECONDS_EACH * len(crawls)
    first_hour = math.ceil((time.time() + seconds) / hour_seconds)
    for one in crawls:
        one.know(instance.load, first_hour)
    for one in crawls:
        one.queue()
    for one in crawls:
        one.until_planned()
    return first_hour


def _opening(crawls: int, first_hour: int, hour_seconds: float) -> float:
    """When the agents may join: with the instance's first hour, or the next that leaves time to start them."""
    ready = time.time() + START_SECONDS_EACH * (crawls + 1)
    return max(first_hour, math.ceil(ready / hour_seconds)) * hour_seconds + INTO_THE_HOUR_SECONDS


class RealCrawl:
    """One crawl with all its processes; a context manager at whose end none is left."""

    def __init__(self, folder: Path, how: How, shape: Paced, slots: int) -> None:
        self._folder, self._how, self._slots = folder, how, slots
        self._hour_seconds = shape.hour_seconds
        self._web = PacedWeb(shape)
        self._settings: dict[str, Any] = {
            "HOUR_SECONDS": shape.hour_seconds,
            "SITE_SLOTS": slots // how.agents,
            "DOWNLOAD_DELAY": 0,
            # The busiest hours have no whole page: such a site is slow, and not gone.
            "HEAD_TIMEOUT_SECONDS": LONGEST_PAGE_HOURS * shape.hour_seconds,
            "ADAPTIVE_TIMEOUTS": False,
            **PROMPT,
        }
        planned = {**self._settings, "SITE_SCHEDULER": how.policy, "SITE_SLOTS": slots}
        self._crawl = Crawl(folder, **planned)
        self._imports: Run | None = None
        self._agents: list[Run] = []
        self._end = ExitStack()

    def __enter__(self) -> RealCrawl:
        with ExitStack() as started:
            started.enter_context(self._web)
            started.enter_context(self._crawl)
            started.callback(self._end_agents)
            self._end = started.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._end.__exit__(*error)

    def _end_agents(self) -> None:
        """What is left of them where something went wrong."""
        for run in self._agents:
            if run.process.poll() is None:
                run.process.kill()
                run.process.wait()

    # --- before ---

    def know(self, load: np.ndarray, first_hour: int) -> None:
        """Start to import the sites' loads, the first column of which is that hour's."""
        self._web.begin_with(first_hour)
        if not self._how.profile:
            return
        rows = [",".join(["site", *map(str, range(HOURS))])]
        for site, loads in enumerate(np.roll(load, first_hour % HOURS, axis=1)):
            rows.append(",".join([self._web.origin(site), *(f"{one:.4f}" for one in loads)]))
        file = self._folder / "loads.csv"
        file.write_text("\n".join(rows) + "\n")
        self._imports = self._crawl.place.start("load", "import", str(file))

    def queue(self) -> None:
        """Queue all sites, once their loads are known."""
        if self._imports is not None:
            self._imports.wait(PATIENCE_SECONDS).succeeded()
        self._crawl.queue(self._web.seeds())

    def until_planned(self) -> None:
        """Wait until the planner has written this hour's list."""

        def written() -> int:
            return int(self._crawl.client.llen(f"{KEYS}hour:{int(time.time() // self._hour_seconds)}"))

        self._crawl.until(written, "the hours are planned")

    # --- the crawl ---

    def start(self, opens_at: float) -> None:
        """Start the agents, which join at that moment."""
        extensions = {"benchmarks.meters.CpuMeter": 0, "benchmarks.simulator.gate.Gate": 1}
        for _ in range(self._how.agents):
            run = self._crawl.agent(
                *("--scheduler", self._how.policy), EXTENSIONS=extensions, OPENS_AT=opens_at, **self._settings
            )
            self._agents.append(run)

    def wait(self) -> None:
        """Until the last agent has ended, and with it the crawl."""
        for run in self._agents:
            run.wait(PATIENCE_SECONDS).succeeded()

    # --- after ---

    def figures(self, instance: Instance, first_hour: int) -> Figures:
        """What came of it, beside what the simulator makes of the instance."""
        hits = self._web.log()
        begin, end = min(hit.asked for hit in hits), max(hit.answered for hit in hits)
        start = begin / self._hour_seconds - first_hour
        if not self._how.profile:
            instance = replace(instance, told=np.full_like(instance.told, UNKNOWN))
        sim = simulated(instance, schedulers.get(self._how.policy), max(0.0, start))
        spans = leases_of(hits)
        idle, handed = idle_of(spans, self._slots)
        fetched = Counter((hit.site, hit.path) for hit in hits if hit.path != ROBOTS)
        declared = self._web.declared()
        return Figures(
            hours=(end - begin) / self._hour_seconds,
            simulated=sim.finish,
            start=start,
            optimum=_optimum(instance, int(max(0.0, start))),
            leases=len(spans),
            simulated_leases=sim.starts,
            idle=idle / self._hour_seconds,
            gap=idle / max(1, handed),
            late=sum(hit.late for hit in hits) / self._slots / (end - begin),
            agent_cpu=sum(one.cpu for one in self._crawl.usage()),
            planner_cpu=sum(map(meters.cpu_of, self._crawl.place.processes("plan"))),
            pages=fetched.total(),
            lost=(declared - fetched).total(),
            twice=(fetched - declared).total(),
        )


def _optimum(instance: Instance, hour: int) -> float:
    """Of a crawl that begins with that hour of the instance."""
    load, told = (np.roll(one, -hour, axis=1) for one in (instance.load, instance.told))
    rolled = replace(instance, load=load, told=told)
    return optimum(rolled, simulated(rolled, schedulers.get("regret")).finish)


# --- what a log says --------------------------------------------------------------------------------------


def leases_of(hits: Sequence[Hit]) -> list[tuple[float, float]]:
    """From the first request to the last answer of each lease; every one begins with robots.txt."""
    spans: list[tuple[float, float]] = []
    last: dict[int, int] = {}  # site -> its lease
    for hit in sorted(hits, key=lambda hit: hit.asked):
        if hit.path == ROBOTS:
            last[hit.site] = len(spans)
            spans.append((hit.asked, hit.answered))
        else:
            begin, end = spans[last[hit.site]]
            spans[last[hit.site]] = (begin, max(end, hit.answered))
    return spans


def idle_of(spans: Sequence[tuple[float, float]], slots: int) -> tuple[float, int]:
    """Seconds in which slots had no site although some waited, and how often one went from site to site."""
    until = max(begin for begin, _ in spans)
    changes = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    idle, busy, before = 0.0, 0, changes[0][0]
    for at, change in changes:
        at = min(at, until)
        idle += (at - before) * max(0, slots - busy)
        before, busy = at, busy + change
    return idle, len(spans) - slots


# --- what is printed --------------------------------------------------------------------------------------


def _of(rounds: Sequence[Round], run: str, field: str) -> np.ndarray:
    return np.array([getattr(one[run], field) for one in rounds], float)


def _ratio(rounds: Sequence[Round], run: str, other: str, field: str = "hours") -> float:
    """Of mean hours."""
    return float(_of(rounds, run, field).mean() / _of(rounds, other, field).mean())


def table(rounds: Sequence[Round], size: Size) -> str:
    """One line a run."""
    lines = [
        f"{'':<20}{'hours':>16}{'simulated':>11}{'real / simulated':>24}{'/ random':>10}{'simulated':>11}"
        f"{'leases':>8}{'simulated':>11}{'idle':>7}{'gap, ms':>9}{'late':>7}{'agent CPU-ms':>14}{'planner CPU':>13}"
    ]
    for run in rounds[0]:
        hours, said = _of(rounds, run, "hours"), _of(rounds, run, "simulated")
        to_random = [
            _ratio(rounds, run, "random", field) if "random" in rounds[0] else math.nan
            for field in ("hours", "simulated")
        ]
        ratio = hours / said
        pages, slot_hours = _of(rounds, run, "pages"), hours * size.slots
        lines.append(
            f"{run:<20}{hours.mean():>7.2f} ({hours.std():>5.2f}){said.mean():>12.2f}"
            f"{ratio.mean():>10.3f} ({ratio.min():.2f} .. {ratio.max():.2f}){to_random[0]:>9.3f}{to_random[1]:>11.3f}"
            f"{_of(rounds, run, 'leases').mean():>8.0f}{_of(rounds, run, 'simulated_leases').mean():>11.0f}"
            f"{(_of(rounds, run, 'idle') / slot_hours).mean():>7.1%}{_of(rounds, run, 'gap').mean() * 1e3:>9.0f}"
            f"{_of(rounds, run, 'late').mean():>7.1%}"
            f"{(_of(rounds, run, 'agent_cpu') / pages).mean() * 1e3:>12.2f}/p"
            f"{(_of(rounds, run, 'planner_cpu') / hours).mean() * 1e3:>10.0f}/h"
        )
    late = max(float(_of(rounds, run, "late").max()) for run in rounds[0])
    if late > MOST_LATE:
        lines.append(
            f"the machine was busy: sites in hand were not asked on for up to {late:.0%} of the slots' time"
        )
    best = np.mean([next(iter(one.values())).optimum for one in rounds])
    lines.append(f"{'optimum':<20}{'':>16}{best:>11.2f}")
    return "\n".join(lines)


def goals_of(rounds: Sequence[Round]) -> list[Goal]:
    """Real crawls are as the simulator's, the better policy is better, and who knows nothing loses nothing."""
    runs = list(rounds[0])
    known = [run for run in runs if RUNS[run].profile]
    goals = [
        Goal(f"{run}: real / simulated", _ratio_to_simulated(rounds, run), 1 - WITHIN, 1 + WITHIN)
        for run in known
    ]
    if "random" in runs:
        goals += [
            Goal(
                f"{run} / random: real / simulated",
                _ratio(rounds, run, "random") / _ratio(rounds, run, "random", "simulated"),
                1 - WITHIN,
                1 + WITHIN,
            )
            for run in known
            if run != "random"
        ]
    policies = [run for run in known if RUNS[run].agents == 1]
    orders = [
        sorted(policies, key=lambda run: _of(rounds, run, field).mean()) for field in ("hours", "simulated")
    ]
    goals.append(
        Goal("policies in the order of the simulated ones (1: yes)", float(orders[0] == orders[1]), 1, 1)
    )
    if {"regret", "hybrid"} <= set(runs):
        below = float(1 - (_of(rounds, "regret", "hours") / _of(rounds, "hybrid", "hours")).mean())
        goals.append(Goal("regret below hybrid", below, REGRET_BELOW_HYBRID, 1))
    if {"regret, no profile", "random"} <= set(runs):
        blind = _ratio(rounds, "regret, no profile", "random")
        goals.append(Goal("regret without a profile / random", blind, 0, UNKNOWN_TO_RANDOM))
    return goals


def _ratio_to_simulated(rounds: Sequence[Round], run: str) -> float:
    return float((_of(rounds, run, "hours") / _of(rounds, run, "simulated")).mean())


def faults_of(rounds: Sequence[Round]) -> list[str]:
    """What must not be, however busy the machine is."""
    return [
        f"{run}: {one.lost} pages lost, {one.twice} fetched twice"
        for found in rounds
        for run, one in found.items()
        if one.lost or one.twice
    ]


def main(arguments: list[str] | None = None) -> int:
    """Parse, crawl, simulate, print; 1 where a page was lost or fetched twice."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="instances, each crawled by all (default 3)")
    parser.add_argument("--first-seed", type=int, default=0, help="seeds begin here (default 0)")
    parser.add_argument("--sites", type=int, default=100, help="sites of an instance (default 100)")
    parser.add_argument("--slots", type=int, default=4, help="slots of a crawl (default 4)")
    parser.add_argument("--pages", type=int, default=30, help="pages of a site, mean (default 30)")
    parser.add_argument("--hour-seconds", type=float, default=15.0, help="length of an hour (default 15)")
    parser.add_argument("--only", nargs="+", choices=list(RUNS), default=list(RUNS), help="these runs only")
    parser.add_argument("--quick", action="store_true", help="small and short, to see that it works")
    parser.add_argument("--json", action="store_true", help="every figure, as JSON")
    given = parser.parse_args(arguments)
    if given.quick:
        vars(given).update(QUICK)
    end_in_order()
    size = Size(given.sites, given.slots, given.pages, given.hour_seconds)
    rounds = []
    for seed in range(given.first_seed, given.first_seed + given.rounds):
        rounds.append(measure(size, seed, given.only))
        print(f"round {len(rounds)} of {given.rounds}", file=sys.stderr)
    goals = goals_of(rounds)
    if given.json:
        told = [{run: one._asdict() for run, one in found.items()} for found in rounds]
        print(json.dumps({"rounds": told, "goals": goals_told(goals)}, indent=1))
    else:
        print(table(rounds, size), goals_table(goals), sep="\n\n")
    faults = faults_of(rounds)
    print("".join(f"{fault}\n" for fault in faults), file=sys.stderr, end="")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
