"""SHA-256 over the body's bytes, and the page of the same site that had the same bytes before."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crawler.agent.page import LoadedPage


class Checksum:
    """Marks exact duplicates inside a site; across sites they are convert's business."""

    def process(self, page: LoadedPage) -> None:
        """Fill sha256, and duplicate_of where the bytes were seen."""
        digest = sha256(page.body)
        page.record.sha256 = digest.hexdigest()
        if not page.body:
            return
        first = page.lease.frontier.first_with(page.turn, digest.digest())
        if first is not None:
            page.record.outcome = "duplicate"
            page.record.duplicate_of = first
