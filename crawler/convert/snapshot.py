"""One state of the tables for as long as they are read, while coordinators go on writing; for several readers too.

Hides how each database does that. SQLite has no word for it: whoever holds the write lock keeps every other
connection's state from moving on, so readers begin while it is held, a few milliseconds. PostgreSQL hands a state on
by name. MariaDB does so to nobody: there one connection reads.

On SQLite the log cannot be used again while a state is held, and grows by all that is written meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sqlalchemy import Connection, Engine

from crawler.store.database import DatabaseError, transaction

# How long the write lock is asked for: a coordinator lets go of it between two batches only.
LOCK_SECONDS = 60
# A log that grew beyond this is given back to the disk afterwards.
LARGEST_LOG_BYTES = 64_000_000
_FIRST_LOOK = "SELECT 1 FROM sites LIMIT 1"


def can_be_shared(engine: Engine) -> bool:
    """Whether several connections can read the same state."""
    return engine.dialect.name in ("sqlite", "postgresql")


@contextmanager
def held(engine: Engine, others: Callable[[str], None] | None = None) -> Iterator[Connection]:
    """A connection that sees one state until the block ends.

    `others(name)` is called once, for other processes to enter `joined` with that name before it returns.
    DatabaseError where the database does not answer.
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
    """A connection that sees the state of this name until the block ends."""
    with transaction(engine) as reader:
        _begin(reader)
        if engine.dialect.name == "postgresql":
            reader.exec_driver_sql(f"SET TRANSACTION SNAPSHOT '{name}'")
        reader.exec_driver_sql(_FIRST_LOOK)
        yield reader


def log_bytes(engine: Engine) -> int:
    """How large SQLite's log is; 0 elsewhere."""
    log = Path(f"{engine.url.database}-wal")
    if engine.dialect.name != "sqlite" or not log.is_file():
        return 0
    return log.stat().st_size


def give_log_back(engine: Engine) -> None:
    """Empties a log that has become large, if nobody reads or writes just now; else the next writer uses it again."""
    if log_bytes(engine) > LARGEST_LOG_BYTES:
        with suppress(DatabaseError), transaction(engine) as connection:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")


def _begin(reader: Connection) -> None:
    kind = reader.dialect.name
    if kind == "sqlite":
        reader.exec_driver_sql("BEGIN")  # the driver would begin none for reading
    elif kind == "postgresql":
        reader.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
    else:
        reader.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.exec_driver_sql("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")


def _together(engine: Engine, reader: Connection, others: Callable[[str], None]) -> None:
    """Everybody's first look, while nobody can commit."""
    with transaction(engine) as lock:
        lock.exec_driver_sql(f"PRAGMA busy_timeout={LOCK_SECONDS * 1000}")
        lock.exec_driver_sql("BEGIN IMMEDIATE")
        reader.exec_driver_sql(_FIRST_LOOK)
        others("")
        lock.exec_driver_sql("ROLLBACK")
