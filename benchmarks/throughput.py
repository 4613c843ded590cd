"""CPU per page: ours against stock Scrapy, stock scrapy-redis and a hand-written crawler.

    python benchmarks/throughput.py [ours full scrapy redis written] [--rounds 1] [--sites 100] [--pages 100]
    python benchmarks/throughput.py full --profile

All do the same work over the same local web (benchmarks/web.py): GET, SHA-256, title, description, in-site links in
canonical spelling, URL dedupe, a record out. Ours has its defaults on: robots.txt, retries, the guard, journal and
results stream, a coordinator that stores them; but for DOWNLOAD_DELAY, which is 0, and what none of the others does:
the archive and the language, which `full` has too. CPU is each process's own, from its first
to its last page; contenders take turns, so that what else the machine does hits all alike. Pages/s is from the
first request to the last, as the web saw them. Where there are two processors, crawlers have the first, and web,
server and coordinator the second.

Exit code 1: somebody did not fetch exactly the pages that there are, or ours one of them twice.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import meters  # noqa: E402
from benchmarks.crawls import PATIENCE_SECONDS, Commands, Crawl, Used, end_in_order  # noqa: E402
from benchmarks.web import Count, Pages, Web  # noqa: E402
from tests.crawling import Run  # noqa: E402
from tests.servers import start_valkey  # noqa: E402

NAMES = {
    "ours": "Lowtide, one agent",
    "full": "the same, archive, language",
    "scrapy": "stock Scrapy, CrawlSpider",
    "redis": "stock scrapy-redis",
    "written": "hand-written, aiohttp + lxml",
}
# Commands that an agent sends for each page, a script being one and publishing left out.
COMMANDS_A_PAGE = 0.05
# CPU-ms that guard, limits, timeouts and traps may take of a page, by profile.
GUARD_A_PAGE = 0.1
# Which of them are ours, and what they are told.
OURS: dict[str, dict[str, Any]] = {
    "ours": {"ARCHIVE_CONTENT_TYPES": "", "LANGUAGE_ENABLED": False},
    "full": {},
}
# Rarer commands are not listed.
LEAST_COMMANDS = 0.0003
# Parts of a profile below this share are summed up.
LEAST_SHARE = 0.005
FUNCTIONS_SHOWN = 25


class Figures(NamedTuple):
    """One crawl. CPU in ms a page by process; `urls` distinct ones, of `declared` that there are."""

    crawler: float
    server: float
    coordinator: float
    pages_a_second: float
    urls: int
    declared: int
    requests: int
    exact: bool  # every page that there is, and no other
    memory_mb: float
    web: float

    @property
    def total(self) -> float:
        """CPU of all processes but the web's, ms a page."""
        return self.crawler + self.server + self.coordinator


class Bench:
    """The web, and the processors of those who crawl it and of all others; None: any."""

    def __init__(self, web: Web, cores: tuple[int, int] | None) -> None:
        self.web = web
        self.own = cores[0] if cores else None
        self.others = cores[1] if cores else None

    def seeds(self, folder: Path) -> Path:
        """The file of all sites' roots."""
        file = folder / "seeds.txt"
        file.write_text("\n".join(self.web.seeds()))
        return file

    def measure(self, contender: str, profile: Path | None = None) -> Figures:
        """One crawl to its end."""
        with tempfile.TemporaryDirectory() as name:
            self.web.clear()
            before = self.web.count()
            folder = Path(name)
            usage, used = (
                self._ours(folder, profile, OURS[contender])
                if contender in OURS
                else self._other(folder, contender)
            )
            return self._figures(usage, used, before)

    def commands(self) -> Commands:
        """What ours sends to its server, from a crawl of its own: who listens to all of it slows the server down."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            with Crawl(folder, core=self.others) as crawl, crawl.commands() as found:
                run = crawl.agent("-a", f"seeds={self.seeds(folder)}", core=self.own, **OURS["ours"])
                run.wait(PATIENCE_SECONDS).succeeded()
        return found

    def _ours(self, folder: Path, profile: Path | None, given: dict[str, Any]) -> tuple[meters.Usage, Used]:
        with Crawl(folder, core=self.others) as crawl:
            with crawl.account() as used:
                seeds = f"seeds={self.seeds(folder)}"
                run = crawl.agent("-a", seeds, core=self.own, profile=profile, **given)
                run.wait(PATIENCE_SECONDS).succeeded()
            return crawl.usage()[0], used

    def _other(self, folder: Path, contender: str) -> tuple[meters.Usage, Used]:
        used = Used()
        with ExitStack() as stack:
            url, before = "", 0.0
            if contender == "redis":
                with meters.on_core(self.others):
                    server = start_valkey(folder)
                stack.callback(server.stop)
                url, before = server.url, meters.cpu_of(server.pid)
            script = str(ROOT / "benchmarks" / "contenders.py")
            words = [contender, str(self.seeds(folder)), str(folder / "records.jsonl"), url]
            env = {**os.environ, meters.METER_FILE: str(folder / "meter")}
            with meters.on_core(self.own):
                run = Run([sys.executable, script, *words], env, ROOT, folder / "run")
            stack.callback(_end, run)
            run.wait(PATIENCE_SECONDS).succeeded()
            if contender == "redis":
                used.server = meters.cpu_of(server.pid) - before
        return meters.read_usage(folder / "meter")[0], used

    def _figures(self, usage: meters.Usage, used: Used, before: Count) -> Figures:
        count, hits, declared = self.web.count(), self.web.hits(), self.web.declared()
        pages = len(hits)
        return Figures(
            crawler=usage.cpu / pages * 1e3,
            server=used.server / pages * 1e3,
            coordinator=used.coordinator / pages * 1e3,
            pages_a_second=pages / (count.last - count.first),
            urls=pages,
            declared=len(declared),
            requests=sum(hits.values()),
            exact=set(hits) == declared,
            memory_mb=usage.most_memory / 1e6,
            web=(count.cpu - before.cpu) / pages * 1e3,
        )


def _end(run: Run) -> None:
    if run.process.poll() is None:
        run.process.kill()
    run.process.wait()


# --- what is printed ---


def table(results: dict[str, list[Figures]]) -> str:
    """Medians with their spread, and how many times ours each is."""
    lines = [
        f"{'CPU-ms a page':<30}{'crawler':>9}{'spread':>13}{'server':>8}{'coord.':>8}{'all':>7}"
        f"{'x ours':>8}{'all':>7}{'pages/s':>9}{'URLs':>19}{'peak MB':>9}"
    ]
    base = results.get("ours")
    for contender, runs in results.items():
        costs = [one.crawler for one in runs]
        own, every = _middle(runs, "crawler"), _middle(runs, "total")
        times = (
            f"{own / _middle(base, 'crawler'):>8.2f}{every / _middle(base, 'total'):>7.2f}"
            if base
            else " " * 15
        )
        urls = f"{runs[0].urls:,} of {runs[0].declared:,}"
        lines.append(
            f"{NAMES[contender]:<30}{own:>9.3f}{f'{min(costs):.2f} .. {max(costs):.2f}':>13}"
            f"{_middle(runs, 'server'):>8.3f}{_middle(runs, 'coordinator'):>8.3f}{every:>7.3f}{times}"
            f"{_middle(runs, 'pages_a_second'):>9,.0f}{urls:>19}{_middle(runs, 'memory_mb'):>9,.0f}"
        )
    web = statistics.median(one.web for runs in results.values() for one in runs)
    return "\n".join([*lines, f"the web itself: {web:.3f} CPU-ms a page"])


def _middle(runs: list[Figures], name: str) -> float:
    return float(statistics.median(getattr(one, name) for one in runs))


def command_lines(found: Commands, pages: int) -> list[str]:
    """How many commands the server gets for a page, and what they are."""
    publishing = found.sent["script publish"] + found.sent["xadd"]
    beside = (found.agents - publishing) / pages
    connecting = found.sent["hello"] + found.sent["client"]
    verdict = "met" if beside <= COMMANDS_A_PAGE else "MISSED"
    return [
        f"commands to the server, a page: {found.agents / pages:.4f} by the agent, {beside:.4f} beside the stream "
        f"({verdict}: at most {COMMANDS_A_PAGE:g}); {found.coordinator / pages:.4f} by the coordinator",
        f"  {found.sent['hello']} connections took {connecting / pages:.4f} of these to say hello",
        f"  sent, by both: {_a_page(found.sent, pages)}",
        f"  inside scripts: {_a_page(found.inside, pages)}",
    ]


def _a_page(commands: Counter[str], pages: int) -> str:
    return ", ".join(
        f"{name} {many / pages:.4f}"
        for name, many in commands.most_common()
        if many / pages >= LEAST_COMMANDS
    )


def profile_lines(file: Path, cost: float) -> list[str]:
    """Where ours spends its CPU, by part and by function; `cost` is CPU-ms a page."""
    found = json.loads(file.read_text())
    parts: Counter[str] = Counter()
    functions: Counter[tuple[str, str]] = Counter()
    for part, function, many in found["samples"]:
        parts[part] += many
        functions[part, function] += many
    every = parts.total()
    large = {part: many for part, many in parts.most_common() if many / every >= LEAST_SHARE}
    rest = every - sum(large.values())
    lines = [f"{'part':<28}{'share':>7}{'CPU-ms a page':>15}   ({every:,} samples)"]
    for part, many in [*large.items(), ("smaller ones", rest)]:
        lines.append(f"{part:<28}{many / every:>7.1%}{many / every * cost:>15.3f}")
    guard = parts[meters.GUARD] / every * cost
    verdict = "met" if guard <= GUARD_A_PAGE else "MISSED"
    lines.append(f"{meters.GUARD}: {guard:.3f} CPU-ms a page ({verdict}: at most {GUARD_A_PAGE:g})")
    lines += [f"of all of these, collecting garbage: {found['collecting'] / found['cpu']:.1%}", ""]
    for (part, function), many in functions.most_common(FUNCTIONS_SHOWN):
        lines.append(f"{many / every:>7.1%}{many / every * cost:>8.3f} ms  {part:<26} {function}")
    return lines


def profiled(bench: Bench, contender: str) -> list[str]:
    """One more crawl by one of ours, with samples taken."""
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "profile"
        figures = bench.measure(contender, file)
        return [
            f"profile: one crawl by {NAMES[contender]} at {figures.crawler:.3f} CPU-ms a page",
            *profile_lines(file, figures.crawler),
        ]


def faults_of(results: dict[str, list[Figures]]) -> list[str]:
    """What must not be, however busy the machine is: a crawl of other pages than there are tells nothing."""
    return [
        f"{NAMES[contender]}: {one.urls} URLs in {one.requests} requests; expected the {one.declared} that there are"
        for contender, runs in results.items()
        for one in runs
        if not one.exact or (contender in OURS and one.requests != one.urls)
    ]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("contenders", nargs="*", default=list(NAMES), help=f"some of {', '.join(NAMES)}")
    parser.add_argument("--rounds", type=int, default=1, help="crawls by each (default 1)")
    parser.add_argument("--sites", type=int, default=100, help="sites of the local web (default 100)")
    parser.add_argument(
        "--pages", type=int, default=100, help="pages of a site (default 100), and 20 queries more"
    )
    parser.add_argument(
        "--profile", action="store_true", help="where ours spends its time, from one crawl more"
    )
    parser.add_argument("--json", action="store_true", help="every figure, as JSON")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.contenders if name not in NAMES]
    if unknown:
        parser.error(f"contender {unknown[0]!r}; expected some of {', '.join(NAMES)}")
    return given


def main(arguments: list[str] | None = None) -> int:
    """Parse, measure, print; 1 where somebody did not do the work."""
    given = parse(arguments)
    end_in_order()
    cores = meters.two_cores()
    results: dict[str, list[Figures]] = {name: [] for name in given.contenders}
    notes: list[str] = []
    with Web(Pages(given.sites, given.pages, given.pages), cores[1] if cores else None) as web:
        bench = Bench(web, cores)
        for _ in range(given.rounds):
            for contender, runs in results.items():
                runs.append(bench.measure(contender))
                print(f"{contender}: {runs[-1].crawler:.3f} CPU-ms a page", file=sys.stderr)
        ours = results.get("ours", [])
        if ours:
            notes += command_lines(bench.commands(), ours[0].declared)
        if given.profile:
            notes += profiled(bench, "full" if list(results) == ["full"] else "ours")
    notes.append(
        f"crawlers on processor {cores[0]}, servers on {cores[1]}" if cores else "processors not told apart"
    )
    if given.json:
        crawls = {name: [one._asdict() for one in runs] for name, runs in results.items()}
        print(json.dumps({"crawls": crawls, "notes": notes}, indent=1))
    else:
        print("\n".join([table(results), *notes]))
    faults = faults_of(results)
    print("".join(f"{fault}\n" for fault in faults), file=sys.stderr, end="")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
