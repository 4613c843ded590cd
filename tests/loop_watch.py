"""A Scrapy extension that measures the longest pause of an agent's event loop, and keeps it in a file.

Drills switch it on: the file's path comes in DRILL_LOOP_WATCH. It looks every 20 ms whether it was called in time;
the file holds `{"longest": seconds}` and is written whenever that grows, so it is there also after a kill.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Self

from scrapy import signals
from scrapy.crawler import Crawler

EVERY_SECONDS = 0.02
VARIABLE = "DRILL_LOOP_WATCH"


class LoopWatch:
    """Counts from the spider's start to its end; imports and the loop's first turns are left out."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._longest = 0.0
        self._due = 0.0
        self._call: asyncio.TimerHandle | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        watch = cls(Path(os.environ[VARIABLE]))
        crawler.signals.connect(watch.start, signals.spider_opened)
        crawler.signals.connect(watch.stop, signals.spider_closed)
        return watch

    def start(self) -> None:
        self._write()
        self._wait()

    def stop(self) -> None:
        if self._call is not None:
            self._call.cancel()

    def _wait(self) -> None:
        # Not the loop's own clock, which stands still while the loop does.
        self._due = time.monotonic() + EVERY_SECONDS
        self._call = asyncio.get_running_loop().call_later(EVERY_SECONDS, self._look)

    def _look(self) -> None:
        late = time.monotonic() - self._due
        if late > self._longest:
            self._longest = late
            self._write()
        self._wait()

    def _write(self) -> None:
        partial = self._file.with_suffix(".partial")
        partial.write_text(json.dumps({"longest": self._longest}))
        partial.replace(self._file)
