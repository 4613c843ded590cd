"""Seeds on their way into the site queue: by any agent, twice or not.

A value leaves the inlet only after its site was queued, so an agent that dies in between costs nothing. Lines that
are no seeds are logged (with their number) and left out; so are seeds that SCOPE_INCLUDE or SCOPE_EXCLUDE leaves out.
Where a seed redirects to another site, that page is the seed.
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
# Bad lines that are told one by one; the rest is counted.
TOLD_LINES = 20
# How long an agent waits for the end of its spider's `start` before it takes the seeds as read: it may go on for ever.
START_SECONDS = 300.0
# Seeds outside of the patterns that are named; the rest is counted.
NAMED_SEEDS = 5


class NoContactError(Exception):
    """The crawl would leave loopback under a user agent that names nobody to turn to."""


class Added(NamedTuple):
    """What became of seeds, in sites; `bad` counts lines, `left_out` seeds that the patterns of the scope leave out.

    Of those that are `blocked` nothing is fetched.
    """

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
    """Queue seeds from outside of any agent; RedisError where the server is away, OSError for a file."""
    async with _outside(settings, options) as seeding:
        return await seeding.take_in(source)


async def take_over(settings: BaseSettings, options: Options, key: str, server: BaseSettings) -> Added:
    """Queue what another crawler left in a key of a server (the settings that name it); RedisError if one is away."""
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
    """Queues seeds for one agent and keeps its scope as wide as all agents' seeds together."""

    def __init__(
        self,
        client: Redis,
        queue: SiteQueue,
        options: Options,
        scope: Scope,
        author: Author,
        user_agent: str,
    ) -> None:
        self.given = asyncio.Event()  # `queue_given` has something to do
        self.starting: Callable[[], bool] = lambda: False  # whether the spider's `start` may still give seeds
        self._user_agent = user_agent
        self._client: Any = client
        self._queue = queue
        self._options = options
        self._scope = scope
        self._author = author
        self._source: Iterator[Seed] | None = None
        self._batch: list[Seed] = []  # of the source, in hand
        self._answers: Counter[int] = Counter()
        self._taken_in = False
        self._drained = False  # the inlet's values were queued that waited there at first
        self._start_until = math.inf  # monotonic: when `start` is waited for no longer
        self._read = False
        self._start_seeds: list[Seed] = []
        self._bad = 0
        self.left_out = 0  # seeds, by SCOPE_INCLUDE or SCOPE_EXCLUDE
        self._left_out: list[str] = []  # the first of those that are not told yet
        self._told_left_out = 0
        self._inlet = StartUrls(client, options.start_urls_key)
        self._roots_key = f"{options.key_prefix}:{{0}}:scope"

    async def take_in(self, source: str) -> Added:
        """Queue what `source` names (file, `-`, or URLs); called again after an error it goes on where it was."""
        if self._source is None:
            self._source = iter(self._good(reading.read(source)) if source else ())
        while batch := self._batch or list(itertools.islice(self._source, BATCH)):
            self._batch = batch
            self._answers.update(await self.queue_seeds(batch))
            self._batch = []
        if self._bad > TOLD_LINES:
            logger.warning("%d lines in all were no seeds and were left out", self._bad)
        if not self._taken_in:
            self._taken_in, self._start_until = True, time.monotonic() + START_SECONDS
        self._tell_left_out()
        return self._added(self._answers)

    def _added(self, answers: Counter[int]) -> Added:
        return Added(
            answers[1], answers[0], answers[2], answers[-1], self._bad, self.left_out, blocked=answers[-2]
        )

    @property
    def read(self) -> bool:
        """Whether the seeds that this crawl begins with are queued: a site that is not known now is no seed.

        They are those of the argument, those that waited in the inlet, and those of the spider's `start`, for which it
        is waited START_SECONDS at most.
        """
        if not self._read:
            started = not self.starting() and not self._start_seeds
            self._read = (
                self._taken_in and self._drained and (started or time.monotonic() > self._start_until)
            )
        return self._read

    def stop_waiting(self) -> None:
        """There is no room for more pages: do not wait for the end of `start`."""
        if self._taken_in:
            self._start_until = -math.inf

    @property
    def done(self) -> bool:
        """Whether all seeds given to this agent are queued."""
        return self._taken_in and not self._start_seeds

    def give(self, seed: Seed) -> None:
        """A start request of the spider's; `queue_given` queues it."""
        self._start_seeds.append(seed)
        self.given.set()

    async def queue_given(self) -> int:
        """Queue what the spider's start has given so far; how many."""
        self.given.clear()
        seeds = list(self._start_seeds)
        if seeds:
            await self.queue_seeds(seeds)
            del self._start_seeds[: len(seeds)]
            self._tell_left_out()
        return len(seeds)

    async def drain_inlet(self) -> int:
        """Queue what `redis-cli lpush site:start_urls …` brought, in a list, set or sorted set; how many."""
        total = self._bad = 0
        backlog = 0 if self._drained else await self._inlet.length()
        while values := await self._inlet.peek():
            await self.queue_seeds(self._visitable(self._good(map(reading.from_inlet, values))))
            await self._inlet.remove(values)
            total += len(values)
            self._drained = self._drained or total >= backlog
        self._drained = True
        self._tell_left_out()
        return total

    async def inlet_length(self) -> int:
        """Values that wait in the inlet."""
        return await self._inlet.length()

    async def take_over(self, inlet: StartUrls) -> Added:
        """Queue what another crawler's key holds; a value leaves it once its site is queued.

        What is no seed (a pickled request, say) stays there, told and counted.
        """
        answers: Counter[int] = Counter()
        async for values in inlet.all():
            found = [(value, reading.from_inlet(value)) for value in values]
            answers.update(await self.queue_seeds(self._good(seed for _, seed in found)))
            await inlet.remove([value for value, seed in found if isinstance(seed, Seed)])
        self._tell_left_out()
        return self._added(answers)

    async def queue_seeds(self, seeds: Iterable[Seed]) -> list[int]:
        """Queue seeds, with what they add to the scope; per site what `SiteQueue.discover` answers."""
        paths: dict[str, dict[str, None]] = {}
        left_out: list[str] = []
        for seed in seeds:
            self._ask_for_contact(seed)
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
                "the operator blocked %s%s: these seeds are dropped; `scrapy site resume SITE` lifts it, then give "
                "them again",
                " ".join(blocked[:NAMED_SEEDS]),
                more,
            )
        refused = answers.count(-1)
        if refused:
            logger.warning("%d sites were left out: MAX_SITES is %d", refused, self._options.max_sites)
        self.left_out += len(left_out)
        self._left_out += left_out[: NAMED_SEEDS - len(self._left_out)]
        return answers

    def _tell_left_out(self) -> None:
        """Say which seeds the patterns left out since the last call."""
        many, self._told_left_out = self.left_out - self._told_left_out, self.left_out
        if many:
            named, self._left_out = self._left_out, []
            more = ", the first" if many > len(named) else ""
            logger.warning(
                "%d seeds are left out by SCOPE_INCLUDE or SCOPE_EXCLUDE%s: %s", many, more, " ".join(named)
            )

    async def note_moved(self, moved: Iterable[tuple[str, str, str]]) -> None:
        """Seeds of a site redirect to another site's path: it joins the scope, and is crawled again with the seeds."""
        moved = list(moved)
        await self._queue.note_moved(moved)
        await self.widen(site for _, site, _ in moved)

    async def _follow_moved(self, paths: dict[str, dict[str, None]]) -> None:
        """The sites that seeds of these sites are known to redirect to: crawled again with them, from that page on."""
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
        """Whether this crawl may go there: on loopback, or under a user agent that names a contact."""
        return not reading.leaves_loopback(Seed(site, "/")) or reading.names_contact(self._user_agent)

    def _ask_for_contact(self, seed: Seed) -> None:
        if not self.may_visit(seed.site):
            raise NoContactError(reading.no_contact(self._user_agent, seed.site))

    def _visitable(self, seeds: Iterable[Seed]) -> Iterator[Seed]:
        for seed in seeds:
            if self.may_visit(seed.site):
                yield seed
            else:
                logger.warning("%s is left out: USER_AGENT %r names no contact", seed.site, self._user_agent)

    async def refresh_scope(self) -> bool:
        """Take in what other agents' seeds added to the scope; whether there was anything."""
        if self._scope.kind not in ("host", "domain"):
            return False
        return self._scope.widen({root.decode() for root in await self._client.smembers(self._roots_key)})

    async def widen(self, sites: Iterable[str]) -> None:
        """Take what seeds of these sites add into the scope of all agents."""
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
                logger.warning("%s%r is no seed: %s", where, seed.text, seed.reason)
