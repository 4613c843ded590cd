"""`scrapy shell`, without the queue."""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING

from scrapy.commands import shell as stock

from crawler.command import quieten, without_queue

if TYPE_CHECKING:
    import argparse

# Limit for stopping the loop after the shell ends.
STOP_SECONDS = 5.0


class Command(stock.Command):
    def process_options(self, args: list[str], opts: argparse.Namespace) -> None:
        super().process_options(args, opts)
        assert self.settings is not None
        quieten(self.settings)
        without_queue(self.settings)

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        super().run(args, opts)
        self._stop()

    def _start_crawler_thread(self) -> None:
        assert self.crawler_process
        self._thread = Thread(
            target=self.crawler_process.start,
            kwargs={"stop_after_crawl": False, "install_signal_handlers": False},
            daemon=True,
        )
        self._thread.start()

    def _stop(self) -> None:
        """Python crashed in 1 of 40 exits while the loop's thread was running."""
        from twisted.internet import reactor

        reactor.callFromThread(reactor.stop)  # type: ignore[misc]
        self._thread.join(STOP_SECONDS)
