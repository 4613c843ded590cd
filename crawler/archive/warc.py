"""Builds and parses WARC 1.1 records (ISO 28500) and CDXJ lines. Pure.

Bodies are stored decoded; headers that no longer apply get the prefix `X-Crawler-`, as in Common Crawl.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec
from isal import igzip_lib
from scrapy.http import Headers

from crawler.fetch.transfer import head_of, status_in

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scrapy import Request
    from scrapy.http import Response

# isal's level. For a page of 26 kB (benchmarks/archive.py): level 0 8.4 kB in 0.02 CPU-ms, 1 and 2 7.5 kB in 0.03, 3
# 7.3 kB in 0.06; zlib's 1 7.7 kB in 0.15, its 6 6.9 kB in 0.29.
LEVEL: Final = 1
# Prefix of headers that do not apply to the stored body.
RENAMED: Final = b"X-Crawler-"
# Start of every record.
BEGINNING: Final = b"WARC/1."
REVISIT_MIME: Final = "warc/revisit"
PROFILE: Final = "http://netpreserve.org/warc/1.1/revisit/identical-payload-digest"
# Request headers that are stored; all others may be secret.
REQUEST_FIELDS: Final = frozenset(
    b"Accept Accept-Encoding Accept-Language From If-Modified-Since If-None-Match Range Referer User-Agent".split()
)

_MOVED: Final = frozenset((b"content-encoding", b"transfer-encoding", b"content-length"))
_PROTOCOLS: Final = {"HTTP/2": "h2", "HTTP/3": "h3"}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


class WarcError(ValueError):
    """Not a valid WARC record."""


class Fetch(msgspec.Struct, omit_defaults=True):
    """Fields of the page's record beyond HTTP."""

    depth: int = 0
    tries: int = 1
    latency_ms: int = 0
    wire_size: int = 0
    connect_ms: int | None = None
    head_ms: int | None = None
    body_ms: int | None = None
    duplicate_of: str = ""
    error: str = ""  # an encoding error of the body


class Earlier(NamedTuple):
    """An earlier capture with the same body."""

    url: str
    fetched_at: int  # milliseconds since 1970
    file: str = ""  # empty if unknown
    offset: int = 0


class Exchange(NamedTuple):
    """One fetch to store."""

    url: str
    fetched_at: int  # milliseconds since 1970
    address: str
    protocol: str  # h2, or empty for HTTP/1
    request: bytes  # head
    head: bytes  # of the response, from `stored_head`
    body: bytes
    sha256: str  # hex, of the body
    truncated: str  # why the body is truncated, or empty
    fetch: Fetch


class Record(NamedTuple):
    """A parsed record."""

    fields: Headers
    block: bytes

    @property
    def kind(self) -> str:
        """WARC-Type."""
        return self.field("WARC-Type")

    def field(self, name: str) -> str:
        """A field's value, or empty."""
        return (self.fields.get(name) or b"").decode("utf-8", "replace")


# --- Writing ------------------------------------------------------------------------------------------------


def member(record: bytes) -> bytes:
    """Compress a record to one gzip member."""
    packed: bytes = igzip_lib.compress(record, LEVEL, igzip_lib.COMP_GZIP)
    return packed


def warcinfo(number: str, name: str, made_at: int, about: dict[str, str]) -> bytes:
    """A file's first record."""
    block = "".join(f"{key}: {' '.join(value.split())}\r\n" for key, value in about.items()).encode()
    fields = f"WARC-Filename: {name}\r\nContent-Type: application/warc-fields\r\n"
    return _record("warcinfo", number, made_at, fields + _digest(block), block)


def response(exchange: Exchange, number: str, request_number: str) -> bytes:
    """The response record."""
    fields = _fields_of(exchange, request_number)
    if exchange.truncated:
        fields += f"WARC-Truncated: {exchange.truncated}\r\n"
    # No block digest: the payload digest and gzip's CRC suffice, and it would read the body twice.
    return _record("response", number, exchange.fetched_at, fields, exchange.head, exchange.body)


def revisit(exchange: Exchange, number: str, request_number: str, earlier: Earlier) -> bytes:
    """The response record without the body, which is in `earlier`."""
    fields = (
        f"{_fields_of(exchange, request_number)}WARC-Profile: {PROFILE}\r\n"
        f"WARC-Refers-To-Target-URI: {earlier.url}\r\nWARC-Refers-To-Date: {date(earlier.fetched_at)}\r\n"
    )
    if earlier.file:
        # Heritrix's fields: readers find the body without an index.
        fields += (
            f"WARC-Refers-To-Filename: {earlier.file}\r\nWARC-Refers-To-File-Offset: {earlier.offset}\r\n"
        )
    return _record("revisit", number, exchange.fetched_at, fields + _digest(exchange.head), exchange.head)


def request(exchange: Exchange, number: str, response_number: str) -> bytes:
    """The request record."""
    fields = (
        f"WARC-Target-URI: {exchange.url}\r\nWARC-Concurrent-To: <urn:uuid:{response_number}>\r\n"
        f"{_address(exchange)}Content-Type: application/http; msgtype=request\r\n"
    )
    fields += _digest(exchange.request)
    return _record("request", number, exchange.fetched_at, fields, exchange.request)


def _fields_of(exchange: Exchange, request_number: str) -> str:
    fetch = msgspec.json.encode(exchange.fetch).decode()
    return (
        f"WARC-Target-URI: {exchange.url}\r\nWARC-Concurrent-To: <urn:uuid:{request_number}>\r\n"
        f"{_address(exchange)}WARC-Payload-Digest: sha256:{exchange.sha256}\r\nX-Crawler-Fetch: {fetch}\r\n"
        "Content-Type: application/http; msgtype=response\r\n"
    )


def _address(exchange: Exchange) -> str:
    address = f"WARC-IP-Address: {exchange.address}\r\n" if exchange.address else ""
    return f"{address}WARC-Protocol: {exchange.protocol}\r\n" if exchange.protocol else address


def _digest(block: bytes) -> str:
    return f"WARC-Block-Digest: sha256:{sha256(block).hexdigest()}\r\n"


def _record(kind: str, number: str, made_at: int, fields: str, block: bytes, rest: bytes = b"") -> bytes:
    head = (
        f"WARC/1.1\r\nWARC-Type: {kind}\r\nWARC-Record-ID: <urn:uuid:{number}>\r\nWARC-Date: {date(made_at)}\r\n"
        f"{fields}Content-Length: {len(block) + len(rest)}\r\n\r\n"
    )
    return b"%b%b%b\r\n\r\n" % (head.encode("utf-8", "surrogatepass"), block, rest)


def date(milliseconds: int) -> str:
    """A time in ms as WARC-Date."""
    seconds, rest = divmod(milliseconds, 1000)
    return f"{_second(seconds)}.{rest:03}Z"


@lru_cache(16)  # several records per second
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


# --- HTTP heads ---------------------------------------------------------------------------------------------


def stored_head(lines: Iterable[bytes], size: int) -> bytes:
    """The response head from raw lines, adapted to a body of `size` bytes."""
    first, *rest = [line.strip(b"\r\n") for line in lines] or [b"HTTP/1.1 200"]
    kept = [first if first.startswith(b"HTTP/1.") else b"HTTP/1.1 " + first.partition(b" ")[2]]
    right = b"%d" % size
    has_length = False
    for line in rest:
        name, _, value = line.partition(b":")
        if name.strip().lower() not in _MOVED:
            kept.append(line)
        elif not has_length and name.strip().lower() == b"content-length" and value.strip() == right:
            kept.append(line)
            has_length = True
        else:
            kept.append(RENAMED + line.strip())
    if not has_length:
        kept.append(b"Content-Length: " + right)
    return b"\r\n".join(kept) + b"\r\n\r\n"


def lines_of(response: Response) -> list[bytes]:
    """Head lines of a response from another download handler."""
    phrase = HTTPStatus(response.status).phrase if response.status in set(HTTPStatus) else ""
    lines = [f"HTTP/1.1 {response.status} {phrase}".rstrip().encode()]
    for name, values in dict.items(response.headers):
        lines += [name + b": " + value.translate(None, b"\r\n") for value in values]
    return lines


def protocol_of(response: Response) -> str:
    """WARC-Protocol; empty for HTTP/1 or unknown."""
    return _PROTOCOLS.get(response.protocol or "", "")


def request_head(url: str, request: Request | None, encodings: str) -> bytes:
    """The request head as sent, without secrets."""
    target = url if request is None else request.url
    host, slash, path = target.partition("://")[2].partition("#")[0].partition("/")
    method = "GET" if request is None else request.method
    lines = [f"{method} {slash or '/'}{path} HTTP/1.1", f"Host: {host}"]
    fields = {} if request is None else request.headers
    if encodings and b"Accept-Encoding" not in fields:
        lines.append(f"Accept-Encoding: {encodings}")
    head = "\r\n".join(lines).encode("utf-8", "surrogatepass")
    for name, values in dict.items(fields):
        if name in REQUEST_FIELDS:
            head += b"".join(b"\r\n%b: %b" % (name, value.translate(None, b"\r\n\0")) for value in values)
    return head + b"\r\n\r\n"


# --- Reading ------------------------------------------------------------------------------------------------


def read(data: bytes) -> Record:
    """Parse a decompressed member. Raises WarcError."""
    head, end, rest = data.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    if not lines[0].startswith(BEGINNING) or not end:
        raise WarcError(f"a record begins with {data[:40]!r}; expected WARC/1.")
    fields = head_of(lines[1:])
    length = fields.get("Content-Length") or b""
    if not length.isdigit() or int(length) > len(rest):
        raise WarcError(f"a record of {length!r} bytes holds {len(rest)}")
    return Record(fields, rest[: int(length)])


def http_parts(block: bytes) -> tuple[int, Headers, bytes]:
    """Status, original headers and body of a block."""
    head, _, body = block.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    fields = head_of(lines)
    for name in (b"X-Crawler-Content-Encoding", b"X-Crawler-Content-Length"):
        fields.pop(name, None)
    moved = fields.pop(b"X-Crawler-Transfer-Encoding", None)
    if moved is not None:
        fields[b"Transfer-Encoding"] = moved
    return status_in(first), fields, body


def milliseconds(text: str) -> int:
    """WARC-Date in ms. Raises WarcError."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise WarcError(f"WARC-Date is {text[:40]!r}; expected 2026-11-18T12:00:00Z") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // _MILLISECOND


# --- Index --------------------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """An index entry."""

    url: str
    fetched_at: int
    mime: str
    status: int
    sha256: str
    file: str
    offset: int
    length: int


def index_line(entry: Entry) -> bytes:
    """A CDXJ line."""
    fields = {
        "url": entry.url,
        "mime": entry.mime,
        "status": str(entry.status),
        "digest": f"sha256:{entry.sha256}",
        "length": str(entry.length),
        "offset": str(entry.offset),
        "filename": entry.file,
    }
    stamp = time.strftime("%Y%m%d%H%M%S", time.gmtime(entry.fetched_at // 1000))
    return b"%b %b %b\n" % (surt(entry.url), stamp.encode(), msgspec.json.encode(fields))


def mime_of(content_type: str) -> str:
    """A content type without parameters; `unk` if empty."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind or "unk"


def surt(url: str) -> bytes:
    """The SURT sort key of a canonical URL: `org,example)/a?b=c`."""
    start = url.find("/", url.find("://") + 3)
    site, rest = (url, "/") if start < 0 else (url[:start], url[start:])
    path, mark, query = rest.lower().partition("?")
    path = path.rstrip("/") or "/"
    if mark and query:
        path += "?" + "&".join(sorted(query.split("&")))
    # Blanks and line ends separate fields.
    path = path.replace(" ", "%20").replace("\n", "%0a").replace("\r", "%0d")
    return (_surt_of_site(site) + path).encode("utf-8", "surrogatepass")


@lru_cache(4096)
def _surt_of_site(site: str) -> str:
    parts = urlsplit(site)
    host = parts.hostname or ""
    labels = host.split(".")
    if len(labels) > 1 and labels[0].rstrip("0123456789") == "www":
        labels = labels[1:]
    name = f"[{host}]" if ":" in host else ",".join(reversed(labels))
    return f"{name}:{parts.port})" if parts.port else f"{name})"
