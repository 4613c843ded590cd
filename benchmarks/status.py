"""How fast sites are asked for their status, and whether those that hang hold up the others.

    python benchmarks/status.py [--sites 1000] [--rate-sites 6000] [--rounds 3] [--json]

Paper 002 takes 1,200 ms for 1,000 URLs on one machine, and less on more. Here 1,000 sites on as many loopback addresses
are asked by one, two and four agents, first with robots.txt unread, then with what is kept of it; timed from the first
answer to the last, by the records. The rate is taken with more sites, since 1,000 are over in a second, and from the
time in which all agents give answers, since two do not start in the same moment. Then a fifth of 1,000 sites takes
connections and says nothing: how much later than without them are the others' answers?

Processors are shared by agents, web, server and coordinator alike, so what two agents gain is bounded by what these
leave, where one fills its processor. So the rates are taken again with agents that are stopped for three quarters of
the time, as if on slower processors of their own: what do agents gain where there is room for them?

Exit code 1: a row is missing or too many, or a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import meters  # noqa: E402
from benchmarks.crawls import KEYS, PATIENCE_SECONDS, Crawl, end_in_order  # noqa: E402
from benchmarks.goals import Goal, at_least, at_most, goals_table, goals_told  # noqa: E402
from benchmarks.web import Pages, Web  # noqa: E402
from tests.farm.plan import address  # noqa: E402

AGENTS = (1, 2, 4)
PAGE_BYTES = 3_000
# Of a processor, that each agent has where there is to be room for two.
PART = 0.25
# Of the sites that hang.
HANGING_SHARE = 0.2
HEAD_TIMEOUT_SECONDS = 2.0
# An interval that no run outlasts: each site is asked once a run.
INTERVAL_SECONDS = 36_000.0
GOAL_RATE = 800.0
GOAL_TWO = 1.7
# How much later the healthy sites' answers may be, times without hanging ones; a tenth of a second is noise.
GOAL_LATE, NOISE_SECONDS = 1.5, 0.1


class Figures(NamedTuple):
    """One run: every site asked once, by so many agents."""

    agents: int
    sites: int
    known: bool  # robots.txt was read by an earlier run
    part: float  # of its time that each agent runs
    seconds: float  # from the first answer to the last
    rate: float  # answers a second, of the time in which every agent gave some
    agent_ms: float  # CPU a check, all agents together
    server_ms: float
    coordinator_ms: float
    lost: int  # sites that were asked and have no row
    extra: int  # rows beyond one a site


class Hanging(NamedTuple):
    """Healthy sites beside hanging ones, and alone."""

    alone: float  # seconds until the last healthy answer
    beside: float
    healthy: int  # rows of each
    hanging: int

    @property
    def on_time(self) -> float:
        """Seconds until which those that hang do not hold up the others."""
        return max(GOAL_LATE * self.alone, self.alone + NOISE_SECONDS)


# --- one run --------------------------------------------------------------------------------------------------


def ask(
    crawl: Crawl,
    seeds: list[str],
    agents: int,
    cores: tuple[int, int] | None,
    *,
    known: bool,
    part: float = 1.0,
    **given: Any,
) -> Figures:
    """Every site once, by agents that end when nothing is due."""
    last = _last_row(crawl)
    # All are due, in any order: by name those that hang would come last.
    order = random.Random(1)
    for key in crawl.client.zrange(KEYS + "wake:status", 0, -1):
        crawl.client.zadd(KEYS + "wake:status", {key: order.random()})
    before = len(crawl.usage()) if crawl.place.folder.joinpath("meter").exists() else 0
    own = cores[0] if cores and agents == 1 else None
    with crawl.account() as used, ExitStack() as stack:
        runs = [_agent(crawl, own, **given) for _ in range(agents)]
        for run in runs:
            stack.enter_context(meters.slowed(run.process, part))
        for run in runs:
            run.wait(PATIENCE_SECONDS).succeeded()
    asked = "select s.site, h.agent, h.checked_at from health h join sites s using (site_id)"
    rows = crawl.place.rows(f"{asked} where h.id > {last}")
    per_site, times = Counter(site for site, _, _ in rows), [at for _, _, at in rows]
    cpu = sum(usage.cpu for usage in crawl.usage()[before:])
    many = len(seeds)
    return Figures(
        agents,
        many,
        known,
        part,
        (max(times) - min(times)) / 1e3 if times else 0.0,
        rate_of([(agent, at / 1e3) for _, agent, at in rows]),
        cpu / many * 1e3,
        used.server / many * 1e3,
        used.coordinator / many * 1e3,
        lost=many - len(per_site),
        extra=len(rows) - len(per_site),
    )


def rate_of(answers: list[tuple[str, float]]) -> float:
    """Answers a second, of the time in which every agent gave some; 0 where that has not half of the answers.

    `answers`: by whom, and when, in seconds.
    """
    by_agent: dict[str, list[float]] = {}
    for agent, at in answers:
        by_agent.setdefault(agent, []).append(at)
    begin = max(map(min, by_agent.values()), default=0.0)
    end = min(map(max, by_agent.values()), default=0.0)
    many = sum(begin <= at <= end for _, at in answers)
    return many / (end - begin) if end > begin and 2 * many >= len(answers) else 0.0


def _agent(crawl: Crawl, core: int | None, **given: Any) -> Any:
    return crawl.agent(core=core, spider="status", STATUS_INTERVAL_SECONDS=INTERVAL_SECONDS, **given)


def _last_row(crawl: Crawl) -> int:
    ((last,),) = crawl.place.rows("select coalesce(max(id), 0) from health")
    return int(last)


@contextmanager
def world(sites: int, cores: tuple[int, int] | None) -> Iterator[tuple[Crawl, list[str]]]:
    """A web of so many sites, queued, with server and coordinator."""
    others = cores[1] if cores else None
    shape = Pages(sites, 1, 1, variants=0, size=PAGE_BYTES)
    with (
        tempfile.TemporaryDirectory() as name,
        Web(shape, others) as web,
        Crawl(Path(name), core=others) as crawl,
    ):
        seeds = web.seeds()
        crawl.queue(seeds)
        yield crawl, seeds


def speeds(
    sites: int, rate_sites: int, numbers: tuple[int, ...], cores: tuple[int, int] | None
) -> list[Figures]:
    """The paper's 1,000 by these numbers of agents, robots.txt unread at first; then the rate of one agent and of two.

    `rate_sites` 0: no rate.
    """
    found = []
    with world(sites, cores) as (crawl, seeds):
        found.append(ask(crawl, seeds, 1, cores, known=False))
        found += [ask(crawl, seeds, agents, cores, known=True) for agents in numbers]
    if not rate_sites:
        return found
    with world(rate_sites, cores) as (crawl, seeds):
        found.append(ask(crawl, seeds, 1, cores, known=False))
        for part in (1.0, PART):
            found += [ask(crawl, seeds, agents, cores, known=True, part=part) for agents in (1, 2)]
    return found


@contextmanager
def silence(many: int) -> Iterator[list[str]]:
    """Sites that take connections and say nothing: the kernel takes them, and nobody accepts."""
    with ExitStack() as stack:
        seeds = []
        for number in range(many):
            listener = stack.enter_context(socket.create_server((address(60_000 + number), 0), backlog=64))
            seeds.append(f"http://{listener.getsockname()[0]}:{listener.getsockname()[1]}/")
        yield seeds


def hang(sites: int, cores: tuple[int, int] | None) -> Hanging:
    """The healthy ones' last answers without and beside those that hang."""
    many = int(sites * HANGING_SHARE)
    with world(sites - many, cores) as (crawl, seeds), silence(many) as silent:
        limits = {"HEAD_TIMEOUT_SECONDS": HEAD_TIMEOUT_SECONDS, "RETRY_DELAY_SECONDS": 0.1}
        ask(crawl, seeds, 1, cores, known=False, **limits)
        alone = ask(crawl, seeds, 1, cores, known=True, **limits)
        crawl.queue(silent)
        last = _last_row(crawl)
        ask(crawl, seeds + silent, 1, cores, known=True, **limits)
        rows = crawl.place.rows(f"select health, checked_at from health where id > {last}")
    healthy = [at for health, at in rows if health == "normal"]
    ill = [at for health, at in rows if health == "disconnected"]
    return Hanging(alone.seconds, (max(healthy) - min(healthy)) / 1e3, len(healthy), len(ill))


# --- what is told ---------------------------------------------------------------------------------------------


def table(rounds: list[list[Figures]], hanging: Hanging) -> str:
    """Medians of the rounds, with least and most."""
    about = "CPU-ms a check: agents, server, coordinator"
    heads = f"{'sites':>6} {'agents':>6} {'at':>5}  {'robots.txt':<10} {'seconds':>24} {'checks/s':>30}"
    lines = [f"{heads} {about:>46}"]
    for same in zip(*rounds, strict=True):
        one = same[0]
        cpu = ", ".join(
            f"{statistics.median(getattr(figures, name) for figures in same):.3f}"
            for name in ("agent_ms", "server_ms", "coordinator_ms")
        )
        read = "known" if one.known else "read"
        seconds = _middle([figures.seconds for figures in same], 2)
        rate = _middle([figures.rate for figures in same], 0)
        who = f"{one.sites:>6,} {one.agents:>6} {one.part:>5.0%}"
        lines.append(f"{who}  {read:<10} {seconds:>24} {rate:>30} {cpu:>46}")
    lines.append(
        f"{hanging.hanging} of {hanging.healthy + hanging.hanging} sites hang: the others' last answer after "
        f"{hanging.beside:.2f} s, {hanging.alone:.2f} s without them"
    )
    return "\n".join([*lines, *_bound(rounds), goals_table(goals(rounds, hanging))])


def _bound(rounds: list[list[Figures]]) -> list[str]:
    """What two agents could do at most where they share the machine with all else, by the CPU that is counted."""
    if {1, 2} - {one.agents for one in rounds[0] if one.known}:
        return []
    two = [one for same in rounds for one in same if _is_rate(one, same, 2)]
    cpu = statistics.median(one.agent_ms + one.server_ms + one.coordinator_ms for one in two)
    cores = len(os.sched_getaffinity(0))
    most = cores * 1000 / cpu
    times = _times(most, _rate(rounds, 1))
    return [
        f"two agents, server and coordinator take {cpu:.2f} CPU-ms a check: {cores} processors do {most:,.0f} a second "
        f"at most, {times:.2f} times what one agent does; the web has its part of that"
    ]


def _times(one: float, other: float) -> float:
    """The one as a multiple of the other; 0 where there is no other."""
    return one / other if other else 0.0


def _middle(values: list[float], digits: int) -> str:
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f} .. {max(values):,.{digits}f})"


def goals(rounds: list[list[Figures]], hanging: Hanging) -> list[Goal]:
    """What the medians are to be."""
    late = at_most("healthy sites' last answer beside hanging ones, s", hanging.beside, hanging.on_time)
    if {1, 2} - {one.agents for one in rounds[0] if one.known}:
        return [late]
    one, two = (_rate(rounds, agents) for agents in (1, 2))
    parts = sorted({figures.part for figures in rounds[0]} - {1.0})
    cpu = statistics.median(
        figures.agent_ms for same in rounds for figures in same if _is_rate(figures, same, 1)
    )
    return [
        at_least("checks/s of one agent on one processor", one, GOAL_RATE),
        at_least("checks/s by its CPU alone", 1000 / cpu, GOAL_RATE),
        at_least("two agents, times one", _times(two, one), GOAL_TWO),
        *(
            at_least(
                f"two agents at {part:.0%}, times one",
                _times(_rate(rounds, 2, part), _rate(rounds, 1, part)),
                GOAL_TWO,
            )
            for part in parts
        ),
        late,
    ]


def _rate(rounds: list[list[Figures]], agents: int, part: float = 1.0) -> float:
    return statistics.median(one.rate for same in rounds for one in same if _is_rate(one, same, agents, part))


def _is_rate(one: Figures, same: list[Figures], agents: int, part: float = 1.0) -> bool:
    """Whether it is of those that the rate is taken from: the most sites, with robots.txt known."""
    most = max(other.sites for other in same)
    return one.known and (one.sites, one.agents, one.part) == (most, agents, part)


def faults_of(rounds: list[list[Figures]], hanging: Hanging, sites: int) -> list[str]:
    """What must not be, however busy the machine is."""
    faults = [
        f"{one.sites} sites by {one.agents} agents: {one.lost} rows lost, {one.extra} too many"
        for same in rounds
        for one in same
        if one.lost or one.extra
    ]
    if hanging.healthy + hanging.hanging != sites:
        faults.append(f"{hanging} beside {sites} sites: rows are missing, or too many")
    return faults


def main(arguments: list[str] | None = None) -> int:
    """Parse, measure, print; 1 where rows are missing or a goal is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sites", type=int, default=1_000, help="as in the paper (default 1000)")
    parser.add_argument("--rate-sites", type=int, default=6_000, help="for the rate (default 6000; 0: none)")
    parser.add_argument(
        "--agents", default=",".join(map(str, AGENTS)), help="numbers of agents (default 1,2,4)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="(default 3)")
    parser.add_argument("--json", action="store_true", help="every figure, as JSON")
    given = parser.parse_args(arguments)
    end_in_order()
    cores = meters.two_cores()
    numbers = tuple(map(int, given.agents.split(",")))
    rounds = []
    for number in range(given.rounds):
        rounds.append(speeds(given.sites, given.rate_sites, numbers, cores))
        print(f"round {number + 1} of {given.rounds}", file=sys.stderr)
    hanging = hang(given.sites, cores)
    found = goals(rounds, hanging)
    if given.json:
        told = [[one._asdict() for one in same] for same in rounds]
        figures = {"rounds": told, "hanging": hanging._asdict(), "goals": goals_told(found)}
        print(json.dumps(figures, indent=1))
    else:
        print(table(rounds, hanging))
    faults = faults_of(rounds, hanging, given.sites)
    print("".join(f"{fault}\n" for fault in faults), file=sys.stderr, end="")
    return 0 if not faults and all(goal.met for goal in found) else 1


if __name__ == "__main__":
    sys.exit(main())
