"""Runs `scrapy …` as real processes over one VAR_DIR, and judges what they leave behind.

A Place is the VAR_DIR of a test. Every process started there, and all that those start in turn, carry its path in
their environment; so whoever is left can be found through /proc. The end of `with Place(…)` is that look: a
process or socket that is left is ended and fails the test.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from crawler.local.server import Server, socket_path
from tests import warm
from tests.farm import Farm, Hit
from tests.servers import eventually

ROOT = Path(__file__).resolve().parents[1]
SCRAPY = Path(sys.executable).with_name("scrapy")
# Longest life of one command: generous, since a busy machine must not fail a test.
RUN_SECONDS = 60.0
# How long processes that outlive their command may take to end: the coordinator drains, the server writes its file.
LEFT_SECONDS = 60.0
# A crawl of the farm that waits for nothing that a test does not ask for.
QUICK = {
    "ALLOW_PRIVATE_ADDRESSES": "127.0.0.0/8",
    "DOWNLOAD_DELAY": 0,
    "RETRY_DELAY_SECONDS": 0.1,
    "FLUSH_SECONDS": 0.1,
    "BATCH_SECONDS": 0.1,
}
STORED = "outcome in ('stored', 'duplicate') and status = 200"


class Run:
    """One command: its process, and what it and its children say."""

    def __init__(
        self, command: list[str], env: dict[str, str], cwd: Path, files: Path, *, fresh: bool = False
    ) -> None:
        self.command = command
        self._out, self._err = files.with_suffix(".out"), files.with_suffix(".err")
        start = subprocess.Popen if fresh else warm.popen
        # Files and no pipes: a coordinator that outlives its agent holds these open as long as it likes.
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process: subprocess.Popen[bytes] = start(
                command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def out(self) -> str:
        """Standard output so far."""
        return self._out.read_text(errors="replace")

    @property
    def err(self) -> str:
        """Standard error so far: the log, and lines for the person who called."""
        return self._err.read_text(errors="replace")

    @property
    def code(self) -> int:
        """The exit code; AssertionError while it runs."""
        code = self.process.poll()
        assert code is not None, f"{self.command[1:3]} still runs"
        return code

    def wait(self, seconds: float = RUN_SECONDS) -> Self:
        """Until it has ended; fails with what it said after the deadline."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{self.command[1:3]} runs for over {seconds:g} s:\n{self.err[-3000:]}"
            ) from None
        return self

    def end(self, number: int = signal.SIGTERM, seconds: float = RUN_SECONDS) -> Self:
        """Send a signal and wait for the end."""
        self.process.send_signal(number)
        return self.wait(seconds)

    def says(self, text: str, seconds: float = RUN_SECONDS) -> None:
        """Wait until standard error has this text."""
        deadline = time.monotonic() + seconds
        while text not in self.err:
            assert time.monotonic() < deadline, f"never said {text!r}:\n{self.err[-3000:]}"
            time.sleep(0.01)

    def succeeded(self) -> Self:
        """Fails with the log unless the exit code is 0 and nothing was a bug."""
        assert self.code == 0, f"exit code {self.code}:\n{self.err[-3000:]}"
        assert "Traceback" not in self.err, self.err[-3000:]
        return self

    def stored_nothing(self) -> Self:
        """Fails unless it is a crawl that came to its end, and no page is stored."""
        return self.refused("no page was stored", code=1)

    def refused(self, *texts: str, code: int | None = None) -> Self:
        """Fails unless it ended with an error that says all of these, and with no traceback."""
        assert self.code != 0, self.err[-3000:]
        assert code is None or self.code == code, f"exit code {self.code}:\n{self.err[-3000:]}"
        for text in texts:
            assert text in self.err, f"{text!r} is not in:\n{self.err[-3000:]}"
        assert "Traceback" not in self.err, self.err[-3000:]
        return self


class Place:
    """A VAR_DIR below `folder`, and the commands that are run over it; a context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.var = folder / "var"
        self._runs: list[Run] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        if kind is not None:
            self.kill_all()
            return
        try:
            self.check_nothing_left()
        finally:
            self.kill_all()

    # --- commands ---

    def start(
        self,
        *words: str,
        env: dict[str, str] | None = None,
        cwd: Path = ROOT,
        fresh: bool = False,
        **given: Any,
    ) -> Run:
        """`scrapy WORDS … -s NAME=VALUE …` as a process; a setting that is None is left out.

        `fresh`: with a memory of its own (tests.warm).
        """
        settings: list[str] = []
        for name, value in given.items():
            if value is not None:
                settings += ["-s", f"{name}={json.dumps(value) if isinstance(value, dict) else value}"]
        files = self.folder / f"run-{len(self._runs)}"
        run = Run([str(SCRAPY), *words, *settings], self.environment(env), cwd, files, fresh=fresh)
        self._runs.append(run)
        return run

    def run(self, *words: str, **given: Any) -> Run:
        """As `start`, and wait for the end."""
        return self.start(*words, **given).wait()

    def start_crawl(self, seeds: Iterable[str], *words: str, spider: str = "site", **given: Any) -> Run:
        """`scrapy crawl site -a seeds=…` with the settings of QUICK, as a process."""
        source = ",".join(seeds)
        arguments = ["-a", f"seeds={source}"] if source else []
        return self.start("crawl", spider, *arguments, *words, **{**QUICK, **given})

    def crawl(self, seeds: Iterable[str], *words: str, **given: Any) -> Run:
        """As `start_crawl`, and wait for the end."""
        return self.start_crawl(seeds, *words, **given).wait()

    def environment(self, more: dict[str, str] | None = None) -> dict[str, str]:
        """What every process of this place gets."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("LOWTIDE_", "SCRAPY_"))
        }
        return {**kept, "LOWTIDE_VAR_DIR": str(self.var), **(more or {})}

    # --- what it left in the tables ---

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """An SQL query to VAR_DIR/crawl.db."""
        with closing(sqlite3.connect(f"file:{self.var / 'crawl.db'}?mode=ro", uri=True)) as connection:
            return connection.execute(query).fetchall()

    def stored(self) -> dict[str, set[str]]:
        """URLs of the pages that are stored, by site: what `Farm.expected` gives."""
        found: dict[str, set[str]] = {}
        for site, url in self.rows(f"select site, url from pages join sites using (site_id) where {STORED}"):
            found.setdefault(site, set()).add(url)
        return found

    def finished(self) -> set[str]:
        """Sites that the tables call finished; none where there are no tables yet."""
        try:
            return {site for (site,) in self.rows("select site from sites where state = 'finished'")}
        except sqlite3.OperationalError:
            return set()

    def queue(self) -> dict[str, int]:
        """The site queue's counts, read from the bundled server's data once the crawl is over."""
        import redis

        with Server(self.var).join("visitor") as server, closing(redis.Redis.from_url(server.url)) as client:
            return {name.decode(): int(value) for name, value in client.hgetall("lt:{0}:count").items()}

    # --- what it left on the machine ---

    def processes(self, *words: str) -> list[int]:
        """Living processes of this place whose command line has all of these words."""
        marks = (f"LOWTIDE_VAR_DIR={self.var}\0".encode(), f"{self.var}/".encode())
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with suppress(OSError):  # it ended meanwhile, or is another user's
                line = (entry / "cmdline").read_bytes()
                ours = marks[1] in line or marks[0] in (entry / "environ").read_bytes()
                if ours and line and all(word.encode() in line.split(b"\0") for word in words):
                    found.append(int(entry.name))
        return found

    def check_nothing_left(self, seconds: float = LEFT_SECONDS) -> None:
        """Fails if a process of this place is still there after the deadline, or the server's socket."""
        deadline = time.monotonic() + seconds
        while (left := self.processes()) and time.monotonic() < deadline:
            self._reap()
            time.sleep(0.02)
        assert not left, f"left running: {[_command(pid) for pid in left]}"
        assert not socket_path(self.var).exists(), f"{socket_path(self.var)} is left"

    def kill_all(self) -> None:
        """End every process of this place as a power switch would."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for run in self._runs:
            if run.process.poll() is None:
                run.process.kill()
            run.process.wait()
        deadline = time.monotonic() + LEFT_SECONDS
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.01)

    def _reap(self) -> None:
        for run in self._runs:
            run.process.poll()


def fetched(hits: Iterable[Hit]) -> Counter[str]:
    """How often each URL was asked for, robots.txt left out."""
    return Counter(hit.url for hit in hits if hit.path != "/robots.txt")


def robots_read(hits: Iterable[Hit]) -> Counter[str]:
    """How often each host's robots.txt was asked for."""
    return Counter(hit.host for hit in hits if hit.path == "/robots.txt")


def wait_for_hits(farm: Farm, many: int, since: int = 0) -> None:
    """Until the farm has answered this many requests."""
    eventually(lambda: len(farm.hits()) - since >= many, f"{many} requests", RUN_SECONDS)


def check_delay(times: Sequence[float], delay: float) -> None:
    """Fails unless requests came this far apart: on the whole, and each about, since a busy machine reads some late."""
    gaps = [later - sooner for sooner, later in pairwise(sorted(times))]
    assert min(gaps) > delay / 2, gaps
    assert sum(gaps) > delay * (len(gaps) - 0.5), gaps


def listening(pid: int) -> list[str]:
    """Addresses (in the kernel's hexadecimal) on which a process listens for TCP; none, where it has ended."""
    listeners = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(FileNotFoundError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A":
                    listeners[f"socket:[{fields[9]}]"] = fields[1]
    found = []
    with suppress(FileNotFoundError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                name = str(descriptor.readlink())
                found += [listeners[name]] if name in listeners else []
    return found


def parent_of(pid: int) -> int:
    """The id of a process's parent."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _command(pid: int) -> str:
    with suppress(OSError):
        return f"{pid}: " + Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
    return str(pid)
