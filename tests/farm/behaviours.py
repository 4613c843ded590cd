"""Servers that misbehave: one misbehaviour = one small function, answering under `/_/NAME` on every site.

Ordinary pages never link here. A function gets the connection and the request, does its worst and returns;
the connection is closed then. Parameters come in the query (`/_/slow-head?seconds=3`); one that is no number
is answered 400. A client that goes away cancels the function wherever it waits.
"""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec

from .wire import Request, Wire

PREFIX = "/_/"
TEXT = b"<!doctype html><title>behaviour</title><p>" + b"all is well " * 20
OK = "200 OK"
MEGABYTE = 1 << 20
BLOCK = b"x" * 65_536

Play = Callable[[Wire, Request], Coroutine[None, None, None]]


@dataclass(frozen=True)
class Behaviour:
    """A misbehaviour; `status` as the hit log tells it, 0 = the answer has none that can be read."""

    name: str
    status: int
    play: Play


REGISTRY: dict[str, Behaviour] = {}


def behaviour(status: int = 200) -> Callable[[Play], Play]:
    """Registers a function under its own name, with dashes; a last underscore keeps clear of modules."""

    def register(play: Play) -> Play:
        name = play.__name__.strip("_").replace("_", "-")
        REGISTRY[name] = Behaviour(name, status, play)
        return play

    return register


def find(path: str) -> Behaviour | None:
    """The behaviour of a path, None where there is none."""
    return REGISTRY.get(path.removeprefix(PREFIX)) if path.startswith(PREFIX) else None


# Too slow ---------------------------------------------------------------------------------------------


@behaviour()
async def slow_head(wire: Wire, request: Request) -> None:
    """The whole answer after `seconds` (5)."""
    await asyncio.sleep(request.number("seconds", 5))
    await wire.send(_answer(TEXT))


@behaviour()
async def slow_body(wire: Wire, request: Request) -> None:
    """The head at once, the body after `seconds` (5)."""
    await wire.send(_head(length=len(TEXT)))
    await asyncio.sleep(request.number("seconds", 5))
    await wire.send(TEXT)


@behaviour()
async def drip_head(wire: Wire, request: Request) -> None:
    """A head of `bytes` (1,000) filler letters, one each `seconds` (0.2), then the body."""
    await wire.send(b"HTTP/1.1 200 OK\r\nX-Drip: ")
    await _drip(wire, request)
    await wire.send(b"\r\nConnection: close\r\n\r\n" + TEXT)


@behaviour()
async def drip_body(wire: Wire, request: Request) -> None:
    """A body of `bytes` (1,000), one each `seconds` (0.2)."""
    await wire.send(_head(length=int(request.number("bytes", 1_000))))
    await _drip(wire, request)


@behaviour(status=0)
async def silent(wire: Wire, request: Request) -> None:
    """Takes the request and says nothing, as long as the client stays."""
    await asyncio.Event().wait()


# Broken off -------------------------------------------------------------------------------------------


@behaviour(status=0)
async def reset(wire: Wire, request: Request) -> None:
    """RST instead of an answer."""
    wire.reset()


@behaviour()
async def reset_body(wire: Wire, request: Request) -> None:
    """RST after 100 of 1,000 bytes."""
    await wire.send(_head(length=1_000) + b"x" * 100)
    # Without a pause the reset would overtake the bytes in the client's receive buffer.
    await asyncio.sleep(0.05)
    wire.reset()


@behaviour()
async def short_body(wire: Wire, request: Request) -> None:
    """A clean end after 100 of 1,000 bytes."""
    await wire.send(_head(length=1_000) + b"x" * 100)


# Without end ------------------------------------------------------------------------------------------


@behaviour()
async def endless_body(wire: Wire, request: Request) -> None:
    """A body without length that ends when the client does."""
    await wire.send(_head())
    while True:
        await wire.send(BLOCK)


@behaviour()
async def endless_headers(wire: Wire, request: Request) -> None:
    """Header fields without end."""
    await wire.send(b"HTTP/1.1 200 OK\r\n")
    while True:
        await wire.send((b"X-Filler: " + b"y" * 80 + b"\r\n") * 500)


@behaviour()
async def many_fields(wire: Wire, request: Request) -> None:
    """A good answer with `count` (10,000) header fields too many."""
    count = int(request.number("count", 10_000))
    await wire.send(_answer(TEXT, *(f"X-Field-{number}: v" for number in range(count))))


@behaviour()
async def long_header_line(wire: Wire, request: Request) -> None:
    """A good answer with one field of `bytes` (1,000,000)."""
    await wire.send(_answer(TEXT, "X-Long: " + "z" * int(request.number("bytes", 1_000_000))))


@behaviour()
async def hundred_flood(wire: Wire, request: Request) -> None:
    """`count` (200,000) interim answers before the real one."""
    left = int(request.number("count", 200_000))
    while left > 0:
        await wire.send(b"HTTP/1.1 100 Continue\r\n\r\n" * min(left, 1_000))
        left -= 1_000
    await wire.send(_answer(TEXT))


@behaviour()
async def endless_chunk(wire: Wire, request: Request) -> None:
    """A chunk whose extension never ends."""
    await wire.send(_head("Transfer-Encoding: chunked") + b"5;")
    while True:
        await wire.send(BLOCK)


# Encodings --------------------------------------------------------------------------------------------


@behaviour()
async def gzip_(wire: Wire, request: Request) -> None:
    """A good answer, gzipped, whatever the client accepts."""
    await wire.send(_answer(gzip.compress(TEXT), "Content-Encoding: gzip"))


@behaviour()
async def br(wire: Wire, request: Request) -> None:
    """A good answer in brotli; 501 where the farm has no brotli."""
    if find_spec("brotli") is None:
        return await wire.send(_answer(b"", status="501 Not Implemented"))
    return await wire.send(_answer(import_module("brotli").compress(TEXT), "Content-Encoding: br"))


@behaviour()
async def bad_gzip(wire: Wire, request: Request) -> None:
    """A gzip body that begins well and then has a block of a type that there is not."""
    packer = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    packed = packer.compress(TEXT * 50) + packer.flush(zlib.Z_FULL_FLUSH)
    await wire.send(_answer(packed + b"\xff" * 100, "Content-Encoding: gzip"))


@behaviour()
async def gzip_bomb(wire: Wire, request: Request) -> None:
    """`megabytes` (300) of zeros, gzipped to a thousandth."""
    megabytes = int(request.number("megabytes", 300))
    # The head at once, since the sum over all takes as long as some clients wait for it.
    blocks = _bomb_blocks(megabytes)
    await wire.send(_head("Content-Encoding: gzip", length=len(blocks) + 8) + blocks)
    await wire.send(await asyncio.to_thread(_bomb_sum, megabytes))


@behaviour()
async def gzip_layers(wire: Wire, request: Request) -> None:
    """A good answer in `count` (60) layers of gzip."""
    packed, count = TEXT, int(request.number("count", 60))
    for _ in range(count):
        packed = gzip.compress(packed, 1)
    await wire.send(_answer(packed, f"Content-Encoding: {', '.join(['gzip'] * count)}"))


# Not quite HTTP ---------------------------------------------------------------------------------------


@behaviour(status=0)
async def bad_status(wire: Wire, request: Request) -> None:
    """A status line whose status is no number."""
    await wire.send(_answer(TEXT, status="abc OK"))


@behaviour(status=0)
async def no_status(wire: Wire, request: Request) -> None:
    """A body and nothing else, as HTTP/0.9 did."""
    await wire.send(TEXT)


@behaviour()
async def bad_chunk(wire: Wire, request: Request) -> None:
    """A chunked body whose second chunk has no size."""
    await wire.send(_head("Transfer-Encoding: chunked") + b"5\r\nhello\r\nzz\r\nworld\r\n0\r\n\r\n")


@behaviour()
async def two_lengths(wire: Wire, request: Request) -> None:
    """Two Content-Length fields that disagree."""
    await wire.send(_head("Content-Length: 5", "Content-Length: 7") + b"hello, world")


@behaviour()
async def bad_length(wire: Wire, request: Request) -> None:
    """A Content-Length below zero."""
    await wire.send(_head("Content-Length: -1") + TEXT)


# Redirects --------------------------------------------------------------------------------------------


@behaviour(status=302)
async def redirect_loop(wire: Wire, request: Request) -> None:
    """A redirect to itself."""
    await wire.send(_redirect(PREFIX + "redirect-loop"))


@behaviour(status=302)
async def redirect_long(wire: Wire, request: Request) -> None:
    """A redirect to a URL of `bytes` (1,000,000)."""
    await wire.send(_redirect("/" + "x" * int(request.number("bytes", 1_000_000))))


@behaviour(status=302)
async def redirect_private(wire: Wire, request: Request) -> None:
    """A redirect to a private address."""
    await wire.send(_redirect("http://10.1.2.3/"))


@behaviour(status=302)
async def redirect_file(wire: Wire, request: Request) -> None:
    """A redirect to a file of the client's machine."""
    await wire.send(_redirect("file:///etc/hostname"))


def _head(*fields: str, length: int | None = None, status: str = OK) -> bytes:
    lines = [f"HTTP/1.1 {status}", "Content-Type: text/html", "Connection: close", *fields]
    lines += [] if length is None else [f"Content-Length: {length}"]
    return "\r\n".join([*lines, "", ""]).encode()


def _answer(body: bytes, *fields: str, status: str = OK) -> bytes:
    return _head(*fields, length=len(body), status=status) + body


def _redirect(location: str) -> bytes:
    return _answer(b"", f"Location: {location}", status="302 Found")


async def _drip(wire: Wire, request: Request) -> None:
    pause = request.number("seconds", 0.2)
    for _ in range(int(request.number("bytes", 1_000))):
        await wire.send(b"x")
        await asyncio.sleep(pause)


@lru_cache(maxsize=2)
def _bomb_blocks(megabytes: int) -> bytes:
    """A gzip member of zeros but for its end; every full-flushed block is the same, so one is made and repeated."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    block = packer.compress(bytes(MEGABYTE)) + packer.flush(zlib.Z_FULL_FLUSH)
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + block * megabytes + b"\x03\0"


def _bomb_sum(megabytes: int) -> bytes:
    check, zeros = 0, bytes(MEGABYTE)
    for _ in range(megabytes):
        check = zlib.crc32(zeros, check)
    size = (megabytes * MEGABYTE) & 0xFFFFFFFF
    return check.to_bytes(4, "little") + size.to_bytes(4, "little")
