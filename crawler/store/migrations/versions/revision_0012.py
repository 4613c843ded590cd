"""The log is told of a site's change once, like the hooks, whoever else cannot be reached.

What is there already is left: MariaDB commits each step by itself, so a killed migration goes on here.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the column; of changes told before it stays empty."""
    there = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("health_changes")}
    if "log_at" not in there:
        op.add_column("health_changes", sa.Column("log_at", sa.BigInteger()))


def downgrade() -> None:
    """Takes it away."""
    op.drop_column("health_changes", "log_at")
