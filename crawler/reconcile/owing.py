"""What the tables owe of a site since they lost rows of it: evidence that outlives the walk that looks for them.

The walk begins with the rows that are left, so its own figures say nothing of what was lost. What must be there again
is kept in the queue (`owed`) until it is: as many rows, and where their hash (`records.set_hash`) is known, just these.
Others that came beside them are told apart where these are one or two, or one or two pages were lost; else it cannot be
told.

Pure.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import NamedTuple

from crawler.records import SET_HASHES, set_hash

_NONE = "-"


class Owed(NamedTuple):
    """What must be in the tables of one site."""

    since_ms: int  # when the loss was seen, on the server's clock
    rows: int  # of `pages`, at least
    rows_hash: int | None  # of these; None: not known
    missing: int = 0  # of these, how many were lost; 0: not known
    missing_hash: int | None = None  # of these; None: not known

    @property
    def text(self) -> str:
        """As it stands in Redis; `read` reads it."""
        return " ".join(_NONE if value is None else str(value) for value in self)

    def and_before(self, before: Owed | None) -> Owed:
        """The same, where something was owed already."""
        if before is None:
            return self
        missing = before.missing + self.missing if before.missing and self.missing else 0
        return Owed(before.since_ms, max(before.rows, self.rows), None, missing)


def read(text: str) -> Owed | None:
    """What stands in Redis; None: it is nothing of this."""
    with suppress(ValueError, TypeError):
        since, rows, rows_hash, missing, missing_hash = [
            None if word == _NONE else int(word) for word in text.split(" ")
        ]
        if since is not None and rows is not None and missing is not None:
            return Owed(since, rows, rows_hash, missing, missing_hash)
    return None


def what_is_missing(owed: Owed, there: AbstractSet[int], not_asked: int) -> str:
    """In words, by the hashes of the rows that are there and the URLs that a limit leaves out; empty: all is there."""
    more = len(there) - owed.rows
    if owed.rows_hash is None:
        more += not_asked
        return "" if more >= 0 else _not_found(owed, -more)
    if more < 0:
        return _not_found(owed, -more)
    found = _is_there(owed, there, more)
    if found is None:
        return f"whether {_lost(owed)} are among those that came since cannot be told"
    return "" if found else _not_found(owed, 1)


def _lost(owed: Owed) -> str:
    return f"the {owed.missing:,} pages that were lost" if owed.missing else "the pages that were lost"


def _not_found(owed: Owed, least: int) -> str:
    return f"of {_lost(owed)}, {least:,} or more are not found again"


def _is_there(owed: Owed, there: AbstractSet[int], more: int) -> bool | None:
    """Whether the rows are among these, of which there are so many more; None: it cannot be told."""
    assert owed.rows_hash is not None
    differs = (set_hash(there) - owed.rows_hash) % SET_HASHES
    if not more:
        return not differs
    if owed.missing_hash is not None and 0 < owed.missing <= 2:
        return _adds_up(there, owed.missing, owed.missing_hash)
    return _adds_up(there, more, differs) if more <= 2 else None


def _adds_up(there: AbstractSet[int], many: int, total: int) -> bool:
    """Whether one of these hashes, or two, have this sum."""
    import numpy as np  # not above: each crawl's end asks what is owed, and it is nearly never anything

    hashes = np.fromiter(there, np.int64, len(there)).view(np.uint64)
    if many == 1:
        return bool((hashes == np.uint64(total)).any())
    rest = np.uint64(total) - hashes
    return bool((np.isin(rest, hashes) & (rest != hashes)).any())
