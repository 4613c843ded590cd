"""Crawls of ours under measurement: the bundled server, a coordinator, agents, and what each of them uses.

The three kinds of processes are those of `scrapy crawl site` over one VAR_DIR; server and coordinator are up before
the first agent, so that nobody's start counts as work. Without a coordinator the results stay in the stream, from
which `told` reads them. At the end of `with Crawl(…)` no process is left; one that is fails the benchmark.
"""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import redis
from scrapy.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import meters  # noqa: E402
from crawler import options, records  # noqa: E402
from crawler.agent.seeding import add_seeds  # noqa: E402
from crawler.local.server import Server  # noqa: E402
from crawler.queue.results import GROUP, results_key  # noqa: E402
from settings import base  # noqa: E402
from tests.crawling import Place, Run  # noqa: E402
from tests.servers import eventually  # noqa: E402

STREAM = results_key(base.KEY_PREFIX)
# What all of a crawl's keys begin with.
KEYS = STREAM.removesuffix("results")
# A crawl on loopback that waits for nothing; all else is as the project sets it.
SETTINGS: dict[str, Any] = {
    "ALLOW_PRIVATE_ADDRESSES": "127.0.0.0/8",
    "DOWNLOAD_DELAY": 0,
    "LOG_LEVEL": "WARNING",
}
# Longest wait for anything: on a busy machine as long as all of a crawl.
PATIENCE_SECONDS = 900.0
# One line of MONITOR: where the command came from, its name, and which operation of ours a script call is for.
MONITORED = re.compile(rb'\+[\d.]+ \[\d+ (\S+)\] "([^"]+)"(?: "\w{40}" "1" "[^"]+" "(\w+)")?')
# By which a reader of MONITOR knows that it has seen everything.
LAST = "the benchmark's last word"


@dataclass
class Used:
    """CPU seconds of server and coordinator between two moments."""

    server: float = 0.0
    coordinator: float = 0.0


@dataclass
class Commands:
    """What the server was told between two moments: over connections (a script is one), and inside scripts."""

    sent: Counter[str] = field(default_factory=Counter)
    inside: Counter[str] = field(default_factory=Counter)
    agents: int = 0  # of those sent, the agents' processes'; right to within two
    coordinator: int = 0


@dataclass
class Told:
    """What the results stream says that agents did: pages and sites by agent, and how often each page was told.

    A site that changed hands counts for the agent that told most of its pages.
    """

    pages: Counter[str] = field(default_factory=Counter)
    sites: Counter[str] = field(default_factory=Counter)
    urls: Counter[str] = field(default_factory=Counter)


class Crawl:
    """One VAR_DIR with its server and, unless `stored` is False, its coordinator, both on processor `core`.

    `coordinated`: settings of the coordinator, and of the planner beside it until the agents have told theirs.
    """

    def __init__(
        self, folder: Path, *, stored: bool = True, core: int | None = None, **coordinated: Any
    ) -> None:
        self.place = Place(folder)
        self._stored = stored
        self._core = core
        self._coordinated = {
            "LOG_LEVEL": "WARNING",
            "REDIS_PARAMS": {"client_name": "coordinator"},
            **coordinated,
        }
        self._server = Server(self.place.var)
        self._coordinator: Run | None = None
        self._runs: list[Run] = []
        self._end = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as started, meters.on_core(self._core):
            started.enter_context(self.place)
            # The server stays until its account was read, the coordinator until we leave as an agent.
            started.enter_context(self._server.join("visitor"))
            self.client: Any = redis.Redis.from_url(self._server.url, client_name="benchmark")
            started.callback(self.client.close)
            if self._stored:
                started.callback(self._end_coordinator, self._server.join("agent"))
                self._start_coordinator()
            self._end = started.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._end.__exit__(*error)

    def _start_coordinator(self) -> None:
        self._coordinator = self.place.start("coordinate", **self._coordinated)
        self._runs.append(self._coordinator)
        self.until(self._reads, "the coordinator reads")

    def _reads(self) -> bool:
        with suppress(redis.ResponseError):  # no stream yet
            return any(group["name"].decode() == GROUP for group in self.client.xinfo_groups(STREAM))
        return False

    def _end_coordinator(self, membership: Any) -> None:
        membership.leave()
        if self._coordinator is not None:
            self._coordinator.wait(PATIENCE_SECONDS)

    # --- agents ---

    def agent(
        self,
        *words: str,
        core: int | None = None,
        profile: Path | None = None,
        spider: str = "site",
        **given: Any,
    ) -> Run:
        """Start an agent on processor `core`; `profile`: where its samples go."""
        extensions = {"benchmarks.meters.CpuMeter": 0}
        env = {"PYTHONPATH": str(ROOT), meters.METER_FILE: str(self._meter)}
        if profile:
            extensions["benchmarks.meters.Sampler"] = 1
            env[meters.PROFILE_FILE] = str(profile)
        settings = {**SETTINGS, "EXTENSIONS": extensions, "REDIS_PARAMS": {"client_name": "agent"}, **given}
        if not self._stored:
            # Nothing drains the stream, and agents must not pause for it.
            settings |= {"REDIS_URL": self._server.url, "STREAM_MAX_RECORDS": 10_000_000}
        with meters.on_core(core):
            self._runs.append(self.place.start("crawl", spider, "--no-summary", *words, env=env, **settings))
        return self._runs[-1]

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait until the condition holds; fails at once where a process of ours has ended badly."""

        def seen() -> object:
            for run in self._runs:
                if run.process.poll():
                    run.succeeded()
            return condition()

        eventually(seen, what, PATIENCE_SECONDS)

    def until_joined(self, agents: int) -> None:
        """Wait until so many agents have a session."""
        self.until(lambda: self.client.zcard(KEYS + "agents") >= agents, f"{agents} agents joined")

    def queue(self, seeds: list[str]) -> None:
        """Queue sites as `scrapy seed` does."""
        settings = Settings()
        settings.setmodule("settings.base")
        settings.setdict({**SETTINGS, "REDIS_URL": self._server.url}, "cmdline")
        file = self.place.folder / "seeds.txt"
        file.write_text("\n".join(seeds))
        asyncio.run(add_seeds(settings, options.read(settings), str(file)))

    def finished(self) -> int:
        """How many sites are walked to their end."""
        return int(self.client.hget(KEYS + "count", "finished") or 0)

    def until_finished(self, sites: int) -> None:
        """Wait until so many sites are."""
        self.until(lambda: self.finished() >= sites, f"{sites} sites are finished")

    @property
    def _meter(self) -> Path:
        return self.place.folder / "meter"

    def usage(self) -> list[meters.Usage]:
        """What each agent that has ended used, in the order of their ends."""
        return meters.read_usage(self._meter)

    # --- server and coordinator ---

    @contextmanager
    def account(self) -> Iterator[Used]:
        """What server and coordinator use meanwhile, up to the last record stored; filled at the end."""
        server, coordinator = self._server_cpu(), self._coordinator_cpu()
        used = Used()
        yield used
        self._until_stored()
        used.server = self._server_cpu() - server
        used.coordinator = self._coordinator_cpu() - coordinator

    def _until_stored(self) -> None:
        if self._stored:
            self.until(lambda: not self.client.xlen(STREAM), "all is stored")

    def _server_cpu(self) -> float:
        parts = ("used_cpu_user", "used_cpu_sys", "used_cpu_user_children", "used_cpu_sys_children")
        found = self.client.info("cpu")
        return sum(float(found[part]) for part in parts)

    def _coordinator_cpu(self) -> float:
        return meters.cpu_of(self._coordinator.pid) if self._coordinator else 0.0

    @contextmanager
    def commands(self) -> Iterator[Commands]:
        """Every command meanwhile, up to the last record stored; filled at the end. Costs the server as much again."""
        found = Commands()
        with closing(socket.socket(socket.AF_UNIX)) as line:
            line.connect(str(self._server.socket))
            line.sendall(b"MONITOR\r\n")
            before = self._sent()
            reader = threading.Thread(target=_monitor, args=(line, found), daemon=True)
            reader.start()
            yield found
            self._until_stored()
            after = self._sent()
            self.client.echo(LAST)
            reader.join(PATIENCE_SECONDS)
            assert found.sent["echo"], "MONITOR was not understood"
        found.coordinator = after["coordinator"] - before["coordinator"]
        found.agents = found.sent.total() - found.coordinator - (after["benchmark"] - before["benchmark"])

    def _sent(self) -> Counter[str]:
        """Commands so far of the connections that are open, by their name."""
        sent: Counter[str] = Counter()
        for row in self.client.client_list():
            sent[row["name"]] += int(row["tot-cmds"])
        return sent

    # --- what the stream says ---

    def told(self) -> Told:
        """What is in the results stream; nothing of it is stored where there is no coordinator."""
        told, after = Told(), "-"
        shares: dict[str, Counter[str]] = {}
        while entries := self.client.xrange(STREAM, after, count=5_000):
            for _, fields in entries:
                record, _ = records.decode(fields)
                if isinstance(record, records.Page):
                    told.urls[record.url] += 1
                    shares.setdefault(record.site, Counter())[record.agent] += 1
            after = f"({entries[-1][0].decode()}"
        for share in shares.values():
            told.pages += share
            told.sites[share.most_common(1)[0][0]] += 1
        return told


def end_in_order() -> None:
    """From now on SIGTERM ends this process as Ctrl-C does: with what it has started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def _monitor(line: socket.socket, found: Commands) -> None:
    """Count what MONITOR tells, until our last word comes by."""
    with line.makefile("rb") as lines:
        for told in lines:
            if match := MONITORED.match(told):
                counter = found.inside if match[1] == b"lua" else found.sent
                name, operation = match[2].decode().lower(), match[3]
                counter[f"script {operation.decode()}" if operation else name] += 1
            if LAST.encode() in told:
                return
