"""How busy sites are: a table of what agents saw, and one of what was given from outside.

What is there already is left: MariaDB commits each table by itself, so a killed migration goes on here.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger()
_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_NAME = sa.String(191)
_WORDS = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
_BYTES = sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")


def _filled(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False)


def upgrade() -> None:
    """Makes both tables."""
    options = {
        f"{dialect}_{option}": value
        for dialect in ("mysql", "mariadb")
        for option, value in (("charset", "utf8mb4"), ("collate", "utf8mb4_bin"), ("engine", "InnoDB"))
    }
    op.create_table(
        "visits",
        sa.Column("id", _KEY, primary_key=True, autoincrement=True),
        _filled("agent", _NAME),
        _filled("run", _NAME),
        _filled("seq", _BIG),
        _filled("site_id", _BIG),
        _filled("hour", _BIG),
        sa.Column("seconds", sa.Double()),
        _filled("refused", sa.Double()),
        _filled("pages", sa.Integer()),
        _filled("delay_seconds", sa.Double()),
        sa.Column("hours_open", sa.String(32)),
        sa.UniqueConstraint("agent", "run", "seq", name="visits_record"),
        if_not_exists=True,
        **options,
    )
    op.create_table(
        "profiles",
        sa.Column("site_id", _BIG, primary_key=True, autoincrement=False),
        _filled("site", _WORDS),
        _filled("loads", _BYTES),
        _filled("imported_at", _BIG),
        if_not_exists=True,
        **options,
    )


def downgrade() -> None:
    """Takes them away, with what they hold."""
    op.drop_table("profiles")
    op.drop_table("visits")
