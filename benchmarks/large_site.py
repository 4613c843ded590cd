"""One site of a million URLs: memory for each, and what it takes to stop and to go on.

    python benchmarks/large_site.py [--urls 1000000] [--json]

The site is a tree of pages with 250 new links each (benchmarks/web.py), so that 4,000 fetched pages make a million
known. Memory is what the agent's resident size grew by since it had fetched its first pages. Then SIGTERM: how long
until the agent is gone, with the whole frontier packed into the checkpoint. Then a new agent: from its start to the
site's next page, against the start over a site of one page; and its pace over the pages that follow. Server and
coordinator stay up between the two.

Exit code 1: a page that was published before the stop was fetched again.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import meters  # noqa: E402
from benchmarks.crawls import PATIENCE_SECONDS, Crawl, end_in_order  # noqa: E402
from benchmarks.web import Count, Tree, Web  # noqa: E402
from tests.crawling import Run  # noqa: E402

FAN = 250
# Pages fetched before memory is looked at first: by then everything is imported and every buffer is there.
FIRST_PAGES = 40
# Pages over which the pace is taken, before the stop and after.
PACE_PAGES = 400
# A page in flight when the agent was stopped may be asked for again.
IN_FLIGHT = 1


class Figures(NamedTuple):
    """Memory in bytes, times in seconds, paces in pages/s."""

    known: int  # URLs at the stop
    memory_before: int
    memory_at_stop: int
    bytes_a_url: float
    stop_seconds: float  # from SIGTERM to the agent's end
    start_seconds: float  # from an agent's start to its first request, with nothing to go on with
    resume_seconds: float  # the same with the checkpoint
    memory_resumed: int
    pace_before: float
    pace_after: float
    fetched_again: int


class Bench:
    """One crawl of the web by one agent after the other; `core` is the agents' processor, None: any."""

    def __init__(self, web: Web, crawl: Crawl, core: int | None) -> None:
        self._web, self._crawl, self._core = web, crawl, core

    def measure(self, urls: int) -> Figures:
        """An agent until so many URLs are known, and another one that goes on."""
        agent, start_seconds = self._start()
        memory_before, known_before = self._look(agent, FIRST_PAGES)
        self._until(urls // FAN - PACE_PAGES)
        pace_before = self._pace()
        memory_at_stop, known = self._look(agent, urls // FAN)
        stop_seconds = self._stop(agent)
        fetched = self._web.hits()
        agent, resume_seconds = self._start()
        pace_after = self._pace()
        memory_resumed = meters.memory_of(agent.pid)
        self._stop(agent)
        return Figures(
            known=known,
            memory_before=memory_before,
            memory_at_stop=memory_at_stop,
            bytes_a_url=(memory_at_stop - memory_before) / (known - known_before),
            stop_seconds=stop_seconds,
            start_seconds=start_seconds,
            resume_seconds=resume_seconds,
            memory_resumed=memory_resumed,
            pace_before=pace_before,
            pace_after=pace_after,
            fetched_again=len(fetched.keys() & self._web.hits().keys()),
        )

    def _start(self) -> tuple[Run, float]:
        """A new agent, and how long it took to its first request."""
        self._web.clear()
        began = time.monotonic()
        seeds = f"seeds={self._web.seeds()[0]}"
        # Its pages say nothing but their numbers: that would be a trap.
        agent = self._crawl.agent("-a", seeds, core=self._core, MAX_PAGES_PER_SITE=0, TRAP_PAGES=0)
        return agent, self._until(0).first - began

    def _stop(self, agent: Run) -> float:
        began = time.monotonic()
        agent.end(signal.SIGTERM, PATIENCE_SECONDS).succeeded()
        return time.monotonic() - began

    def _look(self, agent: Run, pages: int) -> tuple[int, int]:
        """Once so many pages were asked for: resident bytes, and URLs known by then."""
        asked = self._until(pages).requests
        # All but the last request, which is under way, and robots.txt.
        return meters.memory_of(agent.pid), (asked - 2) * FAN + 1

    def _pace(self) -> float:
        """Pages/s over the next PACE_PAGES."""
        before = self._web.count()
        after = self._until(before.requests + PACE_PAGES)
        return (after.requests - before.requests) / (after.last - before.last)

    def _until(self, pages: int) -> Count:
        """Wait until so many pages were asked for, and robots.txt."""
        self._crawl.until(lambda: self._web.count().requests > pages, f"{pages} pages")
        return self._web.count()


def measure(urls: int, cores: tuple[int, int] | None) -> Figures:
    """Everything, over a web that has enough left for the second agent."""
    own, others = cores or (None, None)
    tree = Tree(urls + 3 * PACE_PAGES * FAN, FAN)
    with (
        tempfile.TemporaryDirectory() as name,
        Web(tree, others) as web,
        Crawl(Path(name), core=others) as crawl,
    ):
        return Bench(web, crawl, own).measure(urls)


def table(found: Figures) -> str:
    """One figure a line."""
    beyond = found.resume_seconds - found.start_seconds
    rows = [
        ("URLs known at the stop", f"{found.known:,}"),
        ("agent's memory for a known URL", f"{found.bytes_a_url:.0f} B"),
        (
            "agent's memory, first pages and at the stop",
            f"{_mb(found.memory_before)}, {_mb(found.memory_at_stop)}",
        ),
        ("from SIGTERM to the agent's end", f"{found.stop_seconds:.2f} s"),
        ("from start to first request, nothing known", f"{found.start_seconds:.2f} s"),
        ("from start to first request, going on", f"{found.resume_seconds:.2f} s, {beyond:.2f} s more"),
        ("agent's memory after going on", _mb(found.memory_resumed)),
        ("pages/s of the site, before and after", f"{found.pace_before:.0f}, {found.pace_after:.0f}"),
        ("pages fetched again", f"{found.fetched_again}"),
    ]
    return "\n".join(f"{name:<46}{value:>28}" for name, value in rows)


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"


def faults_of(found: Figures) -> list[str]:
    """What must not be, however busy the machine is."""
    if found.fetched_again <= IN_FLIGHT:
        return []
    return [f"{found.fetched_again} pages were fetched again; expected at most {IN_FLIGHT}"]


def main(arguments: list[str] | None = None) -> int:
    """Parse, measure, print; 1 where a page was fetched again."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--urls", type=int, default=1_000_000, help="URLs known at the stop (default a million)"
    )
    parser.add_argument("--json", action="store_true", help="every figure, as JSON")
    given = parser.parse_args(arguments)
    least = FAN * (FIRST_PAGES + PACE_PAGES)
    if given.urls <= least:
        parser.error(f"--urls is {given.urls}; expected more than {least}")
    end_in_order()
    found = measure(given.urls, meters.two_cores())
    print(json.dumps(found._asdict(), indent=1) if given.json else table(found))
    faults = faults_of(found)
    print("".join(f"{fault}\n" for fault in faults), file=sys.stderr, end="")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
