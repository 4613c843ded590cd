"""What is believed of a site's pages, for recheck: how often each changes."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger()
_BYTES = sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")


def _filled(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False)


def upgrade() -> None:
    """Makes the table; it fills as recheck looks at sites."""
    options = {
        f"{dialect}_{option}": value
        for dialect in ("mysql", "mariadb")
        for option, value in (("charset", "utf8mb4"), ("collate", "utf8mb4_bin"), ("engine", "InnoDB"))
    }
    op.create_table(
        "beliefs",
        sa.Column("site_id", _BIG, primary_key=True, autoincrement=False),
        _filled("pages", _BIG),
        _filled("looked_at", _BIG),
        _filled("wake_at", _BIG),
        _filled("url_hashes", _BYTES),
        _filled("packed", _BYTES),
        if_not_exists=True,
        **options,
    )


def downgrade() -> None:
    """Takes it away; every page's rate is learned anew then."""
    op.drop_table("beliefs")
