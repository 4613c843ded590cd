"""What copies of a page may lead to: pages of one site with the same bytes as an earlier one, their original. Pure.

Relative links of a copy in another folder lead elsewhere than those of its original: to other pages (every talk has the
same index), or to further copies, without end. So they are tried. The copies of one original may bring FIRST_PAGES
pages, and EARNED_PAGES more for each of these whose content the site has not shown before. What they lead to beyond
that is held while pages on trial may still earn room for it, and given up then. The copies of a whole site together may
bring SITE_PAGES and a share of SITE_SHARE of its different pages, with what they earn: else a site that shows itself
once more under other paths would be walked as often as it has pages.

So copies that lead to nothing but copies end after FIRST_PAGES requests, however many links each has. Bounded in
memory: no more is held than `hold` is told to.
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
# Paths that are held of one site at most.
MOST_HELD: Final = 100_000

_Number = Annotated[int, msgspec.Meta(ge=0)]


class Found(NamedTuple):
    """A page that a copy leads to."""

    original: int  # number of the copy's original
    path: str
    depth: int


class Told(msgspec.Struct, array_like=True):
    """As a checkpoint has it: all of the trials, of the rest what changed or all."""

    spent: int
    trials: list[tuple[_Number, _Number]]  # page, original
    room: list[tuple[_Number, int]]  # original, pages that its copies may bring
    held: list[tuple[_Number, _Number, _Number]]  # runs: original, depth, how many
    paths: bytes  # of these, newline-separated, in zstd


class Copies:
    """What the copies of one site's pages lead to. Pages are known by the frontier's numbers."""

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
        self.trials: dict[int, int] = {}  # pages that copies brought and whose turn has not ended -> original
        self.held = 0  # paths that are held
        self._open: Counter[int] = Counter()  # of these, by original
        self._room: dict[int, int] = {}  # by original; FIRST_PAGES where it is missing
        self._spent = 0  # pages that all copies have brought, without what these earned
        self._held: dict[int, dict[str, int]] = {}  # original -> path -> depth
        self._ready: dict[int, None] = {}  # originals of held ones that may have room
        self._closing: set[int] = set()  # those that may have lost their last chance
        self._new_held: list[Found] = []
        self._touched: set[int] = set()  # originals whose room changed since `tell`

    def hold(self, original: int, paths: Iterable[str], depth: int, most: int) -> list[str]:
        """Copies of a page lead to these; which are given up, since more than `most` would be held."""
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
        """What may be tried now, of a site with so many different contents; it is held no more. None: nothing."""
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
        """The page is on trial until `end`."""
        self.trials[page] = original
        self._open[original] += 1
        self._spend(original, 1)

    def earn(self, page: int) -> None:
        """A page on trial has content that is new."""
        self._spend(self.trials[page], -EARNED_PAGES)

    def hand_on(self, page: int, other: int) -> None:
        """A page on trial leads on to another one, which is on trial in its place."""
        self.trials[other] = self.trials.pop(page)

    def end(self, page: int, *, asked: bool) -> None:
        """The page has had its turn; it cost nothing if it was not asked for."""
        original = self.trials.pop(page)
        self._open[original] -= 1
        if not self._open[original]:
            del self._open[original]
        if not asked:
            self._spend(original, -1)
        self._closing.add(original)

    def give_up(self) -> list[str]:
        """Held ones for which nothing can earn room any more; to be called when `next` gives nothing."""
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
        """Whether there was never a copy that led to anything new."""
        return not (self._room or self._held)

    def changes(self) -> Told | None:
        """What has changed since `tell`; None: nothing was there yet."""
        room = [(original, self._room[original]) for original in sorted(self._touched)]
        return self._told(room, self._new_held)

    def everything(self) -> Told | None:
        """All there is."""
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
        """What there is now is known: `changes` begins from here."""
        self._new_held, self._touched = [], set()

    def replay(self, told: Told, known: int) -> None:
        """Take in what `changes` or `everything` gave, in their order, of a site with so many `known` pages.

        ValueError where it is damaged.
        """
        numbers = [*chain.from_iterable(told.trials), *(one[0] for one in (*told.room, *told.held))]
        if max(numbers, default=-1) >= known:
            raise ValueError(f"copies of page {max(numbers)}; expected less than {known}")
        self._spent, self.trials = told.spent, dict(told.trials)
        self._open = Counter(self.trials.values())
        self._room.update(told.room)
        try:
            text = zstandard.decompress(told.paths) if told.paths else b""
            paths = text.decode("utf-8", "surrogatepass").split("\n") if told.held else []
        except (zstandard.ZstdError, UnicodeDecodeError, MemoryError) as error:
            raise ValueError(f"links of copies cannot be read: {error}") from None
        if sum(many for _, _, many in told.held) != len(paths):
            raise ValueError(f"{len(paths)} links of copies with {told.held[:5]}")
        rest = iter(paths)
        for original, depth, many in told.held:
            self.hold(original, [next(rest) for _ in range(many)], depth, MOST_HELD)

    def paths(self) -> set[str]:
        """All that are held."""
        return set(chain.from_iterable(self._held.values()))

    def forget(self, is_known: Callable[[str], bool]) -> None:
        """After `replay`: what was tried since it was held is not held."""
        for paths in self._held.values():
            for path in list(filter(is_known, paths)):
                del paths[path]
                self.held -= 1
