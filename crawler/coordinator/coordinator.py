"""Stores the results stream: one transaction per batch, acknowledged after commit; several may run.

Waits during outages. Invalid or refused entries become dead letters. After a crash unacknowledged entries are
delivered again and stored once. Raises DatabaseError if an operator must act, OptionError, or redis.RedisError if
Redis refuses a command.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, NoReturn, TypeVar

import redis

from crawler import states
from crawler.coordinator.notify import Hooks
from crawler.coordinator.retention import Retention, WalCheckpoints, histories
from crawler.disk import make_folder, sync_folders
from crawler.options import OptionError, Options
from crawler.queue import connection
from crawler.queue.connection import connect_blocking, passes
from crawler.queue.results import Entry, ResultsStream, alive_key, heartbeat_key
from crawler.reconcile.comparing import Comparison
from crawler.reconcile.reopening import Reopening
from crawler.records import Health, Page, RecheckResult, Record, RecordError, decode, is_plain
from crawler.store import durability
from crawler.store.database import (
    DatabaseAwayError,
    RowRefusedError,
    migrate,
    open_database,
    told,
    transaction,
)
from crawler.store.write import DeadLetter, Stored, bury, store

if TYPE_CHECKING:
    from collections.abc import Iterable

    import redis
    from scrapy.settings import BaseSettings
    from sqlalchemy import Engine


# --- Due times, written between commit and acknowledgement, so that a crash loses none --------------------


class Due(NamedTuple):
    """Due times by site, Unix ms."""

    revive: dict[str, int]  # the earliest
    recheck: dict[str, int]
    signalled: dict[str, int]  # when a sitemap last listed changed pages
    seen: dict[str, int]  # when crawling last showed the site's health


def due_of(records: Iterable[Record], delays: tuple[float, float], recheck_seconds: float) -> Due:
    """What these records make due; `recheck_seconds` 0: no rechecks."""
    due = Due({}, {}, {}, {})
    for record in records:
        if isinstance(record, Page):
            if (
                record.outcome == "failed"
                and states.load_event(record.outcome, record.status) == "not_loaded"
            ):
                _sooner(due.revive, record.site, record.fetched_at + int(delays[0] * 1000))
            elif recheck_seconds and record.site not in due.recheck:
                due.recheck[record.site] = record.fetched_at + int(recheck_seconds * 1000)
            if recheck_seconds and record.lastmods:
                due.signalled[record.site] = record.fetched_at
        elif isinstance(record, RecheckResult):
            _note_asked(due, record, delays)
            if recheck_seconds and record.answer == "answers":
                _sooner(due.recheck, record.site, record.asked_at + int(recheck_seconds * 1000))
        elif isinstance(record, Health) and record.seen_by == "traffic":
            due.seen[record.site] = max(record.checked_at, due.seen.get(record.site, 0))
    return due


def _note_asked(due: Due, record: RecheckResult, delays: tuple[float, float]) -> None:
    following = states.NEXT.get((record.before, record.answer))
    if following is None:
        return
    seconds = states.delay_until_next(following, delays)
    if seconds is not None:
        _sooner(due.revive, record.site, record.asked_at + int(seconds * 1000))


def witnesses(stored: Iterable[Stored], options: Options) -> list[Stored]:
    """The fewest records with the same sites in each kind of due time."""
    known: set[tuple[str, str]] = set()
    chosen = []
    for one in stored:
        due = due_of([one.record], options.revive_delays, options.first_recheck_seconds)
        facts = {(kind, site) for kind, sites in due._asdict().items() for site in sites}
        if not facts <= known:
            known |= facts
            chosen.append(one)
    return chosen


def _sooner(times: dict[str, int], site: str, at: int) -> None:
    times[site] = min(at, times.get(site, at))


def tell_due(client: redis.Redis, prefix: str, options: Options, records: Iterable[Record]) -> None:
    """Writes due times to the queue: the earliest for revive; recheck keeps its own, unless a sitemap changed.

    Status checks are only postponed.
    """
    due = due_of(records, options.revive_delays, options.first_recheck_seconds)
    if not any(due):
        return
    base = f"{prefix}:{{0}}:"
    pipe = client.pipeline(transaction=False)
    if due.revive:
        pipe.zadd(f"{base}wake:revive", due.revive, lt=True)
    if due.recheck:
        pipe.zadd(f"{base}wake:recheck", due.recheck, nx=True)
    if due.signalled:
        # Only of sites that wait for recheck; all others are planned soon.
        pipe.zadd(f"{base}wake:recheck", due.signalled, xx=True, lt=True)
    if due.seen:
        ms = int(options.status_interval_seconds * 1000)
        checks = {site: at + ms for site, at in due.seen.items()}
        pipe.zadd(f"{base}wake:status", checks, xx=True, gt=True)
    pipe.execute()


logger = logging.getLogger("coordinator")
T = TypeVar("T")

# Returns whether the coordinator may end; its argument returns whether the stream is empty.
Leave = Callable[[Callable[[], bool]], bool]

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
# How long an idle coordinator waits for a record before it checks `stop` and `leave` again.
IDLE_MS = 200
# TTL of a heartbeat, and how often it is renewed.
HEARTBEAT_MS = 15_000
BEAT_SECONDS = 3.0
TELL_SECONDS = 60.0
# Threshold of Python's garbage collector: a batch makes tens of thousands of objects without cycles; at the default
# of 700 collection takes a third of the time.
GC_ALLOCATIONS = 50_000

# Entries per read, and bytes of a full batch: a page may have 400 kB of links.
READ_AT_A_TIME = 100
BATCH_BYTES = 64_000_000

# For tests: the process kills itself at the place that this variable names.
KILL_VARIABLE = "LOWTIDE_KILL_POINT"
KILL_POINTS = ("before-commit", "after-commit", "before-acknowledge")


class _StoppedError(Exception):
    """`stop` was set during an outage."""


class Coordinator:
    """Call `run` once. `name`: a unique consumer name; its next user gets unacknowledged entries at once."""

    def __init__(self, settings: BaseSettings, options: Options, *, name: str = "") -> None:
        _check_kill_point()
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
        self._options = options
        self._redis_told = connection.told(settings)
        self._client = connect_blocking(settings)
        self._stream = ResultsStream(self._client, options.key_prefix, self.name, options.lease_seconds)
        self._engine: Engine | None = None
        self._committed: list[Stored] = []  # with due times that are not in the queue yet
        self._full = False  # Redis has no memory for due times
        self._log_keeper: WalCheckpoints | None = None
        self._pulse = _Pulse(self._client, options.key_prefix, self.name)
        self._hooks = Hooks(self._client, options, self.name)
        self._comparison = Comparison(self._client, options)
        self._thinning = Retention(self._client, options.key_prefix, self.name, histories(options))
        self._reopening = Reopening(settings, options, self.name)

    @property
    def written(self) -> int:
        """Processed records, dead letters and repetitions included."""
        return self._pulse.written

    def run(self, stop: threading.Event, leave: Leave | None = None) -> None:
        """Stores records until `stop` is set (after the batch) or `leave`, called while idle, returns True."""
        self._engine = self._open()
        self._log_keeper = WalCheckpoints(self._engine)
        gc.set_threshold(GC_ALLOCATIONS, *gc.get_threshold()[1:])
        try:
            self._patiently(stop, lambda: migrate(self._database))
            logger.info("%s writes to %s", self.name, told(self._engine.url))
            self._patiently(stop, self._name_risks)
            self._warn_of_restarts()
            self._hooks.start(self._engine)
            self._comparison.start(self._engine)
            self._reopening.start(self._engine)
            reason = self._work(stop, leave)
        except _StoppedError:
            reason = "stopped while waiting; unstored records stay in the stream"
        finally:
            self._close()
        logger.info("%s: %s; %d records stored", self.name, reason, self.written)

    def _warn_of_restarts(self) -> None:
        if warning := connection.restart_warning(self._client, self._options.key_prefix):
            logger.warning("%s", warning)

    def _open(self) -> Engine:
        if not self._options.database_url:
            sync_folders(*make_folder(self._options.var))
        return open_database(self._options.database)

    def _name_risks(self) -> None:
        for risk in (*durability.of_database(self._database), *durability.of_redis(self._client)):
            logger.warning("a power failure can lose acknowledged data: %s", risk)

    def _close(self) -> None:
        self._hooks.end()
        self._reopening.end()
        self._comparison.end()
        self._database.dispose()
        with suppress(redis.RedisError):
            self._stream.close()
        self._pulse.end()
        self._client.close()

    @property
    def _database(self) -> Engine:
        assert self._engine is not None
        return self._engine

    def _work(self, stop: threading.Event, leave: Leave | None) -> str:
        while not stop.is_set():
            entries = self._patiently(stop, lambda: self._gather(stop))
            if entries or self._committed:
                self._take_in(stop, entries)
            elif leave is not None and self._patiently(stop, lambda: leave(self._left_nothing)):
                return "stream is empty"
            self._pulse.beat(lag=_age(entries))
            self._pulse.tell(self._stream)
            self._tidy(busy=bool(entries))
        return "stopped"

    def _left_nothing(self) -> bool:
        """Whether all is stored; then deletes the heartbeat, so that the bundled server stops."""
        if not self._stream.drained():
            return False
        self._pulse.end()
        return True

    def _tidy(self, *, busy: bool) -> None:
        assert self._log_keeper is not None
        self._reopening.check()
        with suppress(DatabaseAwayError, redis.RedisError):  # logged by _patiently, if it lasts
            self._log_keeper.look()
            self._thinning.step(self._database, busy=busy)

    def _gather(self, stop: threading.Event) -> list[Entry]:
        """A batch: full, or received within BATCH_SECONDS; empty when idle."""
        most = self._options.batch_records
        entries = found = self._stream.read(min(most, READ_AT_A_TIME), IDLE_MS)
        size = _size(found)
        deadline = time.monotonic() + self._options.batch_seconds
        while entries and len(entries) < most and size < BATCH_BYTES and not stop.is_set():
            left_ms = int((deadline - time.monotonic()) * 1000)
            if left_ms <= 0:
                break
            found = self._stream.read(min(most - len(entries), READ_AT_A_TIME), min(left_ms, IDLE_MS))
            size += _size(found)
            entries += found
        return entries

    def _take_in(self, stop: threading.Event, entries: list[Entry]) -> None:
        if entries:
            self._patiently(stop, lambda: self._store(entries))
        done = self._patiently(stop, lambda: self._tell_due(entries))
        _kill_at("before-acknowledge")
        self._patiently(stop, lambda: self._stream.acknowledge(done))
        self._pulse.written += len(entries)

    def _tell_due(self, entries: list[Entry]) -> list[str]:
        """Writes due times; returns the ids to acknowledge."""
        ids = dict.fromkeys(entry.id for entry in entries)
        records = [stored.record for stored in self._committed]
        try:
            tell_due(self._client, self._options.key_prefix, self._options, records)
        except redis.exceptions.OutOfMemoryError as error:
            return self._spare_memory(ids, error)
        ids |= dict.fromkeys(stored.stream_id for stored in self._committed)
        self._committed = []
        if self._full:
            self._full = False
            logger.info("Redis at %s has memory again; all due times are in the queue", self._redis_told)
        return list(ids)

    def _spare_memory(self, ids: dict[str, None], error: Exception) -> list[str]:
        """The ids without those whose due times Redis has no memory for."""
        self._committed = witnesses(self._committed, self._options)
        if not self._full:
            self._full = True
            logger.warning(
                "Redis at %s is full: %s; storing and deleting records, due times wait for memory",
                self._redis_told,
                error,
            )
        waiting = {stored.stream_id for stored in self._committed}
        return [one for one in ids if one not in waiting]

    def _store(self, entries: list[Entry]) -> None:
        try:
            self._commit(entries)
        except RowRefusedError as error:
            if len(entries) == 1:
                self._bury(entries[0], str(error))
                return
            middle = len(entries) // 2
            self._store(entries[:middle])
            self._store(entries[middle:])

    def _commit(self, entries: list[Entry]) -> None:
        batch, letters = _decoded(entries)
        with transaction(self._database) as connection:
            options = self._options
            counts = store(connection, batch, options.revive_delays, options.status_damping_seconds)
            bury(connection, letters)
            _kill_at("before-commit")
        _kill_at("after-commit")
        self._committed += batch
        self._pulse.refused += counts.refused
        for letter in letters:
            logger.warning("entry %s is invalid, moved to dead_letters: %s", letter.stream_id, letter.reason)

    def _bury(self, entry: Entry, reason: str) -> None:
        with transaction(self._database) as connection:
            bury(connection, [DeadLetter(entry.id, reason, entry.fields)])
        logger.warning("entry %s was refused, moved to dead_letters: %s", entry.id, reason)

    def _patiently(self, stop: threading.Event, call: Callable[[], T]) -> T:
        """Retries during outages; raises _StoppedError."""
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                result = call()
            except (DatabaseAwayError, redis.RedisError) as error:
                self._pulse.trouble(self._name_trouble(error), error)
                if stop.wait(pause):
                    raise _StoppedError from None
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
            else:
                self._pulse.over()
                return result

    def _name_trouble(self, error: DatabaseAwayError | redis.RedisError) -> str:
        """What is away; raises the error if waiting does not help."""
        if isinstance(error, DatabaseAwayError):
            return "the database"
        if not passes(error):
            raise error
        return f"Redis at {self._redis_told}"


def _size(entries: list[Entry]) -> int:
    return sum(len(value) for entry in entries for value in entry.fields.values())


class _Pulse:
    """Heartbeat and log lines; never raises."""

    def __init__(self, client: redis.Redis, prefix: str, name: str) -> None:
        self.written = 0
        self.refused = 0  # recheck results without effect
        self._client = client
        self._name = name
        self._key = heartbeat_key(prefix, name)
        self._alive_key = alive_key(prefix)
        self._since = time.time_ns() // 1_000_000
        self._beat_at = 0.0
        self._lag = 0.0
        self._waits_for = self._why = ""
        self._told_at, self._told_written = time.monotonic(), 0

    def beat(self, *, lag: float) -> None:
        """Renews the heartbeat if due; `lag`: age of the oldest record in seconds."""
        self._lag = lag
        if time.monotonic() >= self._beat_at:
            self._show()

    def trouble(self, what: str, error: Exception) -> None:
        """Logs an outage once."""
        if self._waits_for != what:
            logger.warning("waiting for %s, retrying every %.0f s: %s", what, LONGEST_PAUSE_SECONDS, error)
            self._waits_for = what
        self._why = str(error)
        self._show()

    def over(self) -> None:
        """Logs its end."""
        if self._waits_for:
            logger.info("%s is back", self._waits_for)
            self._waits_for = self._why = ""

    def tell(self, stream: ResultsStream) -> None:
        """Logs throughput and backlog once a minute."""
        passed = time.monotonic() - self._told_at
        if passed < TELL_SECONDS:
            return
        done = self.written - self._told_written
        self._told_at, self._told_written = time.monotonic(), self.written
        with suppress(redis.RedisError):
            if done:
                logger.info(
                    "%.0f records/s, %d in the stream, %.1f s behind",
                    done / passed,
                    stream.length(),
                    self._lag,
                )

    def end(self) -> None:
        """Deletes the heartbeat; others renew the shared key."""
        with suppress(redis.RedisError):
            self._client.delete(self._key, self._alive_key)

    def _show(self) -> None:
        self._beat_at = time.monotonic() + BEAT_SECONDS
        heartbeat = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": self._since,
            "written": self.written,
            "refused": self.refused,
            "lag": round(self._lag, 3),
            "waits_for": self._waits_for,
            "why": self._why,
        }
        with suppress(redis.RedisError):
            pipe = self._client.pipeline(transaction=False)
            pipe.set(self._key, json.dumps(heartbeat), px=HEARTBEAT_MS)
            pipe.set(self._alive_key, self._name, px=HEARTBEAT_MS)
            pipe.execute()


def _decoded(entries: list[Entry]) -> tuple[list[Stored], list[DeadLetter]]:
    batch: list[Stored] = []
    letters: list[DeadLetter] = []
    for entry in entries:
        try:
            record, links = decode(entry.fields)
        except RecordError as error:
            letters.append(DeadLetter(entry.id, str(error), entry.fields))
        else:
            batch.append(Stored(entry.id, record, links, is_plain(entry.fields)))
    return batch, letters


def _age(entries: list[Entry]) -> float:
    if not entries:
        return 0.0
    return max(0.0, time.time() - int(entries[0].id.partition("-")[0]) / 1000)


def _check_kill_point() -> None:
    wanted = os.environ.get(KILL_VARIABLE, "")
    if wanted and wanted not in KILL_POINTS:
        raise OptionError(f"{KILL_VARIABLE} is {wanted!r}; expected one of {', '.join(KILL_POINTS)}")


def _kill_at(point: str) -> None:
    if os.environ.get(KILL_VARIABLE) == point:
        _die()


def _die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")
