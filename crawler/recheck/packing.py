"""One host and its pages as bytes: a header of 56 bytes and 22 per page, the same on every machine."""

from __future__ import annotations

import struct

import numpy as np

from crawler.recheck import RecrawlError
from crawler.recheck.columns import ROW_TYPES, Hosts, Rows

VERSION = 1
# Version, pages, time base; offset, information, four signal figures, share saved by conditional requests.
HEAD = struct.Struct("<4xIQd7f4x")
PAGE_BYTES = sum(np.dtype(kind).itemsize for kind in ROW_TYPES)


class UnreadableError(RecrawlError):
    """The bytes are not a packed host."""


def pack(rows: Rows, hosts: Hosts, host: int, base: float) -> bytes:
    """Packs the rows of one host."""
    figures = (hosts.offset[host], hosts.information[host], *hosts.seen[host], hosts.saves[host])
    head = HEAD.pack(VERSION, len(rows.shape), base, *figures)
    kinds = (np.dtype(kind).newbyteorder("<") for kind in ROW_TYPES)
    return head + b"".join(column.astype(kind).tobytes() for column, kind in zip(rows, kinds, strict=True))


def unpack(packed: bytes) -> tuple[Rows, float, np.ndarray]:
    """Rows, time base, and the host's figures. Raises UnreadableError."""
    if len(packed) < HEAD.size:
        raise UnreadableError(f"packed pages are {len(packed)} bytes; expected a header of {HEAD.size}")
    version, pages, base, *figures = HEAD.unpack_from(packed)
    if version != VERSION:
        raise UnreadableError(f"packed pages are of version {version}; expected {VERSION}")
    wanted = HEAD.size + pages * PAGE_BYTES
    if len(packed) != wanted:
        raise UnreadableError(f"packed pages are {len(packed)} bytes; expected {wanted} for {pages} pages")
    columns, at = [], HEAD.size
    for kind in ROW_TYPES:
        packed_kind = np.dtype(kind).newbyteorder("<")
        columns.append(np.frombuffer(packed, packed_kind, pages, at).astype(kind))
        at += pages * packed_kind.itemsize
    return Rows(*columns), base, np.array(figures, np.float32)
