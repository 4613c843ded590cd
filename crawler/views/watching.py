"""A crawl watched by somebody: what the views show, asked for anew with each look and never more often than is cheap.

Fast figures (the queue's counts, the end of the history) are asked for at every look. What takes longer the more there
is (every site's progress, reports, loads) is made beside and kept: at most BUSY_SHARE of the time goes into each,
however many look on. Redis or the database may be away, or not there yet: then the look says so in words, and the rest
is shown.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from redis.exceptions import RedisError

from crawler.admin import sites
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

# Of the time, what figures may take that take long.
BUSY_SHARE = 0.05
# They are made anew no sooner than this, however quick they are.
LEAST_SECONDS = 0.2
# So long the first one is waited for before the rest is shown without it.
FIRST_SECONDS = 3.0
# And any other: one that is quick is shown at once.
NEXT_SECONDS = 0.1


class Seen(NamedTuple):
    """What one look saw; None: it could not be asked, and why."""

    at_ms: int
    queue: QueueNow | None
    queue_trouble: str
    tail: Tail | None  # None without trouble: there are no tables yet
    tables_trouble: str
    progress: Progress | None  # the last that was made
    pace: float  # pages a second

    @property
    def seconds_left(self) -> float | None:
        """Until all known pages are fetched, at this pace; None: nobody can say."""
        if self.progress is None or not self.pace:
            return None
        return self.progress.left / self.pace


class Kept(Generic[T]):
    """A figure that takes long: made by `make`, and anew when that has cost no more than BUSY_SHARE of the time."""

    def __init__(self, make: Callable[[], Awaitable[T]]) -> None:
        self.value: T | None = None
        self._make = make
        self._not_before = 0.0
        self._running: asyncio.Task[T] | None = None

    async def fresh(self) -> T | None:
        """The last one that is there; for the first FIRST_SECONDS are waited. Raises what `make` did."""
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
        """Nobody asks any more."""
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
    """One view's look at one crawl; inside one event loop. `close` it."""

    def __init__(self, settings: BaseSettings, options: Options) -> None:
        self.engine: Engine | None = None  # None: no tables yet
        self._settings = settings
        self.options = options
        self._client: Redis = connection.connect(settings)
        self.queue = SiteQueue(self._client, options)
        self._progress = Kept(lambda: figures.progress(self.queue))
        self._published: tuple[float, int] | None = (
            None  # when, and how many entries of the stream there had been
        )

    async def close(self) -> None:
        """Let go of server and database."""
        self._progress.drop()
        await self._client.aclose()
        if self.engine is not None:
            self.engine.dispose()

    async def look(self) -> Seen:
        """Everything that is shown now."""
        at_ms = time.time_ns() // 1_000_000
        queue, queue_trouble = await self.ask_queue()
        tail, tables_trouble = await self._ask_tables()
        pace = tail.pace(at_ms) if tail else self._pace_of_stream(queue)
        return Seen(at_ms, queue, queue_trouble, tail, tables_trouble, self._progress.value, pace)

    async def ask_queue(self) -> tuple[QueueNow | None, str]:
        """How the queue stands; or None, and why that cannot be told."""
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
        """The answer to a question, asked in a thread, of the loop's own where none are given.

        None where there are no tables yet. Raises DatabaseError.
        """
        if self.engine is None:
            self.engine = await asyncio.to_thread(sites.the_tables, self.options)
        if self.engine is None:
            return None
        return await asyncio.get_running_loop().run_in_executor(threads, question, self.engine)

    async def _ask_tables(self) -> tuple[Tail | None, str]:
        try:
            return await self.ask_tables(figures.tail), ""
        except DatabaseError as error:
            return None, str(error)

    def _pace_of_stream(self, queue: QueueNow | None) -> float:
        """Where the tables cannot be asked: what came into the stream since the look before."""
        if queue is None:
            self._published = None
            return 0.0
        now, before = time.monotonic(), self._published
        self._published = (now, queue.ever_published)
        if before is None or now - before[0] < 0.1:
            return 0.0
        return max(0.0, (queue.ever_published - before[1]) / (now - before[0]))
