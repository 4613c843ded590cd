"""The lines of a request and of an answer's head, as libcurl wants and gives them. Pure.

What a request says is sent as it was made, and nothing beside it: lines that libcurl would add are taken out, the
case of escapes stays, and neither a header's value nor a URL can smuggle in a line of its own.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlsplit

from scrapy.http import Headers

if TYPE_CHECKING:
    from scrapy import Request

_NOT_OURS_TO_SEND: Final = frozenset((b"Proxy-Authorization", b"Content-Length"))
# Lines that libcurl would add by itself; "Name:" keeps each of them out.
_ADDED_BY_LIBCURL: Final = (b"Accept", b"Content-Type", b"Expect", b"User-Agent")
# libcurl turns escapes in a path into upper case; a path that has others must be handed over as it is.
_LOWER_ESCAPE: Final = re.compile(r"[^?#]*%(?:[a-f][0-9A-Fa-f]|[0-9A-F][a-f])")
# What libcurl sends as it is, escapes aside.
_SENT: Final = re.compile(r"https?://[^/?#]++/[!$-;=?-\[\]_a-z|~]*+")
_PRINTABLE: Final = "".join(map(chr, range(0x21, 0x7F)))


def header_lines(headers: Headers) -> list[bytes]:
    """The request's own lines, in its order, and the removal of those that libcurl would add."""
    lines = [
        header_line(name, value)
        for name, values in dict.items(headers)
        if name not in _NOT_OURS_TO_SEND
        for value in values
    ]
    lines.extend(name + b":" for name in _ADDED_BY_LIBCURL if not dict.__contains__(headers, name))
    return lines


def header_line(name: bytes, value: bytes) -> bytes:
    """One header line for libcurl; "Name;" is its way to send one without a value."""
    if not value:
        return name + b";"
    line = name + b": " + value
    # A line break in a value would let whoever made the value write headers of his own.
    return line.translate(None, b"\r\n\0") if b"\n" in line or b"\r" in line or b"\0" in line else line


def url_and_target(request: Request, *, proxied: bool) -> tuple[str, str]:
    """The URL for libcurl, and the request target where libcurl would not send it as it is ("" = it would)."""
    url = request.url
    as_it_is = not request.meta.get("verbatim_url") or _SENT.fullmatch(url)
    if as_it_is and not ("%" in url and _LOWER_ESCAPE.match(url)):
        return url, ""
    parts = urlsplit(url)
    root = f"{parts.scheme}://{parts.netloc}"
    rest = url.partition("://")[2].partition("#")[0][len(parts.netloc) :]
    # Whatever would end the request line early cannot be sent even so.
    target = quote(rest if rest.startswith("/") else f"/{rest}", safe=_PRINTABLE)
    return f"{root}/", f"{root}{target}" if proxied and parts.scheme == "http" else target


def status_in(line: bytes) -> int:
    """The status in a status line; 0 where there is none."""
    word = [*line.split(None, 2), b"", b""][1]
    return int(word) if word.isdigit() else 0


def parsed(lines: list[bytes]) -> Headers:
    """The fields of a head, in order, several values of one name together."""
    headers = Headers()
    for line in lines:
        name, _, value = line.partition(b":")
        dict.setdefault(headers, name.strip().title(), []).append(value.strip())
    return headers
