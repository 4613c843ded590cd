"""What planning a million sites takes, and whether results come into the tables as soon while it goes on.

    python benchmarks/planner.py [--sites 1000000] [--batches 40] [--databases sqlite] [--json]

A queue of so many waiting sites, found in the tables too. A coordinator writes RATE records a second; the latency is
the time from a second's last record until its row is in the table. Measured in turn without a planner and with one that
plans all the time, since its hour is shorter than a plan. The policy is `regret`, the dearest.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from redis.asyncio import Redis
from sqlalchemy import func, select

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import meters  # noqa: E402
from benchmarks.producers import DATABASES, KEY, Author, Place, Worker, coordinate, is_there, place  # noqa: E402
from benchmarks.site_queue import discover, names, percentile  # noqa: E402
from crawler import records  # noqa: E402
from crawler.queue.queue import SiteQueue  # noqa: E402
from crawler.store.database import transaction  # noqa: E402
from crawler.store.tables import fetches  # noqa: E402
from crawler.store.write import Stored, store  # noqa: E402
from settings import base  # noqa: E402
from tests.queue_driver import queue_options  # noqa: E402
from tests.servers import eventually  # noqa: E402

# Records a second: some 300 pages/s of a few agents, well below what a coordinator can write.
RATE = 500
# Turns without and with a planner.
TURNS = 2
# Rows of sites written into the tables at a time.
BATCH = 20_000
LOG_LINE = re.compile(r"sites in line by \S+, \d+ suspended \((\d+\.\d+) s\)")


class Figures(NamedTuple):
    """Of one database."""

    database: str
    sites: int
    alone_ms: list[float]  # latencies without a planner
    planned_ms: list[float]  # and while one plans
    plans: list[float]  # seconds that each plan took
    planner_cpu: float  # seconds a plan
    planner_mb: float


# --- what there is ---


def fill(here: Place, sites: int) -> None:
    """Queue so many sites, and put them into the tables as a coordinator would have."""

    async def queue() -> None:
        client = Redis.from_url(here.valkey.url)
        await discover(SiteQueue(client, queue_options(key_prefix=base.KEY_PREFIX)), sites)
        await client.aclose()

    asyncio.run(queue())
    here.valkey.client.delete(KEY)
    batch: list[Stored] = []
    for number, name in enumerate(names(sites)):
        found = records.SiteFound(site=name, found_at=1_795_000_000_000 + number)
        batch.append(Stored(f"{1_795_000_000_000 + number}-0", found, plain=True))
        if len(batch) == BATCH or number == sites - 1:
            with transaction(here.engine) as connection:
                store(connection, batch)
            batch = []


@contextmanager
def planner(here: Place, folder: Path, hour_seconds: float) -> Iterator[subprocess.Popen[bytes]]:
    """`scrapy plan` over that place; its log in the folder."""
    given = {
        "VAR_DIR": folder,
        "REDIS_URL": here.valkey.url,
        "DATABASE_URL": here.database,
        "HOUR_SECONDS": hour_seconds,
        "SITE_SCHEDULER": "regret",
    }
    command = [sys.executable, "-m", "scrapy", "plan"]
    for name, value in given.items():
        command += ["-s", f"{name}={value}"]
    with (folder / "planner.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env=dict(os.environ))
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def plans(folder: Path) -> list[float]:
    """Seconds that each plan took so far."""
    return [float(seconds) for seconds in LOG_LINE.findall((folder / "planner.log").read_text())]


# --- what is measured ---


def latencies(here: Place, author: Author, batches: int) -> list[float]:
    """Milliseconds from a second's last record until it is in the tables, second by second."""
    found = []
    for _ in range(batches):
        began = time.perf_counter()
        before = rows(here)
        pipe = here.valkey.client.pipeline(transaction=False)
        for page, links in author.results(RATE):
            pipe.xadd(KEY, {b"v": records.VERSION, b"r": records.encode(page), b"l": links})
        pipe.execute()
        sent = time.perf_counter()
        eventually(lambda before=before: rows(here) - before >= RATE, "stored", 60)  # type: ignore[misc]
        found.append((time.perf_counter() - sent) * 1e3)
        time.sleep(max(0.0, 1.0 - (time.perf_counter() - began)))
    return found


def rows(here: Place) -> int:
    """The history's last number: a look that costs nothing, whatever is in there."""
    with transaction(here.engine) as connection:
        return int(connection.execute(select(func.max(fetches.c.id))).scalar() or 0)


def measure(kind: str, sites: int, batches: int) -> Figures:
    """One database: turns without and with a planner."""
    import multiprocessing

    alone: list[float] = []
    planned: list[float] = []
    took: list[float] = []
    cpu = memory = 0.0
    with place(kind) as here:
        print(f"{kind}: {sites:,} sites are queued", file=sys.stderr)
        fill(here, sites)
        over = multiprocessing.get_context("spawn").Event()
        writer = Worker(coordinate, here.valkey.url, here.database, over)
        writer.ready()
        writer.begin()
        for turn in range(TURNS):
            alone += latencies(here, Author(2 * turn), batches // TURNS)
            with tempfile.TemporaryDirectory() as folder, planner(here, Path(folder), 1.0) as process:
                eventually(lambda folder=folder: plans(Path(folder)), "a first plan", 300)  # type: ignore[misc]
                first, cpu_before = len(plans(Path(folder))), meters.cpu_of(process.pid)
                planned += latencies(here, Author(2 * turn + 1), batches // TURNS)
                made = plans(Path(folder))
                cpu += meters.cpu_of(process.pid) - cpu_before
                memory = max(memory, meters.memory_of(process.pid) / 1e6)
                took += made[first:] or made
        over.set()
        writer.done()
        writer.cpu()
    return Figures(kind, sites, alone, planned, took, cpu / max(1, len(took)), memory)


def line(found: Figures) -> str:
    """For a person."""

    def spread(values: list[float]) -> str:
        return (
            f"{statistics.median(values):,.0f} (p95 {percentile(values, 95):,.0f}, most {max(values):,.0f})"
        )

    return "\n".join(
        (
            f"{found.database}, {found.sites:,} sites",
            f"  batch latency without a planner  {spread(found.alone_ms)} ms",
            f"  batch latency while it plans     {spread(found.planned_ms)} ms",
            f"  a plan                           {statistics.median(found.plans):.2f} s of {len(found.plans)} plans, "
            f"{found.planner_cpu:.2f} CPU-s; {found.planner_mb:,.0f} MB",
        )
    )


def main() -> int:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sites", type=int, default=1_000_000, help="that wait (default 1,000,000)")
    parser.add_argument("--batches", type=int, default=40, help="latencies of each kind (default 40)")
    parser.add_argument("--databases", default="sqlite", help="some of " + ", ".join(DATABASES))
    parser.add_argument("--json", action="store_true", help="every figure, as JSON")
    given = parser.parse_args()
    found = [
        measure(kind, given.sites, max(TURNS, given.batches))
        for kind in given.databases.split(",")
        if is_there(kind)
    ]
    print(json.dumps([one._asdict() for one in found]) if given.json else "\n".join(map(line, found)))
    return 0


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
