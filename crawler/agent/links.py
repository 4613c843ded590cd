"""Links of a page: found in the parsed document, made canonical, told apart by site. No Request is ever made here.

One parse per page serves links and attributes alike. A page's `<base>`, rel=nofollow and meta robots are obeyed.
Hostile input gives fewer links, never an exception.
"""

from __future__ import annotations

import codecs
import re
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import urljoin

from lxml import etree
from w3lib.encoding import (
    html_body_declared_encoding,
    http_content_type_encoding,
    read_bom,
    to_unicode,
)
from w3lib.html import strip_html5_whitespace

from crawler.sites.canonical import UrlError, split

_ANCHORS: Any = etree.XPath("//a[@href]|//area[@href]")
_BASE: Any = etree.XPath("//base[@href]")
_ROBOTS: Any = etree.XPath("//meta[translate(@name, 'ROBTS', 'robts')='robots']/@content")
# Paths that are canonical as they stand: plain characters, no escapes, no dot segments, no query.
_PLAIN = re.compile(r"/(?!/)[A-Za-z0-9_~/-]*(?:\.[A-Za-z0-9_~-][A-Za-z0-9_~/-]*)*")
_PLAIN_RELATIVE = re.compile(r"[A-Za-z0-9_~-][A-Za-z0-9_~/-]*(?:\.[A-Za-z0-9_~-][A-Za-z0-9_~/-]*)*")
# Links that mean the same on every page of a site: no white space, no dot segments.
_ABSOLUTE = re.compile(r"https?://(?![/?#])(?!.*/\.)[!-~]+")
_ROOTED = re.compile(r"/(?!/)(?!.*/\.)[!-~]*")
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:")
# In X-Robots-Tag, from the name of one crawler to the end of the line: said to that one, not to everybody.
_TO_ONE_CRAWLER = re.compile(
    r"(?:^|,)[ \t]*(?!(?:unavailable_after|max-[a-z-]+)\s*:)[\w./-]+\s*:.*", re.MULTILINE
)
# Python's codecs that no page is written in: of work that grows with the square of the size, or full of escapes.
_NO_PAGE_HAS = frozenset(("punycode", "idna", "unicode-escape", "raw-unicode-escape", "undefined", "utf-7"))
# The parser's work grows with the square of a tag's attributes: 5,000 cost it 0.05 s, 50,000 two. A page is cut off
# before a tag with more.
MOST_ATTRIBUTES = 5_000
# Bytes of a page that cannot hold enough attributes to matter (0.2 s at the worst).
_ATTRIBUTES_CHECKED_ABOVE = 65_536
_ATTRIBUTE = rb"""[\s/]*+=?[^\s/>=]++(?:\s*+=\s*+(?:"[^"]*+"|'[^']*+'|[^\s>]*+))?+"""
_ATTRIBUTES = re.compile(_ATTRIBUTE)
_TAG = re.compile(rb"<[a-zA-Z](?:" + _ATTRIBUTE + rb"|[\s/=]++)*+")
# Whatever a page is written in, the parser gets UTF-8: it stops at the first bad byte of other encodings.
_PARSER: Any = etree.HTMLParser(encoding="utf-8", huge_tree=False, no_network=True, remove_comments=True)


class Links(NamedTuple):
    """Canonical links of one page."""

    inside: list[str]  # paths of the same site, distinct, in document order
    outside: dict[str, list[str]]  # other sites -> paths


def document(body: bytes, content_type: str) -> Any:
    """The parsed page (an lxml element), or None where there is nothing to parse."""
    if not body.strip():
        return None
    try:
        return etree.fromstring(_parsable(_as_utf8(body, content_type)), _PARSER)
    except (etree.XMLSyntaxError, ValueError):
        return None


def robots_directives(root: Any, header: str) -> set[str]:
    """Words of meta robots and X-Robots-Tag (one line per header) that hold for everybody, in lower case."""
    words = set(re.split(r"[\s,]+", _TO_ONE_CRAWLER.sub("", header.lower())))
    for content in _ROBOTS(root) if root is not None else ():
        words |= set(re.split(r"[\s,]+", str(content).lower()))
    return words - {""}


def links(root: Any, url: str, site: str, most: int, length: int) -> Links:
    """The page's links: the first `most`, each at most `length` characters as a URL."""
    inside: dict[str, None] = {}
    outside: dict[str, list[str]] = {}
    if root is None:
        return Links([], outside)
    base = _Base(_base(root, url), site)
    for element in _ANCHORS(root)[:most]:
        if "nofollow" in element.get("rel", "").lower():
            continue
        href = element.get("href")
        path = base.plain(href)
        place = (site, path) if path and len(site) + len(path) <= length else base.place(href, length)
        if place is None:
            continue
        if place[0] == site:
            inside[place[1]] = None
        else:
            outside.setdefault(place[0], []).append(place[1])
    return Links(list(inside), outside)


def target(url: str, location: str, length: int) -> tuple[str, str] | None:
    """Site and path that a Location (its bytes read as Latin-1) points to; None: nothing that can be fetched."""
    with suppress(UnicodeError):
        # What servers send unescaped is UTF-8.
        location = location.encode("latin-1").decode()
    return _canonical(url, location, length)


class _Base:
    """What a page's links start from, with short ways for the links that most pages have.

    A short way gives what `_canonical` gives, or nothing; a test compares them on real and made-up links.
    """

    def __init__(self, base: str, site: str) -> None:
        self._base = base
        self._site = site
        own = base.startswith(f"{site}/")
        path = base[len(site) :].partition("#")[0].partition("?")[0]
        folder = path[: path.rfind("/") + 1]
        self._own = own
        self._folder = folder if own and _PLAIN.fullmatch(folder) else None

    def plain(self, href: str) -> str | None:
        """The path of a link into the site that is spelt canonically as it stands; None: it takes the long way."""
        if self._own and _PLAIN.fullmatch(href):
            return href
        if self._folder and _PLAIN_RELATIVE.fullmatch(href):
            return self._folder + href
        if href.startswith(self._site) and _PLAIN.fullmatch(href, len(self._site)):
            return href[len(self._site) :]
        return None

    def place(self, href: str, length: int) -> tuple[str, str] | None:
        """Site and path of any link; remembered where it does not depend on the page it stands on."""
        if _ABSOLUTE.fullmatch(href):
            return _remembered(href, length)
        if self._own and _ROOTED.fullmatch(href):
            return _remembered(self._site + href, length)
        return _canonical(self._base, href, length)


@lru_cache(maxsize=32_768)
def _remembered(url: str, length: int) -> tuple[str, str] | None:
    return _canonical(url, url, length)


def _canonical(base: str, href: str, length: int) -> tuple[str, str] | None:
    href = strip_html5_whitespace(href)
    if len(href) > length or href.startswith("#"):
        return None
    if _SCHEME.match(href) and not href[:5].lower().startswith(("http:", "https")):
        return None
    try:
        site, path = split(urljoin(base, href))
    except (UrlError, ValueError):
        return None
    return (site, path) if len(site) + len(path) <= length else None


def _base(root: Any, url: str) -> str:
    """What relative links start from: the first `<base>`, unless its scheme is none that links can start from."""
    for element in _BASE(root)[:1]:
        with suppress(ValueError):
            base = urljoin(url, strip_html5_whitespace(element.get("href")))
            if base.lower().startswith(("http:", "https:")):
                return base
    return url


def _parsable(body: bytes) -> bytes:
    """The page up to the first tag that would hold up the parser."""
    if len(body) > _ATTRIBUTES_CHECKED_ABOVE:
        for tag in _TAG.finditer(body):
            start, end = tag.span()
            # An attribute and what parts it from the next take two bytes.
            if end - start > 2 * MOST_ATTRIBUTES and _attributes(tag[0]) > MOST_ATTRIBUTES:
                return body[:start]
    return body


def _attributes(tag: bytes) -> int:
    # The first match is the tag's name.
    return sum(1 for _ in _ATTRIBUTES.finditer(tag)) - 1


def _as_utf8(body: bytes, content_type: str) -> bytes:
    """The page in UTF-8, from the encoding that BOM, header or meta name, else from the likeliest."""
    encoding, bom = read_bom(body)
    if encoding is None:
        encoding = _declared(body, content_type) or _likeliest(body)
    if bom:
        body = body[len(bom) :]
    if encoding == "utf-8":
        return body
    try:
        return to_unicode(body, encoding).encode("utf-8", "replace")
    except (LookupError, UnicodeError):
        # A codec, but none for text: base64, zlib, …
        return to_unicode(body, _likeliest(body)).encode()


def _declared(body: bytes, content_type: str) -> str | None:
    """The encoding that header or meta name; None: they name none that pages are written in."""
    encoding = http_content_type_encoding(content_type)
    if encoding is None:
        encoding = html_body_declared_encoding(body)
        if encoding and encoding.startswith(("utf-16", "utf-32")):
            # Such a page's meta could not have been read.
            encoding = "utf-8"
    return None if encoding is None or encoding.replace("_", "-") in _NO_PAGE_HAS else encoding


def _likeliest(body: bytes) -> str:
    for encoding in ("utf-8", "cp949"):
        try:
            # Not `final`: a body that was cut off may end inside a character.
            codecs.getincrementaldecoder(encoding)().decode(body)
        except UnicodeDecodeError:
            continue
        return encoding
    return "cp1252"
