"""A Scrapy extension: a signal comes while the crawl is about to begin, its spider open, and nothing running yet."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Self

from scrapy import signals
from scrapy.crawler import Crawler


class EarlySignal:
    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        self = cls()
        crawler.signals.connect(self.told_to_end, signals.engine_started)
        return self

    async def told_to_end(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(60)  # cut off by the end of the process
