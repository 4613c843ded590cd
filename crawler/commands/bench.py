"""`scrapy bench`, without the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy.commands import bench as stock

from crawler.command import without_queue

if TYPE_CHECKING:
    import argparse


class Command(stock.Command):
    def process_options(self, args: list[str], opts: argparse.Namespace) -> None:
        super().process_options(args, opts)
        assert self.settings is not None
        without_queue(self.settings)
        # The benchmark fetches without delay from a local server that it starts.
        self.settings.set("ALLOW_PRIVATE_ADDRESSES", "127.0.0.0/8,::1", priority="cmdline")
        self.settings.set("DOWNLOAD_DELAY", 0, priority="cmdline")
