"""`scrapy listen`: receives status packets of paper 002."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from scrapy.exceptions import UsageError

from crawler.command import LowtideCommand, print_json, quieten
from crawler.local.supervisor import told_to_end
from crawler.options import OptionError

if TYPE_CHECKING:
    import argparse

    from scrapy.settings import BaseSettings

    from crawler.local.local import Beside


class Command(LowtideCommand):
    takes_words = False

    def short_desc(self) -> str:
        return "Receive status checks of other crawlers, sent as packets over TCP"

    def long_desc(self) -> str:
        return (
            "Receive packets (of paper 002: length||crawler||code||status||time||...) on LISTEN_ADDRESS:LISTEN_PORT "
            "until stopped and write them to the results stream. Coordinators store them in the table checks, and "
            "invalid ones in dead_letters. If REDIS_URL is empty, it uses the bundled server and starts a coordinator."
        )

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument("--json", action="store_true", help="print the figures as JSON at the end")

    def process_options(self, args: list[str], opts: argparse.Namespace) -> None:
        from crawler.status import listener

        super().process_options(args, opts)
        try:
            listener.check(self.options)
        except OptionError as error:
            raise UsageError(str(error), print_help=False) from None

    def work(self, args: list[str], opts: argparse.Namespace) -> int:  # noqa: ARG002
        from scrapy.utils.log import configure_logging

        from crawler.queue import connection

        assert self.settings is not None
        as_given = self.settings.copy()
        log_format = self.settings["LOG_FORMAT"].replace("[agent]", "[listener]")
        self.settings.set("LOG_FORMAT", log_format, priority="cmdline")
        configure_logging(self.settings)
        quieten(self.settings)
        connection.require(self.settings)
        if connection.is_named(self.settings):
            connection.check(self.settings)
            return self._tell(asyncio.run(self._listen(None)), as_json=opts.json)
        return self._local(as_given, opts)

    def _local(self, as_given: BaseSettings, opts: argparse.Namespace) -> int:
        from crawler.local.local import UNUSABLE, Beside
        from crawler.local.server import OtherCrawlError

        assert self.settings is not None
        try:
            local = Beside(as_given, self.options)
        except OtherCrawlError as error:
            self.fail(str(error))
            return UNUSABLE
        self.settings.set("REDIS_URL", local.url, priority="cmdline")
        with local:
            code = self._tell(asyncio.run(self._listen(local)), as_json=opts.json)
        if local.trouble:
            self.fail(local.trouble)
            return UNUSABLE
        return code

    async def _listen(self, local: Beside | None) -> dict[str, Any]:
        from crawler.status import listener

        assert self.settings is not None
        stop = asyncio.Event()
        watch = asyncio.create_task(local.watch(stop)) if local else None
        try:
            with told_to_end(partial(_end, stop)):
                return await listener.listen(self.settings, self.options, stop)
        finally:
            if watch:
                watch.cancel()

    def _tell(self, figures: dict[str, Any], *, as_json: bool) -> int:
        from crawler.status.listener import LAST_SECONDS, told

        if as_json:
            print_json(figures)
        else:
            refused = told(Counter(figures["refused_by"]))
            print(f"{figures['taken']} packets taken, {refused}, over {figures['connections']} connections")
        if figures["waiting"]:
            self.fail(
                f"{figures['waiting']} records did not reach Redis within {LAST_SECONDS:.0f} s and are lost, but for "
                "those whose senders wait for an acknowledgement and send them again"
            )
            return 1
        return 0


def _end(stop: asyncio.Event) -> None:
    """The second signal ends the process at once."""
    if stop.is_set():
        logging.getLogger("listener").warning("second signal: ending at once, records not sent yet are lost")
        raise SystemExit(1)
    stop.set()
