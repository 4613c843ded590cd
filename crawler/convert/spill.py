"""Intermediate files of the converters, so that every row is read from the database once.

    00000.rows.npz   columns of `Rows`
    00000.texts      Arrow stream of TEXTS, in batches, compressed
    00000.links      hashes of the out-links of all rows, 8 bytes each

One set per range; row numbers continue from range to range.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from io import FileIO
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import numpy as np
import pyarrow as pa

TEXTS = pa.schema(
    [
        ("url", pa.string()),
        ("title", pa.string()),
        ("description", pa.string()),
        ("sha256", pa.string()),
        ("language", pa.string()),
        ("content_type", pa.string()),
        ("extra", pa.string()),
        ("fetched_at", pa.int64()),
        ("size", pa.int64()),
    ]
)
# Kinds of rows; other outcomes are not kept.
STORED, DUPLICATE, REDIRECTED = 0, 1, 2
KINDS = ("stored", "duplicate", "redirected")
# lz4 halves the files for 0.4 us a row; reading a row from the database takes 15 us.
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")


class Rows(NamedTuple):
    """Columns of the kept rows, ordered by (site, url_hash)."""

    site: np.ndarray  # int32, place in the plan
    url_hash: np.ndarray  # int64
    url_length: np.ndarray  # int32, bytes
    kind: np.ndarray  # uint8
    digest: np.ndarray  # (rows, 2) uint64, half of the SHA-256 of a body that is not empty; zeros: none
    named: np.ndarray  # uint64, hash of the URL that a duplicate or a redirect names; 0: it names none
    links: np.ndarray  # int32, how many links

    @property
    def many(self) -> int:
        """Number of rows."""
        return len(self.site)


NO_ROWS = Rows(
    np.zeros(0, np.int32),
    np.zeros(0, np.int64),
    np.zeros(0, np.int32),
    np.zeros(0, np.uint8),
    np.zeros((0, 2), np.uint64),
    np.zeros(0, np.uint64),
    np.zeros(0, np.int32),
)


class Writer:
    """Writes the rows of one range in batches. A context manager."""

    def __init__(self, folder: Path, number: int) -> None:
        self._path = folder / f"{number:05}"
        self._rows: list[Rows] = []
        self._links = self._path.with_suffix(".links").open("wb")
        self._texts = pa.ipc.new_stream(self._path.with_suffix(".texts"), TEXTS, options=_COMPRESSED)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        self._links.close()
        self._texts.close()
        if kind is None:
            columns = map(np.concatenate, zip(NO_ROWS, *self._rows, strict=True))
            np.savez(self._path.with_suffix(".rows.npz"), **Rows(*columns)._asdict())

    def put(self, rows: Rows, texts: pa.RecordBatch, links: memoryview) -> None:
        """Adds a batch; `links` are those of all its rows."""
        self._rows.append(rows)
        self._texts.write_batch(texts)
        self._links.write(links)


class Spill:
    """All spilled rows, in the order of the ranges."""

    def __init__(self, folder: Path, ranges: int) -> None:
        self._folder = folder
        self._open: dict[int, FileIO] = {}  # files for reading single rows' links
        self._opening = Lock()  # used by several threads
        self.ranges = ranges
        # Column by column, so that only one of them is in memory twice.
        self.rows = Rows(*(self._column(name) for name in Rows._fields))
        # Range k has the rows first[k] .. first[k + 1] - 1.
        self.first = np.cumsum([0, *(len(self._part(number, "kind")) for number in range(ranges))])

    def texts(
        self, number: int, columns: Sequence[str] = TEXTS.names
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The batches of a range with these columns, each with its first row number."""
        fields = [TEXTS.get_field_index(name) for name in columns]
        row = int(self.first[number])
        options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
        with pa.memory_map(str(self._file(number, "texts"))) as file:
            for batch in pa.ipc.open_stream(file, options=options):
                yield row, batch
                row += batch.num_rows

    def links(self, number: int, start: int, count: int) -> np.ndarray:
        """Hashes (uint64) start .. start + count of a range's file."""
        return np.fromfile(self._file(number, "links"), "<u8", count, offset=start * 8)

    def links_of_row(self, number: int, start: int, count: int) -> np.ndarray:
        """As `links`, keeping the file open, for single rows. Not mapped: mapped pages would count as used memory."""
        with self._opening:
            if number not in self._open:
                self._open[number] = FileIO(self._file(number, "links"))
        return np.frombuffer(os.pread(self._open[number].fileno(), count * 8, start * 8), "<u8")

    def urls(self, rows: np.ndarray) -> list[str]:
        """The URLs of these rows, which must ascend."""
        found: list[str] = []
        for number in np.unique(np.searchsorted(self.first, rows, "right") - 1):
            for first, batch in self.texts(int(number), ["url"]):
                begin, end = np.searchsorted(rows, [first, first + batch.num_rows])
                if begin < end:
                    found += batch.column("url").take(pa.array(rows[begin:end] - first)).to_pylist()
        return found

    def forget_copies(self) -> None:
        """Frees digests and named hashes, half of the memory, once copies are known."""
        self.rows = self.rows._replace(digest=NO_ROWS.digest, named=NO_ROWS.named)

    def close(self) -> None:
        """Closes all files."""
        for file in self._open.values():
            file.close()

    def _column(self, name: str) -> np.ndarray:
        return np.concatenate([self._part(number, name) for number in range(self.ranges)])

    def _part(self, number: int, column: str) -> np.ndarray:
        with np.load(self._file(number, "rows.npz")) as read:
            return np.asarray(read[column])

    def _file(self, number: int, kind: str) -> Path:
        return self._folder / f"{number:05}.{kind}"
