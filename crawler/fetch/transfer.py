"""One transfer: a pooled curl handle and its current exchange, from `begin` to `end`.

The callbacks enforce the limits, call the guard before every connection and sending, and set each stage's deadline;
the wire ends late transfers.
"""

from __future__ import annotations

import re
import socket
import sys
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

import pycurl
from pydispatch.dispatcher import getAllReceivers, liveReceivers  # type: ignore[import-untyped]
from scrapy import signals
from scrapy.exceptions import UnsupportedURLSchemeError
from scrapy.http import Headers
from scrapy.responsetypes import responsetypes
from scrapy.utils._download_handlers import check_stop_download, normalize_bind_address

from crawler.fetch import proxies
from crawler.fetch.context import context_of
from crawler.fetch.decoding import Decoded, decoded
from crawler.fetch.errors import (
    AddressRefusedError,
    BodyTimeoutError,
    ConnectionLostError,
    ConnectTimeoutError,
    HeaderLimitError,
    HeadTimeoutError,
    MalformedResponseError,
    NotSentError,
    ProxyRefusedError,
    TooLargeError,
    error_of_libcurl,
)
from crawler.fetch.guard import SETTING as GUARD_SETTING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Iterator

    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.exceptions import StopDownload
    from scrapy.http import Response

    from crawler.fetch.guard import AddressGuard
    from crawler.fetch.timeouts import Limits


# --- Request and response heads ---


_NOT_OURS_TO_SEND: Final = frozenset((b"Proxy-Authorization", b"Content-Length"))
# Headers that libcurl adds by default; "Name:" suppresses each.
_ADDED_BY_LIBCURL: Final = (b"Accept", b"Content-Type", b"Expect", b"User-Agent")
# libcurl upper-cases escapes in a path; a path with lower-case ones is sent as REQUEST_TARGET.
_LOWER_ESCAPE: Final = re.compile(r"[^?#]*%(?:[a-f][0-9A-Fa-f]|[0-9A-F][a-f])")
# URLs that libcurl sends unchanged, escapes aside.
_SENT: Final = re.compile(r"https?://[^/?#]++/[!$-;=?-\[\]_a-z|~]*+")
_PRINTABLE: Final = "".join(map(chr, range(0x21, 0x7F)))


def header_lines(headers: Headers) -> list[bytes]:
    """The request's header lines, without libcurl's defaults."""
    lines = [
        header_line(name, value)
        for name, values in dict.items(headers)
        if name not in _NOT_OURS_TO_SEND
        for value in values
    ]
    lines.extend(name + b":" for name in _ADDED_BY_LIBCURL if not dict.__contains__(headers, name))
    return lines


def header_line(name: bytes, value: bytes) -> bytes:
    """One header line for libcurl ("Name;" means no value)."""
    if not value:
        return name + b";"
    line = name + b": " + value
    # Prevent header injection.
    return line.translate(None, b"\r\n\0") if b"\n" in line or b"\r" in line or b"\0" in line else line


def url_and_target(request: Request, *, proxied: bool) -> tuple[str, str]:
    """The URL for libcurl, and the request target if libcurl would change it."""
    url = request.url
    as_it_is = not request.meta.get("verbatim_url") or _SENT.fullmatch(url)
    if as_it_is and not ("%" in url and _LOWER_ESCAPE.match(url)):
        return url, ""
    parts = urlsplit(url)
    root = f"{parts.scheme}://{parts.netloc}"
    rest = url.partition("://")[2].partition("#")[0][len(parts.netloc) :]
    # Characters that would end the request line are still escaped.
    target = quote(rest if rest.startswith("/") else f"/{rest}", safe=_PRINTABLE)
    return f"{root}/", f"{root}{target}" if proxied and parts.scheme == "http" else target


def status_in(line: bytes) -> int:
    """The status code of a status line, or 0."""
    word = [*line.split(None, 2), b"", b""][1]
    return int(word) if word.isdigit() else 0


def head_of(lines: list[bytes]) -> Headers:
    """The header fields in order, values of one name together."""
    headers = Headers()
    for line in lines:
        name, _, value = line.partition(b":")
        dict.setdefault(headers, name.strip().title(), []).append(value.strip())
    return headers


# Two: a compressed file sent compressed. More is a bomb.
MAX_ENCODINGS: Final = 2
# Maximum 1xx responses (100 Continue, 103 Early Hints).
MAX_INTERIM: Final = 8
# libcurl resends a request by itself, at once and up to five times, if a kept connection was lost or an HTTP/2 server
# refused it unread. More than one resend would exceed the site's delay.
MAX_SENDINGS: Final = 2
# Grace period for libcurl's own connect timeout before the sweep ends the transfer.
CONNECT_GRACE_SECONDS: Final = 1.0
# CURLOPT_SUPPRESS_CONNECT_HEADERS: pycurl has no name for it.
SUPPRESS_CONNECT_HEADERS: Final = 265

_PROTOCOLS: Final = {1: "HTTP/1.0", 2: "HTTP/1.1", 3: "HTTP/2"}
_LINE_TOO_LONG: Final = 100
# libcurl's HTTP/2 codes do not distinguish a protocol violation from a closed stream or connection; its messages do.
# An empty message means the connection was closed.
_HTTP2_ERRORS: Final = frozenset((16, 92))
_HTTP2_ENDED: Final = re.compile(r"(?:HTTP/2 stream \d+ (?:reset by|was closed)|$)")
_HTTP2_BROKEN: Final = ("nghttp2 ", "Ignoring received invalid")
_NO_HEADERS: Final = Headers()
# The proxy requires a login; and libcurl's message if that was the response to CONNECT.
PROXY_LOGIN: Final = 407
_TUNNEL_LOGIN: Final = re.compile(r"\b(?:response|code) 407\b")


@dataclass(slots=True)
class Attempt:
    """One try to fetch one request from one address (None for a proxy).

    `proxy_entry` ("host:port:address") saves a look-up. Bodies are truncated to `cut_size` bytes; 0 disables that.
    """

    request: Request
    limits: Limits
    address: str | None
    connect_s: float
    proxy: str | None = None
    proxy_entry: str = ""
    cut_size: int = 0


class Transfer:
    """A pooled easy handle. pycurl swallows exceptions in callbacks, so they are kept in `fault`."""

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
        # One buffer: a list of single bytes would take ten times the memory.
        self._body = bytearray()
        self._set_up()

    def begin(self, attempt: Attempt) -> None:
        """Prepare the handle. Raises UnsupportedURLSchemeError if the URL cannot be sent."""
        self.attempt = attempt
        self._forget()
        if self._marked:
            self.curl.reset()
            self._set_up()
        request = attempt.request
        self.deadline = monotonic() + attempt.connect_s + CONNECT_GRACE_SECONDS
        self._hears_head = _listened_to(self._crawler, signals.headers_received)
        self._set_url(request)
        self.curl.setopt(pycurl.CONNECTTIMEOUT_MS, max(1, int(attempt.connect_s * 1000)))
        if request.method != "GET" or request.body:
            self._set_method(request)
        self._set_changed(attempt)
        self._set_unusual(attempt)

    def end(self) -> None:
        """Drop all data of the exchange."""
        self._forget()
        del self.attempt

    def lateness(self) -> Exception:
        """The timeout error of a transfer past its deadline."""
        url, limits = self.attempt.request.url, self.attempt.limits
        if not self.sent_at:
            return self._connect_timeout()
        if not self.head_at:
            return HeadTimeoutError(
                f"{url}: connected to {self.address}, no complete head within {limits.head}"
            )
        return BodyTimeoutError(f"{url}: {len(self._body)} bytes of body, not complete within {limits.body}")

    def error(self, code: int, text: str) -> Exception:
        """The error for a libcurl error code and message."""
        attempt, limits = self.attempt, self.attempt.limits
        if code == pycurl.E_OPERATION_TIMEDOUT:
            return self._connect_timeout()
        if attempt.proxy is not None and _TUNNEL_LOGIN.search(text):
            return self.proxy_refusal()
        message = f"{attempt.request.url} ({attempt.proxy or attempt.address}): {text} (libcurl {code})"
        if code == pycurl.E_FILESIZE_EXCEEDED:
            return TooLargeError(f"{message}; at most {limits.size} bytes ({limits.size_name})")
        if code == _LINE_TOO_LONG:
            return HeaderLimitError(f"{message}; at most {limits.header_bytes} bytes (MAX_HEADER_BYTES)")
        if code == pycurl.E_UNSUPPORTED_PROTOCOL and self.sent_at:
            # The peer's protocol, not the URL's: a response without a status line.
            return MalformedResponseError(message)
        if code in _HTTP2_ERRORS and _HTTP2_ENDED.match(text):
            return ConnectionLostError(message if text else f"{message}: closed")
        if text.startswith(_HTTP2_BROKEN):
            return MalformedResponseError(message)
        return error_of_libcurl(code)(message)

    def proxy_refusal(self) -> ProxyRefusedError:
        """The error of a proxy's 407."""
        shown = proxies.shown(self.attempt.proxy or "")
        return ProxyRefusedError(
            f"the proxy {shown} answered 407; expected its user and password in http_proxy and https_proxy, or in "
            "`proxy` of SITE_OVERRIDES"
        )

    def note_times(self, started: float) -> None:
        """Write the finished stages' times into the request's meta."""
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

    @property
    def received(self) -> int:
        """Bytes of body received so far, not decoded."""
        return int(self.curl.getinfo(pycurl.SIZE_DOWNLOAD_T)) if self.sent_at else 0

    def decoded(self) -> Decoded:
        """The decoded body, perhaps truncated. Raises TooLargeError above the limit."""
        body, encodings = bytes(self._body), self._encodings()
        if not encodings or not body:
            return Decoded(body)
        limits, cut_size = self.attempt.limits, self.attempt.cut_size
        most = cut_size or limits.size or sys.maxsize
        found = decoded(body, encodings, most)
        if len(found.body) > most and not cut_size:
            url = self.attempt.request.url
            raise TooLargeError(f"{url}: decoded; at most {limits.size} bytes ({limits.size_name})")
        if 0 < cut_size < len(found.body):
            self.cut_off = True
        return found

    def follows_first_location(self) -> bool:
        """Whether libcurl aborted at a second Location; the first one counts, as in browsers."""
        status = status_in(self._lines[0]) if self._lines else 0
        named = (number for number, line in enumerate(self._lines) if line[:9].lower() == b"location:")
        first = next(named, 0)
        if self.head_at or not first or not 300 <= status < 400:
            return False
        del self._lines[first + 1 :]
        return self._on_head(status) is None

    def response(self, found: Decoded, flags: list[str]) -> Response:
        """The Response. Raises StopDownload if a signal handler wants a failure."""
        request, body = self.attempt.request, found.body
        if found.as_it_came:
            flags = [*flags, "not_decoded"]
        else:
            self._account_for_decoding()
        if found.error:
            request.meta["decoding_error"] = found.error
        if found.doubtful:
            flags = [*flags, "doubtful"]
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
        # The constructor would copy the headers line by line.
        response.headers = self.headers
        return response if self.stop is None else _stopped(self.stop, response)

    # --- Setting up -----------------------------------------------------------------------------------

    def _forget(self) -> None:
        self.deadline = inf
        self.sent_at = self.done_at = 0.0
        self.address = ""
        self.fault: Exception | None = None
        self.stop: StopDownload | None = None
        self.cut_off = False
        self._sendings = 0
        self._forget_answer()

    def _forget_answer(self) -> None:
        limits = self.attempt.limits
        self._byte_room, self._field_room = limits.header_bytes, limits.header_fields
        self.head_at = 0.0
        self.status = self._interim = 0
        self.headers = _NO_HEADERS
        self._lines: list[bytes] = []
        self._body.clear()

    def _set_up(self) -> None:
        """Set the options of all exchanges; `reset` clears them."""
        for option, value in self._fixed:
            self.curl.setopt(option, value)
        self.curl.setopt(pycurl.WRITEFUNCTION, self._body.extend)
        self._marked = False
        self._address_set: str | None = None
        self._lines_set: list[bytes] = []
        self._size_set = 0

    def _mark(self, option: int, value: Any) -> None:
        """Set an option for this exchange only."""
        self._marked = True
        self.curl.setopt(option, value)

    def _set_url(self, request: Request) -> None:
        url, target = url_and_target(request, proxied=self.attempt.proxy is not None)
        try:
            self.curl.setopt(pycurl.URL, url)
            if target:
                self._mark(pycurl.REQUEST_TARGET, target)
        except (UnicodeError, pycurl.error) as error:
            raise UnsupportedURLSchemeError(f"{request.url!r} cannot be sent: {error}") from error

    def _set_changed(self, attempt: Attempt) -> None:
        """Set options that rarely change: comparing is cheaper than setting."""
        lines = header_lines(attempt.request.headers)
        if lines != self._lines_set:
            self.curl.setopt(pycurl.HTTPHEADER, lines)
            self._lines_set = lines
        # No size limit for HEAD, which only announces a size, nor for a truncated body.
        size = 0 if attempt.cut_size or attempt.request.method == "HEAD" else attempt.limits.size
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
        if attempt.proxy is not None:
            self._set_proxy(attempt, attempt.proxy)
        if meta.get("bindaddress"):
            for option, value in bind_options(meta["bindaddress"]):
                self._mark(option, value)
        if meta.get("want_certificate"):
            # libcurl knows the certificate only after its own handshake.
            self._mark(pycurl.OPT_CERTINFO, 1)
            self._mark(pycurl.FRESH_CONNECT, 1)
        if attempt.cut_size or _listened_to(self._crawler, signals.bytes_received):
            self._mark(pycurl.WRITEFUNCTION, self._on_body)

    def _set_proxy(self, attempt: Attempt, proxy: str) -> None:
        if self._address_set is not None:
            self.curl.unsetopt(pycurl.CONNECT_TO)
        self._mark(pycurl.PROXY, proxy)
        self._mark(SUPPRESS_CONNECT_HEADERS, 1)
        self._mark(pycurl.HEADEROPT, pycurl.HEADER_SEPARATE)
        secret = attempt.request.headers.get(b"Proxy-Authorization")
        if secret:
            self._mark(pycurl.PROXYHEADER, [header_line(b"Proxy-Authorization", secret)])
        if attempt.proxy_entry:
            # "+": the entry expires like any other, so a proxy may move.
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
        """Called before every sending, also a resend."""
        if self._refused(address) or self._sent_too_often() or self._held_back():
            return int(pycurl.PREREQFUNC_ABORT)
        if self._sendings:
            # Discard what the first sending received.
            self._forget_answer()
        self._sendings += 1
        self.address = address
        self.sent_at = monotonic()
        self.deadline = self.sent_at + self.attempt.limits.head.seconds
        return int(pycurl.PREREQFUNC_OK)

    def _on_header(self, line: bytes) -> int | None:
        self._byte_room -= len(line)
        if line in (b"\r\n", b"\n"):
            return None if self.head_at else self._on_blank_line()
        self._field_room -= 1
        # The status line does not count.
        if self._byte_room < 0 or self._field_room < -1:
            return self._refuse(self._header_excess())
        self._lines.append(line)
        return None

    def _on_blank_line(self) -> int | None:
        status = status_in(self._lines[0]) if self._lines else 0
        url = self.attempt.request.url
        if 100 <= status < 200 and status != 101:
            self._interim += 1
            self._lines.clear()
            if self._interim > MAX_INTERIM:
                return self._refuse(HeaderLimitError(f"{url}: over {MAX_INTERIM} interim answers"))
            return None
        if not 200 <= status <= 599:
            return self._refuse(MalformedResponseError(f"{url}: status {status}; expected 200 to 599"))
        return self._on_head(status)

    def _on_head(self, status: int) -> int | None:
        self.status = status
        self.head_at = monotonic()
        self.deadline = self.head_at + self.attempt.limits.body.seconds
        self.headers = head_of(self._lines[1:])
        # Raw lines for the archive; lines after this are trailers.
        self.attempt.request.meta["raw_head"], self._lines = self._lines, []
        encodings = self._encodings()
        if encodings.count(",") >= MAX_ENCODINGS:
            url = self.attempt.request.url
            return self._refuse(
                MalformedResponseError(f"{url}: encoded {encodings}; at most {MAX_ENCODINGS} layers")
            )
        return self._tell_head() if self._hears_head else None

    def _on_body(self, data: bytes) -> int | None:
        self._body.extend(data)
        if 0 < self.attempt.cut_size < len(self._body):
            self.cut_off = True
            return 0
        return self._tell(signals.bytes_received, data=data)

    def _tell_head(self) -> int | None:
        announced = self.headers.get(b"Content-Length") or b""
        length = int(announced) if announced.isdigit() else None
        return self._tell(signals.headers_received, headers=self.headers, body_length=length)

    def _tell(self, signal: object, **arguments: Any) -> int | None:
        try:
            self.stop = check_stop_download(signal, self._crawler, self.attempt.request, **arguments)
        except Exception as error:
            return self._refuse(error)
        return None if self.stop is None else 0

    def _refuse(self, fault: Exception) -> int:
        self.fault = fault
        return 0

    def _sent_too_often(self) -> bool:
        if self._sendings < MAX_SENDINGS:
            return False
        url = self.attempt.request.url
        self.fault = ConnectionLostError(
            f"{url}: sent {MAX_SENDINGS} times, and each time the connection was lost or the server refused it"
        )
        return True

    def _held_back(self) -> bool:
        """Whether `may_send` refuses the request."""
        context = context_of(self.attempt.request)
        if context is None or context.may_send():
            return False
        self.fault = NotSentError(f"{self.attempt.request.url}: not sent, may_send returned False")
        return True

    def _refused(self, address: str) -> bool:
        """Whether the guard forbids the address; proxies are always allowed."""
        if self.attempt.proxy is not None:
            return False
        reason = self._guard.refusal(address)
        if reason is not None:
            self.fault = refusal_of(self.attempt.request.url, address, reason)
        return reason is not None

    # --- Results --------------------------------------------------------------------------------------

    def _connect_timeout(self) -> ConnectTimeoutError:
        attempt, limit = self.attempt, self.attempt.limits.connect
        peer = attempt.proxy or attempt.address
        return ConnectTimeoutError(
            f"{attempt.request.url}: no connection to {peer} within {attempt.connect_s:.3g} s ({limit.name})"
        )

    def _header_excess(self) -> HeaderLimitError:
        limits = self.attempt.limits
        return HeaderLimitError(
            f"{self.attempt.request.url}: response head above {limits.header_bytes} bytes (MAX_HEADER_BYTES) "
            f"or {limits.header_fields} fields (MAX_HEADER_FIELDS)"
        )

    def _encodings(self) -> str:
        values: list[bytes] = dict.get(self.headers, b"Content-Encoding", [])
        return b",".join(values).decode("latin-1")

    def _account_for_decoding(self) -> None:
        """Remove headers that no longer fit a decoded body."""
        encodings = self._encodings()
        bodiless = self.attempt.request.method == "HEAD" or self.status in (204, 304)
        if not encodings or bodiless:
            return
        self.attempt.request.meta["encoded"] = (encodings, self.curl.getinfo(pycurl.SIZE_DOWNLOAD_T))
        self.headers.pop(b"Content-Encoding")
        self.headers.pop(b"Content-Length", None)

    def _certificate(self) -> dict[str, str] | None:
        if not self.attempt.request.meta.get("want_certificate"):
            return None
        chain = self.curl.getinfo(pycurl.INFO_CERTINFO)
        return dict(chain[0]) if chain else None


def bind_options(address: str | tuple[str, int] | None) -> Iterator[tuple[int, Any]]:
    """Options that bind connections to a local address."""
    bound = normalize_bind_address(address)
    if bound is not None:
        yield pycurl.INTERFACE, f"host!{bound[0]}"
        yield pycurl.LOCALPORT, bound[1]


def _stopped(stop: StopDownload, response: Response) -> Response:
    """The response of a stopped download; raises it in `stop` if `stop.fail`."""
    response.flags.append("download_stopped")
    if stop.fail:
        stop.response = response
        raise stop
    return response


def refusal_of(url: str, address: str, reason: str) -> AddressRefusedError:
    """The error for a forbidden address."""
    return AddressRefusedError(
        f"{url}: {address} is {reason}; networks named in {GUARD_SETTING} may be visited"
    )


def _listened_to(crawler: Crawler, signal: object) -> bool:
    return any(True for _ in liveReceivers(getAllReceivers(crawler, signal)))


# Few addresses are parsed very often.
_address_object = lru_cache(4096)(ip_address)
