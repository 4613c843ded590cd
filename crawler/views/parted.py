"""Forks the command: the child runs it, the parent draws the view (crawler.views.live).

Call it before threads, event loops and connections exist.
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
    """The child, as the parent sees it."""

    pid: int
    out: int | None  # pipe with its output; None: not a terminal
    err: int | None

    def send(self, number: int) -> None:
        """Send a signal unless it has ended."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


def part(before: Callable[[], None]) -> Parted | None:
    """Forks. Returns None in the child, after calling `before`.

    The child's terminal output goes to pipes. The parent ignores Ctrl-C and forwards SIGTERM until an event
    loop takes over.
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
    # Show a spider's prints at once.
    os.environ["PYTHONUNBUFFERED"] = "1"
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
