"""A process that parts in two: one goes on with the command, the other will show how it goes (crawler.views.live).

All that the command has read by then serves both, so that a crawl in a terminal begins no later than without one. To be
called before there are threads, an event loop, or connections that both would use.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


class Parted(NamedTuple):
    """The process that goes on with the command, as the other one sees it."""

    pid: int
    out: int | None  # descriptor that has what it says; None: it says that to no terminal
    err: int | None

    def send(self, number: int) -> None:
        """A signal to it, unless it has ended."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


def part(before: Callable[[], None]) -> Parted | None:
    """Part; None in the process that goes on, where `before` is called first.

    What that one says to a terminal comes through pipes from then on.

    Until an event loop takes them over, the other one leaves Ctrl-C, which reaches both, to it, and hands SIGTERM on.
    """
    pipes = [os.pipe() if stream.isatty() else None for stream in (sys.stdout, sys.stderr)]
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if not pid:
        before()
        _say_through(pipes)
        return None
    parted = Parted(pid, *(pipe and pipe[0] for pipe in pipes))
    for pipe in filter(None, pipes):
        os.close(pipe[1])

    def hand_on(number: int, _frame: FrameType | None) -> None:
        parted.send(number)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, hand_on)
    return parted


def _say_through(pipes: list[tuple[int, int] | None]) -> None:
    for number, pipe in enumerate(pipes, 1):
        if pipe:
            os.dup2(pipe[1], number)
            os.close(pipe[0])
            os.close(pipe[1])
    # What a spider prints is to be seen when it prints it.
    os.environ["PYTHONUNBUFFERED"] = "1"
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
