"""A page's life beside its state: failures, when it was last checked and seen to change, when it is asked again.

What is there already is left: MariaDB commits each column by itself, so a killed migration goes on here.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_TIMES = ("last_checked", "last_changed", "next_check")


def upgrade() -> None:
    """Adds the columns; of a page that was loaded before, the load is the last that was heard of it."""
    there = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("pages")}
    if "fails" not in there:
        op.add_column("pages", sa.Column("fails", sa.Integer(), nullable=False, server_default="0"))
    for name in _TIMES:
        if name not in there:
            op.add_column("pages", sa.Column(name, sa.BigInteger()))


def downgrade() -> None:
    """Takes them away, with what they hold."""
    for name in ("fails", *_TIMES):
        op.drop_column("pages", name)
