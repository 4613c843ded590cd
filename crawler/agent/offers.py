"""URLs of other sites that pages name, on their way to those sites: links, redirects, requests that are plain links.

An offer reaches its site's frontier whatever state the site is in, if it belongs to the crawl; a site that is new is
queued. Offers are sent in batches, always before the pages that name them are published: an agent that dies in between
has its pages fetched again, and an offer that comes twice changes nothing. A URL is offered once as long as this agent
remembers it. Where a seed redirects to another site, that page is the seed, and the scope takes it in.

While this agent's own seeds are still being read, a site that nothing is known of may yet become one: then `waits` is
True, and no page is published.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from crawler import records
from crawler.agent.session import Author, now_ms
from crawler.sites.queue import Offer, SiteQueue

if TYPE_CHECKING:
    from crawler.agent.seeding import Seeding
    from crawler.options import Options
    from crawler.sites.scope import Scope

logger = logging.getLogger("agent")

# URLs offered, and sites judged, that are remembered: some 60 and 100 bytes each.
URLS_REMEMBERED: Final = 400_000
SITES_REMEMBERED: Final = 200_000
# Paths in one entry: a longer one would hold up the server.
ENTRY_PATHS: Final = 1_000
# Sites asked about in one round trip.
ASK_AT_A_TIME: Final = 2_000

# Depth of a page, and redirects in a row that led to it.
_Way = tuple[int, int]


class Offers:
    """What one agent's pages name of other sites."""

    def __init__(
        self, queue: SiteQueue, options: Options, scope: Scope, author: Author, seeding: Seeding
    ) -> None:
        self._queue = queue
        self._options = options
        self._scope = scope
        self._author = author
        self._seeding = seeding
        self._pending: dict[str, dict[str, _Way]] = {}  # site -> path -> how it was found
        self._moved: dict[str, Offer] = {}  # site of a seed that redirects -> where to
        self._inside: set[str] = set()  # sites that belong to the crawl
        self._outside: set[str] = set()  # sites that do not, as far as is known
        self._queued: set[str] = set()  # sites that the queue knew when something was offered to them
        self._offered = _Remembered(URLS_REMEMBERED)
        self._told_full: set[str] = set()

    @property
    def empty(self) -> bool:
        """Whether everything was sent."""
        return not self._pending and not self._moved

    @property
    def waits(self) -> bool:
        """Whether some may be sent only when the seeds are read: pages that name them are not to be published yet."""
        return not self.empty and not self._seeding.taken_in

    def add(self, site: str, paths: Iterable[str], depth: int, redirects: int = 0) -> None:
        """Offer canonical paths of another site, found at this depth, the last of so many redirects in a row."""
        if site in self._outside or 0 < self._options.max_depth < depth:
            return
        new = None
        for path in paths:
            if (site, path) not in self._offered:
                if new is None:
                    new = self._pending.setdefault(site, {})
                new.setdefault(path, (depth, redirects))

    def move(self, seeds_site: str, site: str, path: str, redirects: int) -> str:
        """A seed redirects to this page, the last of so many redirects in a row; why it is not followed, or nothing."""
        if not self._seeding.may_visit(site):
            return "not followed: USER_AGENT names no contact"
        if not self._scope.has_page(site + path):
            return "not followed: SCOPE_INCLUDE or SCOPE_EXCLUDE"
        found = records.SiteFound(site=site, found_at=now_ms(), source=f"{records.MOVED}{seeds_site}")
        record = self._author.numbered(found)
        self._moved[seeds_site] = Offer(site, [path], redirects=redirects, record=record)
        return ""

    def look_again(self) -> None:
        """Sites were added, or the scope was widened: what did not belong to the crawl may do so now."""
        self._outside.clear()

    async def send(self) -> int:
        """Send what may be sent by now; how many sites are new. After an error the rest is sent by the next call."""
        new = await self._send_moved()
        self._forget_sites()
        pending, self._pending = self._pending, {}
        try:
            await self._judge([site for site in pending if site not in self._inside])
            if self._seeding.taken_in:
                self._drop(pending)
            for offers in _batches(self._offers(pending)):
                new += self._note(offers, await self._queue.offer(offers, self._options.max_sites))
                for one in offers:
                    _forget(pending, one)
        finally:
            for site, paths in pending.items():
                self._pending[site] = {**paths, **self._pending.get(site, {})}
        return new

    async def _send_moved(self) -> int:
        """Seeds' redirects: their sites are known before links to them are judged."""
        moved = dict(self._moved)
        if not moved:
            return 0
        await self._seeding.note_moved({seed: one.site for seed, one in moved.items()})
        offers = list(moved.values())
        new = self._note(offers, await self._queue.offer(offers, self._options.max_sites))
        self.look_again()
        for seed, one in moved.items():
            self._inside.add(one.site)
            if self._moved.get(seed) is one:
                del self._moved[seed]
            logger.info("the seed %s redirects to %s, which belongs to the crawl now", seed, one.site)
        return new

    def _forget_sites(self) -> None:
        """Keep what is known of sites within its bound."""
        if len(self._inside) + len(self._outside) > SITES_REMEMBERED:
            for some in (self._inside, self._outside, self._queued):
                some.clear()

    async def _judge(self, sites: list[str]) -> None:
        """Tell the sites that belong to the crawl from those that do not."""
        allowed = [site for site in sites if self._seeding.may_visit(site)]
        if self._scope.kind == "seeds":
            for start in range(0, len(allowed), ASK_AT_A_TIME):
                self._inside |= await self._queue.known(allowed[start : start + ASK_AT_A_TIME])
        else:
            self._inside.update(filter(self._scope.has_site, allowed))

    def _drop(self, pending: dict[str, dict[str, _Way]]) -> None:
        """All seeds are known: what does not belong to the crawl by now is left out."""
        for site in [site for site in pending if site not in self._inside]:
            self._outside.add(site)
            del pending[site]

    def _offers(self, pending: dict[str, dict[str, _Way]]) -> Iterator[Offer]:
        """One or several offers for each site that belongs to the crawl; what patterns leave out is dropped."""
        for site in [site for site in pending if site in self._inside]:
            inside = self._scope.pages_of(site, list(pending[site]))
            paths = pending[site] = {path: pending[site][path] for path in inside}
            if not paths:
                del pending[site]
                continue
            record, with_root = b"", False
            if site not in self._queued:
                record = self._author.numbered(records.SiteFound(site=site, found_at=now_ms(), source="link"))
                with_root = self._scope.has_page(f"{site}/")
            by_way: dict[_Way, list[str]] = {}
            for path, way in paths.items():
                by_way.setdefault(way, []).append(path)
            for (depth, redirects), some in by_way.items():
                for start in range(0, len(some), ENTRY_PATHS):
                    part = some[start : start + ENTRY_PATHS]
                    yield Offer(site, part, depth, redirects, record, with_root)

    def _note(self, offers: list[Offer], answers: list[int]) -> int:
        """Remember what was sent; how many sites are new."""
        for one, answer in zip(offers, answers, strict=True):
            if answer >= 0:
                self._queued.add(one.site)
            elif answer == -2:
                self._queued.discard(one.site)  # blocked, or forgotten: the next link may find it as new
            for path in one.paths:
                self._offered.add((one.site, path))
            if answer == -3 and one.site not in self._told_full:
                self._told_full.add(one.site)
                logger.warning(
                    "%s: links to it are left out: too many wait for it already (said once)", one.site
                )
        refused = answers.count(-1)
        if refused:
            logger.warning("%d sites were left out: MAX_SITES is %d", refused, self._options.max_sites)
        return answers.count(1)


class _Remembered:
    """The last URLs that were added, by their hash; half of them may be forgotten at a time."""

    def __init__(self, most: int) -> None:
        self._half = most // 2
        self._young: set[int] = set()
        self._old: set[int] = set()

    def __contains__(self, url: tuple[str, str]) -> bool:
        key = hash(url)
        return key in self._young or key in self._old

    def add(self, url: tuple[str, str]) -> None:
        if len(self._young) >= self._half:
            self._old, self._young = self._young, set()
        self._young.add(hash(url))


def _batches(offers: Iterator[Offer]) -> Iterator[list[Offer]]:
    """In calls of bounded size."""
    while batch := list(islice(offers, 100)):
        yield batch


def _forget(pending: dict[str, dict[str, _Way]], sent: Offer) -> None:
    """Take what was sent out of what is pending."""
    paths = pending.get(sent.site, {})
    for path in sent.paths:
        paths.pop(path, None)
    if not paths:
        pending.pop(sent.site, None)
