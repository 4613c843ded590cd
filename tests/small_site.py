"""A site of a few pages that answers as a test says: routes in, a log of what it was asked out.

It is served from a thread of its own on loopback and a free port, so that a test may wait for processes meanwhile,
and is gone when its `with` ends. A path without a route gets that of `*`, or 404; so robots.txt is missing unless a
test gives one. A route of `//NAME/path` is for requests to that name alone. For whole webs with a truth of their own
there is tests/farm.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple, Self

from tests.raw_server import Exchange, RawServer, page

if TYPE_CHECKING:
    import ssl

NO_FIELDS: Mapping[str, str] = {}


class Reply(NamedTuple):
    """What comes for a path; `seconds` pass before it is sent."""

    status: int = 200
    fields: Mapping[str, str] = NO_FIELDS
    body: str = ""
    seconds: float = 0.0
    packed: bytes = b""  # the body, where it is no text
    raw: bytes = b""  # all of the answer instead; the connection is closed behind it
    wall: tuple[str, Reply] | None = None  # a cookie, and what comes instead for a request without it

    @property
    def encoded(self) -> bytes:
        if self.raw:
            return self.raw
        fields = [f"{name}: {value}".encode() for name, value in self.fields.items()]
        status = f"{self.status} {HTTPStatus(self.status).phrase}".encode()
        return page(self.packed or self.body.encode(), *fields, status=status)


# The connection is reset instead.
RESET = Reply(0)

# The reply itself, or what gives it for the number of times that the path was asked, this time included.
Route = Reply | Callable[[int], Reply]


class RecheckResult(NamedTuple):
    """One request."""

    at: float  # on the machine's monotonic clock
    path: str
    fields: dict[str, str]  # header fields, their names as they were sent
    method: str = "GET"


class SmallSite:
    """One site; `routes` and `log` may be changed and read at any time."""

    def __init__(
        self, routes: Mapping[str, Route], host: str = "127.0.1.1", tls: ssl.SSLContext | None = None
    ) -> None:
        self.host = host
        self._tls = tls
        self.routes = dict(routes)
        self.log: list[RecheckResult] = []
        self.most = 0  # requests under way at one moment
        self._under_way = 0

    def __enter__(self) -> Self:
        started: Future[int] = Future()
        self._thread = threading.Thread(target=asyncio.run, args=(self._run(started),), daemon=True)
        self._thread.start()
        self.port = started.result(10)
        self.site = f"http{'s' if self._tls else ''}://{self.host}:{self.port}"
        self.root = f"{self.site}/"
        return self

    def __exit__(self, *_error: object) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(10)

    @property
    def paths(self) -> list[str]:
        """What was asked for, in order, robots.txt included."""
        return [asked.path for asked in self.log]

    @property
    def pages(self) -> Counter[str]:
        """How often each path was asked for, robots.txt left out."""
        return Counter(path for path in self.paths if path != "/robots.txt")

    def asked_of(self, name: str) -> list[str]:
        """What was asked for under a name, in order, robots.txt left out."""
        mine = [one for one in self.log if one.fields.get("Host", "").partition(":")[0] == name]
        return [one.path for one in mine if one.path != "/robots.txt"]

    def times(self, path: str) -> list[float]:
        """When a path was asked for."""
        return [asked.at for asked in self.log if asked.path == path]

    async def _run(self, started: Future[int]) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        async with RawServer(self._serve, host=self.host, tls=self._tls) as server:
            started.set_result(server.port)
            await self._ended.wait()

    async def _serve(self, exchange: Exchange) -> None:
        while True:
            first, *lines = (await exchange.request()).decode("latin-1").split("\r\n")
            method, path = first.split()[:2]
            fields = dict(line.split(": ", 1) for line in lines if ": " in line)
            self.log.append(RecheckResult(time.monotonic(), path, fields, method))
            self._under_way += 1
            self.most = max(self.most, self._under_way)
            try:
                reply = self._reply(path, fields.get("Host", "").partition(":")[0])
                if reply.wall is not None and reply.wall[0] not in fields.get("Cookie", ""):
                    reply = reply.wall[1]
                await asyncio.sleep(reply.seconds)
            finally:
                self._under_way -= 1
            if reply.status == RESET.status:
                exchange.reset()
                return
            head, _, body = reply.encoded.partition(b"\r\n\r\n")
            await exchange.send(
                head + b"\r\n\r\n" + (b"" if method == "HEAD" or reply.status == 304 else body)
            )
            if reply.raw:
                return

    def _reply(self, path: str, name: str) -> Reply:
        places = (f"//{name}{path}", path, "*")
        route = next((self.routes[place] for place in places if place in self.routes), Reply(404))
        return route if isinstance(route, Reply) else route(len(self.times(path)))


def links(*targets: str, seconds: float = 0.0) -> Reply:
    """A page that links to these; with none a page that links to nothing."""
    body = "".join(f"<a href={target}>x</a>" for target in targets) or "<p>no links"
    return Reply(200, {"Content-Type": "text/html"}, body, seconds)


def text(body: str, seconds: float = 0.0) -> Reply:
    """Plain text, as robots.txt is."""
    return Reply(200, {"Content-Type": "text/plain"}, body, seconds)


def moved(to: str) -> Reply:
    """A redirect."""
    return Reply(301, {"Location": to})


def at_first(reply: Reply, then: Reply) -> Route:
    """One reply for the first time, another one from then on."""
    return lambda times: reply if times == 1 else then
