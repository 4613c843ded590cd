"""What crosses a process boundary on its way to the tables, and how it is written.

Agents put records into the results stream; coordinators (and whoever reads the stream) decode them.
A record is JSON, so that `redis-cli xrange` shows it to a person; its out-links ride beside it as packed
64-bit hashes. Decoding checks version and schema: what does not fit raises RecordError and nothing else.
A new field with a default needs no new version: older readers pass over it, newer ones find it empty.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, Literal

import msgspec
from isal import isal_zlib

VERSION = b"1"
# First byte of a packed record (zlib's), which no JSON begins with.
_PACKED = b"\x78"
# Bytes of JSON that a packed record may have: a few bytes can stand for any number.
LARGEST_RECORD = 16_000_000

# Hosts, and domains, that are kept of a page.
MOST_HOSTS = 50
# Bytes of JSON that page pipelines may put into a page's `extra`, all of them together.
MOST_EXTRA_BYTES = 16_384
# There are this many hashes of sets.
SET_HASHES = 2**64

# How the turn of a page ended. `denied`: robots.txt forbids it or it is of a trap, never fetched.
# `filtered`: fetched, but of a kind that is not kept.
PageOutcome = Literal["stored", "redirected", "duplicate", "failed", "denied", "filtered"]
# Where a page is in its life (crawler.states, paper 001).
PageState = Literal["init", "visited", "no_response_1", "no_response_2", "dead"]
# What a page that was asked again said of itself. `unchanged`, `changed`: by its validators. `answers`: it does again.
# `silent`: no answer, or 404 or 410. `delayed`: not now, or not to us.
Answer = Literal["unchanged", "changed", "answers", "silent", "delayed"]
OrderWord = Literal["pause", "resume", "block", "budget", "forget"]
Work = Literal["site", "recheck", "revive", "status"]
# Paper 002's four; what each means: crawler/status/health.py.
SiteHealth = Literal["normal", "delayed", "disconnected", "error"]
# In the order in which idle slots ask for them.
WORKS: tuple[Work, ...] = ("site", "recheck", "revive", "status")


# Before the site of the seed, in the source of a site that a seed redirected to.
MOVED = "redirect of "

# Begins the reason of a site that is given up since it does not answer.
GIVEN_UP = "given up: "

# What a status that is no HTTP status means, in words.
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

# The status that is stored for a download's exception (crawler.fetch.errors), by the name that begins its text.
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
    """An entry of the results stream that is no record of this version; says what came."""


class _Record(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What every record carries: who made it and as which of its records."""

    agent: str = ""
    run: str = ""
    seq: int = 0  # rising, never given twice per agent and run


class Page(_Record, tag="page", tag_field="kind"):
    """One page's turn and how it ended. Times are milliseconds since 1970 on the agent's clock."""

    site: str
    path: str
    fetched_at: int
    outcome: PageOutcome
    status: int  # HTTP status; negative where no answer came (crawler.fetch.errors)
    depth: int = 0
    tries: int = 1
    error: str = ""  # one line, for people
    size: int = 0  # bytes of the body, decoded
    latency_ms: int = 0  # until the head of the answer
    sha256: str = ""  # over the body's bytes; empty where there is none
    duplicate_of: str = ""  # path of the page of the same site with the same bytes
    redirect: str = ""  # canonical URL the answer points to
    canonical: str = ""  # URL the page names as the one to take for it; empty: none, or its own
    content_type: str = ""
    charset: str = ""  # that its text was read in; empty: none was
    title: str = ""
    description: str = ""
    language: str = ""  # ISO 639-1; empty: too little text to tell
    content_hash: str = ""  # hex, over the extracted text: "changed" means another one; empty: no text
    media: dict[str, int] = {}  # kind (image, audio, …) -> how many the page shows or links to
    outside_hosts: list[str] = []  # distinct hosts of other sites that it links to, in order
    mail_domains: list[str] = []  # of the mail addresses on the page
    ftp_domains: list[str] = []  # of its FTP links
    robots: list[str] = []  # words of meta robots and X-Robots-Tag
    keywords: list[str] = []  # the most telling words, best first
    etag: str = ""
    last_modified: str = ""  # as the server wrote it
    address: str = ""  # of the server that answered
    wire_size: int = 0  # bytes of the body as they came
    connect_ms: int | None = None  # to connect, TLS included; None: the connection was there, or none came
    head_ms: int | None = None  # from the request's end to the head's
    body_ms: int | None = None  # from the head's end to the body's
    warc_file: str = ""  # name of the archive file that holds the answer; empty: not kept
    warc_offset: int = 0  # first byte of its record there
    warc_length: int = 0  # bytes of the record, compressed
    lastmods: bytes = b""  # of a sitemap: pages of its site and when it says they changed (pack_lastmods)
    # When it changed last (ms), as a sitemap said that its site's walk has read before it; 0: none says.
    sitemap_lastmod: int = 0
    extracted_at: int = 0  # when it was made anew from the archive, which is no fetch; 0: by its fetch
    work: Work = "site"  # that loaded it
    # Path that was asked for, as it was written where the page was first named; empty: `path`.
    asked_as: str = ""
    # What page pipelines of one's own say of the page: name -> whatever JSON can say, MOST_EXTRA_BYTES in all.
    extra: dict[str, Any] = {}

    @property
    def url(self) -> str:
        """The canonical URL."""
        return self.site + self.path

    @property
    def asked_url(self) -> str:
        """The URL that was asked for."""
        return self.site + (self.asked_as or self.path)


class RecheckResult(_Record, tag="asked", tag_field="kind"):
    """A page that is known was asked again, and what it answered; where its body came a `Page` says so instead."""

    site: str
    path: str
    work: Work  # recheck or revive
    asked_at: int  # milliseconds since 1970 on the agent's clock
    before: PageState  # as it was when the question was packed: of a page that is elsewhere by now it says nothing
    answer: Answer
    status: int  # HTTP status; negative where no answer came (crawler.fetch.errors)
    error: str = ""  # one line, for people
    etag: str = ""
    last_modified: str = ""  # as the server wrote it
    address: str = ""  # of the server that answered
    latency_ms: int = 0  # until the head of the answer
    connect_ms: int | None = None  # as in Page
    head_ms: int | None = None
    body_ms: int | None = None

    @property
    def url(self) -> str:
        """The canonical URL."""
        return self.site + self.path


class SiteFound(_Record, tag="site", tag_field="kind"):
    """A site that was not known before."""

    site: str
    found_at: int
    source: str = "seed"  # or "link"; "redirect of SITE": a seed of that site led here, so this is the seed


class SiteEnded(_Record, tag="ended", tag_field="kind"):
    """An agent gave a site back: finished, or to be gone on with later."""

    site: str
    ended_at: int
    finished: bool
    published: int  # page records of this site so far, over all leases: what the tables must hold
    known: int  # URLs of the site that were ever accepted
    over_budget: int = 0  # of these, never fetched since a limit was reached
    # URLs that bounds leave out, by reason (crawler.left_out); with over_budget.
    left_out: dict[str, int] = {}
    left_out_hashes: bytes = b""  # of these (crawler.left_out.LeftOut.packed)
    pending: int = 0  # of these, still to fetch; for ever, where the site is another's alias or was blocked
    alias_of: str = ""  # the site that this one is under a second name; empty: it is itself
    reason: str = ""  # why it ended early, or waits; empty: all done


class SiteOpened(_Record, tag="opened", tag_field="kind"):
    """A site that was finished, or another's alias, is gone on with; the queue's script tells it as it opens one."""

    site: str
    opened_at: int
    published: int = 0  # pages that need not be fetched again
    known: int = 0  # as in SiteEnded, as are the others
    over_budget: int = 0
    pending: int = 0


class OperatorCommand(_Record, tag="order", tag_field="kind"):
    """What the operator wants of a site. Written where the queue takes the order, so that a lost queue gets it back."""

    site: str
    ordered_at: int
    order: OrderWord
    pages: int | None = None  # of a budget: 0 no limit, None the crawl's own again
    reason: str = ""


class Check(_Record, tag="check", tag_field="kind"):
    """That a foreign crawler asked one domain for its status, as its packet told (crawler.status.packets).

    `agent` is packets-CRAWLER; run and seq are the sender's, empty where it does not number its packets.
    """

    crawler: int
    code: int  # of the domain, in that crawler's own list
    checked_at: int  # milliseconds since 1970 on the sender's clock
    status: int  # HTTP status; negative where no answer came
    digest: str  # hex, over the packet's bytes: two that are equal are one check
    site: str = ""  # of the page that was asked; empty: not told
    path: str = ""
    latency_ms: int | None = None  # until the head of the answer; None: not told
    more: list[str] = []  # further fields of the packet, as they came

    @property
    def url(self) -> str:
        """The canonical URL of the page that was asked; empty: not told."""
        return self.site + self.path


class Visit(_Record, tag="visit", tag_field="kind"):
    """What one agent saw of one site within one hour: how long its pages took, and what was refused."""

    site: str
    hour: int  # hours (HOUR_SECONDS) since 1970 on the server's clock
    pages: int = 0  # that were timed
    seconds: float = 0.0  # of the median one, from the request sent to the body's end; 0: none was timed
    refused: float = 0.0  # share of the requests: 429, 5xx, no answer in time
    delay_seconds: float = 0.0  # least pause between two requests, with what robots.txt asks for
    hours_open: str = ""  # robots.txt's Visit-time as HHMM-HHMM, UTC; empty: it has none


class Health(_Record, tag="health", tag_field="kind"):
    """How a site was when it was checked, or seen by the way: one page's answer, or several if it was asked deeper.

    What is told is of the page that fared worst.
    """

    site: str
    checked_at: int  # milliseconds since 1970 on the agent's clock, taken when the answer was there
    health: SiteHealth
    status: int  # HTTP status; negative where no answer came (crawler.fetch.errors)
    path: str = "/"
    pages: int = 1  # that were asked
    tries: int = 1  # until the verdict
    seen_by: Literal["check", "traffic"] = "check"  # asked for this, or seen while its pages were loaded
    latency_ms: int | None = None  # to the head of the answer, name and connection included; None: none came
    connect_ms: int | None = None  # TLS included; None: the connection was there, or none came
    head_ms: int | None = None  # from the request's end to the head's
    body_ms: int | None = None  # from the head's end to the body's
    address: str = ""  # of the server that answered
    error: str = ""  # one line, for people


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
    """An entry for the dead letters alone: what was refused where it came in, and why; `decode` raises with that."""
    told = {name.encode(): value for name, value in what.items()}
    return {b"v": VERSION, b"why": why.encode(errors="replace"), **told}


def encode(record: Record) -> bytes:
    """The record as JSON, as it stands in the stream's field `r`."""
    return _encoder.encode(record)


def decode(fields: dict[bytes, bytes]) -> tuple[Record, bytes]:
    """A record and its packed out-links from the fields of a stream entry; RecordError if it is none."""
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
    """Whether the texts of an entry that `decode` took are such that every database takes them too.

    JSON has NUL as an escape only, and of lone surrogates `decode` has let none pass. A packed one is not looked into.
    """
    text = fields[b"r"]
    return text[:1] != _PACKED and b"\\u0000" not in text


def pack(encoded: bytes) -> bytes:
    """An encoded record in three fifths of its size, for where so many wait that memory counts more than reading them.

    It stands in the same field; JSON is told from it by its first byte. Takes 11 us, and 6 us to undo.
    """
    packed: bytes = isal_zlib.compress(encoded, 1)
    return packed


def _unpacked(field: bytes) -> bytes:
    """The JSON of a packed record's field; RecordError where it cannot be unpacked, or is too large."""
    unpacker = isal_zlib.decompressobj()
    try:
        text: bytes = unpacker.decompress(field, LARGEST_RECORD)
    except isal_zlib.error as error:  # type: ignore[misc]
        raise RecordError(f"packed, and spoilt: {error}: {field[:200]!r}") from None
    if not unpacker.eof:
        raise RecordError(f"packed, and cut short or above {LARGEST_RECORD} bytes: {field[:200]!r}")
    return text


def status_in_words(status: int) -> str:
    """For people: `HTTP 404`, or why no answer came."""
    return STATUS_WORDS.get(status, f"HTTP {status}" if status > 0 else str(status))


def hash64(text: str) -> int:
    """The signed 64-bit hash that stands for a URL or a site in tables and out-links."""
    number: int = _signed(_digest(text))[0]
    return number


def pack_lastmods(pages: Iterable[tuple[int, int]]) -> bytes:
    """Pages' hashes and times in ms, each a little-endian signed 64-bit number."""
    return b"".join(_LASTMOD.pack(*page) for page in pages)


def unpack_lastmods(packed: bytes) -> list[tuple[int, int]]:
    """What `pack_lastmods` was given; bytes at the end that are none are left."""
    return list(_LASTMOD.iter_unpack(packed[: len(packed) // _LASTMOD.size * _LASTMOD.size]))


def pack_links(urls: Iterable[str]) -> bytes:
    """Canonical URLs as sorted, distinct little-endian 64-bit hashes."""
    return pack_hashes(set(map(hash_of, urls)))


def pack_hashes(hashes: set[int]) -> bytes:
    """The same, of what `hash_of` gave."""
    return struct.pack(f"<{len(hashes)}Q", *sorted(hashes))


def set_hash(hashes: Iterable[int]) -> int:
    """One hash of a set of URLs, the same in any order: the sum of theirs, signed or not, modulo 2**64."""
    return sum(hashes) % SET_HASHES


def hash_of(text: str) -> int:
    """The bits of `hash64` as an unsigned number, as out-links have them."""
    return int.from_bytes(_digest(text), "little")


_LASTMOD = struct.Struct("<qq")
_signed = struct.Struct("<q").unpack
# Copied for each text: that takes half the time of making one.
_blank = blake2b(digest_size=8)


def _digest(text: str) -> bytes:
    made = _blank.copy()
    made.update(text.encode("utf-8", "surrogatepass"))
    return made.digest()
