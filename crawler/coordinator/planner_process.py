"""The planner's process: what the tables know of sites' hours, and a loop that outlives outages of Redis and database.

A process of its own beside each coordinator, so that writing never waits for planning; of all of them one plans
(crawler.planning.planner). While the database is away it plans by what it has read; while Redis is, it waits.

Raises redis.RedisError where the server refuses us (password, wrong kind of key), BrokenRecordError where a key has
what no agent wrote, OptionError for a setting.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from redis.exceptions import RedisError
from sqlalchemy import select

from crawler.planning.load_store import LoadedTable, load_table
from crawler.planning.planner import Planner
from crawler.planning.site_view import Hours
from crawler.queue import connection
from crawler.queue.errors import BrokenRecordError
from crawler.queue.queue import SiteQueue
from crawler.recheck.planner import RecheckPlanner
from crawler.schedulers.law import HOURS, UNKNOWN
from crawler.store.database import DatabaseError, check_version, open_database, transaction
from crawler.store.tables import sites

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings
    from sqlalchemy import Engine

    from crawler.options import Options

logger = logging.getLogger("planner")

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 5.0
TELL_AFTER_SECONDS = 2.0
# Sites of which the order is read at a time.
STRETCH = 10_000
# The order of a site that the tables do not have yet: behind all that they have.
LAST = np.iinfo(np.int64).max


async def plan_hours(settings: BaseSettings, options: Options, stop: asyncio.Event) -> None:
    """Plan, and pack what the works beside loading ask, until `stop` is set."""
    client = connection.connect(settings)
    queue = SiteQueue(client, options)
    name = f"{socket.gethostname()}-{os.getpid()}"
    loads = TableLoads(options)
    planner = Planner(queue, options, loads, name)
    packer = RecheckPlanner(queue, options, name, loads)
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_keep_looking(planner.look, stop, tells=True))
            tasks.create_task(_keep_looking(packer.look, stop, tells=False))
    except* (RedisError, BrokenRecordError) as group:
        raise group.exceptions[0] from None
    finally:
        packer.close()
        loads.close()
        await client.aclose()


async def _keep_looking(look: Callable[[], Awaitable[float]], stop: asyncio.Event, *, tells: bool) -> None:
    """Call it again and again, as it says; a server or a database that is away is waited for."""
    pause = FIRST_PAUSE_SECONDS
    while not stop.is_set():
        try:
            wait = await look()
            pause = _back(pause) if tells else FIRST_PAUSE_SECONDS
        except (RedisError, OSError, DatabaseError) as error:
            if isinstance(error, RedisError) and not connection.passes(error):
                raise
            wait, pause = pause, _gone(pause, error) if tells else min(2 * pause, LONGEST_PAUSE_SECONDS)
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), wait)


def _gone(pause: float, error: Exception) -> float:
    """The next pause. Said once, and not before it has lasted: at a crawl's end the bundled server goes first."""
    longer = min(2 * pause, LONGEST_PAUSE_SECONDS)
    if pause < TELL_AFTER_SECONDS <= longer:
        logger.warning("waiting for Redis: %s", error)
    return longer


def _back(pause: float) -> float:
    if pause >= TELL_AFTER_SECONDS:
        logger.info("Redis is back")
    return FIRST_PAUSE_SECONDS


class TableLoads:
    """What the tables know of sites' hours, kept up to date; the last that was read while they cannot be reached."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._engine: Engine | None = None
        self._table: LoadedTable | None = None
        self._listed: dict[str, int] = {}  # site -> place in the order of listing
        self._last_entry = -1
        self._told_away = False

    def hours(self, names: Sequence[str], hour: int, hour_seconds: float) -> Hours:
        """Of these sites, from this hour on."""
        self._read()
        listed = np.array([self._listed.get(name, LAST) for name in names], np.int64)
        return hours_of(self._table, names, hour, hour_seconds, listed)

    def visits(self) -> int:
        """How many visits are known by now."""
        self._read()
        return self._table.many_visits if self._table is not None else 0

    def close(self) -> None:
        """Let go of the database."""
        if self._engine is not None:
            self._engine.dispose()

    def _read(self) -> None:
        try:
            self._refresh()
            self._told_away = False
        except DatabaseError as error:
            if not self._told_away:
                logger.warning("the database cannot be read; planning goes on by what is known: %s", error)
            self._told_away = True

    def _refresh(self) -> None:
        if self._engine is None:
            engine = open_database(self._options.database)
            if check_version(engine) is None:
                engine.dispose()
                return  # no coordinator has made the tables yet
            self._engine = engine
        self._read_order(self._engine)
        if self._table is None:
            self._table = load_table(self._engine)
        else:
            self._table.refresh(self._engine)

    def _read_order(self, engine: Engine) -> None:
        chosen = select(sites.c.site, sites.c.found_entry).order_by(sites.c.found_entry)
        while True:
            with transaction(engine) as db:
                rows: Sequence[Any] = db.execute(
                    chosen.where(sites.c.found_entry > self._last_entry).limit(STRETCH)
                ).all()
            for site, entry in rows:
                self._listed.setdefault(site, entry)
                self._last_entry = entry
            if len(rows) < STRETCH:
                return


def hours_of(
    table: LoadedTable | None, names: Sequence[str], hour: int, hour_seconds: float, listed: np.ndarray
) -> Hours:
    """What a table (None: there is none yet) knows of these sites; of one that it does not know, nothing."""
    many = len(names)
    load = np.full((many, HOURS), UNKNOWN, np.uint8)
    delay = np.full(many, np.nan, np.float32)
    is_open = np.ones((many, HOURS), bool)
    is_seen = np.zeros(many, bool)
    if table is None or not len(table):
        return Hours(load, 0.0, delay, is_open, is_seen, listed)
    places = np.array([table.rows.get(name, -1) for name in names], np.int64)
    known, at = places >= 0, places[places >= 0]
    forecast = table.forecast(hour)
    load[known] = forecast.load[at]
    delay[known] = table.delays[at]
    is_open[known] = table.is_open(hour, hour_seconds)[at]
    is_seen[known] = table.seen(hour)[at]
    return Hours(load, forecast.reference, delay, is_open, is_seen, listed)
