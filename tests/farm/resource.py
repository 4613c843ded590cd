"""The two things a site is made of, links and resources, and the one shape of the farm's HTML.

Pure values; hides nothing but the markup. A body is made when it is asked for, and never fails.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape

HTML = "text/html; charset=utf-8"


@dataclass(frozen=True)
class Link:
    """A link as written in a page, and the page that it means."""

    href: str
    target: str = ""  # absolute URL without fragment, canonical; "" = nothing that HTTP can fetch
    follow: bool = True  # False: a right crawl leaves it alone
    rel: str = ""
    text: str = "link"

    def html(self) -> str:
        """The anchor element."""
        rel = f' rel="{self.rel}"' if self.rel else ""
        return f'<a href="{escape(self.href)}"{rel}>{escape(self.text)}</a>'


@dataclass(frozen=True)
class Resource:
    """What one URL answers, and what a right crawl makes of it.

    kind: page, duplicate (the bytes of another page), binary, robots, redirect, error; and, never to be
    fetched: denied (by robots.txt), nofollow (no followable link leads there), overlong, alias (another
    spelling of a page's URL). hostile: of a site from which nothing is expected.
    """

    path: str  # with the query; canonical
    make: Callable[[], bytes]  # the body
    kind: str = "page"
    status: int = 200
    content_type: str = HTML
    fields: tuple[tuple[str, str], ...] = ()
    links: tuple[Link, ...] = ()
    location: str = ""  # absolute URL that a redirect leads to
    busy_first: bool = False  # the first answer of all is 503 with Retry-After: 1

    @cached_property
    def body(self) -> bytes:
        """The bytes of the body, before any content encoding."""
        return self.make()

    @cached_property
    def sha256(self) -> str:
        """Hexadecimal SHA-256 of the body."""
        return hashlib.sha256(self.body).hexdigest()

    @property
    def follow(self) -> list[str]:
        """Absolute URLs to which a right crawl goes on from here, in the order written."""
        return [link.target for link in self.links if link.follow and link.target]


def document(title: str, text: str, links: Sequence[Link] = (), head: str = "") -> str:
    """An HTML document in the farm's one shape."""
    items = "".join(f"<li>{link.html()}</li>\n" for link in links)
    return (
        f'<!doctype html>\n<html lang="en"><head><title>{escape(title)}</title>\n'
        f'<meta name="description" content="About {escape(title)}">{head}</head>\n'
        f"<body><h1>{escape(title)}</h1>\n<ul>\n{items}</ul>\n<p>{text}</p></body></html>\n"
    )
