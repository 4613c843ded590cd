"""HTTP/2 through the download handler, where it is switched on: what must hold, against servers of every kind.

What does not hold, and why HTTP/2 is off unless somebody switches it on: docs/decisions/0004-http2.md.
"""

from __future__ import annotations

import asyncio
import gzip
import ipaddress
import resource
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pycurl
import pytest
from h2.settings import SettingCodes
from scrapy import Request, signals
from scrapy.exceptions import ResponseDataLossError, StopDownload

from crawler.fetch import errors
from crawler.fetch.dns import Names
from crawler.fetch.handler import CurlDownloadHandler
from crawler.fetch.transfer import Attempt
from crawler.fetch.wire import wire_of
from tests.asking import asking
from tests.certificates import context_of, self_signed
from tests.costs import FLOOR_SECONDS, STEEP
from tests.http2_server import (
    ACK,
    ALTSVC,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FIRST,
    GOAWAY,
    HEAD,
    HEADERS,
    HTTP_1_1_REQUIRED,
    INTERNAL_ERROR,
    LARGEST_FRAME,
    NO_ERROR,
    PADDED,
    PRIORITY,
    PUSH_PROMISE,
    REFUSED_STREAM,
    RST_STREAM,
    SETTINGS,
    STATUS_200,
    UNKNOWN,
    WINDOW_UPDATE,
    Http2Server,
    Serve,
    Stream,
    field,
    frame,
    in_process,
)
from tests.raw_server import RawServer, answer, in_loop, name_server, page, until
from tests.test_download import failure, handler_with

# Longer than any test: where a limit is not what is tested, it must not be what ends it.
LONG_SECONDS = 60.0
TEXT = b"tide " * 2000


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One that the handler trusts."""
    file = self_signed(tmp_path / "certificate.pem", "localhost", "one.example", "two.example")
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    return file


@pytest.fixture
def tls(certificate: Path) -> ssl.SSLContext:
    """The server's side of it, for HTTP/2 first."""
    return context_of(certificate, "h2", "http/1.1")


@asynccontextmanager
async def http2_handler(**settings: Any) -> AsyncIterator[CurlDownloadHandler]:
    async with handler_with(**{"HTTP2_ENABLED": True} | settings) as handler:
        yield handler


class RecheckResult:
    """A request's `sending`: counts how often it was asked, and says `answer`."""

    def __init__(self, answer: bool = True) -> None:
        self.times, self._answer = 0, answer

    def __call__(self) -> bool:
        self.times += 1
        return self._answer


async def hello(stream: Stream) -> None:
    await stream.page(b"hello " + stream.path.encode())


# --- Where it is spoken -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "protocol", "offered"),
    [({}, "HTTP/1.1", "http/1.1"), ({"HTTP2_ENABLED": True}, "HTTP/2", "h2")],
    ids=["by default", "switched on"],
)
@in_loop
async def test_it_is_spoken_only_where_it_is_switched_on(
    settings: dict[str, Any], protocol: str, offered: str, tls: ssl.SSLContext
) -> None:
    async with (
        Http2Server(hello, tls, plain=page(b"hello /")) as server,
        handler_with(**settings) as handler,
    ):
        response = await handler.download_request(Request(server.url))
        assert (response.body, response.protocol) == (b"hello /", protocol)
        assert server.protocols == [offered]


@in_loop
async def test_a_server_that_has_not_heard_of_it(certificate: Path) -> None:
    async with (
        RawServer(answer(page(b"x")), tls=context_of(certificate)) as server,
        http2_handler() as handler,
    ):
        response = await handler.download_request(Request(server.url))
        assert (response.body, response.protocol) == (b"x", "HTTP/1.1")
    async with RawServer(answer(page(b"x"))) as server, http2_handler() as handler:
        assert (await handler.download_request(Request(server.url))).protocol == "HTTP/1.1"
        assert b"Upgrade" not in server.requests[0]


# --- Requests and answers ---------------------------------------------------------------------------------


@in_loop
async def test_a_page_and_all_that_is_known_of_it(tls: ssl.SSLContext) -> None:
    packed = gzip.compress(TEXT)

    async def serve(stream: Stream) -> None:
        fields = ((b"x-two", b"a"), (b"content-encoding", b"gzip"), (b"x-two", b" b"), (b"x-latin", b"\xe9"))
        await stream.page(packed, *fields)

    async with Http2Server(serve, tls) as server, http2_handler() as handler:
        request = Request(f"{server.url}/a")
        response = await handler.download_request(request)
    assert (response.status, response.body, response.url) == (200, TEXT, request.url)
    assert response.protocol == "HTTP/2"
    assert response.headers.getlist("X-Two") == [b"a", b"b"]
    assert response.headers[b"X-Latin"] == b"\xe9"
    assert b"Content-Encoding" not in response.headers
    assert request.meta["encoded"] == ("gzip", len(packed))
    assert response.ip_address == ipaddress.ip_address("127.0.0.1")
    assert response.flags == []
    times = request.meta["stage_times"]
    assert times["reused"] is False
    assert min(times["connect_s"], times["tls_s"], times["head_s"]) > 0
    assert request.meta["download_latency"] >= times["connect_s"] + times["tls_s"] + times["head_s"]


@in_loop
async def test_the_request_goes_out_as_it_was_made(tls: ssl.SSLContext) -> None:
    async with Http2Server(hello, tls) as server, http2_handler() as handler:
        headers = {"User-Agent": "lowtide", "X-Empty": "", "Accept-Encoding": "gzip"}
        await handler.download_request(Request(f"{server.url}/a/../%2fb?x=%2f", headers=headers))
        assert server.streams[0].fields == [
            (b":method", b"GET"),
            (b":scheme", b"https"),
            (b":authority", f"localhost:{server.port}".encode()),
            (b":path", b"/a/../%2fb?x=%2f"),
            (b"user-agent", b"lowtide"),
            (b"x-empty", b""),
            (b"accept-encoding", b"gzip"),
        ]


@in_loop
async def test_methods_and_bodies(tls: ssl.SSLContext) -> None:
    async def serve(stream: Stream) -> None:
        await stream.complete.wait()
        await stream.page(b"done")

    async with Http2Server(serve, tls) as server, http2_handler() as handler:
        body = b"x" * 300_000
        posted = await handler.download_request(Request(server.url, method="POST", body=body))
        assert posted.body == b"done"
        assert bytes(server.streams[0].body_sent) == body
        head = await handler.download_request(Request(server.url, method="HEAD"))
        assert (head.body, head.headers[b"Content-Length"]) == (b"", b"4")
        assert (await handler.download_request(Request(server.url))).body == b"done"
        assert [dict(one.fields)[b":method"] for one in server.streams] == [b"POST", b"HEAD", b"GET"]


def raw(*frames: bytes, then: Callable[[Stream], Awaitable[None]] | None = None) -> Serve:
    """Answer the first request of each connection with these bytes."""

    async def serve(stream: Stream) -> None:
        await stream.raw(*frames)
        if then is not None:
            await then(stream)

    return serve


def head(block: bytes, flags: int = END_HEADERS) -> bytes:
    return frame(HEADERS, flags, FIRST, block)


def reset(code: int) -> bytes:
    return frame(RST_STREAM, 0, FIRST, code.to_bytes(4, "big"))


def goaway(last: int, code: int) -> bytes:
    return frame(GOAWAY, 0, 0, last.to_bytes(4, "big") + code.to_bytes(4, "big"))


HALF = frame(DATA, 0, FIRST, b"half")
WHOLE = frame(DATA, END_STREAM, FIRST, b"whole")
INTERIM = head(field(b":status", b"103"))
LAST = END_HEADERS | END_STREAM

RIGHT = {
    "plain": [HEAD, WHOLE],
    "interim answers": [INTERIM, INTERIM, INTERIM, HEAD, WHOLE],
    "trailers": [HEAD, frame(DATA, 0, FIRST, b"whole"), head(field(b"x-left-out", b"1"), LAST)],
    "continued head": [frame(HEADERS, 0, FIRST, STATUS_200), frame(CONTINUATION, END_HEADERS, FIRST), WHOLE],
    "padding": [HEAD, frame(DATA, PADDED | END_STREAM, FIRST, b"\5whole" + bytes(5))],
    "reset when all is said": [HEAD, WHOLE, reset(NO_ERROR)],
    "frames that say nothing": [
        frame(UNKNOWN, 0, 0, b"?"),
        frame(PRIORITY, 0, FIRST, b"\0\0\0\0\1"),
        frame(ALTSVC, 0, 0, b"\0\x11https://localhost" + b'h2=":1"'),
        *(HEAD, WHOLE),
    ],
    # They could be taken for something else, so they are left out; the page is not.
    "fields with line ends": [
        head(
            STATUS_200
            + field(b"x-left-out", b"a\r\nX-Evil: 1")
            + field(b"x-left-out", b"a\0b")
            + field(b"x-left-out\r\nx-evil", b"1")
        ),
        WHOLE,
    ],
}


@pytest.mark.parametrize("frames", RIGHT.values(), ids=RIGHT)
@in_loop
async def test_unusual_but_right(frames: list[bytes], tls: ssl.SSLContext) -> None:
    async with Http2Server(raw(*frames), tls) as server, http2_handler() as handler:
        response = await handler.download_request(Request(server.url))
        assert (response.status, response.body) == (200, b"whole")
        assert not {b"X-Left-Out", b"X-Evil"} & set(response.headers)


@pytest.mark.parametrize("status", [200, 204, 304, 599])
@in_loop
async def test_answers_without_a_body(status: int, tls: ssl.SSLContext) -> None:
    async def serve(stream: Stream) -> None:
        await stream.head(status=status, end=True)

    async with Http2Server(serve, tls) as server, http2_handler() as handler:
        response = await handler.download_request(Request(server.url))
        assert (response.status, response.body, response.flags) == (status, b"", [])


# --- Many streams, one connection -------------------------------------------------------------------------


@asynccontextmanager
async def _with_neighbour(
    tls: ssl.SSLContext, serve: Serve, **settings: Any
) -> AsyncIterator[tuple[Http2Server, CurlDownloadHandler, Callable[[], Awaitable[None]]]]:
    """A server, a handler, and on their one connection a stream half way; the third of them lets that one end well."""
    go_on = asyncio.Event()

    async def either(stream: Stream) -> None:
        if stream.path == "/first":
            await stream.page(b"")
        elif stream.path == "/neighbour":
            await stream.head()
            await stream.body(b"half ", end=False)
            await go_on.wait()
            await stream.body(b"and half")
        else:
            await serve(stream)

    limits = {"BODY_TIMEOUT_SECONDS": LONG_SECONDS, **settings}
    async with Http2Server(either, tls) as server, http2_handler(**limits) as handler:
        await handler.download_request(Request(f"{server.url}/first"))
        download = asyncio.ensure_future(handler.download_request(Request(f"{server.url}/neighbour")))
        await until(lambda: len(server.streams) == 2)

        async def end_well() -> None:
            assert not download.done()
            go_on.set()
            assert (await download).body == b"half and half"

        try:
            yield server, handler, end_well
        finally:
            download.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await download


@in_loop
async def test_each_stream_is_asked_for_and_timed_by_itself(tls: ssl.SSLContext) -> None:
    async def serve(stream: Stream) -> None:
        head_s, body_s = map(float, stream.path.strip("/").split("-"))
        await asyncio.sleep(head_s)
        await stream.head()
        await asyncio.sleep(body_s)
        await stream.body(b"x")

    async with Http2Server(serve, tls) as server, http2_handler() as handler:
        await handler.download_request(Request(f"{server.url}/0-0"))
        stages = [(0.0, 0.0), (0.6, 0.0), (0.0, 0.6), (0.6, 0.6)]
        asked = [RecheckResult() for _ in stages]
        requests = [
            Request(f"{server.url}/{head_s}-{body_s}", meta=asking(one))
            for (head_s, body_s), one in zip(stages, asked, strict=True)
        ]

        async def seconds(request: Request) -> float:
            began = time.monotonic()
            await handler.download_request(request)
            return time.monotonic() - began

        whole = await asyncio.gather(*map(seconds, requests))
        assert len(server.connections) == 1
        assert [one.times for one in asked] == [1, 1, 1, 1]
        for request, (head_s, body_s), all_s in zip(requests, stages, whole, strict=True):
            times = request.meta["stage_times"]
            assert times["reused"] is True
            assert times["connect_s"] == times["tls_s"] == 0
            assert times["head_s"] >= head_s
            assert times["body_s"] >= body_s - 0.05
            assert times["head_s"] + times["body_s"] <= all_s, "each of its own, and counted once"


@in_loop
async def test_a_stream_held_back_or_refused_sends_nothing_and_disturbs_no_other(tls: ssl.SSLContext) -> None:
    async with _with_neighbour(tls, hello) as (server, handler, neighbour):
        held = await failure(handler, Request(server.url, meta=asking(RecheckResult(False))))
        assert isinstance(held, errors.NotSentError)
        wire = wire_of(handler.crawler)
        wire.guard.refusal = lambda _address: "moved"  # type: ignore[method-assign]
        transfer = wire.take()
        transfer.begin(Attempt(Request(server.url), wire.limits, "127.0.0.1", 1.0))
        await wire.run(transfer)
        assert isinstance(transfer.fault, errors.AddressRefusedError)
        wire.put(transfer)
        await neighbour()
        assert [one.path for one in server.streams] == ["/first", "/neighbour"]
        assert len(server.connections) == 1


@in_loop
async def test_a_server_with_few_streams_gets_more_connections(tls: ssl.SSLContext) -> None:
    async def serve(stream: Stream) -> None:
        await asyncio.sleep(0.1)
        await hello(stream)

    few = {SettingCodes.MAX_CONCURRENT_STREAMS: 2}
    async with Http2Server(serve, tls, settings=few) as server, http2_handler() as handler:
        await handler.download_request(Request(server.url))
        pages = await asyncio.gather(*(handler.download_request(Request(server.url)) for _ in range(6)))
        assert {one.body for one in pages} == {b"hello /"}
        assert len(server.connections) > 1


@in_loop
async def test_names_of_one_address_have_connections_of_their_own(tls: ssl.SSLContext) -> None:
    """A browser would send both over one connection: the certificate allows it. They are two sites."""
    zone = {"one.example": ["127.0.0.1"], "two.example": ["127.0.0.1"]}
    async with (
        Http2Server(hello, tls) as server,
        name_server(zone) as (_, where),
        http2_handler() as handler,
    ):
        wire_of(handler.crawler).names = Names(2.0, [where])
        for name in (*zone, *zone):
            await handler.download_request(Request(f"https://{name}:{server.port}/{name}"))
        assert [[one.path for one in connection.streams.values()] for connection in server.connections] == [
            ["/one.example"] * 2,
            ["/two.example"] * 2,
        ]


@pytest.mark.parametrize("http2", [False, True])
@in_loop
async def test_a_connection_with_other_tls_settings_is_not_shared(http2: bool, tmp_path: Path) -> None:
    """One made without a look at the certificate must not carry what wants it looked at."""
    tls = context_of(self_signed(tmp_path / "unknown.pem"), "h2", "http/1.1")

    async def fetch(handler: CurlDownloadHandler, url: str, *, verified: bool) -> tuple[int, float]:
        wire = wire_of(handler.crawler)
        transfer = wire.take()
        transfer.begin(Attempt(Request(url), wire.limits, "127.0.0.1", 5.0))
        if not verified:
            transfer.curl.setopt(pycurl.SSL_VERIFYPEER, 0)
        code, _ = await wire.run(transfer)
        made = transfer.curl.getinfo(pycurl.NUM_CONNECTS)
        transfer.curl.setopt(pycurl.SSL_VERIFYPEER, 1)
        transfer.end()
        wire.put(transfer)
        return code, made

    async with (
        Http2Server(hello, tls, plain=page(b"x")) as server,
        handler_with(HTTP2_ENABLED=http2) as handler,
    ):
        assert await fetch(handler, server.url, verified=False) == (0, 1)
        assert await fetch(handler, server.url, verified=False) == (0, 0)
        code, _ = await fetch(handler, server.url, verified=True)
        assert code == pycurl.E_PEER_FAILED_VERIFICATION
        assert await fetch(handler, server.url, verified=False) == (0, 0)


@in_loop
async def test_a_verified_connection_is_not_used_unverified(tls: ssl.SSLContext) -> None:
    async with Http2Server(hello, tls) as server, http2_handler() as handler:
        await handler.download_request(Request(server.url))
        wire = wire_of(handler.crawler)
        transfer = wire.take()
        transfer.begin(Attempt(Request(server.url), wire.limits, "127.0.0.1", 5.0))
        transfer.curl.setopt(pycurl.SSL_VERIFYPEER, 0)
        assert (await wire.run(transfer))[0] == 0
        assert len(server.connections) == 2
        transfer.curl.close()


# --- Limits: one stream's fault is that stream's alone ----------------------------------------------------


async def _silent(_stream: Stream) -> None:
    """No head."""


async def _half(stream: Stream) -> None:
    await stream.head()
    await stream.body(b"half", end=False)


async def _drip(stream: Stream) -> None:
    await stream.head()
    while True:
        await stream.body(b"x", end=False)
        await asyncio.sleep(0.05)


async def _head_drip(stream: Stream) -> None:
    block = STATUS_200 + field(b"x", b"y" * 200)
    for byte in frame(HEADERS, END_HEADERS, stream.number, block):
        await stream.raw(bytes([byte]))
        await asyncio.sleep(0.05)


async def _endless(stream: Stream) -> None:
    await stream.head()
    while True:
        await stream.body(bytes(LARGEST_FRAME), end=False)


async def _bomb(stream: Stream) -> None:
    await stream.head((b"content-encoding", b"gzip"))
    await stream.body(gzip.compress(bytes(30_000_000)))


async def _announced(stream: Stream) -> None:
    await stream.head((b"content-length", b"99999999999"))


async def _many_fields(stream: Stream) -> None:
    await stream.head(*[(b"x", b"1")] * 201)


async def _large_fields(stream: Stream) -> None:
    await stream.raw(
        frame(
            HEADERS,
            END_HEADERS,
            stream.number,
            STATUS_200 + field(b"x", b"y" * 700, kept=True) + b"\xbe" * 100,
        )
    )


async def _interim(stream: Stream) -> None:
    await stream.raw(frame(HEADERS, END_HEADERS, stream.number, field(b":status", b"103")) * 50)


async def _odd_status(stream: Stream) -> None:
    await stream.page(b"x", status=600)


async def _capitals(stream: Stream) -> None:
    await stream.raw(frame(HEADERS, END_HEADERS, stream.number, STATUS_200 + field(b"X-Capitals", b"1")))


async def _reset(stream: Stream) -> None:
    await stream.reset(INTERNAL_ERROR)


async def _reset_half_way(stream: Stream) -> None:
    await _half(stream)
    await stream.reset(INTERNAL_ERROR)


@pytest.mark.parametrize(
    ("serve", "kind"),
    [
        (_silent, errors.HeadTimeoutError),
        (_half, errors.BodyTimeoutError),
        (_drip, errors.BodyTimeoutError),
        (_endless, errors.TooLargeError),
        (_bomb, errors.TooLargeError),
        (_announced, errors.TooLargeError),
        (_many_fields, errors.HeaderLimitError),
        (_large_fields, errors.HeaderLimitError),
        (_interim, errors.HeaderLimitError),
        (_odd_status, errors.MalformedResponseError),
        (_capitals, errors.MalformedResponseError),
        (_reset, errors.ConnectionLostError),
        (_reset_half_way, ResponseDataLossError),
    ],
)
@in_loop
async def test_one_stream_fails_and_its_neighbour_does_not(
    serve: Serve, kind: type[Exception], tls: ssl.SSLContext
) -> None:
    async with _with_neighbour(tls, serve) as (server, handler, neighbour):
        error = await failure(handler, Request(f"{server.url}/bad", meta={"download_timeout": 0.6}))
        assert type(error) is kind
        assert (await handler.download_request(Request(f"{server.url}/first"))).status == 200
        await neighbour()
        assert len(server.connections) == 1


@in_loop
async def test_a_head_that_drips_in(tls: ssl.SSLContext) -> None:
    async with Http2Server(_head_drip, tls) as server, http2_handler(HEAD_TIMEOUT_SECONDS=0.6) as handler:
        assert type(await failure(handler, Request(server.url))) is errors.HeadTimeoutError


@in_loop
async def test_a_server_that_falls_silent_after_the_handshake(tls: ssl.SSLContext) -> None:
    async def serve(exchange: Any) -> None:
        await exchange.reader.read(-1)

    async with RawServer(serve, tls=tls) as server, http2_handler(HEAD_TIMEOUT_SECONDS=0.6) as handler:
        assert type(await failure(handler, Request(server.url))) is errors.HeadTimeoutError


@pytest.mark.parametrize("early", ["cancelled", "stopped"])
@in_loop
async def test_a_stream_that_we_end_is_told_so_and_its_neighbour_goes_on(
    early: str, tls: ssl.SSLContext
) -> None:
    def stop(**_told: Any) -> None:
        raise StopDownload(fail=False)

    async with _with_neighbour(tls, _half) as (server, handler, neighbour):
        if early == "stopped":
            handler.crawler.signals.connect(stop, signals.headers_received)
            response = await handler.download_request(Request(f"{server.url}/bad"))
            assert response.flags == ["download_stopped"]
        else:
            task = asyncio.ensure_future(handler.download_request(Request(f"{server.url}/bad")))
            await until(lambda: len(server.streams) == 3)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        number = server.streams[2].number
        await until(lambda: number in server.connections[0].resets)
        await neighbour()


# --- Faults -----------------------------------------------------------------------------------------------


async def _close(stream: Stream) -> None:
    stream.connection.writer.close()


async def _abort(stream: Stream) -> None:
    stream.connection.writer.transport.abort()


LENGTH_9 = field(b"content-length", b"9")

# What each fault is to the crawl: the same as it is for HTTP/1.1.
LOST, MALFORMED, LOSS = errors.ConnectionLostError, errors.MalformedResponseError, ResponseDataLossError
FAULTS = {
    "stream reset": (raw(reset(INTERNAL_ERROR)), LOST),
    "stream closed": (raw(reset(NO_ERROR)), LOST),
    "stream reset, too many": (raw(reset(ENHANCE_YOUR_CALM)), LOST),
    "connection closed": (raw(then=_close), LOST),
    "connection cut": (raw(then=_abort), LOST),
    "goaway with error": (raw(goaway(FIRST, ENHANCE_YOUR_CALM), then=_close), LOST),
    "goaway with error, unread": (raw(goaway(0, ENHANCE_YOUR_CALM), then=_close), LOST),
    "head, stream reset": (raw(HEAD, reset(INTERNAL_ERROR)), LOSS),
    "half, refused": (raw(HEAD, HALF, reset(REFUSED_STREAM)), LOSS),
    "half, closed": (raw(HEAD, HALF, then=_close), LOSS),
    "half, cut": (raw(HEAD, HALF, then=_abort), LOSS),
    "half, goaway": (raw(HEAD, HALF, goaway(FIRST, INTERNAL_ERROR), then=_close), LOSS),
    "half of the length, stream closed": (raw(head(STATUS_200 + LENGTH_9), HALF, reset(NO_ERROR)), LOSS),
    "shorter than its length": (raw(head(STATUS_200 + LENGTH_9), WHOLE), LOSS),
    "longer than its length": (raw(head(STATUS_200 + field(b"content-length", b"2")), WHOLE), LOSS),
    "204 with a body": (raw(head(field(b":status", b"204")), WHOLE), LOSS),
    "trailers that are not the end": (raw(HEAD, HALF, head(field(b"x", b"1"))), LOSS),
    "status in trailers": (raw(HEAD, HALF, head(STATUS_200, LAST)), LOSS),
    "length of a frame, half way": (raw(HEAD, frame(DATA, 0, FIRST, b"x", length=0xFFFFFF)), LOSS),
    "length no number": (raw(head(STATUS_200 + field(b"content-length", b"two")), WHOLE), MALFORMED),
    "two lengths": (raw(head(STATUS_200 + LENGTH_9 + field(b"content-length", b"8")), WHOLE), MALFORMED),
    "capitals": (raw(head(STATUS_200 + field(b"X-Capitals", b"1")), WHOLE), MALFORMED),
    "connection field": (raw(head(STATUS_200 + field(b"connection", b"close")), WHOLE), MALFORMED),
    "chunked": (raw(head(STATUS_200 + field(b"transfer-encoding", b"chunked")), WHOLE), MALFORMED),
    "no status": (raw(head(field(b"x", b"1")), WHOLE), MALFORMED),
    "two statuses": (raw(head(STATUS_200 * 2), WHOLE), MALFORMED),
    "status 99": (raw(head(field(b":status", b"99")), WHOLE), MALFORMED),
    "status 101": (raw(head(field(b":status", b"101")), WHOLE), MALFORMED),
    "a request's field": (raw(head(STATUS_200 + field(b":path", b"/")), WHOLE), MALFORMED),
    "no HPACK": (raw(head(b"\xff" * 5)), MALFORMED),
    "body before head": (raw(WHOLE), MALFORMED),
    "body of no stream": (raw(frame(DATA, 0, 0, b"x")), MALFORMED),
    "head of a stream of the server's": (raw(frame(HEADERS, END_HEADERS, 2, STATUS_200)), MALFORMED),
    "continuation of nothing": (raw(frame(CONTINUATION, END_HEADERS, FIRST, STATUS_200)), MALFORMED),
    "head broken off": (raw(frame(HEADERS, 0, FIRST, STATUS_200), WHOLE), MALFORMED),
    "frame above the limit": (raw(frame(DATA, 0, FIRST, bytes(LARGEST_FRAME + 1))), MALFORMED),
    "settings of odd length": (raw(frame(SETTINGS, 0, 0, b"odd")), MALFORMED),
    "settings acknowledged unasked": (raw(frame(SETTINGS, ACK, 0)), MALFORMED),
    "settings that allow push": (raw(frame(SETTINGS, 0, 0, b"\0\2\0\0\0\1")), MALFORMED),
    "window moved by nothing": (raw(frame(WINDOW_UPDATE, 0, 0, bytes(4))), MALFORMED),
    "window above the limit": (raw(frame(WINDOW_UPDATE, 0, FIRST, b"\x7f\xff\xff\xff") * 2), MALFORMED),
    "push": (raw(frame(PUSH_PROMISE, END_HEADERS, FIRST, b"\0\0\0\2\x82\x87\x84")), MALFORMED),
    "HTTP/1.1": (raw(page(b"x"), then=_close), MALFORMED),
}


@pytest.mark.parametrize(("serve", "kind"), FAULTS.values(), ids=FAULTS)
@in_loop
async def test_faults(serve: Serve, kind: type[Exception], tls: ssl.SSLContext) -> None:
    limits = {"HEAD_TIMEOUT_SECONDS": LONG_SECONDS, "BODY_TIMEOUT_SECONDS": LONG_SECONDS}
    async with Http2Server(serve, tls) as server, http2_handler(**limits) as handler:
        asked = RecheckResult()
        error = await failure(handler, Request(server.url, meta=asking(asked)))
        assert type(error) is kind
        assert server.url in str(error)
        assert asked.times == len(server.streams) == 1


@in_loop
async def test_a_connection_that_fails_ends_all_its_streams(tls: ssl.SSLContext) -> None:
    """Libcurl tells one of them; the others must not wait until they are late."""

    async def serve(stream: Stream) -> None:
        if stream.path == "/bad":
            await stream.raw(frame(DATA, 0, 0, b"x"))
        else:
            await _half(stream)

    limits = {"HEAD_TIMEOUT_SECONDS": LONG_SECONDS, "BODY_TIMEOUT_SECONDS": LONG_SECONDS}
    async with Http2Server(serve, tls) as server, http2_handler(**limits) as handler:
        await failure(handler, Request(f"{server.url}/", meta={"download_timeout": 0.1}))
        waiting = [asyncio.ensure_future(failure(handler, Request(f"{server.url}/{n}"))) for n in range(5)]
        await until(lambda: len(server.streams) == 6)
        first = await failure(handler, Request(f"{server.url}/bad"))
        assert isinstance(first, (errors.MalformedResponseError, errors.ConnectionLostError))
        ends = await asyncio.gather(*waiting)
        assert {type(one) for one in ends} == {ResponseDataLossError}
        assert len(server.connections) == 1


# --- Sent again -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "refusal", [reset(REFUSED_STREAM), goaway(0, NO_ERROR)], ids=["stream", "connection"]
)
@in_loop
async def test_a_request_that_is_refused_unread_is_sent_once_more_and_no_more(
    refusal: bytes, tls: ssl.SSLContext
) -> None:
    async def refuse_first(stream: Stream) -> None:
        if len(stream.connection.server.streams) == 1:
            await stream.raw(refusal)
        else:
            await hello(stream)

    async with Http2Server(refuse_first, tls) as server, http2_handler() as handler:
        asked = RecheckResult()
        response = await handler.download_request(Request(server.url, meta=asking(asked)))
        assert response.body == b"hello /"
        assert asked.times == len(server.streams) == 2
    async with Http2Server(raw(refusal), tls) as server, http2_handler() as handler:
        asked = RecheckResult()
        error = await failure(handler, Request(server.url, meta=asking(asked)))
        assert isinstance(error, errors.ConnectionLostError)
        assert "sent 2 times" in str(error)
        assert asked.times == len(server.streams) == 2


@in_loop
async def test_streams_above_the_last_that_a_goaway_names_are_sent_again(tls: ssl.SSLContext) -> None:
    async def serve(stream: Stream) -> None:
        if len(stream.connection.server.connections) > 1:
            await stream.page(b"second")
        elif len(stream.connection.streams) == 4:
            low = sorted(stream.connection.streams)[1]
            await stream.raw(goaway(low, NO_ERROR))
            await stream.raw(
                frame(HEADERS, END_HEADERS, low, STATUS_200), frame(DATA, END_STREAM, low, b"first")
            )
        elif stream.path == "/warm":
            await stream.page(b"")

    async with Http2Server(serve, tls) as server, http2_handler() as handler:
        await handler.download_request(Request(f"{server.url}/warm"))
        pages = await asyncio.gather(*(handler.download_request(Request(server.url)) for _ in range(3)))
        assert sorted(one.body for one in pages) == [b"first", b"second", b"second"]


@pytest.mark.parametrize("before", [[], [HEAD, HALF]], ids=["at once", "half way"])
@in_loop
async def test_a_server_that_wants_http_1_1_gets_it(before: list[bytes], tls: ssl.SSLContext) -> None:
    """What came before is no part of the page."""
    plain = page(b"whole", b"X-Second: 1")

    serve = raw(*before, reset(HTTP_1_1_REQUIRED))
    async with Http2Server(serve, tls, plain=plain) as server, http2_handler() as handler:
        asked = RecheckResult()
        response = await handler.download_request(Request(server.url, meta=asking(asked)))
        assert (response.body, response.protocol) == (b"whole", "HTTP/1.1")
        assert dict(response.headers) == {b"Content-Length": [b"5"], b"X-Second": [b"1"]}
        assert server.protocols == ["h2", "http/1.1"]
        assert asked.times == 2


# --- Floods, from another process -------------------------------------------------------------------------


class Watch:
    """What this process needed meanwhile: seconds of CPU, and bytes of memory at most."""

    async def __aenter__(self) -> Watch:
        self._memory = self._resident()
        self._most = self._memory
        self._cpu = time.process_time()
        self._task = asyncio.ensure_future(self._look())
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._task.cancel()
        self.cpu_s = time.process_time() - self._cpu
        self.memory = max(self._most, self._resident()) - self._memory

    async def _look(self) -> None:
        while True:
            self._most = max(self._most, self._resident())
            await asyncio.sleep(0.002)

    @staticmethod
    def _resident() -> int:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * resource.getpagesize()


MAX_SIZE = 5_000_000


@pytest.mark.parametrize(
    ("scene", "kind"),
    [
        ("endless body", errors.TooLargeError),
        ("gzip bomb", errors.TooLargeError),
        ("body byte by byte", errors.TooLargeError),
        ("empty DATA", ResponseDataLossError),
        ("PING", errors.MalformedResponseError),
        ("PING, answers left", errors.MalformedResponseError),
        ("SETTINGS", errors.MalformedResponseError),
        ("SETTINGS, answers left", errors.MalformedResponseError),
        ("PRIORITY", ResponseDataLossError),
        ("RST_STREAM", ResponseDataLossError),
        ("unknown frames", ResponseDataLossError),
        ("CONTINUATION", errors.MalformedResponseError),
        ("empty CONTINUATION", errors.MalformedResponseError),
        ("HPACK bomb", errors.HeaderLimitError),
        ("HPACK bomb of empty fields", errors.HeaderLimitError),
        ("103", errors.HeaderLimitError),
    ],
)
def test_floods_that_end_at_once(scene: str, kind: type[Exception], certificate: Path) -> None:
    used = _flooded(scene, kind, certificate, DOWNLOAD_MAXSIZE=MAX_SIZE)
    assert used.memory < 4 * MAX_SIZE
    # All others take a tenth at most of what the body byte by byte takes: a second on the machine that was measured.
    if scene == "body byte by byte":
        small = _flooded(scene, kind, certificate, DOWNLOAD_MAXSIZE=MAX_SIZE // 4)
        assert used.cpu_s < STEEP * max(FLOOR_SECONDS, small.cpu_s)
    else:
        assert used.cpu_s < _byte_by_byte(certificate)


_dearest: list[float] = []


def _byte_by_byte(certificate: Path) -> float:
    """Processor seconds, measured once."""
    if not _dearest:
        used = _flooded("body byte by byte", errors.TooLargeError, certificate, DOWNLOAD_MAXSIZE=MAX_SIZE)
        _dearest.append(used.cpu_s)
    return _dearest[0]


@pytest.mark.parametrize("scene", ["WINDOW_UPDATE, connection", "WINDOW_UPDATE, stream", "DATA of padding"])
def test_floods_that_end_when_they_are_late(scene: str, certificate: Path) -> None:
    used = _flooded(scene, errors.BodyTimeoutError, certificate, BODY_TIMEOUT_SECONDS=0.5)
    assert used.memory < MAX_SIZE


def _flooded(scene: str, kind: type[Exception], certificate: Path, **settings: Any) -> Watch:
    @in_loop
    async def fetch() -> None:
        async with http2_handler(**settings) as handler:
            await failure(handler, Request("https://localhost:1/"))
            async with watch:
                assert type(await failure(handler, Request(url))) is kind

    watch = Watch()
    with in_process(certificate, scene) as port:
        url = f"https://localhost:{port}/"
        fetch()
    return watch
