"""Reads the figures of views, at bounded cost.

Fast figures are read at every call. Slow ones (progress, reports, loads) are cached and take at most
BUSY_SHARE of the time each. If Redis or the database is unavailable, the result has the reason.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from redis.exceptions import RedisError

from crawler.admin import operator
from crawler.queue import connection
from crawler.queue.errors import BrokenRecordError
from crawler.queue.queue import SiteQueue
from crawler.store.database import DatabaseError
from crawler.views import figures
from crawler.views.figures import Progress, QueueNow, Tail

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from scrapy.settings import BaseSettings
    from sqlalchemy import Engine

    from crawler.options import Options

T = TypeVar("T")

# Limit of the share of time for each slow figure.
BUSY_SHARE = 0.05
# Least interval between two computations.
LEAST_SECONDS = 0.2
# Limit of the wait for a first value.
FIRST_SECONDS = 3.0
# Limit of the wait for later values.
NEXT_SECONDS = 0.1


class Seen(NamedTuple):
    """None: unavailable; `…_trouble` has the reason."""

    at_ms: int
    queue: QueueNow | None
    queue_trouble: str
    tail: Tail | None  # None without trouble: there are no tables yet
    tables_trouble: str
    progress: Progress | None  # the cached value
    pace: float  # pages per second

    @property
    def seconds_left(self) -> float | None:
        """At this pace; None: unknown."""
        if self.progress is None or not self.pace:
            return None
        return self.progress.left / self.pace


class Kept(Generic[T]):
    """A cached figure that takes at most BUSY_SHARE of the time."""

    def __init__(self, make: Callable[[], Awaitable[T]]) -> None:
        self.value: T | None = None
        self._make = make
        self._not_before = 0.0
        self._running: asyncio.Task[T] | None = None

    async def fresh(self) -> T | None:
        """Waits up to FIRST_SECONDS for the first value. Raises what `make` raised."""
        if self._running is None and time.monotonic() >= self._not_before:
            self._running = asyncio.ensure_future(self._timed())
        running = self._running
        if running is not None:
            await asyncio.wait({running}, timeout=FIRST_SECONDS if self.value is None else NEXT_SECONDS)
        if running is not None and running.done() and running is self._running:
            self._running = None
            self.value = running.result()
        return self.value

    def drop(self) -> None:
        """Cancel a running computation."""
        if self._running:
            self._running.cancel()

    async def _timed(self) -> T:
        began = time.monotonic()
        try:
            return await self._make()
        finally:
            took = time.monotonic() - began
            self._not_before = time.monotonic() + max(LEAST_SECONDS, took / BUSY_SHARE)


class Watch:
    """The figures of one crawl; within one event loop."""

    def __init__(self, settings: BaseSettings, options: Options) -> None:
        self.engine: Engine | None = None  # None: no tables yet
        self._settings = settings
        self.options = options
        self._client: Redis = connection.connect(settings)
        self.queue = SiteQueue(self._client, options)
        self._progress = Kept(lambda: figures.progress(self.queue))
        self._published: tuple[float, int] | None = None  # when, and the stream's number of entries

    async def close(self) -> None:
        """Close all connections."""
        self._progress.drop()
        await self._client.aclose()
        if self.engine is not None:
            self.engine.dispose()

    async def look(self) -> Seen:
        """All figures of the views."""
        at_ms = time.time_ns() // 1_000_000
        queue, queue_trouble = await self.ask_queue()
        tail, tables_trouble = await self._ask_tables()
        pace = tail.pace(at_ms) if tail else self._pace_of_stream(queue)
        return Seen(at_ms, queue, queue_trouble, tail, tables_trouble, self._progress.value, pace)

    async def ask_queue(self) -> tuple[QueueNow | None, str]:
        """The queue's figures; or None, and why not."""
        try:
            now = await figures.queue_now(self._client, self.queue, self.options)
            await self._progress.fresh()
        except (RedisError, OSError, BrokenRecordError) as error:
            words = (
                connection.explained(self._settings, error) if isinstance(error, RedisError) else str(error)
            )
            return None, words
        return now, ""

    async def ask_tables(
        self, question: Callable[[Engine], T], threads: ThreadPoolExecutor | None = None
    ) -> T | None:
        """Runs `question` in a thread. None without tables. Raises DatabaseError."""
        if self.engine is None:
            self.engine = await asyncio.to_thread(operator.the_tables, self.options)
        if self.engine is None:
            return None
        return await asyncio.get_running_loop().run_in_executor(threads, question, self.engine)

    async def _ask_tables(self) -> tuple[Tail | None, str]:
        try:
            return await self.ask_tables(figures.tail), ""
        except DatabaseError as error:
            return None, str(error)

    def _pace_of_stream(self, queue: QueueNow | None) -> float:
        """Without tables: new entries of the stream."""
        if queue is None:
            self._published = None
            return 0.0
        now, before = time.monotonic(), self._published
        self._published = (now, queue.ever_published)
        if before is None or now - before[0] < 0.1:
            return 0.0
        return max(0.0, (queue.ever_published - before[1]) / (now - before[0]))
