"""What each report takes over a large crawl, and each look at it that the dashboard asks for.

    python benchmarks/reports.py [--sites 5000] [--pages 200] [--databases sqlite] [--json]

A crawl of two agents that had AT_ONCE sites in hand: rows of a site lie apart in the tables, as after a real one.
Besides a million pages there are CHECKS checks of each site, and what recheck believes of every page. A report is its
command from start to end, with its pictures, in a process of its own: `scrapy report NAME --html FILE`. A look is the
function that the dashboard calls, the second time it is asked, and within hours of the last page. Nothing else writes
meanwhile.

Exit code 1: a report took more than MOST_SECONDS, or a look more than MOST_LOOK_SECONDS.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scrapy.settings import BaseSettings  # noqa: E402
from scrapy.utils.project import get_project_settings  # noqa: E402
from sqlalchemy import Engine, func, select  # noqa: E402

from benchmarks import meters  # noqa: E402
from benchmarks.goals import Goal, goals_table, goals_told  # noqa: E402
from benchmarks.producers import DATABASES, is_there, place  # noqa: E402
from crawler import options, reports  # noqa: E402
from crawler.commands.dashboard import boards  # noqa: E402
from crawler.options import Options  # noqa: E402
from crawler.recheck import Recrawl, change_model  # noqa: E402
from crawler.records import Health, hash64  # noqa: E402
from crawler.store.database import transaction  # noqa: E402
from crawler.store.tables import fetches, pages  # noqa: E402
from crawler.store.write import Stored, store  # noqa: E402
from crawler.views import figures  # noqa: E402
from crawler.views.dashboard import MOST_LOADS, MOST_TOP  # noqa: E402
from tests.reporting import BATCH, fill, site_name  # noqa: E402

MOST_SECONDS = 10.0
MOST_LOOK_SECONDS = 2.0
# Two agents of 64 slots.
AT_ONCE = 128
# A site's checks within the last week: one in some hundred minutes.
CHECKS = 100
WEEK_MS = 7 * 86_400_000
# How often a report's memory is looked at.
LOOK_SECONDS = 0.02
RULES = ("normal", "normal", "normal", "delayed", "disconnected", "error")


class Taken(NamedTuple):
    """One report or look."""

    name: str
    seconds: float
    cpu_seconds: float
    peak_mb: float  # 0: not measured


# --- what there is ---


def fill_all(engine: Engine, sites: int, pages_each: int) -> None:
    """A crawl with ranks, checks and beliefs."""
    fill(engine, sites, pages_each, AT_ONCE)
    batch: list[Stored] = []
    for one in checks(sites):
        batch.append(Stored(f"{one.seq}-1", one))
        if len(batch) == BATCH:
            _store(engine, batch)
            batch = []
    _store(engine, batch)
    for number in range(sites):
        believe(engine, hash64(site_name(number)))


def checks(sites: int) -> Iterator[Health]:
    """Round by round over all sites, up to now; each site ill in its own way for some rounds."""
    now = time.time_ns() // 1_000_000
    for turn in range(CHECKS):
        for number in range(sites):
            ill = (number + turn // 20) % 12
            word: Any = RULES[ill] if ill < len(RULES) else "normal"
            yield Health(
                agent="a-1", run="h", seq=turn * sites + number + 1, site=site_name(number),
                checked_at=now - WEEK_MS + (turn + 1) * WEEK_MS // (CHECKS + 1), health=word,
                status={"normal": 200, "delayed": 503, "disconnected": -3, "error": 500}[word],
                latency_ms=None if word == "disconnected" else 20 + number % 400,
            )  # fmt: skip


def believe(engine: Engine, site_id: int) -> None:
    """What recheck would have kept of this site."""
    columns = (pages.c.url_hash, pages.c.size, pages.c.state, pages.c.fetched_at, pages.c.last_checked)
    with transaction(engine) as connection:
        asked = select(*columns).where(pages.c.site_id == site_id, pages.c.outcome == "stored")
        rows = connection.execute(asked).all()
    recrawl = Recrawl([], [])
    numbers = recrawl.add(
        np.zeros(len(rows), np.int64),
        [row.size for row in rows],
        last=[change_model.last_seen_ms(row) / 1000 for row in rows],
    )
    found: dict[int, Any] = dict(zip(numbers.tolist(), rows, strict=True))
    change_model.keep(engine, site_id, change_model.Believed(recrawl, found), 0, 0)


def _store(engine: Engine, batch: list[Stored]) -> None:
    with transaction(engine) as connection:
        store(connection, batch)


# --- what is measured ---


def report(name: str, environment: dict[str, str], folder: Path) -> Taken:
    """A report's command, in a process of its own."""
    command = [sys.executable, "-m", "scrapy", "report", name, "--html", str(folder / f"{name}.html")]
    began, peak = time.perf_counter(), 0.0
    with (folder / "said").open("w+b") as said:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=said)
        while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
            peak = max(peak, meters.memory_of(process.pid) / 1e6)
            time.sleep(LOOK_SECONDS)
    process.returncode = os.waitstatus_to_exitcode(ended[1])
    seconds, used = time.perf_counter() - began, ended[2]
    if not (folder / f"{name}.html").exists():
        raise SystemExit(f"reports: {name} made no page: {(folder / 'said').read_text()}")
    return Taken(name, seconds, used.ru_utime + used.ru_stime, peak)


def looks(settings: BaseSettings, known: Options, now_ms: int) -> dict[str, Callable[[Engine], Any]]:
    """What a dashboard asks the tables."""
    loads = figures.Loads()
    return {
        "progress's tail": figures.tail,
        "pages per hour": lambda engine: figures.last_hours(engine, known.hour_seconds, now_ms),
        "loads of the busiest": lambda engine: loads.picture(engine, known, MOST_LOADS),
        "recent errors": figures.recent_errors,
        "top ranks": lambda engine: figures.top_pages(engine, MOST_TOP),
        "sites by health": figures.standing,
        "a site": lambda engine: figures.site_pages(engine, site_name(7)),
        **{f"report {name}": board for name, board in boards(settings, known).items()},
    }


def last_turn(engine: Engine) -> int:
    """When the last page was fetched, in ms: pages per hour are those of the hours before it."""
    with transaction(engine) as connection:
        return int(connection.execute(select(func.max(fetches.c.fetched_at))).scalar_one())


def look(name: str, question: Callable[[Engine], Any], engine: Engine) -> Taken:
    """The second of two; of the first it is seen that there is something to tell."""
    if not question(engine):
        raise SystemExit(f"reports: {name} tells nothing; expected what a crawl shows")
    began, cpu = time.perf_counter(), time.process_time()
    question(engine)
    return Taken(name, time.perf_counter() - began, time.process_time() - cpu, 0.0)


def measure(kind: str, sites: int, pages_each: int) -> dict[str, Any]:
    """One database: every report, every look."""
    with place(kind) as here, tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        fill_all(here.engine, sites, pages_each)
        print(f"{kind}: {sites * pages_each:,} pages in {time.perf_counter() - began:.0f} s", file=sys.stderr)
        given = {"REDIS_URL": here.valkey.url, "DATABASE_URL": here.database, "VAR_DIR": folder}
        environment = {**os.environ, **{f"LOWTIDE_{name}": value for name, value in given.items()}}
        settings = BaseSettings(get_project_settings())
        for name, value in given.items():
            settings.set(name, value, priority="cmdline")
        asked = looks(settings, options.read(settings), last_turn(here.engine))
        return {
            "database": kind,
            "pages": sites * pages_each,
            "reports": [report(name, environment, Path(folder)) for name in reports.names()],
            "looks": [look(name, question, here.engine) for name, question in asked.items()],
        }


def goals_of(found: list[dict[str, Any]]) -> list[Goal]:
    """The slowest report and the slowest look of each database."""
    goals = []
    for one in found:
        for what, most in (("reports", MOST_SECONDS), ("looks", MOST_LOOK_SECONDS)):
            slowest = max(one[what], key=lambda taken: taken.seconds)
            name = f"{one['database']}: slowest of {what}, {slowest.name}, seconds"
            goals.append(Goal(name, slowest.seconds, 0, most))
    return goals


def table(one: dict[str, Any]) -> str:
    """For a person."""
    lines = [
        f"{one['database']}, {one['pages']:,} pages",
        f"  {'':24}{'seconds':>9}{'CPU-s':>9}{'peak MB':>9}",
    ]
    for taken in (*one["reports"], *one["looks"]):
        peak = f"{taken.peak_mb:>9,.0f}" if taken.peak_mb else ""
        lines.append(f"  {taken.name:24}{taken.seconds:>9.2f}{taken.cpu_seconds:>9.2f}{peak}")
    return "\n".join(lines)


def told(one: dict[str, Any]) -> dict[str, Any]:
    """For scripts."""
    return {**one, **{what: [taken._asdict() for taken in one[what]] for what in ("reports", "looks")}}


def main() -> int:
    """Parse, measure, judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sites", type=int, default=5_000, help="that were crawled (default 5,000)")
    parser.add_argument("--pages", type=int, default=200, help="of each site (default 200)")
    parser.add_argument("--databases", default="sqlite", help="some of " + ", ".join(DATABASES))
    parser.add_argument("--json", action="store_true", help="every figure, as JSON")
    given = parser.parse_args()
    kinds = [kind for kind in given.databases.split(",") if is_there(kind)]
    found = [measure(kind, given.sites, given.pages) for kind in kinds]
    goals = goals_of(found)
    if given.json:
        print(json.dumps({"databases": list(map(told, found)), "goals": goals_told(goals)}))
    else:
        print("\n\n".join(map(table, found)), "", goals_table(goals), sep="\n")
    return int(not all(goal.met for goal in goals))


if __name__ == "__main__":
    sys.exit(main())
