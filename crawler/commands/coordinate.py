"""`scrapy coordinate`: moves results from the stream into the tables."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable
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
            "own server and ends by itself when the last agent has left and everything is stored; told to end before, "
            "its exit code is 4."
        )

    def work(self, args: list[str], opts: argparse.Namespace) -> int:  # noqa: ARG002
        from scrapy.utils.log import configure_logging

        from crawler.sites import connection

        assert self.settings is not None
        log_format = self.settings["LOG_FORMAT"].replace("[agent]", "[coordinator]")
        self.settings.set("LOG_FORMAT", log_format, priority="cmdline")
        configure_logging(self.settings)
        quieten(self.settings)
        stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        return self._remote(stop) if connection.is_named(self.settings) else self._local(stop)

    def _remote(self, stop: threading.Event) -> int:
        from crawler.sites import connection

        assert self.settings is not None
        if not self.options.database_url and not connection.may_serve_itself(self.settings):
            raise CommandError("DATABASE_URL is empty; wanted the database that all coordinators share")
        return self._coordinate(stop, None)

    def _local(self, stop: threading.Event) -> int:
        from crawler.sites import connection
        from crawler.store.local import STOPPED
        from crawler.store.server import CoordinatorRuns, Server, ServerError

        assert self.settings is not None
        connection.require(self.settings)
        try:
            membership = Server(self.options.var).join("coordinator")
        except CoordinatorRuns:
            return 0
        except ServerError as error:
            raise CommandError(str(error)) from None
        self.settings.set("REDIS_URL", membership.url, priority="cmdline")
        drained = False

        def leave(empty: Callable[[], bool]) -> bool:
            nonlocal drained
            drained = membership.leave_when_alone(empty)
            return drained

        with membership:
            # One at a time, so the name can be the same for all: a successor goes on at once with what one that
            # was killed had read and not stored.
            code = self._coordinate(stop, leave, name=f"{socket.gethostname()}-local")
        return code or (0 if drained else STOPPED)

    def _coordinate(
        self, stop: threading.Event, leave: Callable[[Callable[[], bool]], bool] | None, name: str = ""
    ) -> int:
        from redis.exceptions import RedisError

        from crawler.sites import connection
        from crawler.store.coordinator import Coordinator
        from crawler.store.database import DatabaseError
        from crawler.store.local import UNUSABLE

        assert self.settings is not None
        try:
            Coordinator(self.settings, self.options, name=name).run(stop, leave)
        except DatabaseError as error:
            self.fail(str(error))
            return UNUSABLE
        except RedisError as error:
            raise CommandError(f"REDIS_URL {connection.told(self.settings)}: {error}") from None
        return 0
