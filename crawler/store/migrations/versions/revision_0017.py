"""A page's row has what page pipelines of one's own say of it.

Columns that are there already stay: MariaDB commits each step by itself, so a killed migration continues here.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

_WORDS = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")


def upgrade() -> None:
    """Adds the column, empty."""
    there = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("pages")}
    if "extra" not in there:
        op.add_column("pages", sa.Column("extra", _WORDS))


def downgrade() -> None:
    """Takes it away, with what it holds."""
    op.drop_column("pages", "extra")
