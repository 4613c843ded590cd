"""Sends URLs found on other sites to those sites' frontiers; new sites in scope are queued.

Offers precede the pages that contain them, so a crash loses none; duplicates change nothing. Links outside the scope
are kept in memory within limits, since their site may join later.
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


# --- Bounded memory ---


Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Remembered(Generic[Key, Value]):
    """The latest values by key, at most `most`. Pure."""

    def __init__(self, most: int) -> None:
        self._half = most // 2
        self._young: dict[int, Value] = {}
        self._old: dict[int, Value] = {}

    def __contains__(self, key: Key) -> bool:
        number = hash(key)
        return number in self._young or number in self._old

    def get(self, key: Key) -> Value | None:
        """The latest value. None: forgotten."""
        number = hash(key)
        return self._young.get(number, self._old.get(number))

    def put(self, key: Key, value: Value) -> None:
        """Store a value."""
        if len(self._young) >= self._half:
            self._old, self._young = self._young, {}
        self._young[hash(key)] = value

    def clear(self) -> None:
        """Remove all values."""
        self._young, self._old = {}, {}


logger = logging.getLogger("agent")

# Remembered URLs and sites: about 60 and 100 bytes each.
URLS_REMEMBERED: Final = 400_000
SITES_REMEMBERED: Final = 200_000
# Limits of an entry (paths, bytes) and of a call (entries, bytes); longer calls would block the server.
ENTRY_PATHS, ENTRY_BYTES = 1_000, 100_000
CALL_ENTRIES, CALL_BYTES = 100, 1_000_000
# Bytes of unsent paths at which fetching pauses; each path counts 150 more than its length.
MOST_PENDING: Final = 64_000_000
PENDING_PATH: Final = 150
# Bytes kept for paths outside the crawl, counted the same way, and paths kept per site.
MOST_OUTSIDE, MOST_OF_A_SITE = 16_000_000, 1_000
# Sites checked per round trip.
ASK_AT_A_TIME: Final = 2_000

# Depth of a page, and redirects in a row to it.
_Way = tuple[int, int]
_Thing = TypeVar("_Thing")


class Offers:
    """URLs of other sites found by one agent."""

    def __init__(
        self, queue: SiteQueue, options: Options, scope: Scope, author: Author, seeding: Seeding
    ) -> None:
        self._queue = queue
        self._options = options
        self._scope = scope
        self._author = author
        self._seeding = seeding
        self._pending: dict[str, dict[str, _Way]] = {}  # site -> path -> how it was found
        self._size = 0  # bytes of these, including those being sent
        self._held_back = False  # the last `send` kept some whose sites may become seeds
        # Site of a redirected seed, with the target's site and path.
        self._moved: dict[tuple[str, str, str], Offer] = {}
        self._inside: set[str] = set()  # sites in the crawl
        # Sites outside the crawl, with the paths found.
        self._outside: dict[str, dict[str, _Way]] = {}
        self._outside_size = 0
        self._queued: set[str] = set()  # sites the queue knew at the last offer
        self._offered = Remembered[tuple[str, str], int](URLS_REMEMBERED)  # least depth offered
        self._warned_full: set[str] = set()

    @property
    def empty(self) -> bool:
        """Whether everything was sent."""
        return not self._pending and not self._moved

    @property
    def full(self) -> bool:
        """Whether fetching must pause."""
        return self._size >= MOST_PENDING

    @property
    def waits(self) -> bool:
        """Whether offers wait for the seeds; their pages must not be published yet."""
        # If the seeds were read since the last `send`, the next one sends the rest.
        return not self.empty and (self._held_back or not self._seeding.read)

    def add(self, site: str, paths: Iterable[str], depth: int, redirects: int = 0) -> None:
        """Offer paths, as written, found at `depth` after `redirects` in a row.

        The root has depth 0. A URL is offered again only at a smaller depth with MAX_DEPTH set.
        """
        if site in self._outside:
            if self._outside_size < MOST_OUTSIDE:
                self._keep(site, paths, (depth, redirects))
            return
        most, new = self._options.max_depth, None
        for path in paths:
            own = 0 if path == "/" else depth
            offered = self._offered.get((site, path))
            if 0 < most < own or not (offered is None or (most and own < offered)):
                continue
            if new is None:
                new = self._pending.setdefault(site, {})
            if path not in new:
                self._size += len(path) + PENDING_PATH
            new[path] = min((own, redirects), new.get(path, (own, redirects)))

    def _keep(self, site: str, paths: Iterable[str], way: _Way) -> None:
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
        """A seed redirects to this page. Returns the reason if it is not followed."""
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
        """Check links again: sites were added, or the scope grew."""
        outside = self._forget_outside()
        for site, paths in outside.items():
            for (depth, redirects), some in _by_way(paths).items():
                self.add(site, some, depth, redirects)

    def forget(self) -> None:
        """Forget all offers: the server may have lost them."""
        self._offered.clear()
        self._forget_outside()
        for some in (self._inside, self._queued):
            some.clear()

    def _forget_outside(self) -> dict[str, dict[str, _Way]]:
        outside, self._outside, self._outside_size = self._outside, {}, 0
        return outside

    async def send(self) -> int:
        """Returns the number of new sites. After an error, call again."""
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
        """Returns the number of new sites, and whether some need another check."""
        await self._judge([site for site in pending if site not in self._inside])
        if self._seeding.read:
            self._drop(pending)
        new, again = 0, False
        for offers in _batches(self._offers(pending)):
            answers = await self._offer(offers)
            new += self._note(offers, answers)
            for one, answer in zip(offers, answers, strict=True):
                # The site is new to the queue, or no longer in the crawl.
                if answer == -2 and not one.record:
                    again = True
                else:
                    _forget(pending, one)
        return new, again

    async def _send_moved(self) -> int:
        """Redirected seeds: before links to their sites are checked."""
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
                logger.info("seed %s redirects to %s, which was added to the crawl", seed, site)
        return new

    def _forget_sites(self) -> None:
        if len(self._inside) + len(self._outside) > SITES_REMEMBERED:
            self._forget_outside()
            for some in (self._inside, self._queued):
                some.clear()

    async def _judge(self, sites: list[str]) -> None:
        """Find sites in the crawl."""
        allowed = [site for site in sites if self._seeding.may_visit(site)]
        if self._scope.kind == "seeds":
            for start in range(0, len(allowed), ASK_AT_A_TIME):
                self._inside |= await self._queue.known(allowed[start : start + ASK_AT_A_TIME])
        else:
            self._inside.update(filter(self._scope.has_site, allowed))

    def _drop(self, pending: dict[str, dict[str, _Way]]) -> None:
        """Once all seeds are known, keep the rest outside."""
        for site in [site for site in pending if site not in self._inside]:
            self._outside.setdefault(site, {})
            if self._outside_size < MOST_OUTSIDE:
                for way, some in _by_way(pending[site]).items():
                    self._keep(site, some, way)
            del pending[site]

    def _offers(self, pending: dict[str, dict[str, _Way]]) -> Iterator[Offer]:
        """Without paths that patterns exclude."""
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
        """Returns the number of new sites.

        Paths refused by a blocked or full site may be offered again, those refused by MAX_SITES not.
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
                logger.warning("site %s: links left out, too many are waiting for it (logged once)", one.site)
        refused = {one.site for one, answer in zip(offers, answers, strict=True) if answer == -1}
        if refused - self._outside.keys():
            many = len(refused - self._outside.keys())
            logger.warning("%d sites left out: MAX_SITES is %d", many, self._options.max_sites)
            for site in refused:
                self._outside.setdefault(site, {})
        return answers.count(1)


def _by_way(paths: dict[str, _Way]) -> dict[_Way, list[str]]:
    found: dict[_Way, list[str]] = {}
    for path, way in paths.items():
        found.setdefault(way, []).append(path)
    return found


def _batches(offers: Iterable[Offer]) -> Iterator[list[Offer]]:
    return _cut(offers, lambda one: sum(map(len, one.paths)), CALL_ENTRIES, CALL_BYTES)


def _cut(
    things: Iterable[_Thing], size_of: Callable[[_Thing], int], most: int, most_bytes: int
) -> Iterator[list[_Thing]]:
    """Parts limited by count and bytes; a larger item is alone."""
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
    paths = pending.get(sent.site, {})
    for path in sent.paths:
        paths.pop(path, None)
    if not paths:
        pending.pop(sent.site, None)
