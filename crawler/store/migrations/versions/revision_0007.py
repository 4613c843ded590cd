"""Ranks of pages and of sites, and the runs that they come from.

What is there already is left: MariaDB commits each table by itself, so a killed migration goes on here.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger()
_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_WORDS = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")


def _filled(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False)


def _key(name: str) -> sa.Column[Any]:
    return sa.Column(name, _BIG, primary_key=True, autoincrement=False)


def upgrade() -> None:
    """Makes the three tables."""
    options = {
        f"{dialect}_{option}": value
        for dialect in ("mysql", "mariadb")
        for option, value in (("charset", "utf8mb4"), ("collate", "utf8mb4_bin"), ("engine", "InnoDB"))
    }
    op.create_table(
        "rankings",
        sa.Column("run", _KEY, primary_key=True, autoincrement=True),
        _filled("source", _WORDS),
        _filled("mode", _WORDS),
        _filled("block", sa.String(32)),
        _filled("damping", sa.Double()),
        _filled("pages", _BIG),
        _filled("began_at", _BIG),
        sa.Column("finished_at", _BIG),
        if_not_exists=True,
        **options,
    )
    op.create_table(
        "ranks",
        _key("run"),
        _key("site_id"),
        _key("url_hash"),
        _filled("rank", sa.Double()),
        _filled("importance", sa.Double()),
        if_not_exists=True,
        sqlite_with_rowid=False,
        **options,
    )
    op.create_table(
        "site_ranks",
        _key("run"),
        _key("site_id"),
        _filled("rank", sa.Double()),
        _filled("importance", sa.Double()),
        _filled("pages", _BIG),
        if_not_exists=True,
        sqlite_with_rowid=False,
        **options,
    )


def downgrade() -> None:
    """Takes them away, with what they hold."""
    for name in ("site_ranks", "ranks", "rankings"):
        op.drop_table(name)
