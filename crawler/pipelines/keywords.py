"""Keywords of a page, if KEYWORDS_PER_PAGE is set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crawler.content.keywords import headings, keywords

if TYPE_CHECKING:
    from crawler.agent.page import LoadedPage


class Keywords:
    """Fills keywords; runs after Attributes and Language."""

    def process(self, page: LoadedPage) -> None:
        """Rank words of title, headings and text."""
        most = page.agent.options.keywords_per_page
        if most and page.document is not None:
            record = page.record
            record.keywords = keywords(
                record.title, headings(page.document), page.text, record.language, most
            )
