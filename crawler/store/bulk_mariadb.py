"""MariaDB and MySQL: many rows in one INSERT, their values spelt out in it.

The driver spells values out as well, and takes 0.7 us for each; at 52 values a page that is more than all else. Nothing
here leans on the session's rules of escaping: a text with a quote or a backslash is written as hexadecimal digits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from crawler.store.rows import Row

# Of one statement: far below what servers take (max_allowed_packet, 16 MiB at least), and longer ones gain nothing.
MOST_CHARACTERS = 1_000_000


def insert(connection: Connection, head: str, tail: str, rows: list[Row]) -> None:
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
