"""Servers of a few lines for tests: an HTTP one that sends exactly the bytes a test wants, and a name server.

Both run in the test's own loop, on loopback and a free port, and are gone when their `async with` ends, with all
their connections, also when the test fails. `in_loop` runs a test in uvloop with a deadline.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Self

import uvloop

if TYPE_CHECKING:
    import ssl

SECONDS_PER_TEST = 60.0

Serve = Callable[["Exchange"], Awaitable[None]]


def in_loop(scene: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test of an async function."""

    @functools.wraps(scene)
    def test(*args: Any, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(asyncio.wait_for(scene(*args, **kwargs), SECONDS_PER_TEST))

    return test


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait for a condition; AssertionError if it does not come true in time."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "the condition did not come true"
        await asyncio.sleep(0.01)


class Exchange:
    """One connection, as the server's side sees it."""

    def __init__(self, server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.server, self.reader, self.writer = server, reader, writer

    async def request(self) -> bytes:
        """Read one request, note it, and give it; IncompleteReadError at the end of the connection."""
        data = await self.reader.readuntil(b"\r\n\r\n")
        for line in data.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                data += await self.reader.readexactly(int(line.split(b":")[1]))
        self.server.requests.append(data)
        return data

    async def send(self, data: bytes) -> None:
        """Send, and wait until the client has taken most of it."""
        self.writer.write(data)
        await self.writer.drain()

    def reset(self) -> None:
        """End the connection with RST instead of FIN."""
        raw = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


class RawServer:
    """Listens while its `async with` lasts; `serve` handles one connection and ends with it."""

    def __init__(self, serve: Serve, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        self._serve, self.host, self._tls = serve, host, tls
        self._tasks: set[asyncio.Task[None]] = set()
        self.requests: list[bytes] = []
        self.peers: list[str] = []
        self.ended = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, self.host, 0, ssl=self._tls)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.url = f"{'https' if self._tls else 'http'}://localhost:{self.port}"
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.peers.append(writer.get_extra_info("peername")[0])
        task = asyncio.ensure_future(self._handle(Exchange(self, reader, writer)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle(self, exchange: Exchange) -> None:
        try:
            with suppress(OSError, EOFError, asyncio.LimitOverrunError):
                await self._serve(exchange)
        finally:
            self.ended += 1
            exchange.writer.transport.abort()


def answer(*parts: bytes) -> Serve:
    """Send these bytes to every request of a connection."""

    async def serve(exchange: Exchange) -> None:
        while True:
            await exchange.request()
            await exchange.send(b"".join(parts))

    return serve


def page(body: bytes, *fields: bytes, status: bytes = b"200 OK") -> bytes:
    """A well-formed answer."""
    lines = [b"HTTP/1.1 " + status, b"Content-Length: %d" % len(body), *fields]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def hang_up_after(*parts: bytes) -> Serve:
    """Send these bytes to the first request, then close."""

    async def serve(exchange: Exchange) -> None:
        await exchange.request()
        await exchange.send(b"".join(parts))
        exchange.writer.close()
        await exchange.writer.wait_closed()

    return serve


def reset_after(*parts: bytes) -> Serve:
    """Send these bytes to the first request, then reset."""

    async def serve(exchange: Exchange) -> None:
        await exchange.request()
        await exchange.send(b"".join(parts))
        exchange.reset()

    return serve


def stay_silent_after(*parts: bytes) -> Serve:
    """Send these bytes to the first request, then nothing until the client leaves."""

    async def serve(exchange: Exchange) -> None:
        await exchange.request()
        await exchange.send(b"".join(parts))
        await exchange.reader.read()

    return serve


def repeat_after(first: bytes, again: bytes, pause_s: float = 0.0) -> Serve:
    """Send `first`, then `again` and again until the client leaves."""

    async def serve(exchange: Exchange) -> None:
        await exchange.request()
        await exchange.send(first)
        while True:
            await exchange.send(again)
            await asyncio.sleep(pause_s)

    return serve


class NameServer(asyncio.DatagramProtocol):
    """Answers A and AAAA from `zone`; unknown names do not exist; names in `mute` get no answer."""

    def __init__(self, zone: dict[str, list[str]], ttl_s: int, mute: frozenset[str]) -> None:
        self.zone, self.ttl_s, self.mute = zone, ttl_s, mute
        self.asked: list[str] = []

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        labels, at = [], 12
        while data[at]:
            labels.append(data[at + 1 : at + 1 + data[at]].decode("ascii"))
            at += 1 + data[at]
        name, question = ".".join(labels).lower(), data[12 : at + 5]
        self.asked.append(name)
        if name not in self.mute:
            self._transport.sendto(self._reply(data[:2], name, question), addr)

    def _reply(self, number: bytes, name: str, question: bytes) -> bytes:
        family = {1: 4, 28: 6}.get(struct.unpack("!H", question[-4:-2])[0])
        found = [one for one in map(ip_address, self.zone.get(name, [])) if one.version == family]
        code = 0x8180 if name in self.zone else 0x8183
        records = b"".join(
            b"\xc0\x0c" + question[-4:] + struct.pack("!IH", self.ttl_s, len(one.packed)) + one.packed
            for one in found
        )
        return number + struct.pack("!HHHHH", code, 1, len(found), 0, 0) + question + records


@asynccontextmanager
async def name_server(
    zone: dict[str, list[str]], ttl_s: int = 300, mute: frozenset[str] = frozenset()
) -> AsyncIterator[tuple[NameServer, str]]:
    """A running NameServer and its address, as `Names` takes it."""
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(
        lambda: NameServer(zone, ttl_s, mute), local_addr=("127.0.0.1", 0)
    )
    try:
        yield server, "{}:{}".format(*transport.get_extra_info("sockname")[:2])
    finally:
        transport.close()
