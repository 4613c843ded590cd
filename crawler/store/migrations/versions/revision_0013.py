"""A page's row keeps when its site's walk loaded it, so that recheck's loads do not hide which pages a walk brought.

Columns that are there already stay: MariaDB commits each step by itself, so a killed migration continues here.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the column; it stays empty for rows of older versions."""
    there = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("pages")}
    if "walked_at" not in there:
        op.add_column("pages", sa.Column("walked_at", sa.BigInteger()))


def downgrade() -> None:
    """Takes it away."""
    op.drop_column("pages", "walked_at")
