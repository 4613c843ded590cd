"""Starts a farm for a test, tells its truth and reads its log.

Hides the process and its temporary folder: both are gone after `stop`, and the process also when this one
dies. A farm that does not come up within the deadline raises RuntimeError with what it said last.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from tests import warm

from . import truth
from .plan import KINDS, NAMES, Plan, to_arguments
from .server import seeds
from .site import Web

START_SECONDS = 30.0
STOP_SECONDS = 10.0
ROOT = Path(__file__).resolve().parents[2]


class Hit(NamedTuple):
    """One answered request, when it came. time: seconds since 1970; monotonic: the machine's monotonic clock."""

    time: float
    monotonic: float
    host: str  # the Host field as sent
    method: str
    path: str  # with the query, as sent
    status: int  # 0 = the answer had none
    user_agent: str
    connection_id: int

    @property
    def url(self) -> str:
        """The URL that was asked for."""
        return f"http://{self.host}{self.path}"


class Farm:
    """A running farm; a context manager. Options as in Plan, `pages` also as one number."""

    def __init__(
        self,
        sites: int = 10,
        pages: int | tuple[int, int] = 20,
        *,
        links: int = 12,
        size: int = 2_000,
        kinds: Collection[str] = KINDS,
        names: Collection[str] = NAMES,
        delay_ms: float = 0.0,
        slow_ms: Mapping[int, float] | None = None,
        crawl_delay: float = 0.0,
        crawl_delays: Mapping[int, float] | None = None,
        down: Collection[int] = (),
        aliases: Mapping[str, str] | None = None,
        hostile: Mapping[int, str] | None = None,
        port: int = 0,
    ) -> None:
        self.plan = Plan(
            sites,
            (pages, pages) if isinstance(pages, int) else pages,
            links,
            size,
            tuple(kinds),
            tuple(names),
            delay_ms,
            slow_ms or {},
            crawl_delay,
            crawl_delays or {},
            tuple(down),
            aliases or {},
            hostile or {},
        )
        self._asked_port = port
        self._process: subprocess.Popen[bytes] | None = None
        self._web: Web | None = None
        self._hits: list[Hit] = []
        self._hits_read = 0  # bytes of the log that they were read from
        self._cleanup = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> Self:
        """Starts the process and waits until it listens."""
        self._folder = Path(tempfile.mkdtemp(prefix="farm-"))
        self._hits, self._hits_read = [], 0
        self._cleanup.callback(shutil.rmtree, self._folder, ignore_errors=True)
        try:
            self._process = self._spawn()
            self._cleanup.callback(self._end, self._process)
            self._web = Web(self.plan, self._await_port(self._process))
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Ends the process and removes the folder; the hits stay readable. Twice is no harm."""
        self._cleanup.close()

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._read_hits()
        self._process = None

    @property
    def pid(self) -> int:
        """Process id of the running farm; RuntimeError where it does not run."""
        if self._process is None:
            raise RuntimeError("the farm does not run; start it first")
        return self._process.pid

    @property
    def web(self) -> Web:
        """The sites as pure values."""
        if self._web is None:
            raise RuntimeError("the farm has no port yet; start it first")
        return self._web

    @property
    def port(self) -> int:
        """The port of all sites."""
        return self.web.port

    @property
    def seeds(self) -> list[str]:
        """Roots of the numbered sites; of the named ones where there are no others."""
        return seeds(self.web)

    def site(self, which: int | str) -> str:
        """Origin of a site: by number from 0, or by name."""
        index = which if isinstance(which, int) else self.plan.sites + self.plan.names.index(which)
        return self.web.origin(index)

    def expected(
        self,
        scope: str | Collection[str] = "seeds",
        max_depth: int | None = None,
        max_pages: int | None = None,
        *,
        seeds: Iterable[str] | None = None,
        kinds: Collection[str] = truth.STORED,
    ) -> dict[str, set[str]]:
        """URLs that a right crawl of the seeds stores with status 200, by origin; see truth.expected."""
        starts = self.seeds if seeds is None else seeds
        return truth.expected(self.web, starts, scope, max_depth=max_depth, max_pages=max_pages, kinds=kinds)

    @cached_property
    def declared(self) -> dict[str, truth.Declared]:
        """The truth about every URL of the farm, those of sites that are down included."""
        return truth.declared(self.web)

    def hits(self) -> list[Hit]:
        """Every request answered so far, in order."""
        if self._process is not None:
            self._read_hits()
        return list(self._hits)

    def _read_hits(self) -> None:
        """Take in what the log has more; a last line that is not whole yet is left for the next time."""
        with contextlib.suppress(FileNotFoundError), (self._folder / "hits").open("rb") as log:
            log.seek(self._hits_read)
            whole = log.read().rpartition(b"\n")[0]
            self._hits += [Hit(*json.loads(line)) for line in whole.splitlines()]
            self._hits_read += len(whole) + 1 if whole else 0

    def forbidden_hits(self) -> list[Hit]:
        """Requests that a right crawl never makes: denied, nofollow, overlong and alias URLs."""
        return [hit for hit in self.hits() if self._kind(hit) in truth.FORBIDDEN]

    def _kind(self, hit: Hit) -> str:
        site = self.web.by_origin(f"http://{hit.host}")
        resource = site.resource(hit.path) if site else None
        return resource.kind if resource else ""

    def _spawn(self) -> subprocess.Popen[bytes]:
        files = [f"--hits={self._folder / 'hits'}", f"--ready={self._folder / 'ready'}"]
        own = [f"--port={self._asked_port}", f"--parent={os.getpid()}"]
        command = [sys.executable, "-m", "tests.farm", *to_arguments(self.plan), *own, *files]
        with (self._folder / "stderr").open("wb") as stderr:
            return warm.popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr
            )

    def _await_port(self, process: subprocess.Popen[bytes]) -> int:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(FileNotFoundError):
                return int(json.loads((self._folder / "ready").read_text())["port"])
            time.sleep(0.01)
        said = (self._folder / "stderr").read_text()[-2_000:]
        raise RuntimeError(f"the farm did not listen (exit code {process.poll()}): {said}")
