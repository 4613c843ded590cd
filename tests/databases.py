"""Fresh databases for tests: an SQLite file, and PostgreSQL or MariaDB where a server answers on this machine.

Each is empty and its caller's alone until the block ends. Those of PostgreSQL are emptied and used again, since a new
one costs several times the work; they are gone when this process ends. Servers that do not answer skip the test with
a reason; LOWTIDE_TESTS_REQUIRE=1 or CI=true makes that a failure (conftest.py).
"""

from __future__ import annotations

import atexit
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import URL, create_engine, make_url, text
from sqlalchemy.exc import SQLAlchemyError

POSTGRES = make_url("postgresql+psycopg://postgres@127.0.0.1:5432/postgres")
MARIADB = make_url("mariadb+pymysql://root@127.0.0.1:3306/")

# One parameter per kind of database, for `pytest.mark.parametrize("kind", KINDS)`.
KINDS = [
    pytest.param("sqlite"),
    pytest.param("postgres", marks=pytest.mark.needs("postgres")),
    pytest.param("mariadb", marks=pytest.mark.needs("mariadb")),
]


@contextmanager
def fresh_database(kind: str, folder: Path) -> Iterator[str]:
    """The URL of an empty database of this kind; skips the test where its server does not answer."""
    if kind == "sqlite":
        path = folder / f"crawl-{secrets.token_hex(4)}.db"
        yield f"sqlite:///{path}"
        for left in folder.glob(path.name + "*"):
            left.unlink()
        return
    if kind == "postgres":
        name = _free.pop() if _free else _create(POSTGRES, kind)
        yield POSTGRES.set(database=name).render_as_string(hide_password=False)
        _empty(name)
        _free.append(name)
        return
    name = _create(MARIADB, kind)
    try:
        yield MARIADB.set(database=name).render_as_string(hide_password=False)
    finally:
        _ask(MARIADB, f"DROP DATABASE {name}")


# Databases of PostgreSQL that are empty, and those that this process has made.
_free: list[str] = []
_made: list[str] = []


def _drop_all() -> None:
    """What PostgreSQL still has of this process's databases."""
    for name in _made:
        _ask(POSTGRES, f"DROP DATABASE {name} WITH (FORCE)")


def _create(server: URL, kind: str) -> str:
    name = f"lowtide_test_{os.getpid()}_{secrets.token_hex(4)}"
    _ask(server, f"CREATE DATABASE {name}", skip=kind)
    if kind == "postgres":
        if not _made:
            atexit.register(_drop_all)
        _made.append(name)
    return name


def _empty(name: str) -> None:
    """As it was made: nobody in it, no tables, no settings of its own."""
    others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    _ask(
        POSTGRES.set(database=name),
        f"SELECT pg_terminate_backend(pid, 10000) {others}",
        "DROP SCHEMA public CASCADE",
        "CREATE SCHEMA public",
        f"ALTER DATABASE {name} RESET ALL",
    )


def _ask(server: URL, *statements: str, skip: str = "") -> None:
    try:
        engine = create_engine(server, isolation_level="AUTOCOMMIT", connect_args={"connect_timeout": 3})
    except ModuleNotFoundError as error:
        pytest.skip(f"no {skip}: its driver {error.name} is not installed")
    try:
        with engine.connect() as connection:
            for statement in statements:
                connection.execute(text(statement))
    except SQLAlchemyError as error:
        if not skip:
            raise
        pytest.skip(f"no {skip} at {server.host}:{server.port}: {' '.join(str(error).split())[:120]}")
    finally:
        engine.dispose()
