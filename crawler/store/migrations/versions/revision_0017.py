"""Creates all tables that do not exist; the first revision. A copy of tables.py, which may change."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0017"
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


def _table(name: str, *parts: Any, **more: Any) -> None:
    options = {
        f"{dialect}_{option}": value
        for dialect in ("mysql", "mariadb")
        for option, value in (("charset", "utf8mb4"), ("collate", "utf8mb4_bin"), ("engine", "InnoDB"))
    }
    op.create_table(name, *parts, if_not_exists=True, **options, **more)


def _filled(name: str, kind: Any, **more: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False, **more)


def _index(name: str, table: str, *columns: str) -> None:
    there = {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}
    if name not in there:
        op.create_index(name, table, columns)


def _record(name: str) -> tuple[Any, ...]:
    return (
        sa.Column("id", _KEY, primary_key=True, autoincrement=True),
        _filled("agent", _NAME),
        _filled("run", _NAME),
        _filled("seq", _BIG),
        sa.UniqueConstraint("agent", "run", "seq", name=name),
    )


def upgrade() -> None:
    """Makes them."""
    _sites()
    _pages()
    _fetches()
    _runs()
    _checks()
    _visits()
    _health()
    _health_changes()
    _profiles()
    _rankings()
    _ranks()
    _site_ranks()
    _beliefs()
    _dead_letters()


def downgrade() -> None:
    """There is no earlier schema."""
    raise NotImplementedError(f"revision {revision} is the first: drop the database instead")


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
        sa.Column("found_entry", _BIG),
        sa.Column("alias_of", _WORDS),
        sa.Column("stopped", _WORD),
        sa.Column("stopped_reason", _WORDS),
        sa.Column("stopped_entry", _BIG),
        sa.Column("budget", _BIG),
        sa.Column("budget_entry", _BIG),
        sa.Column("pending", _BIG),
        sa.Column("health", _WORD),
        sa.Column("health_since", _BIG),
        sa.Column("health_status", sa.Integer()),
        sa.Column("health_told", _WORD),
        sa.Column("health_penalty", sa.Double()),
        sa.Column("health_damped", sa.Integer()),
        sa.Column("health_at", _BIG),
        sa.Column("left_out", _BIG),
        sa.Column("left_out_by", _WORDS),
        sa.Column("left_out_hashes", _BYTES),
        sa.Column("same_as", _WORDS),
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
        sa.Column("canonical", _WORDS),
        sa.Column("charset", _WORD),
        sa.Column("language", _WORD),
        sa.Column("content_hash", _WORD),
        sa.Column("media", _WORDS),
        sa.Column("outside_hosts", _WORDS),
        sa.Column("mail_domains", _WORDS),
        sa.Column("ftp_domains", _WORDS),
        sa.Column("robots", _WORDS),
        sa.Column("keywords", _WORDS),
        sa.Column("etag", _WORDS),
        sa.Column("last_modified", _WORDS),
        sa.Column("address", _WORDS),
        sa.Column("wire_size", _BIG),
        sa.Column("warc_file", _WORDS),
        sa.Column("warc_offset", _BIG),
        sa.Column("warc_length", _BIG),
        sa.Column("extracted_at", _BIG),
        _filled("fails", sa.Integer(), server_default="0"),
        sa.Column("last_checked", _BIG),
        sa.Column("last_changed", _BIG),
        sa.Column("next_check", _BIG),
        sa.Column("sitemap_lastmod", _BIG),
        sa.Column("signalled_at", _BIG),
        sa.Column("walked_at", _BIG),
        sa.Column("asked_as", _WORDS),
        sa.Column("extra", _WORDS),
        sa.UniqueConstraint("site_id", "url_hash", name="pages_site_url"),
    )


def _fetches() -> None:
    _table(
        "fetches",
        *_record("fetches_record"),
        _filled("site_id", _BIG),
        _filled("url_hash", _BIG),
        _filled("fetched_at", _BIG),
        _filled("status", sa.Integer()),
        _filled("outcome", _WORD),
        _filled("size", _BIG),
        _filled("latency_ms", sa.Integer()),
        sa.Column("wire_size", _BIG),
        sa.Column("connect_ms", sa.Integer()),
        sa.Column("head_ms", sa.Integer()),
        sa.Column("body_ms", sa.Integer()),
        sa.Column("content_hash", _WORD),
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


def _checks() -> None:
    _table(
        "checks",
        sa.Column("id", _KEY, primary_key=True, autoincrement=True),
        _filled("crawler", _BIG),
        sa.Column("run", _NAME),
        sa.Column("seq", _BIG),
        _filled("code", _BIG),
        _filled("checked_at", _BIG),
        _filled("status", sa.Integer()),
        sa.Column("latency_ms", sa.Integer()),
        sa.Column("site_id", _BIG),
        sa.Column("url_hash", _BIG),
        sa.Column("url", _WORDS),
        sa.Column("more", _WORDS),
        _filled("digest", _WORD),
        sa.UniqueConstraint("digest", name="checks_packet"),
    )


def _visits() -> None:
    _table(
        "visits",
        *_record("visits_record"),
        _filled("site_id", _BIG),
        _filled("hour", _BIG),
        sa.Column("seconds", sa.Double()),
        _filled("refused", sa.Double()),
        _filled("pages", sa.Integer()),
        _filled("delay_seconds", sa.Double()),
        sa.Column("hours_open", _WORD),
    )


def _health() -> None:
    _table(
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
        sa.Column("latency_ms", sa.Integer()),
        sa.Column("connect_ms", sa.Integer()),
        sa.Column("head_ms", sa.Integer()),
        sa.Column("body_ms", sa.Integer()),
        sa.Column("address", _WORDS),
        sa.Column("error", _WORDS),
    )
    _index("health_of_site", "health", "site_id", "checked_at")


def _health_changes() -> None:
    _table(
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
        sa.Column("told_at", _BIG),
        sa.Column("command_at", _BIG),
        sa.Column("webhook_at", _BIG),
        sa.Column("log_at", _BIG),
    )
    _index("health_changes_to_tell", "health_changes", "told_at")


def _profiles() -> None:
    _table(
        "profiles",
        sa.Column("site_id", _BIG, primary_key=True, autoincrement=False),
        _filled("site", _WORDS),
        _filled("loads", _BYTES),
        _filled("imported_at", _BIG),
    )


def _rankings() -> None:
    _table(
        "rankings",
        sa.Column("run", _KEY, primary_key=True, autoincrement=True),
        _filled("source", _WORDS),
        _filled("mode", _WORDS),
        _filled("block", _WORD),
        _filled("damping", sa.Double()),
        _filled("pages", _BIG),
        _filled("began_at", _BIG),
        sa.Column("finished_at", _BIG),
    )


def _ranks() -> None:
    _table(
        "ranks",
        sa.Column("run", _BIG, primary_key=True, autoincrement=False),
        sa.Column("site_id", _BIG, primary_key=True, autoincrement=False),
        sa.Column("url_hash", _BIG, primary_key=True, autoincrement=False),
        _filled("rank", sa.Double()),
        _filled("importance", sa.Double()),
        sqlite_with_rowid=False,
    )


def _site_ranks() -> None:
    _table(
        "site_ranks",
        sa.Column("run", _BIG, primary_key=True, autoincrement=False),
        sa.Column("site_id", _BIG, primary_key=True, autoincrement=False),
        _filled("rank", sa.Double()),
        _filled("importance", sa.Double()),
        _filled("pages", _BIG),
        sqlite_with_rowid=False,
    )


def _beliefs() -> None:
    _table(
        "beliefs",
        sa.Column("site_id", _BIG, primary_key=True, autoincrement=False),
        _filled("pages", _BIG),
        _filled("looked_at", _BIG),
        _filled("wake_at", _BIG),
        _filled("url_hashes", _BYTES),
        _filled("packed", _BYTES),
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
