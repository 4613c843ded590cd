"""The history of the tables, as Alembic revisions; run by crawler.store.database.migrate and nothing else.

The first one makes all tables as they were then. A change of them: change crawler/store/tables.py, add a file to
versions/ beside the last one (its `down_revision`), and its name to database.KNOWN. A test compares what the revisions
make with tables.py.
"""
