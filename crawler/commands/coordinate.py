"""`scrapy coordinate`: moves results from the stream into the tables."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

from crawler.command import CommandError, LowtideCommand, quieten

if TYPE_CHECKING:
    import argparse


class Command(LowtideCommand):
    def short_desc(self) -> str:
        return "Store results: move records from the results stream into the tables"

    def long_desc(self) -> str:
        return (
            "Store results until stopped. Any number may run. Where REDIS_URL is empty it serves the machine's "
            "own server and ends by itself when the last agent has left and everything is stored."
        )

    def work(self, args: list[str], opts: argparse.Namespace) -> int:  # noqa: ARG002
        from scrapy.utils.log import configure_logging

        from crawler.sites import connection

        assert self.settings is not None
        configure_logging(self.settings)
        quieten(self.settings)
        stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        return self._remote(stop) if connection.is_named(self.settings) else self._local(stop)

    def _remote(self, stop: threading.Event) -> int:
        if not self.options.database_url and self.settings["SETTINGS_MODULE"] == "settings.cluster":  # type: ignore[index]
            raise CommandError("DATABASE_URL is empty; wanted the database that all coordinators share")
        return self._coordinate(stop, None)

    def _local(self, stop: threading.Event) -> int:
        from crawler.store.server import CoordinatorRuns, Server, ServerError

        try:
            membership = Server(self.options.var).join("coordinator")
        except CoordinatorRuns:
            return 0
        except ServerError as error:
            raise CommandError(str(error)) from None
        assert self.settings is not None
        self.settings.set("REDIS_URL", membership.url, priority="cmdline")
        with membership:
            return self._coordinate(stop, membership.leave_when_alone)

    def _coordinate(self, stop: threading.Event, leave: object) -> int:
        from crawler.store.coordinator import Coordinator
        from crawler.store.database import DatabaseError
        from crawler.store.local import UNUSABLE

        assert self.settings is not None
        try:
            Coordinator(self.settings, self.options).run(stop, leave)  # type: ignore[arg-type]
        except DatabaseError as error:
            self.fail(str(error))
            return UNUSABLE
        return 0
