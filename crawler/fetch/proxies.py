"""Parses proxy URLs. Messages never contain passwords."""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from scrapy.utils.url import add_http_if_no_scheme

from crawler.urls.url import ascii_host

_SCHEMES: Final = frozenset(("http", "https", "socks4", "socks4a", "socks5", "socks5h"))
# The scheme's `//`, then the user info up to the last @.
_USER: Final = re.compile(r"\A([^/]*+(?:/(?!/)[^/]*+)*+//).*@", re.DOTALL)


class ProxyError(ValueError):
    """Invalid proxy URL."""


class Proxy(NamedTuple):
    """A parsed proxy URL; `port` may be None."""

    url: str
    host: str
    port: int | None


def read(text: str) -> Proxy:
    """Parse a URL, or host:port for an http proxy. Raises ProxyError."""
    url = add_http_if_no_scheme(text)
    try:
        parts = urlsplit(url)
        proxy = Proxy(url, parts.hostname or "", parts.port)
        ascii_host(proxy.host)
    except ValueError:
        raise _unreadable(url) from None
    if parts.scheme not in _SCHEMES or proxy.port == 0:
        raise _unreadable(url)
    return proxy


def shown(url: str) -> str:
    """The URL without user and password."""
    return _USER.sub(r"\1", url)


def _unreadable(url: str) -> ProxyError:
    schemes = ", ".join(sorted(_SCHEMES))
    shown_url = _USER.sub(r"\1***@", url)
    return ProxyError(
        f"{shown_url!r} is no proxy; expected SCHEME://HOST:PORT, SCHEME one of {schemes}, PORT up to 65535"
    )
