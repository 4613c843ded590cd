"""The URLs of one leased site: to fetch, in flight, seen. Breadth first, within the site's budgets. Pure.

Every path that was ever accepted has an index, in the order of acceptance; `head` runs through that order, and
the few that were taken but are not done (in flight, set back for another try) are the exceptions. So all that a
checkpoint needs is the paths in order, the head and the exceptions: `delta()` tells what changed since the last
entry, `whole()` all of it, and `restore` makes a frontier of a whole and the deltas behind it. Whoever holds the
bytes can go on with the site; exceptions become pages to fetch again.

`changes` and `everything` take a snapshot at once; `encode` makes bytes of it, in another thread where a site is
large.
"""

from __future__ import annotations

import heapq
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Annotated, NamedTuple

import msgspec
import zstandard

from crawler.records import SET_HASHES, hash_of, set_hash

VERSION = 1
# Of zstd: a tenth smaller than 1, for about a microsecond a page more.
_LEVEL = 3
# Entries shorter than this are not worth a zstd frame.
_COMPRESS_ABOVE = 200
# Digest bytes kept per fetched page: at 1 M pages of a site 0.002 of them collide.
_DIGEST = 6
# A journal shorter than this is not folded.
FOLD_ABOVE = 2048
# Of a site whose pages are limited, URLs that are known for each that may be fetched, and at least: a page may bring
# thousands of new ones (220 bytes each) that nobody will ever fetch. What is left out is found again by a later walk.
KNOWN_FOR_EACH = 10
LEAST_KNOWN = 10_000
# Pages that wait for another try behind those that were not tried yet. With more of them, some go first: each
# checkpoint names them all.
MOST_BEHIND = 200
# Deeper pages count as this deep.
_DEEPEST = 65_535

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Depth = Annotated[int, msgspec.Meta(ge=0, le=_DEEPEST)]


class CheckpointError(ValueError):
    """Bytes that are no checkpoint of this version; the site must begin anew."""


class Turn(NamedTuple):
    """A page's turn to be fetched."""

    number: int  # its place in the order of acceptance
    path: str
    depth: int
    tries: int  # counts this one: 1, 2, …


class _Entry(msgspec.Struct, array_like=True):
    version: int
    first: _Count  # index of the first path of this entry; 0: a whole checkpoint
    paths: bytes  # newline-separated, zstd above a size
    packed: bool
    depths: list[tuple[_Depth, _Count]]  # runs: depth, how many paths
    head: _Count
    exceptions: list[tuple[_Count, _Count]]  # index, tries so far
    digests: bytes  # of the pages done since the last entry
    owners: list[_Count]  # whose they are
    published: _Count
    taken: _Count
    strikes: _Count
    # Entries of older versions end before these.
    parkings: _Count = 0
    done_hash: _Count | None = None


class Snapshot(NamedTuple):
    """A frontier's state, or what changed of it, that later changes leave alone."""

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
    told: Callable[[int], None]  # called with the length of the bytes made of it


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Entry)


class Frontier:
    """The URLs of one `site`; `max_pages` and `max_depth` 0 mean no limit."""

    def __init__(self, max_pages: int = 0, max_depth: int = 0, site: str = "") -> None:
        self.max_pages = max_pages
        self.max_depth = max_depth
        self.published = 0  # page records of this site, over all leases
        self.done_hash = 0  # records.set_hash of the URLs that these are of
        self.strikes = 0  # rests of the site in a row: how long the next one is
        self.parkings = 0  # leases in a row that ended since the site did not answer, or could not be asked
        self._site = site
        self._paths: list[str] = []
        self._index: dict[str, int] = {}
        self._depths = array("H")
        self._depth_runs: list[tuple[int, int]] = []  # the same, told briefly: depth, how many in a row
        self._head = 0
        self._taken = 0  # pages that count against the budget
        self._in_flight: dict[int, int] = {}  # index -> tries, this one included
        self._set_back: list[tuple[float, int, int]] = []  # heap: due, index, tries so far
        self._digests: dict[bytes, int] = {}
        self._told_paths = 0
        self._new_digests: list[tuple[bytes, int]] = []
        self._base_bytes = 0
        self._journal_bytes = 0
        self._replaces = False  # the stored checkpoint is of no use

    def __len__(self) -> int:
        return len(self._paths)

    def __contains__(self, path: str) -> bool:
        return path in self._index

    @property
    def in_flight(self) -> int:
        """Pages taken whose turn has not ended."""
        return len(self._in_flight)

    @property
    def over_budget(self) -> int:
        """Known pages that are never fetched since `max_pages` was reached; 0 before."""
        return len(self._paths) - self._head if self._full else 0

    @property
    def pending(self) -> int:
        """Pages still to fetch or in flight, as far as the budget goes."""
        waiting = 0 if self._full else len(self._paths) - self._head
        return waiting + len(self._in_flight) + len(self._set_back)

    @property
    def _full(self) -> bool:
        return 0 < self.max_pages <= self._taken

    @property
    def _most_known(self) -> int:
        return max(LEAST_KNOWN, KNOWN_FOR_EACH * self.max_pages) if self.max_pages else sys.maxsize

    def add(self, paths: Iterable[str], depth: int, refused: Callable[[str], bool] | None = None) -> int:
        """Accept canonical paths found at `depth`; how many were new, and are not too deep or too many.

        `refused` is asked of those that are new, and says which of them are left out.
        """
        if 0 < self.max_depth < depth:
            return 0
        before = len(self._paths)
        index, most = self._index, self._most_known
        for path in paths:
            if path not in index and (refused is None or not refused(path)):
                if len(self._paths) >= most:
                    break
                index[path] = len(self._paths)
                self._paths.append(path)
        new = len(self._paths) - before
        if new:
            self._append_depths(min(depth, _DEEPEST), new)
        return new

    def numbers(self, paths: Iterable[str]) -> list[int]:
        """The place of each path in the order of acceptance; -1: it was not accepted."""
        number = self._index.get
        return [number(path, -1) for path in paths]

    def _append_depths(self, depth: int, many: int) -> None:
        self._depths.extend(array("H", [depth]) * many)
        runs = self._depth_runs
        if runs and runs[-1][0] == depth:
            runs[-1] = (depth, runs[-1][1] + many)
        else:
            runs.append((depth, many))

    def take(self, now: float) -> Turn | None:
        """The next page to fetch; None: nothing is due now (see `next_due` and `pending`)."""
        untried = self._head < len(self._paths) and not self._full
        if self._set_back and self._set_back[0][0] <= now and not (untried and self._waits_behind):
            _, index, tries = heapq.heappop(self._set_back)
            return self._take(index, tries + 1)
        if not untried:
            return None
        self._head += 1
        self._taken += 1
        return self._take(self._head - 1, 1)

    @property
    def _waits_behind(self) -> bool:
        """Whether the first page that was set back has failed before, so that untried pages go first."""
        return self._set_back[0][2] > 0 and len(self._set_back) <= MOST_BEHIND

    def next_due(self, now: float) -> float | None:
        """When `take` will next give a page; None: never, unless links are found or a turn is set back."""
        if self._head < len(self._paths) and not self._full:
            return now
        return max(now, self._set_back[0][0]) if self._set_back else None

    def finish(self, turn: Turn, *, counts: bool = True) -> None:
        """The turn ended for good; `counts` False gives its place in the budget back (never fetched)."""
        del self._in_flight[turn.number]
        self.published += 1
        self.done_hash = (self.done_hash + hash_of(self._site + turn.path)) % SET_HASHES
        if not counts:
            self._taken -= 1

    def done(self) -> Iterator[str]:
        """The paths of the pages whose turn has ended, in the order of acceptance."""
        waiting = self._in_flight.keys() | {index for _, index, _ in self._set_back}
        return (path for index, path in enumerate(self._paths[: self._head]) if index not in waiting)

    def undo(self, paths: Iterable[str]) -> int:
        """These pages are to be fetched again, of those whose turn has ended; how many there were."""
        done, undone = set(self.done()), 0
        for path in done.intersection(paths):
            heapq.heappush(self._set_back, (0.0, self._index[path], 0))
            self.done_hash = (self.done_hash - hash_of(self._site + path)) % SET_HASHES
            undone += 1
        self.published -= undone
        return undone

    def set_back(self, turn: Turn, due: float) -> None:
        """The page gets another turn, at `due` at the earliest (same clock as `take`), behind untried pages."""
        tries = self._in_flight.pop(turn.number)
        heapq.heappush(self._set_back, (due, turn.number, tries))

    def put_back(self, turn: Turn) -> None:
        """The turn did not take place and does not count as a try."""
        tries = self._in_flight.pop(turn.number)
        heapq.heappush(self._set_back, _at_once(turn.number, tries - 1))

    @property
    def loaded(self) -> str | None:
        """The path of a page that was loaded, the last one known; None: none was yet, or that is not known."""
        owner = next(reversed(self._digests.values()), None)
        return None if owner is None else self._paths[owner]

    def first_with(self, turn: Turn, sha256: bytes) -> str | None:
        """The path of an earlier page of this site with the same bytes; None: this is the first."""
        digest = sha256[:_DIGEST]
        owner = self._digests.setdefault(digest, turn.number)
        if owner == turn.number:
            self._new_digests.append((digest, owner))
            return None
        return self._paths[owner]

    def _take(self, index: int, tries: int) -> Turn:
        self._in_flight[index] = tries
        return Turn(index, self._paths[index], self._depths[index], tries)

    # --- checkpoint ---

    def wants_fold(self) -> bool:
        """Whether the deltas have grown so long that a whole checkpoint is cheaper to keep and to read."""
        return self._replaces or self._journal_bytes > max(FOLD_ABOVE, self._base_bytes // 2)

    def replace_checkpoint(self) -> None:
        """What is stored cannot be read: the next entry must be a whole checkpoint."""
        self._replaces = True

    def delta(self) -> bytes:
        """What changed since the last entry, as bytes."""
        return encode(self.changes())

    def whole(self) -> bytes:
        """Everything, as bytes; replaces all entries before it."""
        return encode(self.everything())

    def changes(self) -> Snapshot:
        """What changed since the last entry."""
        first = self._told_paths
        digests = [digest for digest, _ in self._new_digests]
        owners = [owner for _, owner in self._new_digests]
        depths = _runs(self._depths[first:])
        snapshot = self._snapshot(first, depths, digests, owners, self._count_journal)
        self._tell()
        return snapshot

    def everything(self) -> Snapshot:
        """All there is; replaces all entries before it."""
        digests, owners = list(self._digests), list(self._digests.values())
        snapshot = self._snapshot(0, list(self._depth_runs), digests, owners, self._count_base)
        self._journal_bytes = 0
        self._replaces = False
        self._tell()
        return snapshot

    def _count_journal(self, length: int) -> None:
        self._journal_bytes += length

    def _count_base(self, length: int) -> None:
        self._base_bytes = length

    def restore(self, entries: Iterable[bytes]) -> None:
        """Go on from a checkpoint; what was in flight is fetched again. CheckpointError if it is none."""
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
        if entry is not None and entry.done_hash is None:
            self.done_hash = set_hash(hash_of(self._site + path) for path in self.done())
        self._tell()

    def _tell(self) -> None:
        self._told_paths = len(self._paths)
        self._new_digests = []

    def _snapshot(
        self,
        first: int,
        depths: list[tuple[int, int]],
        digests: list[bytes],
        owners: list[int],
        told: Callable[[int], None],
    ) -> Snapshot:
        exceptions = [(index, tries - 1) for index, tries in self._in_flight.items()]
        exceptions += [(index, tries) for _, index, tries in self._set_back]
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
            told,
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
        self._set_back = _exceptions(entry)
        self._digests.update(_digests(entry, known))


class Known(NamedTuple):
    """A page that was loaded before, for a frontier that is made of such."""

    path: str
    depth: int
    sha256: bytes = b""  # of its body; empty: it is nobody's original
    again: bool = False  # it is to be loaded again


def checkpoint_of(site: str, known: Sequence[Known]) -> bytes:
    """A whole checkpoint of a site by its `known` pages, in the order of their depth; those that say so are loaded."""
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
            told=lambda _length: None,
        )
    )


def encode(snapshot: Snapshot) -> bytes:
    """A snapshot as one entry of a checkpoint; pure but for telling its frontier the length."""
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
    )
    entry = _encoder.encode(parts)
    snapshot.told(len(entry))
    return entry


def _read(data: bytes) -> _Entry:
    try:
        entry = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(str(error)) from None
    if entry.version != VERSION:
        raise CheckpointError(f"checkpoint version {entry.version}; wanted {VERSION}")
    return entry


def _paths(entry: _Entry) -> list[str]:
    try:
        text = zstandard.decompress(entry.paths) if entry.packed else entry.paths
        # Asked of the depths, since one empty path leaves no text.
        paths = text.decode("utf-8", "surrogatepass").split("\n") if text or entry.depths else []
    except (zstandard.ZstdError, UnicodeDecodeError, MemoryError) as error:
        raise CheckpointError(f"paths cannot be read: {error}") from None
    told = sum(many for _, many in entry.depths)
    if told != len(paths):
        raise CheckpointError(f"{len(paths)} paths with {told} depths")
    return paths


def _exceptions(entry: _Entry) -> list[tuple[float, int, int]]:
    """The heap of pages to fetch again, each once and each behind the head."""
    indexes = {index for index, _ in entry.exceptions}
    if len(indexes) != len(entry.exceptions) or max(indexes, default=-1) >= entry.head:
        raise CheckpointError(f"exceptions {entry.exceptions[:5]} …; wanted distinct ones below {entry.head}")
    return sorted(_at_once(index, tries) for index, tries in entry.exceptions)


def _at_once(index: int, tries: int) -> tuple[float, int, int]:
    """An entry of the heap that is due; pages that no try was made of come first."""
    return (0.0 if tries else -1.0, index, tries)


def _digests(entry: _Entry, known: int) -> dict[bytes, int]:
    digests, owners = entry.digests, entry.owners
    if len(digests) != len(owners) * _DIGEST or max(owners, default=-1) >= known:
        raise CheckpointError(f"{len(digests)} bytes of digests for {len(owners)} of {known} pages")
    return {digests[place * _DIGEST : (place + 1) * _DIGEST]: owner for place, owner in enumerate(owners)}


def _runs(depths: array[int]) -> list[tuple[int, int]]:
    return [(depth, sum(1 for _ in run)) for depth, run in groupby(depths)]
