"""The spider `site`: crawls every page of the sites it leases.

    scrapy crawl site -a seeds=https://example.org
    scrapy crawl site -a seeds=seeds.txt --agents 2

Subclass it and write `parse` to extract items. Links are followed automatically.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy import Spider

if TYPE_CHECKING:
    from scrapy.http import Response

    from crawler.records import Work


class SiteSpider(Spider):
    """`seeds` is a file, `-`, or URLs separated by commas."""

    name = "site"
    work: Work = "site"

    def __init__(self, *args: Any, seeds: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seeds = seeds

    def parse(self, response: Response) -> Any:
        """Called with every 2xx page; override it to yield items and requests."""
