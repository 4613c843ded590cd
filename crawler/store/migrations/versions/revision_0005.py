"""Status checks by foreign crawlers: a table more.

One that is there already is left: MariaDB commits it by itself, so a killed migration goes on here.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger()
_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_WORDS = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")


def _filled(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False)


def upgrade() -> None:
    """Makes the table of checks."""
    options = {
        f"{dialect}_{option}": value
        for dialect in ("mysql", "mariadb")
        for option, value in (("charset", "utf8mb4"), ("collate", "utf8mb4_bin"), ("engine", "InnoDB"))
    }
    op.create_table(
        "checks",
        sa.Column("id", _KEY, primary_key=True, autoincrement=True),
        _filled("crawler", _BIG),
        sa.Column("run", sa.String(191)),
        sa.Column("seq", _BIG),
        _filled("code", _BIG),
        _filled("checked_at", _BIG),
        _filled("status", sa.Integer()),
        sa.Column("latency_ms", sa.Integer()),
        sa.Column("site_id", _BIG),
        sa.Column("url_hash", _BIG),
        sa.Column("url", _WORDS),
        sa.Column("more", _WORDS),
        _filled("digest", sa.String(32)),
        sa.UniqueConstraint("digest", name="checks_packet"),
        if_not_exists=True,
        **options,
    )


def downgrade() -> None:
    """Takes it away, with what it holds."""
    op.drop_table("checks")
