"""The planner's process, one per coordinator; one of them plans (crawler.planning.planner).

Waits while Redis is away; plans by the last data while the database is. Raises redis.RedisError if Redis refuses a
command, BrokenRecordError, OptionError.
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
# Sites per query.
STRETCH = 10_000
# Position of a site that is not in the tables yet: after all others.
LAST = np.iinfo(np.int64).max


async def plan_hours(settings: BaseSettings, options: Options, stop: asyncio.Event) -> None:
    """Plans crawling and rechecks until `stop` is set."""
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
    """Calls `look` repeatedly, after the seconds it returns; retries during outages."""
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
    """Doubles the pause; logs lasting outages (the bundled server stops before this process)."""
    longer = min(2 * pause, LONGEST_PAUSE_SECONDS)
    if pause < TELL_AFTER_SECONDS <= longer:
        logger.warning("waiting for Redis: %s", error)
    return longer


def _back(pause: float) -> float:
    if pause >= TELL_AFTER_SECONDS:
        logger.info("Redis is back")
    return FIRST_PAUSE_SECONDS


class TableLoads:
    """Sites' load by hour, or the last data while the database is away."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._engine: Engine | None = None
        self._table: LoadedTable | None = None
        self._listed: dict[str, int] = {}  # site -> stream position at which it was found
        self._last_entry = -1
        self._told_away = False

    def hours(self, names: Sequence[str], hour: int, hour_seconds: float) -> Hours:
        """The load of these sites from this hour on."""
        self._read()
        listed = np.array([self._listed.get(name, LAST) for name in names], np.int64)
        return hours_of(self._table, names, hour, hour_seconds, listed)

    def visits(self) -> int:
        """The number of known visits."""
        self._read()
        return self._table.many_visits if self._table is not None else 0

    def close(self) -> None:
        """Closes the database."""
        if self._engine is not None:
            self._engine.dispose()

    def _read(self) -> None:
        try:
            self._refresh()
            self._told_away = False
        except DatabaseError as error:
            if not self._told_away:
                logger.warning(
                    "the database cannot be read; planning continues with the last data: %s", error
                )
            self._told_away = True

    def _refresh(self) -> None:
        if self._engine is None:
            engine = open_database(self._options.database)
            if check_version(engine) is None:
                engine.dispose()
                return  # no tables yet: the coordinator creates them
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
    """The load of these sites in a table (None: no table yet)."""
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
