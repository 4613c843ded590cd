"""What a site costs beside its pages: 2,000 sites of one to three pages.

    python benchmarks/tiny_sites.py [--sites 2000] [--rounds 3] [--json]

Most sites of a wide crawl are small, so what is paid per site (a lease, its name, robots.txt, a connection, an end)
may weigh more than the pages. Taken as the CPU of a crawl of tiny sites less that of as many pages of large sites,
which are of the same kind (benchmarks/web.py, `reach`); robots.txt counts as part of the site. The two crawls take
turns. Agent, server and coordinator are told apart.

Exit code 1: a site or page is missing, or was fetched twice.
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
from benchmarks.crawls import PATIENCE_SECONDS, Crawl, end_in_order  # noqa: E402
from benchmarks.web import Pages, Web  # noqa: E402

FEWEST, MOST, REACH = 1, 3, 3
# The crawl that tells what a page costs: as many pages as the tiny sites have, in few sites.
LARGE_PAGES = 80
GOAL_MS = 3.0


class Used(NamedTuple):
    """CPU seconds of one crawl by process, and how much it fetched."""

    agent: float
    server: float
    coordinator: float
    sites: int
    pages: int
    seconds: float
    exact: bool
    memory_mb: float


class Site(NamedTuple):
    """CPU-ms of a site beside its pages, by process; and of a page."""

    agent: float
    server: float
    coordinator: float
    page: float


def crawl(shape: Pages, cores: tuple[int, int] | None) -> Used:
    """One crawl of such a web to its end."""
    own, others = cores or (None, None)
    with tempfile.TemporaryDirectory() as name, Web(shape, others) as web:
        folder = Path(name)
        seeds = folder / "seeds.txt"
        seeds.write_text("\n".join(web.seeds()))
        with Crawl(folder, core=others) as crawl:
            with crawl.account() as used:
                crawl.agent("-a", f"seeds={seeds}", core=own).wait(PATIENCE_SECONDS).succeeded()
            usage = crawl.usage()[0]
        count, hits = web.count(), web.hits()
        return Used(
            agent=usage.cpu,
            server=used.server,
            coordinator=used.coordinator,
            sites=shape.sites,
            pages=len(hits),
            seconds=count.last - count.first,
            exact=set(hits) == web.declared() and set(hits.values()) == {1},
            memory_mb=usage.most_memory / 1e6,
        )


def site_cost(tiny: Used, large: Used) -> Site:
    """What is left of a tiny site's cost once its pages are taken off, and a large site's own share off those."""

    def of(process: str) -> float:
        # Two unknowns, site and page, and two crawls.
        few, many = getattr(tiny, process), getattr(large, process)
        page = (many - few * large.sites / tiny.sites) / (large.pages - tiny.pages * large.sites / tiny.sites)
        return float((few - tiny.pages * page) / tiny.sites * 1e3)

    whole = of("agent")
    page = (tiny.agent * 1e3 - whole * tiny.sites) / tiny.pages
    return Site(whole, of("server"), of("coordinator"), page)


def table(rounds: list[tuple[Used, Used]]) -> str:
    """Medians of the rounds, with least and most."""
    costs = [site_cost(*one) for one in rounds]
    tiny, large = rounds[0]
    agent = [one.agent for one in costs]
    verdict = "met" if statistics.median(agent) <= GOAL_MS else "MISSED"
    rows = [
        ("a site beside its pages: agent, CPU-ms", agent, f"{verdict}: at most {GOAL_MS:g}"),
        ("  server", [one.server for one in costs], ""),
        ("  coordinator", [one.coordinator for one in costs], ""),
        ("a page, agent, CPU-ms", [one.page for one in costs], ""),
        ("sites/s", [one.sites / one.seconds for one, _ in rounds], ""),
        ("agent's peak memory, MB", [one.memory_mb for one, _ in rounds], ""),
    ]
    lines = [f"{tiny.sites:,} sites of {tiny.pages:,} pages, against {large.sites:,} of {large.pages:,}"]
    return "\n".join(lines + [f"{name:<42}{_middle(values):>28}  {note}" for name, values, note in rows])


def _middle(values: list[float]) -> str:
    return f"{statistics.median(values):,.3f} ({min(values):,.3f} .. {max(values):,.3f})"


def faults_of(rounds: list[tuple[Used, Used]]) -> list[str]:
    """What must not be, however busy the machine is."""
    return [
        f"a crawl of {one.sites} sites missed pages, or fetched some twice"
        for both in rounds
        for one in both
        if not one.exact
    ]


def main(arguments: list[str] | None = None) -> int:
    """Parse, measure, print; 1 where a crawl was not exact."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sites", type=int, default=2_000, help="tiny sites (default 2000)")
    parser.add_argument("--rounds", type=int, default=3, help="crawls of each kind (default 3)")
    parser.add_argument("--json", action="store_true", help="every figure, as JSON")
    given = parser.parse_args(arguments)
    end_in_order()
    cores = meters.two_cores()
    tiny = Pages(given.sites, FEWEST, MOST, variants=0, reach=REACH)
    pages = sum(tiny.pages(site) for site in range(tiny.sites))
    large = Pages(max(1, pages // LARGE_PAGES), LARGE_PAGES, LARGE_PAGES, variants=0, reach=REACH)
    rounds = []
    for number in range(given.rounds):
        rounds.append((crawl(tiny, cores), crawl(large, cores)))
        print(f"round {number + 1} of {given.rounds}", file=sys.stderr)
    if given.json:
        told = [
            {"tiny": one._asdict(), "large": two._asdict(), **site_cost(one, two)._asdict()}
            for one, two in rounds
        ]
        print(json.dumps(told, indent=1))
    else:
        print(table(rounds))
    faults = faults_of(rounds)
    print("".join(f"{fault}\n" for fault in faults), file=sys.stderr, end="")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
