"""A site's row keeps which other site has the same pages, where it is crawled all the same.

Columns that are there already stay: MariaDB commits each step by itself, so a killed migration continues here.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_WORDS = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")


def upgrade() -> None:
    """Adds the column; it stays empty for rows of older versions."""
    there = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("sites")}
    if "same_as" not in there:
        op.add_column("sites", sa.Column("same_as", _WORDS))


def downgrade() -> None:
    """Takes it away."""
    op.drop_column("sites", "same_as")
