"""Extracts links from a parsed page and resolves them as browsers do.

Also reads `<base>`, rel=nofollow, rel=canonical and meta robots. Hostile input yields fewer links, never an
exception.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import chain, islice
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from lxml import etree

from crawler import records
from crawler.content.charset import as_utf8, encoding_of
from crawler.content.text import kind_of
from crawler.urls.url import UrlError, is_named_quickly, page_of, resolve

# --- Out-links as 64-bit hashes ---


class OutLinks:
    """Hashes of a site's out-links, cached by page number."""

    def __init__(self, site: str) -> None:
        self._site = site
        self._known = array("Q")  # by number; 0: not computed yet

    def pack(self, numbers: list[int], inside: list[str], outside: Iterable[str]) -> bytes:
        """Hashes of `inside` paths (as written, with page `numbers`, -1: none) and canonical `outside` URLs."""
        known = self._known
        missing = max(numbers, default=-1) + 1 - len(known)
        if missing > 0:
            known.extend(array("Q", bytes(8 * missing)))
        hashes = set(map(records.hash_of, outside))
        for number, path in zip(numbers, inside, strict=True):
            made = known[number] if number >= 0 else 0
            if not made:
                made = records.hash_of(self._site + page_of(path))
                if number >= 0:
                    known[number] = made
            hashes.add(made)
        return records.pack_hashes(hashes)


# Why a page is not parsed completely.
_Bound = Literal["", "bytes", "markup"]
# Returns the page's encoding as `encoding_of` does; called only if a link needs it. None: UTF-8.
Encoding = Callable[[], str] | None

# Links past MAX_LINKS_PER_PAGE that are resolved to count them: about 2 us each.
LOOKED_BEYOND = 20_000
# Maximum overlong links that are counted per page.
_MOST_LONG = 100
# Maximum canonical URLs that are tried per page.
_MOST_NAMED = 10
# One target of an HTTP Link header with parameters (RFC 8288): a comma within < > or " " does not separate. An
# unclosed quote ends the header, to avoid quadratic time.
_LINK = re.compile(r"""<([^<>]*+)>((?:[^",<]++|"(?:[^"\\]|\\.)*+")*+)(?:".*+)?+""", re.DOTALL)
_LINK_REL = re.compile(r""";\s*+rel\s*+=\s*+(?:"([^"]*+)"|([^\s;"]++))""", re.IGNORECASE)
# A link that needs no normalization: optional site, optional `./` or `../`, a path without dot segments, and a query,
# without characters to escape; the fragment is ignored.
_PORT = r":(?!(?:80|443)(?![0-9]))(?:(?:[1-5][0-9]|6[0-4])[0-9]{3}|[1-9][0-9]{0,3})"
_HOST = r"(?:[a-z0-9-]{1,63}+\.)*+(?![0-9])[a-z0-9-]{1,63}+"
_SITE = rf"https?://{_HOST}(?:{_PORT})?+(?=[/?#]|\Z)"
_LETTERS = r"\-A-Za-z0-9_~!$&'()*+,;=:@|\[\]"
_PATH = rf"[{_LETTERS}/]*+(?:(?:\.(?=[{_LETTERS}%])|%(?!2[eE]))[{_LETTERS}/]*+)*+"
_QUERY = rf"[{_LETTERS.replace(chr(39), '')}/.%?^`{{}}\\]*+"
_SIMPLE = re.compile(rf"({_SITE})?+(\./|(?:\.\./)++)?+({_PATH}(?:\?{_QUERY})?+)(?:#.*+)?+", re.DOTALL)
# Maximum length of a host name in DNS.
_LONGEST_SITE = len("http://") + 253
# Links that resolve equally on all pages of a site: no white space, no dot segments.
_ABSOLUTE = re.compile(r"https?://(?![/?#])(?!.*/\.)[!-~]+")
_ROOTED = re.compile(r"/(?![/\\])(?!.*/\.)[!-~]*")
_REMEMBERED_LENGTH = 300
# Work limit for unusual links of one page: half a second. Punycode costs forty times as much per letter as other
# text, an escape ten times.
_MOST_WORK = 10_000_000
# The same for a sitemap: enough for 50,000 URLs of 250 characters in escapes of a foreign alphabet.
_MOST_WORK_OF_FILE = 60_000_000
_WORK_OF_ANY = 60
_WORK_OF_FOREIGN_LETTER = 40
_WORK_OF_ESCAPE = 10
# Extra work of a link with escapes that canonical paths change.
_OTHER_ESCAPE = re.compile("%(?!20|[89A-F][0-9A-F])")
_WORK_OF_OTHERS = 400
# Unusual queries are canonicalized twice; counted per letter if the page's links are long in total.
_LONG_TOGETHER = 300_000
_WORK_OF_QUERY = 18
_HOST_AT = re.compile(r"(?:https?:)?+//([^/?\\]*+)", re.IGNORECASE)
_OTHER_SCHEME = re.compile(r"[\x00-\x20]*+(?!https?:)[a-z][a-z0-9+.-]*+:", re.IGNORECASE)
_LONGEST_BASE = 65_536
# Maximum characters of all links of a page, assuming each as long as its base.
_MOST_CHARACTERS = 10_000_000
# Bases of these schemes make relative links unusable; bases of other schemes are ignored.
_OTHER_BASES = ("ftp:", "file:")
_WHITE = " \t\n\f\r"
# Meta refresh: seconds, then the URL, perhaps in quotes.
_REFRESH = re.compile(
    r"""\s*+[0-9.]++(?=[\s;,])\s*+[;,]?+\s*+(?:url\s*+=\s*+)?+(?:'([^']++)|"([^"]++)|([^'"].*+))""",
    re.IGNORECASE | re.DOTALL,
)
# Before a colon in X-Robots-Tag: a crawler's name, or a directive with a value.
_CRAWLER_NAME = re.compile(r"[\w./-]++")
_WITH_VALUE = ("unavailable_after", "max-")
# The parser is quadratic in a tag's attributes: 5,000 take 0.05 s, 50,000 two seconds. A page is truncated before a
# tag with more, or when the sum of squares reaches 0.2 s.
MOST_ATTRIBUTES = 5_000
_MOST_SQUARES = 4 * MOST_ATTRIBUTES**2
# Limits for the whole page: a tag or attribute takes about 200 bytes and 0.4 us. Ten megabytes of source code with a
# link on each word have 600,000 tags.
MOST_TAGS = 750_000
MOST_ATTRIBUTES_OF_ALL = 1_000_000
_BLOCK = 16_384
# Separators of attributes; a page with fewer of these has fewer attributes.
_SEPARATORS = (b" ", b"\n", b"\r", b"\t", b"\f", b"/", b"=")
# Size below which a page cannot have too many attributes (0.2 s at worst), and the same for a tag of a larger page: a
# million bytes of those take 0.3 s.
_ATTRIBUTES_CHECKED_ABOVE = 65_536
_TAGS_CHECKED_ABOVE = 1_000
_ATTRIBUTE = rb"""[\s/]*+=?[^\s/>=]++(?:\s*+=\s*+(?:"[^"]*+"|'[^']*+'|[^\s>]*+))?+"""
# A tag consists of these pieces only, so matching is linear.
_PIECES = re.compile(rb"(" + _ATTRIBUTE + rb")|[\s/=]++")
_TAG = re.compile(rb"<[a-zA-Z](?:" + _ATTRIBUTE + rb"|[\s/=]++)*+")
# Pages are converted to UTF-8: the parser stops at the first bad byte of other encodings. Without collect_ids it is
# an eighth faster. It stops at depth 256; `huge_tree` would allow 2,048, where end tags and XPath take seconds.
_PARSER: Any = etree.HTMLParser(
    encoding="utf-8", huge_tree=False, no_network=True, remove_comments=True, collect_ids=False
)


class Parsed(NamedTuple):
    """A parsed page."""

    root: Any  # an lxml element, or None
    left_out: str = ""  # why parsing is incomplete; empty if complete
    bound: _Bound = ""  # the same, for crawler.left_out


class Written(NamedTuple):
    """Link targets as written."""

    hrefs: list[str]  # refresh targets, then anchors and frames in document order
    iframes: list[str]


class Links(NamedTuple):
    """Resolved links of one page, without repetitions."""

    inside: list[str]  # paths of the same site, iframes last
    outside: dict[str, list[str]]  # other sites -> paths
    # The same for iframes: widgets (videos, maps, counters) are followed, but do not count as links.
    framed: Mapping[str, list[str]] = MappingProxyType({})
    left_out: str = ""  # why links are missing; empty if complete
    given_up: int = 0  # links skipped since they take too long
    # Sites and paths past the limit, the first LOOKED_BEYOND.
    beyond: Mapping[str, list[str]] = MappingProxyType({})
    # Overlong links as written -> the first part of their URL.
    too_long: Mapping[str, str] = MappingProxyType({})


def document(body: bytes, content_type: str) -> Any:
    """The parsed page, or None if it is empty."""
    return parsed(body, lambda: encoding_of(body, content_type), len(body)).root


def parsed(body: bytes, encoding: Callable[[], str], most: int) -> Parsed:
    """Parse at most `most` bytes."""
    left_out = ""
    bound: _Bound = ""
    if len(body) > most:
        left_out, bound = f"parsed the first {most:,} of {len(body):,} bytes (MAX_HTML_BYTES)", "bytes"
    body = body[:most]
    if not body.strip():
        return Parsed(None)
    try:
        # A NUL would end an attribute; without NULs even undeclared UTF-16 gives its links.
        text = as_utf8(body, encoding()).replace(b"\0", b"")
        end, of_what = _parsable(text)
        if end < len(text):
            left_out, bound = f"parsed the first {end:,} bytes: too many {of_what}", "markup"
        root = etree.fromstring(text[:end], _PARSER)
    except (etree.XMLSyntaxError, ValueError):
        return Parsed(None)
    if not left_out and (stopped := _parser_stopped()):
        left_out, bound = stopped, "markup"
    return Parsed(root, left_out, bound)


def _parser_stopped() -> str:
    log = _PARSER.error_log
    if not log or log[-1].type != etree.ErrorTypes.ERR_RESOURCE_LIMIT:
        return ""
    if "depth" in log[-1].message:
        return "parsed to depth 256: elements are nested deeper"
    # Size in UTF-8, up to three times the original.
    return "parsed up to a text or attribute value above 10 MB"


def robots_directives(root: Any, header: str, name: str = "") -> set[str]:
    """Directives of meta robots and X-Robots-Tag for all or for `name`, in lower case."""
    name = name.lower()
    words = _words_of_header(header.lower(), name)
    # `iter`, since XPath is ten times slower without matches.
    for element in root.iter("meta") if root is not None else ():
        if element.get("name", "").lower() in ("robots", name or "robots"):
            words.update(element.get("content", "").lower().replace(",", " ").split())
    return words


def _words_of_header(header: str, name: str) -> set[str]:
    """A crawler's name and a colon address the rest of a line."""
    words: set[str] = set()
    for line in header.split("\n"):
        addressee = ""
        for part in line.split(","):
            before, colon, behind = part.partition(":")
            before = before.strip()
            if colon and _CRAWLER_NAME.fullmatch(before) and not before.startswith(_WITH_VALUE):
                addressee, part = before, behind
            if addressee in ("", name):
                words.update(part.split())
    return words


def links(root: Any, url: str, site: str, most: int, length: int, encoding: Encoding = None) -> Links:
    """At most `most` links besides the page itself, each of at most `length` characters."""
    return placed(written(root), root, url, site, most, length, encoding)


def placed(
    found: Written, root: Any, url: str, site: str, most: int, length: int, encoding: Encoding = None
) -> Links:
    """Resolve links as written."""
    if not any(found):
        return Links([], {})
    base = _Base(_base(root, url, encoding), site, length, encoding)
    base.counts_queries = sum(len(href) + base.reach for href in chain(*found)) > _LONG_TOGETHER
    places = _Places(url, site, min(most, _MOST_CHARACTERS // base.reach))
    outside: dict[str, dict[str, None]] = {}
    framed: dict[str, dict[str, None]] = {}
    places.take(found.hrefs, base.place, outside)
    places.take(found.iframes, base.place_of_page, framed)
    if places.left:
        why = "MAX_LINKS_PER_PAGE" if places.most == most else "their base URL is long"
        left_out = f"first {places.most:,} distinct links, {places.left:,} left out ({why})"
    else:
        left_out = f"{base.given_up:,} links left out: too slow to resolve" if base.given_up else ""
    given_up, beyond = base.given_up, _Places("", "", LOOKED_BEYOND)
    of_sites: dict[str, dict[str, None]] = {}
    beyond.take(places.beyond, base.place, of_sites)
    found_out = (_listed(outside), _listed(framed), left_out, given_up, _listed(of_sites), base.too_long)
    return Links(list(places.inside), *found_out)


def written(root: Any, refresh: str = "") -> Written:
    """Refresh targets, anchors and frames as written, without rel=nofollow."""
    found = dict.fromkeys(_sent_on(refresh) + _refreshes(root))
    iframes: dict[str, None] = {}
    for element in root.iter("a", "area", "frame", "iframe") if root is not None else ():
        href, into = element.get("href"), found
        if href is None:
            href, into = _framed(element), iframes if element.tag == "iframe" else found
            if href is None:
                continue
        if "#" in href:
            page = href[: href.index("#")]
            if not page:
                continue
            # White space before a fragment belongs to the path; at the end it does not.
            href = href if page[-1].isspace() else page
        rel = element.get("rel")
        # Some pages separate by commas.
        if rel is None or "nofollow" not in rel.lower().replace(",", " ").split():
            into[href] = None
    return Written(list(found), list(iframes))


def _framed(element: Any) -> str | None:
    """None for other elements and for `srcdoc`."""
    if element.tag in ("frame", "iframe") and element.get("srcdoc") is None:
        src: str | None = element.get("src")
        return src
    return None


def _refreshes(root: Any) -> list[str]:
    """Of meta elements in the head, in `<noscript>` too."""
    for head in root.iterchildren("head") if root is not None else ():
        for part in (head, *head.iterchildren("noscript")):
            for element in part.iterchildren("meta"):
                if element.get("http-equiv", "").strip().lower() == "refresh":
                    return _sent_on(element.get("content", ""))
    return []


def _sent_on(refresh: str) -> list[str]:
    found = _REFRESH.match(refresh)
    return [found[1] or found[2] or found[3]] if found else []


def named_canonical(root: Any, header: str, url: str, length: int, encoding: Encoding = None) -> str:
    """The canonical URL as written; empty if it is absent, unusable or the page itself.

    The head's `<link>` elements come before the HTTP Link `header`.
    """
    own: tuple[str, str] | None = None
    for base, href in islice(_canonical_hrefs(root, header, url, encoding), _MOST_NAMED):
        if href == url:
            return ""
        own = own or parts(url)
        place = _Base(base, own[0], length, encoding).place(href)
        if place is not None:
            same = place[0] == own[0] and page_of(place[1]) == page_of(own[1])
            return "" if same else "".join(place)
    return ""


def parts(url: str) -> tuple[str, str]:
    """Site and path of a resolved URL."""
    start = url.index("/", len("https://"))
    return url[:start], url[start:]


def canonical_url(site: str, written: str) -> str:
    """The canonical URL of a path as written."""
    return site + page_of(written)


def target(url: str, location: str, length: int) -> tuple[str, str] | None:
    """Site and path of a Location header, or None."""
    return _resolved(_place_of(url), _as_sent(location), length, None)


def places(hrefs: list[str], url: str, site: str, length: int) -> tuple[list[tuple[str, str] | None], int]:
    """Resolve URLs of a text file; and how many took too long."""
    base = _Base(url, site, length, None, _MOST_WORK_OF_FILE)
    return [base.place(href) for href in hrefs], base.given_up


class _Places:
    """Distinct targets up to a limit; counts the rest."""

    def __init__(self, url: str, site: str, most: int) -> None:
        self.inside: dict[str, None] = {}
        self.most = most
        self.left = 0
        self.beyond: list[str] = []  # the first ones past the limit
        self._site = site
        self._page = url[len(site) :]
        self._outside = 0

    def take(
        self,
        hrefs: list[str],
        place_of: Callable[[str], tuple[str, str] | None],
        outside: dict[str, dict[str, None]],
    ) -> None:
        """Add targets; other sites' to `outside`."""
        rest = iter(hrefs)
        # In batches that fit in any case, so that counting per link is not necessary.
        while some := list(islice(rest, self._room)):
            for href in some:
                place = place_of(href)
                if place is None:
                    continue
                if place[0] == self._site:
                    self.inside[place[1]] = None
                elif place[1] not in (paths := outside.setdefault(place[0], {})):
                    paths[place[1]] = None
                    self._outside += 1
        looked_at = list(islice(rest, LOOKED_BEYOND - len(self.beyond)))
        self.beyond += looked_at
        self.left += len(looked_at) + sum(1 for _ in rest)

    @property
    def _room(self) -> int:
        return self.most - len(self.inside) - self._outside + (self._page in self.inside)


def _listed(sites: dict[str, dict[str, None]]) -> dict[str, list[str]]:
    return {site: list(paths) for site, paths in sites.items()}


class _Base:
    """Resolves links against a base URL, with a fast path that equals `resolve`."""

    def __init__(self, base: str, site: str, length: int, encoding: Encoding, work: int = _MOST_WORK) -> None:
        # With a longer base only links with a site of their own are usable.
        self._base = _place_of(base, site) if len(base) <= length else None
        self._length = length
        self._encoding = encoding
        self._work = work
        self.counts_queries = False  # the work limit includes canonicalizing queries
        self.given_up = 0  # links skipped since the work limit was reached
        # A shorter link never becomes too long: a letter becomes four escapes at most.
        self._suspicious = (length - len(base)) // 12
        # Overlong links -> the first part of their URL.
        self.too_long: dict[str, str] = {}
        self._site: str | None
        self._site, path = self._base or (None, "")
        self._page = path.partition("?")[0]
        self._folder = self._page[: self._page.rfind("/") + 1]

    def place(self, href: str) -> tuple[str, str] | None:
        """Site and path of a link, or None."""
        place = self._place(href)
        if not self.counts_queries or place is None or "?" not in place[1] or is_named_quickly(place[1]):
            return place
        self._work -= _WORK_OF_QUERY * (len(place[1]) - place[1].index("?"))
        if self._work >= 0:
            return place
        self.given_up += 1
        return None

    def _place(self, href: str) -> tuple[str, str] | None:
        if href.startswith("#"):
            return None
        if "%" in href:
            # Canonicalizing escapes is slow (crawler.urls.url).
            self._work -= _WORK_OF_ESCAPE * href.count("%") + (
                _WORK_OF_OTHERS if _OTHER_ESCAPE.search(href) else 0
            )
            if self._work < 0:
                self.given_up += 1
                return None
        simple = _SIMPLE.fullmatch(href)
        if simple is None or len(href) > self._length:
            return self._long_way(href)
        site, up, path = simple.groups()
        if site is not None:
            if len(site) > _LONGEST_SITE or up:
                return self._long_way(href)
            path = path if path.startswith("/") else f"/{path}"
        else:
            site = self._site
            if path.startswith("/"):
                if up or path.startswith("//"):
                    return self._long_way(href)
            elif site is None or not path or ":" in path:
                return self._long_way(href)
            elif up:
                path = self._above(up) + path
            else:
                path = (self._page if path.startswith("?") else self._folder) + path
        if site is None:
            return None
        if len(site) + len(path) <= self._length:
            return site, path
        self._note_long(href)
        return None

    def _above(self, up: str) -> str:
        folder = self._folder
        for _ in range(len(up) // len("../")):
            folder = folder[: folder.rfind("/", 0, -1) + 1] or "/"
        return folder

    @property
    def reach(self) -> int:
        """Characters that the base adds to a link."""
        return max(len(self._folder), 1)

    def place_of_page(self, href: str) -> tuple[str, str] | None:
        """None for media files too."""
        place = self.place(href)
        return None if place is None or kind_of(place[1]) else place

    def _long_way(self, href: str) -> tuple[str, str] | None:
        """Any link; cached if it is the same on all pages of the site."""
        if _OTHER_SCHEME.match(href):
            return None
        if self._work < 0:
            self.given_up += 1
            return None
        self._work -= _work_of(href)
        # Bound the cache's size; and a prepended site must not make a link too long.
        brief = len(href) <= min(_REMEMBERED_LENGTH, self._length - _LONGEST_SITE)
        if brief and _ABSOLUTE.fullmatch(href):
            return _remembered(href, self._length)
        if brief and self._site and _ROOTED.fullmatch(href):
            return _remembered(self._site + href, self._length)
        place = _resolved(self._base, href, self._length, self._encoding)
        if place is None and len(href) >= self._suspicious:
            self._note_long(href)
        return place

    def _note_long(self, href: str) -> None:
        if len(self.too_long) >= _MOST_LONG or self._work < 0:
            return
        start = href[: 2 * self._length]
        self._work -= _work_of(start)
        place = _resolved(self._base, start, sys.maxsize, self._encoding)
        if place is not None and len(url := "".join(place)) > self._length:
            self.too_long[href] = url


def _work_of(href: str) -> int:
    """In units of about 50 ns."""
    host = _HOST_AT.match(href)
    foreign = 0 if host is None or host[1].isascii() else len(host[1])
    return _WORK_OF_ANY + len(href) + _WORK_OF_FOREIGN_LETTER * foreign


def _place_of(url: str, site: str = "") -> tuple[str, str] | None:
    """Fast for simple URLs of `site`; None if it is not http or https."""
    if site and url.startswith(f"{site}/") and (simple := _SIMPLE.fullmatch(url, len(site))):
        return site, simple[3]
    try:
        return resolve(url)
    except UrlError:
        return None


def _canonical_hrefs(root: Any, header: str, url: str, encoding: Encoding) -> Iterator[tuple[str, str]]:
    """Base and href of each."""
    # Only in the head: the body may have users' content.
    for head in root.iterchildren("head") if root is not None else ():
        for element in head.iterchildren("link"):
            if "canonical" in element.get("rel", "").lower().split() and element.get("href") is not None:
                yield _base(root, url, encoding), element.get("href")
    if "canonical" in header.lower():
        for href, parameters in _LINK.findall(header):
            # The first rel counts; a link with an anchor is about another page.
            rel = _LINK_REL.search(parameters)
            named = rel is not None and "canonical" in (rel[1] or rel[2] or "").lower().split()
            if named and "anchor" not in parameters.lower():
                yield url, _as_sent(href)


def _as_sent(text: str) -> str:
    """Header text decoded as Latin-1 is usually UTF-8."""
    try:
        return text.encode("latin-1").decode()
    except UnicodeError:
        return text


@lru_cache(maxsize=32_768)
def _remembered(url: str, length: int) -> tuple[str, str] | None:
    return _resolved(None, url, length, None)


def _resolved(
    base: tuple[str, str] | None, href: str, length: int, encoding: Encoding
) -> tuple[str, str] | None:
    href = href.strip(_WHITE)
    if len(href) > length or href.startswith("#"):
        return None
    try:
        site, path = resolve(href, base, _of(href, encoding))
    except UrlError:
        return None
    return (site, path) if len(site) + len(path) <= length else None


def _base(root: Any, url: str, encoding: Encoding) -> str:
    """The first usable `<base>`, else `url`; empty if it is too long."""
    bases = root.iter("base") if root is not None else ()
    href = next((found for element in bases if (found := element.get("href")) is not None), None)
    if href is None:
        return url
    if len(href) > _LONGEST_BASE:
        return ""
    with suppress(UrlError):
        return "".join(resolve(href, _place_of(url), _of(href, encoding)))
    return href if href.strip(_WHITE).lower().startswith(_OTHER_BASES) else url


def _of(href: str, encoding: Encoding) -> str | None:
    """Encoding for a link's query; None: UTF-8."""
    if encoding is None or href.isascii():
        return None
    name = encoding()
    # Escapes are never in these.
    return None if name.startswith(("utf-16", "utf-32")) else name


def _parsable(body: bytes) -> tuple[int, str]:
    """How many bytes are safe to parse, and what exceeds its limit."""
    end = _end_of_tags(body)
    of_attributes = _end_of_attributes(body[:end])
    return (of_attributes, "attributes") if of_attributes < end else (end, "tags")


def _end_of_tags(body: bytes) -> int:
    tags = 0
    for start in range(0, len(body) if len(body) > MOST_TAGS else 0, _BLOCK):
        tags += body.count(b"<", start, start + _BLOCK)
        if tags > MOST_TAGS:
            return start
    return len(body)


def _end_of_attributes(body: bytes) -> int:
    if len(body) <= _ATTRIBUTES_CHECKED_ABOVE:
        return len(body)
    crowded = len(body) > MOST_ATTRIBUTES_OF_ALL < sum(map(body.count, _SEPARATORS))
    checked_above = 0 if crowded else _TAGS_CHECKED_ABOVE
    squares = found = 0
    for tag in _TAG.finditer(body):
        start, end = tag.span()
        if end - start > checked_above:
            attributes = _attributes(tag[0])
            found += attributes
            squares += attributes**2 if end - start > _TAGS_CHECKED_ABOVE else 0
            if (
                attributes > MOST_ATTRIBUTES
                or squares > _MOST_SQUARES
                or (crowded and found > MOST_ATTRIBUTES_OF_ALL)
            ):
                return start
    return len(body)


def _attributes(tag: bytes) -> int:
    # The first piece is the tag's name.
    return sum(1 for piece in _PIECES.finditer(tag) if piece[1]) - 1
