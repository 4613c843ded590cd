"""One site of the farm: its pages, its links and what a right crawl makes of them; pure functions of a plan.

Hides how content is made. The server answers with these resources and the truth is told from them, so the
two cannot drift apart. Nothing here opens a socket; an unknown path is None, never an error.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from functools import cached_property, lru_cache
from urllib.parse import urljoin

from . import behaviours, hostile, kinds
from .plan import Plan
from .resource import Link, Resource, document

# An ordinary page has at most this many links to pages one step deeper, so that sites have some depth.
BRANCHES = 3
# Oddities hang on the first pages only: every site of one page has them all, and none is deep.
ODD_PAGES = 4
VOCABULARY = (
    "tide harbour lantern gravel orchard copper window thistle ferry marble cinder willow anchor meadow "
    "saddle velvet pepper quarry ribbon basket candle timber hollow feather barley kettle mirror pebble "
    "garden silver summit bridge spring cellar button carpet dragon engine forest glacier hammer island "
    "jacket kitten ladder magnet needle oyster pillow rabbit shadow tunnel valley walnut yellow zephyr"
)
WORDS = VOCABULARY.split()


class Web:
    """All sites of a plan on one port."""

    def __init__(self, plan: Plan, port: int) -> None:
        self.plan = plan
        self.port = port
        self.index = {self.origin(index): index for index in range(plan.total)}
        self._sites: dict[int, Site] = {}

    def origin(self, index: int) -> str:
        """Scheme, host and port of a site."""
        return f"http://{self.plan.host(index)}:{self.port}"

    def site(self, index: int) -> Site:
        """The site of that number; made at first use."""
        if index not in self._sites:
            self._sites[index] = Site(self, index)
        return self._sites[index]

    def by_origin(self, origin: str) -> Site | None:
        """The site of that origin, None for a foreign one."""
        index = self.index.get(origin)
        return None if index is None else self.site(index)

    def serving(self, host: str) -> Site | None:
        """The site whose pages are served under this Host field: its own, or that of which it is an alias."""
        name, mark, port = host.partition(":")
        return self.by_origin(f"http://{self.plan.aliases.get(name, name)}{mark}{port}")

    def neighbours(self, index: int) -> list[str]:
        """Origins that a site links to: numbered sites form a ring, named ones all know each other."""
        numbered, total = self.plan.sites, self.plan.total
        if index < numbered > 1:
            return [self.origin((index + step) % numbered) for step in range(1, min(numbered, 4))]
        named = [self.origin(other) for other in range(numbered, total) if other != index]
        return named + ([self.origin(0)] if index >= numbered > 0 else [])


class Site:
    """The resources of one site, found by path."""

    def __init__(self, web: Web, index: int) -> None:
        self.web = web
        self.index = index
        self.host = web.plan.host(index)
        self.origin = web.origin(index)
        fewest, most = web.plan.pages
        self.pages = fewest + _mix(index, 1) % (most - fewest + 1)
        self.paths = [_path(number) for number in range(self.pages)]
        self._numbers = {path: number for number, path in enumerate(self.paths)}

    @cached_property
    def neighbours(self) -> list[str]:
        """Origins of other sites that this one links to; empty where it is alone."""
        return self.web.neighbours(self.index)

    @cached_property
    def oddities(self) -> dict[str, Resource]:
        """The misbehaving resources by path, and /robots.txt."""
        found = {resource.path: resource for oddity in self._oddities for resource in oddity.resources}
        return found | {"/robots.txt": self._robots()}

    @cached_property
    def _oddities(self) -> list[kinds.Oddity]:
        return [kinds.REGISTRY[name](self) for name in self.web.plan.kinds]

    def resource(self, path: str) -> Resource | None:
        """What a path with its query answers; None where there is nothing."""
        if self.hostility:
            return hostile.resource(self.hostility, path)
        number = self._numbers.get(path)
        return self.oddities.get(path) if number is None else page(self, number)

    def misbehaviour(self, path: str) -> behaviours.Behaviour | None:
        """How a path without its query misbehaves; None: it answers with a resource."""
        odd = behaviours.find(path)
        return odd or (hostile.behaviour(self.hostility, path) if self.hostility else None)

    @property
    def hostility(self) -> str:
        """What the site is hostile by; empty: nothing."""
        return self.web.plan.hostile.get(self.index, "")

    def resources(self) -> Iterator[Resource]:
        """Everything the site has, declared errors included."""
        yield from (page(self, number) for number in range(self.pages))
        yield from self.oddities.values()

    def url(self, path: str) -> str:
        """Absolute URL of a path."""
        return self.origin + path

    def odd_links(self, number: int) -> list[Link]:
        """Links to oddities that stand on this ordinary page."""
        spread = min(self.pages, ODD_PAGES)
        return [
            link
            for place, oddity in enumerate(self._oddities)
            if place % spread == number
            for link in oddity.links
        ]

    @property
    def crawl_delay(self) -> float:
        """Seconds that robots.txt asks for between requests; 0 = it does not say."""
        return self.web.plan.crawl_delays.get(self.index, self.web.plan.crawl_delay)

    @property
    def delay_ms(self) -> float:
        """Milliseconds before each answer of this site."""
        return self.web.plan.slow_ms.get(self.index, self.web.plan.delay_ms)

    def _robots(self) -> Resource:
        lines = ["User-agent: *", "Disallow: /private/"]
        lines += [f"Crawl-delay: {self.crawl_delay:g}"] if self.crawl_delay else []
        text = "\n".join(lines).encode() + b"\n"
        return Resource("/robots.txt", lambda: text, kind="robots", content_type="text/plain")


def page(site: Site, number: int) -> Resource:
    """Ordinary page of that number; 0 is the root."""
    links = (*_inner_links(site, number), *_outer_links(site, number), *site.odd_links(number))
    return Resource(site.paths[number], lambda: _page_body(site, number, links), links=links)


def _page_body(site: Site, number: int, links: tuple[Link, ...]) -> bytes:
    title = f"Page {number} of {site.host}"
    marker = f"site{site.index}page{number}"
    bare = len(document(title, marker, links))
    return document(title, f"{marker} {_text(site, number, site.web.plan.size - bare)}", links).encode()


def _text(site: Site, number: int, length: int) -> str:
    """Words of a page, about `length` characters, at least a few."""
    pool = _word_pool()
    length = max(length, 60)
    start = _mix(site.index, number, 2) % (len(pool) // 2)
    window = pool[start : start + length]
    if len(window) < length:
        window = (pool * (length // len(pool) + 2))[start : start + length]
    return window.partition(" ")[2].rpartition(" ")[0]


@lru_cache(maxsize=1)
def _word_pool() -> str:
    return " ".join(WORDS[_mix(position) % len(WORDS)] for position in range(20_000))


def _path(number: int) -> str:
    """Paths in folders, and every fifth page told apart by its query alone."""
    if number == 0:
        return "/"
    return f"/list?item={number}" if number % 5 == 4 else f"/d{number % 7}/p{number}.html"


def _inner_links(site: Site, number: int) -> Iterator[Link]:
    """First the pages below this one, then pages at most one step deeper: so the depth is the tree's."""
    first = number * BRANCHES + 1
    below = range(first, min(first + BRANCHES, site.pages))
    inner = site.web.plan.links - site.web.plan.links // 5
    reach = min(first + BRANCHES, site.pages)
    others = [_mix(site.index, number, slot, 3) % reach for slot in range(inner - len(below))]
    for slot, other in enumerate((*below, *others)):
        yield _written(site, number, other, form=(slot + number) % 4)


def _written(site: Site, number: int, other: int, form: int) -> Link:
    """A link to page `other` in one of four spellings."""
    path = site.paths[other]
    target = site.url(path)
    text = f"{WORDS[other % len(WORDS)]} {other}"
    if form == 0:
        return Link(path, target, text=text)
    if form == 1:
        return Link(relative(site.paths[number], path), target, text=text)
    return Link(target if form == 2 else f"{path}#part-{other}", target, text=text)


@lru_cache(maxsize=65_536)
def relative(source: str, target: str) -> str:
    """Target path as seen from the source page."""
    folder = posixpath.dirname(source.partition("?")[0])
    path, mark, query = target.partition("?")
    spelling = posixpath.relpath(path, folder) + ("/" if path.endswith("/") else "") + mark + query
    return spelling if urljoin(f"http://h{source}", spelling) == f"http://h{target}" else target


def _outer_links(site: Site, number: int) -> Iterator[Link]:
    """Links to the roots of other sites: roots, since a deep one would give its page two depths."""
    known = site.neighbours
    for slot in range(site.web.plan.links // 5 if known else 0):
        origin = known[(number + slot) % len(known)]
        yield Link(origin + ("/" if slot % 2 else ""), origin + "/", text=f"site {origin}")


def _mix(*numbers: int) -> int:
    """A well-spread number from small ones, the same on every machine."""
    value = 0x9E3779B97F4A7C15
    for number in numbers:
        value = ((value ^ number) * 0xFF51AFD7ED558CCD) & 0xFFFFFFFFFFFFFFFF
        value ^= value >> 29
    return value
