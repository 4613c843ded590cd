"""Parses http and https URLs as browsers do (url.spec.whatwg.org). Pure; linear time.

URLs are requested as written: only the host is normalized, and only what cannot be sent is escaped. User, password,
fragment and default port are dropped.
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
# Characters kept in paths and queries; existing escapes stay.
_KEPT_IN_PATH = _PRINTABLE.translate(dict.fromkeys(map(ord, '"#<>?^`{}')))
_KEPT_IN_QUERY = _PRINTABLE.translate(dict.fromkeys(map(ord, "\"#<>'")))
_LARGEST_PORT = 65_535
# The last label of a host that is an IPv4 address.
_NUMBER = re.compile(r"[0-9]++|0x[0-9a-f]*+")


class UrlError(ValueError):
    """Not an http or https URL."""


def resolve(text: str, base: tuple[str, str] | None = None, encoding: str | None = None) -> tuple[str, str]:
    """Site (scheme://host[:port]) and path (with query, at least `/`) of a URL. Raises UrlError.

    `base`: site and path for relative URLs. `encoding`: for the query; default and fallback UTF-8.
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
    """Join, normalize and escape."""
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
    """1 or 2 for a dot segment, else 0."""
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
    """The site of an authority, without user."""
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
    """The host in lower case and punycode, IPv6 in brackets. Raises UrlError."""
    if ":" in host:
        try:
            # Zones are valid on one machine only.
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
        raise UrlError(f"host {host[:300]!r} is not a host name")
    if any(not (c.isalnum() or c in "-_.") for c in host):
        raise UrlError(f"host {host!r} is not a host name")
    return _ipv4(host) if _NUMBER.fullmatch(host[host.rfind(".") + 1 :]) else host


def _punycode(host: str) -> str:
    """By UTS 46, as browsers; IDNA 2008 rejects names in use."""
    import idna

    try:
        labels = idna.uts46_remap(host, std3_rules=False).split(".")
    except UnicodeError as error:
        raise UrlError(f"host {host[:300]!r}: {error}") from None
    return ".".join(
        label if label.isascii() else f"xn--{label.encode('punycode').decode()}" for label in labels
    )


def _ipv4(host: str) -> str:
    """One to four numbers, in base 8, 10 or 16."""
    parts = [_number(part) for part in host.split(".")]
    *first, last = parts
    if len(parts) > 4 or max(first, default=0) > 255 or last >= 256 ** (5 - len(parts)):
        raise UrlError(f"host {host!r} is not an IPv4 address")
    return str(IPv4Address(last + sum(part << 8 * (3 - place) for place, part in enumerate(first))))


def _number(part: str) -> int:
    base = 10
    digits = part
    if part.startswith("0x"):
        base, digits = 16, part[2:] or "0"
    elif len(part) > 1 and part.startswith("0"):
        base = 8
    try:
        # `int` would accept signs and underscores.
        return int(digits if digits.isalnum() else "", base)
    except ValueError:
        raise UrlError(f"host's part {part!r} is not a number of an IPv4 address") from None


def host_of(site: str) -> str:
    """The host of a site or URL, without port and brackets."""
    place = site[site.find("://") + len("://") :].partition("/")[0]
    return place[1:].partition("]")[0] if place.startswith("[") else place.partition(":")[0]


# --- Canonical URLs ---


# A canonical path, and a query that is canonical but for field order and equals signs. Escapes that stay: a space in
# the path, and bytes from 80.
_LETTERS = r"\-A-Za-z0-9_~!$&'()*+,=:@"
_PATH = rf"[{_LETTERS}/]*+(?:(?:\.(?=[{_LETTERS}%])|%(?:20|[89A-F][0-9A-F]))[{_LETTERS}/]*+)*+"
_WORD = r"[A-Za-z0-9_.~+-]*+(?:%[89A-F][0-9A-F][A-Za-z0-9_.~+-]*+)*+"
_FIELD = rf"{_WORD}(?:={_WORD})?+"
_SIMPLE = re.compile(rf"({_PATH})(?:\?({_FIELD}(?:&{_FIELD})*+))?+")
# Sort key of query fields: names, then values, by unescaped bytes.
_FIELD_ORDER = str.maketrans({"=": "\0", "+": " ", "%": "\x7f"})
_REMEMBERED_LENGTH = 300


def split_page(url: str) -> tuple[str, str]:
    """Site and canonical path of an absolute URL. Raises UrlError."""
    site, written = resolve(url)
    return site, page_of(written)


def page_of(written: str) -> str:
    """The canonical path (with query), as w3lib's canonicalize_url. A name, never requested."""
    simple = _SIMPLE.fullmatch(written)
    if simple is None:
        return _remembered(written) if len(written) <= _REMEMBERED_LENGTH else _canonical(written)
    path, query = simple.groups()
    if query is None:
        return written
    return path + _ordered(query) if query else path


def is_named_quickly(written: str) -> bool:
    """Whether `page_of` takes 1 us for this path; else 10 us or more."""
    return _SIMPLE.fullmatch(written) is not None


def path_of(canonical: str) -> str:
    """Path and query of a canonical URL."""
    start = canonical.find("/", canonical.find("://") + 3)
    if start < 0:
        query = canonical.find("?")
        return "/" if query < 0 else f"/{canonical[query:]}"
    return canonical[start:]


def _canonical(written: str) -> str:
    # The host is a placeholder: only paths are compared.
    return path_of(canonicalize_url(f"http://host{written}"))


_remembered = lru_cache(maxsize=16_384)(_canonical)


def _ordered(query: str) -> str:
    """A simple query in canonical form."""
    if "&" not in query:
        return f"?{query}" if "=" in query else f"?{query}="
    fields = [field if "=" in field else f"{field}=" for field in query.split("&") if field]
    if not fields:
        return ""
    fields.sort(key=_field_order)
    return f"?{'&'.join(fields)}"


def _field_order(field: str) -> str:
    return field.translate(_FIELD_ORDER)


# --- Registrable domains ---


def domain_finder(*, private_suffixes: bool) -> Callable[[str], str]:
    """A function from a site to its registrable domain, by the bundled public suffix list.

    `private_suffixes`: each name below github.io and the like is a domain.
    """
    # Slow import that crawls do not need.
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
