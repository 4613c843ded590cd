"""One spelling for one page: canonical URLs, split into site and path.

The meaning is that of w3lib's canonicalize_url (query sorted, fragment dropped, escapes normalised), plus host in
lower case and punycode, and no default port. Raises UrlError for what cannot be fetched, in words for people.
"""

from __future__ import annotations

from ipaddress import IPv6Address
from urllib.parse import urlsplit

from w3lib.url import canonicalize_url

DEFAULT_PORTS = {"http": 80, "https": 443}


class UrlError(ValueError):
    """Not a URL of the web; says what came and what is wanted."""


def split(url: str) -> tuple[str, str]:
    """The site (scheme://host[:port]) and the canonical path (with query, at least `/`) of an absolute URL."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UrlError(f"{url[:200]!r}: {error}") from None
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
        return site, path_of(canonicalize_url(url))
    except ValueError as error:
        raise UrlError(f"{url[:200]!r}: {error}") from None


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
    host = host.rstrip(".")
    if not host or len(host) > 253 or any(not 0 < len(label) < 64 for label in host.split(".")):
        raise UrlError(f"host {host[:300]!r} is no host name")
    if any(not (c.isalnum() or c in "-_.") for c in host):
        raise UrlError(f"host {host!r} is no host name")
    return host


def _punycode(host: str) -> str:
    """Each label that needs it in punycode, as UTS 46 maps it; the others may have what DNS allows, as `_`."""
    import idna

    try:
        labels = idna.uts46_remap(host, std3_rules=False).split(".")
        return ".".join(label if label.isascii() else idna.alabel(label).decode() for label in labels)
    except UnicodeError as error:
        raise UrlError(f"host {host[:300]!r}: {error}") from None


def host_of(site: str) -> str:
    """The host of a site, without port."""
    return urlsplit(site).hostname or ""
