"""URLs as browsers read them: the URL standard of WHATWG (url.spec.whatwg.org) for http and https. Pure.

What comes out is what is asked for: resolved, with the host in its one spelling and everything else as it was written.
A path and a query are escaped only where they cannot be sent otherwise; no escape is undone, changed or put in order.
Left out are user, password, fragment, the default port and the dot behind a host. Whether two URLs are one page is
told by crawler.urls.url.

Takes any text in time that grows with its length. UrlError tells in words for people why it cannot be fetched.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from urllib.parse import quote, unquote

from w3lib.url import canonicalize_url

DEFAULT_PORTS = {"http": 80, "https": 443}
_C0_CONTROL_OR_SPACE = "".join(map(chr, range(33)))
_TABS_AND_LINES = str.maketrans("", "", "\t\r\n")
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*+):")
_SLASHES = re.compile(r"[/\\]*+")
_AUTHORITY = re.compile(r"[^/\\?]*+")
_PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))
# What stands in a path and in a query as it is written; escapes do, whatever they stand for.
_KEPT_IN_PATH = _PRINTABLE.translate(dict.fromkeys(map(ord, '"#<>?^`{}')))
_KEPT_IN_QUERY = _PRINTABLE.translate(dict.fromkeys(map(ord, "\"#<>'")))
_LARGEST_PORT = 65_535
# The last part of a host that is an IPv4 address, or nothing.
_NUMBER = re.compile(r"[0-9]++|0x[0-9a-f]*+")


class UrlError(ValueError):
    """Not a URL of the web; says what came and what is expected."""


def resolve(text: str, base: tuple[str, str] | None = None, encoding: str | None = None) -> tuple[str, str]:
    """Site (scheme://host[:port]) and path (with query, at least `/`) of a URL, as it is asked for.

    `base`: site and path of what a relative URL starts from; None: there are no relative ones. `encoding` is that of
    the page it was found on: its query is escaped in it; None: UTF-8, which is also taken for a query that the encoding
    has no letters for.
    """
    try:
        return _resolved(_rid_of_what_is_ignored(text), base, encoding)
    except UnicodeEncodeError as error:
        raise UrlError(f"{text[:200]!r}: {error}") from None


def _rid_of_what_is_ignored(text: str) -> str:
    text = text.strip(_C0_CONTROL_OR_SPACE)
    return text if text.isprintable() else text.translate(_TABS_AND_LINES)


def _resolved(text: str, base: tuple[str, str] | None, encoding: str | None) -> tuple[str, str]:
    rest = text.partition("#")[0]
    named = _SCHEME.match(rest)
    scheme = named[1].lower() if named else base[0].partition(":")[0] if base else ""
    if scheme not in DEFAULT_PORTS:
        raise UrlError(f"{text[:200]!r} has scheme {scheme!r}; expected http or https")
    rest = rest[named.end() :] if named else rest
    slashes = _SLASHES.match(rest).end()  # type: ignore[union-attr]
    if base is None or slashes > 1 or not base[0].startswith(f"{scheme}:"):
        authority = _AUTHORITY.match(rest, slashes)[0]  # type: ignore[index]
        base, rest = (_site(scheme, authority), "/"), rest[slashes + len(authority) :]
        slashes = 1
    path, mark, query = rest.partition("?")
    site, from_path = base
    if path:
        folder = "/" if slashes else _folder_of(from_path)
        path = _joined(folder, path[slashes:])
    elif mark:
        path = from_path.partition("?")[0]
    else:
        return base
    return site, f"{path}?{_escaped_query(query, encoding)}" if mark else path


def _folder_of(path: str) -> str:
    path = path.partition("?")[0]
    return path[: path.rfind("/") + 1]


def _joined(folder: str, path: str) -> str:
    """The path from a folder on, its slashes alike, without dot segments, escaped."""
    if "\\" in path:
        path = path.replace("\\", "/")
    if "." in path or "%2" in path:
        whole = folder[1:].split("/")[:-1]
        pieces = path.split("/")
        for number, piece in enumerate(pieces, 1):
            dots = _dots(piece)
            if dots == 2 and whole:
                del whole[-1]
            if not dots:
                whole.append(piece)
            elif number == len(pieces):
                whole.append("")
        folder, path = "/", "/".join(whole)
    return quote(folder + path, _KEPT_IN_PATH)


def _dots(piece: str) -> int:
    """Of how many dots a segment of a path consists that says where to go on; 0: it is a name."""
    if len(piece) > len("%2e%2e"):
        return 0
    plain = piece.lower().replace("%2e", ".")
    return len(plain) if plain in (".", "..") else 0


def _escaped_query(query: str, encoding: str | None) -> str:
    if encoding is not None and not query.isascii():
        try:
            return quote(query, _KEPT_IN_QUERY, encoding=encoding, errors="strict")
        except (UnicodeEncodeError, LookupError):
            pass
    return quote(query, _KEPT_IN_QUERY)


@lru_cache(maxsize=4096)
def _site(scheme: str, authority: str) -> str:
    """The site of what stands between the slashes and the path; a user in front of it does not count."""
    named = authority.rpartition("@")[2]
    if named.startswith("["):
        host, bracket, rest = named[1:].partition("]")
        colon, port = rest[:1], rest[1:]
        if not bracket or ":" not in host or colon not in ("", ":"):
            raise UrlError(f"host {named[:200]!r}: Invalid IPv6 address")
    else:
        host, colon, port = named.partition(":")
    if not host:
        raise UrlError(f"{f'{scheme}://{authority[:200]}'!r} has no host")
    site = f"{scheme}://{ascii_host(host)}"
    number = _port(port) if port else DEFAULT_PORTS[scheme]
    return site if number == DEFAULT_PORTS[scheme] else f"{site}:{number}"


def _port(port: str) -> int:
    digits = port.lstrip("0") or "0"
    if not (port.isascii() and port.isdigit() and len(digits) < 6 and int(digits) <= _LARGEST_PORT):
        raise UrlError(f"port {port[:200]!r}; expected a number up to {_LARGEST_PORT}")
    return int(digits)


def ascii_host(host: str) -> str:
    """The host in lower case and punycode, IPv6 short and in brackets; UrlError if no such name can exist."""
    if ":" in host:
        try:
            # A zone is of one machine alone.
            return f"[{IPv6Address(host.replace('%', ' '))}]"
        except ValueError as error:
            raise UrlError(f"host {host[:300]!r}: {error}") from None
    if "%" in host:
        try:
            host = unquote(host, errors="strict")
        except UnicodeDecodeError as error:
            raise UrlError(f"host {host[:300]!r}: {error}") from None
    host = host.lower() if host.isascii() else _punycode(host)
    host = host.removesuffix(".")
    if not host or len(host) > 253 or any(not 0 < len(label) < 64 for label in host.split(".")):
        raise UrlError(f"host {host[:300]!r} is no host name")
    if any(not (c.isalnum() or c in "-_.") for c in host):
        raise UrlError(f"host {host!r} is no host name")
    return _ipv4(host) if _NUMBER.fullmatch(host[host.rfind(".") + 1 :]) else host


def _punycode(host: str) -> str:
    """Each label that needs it in punycode, as UTS 46 maps it for browsers.

    No stricter: hearts and hyphens at a label's end are not IDNA 2008, but such names are registered and linked.
    """
    import idna

    try:
        labels = idna.uts46_remap(host, std3_rules=False).split(".")
    except UnicodeError as error:
        raise UrlError(f"host {host[:300]!r}: {error}") from None
    return ".".join(
        label if label.isascii() else f"xn--{label.encode('punycode').decode()}" for label in labels
    )


def _ipv4(host: str) -> str:
    """The address of a host that ends in a number: up to four of them, in base 8 and 16 too, the last one as large."""
    parts = [_number(part) for part in host.split(".")]
    *first, last = parts
    if len(parts) > 4 or max(first, default=0) > 255 or last >= 256 ** (5 - len(parts)):
        raise UrlError(f"host {host!r} is no IPv4 address")
    return str(IPv4Address(last + sum(part << 8 * (3 - place) for place, part in enumerate(first))))


def _number(part: str) -> int:
    base = 10
    digits = part
    if part.startswith("0x"):
        base, digits = 16, part[2:] or "0"
    elif len(part) > 1 and part.startswith("0"):
        base = 8
    try:
        # Python's own reading would take signs and underscores too.
        return int(digits if digits.isalnum() else "", base)
    except ValueError:
        raise UrlError(f"host's part {part!r} is no number of an IPv4 address") from None


def host_of(site: str) -> str:
    """The host of a site, or of a URL as it is asked for, without port and brackets."""
    place = site[site.find("://") + len("://") :].partition("/")[0]
    return place[1:].partition("]")[0] if place.startswith("[") else place.partition(":")[0]


# ------------------------------------------------------------------------------------------------------------
# One name for one page: the canonical spelling of its path, which tells whether two URLs are one page.
#
# The meaning is that of w3lib's canonicalize_url: query sorted, each field with an equals sign, escapes normalised.
# It is a name and never what is asked for: that is the URL as it was written (crawler.urls.url).


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


def split_page(url: str) -> tuple[str, str]:
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


# ------------------------------------------------------------------------------------------------------------
# The domain of a site: the name that somebody registered, by the public suffix list that tldextract brings along.
#
# Nothing is looked up in the network. An address, or a host that is a public suffix itself, is a domain of its own;
# where the list knows no suffix (a company's network, .localhost) the last label counts as one, as with SCOPE=domain.


def domain_finder(*, private_suffixes: bool) -> Callable[[str], str]:
    """A function from a site's name to its domain, in lower case.

    With `private_suffixes` names below those under which anybody can have a site (github.io, blogspot.com) are
    domains of their own: two blogs have two owners.
    """
    # No crawl needs it, and it takes long to import.
    from tldextract import TLDExtract

    extract = TLDExtract(
        suffix_list_urls=(),
        cache_dir=None,
        fallback_to_snapshot=True,
        include_psl_private_domains=private_suffixes,
    )

    def domain_of(site: str) -> str:
        found = extract(site.lower())
        if domain := found.top_domain_under_public_suffix:
            return domain
        host = host_of(site)
        known = found.suffix or found.ipv4 or ":" in host
        return host if known else ".".join(host.split(".")[-2:])

    return domain_of
