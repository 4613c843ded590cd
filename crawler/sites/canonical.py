"""One spelling for one page: canonical URLs, split into site and path.

The meaning is that of w3lib's canonicalize_url (query sorted, fragment dropped, escapes normalised), plus host in
lower case and punycode, and no default port. Raises UrlError for what cannot be fetched, in words for people.
"""

from __future__ import annotations

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
    return site, path_of(canonicalize_url(url))


def path_of(canonical: str) -> str:
    """Path and query of a canonical URL: all behind the host."""
    start = canonical.find("/", canonical.find("://") + 3)
    if start < 0:
        query = canonical.find("?")
        return "/" if query < 0 else f"/{canonical[query:]}"
    return canonical[start:]


def ascii_host(host: str) -> str:
    """The host in lower case and punycode, IPv6 in brackets; UrlError if no such name can exist."""
    if ":" in host:
        return f"[{host.lower()}]"
    host = host.rstrip(".").lower()
    if not host.isascii():
        import idna

        try:
            host = idna.encode(host, uts46=True).decode()
        except idna.IDNAError as error:
            raise UrlError(f"host {host!r}: {error}") from None
    if not host or len(host) > 253 or any(not 0 < len(label) < 64 for label in host.split(".")):
        raise UrlError(f"host {host[:300]!r} is no host name")
    if any(not (c.isalnum() or c in "-_.") for c in host):
        raise UrlError(f"host {host!r} is no host name")
    return host


def host_of(site: str) -> str:
    """The host of a site, without port."""
    return urlsplit(site).hostname or ""
