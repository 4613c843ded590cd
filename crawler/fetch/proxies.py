"""A proxy's URL, as settings, middlewares and the environment give it. Pure.

What cannot be asked is told here, with what is expected, and never where its port is used. Passwords are in no message.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from scrapy.utils.url import add_http_if_no_scheme

from crawler.urls.url import ascii_host

_SCHEMES: Final = frozenset(("http", "https", "socks4", "socks4a", "socks5", "socks5h"))
# From the first two slashes to the last @.
_USER: Final = re.compile(r"\A([^/]*+(?:/(?!/)[^/]*+)*+//).*@", re.DOTALL)


class ProxyError(ValueError):
    """Not the URL of a proxy; says what came and what is expected."""


class Proxy(NamedTuple):
    """Where a proxy is; `port` is None where the URL names none."""

    url: str
    host: str
    port: int | None


def read(text: str) -> Proxy:
    """The proxy that the text means: a URL, or host:port for one that is asked over http."""
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
    told = _USER.sub(r"\1***@", url)
    return ProxyError(
        f"{told!r} is no proxy; expected SCHEME://HOST:PORT, SCHEME one of {schemes}, PORT up to 65535"
    )
