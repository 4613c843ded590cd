"""Records of the results stream: JSON, and out-links as packed 64-bit hashes.

Agents write them, coordinators decode them. Decoding raises only RecordError. A new field with a default
needs no new version.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, Literal

import msgspec
from isal import isal_zlib

VERSION = b"1"
# First byte of a packed record (zlib's). JSON never begins with it.
_PACKED = b"\x78"
# Limit for the JSON of a packed record, which a few bytes could exceed.
LARGEST_RECORD = 16_000_000

# Limit of stored hosts and of domains per page.
MOST_HOSTS = 50
# Limit for the JSON that page pipelines put into a page's `extra`.
MOST_EXTRA_BYTES = 16_384
# Number of set hashes.
SET_HASHES = 2**64

# How a page's fetch ended. `denied`: forbidden by robots.txt or a trap, not fetched. `filtered`: fetched, content
# type not kept.
PageOutcome = Literal["stored", "redirected", "duplicate", "failed", "denied", "filtered"]
# The state of a page (crawler.states, paper 001).
PageState = Literal["init", "visited", "no_response_1", "no_response_2", "dead"]
# The answer to a recheck. `unchanged`, `changed`: by validators. `answers`: reachable again. `silent`: no response,
# 404 or 410. `delayed`: refused for now.
Answer = Literal["unchanged", "changed", "answers", "silent", "delayed"]
OrderWord = Literal["pause", "resume", "block", "budget", "forget"]
Work = Literal["site", "recheck", "revive", "status"]
# The four of paper 002; see crawler/status/health.py.
SiteHealth = Literal["normal", "delayed", "disconnected", "error"]
# In the order in which idle slots lease them.
WORKS: tuple[Work, ...] = ("site", "recheck", "revive", "status")


# Prefix of the source of a site that a seed redirected to, before the seed's site.
MOVED = "redirect of "

# Prefix of the reason of a site that is given up since it does not respond.
GIVEN_UP = "given up: "

# Texts of statuses that are not HTTP statuses.
STATUS_WORDS = {
    -1: "name not found",
    -2: "refused",
    -3: "connect timeout",
    -4: "head timeout",
    -5: "body timeout",
    -6: "connection lost",
    -7: "TLS",
    -8: "cut short",
    -9: "robots.txt",
    -10: "address refused",
    -11: "too large",
    -12: "malformed answer",
    -13: "other",
    -14: "middleware",
    -15: "trap",
}

# The stored status of a download exception (crawler.fetch.errors), by the name at the start of its text.
STATUS_OF_ERROR = {
    "CannotResolveHostError": -1,
    "DownloadConnectionRefusedError": -2,
    "ConnectTimeoutError": -3,
    "DownloadTimeoutError": -4,
    "HeadTimeoutError": -4,
    "BodyTimeoutError": -5,
    "ConnectionLostError": -6,
    "TlsError": -7,
    "ResponseDataLossError": -8,
    "RobotsDeniedError": -9,
    "AddressRefusedError": -10,
    "TooLargeError": -11,
    "HeaderLimitError": -11,
    "MalformedResponseError": -12,
    "IgnoreRequest": -14,
}


class RecordError(ValueError):
    """Not a record of this version; the text shows the entry."""


class _Record(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Fields of every record: its agent, run and number."""

    agent: str = ""
    run: str = ""
    seq: int = 0  # rising and unique per agent and run


class Page(_Record, tag="page", tag_field="kind"):
    """One fetch of a page. Times: Unix milliseconds, agent's clock."""

    site: str
    path: str
    fetched_at: int
    outcome: PageOutcome
    status: int  # HTTP status; negative without a response (crawler.fetch.errors)
    depth: int = 0
    tries: int = 1
    error: str = ""  # one line
    size: int = 0  # bytes of the decoded body
    latency_ms: int = 0  # until the response's head
    sha256: str = ""  # of the body; empty: no body
    duplicate_of: str = ""  # path of the page of the same site with an equal body
    redirect: str = ""  # canonical URL of the redirect's target
    canonical: str = ""  # canonical URL that the page declares; empty: none, or its own
    content_type: str = ""
    charset: str = ""  # used to decode the text; empty: no text
    title: str = ""
    description: str = ""
    language: str = ""  # ISO 639-1; empty: too little text
    content_hash: str = ""  # hex, of the extracted text, for "changed"; empty: no text
    media: dict[str, int] = {}  # kind (image, audio, …) -> number on the page
    outside_hosts: list[str] = []  # distinct hosts of other sites in links, in order
    mail_domains: list[str] = []  # of mail addresses on the page
    ftp_domains: list[str] = []  # of its FTP links
    robots: list[str] = []  # values of meta robots and X-Robots-Tag
    keywords: list[str] = []  # most significant first
    etag: str = ""
    last_modified: str = ""  # as the server sent it
    address: str = ""  # of the server
    wire_size: int = 0  # bytes of the body as received
    connect_ms: int | None = None  # to connect, with TLS; None: connection reused, or none
    head_ms: int | None = None  # from the request's end to the head's
    body_ms: int | None = None  # from the head's end to the body's
    warc_file: str = ""  # name of the archive file; empty: not archived
    warc_offset: int = 0  # of the record's first byte there
    warc_length: int = 0  # bytes of the record, compressed
    lastmods: bytes = b""  # of a sitemap: pages of its site and their lastmod (pack_lastmods)
    # lastmod (ms) in a sitemap that this crawl of the site read before; 0: none.
    sitemap_lastmod: int = 0
    extracted_at: int = 0  # when it was reprocessed from the archive, ms; 0: fetched
    work: Work = "site"  # the job that fetched it
    # Requested path as first linked; empty: `path`.
    asked_as: str = ""
    # Values of users' page pipelines, as JSON; MOST_EXTRA_BYTES in all.
    extra: dict[str, Any] = {}

    @property
    def url(self) -> str:
        """The canonical URL."""
        return self.site + self.path

    @property
    def asked_url(self) -> str:
        """The URL that was requested."""
        return self.site + (self.asked_as or self.path)


class RecheckResult(_Record, tag="asked", tag_field="kind"):
    """The result of a recheck; with a new body it is a `Page`."""

    site: str
    path: str
    work: Work  # recheck or revive
    asked_at: int  # Unix milliseconds of the agent's clock
    before: PageState  # state when the recheck was planned; ignored for a page whose state has changed since
    answer: Answer
    status: int  # HTTP status; negative without a response (crawler.fetch.errors)
    error: str = ""  # one line
    etag: str = ""
    last_modified: str = ""  # as the server sent it
    address: str = ""  # of the server
    latency_ms: int = 0  # until the response's head
    connect_ms: int | None = None  # as in Page
    head_ms: int | None = None
    body_ms: int | None = None

    @property
    def url(self) -> str:
        """The canonical URL."""
        return self.site + self.path


class SiteFound(_Record, tag="site", tag_field="kind"):
    """A new site."""

    site: str
    found_at: int
    source: str = "seed"  # or "link"; "redirect of SITE": a seed of SITE redirected to this site


class SiteEnded(_Record, tag="ended", tag_field="kind"):
    """An agent released a site, finished or not."""

    site: str
    ended_at: int
    finished: bool
    published: int  # page records of this site over all leases, which the tables must hold
    known: int  # URLs of the site ever accepted
    over_budget: int = 0  # of these, not fetched because of a limit
    # URLs excluded by limits, by reason (crawler.left_out); with over_budget.
    left_out: dict[str, int] = {}
    left_out_hashes: bytes = b""  # of these (crawler.left_out.LeftOut.packed)
    pending: int = 0  # of these, still to fetch; never fetched if the site is an alias or blocked
    alias_of: str = ""  # the site of which this one is an alias; empty: none
    reason: str = ""  # why it ended early, or waits; empty: finished


class SiteOpened(_Record, tag="opened", tag_field="kind"):
    """A finished site or alias is crawled again."""

    site: str
    opened_at: int
    published: int = 0  # pages that need not be fetched again
    known: int = 0  # as in SiteEnded, as the other fields
    over_budget: int = 0
    pending: int = 0


class OperatorCommand(_Record, tag="order", tag_field="kind"):
    """A command of the operator, kept for a rebuilt queue."""

    site: str
    ordered_at: int
    order: OrderWord
    pages: int | None = None  # of a budget: 0 no limit, None the default
    reason: str = ""


class Check(_Record, tag="check", tag_field="kind"):
    """A status check of a domain by another crawler (crawler.status.packets).

    `agent` is packets-CRAWLER; run and seq are the sender's, or empty.
    """

    crawler: int
    code: int  # of the domain, in that crawler's list
    checked_at: int  # Unix milliseconds of the sender's clock
    status: int  # HTTP status; negative without a response
    digest: str  # hex, of the packet's bytes: equal packets are one check
    site: str = ""  # of the checked page; empty: unknown
    path: str = ""
    latency_ms: int | None = None  # until the response's head; None: unknown
    more: list[str] = []  # further fields of the packet, unchanged

    @property
    def url(self) -> str:
        """The checked page's canonical URL; empty: unknown."""
        return self.site + self.path


class Visit(_Record, tag="visit", tag_field="kind"):
    """Statistics of one agent, site and hour."""

    site: str
    hour: int  # hours (HOUR_SECONDS) since 1970 of the server's clock
    pages: int = 0  # with a measured time
    seconds: float = 0.0  # median, from the request to the body's end; 0: no page was timed
    refused: float = 0.0  # share of requests with 429, 5xx or a timeout
    delay_seconds: float = 0.0  # least pause between requests, with Crawl-delay
    hours_open: str = ""  # robots.txt's Visit-time as HHMM-HHMM, UTC; empty: none


class Health(_Record, tag="health", tag_field="kind"):
    """The status of a site; of several pages, the worst."""

    site: str
    checked_at: int  # Unix milliseconds of the agent's clock, at the response
    health: SiteHealth
    status: int  # HTTP status; negative without a response (crawler.fetch.errors)
    path: str = "/"
    pages: int = 1  # checked pages
    tries: int = 1  # until the verdict
    seen_by: Literal["check", "traffic"] = "check"  # a status check, or a normal fetch
    latency_ms: int | None = None  # to the response's head, with DNS and connect; None: no response
    connect_ms: int | None = None  # with TLS; None: connection reused, or none
    head_ms: int | None = None  # from the request's end to the head's
    body_ms: int | None = None  # from the head's end to the body's
    address: str = ""  # of the server
    error: str = ""  # one line


class RunEvent(_Record, tag="run", tag_field="kind"):
    """An agent's start or end."""

    spider: str
    started_at: int
    ended_at: int = 0  # 0: still running
    reason: str = ""
    scheduler: str = ""


Record = (
    Page
    | RecheckResult
    | SiteFound
    | SiteEnded
    | OperatorCommand
    | RunEvent
    | Check
    | Visit
    | Health
    | SiteOpened
)

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Record)


def refused(why: str, **what: bytes) -> dict[bytes, bytes]:
    """An entry for the dead letters; `decode` raises RecordError with `why`."""
    parts = {name.encode(): value for name, value in what.items()}
    return {b"v": VERSION, b"why": why.encode(errors="replace"), **parts}


def encode(record: Record) -> bytes:
    """The record as JSON, for the stream's field `r`."""
    return _encoder.encode(record)


def decode(fields: dict[bytes, bytes]) -> tuple[Record, bytes]:
    """A record and its packed out-links. Raises RecordError."""
    version, text = fields.get(b"v"), fields.get(b"r", b"")
    if version != VERSION:
        raise RecordError(f"record version {version!r}: expected {VERSION!r}")
    if b"why" in fields and (why := fields[b"why"]):
        raise RecordError(why.decode(errors="replace"))
    try:
        record = _decoder.decode(_unpacked(text) if text[:1] == _PACKED else text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RecordError(f"{error}: {text[:200]!r}") from None
    links = fields.get(b"l", b"")
    if len(links) % 8:
        raise RecordError(f"{len(links)} bytes of links: expected a multiple of 8")
    return record, links


def is_plain(fields: dict[bytes, bytes]) -> bool:
    """Whether every database accepts the texts of a decoded entry. False for a packed one."""
    text = fields[b"r"]
    return text[:1] != _PACKED and b"\\u0000" not in text


def pack(encoded: bytes) -> bytes:
    """Compresses to three fifths, for the same field. 11 us, and 6 us to undo."""
    packed: bytes = isal_zlib.compress(encoded, 1)
    return packed


def _unpacked(field: bytes) -> bytes:
    """Raises RecordError if the field is damaged or too large."""
    unpacker = isal_zlib.decompressobj()
    try:
        text: bytes = unpacker.decompress(field, LARGEST_RECORD)
    except isal_zlib.error as error:  # type: ignore[misc]
        raise RecordError(f"damaged packed record: {error}: {field[:200]!r}") from None
    if not unpacker.eof:
        raise RecordError(f"packed record, truncated or above {LARGEST_RECORD} bytes: {field[:200]!r}")
    return text


def status_in_words(status: int) -> str:
    """`HTTP 404`, or why there was no response."""
    return STATUS_WORDS.get(status, f"HTTP {status}" if status > 0 else str(status))


def hash64(text: str) -> int:
    """Signed 64-bit hash of a URL or site."""
    number: int = _signed(_digest(text))[0]
    return number


def pack_lastmods(pages: Iterable[tuple[int, int]]) -> bytes:
    """Hashes and times (ms), little-endian signed 64-bit."""
    return b"".join(_LASTMOD.pack(*page) for page in pages)


def unpack_lastmods(packed: bytes) -> list[tuple[int, int]]:
    """The inverse of `pack_lastmods`; ignores incomplete bytes at the end."""
    return list(_LASTMOD.iter_unpack(packed[: len(packed) // _LASTMOD.size * _LASTMOD.size]))


def pack_links(urls: Iterable[str]) -> bytes:
    """Canonical URLs as sorted, distinct little-endian 64-bit hashes."""
    return pack_hashes(set(map(hash_of, urls)))


def pack_hashes(hashes: set[int]) -> bytes:
    """As `pack_links`, from results of `hash_of`."""
    return struct.pack(f"<{len(hashes)}Q", *sorted(hashes))


def set_hash(hashes: Iterable[int]) -> int:
    """The same in any order: the sum, modulo 2**64."""
    return sum(hashes) % SET_HASHES


def hash_of(text: str) -> int:
    """`hash64` as an unsigned number, as in out-links."""
    return int.from_bytes(_digest(text), "little")


_LASTMOD = struct.Struct("<qq")
_signed = struct.Struct("<q").unpack
# Copied for each text, in half the time of creating one.
_blank = blake2b(digest_size=8)


def _digest(text: str) -> bytes:
    made = _blank.copy()
    made.update(text.encode("utf-8", "surrogatepass"))
    return made.digest()
