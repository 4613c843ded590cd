"""What is lost: by crashes, ours against stock scrapy-redis; by direct inserts, ours against paper 002's baseline.

    python benchmarks/loss.py [--repeats 3] [--kills 3] [--only crashes] [--json]

Crashes, with pages fetched twice and the pace at one host beside what is lost. Three things that happen to every
crawl, each to both over the same local farm and the same kind of server. `killed`: one worker of 16 requests at a time
is killed (SIGKILL) two to three seconds after it began to fetch, again and again,
and a last one runs to the end. `shared host`: two workers crawl one site with a delay of 0.25 s. `one leaves`: one of
two workers is ended in good order in mid-crawl. scrapy-redis has SCHEDULER_PERSIST on where it is killed, since
without it nothing would be left to go on with, and its default, off, where one leaves.

Inserts: four processes store 250 results each. Paper 002 saw rows lost where crawlers write into the database by
themselves, to "duplicates of the primary key"; it does not say which key. Here the two that such programs have: the
highest so far and one, and the time in milliseconds; an insert that fails is passed over.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Engine,
    MetaData,
    String,
    Table,
    cast,
    create_engine,
    func,
    insert,
    select,
)
from sqlalchemy.exc import SQLAlchemyError

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import producers  # noqa: E402
from crawler.store.tables import fetches  # noqa: E402
from tests.crawling import Place, Run, fetched, wait_for_hits  # noqa: E402
from tests.drills import Fleet  # noqa: E402
from tests.farm import Farm, Hit  # noqa: E402
from tests.servers import RunningServer, start_valkey  # noqa: E402

# 16 sites of 94 pages, each page some links deeper than the one before: 1,504 pages, 16 requests at a time.
WEB: dict[str, Any] = {"sites": 16, "pages": 94, "kinds": (), "names": (), "delay_ms": 150}
CONCURRENT = 16
SHARED: dict[str, Any] = {"sites": 1, "pages": 100, "kinds": (), "names": ()}
DELAY = 0.25
ITEMS = "stock:items"
SETTINGS: dict[str, Any] = {
    "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
    "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
    "ITEM_PIPELINES": {"scrapy_redis.pipelines.RedisPipeline": 300},
    "CONCURRENT_REQUESTS": CONCURRENT,
    "CONCURRENT_REQUESTS_PER_DOMAIN": CONCURRENT,
    "RANDOMIZE_DOWNLOAD_DELAY": False,
    "ROBOTSTXT_OBEY": True,
    "TELNETCONSOLE_ENABLED": False,
    "REMOTE_CONTROL_ENABLED": False,
    "LOG_LEVEL": "WARNING",
}


def stock(settings: dict[str, Any], seeds: list[str]) -> None:
    """A spider as scrapy-redis's users write it; this process is one worker."""
    import scrapy
    from scrapy.crawler import AsyncCrawlerProcess

    class Stock(scrapy.Spider):
        name = "stock"

        async def start(self):  # type: ignore[no-untyped-def]
            for url in seeds:
                yield scrapy.Request(url)

        def parse(self, response):  # type: ignore[no-untyped-def]
            yield {"url": response.url}
            for link in response.css("a::attr(href)").getall():
                url = response.urljoin(link)
                if url.startswith("/".join(response.url.split("/")[:3])):
                    yield scrapy.Request(url)

    process = AsyncCrawlerProcess({**SETTINGS, **settings})
    process.crawl(Stock)
    process.start()


class Stocks:
    """The workers of one crawl by scrapy-redis."""

    def __init__(self, folder: Path, farm: Farm, server: RunningServer, **settings: Any) -> None:
        self._folder, self._farm, self._server, self._settings = folder, farm, server, settings
        self.runs: list[Run] = []

    def start(self) -> Run:
        """One worker more."""
        settings = {"REDIS_URL": self._server.url, **self._settings}
        command = [sys.executable, __file__, "--stock", json.dumps(settings), *self._farm.seeds]
        run = Run(command, dict(os.environ), ROOT, self._folder / f"stock-{len(self.runs)}")
        self.runs.append(run)
        return run

    def stored(self) -> set[str]:
        """URLs of the items that reached the list."""
        return {json.loads(item)["url"] for item in self._server.client.lrange(ITEMS, 0, -1)}

    def stop(self) -> None:
        """End what still runs."""
        for run in self.runs:
            if run.process.poll() is None:
                run.process.kill()
            run.process.wait()


def declared(farm: Farm) -> set[str]:
    """The pages that a crawl must find."""
    return {url for urls in farm.expected().values() for url in urls}


def twice(hits: list[Hit]) -> int:
    """Requests beyond one for each page."""
    return sum(count - 1 for count in fetched(hits).values())


def kill_again_and_again(
    farm: Farm, kills: int, start: Callable[[], Run], kill: Callable[[Run], object]
) -> Run:
    """Start a worker and kill it once it has fetched for two to three seconds; the last one may live."""
    for _ in range(kills):
        before, run = len(farm.hits()), start()
        wait_for_hits(farm, 1, before)
        time.sleep(random.uniform(2.0, 3.0))
        kill(run)
    return start()


def busiest(times: list[float], seconds: float) -> int:
    """The most requests within one span of this length."""
    return max(bisect_left(times, start + seconds) - place for place, start in enumerate(times))


def killed(folder: Path, server: RunningServer, kills: int, *, ours: bool) -> dict[str, float]:
    """Pages lost and fetched twice by `kills` kills."""
    with Farm(**WEB) as farm:
        if ours:
            with Place(folder) as place:
                with Fleet(place, farm, server, SITE_SLOTS=CONCURRENT) as fleet:
                    kill_again_and_again(farm, kills, fleet.agent, fleet.kill)
                    fleet.wait(200)
                stored = {url for urls in place.stored().values() for url in urls}
        else:
            stocks = Stocks(folder, farm, server, SCHEDULER_PERSIST=True)
            try:
                kill_again_and_again(farm, kills, stocks.start, lambda run: run.end(signal.SIGKILL)).wait(200)
                stored = stocks.stored()
            finally:
                stocks.stop()
        wanted = declared(farm)
        return {"pages": len(wanted), "lost": len(wanted - stored), "fetched again": twice(farm.hits())}


def shared_host(folder: Path, server: RunningServer, _kills: int, *, ours: bool) -> dict[str, float]:
    """Requests a second that one host sees from two workers, and the smallest gap between two."""
    with Farm(**SHARED) as farm:
        if ours:
            with Place(folder) as place, Fleet(place, farm, server, DOWNLOAD_DELAY=DELAY) as fleet:
                fleet.agent()
                wait_for_hits(farm, 20)  # a second worker of scrapy-redis would find nothing to do before
                fleet.agent()
                fleet.wait(100)
        else:
            stocks = Stocks(folder, farm, server, DOWNLOAD_DELAY=DELAY, SCHEDULER_PERSIST=True)
            try:
                first = stocks.start()
                wait_for_hits(farm, 20)
                for run in (first, stocks.start()):
                    run.wait(100)
            finally:
                stocks.stop()
        times = [hit.monotonic for hit in farm.hits() if hit.path != "/robots.txt"]
    steps = [two - one for one, two in pairwise(times)]
    return {
        "allowed a second": 1 / DELAY,
        "busiest 5 s, requests a second": busiest(times, 5.0) / 5.0,
        "smallest gap, ms": min(steps) * 1000,
    }


def one_leaves(folder: Path, server: RunningServer, _kills: int, *, ours: bool) -> dict[str, float]:
    """Pages lost when one of two workers is ended in good order."""
    with Farm(**WEB) as farm:
        if ours:
            with Place(folder) as place:
                with Fleet(place, farm, server, SITE_SLOTS=CONCURRENT) as fleet:
                    runs = fleet.agents_at_work(2)
                    wait_for_hits(farm, 300)
                    runs[0].end(signal.SIGTERM)
                    fleet.wait(200)
                stored = {url for urls in place.stored().values() for url in urls}
        else:
            stocks = Stocks(folder, farm, server)
            try:
                runs = [stocks.start(), stocks.start()]
                wait_for_hits(farm, 300)
                runs[0].end(signal.SIGTERM)
                runs[1].wait(200)
                stored = stocks.stored()
            finally:
                stocks.stop()
        wanted = declared(farm)
        return {"pages": len(wanted), "lost": len(wanted - stored), "fetched again": twice(farm.hits())}


CASES = {"killed": killed, "shared host": shared_host, "one leaves": one_leaves}


def measure(repeats: int, kills: int) -> list[dict[str, Any]]:
    """Every case by both, in turn; a server and a folder of its own for each."""
    rows = []
    for case, play in CASES.items():
        for turn in range(repeats):
            for name, ours in (("Lowtide", True), ("scrapy-redis", False)):
                with tempfile.TemporaryDirectory() as path:
                    folder = Path(path)
                    (folder / "server").mkdir()
                    server = start_valkey(folder / "server")
                    try:
                        figures = play(folder, server, kills, ours=ours)
                    finally:
                        server.stop()
                rows.append({"case": case, "crawler": name, "repeat": turn, **figures})
                print(f"{case}, {name}, {turn + 1} of {repeats}", file=sys.stderr)
    return rows


# --- inserts ---

# The paper's test table (figure 8); a time in milliseconds wants more than its INT.
ANSWERS = Table(
    "answers",
    MetaData(),
    Column("a", BigInteger, primary_key=True, autoincrement=False),
    *(Column(name, String(50)) for name in "bcdef"),
)
PROCESSES, RESULTS = 4, 250


def insert_naively(begin: Callable[[], None], database: str, number: int, many: int, key: str) -> None:
    """Store results one by one under a key that the process makes up; what fails is passed over."""
    engine = create_engine(database)
    highest = select(func.coalesce(func.max(ANSWERS.c.a), 0) + 1)
    with engine.connect() as connection:
        connection.execute(highest)
    begin()
    for place in range(many):
        row = {"b": f"{number}-{place}", "c": "200", "d": "normal", "e": "12", "f": "203.0.113.7"}
        try:
            with engine.begin() as connection:
                a = connection.execute(highest).scalar() if key == "MAX + 1" else time.time_ns() // 1_000_000
                connection.execute(insert(ANSWERS), {**row, "a": a})
        except SQLAlchemyError:  # this is the experiment
            continue
    engine.dispose()


def directly(kind: str, key: str, each: int) -> int:
    """How many results are not in the database after four processes have inserted theirs."""
    with producers.place(kind) as ready:
        ANSWERS.create(ready.engine)
        _work([producers.Worker(insert_naively, ready.database, n, each, key) for n in range(PROCESSES)])
        made = {f"{number}-{place}" for number in range(PROCESSES) for place in range(each)}
        return len(made - _column(ready.engine, ANSWERS.c.b))


def through_the_stream(kind: str, _key: str, each: int) -> int:
    """The same by our way; results are told apart by agent and number."""
    with producers.place(kind) as ready:
        over = multiprocessing.get_context("spawn").Event()
        coordinator = producers.Worker(producers.coordinate, ready.valkey.url, ready.database, over)
        coordinator.ready()
        coordinator.begin()
        _work([producers.Worker(producers.produce, ready.valkey.url, n, each) for n in range(PROCESSES)])
        over.set()
        ready.until_stored()
        coordinator.cpu()
        made = {f"{producers.Author(n).name} {seq}" for n in range(PROCESSES) for seq in range(1, each + 1)}
        return len(made - _column(ready.engine, fetches.c.agent + " " + cast(fetches.c.seq, String(20))))


INSERTS: dict[str, Callable[[str, str, int], int]] = {
    "MAX + 1": directly,
    "milliseconds": directly,
    "Lowtide": through_the_stream,
}


def measure_inserts(databases: list[str], repeats: int, each: int) -> list[dict[str, Any]]:
    """Every key, and ours, on every one of these databases that is there, in turn."""
    rows = []
    for kind in filter(producers.is_there, databases):
        for turn in range(repeats):
            for key, play in INSERTS.items():
                lost = play(kind, key, each)
                rows.append(
                    {"database": kind, "key": key, "repeat": turn, "of": PROCESSES * each, "lost": lost}
                )
                print(f"{kind}, {key}: {lost} lost", file=sys.stderr)
    return rows


def inserts_table(rows: list[dict[str, Any]]) -> str:
    """Lost results: the median and, in brackets, least and most."""
    lines = [f"{'lost of ' + str(rows[0]['of']):<44}" + "".join(f"{key:>24}" for key in INSERTS)]
    for kind in dict.fromkeys(row["database"] for row in rows):
        cells = [
            _spread([row["lost"] for row in rows if (row["database"], row["key"]) == (kind, key)])
            for key in INSERTS
        ]
        lines.append(f"{'inserts, ' + kind:<44}" + "".join(f"{cell:>24}" for cell in cells))
    return "\n".join(lines)


def _work(workers: list[producers.Worker]) -> None:
    for worker in workers:
        worker.ready()
    for worker in workers:
        worker.begin()
    for worker in workers:
        worker.done()
        worker.cpu()


def _column(engine: Engine, column: Any) -> set[str]:
    with engine.connect() as connection:
        return set(connection.execute(select(column)).scalars())


# --- the whole ---


def table(rows: list[dict[str, Any]], kills: int) -> str:
    """Per case and figure: the median and, in brackets, least and most."""
    lines = [f"{'':<44}{'Lowtide':>24}{'scrapy-redis':>24}"]
    for case in CASES:
        told = f"killed {kills} times" if case == "killed" else case
        figures = [name for name in next(row for row in rows if row["case"] == case) if name not in _LABELS]
        for figure in figures:
            cells = [
                _spread([row[figure] for row in rows if (row["case"], row["crawler"]) == (case, crawler)])
                for crawler in ("Lowtide", "scrapy-redis")
            ]
            lines.append(f"{told + ': ' + figure:<44}{cells[0]:>24}{cells[1]:>24}")
    return "\n".join(lines)


_LABELS = ("case", "crawler", "repeat")


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):,.4g} ({min(values):,.4g} to {max(values):,.4g})"


def main() -> int:
    """Parse, measure, print."""
    if sys.argv[1:2] == ["--stock"]:
        stock(json.loads(sys.argv[2]), sys.argv[3:])
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3, help="times each case is played (default 3)")
    parser.add_argument("--kills", type=int, default=3, help="kills of a crawl (default 3)")
    parser.add_argument("--only", choices=("crashes", "inserts"), help="one of the two; default both")
    parser.add_argument("--results", type=int, default=RESULTS, help=f"of each process's inserts ({RESULTS})")
    parser.add_argument(
        "--databases", default=",".join(producers.DATABASES), help="for inserts; default all of them"
    )
    parser.add_argument("--json", action="store_true", help="every figure, one object a line")
    given = parser.parse_args()
    crashes = measure(given.repeats, given.kills) if given.only != "inserts" else []
    inserts = (
        measure_inserts(given.databases.split(","), given.repeats, given.results)
        if given.only != "crashes"
        else []
    )
    if given.json:
        print("\n".join(map(json.dumps, crashes + inserts)))
    else:
        if crashes:
            print(table(crashes, given.kills))
        if inserts:
            print(inserts_table(inserts))
    return int(any(row["lost"] for row in inserts if row["key"] == "Lowtide"))


if __name__ == "__main__":
    sys.exit(main())
