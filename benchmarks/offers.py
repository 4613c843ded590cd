"""What do links to other sites cost? CPU of agent, server and coordinator, on a server and tables of its own.

    python benchmarks/offers.py                    # a minute

A page has ten links to other sites, each to another site of a thousand. Three kinds of pages: links that were offered
before (menus, home pages), links to sites that do not belong to the crawl, and links that are new each time, to a
hundred sites and to a thousand: each of these is a page more to fetch. Pages are published 64 at a time. Then offers to
finished sites: known ones, which a coordinator drops, and new ones, for which it opens the site again. The goal is 0.05
CPU-ms a page, agent and server together.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import redis
from redis.asyncio import Redis
from scrapy.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.goals import Goal, at_most, goals_table, goals_told  # noqa: E402
from crawler.agent.offers import Offers  # noqa: E402
from crawler.agent.seeding import Seeding  # noqa: E402
from crawler.agent.session import Author  # noqa: E402
from crawler.local.server import Server  # noqa: E402
from crawler.options import Options, read  # noqa: E402
from crawler.queue.queue import SiteQueue  # noqa: E402
from crawler.queue.sites import Newcomer, Offer, Restored  # noqa: E402
from crawler.reconcile.reopening import Reopening  # noqa: E402
from crawler.records import Page  # noqa: E402
from crawler.store.database import migrate, open_database, transaction  # noqa: E402
from crawler.store.write import Stored, store  # noqa: E402
from crawler.urls.scope import Scope  # noqa: E402

LINKS, PAGES_A_FLUSH = 10, 64
SITES, KNOWN_PAGES = 1_000, 100
USER_AGENT = "bench (+https://example.org)"
GOAL_MS = 0.05


class Bench:
    """A server, tables, and an agent's way of offering."""

    def __init__(self, url: str, folder: Path) -> None:
        self.settings = Settings()
        self.settings.setmodule("settings.base")
        self.settings.setdict({"REDIS_URL": url, "VAR_DIR": str(folder)}, priority="cmdline")
        self.options: Options = read(self.settings)
        self.raw = redis.Redis.from_url(url)
        self.url = url
        self.sites = [f"https://www.site{number}.example" for number in range(SITES)]

    def run(self, work: Callable[[SiteQueue, Offers], Awaitable[Any]], scope: str) -> Any:
        """A coroutine function with a queue and an agent's offers, to its end."""

        async def once() -> Any:
            options = msgspec.structs.replace(self.options, scope=scope)
            client = Redis.from_url(self.url)
            try:
                queue, limits, author = SiteQueue(client, options), Scope(options), Author("bench")
                seeding = Seeding(client, queue, options, limits, author, USER_AGENT)
                await seeding.take_in("")
                await seeding.drain_inlet()
                return await work(queue, Offers(queue, options, limits, author, seeding))
            finally:
                await client.aclose()

        return asyncio.run(once())

    def server_seconds(self) -> float:
        """CPU that the server has used."""
        info = self.raw.info("cpu")
        return float(info["used_cpu_user"] + info["used_cpu_sys"])


def pages_of(kind: str, sites: list[str], many: int) -> list[dict[str, list[str]]]:
    """What each page names of other sites, as `crawler.content.html` gives it."""
    found = []
    for number in range(many):
        some = [sites[(number + place * 97) % len(sites)] for place in range(LINKS)]
        paths = [f"/news/{number}/{place}.html" if kind == "new" else "/" for place in range(LINKS)]
        found.append({site: [path] for site, path in zip(some, paths, strict=True)})
    return found


def measure_pages(bench: Bench, kind: str, targets: int, many: int) -> tuple[float, float]:
    """CPU-ms a page of agent and server."""
    bench.raw.flushall()
    strangers = [site.replace("site", "stranger") for site in bench.sites]
    pages = pages_of(kind, (strangers if kind == "outside" else bench.sites)[:targets], many)

    async def work(queue: SiteQueue, offers: Offers) -> tuple[float, float]:
        await queue.discover([Newcomer(site, b"") for site in bench.sites], 0)
        if kind != "new":  # a first look at every site and URL
            await offer_all(offers, pages[:SITES])
        began, server = time.process_time(), bench.server_seconds()
        await offer_all(offers, pages)
        return time.process_time() - began, bench.server_seconds() - server

    agent, server = bench.run(work, "seeds" if kind == "outside" else "any")
    return 1000 * agent / many, 1000 * server / many


async def offer_all(offers: Offers, pages: list[dict[str, list[str]]]) -> None:
    for start in range(0, len(pages), PAGES_A_FLUSH):
        for page in pages[start : start + PAGES_A_FLUSH]:
            for site, paths in page.items():
                offers.add(site, paths, 3)
        if not offers.empty:
            await offers.send()


def measure_decisions(bench: Bench) -> dict[str, float]:
    """CPU-ms of a coordinator, for a finished site that is offered what it has, and for one that is opened."""
    bench.raw.flushall()
    engine = open_database(bench.options.database)
    migrate(engine)
    rows = [
        Stored(
            f"{number + 1}-0", Page(site=site, path=f"/{page}", fetched_at=1, outcome="stored", status=200)
        )
        for number, site in enumerate(bench.sites)
        for page in range(KNOWN_PAGES)
    ]
    with transaction(engine) as db:
        store(db, rows)
    figures = {}
    for what, path in (("known", "/7"), ("opened", "/new")):

        async def offer(queue: SiteQueue, _offers: Offers, path: str = path) -> None:
            await queue.restore([Restored(site, "finished") for site in bench.sites])
            await queue.offer([Offer(site, [path]) for site in bench.sites])

        bench.run(offer, "any")
        reopening = Reopening(bench.settings, bench.options, "bench")
        began = time.process_time()
        while bench.raw.exists("lt:{0}:undecided"):
            reopening.decide(engine)
        figures[what] = 1000 * (time.process_time() - began) / SITES
        reopening.close()
    engine.dispose()
    return figures


@contextmanager
def running() -> Iterator[Bench]:
    """A bench over a server and tables in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder)).join("visitor") as server:
        bench = Bench(server.url, Path(folder))
        yield bench
        bench.raw.close()


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="figures as JSON")
    parser.add_argument("--pages", type=int, default=10_000, help="pages of each kind")
    given = parser.parse_args()
    goals: list[Goal] = []
    with running() as bench:
        for kind, targets in (("known", SITES), ("outside", SITES), ("new", SITES // 10), ("new", SITES)):
            agent, server = measure_pages(bench, kind, targets, given.pages)
            words = (
                f"ten {kind} links, {targets} sites: CPU-ms a page, agent {agent:.4f}, server {server:.4f}"
            )
            goals.append(at_most(words, agent + server, GOAL_MS if kind != "new" else 10 * GOAL_MS))
        for what, ms in measure_decisions(bench).items():
            words = f"finished site of {KNOWN_PAGES} pages, {what}: CPU-ms of the coordinator"
            goals.append(at_most(words, ms, 10.0))
    if given.json:
        print(json.dumps({"goals": goals_told(goals)}))
    else:
        print(goals_table(goals))
    return 0 if all(goal.met for goal in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
