"""What a page says and where its bytes are kept: columns more in pages and fetches, empty for what was fetched before.

Columns that are there already are left: MariaDB commits each by itself, so a killed migration goes on here.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_WORDS = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
_WORD = sa.String(32)
_COLUMNS: dict[str, dict[str, Any]] = {
    "sites": {"pending": sa.BigInteger()},
    "pages": {
        "charset": _WORD,
        "language": _WORD,
        "content_hash": sa.String(32),
        "media": _WORDS,
        "outside_hosts": _WORDS,
        "mail_domains": _WORDS,
        "ftp_domains": _WORDS,
        "robots": _WORDS,
        "keywords": _WORDS,
        "etag": _WORDS,
        "last_modified": _WORDS,
        "address": _WORDS,
        "wire_size": sa.BigInteger(),
        "warc_file": _WORDS,
        "warc_offset": sa.BigInteger(),
        "warc_length": sa.BigInteger(),
        "extracted_at": sa.BigInteger(),
    },
    "fetches": {
        "wire_size": sa.BigInteger(),
        "connect_ms": sa.Integer(),
        "head_ms": sa.Integer(),
        "body_ms": sa.Integer(),
        "content_hash": sa.String(32),
    },
}


def upgrade() -> None:
    """Adds the columns that are missing."""
    for table, columns in _COLUMNS.items():
        there = {column["name"] for column in sa.inspect(op.get_bind()).get_columns(table)}
        for name, kind in columns.items():
            if name not in there:
                op.add_column(table, sa.Column(name, kind))


def downgrade() -> None:
    """Takes them away, with what they hold."""
    for table, columns in _COLUMNS.items():
        with op.batch_alter_table(table) as batch:
            for name in columns:
                batch.drop_column(name)
