"""Decodes Content-Encoding gzip, deflate and br, up to two layers. Pure; never raises; output is bounded.

As lenient as browsers. A body in another or unknown encoding is returned undecoded; a truncated or damaged one is
decoded up to the damage and reported as a loss.
"""

from __future__ import annotations

import re
import sys
import zlib
from collections.abc import Callable, Iterable
from enum import Enum, auto
from itertools import chain
from typing import Final, NamedTuple

import brotli  # type: ignore[import-untyped]
from isal import isal_zlib

# Maximum gzip members of one body.
MOST_MEMBERS: Final = 10_000

# Bytes per decompress call: the decompressor copies the unused rest of a piece at a member's end.
_PIECE: Final = 64 * 1024
# Piece size to locate damage.
_SMALL_PIECE: Final = 64
_GZIP: Final = b"\x1f\x8b"
_GZIP_HEAD: Final = 10
_SUM_BYTES: Final = 8
# gzip header flags: FHCRC, FEXTRA, FNAME, FCOMMENT.
_HEAD_SUM, _FIELDS, _NAME, _COMMENT = 2, 4, 8, 16
_ADLER_BYTES: Final = 4
_WRONG_SIZE: Final = "its gzip has a wrong checksum and a wrong size"
_WRONG_ADLER: Final = "its deflate has a wrong checksum"
# Absent from text; frequent in compressed data.
_BINARY: Final = re.compile(rb"[\0-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_LOOKED_AT: Final = 1024
_UNDECODED: Final = frozenset({"", "identity", "none"})


class Decoded(NamedTuple):
    """Result of decoding a body."""

    body: bytes  # truncated to `most` + 1 bytes
    loss: str = ""  # why the body is incomplete; empty if complete
    error: str = ""  # an encoding error in a complete body
    doubtful: bool = False  # the content may differ from what the server sent
    as_it_came: bool = False  # not decoded: Content-Encoding is wrong or unknown


class _End(Enum):
    """How a stream ended."""

    WHOLE = auto()
    LONG = auto()  # exceeds the limit
    CUT = auto()
    DAMAGED = auto()


class _Run(NamedTuple):
    """Decoded data of one stream."""

    data: bytes
    end: _End
    at: int = 0  # offset after the stream, if it is WHOLE


def decoded(body: bytes, encodings: str, most: int) -> Decoded:
    """Decode `body` to at most `most` bytes; `encodings` is the Content-Encoding value."""
    found, most = Decoded(body), min(most, sys.maxsize - 1)
    names = [name for name in map(_name, encodings.split(",")) if name not in _UNDECODED]
    for layer, name in enumerate(reversed(names)):
        if not found.body:
            return found
        inner = _DECODERS.get(name, _unknown)(found.body, most)
        if inner.as_it_came:
            # The header names one layer more than the body has.
            return found if layer else inner
        found = inner._replace(
            loss=found.loss or inner.loss,
            error=found.error or inner.error,
            doubtful=found.doubtful or inner.doubtful,
        )
    return found


def _name(word: str) -> str:
    return word.strip().lower().removeprefix("x-")


def _unknown(body: bytes, _most: int) -> Decoded:
    return Decoded(body, as_it_came=True)


# --- gzip -------------------------------------------------------------------------------------------------


def _gunzip(body: bytes, most: int) -> Decoded:
    """Trailing bytes that start no member are ignored."""
    if not body.startswith(_GZIP):
        return Decoded(body, as_it_came=True)
    parts: list[bytes] = []
    at, room, error, loss = 0, most + 1, "", f"its gzip has more than {MOST_MEMBERS} members"
    for _ in range(MOST_MEMBERS):
        begin = _behind_head(body, at)
        if begin is None:
            loss = _LOSSES[_End.CUT].format("gzip")
            break
        run = _inflate(body, begin, room)
        parts.append(run.data)
        room -= len(run.data)
        if run.end is not _End.WHOLE:
            loss = _LOSSES[run.end].format("gzip")
            break
        error = error or _wrong_sum(run.data, body[run.at : run.at + _SUM_BYTES])
        at = run.at + _SUM_BYTES
        if not body.startswith(_GZIP, at):
            loss = ""
            break
    return Decoded(b"".join(parts), loss, error, error == _WRONG_SIZE)


def _behind_head(body: bytes, at: int) -> int | None:
    """Offset of the member's deflate data; None if the body ends before it."""
    if len(body) < at + _GZIP_HEAD:
        return None
    flags, at = body[at + 3], at + _GZIP_HEAD
    if flags & _FIELDS:
        at += 2 + int.from_bytes(body[at : at + 2], "little")
    for flag in (_NAME, _COMMENT):
        if flags & flag:
            at = body.find(b"\0", at) + 1
            if not at:
                return None
    at += 2 if flags & _HEAD_SUM else 0
    return at if at < len(body) else None


def _wrong_sum(data: bytes, trailer: bytes) -> str:
    """What is wrong with a member's CRC and size; empty if they match."""
    if len(trailer) < _SUM_BYTES or not any(trailer):
        return "" if trailer and not data else "its gzip has no checksum"
    if isal_zlib.crc32(data) == int.from_bytes(trailer[:4], "little"):
        return ""
    # Corrupted data most likely has both a wrong CRC and a wrong size.
    is_whole = len(data) & 0xFFFFFFFF == int.from_bytes(trailer[4:], "little")
    return "its gzip has a wrong checksum" if is_whole else _WRONG_SIZE


# --- deflate ----------------------------------------------------------------------------------------------


def _undeflate(body: bytes, most: int) -> Decoded:
    """Decode zlib format, or raw deflate as some servers send it."""
    if _has_zlib_head(body) and not _is_text(body):
        run = _inflate(body, 2, most + 1)
        if run.data or run.end is not _End.DAMAGED:
            wrong = run.end is _End.WHOLE and _is_wrong_adler(run.data, body[run.at : run.at + _ADLER_BYTES])
            error = _WRONG_ADLER if wrong else ""
            return Decoded(run.data, _LOSSES[run.end].format("deflate"), error, wrong)
    return _judged(body, _inflate(body, 0, most + 1), "deflate")


def _has_zlib_head(body: bytes) -> bool:
    """Whether there is a zlib header (RFC 1950) without a preset dictionary."""
    head = int.from_bytes(body[:2], "big")
    return len(body) > 2 and head >> 8 & 15 == 8 and head % 31 == 0 and not head & 32


def _is_wrong_adler(data: bytes, trailer: bytes) -> bool:
    return len(trailer) == _ADLER_BYTES and isal_zlib.adler32(data) != int.from_bytes(trailer, "big")


def _inflate(body: bytes, at: int, room: int) -> _Run:
    """Raw deflate data at `at`, to at most `room` bytes."""
    unpacker = isal_zlib.decompressobj(wbits=-zlib.MAX_WBITS)
    parts: list[bytes] = []
    begin, left = at, room
    try:
        while at < len(body) and not unpacker.eof:
            piece = body[at : at + _PIECE]
            parts.append(unpacker.decompress(piece, left))
            left -= len(parts[-1])
            if left <= 0:
                return _Run(b"".join(parts), _End.LONG)
            at += len(piece)
    except isal_zlib.error:  # type: ignore[misc]
        return _Run(_before_damage(body, begin, room), _End.DAMAGED)
    data = b"".join(parts)
    return _Run(data, _End.WHOLE, at - len(unpacker.unused_data)) if unpacker.eof else _Run(data, _End.CUT)


def _before_damage(body: bytes, at: int, room: int) -> bytes:
    unpacker, made = zlib.decompressobj(wbits=-zlib.MAX_WBITS), bytearray()
    try:
        while at < len(body) and len(made) < room:
            made += unpacker.decompress(body[at : at + _SMALL_PIECE], room - len(made))
            at += _SMALL_PIECE
    except zlib.error:
        pass
    return bytes(made)


# --- br ---------------------------------------------------------------------------------------------------


def _unbrotli(body: bytes, most: int) -> Decoded:
    run = _brotli_run(body, most + 1, (len(body),))
    if run.end is _End.DAMAGED:
        # The decoder returns nothing for a piece with damage or with bytes after the end. So locate that place first,
        # then decode everything before it.
        run = _brotli_run(body, most + 1, range(_SMALL_PIECE, len(body) + _SMALL_PIECE, _SMALL_PIECE))
    if run.end is _End.DAMAGED:
        right = range(_SMALL_PIECE, run.at + 1, _SMALL_PIECE)
        run = _brotli_run(body, most + 1, chain(right, range(run.at + 1, len(body) + 1)))
    return _judged(body, run, "br")


def _brotli_run(body: bytes, room: int, ends: Iterable[int]) -> _Run:
    """Feed the decoder pieces with these ends; a DAMAGED run is good up to `at`."""
    unpacker, made, at = brotli.Decompressor(), bytearray(), 0
    try:
        for end in ends:
            made += unpacker.process(body[at:end], output_buffer_limit=room - len(made))
            at = min(end, len(body))
            while not (unpacker.is_finished() or unpacker.can_accept_more_data() or len(made) >= room):
                made += unpacker.process(b"", output_buffer_limit=room - len(made))
            if len(made) >= room:
                return _Run(bytes(made[:room]), _End.LONG)
            if unpacker.is_finished():
                return _Run(bytes(made), _End.WHOLE, at)
    except brotli.error:
        return _Run(bytes(made), _End.DAMAGED, at)
    return _Run(bytes(made), _End.CUT, at)


# --- All --------------------------------------------------------------------------------------------------


def _judged(body: bytes, run: _Run, name: str) -> Decoded:
    """Without a magic number: text that does not decode completely is returned undecoded."""
    nothing = run.end is _End.DAMAGED and not run.data
    if nothing or ((run.end is not _End.WHOLE or run.at < len(body)) and _is_text(body)):
        return Decoded(body, as_it_came=True)
    return Decoded(run.data, _LOSSES[run.end].format(name))


def _is_text(body: bytes) -> bool:
    return not _BINARY.search(body, 0, _LOOKED_AT)


_LOSSES: Final = {
    _End.WHOLE: "",
    _End.LONG: "",
    _End.CUT: "its {} is truncated",
    _End.DAMAGED: "its {} is damaged",
}
_DECODERS: Final[dict[str, Callable[[bytes, int], Decoded]]] = {
    "gzip": _gunzip,
    "deflate": _undeflate,
    "br": _unbrotli,
}
