"""Replacements of Scrapy's HTTP cache, log lines, statistics, cookies, and checks for foreign handlers."""

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
    """The class in HTTPCACHE_STORAGE: a relative HTTPCACHE_DIR is below VAR_DIR."""

    def __init__(self, settings: BaseSettings) -> None:
        placed = settings.copy()
        placed.frozen = False
        folder = options.read(settings).var / settings["HTTPCACHE_DIR"]
        placed.set("HTTPCACHE_DIR", str(folder), priority="cmdline")
        super().__init__(placed)


# --- Log lines ---


class PageLog(LogFormatter):
    """Page lines only at LOG_LEVEL DEBUG; discarded ones cost 0.015 CPU-ms per page."""

    def crawled(  # type: ignore[override]  # the engine takes None, as from its other methods
        self, request: Request, response: Response, spider: Spider
    ) -> LogFormatterResult | None:
        """Returns None when no handler would write the line."""
        handler = get_scrapy_root_handler()
        if handler is not None and handler.level > logging.DEBUG:
            return None
        return super().crawled(request, response, spider)


# --- Download statistics ---


# Bytes of a request besides method, URL, headers and body.
_REQUEST_LINE = len("  HTTP/1.1\r\n\r\n\r\n")


class LeanStats(MemoryStatsCollector):
    """Scrapy's collector without the deprecation wrapper (15 µs per page)."""

    __getattribute__ = object.__getattribute__


class DownloadTally:
    """A downloader middleware: Scrapy's download statistics."""

    def __init__(self, stats: StatsCollector) -> None:
        self._count: Any = stats.inc_value

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> DownloadTally:
        """Raises NotConfigured if DOWNLOADER_STATS is off."""
        if not crawler.settings.getbool("DOWNLOADER_STATS"):
            raise NotConfigured("DOWNLOADER_STATS is off")
        return cls(crawler.stats)

    def process_request(self, request: Request) -> None:
        """Count a request."""
        count, headers = self._count, _header_bytes(request.headers)
        count("downloader/request_count")
        count(f"downloader/request_method_count/{request.method}")
        size = len(request.method) + len(request.url) + headers + len(request.body) + _REQUEST_LINE
        count("downloader/request_bytes", size)

    def process_response(self, request: Request, response: Response) -> Response:  # noqa: ARG002 - Scrapy's
        """Count a response."""
        count, headers = self._count, _header_bytes(response.headers)
        count("downloader/response_count")
        count(f"downloader/response_status_count/{response.status}")
        size = len(response.body) + headers + _status_line_bytes(response.status) + 4
        count("downloader/response_bytes", size)
        return response

    def process_exception(self, request: Request, exception: Exception) -> None:  # noqa: ARG002 - Scrapy's
        """Count an exception."""
        self._count("downloader/exception_count")
        kind = global_object_name(type(exception))
        self._count(f"downloader/exception_type_count/{kind}")


def _header_bytes(headers: Headers) -> int:
    """Scrapy's `get_header_size`, from the stored values."""
    fields = dict.items(headers)
    lines = sum(len(name) + len(value) + 2 for name, values in fields for value in values)
    return lines + 2 * (len(headers) - 1)


_status_line_bytes = cache(get_status_size)


# --- Foreign download handlers ---


logger = logging.getLogger("agent")


class ForeignHandlers:
    """The last downloader middleware: our checks for other handlers in DOWNLOAD_HANDLERS.

    The host name and the lease are checked right before the download; one timeout covers all stages.
    """

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
        """Raises NotConfigured if every handler is ours."""
        handlers = foreign(crawler.settings)
        if not handlers:
            raise NotConfigured("every download handler is ours")
        listed = ", ".join(f"{scheme} by {path}" for scheme, path in sorted(handlers.items()))
        compressed = crawler.settings.getbool("COMPRESSION_ENABLED")
        logger.warning(
            "DOWNLOAD_HANDLERS: %s: private addresses are refused by name only, no limit for response headers, "
            "no times per stage%s",
            listed,
            "" if compressed else "; bodies stay compressed, expected COMPRESSION_ENABLED=True",
        )
        return cls(crawler, handlers)

    async def close(self) -> None:
        """Release resolver and guard."""
        await leave(self._crawler)

    async def process_request(self, request: Request) -> None:
        """Raises AddressRefusedError, NotSentError or CannotResolveHostError."""
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
        # The handler may connect to any of them: one forbidden address refuses the request.
        for address in await self._wire.names.resolve(host):
            reason = self._wire.guard.refusal(address)
            if reason is not None:
                raise refusal_of(url, address, reason)


def foreign(settings: BaseSettings) -> dict[str, str]:
    """The http and https handlers that are not ours, by scheme."""
    handlers = settings.getwithbase("DOWNLOAD_HANDLERS")
    named = {scheme: handlers.get(scheme) for scheme in ("http", "https")}
    return {
        scheme: str(path)
        for scheme, path in named.items()
        if path is not None and not issubclass(load_object(path), CurlDownloadHandler)
    }


# --- Cookies ---


STOCK = "scrapy.downloadermiddlewares.cookies.CookiesMiddleware"


class Cookies:
    """Loads Scrapy's middleware, an eighth of a crawl's start, only if enabled."""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> CookiesMiddleware:
        """Raises NotConfigured if COOKIES_ENABLED is off or DOWNLOADER_MIDDLEWARES names it."""
        settings = crawler.settings
        if not settings.getbool("COOKIES_ENABLED") or STOCK in settings.getdict("DOWNLOADER_MIDDLEWARES"):
            raise NotConfigured
        from scrapy.downloadermiddlewares.cookies import CookiesMiddleware

        return CookiesMiddleware.from_crawler(crawler)
