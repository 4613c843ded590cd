"""What a right crawl of the farm finds: told from the same resources that the server answers with.

Pure. Depth is counted within a site: a start page has 0, each link adds 1, a redirect adds nothing; so links
to other sites count from every page that the depth allows. URLs outside the farm are no error: they
are passed over, as the farm can say nothing about them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from .resource import Resource
from .site import Site, Web

STORED = ("page", "duplicate", "binary")
FORBIDDEN = ("denied", "nofollow", "overlong", "alias")
SCOPES = ("seeds", "domain", "any")


@dataclass(frozen=True)
class Declared:
    """The truth about one URL."""

    url: str
    resource: Resource
    depth: int | None  # links from the site's root; None = a right crawl never gets there

    @property
    def kind(self) -> str:
        """page, duplicate, binary, robots, redirect, error; or denied, nofollow, overlong, alias."""
        return self.resource.kind

    @property
    def status(self) -> int:
        """Status of the answer (for a busy page: of the second one)."""
        return self.resource.status

    @property
    def sha256(self) -> str:
        """Hexadecimal SHA-256 of the body's bytes."""
        return self.resource.sha256


@dataclass(frozen=True)
class Walk:
    """One site walked breadth-first."""

    found: dict[str, Declared]  # by URL, in the order of a one-at-a-time crawl
    foreign: tuple[str, ...]  # URLs of other sites met on the way, in order


def walk(
    site: Site, starts: Iterable[str] = ("/",), max_depth: int | None = None, max_pages: int | None = None
) -> Walk:
    """Everything a right crawl of this site meets from these paths; ends when `max_pages` are stored."""
    queue = deque((path, 0) for path in starts)
    found: dict[str, Declared] = {}
    foreign: dict[str, None] = {}
    stored = 0
    while queue and (max_pages is None or stored < max_pages):
        path, depth = queue.popleft()
        if site.url(path) in found or (max_depth is not None and depth > max_depth):
            continue
        resource = site.resource(path)
        if resource is None:
            continue
        found[site.url(path)] = Declared(site.url(path), resource, depth)
        stored += resource.kind in STORED
        inner, outer = _targets(site, resource)
        foreign.update(dict.fromkeys(outer))
        # A redirect is the same step: its target comes next, no deeper.
        queue.extendleft((path, depth) for path in inner if resource.location)
        queue.extend((path, depth + 1) for path in inner if not resource.location)
    return Walk(found, tuple(foreign))


def _targets(site: Site, resource: Resource) -> tuple[list[str], list[str]]:
    """Paths of this site, and URLs of others, to which a resource leads."""
    targets = [resource.location] if resource.location else resource.follow
    own, start = site.origin + "/", len(site.origin)
    inner = [url[start:] for url in targets if url.startswith(own)]
    return inner, [url for url in targets if not url.startswith(own)]


def expected(
    web: Web,
    seeds: Iterable[str],
    scope: str | Collection[str] = "seeds",
    *,
    max_depth: int | None = None,
    max_pages: int | None = None,
    kinds: Collection[str] = STORED,
) -> dict[str, set[str]]:
    """URLs that a right crawl stores with status 200, by origin; sites with none are left out.

    scope: "seeds" (the seeds' sites), "domain" (also other hosts under the seeds' domains), "any"
    (every site that links lead to), or the origins themselves. With max_pages a crawl that fetches several
    pages at a time may find others; the number per site is right then. Raises ValueError for another scope.
    """
    starts: dict[str, list[str]] = {}
    for seed in seeds:
        origin, path = split(seed)
        starts.setdefault(origin, []).append(path)
    allowed = _allowed(web, starts, scope)
    stored: dict[str, set[str]] = {}
    queue = deque(starts)
    while queue:
        origin = queue.popleft()
        site = web.by_origin(origin)
        if site is None or origin in stored or origin not in allowed:
            continue
        if site.index in web.plan.down or site.hostility:
            continue
        walked = walk(site, starts[origin], max_depth, max_pages)
        stored[origin] = {url for url, truth in walked.found.items() if truth.kind in kinds}
        for target, path in map(split, walked.foreign):
            queue.append(target)
            starts.setdefault(target, [path])
    return {origin: urls for origin, urls in stored.items() if urls}


def declared(web: Web) -> dict[str, Declared]:
    """Every URL of every site, with the depth from the site's root."""
    return {url: truth for index in range(web.plan.total) for url, truth in _declared(web.site(index))}


def split(url: str) -> tuple[str, str]:
    """Origin and path of a URL: the path with its query, "/" where there is none."""
    parts = urlsplit(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return f"{parts.scheme}://{parts.netloc}", path


def domain(origin: str) -> str:
    """Registrable domain of an origin: a name's last two labels, an address as it is."""
    host = urlsplit(origin).hostname or ""
    return host if host.replace(".", "").isdigit() else ".".join(host.split(".")[-2:])


def _declared(site: Site) -> Iterator[tuple[str, Declared]]:
    if site.hostility:
        return
    found = walk(site).found
    for resource in site.resources():
        url = site.url(resource.path)
        yield url, found.get(url) or Declared(url, resource, None)


def _allowed(web: Web, origins: Iterable[str], scope: str | Collection[str]) -> set[str]:
    if not isinstance(scope, str):
        return set(scope)
    if scope not in SCOPES:
        raise ValueError(f"scope: {scope!r} came, one of {', '.join(SCOPES)} or origins are expected")
    if scope == "any":
        return set(web.index)
    domains = {domain(origin) for origin in origins}
    return set(origins) if scope == "seeds" else {o for o in web.index if domain(o) in domains}
