"""Runs several agents on one machine (paper 001's mediator).

Restarts killed agents with growing pauses. The first SIGINT or SIGTERM drains, the second ends at once. If
the supervisor ends, its agents drain.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType

# --- SIGINT and SIGTERM in an event loop ---


SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def told_to_end(heard: Callable[[], None]) -> Iterator[None]:
    """Calls `heard` at SIGINT and SIGTERM during the block."""
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, heard)
    try:
        yield
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


logger = logging.getLogger("supervisor")

# Final exit codes of an agent, after which it is not restarted: wrong call, or nothing can be stored.
FINAL_CODES = (0, 2, 3)
WRONG_CALLS = (2, 3)
# Exit code of a process stopped before all results were stored.
STOPPED = 4
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
# After this run time the count of failures in a row starts at 0.
HEALTHY_SECONDS = 60.0
# Failures in a row after which an agent is not restarted.
MOST_DEATHS = 6
LOOK_SECONDS = 0.05
# Limit for a process to end after SIGTERM.
END_SECONDS = 5.0
_PR_SET_PDEATHSIG = 1


class Child:
    """A process, restarted when it is killed, by the command `again` (None: the same).

    `environment` is added to this process's. A `lasting` child is restarted after every end except a wrong
    call.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        again: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
        *,
        lasting: bool = False,
    ) -> None:
        self.name = name
        self.code: int | None = None  # of the last run, once final
        self._command = list(command)
        self._again = self._command if again is None else list(again)
        self._environment = environment or {}
        self._lasting = lasting
        self._process: subprocess.Popen[bytes] | None = None
        self._deaths = 0
        self._started = 0.0
        self._not_before = 0.0

    @property
    def over(self) -> bool:
        """Ended and not restarted."""
        return self.code is not None

    @property
    def pid(self) -> int | None:
        """None if no process runs."""
        return self._process.pid if self._process else None

    def look(self, now: float, *, stopping: bool) -> None:
        """Start the process, or handle its end."""
        if self.over:
            return
        if self._process is None:
            if stopping:
                self.code = 0
            elif now >= self._not_before:
                self._start(now)
            return
        code = self._process.poll()
        if code is not None:
            self._process = None
            self._ended(code, now, stopping=stopping)

    def send(self, number: int) -> None:
        """Only if the process runs."""
        if self._process and self._process.poll() is None:
            self._process.send_signal(number)

    def end(self) -> None:
        """SIGTERM, then SIGKILL after END_SECONDS."""
        if self._process is None:
            return
        self.send(signal.SIGTERM)
        try:
            self.code = self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self.code = self._process.wait()

    def _start(self, now: float) -> None:
        self._started = now
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            process_group=0,
            env={**os.environ, **self._environment},
            preexec_fn=partial(end_with_parent, os.getpid()),
        )
        self._command = self._again

    def _ended(self, code: int, now: float, *, stopping: bool) -> None:
        if stopping or code in (WRONG_CALLS if self._lasting else FINAL_CODES):
            self.code = code
            return
        self._deaths = 1 if now - self._started > HEALTHY_SECONDS else self._deaths + 1
        if self._deaths >= MOST_DEATHS and not self._lasting:
            logger.error(
                "%s ended with %s for the %dth time in a row; not restarted",
                self.name,
                _told(code),
                self._deaths,
            )
            self.code = code
            return
        pause = min(FIRST_PAUSE_SECONDS * 2 ** min(self._deaths - 1, 10), LONGEST_PAUSE_SECONDS)
        self._not_before = now + pause
        logger.warning("%s ended with %s, restarting in %.1f s", self.name, _told(code), pause)


class Supervisor:
    """Runs children until all have ended."""

    def __init__(self, children: Sequence[Child]) -> None:
        self.children = list(children)
        self._signals = 0
        self._wake = threading.Event()

    @property
    def stopping(self) -> bool:
        """Whether a signal requested the end."""
        return self._signals > 0

    def run(self, after: Callable[[], bool] = lambda: True) -> int:
        """Runs all children, then `after`. Returns the highest exit code; 1 for a kill.

        `after` is called until true, unless a child failed. A signal ends that wait with STOPPED.
        """
        previous = {number: signal.signal(number, self._signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            while not self._look():
                self._pause()
            return self._worst() or self._wait_for(after)
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _worst(self) -> int:
        codes = [child.code or 0 for child in self.children]
        if self.stopping:
            # SIGTERM ends only an agent that had not started its loop.
            codes = [0 if code == -signal.SIGTERM else code for code in codes]
        return max((code if code >= 0 else 1 for code in codes), default=0)

    def _wait_for(self, after: Callable[[], bool]) -> int:
        signals = self._signals
        while not after():
            if self._signals > signals:
                logger.warning("not all results are stored yet; the coordinator continues")
                return STOPPED
            self._pause()
        return 0

    def _pause(self) -> None:
        self._wake.wait(LOOK_SECONDS)
        self._wake.clear()

    def _look(self) -> bool:
        now = time.monotonic()
        for child in self.children:
            child.look(now, stopping=self.stopping)
        return all(child.over for child in self.children)

    def _signal(self, number: int, _frame: FrameType | None) -> None:
        self._signals += 1
        if self._signals == 1 and not all(child.over for child in self.children):
            logger.info(
                "%s: agents finish their pages in flight and end; a second signal ends them at once",
                _name(number),
            )
        for child in self.children:
            child.send(signal.SIGTERM if self._signals == 1 else signal.SIGKILL)
        self._wake.set()


def agent_command(spider: str, arguments: Sequence[str]) -> list[str]:
    """The command line of one agent."""
    return [sys.executable, "-m", "crawler.local.start", "crawl", spider, *arguments]


def numbered_file(uri: str, number: int) -> str:
    """items.jsonl -> items-2.jsonl."""
    head, dot, tail = uri.rpartition(".")
    if "/" in tail or not dot or not head:
        return f"{uri}-{number}"
    return f"{head}-{number}.{tail}"


def end_with_parent(parent: int) -> None:
    """In a child process: drain when the supervisor ends (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)


def _told(code: int) -> str:
    return f"signal {_name(-code)}" if code < 0 else f"code {code}"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
