"""How fast sites are asked for their status, and whether those that hang hold up the others.

    python benchmarks/status.py [--sites 1000] [--rate-sites 6000] [--rounds 3] [--json]

Paper 002 takes 1,200 ms for 1,000 URLs on one machine, and less on more. Here 1,000 sites on as many loopback addresses
are asked by one, two and four agents, first with robots.txt unread, then with what is kept of it; timed from the first
answer to the last, by the records. The rate is taken with more sites, since 1,000 are over in a second. Then a fifth of
1,000 sites takes connections and says nothing: how much later than without them are the others' answers?

Processors are shared by agents, web, server and coordinator alike, so what two agents gain is bounded by what these
leave. Exit code 1: a row is missing or too many, or a goal is missed.
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
from benchmarks.web import Pages, Web  # noqa: E402
from tests.farm.plan import address  # noqa: E402

AGENTS = (1, 2, 4)
PAGE_BYTES = 3_000
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
    seconds: float  # from the first answer to the last
    agent_ms: float  # CPU a check, all agents together
    server_ms: float
    coordinator_ms: float
    lost: int  # sites that were asked and have no row
    extra: int  # rows beyond one a site

    @property
    def rate(self) -> float:
        """Checks a second."""
        return self.sites / self.seconds if self.seconds else 0.0


class Hanging(NamedTuple):
    """Healthy sites beside hanging ones, and alone."""

    alone: float  # seconds until the last healthy answer
    beside: float
    healthy: int  # rows of each
    hanging: int

    @property
    def late(self) -> bool:
        """Whether those that hang held up the others."""
        return self.beside > max(GOAL_LATE * self.alone, self.alone + NOISE_SECONDS)


# --- one run --------------------------------------------------------------------------------------------------


def ask(
    crawl: Crawl, seeds: list[str], agents: int, cores: tuple[int, int] | None, *, known: bool, **given: Any
) -> Figures:
    """Every site once, by agents that end when nothing is due."""
    last = _last_row(crawl)
    # All are due, in any order: by name those that hang would come last.
    order = random.Random(1)
    for key in crawl.client.zrange(KEYS + "wake:status", 0, -1):
        crawl.client.zadd(KEYS + "wake:status", {key: order.random()})
    before = len(crawl.usage()) if crawl.place.folder.joinpath("meter").exists() else 0
    own = cores[0] if cores and agents == 1 else None
    with crawl.account() as used:
        runs = [_agent(crawl, own, **given) for _ in range(agents)]
        for run in runs:
            run.wait(PATIENCE_SECONDS).succeeded()
    rows = crawl.place.rows(
        f"select s.site, h.checked_at from health h join sites s using (site_id) where h.id > {last}"
    )
    per_site, times = Counter(site for site, _ in rows), [at for _, at in rows]
    cpu = sum(usage.cpu for usage in crawl.usage()[before:])
    many = len(seeds)
    return Figures(
        agents,
        many,
        known,
        (max(times) - min(times)) / 1e3 if times else 0.0,
        cpu / many * 1e3,
        used.server / many * 1e3,
        used.coordinator / many * 1e3,
        lost=many - len(per_site),
        extra=len(rows) - len(per_site),
    )


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
        found += [ask(crawl, seeds, agents, cores, known=True) for agents in (1, 2)]
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
    lines = [f"{'sites':>6} {'agents':>6}  {'robots.txt':<10} {'seconds':>24} {'checks/s':>30} {about:>46}"]
    for same in zip(*rounds, strict=True):
        one = same[0]
        cpu = ", ".join(
            f"{statistics.median(getattr(figures, name) for figures in same):.3f}"
            for name in ("agent_ms", "server_ms", "coordinator_ms")
        )
        read = "known" if one.known else "read"
        seconds = _middle([figures.seconds for figures in same], 2)
        rate = _middle([figures.rate for figures in same], 0)
        lines.append(f"{one.sites:>6,} {one.agents:>6}  {read:<10} {seconds:>24} {rate:>30} {cpu:>46}")
    lines.append(
        f"{hanging.hanging} of {hanging.healthy + hanging.hanging} sites hang: the others' last answer after "
        f"{hanging.beside:.2f} s, {hanging.alone:.2f} s without them"
    )
    return "\n".join(
        lines
        + _bound(rounds)
        + [f"{'met' if met else 'MISSED'}: {what}" for what, met in goals(rounds, hanging)]
    )


def _bound(rounds: list[list[Figures]]) -> list[str]:
    """What two agents could do at most where they share the machine with all else, by the CPU that is counted."""
    if {1, 2} - {one.agents for one in rounds[0] if one.known}:
        return []
    two = [one for same in rounds for one in same if _is_rate(one, same, 2)]
    cpu = statistics.median(one.agent_ms + one.server_ms + one.coordinator_ms for one in two)
    cores = len(os.sched_getaffinity(0))
    most = cores * 1000 / cpu
    return [
        f"two agents, server and coordinator take {cpu:.2f} CPU-ms a check: {cores} processors do {most:,.0f} a second "
        f"at most, {most / _rate(rounds, 1):.2f} times what one agent does; the web has its part of that"
    ]


def _middle(values: list[float], digits: int) -> str:
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f} .. {max(values):,.{digits}f})"


def goals(rounds: list[list[Figures]], hanging: Hanging) -> list[tuple[str, bool]]:
    """Each goal, and whether it is met by the medians."""
    late = ("healthy sites are not late beside hanging ones", not hanging.late)
    if {1, 2} - {one.agents for one in rounds[0] if one.known}:
        return [late]
    one, two = (_rate(rounds, agents) for agents in (1, 2))
    cpu = statistics.median(
        figures.agent_ms for same in rounds for figures in same if _is_rate(figures, same, 1)
    )
    return [
        (f"checks/s of one agent on one processor: {one:,.0f}, at least {GOAL_RATE:,.0f}", one >= GOAL_RATE),
        (f"checks/s by its CPU alone: {1000 / cpu:,.0f}", 1000 / cpu >= GOAL_RATE),
        (f"two agents, times one: {two / one:.2f}, at least {GOAL_TWO:g}", two >= GOAL_TWO * one),
        late,
    ]


def _rate(rounds: list[list[Figures]], agents: int) -> float:
    return statistics.median(one.rate for same in rounds for one in same if _is_rate(one, same, agents))


def _is_rate(one: Figures, same: list[Figures], agents: int) -> bool:
    """Whether it is of those that the rate is taken from: the most sites, with robots.txt known."""
    return one.known and one.agents == agents and one.sites == max(other.sites for other in same)


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
    if given.json:
        told = [[{**one._asdict(), "rate": one.rate} for one in same] for same in rounds]
        print(json.dumps({"rounds": told, "hanging": hanging._asdict()}, indent=1))
    else:
        print(table(rounds, hanging))
    faults = faults_of(rounds, hanging, given.sites)
    print("".join(f"{fault}\n" for fault in faults), file=sys.stderr, end="")
    missed = [what for what, met in goals(rounds, hanging) if not met] if not given.json else []
    return 1 if faults or missed else 0


if __name__ == "__main__":
    sys.exit(main())
