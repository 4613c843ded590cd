"""The spider `revive`: asks pages that did not answer whether they do again.

    scrapy crawl revive                      what is due now, beside a crawl or after it
    scrapy crawl revive --when-idle wait     and whatever falls due later
    scrapy crawl site --with revive          by the agents that load

After two questions more they revive or are dead. What is due is packed by a coordinator; nothing is where none runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from crawler.spiders.site import SiteSpider

if TYPE_CHECKING:
    from crawler.records import Work


class ReviveSpider(SiteSpider):
    """Asks pages that did not answer whether they do again; finds no sites by itself."""

    name = "revive"
    work: Work = "revive"
