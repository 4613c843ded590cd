"""What the operator wants of a site, for a queue that was lost: columns more in sites, empty for older ones.

Which site another one is an alias of stood in the reason so far. A column that is there already is left: MariaDB
commits each by itself, so a killed migration goes on here.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger()
_WORDS = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
_WORD = sa.String(32)
_COLUMNS: tuple[tuple[str, Any], ...] = (
    ("found_entry", _BIG),
    ("alias_of", _WORDS),
    ("stopped", _WORD),
    ("stopped_reason", _WORDS),
    ("stopped_entry", _BIG),
    ("budget", _BIG),
    ("budget_entry", _BIG),
)
_ALIAS_OF = "alias of "


def upgrade() -> None:
    """Adds the columns, and fills alias_of."""
    there = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("sites")}
    for name, kind in _COLUMNS:
        if name not in there:
            op.add_column("sites", sa.Column(name, kind))
    sites = sa.table("sites", sa.column("reason"), sa.column("alias_of"))
    first = sa.func.substr(sites.c.reason, len(_ALIAS_OF) + 1)
    op.execute(sites.update().where(sites.c.reason.like(f"{_ALIAS_OF}%")).values(alias_of=first))


def downgrade() -> None:
    """Takes them away, with what they hold."""
    for name, _ in _COLUMNS:
        op.drop_column("sites", name)
