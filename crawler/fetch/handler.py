"""Scrapy's download handler on libcurl: one page in, one Response or one error of `crawler.fetch.errors` out.

Asks for the addresses of a name, tries the next one when one does not connect, and says what came. The exchange
itself is a Transfer (crawler/fetch/transfer.py), carried by the Wire (crawler/fetch/wire.py) that http and https
share. Nothing of libcurl is seen outside of these three.

A limit of 0 in DOWNLOAD_MAXSIZE means none. Redirects are not followed here; each hop is a request of its own and
passes the guard. Bodies are decoded (gzip, deflate, br: crawler/fetch/decoding.py), and no other encoding is asked
for. A body that is not in the encoding that its head names, or in an unknown one, is given as it came, with the flag
"not_decoded"; one that ends too early by its encoding is a loss, as one that ends too early by its length. One whose
sum and size are both wrong is given with the flag "doubtful".
A robots.txt (by its FetchContext) that is longer than ROBOTS_MAX_BYTES is cut off behind them, with the flag "cut_off".

Reads of `request.meta`: download_timeout (caps each stage), download_maxsize, download_warnsize,
download_fail_on_dataloss, bindaddress, proxy, verbatim_url, want_certificate, lowtide (a FetchContext, whose
`may_send` is asked at the last moment; see crawler/fetch/context.py).
Writes: download_latency (seconds until the head was complete); raw_head (lines of the answer's head as they came);
encoded = (content encoding, bytes on the wire) where a body was decoded; decoding_error = what is wrong with the
encoding of a body that is whole all the same; stage_times = name_s, connect_s, tls_s,
head_s, body_s in seconds (None = the stage was not finished) and reused: then connect_s and tls_s are 0 and say
nothing about the site. The last is also set on failure.
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

# Addresses of one name that are tried, and the seconds that each of them has at least: a name with many dead ones takes
# no more than half a minute.
MAX_ADDRESSES: Final = 32
LEAST_SECONDS: Final = 1.0

# What a request of a user's may ask for: all that is decoded, under each of its names.
_DECODED: Final = frozenset((*ENCODINGS.split(", "), "x-gzip", "identity", ""))

# An answer that libcurl cannot make sense of.
_WEIRD: Final = 8
# After the head these mean that the body ended too early.
_LOSS: Final = frozenset((16, 18, 56, 92))


class CurlDownloadHandler(BaseDownloadHandler):
    """Scrapy's handler for http and https: finds the address, fetches, and turns what came into a Response."""

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
        """Fetch one request. Raises what `crawler.fetch.errors` draws, and StopDownload."""
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
        """Leave the wire; the last handler of the crawler closes it."""
        if self._closed:
            return
        self._closed = True
        await leave(self.crawler)

    def _limits(self, request: Request, addresses: int) -> Limits:
        """What the request may take: as the settings say, and for a page's turn as its site is used to."""
        limits = self._wire.limits.narrowed(request.meta)
        context = context_of(request)
        if context is None or context.timeouts is None or context.tries is None:
            return limits
        return context.timeouts.narrow(limits, context.tries, addresses)

    def _allowed(self, request: Request, addresses: list[str]) -> list[str]:
        """The addresses that the guard lets pass; AddressRefusedError if there are none."""
        refusals = [(address, self._wire.guard.refusal(address)) for address in addresses]
        allowed = [address for address, reason in refusals if reason is None]
        if allowed:
            return allowed[:MAX_ADDRESSES]
        address, reason = refusals[0]
        raise refusal_of(request.url, address, str(reason))

    async def _proxy(self, request: Request) -> tuple[str | None, str]:
        """The proxy's URL (None = none is expected), and where it is."""
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
        """Fetch from the first address that connects; they share the connect limit of one, if that is enough."""
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
        # Ours first: libcurl only knows that a callback gave up.
        if transfer.fault is not None:
            raise transfer.fault
        if code == 0 and not transfer.head_at:
            # libcurl takes a head that ends with the connection for a whole one.
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
    """Take out an Accept-Encoding that asks for more; libcurl then sends its own."""
    asked: list[bytes] | None = dict.get(headers, b"Accept-Encoding")
    if asked is None:
        return
    words = b",".join(asked).decode("latin-1").lower().split(",")
    if not _DECODED.issuperset(word.partition(";")[0].strip() for word in words):
        del headers[b"Accept-Encoding"]
