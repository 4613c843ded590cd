"""Many rows into one table by the quickest way that its database has; of two rows with one key a rule keeps one.

Hides the three dialects' upserts: rows are tuples, and go to the driver as they are. Nothing here begins or ends a
transaction; what a database refuses passes to the caller as SQLAlchemy or the driver raises it. The rows of one call
are best in the order of their keys, so that two writers do not wait for each other in a ring.
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


# ------------------------------------------------------------------------------------------------------------
# PostgreSQL's COPY: rows by the hundred into a table of this session alone, from which a statement takes them.
#
# A COPY knows no conflicts, so the rows go to a stage first: a temporary table of the same columns, which the server
# empties at the end of every transaction. What server or driver refuse is raised the way SQLAlchemy raises it.


# What the server calls a type of ours; all others are texts.
_TYPES: dict[type, str] = {BigInteger: "int8", Integer: "int4", Float: "float8", LargeBinary: "bytea"}


@contextmanager
def staged(
    connection: Connection, name: str, table: Table, columns: tuple[str, ...], rows: Sequence[Row]
) -> Iterator[Table]:
    """A table of these columns of `table` that holds the rows until the block ends; each kind of rows has a `name`."""
    stage = _stage(name, table, columns)
    connection.exec_driver_sql(_making(stage, table))
    _copy(connection, stage, rows)
    yield stage
    connection.execute(stage.delete())  # another block of the same transaction finds it empty


@cache
def _stage(name: str, table: Table, columns: tuple[str, ...]) -> Table:
    return Table(f"coming_{name}", MetaData(), *(Column(one, table.c[one].type) for one in columns))


@cache
def _making(stage: Table, table: Table) -> str:
    """Asked for every time: a transaction that is rolled back may take it away again."""
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
    """The driver's error as `Connection.execute` would have raised it, which knows nothing of a COPY."""
    dialect = connection.dialect
    broken = dialect.is_disconnect(error, connection.connection.dbapi_connection, None)  # type: ignore[arg-type]
    if broken:
        connection.invalidate(error)
    return DBAPIError.instance(
        statement, None, error, dialect.loaded_dbapi.Error, connection_invalidated=broken, dialect=dialect
    )


# ------------------------------------------------------------------------------------------------------------
# MariaDB and MySQL: many rows in one INSERT, their values spelt out in it.
#
# The driver spells values out as well, and takes 0.7 us for each; at 52 values a page that is more than all else.
# Nothing here leans on the session's rules of escaping: a text with a quote or a backslash is written as hexadecimal
# digits.


# Of one statement: far below what servers take (max_allowed_packet, 16 MiB at least), and longer ones gain nothing.
MOST_CHARACTERS = 1_000_000


def bulk_insert(connection: Connection, head: str, tail: str, rows: list[Row]) -> None:
    """Executes `head`, the rows, `tail`, in statements of bounded length."""
    for values in _bounded(map(spell, rows)):
        connection.exec_driver_sql(f"{head}{values}{tail}", execution_options={"no_parameters": True})


def spell(row: Row) -> str:
    """A row of texts, bytes, numbers and None as SQL."""
    # One look at all texts of a row; most have nothing that means anything between quotes.
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


# Says of a column's two values whether the first is to replace the second.
Beats = Callable[[Any, Any], Any]
# Makes a column's value of the columns of the new row and of the old one.
Rule = Callable[[Any, Any], Any]
# From so many rows on, PostgreSQL is given them by COPY: below, the statements more cost what it saves.
LEAST_COPIED = 20


class Upsert(NamedTuple):
    """One way to write rows of a table; equal ones are the same object."""

    name: str  # of its rows
    table: Table
    columns: tuple[str, ...]  # of a row; the others of the table get what they have without a word
    key: tuple[str, ...]
    # What a row takes over from a new one (also what that does not name), if in the last of these columns the new value
    # beats the old one; none: what is there stays as it is.
    changed: tuple[str, ...] = ()
    beats: Beats | None = None
    # And columns that become what a rule makes of the new row and the old one, in this order: where a database works
    # them out one after the other, a rule sees what those before it made.
    computed: tuple[tuple[str, Rule], ...] = ()


def write(connection: Connection, upsert: Upsert, rows: list[Row]) -> None:
    """Writes the rows. Where some take over something, no two have one key: PostgreSQL touches no row twice."""
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
    """The driver's own SQL, with a place for each column of a row."""
    if not dialect.positional:
        kind: Any = type(dialect)
        dialect = kind(paramstyle="format")
    insert = _ruled(_insert(dialect.name, upsert.table), upsert)
    compiled: Any = insert.compile(dialect=dialect, column_keys=list(upsert.columns))
    return _reordered(str(compiled), dialect, compiled.positiontup, upsert.columns)


def _reordered(statement: str, dialect: Dialect, theirs: list[str], ours: tuple[str, ...]) -> str:
    """The INSERT with columns in the order of our rows; SQLAlchemy has them in the table's."""
    quote = dialect.identifier_preparer.quote
    into, named, values = statement.partition(f"({', '.join(map(quote, theirs))}) VALUES (")
    places, closed, tail = values.partition(")")
    assert named and closed, f"not as expected: {statement}"
    place_of = dict(zip(theirs, places.split(", "), strict=True))
    return (
        f"{into}({', '.join(map(quote, ours))}) VALUES ({', '.join(map(place_of.__getitem__, ours))}){tail}"
    )


@lru_cache(maxsize=64)
def _around_values(dialect: Dialect, upsert: Upsert) -> tuple[str, str]:
    """What stands before and behind the values of an INSERT."""
    head, places, tail = _statement(dialect, upsert).partition(f"({', '.join(['%s'] * len(upsert.columns))})")
    assert places, "the driver does not write places as %s"
    return head, tail


@cache
def _from_stage(upsert: Upsert, stage: Table) -> Insert:
    insert = _insert("postgresql", upsert.table).from_select(list(upsert.columns), select(*stage.columns))
    return _ruled(insert, upsert)


def _insert(dialect: str, table: Table) -> Insert:
    # Every crawl starts a coordinator, which uses one of them: the others' drivers are slow to import.
    if dialect == "sqlite":
        from sqlalchemy.dialects import sqlite

        return sqlite.insert(table)
    if dialect == "postgresql":
        from sqlalchemy.dialects import postgresql

        return postgresql.insert(table)
    return mysql.insert(table)


def _ruled(insert: Any, upsert: Upsert) -> Insert:
    """The insert with what happens to a row that is there already."""
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
    """MariaDB's: no WHERE there, and each sees those before it, so the column that decides comes last."""
    table, key = upsert.table, upsert.key[0]
    if upsert.beats is None:
        return [(key, table.c[key])]  # not INSERT IGNORE, which would also cut values that do not fit
    clock = upsert.changed[-1]
    wins = upsert.beats(insert.inserted[clock], table.c[clock])
    # Rules read the old row, so they come before what replaces it.
    ruled = [
        (name, func.if_(wins, rule(insert.inserted, table.c), table.c[name]))
        for name, rule in upsert.computed
    ]
    return ruled + [(name, func.if_(wins, insert.inserted[name], table.c[name])) for name in upsert.changed]
