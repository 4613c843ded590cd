"""The spider `recheck`: asks loaded pages whether they have changed.

    scrapy crawl recheck                      what is due now, beside a crawl or after it
    scrapy crawl recheck --when-idle wait     and whatever falls due later
    scrapy crawl site --with recheck          by the agents that load

What has changed is taken in as by `site`. What is due is packed by a coordinator; nothing is where none runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from crawler.spiders.site import SiteSpider

if TYPE_CHECKING:
    from crawler.records import Work


class RecheckSpider(SiteSpider):
    """Asks loaded pages whether they have changed; finds no sites by itself."""

    name = "recheck"
    work: Work = "recheck"
