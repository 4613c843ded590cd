"""One machine: starts and joins the bundled server, and sees to it that a coordinator runs beside the agents.

A Scrapy extension, so it works however a crawl is started. Not there (NotConfigured) where the settings name a
Redis. The coordinator is a process of its own that outlives the agent that started it: it drains the results
stream after the last agent has left, and then stops the server. If it dies, any agent starts another; if the server
dies, agents and coordinator start it again. Nobody waits for ever: where nothing moves, the crawl ends and says why.
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


# ------------------------------------------------------------------------------------------------------------
# For commands that look in on a crawl: the server they mean, started and left again where it is the bundled one.


@contextmanager
def joined(settings: BaseSettings, options: Options, *, changes: bool = False) -> Iterator[str]:
    """The server's address, set as REDIS_URL meanwhile; ServerError where the bundled one cannot be started.

    OptionError where none is named and the settings keep the bundled one out. What Redis raises inside becomes a
    ServerAwayError in words. `changes`: at the end of the block what was changed is on the bundled server's disk; a
    server with a name has its own rule for that (`appendfsync`).
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
    """Whether it is certain where this crawl's tables are; not inside of `joined`.

    They are in VAR_DIR only where the server is; what lies there on a machine of a cluster is another crawl's.
    """
    local = connection.may_serve_itself(settings) and not connection.is_named(settings)
    return local or bool(options.database_url)


def require_tables(settings: BaseSettings, options: Options) -> None:
    """OptionError where this crawl's tables are asked for and nobody said where they are."""
    if not names_tables(settings, options):
        raise OptionError(
            "DATABASE_URL is empty; expected the database of this crawl's coordinators "
            f"(one that runs here without a name for it writes to {options.database})"
        )


@contextmanager
def _in_words(settings: BaseSettings) -> Iterator[None]:
    try:
        yield
    except RedisError as error:
        raise connection.ServerAwayError(connection.explained(settings, error)) from None


# ------------------------------------------------------------------------------------------------------------
# What a process without an event loop of Scrapy's does on one machine: use the bundled server, see to a coordinator.
#
# The same share that crawler.local.local gives an agent: a membership in the server, a coordinator started where none
# runs, the server started again where it died. At the end whoever leaves last makes sure that a coordinator is there
# to store what waits, and does not wait for it. ServerError where the server cannot be had.


class Beside:
    """One process's share in the machine's own server, from its making to the end of `with`.

    `trouble` says why it ended the work by itself; empty: it did not.
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
        """Where the server listens."""
        return self._membership.url

    async def watch(self, stop: asyncio.Event) -> None:
        """Looks after server and coordinator; sets `stop` where one of them cannot be had."""
        while not self.trouble:
            await asyncio.sleep(WATCH_SECONDS)
            if not await asyncio.to_thread(self._keeper.look):
                self.trouble = f"the bundled server cannot be started again: {self._keeper.trouble}"
            self._coordinator.ensure()
            if self._coordinator.hopeless:
                self.trouble = (
                    "no coordinator can run, so nothing would be stored; what came is kept in the stream"
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
# Every how many looks at the coordinator the agents' sessions are looked at too.
SESSIONS_EVERY = 3
# A coordinator that ends by an error this often in a row is not started again.
MOST_FAILURES = 3
# One that ran this long has recovered: its next failure counts as the first.
HEALTHY_SECONDS = 60.0
POLL_SECONDS = 0.02
# How long a server may take to end after its coordinator before we look what is in it.
SERVER_END_SECONDS = 2.0
TELL_SECONDS = 5.0
# A server that cannot be started again for so long is given up.
GONE_SECONDS = 60.0
# An agent that was told to end waits so long for a coordinator that stores nothing, and leaves the rest to it. Below
# what process managers allow (systemd 90 s).
STOPPED_WAIT_SECONDS = 20.0


class LocalServer:
    """One process's share in the machine's own server."""

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
        """Built by Scrapy; OptionError where a setting cannot be used, before anything is started."""
        if connection.is_named(crawler.settings):
            raise NotConfigured
        try:
            return cls(crawler, our_options.read_checked(crawler.settings))
        except ServerError as error:
            print(f"lowtide: {error}", file=sys.stderr)
            raise SystemExit(UNUSABLE if isinstance(error, OtherCrawlError) else 1) from None

    async def _opened(self) -> None:
        # The coordinator starts from here on: before, it would take processors from the crawl's own start.
        self._client = connection.connect(self._crawler.settings)
        self._watch = asyncio.ensure_future(self._keep_watch())

    async def _keep_watch(self) -> None:
        for tick in itertools.count():
            await asyncio.to_thread(self._keeper.look)
            if tick % SESSIONS_EVERY == 0:
                await self._end_dead_sessions()
            self._coordinator.ensure()
            if self._coordinator.hopeless:
                logger.error("no coordinator can run, so no result would be stored: the crawl ends")
                # Not waited for: the end of the crawl ends this watch, and would cancel itself with it.
                self._closing = asyncio.ensure_future(engine.close(self._crawler, "coordinator_failed"))
                return
            await asyncio.sleep(WATCH_SECONDS)

    async def _end_dead_sessions(self) -> None:
        """The sites of an agent of this machine whose process is gone need not wait.

        Elsewhere a session ends LEASE_SECONDS after its last sign of life, and so it does here if Redis is away now.
        Agents that share the server through VAR_DIR may yet run in containers, where process ids are others.
        """
        queue = SiteQueue(self._client, self._options)
        try:
            for agent in await queue.agents():
                here = agent.get("host") == socket.gethostname()
                if here and agent.get("pid") and is_gone(int(agent["pid"])):
                    logger.warning(
                        "agent %s is gone; its %d sites are handed on", agent["agent"], agent["held"]
                    )
                    await queue.part(agent["agent"])
        except (RedisError, OSError, BrokenRecordError) as error:
            logger.debug("sessions could not be looked at: %s", error)

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
            logger.warning("the coordinator ended before everything was stored; another one is started")
            self._membership = self._server.join("agent")
        self._membership.leave()
        logger.error("results that are not stored yet are kept in %s; %s", self._server.folder, self._rest())
        self._crawler.stats.set_value("finish_reason", "coordinator_failed")

    def _rest(self) -> str:
        """Who stores what is left."""
        alive = self._server.coordinator_alive()
        return "the coordinator goes on trying" if alive else "the next run stores them"

    async def _coordinator_ready(self) -> bool:
        """One must have joined before the last agent may leave; False: none can run."""
        while not self._server.coordinator_alive():
            self._coordinator.ensure()
            if self._coordinator.hopeless:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True

    async def _stored(self) -> bool:
        """The last agent's crawl is over when its results are in the tables; False: the coordinator died before."""
        if not await self._coordinator_gone():
            self._waited_enough = True
            return False
        if self._server.agents_alive():
            return True  # their business now
        code = self._coordinator.code()
        if code is not None:
            return code == 0
        # Another agent's child. One that was done stops the server as it goes, unless somebody looks in.
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
        """Wait until it is, or others need it; False: it moves nothing, and that was not waited for any longer."""
        progress = _Progress(self._crawler.settings, self._options)
        told = looked = time.monotonic()
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
            if now - told > TELL_SECONDS:
                told = now
                logger.info("waiting for the coordinator to store the last records%s", progress.why)
            if self._told_to_end() and now - progress.since > STOPPED_WAIT_SECONDS:
                logger.error("nothing was stored for %.0f s%s", now - progress.since, progress.why)
                return False
        return True

    def _told_to_end(self) -> bool:
        return str(self._crawler.stats.get_value("finish_reason")) == "shutdown"


class _Progress:
    """Whether the coordinator still stores what waits, and if not, what it last said; never fails."""

    def __init__(self, settings: BaseSettings, options: Options) -> None:
        self.since = time.monotonic()  # of the last record that was stored
        self.why = ""  # empty: it works, or does not say
        self._settings = settings
        self._prefix = options.key_prefix
        self._left: int | None = None

    def look(self) -> None:
        """Ask the server."""
        client = connection.connect_blocking(self._settings)
        try:
            left = int(client.xlen(results_key(self._prefix)))
            sign = json.loads(client.get(heartbeat_key(self._prefix, COORDINATOR)) or b"{}")
        except (RedisError, OSError) as error:
            self.why = f", since Redis does not answer: {error}"
            return
        finally:
            client.close()
        if self._left is None or left < self._left:
            self._left, self.since = left, time.monotonic()
        self.why = f"; it waits for {sign['waits_for']}: {sign['why']}" if sign.get("waits_for") else ""


class Drain:
    """For whoever waits for a crawl's results beside other crawls of this VAR_DIR: what was there when it began."""

    def __init__(self, settings: BaseSettings, options: Options) -> None:
        self._settings = settings.copy()
        self._server = Server(options.var)
        self._settings.set("REDIS_URL", self._server.url, priority="cmdline")
        self._prefix = options.key_prefix
        self._mark: Mark | None = None

    def over(self) -> bool:
        """Whether all that was in the stream at the first call is stored, as far as a coordinator can see to it."""
        if not self._server.coordinator_alive():
            return True
        client = connection.connect_blocking(self._settings)
        try:
            self._mark = self._mark or Mark(client, self._prefix)
            return self._mark.passed(client)
        except (RedisError, OSError):  # the coordinator starts it again, or is just ending with it
            return False
        finally:
            client.close()


class ServerKeeper:
    """Starts the bundled server again where it died under those who use it."""

    def __init__(self, server: Server) -> None:
        self.trouble = ""  # why it cannot be had just now
        self._server = server
        self._gone_since = 0.0  # monotonic; 0: it was there when last seen

    def look(self) -> bool:
        """See to it that it runs; False once that did not succeed for GONE_SECONDS.

        One that is alive but does not answer is left to recover, one that nobody works with to its end.
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
    """The coordinator beside this machine's agents: started where none runs, with growing pauses if it fails."""

    def __init__(self, settings: BaseSettings, options: Options, server: Server) -> None:
        self._environment = _bundled(settings, options)
        self._server = server
        self._process: subprocess.Popen[bytes] | None = None
        self._failures = 0
        self._not_before = 0.0
        self._started = 0.0

    @property
    def hopeless(self) -> bool:
        """Whether it ended by an error too often to try again."""
        return self._failures >= MOST_FAILURES

    def code(self) -> int | None:
        """How the coordinator that this process started has ended; None: it was another's child."""
        if self._process is None:
            return None
        code = self._process.wait()  # it gave its lock away, so it is ending
        self._running()
        return code

    def ensure(self) -> None:
        """Start one unless one is alive or was started a moment ago."""
        if self._running() or self.hopeless or time.monotonic() < self._not_before:
            return
        if self._server.coordinator_alive():
            self._failures = 0
            return
        # VAR_DIR tells a person which crawl it is of.
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
        # Code 0 too: one that ends while an agent is there does not serve this crawl, unless another one does.
        self._failures += 1
        if code != 0:
            self._not_before = time.monotonic() + 0.2 * 2**self._failures
            logger.warning("the coordinator ended with code %d; another one is started", code)
        return False


# Exit code of a coordinator that will not work however often it is started.
UNUSABLE = 3
# Exit code of one that was told to end before everything was stored.
STOPPED = 4


# The one coordinator of a VAR_DIR has one name: a successor goes on at once with what one that was killed had read.
COORDINATOR = f"{socket.gethostname()}-local"
# What agents alone use and what may be too long for an environment; SITE_OVERRIDES may hold secrets of sites too.
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
    """The environment of a coordinator or planner of this crawl: every setting with the value that it has here.

    A process that is started reads the project's settings again, but knows nothing of a script, a spider's
    custom_settings or an add-on.
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
    """The environment of the bundled server's coordinator."""
    params = settings.getdict("REDIS_PARAMS").items()
    plain = {name: value for name, value in params if isinstance(value, str | int | float | None)}
    no_other = {"REDIS_URL": "", "REDIS_HOST": None, "REDIS_PARAMS": plain}
    extension = {"EXTENSIONS": {}, "EXTENSIONS_BASE": {connection.BUNDLED: 0}}
    environment = handed_on(settings, options, **no_other, **extension)
    if not inside_project():  # a script somewhere else, that read our settings by itself
        environment["SCRAPY_SETTINGS_MODULE"] = "settings.local"
    return environment
