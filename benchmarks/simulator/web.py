"""An instance of the simulator as a web that can be crawled: each site answers at the pace of its hour's load.

A server in a process of its own, one loopback address a site. A page takes its site as long as the simulator says that
a slot works on it, also where it begins in one hour and ends in the next. What the crawler itself takes between two
pages is left out of that, for it is nothing beside a real hour. robots.txt comes at once. The first page of a site
lists all others. Hours are those of the machine's clock, which the crawl's server has too.

`PacedWeb` starts the server and ends it; it also ends by itself when its parent does. RuntimeError where it does not
come up.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from tests.farm.plan import address  # noqa: E402
from tests.farm.server import listen  # noqa: E402

HOURS = 24
# Of what a crawler takes between two pages of a site, so many seconds are no business of the site's.
TURNAROUND_SECONDS = 0.1
HEAD = "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n"
MISSING = b"HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\nContent-Length: 0\r\n\r\n"
ROBOTS = "/robots.txt"


@dataclass(frozen=True)
class Paced:
    """What is served: how many pages each site has, and its pace in each hour of the instance, in pages an hour."""

    pages: list[int]
    pace: list[list[float]]
    hour_seconds: float


class Hit(NamedTuple):
    """One answered request. Seconds since 1970; `late`: for so many its site had nothing to do, but to be asked."""

    site: int
    path: str
    asked: float
    answered: float
    late: float = 0.0


def finished_at(pace: Sequence[float], hour_seconds: float, first_hour: int, begun: float) -> float:
    """When the page is done that a site begins with at a moment; `pace` counts from `first_hour`."""
    left, hour = 1.0, int(begun // hour_seconds)
    while True:
        a_second = pace[(hour - first_hour) % HOURS] / hour_seconds
        end = (hour + 1) * hour_seconds
        if left <= (end - begun) * a_second:
            return begun + left / a_second
        left -= max(0.0, end - begun) * a_second
        begun, hour = end, hour + 1


# --- the server ---------------------------------------------------------------------------------------------


class Site:
    """One site's pages, and when it is done with them."""

    def __init__(self, number: int, shape: Paced) -> None:
        self.number = number
        self._shape = shape
        self._pace = shape.pace[number]
        self._done_at = 0.0  # with the last page, by its pace

    def begin(self) -> None:
        """Somebody comes who was not here a moment ago."""
        self._done_at = 0.0

    def done_at(self, asked: float, first_hour: int) -> tuple[float, float]:
        """When the page is done that is asked for at that moment; for how long the site had to wait for it."""
        free = self._done_at or asked
        begun = max(free, asked - TURNAROUND_SECONDS)
        self._done_at = finished_at(self._pace, self._shape.hour_seconds, first_hour, begun)
        return self._done_at, begun - free

    def body(self, path: str) -> bytes | None:
        """The answer; None: there is no such page."""
        if path == ROBOTS:
            return _encoded("User-agent: *\nAllow: /\n", "text/plain")
        place = path.removeprefix("/")
        number = int(place) if place.isdigit() else 0
        many = self._shape.pages[self.number]
        if path != page_path(number) or number >= many:
            return None
        links = range(1, many) if number == 0 else (0,)
        anchors = " ".join(f"<a href='{page_path(one)}'>{one}</a>" for one in links)
        title = f"Page {number} of site {self.number}"
        return _encoded(f"<title>{title}</title><p>{title}</p>{anchors}", "text/html")


def page_path(number: int) -> str:
    """The path of a page; 0 is the first one."""
    return f"/{number}" if number else "/"


def _encoded(text: str, kind: str) -> bytes:
    return (HEAD.format(kind=kind, length=len(text)) + text).encode()


class Hall:
    """All sites by address, their clock and their log."""

    def __init__(self, shape: Paced) -> None:
        self.sites = {address(number): Site(number, shape) for number in range(len(shape.pages))}
        self.first_hour = 0
        self.log: list[Hit] = []


class Line(asyncio.Protocol):
    """One connection, on which one request is under way at a time."""

    def __init__(self, hall: Hall) -> None:
        self._hall = hall
        self._rest = b""

    def connection_made(self, transport: Any) -> None:
        """Which site it is for is told by the address that was connected to."""
        self._transport = transport
        self._site = self._hall.sites[transport.get_extra_info("sockname")[0]]

    def data_received(self, data: bytes) -> None:
        """Answer every whole request, each in its time; none has a body."""
        data = self._rest + data
        while (end := data.find(b"\r\n\r\n")) >= 0:
            self._asked(data[data.find(b" ") + 1 : data.find(b" HTTP/1")].decode("latin-1"))
            data = data[end + 4 :]
        self._rest = data

    def _asked(self, path: str) -> None:
        asked, body = time.time(), self._site.body(path)
        if path == ROBOTS:
            self._site.begin()
        if body is None or path == ROBOTS:
            self._answer(path, asked, 0.0, body or MISSING)
            return
        done_at, late = self._site.done_at(asked, self._hall.first_hour)
        seconds = max(0.0, done_at - time.time())
        asyncio.get_running_loop().call_later(seconds, self._answer, path, asked, late, body)

    def _answer(self, path: str, asked: float, late: float, body: bytes) -> None:
        self._hall.log.append(Hit(self._site.number, path, asked, time.time(), late))
        if not self._transport.is_closing():
            self._transport.write(body)


async def serve(shape: Paced) -> None:
    """Serve until standard input ends; `hours N` sets the hour that the instance begins with, `log` tells the hits."""
    loop = asyncio.get_running_loop()
    hall = Hall(shape)
    sockets = listen(list(hall.sites), 0)
    servers = [await loop.create_server(lambda: Line(hall), sock=sock, backlog=64) for sock in sockets]
    print(json.dumps(sockets[0].getsockname()[1]), flush=True)
    words = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(words), sys.stdin)
    while word := (await words.readline()).decode().split():
        if word[0] == "hours":
            hall.first_hour = int(word[1])
        print(json.dumps(hall.log if word[0] == "log" else None), flush=True)
    for server in servers:
        server.close()


# --- its handle ---------------------------------------------------------------------------------------------


class PacedWeb:
    """A running web; a context manager."""

    def __init__(self, shape: Paced) -> None:
        self.shape = shape

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            # A group of its own: Ctrl-C is the parent's to hear, who then closes our input.
            [sys.executable, __file__],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        self.port = int(self._ask(json.dumps(asdict(self.shape))))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    @property
    def pid(self) -> int:
        """Of the server's process."""
        return self._process.pid

    def origin(self, site: int) -> str:
        """Scheme, host and port of a site."""
        return f"http://{address(site)}:{self.port}"

    def seeds(self) -> list[str]:
        """Roots of all sites."""
        return [f"{self.origin(site)}/" for site in range(len(self.shape.pages))]

    def declared(self) -> Counter[tuple[int, str]]:
        """What a right crawl fetches, robots.txt aside: each page of each site once."""
        return Counter(
            (site, page_path(n)) for site, many in enumerate(self.shape.pages) for n in range(many)
        )

    def begin_with(self, hour: int) -> None:
        """The instance's hours begin with this one (since 1970)."""
        self._ask(f"hours {hour}")

    def log(self) -> list[Hit]:
        """Every answer so far."""
        return [Hit(*row) for row in self._ask("log")]

    def _ask(self, line: str) -> Any:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the web has ended with code {self._process.wait()}")
        return json.loads(answer)


def main() -> None:
    """The server's process: the shape is the first line of its input."""
    import uvloop

    uvloop.run(serve(Paced(**json.loads(sys.stdin.readline()))))


if __name__ == "__main__":
    main()
