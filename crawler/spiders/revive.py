"""The spider `revive`: retries unreachable pages; after two failed retries a page is dead.

    scrapy crawl revive [--when-idle wait]
    scrapy crawl site --with revive

Needs a coordinator, which plans the due pages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from crawler.spiders.site import SiteSpider

if TYPE_CHECKING:
    from crawler.records import Work


class ReviveSpider(SiteSpider):
    """Adds no sites."""

    name = "revive"
    work: Work = "revive"
