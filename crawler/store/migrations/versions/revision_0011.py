"""What sitemaps say of pages: when each changed, and when that was news.

What is there already is left: MariaDB commits each step by itself, so a killed migration goes on here.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_NEW = ("sitemap_lastmod", "signalled_at")


def upgrade() -> None:
    """Adds the columns; they fill as sitemaps are read."""
    there = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("pages")}
    for name in _NEW:
        if name not in there:
            op.add_column("pages", sa.Column(name, sa.BigInteger()))


def downgrade() -> None:
    """Takes them away, with what they hold."""
    for name in reversed(_NEW):
        op.drop_column("pages", name)
