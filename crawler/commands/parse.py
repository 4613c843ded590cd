"""`scrapy parse`, without the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy.commands import parse as stock

from crawler.command import quieten, without_queue

if TYPE_CHECKING:
    import argparse


class Command(stock.Command):
    def process_options(self, args: list[str], opts: argparse.Namespace) -> None:
        super().process_options(args, opts)
        assert self.settings is not None
        quieten(self.settings)
        without_queue(self.settings)
