"""A page's row keeps the URL that was asked for, where that is not its canonical one.

Columns that are there already stay: MariaDB commits each step by itself, so a killed migration continues here.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_WORDS = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")


def upgrade() -> None:
    """Adds the column; it stays empty for rows of older versions, whose pages were asked for by their canonical URL."""
    there = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("pages")}
    if "asked_as" not in there:
        op.add_column("pages", sa.Column("asked_as", _WORDS))


def downgrade() -> None:
    """Takes it away."""
    op.drop_column("pages", "asked_as")
