r"""Files that a database loads: one of tab-separated lines for each table, and the statements for each database.

    load/pages.tsv, sites.tsv …   rows in the order of their ids; `\N` is NULL, a backslash stands before what a
                                  line could break on: backslash, tab, newline, carriage return
    load/postgresql.sql           for psql, called in that folder; one transaction
    load/mariadb.sql              for the client mariadb with --local-infile, called in that folder
    load/duckdb.sql               for duckdb, called in that folder; reads the Parquet files themselves

The same lines load unchanged into PostgreSQL (COPY, text) and MariaDB (LOAD DATA); CSV does not (docs/convert.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from crawler.convert.parquet import SCHEMAS
from crawler.convert.threads import in_order

# With every text as long as it may be, a batch is still below the 2 GB that Arrow's offsets reach.
_BATCH_ROWS = 16_384
_KEYS = {
    "pages": "page_id",
    "sites": "site_id",
    "domains": "domain_id",
    "communities": "community_id",
    "links": "source, target",
}
_ESCAPED = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))
_TYPES = {
    # TEXT of MariaDB ends at 65,535 bytes, and cuts what is longer with a mere warning.
    "mariadb": {pa.int32(): "INT", pa.int64(): "BIGINT", pa.string(): "MEDIUMTEXT"},
    "postgresql": {pa.int32(): "integer", pa.int64(): "bigint", pa.string(): "text"},
}


def write(folder: Path, databases: Sequence[str], threads: int) -> Iterator[int]:
    """Writes the folder `load` for these databases; yields how many rows were written since it last did."""
    load = folder / "load"
    load.mkdir()
    if set(databases) - {"duckdb"}:
        for table in SCHEMAS:
            yield from _write_lines(folder, load / f"{table}.tsv", table, threads)
    for database in databases:
        (load / f"{database}.sql").write_text(statements(database), encoding="utf-8")


def statements(database: str) -> str:
    """What creates and fills the tables in one of DATABASES."""
    if database == "duckdb":
        return "".join(
            f"CREATE TABLE {table} AS FROM read_parquet('../{_files(table)}');\n" for table in SCHEMAS
        )
    made = _postgresql if database == "postgresql" else _mariadb
    parts = [made(table) for table in SCHEMAS]
    return "".join(
        ["\\set ON_ERROR_STOP on\nBEGIN;\n", *parts, "COMMIT;\n"] if database == "postgresql" else parts
    )


def lines(batch: pa.RecordBatch) -> memoryview:
    """The rows of a batch as they stand in the file."""
    columns = [_escaped(column) for column in batch.columns]
    joined = pc.binary_join_element_wise(*columns, "\t", null_handling="replace", null_replacement="\\N")
    ended = pc.binary_join_element_wise(joined, "", "\n")
    offsets = memoryview(ended.buffers()[1]).cast("i")
    return memoryview(ended.buffers()[2])[offsets[0] : offsets[len(ended)]]


def _escaped(column: pa.Array) -> pa.Array:
    if column.type != pa.string():
        return column.cast(pa.string())
    for plain, written in _ESCAPED:
        column = pc.replace_substring(column, plain, written)
    return column


def _write_lines(folder: Path, path: Path, table: str, threads: int) -> Iterator[int]:
    batches = (
        batch
        for file in sorted(folder.glob(_files(table)))
        for batch in pq.ParquetFile(file).iter_batches(_BATCH_ROWS)
    )
    with path.open("wb") as out:
        for rows, text in in_order(lambda batch: (batch.num_rows, lines(batch)), batches, threads):
            out.write(text)
            yield rows


def _files(table: str) -> str:
    return f"{table}-*.parquet" if table in ("pages", "links") else f"{table}.parquet"


def _columns(database: str, table: str) -> str:
    kinds = _TYPES[database]
    return ",\n".join(
        f"  {field.name} {kinds[field.type]}{'' if field.nullable else ' NOT NULL'}"
        for field in SCHEMAS[table]
    )


def _postgresql(table: str) -> str:
    # The key after the rows: an index built at once takes half the time of one that grows row by row.
    return (
        f"CREATE TABLE {table} (\n{_columns('postgresql', table)}\n);\n"
        f"\\copy {table} FROM '{table}.tsv' WITH (FORMAT text, ENCODING 'UTF8')\n"
        f"ALTER TABLE {table} ADD PRIMARY KEY ({_KEYS[table]});\n"
    )


def _mariadb(table: str) -> str:
    # The key with the rows: they come in its order, and that is how InnoDB keeps them.
    return (
        f"CREATE TABLE {table} (\n{_columns('mariadb', table)},\n  PRIMARY KEY ({_KEYS[table]})\n"
        ") ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;\n"
        f"LOAD DATA LOCAL INFILE '{table}.tsv' INTO TABLE {table} CHARACTER SET utf8mb4\n"
        "  FIELDS TERMINATED BY '\\t' ESCAPED BY '\\\\' LINES TERMINATED BY '\\n';\n"
        "SHOW WARNINGS;\n"
    )
