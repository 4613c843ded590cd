"""The URLs of one leased site: to fetch, in flight, seen. Breadth first, within the site's budgets. Pure.

Every path that was ever accepted has an index, in the order of acceptance; `head` runs through that order, and
the few that were taken but are not done (in flight, set back for another try) are the exceptions. So all that a
checkpoint needs is the paths in order, the head and the exceptions: `delta()` tells what changed since the last
call, `whole()` all of it, and `restore` makes a frontier of a whole and the deltas behind it. Whoever holds the
bytes can go on with the site; exceptions become pages to fetch again.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
import zstandard

VERSION = 1
# Entries shorter than this are not worth a zstd frame.
_COMPRESS_ABOVE = 200
# Digest bytes kept per fetched page: at 1 M pages of a site 0.002 of them collide.
_DIGEST = 6
# A journal shorter than this is not folded.
FOLD_ABOVE = 2048


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
    first: int  # index of the first path of this entry; 0: a whole checkpoint
    paths: bytes  # newline-separated, zstd above a size
    packed: bool
    depths: list[tuple[int, int]]  # runs: depth, how many paths
    head: int
    exceptions: list[tuple[int, int]]  # index, tries so far
    digests: bytes  # of the pages done since the last entry
    owners: list[int]  # whose they are
    published: int
    taken: int
    strikes: int


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Entry)


class Frontier:
    """One site's URLs; `max_pages` and `max_depth` 0 mean no limit."""

    def __init__(self, max_pages: int = 0, max_depth: int = 0) -> None:
        self.max_pages = max_pages
        self.max_depth = max_depth
        self.published = 0  # page records of this site, over all leases
        self.strikes = 0  # rests of the site in a row: how long the next one is
        self._paths: list[str] = []
        self._index: dict[str, int] = {}
        self._depths = bytearray()
        self._head = 0
        self._taken = 0  # pages that count against the budget
        self._in_flight: dict[int, int] = {}  # index -> tries, this one included
        self._set_back: list[tuple[float, int, int]] = []  # heap: due, index, tries so far
        self._digests: dict[bytes, int] = {}
        self._told_paths = 0
        self._new_digests: list[tuple[bytes, int]] = []
        self._base_bytes = 0
        self._journal_bytes = 0

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

    def add(self, paths: Iterable[str], depth: int) -> int:
        """Accept canonical paths found at `depth`; how many were new and are not too deep."""
        if 0 < self.max_depth < depth:
            return 0
        before = len(self._paths)
        index = self._index
        for path in paths:
            if path not in index:
                index[path] = len(self._paths)
                self._paths.append(path)
        new = len(self._paths) - before
        self._depths.extend(bytes([min(depth, 255)]) * new)
        return new

    def take(self, now: float) -> Turn | None:
        """The next page to fetch; None: nothing is due now (see `next_due` and `pending`)."""
        if self._set_back and self._set_back[0][0] <= now:
            _, index, tries = heapq.heappop(self._set_back)
            return self._take(index, tries + 1)
        if self._head == len(self._paths) or self._full:
            return None
        self._head += 1
        self._taken += 1
        return self._take(self._head - 1, 1)

    def next_due(self, now: float) -> float | None:
        """When `take` will next give a page; None: never, unless links are found or a turn is set back."""
        if self._head < len(self._paths) and not self._full:
            return now
        return max(now, self._set_back[0][0]) if self._set_back else None

    def finish(self, turn: Turn, *, counts: bool = True) -> None:
        """The turn ended for good; `counts` False gives its place in the budget back (never fetched)."""
        del self._in_flight[turn.number]
        self.published += 1
        if not counts:
            self._taken -= 1

    def set_back(self, turn: Turn, due: float) -> None:
        """The page gets another turn at `due` (same clock as `take`)."""
        tries = self._in_flight.pop(turn.number)
        heapq.heappush(self._set_back, (due, turn.number, tries))

    def put_back(self, turn: Turn) -> None:
        """The turn did not take place and does not count as a try."""
        tries = self._in_flight.pop(turn.number)
        heapq.heappush(self._set_back, (0.0, turn.number, tries - 1))

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
        return self._journal_bytes > max(FOLD_ABOVE, self._base_bytes // 2)

    def delta(self) -> bytes:
        """What changed since the last `delta` or `whole`."""
        entry = self._entry(self._told_paths, self._new_digests)
        self._journal_bytes += len(entry)
        self._tell()
        return entry

    def whole(self) -> bytes:
        """Everything; replaces all entries before it."""
        entry = self._entry(0, list(self._digests.items()))
        self._base_bytes, self._journal_bytes = len(entry), 0
        self._tell()
        return entry

    def restore(self, entries: Iterable[bytes]) -> None:
        """Go on from a checkpoint; what was in flight is fetched again. CheckpointError if it is none."""
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
        self._tell()

    def _tell(self) -> None:
        self._told_paths = len(self._paths)
        self._new_digests = []

    def _entry(self, first: int, digests: list[tuple[bytes, int]]) -> bytes:
        text = "\n".join(self._paths[first:]).encode("utf-8", "surrogatepass")
        packed = len(text) > _COMPRESS_ABOVE
        exceptions = [(index, tries - 1) for index, tries in self._in_flight.items()]
        exceptions += [(index, tries) for _, index, tries in self._set_back]
        return _encoder.encode(
            _Entry(
                version=VERSION,
                first=first,
                paths=zstandard.compress(text, 1) if packed else text,
                packed=packed,
                depths=_runs(self._depths[first:]),
                head=self._head,
                exceptions=exceptions,
                digests=b"".join(digest for digest, _ in digests),
                owners=[owner for _, owner in digests],
                published=self.published,
                taken=self._taken,
                strikes=self.strikes,
            )
        )

    def _replay(self, entry: _Entry) -> None:
        try:
            text = zstandard.decompress(entry.paths) if entry.packed else entry.paths
            paths = text.decode("utf-8", "surrogatepass").split("\n") if text else []
        except (zstandard.ZstdError, UnicodeDecodeError) as error:
            raise CheckpointError(f"paths cannot be read: {error}") from None
        depths = b"".join(bytes([depth]) * many for depth, many in entry.depths)
        if len(depths) != len(paths) or entry.head > len(self._paths) + len(paths):
            raise CheckpointError(f"{len(paths)} paths with {len(depths)} depths, head at {entry.head}")
        for path in paths:
            self._index[path] = len(self._paths)
            self._paths.append(path)
        self._depths.extend(depths)
        self._head, self._taken = entry.head, entry.taken
        self.published, self.strikes = entry.published, entry.strikes
        self._set_back = [(0.0, index, tries) for index, tries in entry.exceptions]
        for place, owner in enumerate(entry.owners):
            self._digests[entry.digests[place * _DIGEST : (place + 1) * _DIGEST]] = owner


def _read(data: bytes) -> _Entry:
    try:
        entry = _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise CheckpointError(str(error)) from None
    if entry.version != VERSION:
        raise CheckpointError(f"checkpoint version {entry.version}; wanted {VERSION}")
    return entry


def _runs(depths: bytearray) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for depth in depths:
        if runs and runs[-1][0] == depth:
            runs[-1] = (depth, runs[-1][1] + 1)
        else:
            runs.append((depth, 1))
    return runs
