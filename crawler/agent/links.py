"""Links of a page: found in the parsed document, made canonical, told apart by site. No Request is ever made here.

One parse per page serves links and attributes alike. A page's `<base>`, rel=nofollow, rel=canonical and meta robots
are read here. Hostile input gives fewer links, never an exception.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit, uses_relative

from lxml import etree
from w3lib.html import strip_html5_whitespace
from w3lib.url import safe_url_string

from crawler.agent.charset import as_utf8, encoding_of
from crawler.sites.canonical import UrlError, split

# Tells what a page is written in, as `encoding_of` does; asked only if a link needs it. None: UTF-8.
Encoding = Callable[[], str] | None

# Of the URLs that a page names as canonical, how many are looked at for one that leads anywhere.
_MOST_NAMED = 10
# One target of an HTTP Link header and its parameters (RFC 8288): a comma within < > or " " parts no two of them.
_LINK = re.compile(r"""<([^<>]*+)>((?:[^",<]++|"(?:[^"\\]|\\.)*+")*+)""", re.DOTALL)
_LINK_REL = re.compile(r""";\s*+rel\s*+=\s*+(?:"([^"]*+)"|([^\s;"]++))""", re.IGNORECASE)
# A link that canonical URLs spell alike, but for the order of its query and for its fragment: perhaps a site, perhaps
# `./` or `../`, a path without dot segments, a query. Of escapes those that stay: a space's in the path, and bytes
# from 80.
_PORT = r":(?!(?:80|443)(?![0-9]))(?:(?:[1-5][0-9]|6[0-4])[0-9]{3}|[1-9][0-9]{0,3})"
_SITE = rf"https?://[a-z0-9-]{{1,63}}+(?:\.[a-z0-9-]{{1,63}}+)*+(?:{_PORT})?+(?=[/?#]|\Z)"
_LETTERS = r"\-A-Za-z0-9_~!$&'()*+,=:@"
_PATH = rf"[{_LETTERS}/]*+(?:(?:\.(?=[{_LETTERS}%])|%(?:20|[89A-F][0-9A-F]))[{_LETTERS}/]*+)*+"
_WORD = r"[A-Za-z0-9_.~+-]*+(?:%[89A-F][0-9A-F][A-Za-z0-9_.~+-]*+)*+"
_FIELD = rf"{_WORD}(?:={_WORD})?+"
_SIMPLE = re.compile(
    rf"({_SITE})?+(\./|(?:\.\./)++)?+({_PATH})(?:\?({_FIELD}(?:&{_FIELD})*+))?+(?:#.*+)?+", re.DOTALL
)
_SIMPLE_PATH = re.compile(_PATH)
# DNS allows a host no more.
_LONGEST_SITE = len("http://") + 253
# Brings fields of a query into the order of their names, then values, byte by byte once they are unescaped.
_FIELD_ORDER = str.maketrans({"=": "\0", "+": " ", "%": "\x7f"})
# Links that mean the same on every page of a site: no white space, no dot segments.
_ABSOLUTE = re.compile(r"https?://(?![/?#])(?!.*/\.)[!-~]+")
_ROOTED = re.compile(r"/(?!/)(?!.*/\.)[!-~]*")
_REMEMBERED_LENGTH = 300
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:")
# A meta refresh: seconds, and where one is sent then, maybe in quotes.
_REFRESH = re.compile(
    r"""\s*+[0-9.]++(?=[\s;,])\s*+[;,]?+\s*+(?:url\s*+=\s*+)?+(?:'([^']++)|"([^"]++)|([^'"].*+))""",
    re.IGNORECASE | re.DOTALL,
)
# In X-Robots-Tag, from the name of one crawler to the end of the line: said to that one, not to everybody.
_TO_ONE_CRAWLER = re.compile(
    r"(?:^|,)[ \t]*(?!(?:unavailable_after|max-[a-z-]+)\s*:)[\w./-]+\s*:.*", re.MULTILINE
)
# The parser's work grows with the square of a tag's attributes: 5,000 cost it 0.05 s, 50,000 two. A page is cut off
# before a tag with more, or when such squares have come to 0.2 s.
MOST_ATTRIBUTES = 5_000
_MOST_SQUARES = 4 * MOST_ATTRIBUTES**2
# Bytes of a page that cannot hold enough attributes to matter (0.2 s at the worst), and of a tag in a larger one: a
# million bytes of those cost 0.3 s.
_ATTRIBUTES_CHECKED_ABOVE = 65_536
_TAGS_CHECKED_ABOVE = 1_000
_ATTRIBUTE = rb"""[\s/]*+=?[^\s/>=]++(?:\s*+=\s*+(?:"[^"]*+"|'[^']*+'|[^\s>]*+))?+"""
_ATTRIBUTES = re.compile(_ATTRIBUTE)
_TAG = re.compile(rb"<[a-zA-Z](?:" + _ATTRIBUTE + rb"|[\s/=]++)*+")
# Whatever a page is written in, the parser gets UTF-8: it stops at the first bad byte of other encodings. Its table of
# ids, of use to XPath's id() alone, would take an eighth of its time.
# It stops at elements 256 deep. With `huge_tree` it would go on to 2,048, where end tags and XPath cost seconds.
_PARSER: Any = etree.HTMLParser(
    encoding="utf-8", huge_tree=False, no_network=True, remove_comments=True, collect_ids=False
)


class Parsed(NamedTuple):
    """A page as the parser gave it."""

    root: Any  # an lxml element; None: there is nothing to parse
    left_out: str = ""  # why not all of it was parsed, in words; empty: all was


class Links(NamedTuple):
    """Canonical links of one page."""

    inside: list[str]  # paths of the same site, distinct, in document order
    outside: dict[str, list[str]]  # other sites -> paths


def document(body: bytes, content_type: str) -> Any:
    """The parsed page (an lxml element), or None where there is nothing to parse."""
    return parsed(body, lambda: encoding_of(body, content_type), len(body)).root


def parsed(body: bytes, encoding: Callable[[], str], most: int) -> Parsed:
    """The first `most` bytes of a page of which it is known, or to be found out, what it is written in."""
    left_out = f"parsed as far as {most:,} of {len(body):,} bytes" if len(body) > most else ""
    body = body[:most]
    if not body.strip():
        return Parsed(None)
    try:
        # A zero would end an attribute; without them even UTF-16 that nothing tells gives its links.
        text = as_utf8(body, encoding()).replace(b"\0", b"")
        end = _parsable(text)
        if end < len(text):
            left_out = f"parsed as far as its attributes are not too many: {end:,} bytes"
        root = etree.fromstring(text[:end], _PARSER)
    except (etree.XMLSyntaxError, ValueError):
        return Parsed(None)
    return Parsed(root, left_out or _told_by_parser())


def _told_by_parser() -> str:
    """What the parser says last if it has stopped in the middle of the page."""
    log = _PARSER.error_log
    stopped = bool(log) and log[-1].type == etree.ErrorTypes.ERR_RESOURCE_LIMIT
    return "parsed as far as its elements are 256 deep" if stopped else ""


def robots_directives(root: Any, header: str, name: str = "") -> set[str]:
    """Words of meta robots and X-Robots-Tag (one line per header) for everybody or for `name`, in lower case."""
    header, name = header.lower(), name.lower()
    words = set(re.split(r"[\s,]+", _TO_ONE_CRAWLER.sub("", header)))
    if name and name in header:
        for said in re.findall(rf"(?:^|,)[ \t]*{re.escape(name)}\s*:(.*)", header, re.MULTILINE):
            words |= set(re.split(r"[\s,]+", _TO_ONE_CRAWLER.sub("", said)))
    # Here and below by `iter`, since XPath takes ten times as long where there is nothing to be found.
    for element in root.iter("meta") if root is not None else ():
        if element.get("name", "").lower() in ("robots", name or "robots"):
            words |= set(re.split(r"[\s,]+", element.get("content", "").lower()))
    return words - {""}


def links(root: Any, url: str, site: str, most: int, length: int, encoding: Encoding = None) -> Links:
    """The page's links: the first `most`, each at most `length` characters as a URL."""
    return placed(hrefs(root, most), root, url, site, length, encoding)


def placed(
    found: Iterable[str], root: Any, url: str, site: str, length: int, encoding: Encoding = None
) -> Links:
    """Where `hrefs` of the page lead, as far as they lead to pages."""
    inside: dict[str, None] = {}
    outside: dict[str, list[str]] = {}
    found = list(found)
    if not found:
        return Links([], outside)
    base = _Base(_base(root, url, encoding), site, length, encoding)
    for href in found:
        place = base.place(href)
        if place is None:
            continue
        if place[0] == site:
            inside[place[1]] = None
        else:
            outside.setdefault(place[0], []).append(place[1])
    return Links(list(inside), outside)


def hrefs(root: Any, most: int, refresh: str = "") -> list[str]:
    """What the first `most` anchors of the page point to, as written, those left out that say nofollow.

    Before them where the page itself sends its visitors on: by the HTTP header `refresh`, or a meta one in its head.
    """
    found = _sent_on(refresh) + _refreshes(root)
    for element in root.iter("a", "area") if root is not None else ():
        href = element.get("href")
        if href is None:
            continue
        if most <= 0:
            break
        most -= 1
        rel = element.get("rel")
        # Some part them by commas.
        if rel is None or "nofollow" not in rel.lower().replace(",", " ").split():
            found.append(href)
    return found


def _refreshes(root: Any) -> list[str]:
    for head in root.iterchildren("head") if root is not None else ():
        for element in head.iterchildren("meta"):
            if element.get("http-equiv", "").strip().lower() == "refresh":
                return _sent_on(element.get("content", ""))
    return []


def _sent_on(refresh: str) -> list[str]:
    told = _REFRESH.match(refresh)
    return [told[1] or told[2] or told[3]] if told else []


def named_canonical(root: Any, header: str, url: str, length: int, encoding: Encoding = None) -> str:
    """The URL that a page names as the one to take for it; empty: none that can be fetched, or its own.

    The first rel=canonical that leads anywhere counts, of the head's `<link>` elements and then of the HTTP Link
    header (`header`, several lines joined by commas). `url` is the page's, canonical.
    """
    for base, href in islice(_canonical_hrefs(root, header, url, encoding), _MOST_NAMED):
        if href == url:
            return ""
        place = _Base(base, parts(url)[0], length, encoding).place(href)
        if place is not None:
            named = "".join(place)
            return "" if named == url else named
    return ""


def parts(url: str) -> tuple[str, str]:
    """Site and path of a URL that is canonical."""
    start = url.index("/", len("https://"))
    return url[:start], url[start:]


def target(url: str, location: str, length: int) -> tuple[str, str] | None:
    """Site and path that a Location (its bytes read as Latin-1) points to; None: nothing that can be fetched."""
    return _canonical(url, _as_sent(location), length, None)


def places(hrefs: list[str], url: str, site: str, length: int) -> list[tuple[str, str] | None]:
    """Site and path of each, as `target`, of text that a file at `url` of `site` has."""
    base = _Base(url, site, length, None)
    return [base.place(href) for href in hrefs]


class _Base:
    """What a page's links start from, with a short way for the links that most pages have.

    The short way gives what `_canonical` gives, or leaves it to that; a test compares them on real and made-up links.
    """

    def __init__(self, base: str, site: str, length: int, encoding: Encoding) -> None:
        self._base = base
        self._length = length
        self._encoding = encoding
        # The site that links without one lead to; None: not spelt simply.
        self._site, path = _simple_site(base, site)
        folder = path[: path.rfind("/") + 1]
        # None: so odd that the long way must tell where links from here lead.
        self._page = path if _is_simple(path) else None
        self._folder = folder if _is_simple(folder) else None

    def place(self, href: str) -> tuple[str, str] | None:
        """Site and path of a link; None: it leads nowhere."""
        if href.startswith("#"):
            return None
        simple = _SIMPLE.fullmatch(href)
        if simple is None or len(href) > self._length:
            return self._long_way(href)
        site, up, path, query = simple.groups()
        if site is None:
            site = self._site
            path = self._joined(up, path, query)
        elif len(site) > _LONGEST_SITE or path.startswith("//"):
            return self._long_way(href)
        if site is None or path is None:
            return self._long_way(href)
        path = path or "/"
        if query:
            path += _ordered(query)
        return (site, path) if len(site) + len(path) <= self._length else None

    def _joined(self, up: str | None, path: str, query: str | None) -> str | None:
        """The path that a simple link without a site leads to, query left out; None: the long way knows."""
        if path.startswith("/"):
            return None if up or path.startswith("//") else path
        folder = self._folder
        if folder is None or ":" in path or "//" in path:
            return None
        if up:
            for _ in range(len(up) // len("../")):
                folder = folder[: folder.rfind("/", 0, -1) + 1] or "/"
        elif not path:
            return self._page if query else None
        return folder + path

    def _long_way(self, href: str) -> tuple[str, str] | None:
        """Any link; remembered where it means the same on every page of the site."""
        # A cache of long ones would be large; and a site in front must not make one too long.
        brief = len(href) <= min(_REMEMBERED_LENGTH, self._length - _LONGEST_SITE)
        if brief and _ABSOLUTE.fullmatch(href):
            return _remembered(href, self._length)
        if brief and self._site and _ROOTED.fullmatch(href):
            return _remembered(self._site + href, self._length)
        return _canonical(self._base, href, self._length, self._encoding)


def _simple_site(base: str, site: str) -> tuple[str | None, str]:
    """The site of an absolute URL if it is `site` or spelt simply, and its path without the query."""
    if base.startswith(f"{site}/"):
        rest = base[len(site) :]
    elif (simple := _SIMPLE.match(base)) and simple[1] and len(simple[1]) <= _LONGEST_SITE:
        site, rest = simple[1], base[simple.end(1) :]
    else:
        return None, ""
    return site, rest.partition("#")[0].partition("?")[0] or "/"


def _is_simple(path: str) -> bool:
    """Whether links can be joined to a path as it stands; urljoin would take a second slash away."""
    return path.startswith("/") and "//" not in path and _SIMPLE_PATH.fullmatch(path) is not None


def _ordered(query: str) -> str:
    """A simple query as canonical URLs have it: each field with its equals sign, in order; empty: no field."""
    if "&" not in query:
        return f"?{query}" if "=" in query else f"?{query}="
    fields = [field if "=" in field else f"{field}=" for field in query.split("&") if field]
    if not fields:
        return ""
    fields.sort(key=_field_order)
    return f"?{'&'.join(fields)}"


def _field_order(field: str) -> str:
    return field.translate(_FIELD_ORDER)


def _canonical_hrefs(root: Any, header: str, url: str, encoding: Encoding) -> Iterator[tuple[str, str]]:
    """All that a page names as canonical: what it starts from, and how it is written."""
    # Only in the head, where none but the page's author writes.
    for head in root.iterchildren("head") if root is not None else ():
        for element in head.iterchildren("link"):
            if "canonical" in element.get("rel", "").lower().split() and element.get("href") is not None:
                yield _base(root, url, encoding), element.get("href")
    if "canonical" in header.lower():
        for href, parameters in _LINK.findall(header):
            # The first rel counts; a link with an anchor is said of another page.
            rel = _LINK_REL.search(parameters)
            named = rel is not None and "canonical" in (rel[1] or rel[2] or "").lower().split()
            if named and "anchor" not in parameters.lower():
                yield url, _as_sent(href)


def _as_sent(text: str) -> str:
    """A header's bytes that were read as Latin-1: what servers send unescaped is UTF-8."""
    try:
        return text.encode("latin-1").decode()
    except UnicodeError:
        return text


@lru_cache(maxsize=32_768)
def _remembered(url: str, length: int) -> tuple[str, str] | None:
    return _canonical(url, url, length, None)


def _canonical(base: str, href: str, length: int, encoding: Encoding) -> tuple[str, str] | None:
    href = strip_html5_whitespace(href)
    if len(href) > length or href.startswith("#"):
        return None
    if _SCHEME.match(href) and not href[:5].lower().startswith(("http:", "https")):
        return None
    try:
        site, path = split(urljoin(base, href), _of(href, encoding))
    except (UrlError, ValueError):
        return None
    return (site, path) if len(site) + len(path) <= length else None


def _base(root: Any, url: str, encoding: Encoding) -> str:
    """What relative links start from: the first `<base>`, unless it is of a kind that nothing is relative to."""
    bases = root.iter("base") if root is not None else ()
    href = next((found for element in bases if (found := element.get("href")) is not None), None)
    if href is not None:
        with suppress(ValueError):
            href = strip_html5_whitespace(href)
            base = urljoin(url, safe_url_string(href, _of(href, encoding) or "utf-8"))
            if urlsplit(base).scheme in uses_relative:
                return base
    return url


def _of(href: str, encoding: Encoding) -> str | None:
    """What to escape the query of a link in; None: UTF-8, or it makes no difference, the link being in ASCII."""
    if encoding is None or href.isascii():
        return None
    name = encoding()
    # No escapes of these are known to anybody.
    return None if name.startswith(("utf-16", "utf-32")) else name


def _parsable(body: bytes) -> int:
    """Bytes up to the first tag that would hold up the parser; all of them: there is none."""
    if len(body) > _ATTRIBUTES_CHECKED_ABOVE:
        squares = 0
        for tag in _TAG.finditer(body):
            start, end = tag.span()
            if end - start > _TAGS_CHECKED_ABOVE:
                attributes = _attributes(tag[0])
                squares += attributes**2
                if attributes > MOST_ATTRIBUTES or squares > _MOST_SQUARES:
                    return start
    return len(body)


def _attributes(tag: bytes) -> int:
    # The first match is the tag's name.
    return sum(1 for _ in _ATTRIBUTES.finditer(tag)) - 1
