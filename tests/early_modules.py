"""A Scrapy extension that writes down what its process has loaded when the first answer comes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Self

from scrapy import signals

if TYPE_CHECKING:
    from scrapy.crawler import Crawler


class EarlyModules:
    """Writes `modules.txt` into VAR_DIR, one name in each line."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        extension = cls(Path(crawler.settings["VAR_DIR"]) / "modules.txt")
        crawler.signals.connect(extension._answered, signals.response_received)
        return extension

    def _answered(self) -> None:
        if not self._file.exists():
            self._file.write_text("\n".join(sorted(sys.modules)))
