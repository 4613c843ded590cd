"""The spider `status`: asks every site of the crawl how it is, and tells of changes (paper 002).

    scrapy crawl status -a seeds=sites.txt                       # once
    scrapy crawl status -a seeds=sites.txt --when-idle wait      # every STATUS_INTERVAL_SECONDS

It loads no pages; beside loading the same is done by `scrapy crawl site --with status`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from crawler.spiders.site import SiteSpider

if TYPE_CHECKING:
    from crawler.records import Work


class StatusSpider(SiteSpider):
    """Checks sites; `seeds` as of the spider `site`."""

    name = "status"
    work: Work = "status"
