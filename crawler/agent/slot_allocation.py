"""How an agent's slots are divided among its works: pure arithmetic, asked before each lease call.

What a setting (WORK_SLOTS) gives a work is that work's alone. The other slots follow what is due: nobody who has
something due finds one idle and does not get it; loading, while it has sites, keeps three quarters of them. The others
mostly wait for what did not answer before, and new pages are not to wait for that (benchmarks/dead_links.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from crawler.options import OptionError
from crawler.records import Work

LOADING: Work = "site"


class Division:
    """The division of `slots` among `works`; `fixed` are the slots of works that have their own.

    OptionError where these leave none for the other works.
    """

    def __init__(self, slots: int, works: tuple[Work, ...], fixed: Mapping[Work, int]) -> None:
        self.loading_waits = False  # sites wait that could be loaded
        self._fixed = {work: many for work, many in fixed.items() if work in works}
        needed = sum(self._fixed.values()) + (len(self._fixed) < len(works))
        if slots < needed:
            raise OptionError(
                f"WORK_SLOTS is {dict(fixed)} and SITE_SLOTS is {slots}; wanted SITE_SLOTS of {needed} or more for "
                f"{', '.join(works)}"
            )
        self._shared = slots - sum(self._fixed.values())
        # Of these, what the works beside loading may have while it has sites: one at least, if there are two.
        self._most_beside = max(self._shared // 4, min(1, self._shared // 2))
        self._loads = LOADING in works

    def room(self, work: Work, held: Mapping[Work, int]) -> int:
        """How many more sites a work may have, with these in hand."""
        if work in self._fixed:
            return max(0, self._fixed[work] - held.get(work, 0))
        free = self._shared - self._in_shared(held)
        if work != LOADING and self._loads and self.loading_waits:
            free = min(free, self._most_beside - self._beside(held))
        return max(0, free)

    def to_give_up(self, work: Work, held: Mapping[Work, int], due: int) -> int:
        """How many sites loading gives back, for `due` ones of a work that has no slot for them."""
        if work == LOADING or work in self._fixed or LOADING in self._fixed or self.room(work, held):
            return 0
        claim = self._most_beside - self._beside(held)
        return max(0, min(due, claim, held.get(LOADING, 0)))

    def _in_shared(self, held: Mapping[Work, int]) -> int:
        return sum(many for work, many in held.items() if work not in self._fixed)

    def _beside(self, held: Mapping[Work, int]) -> int:
        return self._in_shared(held) - (0 if LOADING in self._fixed else held.get(LOADING, 0))
