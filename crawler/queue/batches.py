"""An asking: the pages of a site that recheck or revive asks in one lease, as a coordinator packs them for an agent.

It carries what is known of each page, so that the agent needs no database: state, validators, size. Bytes in Redis
under visit:SITE, by work; MessagePack in a zstd frame. Read by nobody but agents of the same version or a newer one: a
field that comes later has a default.
"""

from __future__ import annotations

import msgspec
import zstandard

from crawler.records import PageState


class BatchError(ValueError):
    """Bytes that are no asking."""


class BatchPage(msgspec.Struct, array_like=True, frozen=True):
    """One page, and what is known of it."""

    path: str
    state: PageState
    depth: int = 0
    loaded: bool = True  # whether its content was ever taken in
    size: int = 0  # bytes of its body
    etag: str = ""
    last_modified: str = ""  # as the server wrote it
    digest: bytes = b""  # the first bytes of its body's SHA-256; empty: it is not known
    asked: str = ""  # path to ask for; empty: `path`


class RecheckBatch(msgspec.Struct, array_like=True, frozen=True):
    """What one lease asks."""

    pages: list[BatchPage]
    # When what was left out, or is not due yet, is due (ms, by the server's clock); 0: nothing of the site is.
    next_due_ms: int = 0


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(RecheckBatch)
# Bytes of a digest: two bodies of one page are never alike in these by chance.
DIGEST_BYTES = 8
# Bytes that an asking may unpack to: a few of a frame can stand for any number.
LARGEST = 64_000_000


def pack(asking: RecheckBatch) -> bytes:
    """As it stands in Redis."""
    return zstandard.compress(_encoder.encode(asking), 3)


def unpack(packed: bytes) -> RecheckBatch:
    """What `pack` was given; AskingError for other bytes."""
    try:
        return _decoder.decode(zstandard.ZstdDecompressor().decompress(packed, max_output_size=LARGEST))
    except (zstandard.ZstdError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BatchError(str(error)) from None
