"""A Scrapy extension that lets several agents join at one moment: what they take to start is no part of their crawls.

Setting OPENS_AT, seconds since 1970; 0: at once.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from scrapy.utils.misc import load_object

if TYPE_CHECKING:
    from scrapy.crawler import Crawler


class Gate:
    """Holds its process back, once most of what an agent imports is there."""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Built by Scrapy, before the agent is."""
        settings = crawler.settings
        for path in (
            settings["SCHEDULER"],
            settings["DOWNLOADER"],
            *settings["DOWNLOAD_HANDLERS_BASE"].values(),
        ):
            load_object(path)
        time.sleep(max(0.0, settings.getfloat("OPENS_AT") - time.time()))
        return cls()
