"""Several agents and a coordinator over one shared server, what can be done to them, and the account at the end.

A Fleet is a crawl of the farm by real `scrapy crawl site` processes that share one Valkey, and a `scrapy coordinate`
that writes to any database, SQLite where none is named. Every agent asks the farm under a name of its own, so the
farm's log tells who asked for what and when. `check_exact` is the promise that no drill may break: what is stored is
what the farm declares, each page published once, and nothing is left in the server.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import redis
from sqlalchemy import text

from crawler.coordinator.coordinator import KILL_VARIABLE
from crawler.store.database import DatabaseError, open_database, transaction
from settings import base
from tests.crawling import ROOT, STORED, Place, Run, fetched
from tests.farm import Farm, Hit
from tests.servers import RunningServer, eventually

# Kinds of page for which every page that is published was asked for exactly once.
ONCE = ("nofollow", "duplicate", "redirect", "missing", "charset", "base", "session", "binary", "meta")
# What a killed agent may cost besides its pages in flight: this much of its work.
WORK_SECONDS = 2.0
# An agent that stops its event loop for longer answers nobody and renews nothing.
LONGEST_PAUSE = 1.0
# How much later than it was sent a busy machine may note a request.
LATE_SECONDS = 0.2
# Keys that live as long as the crawl's queue, empty or not.
# An hour's list is dropped by its age: what it names is finished, and passed over. Due times are for later runs.
LASTING = (
    *("sites:", "count", "crawl", "crowd", "renewed", "alias:", "results", "scope", "planner", "why"),
    *("hour:", "probe:", "thinning", "hooks", "wake:recheck", "wake:revive", "wake:status"),
    *("tables", "moved", "rootless", "opener"),
)
CLOCK_SHIFT = """
import os, time
_shift, _time = float(os.environ.get("DRILL_CLOCK_SHIFT", 0)), time.time
time.time = lambda: _time() + _shift
"""


class Fleet:
    """One crawl by several agents; `given` are settings of every agent. A context manager.

    `database`: URL of the tables, SQLite below VAR_DIR where there is none; `through`: the URL under which coordinators
    reach them, where that is another. `watched`: every agent's event loop is, by tests.loop_watch.
    """

    def __init__(
        self,
        place: Place,
        farm: Farm,
        server: RunningServer,
        *,
        database: str = "",
        through: str = "",
        watched: bool = False,
        **given: Any,
    ) -> None:
        self.place, self.farm, self.server = place, farm, server
        self.given = {"LEASE_SECONDS": 2, "REDIS_URL": server.url, **given}
        self.database = database or f"sqlite:///{place.var / 'crawl.db'}"
        self.agents: list[Run] = []  # every one that was ever started
        self.coordinators: list[Run] = []
        self.killed: list[tuple[Run, float]] = []  # with the time on the farm's monotonic clock
        self._through = through or database
        self._watches: Path | None = place.folder if watched else None

    def __enter__(self) -> Self:
        self.coordinate()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        if kind is not None:
            self._tell()
            self.place.kill_all()
            return
        self.store_all()

    def _tell(self) -> None:
        """For the one who reads a failed drill: the last words of each."""
        for run in (*self.agents, *self.coordinators):
            print(f"--- {' '.join(run.command[1:3])} {run.pid}:\n{run.err[-1500:]}")

    # --- agents ---

    def agent(
        self,
        *words: str,
        seeds: list[str] | None = None,
        clock: float = 0.0,
        watch: Path | None = None,
        **given: Any,
    ) -> Run:
        """Start an agent. `clock`: seconds by which its wall clock is off; `watch`: file for tests.loop_watch."""
        number = len(self.agents)
        given = {"USER_AGENT": f"agent-{number}", **self.given, **given}
        env = {"PYTHONPATH": str(ROOT)}
        if clock:
            env |= {"PYTHONPATH": f"{self._shifted_clock()}:{ROOT}", "DRILL_CLOCK_SHIFT": str(clock)}
        if watch is None and self._watches:
            watch = self._watches / f"watch-{number}"
        if watch:
            env["DRILL_LOOP_WATCH"] = str(watch)
            given["EXTENSIONS"] = {"tests.loop_watch.LoopWatch": 1}
        run = self.place.start_crawl(
            self.farm.seeds if seeds is None else seeds, "--no-summary", *words, env=env, **given
        )
        self.agents.append(run)
        return run

    def agents_at_work(self, many: int, **given: Any) -> list[Run]:
        """Start this many and wait until each has its share of the sites."""
        runs = [self.agent(**given) for _ in range(many)]
        for run in runs:
            self.until_working(run)
        return runs

    def until_joined(self, run: Run) -> None:
        """Wait until the agent has a session."""
        eventually(lambda: run.process.poll() is not None or self.session(run), "an agent joins", 30)
        assert self.session(run), f"it ended before it joined:\n{run.err[-2000:]}"

    def until_working(self, run: Run) -> None:
        """Wait until the agent has sites in hand."""
        eventually(lambda: run.process.poll() is not None or self.held(run), "an agent has sites", 30)
        assert self.held(run), f"it ended before it had a site:\n{run.err[-2000:]}"

    def kill(self, run: Run) -> None:
        """End an agent as a power switch would."""
        run.end(signal.SIGKILL)
        self.killed.append((run, time.monotonic()))

    @property
    def alive(self) -> list[Run]:
        """The agents that still run."""
        return [run for run in self.agents if run.process.poll() is None]

    def wait(self, seconds: float = 60.0) -> None:
        """Until every agent has ended by itself, all as they should."""
        deadline = time.monotonic() + seconds
        for run in self.agents:
            run.wait(max(0.1, deadline - time.monotonic()))
        killed = [run for run, _ in self.killed]
        for run in self.agents:
            if run not in killed:
                run.succeeded()

    # --- coordinators ---

    def coordinate(self, kill_point: str = "", **given: Any) -> Run:
        """Start a coordinator; with a kill point it dies there, at its first batch."""
        shared = {name: self.given.get(name) for name in ("LEASE_SECONDS", "REDIS_PARAMS")}
        given = {"BATCH_SECONDS": 0.1, **shared, **given}
        if self._through:
            given["DATABASE_URL"] = self._through
        env = {KILL_VARIABLE: kill_point} if kill_point else {}
        run = self.place.start("coordinate", env=env, REDIS_URL=self.server.url, **given)
        self.coordinators.append(run)
        return run

    def kill_coordinators(self) -> None:
        """End those that run as a power switch would."""
        for run in self.coordinators:
            if run.process.poll() is None:
                run.end(signal.SIGKILL)

    def store_all(self) -> None:
        """Wait until everything is in the tables, and end the coordinators."""
        working = [run for run in self.coordinators if run.process.poll() is None]
        if not working:
            return
        with suppress(redis.ResponseError):  # no stream: nothing was ever published
            eventually(lambda: self.server.client.xlen(key("results")) == 0, "all is stored", 30)
        for run in working:
            run.end().succeeded()

    def _shifted_clock(self) -> Path:
        folder = self.place.folder / "clock"
        folder.mkdir(exist_ok=True)
        (folder / "sitecustomize.py").write_text(CLOCK_SHIFT)
        return folder

    # --- what the server knows ---

    def session(self, run: Run) -> str:
        """The agent's name in the queue; empty where it has no session."""
        names = [name.decode() for name in self.server.client.zrange(key("agents"), 0, -1)]
        return next((name for name in names if f"-{run.pid}-" in name), "")

    def held(self, run: Run) -> list[str]:
        """The sites that the agent holds."""
        return [site.decode() for site in self.server.client.hkeys(key(f"held:{self.session(run)}"))]

    def counts(self) -> dict[str, int]:
        """How many sites are in which state, and how many leases there were."""
        fields = self.server.client.hgetall(key("count"))
        return {name.decode(): int(value) for name, value in fields.items()}

    # --- what the tables know ---

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """An SQL query to the tables."""
        engine = open_database(self.database)
        try:
            with transaction(engine) as connection:
                return [tuple(row) for row in connection.execute(text(query))]
        finally:
            engine.dispose()

    def stored(self) -> dict[str, set[str]]:
        """URLs of the pages that are stored, by site: what `Farm.expected` gives."""
        found: dict[str, set[str]] = defaultdict(set)
        for site, url in self.rows(f"select site, url from pages join sites using (site_id) where {STORED}"):
            found[site].add(url)
        return dict(found)

    def until_stored(self, many: int) -> None:
        """Wait until the tables hold this many pages more than now."""
        wanted = self._pages() + many
        eventually(lambda: self._pages() >= wanted, f"{many} pages are stored", 60)

    def _pages(self) -> int:
        try:
            return int(self.rows("select count(*) from pages")[0][0])
        except DatabaseError:
            return 0  # no coordinator has made the tables yet

    # --- the account ---

    def check_exact(self, expected: dict[str, set[str]] | None = None) -> None:
        """Nothing lost, nothing published twice, nothing left in the server. Ends the coordinator."""
        self.store_all()
        wanted = self.farm.expected() if expected is None else expected
        stored = self.stored()
        assert stored == wanted, _difference(stored, wanted)
        self.check_published_once()
        self.check_nothing_left()
        assert self.counts()["finished"] == len(wanted), self.counts()

    def check_published_once(self) -> None:
        """The tables' rows, the records taken in and what the agents say they published are one number per site."""
        rows = self.rows(
            "select site, published, (select count(*) from pages where pages.site_id = sites.site_id), "
            "(select count(*) from fetches where fetches.site_id = sites.site_id), "
            "(select count(distinct url_hash) from fetches where fetches.site_id = sites.site_id) from sites"
        )
        odd = [row for row in rows if len(set(row[1:])) > 1]
        assert not odd, odd
        dead = self.rows("select * from dead_letters")
        assert not dead, dead

    def check_nothing_left(self) -> None:
        """No session, lease, place, checkpoint or waiting site; every count of what is under way is 0."""
        keys = [name.decode().removeprefix(key("")) for name in self.server.client.keys(key("*"))]
        killed = tuple(
            f"-{run.pid}-" for run in self.coordinators if run.process.returncode == -signal.SIGKILL
        )
        # The heartbeat of a killed coordinator ends by itself.
        signs = [
            name for name in keys if name.startswith("coordinator:") and any(pid in name for pid in killed)
        ]
        left = [name for name in keys if not name.startswith(LASTING) and name not in signs]
        # A finished site keeps the time before which it is not asked, for whatever comes next.
        assert self._pausing() <= self.finished() and not set(left) - {"wake:site"}, left
        counts = self.counts()
        under_way = {name: counts.get(name) for name in ("waiting", "suspended", "leased", "later", "paused")}
        assert not any(under_way.values()), under_way

    def _pausing(self) -> set[str]:
        return {name.decode() for name in self.server.client.zrange(key("wake:site"), 0, -1)}

    def finished(self) -> set[str]:
        """The queue's sites that are finished, or another's alias."""
        found = set()
        for bucket in self.server.client.scan_iter(match=key("sites:*"), count=10_000):
            for site, record in self.server.client.hgetall(bucket).items():
                found |= {site.decode()} if record[:1] in b"fa" else set()
        return found

    def published(self) -> int:
        """Records of pages that were taken in."""
        return int(self.rows("select count(*) from fetches where outcome != 'denied'")[0][0])

    def fetched_again(self) -> int:
        """Requests for pages beyond one for each that was published."""
        return fetched(self.farm.hits()).total() - self.published()

    def allowed_again(self) -> int:
        """How many requests the kills may have cost: pages in flight, and the last two seconds of that agent."""
        by_agent = defaultdict(list)
        for hit in self.farm.hits():
            by_agent[hit.user_agent].append(hit.monotonic)
        allowed = 0
        for run, at in self.killed:
            times = by_agent[f"agent-{self.agents.index(run)}"]
            slots = int(self.given.get("SITE_SLOTS", base.SITE_SLOTS))
            in_flight = min(slots, len(self.farm.seeds))  # one request at a time to a site
            allowed += in_flight + sum(at - WORK_SECONDS < one <= at + 0.5 for one in times)
        return allowed

    def check_ledger(self) -> None:
        """`scrapy report ledger` finds every URL that was ever accepted, all of them in the tables."""
        run = self.place.run(
            "report", "ledger", "--json", REDIS_URL=self.server.url, DATABASE_URL=self.database
        ).succeeded()
        found = json.loads(run.out)["ledger"]
        assert found["balanced"], {name: found[name] for name in found if name != "sites"}
        assert (found["missing"], found["pending"], found["in_stream"]) == (0, 0, 0)
        assert found["queue_seen"]
        assert found["accepted"] >= self._pages() > 0

    def check_loops(self) -> None:
        """No agent's event loop was ever held up; only where they are `watched`."""
        assert self._watches is not None
        watches = [self._watches / f"watch-{number}" for number in range(len(self.agents))]
        pauses = [longest_pause(watch) for watch in watches if watch.exists()]
        assert pauses
        assert max(pauses) < LONGEST_PAUSE, pauses


def key(name: str) -> str:
    """A key of the crawl in the server."""
    return "lt:{0}:" + name


def moments(rng: random.Random, many: int, least: float, most: float) -> Iterator[float]:
    """Random pauses, each slept before the next thing is done to somebody."""
    for _ in range(many):
        pause = rng.uniform(least, most)
        time.sleep(pause)
        yield pause


def check_distance(hits: list[Hit], delay: float) -> None:
    """No site was asked twice within the delay, a busy machine's lateness aside; says who did it if it was."""
    by_host = defaultdict(list)
    for hit in hits:
        by_host[hit.host].append(hit)
    for host, found in by_host.items():
        span = found[-1].monotonic - found[0].monotonic
        assert span >= 0.97 * delay * (len(found) - 1) - LATE_SECONDS, f"{host}: {len(found)} in {span:.2f} s"
    pairs = [pair for found in by_host.values() for pair in pairwise(found)]
    close = [
        f"{two.monotonic - one.monotonic:.3f} s at {two.monotonic - hits[0].monotonic:.3f}: "
        f"{one.user_agent} {one.path}, {two.user_agent} {two.url}"
        for one, two in pairs
        if two.monotonic - one.monotonic < delay - LATE_SECONDS
    ]
    assert pairs
    assert not close, close


def most_at_a_time(hits: list[Hit]) -> int:
    """The most hosts that were between their first and their last request at one moment."""
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    for hit in hits:
        first.setdefault(hit.host, hit.monotonic)
        last[hit.host] = hit.monotonic
    return max(sum(first[host] <= at <= last[host] for host in first) for at in first.values())


def longest_pause(file: Path) -> float:
    """What tests.loop_watch wrote: the longest pause of an agent's event loop, in seconds."""
    return float(json.loads(file.read_text())["longest"])


def stop_process(pid: int) -> None:
    """Freeze a process."""
    os.kill(pid, signal.SIGSTOP)


def go_on(pid: int) -> None:
    """Let a frozen process go on."""
    os.kill(pid, signal.SIGCONT)


def _difference(stored: dict[str, set[str]], wanted: dict[str, set[str]]) -> str:
    have = {url for urls in stored.values() for url in urls}
    want = {url for urls in wanted.values() for url in urls}
    lost, odd = sorted(want - have), sorted(have - want)
    return f"{len(lost)} of {len(want)} pages lost: {lost[:5]}; {len(odd)} that nobody declared: {odd[:5]}"
