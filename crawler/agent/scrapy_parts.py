"""Scrapy's HTTP cache, kept below VAR_DIR like all that a run writes.

Scrapy would put a relative HTTPCACHE_DIR into a folder `.scrapy` of the project. Hides nothing else; the cache is
Scrapy's FilesystemCacheStorage, one folder per spider.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING, Any

from scrapy import signals
from scrapy.downloadermiddlewares.stats import get_status_size
from scrapy.exceptions import NotConfigured
from scrapy.extensions.httpcache import FilesystemCacheStorage
from scrapy.logformatter import LogFormatter, LogFormatterResult
from scrapy.statscollectors import MemoryStatsCollector
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.log import get_scrapy_root_handler
from scrapy.utils.misc import load_object
from scrapy.utils.python import global_object_name

from crawler import options
from crawler.agent.requests import request_context_of
from crawler.fetch.errors import NotSentError
from crawler.fetch.handler import CurlDownloadHandler
from crawler.fetch.transfer import refusal_of
from crawler.fetch.wire import leave, wire_of

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.downloadermiddlewares.cookies import CookiesMiddleware
    from scrapy.http import Headers, Response
    from scrapy.settings import BaseSettings
    from scrapy.statscollectors import StatsCollector


class StorageBelowVar(FilesystemCacheStorage):
    """What HTTPCACHE_STORAGE names. An absolute HTTPCACHE_DIR stays where it is."""

    def __init__(self, settings: BaseSettings) -> None:
        placed = settings.copy()
        placed.frozen = False
        folder = options.read(settings).var / settings["HTTPCACHE_DIR"]
        placed.set("HTTPCACHE_DIR", str(folder), priority="cmdline")
        super().__init__(placed)


# ------------------------------------------------------------------------------------------------------------
# Scrapy's log lines; the one it makes for every page is made only where it would be seen.


class PageLog(LogFormatter):
    """`Crawled (200) <GET …>` only at LOG_LEVEL DEBUG: made and thrown away it costs 0.015 CPU-ms a page."""

    def crawled(  # type: ignore[override]  # the engine takes None, as from its other methods
        self, request: Request, response: Response, spider: Spider
    ) -> LogFormatterResult | None:
        """The line of a page; None: nobody would see it."""
        handler = get_scrapy_root_handler()
        if handler is not None and handler.level > logging.DEBUG:
            return None
        return super().crawled(request, response, spider)


# ------------------------------------------------------------------------------------------------------------
# Scrapy's statistics of downloads under their usual names, for an eighth of the usual cost.
#
# Scrapy wraps each call of its collector to warn of an argument that is long gone, and writes every request out to
# know its size. Counting a page costs 17 us so, and 2 us here; sizes of requests are right to a byte or two.


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


# ------------------------------------------------------------------------------------------------------------
# What holds where DOWNLOAD_HANDLERS names another handler than ours, as one of Scrapy's own.
#
# Names are looked up and judged by the guard, also where a proxy is asked, and the lease is looked at, right before
# the handler gets the request; our own handler does both at the socket. The stages' time limits become one for the
# whole download. What no middleware can do (the guard on a connection that the handler makes, limits of the head,
# stage times) is logged in one line at start. Raises AddressRefusedError, NotSentError and
# CannotResolveHostError; without a foreign handler it is not built.


logger = logging.getLogger("agent")


class ForeignHandlers:
    """A downloader middleware, the last before the download."""

    def __init__(self, crawler: Crawler, handlers: dict[str, str]) -> None:
        self._crawler = crawler
        self._wire = wire_of(crawler)
        self._wire.users += 1
        crawler.signals.connect(self.close, signal=signals.engine_stopped)
        self._schemes = frozenset(handlers)
        limits = self._wire.limits
        stages = limits.connect.seconds + limits.head.seconds + limits.body.seconds
        self._seconds = min(stages, self._wire.timeout)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> ForeignHandlers:
        """Built by Scrapy; NotConfigured where every handler is ours."""
        handlers = foreign(crawler.settings)
        if not handlers:
            raise NotConfigured("every download handler is ours")
        told = ", ".join(f"{scheme} by {path}" for scheme, path in sorted(handlers.items()))
        compressed = crawler.settings.getbool("COMPRESSION_ENABLED")
        logger.warning(
            "DOWNLOAD_HANDLERS: %s, not ours: private addresses are refused by name only, heads have no limit, "
            "stages no times%s",
            told,
            "" if compressed else "; bodies come undecoded, expected COMPRESSION_ENABLED=True beside it",
        )
        return cls(crawler, handlers)

    async def close(self) -> None:
        """Leave the wire, whose names and guard were used."""
        await leave(self._crawler)

    async def process_request(self, request: Request) -> None:
        """Hold it back where our handler would."""
        parts = urlparse_cached(request)
        if parts.scheme not in self._schemes:
            return
        await self._guard(request.url, parts.hostname or "")
        request.meta.setdefault("download_timeout", self._seconds)
        context = request_context_of(request)
        if context is None:
            return
        if context.for_robots and 0 < self._wire.limits.size < self._wire.robots_bytes:
            request.meta["download_maxsize"] = self._wire.robots_bytes
        if not context.may_send():
            raise NotSentError(f"{request.url}: held back")

    async def _guard(self, url: str, host: str) -> None:
        # The handler may take any of them: one that is forbidden is too many.
        for address in await self._wire.names.resolve(host):
            reason = self._wire.guard.refusal(address)
            if reason is not None:
                raise refusal_of(url, address, reason)


def foreign(settings: BaseSettings) -> dict[str, str]:
    """Handlers of the web's schemes that are not ours, by scheme, as they were named."""
    handlers = settings.getwithbase("DOWNLOAD_HANDLERS")
    named = {scheme: handlers.get(scheme) for scheme in ("http", "https")}
    return {
        scheme: str(path)
        for scheme, path in named.items()
        if path is not None and not issubclass(load_object(path), CurlDownloadHandler)
    }


# ------------------------------------------------------------------------------------------------------------
# Scrapy's cookies, for those who switch COOKIES_ENABLED on: a downloader middleware that is loaded only then.
#
# Its module brings a list of all public suffixes, and a library for HTTP to renew that: an eighth of a crawl's start.


STOCK = "scrapy.downloadermiddlewares.cookies.CookiesMiddleware"


class Cookies:
    """Stands in Scrapy's place in DOWNLOADER_MIDDLEWARES_BASE."""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> CookiesMiddleware:
        """Scrapy's own; NotConfigured where it is off, or where the user's DOWNLOADER_MIDDLEWARES have it."""
        settings = crawler.settings
        if not settings.getbool("COOKIES_ENABLED") or STOCK in settings.getdict("DOWNLOADER_MIDDLEWARES"):
            raise NotConfigured
        from scrapy.downloadermiddlewares.cookies import CookiesMiddleware

        return CookiesMiddleware.from_crawler(crawler)
