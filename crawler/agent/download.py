"""Scrapy's download handler on libcurl: one page in, one Response or one error of `crawler.agent.errors` out.

Three parts, from the inside out:
- Transfer: one pooled easy handle and the exchange it carries. Its callbacks hold the caps (header bytes and
  fields, interim answers, content encodings) and ask the guard at the socket and before every request.
- Wire: the one CurlMulti of a crawler on the running asyncio loop, shared by http and https so that there is one
  connection pool, one certificate store and one resolver. It ends transfers whose head or body is late.
- CurlDownloadHandler: Scrapy's side. Names and addresses, tries the next address when one does not connect.

Hides pycurl: its return values, its options, its error numbers. A limit of 0 in DOWNLOAD_MAXSIZE means none.
Redirects are not followed here; each hop is a request of its own and passes the guard. Bodies are decoded (gzip,
deflate, br); what cannot be decoded is fetched once more and given as it is, with the flag "not_decoded".

Reads of `request.meta`: download_timeout (caps each stage), download_maxsize, download_warnsize,
download_fail_on_dataloss, bindaddress, proxy, verbatim_url, want_certificate.
Writes: download_latency (seconds until the head was complete); encoded = (content encoding, bytes on the wire)
where a body was decoded; stage_times = name_s, connect_s, tls_s, head_s, body_s in seconds (None = the stage was
not finished) and reused: then connect_s and tls_s are 0 and say nothing about the site. Also set on failure.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import resource
import socket
import ssl
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib.util import find_spec
from ipaddress import ip_address
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit
from weakref import WeakKeyDictionary

import pycurl
from pydispatch.dispatcher import getAllReceivers, liveReceivers  # type: ignore[import-untyped]
from scrapy import signals
from scrapy.core.downloader.handlers.base import BaseDownloadHandler
from scrapy.exceptions import (
    DownloadCancelledError,
    DownloadConnectionRefusedError,
    ResponseDataLossError,
    UnsupportedURLSchemeError,
)
from scrapy.http import Headers
from scrapy.responsetypes import responsetypes
from scrapy.utils._download_handlers import (
    check_stop_download,
    get_dataloss_msg,
    get_warnsize_msg,
    normalize_bind_address,
)
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.url import add_http_if_no_scheme

from crawler import options
from crawler.agent.errors import (
    AddressRefused,
    BodyTimeout,
    ConnectionLost,
    ConnectTimeout,
    HeaderLimitExceeded,
    HeadTimeout,
    MalformedAnswer,
    TooLarge,
    error_of_libcurl,
)
from crawler.agent.guard import SETTING as GUARD_SETTING
from crawler.agent.guard import AddressGuard
from crawler.agent.names import Names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.exceptions import StopDownload
    from scrapy.http import Response

logger = logging.getLogger(__name__)

ENCODINGS: Final = "gzip, deflate, br"
# Two: a file that is itself compressed, sent compressed. More is a bomb.
MAX_ENCODINGS: Final = 2
# 100 Continue, 103 Early Hints: a few are honest, a flood is not.
MAX_INTERIM: Final = 8
# More addresses than this share too little of the connect limit each.
MAX_ADDRESSES: Final = 3
SWEEP_SECONDS: Final = 0.25
# How far behind its own connect limit libcurl may be before the sweep stops waiting for it.
CONNECT_GRACE_SECONDS: Final = 1.0
MAX_IDLE_CONNECTIONS: Final = 2000
# libcurl options that have no name in pycurl.
SUPPRESS_CONNECT_HEADERS: Final = 265
DISALLOW_USERNAME_IN_URL: Final = 278

_PROTOCOLS: Final = {1: "HTTP/1.0", 2: "HTTP/1.1", 3: "HTTP/2"}
_NOT_OURS_TO_SEND: Final = frozenset((b"Proxy-Authorization", b"Content-Length"))
# Lines that libcurl would add by itself; "Name:" keeps each of them out.
_ADDED_BY_LIBCURL: Final = (b"Accept", b"Content-Type", b"Expect", b"User-Agent")
# libcurl turns escapes in a path into upper case; a path that has others must be handed over as it is.
_LOWER_ESCAPE: Final = re.compile(r"[^?#]*%(?:[a-f][0-9A-Fa-f]|[0-9A-F][a-f])")
_PRINTABLE: Final = "".join(map(chr, range(0x21, 0x7F)))

_UNDECODABLE: Final = 61
_LINE_TOO_LONG: Final = 100
# After the head these mean that the body ended too early.
_LOSS: Final = frozenset((16, 18, 56, 92))

_NO_HEADERS: Final = Headers()


class _UndecodableError(Exception):
    """The body is not in the encoding that the head announces."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Seconds that one stage may take, and the setting or meta key they come from."""

    seconds: float
    name: str

    def capped(self, seconds: float) -> Limit:
        """The shorter of this limit and the one that the request asks for."""
        return Limit(seconds, "download_timeout") if seconds < self.seconds else self

    def __str__(self) -> str:
        return f"{self.seconds:g} s ({self.name})"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one download may take. `size` is bytes, on the wire and decoded; 0 = no limit."""

    connect: Limit
    head: Limit
    body: Limit
    header_bytes: int
    header_fields: int
    size: int
    size_name: str = "DOWNLOAD_MAXSIZE"

    @classmethod
    def of(cls, given: options.Options, size: int) -> Limits:
        """The limits that the settings mean."""
        return cls(
            Limit(given.connect_timeout_seconds, "CONNECT_TIMEOUT_SECONDS"),
            Limit(given.head_timeout_seconds, "HEAD_TIMEOUT_SECONDS"),
            Limit(given.body_timeout_seconds, "BODY_TIMEOUT_SECONDS"),
            given.max_header_bytes,
            given.max_header_fields,
            size,
        )

    def narrowed(self, meta: dict[str, Any]) -> Limits:
        """These limits as one request's meta changes them."""
        limits, seconds, size = self, meta.get("download_timeout"), meta.get("download_maxsize")
        if seconds:
            stages = self.connect.capped(seconds), self.head.capped(seconds), self.body.capped(seconds)
            limits = replace(limits, connect=stages[0], head=stages[1], body=stages[2])
        if size is not None:
            limits = replace(limits, size=size, size_name="download_maxsize")
        return limits


@dataclass(slots=True)
class Attempt:
    """One try to fetch one request from one address.

    `address` is None where a proxy makes the connection. `proxy_entry` ("host:port:address") spares libcurl the
    look-up of the proxy. `raw` leaves the body undecoded.
    """

    request: Request
    limits: Limits
    address: str | None
    connect_s: float
    proxy: str | None = None
    proxy_entry: str = ""
    raw: bool = False


class Transfer:
    """One pooled easy handle and the exchange it is carrying.

    An exception must not leave a callback (pycurl prints it and goes on), so callbacks keep it in `fault`, and
    return what makes libcurl give up.
    """

    def __init__(self, crawler: Crawler, guard: AddressGuard, fixed: Iterable[tuple[int, Any]]) -> None:
        self.curl: Any = pycurl.Curl()
        self.future: asyncio.Future[tuple[int, str]]
        self.attempt: Attempt
        self._crawler = crawler
        self._guard = guard
        self._fixed = (
            *fixed,
            (pycurl.OPENSOCKETFUNCTION, self._on_open_socket),
            (pycurl.PREREQFUNCTION, self._on_connected),
            (pycurl.HEADERFUNCTION, self._on_header),
        )
        self._chunks: list[bytes] = []
        self._set_up()

    def begin(self, attempt: Attempt) -> None:
        """Ready the handle for this attempt; UnsupportedURLSchemeError for a URL that cannot be sent."""
        self.attempt = attempt
        self._forget()
        if self._marked:
            self.curl.reset()
            self._set_up()
        request, limits = attempt.request, attempt.limits
        self.deadline = monotonic() + attempt.connect_s + CONNECT_GRACE_SECONDS
        self._byte_room, self._field_room = limits.header_bytes, limits.header_fields
        self._hears_head = _listened_to(self._crawler, signals.headers_received)
        self._set_url(request)
        self.curl.setopt(pycurl.CONNECTTIMEOUT_MS, max(1, int(attempt.connect_s * 1000)))
        if request.method != "GET" or request.body:
            self._set_method(request)
        self._set_changed(attempt)
        self._set_unusual(attempt)

    def end(self) -> None:
        """Let go of everything that belongs to the exchange; a pooled handle must not hold a page."""
        self._forget()
        del self.attempt

    def lateness(self) -> Exception:
        """The error of a transfer that is past its deadline."""
        url, limits = self.attempt.request.url, self.attempt.limits
        if not self.sent_at:
            return self._connect_timeout()
        if not self.head_at:
            return HeadTimeout(f"{url}: connected to {self.address}, no complete head within {limits.head}")
        got = sum(map(len, self._chunks))
        return BodyTimeout(f"{url}: {got} bytes of body, not complete within {limits.body}")

    def error(self, code: int, text: str) -> Exception:
        """What libcurl's error number means for the crawl."""
        attempt, limits = self.attempt, self.attempt.limits
        if code == pycurl.E_OPERATION_TIMEDOUT:
            return self._connect_timeout()
        message = f"{attempt.request.url} ({attempt.proxy or attempt.address}): {text} (libcurl {code})"
        if code == pycurl.E_FILESIZE_EXCEEDED:
            return TooLarge(f"{message}; at most {limits.size} bytes ({limits.size_name})")
        if code == _LINE_TOO_LONG:
            return HeaderLimitExceeded(f"{message}; at most {limits.header_bytes} bytes (MAX_HEADER_BYTES)")
        if code == pycurl.E_UNSUPPORTED_PROTOCOL and self.sent_at:
            # The peer's protocol, not the URL's: an answer without a status line.
            return MalformedAnswer(message)
        return error_of_libcurl(code)(message)

    def note_times(self, started: float) -> None:
        """Write stage times and latency into the request's meta, as far as the exchange came."""
        meta = self.attempt.request.meta
        times = meta["stage_times"]
        if self.sent_at:
            reused = not self.curl.getinfo(pycurl.NUM_CONNECTS)
            connect_s = 0.0 if reused else self.curl.getinfo(pycurl.CONNECT_TIME_T) / 1e6
            ready_s = 0.0 if reused else self.curl.getinfo(pycurl.APPCONNECT_TIME_T) / 1e6
            times.update(reused=reused, connect_s=connect_s, tls_s=max(0.0, ready_s - connect_s))
        if self.head_at:
            times["head_s"] = self.head_at - self.sent_at
            meta["download_latency"] = self.head_at - started
            if self.done_at:
                times["body_s"] = self.done_at - self.head_at

    def response(self, flags: list[str]) -> Response:
        """The Response from what has come; StopDownload if a signal's receiver stopped it and asks for that."""
        request, body = self.attempt.request, b"".join(self._chunks)
        self._account_for_decoding()
        if self.attempt.raw:
            flags = [*flags, "not_decoded"]
        kind = responsetypes.from_args(headers=self.headers, url=request.url, body=body)
        response = kind(
            url=request.url,
            status=self.status,
            body=body,
            flags=flags,
            certificate=self._certificate(),
            ip_address=_address_object(self.address) if self.address else None,
            protocol=_PROTOCOLS.get(self.curl.getinfo(pycurl.INFO_HTTP_VERSION)),
        )
        # Given to the constructor they would be copied, line by line.
        response.headers = self.headers
        return response if self.stop is None else _stopped(self.stop, response)

    # --- Setting up -----------------------------------------------------------------------------------

    def _forget(self) -> None:
        self.deadline = inf
        self.sent_at = self.head_at = self.done_at = 0.0
        self.status = self._interim = 0
        self.address = ""
        self.headers = _NO_HEADERS
        self.fault: Exception | None = None
        self.stop: StopDownload | None = None
        self._lines: list[bytes] = []
        self._chunks.clear()

    def _set_up(self) -> None:
        """All that stays the same from exchange to exchange; `reset` forgets it, so it stands in one place."""
        for option, value in self._fixed:
            self.curl.setopt(option, value)
        self.curl.setopt(pycurl.WRITEFUNCTION, self._chunks.append)
        self._marked = False
        self._address_set: str | None = None
        self._lines_set: list[bytes] = []
        self._size_set = 0

    def _mark(self, option: int, value: Any) -> None:
        """Set an option for this exchange only."""
        self._marked = True
        self.curl.setopt(option, value)

    def _set_url(self, request: Request) -> None:
        url, target = _url_and_target(request, proxied=self.attempt.proxy is not None)
        try:
            self.curl.setopt(pycurl.URL, url)
            if target:
                self._mark(pycurl.REQUEST_TARGET, target)
        except (UnicodeError, pycurl.error) as error:
            raise UnsupportedURLSchemeError(f"{request.url!r} cannot be sent: {error}") from error

    def _set_changed(self, attempt: Attempt) -> None:
        """Options that are mostly as they were: setting them anew costs more than looking."""
        lines = _header_lines(attempt.request.headers)
        if lines != self._lines_set:
            self.curl.setopt(pycurl.HTTPHEADER, lines)
            self._lines_set = lines
        # A HEAD only announces its size, which is no reason to refuse the answer.
        size = 0 if attempt.request.method == "HEAD" else attempt.limits.size
        if size != self._size_set:
            self.curl.setopt(pycurl.MAXFILESIZE_LARGE, size)
            self._size_set = size
        if attempt.address is not None and attempt.address != self._address_set:
            shown = f"[{attempt.address}]" if ":" in attempt.address else attempt.address
            self.curl.setopt(pycurl.CONNECT_TO, [f"::{shown}:"])
            self._address_set = attempt.address

    def _set_method(self, request: Request) -> None:
        if request.method == "HEAD":
            self._mark(pycurl.NOBODY, 1)
            return
        if request.body or request.method in ("POST", "PUT", "PATCH"):
            self._mark(pycurl.POSTFIELDS, request.body)
        if request.method != "POST":
            self._mark(pycurl.CUSTOMREQUEST, request.method)

    def _set_unusual(self, attempt: Attempt) -> None:
        meta = attempt.request.meta
        if attempt.raw:
            self._mark(pycurl.HTTP_CONTENT_DECODING, 0)
        if attempt.proxy is not None:
            self._set_proxy(attempt, attempt.proxy)
        if meta.get("bindaddress"):
            for option, value in _bind_options(meta["bindaddress"]):
                self._mark(option, value)
        if meta.get("want_certificate"):
            # libcurl has the certificate only where it made the handshake.
            self._mark(pycurl.OPT_CERTINFO, 1)
            self._mark(pycurl.FRESH_CONNECT, 1)
        if _listened_to(self._crawler, signals.bytes_received):
            self._mark(pycurl.WRITEFUNCTION, self._on_body)

    def _set_proxy(self, attempt: Attempt, proxy: str) -> None:
        if self._address_set is not None:
            self.curl.unsetopt(pycurl.CONNECT_TO)
        self._mark(pycurl.PROXY, proxy)
        self._mark(SUPPRESS_CONNECT_HEADERS, 1)
        self._mark(pycurl.HEADEROPT, pycurl.HEADER_SEPARATE)
        secret = attempt.request.headers.get(b"Proxy-Authorization")
        if secret:
            self._mark(pycurl.PROXYHEADER, [_header_line(b"Proxy-Authorization", secret)])
        if attempt.proxy_entry:
            # "+": the entry may grow old like any other, so a proxy that moves is found again.
            self._mark(pycurl.RESOLVE, [f"+{attempt.proxy_entry}"])

    # --- libcurl's callbacks --------------------------------------------------------------------------

    def _on_open_socket(self, _purpose: int, peer: Any) -> int:
        try:
            if self._refused(peer.addr[0]):
                return int(pycurl.SOCKET_BAD)
            return socket.socket(peer.family, peer.socktype, peer.protocol).detach()
        except Exception as error:
            self.fault = error
            return int(pycurl.SOCKET_BAD)

    def _on_connected(self, address: str, *_rest: object) -> int:
        """A connection, new or reused, is about to carry the request."""
        if self._refused(address):
            return int(pycurl.PREREQFUNC_ABORT)
        self.address = address
        self.sent_at = monotonic()
        self.deadline = self.sent_at + self.attempt.limits.head.seconds
        return int(pycurl.PREREQFUNC_OK)

    def _on_header(self, line: bytes) -> int | None:
        self._byte_room -= len(line)
        if line in (b"\r\n", b"\n"):
            return None if self.head_at else self._on_blank_line()
        self._field_room -= 1
        # The status line is no field.
        if self._byte_room < 0 or self._field_room < -1:
            return self._refuse(self._header_excess())
        self._lines.append(line)
        return None

    def _on_blank_line(self) -> int | None:
        status = _status_in(self._lines[0]) if self._lines else 0
        url = self.attempt.request.url
        if 100 <= status < 200 and status != 101:
            self._interim += 1
            self._lines.clear()
            if self._interim > MAX_INTERIM:
                return self._refuse(HeaderLimitExceeded(f"{url}: over {MAX_INTERIM} interim answers"))
            return None
        if not 200 <= status <= 599:
            return self._refuse(MalformedAnswer(f"{url}: status {status}; wanted 200 to 599"))
        return self._on_head(status)

    def _on_head(self, status: int) -> int | None:
        self.status = status
        self.head_at = monotonic()
        self.deadline = self.head_at + self.attempt.limits.body.seconds
        self.headers = _parsed(self._lines[1:])
        encodings = self._encodings()
        if encodings.count(",") >= MAX_ENCODINGS:
            url = self.attempt.request.url
            return self._refuse(
                MalformedAnswer(f"{url}: encoded {encodings}; at most {MAX_ENCODINGS} layers")
            )
        return self._tell_head() if self._hears_head else None

    def _on_body(self, data: bytes) -> int | None:
        self._chunks.append(data)
        return self._tell(signals.bytes_received, data=data)

    def _tell_head(self) -> int | None:
        announced = self.headers.get(b"Content-Length") or b""
        length = int(announced) if announced.isdigit() else None
        return self._tell(signals.headers_received, headers=self.headers, body_length=length)

    def _tell(self, signal: object, **told: Any) -> int | None:
        try:
            self.stop = check_stop_download(signal, self._crawler, self.attempt.request, **told)
        except Exception as error:
            return self._refuse(error)
        return None if self.stop is None else 0

    def _refuse(self, fault: Exception) -> int:
        self.fault = fault
        return 0

    def _refused(self, address: str) -> bool:
        """Whether the guard forbids the address; a proxy is the operator's word and is not judged."""
        if self.attempt.proxy is not None:
            return False
        reason = self._guard.refusal(address)
        if reason is not None:
            self.fault = _refusal(self.attempt.request.url, address, reason)
        return reason is not None

    # --- From what came -------------------------------------------------------------------------------

    def _connect_timeout(self) -> ConnectTimeout:
        attempt, limit = self.attempt, self.attempt.limits.connect
        peer = attempt.proxy or attempt.address
        return ConnectTimeout(
            f"{attempt.request.url}: no connection to {peer} within {attempt.connect_s:.3g} s ({limit.name})"
        )

    def _header_excess(self) -> HeaderLimitExceeded:
        limits = self.attempt.limits
        return HeaderLimitExceeded(
            f"{self.attempt.request.url}: response head above {limits.header_bytes} bytes (MAX_HEADER_BYTES) "
            f"or {limits.header_fields} fields (MAX_HEADER_FIELDS)"
        )

    def _encodings(self) -> str:
        values: list[bytes] = dict.get(self.headers, b"Content-Encoding", [])
        return b",".join(values).decode("latin-1")

    def _account_for_decoding(self) -> None:
        """A decoded body's headers must not say that it is encoded; what they said is kept in meta."""
        encodings = self._encodings()
        bodiless = self.attempt.request.method == "HEAD" or self.status in (204, 304)
        if not encodings or bodiless or self.attempt.raw:
            return
        self.attempt.request.meta["encoded"] = (encodings, self.curl.getinfo(pycurl.SIZE_DOWNLOAD_T))
        self.headers.pop(b"Content-Encoding")
        self.headers.pop(b"Content-Length", None)

    def _certificate(self) -> dict[str, str] | None:
        if not self.attempt.request.meta.get("want_certificate"):
            return None
        chain = self.curl.getinfo(pycurl.INFO_CERTINFO)
        return dict(chain[0]) if chain else None


class Wire:
    """What http and https of one crawler share: connections, certificates, names, and the loop's side of libcurl.

    Bound to the loop that runs at the first transfer. `close` ends what is under way with DownloadCancelledError.
    """

    def __init__(self, crawler: Crawler) -> None:
        given = options.read(crawler.settings)
        self.users = 0
        self.guard = AddressGuard(given.allow_private_addresses)
        self.names = Names(given.connect_timeout_seconds)
        self.limits = Limits.of(given, crawler.settings.getint("DOWNLOAD_MAXSIZE"))
        self._make = partial(Transfer, crawler, self.guard, tuple(_fixed_options(crawler)))
        self._idle: list[Transfer] = []
        self._active: dict[Any, Transfer] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = self._due = inf
        self._sweeper: asyncio.TimerHandle | None = None
        self._watched: dict[int, int] = {}
        self._news = False

    def take(self) -> Transfer:
        """A transfer from the pool, or a new one; DownloadCancelledError after `close`."""
        if self._closed:
            raise DownloadCancelledError("the download handler is closed")
        return self._idle.pop() if self._idle else self._make()

    def put(self, transfer: Transfer) -> None:
        """Give a transfer back to the pool."""
        if self._closed:
            transfer.curl.close()
        else:
            self._idle.append(transfer)

    async def run(self, transfer: Transfer) -> tuple[int, str]:
        """Carry out a transfer that was begun; libcurl's code (0 = done) and words.

        Raises HeadTimeout, BodyTimeout, DownloadCancelledError. Cancelling the caller ends the transfer.
        """
        loop = self._open()
        transfer.future = loop.create_future()
        self._active[transfer.curl] = transfer
        try:
            self._multi.add_handle(transfer.curl)
            if self._sweeper is None:
                self._sweeper = loop.call_later(SWEEP_SECONDS, self._sweep)
            return await transfer.future
        finally:
            self._remove(transfer)

    async def close(self) -> None:
        """End all transfers and look-ups, close all connections. May be called twice."""
        if self._closed:
            return
        self._closed = True
        await self.names.close()
        for transfer in list(self._active.values()):
            url = transfer.attempt.request.url
            self._end(transfer, DownloadCancelledError(f"{url}: the crawl ended during the download"))
        for timer in (self._timer, self._sweeper):
            if timer is not None:
                timer.cancel()
        for transfer in self._idle:
            transfer.curl.close()
        self._idle.clear()
        if self._loop is not None:
            self._multi.close()

    def _open(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._multi: Any = pycurl.CurlMulti()
            self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._on_socket)
            self._multi.setopt(pycurl.M_TIMERFUNCTION, self._on_timer)
            self._multi.setopt(pycurl.M_NOTIFYFUNCTION, self._on_news)
            self._multi.notify_enable(pycurl.M_NOTIFY_INFO_READ)
            self._multi.setopt(pycurl.M_MAXCONNECTS, _idle_connections())
        return self._loop

    def _remove(self, transfer: Transfer) -> None:
        if self._active.pop(transfer.curl, None) is not None:
            self._multi.remove_handle(transfer.curl)

    def _end(self, transfer: Transfer, error: Exception) -> None:
        self._remove(transfer)
        if not transfer.future.done():
            transfer.future.set_exception(error)

    def _sweep(self) -> None:
        now = monotonic()
        for transfer in [one for one in self._active.values() if one.deadline < now]:
            self._end(transfer, transfer.lateness())
        assert self._loop is not None
        self._sweeper = self._loop.call_later(SWEEP_SECONDS, self._sweep) if self._active else None

    # --- libcurl's side of the loop -------------------------------------------------------------------

    def _act(self, fd: int, mask: int) -> None:
        self._multi.socket_action(fd, mask)
        if self._news:
            self._read_news()

    def _read_news(self) -> None:
        self._news = False
        left = 1
        while left:
            left, done, failed = self._multi.info_read()
            for curl in done:
                self._settle(curl, 0, "")
            for curl, code, text in failed:
                self._settle(curl, code, text)

    def _settle(self, curl: Any, code: int, text: str) -> None:
        transfer = self._active.get(curl)
        if transfer is None:
            return
        self._remove(transfer)
        if code == 0:
            transfer.done_at = monotonic()
        if not transfer.future.done():
            transfer.future.set_result((code, text))

    def _on_news(self, *_what: object) -> None:
        self._news = True

    def _on_socket(self, mask: int, fd: int, _multi: object, _data: object) -> None:
        """Watch a socket as libcurl wants; the loop is told of changes only."""
        wanted = 0 if mask == pycurl.POLL_REMOVE else mask
        had = self._watched.pop(fd, 0)
        if wanted:
            self._watched[fd] = wanted
        loop, changed = self._loop, wanted ^ had
        assert loop is not None
        if changed & pycurl.POLL_IN:
            if wanted & pycurl.POLL_IN:
                loop.add_reader(fd, self._act, fd, pycurl.CSELECT_IN)
            else:
                loop.remove_reader(fd)
        if changed & pycurl.POLL_OUT:
            if wanted & pycurl.POLL_OUT:
                loop.add_writer(fd, self._act, fd, pycurl.CSELECT_OUT)
            else:
                loop.remove_writer(fd)

    def _on_timer(self, timeout_ms: int) -> None:
        """Follow libcurl's timer, which moves with every event; the loop's moves only if it would fire too late."""
        if timeout_ms < 0:
            self._due = inf
            return
        assert self._loop is not None
        self._due = self._loop.time() + timeout_ms / 1000
        if self._due < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._arm()

    def _arm(self) -> None:
        assert self._loop is not None
        self._timer_at = self._due
        self._timer = self._loop.call_at(self._due, self._on_time)

    def _on_time(self) -> None:
        assert self._loop is not None
        self._timer, self._timer_at = None, inf
        if self._due == inf:
            return
        # A millisecond is the loop's own resolution.
        if self._due > self._loop.time() + 0.001:
            self._arm()
            return
        self._due = inf
        self._act(pycurl.SOCKET_TIMEOUT, 0)


# The wires in use. A handler finds its crawler's here and the last one takes it out.
_WIRES: Final[WeakKeyDictionary[Crawler, Wire]] = WeakKeyDictionary()


def wire_of(crawler: Crawler) -> Wire:
    """The wire of this crawler, made at the first call; whoever needs its `names` or `guard` asks here."""
    wire = _WIRES.get(crawler)
    if wire is None:
        wire = _WIRES[crawler] = Wire(crawler)
    return wire


class CurlDownloadHandler(BaseDownloadHandler):
    """Scrapy's handler for http and https: finds the address, fetches, and turns what came into a Response."""

    lazy = False

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._wire = wire_of(crawler)
        self._wire.users += 1
        self._closed = False
        self._warn_size = crawler.settings.getint("DOWNLOAD_WARNSIZE")
        self._fail_on_loss = crawler.settings.getbool("DOWNLOAD_FAIL_ON_DATALOSS")
        self._warned_of_loss = False

    async def download_request(self, request: Request) -> Response:
        """Fetch one request. Raises what `crawler.agent.errors` draws, and StopDownload."""
        started, meta = monotonic(), request.meta
        meta.pop("encoded", None)
        times = dict.fromkeys(("name_s", "connect_s", "tls_s", "head_s", "body_s"))
        meta["stage_times"] = {**times, "reused": False}
        limits = self._wire.limits.narrowed(meta)
        host = urlparse_cached(request).hostname
        if not host:
            raise UnsupportedURLSchemeError(f"{request.url!r} names no host")
        addresses = self._allowed(request, await self._wire.names.resolve(host))
        proxy, entry = await self._proxy(request)
        meta["stage_times"]["name_s"] = monotonic() - started
        if proxy is not None:
            attempt = Attempt(request, limits, None, limits.connect.seconds, proxy, entry)
            return await self._fetch(attempt, started)
        return await self._fetch_from(addresses, host, request, limits, started)

    async def close(self) -> None:
        """Leave the wire; the last handler of the crawler closes it."""
        if self._closed:
            return
        self._closed = True
        self._wire.users -= 1
        if not self._wire.users:
            _WIRES.pop(self.crawler, None)
            await self._wire.close()

    def _allowed(self, request: Request, addresses: list[str]) -> list[str]:
        """The addresses that the guard lets pass; AddressRefused if there are none."""
        refusals = [(address, self._wire.guard.refusal(address)) for address in addresses]
        allowed = [address for address, reason in refusals if reason is None]
        if allowed:
            return allowed[:MAX_ADDRESSES]
        address, reason = refusals[0]
        raise _refusal(request.url, address, str(reason))

    async def _proxy(self, request: Request) -> tuple[str | None, str]:
        """The proxy's URL (None = none is wanted), and where it is."""
        if not request.meta.get("proxy"):
            return None, ""
        proxy = add_http_if_no_scheme(request.meta["proxy"])
        parts = urlsplit(proxy)
        if not parts.hostname or not parts.port:
            return proxy, ""
        address = (await self._wire.names.resolve(parts.hostname))[0]
        return proxy, f"{parts.hostname}:{parts.port}:{address}"

    async def _fetch_from(
        self, addresses: list[str], host: str, request: Request, limits: Limits, started: float
    ) -> Response:
        """Fetch from the first address that connects; together they have the connect limit of one."""
        until = monotonic() + limits.connect.seconds
        *others, last = addresses
        for turn, address in enumerate(others):
            share = (until - monotonic()) / (len(addresses) - turn)
            try:
                response = await self._fetch(Attempt(request, limits, address, share), started)
            except (ConnectTimeout, DownloadConnectionRefusedError) as error:
                logger.debug("%s; trying the next address", error)
            else:
                self._wire.names.worked(host, address)
                return response
        response = await self._fetch(Attempt(request, limits, last, until - monotonic()), started)
        if others:
            self._wire.names.worked(host, last)
        return response

    async def _fetch(self, attempt: Attempt, started: float) -> Response:
        try:
            return await self._exchange(attempt, started)
        except _UndecodableError:
            return await self._exchange(replace(attempt, raw=True), started)

    async def _exchange(self, attempt: Attempt, started: float) -> Response:
        transfer = self._wire.take()
        try:
            transfer.begin(attempt)
            code, text = await self._wire.run(transfer)
            return self._outcome(transfer, code, text)
        finally:
            transfer.note_times(started)
            transfer.end()
            self._wire.put(transfer)

    def _outcome(self, transfer: Transfer, code: int, text: str) -> Response:
        # Ours first: libcurl only knows that a callback gave up.
        if transfer.fault is not None:
            raise transfer.fault
        if code == 0 and not transfer.head_at:
            # libcurl takes a head that ends with the connection for a whole one.
            raise ConnectionLost(f"{transfer.attempt.request.url}: closed before the head was complete")
        if code == 0 or transfer.stop is not None:
            response = transfer.response([])
            self._warn_of_size(transfer.attempt.request, len(response.body))
            return response
        attempt = transfer.attempt
        if code == _UNDECODABLE and not attempt.raw and attempt.request.method == "GET":
            raise _UndecodableError
        if transfer.head_at and code in _LOSS:
            return self._incomplete(transfer, text)
        raise transfer.error(code, text)

    def _warn_of_size(self, request: Request, size: int) -> None:
        limit = request.meta.get("download_warnsize", self._warn_size)
        if limit and size > limit:
            logger.warning(get_warnsize_msg(size, limit, request, expected=False))

    def _incomplete(self, transfer: Transfer, text: str) -> Response:
        request = transfer.attempt.request
        if not request.meta.get("download_fail_on_dataloss", self._fail_on_loss):
            return transfer.response(["dataloss"])
        if not self._warned_of_loss:
            self._warned_of_loss = True
            logger.warning(get_dataloss_msg(request.url))
        raise ResponseDataLossError(f"{request.url}: {text}")


# --- Options and lines -----------------------------------------------------------------------------------


def _fixed_options(crawler: Crawler) -> Iterator[tuple[int, Any]]:
    """What every handle is set to."""
    yield pycurl.NOSIGNAL, 1
    yield pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS
    yield DISALLOW_USERNAME_IN_URL, 1
    # Empty, or libcurl would take the environment's.
    yield pycurl.PROXY, ""
    yield pycurl.NOPROXY, ""
    yield pycurl.PATH_AS_IS, 1
    yield pycurl.ACCEPT_ENCODING, ENCODINGS
    yield pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_2TLS
    yield pycurl.BUFFERSIZE, 64 * 1024
    yield from _bind_options(crawler.settings.get("DOWNLOAD_BIND_ADDRESS"))
    if crawler.settings.getbool("DOWNLOAD_VERIFY_CERTIFICATES"):
        yield from _trust()
    else:
        yield pycurl.SSL_VERIFYPEER, 0
        yield pycurl.SSL_VERIFYHOST, 0


def _trust() -> Iterator[tuple[int, str]]:
    """Where the trusted certificates are: libcurl's built-in path is that of another Linux distribution."""
    named = os.environ.get("SSL_CERT_FILE")
    system = ssl.get_default_verify_paths()
    if named:
        yield pycurl.CAINFO, named
    elif find_spec("certifi"):
        import certifi

        yield pycurl.CAINFO, certifi.where()
    elif system.cafile:
        yield pycurl.CAINFO, system.cafile
    elif system.capath:
        yield pycurl.CAPATH, system.capath


def _bind_options(address: str | tuple[str, int] | None) -> Iterator[tuple[int, Any]]:
    bound = normalize_bind_address(address)
    if bound is not None:
        yield pycurl.INTERFACE, f"host!{bound[0]}"
        yield pycurl.LOCALPORT, bound[1]


def _idle_connections() -> int:
    """Connections kept for later; a quarter of the file descriptors at most, since each is one."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_IDLE_CONNECTIONS if soft < 0 else max(1, min(MAX_IDLE_CONNECTIONS, soft // 4))


def _header_lines(headers: Headers) -> list[bytes]:
    """The request's own lines, in its order, and the removal of those that libcurl would add."""
    lines = [
        _header_line(name, value)
        for name, values in dict.items(headers)
        if name not in _NOT_OURS_TO_SEND
        for value in values
    ]
    lines.extend(name + b":" for name in _ADDED_BY_LIBCURL if not dict.__contains__(headers, name))
    return lines


def _header_line(name: bytes, value: bytes) -> bytes:
    if not value:
        return name + b";"
    line = name + b": " + value
    # A line break in a value would let whoever made the value write headers of his own.
    return line.translate(None, b"\r\n\0") if b"\n" in line or b"\r" in line or b"\0" in line else line


def _url_and_target(request: Request, *, proxied: bool) -> tuple[str, str]:
    """The URL for libcurl, and the request target where libcurl would not send it as it is ("" = it would)."""
    url = request.url
    verbatim = request.meta.get("verbatim_url")
    if not verbatim and not ("%" in url and _LOWER_ESCAPE.match(url)):
        return url, ""
    parts = urlsplit(url)
    root = f"{parts.scheme}://{parts.netloc}"
    rest = url.partition("://")[2].partition("#")[0][len(parts.netloc) :]
    # Whatever would end the request line early cannot be sent even so.
    target = quote(rest if rest.startswith("/") else f"/{rest}", safe=_PRINTABLE)
    return f"{root}/", f"{root}{target}" if proxied and parts.scheme == "http" else target


def _status_in(line: bytes) -> int:
    """The status in a status line; 0 where there is none."""
    word = [*line.split(None, 2), b"", b""][1]
    return int(word) if word.isdigit() else 0


def _parsed(lines: list[bytes]) -> Headers:
    headers = Headers()
    for line in lines:
        name, _, value = line.partition(b":")
        dict.setdefault(headers, name.strip().title(), []).append(value.strip())
    return headers


def _stopped(stop: StopDownload, response: Response) -> Response:
    """The response of a download that a signal's receiver ended; raised in `stop` if the receiver asks for that."""
    response.flags.append("download_stopped")
    if stop.fail:
        stop.response = response
        raise stop
    return response


def _refusal(url: str, address: str, reason: str) -> AddressRefused:
    return AddressRefused(f"{url}: {address} is {reason}; networks named in {GUARD_SETTING} may be visited")


def _listened_to(crawler: Crawler, signal: object) -> bool:
    return any(True for _ in liveReceivers(getAllReceivers(crawler, signal)))


# Sites are visited page after page: the same few addresses come again and again.
_address_object = lru_cache(4096)(ip_address)
