"""Gives pages, sites, domains and communities dense numbers, and writes what is searched, loaded and ranked.

    figures = conversion.convert(engine, Path("var/convert/today"), Wishes(), progress)

It reads one state of the tables, while coordinators go on writing, and leaves one whole folder or none. The path of a
row: it is read once, in ranges of sites, by one or several converters (sites, snapshot, converters, reading), and put
down (spill); then it is known which rows are pages (pages) and how sites are numbered (numbering); hashes become links
(hashes, links, graph), links between sites communities; last, texts and numbers come together (parquet, load_files).
"""

from __future__ import annotations

# What load files are written for. Here, where a command line's help finds it without loading anything.
DATABASES = ("postgresql", "mariadb", "duckdb")


# ------------------------------------------------------------------------------------------------------------
# What keeps tables from being converted, in one line for the person.


class ConvertError(Exception):
    """The tables cannot be converted as they are, or not to this place."""
