"""The URLs of one leased site: to fetch, in flight, seen. Breadth first, within the site's budgets. Pure.

Paths are numbered as accepted; `head` is the first untaken one, exceptions are taken and not done. A checkpoint is a
whole entry plus deltas; `restore` continues from it and fetches exceptions again. With a depth limit, done pages found
shallower are fetched again for links.
"""

from __future__ import annotations

import heapq
import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby
from typing import Annotated, NamedTuple, TypeVar

import msgspec
import zstandard

from crawler import left_out
from crawler.agent.responses import MOST_REDIRECTS
from crawler.content import copies
from crawler.content.copies import Copies
from crawler.left_out import LeftOut, Part, Reason
from crawler.records import SET_HASHES, hash_of, set_hash
from crawler.urls.url import page_of

VERSION = 1
# zstd level: 10% smaller than 1, at about 1 µs more per page.
_LEVEL = 3
# Shorter entries are not compressed.
_COMPRESS_ABOVE = 200
# Digest bytes per fetched page: 0.002 collisions expected at 1 M pages.
_DIGEST = 6
# Shorter journals are not folded.
FOLD_ABOVE = 2048
# Known URLs of a site with a page limit (220 bytes each): per allowed page, at least, and at most beyond the limit.
# More are counted as left out and forgotten; a later walk finds them again.
KNOWN_FOR_EACH = 10
LEAST_KNOWN = 10_000
MOST_BEYOND = 50_000
# Failed pages that wait behind untried ones. Above this number some go first, since every checkpoint lists them all.
MOST_BEHIND = 200
# Deeper pages count as this depth.
_DEEPEST = 65_535
# The latest change time (s) that fits in 32 bits.
_LATEST = 2**32 - 1
# Longest redirect cycle that is detected.
_LONGEST_CIRCLE = 10
# Page index and change time (s).
_PAIR = struct.Struct("<II")

_Value = TypeVar("_Value", int, str)
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Depth = Annotated[int, msgspec.Meta(ge=0, le=_DEEPEST)]


class CheckpointError(ValueError):
    """Invalid or outdated checkpoint data; the site must start over."""


class Turn(NamedTuple):
    """A page's scheduled fetch."""

    number: int  # position in the order of acceptance
    path: str  # canonical: the page's name
    depth: int
    tries: int  # including this one: 1, 2, …
    asked: str  # path to request, as written where the page was first found

    @property
    def asked_as(self) -> str:
        """The path to request, if it is not the page's name; otherwise empty."""
        return self.asked if self.asked != self.path else ""


class _Entry(msgspec.Struct, array_like=True):
    version: int
    first: _Count  # index of this entry's first path; 0: a whole checkpoint
    paths: bytes  # newline-separated, zstd-compressed if `packed`
    packed: bool
    depths: list[tuple[_Depth, _Count]]  # runs: depth, number of paths
    head: _Count
    exceptions: list[tuple[_Count, _Count]]  # index, tries so far
    digests: bytes  # of pages done since the last entry
    owners: list[_Count]  # page index per digest
    published: _Count
    taken: _Count
    strikes: _Count
    # Absent in entries of older versions.
    parkings: _Count = 0
    done_hash: _Count | None = None
    sitemaps: list[tuple[_Count, _Count]] = []  # index, sitemap indexes above it
    changes: bytes = b""  # pairs of index and time (s)
    lowered: list[tuple[_Count, _Depth]] = []  # index and new depth of paths found at a smaller depth
    retakes: list[_Count] = []  # exceptions that were done before
    left_out: list[Part] = []
    # Page index and its redirect target; the same index: the redirect is gone.
    redirects: list[tuple[_Count, _Count]] = []
    copies: copies.Told | None = None
    spelt: list[_Count] = []  # indexes of paths requested in another spelling
    spellings: bytes = b""  # the spellings, newline-separated, zstd; empty: no spellings


class Snapshot(NamedTuple):
    """An immutable copy of a frontier's state or changes."""

    first: int
    paths: list[str]
    depths: list[tuple[int, int]]
    head: int
    exceptions: list[tuple[int, int]]
    digests: list[bytes]
    owners: list[int]
    published: int
    taken: int
    strikes: int
    parkings: int
    done_hash: int
    sitemaps: list[tuple[int, int]]
    changes: list[tuple[int, int]]
    lowered: list[tuple[int, int]]
    retakes: list[int]
    left_out: list[Part]
    redirects: list[tuple[int, int]]
    copies: copies.Told | None
    spellings: list[tuple[int, str]]
    on_encoded: Callable[[int], None]  # called with the entry's length in bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Entry)


class Frontier:
    """The URLs of one `site`; 0 means no limit."""

    def __init__(self, max_pages: int = 0, max_depth: int = 0, site: str = "") -> None:
        self.max_pages = max_pages
        self.max_depth = max_depth
        self.published = 0  # page records of this site over all leases
        self.done_hash = 0  # records.set_hash of the published URLs
        self.strikes = 0  # back-offs in a row; determines the length of the next one
        self.parkings = 0  # leases in a row that ended because the site was unreachable or not requestable
        self._site = site
        self._paths: list[str] = []
        self._index: dict[str, int] = {}
        # Non-canonical spellings to request: by index, and the reverse.
        self._spellings: dict[int, str] = {}
        self._spelt: dict[str, int] = {}
        self._new_spellings: list[int] = []
        self._depths = array("H")
        # Depths as accepted, in runs (depth, count); and the ones lowered since.
        self._depth_runs: list[tuple[int, int]] = []
        self._lowered: dict[int, int] = {}
        self._deepest = 0
        self._new_lowered: list[int] = []
        self._head = 0
        self._taken = 0  # pages counted against the budget
        self._in_flight: dict[int, int] = {}  # index -> tries, including this one
        self._set_back: list[tuple[float, int, int]] = []  # heap: due, index, tries so far
        # Done pages to fetch again for their links: all, those not yet taken, and a heap (depth, index) of the
        # latter. Heap entries with an outdated depth are void.
        self._retakes: set[int] = set()
        self._deferred: set[int] = set()
        self._by_depth: list[tuple[int, int]] = []
        # The latest redirects, by index.
        self._redirects: dict[int, int] = {}
        self._new_redirects: list[int] = []
        self._digests: dict[bytes, int] = {}
        self._told_paths = 0
        self._new_digests: list[tuple[bytes, int]] = []
        self._sitemaps: dict[int, int] = {}  # by index: sitemap indexes above it
        self._new_sitemaps: list[int] = []
        # Change times (s since 1970) from sitemaps, for pages that are not done; 0: unknown.
        self._changes = array("I")
        self._new_changes: list[int] = []
        self._left = LeftOut()
        self._copies = Copies()
        self._base_bytes = 0
        self._journal_bytes = 0
        self._replaces = False  # the stored checkpoint is unusable

    def __len__(self) -> int:
        return len(self._paths)

    def __contains__(self, path: str) -> bool:
        return path in self._index or path in self._spelt or page_of(path) in self._index

    @property
    def in_flight(self) -> int:
        """Pages taken whose turn has not ended."""
        return len(self._in_flight)

    @property
    def over_budget(self) -> int:
        """Known pages beyond `max_pages`; 0 until the limit is reached."""
        return len(self._paths) - self._head if self._full else 0

    @property
    def pending(self) -> int:
        """Pages to fetch or in flight, within the budget."""
        waiting = 0 if self._full else len(self._paths) - self._head
        return waiting + len(self._in_flight) + len(self._set_back) + len(self._deferred)

    @property
    def _full(self) -> bool:
        return 0 < self.max_pages <= self._taken

    @property
    def _most_known(self) -> int:
        if not self.max_pages:
            return sys.maxsize
        return max(LEAST_KNOWN, min(KNOWN_FOR_EACH * self.max_pages, self.max_pages + MOST_BEYOND))

    def add(self, paths: Iterable[str], depth: int, refused: Callable[[str], bool] | None = None) -> int:
        """Accept paths, as written, found at `depth`. Returns the number of new pages.

        Known pages get this depth if it is smaller. `refused` detects traps among new canonical paths. Rejected paths
        count as left out.
        """
        index, left = self._index, self._left
        if 0 < self.max_depth < depth:
            left.add("depth", (path for path in map(page_of, paths) if path not in index))
            return 0
        depth, before = min(depth, _DEEPEST), len(self._paths)
        spelt, depths, most = self._spelt, self._depths, self._most_known
        if depth >= self._deepest:  # the usual case in breadth-first order: no known path is deeper
            # Most links are known in this spelling and need no canonicalization.
            paths = [path for path in paths if path not in index and path not in spelt]
        for written in paths:
            path = written if written in index else page_of(written)
            number = index.get(path)
            if number is not None:
                if number < before and depth < depths[number]:
                    self._lower(number, depth)
            elif refused is not None and refused(path):
                left.add("family", (path,))
            elif len(self._paths) >= most:
                left.add("memory", (path,))
            else:
                self._accept(path, written)
        return self._note_depth(before, depth)

    def add_page(self, path: str, asked: str, depth: int) -> None:
        """Accept a new page and the path to request for it."""
        before = len(self._paths)
        self._accept(path, asked)
        self._note_depth(before, min(depth, _DEEPEST))

    def _accept(self, path: str, written: str) -> None:
        number = self._index[path] = len(self._paths)
        self._paths.append(path)
        if written != path:
            self._spell(number, written)
        if self._left.samples:
            self._left.take_out(path)

    def spell(self, turn: Turn, written: str) -> None:
        """Request another spelling from the next turn on."""
        self._spell(turn.number, written)

    def _spell(self, number: int, written: str) -> None:
        self._spellings[number] = written
        self._spelt[written] = number
        self._new_spellings.append(number)

    def _note_depth(self, before: int, depth: int) -> int:
        new = len(self._paths) - before
        if new:
            self._append_depths(depth, new)
        return new

    def _lower(self, number: int, depth: int) -> None:
        done = self._is_done(number)
        if done and not self.max_depth:
            return
        self._depths[number] = self._lowered[number] = depth
        self._new_lowered.append(number)
        if done:
            self._undo(number)
            self._defer(number)
        elif number in self._deferred:
            heapq.heappush(self._by_depth, (depth, number))

    def _defer(self, number: int) -> None:
        """Fetch the page again once its depth is final."""
        self._retakes.add(number)
        self._deferred.add(number)
        heapq.heappush(self._by_depth, (self._depths[number], number))

    def now(self, turn: Turn) -> Turn:
        """The turn with the current depth."""
        depth = self._depths[turn.number]
        return turn if depth == turn.depth else turn._replace(depth=depth)

    def links_count(self, turn: Turn, original: str) -> bool:
        """Whether a copy's links count: the original is deeper, and depth is limited."""
        index = self._index.get(original)
        return self.max_depth > 0 and index is not None and turn.depth < self._depths[index]

    # --- links of copies ---

    def add_of_copy(
        self, original: str, paths: Iterable[str], depth: int, refused: Callable[[str], bool] | None = None
    ) -> None:
        """Add a copy's links; unknown pages are tried (crawler.content.copies)."""
        paths, [number] = list(paths), self.numbers([original])
        known = self.numbers(paths)
        new = dict.fromkeys(path for path, place in zip(paths, known, strict=True) if place < 0)
        if self.max_depth:
            # Lower the depth of known ones; count new ones that are too deep.
            too_deep = depth > self.max_depth
            self.add([path for path in paths if too_deep or path not in new], depth)
            new = {} if too_deep else new
        if refused is not None:
            trapped = {path for path in new if refused(page_of(path))}
            self._left.add("family", map(page_of, trapped))
            new = {path: None for path in new if path not in trapped}
        if new and number >= 0:
            most = min(self._most_known - len(self._paths), copies.MOST_HELD)
            self._left.add("copy", map(page_of, self._copies.hold(number, new, depth, most)))
            self._try_copies()

    def hand_on(self, turn: Turn, path: str) -> None:
        """A trial page redirects: its untried target replaces it."""
        if turn.number in self._copies.trials:
            [number] = self.numbers([path])
            if number >= self._head and number not in self._copies.trials:
                self._copies.hand_on(turn.number, number)

    def _try_copies(self) -> None:
        while (found := self._copies.next(len(self._digests))) is not None:
            number = len(self._paths)
            if self.add((found.path,), found.depth):
                self._copies.begin(number, found.original)
        self._give_up()

    def _give_up(self) -> None:
        self._left.add("copy", (page_of(path) for path in self._copies.give_up() if path not in self))

    # --- what is left out ---

    def leave_out(self, reason: Reason, urls: Iterable[str]) -> None:
        """Count URLs that a limit excludes or truncates, each once.

        Paths of this site as written, URLs of other sites.
        """
        # A URL that is too long is given as it stands on the page.
        named = urls if reason == "length" else (page_of(url) if url.startswith("/") else url for url in urls)
        self._left.add(reason, named)

    @property
    def left_out(self) -> dict[str, int]:
        """Number of URLs left out by reason (crawler.left_out.BOUNDS)."""
        counts = self._left.counts
        if self.over_budget:
            counts["pages"] = counts.get("pages", 0) + self.over_budget
        if self._copies.held:
            # Runs at every delivery, so it avoids a lookup of each page in all spellings.
            held = self._copies.paths() - self._index.keys() - self._spelt.keys()
            counts["copy"] = counts.get("copy", 0) + len(held)
        return counts

    def pack_left_out(self) -> bytes:
        """The left-out URLs for the next walk (`checkpoint_of`); empty: none."""
        return self._left.packed({"pages": self._paths[self._head :] if self._full else ()})

    # --- what is known of pages ---

    def numbers(self, paths: Iterable[str]) -> list[int]:
        """Each path's number, in any spelling; -1: not accepted."""
        index, spelt = self._index, self._spelt
        return [
            index[path] if path in index else spelt[path] if path in spelt else index.get(page_of(path), -1)
            for path in paths
        ]

    def name_sitemaps(self, paths: Iterable[str], indexes: int) -> None:
        """Mark accepted paths as sitemaps."""
        for index in self.numbers(paths):
            if index >= 0 and indexes < self._sitemaps.get(index, sys.maxsize):
                self._sitemaps[index] = indexes
                self._new_sitemaps.append(index)

    def indexes_before(self, turn: Turn) -> int | None:
        """Number of sitemap indexes above the page. Returns None for other pages."""
        return self._sitemaps.get(turn.number)

    def note_changes(self, changes: Iterable[tuple[str, int]]) -> None:
        """Store change times (ms) of accepted paths."""
        for path, changed_at in changes:
            (index,) = self.numbers((path,))
            if index >= 0 and self._note_change(index, min(changed_at // 1000, _LATEST)):
                self._new_changes.append(index)

    def changed_at(self, turn: Turn) -> int:
        """The page's change time (ms); 0: unknown."""
        return self._changes[turn.number] * 1000 if turn.number < len(self._changes) else 0

    def _note_change(self, index: int, seconds: int) -> bool:
        missing = index + 1 - len(self._changes)
        if missing > 0:
            self._changes.extend(array("I", bytes(4 * missing)))
        if seconds <= self._changes[index]:
            return False
        self._changes[index] = seconds
        return True

    def _append_depths(self, depth: int, many: int) -> None:
        self._depths.extend(array("H", [depth]) * many)
        self._deepest = max(self._deepest, depth)
        runs = self._depth_runs
        if runs and runs[-1][0] == depth:
            runs[-1] = (depth, runs[-1][1] + many)
        else:
            runs.append((depth, many))

    def take(self, now: float) -> Turn | None:
        """The next page to fetch. Returns None when nothing is due (see `next_due`, `pending`)."""
        untried = self._head < len(self._paths) and not self._full
        if self._set_back and self._set_back[0][0] <= now and not (untried and self._waits_behind):
            _, index, tries = heapq.heappop(self._set_back)
            return self._take(index, tries + 1)
        retake = self._next_retake()
        if retake is not None:
            self._deferred.remove(retake)
            return self._take(retake, 1)
        if not untried:
            return None
        self._head += 1
        self._taken += 1
        return self._take(self._head - 1, 1)

    def _next_retake(self) -> int | None:
        """The shallowest one, once no pending page can lower its depth."""
        heap = self._by_depth
        while heap and (heap[0][1] not in self._deferred or heap[0][0] != self._depths[heap[0][1]]):
            heapq.heappop(heap)
        if not heap:
            return None
        depth, number = heap[0]
        if self._head < len(self._paths) and not self._full and self._depths[self._head] <= depth:
            return None
        others = chain(self._in_flight, (index for _, index, _ in self._set_back))
        return None if any(self._depths[index] < depth for index in others) else number

    @property
    def _waits_behind(self) -> bool:
        return self._set_back[0][2] > 0 and len(self._set_back) <= MOST_BEHIND

    def next_due(self, now: float) -> float | None:
        """When `take` will return a page. Returns None when nothing is scheduled."""
        if self._head < len(self._paths) and not self._full:
            return now
        if self._next_retake() is not None:
            return now
        return max(now, self._set_back[0][0]) if self._set_back else None

    def finish(self, turn: Turn, *, counts: bool = True) -> None:
        """End the turn for good; `counts` False returns its budget (never fetched)."""
        number = turn.number
        del self._in_flight[number]
        self.published += 1
        self.done_hash = (self.done_hash + hash_of(self._site + turn.path)) % SET_HASHES
        # A page that was done before was counted then.
        if not counts and number not in self._retakes:
            self._taken = max(0, self._taken - 1)
        self._retakes.discard(number)
        if number in self._copies.trials:
            self._copies.end(number, asked=counts)
            self._try_copies()
        if self.max_depth and self._depths[number] < turn.depth:
            self._undo(number)
            self._defer(number)

    def done(self) -> Iterator[str]:
        """Paths of finished pages, in order."""
        waiting = self._in_flight.keys() | self._deferred | {index for _, index, _ in self._set_back}
        return (path for index, path in enumerate(self._paths[: self._head]) if index not in waiting)

    def _is_done(self, number: int) -> bool:
        if number >= self._head or number in self._in_flight or number in self._deferred:
            return False
        return all(index != number for _, index, _ in self._set_back)

    def _undo(self, number: int) -> None:
        self.published -= 1
        self.done_hash = (self.done_hash - hash_of(self._site + self._paths[number])) % SET_HASHES

    def leave_retakes(self) -> None:
        """Cancel repeated fetches of done pages."""
        waiting = self._deferred | {index for _, index, _ in self._set_back if index in self._retakes}
        for number in waiting:
            self.published += 1
            self.done_hash = (self.done_hash + hash_of(self._site + self._paths[number])) % SET_HASHES
        self._set_back = [one for one in self._set_back if one[1] not in waiting]
        heapq.heapify(self._set_back)
        self._retakes -= waiting
        self._deferred, self._by_depth = set(), []

    def to_fetch(self) -> Iterator[tuple[str, int]]:
        """Path to request and depth of all unfinished pages."""
        waiting = self._in_flight.keys() | self._deferred | {index for _, index, _ in self._set_back}
        for index in chain(sorted(waiting), range(self._head, len(self._paths))):
            yield self._spellings.get(index, self._paths[index]), self._depths[index]

    def undo(self, paths: Iterable[str]) -> int:
        """Reopen the done ones of these pages. Returns their number."""
        done, undone = set(self.done()), 0
        for path in done.intersection(paths):
            heapq.heappush(self._set_back, _at_once(self._index[path], 0))
            self._undo(self._index[path])
            undone += 1
        return undone

    def note_redirect(self, turn: Turn, path: str) -> list[str]:
        """Store a redirect. Returns the cycle it closes, from the target to the page; empty: none."""
        number, target = turn.number, self._index.get(path)
        if target is None:
            return []
        if target != number:
            self._redirects.pop(number, None)
            self._redirects[number] = target
            self._new_redirects.append(number)
            if len(self._redirects) > MOST_REDIRECTS:
                oldest = next(iter(self._redirects))
                del self._redirects[oldest]
                self._new_redirects.append(oldest)
        circle = [target]
        while circle[-1] != number:
            following = self._redirects.get(circle[-1])
            if following is None or len(circle) == _LONGEST_CIRCLE:
                return []
            circle.append(following)
        return [self._paths[index] for index in circle]

    def has_redirected(self, path: str) -> bool:
        """Whether a redirect of the page is stored."""
        return self._index.get(path) in self._redirects

    def redirect_of(self, path: str) -> str | None:
        """The stored target. None: unknown."""
        target = self._redirects.get(self._index.get(path, -1))
        return None if target is None else self._paths[target]

    def note_loaded(self, turn: Turn) -> None:
        """Forget the page's redirect."""
        if self._redirects.pop(turn.number, None) is not None:
            self._new_redirects.append(turn.number)

    def ask_again(self, path: str) -> None:
        """Fetch a done page again, before all others."""
        number = self._index.get(path)
        if number is not None and self._is_done(number):
            self._undo(number)
            heapq.heappush(self._set_back, _at_once(number, 0))

    def set_back(self, turn: Turn, due: float) -> None:
        """Retry at `due` at the earliest (clock of `take`), after untried pages."""
        tries = self._in_flight.pop(turn.number)
        heapq.heappush(self._set_back, (due, turn.number, tries))

    def put_back(self, turn: Turn) -> None:
        """Return an unused turn; it is not a try."""
        tries = self._in_flight.pop(turn.number)
        heapq.heappush(self._set_back, _at_once(turn.number, tries - 1))

    @property
    def loaded(self) -> str | None:
        """Path to request for the last loaded page. Returns None when unknown."""
        owner = next(reversed(self._digests.values()), None)
        return None if owner is None else self._spellings.get(owner, self._paths[owner])

    def first_with(self, turn: Turn, sha256: bytes) -> str | None:
        """The earlier page with the same bytes. Returns None when this is the first."""
        digest = sha256[:_DIGEST]
        if turn.number in self._copies.trials and digest not in self._digests:
            self._digests[digest] = turn.number
            self._copies.earn(turn.number)
            self._try_copies()
        owner = self._digests.setdefault(digest, turn.number)
        if owner == turn.number:
            self._new_digests.append((digest, owner))
            return None
        return self._paths[owner]

    def _take(self, index: int, tries: int) -> Turn:
        self._in_flight[index] = tries
        path = self._paths[index]
        if self._left.samples:
            self._left.take_out(path)
        return Turn(index, path, self._depths[index], tries, self._spellings.get(index, path))

    # --- checkpoint ---

    def wants_fold(self) -> bool:
        """Whether a whole checkpoint is cheaper than more deltas."""
        return self._replaces or self._journal_bytes > max(FOLD_ABOVE, self._base_bytes // 2)

    def replace_checkpoint(self) -> None:
        """Make the next entry whole: the stored checkpoint is unreadable."""
        self._replaces = True

    def delta(self) -> bytes:
        """The changes since the last entry, encoded."""
        return encode(self.changes())

    def whole(self) -> bytes:
        """The whole checkpoint, encoded; replaces all entries."""
        return encode(self.everything())

    def changes(self) -> Snapshot:
        """A snapshot of the changes since the last entry."""
        first = self._told_paths
        digests = [digest for digest, _ in self._new_digests]
        owners = [owner for _, owner in self._new_digests]
        depths = _runs(self._depths[first:])
        sitemaps = [(index, self._sitemaps[index]) for index in self._new_sitemaps]
        changes = [(index, self._changes[index]) for index in self._new_changes]
        lowered = [(index, self._lowered[index]) for index in self._new_lowered]
        redirects = [(index, self._redirects.get(index, index)) for index in self._new_redirects]
        spellings = [(index, self._spellings[index]) for index in self._new_spellings]
        on_encoded, left, tried = self._count_journal, self._left.changes(), self._copies.changes()
        parts = (first, depths, digests, owners, sitemaps, changes, lowered, left, redirects, tried)
        snapshot = self._snapshot(*parts, spellings, on_encoded)
        self._tell()
        return snapshot

    def everything(self) -> Snapshot:
        """A snapshot of everything; replaces all entries."""
        digests, owners = list(self._digests), list(self._digests.values())
        depths, sitemaps = list(self._depth_runs), list(self._sitemaps.items())
        changes, lowered = self._open_changes(), list(self._lowered.items())
        on_encoded, left, redirects = self._count_base, self._left.everything(), list(self._redirects.items())
        tried, spellings = self._copies.everything(), list(self._spellings.items())
        parts = (0, depths, digests, owners, sitemaps, changes, lowered, left, redirects, tried)
        snapshot = self._snapshot(*parts, spellings, on_encoded)
        self._journal_bytes = 0
        self._replaces = False
        self._tell()
        return snapshot

    def _open_changes(self) -> list[tuple[int, int]]:
        changes = self._changes
        open_ones = [*self._in_flight, *self._deferred, *(index for _, index, _ in self._set_back)]
        numbers = chain(open_ones, range(self._head, len(changes)))
        return [(index, changes[index]) for index in numbers if index < len(changes) and changes[index]]

    def _count_journal(self, length: int) -> None:
        self._journal_bytes += length

    def _count_base(self, length: int) -> None:
        self._base_bytes = length

    def restore(self, entries: Iterable[bytes]) -> None:
        """Continue from a checkpoint. Raises CheckpointError if it is invalid."""
        entry = None
        for number, data in enumerate(entries):
            entry = _read(data)
            if entry.first != len(self._paths):
                raise CheckpointError(
                    f"entry {number} starts at URL {entry.first}, not at {len(self._paths)}"
                )
            self._replay(entry)
            if number:
                self._journal_bytes += len(data)
            else:
                self._base_bytes = len(data)
        self._copies.forget(lambda path: path in self)
        self._give_up()
        if entry is not None and entry.done_hash is None:
            self.done_hash = set_hash(hash_of(self._site + path) for path in self.done())
        self._tell()

    def _tell(self) -> None:
        self._told_paths = len(self._paths)
        self._new_digests = []
        self._new_sitemaps, self._new_changes = [], []
        self._new_lowered, self._new_redirects, self._new_spellings = [], [], []
        self._left.tell()
        self._copies.tell()

    def _snapshot(
        self,
        first: int,
        depths: list[tuple[int, int]],
        digests: list[bytes],
        owners: list[int],
        sitemaps: list[tuple[int, int]],
        changes: list[tuple[int, int]],
        lowered: list[tuple[int, int]],
        left: list[Part],
        redirects: list[tuple[int, int]],
        tried: copies.Told | None,
        spellings: list[tuple[int, str]],
        on_encoded: Callable[[int], None],
    ) -> Snapshot:
        exceptions = [(index, tries - 1) for index, tries in self._in_flight.items()]
        exceptions += [(index, tries) for _, index, tries in self._set_back]
        exceptions += [(index, 0) for index in self._deferred]
        return Snapshot(
            first,
            self._paths[first:],
            depths,
            self._head,
            exceptions,
            digests,
            owners,
            self.published,
            self._taken,
            self.strikes,
            self.parkings,
            self.done_hash,
            sitemaps,
            changes,
            lowered,
            list(self._retakes),
            left,
            redirects,
            tried,
            spellings,
            on_encoded,
        )

    def _replay(self, entry: _Entry) -> None:
        paths = _paths(entry)
        known, head = len(self._paths) + len(paths), entry.head
        if head > known or entry.taken > head:
            raise CheckpointError(f"{known} paths, head at {head}, {entry.taken} taken")
        self._index.update(zip(paths, range(len(self._paths), known), strict=True))
        if len(self._index) != known:
            raise CheckpointError(f"{known} paths, of which {len(self._index)} distinct")
        self._paths.extend(paths)
        for depth, many in entry.depths:
            self._append_depths(depth, many)
        self._head, self._taken = head, entry.taken
        self.published, self.strikes = entry.published, entry.strikes
        self.parkings, self.done_hash = entry.parkings, entry.done_hash or 0
        self._lowered.update(_below(known, "lowered", entry.lowered))
        for index, depth in entry.lowered:
            self._depths[index] = depth
        self._replay_redirects(_below(known, "redirects", entry.redirects))
        self._replay_exceptions(entry)
        self._digests.update(_digests(entry, known))
        self._sitemaps.update(_below(known, "sitemaps", entry.sitemaps))
        for index, seconds in _below(known, "changes", _pairs(entry.changes)):
            self._note_change(index, seconds)
        try:
            self._left.replay(entry.left_out)
            if entry.copies is not None:
                self._copies.replay(entry.copies, known)
        except ValueError as error:
            raise CheckpointError(str(error)) from None
        spellings = _below(known, "spellings", _spellings(entry))
        self._spellings.update(spellings)
        self._spelt.update((written, index) for index, written in spellings)

    def _replay_redirects(self, redirects: list[tuple[int, int]]) -> None:
        _below(len(self._paths), "a redirect's target", [(target, number) for number, target in redirects])
        for number, target in redirects:
            self._redirects.pop(number, None)
            if target != number:
                self._redirects[number] = target

    def _replay_exceptions(self, entry: _Entry) -> None:
        exceptions, retakes = _exceptions(entry), set(entry.retakes)
        self._retakes = retakes.intersection(index for _, index, _ in exceptions)
        self._deferred = {index for _, index, tries in exceptions if index in retakes and not tries}
        self._set_back = [one for one in exceptions if one[1] not in self._deferred]
        self._by_depth = sorted((self._depths[index], index) for index in self._deferred)


class Known(NamedTuple):
    """A page loaded before."""

    path: str
    depth: int
    sha256: bytes = b""  # of its body; empty: not used to detect copies
    again: bool = False  # load it again
    asked: str = ""  # path to request; empty: `path`


def checkpoint_of(site: str, known: Sequence[Known], left: bytes = b"") -> bytes:
    """A whole checkpoint from `known` pages in order of depth.

    `left` comes from `Frontier.pack_left_out`.
    """
    again = [(index, 0) for index, page in enumerate(known) if page.again]
    originals = {page.sha256[:_DIGEST]: index for index, page in reversed([*enumerate(known)]) if page.sha256}
    depths = [min(page.depth, _DEEPEST) for page in known]
    return encode(
        Snapshot(
            first=0,
            paths=[page.path for page in known],
            depths=[(depth, sum(1 for _ in run)) for depth, run in groupby(depths)],
            head=len(known),
            exceptions=again,
            digests=list(originals),
            owners=list(originals.values()),
            published=len(known) - len(again),
            taken=len(known),
            strikes=0,
            parkings=0,
            done_hash=set_hash(hash_of(site + page.path) for page in known if not page.again),
            sitemaps=[],
            changes=[],
            lowered=[],
            copies=None,
            retakes=[],
            left_out=left_out.unpacked(left),
            redirects=[],
            spellings=[(index, page.asked) for index, page in enumerate(known) if page.asked],
            on_encoded=lambda _length: None,
        )
    )


def encode(snapshot: Snapshot) -> bytes:
    """Encode a snapshot as one entry; calls `on_encoded`."""
    text = "\n".join(snapshot.paths).encode("utf-8", "surrogatepass")
    packed = len(text) > _COMPRESS_ABOVE
    parts = _Entry(
        version=VERSION,
        first=snapshot.first,
        paths=zstandard.compress(text, _LEVEL) if packed else text,
        packed=packed,
        depths=snapshot.depths,
        head=snapshot.head,
        exceptions=snapshot.exceptions,
        digests=b"".join(snapshot.digests),
        owners=snapshot.owners,
        published=snapshot.published,
        taken=snapshot.taken,
        strikes=snapshot.strikes,
        parkings=snapshot.parkings,
        done_hash=snapshot.done_hash,
        sitemaps=snapshot.sitemaps,
        changes=b"".join(_PAIR.pack(*change) for change in snapshot.changes),
        lowered=snapshot.lowered,
        retakes=snapshot.retakes,
        left_out=snapshot.left_out,
        redirects=snapshot.redirects,
        copies=snapshot.copies,
        spelt=[index for index, _ in snapshot.spellings],
        spellings=_packed(text for _, text in snapshot.spellings),
    )
    entry = _encoder.encode(parts)
    snapshot.on_encoded(len(entry))
    return entry


def _packed(texts: Iterable[str]) -> bytes:
    text = "\n".join(texts)
    return zstandard.compress(text.encode("utf-8", "surrogatepass"), _LEVEL) if text else b""


def _read(data: bytes) -> _Entry:
    try:
        entry = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(str(error)) from None
    if entry.version != VERSION:
        raise CheckpointError(f"checkpoint version {entry.version}; expected {VERSION}")
    return entry


def _paths(entry: _Entry) -> list[str]:
    try:
        text = zstandard.decompress(entry.paths) if entry.packed else entry.paths
        # The depths decide, since a single empty path has no text either.
        paths = text.decode("utf-8", "surrogatepass").split("\n") if text or entry.depths else []
    except (zstandard.ZstdError, UnicodeDecodeError, MemoryError) as error:
        raise CheckpointError(f"paths cannot be read: {error}") from None
    expected = sum(many for _, many in entry.depths)
    if expected != len(paths):
        raise CheckpointError(f"{len(paths)} paths with {expected} depths")
    return paths


def _spellings(entry: _Entry) -> list[tuple[int, str]]:
    try:
        text = zstandard.decompress(entry.spellings) if entry.spellings else b""
        spellings = text.decode("utf-8", "surrogatepass").split("\n") if text else []
        return list(zip(entry.spelt, spellings, strict=True))
    except (zstandard.ZstdError, ValueError, MemoryError) as error:
        raise CheckpointError(f"spellings cannot be read: {error}") from None


def _exceptions(entry: _Entry) -> list[tuple[float, int, int]]:
    """The heap of pages to fetch again."""
    indexes = {index for index, _ in entry.exceptions}
    if len(indexes) != len(entry.exceptions) or max(indexes, default=-1) >= entry.head:
        raise CheckpointError(
            f"exceptions {entry.exceptions[:5]} …; expected distinct ones below {entry.head}"
        )
    return sorted(_at_once(index, tries) for index, tries in entry.exceptions)


def _at_once(index: int, tries: int) -> tuple[float, int, int]:
    """Due now; untried pages come first."""
    return (0.0 if tries else -1.0, index, tries)


def _digests(entry: _Entry, known: int) -> dict[bytes, int]:
    digests, owners = entry.digests, entry.owners
    if len(digests) != len(owners) * _DIGEST or max(owners, default=-1) >= known:
        raise CheckpointError(f"{len(digests)} bytes of digests for {len(owners)} of {known} pages")
    return {digests[place * _DIGEST : (place + 1) * _DIGEST]: owner for place, owner in enumerate(owners)}


def _pairs(packed: bytes) -> list[tuple[int, int]]:
    if len(packed) % _PAIR.size:
        raise CheckpointError(f"{len(packed)} bytes of changes; expected a multiple of {_PAIR.size}")
    return list(_PAIR.iter_unpack(packed))


def _below(known: int, what: str, pairs: list[tuple[int, _Value]]) -> list[tuple[int, _Value]]:
    """Raises CheckpointError if a first number is not below `known`."""
    highest = max((index for index, _ in pairs), default=-1)
    if highest >= known:
        raise CheckpointError(f"{what} of URL {highest}; expected less than {known}")
    return pairs


def _runs(depths: array[int]) -> list[tuple[int, int]]:
    return [(depth, sum(1 for _ in run)) for depth, run in groupby(depths)]
