"""Runs the revisions on the connection that crawler.store.database.migrate hands over, inside its transaction.

There is no offline mode and no alembic.ini: the lock and the version check are the caller's.
"""

from __future__ import annotations

from alembic import context

from crawler.store.database import VERSION_TABLE
from crawler.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
)
context.run_migrations()
