"""The site queue and the journal: what they cost, and whether it stays so when the crawl grows.

A server of its own from the bundled binary, in a temporary folder, with the settings that a crawl gives it. Sizes
are numbers of waiting sites. Beside it: a bare PING by the same processes at the same pace (two busy cores answer
nothing faster), and what scrapy-redis keeps for the same.

Run: python benchmarks/site_queue.py [--sites 10k,1M] [--large] [--quick] [--json]. The file is not called queue.py
because scripts in this folder would then import it for Python's own `queue`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import redis
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from scrapy import Request, Spider
from scrapy.settings import Settings
from scrapy_redis.dupefilter import RFPDupeFilter
from scrapy_redis.queue import PriorityQueue

from crawler.agent.frontier import Frontier
from crawler.local.server import Server
from crawler.options import Options, read
from crawler.queue.queue import SiteQueue
from crawler.queue.sites import Newcomer

SIZES = "10k,1M"
LARGE = "10M"
# Agents that lease at the same time, and their pace: 800 leases a second is 800 sites begun a second.
CLIENTS, LEASES_A_SECOND = 32, 25
# Rounds of PING and of leases in turn; the median of the rounds' percentiles counts.
ROUNDS, ROUND_SECONDS = 5, 4.0
# The journal's workload: new links a page, pages a flush.
LINKS_A_PAGE, PAGES_A_FLUSH = 10, 16
KNOWN = (1_000, 10_000, 100_000, 1_000_000)
# Enough that constant costs vanish in scrapy-redis's bytes.
SCRAPY_REDIS_REQUESTS = 50_000
HOUR = 1


class Figure(NamedTuple):
    """One line of the result. `goal` is a bound on `value`: at most, or at least if `more`."""

    what: str
    value: float
    unit: str
    goal: float | None = None
    more: bool = False
    spread: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the goal is kept; None: there is none."""
        if self.goal is None:
            return None
        return self.value >= self.goal if self.more else self.value <= self.goal


class Bench:
    """The server under test, and a plain client to it."""

    def __init__(self, url: str, options: Options, quick: bool) -> None:
        self.url = url
        self.options = options
        self.rounds, self.seconds = (2, 1.0) if quick else (ROUNDS, ROUND_SECONDS)
        self.known = KNOWN[:-1] if quick else KNOWN
        self.raw = redis.Redis.from_url(url)

    def queue(self) -> tuple[SiteQueue, Redis]:
        """A queue on a connection of its own."""
        client = Redis.from_url(self.url, retry=Retry(NoBackoff(), 0))
        return SiteQueue(client, self.options), client

    def run(self, work: Callable[[SiteQueue], Any]) -> Any:
        """A coroutine function with a queue, to its end."""

        async def once() -> Any:
            queue, client = self.queue()
            try:
                return await work(queue)
            finally:
                await client.aclose()

        return asyncio.run(once())

    def clear(self) -> None:
        """An empty server, its memory really given back."""
        self.raw.flushall(asynchronous=False)

    def rest(self) -> None:
        """Wait until the server has rewritten its log and freed what was deleted: both go on behind its replies."""
        while True:
            info = self.raw.info("everything")
            busy = ("aof_rewrite_in_progress", "aof_rewrite_scheduled", "lazyfree_pending_objects")
            if not any(info[name] for name in busy):
                return
            time.sleep(0.05)

    def memory(self) -> int:
        """Bytes of data, without what connections and the log's buffers hold at the moment."""
        self.rest()
        found = self.raw.info("memory")
        return int(found["used_memory"] - found["mem_clients_normal"] - found["mem_aof_buffer"])


def names(many: int) -> Iterator[str]:
    """Site names of 32 bytes on average."""
    rng = random.Random(1)
    for number in range(many):
        yield f"https://www.{rng.randrange(16**6):06x}{number}.example"


# --- sites ---


def measure_sites(bench: Bench, many: int) -> list[Figure]:
    """Discovery, memory, the hour's list and leases with this many sites waiting."""
    bench.clear()
    size = _short(many)
    before = bench.memory()
    seconds, calls = bench.run(lambda queue: discover(queue, many))
    bench.raw.delete("lt:{0}:results")
    per_site = (bench.memory() - before) / many
    sites = list(names(many))
    fill = bench.run(lambda queue: fill_hour(queue, sites))
    leases = measure_leases(bench, sites)
    return [
        Figure(f"{size}: sites discovered, records included", many / seconds, "sites/s"),
        Figure(f"{size}: one discover call of 100, p50", percentile(calls, 50) * 1e3, "ms"),
        Figure(f"{size}: one discover call of 100, p99", percentile(calls, 99) * 1e3, "ms"),
        Figure(f"{size}: memory of a waiting site", per_site, "B", 120 if many >= 1_000_000 else None),
        Figure(
            f"{size}: sites written into an hour's list",
            many / fill,
            "sites/s",
            500_000 if many >= 1_000_000 else None,
            more=True,
        ),
        *(figure._replace(what=f"{size}: {figure.what}") for figure in leases),
    ]


async def discover(queue: SiteQueue, many: int) -> tuple[float, list[float]]:
    """Queue so many new sites; seconds in calls, and each call's."""
    calls: list[float] = []
    batch: list[Newcomer] = []
    for name in names(many):
        record = b'{"kind":"site","site":"%s","found_at":1795004000000,"source":"seed"}' % name.encode()
        batch.append(Newcomer(name, record))
        if len(batch) == 100:
            began = time.perf_counter()
            await queue.discover(batch, 0)
            calls.append(time.perf_counter() - began)
            batch = []
    return sum(calls), calls


async def fill_hour(queue: SiteQueue, sites: list[str]) -> float:
    """Write them all into the hour's list; seconds."""
    number = await queue.lock("planner", "bench", 3600)
    began = time.perf_counter()
    await queue.fill("bench", number, HOUR, sites)
    return time.perf_counter() - began


# --- leases ---


def measure_leases(bench: Bench, sites: list[str]) -> list[Figure]:
    """Rounds of PING and of lease with leave, by the same number of processes at the same pace."""
    pings, leases, means, slow = [], [], [], []
    for _ in range(bench.rounds):
        bench.rest()
        pings.append(phase(bench, "ping"))
        bench.raw.config_resetstat()
        leases.append(phase(bench, "lease"))
        calls = bench.raw.info("commandstats")["cmdstat_evalsha"]
        means.append(calls["usec_per_call"] / 1e3)
        slow.append(bench.raw.info("latencystats")["latency_percentiles_usec_evalsha"]["p99"] / 1e3)
        bench.run(lambda queue: fill_hour(queue, sites))  # what a lease took from it is suspended now
    ping50, ping99 = ([percentile(one, part) * 1e3 for one in pings] for part in (50, 99))
    lease50, lease99 = ([percentile(one, part) * 1e3 for one in leases] for part in (50, 99))
    ratios = [lease / ping for lease, ping in zip(lease99, ping99, strict=True)]
    return [
        _median("PING p50", ping50, "ms"),
        _median("PING p99", ping99, "ms"),
        _median("lease p50", lease50, "ms"),
        _median("lease p99", lease99, "ms"),
        _median("lease p99 / PING p99", ratios, "x", 5),
        _median("server's own time a call, mean", means, "ms", 0.5),
        _median("server's own time a call, p99", slow, "ms", 0.5),
    ]


def phase(bench: Bench, kind: str) -> list[float]:
    """All processes for one round; the seconds each call took."""
    gc.freeze()  # the sites' names are not the children's to look through
    context = multiprocessing.get_context("fork")
    gate = context.Barrier(CLIENTS)
    ends = []
    for number in range(CLIENTS):
        near, far = context.Pipe(duplex=False)
        process = context.Process(target=_client, args=(bench, kind, f"agent-{number}", gate, far))
        process.start()
        far.close()
        ends.append((process, near))
    took: list[float] = []
    for process, near in ends:
        took += near.recv()
        process.join()
        near.close()
        process.close()
    return took


def _client(bench: Bench, kind: str, name: str, gate: Any, out: Connection) -> None:
    out.send(asyncio.run(_keep_pace(bench, kind, name, gate)))
    out.close()


async def _keep_pace(bench: Bench, kind: str, name: str, gate: Any) -> list[float]:
    queue, client = bench.queue()
    await queue.join(name, {})
    rng = random.Random(name)
    gate.wait()
    began = due = time.perf_counter()
    due += rng.random() / LEASES_A_SECOND
    took = []
    while due < began + bench.seconds:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        took.append(await (_ping(client) if kind == "ping" else _lease(queue, name)))
        due += 1 / LEASES_A_SECOND
    await queue.part(name)
    await client.aclose()
    return took


async def _ping(client: Redis) -> float:
    began = time.perf_counter()
    await client.ping()
    took = time.perf_counter() - began
    await client.ping()  # as many calls as lease and leave
    return took


async def _lease(queue: SiteQueue, name: str) -> float:
    began = time.perf_counter()
    hand = await queue.lease(name, "site", 1, HOUR)
    took = time.perf_counter() - began
    await queue.leave(name, hand.sites[0], "suspended")
    return took


# --- journal ---


def measure_journal(bench: Bench) -> list[Figure]:
    """What packing costs a page, what a known URL costs to keep, and how long it takes to go on."""
    figures = []
    for known in bench.known:
        entries, packing, pages, digests = walk_site(known)
        gc.collect()
        began = time.process_time()
        frontier = Frontier()
        frontier.restore(entries)
        resumed = time.process_time() - began
        assert len(frontier) >= known
        size = _short(known)
        held = sum(map(len, entries))
        whole = len(frontier.whole())
        figures += [
            Figure(f"{size} URLs: packing, CPU a page", packing / pages * 1e3, "ms", 0.03),
            Figure(f"{size} URLs: journal, a known URL", held / len(frontier), "B", 15),
            Figure(f"{size} URLs: folded, a known URL", whole / len(frontier), "B"),
            Figure(f"{size} URLs: folded, all pages fetched", digests, "B"),
            Figure(f"{size} URLs: resumed, CPU", resumed, "s", 1.0 if known == KNOWN[-1] else None),
        ]
    return figures


def walk_site(known: int) -> tuple[list[bytes], float, int, float]:
    """Fetch pages with new links until so many URLs are known.

    The checkpoint's entries, CPU seconds of packing, pages, and bytes a known URL once all pages are fetched.
    """
    rng = random.Random(known)
    frontier = Frontier()
    frontier.add(["/"], 0)
    found = list(paths(rng, known))
    entries: list[bytes] = []
    packing, pages = 0.0, 0
    gc.collect()
    while len(frontier) < known:
        for _ in range(PAGES_A_FLUSH):
            links = found[pages * LINKS_A_PAGE : (pages + 1) * LINKS_A_PAGE]
            _fetch(frontier, rng, links)
            pages += 1
        began = time.process_time()
        fold = frontier.wants_fold()
        entry = frontier.whole() if fold else frontier.delta()
        packing += time.process_time() - began
        entries = [entry] if fold else [*entries, entry]
    done = Frontier()
    done.restore(entries)
    while done.pending:
        _fetch(done, rng, [])
    return entries, packing, pages, len(done.whole()) / len(done)


def _fetch(frontier: Frontier, rng: random.Random, links: list[str]) -> None:
    turn = frontier.take(0.0)
    assert turn
    frontier.add(links, turn.depth + 1)
    frontier.first_with(turn, rng.randbytes(32))
    frontier.finish(turn)


def paths(rng: random.Random, many: int) -> Iterator[str]:
    """Distinct paths as a shop with a magazine has them: slugs of words, numbers, dates, pages of lists."""
    parts = [
        "ar",
        "be",
        "co",
        "den",
        "el",
        "fi",
        "gra",
        "hos",
        "in",
        "ka",
        "lo",
        "min",
        "nor",
        "pla",
        "ri",
        "ste",
    ]
    words = ["".join(rng.choices(parts, k=rng.choice((2, 2, 3, 4)))) for _ in range(3000)]
    weights = [1 / (rank + 10) for rank in range(len(words))]
    drawn = iter(rng.choices(words, weights, k=many * 5))
    shelves = ["-".join(rng.choices(words, k=2)) for _ in range(60)]
    for number in range(many):
        slug = "-".join(next(drawn) for _ in range(rng.choice((2, 3, 4, 5))))
        kind = rng.random()
        if kind < 0.4:
            yield f"/{rng.choice(shelves)}/{slug}-{100_000 + number * 3}.html"
        elif kind < 0.7:
            yield f"/magazine/20{rng.randrange(10, 27)}/{rng.randrange(1, 13):02d}/{slug}-{number}/"
        elif kind < 0.85:
            yield f"/{rng.choice(shelves)}?page={number}"
        else:
            yield f"/item.php?id={1_000_000 + number}&ref={next(drawn)}"


# --- scrapy-redis ---


def measure_scrapy_redis(bench: Bench, many: int) -> list[Figure]:
    """Bytes that scrapy-redis keeps for each seen and each queued request, at its defaults."""
    requests = [
        Request(
            f"https://www.example.org{path}",
            meta={"depth": 3},
            headers={"Referer": "https://www.example.org/"},
        )
        for path in paths(random.Random(1), many)
    ]
    bench.clear()
    before = bench.memory()
    seen = RFPDupeFilter(bench.raw, "bench:dupefilter")
    for request in requests:
        seen.request_seen(request)
    after = bench.memory()
    queue = PriorityQueue(bench.raw, Spider(name="bench"), "%(spider)s:requests")
    for request in requests:
        queue.push(request)
    queued = bench.memory()
    return [
        Figure("scrapy-redis: a fingerprint in its set, for ever", (after - before) / many, "B"),
        Figure("scrapy-redis: a request in its queue", (queued - after) / many, "B"),
    ]


# --- the whole ---


def measure(bench: Bench, sizes: list[int], quick: bool) -> Iterator[Figure]:
    """All figures, each as soon as it is known."""
    medians: dict[str, list[float]] = {}
    for many in sizes:
        for figure in measure_sites(bench, many):
            medians.setdefault(figure.what.partition(": ")[2], []).append(figure.value)
            yield figure
    bench.clear()
    if len(sizes) > 1:
        for what in ("lease p50", "server's own time a call, mean"):
            first, last = medians[what][0], medians[what][-1]
            yield Figure(f"{_short(sizes[-1])} against {_short(sizes[0])}: {what}", last / first, "x")
    yield from measure_journal(bench)
    yield from measure_scrapy_redis(bench, SCRAPY_REDIS_REQUESTS // (10 if quick else 1))


def percentile(values: list[float], part: int) -> float:
    """The part-th percentile."""
    return statistics.quantiles(values, n=100)[part - 1]


def _median(what: str, values: list[float], unit: str, goal: float | None = None) -> Figure:
    spread = f"{min(values):.3g} .. {max(values):.3g}"
    return Figure(what, statistics.median(values), unit, goal, spread=spread)


def _short(number: int) -> str:
    for power, letter in ((6, "M"), (3, "k")):
        if number % 10**power == 0:
            return f"{number // 10**power} {letter}"
    return str(number)


def _number(text: str) -> int:
    power = {"k": 3, "M": 6}.get(text[-1:], 0)
    digits = text[:-1] if power else text
    if not digits.isdigit() or not int(digits):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of sites; expected one like 10k or 1M")
    return int(digits) * 10**power


def _sizes(text: str) -> list[int]:
    return [_number(one) for one in text.split(",")]


def _line(figure: Figure) -> str:
    goal = ""
    if figure.goal is not None:
        bound = "at least" if figure.more else "at most"
        goal = f"{'met' if figure.met else 'MISSED'}: {bound} {figure.goal:,g}"
    value = f"{figure.value:,.0f}" if figure.value >= 1000 else f"{figure.value:.3g}"
    return f"{figure.what:<52}{value:>12} {figure.unit:<8}{figure.spread:<18}{goal}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--sites", type=_sizes, default=_sizes(SIZES), help=f"numbers of sites; default {SIZES}"
    )
    parser.add_argument("--large", action="store_true", help=f"{LARGE} sites as well")
    parser.add_argument("--quick", action="store_true", help="small and short, to see that it runs")
    parser.add_argument("--json", action="store_true", help="figures as JSON, after all are known")
    arguments = parser.parse_args()
    sizes = _sizes("2k,20k") if arguments.quick else arguments.sites
    sizes += [_number(LARGE)] if arguments.large else []
    settings = Settings()
    settings.setmodule("settings.base")
    figures = []
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder)).join("agent") as membership:
        bench = Bench(membership.url, read(settings), arguments.quick)
        for figure in measure(bench, sizes, arguments.quick):
            figures.append({**figure._asdict(), "met": figure.met})
            if not arguments.json:
                print(_line(figure), flush=True)
        bench.raw.close()
    if arguments.json:
        json.dump(figures, sys.stdout, indent=1)
        print()


if __name__ == "__main__":
    main()
