"""How sites are: what is known of it by now, its history, and the changes that are told.

What is there already is left: MariaDB commits each step by itself, so a killed migration goes on here.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger()
_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_WORDS = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
_NAME, _WORD = sa.String(191), sa.String(32)
_OF_SITES: tuple[tuple[str, Any], ...] = (
    ("health", _WORD),
    ("health_since", _BIG),
    ("health_status", sa.Integer()),
    ("health_told", _WORD),
    ("health_penalty", sa.Double()),
    ("health_damped", sa.Integer()),
    ("health_at", _BIG),
)


def _filled(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False)


def _record(constraint: str) -> tuple[Any, ...]:
    """What tells a row's record from all others."""
    return (
        sa.Column("id", _KEY, primary_key=True, autoincrement=True),
        _filled("agent", _NAME),
        _filled("run", _NAME),
        _filled("seq", _BIG),
        sa.UniqueConstraint("agent", "run", "seq", name=constraint),
    )


def upgrade() -> None:
    """Adds the columns, and makes both tables."""
    there = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("sites")}
    for name, kind in _OF_SITES:
        if name not in there:
            op.add_column("sites", sa.Column(name, kind))
    options = {
        f"{dialect}_{option}": value
        for dialect in ("mysql", "mariadb")
        for option, value in (("charset", "utf8mb4"), ("collate", "utf8mb4_bin"), ("engine", "InnoDB"))
    }
    op.create_table(
        "health",
        *_record("health_record"),
        _filled("site_id", _BIG),
        _filled("checked_at", _BIG),
        _filled("health", _WORD),
        _filled("status", sa.Integer()),
        _filled("path", _WORDS),
        _filled("pages", sa.Integer()),
        _filled("tries", sa.Integer()),
        _filled("seen_by", _WORD),
        *(sa.Column(f"{name}_ms", sa.Integer()) for name in ("latency", "connect", "head", "body")),
        sa.Column("address", _WORDS),
        sa.Column("error", _WORDS),
        if_not_exists=True,
        **options,
    )
    op.create_table(
        "health_changes",
        *_record("health_changes_record"),
        _filled("site_id", _BIG),
        _filled("site", _WORDS),
        _filled("was", _WORD),
        _filled("now", _WORD),
        _filled("since", _BIG),
        _filled("seen_at", _BIG),
        _filled("status", sa.Integer()),
        sa.Column("error", _WORDS),
        *(sa.Column(name, _BIG) for name in ("told_at", "command_at", "webhook_at")),
        if_not_exists=True,
        **options,
    )
    _index("health_of_site", "health", ["site_id", "checked_at"])
    _index("health_changes_to_tell", "health_changes", ["told_at"])


def _index(name: str, table: str, columns: list[str]) -> None:
    there = {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}
    if name not in there:
        op.create_index(name, table, columns)


def downgrade() -> None:
    """Takes them away, with what they hold."""
    op.drop_table("health_changes")
    op.drop_table("health")
    for name, _ in reversed(_OF_SITES):
        op.drop_column("sites", name)
