"""`scrapy plan`: runs the recheck planner."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from crawler.command import CommandError, LowtideCommand, quieten
from crawler.local.supervisor import told_to_end

if TYPE_CHECKING:
    import argparse


class Command(LowtideCommand):
    takes_words = False

    def short_desc(self) -> str:
        return "Plan the hours: which sites come first (each `scrapy coordinate` runs one)"

    def long_desc(self) -> str:
        return (
            "Plan the hours until stopped. Every `scrapy coordinate` runs a planner once sites wait. One planner is "
            "active; another takes over within seconds if it ends. Start it by hand to give it its own machine."
        )

    def work(self, args: list[str], opts: argparse.Namespace) -> int:  # noqa: ARG002
        from redis.exceptions import RedisError
        from scrapy.utils.log import configure_logging

        from crawler.local.local import joined, require_tables
        from crawler.queue import connection

        assert self.settings is not None
        log_format = (
            self.settings["LOG_FORMAT"].replace("[agent]", "[planner]").replace("[coordinator]", "[planner]")
        )
        self.settings.set("LOG_FORMAT", log_format, priority="cmdline")
        configure_logging(self.settings)
        quieten(self.settings)
        require_tables(self.settings, self.options)
        try:
            with joined(self.settings, self.options):
                asyncio.run(self._plan())
        except RedisError as error:
            raise CommandError(connection.explained(self.settings, error)) from None
        return 0

    async def _plan(self) -> None:
        from crawler.coordinator.planner_process import plan_hours

        assert self.settings is not None
        stop = asyncio.Event()
        with told_to_end(stop.set):
            await plan_hours(self.settings, self.options, stop)
