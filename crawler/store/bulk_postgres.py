"""PostgreSQL's COPY: rows by the hundred into a table of this session alone, from which a statement takes them.

A COPY knows no conflicts, so the rows go to a stage first: a temporary table of the same columns, which the server
empties at the end of every transaction. What server or driver refuse is raised the way SQLAlchemy raises it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, Column, Connection, Dialect, Float, Integer, LargeBinary, MetaData, Table
from sqlalchemy.exc import DBAPIError

if TYPE_CHECKING:
    from crawler.store.rows import Row

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
