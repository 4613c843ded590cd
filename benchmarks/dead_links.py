"""What dead links cost a crawl: paper 001's sequential robot against works of their own (table 4.2, figure 4.4).

    python benchmarks/dead_links.py [--shares 0 10 25 40] [--shapes sites pages mixed] [--repeats 3]
                                    [--figure FILE.svg] [--json]

A small web on loopback, its dead URLs dead in one of four ways: nobody listens, the connection hangs, no head comes,
the body never ends. They are whole sites (`sites`), pages spread evenly over good ones (`pages`: they hang in head or
body, or lose the connection), or half of each (`mixed`). Limits are a tenth of the settings'. These robots walk it,
each given every URL:

    sequential      10 loaders; three tries of a URL in place, one after the other, and a HEAD for every page that was
                    loaded
    sequential x 3  the same with as many loaders as `separated` has slots
    separated       our agent: 10 slots for loading and 10 each for recheck and revive, as in the paper
    shared          our agent: the same works, all within the 10 slots that the sequential robot has
    ..., outages    the same while every fifth good site goes away for 3 s

Figures: live pages a second until the last of them is in, as the web saw it; when 95 % are in; when every dead URL has
its verdict, without the delays that revive is told to wait; slot-seconds a dead URL costs; live pages that were called
dead, and that were never loaded; dead URLs without a verdict. And table 4.2: the pages that were in by then, an hour
being a fifth of the time that `separated` takes; `--figure` draws them over the time (figure 4.4), for the mixed web
with 25 % if it is among them.

Goals are of the webs with 25 % dead URLs; these are walked `--repeats` times, the others once. Exit code 1: a goal is
missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import socket
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import inf
from pathlib import Path
from statistics import mean, median
from typing import Any, Final, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.crawls import end_in_order  # noqa: E402
from benchmarks.goals import Goal, goals_table, goals_told  # noqa: E402
from tests.crawling import Place, Run  # noqa: E402

# Seconds: a tenth of the settings' own.
CONNECT, HEAD, BODY = 1.5, 1.0, 2.0
# What a live page takes: 20 to 60 ms.
FASTEST, SLOWEST = 0.02, 0.06
# Revive's delays, and for how long a site goes away: a tenth of an outage of 30 s.
DELAYS = (10.0, 20.0)
OUTAGE: Final = 3.0
TRIES = 3
# A loaded page is asked once more after so long, as the sequential robot does at once; a run is over when all were.
RECHECK_SECONDS = 20.0
OURS = ("separated", "shared")
SHAPES = ("sites", "pages", "mixed")
# Of whole sites, robots.txt included, and of single pages.
SITE_KINDS = ("refused", "connect", "head", "body")
PAGE_KINDS = ("head", "body", "reset")
LIMIT_OF = {"refused": 0.0, "reset": 0.0, "connect": CONNECT, "head": HEAD, "body": BODY}
# Below the range that the kernel deals out to clients.
PORT = 18_017
BACKLOG_PORT = 18_018
# Two that run at a time do not meet.
NETWORK = 16 + os.getpid() % 200
PATIENCE = 600.0
ASKED_AGAIN = "last_checked > fetched_at"
# A look at tables and log takes time that the robots want.
LOOK_SECONDS = 0.2
# Per cent of the URLs that are dead where goals are judged.
JUDGED = 25
# Of table 4.2, whose faster robot is done after five.
HOURS, HOURS_TO_THE_END = 6, 5
COLOURS = {"sequential": "#888888", "sequential x 3": "#d62728", "shared": "#1f77b4", "separated": "#2ca02c"}
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 760, 420, 60, 50, 20
# Pages between two points of a line.
FIGURE_STEP = 10


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
    return f"http://127.{NETWORK}.{number // 200}.{number % 200 + 1}:{port}"


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
    undecided: int  # dead URLs that never got their verdict
    by_kind: dict[str, float]  # slot-seconds for each URL that is dead in this way
    times: list[float]  # seconds after which a live page was in, ascending


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
        kind = self._kinds.get(url, self._of_robots(address) if path == b"/robots.txt" else "missing")
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

    def _of_robots(self, address: str) -> str:
        """A dead site's is as its first page, which is never dead alone; the others have none."""
        first = self._kinds[f"http://{address}:{PORT}/"]
        return "missing" if first == "live" else first

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


async def walk(urls: list[str], slots: int) -> dict[str, float]:
    """Every URL by `slots` loaders, three tries in place, and once more by HEAD where it was loaded.

    Gives those that it holds for dead, and when it did.
    """
    line, dead = iter(urls), dict[str, float]()

    async def loader() -> None:
        for url in line:
            for _ in range(TRIES):
                if await ask(url, "GET"):
                    await ask(url, "HEAD")
                    break
            else:
                dead[url] = time.time()

    await asyncio.gather(*(loader() for _ in range(slots)))
    return dead


def sequential(kinds: dict[str, str], slots: int, *, outages: bool = False) -> Outcome:
    """The paper's robot over a web."""
    urls = mixed(kinds)
    with DeadWeb(kinds, outages=outages) as web:
        began = time.time()
        found = asyncio.run(walk(urls, slots))
        hits = web.log()
    held = {kind: LIMIT_OF[kind] * TRIES * many for kind, many in _dead(kinds).items()}
    return outcome(kinds, hits, began, max(found.values(), default=began) - began, held, set(found))


def mixed(kinds: dict[str, str]) -> list[str]:
    """The URLs in the order in which they are given to a robot."""
    urls = sorted(kinds)
    random.Random(3).shuffle(urls)
    return urls


# --- our robot --------------------------------------------------------------------------------------------


def separated(
    kinds: dict[str, str],
    slots: int,
    beside: int,
    delays: tuple[float, float],
    folder: Path,
    *,
    outages: bool = False,
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
        "RECHECK_INTERVAL_SECONDS": min(RECHECK_SECONDS, sum(delays)),
        "RECHECK_METHOD": "head",
        "REVIVE_FIRST_SECONDS": delays[0],
        "REVIVE_SECOND_SECONDS": delays[1],
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
        # Of the dead, all; of the others those that were silent for a while must be back, and each asked once more.
        _until(lambda: _states(place) == (live, dead), run)
        hits = web.log()
        began = min(hit.at for hit in hits)
        run.end().succeeded()
        return _judged(kinds, delays, place, hits, began)


def _until(over: Callable[[], bool], run: Run) -> None:
    """Look until it is; what became of the pages by then is judged in any case."""
    deadline = time.monotonic() + PATIENCE
    while not over() and time.monotonic() < deadline:
        assert run.process.poll() is None, run.err[-3000:]
        time.sleep(LOOK_SECONDS)


def _states(place: Place) -> tuple[int, int]:
    with suppress(sqlite3.OperationalError):  # no tables yet
        rows = dict(place.rows(f"select state, count(*) from pages where {ASKED_AGAIN} group by state"))
        return rows.get("visited", 0), rows.get("dead", 0)
    return 0, 0


def _judged(
    kinds: dict[str, str], delays: tuple[float, float], place: Place, hits: list[Hit], began: float
) -> Outcome:
    rows = place.rows("select url, state, last_checked from pages")
    called_dead = {url for url, state, _ in rows if state == "dead"}
    last = max((at / 1000 for _, state, at in rows if state == "dead"), default=began)
    waited = sum(delays) if any(kind != "live" for kind in kinds.values()) else 0.0
    held: Counter[str] = Counter()
    for hit in hits:
        # A dead site's robots.txt is as dead as its pages.
        kind = kinds.get(hit.url) or kinds["/".join([*hit.url.split("/")[:3], ""])]
        held[kind] += hit.held if kind in LIMIT_OF else 0.0
    # Of connections that hang the web knows nothing: each time that such a site was asked took the limit once.
    times = "select distinct site_id, fetched_at / 500 from fetches where status = -3"
    held["connect"] += len(place.rows(times)) * CONNECT
    return outcome(kinds, hits, began, last - began - waited, held, called_dead)


def outcome(
    kinds: dict[str, str],
    hits: list[Hit],
    began: float,
    verdicts: float,
    held: Mapping[str, float],
    called_dead: set[str],
) -> Outcome:
    """The figures of a run; `held`: slot-seconds for all URLs that are dead in one way."""
    first: dict[str, float] = {}
    for hit in hits:
        if hit.method == "GET" and kinds.get(hit.url) == "live":
            first.setdefault(hit.url, hit.at + hit.held - began)
    times = sorted(first.values())
    live = sum(kind == "live" for kind in kinds.values())
    many = _dead(kinds)
    dead = many.total()
    return Outcome(
        pages_a_second=len(times) / times[-1],
        live_95=times[int(len(times) * 0.95) - 1],
        verdicts=verdicts if dead else 0.0,
        slot_seconds=sum(held.values()) / dead if dead else 0.0,
        false_deaths=sum(kinds[url] == "live" for url in called_dead),
        missing=live - len(times),
        undecided=sum(kind != "live" and url not in called_dead for url, kind in kinds.items()),
        by_kind={kind: held[kind] / number for kind, number in many.items()},
        times=times,
    )


def _dead(kinds: dict[str, str]) -> Counter[str]:
    """How many URLs are dead in each way."""
    return Counter(kind for kind in kinds.values() if kind != "live")


# --- what is run, and what must hold ----------------------------------------------------------------------


def medians(runs: list[Outcome]) -> Outcome:
    """The median of each figure, the worst of the counts, kinds and times of the first run."""
    return Outcome(
        *(median(getattr(run, name) for run in runs) for name in Outcome._fields[:4]),
        max(run.false_deaths for run in runs),
        max(run.missing for run in runs),
        max(run.undecided for run in runs),
        runs[0].by_kind,
        runs[0].times,
    )


class Ways(NamedTuple):
    """How the robots are run."""

    slots: int
    repeats: int
    robots: list[str]  # of OURS
    delays: tuple[float, float]  # revive's
    outages: bool


def measure(shape: Shape, ways: Ways) -> dict[str, Outcome]:
    """The robots over one web, ours `repeats` times in turn with the sequential one, under outages once."""
    kinds, slots = shape.kinds(), ways.slots
    found: dict[str, list[Outcome]] = {}
    for _ in range(ways.repeats):
        found.setdefault("sequential", []).append(sequential(kinds, slots))
        for name in ways.robots:
            found.setdefault(name, []).append(_ours(name, kinds, ways))
    if shape.dead == JUDGED:
        found["sequential x 3"] = [sequential(kinds, 3 * slots)]
    if shape.dead == JUDGED and ways.outages:
        found["sequential, outages"] = [sequential(kinds, slots, outages=True)]
    for name in ways.robots if ways.outages else ():
        found[f"{name}, outages"] = [_ours(name, kinds, ways, outages=True)]
    return {name: medians(runs) for name, runs in found.items()}


def _ours(name: str, kinds: dict[str, str], ways: Ways, *, outages: bool = False) -> Outcome:
    slots, beside = (3 * ways.slots, ways.slots) if name == "separated" else (ways.slots, 0)
    with tempfile.TemporaryDirectory(prefix="lt-") as folder:
        return separated(kinds, slots, beside, ways.delays, Path(folder), outages=outages)


def goals_of(found: dict[str, dict[str, Outcome]]) -> list[Goal]:
    """What the figures must be, for what was run."""
    goals = []
    for name, robots in found.items():
        where, _, dead = name.partition(" ")
        for robot, one in robots.items():
            if not robot.startswith("sequential"):
                wrong = one.false_deaths + one.missing + one.undecided
                goals.append(Goal(f"{name}: false deaths, lost pages, no verdict, {robot}", wrong, 0, 0))
        if dead != str(JUDGED):
            continue
        base = robots["sequential"]
        for robot, least in (("separated", 2.35), ("shared", 2.5)):
            if robot not in robots:
                continue
            speed = robots[robot].pages_a_second / base.pages_a_second
            late = robots[robot].verdicts / base.verdicts
            least = 1.5 if where == "pages" else least
            goals.append(Goal(f"{name}: pages/s, {robot} / sequential", speed, least, inf))
            goals.append(Goal(f"{name}: verdicts, {robot} / sequential", late, 0, 1.5))
    return goals


def _faster(robots: dict[str, Outcome]) -> str:
    return "separated" if "separated" in robots else "shared"


def by_hours(robots: dict[str, Outcome]) -> dict[str, list[int]]:
    """Table 4.2: how many live pages were in after each hour."""
    hour = robots[_faster(robots)].times[-1] / HOURS_TO_THE_END
    ends = [hour * (number + 1) for number in range(HOURS)]
    return {robot: [sum(at <= end for at in one.times) for end in ends] for robot, one in robots.items()}


def table(name: str, robots: dict[str, Outcome]) -> str:
    """One web's figures, and its table 4.2."""
    heads = ("pages/s", "95 % in", "verdicts", "slot-s/dead", "false", "lost", "undecided")
    lines = [f"{name} % dead", f"  {'':<20}" + "".join(f"{head:>12}" for head in heads)]
    for robot, one in robots.items():
        seconds = f"{one.live_95:>11.1f}s{one.verdicts:>11.1f}s{one.slot_seconds:>12.2f}"
        wrong = "".join(f"{many:>12}" for many in (one.false_deaths, one.missing, one.undecided))
        lines.append(f"  {robot:<20}{one.pages_a_second:>12.1f}{seconds}{wrong}")
    kinds = sorted({kind for one in robots.values() for kind in one.by_kind})
    lines.append("  slot-s by kind" + " " * 6 + "".join(f"{kind:>12}" for kind in kinds))
    for robot, one in robots.items():
        lines.append(f"  {robot:<20}" + "".join(f"{one.by_kind[kind]:>12.2f}" for kind in kinds))
    hours = by_hours(robots)
    lines.append("  in after" + " " * 12 + "".join(f"{number + 1:>11}H" for number in range(HOURS)))
    drawn = (robot for robot in COLOURS if robot in robots)
    lines += (f"  {robot:<20}" + "".join(f"{many:>12}" for many in hours[robot]) for robot in drawn)
    times = [
        ours / max(base, 1) for ours, base in zip(hours[_faster(robots)], hours["sequential"], strict=True)
    ]
    lines.append(f"  {'times':<20}" + "".join(f"{one:>12.1f}" for one in times) + f"; mean {mean(times):.2f}")
    return "\n".join(lines)


def figure(robots: dict[str, Outcome]) -> str:
    """Figure 4.4: the live pages that are in, over time; an SVG."""
    seconds = max(one.times[-1] for robot, one in robots.items() if robot in COLOURS)
    most = max(len(one.times) for one in robots.values())
    across, up = (WIDTH - LEFT - 20) / seconds, (HEIGHT - BOTTOM - TOP) / most
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<path d="M{LEFT},{TOP} V{HEIGHT - BOTTOM} H{WIDTH - 20}" fill="none" stroke="black"/>',
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 12}" text-anchor="middle">seconds</text>',
        f'<text x="16" y="{HEIGHT / 2}" text-anchor="middle" transform="rotate(-90 16 {HEIGHT / 2})">'
        "live pages that are in</text>",
    ]
    for value in range(0, int(seconds) + 1, 20):
        place = f'x="{LEFT + value * across:.1f}" y="{HEIGHT - BOTTOM + 16}"'
        parts.append(f'<text {place} text-anchor="middle">{value}</text>')
    for value in range(0, most + 1, 100):
        at = HEIGHT - BOTTOM - value * up
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{value}</text>')
    drawn = [robot for robot in COLOURS if robot in robots]
    for number, robot in enumerate(drawn):
        points = " ".join(
            f"{LEFT + at * across:.1f},{HEIGHT - BOTTOM - many * up:.1f}"
            for many, at in enumerate(robots[robot].times)
            if many % FIGURE_STEP == 0 or many == len(robots[robot].times) - 1
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[robot]}" stroke-width="2"/>')
        at = HEIGHT - BOTTOM - 14 - 18 * (len(drawn) - number)
        parts.append(f'<text x="{WIDTH - 130}" y="{at}" fill="{COLOURS[robot]}">{robot}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main(arguments: list[str] | None = None) -> int:
    """Run, print, judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--shares", type=int, nargs="+", default=[0, 10, 25, 40], help="per cent that are dead"
    )
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--sites", type=int, default=60)
    parser.add_argument("--pages", type=int, default=20)
    parser.add_argument("--slots", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3, help="of the webs that are judged (default 3)")
    parser.add_argument("--robots", nargs="+", default=list(OURS), choices=OURS, help="of ours")
    parser.add_argument("--delays", type=float, nargs=2, default=DELAYS, help="revive's, in seconds (10 20)")
    parser.add_argument("--outages", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--figure", type=Path, help="where the figure of pages over time is written, as SVG")
    parser.add_argument("--json", action="store_true", help="every figure, as JSON")
    given = parser.parse_args(arguments)
    end_in_order()
    found: dict[str, dict[str, Outcome]] = {}
    for dead in given.shares:
        for where in given.shapes if dead else given.shapes[:1]:
            shape = Shape(given.sites, given.pages, dead, where)
            repeats = given.repeats if dead == JUDGED else 1
            ways = Ways(given.slots, repeats, given.robots, tuple(given.delays), given.outages)
            robots = measure(shape, ways)
            found[f"{where} {dead}"] = robots
            print(f"{where}, {dead} % dead: done", file=sys.stderr)
            if not given.json:
                print(table(f"{where} {dead}", robots), end="\n\n", flush=True)
    if given.figure:
        given.figure.write_text(figure(found.get(f"mixed {JUDGED}", robots)), encoding="utf-8")
    goals = goals_of(found)
    if given.json:
        print(json.dumps({"webs": _told(found), "goals": goals_told(goals)}, indent=1))
    else:
        print(goals_table(goals))
    return 0 if all(goal.met for goal in goals) else 1


def _told(found: dict[str, dict[str, Outcome]]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for name, robots in found.items():
        hours = by_hours(robots)
        told[name] = {robot: {**one._asdict(), "by_hours": hours[robot]} for robot, one in robots.items()}
    return told


if __name__ == "__main__":
    raise SystemExit(main())
