"""The spider `status`: checks the status of every site and reports changes (paper 002).

    scrapy crawl status -a seeds=sites.txt                       # once
    scrapy crawl status -a seeds=sites.txt --when-idle wait      # every STATUS_INTERVAL_SECONDS

`scrapy crawl site --with status` also crawls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from crawler.spiders.site import SiteSpider

if TYPE_CHECKING:
    from crawler.records import Work


class StatusSpider(SiteSpider):
    """`seeds` as in SiteSpider."""

    name = "status"
    work: Work = "status"
