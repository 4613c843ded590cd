"""The tables of a converted folder, as Parquet: their columns, and how each is written.

The same rows give the same bytes: row groups are cut where the data say so, and nothing of the machine is in a file.
Texts may be NULL, numbers never are.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from crawler.convert.numbering import Numbering
from crawler.convert.pages import Pages
from crawler.convert.sites import RANGE_ROWS, Sites
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
            pa.field("site", pa.string(), nullable=False),  # the smallest one's name
            *_numbers(_IDS, "sites", "pages"),
        ]
    ),
    "links": pa.schema(_numbers(_IDS, "source", "target")),
}
# Of few values, or the same again and again; the rest is written as it is.
_REPEATED = ("site_id", "domain_id", "community_id", "site_hash", "language", "content_type")
_ASCENDING = ("page_id", "fetched_at", "source")


def writer(path: Path, table: str) -> pq.ParquetWriter:
    """Writes rows of that table; zstd at its quickest, since texts are most of it."""
    schema = SCHEMAS[table]
    return pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=[name for name in schema.names if name in _REPEATED],
        column_encoding={name: "DELTA_BINARY_PACKED" for name in schema.names if name in _ASCENDING},
    )


def write(path: Path, table: str, columns: Mapping[str, Any]) -> None:
    """A whole table, its columns in any order."""
    schema = SCHEMAS[table]
    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    with writer(path, table) as out:
        out.write_table(pa.Table.from_arrays(arrays, schema=schema))


# Title and description.
Texts = tuple[str | None, str | None]


class PageFiles:
    """Writes the pages of each range into a file of its own."""

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
        """Writes range `number`; title and description of the sites' index pages that it has, by row."""
        indexes: dict[int, Texts] = {}
        held: list[pa.RecordBatch] = []
        with writer(self._folder / f"pages-{number:05}.parquet", "pages") as out:
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
    """One row group of what is held, which is empty then."""
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
    write(folder / "sites.parquet", "sites", columns)
    domains = _sums(numbering.domain, pages, len(numbering.domains))
    write(
        folder / "domains.parquet",
        "domains",
        {"domain_id": np.arange(len(numbering.domains)), "domain": numbering.domains, **domains},
    )
    _, smallest = np.unique(community, return_index=True)
    communities = _sums(community, pages, len(smallest))
    write(
        folder / "communities.parquet",
        "communities",
        {"community_id": np.arange(len(smallest)), "site": [names[site] for site in smallest], **communities},
    )


def _sums(group: np.ndarray, pages: np.ndarray, many: int) -> dict[str, np.ndarray]:
    """Sites and pages of each of `many` groups."""
    return {
        "sites": np.bincount(group, minlength=many).astype(np.int32),
        "pages": np.bincount(group, weights=pages, minlength=many).astype(np.int32),
    }
