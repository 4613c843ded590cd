"""Starts and joins the bundled server and keeps a coordinator running.

A Scrapy extension; NotConfigured if the settings name a Redis. The coordinator drains the results stream
after the last agent has left, then stops the server. Both are restarted when they end. A crawl without
progress ends with a reason.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec
from redis.exceptions import RedisError
from scrapy import signals
from scrapy.exceptions import NotConfigured
from scrapy.utils.project import inside_project

from crawler import engine
from crawler import options as our_options
from crawler.local.server import OtherCrawlError, Server, ServerError, is_gone
from crawler.options import OptionError
from crawler.queue import connection
from crawler.queue.errors import BrokenRecordError
from crawler.queue.queue import SiteQueue
from crawler.queue.results import Mark, heartbeat_key, results_key

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings

    from crawler.options import Options


# --- The server for commands ---


@contextmanager
def joined(settings: BaseSettings, options: Options, *, changes: bool = False) -> Iterator[str]:
    """Yields the server's address, set as REDIS_URL; starts the bundled server if needed.

    Raises ServerError or OptionError if there is no server, ServerAwayError for Redis errors of the block.
    `changes`: sync the bundled server's writes to disk at the end.
    """
    connection.require(settings)
    if connection.is_named(settings):
        with _in_words(settings):
            yield connection.told(settings)
        return
    server = Server(options.var)
    with server.join("visitor") as membership:
        settings.set("REDIS_URL", membership.url, priority="cmdline")
        try:
            with _in_words(settings):
                yield membership.url
            if changes:
                server.sync()
        finally:
            settings.set("REDIS_URL", "", priority="cmdline")


def names_tables(settings: BaseSettings, options: Options) -> bool:
    """Whether the location of the tables is known. Not valid inside of `joined`.

    VAR_DIR has this crawl's tables only if it has the server.
    """
    local = connection.may_serve_itself(settings) and not connection.is_named(settings)
    return local or bool(options.database_url)


def require_tables(settings: BaseSettings, options: Options) -> None:
    """Raises OptionError if the location of the tables is unknown."""
    if not names_tables(settings, options):
        raise OptionError(
            "DATABASE_URL is empty; expected the database of this crawl's coordinators "
            f"(a coordinator on this machine without DATABASE_URL writes to {options.database})"
        )


@contextmanager
def _in_words(settings: BaseSettings) -> Iterator[None]:
    try:
        yield
    except RedisError as error:
        raise connection.ServerAwayError(connection.explained(settings, error)) from None


# --- One machine, for processes without Scrapy's event loop ---


class Beside:
    """Membership in the bundled server with a coordinator, from construction to the end of `with`.

    Raises ServerError if the server cannot start. `trouble`: why it ended early; empty: it did not.
    """

    def __init__(self, settings: BaseSettings, options: Options) -> None:
        self.trouble = ""
        self._server = Server(options.var)
        self._membership = self._server.join("agent", options.key_prefix)
        self._keeper = ServerKeeper(self._server)
        self._coordinator = CoordinatorProcess(settings, options, self._server)
        self._coordinator.ensure()

    @property
    def url(self) -> str:
        """The server's address."""
        return self._membership.url

    async def watch(self, stop: asyncio.Event) -> None:
        """Restarts server and coordinator; sets `stop` if one of them cannot run."""
        while not self.trouble:
            await asyncio.sleep(WATCH_SECONDS)
            if not await asyncio.to_thread(self._keeper.look):
                self.trouble = f"the bundled server cannot be started again: {self._keeper.trouble}"
            self._coordinator.ensure()
            if self._coordinator.hopeless:
                self.trouble = (
                    "no coordinator can run, so nothing would be stored; records stay in the results stream"
                )
        stop.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while not self._server.coordinator_alive() and not self._coordinator.hopeless:
            self._coordinator.ensure()
            time.sleep(POLL_SECONDS)
        self._membership.leave()


logger = logging.getLogger("local")

WATCH_SECONDS = 1.0
# Checks of the coordinator per check of the agents' sessions.
SESSIONS_EVERY = 3
# A coordinator that fails this often in a row is not restarted.
MOST_FAILURES = 3
# After this run time the count of failures starts at 0.
HEALTHY_SECONDS = 60.0
POLL_SECONDS = 0.02
# Limit for a server to end after its coordinator, before its contents are checked.
SERVER_END_SECONDS = 2.0
TELL_SECONDS = 5.0
# A server that cannot be restarted for this time is given up.
GONE_SECONDS = 60.0
# An agent that was stopped waits this long for a coordinator that stores nothing. Below the limits of process
# managers (systemd: 90 s).
STOPPED_WAIT_SECONDS = 20.0


class LocalServer:
    """The agent's membership."""

    def __init__(self, crawler: Crawler, options: Options) -> None:
        self._crawler = crawler
        self._options = options
        self._server = Server(options.var)
        self._keeper = ServerKeeper(self._server)
        self._coordinator = CoordinatorProcess(crawler.settings, options, self._server)
        self._watch: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._waited_enough = False
        self._membership = self._server.join("agent", options.key_prefix)
        crawler.settings.set("REDIS_URL", self._membership.url, priority="cmdline")
        if self._membership.started:
            logger.info("bundled server started, data in %s", options.var)
        crawler.signals.connect(self._opened, signals.spider_opened)
        crawler.signals.connect(self._stopped, signals.engine_stopped)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> LocalServer:
        """Raises OptionError for unusable settings, before anything is started."""
        if connection.is_named(crawler.settings):
            raise NotConfigured
        try:
            return cls(crawler, our_options.read_checked(crawler.settings))
        except ServerError as error:
            print(f"lowtide: {error}", file=sys.stderr)
            raise SystemExit(UNUSABLE if isinstance(error, OtherCrawlError) else 1) from None

    async def _opened(self) -> None:
        # The coordinator starts now; earlier it would slow the crawl's own start.
        self._client = connection.connect(self._crawler.settings)
        self._watch = asyncio.ensure_future(self._keep_watch())

    async def _keep_watch(self) -> None:
        for tick in itertools.count():
            await asyncio.to_thread(self._keeper.look)
            if tick % SESSIONS_EVERY == 0:
                await self._end_dead_sessions()
            self._coordinator.ensure()
            if self._coordinator.hopeless:
                logger.error("no coordinator can run, so no result would be stored; ending the crawl")
                # Not awaited: the end of the crawl cancels this task.
                self._closing = asyncio.ensure_future(engine.close(self._crawler, "coordinator_failed"))
                return
            await asyncio.sleep(WATCH_SECONDS)

    async def _end_dead_sessions(self) -> None:
        """Ends sessions of agents of this machine whose process has ended, before LEASE_SECONDS.

        Not in containers, whose process ids differ.
        """
        queue = SiteQueue(self._client, self._options)
        try:
            for agent in await queue.agents():
                here = agent.get("host") == socket.gethostname()
                if here and agent.get("pid") and is_gone(int(agent["pid"])):
                    logger.warning(
                        "agent %s has ended; its %d sites are released", agent["agent"], agent["held"]
                    )
                    await queue.part(agent["agent"])
        except (RedisError, OSError, BrokenRecordError) as error:
            logger.debug("sessions could not be read: %s", error)

    async def _stopped(self) -> None:
        if self._watch:
            self._watch.cancel()
            await self._client.aclose()
        for _ in range(MOST_FAILURES):
            ready = await self._coordinator_ready()
            self._membership.leave()
            if ready and (self._server.agents_alive() or await self._stored()):
                return
            if not ready or self._coordinator.hopeless or self._waited_enough:
                break
            logger.warning("the coordinator ended before everything was stored; starting another one")
            self._membership = self._server.join("agent")
        self._membership.leave()
        logger.error("results not stored yet are kept in %s; %s", self._server.folder, self._rest())
        self._crawler.stats.set_value("finish_reason", "coordinator_failed")

    def _rest(self) -> str:
        """Who stores the rest."""
        alive = self._server.coordinator_alive()
        return "the coordinator retries" if alive else "the next run stores them"

    async def _coordinator_ready(self) -> bool:
        """False: none can run."""
        while not self._server.coordinator_alive():
            self._coordinator.ensure()
            if self._coordinator.hopeless:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True

    async def _stored(self) -> bool:
        """False: the coordinator ended before."""
        if not await self._coordinator_gone():
            self._waited_enough = True
            return False
        if self._server.agents_alive():
            return True  # other agents wait for them
        code = self._coordinator.code()
        if code is not None:
            return code == 0
        # Another agent's child. When done, it stops the server, unless a visitor uses it.
        deadline = time.monotonic() + SERVER_END_SECONDS
        while self._server.running():
            if time.monotonic() > deadline:
                return self._nothing_waits()
            await asyncio.sleep(POLL_SECONDS)
        return True

    def _nothing_waits(self) -> bool:
        with self._server.join("visitor"):
            client = connection.connect_blocking(self._crawler.settings)
            try:
                return not client.xlen(results_key(self._options.key_prefix))
            finally:
                client.close()

    async def _coordinator_gone(self) -> bool:
        """Waits until the coordinator has ended or other agents need it.

        False: no progress for too long.
        """
        progress = _Progress(self._crawler.settings, self._options)
        logged = looked = time.monotonic()
        while self._server.coordinator_alive() and not self._server.agents_alive():
            await asyncio.sleep(POLL_SECONDS)
            now = time.monotonic()
            if now - looked < WATCH_SECONDS:
                continue
            looked = now
            if not await asyncio.to_thread(self._keeper.look):
                logger.error("the bundled server cannot be started again: %s", self._keeper.trouble)
                return False
            await asyncio.to_thread(progress.look)
            if now - logged > TELL_SECONDS:
                logged = now
                logger.info("waiting for the coordinator to store the last records%s", progress.why)
            if self._told_to_end() and now - progress.since > STOPPED_WAIT_SECONDS:
                logger.error("nothing was stored for %.0f s%s", now - progress.since, progress.why)
                return False
        return True

    def _told_to_end(self) -> bool:
        return str(self._crawler.stats.get_value("finish_reason")) == "shutdown"


class _Progress:
    """The coordinator's progress, or its last reason for none. Never raises."""

    def __init__(self, settings: BaseSettings, options: Options) -> None:
        self.since = time.monotonic()  # of the last stored record
        self.why = ""  # empty: it works, or gives no reason
        self._settings = settings
        self._prefix = options.key_prefix
        self._left: int | None = None

    def look(self) -> None:
        client = connection.connect_blocking(self._settings)
        try:
            left = int(client.xlen(results_key(self._prefix)))
            sign = json.loads(client.get(heartbeat_key(self._prefix, COORDINATOR)) or b"{}")
        except (RedisError, OSError) as error:
            self.why = f": Redis does not answer: {error}"
            return
        finally:
            client.close()
        if self._left is None or left < self._left:
            self._left, self.since = left, time.monotonic()
        self.why = f"; it waits for {sign['waits_for']}: {sign['why']}" if sign.get("waits_for") else ""


class Drain:
    """Waits for the records of the first call."""

    def __init__(self, settings: BaseSettings, options: Options) -> None:
        self._settings = settings.copy()
        self._server = Server(options.var)
        self._settings.set("REDIS_URL", self._server.url, priority="cmdline")
        self._prefix = options.key_prefix
        self._mark: Mark | None = None

    def over(self) -> bool:
        """Whether they are stored, or cannot be."""
        if not self._server.coordinator_alive():
            return True
        client = connection.connect_blocking(self._settings)
        try:
            self._mark = self._mark or Mark(client, self._prefix)
            return self._mark.passed(client)
        except (RedisError, OSError):  # the coordinator restarts the server, or is ending with it
            return False
        finally:
            client.close()


class ServerKeeper:
    """Restarts a bundled server that ended while processes use it."""

    def __init__(self, server: Server) -> None:
        self.trouble = ""  # why it cannot be started; empty: none
        self._server = server
        self._gone_since = 0.0  # monotonic; 0: it was running at the last check

    def look(self) -> bool:
        """Restarts the server if needed; False after failures for GONE_SECONDS.

        Leaves alone a server that runs without answering.
        """
        try:
            if self._server.gone():
                self._server.join("visitor").leave()
        except ServerError as error:
            self.trouble = str(error)
            logger.debug("%s", error)
            self._gone_since = self._gone_since or time.monotonic()
            return time.monotonic() - self._gone_since < GONE_SECONDS
        self.trouble, self._gone_since = "", 0.0
        return True


class CoordinatorProcess:
    """The coordinator of this machine, restarted with growing pauses."""

    def __init__(self, settings: BaseSettings, options: Options, server: Server) -> None:
        self._environment = _bundled(settings, options)
        self._server = server
        self._process: subprocess.Popen[bytes] | None = None
        self._failures = 0
        self._not_before = 0.0
        self._started = 0.0

    @property
    def hopeless(self) -> bool:
        """It failed too often."""
        return self._failures >= MOST_FAILURES

    def code(self) -> int | None:
        """Its exit code; None: another process started it."""
        if self._process is None:
            return None
        code = self._process.wait()  # it has released its lock, so it is ending
        self._running()
        return code

    def ensure(self) -> None:
        """Starts one unless it runs or has just been started."""
        if self._running() or self.hopeless or time.monotonic() < self._not_before:
            return
        if self._server.coordinator_alive():
            self._failures = 0
            return
        # VAR_DIR on the command line shows to which crawl it belongs.
        where = f"VAR_DIR={self._server.var}"
        command = [sys.executable, "-m", "crawler.local.start", "coordinate", "-s", where]
        self._started = time.monotonic()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, **self._environment},
        )

    def _running(self) -> bool:
        if self._process is None:
            return False
        code = self._process.poll()
        if code is None:
            return True
        self._process = None
        if time.monotonic() - self._started > HEALTHY_SECONDS:
            self._failures = 0
        if code == UNUSABLE:
            self._failures = MOST_FAILURES
            return False
        # Code 0 counts too: while an agent runs, a coordinator that ends does not serve this crawl, unless another
        # does.
        self._failures += 1
        if code != 0:
            self._not_before = time.monotonic() + 0.2 * 2**self._failures
            logger.warning("the coordinator ended with code %d; starting another one", code)
        return False


# Exit code of a coordinator that cannot work, however often it is started.
UNUSABLE = 3
# Exit code of a coordinator stopped before everything was stored.
STOPPED = 4


# The only coordinator of a VAR_DIR has a fixed name, so its successor takes over its pending records at once.
COORDINATOR = f"{socket.gethostname()}-local"
# Used by agents only, and possibly too long for an environment; SITE_OVERRIDES may also hold secrets.
_OF_AGENTS = ("PAGE_PIPELINES", "SITE_OVERRIDES", "SCOPE_INCLUDE", "SCOPE_EXCLUDE", "STATUS_ERROR_PATTERNS")
_LOG = (
    "LOG_ENABLED",
    "LOG_ENCODING",
    "LOG_DATEFORMAT",
    "LOG_LEVEL",
    "LOG_FILE",
    "LOG_STDOUT",
    "LOG_SHORT_NAMES",
)


def handed_on(settings: BaseSettings, options: Options, **more: Any) -> dict[str, str]:
    """The environment of a child process of this crawl: every setting with its present value.

    Children do not know settings of a script, a spider's custom_settings or an add-on.
    """
    ours = {name: value for name, value in msgspec.to_builtins(options).items() if name not in _OF_AGENTS}
    others = {
        **{name: settings[name] for name in _LOG},
        "LOG_FORMAT": re.sub(r"\[agent[^]]*]", "[coordinator]", settings["LOG_FORMAT"]),
        # The file is open here already.
        "LOG_FILE_APPEND": True,
    }
    found = {**ours, **others, "VAR_DIR": str(options.var), **more}
    return {our_options.HANDED_ON: json.dumps(found, default=str)}  # str: of a path


def _bundled(settings: BaseSettings, options: Options) -> dict[str, str]:
    """For the bundled server's coordinator."""
    params = settings.getdict("REDIS_PARAMS").items()
    plain = {name: value for name, value in params if isinstance(value, str | int | float | None)}
    no_other = {"REDIS_URL": "", "REDIS_HOST": None, "REDIS_PARAMS": plain}
    extension = {"EXTENSIONS": {}, "EXTENSIONS_BASE": {connection.BUNDLED: 0}}
    environment = handed_on(settings, options, **no_other, **extension)
    if not inside_project():  # a script outside the project that loaded our settings
        environment["SCRAPY_SETTINGS_MODULE"] = "settings.local"
    return environment
