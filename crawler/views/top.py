"""Draws the view of `scrapy top` and `scrapy crawl`, from 80 columns on."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from crawler.printable import printable
from crawler.views.drawing import host
from crawler.views.words import time_word

if TYPE_CHECKING:
    from rich.console import RenderableType

    from crawler.options import Options
    from crawler.queue.sites import Holding
    from crawler.views.figures import QueueNow
    from crawler.views.watching import Seen

# Limits of leased sites and of kinds of errors shown.
MOST_ROWS, MOST_ERRORS = 10, 4
BAR = 24
# From this width on, the next sites are shown to the right of the leased ones.
WIDE = 100


def drawn(seen: Seen, options: Options, width: int, rows: int = MOST_ROWS) -> RenderableType:
    """At most `rows` leased sites."""
    parts: list[RenderableType] = [_head(seen)]
    if seen.queue is None:
        parts.append(Text(f" Redis: {printable(seen.queue_trouble)}", "bold red", overflow="fold"))
    if seen.tables_trouble:
        parts.append(Text(f" tables: {printable(seen.tables_trouble)}", "bold red", overflow="fold"))
    parts.append(_lines(seen, options))
    if seen.queue is not None and rows:
        parts.append(_hands(seen.queue, width, rows))
    return Group(*parts)


def _head(seen: Seen) -> Text:
    line = Text(" lowtide", "bold cyan", no_wrap=True, overflow="ellipsis")
    if queue := seen.queue:
        facts = [
            f"hour {queue.hour % 24:02}",
            queue.scheduler,
            _count(queue.depth.agents, "agent"),
            _count(len(queue.coordinators), "coordinator"),
        ]
        line.append("  " + "  ·  ".join(map(printable, facts)), "default")
    line.append(time.strftime("  ·  %H:%M:%S UTC", time.gmtime(seen.at_ms / 1000)), "dim")
    return line


def _lines(seen: Seen, options: Options) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=7, style="dim", no_wrap=True)
    grid.add_column(overflow="ellipsis", no_wrap=True)
    if seen.queue:
        grid.add_row(" sites", _sites(seen.queue))
    if seen.progress:
        grid.add_row(" pages", _pages(seen))
    grid.add_row(" pace", _pace(seen))
    if seen.queue:
        grid.add_row(" stream", _stream(seen.queue, options))
    if seen.tail is not None:
        grid.add_row(" errors", _errors(seen))
    return grid


def _sites(queue: QueueNow) -> Text:
    depth = queue.depth
    ended = depth.finished + depth.alias + depth.blocked
    named = [
        f"{depth.leased:,} leased",
        f"{depth.waiting + depth.suspended:,} wait",
        *([f"{depth.later:,} later"] if depth.later else []),
        *([f"{queue.parked:,} parked"] if queue.parked else []),
        *([f"{depth.paused:,} paused"] if depth.paused else []),
    ]
    line = _bar(ended, depth.added)
    line.append(f" {ended:,} of {depth.added:,}", "bold")
    return line.append(f"  {', '.join(named)}", "dim")


def _pages(seen: Seen) -> Text:
    assert seen.progress is not None
    line = _bar(seen.progress.done, seen.progress.known)
    line.append(f" {seen.progress.done:,} of {seen.progress.known:,}", "bold")
    unseen = f"  {seen.progress.unseen:,} sites not fetched yet" if seen.progress.unseen else ""
    return line.append(unseen, "dim")


def _pace(seen: Seen) -> Text:
    line = Text(f"{seen.pace:,.1f} pages/s", "bold", no_wrap=True, overflow="ellipsis")
    left = seen.seconds_left
    if left is None:
        return line
    least = "at least " if seen.progress and seen.progress.unseen else "about "
    return line.append(f"  {least if left else ''}{time_word(left)} left", "default")


def _stream(queue: QueueNow, options: Options) -> Text:
    """Records waiting for the tables."""
    records, most = queue.depth.records, options.stream_max_records
    style = "bold red" if records >= most else "yellow" if records >= most / 2 else "default"
    line = Text(f"{records:,} of {most:,} records", style, no_wrap=True, overflow="ellipsis")
    if records >= most:
        line.append("  agents pause", "bold red")
    if not queue.coordinators:
        return line.append("  no coordinator stores them" if records else "  no coordinator", "yellow")
    waits = [one for one in queue.coordinators if one.get("waits_for")]
    if waits:
        return line.append(
            f"  waits for {printable(waits[0]['waits_for'])}: {printable(waits[0]['why'])}", "red"
        )
    lag = max(float(one.get("lag", 0)) for one in queue.coordinators)
    return line.append(f"  {lag:.1f} s behind", "dim")


def _errors(seen: Seen) -> Text:
    assert seen.tail is not None
    kinds = seen.tail.errors().most_common()
    if not kinds:
        return Text("none", "green")
    words = [f"{kind}: {many:,}" for kind, many in kinds[:MOST_ERRORS]]
    rest = sum(many for _, many in kinds[MOST_ERRORS:])
    more = [f"others: {rest:,}"] if rest else []
    line = Text("  ".join(words + more), "yellow", no_wrap=True, overflow="ellipsis")
    return line.append(f"  of the last {len(seen.tail.turns):,}", "dim")


def _hands(queue: QueueNow, width: int, rows: int) -> Table:
    both = Table.grid(padding=(0, 3), expand=True)
    both.add_column(ratio=3)
    if width < WIDE:
        both.add_row(_working(queue, rows))
        return both
    both.add_column(ratio=2)
    both.add_row(_working(queue, rows), _next(queue, rows))
    return both


def _working(queue: QueueNow, rows: int) -> Table:
    shown = sorted(queue.holdings, key=_left, reverse=True)[:rows]
    table = _list(
        f"leased sites of all jobs, {len(shown)} of {len(queue.holdings)}" if shown else "no site leased"
    )
    table.add_column("agent", style="dim", no_wrap=True, overflow="ellipsis", max_width=24)
    table.add_column("done", justify="right", no_wrap=True)
    for one in shown:
        table.add_row(printable(host(one.site)), printable(one.agent), f"{one.done:,}/{one.known:,}")
    return table


def _next(queue: QueueNow, rows: int) -> Table:
    shown = queue.line[:rows]
    table = _list(
        f"next in this hour, {len(shown)} of {queue.line_length:,}" if shown else "no list for this hour"
    )
    for site in shown:
        table.add_row(printable(host(site)))
    return table


def _list(title: str) -> Table:
    table = Table(box=None, padding=(0, 1), expand=True, header_style="dim", pad_edge=True)
    table.add_column(title, ratio=1, no_wrap=True, overflow="ellipsis")
    return table


def _left(one: Holding) -> tuple[Any, ...]:
    return one.known - one.done, one.site


def _bar(done: int, whole: int) -> Text:
    share = min(1.0, done / whole) if whole else 0.0
    full = int(share * BAR)
    line = Text("█" * full, "cyan", no_wrap=True, overflow="ellipsis")
    return line.append("░" * (BAR - full), "bright_black")


def _count(many: int, word: str) -> str:
    return f"{many:,} {word}{'' if many == 1 else 's'}"
