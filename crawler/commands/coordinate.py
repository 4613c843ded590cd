"""`scrapy coordinate`: stores results in the tables."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from crawler.command import CommandError, LowtideCommand, quieten
from crawler.local.supervisor import Child
from crawler.options import PLAIN, OptionError

if TYPE_CHECKING:
    import argparse

    from scrapy.settings import BaseSettings

    from crawler.options import Options

logger = logging.getLogger("coordinator")

# Interval of the checks of the bundled server and the planner.
WATCH_SECONDS = 1.0


class Command(LowtideCommand):
    takes_words = False

    def short_desc(self) -> str:
        return "Store results: move records from the results stream into the tables"

    def long_desc(self) -> str:
        return (
            "Store results until stopped. Any number may run. If REDIS_URL is empty, it runs the bundled server and "
            "ends when the last agent has left and everything is stored; stopped before that, "
            "its exit code is 4. As soon as sites wait, it runs `scrapy plan`."
        )

    def work(self, args: list[str], opts: argparse.Namespace) -> int:  # noqa: ARG002
        from scrapy.utils.log import configure_logging

        from crawler import recheck
        from crawler.queue import connection

        assert self.settings is not None
        try:
            # The planner would fail on it at every start, and no page would be rechecked.
            recheck.check(self.options.recrawl_mode, (PLAIN,))
        except recheck.RecrawlError as error:
            raise OptionError(str(error)) from None
        if self.options.database_url:
            from crawler.store.database import require_driver

            require_driver(self.options.database)
        log_format = self.settings["LOG_FORMAT"].replace("[agent]", "[coordinator]")
        self.settings.set("LOG_FORMAT", log_format, priority="cmdline")
        configure_logging(self.settings)
        quieten(self.settings)
        stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        return self._remote(stop) if connection.is_named(self.settings) else self._local(stop)

    def _remote(self, stop: threading.Event) -> int:
        from crawler.queue import connection

        assert self.settings is not None
        if not self.options.database_url and not connection.may_serve_itself(self.settings):
            raise OptionError("DATABASE_URL is empty; expected the database that all coordinators share")
        threading.Thread(target=self._compare, name="compare", daemon=True).start()
        return self._coordinate(stop, None)

    def _compare(self) -> None:
        """Logged once; on one machine `scrapy crawl` does it at its end."""
        from crawler.queue.connection import ServerAwayError
        from crawler.queue.errors import BrokenRecordError
        from crawler.reconcile import agreement
        from crawler.store.database import DatabaseError

        assert self.settings is not None
        # The coordinator reports these errors itself.
        with suppress(ServerAwayError, BrokenRecordError, DatabaseError, OptionError, OSError):
            wrong = agreement.differences(self.settings, self.options)
            if wrong:
                logger.warning("%s", agreement.in_words(wrong))

    def _local(self, stop: threading.Event) -> int:
        from crawler.local.local import COORDINATOR, STOPPED, UNUSABLE, ServerKeeper
        from crawler.local.server import CoordinatorRunsError, OtherCrawlError, Server
        from crawler.queue import connection

        assert self.settings is not None
        connection.require(self.settings)
        server = Server(self.options.var)
        try:
            membership = server.join("coordinator", self.options.key_prefix)
        except CoordinatorRunsError:
            return 0
        except OtherCrawlError as error:
            self.fail(str(error))
            return UNUSABLE
        self.settings.set("REDIS_URL", membership.url, priority="cmdline")
        drained = False

        def leave(empty: Callable[[], bool]) -> bool:
            nonlocal drained
            drained = membership.leave_when_alone(empty)
            return drained

        keeper = ServerKeeper(server)
        with membership, _watching(keeper.look, stop) as gave_up:
            code = self._coordinate(stop, leave, name=COORDINATOR)
        if gave_up.is_set():
            self.fail(f"the bundled server cannot be started again: {keeper.trouble}")
            return UNUSABLE
        return code or (0 if drained else STOPPED)

    def _coordinate(
        self, stop: threading.Event, leave: Callable[[Callable[[], bool]], bool] | None, name: str = ""
    ) -> int:
        from redis.exceptions import RedisError

        from crawler.coordinator.coordinator import Coordinator
        from crawler.local.local import UNUSABLE
        from crawler.queue import connection
        from crawler.store.database import DatabaseError

        assert self.settings is not None
        try:
            with planned(self.settings, self.options):
                Coordinator(self.settings, self.options, name=name).run(stop, leave)
        except DatabaseError as error:
            self.fail(str(error))
            return UNUSABLE
        except RedisError as error:
            raise CommandError(connection.explained(self.settings, error)) from None
        return 0


@contextmanager
def planned(settings: BaseSettings, options: Options) -> Iterator[None]:
    """Runs a planner once it has work."""
    from crawler.local.local import handed_on
    from crawler.queue import connection
    from crawler.queue.results import sites_wait, works_wait

    # The arguments of this process; Scrapy has removed the command's name.
    command = [sys.executable, "-m", "crawler.local.start", "plan", *sys.argv[1:]]
    addresses = {"DATABASE_URL": options.database}
    if settings["REDIS_URL"]:
        addresses["REDIS_URL"] = settings["REDIS_URL"]
    environment = handed_on(settings, options, **addresses)
    child = Child("planner", command, environment=environment, lasting=True)
    client = connection.connect_blocking(settings)
    began = False

    def look() -> bool:
        nonlocal began
        with suppress(RedisError, OSError):
            began = began or sites_wait(client, options.key_prefix) or works_wait(client, options.key_prefix)
        if began:
            child.look(time.monotonic(), stopping=False)
        return True

    try:
        with _watching(look, threading.Event()):
            yield
    finally:
        client.close()
        child.end()


@contextmanager
def _watching(look: Callable[[], bool], stop: threading.Event) -> Iterator[threading.Event]:
    """`look` runs every second; False sets `stop` and the yielded event."""
    over, gave_up = threading.Event(), threading.Event()

    def work() -> None:
        while not over.wait(WATCH_SECONDS):
            if not look():
                gave_up.set()
                stop.set()
                return

    thread = threading.Thread(target=work, name="watch", daemon=True)
    thread.start()
    try:
        yield gave_up
    finally:
        over.set()
        thread.join()
