"""A site's row keeps how many of its URLs bounds leave out, by reason, and their hashes.

Columns that are there already stay: MariaDB commits each step by itself, so a killed migration continues here.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_WORDS = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
_BYTES = sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
_COLUMNS = (("left_out", sa.BigInteger()), ("left_out_by", _WORDS), ("left_out_hashes", _BYTES))


def upgrade() -> None:
    """Adds the columns; they stay empty for rows of older versions."""
    there = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("sites")}
    for name, kind in _COLUMNS:
        if name not in there:
            op.add_column("sites", sa.Column(name, kind))


def downgrade() -> None:
    """Takes them away."""
    for name, _ in _COLUMNS:
        op.drop_column("sites", name)
