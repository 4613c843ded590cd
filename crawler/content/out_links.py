"""The out-links of one site's pages as 64-bit hashes.

Pages link to the same pages of their site again and again: a link's hash is made once and kept under the page's
number in the frontier, 8 bytes a known URL. A cache by URL took twice the time, for what it had to touch.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from crawler import records
from crawler.urls.canonical import page_of


class OutLinks:
    """Hashes of what a site's pages link to."""

    def __init__(self, site: str) -> None:
        self._site = site
        self._known = array("Q")  # by number; 0: not made yet

    def pack(self, numbers: list[int], inside: list[str], outside: Iterable[str]) -> bytes:
        """As the record of a page has them: of paths of the site with their `numbers` (-1: none), and of other pages.

        Those of the site may be as written, for their pages count; those of others are canonical URLs.
        """
        known = self._known
        missing = max(numbers, default=-1) + 1 - len(known)
        if missing > 0:
            known.extend(array("Q", bytes(8 * missing)))
        hashes = set(map(records.hash_of, outside))
        for number, path in zip(numbers, inside, strict=True):
            made = known[number] if number >= 0 else 0
            if not made:
                made = records.hash_of(self._site + page_of(path))
                if number >= 0:
                    known[number] = made
            hashes.add(made)
        return records.pack_hashes(hashes)
