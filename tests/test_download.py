"""The download handler against real servers that behave well, badly, or not at all."""

from __future__ import annotations

import asyncio
import gc
import gzip
import ipaddress
import os
import ssl
import subprocess
import sys
import time
import warnings
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from weakref import ref

import brotli
import pytest
from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import (
    CannotResolveHostError,
    DownloadCancelledError,
    DownloadConnectionRefusedError,
    DownloadFailedError,
    DownloadTimeoutError,
    IgnoreRequest,
    ResponseDataLossError,
    StopDownload,
    UnsupportedURLSchemeError,
)
from scrapy.http import Response
from scrapy.utils.test import get_crawler

from crawler import options
from crawler.agent.requests import RequestContext
from crawler.agent.scrapy_parts import ForeignHandlers
from crawler.fetch import errors
from crawler.fetch.context import KEY
from crawler.fetch.dns import Names
from crawler.fetch.handler import CurlDownloadHandler
from crawler.fetch.transfer import Attempt
from crawler.fetch.wire import wire_of
from settings import base
from tests.certificates import context_of, self_signed
from tests.raw_server import (
    Exchange,
    RawServer,
    Serve,
    answer,
    hang_up_after,
    in_loop,
    name_server,
    page,
    repeat_after,
    reset_after,
    stay_silent_after,
    until,
)

if TYPE_CHECKING:
    pass

HEAD = b"HTTP/1.1 200 OK\r\n"
SHORT = {"CONNECT_TIMEOUT_SECONDS": 0.6, "HEAD_TIMEOUT_SECONDS": 0.6, "BODY_TIMEOUT_SECONDS": 0.6}


def crawler_with(**settings: Any) -> Crawler:
    given = {name: getattr(base, name) for name in options.NAMES}
    given.update(DOWNLOAD_MAXSIZE=100_000, DOWNLOAD_VERIFY_CERTIFICATES=True)
    given.update({"ALLOW_PRIVATE_ADDRESSES": "127.0.0.0/8"} | settings)
    return get_crawler(settings_dict=given)


@asynccontextmanager
async def handler_with(**settings: Any) -> AsyncIterator[CurlDownloadHandler]:
    handler = CurlDownloadHandler.from_crawler(crawler_with(**settings))
    try:
        yield handler
    finally:
        await handler.close()


async def failure(handler: CurlDownloadHandler, request: Request) -> BaseException:
    with pytest.raises(Exception) as caught:
        await handler.download_request(request)
    return caught.value


# --- Requests and answers ---------------------------------------------------------------------------------


@in_loop
async def test_a_page_and_all_that_is_known_of_it() -> None:
    fields = (b"content-type: text/html; charset=euc-kr", b"X-Two: a", b"x-two:  b ")
    body = "<p>\ubb3c\ub54c".encode("euc-kr")
    async with RawServer(answer(page(body, *fields))) as server, handler_with() as handler:
        request = Request(f"{server.url}/a?b=c")
        response = await handler.download_request(request)
    assert (response.status, response.body, response.url) == (200, body, request.url)
    assert response.headers.getlist("X-Two") == [b"a", b"b"]
    assert response.headers[b"Content-Type"] == b"text/html; charset=euc-kr"
    assert response.css("p::text").get() == "\ubb3c\ub54c"
    assert response.ip_address == ipaddress.ip_address("127.0.0.1")
    assert response.protocol == "HTTP/1.1"
    assert response.certificate is None
    assert response.flags == []
    times = request.meta["stage_times"]
    assert times["reused"] is False
    assert 0 < times["connect_s"] < 1
    assert times["tls_s"] == 0
    assert request.meta["download_latency"] >= times["name_s"] + times["connect_s"] + times["head_s"]
    assert "encoded" not in request.meta


@in_loop
async def test_the_request_goes_out_as_it_was_made() -> None:
    async with RawServer(answer(page(b""))) as server, handler_with() as handler:
        headers = {"User-Agent": "lowtide", "X-Empty": "", "X-Latin": b"\xe9", "Accept-Encoding": "gzip"}
        await handler.download_request(Request(f"{server.url}/a/../b?x=%2f", headers=headers))
        expected = (
            b"GET /a/../b?x=%2f HTTP/1.1\r\nHost: localhost:{}\r\nUser-Agent: lowtide\r\nX-Empty:\r\n"
            b"X-Latin: \xe9\r\nAccept-Encoding: gzip\r\n\r\n"
        ).replace(b"{}", str(server.port).encode())
        assert server.requests == [expected]


@pytest.mark.parametrize(
    ("url", "meta", "target"),
    [
        ("/%2fa%2F?%3f#x", {}, b"/%2fa%2F?%3f"),
        ("/%c3%A9", {}, b"/%c3%A9"),
        ("/%C3%A9", {}, b"/%C3%A9"),
        ("?q=1", {}, b"/?q=1"),
        ("?q=%2f", {"verbatim_url": True}, b"/?q=%2f"),
        ("/a b\t[x]|{y}%zz", {"verbatim_url": True}, b"/a%20b%09[x]|{y}%zz"),
        ("/\u00e9", {"verbatim_url": True}, b"/%C3%A9"),
    ],
)
@in_loop
async def test_the_path_is_not_rewritten(url: str, meta: dict[str, Any], target: bytes) -> None:
    async with RawServer(answer(page(b""))) as server, handler_with() as handler:
        await handler.download_request(Request(server.url + url, meta=meta))
        assert server.requests[0].split(b" ")[1] == target
        # The pooled handle forgets the target.
        await handler.download_request(Request(f"{server.url}/next"))
        assert server.requests[1].split(b" ")[1] == b"/next"


@in_loop
async def test_a_header_value_cannot_add_headers() -> None:
    async with RawServer(answer(page(b""))) as server, handler_with() as handler:
        await handler.download_request(Request(server.url, headers={"Referer": "a\r\nX-Evil: 1\0"}))
        assert b"\r\nReferer: aX-Evil: 1\r\n" in server.requests[0]


@pytest.mark.parametrize("size", [5, 99_999_999_999])
@in_loop
async def test_head_has_no_body_and_no_size_limit(size: int) -> None:
    reply = HEAD + b"Content-Length: %d\r\nContent-Encoding: gzip\r\n\r\n" % size
    async with RawServer(answer(reply)) as server, handler_with() as handler:
        response = await handler.download_request(Request(server.url, method="HEAD"))
        assert server.requests[0].startswith(b"HEAD / HTTP/1.1\r\n")
    assert response.body == b""
    assert response.headers[b"Content-Length"] == b"%d" % size
    assert response.headers[b"Content-Encoding"] == b"gzip"


@pytest.mark.parametrize(
    ("method", "body"),
    [
        ("POST", b"a\0b"),
        ("POST", b""),
        ("PUT", b"x" * 300_000),
        ("PATCH", b"p"),
        ("DELETE", b""),
        ("OPTIONS", b""),
        ("GET", b"q"),
    ],
)
@in_loop
async def test_methods_and_bodies(method: str, body: bytes) -> None:
    async with RawServer(answer(page(b"done"))) as server, handler_with() as handler:
        request = Request(server.url, method=method, body=body, headers={"X-Own": "1"})
        assert (await handler.download_request(request)).body == b"done"
        assert (await handler.download_request(Request(server.url))).body == b"done"
        first, second = server.requests
        lines = first.partition(b"\r\n\r\n")[0].split(b"\r\n")
        assert lines[0] == method.encode() + b" / HTTP/1.1"
        assert first.endswith(b"\r\n\r\n" + body)
        assert not {line.split(b":")[0].lower() for line in lines[1:]} & {b"expect", b"content-type"}
        assert second.startswith(b"GET / HTTP/1.1\r\n")
        assert b"content-length" not in second.lower()
        assert len(server.peers) == 1


@in_loop
async def test_connections_are_kept_and_shared_by_http_and_https_handlers() -> None:
    crawler = crawler_with()
    first, second = CurlDownloadHandler.from_crawler(crawler), CurlDownloadHandler.from_crawler(crawler)
    async with RawServer(answer(page(b"x"))) as server:
        for turn in range(20):
            request = Request(f"{server.url}/{turn}")
            await (first if turn % 2 else second).download_request(request)
        assert len(server.peers) == 1
        assert request.meta["stage_times"]["reused"] is True
        assert request.meta["stage_times"]["connect_s"] == request.meta["stage_times"]["tls_s"] == 0
        pages = await asyncio.gather(*(first.download_request(Request(server.url)) for _ in range(30)))
        assert {one.body for one in pages} == {b"x"}
        assert len(server.peers) <= 30
        await first.close()
        await first.close()
        assert (await second.download_request(Request(server.url))).body == b"x"
        await second.close()
        await until(lambda: server.ended == len(server.peers))
        assert isinstance(await failure(second, Request(server.url)), DownloadCancelledError)


@in_loop
async def test_a_connection_that_the_server_closed_meanwhile_is_made_anew() -> None:
    async with RawServer(hang_up_after(page(b"x"))) as server, handler_with() as handler:
        for _ in range(3):
            assert (await handler.download_request(Request(server.url))).body == b"x"
            await until(lambda: server.ended == len(server.peers))
        assert len(server.peers) == 3


@pytest.mark.parametrize(
    ("reply", "body"),
    [
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nX-A: 1\r\n\r\n" + page(b"x"), b"x"),
        (b"HTTP/1.1 200 OK\nContent-Length: 1\nX-Fold: a\n b\n\nx", b"x"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 9\r\n\r\n1\r\nx\r\n0\r\nX-T: 1\r\n\r\n",
            b"x",
        ),
        (b"HTTP/1.1 200\r\nContent-Length: 1\r\n\r\nx", b"x"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\nContent-Encoding: gzip\r\n\r\n", b""),
        (b"HTTP/1.1 599 Own\r\nContent-Length: 1\r\n\r\nx", b"x"),
    ],
)
@in_loop
async def test_unusual_but_right(reply: bytes, body: bytes) -> None:
    async with RawServer(answer(reply)) as server, handler_with() as handler:
        for _ in range(2):
            response = await handler.download_request(Request(server.url))
            assert response.body == body
            assert b"X-A" not in response.headers
            assert b"X-T" not in response.headers
            assert response.headers.get(b"X-Fold") == (b"a b" if b"X-Fold" in reply else None)
        assert len(server.peers) == 1


@in_loop
async def test_http_1_0_ends_with_the_connection() -> None:
    async with RawServer(hang_up_after(b"HTTP/1.0 200 OK\r\n\r\nold")) as server, handler_with() as handler:
        response = await handler.download_request(Request(server.url))
    assert (response.body, response.protocol) == (b"old", "HTTP/1.0")


@in_loop
async def test_redirects_are_not_followed() -> None:
    reply = page(b"", b"Location: http://10.1.2.3/", status=b"302 Found")
    async with RawServer(answer(reply)) as server, handler_with() as handler:
        response = await handler.download_request(Request(server.url))
        assert response.status == 302
        refused = await failure(handler, Request(response.headers[b"Location"].decode()))
        assert isinstance(refused, errors.AddressRefusedError)


@in_loop
async def test_a_bind_address_is_used() -> None:
    async with RawServer(answer(page(b""))) as server:
        async with handler_with(DOWNLOAD_BIND_ADDRESS="127.0.0.3") as handler:
            await handler.download_request(Request(server.url))
            await handler.download_request(Request(server.url, meta={"bindaddress": ("127.0.0.4", 0)}))
            await handler.download_request(Request(server.url, meta={"bindaddress": "127.0.0.5"}))
        assert server.peers == ["127.0.0.3", "127.0.0.4", "127.0.0.5"]


@pytest.mark.parametrize(
    "url", ["ftp://localhost/", "file:///etc/hosts", "http:///nohost", "http://user:secret@localhost:1/"]
)
@in_loop
async def test_what_is_no_page_of_the_web(url: str) -> None:
    async with handler_with() as handler:
        error = await failure(handler, Request(url))
        assert isinstance(error, UnsupportedURLSchemeError)
        assert not isinstance(error, DownloadFailedError)


# --- Bodies -----------------------------------------------------------------------------------------------

TEXT = b"tide " * 2000
# Without the time of day: the names of the cases are made of the bytes.
GZIP = gzip.compress(TEXT, mtime=0)
# Of a body that begins with "half" and a half.
CUT_GZIP = gzip.compress(b"half", compresslevel=0, mtime=0)[:-9]
CODED = [
    (b"gzip", GZIP),
    (b"x-gzip", GZIP),
    (b"br", brotli.compress(TEXT)),
    (b"deflate", zlib.compress(TEXT)),
    (b"deflate", zlib.compress(TEXT, wbits=-15)),
    (b"gzip, br", brotli.compress(GZIP)),
]


@pytest.mark.parametrize(("encoding", "wire"), CODED)
@in_loop
async def test_bodies_are_decoded(encoding: bytes, wire: bytes) -> None:
    reply = page(wire, b"Content-Encoding: " + encoding, b"Content-Type: text/plain")
    async with RawServer(answer(reply)) as server, handler_with() as handler:
        request = Request(server.url)
        response = await handler.download_request(request)
        assert b"accept-encoding: gzip, deflate, br\r\n" in server.requests[0].lower()
    assert response.body == TEXT
    assert b"Content-Encoding" not in response.headers
    assert b"Content-Length" not in response.headers
    assert request.meta["encoded"] == (encoding.decode(), len(wire))


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        ("gzip", b"gzip"),
        ("identity", b"identity"),
        ("X-GZip;q=0.5, br", b"X-GZip;q=0.5, br"),
        ("gzip, deflate, br, zstd", b"gzip, deflate, br"),
        (["gzip", "zstd"], b"gzip, deflate, br"),
        ("*", b"gzip, deflate, br"),
    ],
)
@in_loop
async def test_no_encoding_is_asked_for_that_cannot_be_decoded(asked: Any, sent: bytes) -> None:
    async with RawServer(answer(page(b""))) as server, handler_with() as handler:
        request = Request(server.url, headers={"Accept-Encoding": asked})
        await handler.download_request(request)
        lines = server.requests[0].split(b"\r\n")
        assert [line for line in lines if line.startswith(b"Accept-Encoding:")] == [
            b"Accept-Encoding: " + sent
        ]
        # The request does not say what was not sent.
        assert request.headers.get(b"Accept-Encoding") in (None, sent)


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("encoding", [b"zstd", b"utf-8", b"gzip", b"br"])
@in_loop
async def test_what_is_in_no_encoding_comes_as_it_is(encoding: bytes, method: str) -> None:
    reply = page(b"plain or whatever", b"Content-Encoding: " + encoding)
    async with RawServer(answer(reply)) as server, handler_with() as handler:
        request = Request(server.url, method=method, meta={"encoded": ("gzip", 1), "decoding_error": "old"})
        response = await handler.download_request(request)
        assert len(server.requests) == 1
    assert response.body == b"plain or whatever"
    assert response.headers[b"Content-Encoding"] == encoding
    assert response.flags == ["not_decoded"]
    assert request.meta.keys().isdisjoint({"encoded", "decoding_error"})


@in_loop
async def test_a_wrong_sum_is_told() -> None:
    wire = GZIP[:-8] + b"\1\2\3\4" + GZIP[-4:]
    async with RawServer(answer(page(wire, b"Content-Encoding: gzip"))) as server, handler_with() as handler:
        request = Request(server.url)
        response = await handler.download_request(request)
    assert (response.body, response.flags) == (TEXT, [])
    assert request.meta["decoding_error"] == "its gzip has a wrong checksum"
    assert request.meta["encoded"] == ("gzip", len(wire))


@pytest.mark.parametrize("status", [b"301 Moved", b"307 Temporary Redirect"])
@pytest.mark.parametrize("body", [b"", b"<p>moved"])
@in_loop
async def test_of_two_locations_the_first_counts(status: bytes, body: bytes) -> None:
    reply = page(body, b"location:  /one", b"X-A: b", b"Location: /two", status=status)
    async with RawServer(answer(reply)) as server, handler_with() as handler:
        for _ in range(2):
            response = await handler.download_request(Request(server.url))
            assert response.status == int(status[:3])
            assert response.headers.getlist(b"Location") == [b"/one"]


@pytest.mark.parametrize("fields", [(b"gzip, gzip, gzip",), (b"gzip", b"gzip", b"gzip")])
@in_loop
async def test_three_layers_are_refused(fields: tuple[bytes, ...]) -> None:
    wire = gzip.compress(gzip.compress(gzip.compress(TEXT)))
    reply = page(wire, *(b"Content-Encoding: " + one for one in fields))
    async with RawServer(answer(reply)) as server, handler_with() as handler:
        error = await failure(handler, Request(server.url))
    assert isinstance(error, errors.MalformedResponseError)
    assert "at most 2 layers" in str(error)


# Made once for every process that collects these tests, in their fastest way.
GZIP_BOMB = gzip.compress(bytes(30_000_000), compresslevel=1)
BROTLI_BOMB = brotli.compress(bytes(30_000_000), quality=1)


@pytest.mark.parametrize(
    "serve",
    [
        answer(page(GZIP_BOMB, b"Content-Encoding: gzip")),
        answer(page(BROTLI_BOMB, b"Content-Encoding: br")),
        answer(page(bytes(100_001))),
        stay_silent_after(HEAD + b"Content-Length: 99999999999\r\n\r\n"),
        repeat_after(HEAD + b"\r\n", bytes(10_000)),
        repeat_after(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"3e8\r\n" + bytes(1000) + b"\r\n"),
    ],
    ids=["gzip bomb", "brotli bomb", "one byte more", "announced", "endless", "endless chunks"],
)
@in_loop
async def test_bodies_above_the_limit(serve: Serve) -> None:
    async with RawServer(serve) as server, handler_with() as handler:
        error = await failure(handler, Request(server.url))
    assert isinstance(error, errors.TooLargeError)
    assert "at most 100000 bytes (DOWNLOAD_MAXSIZE)" in str(error)
    assert server.url in str(error)


@in_loop
async def test_a_request_has_its_own_sizes(caplog: pytest.LogCaptureFixture) -> None:
    async with RawServer(answer(page(bytes(5000)))) as server, handler_with() as handler:
        error = await failure(handler, Request(server.url, meta={"download_maxsize": 4999}))
        assert isinstance(error, errors.TooLargeError)
        assert "download_maxsize" in str(error)
        big = Request(server.url, meta={"download_maxsize": 0, "download_warnsize": 4999})
        assert len((await handler.download_request(big)).body) == 5000
        assert "download warn size (4999)" in caplog.text


def robots_request(url: str) -> Request:
    """A request for robots.txt, as the agent makes it for a slot; the handler has no use for the slot."""
    return Request(url, meta={KEY: RequestContext(lambda: True, lease=cast("Any", None))})


@pytest.mark.parametrize(
    "serve",
    [
        answer(page(GZIP_BOMB, b"Content-Encoding: gzip")),
        answer(page(BROTLI_BOMB, b"Content-Encoding: br")),
        answer(page(bytes(300_000))),
        repeat_after(HEAD + b"Content-Length: 99999999999\r\n\r\n", bytes(10_000)),
        repeat_after(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"3e8\r\n" + bytes(1000) + b"\r\n"),
    ],
    ids=["gzip bomb", "brotli bomb", "longer", "announced", "endless chunks"],
)
@pytest.mark.parametrize("most", [1, 200_000])
@in_loop
async def test_a_robots_txt_is_cut_off(serve: Serve, most: int) -> None:
    """Below DOWNLOAD_MAXSIZE and above it, which is for pages."""
    async with RawServer(serve) as server, handler_with(ROBOTS_MAX_BYTES=most) as handler:
        response = await handler.download_request(robots_request(server.url))
        assert response.flags == ["cut_off"]
        assert most < len(response.body) < most + 200_000
        assert response.body.strip(b"\0") == b""
        # The pooled handle forgets it.
        assert isinstance(await failure(handler, Request(server.url)), errors.TooLargeError)


@pytest.mark.parametrize("size", [0, 4999, 5000])
@in_loop
async def test_a_robots_txt_of_the_size_that_is_read_is_whole(size: int) -> None:
    async with RawServer(answer(page(bytes(size)))) as server, handler_with(ROBOTS_MAX_BYTES=5000) as handler:
        response = await handler.download_request(robots_request(server.url))
        assert (len(response.body), response.flags) == (size, [])
        assert len(server.peers) == 1


# --- Heads ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "serve",
    [
        repeat_after(HEAD, b"X-Field: value\r\n"),
        repeat_after(HEAD + b"X-Line: ", b"y" * 1000),
        answer(HEAD, b"A: 1\r\n" * 201, b"\r\n"),
        answer(HEAD, (b"A: " + b"a" * 700 + b"\r\n") * 100, b"\r\n"),
        repeat_after(HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n", b"X-Trailer: 1\r\n"),
        repeat_after(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        repeat_after(b"", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"),
    ],
    ids=["endless fields", "endless line", "201 fields", "70 kB", "endless trailers", "100s", "103s"],
)
@in_loop
async def test_heads_above_the_limits(serve: Serve) -> None:
    async with RawServer(serve) as server, handler_with() as handler:
        error = await failure(handler, Request(server.url))
    assert isinstance(error, errors.HeaderLimitError)
    assert server.url in str(error)


@in_loop
async def test_heads_at_the_limits_pass() -> None:
    reply = HEAD + b"A: 1\r\n" * 199 + b"Content-Length: 0\r\n\r\n"
    async with RawServer(answer(reply)) as server, handler_with() as handler:
        assert (await handler.download_request(Request(server.url))).status == 200


@pytest.mark.parametrize(
    "reply",
    [
        b"hello there, no HTTP here\r\n\r\n",
        b"HTTP/1.1 9999 Odd\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 600 Odd\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        HEAD + b"no colon\r\nContent-Length: 0\r\n\r\n",
        HEAD + b"X: a\0b\r\nContent-Length: 0\r\n\r\n",
        HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: one\r\n\r\n",
    ],
)
@in_loop
async def test_malformed_answers(reply: bytes) -> None:
    async with RawServer(answer(reply)) as server, handler_with() as handler:
        error = await failure(handler, Request(server.url))
    assert isinstance(error, errors.MalformedResponseError)
    assert errors.status_code_of(error) == -12


# --- Time -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("serve", "kind"),
    [
        (stay_silent_after(), errors.HeadTimeoutError),
        (repeat_after(HEAD, b"A: 1\r\n", 0.05), errors.HeadTimeoutError),
        (repeat_after(HEAD + b"X: ", b"y", 0.05), errors.HeadTimeoutError),
        (stay_silent_after(HEAD + b"Content-Length: 9\r\n\r\n"), errors.BodyTimeoutError),
        (repeat_after(HEAD + b"Content-Length: 999\r\n\r\n", b"y", 0.05), errors.BodyTimeoutError),
        (
            repeat_after(HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;", b"x" * 9999, 0.01),
            errors.BodyTimeoutError,
        ),
    ],
    ids=["silent head", "head drip", "line drip", "silent body", "body drip", "endless chunk extension"],
)
@in_loop
async def test_stages_that_are_late(serve: Serve, kind: type[Exception]) -> None:
    async with RawServer(serve) as server, handler_with(**SHORT) as handler:
        started, request = time.monotonic(), Request(server.url)
        error = await failure(handler, request)
        assert type(error) is kind
        assert time.monotonic() - started >= 0.6
        assert "within 0.6 s (" in str(error)
        await until(lambda: server.ended == 1)
        times = request.meta["stage_times"]
        assert times["connect_s"] > 0
        assert times["body_s"] is None
        assert (times["head_s"] is None) == (kind is errors.HeadTimeoutError)


async def _listen_only(exchange: Exchange) -> None:
    await exchange.reader.read(-1)


@in_loop
async def test_a_server_that_never_speaks_tls_is_no_connection() -> None:
    async with RawServer(_listen_only) as server, handler_with(**SHORT) as handler:
        started, request = time.monotonic(), Request(f"https://localhost:{server.port}/")
        error = await failure(handler, request)
        assert type(error) is errors.ConnectTimeoutError
        assert time.monotonic() - started >= 0.5
        assert "(CONNECT_TIMEOUT_SECONDS)" in str(error)
        assert request.meta["stage_times"]["connect_s"] is None


@in_loop
async def test_a_request_caps_each_stage() -> None:
    async with RawServer(stay_silent_after()) as server, handler_with() as handler:
        error = await failure(handler, Request(server.url, meta={"download_timeout": 0.3}))
        assert isinstance(error, errors.HeadTimeoutError)
        assert "within 0.3 s (download_timeout)" in str(error)
        longer = {"download_timeout": 180}
        assert wire_of(handler.crawler).limits.narrowed(longer).head.seconds == base.HEAD_TIMEOUT_SECONDS


@in_loop
async def test_scrapys_one_limit_caps_each_stage() -> None:
    async with RawServer(stay_silent_after()) as server, handler_with(DOWNLOAD_TIMEOUT=0.3) as handler:
        error = await failure(handler, Request(server.url))
        assert isinstance(error, errors.HeadTimeoutError)
        assert "within 0.3 s (DOWNLOAD_TIMEOUT)" in str(error)


@pytest.mark.parametrize(
    ("setting", "of_spider", "seconds"),
    [(0, None, (15, 10, 20)), (180, None, (15, 10, 20)), (12, None, (12, 10, 12)), (12, 5, (5, 5, 5))],
)
def test_scrapys_one_limit_and_the_stages(
    setting: float, of_spider: float | None, seconds: tuple[float, ...]
) -> None:
    crawler = crawler_with(DOWNLOAD_TIMEOUT=setting)
    crawler.spider = Spider("slow") if of_spider is None else Spider("slow", download_timeout=of_spider)
    wire = wire_of(crawler)
    assert (wire.limits.connect.seconds, wire.limits.head.seconds, wire.limits.body.seconds) == seconds


@in_loop
async def test_slow_but_within_each_stage() -> None:
    async def serve(exchange: Exchange) -> None:
        await exchange.request()
        for part in (HEAD, b"Content-Length: 2\r\n\r\n", b"o", b"k"):
            await asyncio.sleep(0.5)
            await exchange.send(part)
        await exchange.reader.read()

    async with (
        RawServer(serve) as server,
        handler_with(HEAD_TIMEOUT_SECONDS=1.6, BODY_TIMEOUT_SECONDS=1.6) as handler,
    ):
        request, began = Request(server.url), time.monotonic()
        assert (await handler.download_request(request)).body == b"ok"
        seconds = time.monotonic() - began
    times = request.meta["stage_times"]
    assert min(times["head_s"], times["body_s"]) > 0.9
    assert times["head_s"] + times["body_s"] <= seconds


# --- Lost connections -------------------------------------------------------------------------------------


@in_loop
async def test_nobody_listens() -> None:
    async with RawServer(answer(b"")) as server:
        url = server.url
    async with handler_with() as handler:
        error = await failure(handler, Request(url))
    assert isinstance(error, DownloadConnectionRefusedError)
    assert url in str(error)
    assert "127.0.0.1" in str(error)


@pytest.mark.parametrize("serve", [reset_after(), hang_up_after(), reset_after(HEAD), hang_up_after(HEAD)])
@in_loop
async def test_lost_before_the_head(serve: Serve) -> None:
    async with RawServer(serve) as server, handler_with() as handler:
        error = await failure(handler, Request(server.url))
    assert isinstance(error, errors.ConnectionLostError)
    assert errors.status_code_of(error) == -6


@pytest.mark.parametrize(
    "serve",
    [
        hang_up_after(HEAD + b"Content-Length: 9\r\n\r\nhalf"),
        reset_after(HEAD + b"Content-Length: 9\r\n\r\nhalf"),
        hang_up_after(HEAD + b"Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n"),
        hang_up_after(HEAD + b"Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\nzz\r\n"),
        hang_up_after(HEAD + b"Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n" + b"1" * 18 + b"\r\n"),
        hang_up_after(HEAD + b"Connection: close\r\nContent-Encoding: gzip\r\n\r\n" + CUT_GZIP),
        hang_up_after(HEAD + b"Content-Length: 9999\r\nContent-Encoding: gzip\r\n\r\n" + CUT_GZIP),
        answer(page(CUT_GZIP, b"Content-Encoding: gzip")),
    ],
    ids=[
        "short",
        "reset",
        "chunks cut",
        "bad chunk size",
        "long chunk size",
        "gzip cut",
        "both",
        "gzip cut before",
    ],
)
@in_loop
async def test_lost_in_the_body(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    async with RawServer(serve) as server, handler_with() as handler:
        for _ in range(2):
            error = await failure(handler, Request(server.url))
            assert isinstance(error, ResponseDataLossError)
        assert caplog.text.count("Got data loss") == 1
        kept = Request(server.url, meta={"download_fail_on_dataloss": False})
        response = await handler.download_request(kept)
        assert response.flags == ["dataloss"]
        assert b"half".startswith(response.body)
    async with RawServer(serve) as server, handler_with(DOWNLOAD_FAIL_ON_DATALOSS=False) as handler:
        assert (await handler.download_request(Request(server.url))).flags == ["dataloss"]


# --- The guard --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "10.1.2.3",
        "169.254.169.254",
        "[::1]",
        "[::ffff:10.1.2.3]",
        "[fd00::1]",
        "0x0a.1",
        "167838211",
        "[64:ff9b::10.1.2.3]",
    ],
)
@in_loop
async def test_private_hosts_are_refused_for_good(host: str) -> None:
    async with handler_with() as handler:
        error = await failure(handler, Request(f"http://{host}/"))
    assert isinstance(error, errors.AddressRefusedError)
    assert isinstance(error, IgnoreRequest)
    assert not isinstance(error, DownloadFailedError)
    assert "ALLOW_PRIVATE_ADDRESSES" in str(error)


@in_loop
async def test_names_are_judged_by_their_addresses() -> None:
    zone = {"inside.example": ["10.9.8.7"], "both.example": ["10.9.8.7", "127.0.0.1"]}
    async with (
        RawServer(answer(page(b"x"))) as server,
        name_server(zone) as (_, where),
        handler_with() as handler,
    ):
        wire_of(handler.crawler).names = Names(2.0, [where])
        error = await failure(handler, Request("http://inside.example/"))
        assert isinstance(error, errors.AddressRefusedError)
        assert "10.9.8.7 is private" in str(error)
        response = await handler.download_request(Request(f"http://both.example:{server.port}/"))
        assert str(response.ip_address) == "127.0.0.1"
        missing = await failure(handler, Request("http://gone.example/"))
        assert isinstance(missing, CannotResolveHostError)


@in_loop
async def test_the_guard_stands_at_the_socket_too() -> None:
    async with RawServer(answer(page(b"x"))) as server, handler_with() as handler:
        wire = wire_of(handler.crawler)
        request = Request(server.url, meta={"stage_times": {}})
        # As if the name had been judged while it still pointed elsewhere.
        wire.guard.refusal = lambda _address: "moved"  # type: ignore[method-assign]
        transfer = wire.take()
        transfer.begin(Attempt(request, wire.limits, "127.0.0.1", 1.0))
        code, _ = await wire.run(transfer)
        assert code
        assert isinstance(transfer.fault, errors.AddressRefusedError)
        assert server.peers == []
        wire.put(transfer)


@in_loop
async def test_the_guard_is_asked_again_for_a_kept_connection() -> None:
    async with RawServer(answer(page(b"x"))) as server, handler_with() as handler:
        wire = wire_of(handler.crawler)
        await handler.download_request(Request(server.url))
        wire.guard.refusal = lambda _address: "moved"  # type: ignore[method-assign]
        transfer = wire.take()
        transfer.begin(Attempt(Request(server.url), wire.limits, "127.0.0.1", 1.0))
        await wire.run(transfer)
        assert isinstance(transfer.fault, errors.AddressRefusedError)
        assert len(server.requests) == 1
        wire.put(transfer)


def test_a_setting_that_cannot_be_read_fails_at_start() -> None:
    crawler = crawler_with()
    crawler.settings.frozen = False
    crawler.settings.set("ALLOW_PRIVATE_ADDRESSES", "localhost", "cmdline")
    with pytest.raises(ValueError, match="ALLOW_PRIVATE_ADDRESSES holds 'localhost'"):
        CurlDownloadHandler.from_crawler(crawler)


# --- Several addresses ------------------------------------------------------------------------------------


@in_loop
async def test_the_next_address_is_tried_and_remembered() -> None:
    zone = {"two.example": ["127.0.0.1", "127.0.0.2"]}
    async with name_server(zone) as (_, where), handler_with() as handler:
        names = wire_of(handler.crawler).names = Names(2.0, [where])
        dead, alive = await names.resolve("two.example")
        async with RawServer(answer(page(b"x")), host=alive) as server:
            response = await handler.download_request(Request(f"http://two.example:{server.port}/"))
            assert str(response.ip_address) == alive
            assert server.requests[0].split(b"\r\n")[1] == f"Host: two.example:{server.port}".encode()
            assert await names.resolve("two.example") == [alive, dead]
        refused = await failure(handler, Request(f"http://two.example:{server.port}/"))
        assert isinstance(refused, DownloadConnectionRefusedError)


@in_loop
async def test_every_address_is_tried() -> None:
    zone = {"many.example": [f"127.0.0.{number}" for number in range(2, 18)]}
    async with name_server(zone) as (_, where), handler_with() as handler:
        names = wire_of(handler.crawler).names = Names(2.0, [where])
        last = (await names.resolve("many.example"))[-1]
        async with RawServer(answer(page(b"x")), host=last) as server:
            response = await handler.download_request(Request(f"http://many.example:{server.port}/"))
            assert str(response.ip_address) == last


@in_loop
async def test_every_address_has_a_share_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them makes a handshake; each is waited for, and together no longer than the limit."""
    monkeypatch.setattr("crawler.fetch.handler.LEAST_SECONDS", 0.05)
    zone = {"many.example": [f"127.0.0.{number}" for number in range(2, 10)]}
    async with name_server(zone) as (_, where), handler_with(**SHORT) as handler:
        wire_of(handler.crawler).names = Names(2.0, [where])
        async with RawServer(_listen_only, host="0.0.0.0") as server:
            error = await failure(handler, Request(f"https://many.example:{server.port}/"))
            assert isinstance(error, errors.ConnectTimeoutError)
            assert len(server.peers) == 8


@in_loop
async def test_addresses_share_the_connect_limit() -> None:
    zone = {"two.example": ["127.0.0.1", "127.0.0.2"]}
    async with name_server(zone) as (_, where), handler_with(**SHORT) as handler:
        wire_of(handler.crawler).names = Names(2.0, [where])
        async with RawServer(_listen_only, host="0.0.0.0") as server:
            error = await failure(handler, Request(f"https://two.example:{server.port}/"))
            assert isinstance(error, errors.ConnectTimeoutError)
            assert len(server.peers) == 2


# --- TLS --------------------------------------------------------------------------------------------------


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate for `localhost` that nobody signed, with its key, in one file."""
    return self_signed(tmp_path / "certificate.pem")


@in_loop
async def test_certificates_are_checked(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with RawServer(answer(page(b"x")), tls=context_of(certificate)) as server:
        async with handler_with() as handler:
            error = await failure(handler, Request(server.url))
            assert isinstance(error, errors.TlsError)
            assert "self-signed certificate" in str(error)
        async with handler_with(DOWNLOAD_VERIFY_CERTIFICATES=False) as handler:
            assert (await handler.download_request(Request(server.url))).body == b"x"
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        async with handler_with() as handler:
            request = Request(server.url, meta={"want_certificate": True})
            response = await handler.download_request(request)
            assert response.body == b"x"
            assert request.meta["stage_times"]["tls_s"] > 0
            assert isinstance(response.certificate, dict)
            assert "lowtide test" in response.certificate["Subject"]
            wrong = await failure(handler, Request(server.url.replace("localhost", "127.0.0.1")))
            assert isinstance(wrong, errors.TlsError)


@in_loop
async def test_a_certificate_that_has_expired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = self_signed(tmp_path / "old.pem", ends_in_days=-1)
    monkeypatch.setenv("SSL_CERT_FILE", str(old))
    async with RawServer(answer(page(b"x")), tls=context_of(old)) as server, handler_with() as handler:
        error = await failure(handler, Request(server.url))
        assert isinstance(error, errors.TlsError)
        assert "expired" in str(error)
        assert server.requests == []


@in_loop
async def test_a_server_that_speaks_old_tls_alone(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = context_of(certificate)
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1
    async with RawServer(answer(page(b"x")), tls=context) as server, handler_with() as handler:
        error = await failure(handler, Request(server.url))
        assert isinstance(error, errors.TlsError)
        assert server.requests == []


@in_loop
async def test_a_server_that_speaks_no_tls() -> None:
    async with RawServer(hang_up_after(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as server:

        async def shout(exchange: Exchange) -> None:
            await exchange.reader.read(10)
            await exchange.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        server._serve = shout
        async with handler_with() as handler:
            error = await failure(handler, Request(f"https://localhost:{server.port}/"))
    assert isinstance(error, errors.TlsError)


# --- Ends that come early ---------------------------------------------------------------------------------


@in_loop
async def test_cancelling_ends_the_transfer() -> None:
    async with RawServer(stay_silent_after(HEAD)) as server, handler_with() as handler:
        tasks = [asyncio.ensure_future(handler.download_request(Request(server.url))) for _ in range(20)]
        await until(lambda: len(server.requests) == 20)
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in ends)
        await until(lambda: server.ended == 20)
        async with RawServer(answer(page(b"x"))) as other:
            assert (await handler.download_request(Request(other.url))).body == b"x"


@in_loop
async def test_closing_ends_what_is_under_way() -> None:
    zone: dict[str, list[str]] = {}
    mute = frozenset(["slow.example"])
    async with RawServer(stay_silent_after()) as server, name_server(zone, mute=mute) as (asked, where):
        async with handler_with() as handler:
            wire_of(handler.crawler).names = Names(9.0, [where])
            urls = [server.url] * 5 + ["http://slow.example/"]
            tasks = [asyncio.ensure_future(handler.download_request(Request(url))) for url in urls]
            await until(lambda: len(server.requests) == 5 and bool(asked.asked))
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(one) for one in ends] == [DownloadCancelledError] * 5 + [CannotResolveHostError]
        await until(lambda: server.ended == 5)


@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize("signal", ["headers_received", "bytes_received"])
@in_loop
async def test_receivers_of_signals_can_stop_a_download(signal: str, fail: bool) -> None:
    seen: list[dict[str, Any]] = []

    def receiver(**told: Any) -> None:
        seen.append(told)
        raise StopDownload(fail=fail)

    serve = stay_silent_after(HEAD + b"Content-Length: 90\r\nX-A: 1\r\n\r\n" + b"first part")
    async with RawServer(serve) as server, handler_with() as handler:
        handler.crawler.signals.connect(receiver, getattr(signals, signal))
        request = Request(server.url)
        if fail:
            error = await failure(handler, request)
            assert isinstance(error, StopDownload)
            response = error.response
        else:
            response = await handler.download_request(request)
        assert isinstance(response, Response)
        assert response.flags == ["download_stopped"]
        assert response.headers[b"X-A"] == b"1"
        assert seen[0]["request"] is request
        if signal == "headers_received":
            assert (response.body, seen[0]["body_length"]) == (b"", 90)
            assert seen[0]["headers"][b"X-A"] == b"1"
        else:
            assert response.body == seen[0]["data"] == b"first part"
        await until(lambda: server.ended == 1)
        handler.crawler.signals.disconnect(receiver, getattr(signals, signal))
        async with RawServer(answer(page(b"whole"))) as other:
            assert (await handler.download_request(Request(other.url))).body == b"whole"
        assert len(seen) == 1


# --- Proxies ----------------------------------------------------------------------------------------------


async def _tunnel(exchange: Exchange) -> None:
    """A proxy that connects to the port that is asked for, on loopback, and passes bytes both ways."""
    line = (await exchange.request()).split(b"\r\n")[0]
    port = int(line.split(b" ")[1].rpartition(b":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await exchange.send(b"HTTP/1.1 200 Connected\r\nX-Proxy: 1\r\n\r\n")

    async def pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            sink.write(data)

    try:
        await asyncio.gather(pass_on(exchange.reader, writer), pass_on(reader, exchange.writer))
    finally:
        writer.transport.abort()


@in_loop
async def test_a_proxy_is_asked_for_the_whole_url() -> None:
    async with RawServer(answer(page(b"by proxy"))) as proxy, handler_with() as handler:
        meta = {"proxy": proxy.url}
        request = Request(
            "http://127.0.0.9:81/%2fa#f", meta=meta, headers={"Proxy-Authorization": "Basic eA==", "X-A": "1"}
        )
        response = await handler.download_request(request)
        assert response.body == b"by proxy"
        first = proxy.requests[0]
        assert first.startswith(b"GET http://127.0.0.9:81/%2fa HTTP/1.1\r\nHost: 127.0.0.9:81\r\n")
        assert first.count(b"Proxy-Authorization: Basic eA==\r\n") == 1
        refused = await failure(handler, Request("http://10.1.2.3/", meta=meta))
        assert isinstance(refused, errors.AddressRefusedError)
        assert len(proxy.requests) == 1
        # The pooled handle forgets the proxy.
        direct = await handler.download_request(Request(proxy.url))
        assert proxy.requests[1].startswith(b"GET / HTTP/1.1\r\n")
        assert direct.body == b"by proxy"


@in_loop
async def test_a_tunnel_keeps_the_proxys_secret(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    tls = context_of(certificate)
    origin = RawServer(answer(page(b"safe")), tls=tls)
    async with RawServer(_tunnel) as proxy, origin as server, handler_with() as handler:
        headers = {"Proxy-Authorization": "Basic eA=="}
        response = await handler.download_request(
            Request(server.url, meta={"proxy": proxy.url}, headers=headers)
        )
    assert response.body == b"safe"
    assert b"X-Proxy" not in response.headers
    assert b"Proxy-Authorization: Basic eA==" in proxy.requests[0]
    assert b"Proxy-Authorization" not in server.requests[0]


@pytest.mark.parametrize("scheme", ["http", "https"])
@in_loop
async def test_a_proxy_that_wants_a_login_is_no_answer_of_the_site(scheme: str) -> None:
    refusal = page(b"who?", b"Proxy-Authenticate: Basic realm=x", status=b"407 Proxy Authentication Required")
    async with RawServer(answer(refusal)) as proxy, handler_with() as handler:
        meta = {"proxy": f"http://me:secret@127.0.0.1:{proxy.port}"}
        error = await failure(handler, Request(f"{scheme}://127.0.0.9:81/", meta=meta))
        assert isinstance(error, errors.ProxyRefusedError)
        assert str(error).startswith(
            f"the proxy http://127.0.0.1:{proxy.port} answered 407; expected its user"
        )
        # Without a proxy it is the site's.
        assert (await handler.download_request(Request(proxy.url))).status == 407


@in_loop
async def test_a_proxy_is_the_operators_word() -> None:
    async with RawServer(answer(page(b"x"))) as proxy, handler_with(ALLOW_PRIVATE_ADDRESSES="") as handler:
        meta = {"proxy": f"127.0.0.1:{proxy.port}"}
        assert (await handler.download_request(Request("http://8.8.8.8/", meta=meta))).body == b"x"


@pytest.mark.parametrize(
    "proxy", ["http://me:secret@127.0.0.1:99999", "ftp://127.0.0.1:9", "http://a b:9", "//"]
)
@in_loop
async def test_a_proxy_that_is_none_is_told(proxy: str) -> None:
    async with handler_with() as handler:
        error = await failure(handler, Request("http://127.0.0.1:9/", meta={"proxy": proxy}))
    assert isinstance(error, UnsupportedURLSchemeError)
    assert proxy.rpartition("@")[2] in str(error)
    assert "is no proxy; expected SCHEME://HOST:PORT" in str(error)
    assert "secret" not in str(error)


@in_loop
async def test_the_environments_proxy_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with RawServer(answer(page(b"x"))) as server, handler_with() as handler:
        assert (await handler.download_request(Request(server.url))).body == b"x"


# --- Another's handler ------------------------------------------------------------------------------------

STOCK = dict.fromkeys(("http", "https"), "scrapy.core.downloader.handlers.http11.HTTP11DownloadHandler")


@asynccontextmanager
async def foreign_with(**settings: Any) -> AsyncIterator[ForeignHandlers]:
    middleware = ForeignHandlers.from_crawler(crawler_with(DOWNLOAD_HANDLERS=STOCK, **settings))
    try:
        yield middleware
    finally:
        await middleware.close()


@pytest.mark.parametrize("meta", [{}, {"proxy": "http://127.0.0.1:9"}])
@in_loop
async def test_a_private_address_is_refused_before_anothers_handler_is_asked(meta: dict[str, Any]) -> None:
    """Also where a proxy would reach it: our own handler refuses that as well."""
    async with foreign_with() as middleware:
        with pytest.raises(errors.AddressRefusedError):
            await middleware.process_request(Request("http://10.1.2.3/", meta=meta))


@pytest.mark.parametrize(("setting", "seconds"), [(0, 45), (5, 5), (180, 45)])
@in_loop
async def test_anothers_handler_has_one_limit_of_time(setting: float, seconds: float) -> None:
    async with foreign_with(DOWNLOAD_TIMEOUT=setting) as middleware:
        request = Request("http://127.0.0.1/")
        await middleware.process_request(request)
        assert request.meta["download_timeout"] == seconds


@pytest.mark.parametrize(("most", "found"), [(100, 5000), (9000, None), (0, None)])
@in_loop
async def test_anothers_handler_may_read_as_much_of_robots_txt(most: int, found: int | None) -> None:
    async with foreign_with(DOWNLOAD_MAXSIZE=most, ROBOTS_MAX_BYTES=5000) as middleware:
        request = robots_request("http://127.0.0.1/")
        await middleware.process_request(request)
        assert request.meta.get("download_maxsize") == found


# --- Errors and the whole crawler -------------------------------------------------------------------------


def test_a_wire_that_nobody_uses_any_more_is_let_go() -> None:
    """A crawl that fails before its engine is open never leaves it."""
    left = ref(wire_of(crawler_with()))
    gc.collect()
    assert left() is None


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CannotResolveHostError(), -1),
        (DownloadConnectionRefusedError(), -2),
        (errors.ConnectTimeoutError(), -3),
        (errors.HeadTimeoutError(), -4),
        (DownloadTimeoutError(), -4),
        (errors.BodyTimeoutError(), -5),
        (errors.ConnectionLostError(), -6),
        (errors.TlsError(), -7),
        (ResponseDataLossError(), -8),
        (errors.RobotsDeniedError(), -9),
        (errors.AddressRefusedError(), -10),
        (errors.TooLargeError(), -11),
        (errors.HeaderLimitError(), -11),
        (errors.MalformedResponseError(), -12),
        (DownloadFailedError(), -13),
        (DownloadCancelledError(), -13),
        (UnsupportedURLSchemeError(), -13),
        (ValueError(), -13),
    ],
)
def test_status_codes(error: Exception, code: int) -> None:
    assert errors.status_code_of(error) == code


CRAWL = """
import asyncio, sys
from scrapy import Request, Spider
from scrapy.crawler import AsyncCrawlerProcess
from crawler import options
from settings import base

class One(Spider):
    name = "one"
    async def start(self):
        for path in ("/a", "/b", "/c"):
            yield Request(sys.argv[1] + path, errback=self.failed)
        yield Request("http://10.1.2.3/", errback=self.failed)
    def parse(self, response):
        print("page", response.url[-2:], response.status, type(asyncio.get_running_loop()).__module__)
    def failed(self, failure):
        print("failed", type(failure.value).__name__)

settings = {name: getattr(base, name) for name in options.NAMES}
handler = "crawler.fetch.handler.CurlDownloadHandler"
settings.update(
    ALLOW_PRIVATE_ADDRESSES="127.0.0.0/8", COMPRESSION_ENABLED=False, LOG_LEVEL="ERROR", COOKIES_ENABLED=False,
    DOWNLOAD_HANDLERS={"http": handler, "https": handler, "ftp": None}, ASYNCIO_EVENT_LOOP="uvloop.Loop",
    TWISTED_REACTOR_ENABLED=sys.argv[2] == "True", TELNETCONSOLE_ENABLED=False, REMOTE_CONTROL_ENABLED=False,
)
process = AsyncCrawlerProcess(settings)
process.crawl(One)
process.start()
"""


@pytest.mark.parametrize("reactor", [True, False])
@in_loop
async def test_in_a_crawl_with_and_without_a_reactor(reactor: bool) -> None:
    async with RawServer(answer(page(b"<p>x", b"Content-Type: text/html"))) as server:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", CRAWL, server.url, str(reactor)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        )
        try:
            out, wrong = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert wrong.decode() == ""
    assert sorted(out.decode().splitlines()) == [
        "failed AddressRefusedError",
        *(f"page /{letter} 200 uvloop" for letter in "abc"),
    ]


def test_importing_the_handler_does_not_import_the_heavy_libraries() -> None:
    probe = "import sys, crawler.fetch.handler; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, check=True, text=True
    ).stdout.split()
    assert not {"numpy", "sqlalchemy", "redis", "scrapy_redis", "networkx", "numba"} & set(loaded)
