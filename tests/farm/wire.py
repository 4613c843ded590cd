"""One connection of the farm: requests in, answers out, and the raw means by which it misbehaves.

Hides HTTP/1.1 framing, keep-alive, back-pressure and the hit log's place in it. A hit is logged before the
first byte of its answer leaves, so whoever holds an answer finds its hit in the log. A request that cannot
be read is answered 400 and the connection closed; a client that goes away ends everything that was due.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import struct
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TextIO, cast
from urllib.parse import parse_qs

HEAD_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asked; fields by lower-case name, the last of a repeated one."""

    method: str
    target: str
    fields: dict[str, str]
    keep_alive: bool
    came: float = field(default_factory=time.monotonic)

    @property
    def host(self) -> str:
        """The Host field as sent; "" where there is none."""
        return self.fields.get("host", "")

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]

    def text(self, name: str, default: str) -> str:
        """A parameter of the query."""
        return parse_qs(self.target.partition("?")[2]).get(name, [default])[-1]

    def number(self, name: str, default: float) -> float:
        """A parameter of the query as a number; ValueError where it is none."""
        return float(self.text(name, str(default)))


def parse(head: bytes) -> Request | None:
    """The request in these bytes (without the empty line); None where they are no request."""
    line, *lines = head.decode("latin-1").split("\r\n")
    words = line.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1.") or not words[1].startswith("/"):
        return None
    fields = {name.lower(): value.strip() for name, _, value in (text.partition(":") for text in lines)}
    kept = words[2] != "HTTP/1.0" and fields.get("connection", "").lower() != "close"
    return Request(words[0], words[1], fields, kept)


class HitLog:
    """Appends one JSON line per answered request; a line is whole or absent, also after a kill."""

    def __init__(self, file: TextIO | None) -> None:
        self._file = file

    def write(self, connection: int, request: Request, status: int) -> None:
        """One hit; status 0 where the answer has no status of its own."""
        if self._file is None:
            return
        agent = request.fields.get("user-agent", "")
        since = time.monotonic() - request.came
        row = [time.time() - since, request.came, request.host, request.method, request.target, status]
        self._file.write(json.dumps([*row, agent, connection]) + "\n")


Handler = Callable[["Wire", Request], None]
_numbers = itertools.count(1)


class Wire(asyncio.Protocol):
    """A connection; answers its requests one after another."""

    transport: asyncio.Transport

    def __init__(self, handler: Handler, hits: HitLog, open_wires: set[Wire]) -> None:
        self.connection_id = next(_numbers)
        self._handler = handler
        self._hits = hits
        self._open = open_wires
        self._buffer = b""
        self._busy = False
        self._due: asyncio.Task[None] | asyncio.TimerHandle | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not asserted: uvloop's transports are no subclasses of asyncio's.
        self.transport = cast("asyncio.Transport", transport)
        self._open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.discard(self)
        self._writable.set()
        if self._due is not None:
            self._due.cancel()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._busy:
            self._next()

    def _next(self) -> None:
        """Takes up the next whole request in the buffer, if there is one."""
        while not self._busy and not self.transport.is_closing():
            head, mark, rest = self._buffer.partition(b"\r\n\r\n")
            if not mark:
                return self._refuse_flood()
            self._buffer = rest
            request = parse(head)
            if request is None:
                return self._refuse(b"400 Bad Request")
            self._busy = True
            self._handler(self, request)
        return None

    def _refuse_flood(self) -> None:
        if len(self._buffer) > HEAD_LIMIT:
            self._refuse(b"431 Request Header Fields Too Large")

    def _refuse(self, status: bytes, why: bytes = b"") -> None:
        head = b"HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(why))
        self.transport.write(head + why)
        self.transport.close()

    def hit(self, request: Request, status: int) -> None:
        """Logs the request as answered with this status."""
        self._hits.write(self.connection_id, request, status)

    def answer(self, request: Request, status: int, data: bytes) -> None:
        """Answers with whole bytes, head included."""
        self.hit(request, status)
        self.transport.write(data)
        if not request.keep_alive:
            self.transport.close()
        self._busy = False

    def answer_later(self, seconds: float, request: Request, status: int, data: bytes) -> None:
        """The same after a wait, during which the connection takes up nothing else."""
        loop = asyncio.get_running_loop()
        self._due = loop.call_later(seconds, self._answer_and_go_on, request, status, data)

    def _answer_and_go_on(self, request: Request, status: int, data: bytes) -> None:
        self.answer(request, status, data)
        self._next()

    def misbehave(self, request: Request, status: int, play: Coroutine[None, None, None]) -> None:
        """Logs the hit and leaves the connection to a coroutine; it is closed when that ends."""
        self.hit(request, status)
        self._due = asyncio.ensure_future(self._play(play))

    async def _play(self, play: Coroutine[None, None, None]) -> None:
        try:
            await play
        except ValueError as error:
            self._refuse(b"400 Bad Request", f"{error}\n".encode())
        self.transport.close()

    async def send(self, data: bytes) -> None:
        """Writes, and waits while the client does not keep up; cancelled when it goes away."""
        self.transport.write(data)
        await self._writable.wait()
        await asyncio.sleep(0)

    def reset(self) -> None:
        """Ends the connection with RST instead of FIN."""
        taken: socket.socket = self.transport.get_extra_info("socket")
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()
