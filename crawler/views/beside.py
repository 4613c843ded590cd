"""How a crawl goes, below its log: a command is run as a child, and what it says is printed above the view.

The view has a process of its own, so that no agent draws, and no line of an agent, coordinator or planner can tear it:
all of them write into pipes that end here. Signals: Ctrl-C reaches the child by the terminal itself, SIGTERM is passed
on. The view never ends the command, whatever goes wrong with it; its exit code is the command's.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from rich.console import Console
from rich.constrain import Constrain
from rich.live import Live
from rich.text import Text

from crawler.sites import connection
from crawler.store.server import Server
from crawler.views.top import drawn
from crawler.views.watching import Watch

if TYPE_CHECKING:
    from asyncio.subprocess import Process

    from scrapy.settings import BaseSettings

    from crawler.options import Options

LOOK_SECONDS = 1.0
# Sites in hand that are named, where the terminal has room; the rest of the view takes LINES.
MOST_ROWS, LINES = 5, 8
# Columns that stay free: a terminal writes ^C behind the view, which must not begin a line of its own there.
ECHO = 2
# Of a terminal's lines, what the view takes at most.
SHARE = 3
# What is no whole line is shown all the same when nothing has come behind it for so long: it may be a question.
PART_SECONDS = 0.5
CHUNK_BYTES = 65_536


def run(command: Sequence[str], settings: BaseSettings, options: Options, before: Callable[[], None]) -> int:
    """Run it to its end, watched; its exit code, negative for a signal. `before` is called in the child first."""
    if not connection.is_named(settings):
        settings = settings.copy()
        # Not joined: the server starts and ends with the crawl, and a look must not prolong its life.
        settings.set("REDIS_URL", Server(options.var).url, priority="cmdline")
    return asyncio.run(_run(command, settings, options, before))


async def _run(
    command: Sequence[str], settings: BaseSettings, options: Options, before: Callable[[], None]
) -> int:
    out, err = (PIPE if stream.isatty() else None for stream in (sys.stdout, sys.stderr))
    # What a spider prints is to be seen when it prints it.
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    child = await asyncio.create_subprocess_exec(
        *command, stdout=out, stderr=err, env=environment, preexec_fn=before
    )
    _pass_signals(child)
    console = Console(highlight=False)
    with Live(console=console, auto_refresh=False, transient=True, redirect_stderr=False) as live:
        drawing = asyncio.ensure_future(_draw(live, Watch(settings, options)))
        readers = [_print(stream, console) for stream in (child.stdout, child.stderr) if stream]
        waiting = asyncio.gather(*readers)
        code = await child.wait()
        # A coordinator may outlive its agents and hold the pipe open: what the command itself said is there by now.
        with suppress(TimeoutError):
            await asyncio.wait_for(waiting, PART_SECONDS)
        drawing.cancel()
        (ended,) = await asyncio.gather(drawing, return_exceptions=True)
    if not isinstance(ended, asyncio.CancelledError):
        print(f"lowtide: the view ended early: {ended!r}", file=sys.stderr)
    return code


def _pass_signals(child: Process) -> None:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    loop.add_signal_handler(signal.SIGTERM, _send, child, signal.SIGTERM)


def _send(child: Process, number: int) -> None:
    with suppress(ProcessLookupError):
        child.send_signal(number)


async def _print(stream: asyncio.StreamReader, console: Console) -> None:
    """What comes, as it comes: whole lines at once, a part of one when nothing follows."""
    left = b""
    while True:
        try:
            chunk = await asyncio.wait_for(stream.read(CHUNK_BYTES), PART_SECONDS if left else None)
        except TimeoutError:
            chunk, left = left, b""
            _say(console, chunk)
            continue
        if not chunk:
            break
        whole, line_end, left = (left + chunk).rpartition(b"\n")
        if line_end:
            _say(console, whole)
    if left:
        _say(console, left)


def _say(console: Console, words: bytes) -> None:
    console.print(Text.from_ansi(words.decode(errors="replace")), soft_wrap=True)


async def _draw(live: Live, watch: Watch) -> None:
    """Look and draw until cancelled; nothing is shown before the crawl's server was seen for the first time."""
    was_there = False
    try:
        while True:
            seen = await watch.look()
            was_there = was_there or seen.queue is not None
            if was_there:
                width, height = live.console.width - ECHO, live.console.height
                rows = max(0, min(MOST_ROWS, height // SHARE - LINES))
                live.update(Constrain(drawn(seen, watch.options, width, rows), width), refresh=True)
            await asyncio.sleep(LOOK_SECONDS)
    finally:
        await watch.close()


def is_possible() -> bool:
    """Whether there is a terminal that can be drawn on."""
    return sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
