"""What a page names as canonical: a column more in pages, empty for all that were fetched before.

A column that is there already is left: MariaDB commits it by itself, so a killed migration goes on here.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_WORDS = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")


def upgrade() -> None:
    """Adds pages.canonical."""
    there = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("pages")}
    if "canonical" not in there:
        op.add_column("pages", sa.Column("canonical", _WORDS))


def downgrade() -> None:
    """Takes it away, with what it holds."""
    op.drop_column("pages", "canonical")
