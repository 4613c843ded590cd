"""The spider `recheck`: fetches loaded pages that may have changed.

    scrapy crawl recheck [--when-idle wait]
    scrapy crawl site --with recheck

Needs a coordinator, which plans the due pages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from crawler.spiders.site import SiteSpider

if TYPE_CHECKING:
    from crawler.records import Work


class RecheckSpider(SiteSpider):
    """Adds no sites."""

    name = "recheck"
    work: Work = "recheck"
