"""The last step: the page's record into the results stream, with what it taught the frontier."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crawler.agent.pages import LoadedPage


class Publish:
    """Ends the page's turn."""

    def process(self, page: LoadedPage) -> None:
        """Hand the record to the outbox."""
        page.publish()
