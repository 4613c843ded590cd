"""One spelling for one page: canonical URLs, split into site and path.

The meaning is that of w3lib's canonicalize_url (query sorted, fragment dropped, escapes normalised), plus host in
lower case and punycode, and no default port. URLs are read as browsers read them: white space and control characters
around them do not count, and a backslash before the query is a slash, also where the host ends. Raises UrlError for
what cannot be fetched, in words for people.
"""

from __future__ import annotations

from ipaddress import IPv6Address
from urllib.parse import urlsplit

from w3lib.url import canonicalize_url, parse_url

DEFAULT_PORTS = {"http": 80, "https": 443}
_C0_CONTROL_OR_SPACE = "".join(map(chr, range(33)))


class UrlError(ValueError):
    """Not a URL of the web; says what came and what is wanted."""


def split(url: str, encoding: str | None = None) -> tuple[str, str]:
    """The site (scheme://host[:port]) and the canonical path (with query, at least `/`) of an absolute URL.

    `encoding` is that of the page the URL was found on: its query is escaped in it, as browsers do; None: UTF-8, which
    is also taken for a query that the encoding has no letters for.
    """
    url = url.strip(_C0_CONTROL_OR_SPACE)
    try:
        # By the same rules as canonicalize_url, or site and path could be parts of two readings of one URL.
        parts = parse_url(url)
        port = parts.port
    except ValueError as error:
        raise UrlError(f"{url[:200]!r}: {repr(str(error))[1:-1]}") from None
    if parts.scheme not in DEFAULT_PORTS:
        raise UrlError(f"{url[:200]!r} has scheme {parts.scheme!r}; wanted http or https")
    if not parts.hostname:
        raise UrlError(f"{url[:200]!r} has no host")
    host = ascii_host(parts.hostname)
    site = (
        f"{parts.scheme}://{host}"
        if port in (None, DEFAULT_PORTS[parts.scheme])
        else f"{parts.scheme}://{host}:{port}"
    )
    try:
        return site, path_of(canonicalize_url(url, encoding=encoding))
    except ValueError as error:
        raise UrlError(f"{url[:200]!r}: {repr(str(error))[1:-1]}") from None


def path_of(canonical: str) -> str:
    """Path and query of a canonical URL: all behind the host."""
    start = canonical.find("/", canonical.find("://") + 3)
    if start < 0:
        query = canonical.find("?")
        return "/" if query < 0 else f"/{canonical[query:]}"
    return canonical[start:]


def ascii_host(host: str) -> str:
    """The host in lower case and punycode, IPv6 short and in brackets; UrlError if no such name can exist."""
    if ":" in host:
        try:
            return f"[{IPv6Address(host)}]"
        except ValueError as error:
            raise UrlError(f"host {host[:300]!r}: {error}") from None
    host = host.lower() if host.isascii() else _punycode(host)
    host = host.removesuffix(".")
    if not host or len(host) > 253 or any(not 0 < len(label) < 64 for label in host.split(".")):
        raise UrlError(f"host {host[:300]!r} is no host name")
    if any(not (c.isalnum() or c in "-_.") for c in host):
        raise UrlError(f"host {host!r} is no host name")
    return host


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


def host_of(site: str) -> str:
    """The host of a site, without port."""
    return urlsplit(site).hostname or ""
