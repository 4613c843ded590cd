"""Writes a converted folder's tables: Parquet files, and files and statements to load them into a database.

Equal rows give equal bytes. Texts may be NULL, numbers never.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from crawler.convert.numbering import RANGE_ROWS, Numbering, Sites
from crawler.convert.pages import Pages
from crawler.convert.reading import in_order
from crawler.convert.spill import TEXTS, Spill


def _numbers(kind: pa.DataType, *names: str) -> list[pa.Field]:
    return [pa.field(name, kind, nullable=False) for name in names]


_IDS = pa.int32()
_LARGE = pa.int64()
SCHEMAS = {
    "pages": pa.schema(
        [
            *_numbers(_IDS, "page_id", "site_id", "domain_id", "community_id"),
            *_numbers(_LARGE, "site_hash", "url_hash"),
            *(TEXTS.field(name) for name in TEXTS.names if name not in ("fetched_at", "size")),
            *_numbers(_LARGE, "fetched_at", "size"),
        ]
    ),
    "sites": pa.schema(
        [
            *_numbers(_IDS, "site_id"),
            *_numbers(_LARGE, "site_hash"),
            pa.field("site", pa.string(), nullable=False),
            ("title", pa.string()),
            ("description", pa.string()),
            *_numbers(_IDS, "domain_id", "community_id", "first_page", "pages"),
        ]
    ),
    "domains": pa.schema(
        [
            *_numbers(_IDS, "domain_id"),
            pa.field("domain", pa.string(), nullable=False),
            *_numbers(_IDS, "sites", "pages"),
        ]
    ),
    "communities": pa.schema(
        [
            *_numbers(_IDS, "community_id"),
            pa.field("site", pa.string(), nullable=False),  # name of the smallest site
            *_numbers(_IDS, "sites", "pages"),
        ]
    ),
    "links": pa.schema(_numbers(_IDS, "source", "target")),
}
# Columns with few or repeated values: dictionary-encoded.
_REPEATED = ("site_id", "domain_id", "community_id", "site_hash", "language", "content_type")
_ASCENDING = ("page_id", "fetched_at", "source")


def table_writer(path: Path, table: str) -> pq.ParquetWriter:
    """A writer for this table; zstd at its fastest level."""
    schema = SCHEMAS[table]
    return pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=[name for name in schema.names if name in _REPEATED],
        column_encoding={name: "DELTA_BINARY_PACKED" for name in schema.names if name in _ASCENDING},
    )


def write_table(path: Path, table: str, columns: Mapping[str, Any]) -> None:
    """Writes a whole table; columns in any order."""
    schema = SCHEMAS[table]
    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    with table_writer(path, table) as out:
        out.write_table(pa.Table.from_arrays(arrays, schema=schema))


# Title and description.
Texts = tuple[str | None, str | None]


class PageFiles:
    """Writes the pages of each range to its own file."""

    def __init__(
        self,
        folder: Path,
        spill: Spill,
        found: Sites,
        pages: Pages,
        numbering: Numbering,
        community: np.ndarray,
    ) -> None:
        self._folder, self._spill, self._pages, self._numbering = folder, spill, pages, numbering
        self._site_hash = found.hashes[numbering.place]
        self._community = community
        self._index_rows = np.sort(numbering.index_row[numbering.index_row >= 0])

    def write(self, number: int) -> dict[int, Texts]:
        """Writes range `number`; returns title and description of its index pages, by row."""
        indexes: dict[int, Texts] = {}
        held: list[pa.RecordBatch] = []
        with table_writer(self._folder / f"pages-{number:05}.parquet", "pages") as out:
            for first, texts in self._spill.texts(number):
                indexes |= self._indexes(first, texts)
                held.append(self._batch(first, texts))
                if sum(batch.num_rows for batch in held) >= RANGE_ROWS:
                    _put(out, held)
            _put(out, held)
        return indexes

    def _batch(self, first: int, texts: pa.RecordBatch) -> pa.RecordBatch:
        begin, end = np.searchsorted(self._pages.row, [first, first + texts.num_rows])
        rows = self._pages.row[begin:end]
        site = self._numbering.site[begin:end]
        kept = texts.take(pa.array(rows - first))
        columns = {
            "page_id": np.arange(begin, end, dtype=np.int32),
            "site_id": site,
            "domain_id": self._numbering.domain[site],
            "community_id": self._community[site],
            "site_hash": self._site_hash[site],
            "url_hash": self._spill.rows.url_hash[rows],
        }
        ids = {name: pa.array(column) for name, column in columns.items()}
        schema = SCHEMAS["pages"]
        return pa.RecordBatch.from_arrays(
            [ids[name] if name in ids else kept.column(name) for name in schema.names], schema=schema
        )

    def _indexes(self, first: int, texts: pa.RecordBatch) -> dict[int, Texts]:
        begin, end = np.searchsorted(self._index_rows, [first, first + texts.num_rows])
        rows = self._index_rows[begin:end]
        titles, descriptions = (
            texts.column(name).take(pa.array(rows - first)).to_pylist() for name in ("title", "description")
        )
        return dict(zip(rows.tolist(), zip(titles, descriptions, strict=True), strict=True))


def _put(out: pq.ParquetWriter, held: list[pa.RecordBatch]) -> None:
    rows = sum(batch.num_rows for batch in held)
    if rows:
        out.write_table(pa.Table.from_batches(held), row_group_size=rows)
    held.clear()


def write_sites(
    folder: Path,
    found: Sites,
    numbering: Numbering,
    community: np.ndarray,
    indexes: Mapping[int, Texts],
) -> None:
    """Writes sites, domains and communities."""
    names = [found.names[place] for place in numbering.place]
    pages = np.diff(numbering.first_page)
    nothing = (None, None)
    texts = [indexes.get(row, nothing) for row in numbering.index_row.tolist()]
    columns = {
        "site_id": np.arange(numbering.many, dtype=np.int32),
        "site_hash": found.hashes[numbering.place],
        "site": names,
        "title": [title for title, _ in texts],
        "description": [description for _, description in texts],
        "domain_id": numbering.domain,
        "community_id": community,
        "first_page": numbering.first_page[:-1].astype(np.int32),
        "pages": pages.astype(np.int32),
    }
    write_table(folder / "sites.parquet", "sites", columns)
    domains = _sums(numbering.domain, pages, len(numbering.domains))
    write_table(
        folder / "domains.parquet",
        "domains",
        {"domain_id": np.arange(len(numbering.domains)), "domain": numbering.domains, **domains},
    )
    _, smallest = np.unique(community, return_index=True)
    communities = _sums(community, pages, len(smallest))
    write_table(
        folder / "communities.parquet",
        "communities",
        {"community_id": np.arange(len(smallest)), "site": [names[site] for site in smallest], **communities},
    )


def _sums(group: np.ndarray, pages: np.ndarray, many: int) -> dict[str, np.ndarray]:
    return {
        "sites": np.bincount(group, minlength=many).astype(np.int32),
        "pages": np.bincount(group, weights=pages, minlength=many).astype(np.int32),
    }


# --- Load files: tab-separated lines per table, and SQL per database ---
# load/*.tsv: rows ordered by id; \N is NULL; backslash, tab, newline and carriage return are escaped with a backslash.
# The same lines load into PostgreSQL (COPY, text) and MariaDB (LOAD DATA); CSV does not (docs/convert.md). DuckDB reads
# the Parquet files.


# Keeps a batch of longest texts below 2 GB, the limit of Arrow's offsets.
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
    # MariaDB's TEXT silently truncates at 65,535 bytes.
    "mariadb": {pa.int32(): "INT", pa.int64(): "BIGINT", pa.string(): "MEDIUMTEXT"},
    "postgresql": {pa.int32(): "integer", pa.int64(): "bigint", pa.string(): "text"},
}


def write_load_files(folder: Path, databases: Sequence[str], threads: int) -> Iterator[int]:
    """Writes the folder `load`; yields the number of rows written since the last yield."""
    load = folder / "load"
    load.mkdir()
    if set(databases) - {"duckdb"}:
        for table in SCHEMAS:
            yield from _write_lines(folder, load / f"{table}.tsv", table, threads)
    for database in databases:
        (load / f"{database}.sql").write_text(statements(database), encoding="utf-8")


def statements(database: str) -> str:
    """SQL that creates and fills the tables."""
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
    """The rows of a batch as bytes of the file."""
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
    # The key after the rows: building the index once takes half the time.
    return (
        f"CREATE TABLE {table} (\n{_columns('postgresql', table)}\n);\n"
        f"\\copy {table} FROM '{table}.tsv' WITH (FORMAT text, ENCODING 'UTF8')\n"
        f"ALTER TABLE {table} ADD PRIMARY KEY ({_KEYS[table]});\n"
    )


def _mariadb(table: str) -> str:
    # The key with the rows: they come in its order, as InnoDB stores them.
    return (
        f"CREATE TABLE {table} (\n{_columns('mariadb', table)},\n  PRIMARY KEY ({_KEYS[table]})\n"
        ") ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;\n"
        f"LOAD DATA LOCAL INFILE '{table}.tsv' INTO TABLE {table} CHARACTER SET utf8mb4\n"
        "  FIELDS TERMINATED BY '\\t' ESCAPED BY '\\\\' LINES TERMINATED BY '\\n';\n"
        "SHOW WARNINGS;\n"
    )
