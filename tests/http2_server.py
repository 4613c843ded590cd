"""An HTTP/2 server over TLS for tests: it keeps the rules through the `h2` package, or breaks them with raw frames.

`Http2Server` runs in the test's own loop, as RawServer does, and is gone with all its connections when its
`async with` ends. `serve` is called once for each request, with its Stream; several run at once. What h2 refuses to
send is put together here (`frame`, `field`) and goes out past it; where h2 loses track by that, the connection only
reads on. A client that chooses HTTP/1.1 gets the same bytes for every request.

What a flood costs the client can only be told where server and client are two processes: `in_process` starts
`python -m tests.http2_server CERTIFICATE NAME`, which serves one of `SCENES` or `PLAIN_SCENES` and ends with its
input.
"""

from __future__ import annotations

import asyncio
import gzip
import struct
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import uvloop
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    DataReceived,
    Event,
    PushedStreamReceived,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from h2.settings import Settings

from tests.certificates import context_of
from tests.raw_server import RawServer, repeat_after
from tests.raw_server import Serve as RawServe

if TYPE_CHECKING:
    import ssl

    from h2.settings import SettingCodes

Serve = Callable[["Stream"], Awaitable[None]]

# Kinds of frames, their flags, and error codes: RFC 9113, sections 6 and 7.
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = 0, 1, 2, 3, 4
PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 5, 6, 7, 8, 9
ALTSVC, UNKNOWN = 10, 99
END_STREAM, ACK, END_HEADERS, PADDED = 1, 1, 4, 8
NO_ERROR, INTERNAL_ERROR, REFUSED_STREAM, CANCEL, ENHANCE_YOUR_CALM, HTTP_1_1_REQUIRED = 0, 2, 7, 8, 11, 13
# HPACK (RFC 7541): ":status: 200" of the static table, and the newest entry of the dynamic one.
STATUS_200: Final = b"\x88"
NEWEST: Final = b"\xbe"
LARGEST_FRAME: Final = 16_384


def frame(kind: int, flags: int, stream: int, payload: bytes = b"", *, length: int | None = None) -> bytes:
    """One frame; `length` is what its head says where that is not the truth."""
    size = len(payload) if length is None else length
    return struct.pack("!I", size)[1:] + bytes([kind, flags]) + struct.pack("!I", stream) + payload


def field(name: bytes, value: bytes, *, kept: bool = False) -> bytes:
    """One header field in HPACK, spelled out; `kept`: the client puts it into its dynamic table."""
    return (b"\x40" if kept else b"\x00") + _text(name) + _text(value)


def _text(text: bytes) -> bytes:
    most = 127
    if len(text) < most:
        return bytes([len(text)]) + text
    size, rest = bytearray([most]), len(text) - most
    while rest >= 128:
        size.append(rest % 128 + 128)
        rest //= 128
    return bytes([*size, rest]) + text


class Stream:
    """One request, and what is answered to it."""

    def __init__(self, connection: Connection, number: int, fields: list[tuple[bytes, bytes]]) -> None:
        self.connection, self.number = connection, number
        self.fields = fields
        self.path = dict(fields)[b":path"].decode("ascii")
        self.body_sent = bytearray()
        self.complete = asyncio.Event()

    async def head(self, *fields: tuple[bytes, bytes], status: int = 200, end: bool = False) -> None:
        """Send a head."""
        self._submit_head(fields, status, end)
        await self.connection.flush()

    async def body(self, data: bytes, *, end: bool = True) -> None:
        """Send DATA, as the client's windows allow."""
        h2 = self.connection.h2
        while data:
            size = min(h2.local_flow_control_window(self.number), h2.max_outbound_frame_size, len(data))
            if size <= 0:
                await self.connection.more_window()
                continue
            h2.send_data(self.number, data[:size], end_stream=end and size == len(data))
            data = data[size:]
        await self.connection.flush()

    async def page(self, body: bytes, *fields: tuple[bytes, bytes], status: int = 200) -> None:
        """Send a well-formed answer, in one piece if it fits the windows."""
        self._submit_head([(b"content-length", b"%d" % len(body)), *fields], status, not body)
        await self.body(body)

    async def reset(self, code: int) -> None:
        """End this stream alone."""
        self.connection.h2.reset_stream(self.number, code)
        await self.connection.flush()

    async def raw(self, *frames: bytes) -> None:
        """Send bytes that h2 does not know of."""
        await self.connection.send(b"".join(frames))

    def _submit_head(self, fields: Any, status: int, end: bool) -> None:
        self.connection.h2.send_headers(self.number, [(b":status", b"%d" % status), *fields], end_stream=end)


class Connection:
    """One connection, as the server's side sees it."""

    def __init__(
        self, server: Http2Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.server, self._reader, self.writer = server, reader, writer
        config = H2Configuration(
            client_side=False,
            header_encoding=None,
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
        )
        self.h2 = H2Connection(config)
        self.h2.local_settings = Settings(client=False, initial_values=server.settings)
        self.streams: dict[int, Stream] = {}
        self.resets: dict[int, int] = {}  # by the client: stream -> error code
        self.lost_track = False
        self.reads = asyncio.Event()  # cleared: what the client sends is left where it is
        self.reads.set()
        self._more_window = asyncio.Event()
        self._answers: set[asyncio.Future[None]] = set()

    async def run(self) -> None:
        """Read until the client leaves."""
        self.h2.initiate_connection()
        try:
            await self.flush()
            while data := await self._reader.read(65536):
                await self.reads.wait()
                await self._take(data)
        finally:
            for answer in self._answers:
                answer.cancel()

    async def flush(self) -> None:
        """Send what h2 has to say."""
        await self.send(self.h2.data_to_send())

    async def send(self, data: bytes) -> None:
        """Send, and wait until the client has taken most of it."""
        self.writer.write(data)
        await self.writer.drain()

    async def more_window(self) -> None:
        """Wait until the client allows more DATA."""
        self._more_window.clear()
        await self.flush()
        await self._more_window.wait()

    async def _take(self, data: bytes) -> None:
        if self.lost_track:
            return
        try:
            events = self.h2.receive_data(data)
        except ProtocolError:
            self.lost_track = True
            return
        for event in events:
            self._on(event)
        await self.flush()

    def _on(self, event: Event) -> None:
        assert not isinstance(event, PushedStreamReceived)
        if isinstance(event, RequestReceived):
            self._start(Stream(self, event.stream_id, event.headers))
        elif isinstance(event, DataReceived):
            self.streams[event.stream_id].body_sent += event.data
            self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, StreamEnded):
            self.streams[event.stream_id].complete.set()
        elif isinstance(event, StreamReset) and event.remote_reset:
            self.resets[event.stream_id] = int(event.error_code)
        elif isinstance(event, WindowUpdated):
            self._more_window.set()

    def _start(self, stream: Stream) -> None:
        self.streams[stream.number] = stream
        self.server.streams.append(stream)
        answer = asyncio.ensure_future(self._answer(stream))
        self._answers.add(answer)
        answer.add_done_callback(self._answers.discard)

    async def _answer(self, stream: Stream) -> None:
        # For h2 a stream that the client gave up is no longer there.
        with suppress(OSError, EOFError, ProtocolError):
            await self.server.serve(stream)


class Http2Server:
    """Listens while its `async with` lasts. `settings` are the first that clients hear of; `plain` is for HTTP/1.1."""

    def __init__(
        self,
        serve: Serve,
        tls: ssl.SSLContext,
        *,
        settings: dict[SettingCodes, int] | None = None,
        plain: bytes = b"",
    ) -> None:
        self.serve, self._tls, self._plain = serve, tls, plain
        self.settings = settings or {}
        self.connections: list[Connection] = []  # of HTTP/2
        self.streams: list[Stream] = []
        self.protocols: list[str | None] = []  # that clients chose, one for each connection
        self._tasks: set[asyncio.Future[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._tls)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.url = f"https://localhost:{self.port}"
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._handle(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        protocol = writer.get_extra_info("ssl_object").selected_alpn_protocol()
        self.protocols.append(protocol)
        try:
            with suppress(OSError, EOFError):
                if protocol == "h2":
                    self.connections.append(Connection(self, reader, writer))
                    await self.connections[-1].run()
                while protocol != "h2" and await reader.readuntil(b"\r\n\r\n"):
                    writer.write(self._plain)
        finally:
            writer.transport.abort()


# --- Scenes for a process of its own ----------------------------------------------------------------------

# The first stream of a connection, which is the one that a flood answers.
FIRST: Final = 1
HEAD: Final = frame(HEADERS, END_HEADERS, FIRST, STATUS_200)
_OPEN_HEAD: Final = frame(HEADERS, 0, FIRST, STATUS_200)
_BLOCK: Final = 65_536
PAGE: Final = bytes(range(256)) * 102


def flood(first: bytes, again: bytes, *, pause_s: float = 0.0, reads: bool = True) -> Serve:
    """Send `first`, then `again` and again; with `reads` False nothing that the client says is taken any more."""

    async def serve(stream: Stream) -> None:
        if not reads:
            stream.connection.reads.clear()
        await stream.raw(first)
        while True:
            await stream.raw(again)
            await asyncio.sleep(pause_s)

    return serve


def many(*frames: bytes) -> bytes:
    """These frames as often as fit into 64 kB, so that the server is not what bounds a flood."""
    whole = b"".join(frames)
    return whole * max(1, _BLOCK // len(whole))


def fields_block(first: bytes, rest: bytes, times: int, *, last: bool) -> bytes:
    """A head of `first`, then as many bytes of `rest` as go into it and `times` CONTINUATION frames."""
    room = LARGEST_FRAME - len(first)
    parts = [frame(HEADERS, 0, FIRST, first + rest * (room // len(rest)))]
    full = rest * (LARGEST_FRAME // len(rest))
    parts += [frame(CONTINUATION, 0, FIRST, full)] * (times - 1)
    return b"".join(parts) + frame(CONTINUATION, END_HEADERS if last else 0, FIRST, full)


def _number(value: int) -> bytes:
    return struct.pack("!I", value)


async def _page(stream: Stream) -> None:
    await stream.page(PAGE, (b"content-type", b"text/html"))


async def _gzip_bomb(stream: Stream) -> None:
    await stream.head((b"content-encoding", b"gzip"))
    await stream.body(gzip.compress(bytes(100_000_000)))


_LONG: Final = b"y" * 4000
_INTERIM: Final = field(b":status", b"103")
# A name that HTTP does not allow: nghttp2 leaves such a field out, so that no limit of ours counts it.
_LEFT_OUT: Final = field(b"x:y", _LONG, kept=True)
_ALTSVC: Final = struct.pack("!H", 17) + b"https://localhost" + b'h2=":1"'
_SETTINGS_TWICE: Final = struct.pack("!HIHI", 1, 0, 1, 4096)

SCENES: Final[dict[str, Serve]] = {
    "page": _page,
    "gzip bomb": _gzip_bomb,
    "endless body": flood(HEAD, frame(DATA, 0, FIRST, bytes(LARGEST_FRAME))),
    "body byte by byte": flood(HEAD, many(frame(DATA, 0, FIRST, b"x"))),
    "empty DATA": flood(HEAD, many(frame(DATA, 0, FIRST))),
    "DATA of padding": flood(HEAD, many(frame(DATA, PADDED, FIRST, b"\xff" + bytes(255)))),
    "PING": flood(b"", many(frame(PING, 0, 0, bytes(8)))),
    "PING, answers left": flood(b"", many(frame(PING, 0, 0, bytes(8))), reads=False),
    "SETTINGS": flood(b"", many(frame(SETTINGS, 0, 0))),
    "SETTINGS, answers left": flood(b"", many(frame(SETTINGS, 0, 0)), reads=False),
    "long SETTINGS": flood(HEAD, many(frame(SETTINGS, 0, 0, _SETTINGS_TWICE * 1300))),
    "WINDOW_UPDATE, connection": flood(HEAD, many(frame(WINDOW_UPDATE, 0, 0, _number(1)))),
    "WINDOW_UPDATE, stream": flood(HEAD, many(frame(WINDOW_UPDATE, 0, FIRST, _number(1)))),
    "PRIORITY": flood(HEAD, many(frame(PRIORITY, 0, FIRST, _number(0) + b"\1"))),
    "RST_STREAM": flood(HEAD, many(frame(RST_STREAM, 0, FIRST, _number(CANCEL)))),
    "GOAWAY": flood(HEAD, many(frame(GOAWAY, 0, 0, _number(FIRST) + _number(NO_ERROR)))),
    "ALTSVC": flood(HEAD, many(frame(ALTSVC, 0, 0, _ALTSVC))),
    "unknown frames": flood(HEAD, many(frame(UNKNOWN, 0, 0))),
    "CONTINUATION": flood(_OPEN_HEAD, many(frame(CONTINUATION, 0, FIRST, field(b"a", b"1")))),
    "empty CONTINUATION": flood(_OPEN_HEAD, many(frame(CONTINUATION, 0, FIRST))),
    "HPACK bomb": flood(b"", fields_block(STATUS_200 + field(b"x", _LONG, kept=True), NEWEST, 7, last=True)),
    "HPACK bomb of empty fields": flood(
        b"", fields_block(STATUS_200 + field(b"x", b"", kept=True), NEWEST, 7, last=True)
    ),
    "HPACK bomb left out": flood(b"", fields_block(STATUS_200 + _LEFT_OUT, NEWEST, 7, last=True), pause_s=9),
    "HPACK bombs left out, in 103s": flood(b"", fields_block(_INTERIM + _LEFT_OUT, NEWEST, 7, last=True)),
    "103": flood(b"", many(frame(HEADERS, END_HEADERS, FIRST, _INTERIM))),
}

# HTTP/1.1, to compare with.
PLAIN_SCENES: Final[dict[str, RawServe]] = {
    "chunk extension, HTTP/1.1": repeat_after(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"x" * _BLOCK
    )
}


@contextmanager
def in_process(certificate: Path, scene: str) -> Iterator[int]:
    """A server of this scene in a process of its own, for HTTP/2 and (`page` alone) HTTP/1.1; gives its port."""
    command = [sys.executable, "-m", "tests.http2_server", str(certificate), scene]
    root = Path(__file__).parents[1]
    with subprocess.Popen(
        command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin and process.stdout
        try:
            yield int(process.stdout.readline())
        finally:
            process.stdin.close()


async def _serve_until_input_ends(certificate: Path, scene: str) -> None:
    if scene in PLAIN_SCENES:
        async with RawServer(PLAIN_SCENES[scene], tls=context_of(certificate)) as plain:
            await _until_input_ends(plain.port)
        return
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\ncontent-type: text/html\r\n\r\n" % len(PAGE)
    tls = context_of(certificate, "h2", "http/1.1")
    async with Http2Server(SCENES[scene], tls, plain=head + PAGE) as server:
        await _until_input_ends(server.port)


async def _until_input_ends(port: int) -> None:
    print(port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve_until_input_ends(Path(sys.argv[1]), sys.argv[2]))
