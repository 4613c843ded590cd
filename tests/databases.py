"""Fresh databases for tests: an SQLite file, and PostgreSQL or MariaDB where a server answers on this machine.

Each is empty, has a name of its own, and is gone when the block ends. Servers that do not answer skip the test
with a reason; LOWTIDE_TESTS_REQUIRE=1 or CI=true makes that a failure (conftest.py).
"""

from __future__ import annotations

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
    server = POSTGRES if kind == "postgres" else MARIADB
    name = f"lowtide_test_{os.getpid()}_{secrets.token_hex(4)}"
    _ask(server, f"CREATE DATABASE {name}", skip=kind)
    try:
        yield server.set(database=name).render_as_string(hide_password=False)
    finally:
        force = " WITH (FORCE)" if kind == "postgres" else ""
        _ask(server, f"DROP DATABASE {name}{force}")


def _ask(server: URL, statement: str, skip: str = "") -> None:
    try:
        engine = create_engine(server, isolation_level="AUTOCOMMIT", connect_args={"connect_timeout": 3})
    except ModuleNotFoundError as error:
        pytest.skip(f"no {skip}: its driver {error.name} is not installed")
    try:
        with engine.connect() as connection:
            connection.execute(text(statement))
    except SQLAlchemyError as error:
        if not skip:
            raise
        pytest.skip(f"no {skip} at {server.host}:{server.port}: {' '.join(str(error).split())[:120]}")
    finally:
        engine.dispose()
