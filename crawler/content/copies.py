"""Limits the pages that copies add: pages with the same bytes as an earlier one of their site. Pure, bounded.

A copy's relative links may lead to new pages or to endless copies. So each original gets a budget of FIRST_PAGES,
plus EARNED_PAGES for every page with new content; the site's is SITE_PAGES plus SITE_SHARE of its pages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain, groupby
from typing import Annotated, Final, NamedTuple

import msgspec
import zstandard

FIRST_PAGES: Final = 20
EARNED_PAGES: Final = 10
SITE_PAGES: Final = 200
SITE_SHARE: Final = 0.1
# Maximum paths held per site.
MOST_HELD: Final = 100_000

_Number = Annotated[int, msgspec.Meta(ge=0)]


class Found(NamedTuple):
    """A page linked from a copy."""

    original: int  # page number of the original
    path: str
    depth: int


class Told(msgspec.Struct, array_like=True):
    """Checkpoint data."""

    spent: int
    trials: list[tuple[_Number, _Number]]  # page, original
    room: list[tuple[_Number, int]]  # original, remaining budget
    held: list[tuple[_Number, _Number, _Number]]  # runs: original, depth, count
    paths: bytes  # held paths, newline-separated, in zstd


class Copies:
    """Pages found through copies on one site, by the frontier's page numbers."""

    __slots__ = (
        "_closing",
        "_held",
        "_new_held",
        "_open",
        "_ready",
        "_room",
        "_spent",
        "_touched",
        "held",
        "trials",
    )

    def __init__(self) -> None:
        self.trials: dict[int, int] = {}  # unfinished pages found through copies -> original
        self.held = 0  # held paths
        self._open: Counter[int] = Counter()  # trials by original
        self._room: dict[int, int] = {}  # remaining budget by original; default FIRST_PAGES
        self._spent = 0  # pages tried minus earned ones, of the whole site
        self._held: dict[int, dict[str, int]] = {}  # original -> path -> depth
        self._ready: dict[int, None] = {}  # originals with held paths and perhaps budget
        self._closing: set[int] = set()  # originals whose held paths may have to be given up
        self._new_held: list[Found] = []
        self._touched: set[int] = set()  # originals whose budget changed since `tell`

    def hold(self, original: int, paths: Iterable[str], depth: int, most: int) -> list[str]:
        """Hold links of copies; returns those above the limit `most`."""
        held = self._held.setdefault(original, {})
        given_up = []
        for path in paths:
            if path in held:
                held[path] = min(held[path], depth)
            elif self.held < most:
                held[path] = depth
                self.held += 1
                self._new_held.append(Found(original, path, depth))
            else:
                given_up.append(path)
        self._ready[original] = None
        self._closing.add(original)
        return given_up

    def next(self, contents: int) -> Found | None:
        """Remove and return the next page to try; `contents`: distinct contents of the site."""
        while self._ready:
            original = next(iter(self._ready))
            held = self._held.get(original)
            if held and self._room.get(original, FIRST_PAGES) > 0:
                if self._spent >= SITE_PAGES + SITE_SHARE * contents:
                    return None
                path = next(iter(held))
                self.held -= 1
                return Found(original, path, held.pop(path))
            del self._ready[original]
        return None

    def begin(self, page: int, original: int) -> None:
        """Put the page on trial until `end`."""
        self.trials[page] = original
        self._open[original] += 1
        self._spend(original, 1)

    def earn(self, page: int) -> None:
        """The page has new content."""
        self._spend(self.trials[page], -EARNED_PAGES)

    def hand_on(self, page: int, other: int) -> None:
        """Another page replaces a page on trial."""
        self.trials[other] = self.trials.pop(page)

    def end(self, page: int, *, asked: bool) -> None:
        """End a trial; free if the page was not requested."""
        original = self.trials.pop(page)
        self._open[original] -= 1
        if not self._open[original]:
            del self._open[original]
        if not asked:
            self._spend(original, -1)
        self._closing.add(original)

    def give_up(self) -> list[str]:
        """Drop and return held paths without a chance; call when `next` returns None."""
        over = self._closing if self.trials else set(self._held)
        given_up: list[str] = []
        for original in over:
            if not self.trials or (original not in self._open and self._room.get(original, FIRST_PAGES) <= 0):
                given_up += self._held.pop(original, ())
        self.held -= len(given_up)
        self._closing = set()
        return given_up

    def _spend(self, original: int, pages: int) -> None:
        self._room[original] = self._room.get(original, FIRST_PAGES) - pages
        self._spent += pages
        self._touched.add(original)
        if pages < 0 and original in self._held:
            self._ready[original] = None

    # --- checkpoint ---

    @property
    def is_empty(self) -> bool:
        """Whether no copy ever led to a new page."""
        return not (self._room or self._held)

    def changes(self) -> Told | None:
        """Changes since `tell`; None if empty."""
        room = [(original, self._room[original]) for original in sorted(self._touched)]
        return self._told(room, self._new_held)

    def everything(self) -> Told | None:
        """The full state; None if empty."""
        held = [
            Found(original, path, depth)
            for original, paths in self._held.items()
            for path, depth in paths.items()
        ]
        return self._told(list(self._room.items()), held)

    def _told(self, room: list[tuple[int, int]], held: list[Found]) -> Told | None:
        if self.is_empty:
            return None
        runs = [
            (original, depth, sum(1 for _ in run))
            for (original, depth), run in groupby(held, key=lambda one: (one.original, one.depth))
        ]
        text = "\n".join(one.path for one in held).encode("utf-8", "surrogatepass")
        packed = zstandard.compress(text) if text else b""
        return Told(self._spent, list(self.trials.items()), room, runs, packed)

    def tell(self) -> None:
        """The state is saved: `changes` starts here."""
        self._new_held, self._touched = [], set()

    def replay(self, saved: Told, known: int) -> None:
        """Apply `changes` or `everything` in order. Raises ValueError if they are damaged."""
        numbers = [*chain.from_iterable(saved.trials), *(one[0] for one in (*saved.room, *saved.held))]
        if max(numbers, default=-1) >= known:
            raise ValueError(f"copies refer to page {max(numbers)}; expected a number below {known}")
        self._spent, self.trials = saved.spent, dict(saved.trials)
        self._open = Counter(self.trials.values())
        self._room.update(saved.room)
        try:
            text = zstandard.decompress(saved.paths) if saved.paths else b""
            paths = text.decode("utf-8", "surrogatepass").split("\n") if saved.held else []
        except (zstandard.ZstdError, UnicodeDecodeError, MemoryError) as error:
            raise ValueError(f"links of copies cannot be read: {error}") from None
        if sum(many for _, _, many in saved.held) != len(paths):
            raise ValueError(f"{len(paths)} links of copies with {saved.held[:5]}")
        rest = iter(paths)
        for original, depth, many in saved.held:
            self.hold(original, [next(rest) for _ in range(many)], depth, MOST_HELD)

    def paths(self) -> set[str]:
        """All held paths."""
        return set(chain.from_iterable(self._held.values()))

    def forget(self, is_known: Callable[[str], bool]) -> None:
        """After `replay`: drop held paths that were tried since."""
        for paths in self._held.values():
            for path in list(filter(is_known, paths)):
                del paths[path]
                self.held -= 1
