"""Opens and migrates the database of record, and maps drivers' errors to three of our own.

    DatabaseError           unusable; an operator must act
      DatabaseAwayError          refused, cut off, locked or full: the same call may succeed later
      RowRefusedError            the database refuses a value of the statement

Each message names DATABASE_URL without its password. The transaction is rolled back before any of them is raised.
"""

from __future__ import annotations

import logging
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import (
    URL,
    Column,
    Connection,
    Engine,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    create_engine,
    event,
    inspect,
    make_url,
    text,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from crawler.store.tables import metadata

# Revisions (migrations/versions), oldest first; the last one is the current schema.
KNOWN = ("0017",)
_MIGRATIONS = "crawler.store:migrations"
VERSION_TABLE = "lowtide_version"
# The same table as Alembic's own.
_VERSIONS = Table(
    VERSION_TABLE,
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name=f"{VERSION_TABLE}_pkc"),
)

# Lock timeout of a statement, in seconds; shorter than a coordinator's heartbeat TTL.
LOCK_SECONDS = 10
# Timeout of one connection attempt, in seconds.
CONNECT_SECONDS = 10
# How long a starting coordinator waits for another one's migration, in seconds; large tables take long.
MIGRATION_SECONDS = 600

_DRIVERS = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql", "mariadb": "mariadb+pymysql"}
_EXTRAS = {"postgresql": "postgres", "mysql": "mariadb", "mariadb": "mariadb"}
_WANTED = "expected sqlite:///PATH, postgresql+psycopg://USER@HOST/NAME or mariadb+pymysql://USER@HOST/NAME"

# 8 KiB pages and late checkpoints halve the bytes written for rows in random key order (1.5x faster writes).
# busy_timeout comes first: the switch to WAL waits for other processes too.
# synchronous=FULL: a commit is on disk when it returns, before its records are acknowledged and deleted in Redis.
_PRAGMAS = (
    f"busy_timeout={LOCK_SECONDS * 1000}",
    "page_size=8192",
    "journal_mode=WAL",
    "synchronous=FULL",
    "cache_size=-65536",
    "wal_autocheckpoint=10000",
)
# Detects dead connections in seconds; TCP's defaults take two hours.
_POSTGRES: dict[str, Any] = {
    "connect_timeout": CONNECT_SECONDS,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
# Strict mode: without it the server truncates long values with a warning only.
_MARIADB: dict[str, Any] = {
    "connect_timeout": CONNECT_SECONDS,
    "read_timeout": MIGRATION_SECONDS,
    "write_timeout": 60,
    "charset": "utf8mb4",
    "init_command": "SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES'), "
    f"innodb_lock_wait_timeout = {LOCK_SECONDS}",
}


class DatabaseError(Exception):
    """Unusable until an operator acts."""


class MissingDriverError(DatabaseError):
    """The driver is not installed; the message has the install command."""


class DatabaseAwayError(DatabaseError):
    """Unreachable, locked or full; the same call may succeed later."""


class RowRefusedError(DatabaseError):
    """The database refuses a value of a row."""


def told(url: str | URL) -> str:
    """The URL for messages, its password hidden."""
    if isinstance(url, URL):
        # SQLite paths are shown unescaped, as they are on disk.
        is_file = url.get_backend_name() == "sqlite" and url.database and not url.query
        return f"{url.drivername}:///{url.database}" if is_file else url.render_as_string(hide_password=True)
    return re.sub(r"(://[^:/@]*):.*@", r"\1:***@", url)


def open_database(url: str) -> Engine:
    """An engine for DATABASE_URL, not connected yet; to be disposed.

    Raises DatabaseError for an invalid URL, MissingDriverError without its driver.
    """
    parsed = _parse(url)
    backend = parsed.get_backend_name()
    # The pool logs connections that broke after a commit, with a traceback; the next statement raises our own error.
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)
    try:
        if backend == "sqlite":
            _bind_quickly()
            engine = create_engine(parsed, connect_args={"timeout": LOCK_SECONDS})
            event.listen(engine, "connect", _set_pragmas)
            return engine
        connect_args = _POSTGRES if backend == "postgresql" else _MARIADB
        engine = create_engine(parsed, pool_pre_ping=True, connect_args=connect_args)
        if backend == "postgresql":
            event.listen(engine, "connect", _commit_to_disk)
        return engine
    except NoSuchModuleError:
        raise DatabaseError(f"DATABASE_URL {told(parsed)}: no such driver; {_WANTED}") from None
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get(backend, backend)
        from rankers import extras

        # Chosen by database: the URL may name a driver that no extra installs.
        missing = extras.text(error.name or "its driver", extra)
        raise MissingDriverError(f"DATABASE_URL {told(parsed)}: {missing}") from None
    except (ArgumentError, TypeError, ValueError) as error:
        raise DatabaseError(f"DATABASE_URL {told(parsed)}: {error}; {_WANTED}") from None


def require_driver(url: str) -> None:
    """Raises MissingDriverError if the driver is not installed; ignores other errors."""
    try:
        open_database(url).dispose()
    except MissingDriverError:
        raise
    except DatabaseError:
        return


def check_version(engine: Engine) -> str | None:
    """The revision, None without tables. Raises DatabaseError for foreign or unknown tables."""
    with transaction(engine) as connection:
        return _revision(connection)


def migrate(engine: Engine) -> None:
    """Creates or upgrades the tables, once for concurrent calls.

    Raises DatabaseAwayError if the database is unreachable, DatabaseError if the schema is unknown.
    """
    if check_version(engine) == KNOWN[-1]:
        return
    with transaction(engine) as connection, _alone(connection):
        found = _revision(connection)
        if found is None and VERSION_TABLE not in inspect(connection).get_table_names():
            _make(connection)
        elif found != KNOWN[-1]:
            _upgrade(connection)


@contextmanager
def transaction(engine: Engine) -> Iterator[Connection]:
    """Commits at the end of the block, or rolls back and raises a DatabaseError."""
    try:
        with engine.begin() as connection:
            yield connection
    except (SQLAlchemyError, ValueError, OverflowError) as error:
        raise explain(error, engine.url) from error


def explain(error: Exception, url: URL) -> DatabaseError:
    """Maps a driver's error to one of ours."""
    kind = _kind(error)
    cause = getattr(error, "orig", None) or error
    reason = " ".join(str(cause).split())[:300] or type(cause).__name__
    advice = {
        DatabaseAwayError: "wait, or check the server",
        RowRefusedError: "a value of this row cannot be stored",
        DatabaseError: "correct DATABASE_URL or the database",
    }[kind]
    return kind(f"DATABASE_URL {told(url)}: {reason}; {advice}")


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise DatabaseError(f"DATABASE_URL {told(url)!r} is not a database URL; {_WANTED}") from None
    if "+" not in parsed.drivername:
        parsed = parsed.set(drivername=_DRIVERS.get(parsed.drivername, parsed.drivername))
    backend = parsed.get_backend_name()
    if backend != "sqlite" and backend not in _DRIVERS:
        raise DatabaseError(f"DATABASE_URL {told(parsed)}: {backend} is not supported; {_WANTED}")
    if backend == "sqlite":
        _check_file(parsed)
    return parsed


def _check_file(url: URL) -> None:
    path = url.database or ""
    if path.startswith("file:"):
        return
    if path in ("", ":memory:"):
        raise DatabaseError(
            f"DATABASE_URL {told(url)}: an in-memory database is lost when its process ends; expected sqlite:///PATH"
        )
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise DatabaseError(
            f"DATABASE_URL {told(url)}: folder {folder} does not exist; create it, or correct the path"
        )


def _set_pragmas(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    for pragma in _PRAGMAS:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _commit_to_disk(connection: Any, _record: object) -> None:
    """Turns synchronous_commit on where the server has it off."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT set_config('synchronous_commit', 'on', false) "
            "WHERE current_setting('synchronous_commit') = 'off'"
        )
    connection.commit()


def _bind_quickly() -> None:
    """Identity adapters for None and bytes: failed lookups cost 0.13 us a value."""
    sqlite3.register_adapter(type(None), {}.get)  # type: ignore[arg-type]
    sqlite3.register_adapter(bytes, bytes)


# --- Versions ---------------------------------------------------------------------------------------------


def _revision(connection: Connection) -> str | None:
    url = told(connection.engine.url)
    names = set(inspect(connection).get_table_names())
    if VERSION_TABLE not in names:
        _refuse_strangers(url, names)
        return None
    found = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalars().all()  # noqa: S608
    if not found:
        return None  # a migration was killed where DDL cannot be rolled back; the next one continues it
    version = str(found[0])
    if version < KNOWN[0]:
        raise DatabaseError(
            f"DATABASE_URL {url} holds tables of version {version}, which was never released; this Lowtide upgrades "
            f"tables of {KNOWN[0]} or later: start a new crawl (another VAR_DIR, or another DATABASE_URL and "
            "KEY_PREFIX), or continue with the Lowtide that made them"
        )
    if version not in KNOWN:
        raise DatabaseError(
            f"DATABASE_URL {url} holds tables of version {version}; this Lowtide knows {', '.join(KNOWN)}: "
            "use the Lowtide that made them, or another database"
        )
    return version


def _refuse_strangers(url: str, names: set[str]) -> None:
    ours = sorted(names & set(metadata.tables))
    if ours:
        raise DatabaseError(
            f"DATABASE_URL {url} holds a table named {ours[0]} but no {VERSION_TABLE}, so Lowtide did not make it: "
            "use another database"
        )


@contextmanager
def _alone(connection: Connection) -> Iterator[None]:
    kind = connection.dialect.name
    if kind == "sqlite":
        # The driver does not begin a transaction for DDL; BEGIN makes the migration atomic.
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        yield
    elif kind == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('lowtide.migrate'))"))
        yield
    else:
        with _named_lock(connection):
            yield


@contextmanager
def _named_lock(connection: Connection) -> Iterator[None]:
    name = {"name": f"lowtide.migrate.{connection.engine.url.database}"[:64]}
    get_lock = text(f"SELECT GET_LOCK(:name, {MIGRATION_SECONDS - 60})")
    if connection.execute(get_lock, name).scalar() != 1:
        raise DatabaseAwayError(
            f"DATABASE_URL {told(connection.engine.url)}: another process is migrating it; wait"
        )
    try:
        yield
        # Commit before RELEASE_LOCK: the next holder must read the new version.
        connection.execute(text("COMMIT"))
    finally:
        connection.execute(text("SELECT RELEASE_LOCK(:name)"), name)


def _make(connection: Connection) -> None:
    """Creates all tables, faster than Alembic; a killed call is continued, since the version comes last."""
    _VERSIONS.create(connection)
    metadata.create_all(connection)
    connection.execute(_VERSIONS.insert().values(version_num=KNOWN[-1]))


def _upgrade(connection: Connection) -> None:
    logging.getLogger("alembic").setLevel(logging.WARNING)  # first: importing it logs each of its plugins
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", _MIGRATIONS)
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


# --- Classes of drivers' errors ---------------------------------------------------------------------------

# SQLite primary result codes: busy, locked, out of memory, I/O error, full, locking protocol.
_SQLITE_AWAY = {5, 6, 7, 10, 13, 15}
_SQLITE_ROW = {18, 19, 20}  # too big, constraint, type mismatch
# SQLSTATE prefixes: connection, rollback (deadlock), resources, lock, shutdown, I/O, read-only.
_POSTGRES_AWAY = ("08", "40", "53", "55P03", "57", "58", "25006")
_POSTGRES_ROW = ("22", "23", "54")
# PostgreSQL refuses connections with FATAL; only these messages are temporary.
_POSTGRES_PASSING = (
    "starting up",
    "shutting down",
    "recovery",
    "too many clients",
    "connection slots",
    "terminating",
)
_MARIADB_AWAY = {
    *(1020, 1021, 1040, 1042, 1043, 1053, 1114, 1129, 1158, 1159, 1160, 1161, 1180, 1203, 1205, 1213),
    *(1290, 1317, 1792, 1836, 1927, 2002, 2003, 2005, 2006, 2013, 2014, 2055),
}
_MARIADB_ROW = {1048, 1062, 1118, 1153, 1264, 1265, 1292, 1366, 1406}


def _kind(error: Exception) -> type[DatabaseError]:
    if not isinstance(error, DBAPIError):
        return DatabaseError if isinstance(error, SQLAlchemyError) else RowRefusedError
    cause = error.orig
    name = type(cause).__name__
    if error.connection_invalidated or name == "InterfaceError":
        return DatabaseAwayError
    code = getattr(cause, "sqlite_errorcode", None)
    if code is not None:
        return _told_by(code & 0xFF, _SQLITE_AWAY, _SQLITE_ROW)
    state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    if state:
        away, row = str(state).startswith(_POSTGRES_AWAY), str(state).startswith(_POSTGRES_ROW)
        return DatabaseAwayError if away else RowRefusedError if row else DatabaseError
    if cause is not None and cause.args and isinstance(cause.args[0], int):
        return _told_by(cause.args[0], _MARIADB_AWAY, _MARIADB_ROW)
    return _by_class(name, str(cause))


def _told_by(code: int, away: set[int], row: set[int]) -> type[DatabaseError]:
    return DatabaseAwayError if code in away else RowRefusedError if code in row else DatabaseError


def _by_class(name: str, words: str) -> type[DatabaseError]:
    if name in ("DataError", "IntegrityError"):
        return RowRefusedError
    if name in ("OperationalError", "ConnectionTimeout"):
        refused = "FATAL" in words and not any(passing in words for passing in _POSTGRES_PASSING)
        return DatabaseError if refused else DatabaseAwayError
    return DatabaseError
