"""One host's pages as bytes: 22 a page behind a head of 56, the same on every machine.

What is kept of the host goes with them. UnreadableError: these bytes are no such host; says why.
"""

from __future__ import annotations

import struct

import numpy as np

from crawler.recheck import RecrawlError
from crawler.recheck.columns import ROW_TYPES, Hosts, Rows

VERSION = 1
# Version, pages, base of the times; offset, information, four figures of its signals, what conditional requests save.
HEAD = struct.Struct("<4xIQd7f4x")
PAGE_BYTES = sum(np.dtype(kind).itemsize for kind in ROW_TYPES)


class UnreadableError(RecrawlError):
    """What was to be unpacked is not what was packed."""


def pack(rows: Rows, hosts: Hosts, host: int, base: float) -> bytes:
    """These rows, all of one host."""
    figures = (hosts.offset[host], hosts.information[host], *hosts.seen[host], hosts.saves[host])
    head = HEAD.pack(VERSION, len(rows.shape), base, *figures)
    kinds = (np.dtype(kind).newbyteorder("<") for kind in ROW_TYPES)
    return head + b"".join(column.astype(kind).tobytes() for column, kind in zip(rows, kinds, strict=True))


def unpack(packed: bytes) -> tuple[Rows, float, np.ndarray]:
    """The rows, the base of their times, and the host's seven figures as in the head."""
    if len(packed) < HEAD.size:
        raise UnreadableError(f"packed pages are {len(packed)} bytes; expected a head of {HEAD.size}")
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
