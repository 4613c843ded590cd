"""Request batches: the pages of a site that recheck or revive requests in one lease.

A coordinator packs them, with what is known of each page (state, validators, size), so an agent needs no database. In
Redis under visit:SITE by job: MessagePack in a zstd frame. Readers have the same version or a newer one: new fields
need a default.
"""

from __future__ import annotations

import msgspec
import zstandard

from crawler.records import PageState


class BatchError(ValueError):
    """Bytes that are not a request batch."""


class BatchPage(msgspec.Struct, array_like=True, frozen=True):
    """One page and what is known of it."""

    path: str
    state: PageState
    depth: int = 0
    loaded: bool = True  # whether its content was ever stored
    size: int = 0  # bytes of its body
    etag: str = ""
    last_modified: str = ""  # as the server wrote it
    digest: bytes = b""  # first bytes of its body's SHA-256; empty: unknown
    asked: str = ""  # path to request; empty: `path`


class RecheckBatch(msgspec.Struct, array_like=True, frozen=True):
    """The pages of one lease."""

    pages: list[BatchPage]
    # When the site's other pages are due (ms, server's clock); 0: never.
    next_due_ms: int = 0


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(RecheckBatch)
# Bytes of a digest: enough that two bodies of one page do not collide.
DIGEST_BYTES = 8
# Bytes that a batch may unpack to: a small frame can expand to any size.
LARGEST = 64_000_000


def pack(asking: RecheckBatch) -> bytes:
    """The batch as bytes."""
    return zstandard.compress(_encoder.encode(asking), 3)


def unpack(packed: bytes) -> RecheckBatch:
    """Read what `pack` wrote; raises BatchError for other bytes."""
    try:
        return _decoder.decode(zstandard.ZstdDecompressor().decompress(packed, max_output_size=LARGEST))
    except (zstandard.ZstdError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BatchError(str(error)) from None
