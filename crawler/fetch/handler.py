"""Scrapy download handler on libcurl: one request in, one Response or one error of `crawler.fetch.errors` out.

Response flags: not_decoded (wrong or unknown Content-Encoding), doubtful (wrong checksum and size), dataloss, cut_off
(truncated robots.txt).

Reads `request.meta`: download_timeout (caps each stage), download_maxsize, download_warnsize,
download_fail_on_dataloss, bindaddress, proxy, verbatim_url, want_certificate, lowtide (a FetchContext).

Writes download_latency (seconds to the head), raw_head (lines), encoded (encoding, bytes on the wire),
decoding_error, stage_times (seconds, None if not finished; also on failure).
"""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING, Final

from scrapy.core.downloader.handlers.base import BaseDownloadHandler
from scrapy.exceptions import (
    DownloadConnectionRefusedError,
    ResponseDataLossError,
    UnsupportedURLSchemeError,
)
from scrapy.utils._download_handlers import get_dataloss_msg, get_warnsize_msg
from scrapy.utils.httpobj import urlparse_cached

from crawler.fetch import proxies
from crawler.fetch.context import context_of
from crawler.fetch.errors import ConnectionLostError, ConnectTimeoutError
from crawler.fetch.timeouts import taken_in
from crawler.fetch.transfer import PROXY_LOGIN, Attempt, refusal_of
from crawler.fetch.wire import ENCODINGS, leave, wire_of

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Headers, Response

    from crawler.fetch.decoding import Decoded
    from crawler.fetch.timeouts import Limits
    from crawler.fetch.transfer import Transfer

logger = logging.getLogger(__name__)

# At most this many addresses of a name are tried, each for at least LEAST_SECONDS: about half a minute in all.
MAX_ADDRESSES: Final = 32
LEAST_SECONDS: Final = 1.0

# Values of Accept-Encoding that this handler can decode.
_DECODED: Final = frozenset((*ENCODINGS.split(", "), "x-gzip", "identity", ""))

# CURLE_WEIRD_SERVER_REPLY.
_WEIRD: Final = 8
# After the head these codes mean a truncated body.
_LOSS: Final = frozenset((16, 18, 56, 92))


class CurlDownloadHandler(BaseDownloadHandler):
    """Download handler for http and https."""

    lazy = False

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._wire = wire_of(crawler)
        self._wire.users += 1
        self._closed = False
        self._warn_size = crawler.settings.getint("DOWNLOAD_WARNSIZE")
        self._fail_on_loss = crawler.settings.getbool("DOWNLOAD_FAIL_ON_DATALOSS")
        self._warned_of_loss = False

    async def download_request(self, request: Request) -> Response:
        """Fetch one request. Raises `crawler.fetch.errors` and StopDownload."""
        started, meta = monotonic(), request.meta
        meta.pop("encoded", None)
        meta.pop("decoding_error", None)
        meta.pop("raw_head", None)
        times = dict.fromkeys(("name_s", "connect_s", "tls_s", "head_s", "body_s"))
        meta["stage_times"] = {**times, "reused": False}
        _ask_for_what_is_decoded(request.headers)
        host = urlparse_cached(request).hostname
        if not host:
            raise UnsupportedURLSchemeError(f"{request.url!r} names no host")
        addresses = self._allowed(request, await self._wire.names.resolve(host))
        proxy, entry = await self._proxy(request)
        meta["stage_times"]["name_s"] = monotonic() - started
        limits = self._limits(request, 1 if proxy else len(addresses))
        context = context_of(request)
        with taken_in(context.timeouts if context else None, meta["stage_times"]):
            if proxy is not None:
                attempt = Attempt(request, limits, None, limits.connect.seconds, proxy, entry)
                return await self._fetch(attempt, started)
            return await self._fetch_from(addresses, host, request, limits, started)

    async def close(self) -> None:
        """Release the shared wire; the crawler's last handler closes it."""
        if self._closed:
            return
        self._closed = True
        await leave(self.crawler)

    def _limits(self, request: Request, addresses: int) -> Limits:
        """The settings' limits, narrowed by the site's adaptive timeouts."""
        limits = self._wire.limits.narrowed(request.meta)
        context = context_of(request)
        if context is None or context.timeouts is None or context.tries is None:
            return limits
        return context.timeouts.narrow(limits, context.tries, addresses)

    def _allowed(self, request: Request, addresses: list[str]) -> list[str]:
        """The addresses that the guard allows, at least one."""
        refusals = [(address, self._wire.guard.refusal(address)) for address in addresses]
        allowed = [address for address, reason in refusals if reason is None]
        if allowed:
            return allowed[:MAX_ADDRESSES]
        address, reason = refusals[0]
        raise refusal_of(request.url, address, str(reason))

    async def _proxy(self, request: Request) -> tuple[str | None, str]:
        """The proxy's URL (None: no proxy) and its `host:port:address`."""
        if not request.meta.get("proxy"):
            return None, ""
        try:
            proxy = proxies.read(request.meta["proxy"])
        except proxies.ProxyError as error:
            raise UnsupportedURLSchemeError(f"{request.url}: {error}") from None
        if proxy.port is None:
            return proxy.url, ""
        address = (await self._wire.names.resolve(proxy.host))[0]
        return proxy.url, f"{proxy.host}:{proxy.port}:{address}"

    async def _fetch_from(
        self, addresses: list[str], host: str, request: Request, limits: Limits, started: float
    ) -> Response:
        """Fetch from the first address that connects; all share one connect limit."""
        until = monotonic() + max(
            limits.connect.seconds, min(LEAST_SECONDS, limits.connect.seconds) * len(addresses)
        )
        *others, last = addresses
        for turn, address in enumerate(others):
            share = (until - monotonic()) / (len(addresses) - turn)
            try:
                response = await self._fetch(Attempt(request, limits, address, share), started)
            except (ConnectTimeoutError, DownloadConnectionRefusedError) as error:
                logger.debug("%s; trying the next address", error)
            else:
                self._wire.names.worked(host, address)
                return response
        response = await self._fetch(Attempt(request, limits, last, until - monotonic()), started)
        if others:
            self._wire.names.worked(host, last)
        return response

    async def _fetch(self, attempt: Attempt, started: float) -> Response:
        context = context_of(attempt.request)
        attempt.cut_size = self._wire.robots_bytes if context is not None and context.for_robots else 0
        transfer = self._wire.take()
        try:
            transfer.begin(attempt)
            code, text = await self._wire.run(transfer)
            return self._outcome(transfer, code, text)
        finally:
            transfer.note_times(started)
            if context is not None:
                context.received += transfer.received
            transfer.end()
            self._wire.put(transfer)

    def _outcome(self, transfer: Transfer, code: int, text: str) -> Response:
        # Our own error first: libcurl only reports that a callback aborted.
        if transfer.fault is not None:
            raise transfer.fault
        if code == 0 and not transfer.head_at:
            # libcurl accepts a head that ends with the connection.
            raise ConnectionLostError(f"{transfer.attempt.request.url}: closed before the head was complete")
        if transfer.attempt.proxy is not None and transfer.status == PROXY_LOGIN:
            raise transfer.proxy_refusal()
        if code == 0 or transfer.stop is not None or transfer.cut_off:
            return self._complete(transfer)
        if transfer.head_at and code in _LOSS:
            return self._incomplete(transfer, transfer.decoded(), text)
        if code == _WEIRD and transfer.follows_first_location():
            return self._complete(transfer)
        raise transfer.error(code, text)

    def _complete(self, transfer: Transfer) -> Response:
        found = transfer.decoded()
        if found.loss and transfer.stop is None and not transfer.cut_off:
            return self._incomplete(transfer, found, found.loss)
        response = transfer.response(found, ["cut_off"] if transfer.cut_off else [])
        self._warn_of_size(transfer.attempt.request, len(response.body))
        return response

    def _warn_of_size(self, request: Request, size: int) -> None:
        limit = request.meta.get("download_warnsize", self._warn_size)
        if limit and size > limit:
            logger.warning(get_warnsize_msg(size, limit, request, expected=False))

    def _incomplete(self, transfer: Transfer, found: Decoded, text: str) -> Response:
        request = transfer.attempt.request
        if not request.meta.get("download_fail_on_dataloss", self._fail_on_loss):
            return transfer.response(found, ["dataloss"])
        if not self._warned_of_loss:
            self._warned_of_loss = True
            logger.warning(get_dataloss_msg(request.url))
        raise ResponseDataLossError(f"{request.url}: {text}")


def _ask_for_what_is_decoded(headers: Headers) -> None:
    """Replace an Accept-Encoding that names an unsupported encoding."""
    values: list[bytes] | None = dict.get(headers, b"Accept-Encoding")
    if values is None:
        return
    words = b",".join(values).decode("latin-1").lower().split(",")
    if not _DECODED.issuperset(word.partition(";")[0].strip() for word in words):
        del headers[b"Accept-Encoding"]
