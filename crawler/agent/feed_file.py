"""A feed's file that has every item as soon as it was given, so that a killed agent's feed lacks none.

Scrapy keeps some kilobytes of a feed in memory, while the pages that the items are of have long been published and
are not fetched again.
"""

from __future__ import annotations

import io
from typing import IO, TYPE_CHECKING, Any, cast

from scrapy.extensions.feedexport import FileFeedStorage

if TYPE_CHECKING:
    from scrapy import Spider


class FeedFile(FileFeedStorage):
    """What FEED_STORAGES names for files."""

    def open(self, spider: Spider) -> IO[bytes]:
        """The same file as Scrapy's, but nothing of it stays in memory: some microseconds an item."""
        buffered = cast("io.BufferedWriter", super().open(spider))
        return _WrittenThrough(buffered.detach())


class _WrittenThrough(io.BufferedWriter):
    def write(self, data: Any) -> int:
        written = super().write(data)
        self.flush()
        return written
