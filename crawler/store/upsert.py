"""Bulk upserts in the fastest way of each database; passes the database's errors on.

Rows in key order avoid deadlocks of concurrent writers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Dialect,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    func,
    select,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError

if TYPE_CHECKING:
    from sqlalchemy.sql.dml import Insert

    from crawler.store.rows import Row


# --- PostgreSQL: COPY into a temporary table, then INSERT ... SELECT --------------------------------------


# PostgreSQL's names of our types; all others are text.
_TYPES: dict[type, str] = {BigInteger: "int8", Integer: "int4", Float: "float8", LargeBinary: "bytea"}


@contextmanager
def staged(
    connection: Connection, name: str, table: Table, columns: tuple[str, ...], rows: Sequence[Row]
) -> Iterator[Table]:
    """A temporary table with these columns and rows, until the block ends."""
    stage = _stage(name, table, columns)
    connection.exec_driver_sql(_making(stage, table))
    _copy(connection, stage, rows)
    yield stage
    connection.execute(stage.delete())  # for the next block of the same transaction


@cache
def _stage(name: str, table: Table, columns: tuple[str, ...]) -> Table:
    return Table(f"coming_{name}", MetaData(), *(Column(one, table.c[one].type) for one in columns))


@cache
def _making(stage: Table, table: Table) -> str:
    """Executed for each block: a rollback may drop the table."""
    return (
        f"CREATE TEMPORARY TABLE IF NOT EXISTS {stage.name} ON COMMIT DELETE ROWS AS "  # noqa: S608 - our names
        f"SELECT {', '.join(stage.columns.keys())} FROM {table.name} WITH NO DATA"
    )


def _copy(connection: Connection, stage: Table, rows: Sequence[Row]) -> None:
    driver: Any = connection.connection.driver_connection
    statement = f"COPY {stage.name} FROM STDIN (FORMAT BINARY)"
    try:
        with driver.cursor() as cursor, cursor.copy(statement) as copy:
            copy.set_types(_types(connection.dialect, stage))
            write = copy.write_row
            for row in rows:
                write(row)
    except connection.dialect.loaded_dbapi.Error as error:
        raise _as_sqlalchemy(connection, statement, error) from error


@lru_cache(maxsize=64)
def _types(dialect: Dialect, stage: Table) -> list[str]:
    kinds = [column.type.dialect_impl(dialect) for column in stage.columns]
    return [next((name for ours, name in _TYPES.items() if isinstance(kind, ours)), "text") for kind in kinds]


def _as_sqlalchemy(connection: Connection, statement: str, error: Exception) -> Exception:
    dialect = connection.dialect
    broken = dialect.is_disconnect(error, connection.connection.dbapi_connection, None)  # type: ignore[arg-type]
    if broken:
        connection.invalidate(error)
    return DBAPIError.instance(
        statement, None, error, dialect.loaded_dbapi.Error, connection_invalidated=broken, dialect=dialect
    )


# --- MariaDB and MySQL: multi-row INSERT with literals, faster than the driver's own (0.7 us a value) -----


# Per statement: far below max_allowed_packet (16 MiB at least); longer statements are not faster.
MOST_CHARACTERS = 1_000_000


def bulk_insert(connection: Connection, head: str, tail: str, rows: list[Row]) -> None:
    """Executes `head`, rows, `tail` in statements of about MOST_CHARACTERS."""
    for values in _bounded(map(spell, rows)):
        connection.exec_driver_sql(f"{head}{values}{tail}", execution_options={"no_parameters": True})


def spell(row: Row) -> str:
    """A row as SQL; texts with quotes or backslashes as hexadecimal literals."""
    # One check of all texts of a row; most need no escaping.
    texts = "".join([value for value in row if value.__class__ is str])
    if "'" not in texts and "\\" not in texts:
        return f"({','.join([_plain(value) for value in row])})"
    return f"({','.join([_safe(value) for value in row])})"


def _plain(value: Any) -> str:
    kind = value.__class__
    if kind is str:
        return f"'{value}'"
    if value is None:
        return "NULL"
    if kind is int:
        return str(value)
    if kind is float:
        return repr(value)
    return f"X'{value.hex()}'"


def _safe(value: Any) -> str:
    if value.__class__ is str and ("'" in value or "\\" in value):
        return f"_utf8mb4 X'{value.encode().hex()}'"
    return _plain(value)


def _bounded(spelt: Iterator[str]) -> Iterator[str]:
    some: list[str] = []
    size = 0
    for row in spelt:
        if some and size + len(row) > MOST_CHARACTERS:
            yield ",".join(some)
            some, size = [], 0
        some.append(row)
        size += len(row)
    if some:
        yield ",".join(some)


# Condition on a column's new and old value: the new row wins.
Beats = Callable[[Any, Any], Any]
# Computes a column's value from the columns of the new and the old row.
Rule = Callable[[Any, Any], Any]
# PostgreSQL uses COPY from this number of rows on: its extra statements do not pay off for fewer.
LEAST_COPIED = 20


class Upsert(NamedTuple):
    """How rows of one kind are written to a table."""

    name: str  # of this kind of rows
    table: Table
    columns: tuple[str, ...]  # of a row; the table's other columns get their defaults
    key: tuple[str, ...]
    # Columns that an existing row takes from the new one (also if that does not name them), if `beats` holds for the
    # last of them; without `beats` existing rows stay unchanged.
    changed: tuple[str, ...] = ()
    beats: Beats | None = None
    # Columns computed from the new and the old row, in this order: MariaDB evaluates assignments one by one, so that a
    # rule sees the results of earlier ones.
    computed: tuple[tuple[str, Rule], ...] = ()


def write(connection: Connection, upsert: Upsert, rows: list[Row]) -> None:
    """Writes the rows; with `beats`, keys must be unique: PostgreSQL updates no row twice per statement."""
    if not rows:
        return
    dialect = connection.dialect
    if dialect.name == "postgresql" and len(rows) >= LEAST_COPIED:
        with staged(connection, upsert.name, upsert.table, upsert.columns, rows) as stage:
            connection.execute(_from_stage(upsert, stage))
    elif dialect.name in ("mysql", "mariadb"):
        bulk_insert(connection, *_around_values(dialect, upsert), rows)
    else:
        connection.exec_driver_sql(_statement(dialect, upsert), rows)


@lru_cache(maxsize=64)
def _statement(dialect: Dialect, upsert: Upsert) -> str:
    if not dialect.positional:
        kind: Any = type(dialect)
        dialect = kind(paramstyle="format")
    insert = _ruled(_insert(dialect.name, upsert.table), upsert)
    compiled: Any = insert.compile(dialect=dialect, column_keys=list(upsert.columns))
    return _reordered(str(compiled), dialect, compiled.positiontup, upsert.columns)


def _reordered(statement: str, dialect: Dialect, theirs: list[str], ours: tuple[str, ...]) -> str:
    """Columns in our rows' order, not the table's."""
    quote = dialect.identifier_preparer.quote
    into, named, values = statement.partition(f"({', '.join(map(quote, theirs))}) VALUES (")
    places, closed, tail = values.partition(")")
    assert named and closed, f"unexpected INSERT: {statement}"
    place_of = dict(zip(theirs, places.split(", "), strict=True))
    return (
        f"{into}({', '.join(map(quote, ours))}) VALUES ({', '.join(map(place_of.__getitem__, ours))}){tail}"
    )


@lru_cache(maxsize=64)
def _around_values(dialect: Dialect, upsert: Upsert) -> tuple[str, str]:
    head, places, tail = _statement(dialect, upsert).partition(f"({', '.join(['%s'] * len(upsert.columns))})")
    assert places, "the driver does not write places as %s"
    return head, tail


@cache
def _from_stage(upsert: Upsert, stage: Table) -> Insert:
    insert = _insert("postgresql", upsert.table).from_select(list(upsert.columns), select(*stage.columns))
    return _ruled(insert, upsert)


def _insert(dialect: str, table: Table) -> Insert:
    # Imported on use: a coordinator needs one dialect, and imports are slow.
    if dialect == "sqlite":
        from sqlalchemy.dialects import sqlite

        return sqlite.insert(table)
    if dialect == "postgresql":
        from sqlalchemy.dialects import postgresql

        return postgresql.insert(table)
    return mysql.insert(table)


def _ruled(insert: Any, upsert: Upsert) -> Insert:
    table, changed = upsert.table, upsert.changed
    if isinstance(insert, mysql.Insert):
        return insert.on_duplicate_key_update(_assignments(insert, upsert))
    if upsert.beats is None:
        return insert.on_conflict_do_nothing(index_elements=list(upsert.key))  # type: ignore[no-any-return]
    clock = changed[-1]
    return insert.on_conflict_do_update(  # type: ignore[no-any-return]
        index_elements=list(upsert.key),
        set_={name: insert.excluded[name] for name in changed}
        | {name: rule(insert.excluded, table.c) for name, rule in upsert.computed},
        where=upsert.beats(insert.excluded[clock], table.c[clock]),
    )


def _assignments(insert: mysql.Insert, upsert: Upsert) -> list[tuple[str, Any]]:
    """MariaDB has no WHERE here; assignments see earlier ones, so the deciding column comes last."""
    table, key = upsert.table, upsert.key[0]
    if upsert.beats is None:
        return [(key, table.c[key])]  # not INSERT IGNORE, which also truncates values
    clock = upsert.changed[-1]
    wins = upsert.beats(insert.inserted[clock], table.c[clock])
    # Rules read the old row, so they come first.
    ruled = [
        (name, func.if_(wins, rule(insert.inserted, table.c), table.c[name]))
        for name, rule in upsert.computed
    ]
    return ruled + [(name, func.if_(wins, insert.inserted[name], table.c[name])) for name in upsert.changed]
