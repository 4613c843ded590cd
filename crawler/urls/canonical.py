"""One name for one page: the canonical spelling of its path, which tells whether two URLs are one page.

The meaning is that of w3lib's canonicalize_url: query sorted, each field with an equals sign, escapes normalised. It is
a name and never what is asked for: that is the URL as it was written (crawler.urls.url).
"""

from __future__ import annotations

import re
from functools import lru_cache

from w3lib.url import canonicalize_url

from crawler.urls.url import resolve

# A path that is its page's name already, and a query that is but for the order of its fields and their equals signs.
# Of escapes those that stay: a space's in the path, and bytes from 80.
_LETTERS = r"\-A-Za-z0-9_~!$&'()*+,=:@"
_PATH = rf"[{_LETTERS}/]*+(?:(?:\.(?=[{_LETTERS}%])|%(?:20|[89A-F][0-9A-F]))[{_LETTERS}/]*+)*+"
_WORD = r"[A-Za-z0-9_.~+-]*+(?:%[89A-F][0-9A-F][A-Za-z0-9_.~+-]*+)*+"
_FIELD = rf"{_WORD}(?:={_WORD})?+"
_SIMPLE = re.compile(rf"({_PATH})(?:\?({_FIELD}(?:&{_FIELD})*+))?+")
# Brings fields of a query into the order of their names, then values, byte by byte once they are unescaped.
_FIELD_ORDER = str.maketrans({"=": "\0", "+": " ", "%": "\x7f"})
_REMEMBERED_LENGTH = 300


def split(url: str) -> tuple[str, str]:
    """Site and canonical path of an absolute URL; UrlError for what cannot be fetched."""
    site, written = resolve(url)
    return site, page_of(written)


def page_of(written: str) -> str:
    """The page that a path (with query) of any site leads to: its canonical path, of which two spellings have one."""
    simple = _SIMPLE.fullmatch(written)
    if simple is None:
        return _remembered(written) if len(written) <= _REMEMBERED_LENGTH else _canonical(written)
    path, query = simple.groups()
    if query is None:
        return written
    return path + _ordered(query) if query else path


def is_named_quickly(written: str) -> bool:
    """Whether `page_of` takes a microsecond for this path; others take ten, and half of one a letter of a query."""
    return _SIMPLE.fullmatch(written) is not None


def path_of(canonical: str) -> str:
    """Path and query of a canonical URL: all behind the host."""
    start = canonical.find("/", canonical.find("://") + 3)
    if start < 0:
        query = canonical.find("?")
        return "/" if query < 0 else f"/{canonical[query:]}"
    return canonical[start:]


def _canonical(written: str) -> str:
    # The host is none of a page's: only paths are compared here.
    return path_of(canonicalize_url(f"http://host{written}"))


_remembered = lru_cache(maxsize=16_384)(_canonical)


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
