"""`scrapy top`: progress in a terminal."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from scrapy.exceptions import UsageError

from crawler.command import CommandError, LowtideCommand, print_json
from crawler.local.supervisor import told_to_end

if TYPE_CHECKING:
    import argparse

    from crawler.views.watching import Seen, Watch


class Command(LowtideCommand):
    takes_words = False

    def short_desc(self) -> str:
        return "Show progress of the crawl: sites, pages, pace, errors, agents"

    def long_desc(self) -> str:
        return (
            "Show progress until Ctrl-C: sites and pages done and left, pages per second, errors, records to store, "
            "agents and the sites they crawl, and the next sites. Without a terminal nothing is shown, except with "
            "--once or --json. If DATABASE_URL is empty on a machine of a cluster, the figures of the tables are left "
            "out."
        )

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument("--once", action="store_true", help="show it once and end")
        parser.add_argument("--json", action="store_true", help="print the figures once as JSON")
        parser.add_argument(
            "--every", type=float, default=2.0, metavar="SECONDS", help="pause between two updates"
        )

    def work(self, args: list[str], opts: argparse.Namespace) -> None:  # noqa: ARG002
        from crawler.local.local import joined

        if opts.every <= 0:
            raise UsageError(f"--every is {opts.every}; expected seconds above 0", print_help=False)
        if not (opts.once or opts.json or sys.stdout.isatty()):
            return
        assert self.settings is not None
        self._refuse_nothing()
        with joined(self.settings, self.options):
            asyncio.run(self._show(opts))

    def _refuse_nothing(self) -> None:
        """Raises CommandError if there is no crawl."""
        from crawler.queue import connection

        assert self.settings is not None
        if not connection.is_named(self.settings) and not self.options.var.is_dir():
            raise CommandError(f"nothing was crawled yet: no folder {self.options.var}")

    async def _show(self, opts: argparse.Namespace) -> None:
        from crawler.views.watching import Watch

        assert self.settings is not None
        watch = Watch(self.settings, self.options)
        try:
            if opts.json:
                print_json(_plain(await watch.look()))
            elif opts.once:
                self._print_once(await watch.look())
            else:
                await self._keep_showing(watch, opts.every)
        finally:
            await watch.close()

    def _print_once(self, seen: Seen) -> None:
        from rich.console import Console

        from crawler.views.top import drawn

        console = Console(width=None if sys.stdout.isatty() else int(os.environ.get("COLUMNS") or 80))
        console.print(drawn(seen, self.options, console.width), highlight=False)

    async def _keep_showing(self, watch: Watch, every: float) -> None:
        from rich.console import Console
        from rich.live import Live

        from crawler.views.top import MOST_ROWS, drawn

        console = Console(highlight=False)
        stop = asyncio.Event()
        with told_to_end(stop.set), Live(console=console, screen=True, auto_refresh=False) as live:
            while not stop.is_set():
                rows = max(MOST_ROWS, console.height - 9)
                live.update(drawn(await watch.look(), self.options, console.width, rows), refresh=True)
                with suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), every)


def _plain(seen: Seen) -> dict[str, Any]:
    """What could not be read is null; its `_trouble` key has the reason."""
    queue, progress = seen.queue, seen.progress
    return {
        "at": seen.at_ms,
        "queue": None
        if queue is None
        else {
            **queue._asdict(),
            "depth": queue.depth._asdict(),
            "holdings": [one._asdict() for one in queue.holdings],
        },
        "queue_trouble": seen.queue_trouble,
        "tables_trouble": seen.tables_trouble,
        "errors": None if seen.tail is None else dict(seen.tail.errors().most_common()),
        "pages_known": None if progress is None else progress.known,
        "pages_done": None if progress is None else progress.done,
        "sites_unseen": None if progress is None else progress.unseen,
        "pages_per_second": round(seen.pace, 3),
        "seconds_left": seen.seconds_left,
    }
