"""Paper 003's stages, crawl, convert and rank: what each takes, by pages and by agents (figures 14 and 15, table 8).

    python benchmarks/stages.py [--pages 10000,100000] [--agents 1,2,4] [--large] [--json]

A stage is its command from start to end, as a person runs it: `scrapy crawl site --agents N` (server and coordinator
begin and end in it, and all is stored when it does), `scrapy convert` and `scrapy rank`, over a fresh VAR_DIR and the
local web (benchmarks/web.py) without a delay between pages. The paper has nine machines and the Internet of 2007; so
what may be compared is the shape, seconds by pages and by agents, and which stage has the largest share. Web, agents,
coordinator and server share this machine's processors: more agents than these bring nothing here.

Exit code 1: a page of the web was not converted, or not ranked, or another was.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.crawls import PATIENCE_SECONDS, SETTINGS, end_in_order  # noqa: E402
from benchmarks.web import Pages, Web  # noqa: E402
from tests.crawling import Place  # noqa: E402

# Of a site; one in five is told by its query. The web keeps its pages in memory, 5.6 kB each.
SITE_PAGES = 100
VARIANTS = 20
LARGE = 1_000_000
STAGES = ("crawl", "convert", "rank")
# Table 8: seconds on nine machines, by pages.
PAPER = {
    100_000: {"crawl": 2_750, "convert": 222, "rank": 4},
    1_000_000: {"crawl": 28_710, "convert": 3_037, "rank": 33},
    10_000_000: {"crawl": 356_185, "convert": 32_000, "rank": 267},
}


class Figures(NamedTuple):
    """One way from seeds to ranks; seconds of each stage."""

    pages: int  # of the web
    agents: int
    crawl: float
    convert: float
    rank: float
    converted: int
    links: int
    ranked: int

    @property
    def seconds(self) -> float:
        """All three stages."""
        return self.crawl + self.convert + self.rank


def measure(web: Web, agents: int) -> Figures:
    """All stages over a fresh VAR_DIR."""
    with tempfile.TemporaryDirectory() as name, Place(Path(name)) as place:
        seeds = place.folder / "seeds.txt"
        seeds.write_text("\n".join(web.seeds()))
        crawl, _ = stage(
            place, "crawl", "site", "-a", f"seeds={seeds}", "--agents", str(agents), "--no-summary"
        )
        convert, graph = stage(place, "convert", "--json")
        rank, ranks = stage(place, "rank", "--json")
    return Figures(
        pages=len(web.declared()),
        agents=agents,
        crawl=crawl,
        convert=convert,
        rank=rank,
        converted=graph["pages"],
        links=graph["links"],
        ranked=ranks["pages"],
    )


def stage(place: Place, *words: str) -> tuple[float, Any]:
    """Seconds of one command, and the figures that it printed."""
    began = time.perf_counter()
    run = place.start(*words, **SETTINGS).wait(PATIENCE_SECONDS * len(STAGES)).succeeded()
    return time.perf_counter() - began, json.loads(run.out) if "--json" in words else None


def runs(sizes: list[int], agents: list[int]) -> Iterator[Figures]:
    """Every size with every number of agents."""
    for pages in sizes:
        sites = max(1, pages // SITE_PAGES)
        with Web(Pages(sites, SITE_PAGES - VARIANTS, SITE_PAGES - VARIANTS, VARIANTS)) as web:
            for many in agents:
                print(f"{pages:,} pages, {many} agents", file=sys.stderr)
                yield measure(web, many)


def table(found: list[Figures]) -> str:
    """Seconds and share by stage, and the paper's beside those of its sizes."""
    lines = [
        f"{'pages':>10}{'agents':>8}"
        + "".join(f"{name:>18}" for name in STAGES)
        + f"{'all':>10}{'links':>12}"
    ]
    for one in found:
        shares = "".join(f"{_stage(getattr(one, name), one.seconds):>18}" for name in STAGES)
        lines.append(f"{one.pages:>10,}{one.agents:>8}{shares}{one.seconds:>10,.1f}{one.links:>12,}")
    lines.append("paper 003, table 8, nine machines:")
    for pages, seconds in PAPER.items():
        total = sum(seconds.values())
        shares = "".join(f"{_stage(seconds[name], total):>18}" for name in STAGES)
        lines.append(f"{pages:>10,}{'':>8}{shares}{total:>10,.1f}")
    return "\n".join(lines)


def _stage(seconds: float, total: float) -> str:
    return f"{seconds:,.1f} s {seconds / total:>4.0%}"


def faults_of(found: list[Figures]) -> list[str]:
    """What must not be, however busy the machine is."""
    return [
        f"{one.pages} pages, {one.agents} agents: {one.converted} were converted and {one.ranked} ranked"
        for one in found
        if not one.pages == one.converted == one.ranked
    ]


def main(arguments: list[str] | None = None) -> int:
    """Parse, measure, print; 1 where a page is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pages", default="10000,100000", help="of the local web (default 10000,100000)")
    parser.add_argument("--agents", default="1,2,4", help="numbers of agents (default 1,2,4)")
    parser.add_argument(
        "--large", action="store_true", help=f"{LARGE:,} pages too: an hour, and 6 GB of memory for the web"
    )
    parser.add_argument("--json", action="store_true", help="every figure, as JSON")
    given = parser.parse_args(arguments)
    end_in_order()
    sizes, agents = ([int(word) for word in words.split(",")] for words in (given.pages, given.agents))
    found = list(runs([*sizes, LARGE] if given.large else sizes, agents))
    told = [{**one._asdict(), "seconds": one.seconds} for one in found]
    print(json.dumps(told, indent=1) if given.json else table(found))
    faults = faults_of(found)
    print("".join(f"{fault}\n" for fault in faults), file=sys.stderr, end="")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
