"""A web as a plain graph, and the walk that tells what a crawl of it must find."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.small_site import Reply, Route

ROBOTS = "/robots.txt"


class Place(NamedTuple):
    """A page's site, by its number, and its path as it stands in a request."""

    site: int
    path: str


@dataclass
class Page:
    """One page, and all that is true of it."""

    path: str
    # The last one stands; those before it come first, once each.
    replies: list[Reply] = field(default_factory=list)
    # What must be asked because this page is.
    leads: list[Place] = field(default_factory=list)
    # Columns of its row in `pages`.
    row: dict[str, object] = field(default_factory=dict)
    # As `leads`, but no deeper than the page: by a redirect.
    beside: list[Place] = field(default_factory=list)
    # False: it never loads, so it leads nowhere.
    loads: bool = True
    # Other spellings of the same page: one of all is asked for.
    also: list[str] = field(default_factory=list)
    # Its redirects lead back to it.
    circles: bool = False
    # Pages of one site with the same name here have the same bytes: one is the original of the others.
    twins: str = ""

    @property
    def requests(self) -> int:
        """Until its turn has ended; a page that fails for ever has as many replies as MAX_TRIES."""
        return len(self.replies) + sum(reply.wall is not None for reply in self.replies)

    @property
    def tries(self) -> int | None:
        """What its row says; None: resets and redirects in a circle need not be tries."""
        *others, last = self.replies
        return self.requests if last.wall is None and all(reply.status >= 500 for reply in others) else None

    def route(self) -> Route:
        """What a server answers."""
        return lambda times: self.replies[min(times, len(self.replies)) - 1]


@dataclass
class Site:
    """One server: its pages by path, and its robots.txt."""

    name: str  # http://host:port
    number: int
    pages: dict[str, Page] = field(default_factory=dict)
    disallow: list[str] = field(default_factory=list)  # beginnings of paths
    sitemaps: list[str] = field(default_factory=list)  # paths that robots.txt names
    more_rules: list[str] = field(default_factory=list)  # lines of robots.txt that close nothing

    def add(self, page: Page) -> Place:
        """The page's place; AssertionError where the path is taken."""
        for path in (page.path, *page.also):
            assert path not in self.pages, path
            self.pages[path] = page
        return Place(self.number, page.path)

    def denies(self, path: str) -> bool:
        """Whether its robots.txt forbids the path."""
        return any(path.startswith(beginning) for beginning in self.disallow)

    def most_requests(self, page: Page) -> int:
        """A circle is gone round once more with cookies that the site has set elsewhere."""
        sets_cookies = any(
            "Set-Cookie" in (reply.wall[1] if reply.wall else reply).fields
            for one in self.pages.values()
            for reply in one.replies
        )
        return page.requests + (page.circles and sets_cookies)

    @property
    def routes(self) -> dict[str, Route]:
        """What its server answers, by path."""
        rules = ["User-agent: *", *(f"Disallow: {path}" for path in self.disallow), *self.more_rules]
        lines = [*rules, "", *(f"Sitemap: {self.name}{path}" for path in self.sitemaps)]
        robots = Reply(200, {"Content-Type": "text/plain"}, "\n".join(lines) + "\n")
        return {**{path: page.route() for path, page in self.pages.items()}, ROBOTS: robots}


@dataclass
class Web:
    """Some sites; `seeds` are numbers of those whose roots are seeds."""

    sites: list[Site]
    seeds: list[int]
    scope: str = "seeds"  # SCOPE: seeds or any
    max_depth: int = 0  # MAX_DEPTH; 0: no limit

    def page(self, place: Place) -> Page | None:
        """The page at a place; None: there is none, the server answers 404."""
        return self.sites[place.site].pages.get(place.path)

    def expected(self) -> dict[Place, int]:
        """What a crawl must find, robots.txt's denials included, each with its least depth.

        A page with several spellings is there under its first one.
        """
        least: dict[Place, int] = {}
        waiting = [(0, Place(number, "/")) for number in self.seeds]
        while waiting:
            depth, place = waiting.pop()
            if self._is_open(place.site) and depth < least.get(place, sys.maxsize):
                least[place] = depth
                waiting += self._reached_with_its_site(place.site)
                waiting += self._reached(place, depth)
        return least

    def _reached_with_its_site(self, site: int) -> list[tuple[int, Place]]:
        return [(0, Place(site, path)) for path in ("/", *self.sites[site].sitemaps)]

    def _is_open(self, site: int) -> bool:
        return self.scope == "any" or site in self.seeds

    def _reached(self, place: Place, depth: int) -> Iterator[tuple[int, Place]]:
        page = self.page(place)
        if page is None or not page.loads or self.sites[place.site].denies(place.path):
            return
        ways = [(depth, lead) for lead in page.beside] + [(depth + 1, lead) for lead in page.leads]
        for deeper, lead in ways:
            own = (
                0 if lead.path == "/" and lead.site != place.site else deeper
            )  # a site's root is its first page
            if not 0 < self.max_depth < own:
                yield own, self._first_spelling(lead)

    def _first_spelling(self, place: Place) -> Place:
        page = self.page(place)
        return place._replace(path=page.path) if page is not None else place


def spellings(page: Page | None, path: str) -> Sequence[str]:
    """All the paths by which a page may be asked for."""
    return [path] if page is None else [page.path, *page.also]
