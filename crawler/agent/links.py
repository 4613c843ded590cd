"""Links of a page: found in the parsed document, made canonical, told apart by site. No Request is ever made here.

One parse per page serves links and attributes alike. A page's `<base>`, rel=nofollow and meta robots are obeyed.
Hostile input gives fewer links, never an exception.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple
from urllib.parse import urljoin

from lxml import etree
from w3lib.encoding import html_to_unicode
from w3lib.html import strip_html5_whitespace

from crawler.sites.canonical import UrlError, split

_ANCHORS: Any = etree.XPath("//a[@href]|//area[@href]")
_BASE: Any = etree.XPath("//base[@href]")
_ROBOTS: Any = etree.XPath("//meta[translate(@name, 'ROBTS', 'robts')='robots']/@content")
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:")


class Links(NamedTuple):
    """Canonical links of one page."""

    inside: list[str]  # paths of the same site, distinct, in document order
    outside: dict[str, list[str]]  # other sites -> paths


def document(body: bytes, content_type: str) -> Any:
    """The parsed page (an lxml element), or None where there is nothing to parse."""
    if not body.strip():
        return None
    encoding, _ = _declared(body, content_type)
    parser = etree.HTMLParser(encoding=encoding, huge_tree=False, no_network=True, remove_comments=True)
    try:
        return etree.fromstring(body, parser)
    except (etree.XMLSyntaxError, ValueError, LookupError):
        return None


def robots_directives(root: Any, header: str) -> set[str]:
    """Words of meta robots and X-Robots-Tag that hold for everybody, in lower case."""
    words = set(re.split(r"[\s,]+", header.lower())) if header else set()
    for content in _ROBOTS(root) if root is not None else ():
        words |= set(re.split(r"[\s,]+", str(content).lower()))
    return words - {""}


def links(root: Any, url: str, site: str, most: int, length: int) -> Links:
    """The page's links: the first `most`, each at most `length` characters as a URL."""
    inside: dict[str, None] = {}
    outside: dict[str, list[str]] = {}
    if root is None:
        return Links([], outside)
    base = _base(root, url)
    for element in _ANCHORS(root)[:most]:
        if "nofollow" in element.get("rel", "").lower():
            continue
        place = _canonical(base, element.get("href"), length)
        if place is None:
            continue
        if place[0] == site:
            inside[place[1]] = None
        else:
            outside.setdefault(place[0], []).append(place[1])
    return Links(list(inside), outside)


def target(url: str, location: str, length: int) -> tuple[str, str] | None:
    """Site and path a redirect points to; None where it points to nothing that can be fetched."""
    return _canonical(url, location, length)


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
    found = _BASE(root)
    if not found:
        return url
    try:
        return urljoin(url, strip_html5_whitespace(found[0].get("href")))
    except ValueError:
        return url


def _declared(body: bytes, content_type: str) -> tuple[str, str]:
    """The document's encoding by BOM, header, meta, else UTF-8 or what w3lib falls back to."""
    encoding, _ = html_to_unicode(content_type, body[:4096], auto_detect_fun=_guess)
    return encoding, content_type


def _guess(head: bytes) -> str:
    for encoding in ("utf-8", "cp949"):
        try:
            # A multi-byte character may be cut at the end of what is looked at.
            head[: max(len(head) - 4, 0)].decode(encoding)
        except UnicodeDecodeError:
            continue
        return encoding
    return "cp1252"
