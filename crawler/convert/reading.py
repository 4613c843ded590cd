"""Reads the rows of `pages`, in the order of (site, url_hash), and spills what is needed later.

Each query reads one batch by the index over (site_id, url_hash): memory is bounded, and no cursor stays open.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import BigInteger, Connection, Engine, bindparam, func, select

import crawler
from crawler.convert import ConvertError, numbering
from crawler.convert.numbering import Plan
from crawler.convert.spill import DUPLICATE, KINDS, REDIRECTED, TEXTS, Rows, Writer
from crawler.records import hash_of
from crawler.store.database import DatabaseError, open_database, transaction
from crawler.store.tables import pages

# --- Ordered results of several threads ---


_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def in_order(function: Callable[[_Item], _Result], items: Iterable[_Item], threads: int) -> Iterator[_Result]:
    """function(item) for each item, in order; at most one result more than threads is waiting.

    Raises what the function raises, at its position, and starts no more items.
    """
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[_Result]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > threads + 1:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


# --- One snapshot of the tables for several readers ---
# SQLite: readers begin while the write lock is held for some milliseconds. PostgreSQL: exported snapshots. MariaDB: one
# reader only. On SQLite the WAL grows while a snapshot is held.


# How long to wait for the write lock: a coordinator releases it between batches.
LOCK_SECONDS = 60
# A larger WAL is truncated afterwards.
LARGEST_LOG_BYTES = 64_000_000
_FIRST_LOOK = "SELECT 1 FROM sites LIMIT 1"


def can_be_shared(engine: Engine) -> bool:
    """Whether several connections can read the same snapshot."""
    return engine.dialect.name in ("sqlite", "postgresql")


@contextmanager
def held(engine: Engine, others: Callable[[str], None] | None = None) -> Iterator[Connection]:
    """A connection with one snapshot until the block ends.

    Calls `others(name)` once: other processes must enter `joined(name)` before it returns. Raises DatabaseError.
    """
    with transaction(engine) as reader:
        _begin(reader)
        if others is None:
            reader.exec_driver_sql(_FIRST_LOOK)
        elif engine.dialect.name == "sqlite":
            _together(engine, reader, others)
        else:
            others(str(reader.exec_driver_sql("SELECT pg_export_snapshot()").scalar_one()))
        yield reader


@contextmanager
def joined(engine: Engine, name: str) -> Iterator[Connection]:
    """A connection with the snapshot of this name, until the block ends."""
    with transaction(engine) as reader:
        _begin(reader)
        if engine.dialect.name == "postgresql":
            reader.exec_driver_sql(f"SET TRANSACTION SNAPSHOT '{name}'")
        reader.exec_driver_sql(_FIRST_LOOK)
        yield reader


def log_bytes(engine: Engine) -> int:
    """Size of SQLite's WAL; 0 for other databases."""
    log = Path(f"{engine.url.database}-wal")
    if engine.dialect.name != "sqlite" or not log.is_file():
        return 0
    return log.stat().st_size


def give_log_back(engine: Engine) -> None:
    """Truncates a large WAL if it is not in use; otherwise the next writer reuses it."""
    if log_bytes(engine) > LARGEST_LOG_BYTES:
        with suppress(DatabaseError), transaction(engine) as connection:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")


def _begin(reader: Connection) -> None:
    kind = reader.dialect.name
    if kind == "sqlite":
        reader.exec_driver_sql("BEGIN")  # the driver does not begin transactions for reads
    elif kind == "postgresql":
        reader.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
    else:
        reader.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.exec_driver_sql("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")


def _together(engine: Engine, reader: Connection, others: Callable[[str], None]) -> None:
    # All readers begin while no writer can commit.
    with transaction(engine) as lock:
        lock.exec_driver_sql(f"PRAGMA busy_timeout={LOCK_SECONDS * 1000}")
        lock.exec_driver_sql("BEGIN IMMEDIATE")
        reader.exec_driver_sql(_FIRST_LOOK)
        others("")
        lock.exec_driver_sql("ROLLBACK")


# Target rows of one query, and the most sites in it.
BATCH_ROWS = 20_000
BATCH_SITES = 2_000
_READ = pa.schema(
    [
        ("site_id", pa.int64()),
        ("url_hash", pa.int64()),
        ("outcome", pa.string()),
        ("duplicate_of", pa.string()),
        ("redirect", pa.string()),
        ("links", pa.binary()),
        *TEXTS,
    ]
)
_URL = _READ.get_field_index("url")
_COLUMNS = select(*(pages.c[name] for name in _READ.names))
# Literal numbers: SQLite and PostgreSQL limit the parameters of a statement.
SOME_SITES = _COLUMNS.where(pages.c.site_id.in_(bindparam("sites", expanding=True, literal_execute=True)))
ONE_SITE = (
    _COLUMNS.where(pages.c.site_id == bindparam("site", type_=BigInteger))
    .where(pages.c.url_hash >= bindparam("first", type_=BigInteger))
    .order_by(pages.c.url_hash)
    .limit(bindparam("most", type_=BigInteger))
)
_LEAST, _MOST = -(2**63), 2**63 - 1
# Hex digits of a checksum; half of them are compared.
_DIGITS = 64
_VALUE_OF = np.full(256, 255, np.uint8)
_VALUE_OF[list(b"0123456789abcdef")] = range(16)
_LEFT_OUT = 255
# Counted by `read_range` besides outcomes: pages whose links are not hashes; their links are left out.
DAMAGED = "damaged links"


def rows_about(engine: Engine) -> int:
    """Estimated number of rows: the highest id."""
    with transaction(engine) as connection:
        return connection.execute(select(func.max(pages.c.id))).scalar() or 0


def read_range(connection: Connection, plan: Plan, folder: Path, number: int) -> dict[str, int]:
    """Spills range `number` to `folder`; returns skipped rows by outcome, and pages with damaged links.

    Raises ConvertError for invalid column values.
    """
    counts: Counter[str] = Counter()
    with Writer(folder, number) as writer:
        for first, last in _questions(plan, number):
            for rows in _asked(connection, plan, first, last):
                try:
                    _put(writer, _batch(rows), plan, first, last, counts)
                except pa.ArrowException as error:
                    raise ConvertError(f"table pages, around {rows[0][_URL]!r}: {error}") from None
    return dict(counts)


def _questions(plan: Plan, number: int) -> Iterator[tuple[int, int]]:
    start, end = int(plan.bounds[number]), int(plan.bounds[number + 1])
    # A large site begins a run of its own.
    rows = np.minimum(plan.rows[start:end], BATCH_ROWS)
    begin = start
    held = 0
    for site in range(start, end):
        more = int(rows[site - start])
        if held and (held + more > BATCH_ROWS or site - begin == BATCH_SITES):
            yield begin, site
            begin, held = site, 0
        held += more
    if begin < end:
        yield begin, end


def _asked(connection: Connection, plan: Plan, first: int, last: int) -> Iterator[list[Any]]:
    if last - first > 1 or plan.rows[first] <= BATCH_ROWS:
        rows = _fetched(connection, SOME_SITES, sites=plan.hashes[first:last].tolist())
        if rows:
            yield rows
        return
    site, after = int(plan.hashes[first]), _LEAST
    while rows := _fetched(connection, ONE_SITE, site=site, first=after, most=BATCH_ROWS):
        yield rows
        if len(rows) < BATCH_ROWS or rows[-1][1] == _MOST:
            return
        after = rows[-1][1] + 1


def _fetched(connection: Connection, asked: Any, **values: Any) -> list[Any]:
    """The driver's tuples, which are cheaper than SQLAlchemy's rows."""
    result = connection.execute(asked, values)
    try:
        assert result.cursor is not None
        return list(result.cursor.fetchall())
    except connection.dialect.loaded_dbapi.Error as error:  # SQLite decodes texts only here
        raise ConvertError(f"table pages cannot be read: {error}") from None
    finally:
        result.close()


def _batch(rows: list[Any]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _READ, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_READ)


def _put(
    writer: Writer, batch: pa.RecordBatch, plan: Plan, first: int, last: int, counts: Counter[str]
) -> None:
    kind = pc.fill_null(pc.index_in(batch.column("outcome"), value_set=pa.array(KINDS)), _LEFT_OUT).to_numpy()
    for outcome in batch.column("outcome").filter(pa.array(kind == _LEFT_OUT)).to_pylist():
        counts[outcome] += 1
    site = _places(batch.column("site_id").to_numpy(), plan, first, last)
    order = np.lexsort((batch.column("url_hash").to_numpy(), site))
    order = order[kind[order] != _LEFT_OUT]
    batch, kind = batch.take(pa.array(order)), kind[order].astype(np.uint8)
    lengths, links = _links(batch.column("links"), counts)
    rows = Rows(
        site=site[order].astype(np.int32),
        url_hash=batch.column("url_hash").to_numpy(),
        url_length=pc.binary_length(batch.column("url")).to_numpy(),
        kind=kind,
        digest=_digests(batch.column("sha256"), batch.column("size").to_numpy()),
        named=_named(batch, kind),
        links=lengths,
    )
    writer.put(rows, batch.select(TEXTS.names), links)


def _places(site_id: np.ndarray, plan: Plan, first: int, last: int) -> np.ndarray:
    hashes = plan.hashes[first:last]
    order = np.argsort(hashes)
    return first + order[np.searchsorted(hashes[order], site_id)]


def _links(column: pa.BinaryArray, counts: Counter[str]) -> tuple[np.ndarray, memoryview]:
    lengths = pc.fill_null(pc.binary_length(column), 0).to_numpy()
    damaged = lengths % 8 != 0
    if damaged.any():
        counts[DAMAGED] += int(damaged.sum())
        return _links(pc.if_else(pa.array(damaged), pa.scalar(b"", pa.binary()), column), counts)
    values = column.buffers()[2]
    return lengths // 8, memoryview(values)[: lengths.sum()] if values else memoryview(b"")


def _named(batch: pa.RecordBatch, kind: np.ndarray) -> np.ndarray:
    named = np.zeros(len(kind), np.uint64)
    for this, column in ((DUPLICATE, "duplicate_of"), (REDIRECTED, "redirect")):
        places = np.flatnonzero(kind == this)
        for place, url in zip(places, batch.column(column).take(pa.array(places)).to_pylist(), strict=True):
            named[place] = hash_of(url) if url else 0
    return named


def _digests(sha256: pa.StringArray, size: np.ndarray) -> np.ndarray:
    """First 128 bits of each checksum; zeros for invalid checksums and empty bodies."""
    found = np.zeros((len(sha256), 2), np.uint64)
    _, offsets, text = sha256.buffers()
    ends = np.frombuffer(offsets, np.int32)[: len(sha256) + 1]
    whole = np.flatnonzero(np.diff(ends) == _DIGITS)
    if len(whole):
        digits = _VALUE_OF[_letters(np.frombuffer(text, np.uint8), ends, whole)[:, : _DIGITS // 2]]
        found[whole] = (digits[:, ::2] << 4 | digits[:, 1::2]).view(">u8")
        found[whole[(digits > 15).any(axis=1)]] = 0
    found[size == 0] = 0
    return found


def _letters(text: np.ndarray, ends: np.ndarray, whole: np.ndarray) -> np.ndarray:
    # Copies only if invalid checksums are in between.
    held = text[ends[0] : ends[-1]]
    if len(held) != len(whole) * _DIGITS:
        held = text[ends[whole][:, np.newaxis] + np.arange(_DIGITS)]
    return held.reshape(-1, _DIGITS)


# --- Converters: processes that read ranges in parallel, from one snapshot ---
# They exchange lines of JSON. A converter ends at the end of its input, so also when its coordinator is killed. Raises
# ConvertError with a converter's message if one fails.


class Converters:
    """Processes with open tables; call `begin`, then `read`."""

    def __init__(self, processes: list[subprocess.Popen[str]]) -> None:
        self._processes = processes
        self._idle: queue.SimpleQueue[subprocess.Popen[str]] = queue.SimpleQueue()

    def begin(self, name: str) -> None:
        """Makes all of them enter the snapshot of this name."""
        for process in self._processes:
            _tell(process, name)
        for process in self._processes:
            _answer(process)
            self._idle.put(process)

    def read(self, folder: Path, ranges: Iterable[int]) -> Iterator[dict[str, int]]:
        """Spills the ranges to `folder`, which has the plan; yields the results of `read_range` in order."""

        def read_one(number: int) -> dict[str, int]:
            process = self._idle.get()
            try:
                _tell(process, [str(folder), number])
                return dict(_answer(process))
            finally:
                self._idle.put(process)

        return in_order(read_one, ranges, len(self._processes))


@contextmanager
def started(engine: Engine, many: int) -> Iterator[Converters]:
    """Starts the converters; they are terminated when the block ends."""
    processes: list[subprocess.Popen[str]] = []
    try:
        processes.extend(_start() for _ in range(many))
        for process in processes:
            _tell(process, engine.url.render_as_string(hide_password=False))
        for process in processes:
            _answer(process)
        yield Converters(processes)
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _start() -> subprocess.Popen[str]:
    # Import the package from where this process found it, whatever the current folder.
    path = [str(Path(crawler.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [sys.executable, "-m", "crawler.convert.reading"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _tell(process: subprocess.Popen[str], what: Any) -> None:
    assert process.stdin is not None
    try:
        print(json.dumps(what), file=process.stdin, flush=True)
    except BrokenPipeError:
        raise _ended(process) from None


def _answer(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise _ended(process)
    answer = json.loads(line)
    if "error" in answer:
        raise ConvertError(answer["error"])
    return answer["done"]


def _ended(process: subprocess.Popen[str]) -> ConvertError:
    return ConvertError(f"a converter exited with code {process.wait()} before its ranges were read")


# --- In the converter process ---


def main() -> None:
    """Reads from stdin: the database's URL, the snapshot's name, then ranges to spill."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with its coordinator
    requests = map(json.loads, sys.stdin)
    try:
        engine = open_database(next(requests))
        with engine.connect():  # load drivers before all wait for the snapshot
            _done(None)
        with joined(engine, next(requests)) as connection:
            _done(None)
            for folder, number in requests:
                plan = numbering.load(Path(folder))
                _done(read_range(connection, plan, Path(folder), number))
    except StopIteration:
        return
    except BrokenPipeError:
        # The coordinator was killed: do not flush to a closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ConvertError, DatabaseError, OSError) as error:
        print(json.dumps({"error": str(error)}), flush=True)


def _done(what: Any) -> None:
    print(json.dumps({"done": what}), flush=True)


if __name__ == "__main__":
    main()
