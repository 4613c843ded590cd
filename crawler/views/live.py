"""The live view of `scrapy crawl`, below its log, in a process of its own (crawler.views.parted).

All processes of the crawl write into pipes, so no log line breaks the view. SIGTERM is forwarded. Errors of
the view never end the command. The exit code is the command's.
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
# Update interval, and its duration, until the first page is done.
FIRST_LOOK_SECONDS, FIRST_SECONDS = 0.1, 10.0
# Limit of leased sites shown; the other lines of the view.
MOST_ROWS, LINES = 5, 8
# Columns kept free: the terminal writes ^C behind the view, on the same line.
ECHO = 2
# The view takes at most a third of the terminal's lines.
SHARE = 3
# An incomplete line is printed when nothing follows for this time: it may be a prompt.
PART_SECONDS = 0.5
CHUNK_BYTES = 65_536


def show(child: Parted, settings: BaseSettings, options: Options) -> int:
    """Returns the child's exit code, negative for a signal."""
    if not connection.is_named(settings):
        settings = settings.copy()
        # No membership: the server starts and ends with the crawl, and a view must not keep it running.
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
        # A coordinator may outlive its agents and keep the pipe open; the command's own output is complete.
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
    """Print complete lines at once, an incomplete one after a pause."""
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
    """Draws until cancelled; nothing before the server was reached."""
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
