"""The spider `site`: walks every site it leases from its first page to its last.

    scrapy crawl site -a seeds=https://example.org
    scrapy crawl site -a seeds=seeds.txt --agents 2

Subclass it and write `parse` to extract what you need: what `parse` yields goes through ordinary Scrapy pipelines
and into `-O items.jsonl`. Links are followed without your doing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy import Spider

if TYPE_CHECKING:
    from scrapy.http import Response

    from crawler.records import Work


class SiteSpider(Spider):
    """Loads and records the pages of sites; `seeds` is a file, `-`, or URLs separated by commas."""

    name = "site"
    work: Work = "site"

    def __init__(self, *args: Any, seeds: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seeds = seeds

    def parse(self, response: Response) -> Any:
        """Called with every page that answered 2xx; gives nothing. Yours may yield items and requests."""
