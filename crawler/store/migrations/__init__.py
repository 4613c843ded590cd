"""Alembic revisions, run by crawler.store.database.migrate only.

For a new one: change crawler/store/tables.py, add a file to versions/ and its name to database.KNOWN. A test compares
the result with tables.py.
"""
