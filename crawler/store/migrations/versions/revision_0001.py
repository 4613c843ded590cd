"""The first tables: sites, pages, fetches, runs, dead letters.

Repeats crawler.store.tables as it was, since a revision must not change with it. Tables that are there already
are left: MariaDB commits each table by itself, so a killed migration goes on here.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_BIG = sa.BigInteger()
_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_WORDS = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
_LONG = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
_BYTES = sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
_NAME = sa.String(191)
_WORD = sa.String(32)


def _table(name: str, *parts: Any) -> None:
    options = {
        f"{dialect}_{option}": value
        for dialect in ("mysql", "mariadb")
        for option, value in (("charset", "utf8mb4"), ("collate", "utf8mb4_bin"), ("engine", "InnoDB"))
    }
    op.create_table(name, *parts, if_not_exists=True, **options)


def _filled(name: str, kind: Any, **more: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False, **more)


def upgrade() -> None:
    """Makes the five tables."""
    _sites()
    _pages()
    _fetches()
    _runs()
    _dead_letters()


def downgrade() -> None:
    """There is nothing before the first tables; dropping a crawl is the person's own act."""
    raise NotImplementedError("revision 0001 is the first: drop the database instead")


def _sites() -> None:
    _table(
        "sites",
        sa.Column("site_id", _BIG, primary_key=True, autoincrement=False),
        _filled("site", _WORDS),
        sa.Column("found_at", _BIG),
        sa.Column("source", _WORDS),
        _filled("state", _WORD),
        _filled("published", _BIG),
        _filled("known", _BIG),
        _filled("over_budget", _BIG),
        sa.Column("ended_at", _BIG),
        sa.Column("reason", _WORDS),
        sa.Column("ended_entry", _BIG),
    )


def _pages() -> None:
    _table(
        "pages",
        sa.Column("id", _KEY, primary_key=True, autoincrement=True),
        _filled("site_id", _BIG),
        _filled("url_hash", _BIG),
        _filled("url", _WORDS),
        _filled("state", _WORD),
        _filled("outcome", _WORD),
        _filled("status", sa.Integer()),
        _filled("depth", sa.Integer()),
        _filled("tries", sa.Integer()),
        sa.Column("error", _WORDS),
        _filled("size", _BIG),
        _filled("latency_ms", sa.Integer()),
        sa.Column("sha256", sa.String(64)),
        sa.Column("duplicate_of", _WORDS),
        sa.Column("redirect", _WORDS),
        sa.Column("content_type", _WORDS),
        sa.Column("title", _WORDS),
        sa.Column("description", _WORDS),
        _filled("fetched_at", _BIG),
        sa.Column("links", _BYTES),
        sa.UniqueConstraint("site_id", "url_hash", name="pages_site_url"),
    )


def _fetches() -> None:
    _table(
        "fetches",
        sa.Column("id", _KEY, primary_key=True, autoincrement=True),
        _filled("agent", _NAME),
        _filled("run", _NAME),
        _filled("seq", _BIG),
        _filled("site_id", _BIG),
        _filled("url_hash", _BIG),
        _filled("fetched_at", _BIG),
        _filled("status", sa.Integer()),
        _filled("outcome", _WORD),
        _filled("size", _BIG),
        _filled("latency_ms", sa.Integer()),
        sa.UniqueConstraint("agent", "run", "seq", name="fetches_record"),
    )


def _runs() -> None:
    _table(
        "runs",
        sa.Column("agent", _NAME, primary_key=True),
        sa.Column("run", _NAME, primary_key=True),
        _filled("spider", _WORDS),
        _filled("scheduler", _WORDS),
        _filled("started_at", _BIG),
        sa.Column("ended_at", _BIG),
        sa.Column("reason", _WORDS),
    )


def _dead_letters() -> None:
    _table(
        "dead_letters",
        sa.Column("id", _KEY, primary_key=True, autoincrement=True),
        _filled("stream_id", sa.String(64)),
        _filled("received_at", _BIG),
        _filled("reason", _WORDS),
        _filled("fields", _LONG),
        sa.UniqueConstraint("stream_id", name="dead_letters_entry"),
    )
