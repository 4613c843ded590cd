"""Adds seeds to the site queue; adding a seed twice changes nothing.

A start URL leaves Redis only after its site was queued, so a crash loses none.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from crawler import records
from crawler.agent.session import Author, now_ms
from crawler.queue import connection
from crawler.queue.queue import SiteQueue
from crawler.queue.sites import Newcomer
from crawler.queue.start_urls import StartUrls
from crawler.urls import seeds as reading
from crawler.urls.scope import Scope
from crawler.urls.seeds import BadSeed, Seed

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from scrapy.settings import BaseSettings

    from crawler.options import Options

logger = logging.getLogger("seeds")

BATCH = 1000
# Invalid lines logged one by one; further ones are counted.
TOLD_LINES = 20
# Longest wait for the spider's `start`, which may be endless.
START_SECONDS = 300.0
# Excluded seeds that are named; further ones are counted.
NAMED_SEEDS = 5


class NoContactError(Exception):
    """USER_AGENT has no contact, and the crawl would leave loopback."""


class Added(NamedTuple):
    """Numbers of sites by result; `bad` counts lines, `left_out` seeds outside the scope."""

    new: int = 0
    known: int = 0
    again: int = 0
    refused: int = 0
    bad: int = 0
    left_out: int = 0
    blocked: int = 0

    def __add__(self, other: Any) -> Added:
        return Added(*(mine + others for mine, others in zip(self, other, strict=True)))


async def add_seeds(settings: BaseSettings, options: Options, source: str) -> Added:
    """Raises RedisError if Redis is away, OSError for an unreadable file."""
    async with _outside(settings, options) as seeding:
        return await seeding.take_in(source)


async def take_over(settings: BaseSettings, options: Options, key: str, server: BaseSettings) -> Added:
    """Queue another crawler's start URLs from `key` on `server`. Raises RedisError if either Redis is away."""
    client = connection.connect(server)
    try:
        async with _outside(settings, options) as seeding:
            return await seeding.take_over(StartUrls(client, key))
    finally:
        await client.aclose()


@asynccontextmanager
async def _outside(settings: BaseSettings, options: Options) -> AsyncIterator[Seeding]:
    client = connection.connect(settings)
    queue = SiteQueue(client, options)
    try:
        yield Seeding(client, queue, options, Scope(options), Author("seed"), settings["USER_AGENT"])
    finally:
        await client.aclose()


class Seeding:
    """Queues one agent's seeds and extends the scope of all agents."""

    def __init__(
        self,
        client: Redis,
        queue: SiteQueue,
        options: Options,
        scope: Scope,
        author: Author,
        user_agent: str,
    ) -> None:
        self.given = asyncio.Event()  # set when `queue_given` has seeds
        self.starting: Callable[[], bool] = lambda: (
            False
        )  # whether the spider's `start` may still yield seeds
        self._user_agent = user_agent
        self._client: Any = client
        self._queue = queue
        self._options = options
        self._scope = scope
        self._author = author
        self._source: Iterator[Seed] | None = None
        self._batch: list[Seed] = []  # being queued
        self._answers: Counter[int] = Counter()
        self._taken_in = False
        self._drained = False  # the initial start URLs in Redis were queued
        self._start_until = math.inf  # monotonic time at which waiting for `start` ends
        self._read = False
        self._start_seeds: list[Seed] = []
        self._bad = 0
        self.left_out = 0  # seeds excluded by SCOPE_INCLUDE or SCOPE_EXCLUDE
        self._left_out: list[str] = []  # the first ones not yet logged
        self._logged_left_out = 0
        self._inlet = StartUrls(client, options.start_urls_key)
        self._roots_key = f"{options.key_prefix}:{{0}}:scope"

    async def take_in(self, source: str) -> Added:
        """Queue the seeds of `source` (file, `-`, or URLs); after an error, call again."""
        if self._source is None:
            self._source = iter(self._good(reading.read(source)) if source else ())
        while batch := self._batch or list(itertools.islice(self._source, BATCH)):
            self._batch = batch
            self._answers.update(await self.queue_seeds(batch))
            self._batch = []
        if self._bad > TOLD_LINES:
            logger.warning("%d invalid lines skipped in total", self._bad)
        if not self._taken_in:
            self._taken_in, self._start_until = True, time.monotonic() + START_SECONDS
        self._log_left_out()
        return self._added(self._answers)

    def _added(self, answers: Counter[int]) -> Added:
        return Added(
            answers[1], answers[0], answers[2], answers[-1], self._bad, self.left_out, blocked=answers[-2]
        )

    @property
    def read(self) -> bool:
        """Whether all initial seeds are queued: the argument, the start URLs, the spider's `start`.

        The latter within START_SECONDS.
        """
        if not self._read:
            started = not self.starting() and not self._start_seeds
            self._read = (
                self._taken_in and self._drained and (started or time.monotonic() > self._start_until)
            )
        return self._read

    def stop_waiting(self) -> None:
        """Stop waiting for `start`."""
        if self._taken_in:
            self._start_until = -math.inf

    @property
    def done(self) -> bool:
        """Whether all given seeds are queued."""
        return self._taken_in and not self._start_seeds

    def give(self, seed: Seed) -> None:
        """Accept a start request for `queue_given`."""
        self._start_seeds.append(seed)
        self.given.set()

    async def queue_given(self) -> int:
        """Returns the number of seeds."""
        self.given.clear()
        seeds = list(self._start_seeds)
        if seeds:
            await self.queue_seeds(seeds)
            del self._start_seeds[: len(seeds)]
            self._log_left_out()
        return len(seeds)

    async def drain_inlet(self) -> int:
        """Queue the start URLs in Redis. Returns their number."""
        total = self._bad = 0
        backlog = 0 if self._drained else await self._inlet.length()
        while values := await self._inlet.peek():
            await self.queue_seeds(self._visitable(self._good(map(reading.from_inlet, values))))
            await self._inlet.remove(values)
            total += len(values)
            self._drained = self._drained or total >= backlog
        self._drained = True
        self._log_left_out()
        return total

    async def inlet_length(self) -> int:
        """Number of start URLs in Redis."""
        return await self._inlet.length()

    async def take_over(self, inlet: StartUrls) -> Added:
        """Queue and remove another crawler's values; invalid ones stay."""
        answers: Counter[int] = Counter()
        async for values in inlet.all():
            found = [(value, reading.from_inlet(value)) for value in values]
            answers.update(await self.queue_seeds(self._good(seed for _, seed in found)))
            await inlet.remove([value for value, seed in found if isinstance(seed, Seed)])
        self._log_left_out()
        return self._added(answers)

    async def queue_seeds(self, seeds: Iterable[Seed]) -> list[int]:
        """Returns the result of `SiteQueue.discover` per site."""
        paths: dict[str, dict[str, None]] = {}
        left_out: list[str] = []
        for seed in seeds:
            self._require_contact(seed)
            url = seed.site + seed.path
            if self._scope.has_page(url):
                paths.setdefault(seed.site, {})[seed.path] = None
            else:
                left_out.append(url)
        await self.widen(paths)
        if self._options.walk_again:
            await self._follow_moved(paths)
        newcomers = [self._newcomer(site, given, "seed") for site, given in paths.items()]
        answers = await self._queue.discover(
            newcomers, self._options.max_sites, again=self._options.walk_again
        )
        blocked = [one.site for one, answer in zip(newcomers, answers, strict=True) if answer == -2]
        if blocked:
            more = f" and {len(blocked) - NAMED_SEEDS:,} more" if len(blocked) > NAMED_SEEDS else ""
            logger.warning(
                "seeds of blocked sites dropped: %s%s; expected `scrapy site resume SITE` first, then add "
                "the seeds again",
                " ".join(blocked[:NAMED_SEEDS]),
                more,
            )
        refused = answers.count(-1)
        if refused:
            logger.warning("%d sites left out: MAX_SITES is %d", refused, self._options.max_sites)
        self.left_out += len(left_out)
        self._left_out += left_out[: NAMED_SEEDS - len(self._left_out)]
        return answers

    def _log_left_out(self) -> None:
        many, self._logged_left_out = self.left_out - self._logged_left_out, self.left_out
        if many:
            named, self._left_out = self._left_out, []
            more = ", the first" if many > len(named) else ""
            logger.warning(
                "%d seeds excluded by SCOPE_INCLUDE or SCOPE_EXCLUDE%s: %s", many, more, " ".join(named)
            )

    async def note_moved(self, moved: Iterable[tuple[str, str, str]]) -> None:
        """Add redirect targets of seeds to the scope."""
        moved = list(moved)
        await self._queue.note_moved(moved)
        await self.widen(site for _, site, _ in moved)

    async def _follow_moved(self, paths: dict[str, dict[str, None]]) -> None:
        """Known redirect targets are crawled again too."""
        left = list(paths)
        while left:
            found: dict[str, dict[str, None]] = {}
            for site, path in await self._queue.moved(left):
                if site not in paths and self._scope.has_page(site + path):
                    found.setdefault(site, {})[path] = None
            paths.update(found)
            left = list(found)

    def _newcomer(self, site: str, paths: Iterable[str], source: str) -> Newcomer:
        record = records.SiteFound(site=site, found_at=now_ms(), source=source)
        return Newcomer(site, self._author.numbered(record), tuple(paths))

    def may_visit(self, site: str) -> bool:
        """Whether it is on loopback, or USER_AGENT has a contact."""
        return not reading.leaves_loopback(Seed(site, "/")) or reading.names_contact(self._user_agent)

    def _require_contact(self, seed: Seed) -> None:
        if not self.may_visit(seed.site):
            raise NoContactError(reading.no_contact(self._user_agent, seed.site))

    def _visitable(self, seeds: Iterable[Seed]) -> Iterator[Seed]:
        for seed in seeds:
            if self.may_visit(seed.site):
                yield seed
            else:
                logger.warning("%s skipped: USER_AGENT %r has no contact", seed.site, self._user_agent)

    async def refresh_scope(self) -> bool:
        """Load other agents' scope. Returns whether it grew."""
        if self._scope.kind not in ("host", "domain"):
            return False
        return self._scope.widen({root.decode() for root in await self._client.smembers(self._roots_key)})

    async def widen(self, sites: Iterable[str]) -> None:
        """Extend the scope of all agents."""
        roots = set(chain.from_iterable(map(self._scope.roots_of, sites)))
        if roots:
            await self._client.sadd(self._roots_key, *roots)
            self._scope.widen(roots)

    def _good(self, found: Iterable[Seed | BadSeed]) -> Iterable[Seed]:
        for seed in found:
            if isinstance(seed, Seed):
                yield seed
                continue
            self._bad += 1
            if self._bad <= TOLD_LINES:
                where = f"line {seed.line}: " if seed.line else ""
                logger.warning("%s%r is not a seed: %s", where, seed.text, seed.reason)
