"""One machine: starts and joins the bundled server, and sees to it that a coordinator runs beside the agents.

A Scrapy extension, so it works however a crawl is started. Not there (NotConfigured) where the settings name a
Redis. The coordinator is a process of its own that outlives the agent that started it: it drains the results
stream after the last agent has left, and then stops the server. If it dies, any agent starts another.
"""

from __future__ import annotations

import asyncio
import logging
import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from scrapy import signals
from scrapy.exceptions import NotConfigured
from scrapy.settings import SETTINGS_PRIORITIES

from crawler import engine
from crawler import options as our_options
from crawler.sites import connection
from crawler.store.server import Server, ServerError

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings

    from crawler.options import Options

logger = logging.getLogger("local")

WATCH_SECONDS = 1.0
# A coordinator that ends by an error this often in a row is not started again.
MOST_FAILURES = 3
POLL_SECONDS = 0.02
TELL_SECONDS = 5.0


class LocalServer:
    """One process's share in the machine's own server."""

    def __init__(self, crawler: Crawler, options: Options) -> None:
        self._crawler = crawler
        self._server = Server(options.var)
        self._coordinator = CoordinatorProcess(crawler.settings, self._server)
        self._watch: asyncio.Task[None] | None = None
        self._membership = self._server.join("agent")
        crawler.settings.set("REDIS_URL", self._membership.url, priority="cmdline")
        if self._membership.started:
            logger.info("bundled server started, data in %s", options.var)
        self._coordinator.ensure()
        crawler.signals.connect(self._opened, signals.spider_opened)
        crawler.signals.connect(self._stopped, signals.engine_stopped)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> LocalServer:
        """Built by Scrapy."""
        if connection.is_named(crawler.settings):
            raise NotConfigured
        try:
            return cls(crawler, our_options.read(crawler.settings))
        except ServerError as error:
            raise SystemExit(f"lowtide: {error}") from None

    async def _opened(self) -> None:
        self._watch = asyncio.ensure_future(self._watch_coordinator())

    async def _watch_coordinator(self) -> None:
        while True:
            self._coordinator.ensure()
            if self._coordinator.hopeless:
                logger.error("no coordinator can run, so no result would be stored: the crawl ends")
                await engine.close(self._crawler, "coordinator_failed")
                return
            await asyncio.sleep(WATCH_SECONDS)

    async def _stopped(self) -> None:
        if self._watch:
            self._watch.cancel()
        await self._coordinator_ready()
        self._membership.leave()
        if not self._server.agents_alive():
            await self._wait_until_stored()

    async def _coordinator_ready(self) -> None:
        """A coordinator that was just started must have joined before the last agent may stop the server."""
        while self._coordinator.starting:  # noqa: ASYNC110 - another process's lock is the event
            await asyncio.sleep(POLL_SECONDS)

    async def _wait_until_stored(self) -> None:
        """The last agent's crawl is over when its results are in the tables."""
        told = time.monotonic()
        while self._server.coordinator_alive() and not self._server.agents_alive():
            if time.monotonic() - told > TELL_SECONDS:
                told = time.monotonic()
                logger.info("waiting for the coordinator to store the last records")
            await asyncio.sleep(POLL_SECONDS)


class CoordinatorProcess:
    """The coordinator beside this machine's agents: started where none runs, with growing pauses if it fails."""

    def __init__(self, settings: BaseSettings, server: Server) -> None:
        self._arguments = _arguments(settings)
        self._server = server
        self._process: subprocess.Popen[bytes] | None = None
        self._failures = 0
        self._not_before = 0.0

    @property
    def hopeless(self) -> bool:
        """Whether it ended by an error too often to try again."""
        return self._failures >= MOST_FAILURES

    @property
    def starting(self) -> bool:
        """Whether it runs but has not joined yet."""
        return self._running() and not self._server.coordinator_alive()

    def ensure(self) -> None:
        """Start one unless one is alive or was started a moment ago."""
        if self._running() or self.hopeless or time.monotonic() < self._not_before:
            return
        if self._server.coordinator_alive():
            self._failures = 0
            return
        command = [sys.executable, "-m", "scrapy", "coordinate", *self._arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)

    def _running(self) -> bool:
        if self._process is None:
            return False
        code = self._process.poll()
        if code is None:
            return True
        self._process = None
        if code == 0:
            self._failures = 0
        elif code == UNUSABLE:
            self._failures = MOST_FAILURES
        else:
            self._failures += 1
            self._not_before = time.monotonic() + 0.2 * 2**self._failures
            logger.warning("the coordinator ended with code %d; another one is started", code)
        return False


# Exit code of a coordinator that will not work however often it is started.
UNUSABLE = 3


def _arguments(settings: BaseSettings) -> list[str]:
    """The settings of this process that its coordinator needs to see the same crawl."""
    wanted = (*sorted(our_options.NAMES - {"REDIS_URL", "PAGE_PIPELINES"}), "LOG_LEVEL", "LOG_FILE")
    log_format = re.sub(r"\[agent[^]]*]", "[coordinator]", settings["LOG_FORMAT"])
    arguments = ["-s", f"LOG_FORMAT={log_format}"]
    for name in wanted:
        if (settings.getpriority(name) or 0) > SETTINGS_PRIORITIES["project"] and settings[name] is not None:
            arguments += ["-s", f"{name}={settings[name]}"]
    return arguments
