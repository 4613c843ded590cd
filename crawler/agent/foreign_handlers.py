"""What holds where DOWNLOAD_HANDLERS names another handler than ours, as one of Scrapy's own.

Names are looked up and judged by the guard, also where a proxy is asked, and the lease is looked at, right before
the handler gets the request; our own handler does both at the socket. The stages' time limits become one for the
whole download. What no middleware can do (the guard on a connection that the handler makes, limits of the head, stage
times) is told in one line at start. Raises AddressRefused, NotSent and CannotResolveHostError; without a foreign
handler it is not built.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from scrapy import signals
from scrapy.exceptions import NotConfigured
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.misc import load_object

from crawler.agent.request_context import errand_of
from crawler.fetch.errors import NotSent
from crawler.fetch.handler import CurlDownloadHandler
from crawler.fetch.transfer import refusal_of
from crawler.fetch.wire import leave, wire_of

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings

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
            "" if compressed else "; bodies come undecoded, wanted COMPRESSION_ENABLED=True beside it",
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
        errand = errand_of(request)
        if errand is None:
            return
        if errand.for_robots and 0 < self._wire.limits.size < self._wire.robots_bytes:
            request.meta["download_maxsize"] = self._wire.robots_bytes
        if not errand.may_send():
            raise NotSent(f"{request.url}: held back")

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
