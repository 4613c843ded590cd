"""The most telling words of a page, where KEYWORDS_PER_PAGE asks for some."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crawler.content.keywords import headings, keywords

if TYPE_CHECKING:
    from crawler.agent.page import LoadedPage


class Keywords:
    """Fills keywords; behind Attributes and Language, which have read the title and know whose words say nothing."""

    def process(self, page: LoadedPage) -> None:
        """Weigh the words of title, headings and text."""
        most = page.agent.options.keywords_per_page
        if most and page.document is not None:
            record = page.record
            record.keywords = keywords(
                record.title, headings(page.document), page.text, record.language, most
            )
