"""URLs of other sites that pages name, on their way to those sites: links, redirects, requests that are plain links.

An offer reaches its site's frontier whatever state the site is in, if it belongs to the crawl; a site that is new is
queued. Offers are sent in batches, always before the pages that name them are published: an agent that dies in between
has its pages fetched again, and an offer that comes twice changes nothing. A URL is offered once as long as this agent
remembers it; again where MAX_DEPTH counts and a shorter way leads to it, and where the agent lost its sites, since the
server may have lost the offer too. Where a seed redirects to another site, that page is the seed, and the scope takes
it in.

While the seeds that the crawl begins with are still being read (Seeding.read), a site that nothing is known of may yet
become one: then `waits` is True, and no page is published. Later a site may join the crawl too, since a seed redirects
to it or it is given as a seed: so the first links that led outside are kept, as many as there is room for, and judged
again then. An agent that ends or is killed takes these with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from crawler import records
from crawler.agent.session import Author, now_ms
from crawler.queue.queue import SiteQueue
from crawler.queue.sites import Offer

if TYPE_CHECKING:
    from crawler.agent.seeding import Seeding
    from crawler.options import Options
    from crawler.urls.scope import Scope


# ------------------------------------------------------------------------------------------------------------
# A bounded memory of what came last. Pure.


Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Remembered(Generic[Key, Value]):
    """The last values by the hash of their keys: `most` of them; the older half may be forgotten at a time."""

    def __init__(self, most: int) -> None:
        self._half = most // 2
        self._young: dict[int, Value] = {}
        self._old: dict[int, Value] = {}

    def __contains__(self, key: Key) -> bool:
        number = hash(key)
        return number in self._young or number in self._old

    def get(self, key: Key) -> Value | None:
        """The value that was put last; None: there was none, or it is forgotten."""
        number = hash(key)
        return self._young.get(number, self._old.get(number))

    def put(self, key: Key, value: Value) -> None:
        """Remember this value."""
        if len(self._young) >= self._half:
            self._old, self._young = self._young, {}
        self._young[hash(key)] = value

    def clear(self) -> None:
        """Forget all of them."""
        self._young, self._old = {}, {}


logger = logging.getLogger("agent")

# URLs offered, and sites judged, that are remembered: some 60 and 100 bytes each.
URLS_REMEMBERED: Final = 400_000
SITES_REMEMBERED: Final = 200_000
# Paths in one entry, entries in one call, and bytes of both: a longer call would hold up the server.
ENTRY_PATHS, ENTRY_BYTES = 1_000, 100_000
CALL_ENTRIES, CALL_BYTES = 100, 1_000_000
# Bytes of paths that wait to be sent: with more, fetching pauses. A path takes some 150 beside its own.
MOST_PENDING: Final = 64_000_000
PENDING_PATH: Final = 150
# Bytes, counted alike, of paths outside the crawl that are kept; and paths of one site, for there are some to which
# everybody links.
MOST_OUTSIDE, MOST_OF_A_SITE = 16_000_000, 1_000
# Sites asked about in one round trip.
ASK_AT_A_TIME: Final = 2_000

# Depth of a page, and redirects in a row that led to it.
_Way = tuple[int, int]
_Thing = TypeVar("_Thing")


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
        self._size = 0  # of these, with those that are just being sent
        self._held_back = False  # the last `send` left some, since their sites may yet become seeds
        # Site of a seed that redirects, and where to: site and path.
        self._moved: dict[tuple[str, str, str], Offer] = {}
        self._inside: set[str] = set()  # sites that belong to the crawl
        # Sites that do not, as far as is known, each with what was found of it.
        self._outside: dict[str, dict[str, _Way]] = {}
        self._outside_size = 0
        self._queued: set[str] = set()  # sites that the queue knew when something was offered to them
        self._offered = Remembered[tuple[str, str], int](URLS_REMEMBERED)  # the least depth that was told
        self._warned_full: set[str] = set()

    @property
    def empty(self) -> bool:
        """Whether everything was sent."""
        return not self._pending and not self._moved

    @property
    def full(self) -> bool:
        """Whether fetching must pause until something was sent."""
        return self._size >= MOST_PENDING

    @property
    def waits(self) -> bool:
        """Whether some may be sent only when the seeds are read: pages that name them are not to be published yet."""
        # The seeds may have been read since the last `send` looked: then the next one sends what it left.
        return not self.empty and (self._held_back or not self._seeding.read)

    def add(self, site: str, paths: Iterable[str], depth: int, redirects: int = 0) -> None:
        """Offer paths of another site, as written, found at this depth, the last of so many redirects in a row.

        The root of a site is its first page, however deep the link to it is: it has depth 0.
        """
        if site in self._outside:
            if self._outside_size < MOST_OUTSIDE:
                self._keep(site, paths, (depth, redirects))
            return
        most, new = self._options.max_depth, None
        for path in paths:
            own = 0 if path == "/" else depth
            told = self._offered.get((site, path))
            if 0 < most < own or not (told is None or (most and own < told)):
                continue
            if new is None:
                new = self._pending.setdefault(site, {})
            if path not in new:
                self._size += len(path) + PENDING_PATH
            new[path] = min((own, redirects), new.get(path, (own, redirects)))

    def _keep(self, site: str, paths: Iterable[str], way: _Way) -> None:
        """Keep what is found of a site outside the crawl, the first of it."""
        kept = self._outside.setdefault(site, {})
        for path in paths:
            before = kept.get(path)
            if before is not None:
                if way < before:
                    kept[path] = way
            elif len(kept) < MOST_OF_A_SITE:
                self._outside_size += len(path) + PENDING_PATH
                kept[path] = way

    def move(self, seeds_site: str, site: str, path: str, redirects: int) -> str:
        """A seed redirects to this page, the last of so many redirects in a row; why it is not followed, or nothing."""
        if not self._seeding.may_visit(site):
            return "not followed: USER_AGENT names no contact"
        if not self._scope.has_page(site + path):
            return "not followed: SCOPE_INCLUDE or SCOPE_EXCLUDE"
        found = records.SiteFound(site=site, found_at=now_ms(), source=f"{records.MOVED}{seeds_site}")
        record = self._author.numbered(found)
        offer = Offer(site, [path], redirects=redirects, record=record, seeded=True)
        self._moved[seeds_site, site, path] = offer
        return ""

    def look_again(self) -> None:
        """Sites were added, or the scope was widened: what did not belong to the crawl may do so now."""
        outside = self._forget_outside()
        for site, paths in outside.items():
            for (depth, redirects), some in _by_way(paths).items():
                self.add(site, some, depth, redirects)

    def forget(self) -> None:
        """The agent lost its sites, and the server may have lost its offers: what is found again is offered again."""
        self._offered.clear()
        self._forget_outside()
        for some in (self._inside, self._queued):
            some.clear()

    def _forget_outside(self) -> dict[str, dict[str, _Way]]:
        """What there was."""
        outside, self._outside, self._outside_size = self._outside, {}, 0
        return outside

    async def send(self) -> int:
        """Send what may be sent by now; how many sites are new. After an error the rest is sent by the next call."""
        new = await self._send_moved()
        self._forget_sites()
        pending, self._pending = self._pending, {}
        try:
            while True:
                more, again = await self._send_inside(pending)
                new += more
                if not again:
                    return new
        finally:
            self._held_back = bool(pending)
            for site, paths in pending.items():
                newer = self._pending.setdefault(site, {})
                for path, way in paths.items():
                    newer[path] = min(way, newer.get(path, way))
            self._size = sum(len(path) + PENDING_PATH for paths in self._pending.values() for path in paths)

    async def _send_inside(self, pending: dict[str, dict[str, _Way]]) -> tuple[int, bool]:
        """Send what belongs to the crawl; how many sites are new, and whether some are to be judged again."""
        await self._judge([site for site in pending if site not in self._inside])
        if self._seeding.read:
            self._drop(pending)
        new, again = 0, False
        for offers in _batches(self._offers(pending)):
            answers = await self._offer(offers)
            new += self._note(offers, answers)
            for one, answer in zip(offers, answers, strict=True):
                # The queue knows the site no more: it is new, or no part of the crawl by now.
                if answer == -2 and not one.record:
                    again = True
                else:
                    _forget(pending, one)
        return new, again

    async def _send_moved(self) -> int:
        """Seeds' redirects: their sites are known before links to them are judged."""
        moved = dict(self._moved)
        if not moved:
            return 0
        await self._seeding.note_moved(moved)
        self.look_again()
        new = 0
        for offers in _batches(moved.values()):
            answers = await self._offer(offers)
            new += self._note(offers, answers)
            self._inside |= {one.site for one, answer in zip(offers, answers, strict=True) if answer >= 0}
        for way, one in moved.items():
            if self._moved.get(way) is one:
                del self._moved[way]
        for seed, site in dict.fromkeys((seed, site) for seed, site, _ in moved):
            if site in self._inside:
                logger.info("the seed %s redirects to %s, which belongs to the crawl now", seed, site)
        return new

    def _forget_sites(self) -> None:
        """Keep what is known of sites within its bound."""
        if len(self._inside) + len(self._outside) > SITES_REMEMBERED:
            self._forget_outside()
            for some in (self._inside, self._queued):
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
            self._outside.setdefault(site, {})
            if self._outside_size < MOST_OUTSIDE:
                for way, some in _by_way(pending[site]).items():
                    self._keep(site, some, way)
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
            for (depth, redirects), some in _by_way(paths).items():
                for part in _cut(some, len, ENTRY_PATHS, ENTRY_BYTES):
                    yield Offer(site, part, depth, redirects, record, with_root)

    async def _offer(self, offers: list[Offer]) -> list[int]:
        return await self._queue.offer(offers, self._options.max_sites, agent=self._author.name)

    def _note(self, offers: list[Offer], answers: list[int]) -> int:
        """Remember what was sent; how many sites are new.

        What a site refused by now (it is blocked, or too much waits for it) is offered again when it is found again.
        What MAX_SITES refuses is not: there may be no end of it.
        """
        for one, answer in zip(offers, answers, strict=True):
            if answer >= 0:
                self._queued.add(one.site)
            elif answer in (-1, -2):
                self._queued.discard(one.site)
                self._inside.discard(one.site)
            if answer >= -1:
                for path in one.paths:
                    self._offered.put((one.site, path), one.depth)
            if answer == -3 and one.site not in self._warned_full:
                self._warned_full.add(one.site)
                logger.warning(
                    "%s: links to it are left out: too many wait for it already (said once)", one.site
                )
        refused = {one.site for one, answer in zip(offers, answers, strict=True) if answer == -1}
        if refused - self._outside.keys():
            many = len(refused - self._outside.keys())
            logger.warning("%d sites were left out: MAX_SITES is %d", many, self._options.max_sites)
            for site in refused:
                self._outside.setdefault(site, {})
        return answers.count(1)


def _by_way(paths: dict[str, _Way]) -> dict[_Way, list[str]]:
    """The paths by depth and redirects."""
    found: dict[_Way, list[str]] = {}
    for path, way in paths.items():
        found.setdefault(way, []).append(path)
    return found


def _batches(offers: Iterable[Offer]) -> Iterator[list[Offer]]:
    """In calls of bounded size."""
    return _cut(offers, lambda one: sum(map(len, one.paths)), CALL_ENTRIES, CALL_BYTES)


def _cut(
    things: Iterable[_Thing], size_of: Callable[[_Thing], int], most: int, most_bytes: int
) -> Iterator[list[_Thing]]:
    """In parts of so many at most, and of so many bytes; what is larger by itself is a part of its own."""
    part: list[_Thing] = []
    left = most_bytes
    for thing in things:
        size = size_of(thing)
        if part and (len(part) >= most or size > left):
            yield part
            part, left = [], most_bytes
        part.append(thing)
        left -= size
    if part:
        yield part


def _forget(pending: dict[str, dict[str, _Way]], sent: Offer) -> None:
    """Take what was sent out of what is pending."""
    paths = pending.get(sent.site, {})
    for path in sent.paths:
        paths.pop(path, None)
    if not paths:
        pending.pop(sent.site, None)
