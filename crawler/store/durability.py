"""Finds server settings under which a power failure loses acknowledged data.

Records are deleted from Redis after commit. Raises DatabaseError or redis.ConnectionError if the server does not
answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import redis
from redis.exceptions import NoPermissionError
from sqlalchemy import text

from crawler.store.database import transaction

if TYPE_CHECKING:
    from sqlalchemy import Engine


class Risk(NamedTuple):
    """A setting that may lose data."""

    name: str
    value: str
    expected: str
    advice: str

    def __str__(self) -> str:
        return f"{self.name} is {self.value}; expected {self.expected}: {self.advice}"


class _Rule(NamedTuple):
    name: str
    safe: tuple[str, ...]  # in lower case; the first one is recommended
    advice: str


_POSTGRES: Final = (
    _Rule("fsync", ("on",), "set it in postgresql.conf and reload"),
    _Rule("full_page_writes", ("on",), "set it in postgresql.conf and reload"),
    # Our sessions turn it on (database.py); a connection pooler may undo that.
    _Rule(
        "synchronous_commit",
        ("on", "local", "remote_write", "remote_apply"),
        "ALTER ROLE … SET synchronous_commit = on",
    ),
)
_MARIADB: Final = (
    _Rule(
        "innodb_flush_log_at_trx_commit",
        ("1", "3"),
        "SET GLOBAL innodb_flush_log_at_trx_commit = 1, and in the server's configuration",
    ),
    _Rule(
        "innodb_doublewrite",
        ("on", "1", "detect_and_recover"),
        "set it in the server's configuration and restart it",
    ),
)


def of_database(engine: Engine) -> list[Risk]:
    """Risky settings in this session; none for SQLite, whose settings are ours."""
    kind = engine.dialect.name
    if kind == "sqlite":
        return []
    rules = _POSTGRES if kind == "postgresql" else _MARIADB
    names = ", ".join(f"'{rule.name}'" for rule in rules)
    if kind == "postgresql":
        query = f"SELECT name, setting FROM pg_settings WHERE name IN ({names})"  # noqa: S608 - our own names
    else:
        query = f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})"
    with transaction(engine) as connection:
        found = {str(name): str(value) for name, value in connection.execute(text(query))}
    return [
        Risk(rule.name, found[rule.name], rule.safe[0], rule.advice)
        for rule in rules
        if rule.name in found and found[rule.name].lower() not in rule.safe
    ]


def of_redis(client: redis.Redis) -> list[Risk]:
    """Risky settings that this user may read."""
    try:
        info: Any = client.info("persistence")
    except NoPermissionError:
        return []
    if not info.get("aof_enabled", 1):
        advice = "CONFIG SET appendonly yes, and in redis.conf; a restart loses the queue"
        return [Risk("appendonly", "no", "yes", advice)]
    if appendfsync(client) == "no":
        advice = "CONFIG SET appendfsync everysec, and in redis.conf"
        return [Risk("appendfsync", "no", "everysec", advice)]
    return []


def appendfsync(client: redis.Redis) -> str:
    """The setting; empty for named users (ACLs usually deny CONFIG, and log it) and without CONFIG."""
    if client.get_connection_kwargs().get("username") not in (None, "", "default"):
        return ""
    try:
        found: Any = client.config_get("appendfsync")
    except redis.ResponseError:  # managed servers may have no CONFIG
        return ""
    return str(found.get("appendfsync", ""))
