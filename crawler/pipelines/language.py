"""The language of a page's text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crawler.content.language import LOOKED_AT, declared, language
from crawler.content.text import collapsed

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from crawler.agent.page import LoadedPage


class Language:
    """Fills language, unless LANGUAGE_ENABLED is off."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Language:
        """Called by the chain."""
        return cls(enabled=crawler.settings.getbool("LANGUAGE_ENABLED"))

    def process(self, page: LoadedPage) -> None:
        """Detect the language of the text's start."""
        if self._enabled and page.raw_text:
            text = collapsed(page.raw_text, LOOKED_AT)
            page.record.language = language(text, declared(page.document))
