"""How a crawl goes, below its log: a command runs as a child, and what it says is printed above the view.

The view has a process of its own (crawler.views.parted), so that no agent draws, and no line of an agent, coordinator
or planner can tear it: all of them write into pipes that end here. Signals: Ctrl-C reaches the child by the terminal
itself, SIGTERM is passed on. The view never ends the command, whatever goes wrong with it; its exit code is the
command's.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from rich.console import Console
from rich.constrain import Constrain
from rich.live import Live
from rich.text import Text

from crawler.local.server import Server
from crawler.queue import connection
from crawler.views.top import drawn
from crawler.views.watching import Watch

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

    from crawler.options import Options
    from crawler.views.parted import Parted

LOOK_SECONDS = 1.0
# So often, and so long, until the first page is done: a person waits for it.
FIRST_LOOK_SECONDS, FIRST_SECONDS = 0.1, 10.0
# Sites in hand that are named, where the terminal has room; the rest of the view takes LINES.
MOST_ROWS, LINES = 5, 8
# Columns that stay free: a terminal writes ^C behind the view, which must not begin a line of its own there.
ECHO = 2
# Of a terminal's lines, what the view takes at most.
SHARE = 3
# What is no whole line is shown all the same when nothing has come behind it for so long: it may be a question.
PART_SECONDS = 0.5
CHUNK_BYTES = 65_536


def show(child: Parted, settings: BaseSettings, options: Options) -> int:
    """Show how it goes until it ends; its exit code, negative for a signal."""
    if not connection.is_named(settings):
        settings = settings.copy()
        # Not joined: the server starts and ends with the crawl, and a look must not prolong its life.
        settings.set("REDIS_URL", Server(options.var).url, priority="cmdline")
    return asyncio.run(_show(child, settings, options))


async def _show(child: Parted, settings: BaseSettings, options: Options) -> int:
    _pass_signals(child)
    console = Console(highlight=False)
    with Live(console=console, auto_refresh=False, transient=True, redirect_stderr=False) as live:
        drawing = asyncio.ensure_future(_draw(live, Watch(settings, options)))
        waiting = asyncio.gather(
            *(_print(pipe, console) for pipe in (child.out, child.err) if pipe is not None)
        )
        _, status = await asyncio.to_thread(os.waitpid, child.pid, 0)
        # A coordinator may outlive its agents and hold the pipe open: what the command itself said is there by now.
        with suppress(TimeoutError):
            await asyncio.wait_for(waiting, PART_SECONDS)
        drawing.cancel()
        (ended,) = await asyncio.gather(drawing, return_exceptions=True)
    if not isinstance(ended, asyncio.CancelledError):
        print(f"lowtide: the view ended early: {ended!r}", file=sys.stderr)
    return os.waitstatus_to_exitcode(status)


def _pass_signals(child: Parted) -> None:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    loop.add_signal_handler(signal.SIGTERM, child.send, signal.SIGTERM)


async def _read(pipe: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(pipe, "rb", 0)
    )
    return reader


async def _print(pipe: int, console: Console) -> None:
    """What comes, as it comes: whole lines at once, a part of one when nothing follows."""
    stream, left = await _read(pipe), b""
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
    was_there, late = False, time.monotonic() + FIRST_SECONDS
    try:
        while True:
            seen = await watch.look()
            was_there = was_there or seen.queue is not None
            if was_there:
                width, height = live.console.width - ECHO, live.console.height
                rows = max(0, min(MOST_ROWS, height // SHARE - LINES))
                live.update(Constrain(drawn(seen, watch.options, width, rows), width), refresh=True)
            begun = (seen.progress is not None and seen.progress.done > 0) or time.monotonic() > late
            await asyncio.sleep(LOOK_SECONDS if begun else FIRST_LOOK_SECONDS)
    finally:
        await watch.close()
