"""One CurlMulti on the running asyncio loop, shared by all downloads of one crawler: `wire_of(crawler)`."""

from __future__ import annotations

import asyncio
import os
import resource
import ssl
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

import pycurl
from scrapy.exceptions import DownloadCancelledError

from crawler import options
from crawler.fetch.dns import Names
from crawler.fetch.guard import AddressGuard
from crawler.fetch.timeouts import Limit, Limits
from crawler.fetch.transfer import Transfer, bind_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy.crawler import Crawler

    from crawler.options import Options

ENCODINGS: Final = "gzip, deflate, br"
SWEEP_SECONDS: Final = 0.25
MAX_IDLE_CONNECTIONS: Final = 2000
# CURLOPT_DISALLOW_USERNAME_IN_URL: pycurl has no name for it.
DISALLOW_USERNAME_IN_URL: Final = 278


class Wire:
    """Connections, resolver and curl handles of one crawler.

    Bound to the loop of the first transfer. `close` ends transfers with DownloadCancelledError.
    """

    def __init__(self, crawler: Crawler) -> None:
        values = options.read(crawler.settings)
        self.users = 0
        self.guard = AddressGuard(values.allow_private_addresses)
        self.names = Names(values.connect_timeout_seconds)
        # Limit of a whole download in other handlers; caps each stage in ours.
        self.timeout = _timeout(crawler, values)
        self.limits = _limits(crawler, values, self.timeout)
        self.robots_bytes = values.robots_max_bytes
        self._http2 = values.http2_enabled
        fixed = tuple(_fixed_options(crawler, http2=self._http2))
        self._make = partial(Transfer, crawler, self.guard, fixed)
        self._idle: list[Transfer] = []
        self._active: dict[Any, Transfer] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = self._due = inf
        self._sweeper: asyncio.TimerHandle | None = None
        self._swept_at = 0.0
        self._watched: dict[int, int] = {}
        self._news = False

    def take(self) -> Transfer:
        """A pooled or new transfer. Raises DownloadCancelledError after `close`."""
        if self._closed:
            raise DownloadCancelledError("the download handler is closed")
        return self._idle.pop() if self._idle else self._make()

    def put(self, transfer: Transfer) -> None:
        """Return a transfer to the pool."""
        if self._closed:
            transfer.curl.close()
        else:
            self._idle.append(transfer)

    async def run(self, transfer: Transfer) -> tuple[int, str]:
        """Run a prepared transfer; returns libcurl's code (0 = done) and message.

        Raises HeadTimeoutError, BodyTimeoutError, DownloadCancelledError. Cancellable.
        """
        loop = self._open()
        transfer.future = loop.create_future()
        self._active[transfer.curl] = transfer
        try:
            self._multi.add_handle(transfer.curl)
            if self._sweeper is None:
                self._swept_at = monotonic()
                self._sweeper = loop.call_later(SWEEP_SECONDS, self._sweep)
            return await transfer.future
        finally:
            self._remove(transfer)

    async def close(self) -> None:
        """End transfers and look-ups, close connections. Idempotent."""
        if self._closed:
            return
        self._closed = True
        await self.names.close()
        for transfer in list(self._active.values()):
            url = transfer.attempt.request.url
            self._end(transfer, DownloadCancelledError(f"{url}: the crawl ended during the download"))
        for timer in (self._timer, self._sweeper):
            if timer is not None:
                timer.cancel()
        for transfer in self._idle:
            transfer.curl.close()
        self._idle.clear()
        if self._loop is not None:
            self._multi.close()

    def _open(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._multi: Any = pycurl.CurlMulti()
            self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._on_socket)
            self._multi.setopt(pycurl.M_TIMERFUNCTION, self._on_timer)
            self._multi.setopt(pycurl.M_NOTIFYFUNCTION, self._on_news)
            self._multi.notify_enable(pycurl.M_NOTIFY_INFO_READ)
            self._multi.setopt(pycurl.M_MAXCONNECTS, _idle_connections())
        return self._loop

    def _remove(self, transfer: Transfer) -> None:
        if self._active.pop(transfer.curl, None) is not None:
            self._multi.remove_handle(transfer.curl)

    def _end(self, transfer: Transfer, error: Exception) -> None:
        self._remove(transfer)
        if not transfer.future.done():
            transfer.future.set_exception(error)

    def _sweep(self) -> None:
        now = monotonic()
        self._make_up_for(now - self._swept_at - SWEEP_SECONDS)
        self._swept_at = now
        for transfer in [one for one in self._active.values() if one.deadline < now]:
            self._end(transfer, transfer.lateness())
        if self._http2:
            self._look_at_connections()
        assert self._loop is not None
        self._sweeper = self._loop.call_later(SWEEP_SECONDS, self._sweep) if self._active else None

    def _make_up_for(self, stall_s: float) -> None:
        """Extend deadlines by the time the event loop was blocked."""
        if stall_s > SWEEP_SECONDS:
            for transfer in self._active.values():
                transfer.deadline += stall_s

    def _look_at_connections(self) -> None:
        """Make libcurl check all sockets: it reports a failed connection to one stream only."""
        for fd in list(self._watched):
            if fd in self._watched:
                self._act(fd, 0)

    # --- libcurl's side of the loop -------------------------------------------------------------------

    def _act(self, fd: int, mask: int) -> None:
        self._multi.socket_action(fd, mask)
        if self._news:
            self._read_news()

    def _read_news(self) -> None:
        self._news = False
        left = 1
        while left:
            left, done, failed = self._multi.info_read()
            for curl in done:
                self._settle(curl, 0, "")
            for curl, code, text in failed:
                self._settle(curl, code, text)

    def _settle(self, curl: Any, code: int, text: str) -> None:
        transfer = self._active.get(curl)
        if transfer is None:
            return
        self._remove(transfer)
        if code == 0:
            transfer.done_at = monotonic()
        if not transfer.future.done():
            transfer.future.set_result((code, text))

    def _on_news(self, *_what: object) -> None:
        self._news = True

    def _on_socket(self, mask: int, fd: int, _multi: object, _data: object) -> None:
        """Watch a socket as libcurl requires; update the loop only on changes."""
        wanted = 0 if mask == pycurl.POLL_REMOVE else mask
        had = self._watched.pop(fd, 0)
        if wanted:
            self._watched[fd] = wanted
        loop, changed = self._loop, wanted ^ had
        assert loop is not None
        if changed & pycurl.POLL_IN:
            if wanted & pycurl.POLL_IN:
                loop.add_reader(fd, self._act, fd, pycurl.CSELECT_IN)
            else:
                loop.remove_reader(fd)
        if changed & pycurl.POLL_OUT:
            if wanted & pycurl.POLL_OUT:
                loop.add_writer(fd, self._act, fd, pycurl.CSELECT_OUT)
            else:
                loop.remove_writer(fd)

    def _on_timer(self, timeout_ms: int) -> None:
        """Follow libcurl's timer; rearm the loop's only to fire earlier."""
        if timeout_ms < 0:
            self._due = inf
            return
        assert self._loop is not None
        self._due = self._loop.time() + timeout_ms / 1000
        if self._due < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._arm()

    def _arm(self) -> None:
        assert self._loop is not None
        self._timer_at = self._due
        self._timer = self._loop.call_at(self._due, self._on_time)

    def _on_time(self) -> None:
        assert self._loop is not None
        self._timer, self._timer_at = None, inf
        if self._due == inf:
            return
        # The loop's resolution is 1 ms.
        if self._due > self._loop.time() + 0.001:
            self._arm()
            return
        self._due = inf
        self._act(pycurl.SOCKET_TIMEOUT, 0)


# Wires in use by crawler. A wire references its crawler, so only users of the wire may reference the wire.
_WIRES: Final[WeakValueDictionary[Crawler, Wire]] = WeakValueDictionary()


def wire_of(crawler: Crawler) -> Wire:
    """The crawler's wire, created at the first call."""
    wire = _WIRES.get(crawler)
    if wire is None:
        wire = _WIRES[crawler] = Wire(crawler)
    return wire


async def leave(crawler: Crawler) -> None:
    """Drop one user of the wire; the last closes it. Call once for every `users += 1`."""
    wire = wire_of(crawler)
    wire.users -= 1
    if not wire.users:
        del _WIRES[crawler]
        await wire.close()


# --- Limits -----------------------------------------------------------------------------------------------


def _timeout(crawler: Crawler, values: Options) -> float:
    """Seconds of DOWNLOAD_TIMEOUT or the spider's `download_timeout`; infinite for 0."""
    seconds = getattr(crawler.spider, "download_timeout", None)
    return float(values.download_timeout if seconds is None else seconds) or inf


def _limits(crawler: Crawler, values: Options, timeout: float) -> Limits:
    limits = Limits.of(values, crawler.settings.getint("DOWNLOAD_MAXSIZE"))
    cap = Limit(timeout, "DOWNLOAD_TIMEOUT")
    connect, head, body = (min(one, cap, key=_seconds) for one in (limits.connect, limits.head, limits.body))
    return replace(limits, connect=connect, head=head, body=body)


def _seconds(limit: Limit) -> float:
    return limit.seconds


# --- Options of every handle ------------------------------------------------------------------------------


def _fixed_options(crawler: Crawler, *, http2: bool) -> Iterator[tuple[int, Any]]:
    yield pycurl.NOSIGNAL, 1
    yield pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS
    yield DISALLOW_USERNAME_IN_URL, 1
    # Empty: ignore the environment's proxy.
    yield pycurl.PROXY, ""
    yield pycurl.NOPROXY, ""
    yield pycurl.PATH_AS_IS, 1
    yield pycurl.ACCEPT_ENCODING, ENCODINGS
    # Decoded by crawler/fetch/decoding.py: libcurl discards a body with a minor encoding error.
    yield pycurl.HTTP_CONTENT_DECODING, 0
    version = pycurl.CURL_HTTP_VERSION_2TLS if http2 else pycurl.CURL_HTTP_VERSION_1_1
    yield pycurl.HTTP_VERSION, version
    yield pycurl.BUFFERSIZE, 64 * 1024
    yield from bind_options(crawler.settings.get("DOWNLOAD_BIND_ADDRESS"))
    if crawler.settings.getbool("DOWNLOAD_VERIFY_CERTIFICATES"):
        yield from _trust()
    else:
        yield pycurl.SSL_VERIFYPEER, 0
        yield pycurl.SSL_VERIFYHOST, 0


def _trust() -> Iterator[tuple[int, str]]:
    """CA certificates; libcurl's built-in path is for another Linux distribution."""
    named = os.environ.get("SSL_CERT_FILE")
    system = ssl.get_default_verify_paths()
    if named:
        yield pycurl.CAINFO, named
    elif find_spec("certifi"):
        import certifi

        yield pycurl.CAINFO, certifi.where()
    elif system.cafile:
        yield pycurl.CAINFO, system.cafile
    elif system.capath:
        yield pycurl.CAPATH, system.capath


def _idle_connections() -> int:
    """At most a quarter of the file descriptors."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_IDLE_CONNECTIONS if soft < 0 else max(1, min(MAX_IDLE_CONNECTIONS, soft // 4))
