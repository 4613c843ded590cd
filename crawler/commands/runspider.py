"""`scrapy runspider`: an agent with a spider from a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy.commands import runspider as stock

from crawler import engine
from crawler.command import checked, exit_code_of, quieten

if TYPE_CHECKING:
    import argparse

    from scrapy import Spider
    from scrapy.crawler import Crawler


class Command(stock.Command):
    _running: Crawler | None = None

    def process_options(self, args: list[str], opts: argparse.Namespace) -> None:
        super().process_options(args, opts)
        assert self.settings is not None
        checked(self.settings)
        quieten(self.settings)

    def _create_crawler(self, spidercls: type[Spider] | str) -> Crawler:
        self._running = super()._create_crawler(spidercls)
        return self._running

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Sets the exit code by how the crawl ended."""
        assert self.crawler_process is not None
        engine.end_in_order(self.crawler_process)
        super().run(args, opts)
        if not self.exitcode and self._running is not None:
            self.exitcode = exit_code_of(self._running)
