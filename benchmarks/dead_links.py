"""What dead links cost a crawl: paper 001's sequential robot against works of their own (table 4.2, figure 4.4).

    python benchmarks/dead_links.py [--shares 0 10 25 40] [--shapes sites pages mixed] [--repeats 3] [--quick] [--json]

A small web on loopback, its dead URLs dead in one of four ways: nobody listens, the connection hangs, no head comes,
the body never ends. They are whole sites (`sites`), pages spread evenly over good ones (`pages`: they hang in head or
body, or lose the connection), or half of each (`mixed`). Limits are a tenth of the settings'. Three robots walk it,
each given every URL:

    sequential   N loaders; three tries of a URL in place, one after the other, and a HEAD for every page that was
                 loaded
    separated    our agent: 10 slots for loading and 10 each for recheck and revive, as in the paper
    shared       our agent: the same works, all within as many slots as the sequential robot has

Figures: live pages a second until the last of them is in, as the web saw it; when 95 % are in; when every dead URL has
its verdict, without the delays that revive is told to wait; slot-seconds a dead URL costs; and, of runs in which every
fifth good site goes away for a while, how many of its pages were called dead.

Exit code 1: a goal is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from math import inf
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.goals import Goal  # noqa: E402
from tests.crawling import Place  # noqa: E402
from tests.servers import eventually  # noqa: E402

# Seconds: a tenth of the settings' own.
CONNECT, HEAD, BODY = 1.5, 1.0, 2.0
# What a live page takes: 20 to 60 ms.
FASTEST, SLOWEST = 0.02, 0.06
# Revive's delays, and for how long a site goes away: a tenth of an outage of 30 s.
DELAYS: Final = (4.0, 8.0)
OUTAGE: Final = 3.0
TRIES = 3
SHAPES = ("sites", "pages", "mixed")
# Of whole sites and of single pages; a site whose pages' bodies never end has a robots.txt.
SITE_KINDS = ("refused", "connect", "head", "body")
PAGE_KINDS = ("head", "body", "reset")
LIMIT_OF = {"refused": 0.0, "reset": 0.0, "connect": CONNECT, "head": HEAD, "body": BODY}
# Below the range that the kernel deals out to clients.
PORT = 18_017
BACKLOG_PORT = 18_018
PATIENCE = 600.0


class Shape(NamedTuple):
    """A web: its size, how much of it is dead, and how."""

    sites: int
    pages: int  # of a site, its first one included
    dead: int  # per cent of the URLs
    where: str  # one of SHAPES

    def kinds(self) -> dict[str, str]:
        """URL -> how it is dead, or `live`; the same for the same shape."""
        chance = random.Random(f"{self.dead} {self.where}")
        share = self.dead / 100
        whole = {"sites": share, "pages": 0.0, "mixed": share / 2}[self.where]
        dead_sites = round(self.sites * whole)
        every = self.sites / dead_sites if dead_sites else 0.0
        of_site = {int(n * every): SITE_KINDS[n % len(SITE_KINDS)] for n in range(dead_sites)}
        of_pages = share - dead_sites / self.sites
        found: dict[str, str] = {}
        for number in range(self.sites):
            kind = of_site.get(number)
            for page in range(self.pages):
                url = f"{site_url(number, kind)}/{page or ''}"
                found[url] = kind or "live"
        live = [url for url, kind in found.items() if kind == "live" and not url.endswith("/")]
        for place, url in enumerate(chance.sample(live, round(len(found) * of_pages))):
            found[url] = PAGE_KINDS[place % len(PAGE_KINDS)]
        return found


def site_url(number: int, kind: str | None) -> str:
    """A site's address: nobody listens at a refused one's, and nobody accepts at a hanging one's."""
    port = {"refused": PORT - 1, "connect": BACKLOG_PORT}.get(kind or "", PORT)
    return f"http://127.1.{number // 200}.{number % 200 + 1}:{port}"


class Hit(NamedTuple):
    """One request that the web saw: when it came, for what, and how long it was held."""

    at: float
    url: str
    method: str
    held: float


class Outcome(NamedTuple):
    """One robot's run."""

    pages_a_second: float
    live_95: float  # seconds until so much of the live pages is in
    verdicts: float  # seconds until each dead URL has its verdict, delays left out
    slot_seconds: float  # for each dead URL
    false_deaths: int
    missing: int  # live pages that were never loaded
    curve: list[tuple[float, int]]  # live pages that were in by then


# --- the web ----------------------------------------------------------------------------------------------


class DeadWeb:
    """The web as a process; its log comes at the end. A context manager."""

    def __init__(self, kinds: dict[str, str], *, outages: bool = False) -> None:
        self._kinds, self._outages = kinds, outages

    def __enter__(self) -> DeadWeb:
        ours, theirs = multiprocessing.Pipe()
        self._pipe = ours
        self._process = multiprocessing.get_context("spawn").Process(
            target=_serve, args=(theirs, self._kinds, self._outages), daemon=True
        )
        self._process.start()
        assert ours.recv() == "ready"
        return self

    def __exit__(self, *_error: object) -> None:
        with suppress(OSError):
            self._pipe.send("end")
        self._process.join(10)
        self._process.kill()

    def log(self) -> list[Hit]:
        """What was asked so far."""
        self._pipe.send("log")
        return [Hit(*row) for row in self._pipe.recv()]


def _serve(pipe: Any, kinds: dict[str, str], outages: bool) -> None:
    asyncio.run(_Served(kinds).run(pipe, outages=outages))


class _Served:
    def __init__(self, kinds: dict[str, str]) -> None:
        self._kinds = kinds
        self._log: list[Hit] = []
        self._servers: dict[str, asyncio.Server] = {}
        self._open: dict[str, set[asyncio.StreamWriter]] = {}
        self._plugs: list[socket.socket] = []
        self._chance = random.Random(1)

    async def run(self, pipe: Any, *, outages: bool) -> None:
        hosts = sorted({url.split("/")[2] for url in self._kinds})
        for host in hosts:
            address, port = host.split(":")
            if int(port) == PORT:
                await self._listen(address)
            elif int(port) == BACKLOG_PORT:
                self._plug(address)
        pipe.send("ready")
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._go_away(hosts)) if outages else None
        while True:
            if not await loop.run_in_executor(None, pipe.poll, 0.2):
                continue
            if pipe.recv() == "end":
                break
            pipe.send([tuple(hit) for hit in self._log])
        if task:
            task.cancel()

    async def _listen(self, address: str) -> None:
        self._servers[address] = await asyncio.start_server(
            lambda reader, writer: self._take(address, reader, writer), address, PORT
        )

    def _plug(self, address: str) -> None:
        """A queue that is full: whoever connects is not answered."""
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, BACKLOG_PORT))
        listener.listen(0)
        self._plugs.append(listener)
        for _ in range(4):
            plug = socket.socket()
            plug.setblocking(False)
            with suppress(BlockingIOError):
                plug.connect((address, BACKLOG_PORT))
            self._plugs.append(plug)

    async def _go_away(self, hosts: list[str]) -> None:
        """Every fifth good site, one group after the other, as soon as something was asked."""
        while len(self._log) < len(hosts):  # noqa: ASYNC110 - else every request would set an event
            await asyncio.sleep(0.05)
        for address in [host.split(":")[0] for host in hosts if host.endswith(f":{PORT}")][::5]:
            asyncio.get_running_loop().create_task(self._away(address))

    async def _away(self, address: str) -> None:
        self._servers[address].close()
        for writer in self._open.get(address, set()):
            writer.transport.abort()
        await asyncio.sleep(OUTAGE)
        await self._listen(address)

    async def _take(self, address: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.setdefault(address, set()).add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                if not await self._answer(address, head, reader, writer):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._open[address].discard(writer)
            writer.close()

    async def _answer(
        self, address: str, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        method, path = head.split(b" ", 2)[:2]
        url, began = f"http://{address}:{PORT}{path.decode()}", time.time()
        kind = self._kinds.get(
            url, "head" if path == b"/robots.txt" and self._is_silent(address) else "missing"
        )
        goes_on = True
        if kind == "live":
            await asyncio.sleep(self._chance.uniform(FASTEST, SLOWEST))
            body = b"<html><title>%s</title><p>text of %s</html>" % (path, path)
            writer.write(_head(200, len(body)) + (b"" if method == b"HEAD" else body))
        elif kind == "missing":
            writer.write(_head(404, 0))
        else:
            goes_on = False
            await self._die(kind, reader, writer)
        self._log.append(Hit(began, url, method.decode(), time.time() - began))
        return goes_on

    def _is_silent(self, address: str) -> bool:
        return self._kinds.get(f"http://{address}:{PORT}/") == "head"

    @staticmethod
    async def _die(kind: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if kind == "reset":
            writer.transport.abort()
        if kind == "body":
            writer.write(_head(200, 100_000))
        with suppress(ConnectionError):
            while kind in ("head", "body") and not reader.at_eof():
                if kind == "body":
                    writer.write(b"x")
                    await writer.drain()
                with suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(1), 0.1)


def _head(status: int, length: int) -> bytes:
    word = {200: b"OK", 404: b"Not Found"}[status]
    return b"HTTP/1.1 %d %s\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n" % (status, word, length)


# --- the sequential robot ---------------------------------------------------------------------------------


async def ask(url: str, method: str) -> bool:
    """One request over a connection of its own, with a limit for each stage; whether the page was there."""
    host, _, path = url.removeprefix("http://").partition("/")
    address, port = host.split(":")
    try:
        async with asyncio.timeout(CONNECT):
            reader, writer = await asyncio.open_connection(address, int(port))
    except OSError:  # TimeoutError among them
        return False
    try:
        writer.write(f"{method} /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        async with asyncio.timeout(HEAD):
            head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        if method == "GET":
            async with asyncio.timeout(BODY):
                await reader.readexactly(length)
        return head.startswith(b"HTTP/1.1 200")
    except (OSError, asyncio.IncompleteReadError):
        return False
    finally:
        writer.close()


async def walk(urls: list[str], slots: int) -> dict[str, bool]:
    """Every URL by `slots` loaders, three tries in place, and once more by HEAD where it was loaded."""
    line, verdicts = iter(urls), dict[str, bool]()

    async def loader() -> None:
        for url in line:
            for _ in range(TRIES):
                verdicts[url] = await ask(url, "GET")
                if verdicts[url]:
                    await ask(url, "HEAD")
                    break

    await asyncio.gather(*(loader() for _ in range(slots)))
    return verdicts


def sequential(kinds: dict[str, str], slots: int, *, outages: bool = False) -> Outcome:
    """The paper's robot over a web."""
    urls = mixed(kinds)
    with DeadWeb(kinds, outages=outages) as web:
        began = time.time()
        verdicts = asyncio.run(walk(urls, slots))
        seconds = time.time() - began
        hits = web.log()
    dead = [url for url, kind in kinds.items() if kind != "live"]
    held = sum(LIMIT_OF[kinds[url]] * TRIES for url in dead)
    false_deaths = sum(not verdicts[url] for url, kind in kinds.items() if kind == "live")
    return outcome(kinds, hits, began, seconds, held, false_deaths)


def mixed(kinds: dict[str, str]) -> list[str]:
    """The URLs in the order in which they are given to a robot."""
    urls = sorted(kinds)
    random.Random(3).shuffle(urls)
    return urls


# --- our robot --------------------------------------------------------------------------------------------


def separated(
    kinds: dict[str, str], slots: int, beside: int, folder: Path, *, outages: bool = False
) -> Outcome:
    """Our agent: `slots` in all, of which recheck and revive have `beside` each for themselves; 0: they share."""
    seeds = folder / "seeds.txt"
    seeds.write_text("\n".join(mixed(kinds)))
    given: dict[str, Any] = {
        "ALLOW_PRIVATE_ADDRESSES": "127.0.0.0/8",
        "DOWNLOAD_DELAY": 0,
        "MAX_TRIES": 1,
        "SITE_SLOTS": slots,
        "WORK_SLOTS": {"recheck": beside, "revive": beside} if beside else {},
        "CONNECT_TIMEOUT_SECONDS": CONNECT,
        "HEAD_TIMEOUT_SECONDS": HEAD,
        "BODY_TIMEOUT_SECONDS": BODY,
        "ADAPTIVE_TIMEOUTS": False,
        "RECRAWL_MODE": "interval",
        "RECHECK_INTERVAL_SECONDS": 5,
        "RECHECK_METHOD": "head",
        "REVIVE_FIRST_SECONDS": DELAYS[0],
        "REVIVE_SECOND_SECONDS": DELAYS[1],
        "FLUSH_SECONDS": 0.1,
        "BATCH_SECONDS": 0.1,
        "FIND_ALIASES": False,
        "LOG_LEVEL": "INFO",
    }
    words = (
        "crawl",
        "site",
        "--no-summary",
        "-a",
        f"seeds={seeds}",
        "--with",
        "recheck,revive",
        "--when-idle",
        "wait",
    )
    dead = sum(kind != "live" for kind in kinds.values())
    live = len(kinds) - dead
    with DeadWeb(kinds, outages=outages) as web, Place(folder) as place:
        run = place.start(*words, **given)
        eventually(lambda: web.log(), "the first request", PATIENCE)
        began = min(hit.at for hit in web.log())
        # Of the dead, all; of the others those that were silent for a while must be back.
        over: Callable[[], bool] = lambda: _states(place) == (live, dead)  # noqa: E731
        eventually(over, "every verdict", PATIENCE)
        hits = web.log()
        run.end().succeeded()
        return _judged(kinds, place, hits, began)


def _states(place: Place) -> tuple[int, int]:
    with suppress(Exception):
        rows = dict(place.rows("select state, count(*) from pages group by state"))
        return rows.get("visited", 0), rows.get("dead", 0)
    return 0, 0


def _judged(kinds: dict[str, str], place: Place, hits: list[Hit], began: float) -> Outcome:
    rows = place.rows("select url, state, last_checked from pages")
    false_deaths = sum(state == "dead" and kinds[url] == "live" for url, state, _ in rows)
    last = max((at / 1000 for _, state, at in rows if state == "dead"), default=began)
    delays = sum(DELAYS) if any(kind != "live" for kind in kinds.values()) else 0.0
    held = sum(hit.held for hit in hits if hit.held > SLOWEST * 5)
    # Of connections that hang the web knows nothing: each time that such a site was asked took the limit once.
    times = "select distinct site_id, fetched_at / 500 from fetches where status = -3"
    held += len(place.rows(times)) * CONNECT
    return outcome(kinds, hits, began, last - began - delays, held, false_deaths)


def outcome(
    kinds: dict[str, str], hits: list[Hit], began: float, verdicts: float, held: float, false_deaths: int
) -> Outcome:
    """The figures of a run."""
    first: dict[str, float] = {}
    for hit in hits:
        if hit.method == "GET" and kinds.get(hit.url) == "live":
            first.setdefault(hit.url, hit.at + hit.held - began)
    times = sorted(first.values())
    live = sum(kind == "live" for kind in kinds.values())
    dead = len(kinds) - live
    curve = [
        (round(times[-1] * n / 10, 2), sum(at <= times[-1] * n / 10 for at in times)) for n in range(1, 11)
    ]
    return Outcome(
        pages_a_second=len(times) / times[-1],
        live_95=times[int(len(times) * 0.95) - 1],
        verdicts=verdicts if dead else 0.0,
        slot_seconds=held / dead if dead else 0.0,
        false_deaths=false_deaths,
        missing=live - len(times),
        curve=curve,
    )


# --- what is run, and what must hold ----------------------------------------------------------------------


def medians(runs: list[Outcome]) -> Outcome:
    """The median of each figure, the worst of the counts, the curve of the first run."""
    return Outcome(
        *(median(getattr(run, name) for run in runs) for name in Outcome._fields[:4]),
        max(run.false_deaths for run in runs),
        max(run.missing for run in runs),
        runs[0].curve,
    )


def measure(shape: Shape, slots: int, repeats: int) -> dict[str, Outcome]:
    """The robots over one web; `… again` are those with outages."""
    kinds = shape.kinds()
    found: dict[str, list[Outcome]] = {}
    for _ in range(repeats):
        found.setdefault("sequential", []).append(sequential(kinds, slots))
        for name, all_slots, beside in (("separated", 3 * slots, slots), ("shared", slots, 0)):
            with tempfile.TemporaryDirectory(prefix="lt-") as folder:
                found.setdefault(name, []).append(separated(kinds, all_slots, beside, Path(folder)))
    with tempfile.TemporaryDirectory(prefix="lt-") as folder:
        found["separated, outages"] = [separated(kinds, 3 * slots, slots, Path(folder), outages=True)]
    return {name: medians(runs) for name, runs in found.items()}


def goals_of(found: dict[str, dict[str, Outcome]]) -> list[Goal]:
    """What the figures must be, for what was run."""
    goals = []
    for name, robots in found.items():
        where, _, dead = name.partition(" ")
        base, ours, shared = robots["sequential"], robots["separated"], robots["shared"]
        for robot, one in robots.items():
            if robot != "sequential":
                goals.append(
                    Goal(f"{name}: false deaths, lost pages, {robot}", one.false_deaths + one.missing, 0, 0)
                )
        if dead != "25":
            continue
        speed, late = ours.pages_a_second / base.pages_a_second, ours.verdicts / base.verdicts
        equal, equally_late = shared.pages_a_second / base.pages_a_second, shared.verdicts / base.verdicts
        goals += [
            Goal(f"{name}: pages/s, separated / sequential", speed, 1.5 if where == "pages" else 2.35, inf),
            Goal(f"{name}: pages/s, at equal slots", equal, 1.5 if where == "pages" else 2.5, inf),
            Goal(f"{name}: verdicts, separated / sequential", late, 0, 1.5),
            Goal(f"{name}: verdicts, at equal slots", equally_late, 0, 1.5),
        ]
    return goals


def show(name: str, robots: dict[str, Outcome]) -> None:
    """One web's table, and when how many pages were in."""
    heads = ("pages/s", "95 % in", "verdicts", "slot-s/dead", "false", "lost")
    print(f"\n{name} % dead\n  {'':<20}" + "".join(f"{head:>12}" for head in heads))
    for robot, one in robots.items():
        seconds = f"{one.live_95:>11.1f}s{one.verdicts:>11.1f}s{one.slot_seconds:>12.2f}"
        print(f"  {robot:<20}{one.pages_a_second:>12.1f}{seconds}{one.false_deaths:>12}{one.missing:>12}")
    for robot, one in robots.items():
        print(f"  {robot:<20} " + " ".join(f"{at:.0f}s:{many}" for at, many in one.curve))


def main() -> int:
    """Run, print, judge."""
    parser = argparse.ArgumentParser(description="What dead links cost a crawl.")
    parser.add_argument("--shares", type=int, nargs="+", default=[0, 10, 25, 40])
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--sites", type=int, default=60)
    parser.add_argument("--pages", type=int, default=20)
    parser.add_argument("--slots", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a small web, 25 %% dead, once")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.quick:
        given.shares, given.sites, given.pages, given.slots, given.repeats = [25], 16, 10, 4, 1
    found: dict[str, dict[str, Outcome]] = {}
    for dead in given.shares:
        for where in given.shapes if dead else given.shapes[:1]:
            robots = measure(Shape(given.sites, given.pages, dead, where), given.slots, given.repeats)
            found[f"{where} {dead}"] = robots
            if not given.json:
                show(f"{where} {dead}", robots)
    goals = goals_of(found)
    if given.json:
        rounds = {
            name: {robot: one._asdict() for robot, one in robots.items()} for name, robots in found.items()
        }
        print(json.dumps({"rounds": rounds, "goals": [goal._asdict() for goal in goals]}))
    else:
        print()
        for goal in goals:
            print(
                f"{'met   ' if goal.met else 'MISSED'} {goal.name}: {goal.figure:.2f} (wanted {goal.wanted})"
            )
    return 0 if all(goal.met for goal in goals) else 1


if __name__ == "__main__":
    raise SystemExit(main())
