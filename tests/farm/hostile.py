"""Sites that are hostile as a whole: what every path of one answers.

A hostile site has a root with links like any other. Behind them each page misbehaves in the site's one way: a trap
that never ends, a page made to hold up a parser, or one of behaviours.py. A new one is a function here with `@trap`
or a behaviour there, and its name in `plan.HOSTILITIES`. What such a site says is nobody's truth: a right crawl gets
away from it, and nothing more is expected of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from . import behaviours
from .resource import Link, Resource, document

RULES = b"User-agent: *\nDisallow: /private/\n"
# A robots.txt of 10 MB, and one that leads to itself for ever; the pages are as others.
WITHOUT_RULES = ("endless_rules", "no_rules")
# Links of a hostile site's root to its pages.
DOORS = 8

Trap = Callable[[str], list[Link] | bytes]
TRAPS: dict[str, Trap] = {}


def trap(make: Trap) -> Trap:
    """Registers a function that gives the links or the body of a path, under its name."""
    TRAPS[make.__name__] = make
    return make


@trap
def calendar(path: str) -> list[Link]:
    """Every day has a page, and every page leads to the next days and months."""
    day = int(path.rpartition("/")[2]) if path.rpartition("/")[2].isdigit() else 0
    return [_link(f"/calendar/{day // 365}/{day // 30 % 12}/{day + step}") for step in (1, 7, 30, 365)]


@trap
def sessions(path: str) -> list[Link]:
    """Every page gives every link an identity of its own."""
    return [_link(f"/page{number}.html?sid={_digest(path, number)}") for number in range(5)]


@trap
def folders(path: str) -> list[Link]:
    """Relative links that lead one folder deeper each time."""
    return [_link("a/index.html"), _link("b/index.html")]


@trap
def crowded(path: str) -> list[Link]:
    """A hundred thousand links on each page, other ones on every page."""
    return [_link(f"/{_digest(path, 0)}/{number}") for number in range(100_000)]


@trap
def attributes(path: str) -> bytes:
    """A tag with 100,000 attributes."""
    return b"<a href=/x " + b"".join(b"a%d=1 " % number for number in range(100_000)) + b">x</a>"


@trap
def nested(path: str) -> bytes:
    """Elements a hundred thousand deep, and anchors without an end."""
    return b"<div>" * 100_000 + b"<a href=/x>" * 100_000


def names() -> set[str]:
    """All that a site can be hostile by."""
    # These are well-behaved, or merely slow.
    return (
        set(TRAPS) | set(WITHOUT_RULES) | set(behaviours.REGISTRY) - {"slow-head", "slow-body", "gzip", "br"}
    )


def behaviour(name: str, path: str) -> behaviours.Behaviour | None:
    """How the site misbehaves at this path; None: it answers with a resource."""
    if name == "no_rules" and path == "/robots.txt":
        return behaviours.REGISTRY["redirect-loop"]
    return None if path in ("/", "/robots.txt") else behaviours.REGISTRY.get(name)


def resource(name: str, path: str) -> Resource:
    """What it answers where it does not misbehave."""
    if path == "/robots.txt":
        rules = RULES + (b"Disallow: /*a*b*c\n" * 550_000 if name == "endless_rules" else b"")
        return Resource(path, lambda: rules, "robots", 200, "text/plain")
    if path == "/":
        return Resource(path, lambda: _body(path, _doors()), "hostile")
    made = TRAPS.get(name, _nothing)(path)
    return Resource(path, lambda: made if isinstance(made, bytes) else _body(path, made), "hostile")


def _nothing(path: str) -> list[Link]:
    return []


def _doors() -> list[Link]:
    return [_link(f"/door/{number}") for number in range(DOORS)]


def _link(href: str) -> Link:
    return Link(href, text=href)


def _body(path: str, links: list[Link]) -> bytes:
    return document(f"Hostile {path}", f"what lies behind {path}", links).encode()


def _digest(path: str, number: int) -> str:
    return hashlib.sha256(f"{path} {number}".encode()).hexdigest()[:16]
