"""Parses sitemaps (sitemaps.org), indexes, feeds and plain-text lists, gzipped or not. Pure; bounded; never raises.

A broken file yields the entries before the damage. changefreq and priority are ignored.
"""

from __future__ import annotations

import io
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from operator import itemgetter
from typing import Any, Final, NamedTuple

from lxml import etree

# Maximum URLs of one file, as the protocol says; the rest is ignored.
MOST_URLS: Final = 50_000
# Maximum sitemaps of an index or a robots.txt.
MOST_MAPS: Final = 500
# Bytes that are searched for the root element.
HEAD_BYTES: Final = 4096
# Bytes per decompress call: zlib copies the unused rest at a member's end.
PIECE_BYTES: Final = 4096
# Maximum gzip members.
MOST_MEMBERS: Final = 10_000
# If this share of at least so many URLs has one time, it is the file's generation time.
STAMPED_SHARE, STAMPED_FROM = 0.9, 10

_GZIP: Final = b"\x1f\x8b"
_PADDING: Final = re.compile(rb"\0*+")
_ROOT: Final = rb"<(?:[\w.-]++:)?+(?:urlset|sitemapindex|feed|rss|RDF)(?=[\s/>])"
_ANY_ROOT: Final = re.compile(_ROOT)
# The root after whatever may precede it, even before the XML declaration.
_FIRST_ROOT: Final = re.compile(
    rb"(?:\xef\xbb\xbf|\s++|<!--(?:[^-]++|-(?!->))*+-->|<\?(?:[^?]++|\?(?!>))*+\?>"
    rb"|<!DOCTYPE[^\[>]*+(?:\[[^\]]*+\][^>]*+)?+>)*+" + _ROOT
)
_HTML_BEGINNING: Final = re.compile(rb"\s*+<(?:!DOCTYPE\s++)?+html\b", re.I)
# UTF-16 by its first bytes.
_UTF16: Final = (
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
    (b"<\0", "utf-16-le"),
    (b"\0<", "utf-16-be"),
)
_NAMED: Final = re.compile(rb"^[^\S\n]*+site-?map[^\S\n]*+:[^\S\n]*+(\S++)", re.I | re.M)
_LINE: Final = re.compile(rb"^(?:\xef\xbb\xbf)?+[^\S\n]*+(https?://\S++)[^\S\n]*+$", re.I | re.M)
_WHEN: Final = re.compile(
    r"(\d{4})-(\d\d)(?:-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:\.\d*)?)?\s*(Z|[+-]\d\d:?\d\d)?)?)?\s*", re.I
)
_UTF16_BEGINNINGS: Final = tuple(beginning for beginning, _ in _UTF16)
# Elements for one URL and its time, in sitemaps, Atom and RSS.
_ENTRIES: Final = ("url", "sitemap", "entry", "item")
_TIMES: Final = ("lastmod", "updated", "pubDate", "published", "date")
# Elements that some files fill with a URL directly, and their parents.
_BARE: Final = {"url": "urlset", "sitemap": "sitemapindex"}
_HTML: Final = ("", "text/html", "application/xhtml+xml")


class Entry(NamedTuple):
    """One URL, as written."""

    url: str
    changed_at: int  # ms since 1970; 0: absent or invalid


class Sitemap(NamedTuple):
    """A parsed file."""

    pages: list[Entry]
    maps: list[str]  # further sitemaps
    error: str = ""  # why entries are missing; empty if complete


def read(body: bytes, most_bytes: int, *, is_list: bool = False) -> Sitemap | None:
    """Parse a file, or None. `is_list` also accepts plain text and XML after junk."""
    data, error = _unpacked(body, most_bytes)
    data, declared = _in_utf8(data)
    start = _start_of_xml(data, declared=declared, anywhere=is_list)
    if start is not None:
        return _of_xml(data[start:], error)
    if not is_list:
        return None
    lines = () if b"<" in data[:HEAD_BYTES] else _upto(_LINE.finditer(data))
    pages = [Entry(found[1].decode("utf-8", "replace"), 0) for found in lines]
    return Sitemap(pages, [], error) if pages or error else None


def may_be(body: bytes) -> bool:
    """Whether an unannounced page may be a sitemap or feed."""
    if _HTML_BEGINNING.match(body):
        return False  # fast path for most pages
    if body.startswith(_GZIP):
        body = _inflated(body[:HEAD_BYTES], HEAD_BYTES)[0]
    elif body.startswith(_UTF16_BEGINNINGS):
        body = _in_utf8(body[:HEAD_BYTES])[0]
    return _FIRST_ROOT.match(body, 0, HEAD_BYTES) is not None


def named(robots: bytes) -> list[str]:
    """URLs of the sitemaps in a robots.txt, as written."""
    text = robots[:1_000_000].replace(b"\r", b"\n")
    urls = (found[1].decode("utf-8", "replace") for found in _NAMED.finditer(text))
    return list(dict.fromkeys(urls))[:MOST_MAPS]


def told(pages: list[Entry]) -> list[Entry]:
    """Entries whose time is meaningful, newest first."""
    known = [entry for entry in pages if entry.changed_at]
    same = max(Counter(entry.changed_at for entry in known).values(), default=0)
    if len(known) >= STAMPED_FROM and same >= STAMPED_SHARE * len(known):
        return []
    return sorted(known, key=lambda entry: entry.changed_at, reverse=True)


def _unpacked(body: bytes, most: int) -> tuple[bytes, str]:
    data, error = _inflated(body, most + 1) if body.startswith(_GZIP) else (body, "")
    return (data, error) if len(data) <= most else (data[:most], f"only its first {most} bytes are read")


def _inflated(body: bytes, most: int) -> tuple[bytes, str]:
    """Content and error message. A member with a wrong checksum is dropped, a truncated one kept."""
    unpacked, at = io.BytesIO(), 0
    for _ in range(MOST_MEMBERS):
        begun = unpacked.tell()
        try:
            at = _inflate_member(body, at, most, unpacked)
        except EOFError as cut:
            return unpacked.getvalue(), f"its gzip is broken: {cut}"
        except zlib.error as damaged:
            unpacked.truncate(begun)
            return unpacked.getvalue(), f"its gzip is broken: {damaged}"
        if unpacked.tell() == most or _PADDING.fullmatch(body, at):
            return unpacked.getvalue(), ""
    return unpacked.getvalue(), f"its gzip is broken: it has more than {MOST_MEMBERS} members"


def _inflate_member(body: bytes, at: int, most: int, into: io.BytesIO) -> int:
    """Write the member at `at`; returns the next offset. Raises zlib.error (damaged) or EOFError (truncated)."""
    unpacker, begun = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16), into.tell()
    while not unpacker.eof and into.tell() < most:
        packed = body[at : at + PIECE_BYTES]
        if not packed:
            if _is_size_of(body[-4:], into.tell() - begun):
                raise zlib.error("its end is not found")
            raise EOFError("it is truncated")
        into.write(unpacker.decompress(packed, most - into.tell()))
        at += len(packed) - len(unpacker.unused_data)
    return at


def _is_size_of(last: bytes, unpacked: int) -> bool:
    """Whether the size field is plausible: then damage hid the member's end."""
    return unpacked / 2 <= int.from_bytes(last, "little") <= unpacked * 2


def _in_utf8(data: bytes) -> tuple[bytes, bool]:
    """The text, and whether its XML declaration still applies."""
    for beginning, codec in _UTF16:
        if data.startswith(beginning):
            return data.decode(codec, "replace").encode(), False
    return data, True


def _start_of_xml(data: bytes, *, declared: bool, anywhere: bool) -> int | None:
    """Offset of a sitemap's XML, or None."""
    first = _FIRST_ROOT.match(data, 0, HEAD_BYTES)
    root = first.end() if first else 0
    if not root and anywhere:
        found = _ANY_ROOT.search(data, 0, HEAD_BYTES)
        root = found.end() if found else 0
    if not root:
        return None
    beginnings = (b"<?xml", b"<!DOCTYPE") if declared else (b"<!DOCTYPE",)
    starts = (data.find(one, 0, root) for one in beginnings)
    return next((start for start in starts if start >= 0), data.rfind(b"<", 0, root))


def _of_xml(data: bytes, error: str) -> Sitemap:
    found = Sitemap([], [], error)
    try:
        for kind, url, when in _entries(data):
            if kind == "sitemap" and len(found.maps) < MOST_MAPS:
                found.maps.append(url)
            elif kind != "sitemap" and len(found.pages) < MOST_URLS:
                found.pages.append(Entry(url, _milliseconds(when)))
    except (etree.LxmlError, ValueError, AssertionError) as broken:
        return found._replace(error=error or f"its XML is broken: {str(broken)[:100]}")
    return found


def _entries(data: bytes) -> Iterator[tuple[str, str, str]]:
    """Kind, URL and time of each entry, as written."""
    events = etree.iterparse(
        io.BytesIO(data),
        events=("end",),
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        huge_tree=False,
        recover=False,
        remove_comments=True,
        remove_pis=True,
    )
    for _, element in events:
        kind = _name(element)
        if kind not in _ENTRIES:
            continue
        children = {_name(child): child for child in reversed(element)}
        time = next((children[name] for name in _TIMES if name in children), None)
        for url in filter(None, map(str.strip, _urls(element, kind))):
            yield kind, url, "" if time is None else (time.text or "").strip()
        _forget(element)


def _urls(element: Any, kind: str) -> list[str]:
    """Each `loc` of a sitemap's entry, or the page of a feed's."""
    locs = [child.text or "" for child in element if _name(child) == "loc"]
    if any(map(str.strip, locs)):
        return locs
    links = list(filter(None, map(_linked, element)))
    if links:
        return [min(links, key=itemgetter(0))[1]]
    parent = element.getparent()
    if not len(element) and parent is not None and _name(parent) == _BARE.get(kind):
        return [element.text or ""]
    return []


def _linked(child: Any) -> tuple[int, str] | None:
    """Rank and URL of a child that links to the page, or None."""
    name, text = _name(child), (child.text or "").strip()
    if name == "guid" and child.get("isPermaLink", "").lower() != "false" and "://" in text:
        return 2, text
    url = text or child.get("href", "").strip()
    if name != "link" or not url:
        return None
    # Other links of Atom lead to comments, editing or the feed itself.
    if (child.get("rel") or "alternate").strip().lower().rpartition("/")[2] != "alternate":
        return None
    return (0 if child.get("type", "").lower() in _HTML else 1), url


def _forget(element: Any) -> None:
    """Free memory: a full tree is twenty times the file."""
    element.clear()
    parent = element.getparent()
    while parent is not None and element.getprevious() is not None:
        del parent[0]


def _name(element: Any) -> str:
    tag = element.tag
    return tag.rpartition("}")[2] if isinstance(tag, str) else ""


def _milliseconds(text: str) -> int:
    """A W3C or RFC 2822 date in ms UTC; 0 if invalid."""
    try:
        if match := _WHEN.fullmatch(text):
            year, month, *rest = (int(one) if one else None for one in match.groups()[:6])
            day, hour, minute, second = rest
            when = datetime(
                year or 0, month or 1, day or 1, hour or 0, minute or 0, second or 0, tzinfo=_zone(match[7])
            )
        else:
            when = parsedate_to_datetime(text)
        seconds = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return 0
    return max(int(seconds * 1000), 0)


def _zone(text: str | None) -> Any:
    return datetime.strptime(text.replace("z", "Z"), "%z").tzinfo if text else UTC


def _upto(found: Iterator[re.Match[bytes]]) -> Iterator[re.Match[bytes]]:
    for _, one in zip(range(MOST_URLS), found, strict=False):
        yield one
