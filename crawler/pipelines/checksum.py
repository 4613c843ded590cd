"""SHA-256 of the body, and the first page of the site with the same bytes."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crawler.agent.page import LoadedPage


class Checksum:
    """Marks exact duplicates within a site."""

    def process(self, page: LoadedPage) -> None:
        """Fill sha256, and duplicate_of for a duplicate."""
        digest = sha256(page.body)
        page.record.sha256 = digest.hexdigest()
        if not page.body:
            return
        first = page.lease.frontier.first_with(page.turn, digest.digest())
        if first is not None:
            page.record.outcome = "duplicate"
            page.record.duplicate_of = first
