"""Converts the tables to Parquet, graph and load files, with dense ids for pages, sites, domains, communities.

    figures = conversion.convert(engine, Path("var/convert/today"), Wishes(), progress)

Reads one consistent snapshot while coordinators write; leaves one whole folder or none.
"""

from __future__ import annotations

# Databases with load files. Defined here so that the command line's help loads nothing else.
DATABASES = ("postgresql", "mariadb", "duckdb")


# --- Errors ---


class ConvertError(Exception):
    """The tables cannot be converted; a message of one line."""
