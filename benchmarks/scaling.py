"""Two agents against one: how much faster, at what CPU per page, and how evenly they share the sites.

    python benchmarks/scaling.py [--pairs 5] [--sites 100] [--pages 100] [--json]

One crawl by one agent and one by two, in turn, over the same local web and a fresh server each. Agents have joined
before the first site is queued, so that nobody's start counts; time is from there to the last request. No
coordinator runs, for it would take a share of the two processors that each crawl feels differently: the results
stay in the stream, which then tells who fetched what. With two agents each has a processor of its own and shares it
with web and server, which take what both need; so the ratio cannot reach two on two processors. What it would be
with a third one is told beside it: twice the quotient of CPU per page.

Exit code 1: a page was fetched twice or not at all.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import meters  # noqa: E402
from benchmarks.crawls import Crawl, end_in_order  # noqa: E402
from benchmarks.web import Pages, Web  # noqa: E402

# Of all sites, what one of two agents may have at most.
MOST_SHARE = 0.6
RATIO = 1.8


class Figures(NamedTuple):
    """One crawl. CPU in ms a page: all agents', the web's, the server's; `share`: of the sites, the most of one."""

    agents: int
    pages_a_second: float
    agent_cpu: float
    web_cpu: float
    server_cpu: float
    share: float
    sites: list[int]
    pages: list[int]
    lost: int
    twice: int


def crawl(web: Web, agents: int, cores: tuple[int, int] | None) -> Figures:
    """One crawl by so many agents, each on a processor of its own; servers on the one that one agent leaves free."""
    shared = cores[1] if cores and agents == 1 else None
    web.clear()
    meters.move(web.pid, shared)
    before = web.count()
    with tempfile.TemporaryDirectory() as name, Crawl(Path(name), stored=False, core=shared) as own:
        runs = [
            own.agent("--when-idle", "wait", core=cores[number % 2] if cores else None)
            for number in range(agents)
        ]
        own.until_joined(agents)
        with own.account() as used:
            own.queue(web.seeds())
            own.until_finished(web.shape.sites)
        for run in runs:
            run.end().succeeded()
        usage, told = own.usage(), own.told()
    count, hits, declared = web.count(), web.hits(), web.declared()
    pages = len(hits)
    return Figures(
        agents=agents,
        pages_a_second=pages / (count.last - count.first),
        agent_cpu=sum(one.cpu for one in usage) / pages * 1e3,
        web_cpu=(count.cpu - before.cpu) / pages * 1e3,
        server_cpu=used.server / pages * 1e3,
        share=max(told.sites.values()) / told.sites.total(),
        sites=sorted(told.sites.values()),
        pages=sorted(told.pages.values()),
        lost=len(declared - told.urls.keys()),
        twice=sum(hits.values()) - pages + told.urls.total() - len(told.urls),
    )


def table(pairs: list[tuple[Figures, Figures]]) -> str:
    """Medians of the pairs, with least and most."""
    rows = [
        ("pages/s, one agent", [one.pages_a_second for one, _ in pairs], ""),
        ("pages/s, two agents", [two.pages_a_second for _, two in pairs], ""),
        (
            "ratio",
            [two.pages_a_second / one.pages_a_second for one, two in pairs],
            f"goal: {RATIO:g} or more",
        ),
        ("agents' CPU-ms a page, one agent", [one.agent_cpu for one, _ in pairs], ""),
        ("agents' CPU-ms a page, two agents", [two.agent_cpu for _, two in pairs], ""),
        ("ratio", [two.agent_cpu / one.agent_cpu for one, two in pairs], ""),
        (
            "with a processor each, pages/s would be",
            [2 * one.agent_cpu / two.agent_cpu for one, two in pairs],
            "times",
        ),
        ("web's CPU-ms a page, two agents", [two.web_cpu for _, two in pairs], ""),
        ("server's CPU-ms a page, two agents", [two.server_cpu for _, two in pairs], ""),
        (
            "share of the agent with most sites",
            [two.share for _, two in pairs],
            f"goal: at most {MOST_SHARE:g}",
        ),
    ]
    lines = [f"{name:<42}{_middle(values):>28}  {note}" for name, values, note in rows]
    lines += [f"by each of two: sites {two.sites}, pages {two.pages}" for _, two in pairs]
    return "\n".join(lines)


def _middle(values: list[float]) -> str:
    return f"{statistics.median(values):,.3f} ({min(values):,.3f} .. {max(values):,.3f})"


def faults_of(figures: list[Figures]) -> list[str]:
    """What must not be, however busy the machine is."""
    return [
        f"{one.lost} pages lost, {one.twice} fetched or told twice"
        for one in figures
        if one.lost or one.twice
    ]


def main(arguments: list[str] | None = None) -> int:
    """Parse, measure, print; 1 where something was lost or done twice."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5, help="crawls by one agent and by two (default 5)")
    parser.add_argument("--sites", type=int, default=100, help="sites of the local web (default 100)")
    parser.add_argument(
        "--pages", type=int, default=100, help="pages of a site (default 100), and 20 queries more"
    )
    parser.add_argument("--json", action="store_true", help="every figure, as JSON")
    given = parser.parse_args(arguments)
    end_in_order()
    cores, pairs = meters.two_cores(), []
    with Web(Pages(given.sites, given.pages, given.pages)) as web:
        for number in range(given.pairs):
            pairs.append((crawl(web, 1, cores), crawl(web, 2, cores)))
            print(f"pair {number + 1} of {given.pairs}", file=sys.stderr)
    figures = [one for pair in pairs for one in pair]
    print(json.dumps([one._asdict() for one in figures], indent=1) if given.json else table(pairs))
    faults = faults_of(figures)
    print("".join(f"{fault}\n" for fault in faults), file=sys.stderr, end="")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
