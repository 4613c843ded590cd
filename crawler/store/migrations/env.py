"""Runs the revisions on migrate's connection, transaction and lock."""

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
