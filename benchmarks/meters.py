"""Measures a crawler's own CPU between its first and last page, whatever the crawler is.

A Scrapy extension: `EXTENSIONS = {"benchmarks.meters.CpuMeter": 0}` and METER_FILE in the environment; the figures
are written there as one JSON line per process when the spider closes.
"""

from __future__ import annotations

import json
import os
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy import signals

if TYPE_CHECKING:
    from scrapy.crawler import Crawler


class CpuMeter:
    """User and system seconds of one process from spider_opened to spider_closed."""

    def __init__(self, crawler: Crawler) -> None:
        self._stats = crawler.stats
        crawler.signals.connect(self._opened, signals.spider_opened)
        crawler.signals.connect(self._closed, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> CpuMeter:
        """Built by Scrapy."""
        return cls(crawler)

    def _opened(self) -> None:
        self._cpu, self._wall = cpu_seconds(), time.monotonic()

    def _closed(self) -> None:
        pages = self._stats.get_value("downloader/response_count", 0)
        write(cpu_seconds() - self._cpu, time.monotonic() - self._wall, pages)


def cpu_seconds() -> float:
    """User and system time of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def write(cpu: float, wall: float, pages: int) -> None:
    """Append one process's figures to METER_FILE."""
    line = json.dumps({"cpu": cpu, "wall": wall, "pages": pages})
    with Path(os.environ["METER_FILE"]).open("a", encoding="utf-8") as out:
        out.write(line + "\n")
