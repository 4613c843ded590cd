"""The local web that the crawl benchmarks fetch: many sites on loopback addresses, answers rendered beforehand.

A server in a process of its own that does as little per request as Python can: one look-up, one write. It counts
who was asked for what, so a benchmark can check that a crawler did the work it is measured by. Two shapes: `Pages`,
sites of ordinary pages, and `Tree`, one site without end whose pages are made when they are asked for. The farm of
the tests (tests/farm) misbehaves and keeps a log; this one does neither, and costs a tenth.

`Web` starts the server and ends it; it also ends by itself when its parent does. RuntimeError where it does not
come up.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from benchmarks.meters import cpu_seconds, on_core  # noqa: E402
from tests.farm.plan import address  # noqa: E402
from tests.farm.server import listen  # noqa: E402

# --- what is served -----------------------------------------------------------------------------------------

FOLDER_PAGES = 20
# What a page has of its own: head, links, titles. The rest is text that all pages share.
OWN_BYTES = 5_600
WORDS = [
    "tide",
    "harbour",
    "lantern",
    "gravel",
    "orchard",
    "copper",
    "window",
    "thistle",
    "ferry",
    "marble",
    "cinder",
    "willow",
    "anchor",
    "meadow",
]
ROBOTS = b"User-agent: *\nDisallow: /private/\n"
HEAD = (
    "HTTP/1.1 200 OK\r\nServer: bench\r\nDate: Wed, 18 Nov 2026 12:00:00 GMT\r\nContent-Type: {kind}\r\n"
    'Content-Length: {length}\r\nLast-Modified: Sun, 01 Nov 2026 12:00:00 GMT\r\nETag: "{tag}"\r\n\r\n'
)
MISSING = b"HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\nContent-Length: 0\r\n\r\n"
HTML = "text/html; charset=utf-8"
END = b"</body>\n</html>\n"


@dataclass(frozen=True)
class Pages:
    """Sites of `fewest` to `most` pages, and `variants` more that differ in their query only.

    A page has 60 links, about 50 of them different, one in five to a host that nobody crawls. `reach` is how many
    other pages a page's links lead to: with few, a page of a large site is like one of a tiny site.
    """

    sites: int = 100
    fewest: int = 100
    most: int = 100
    variants: int = 20
    size: int = 26_000
    reach: int = 40

    def pages(self, site: int) -> int:
        """Pages of the site of that number, variants left out."""
        return self.fewest + site % (self.most - self.fewest + 1)

    def paths(self, site: int) -> list[str]:
        """Canonical paths of everything that a right crawl of the site fetches."""
        pages = [path(number) for number in range(self.pages(site))]
        return pages + [variant(number) for number in range(self.variants)]


@dataclass(frozen=True)
class Tree:
    """One site of `urls` pages: page n has links to the `fan` pages from n * fan + 1 on, and to its parent."""

    urls: int
    fan: int = 250
    sites: int = 1


Shape = Pages | Tree


def path(number: int) -> str:
    """The path of an ordinary page; 0 is the root."""
    if number == 0:
        return "/"
    folder = WORDS[number // FOLDER_PAGES % len(WORDS)]
    return f"/{folder}/{WORDS[number % len(WORDS)]}-{WORDS[number * 5 % len(WORDS)]}-{number}.html"


def variant(number: int) -> str:
    """The canonical path of a page that is told by its query."""
    return f"/list?page={number}&sort=date"


def tree_path(number: int) -> str:
    """The path of a page of a Tree; 0 is the root."""
    return f"/goods/section-{number % 977}/article-{number}.html" if number else "/"


def links(shape: Pages, pages: int, number: int) -> list[str]:
    """The 60 hrefs of a page; {origin} and {tag} stand for what differs from site to site."""

    def near(step: int) -> str:
        return path((number + 1 + step % shape.reach) % pages)

    own = path(number) if number < pages else variant(number - pages)
    header = [path(step % min(shape.reach, pages)) for step in range(14)]
    footer = header[:8]
    body = [near(step) for step in range(10)]
    absolute = ["{origin}" + near(step) for step in range(16, 20)]
    fragments = [f"{near(step)}#part-{step}" for step in range(20, 23)]
    relative = [_relative(own, near(step)) for step in range(10, 16)]
    queries = [_query(shape, number * 3 + step) or near(step) for step in range(3)]
    social = [f"https://social{step}.example/site-{{tag}}" for step in range(4)]
    outside = [
        f"https://www.outside{(number * 8 + step) % 977}.example/{{tag}}/{WORDS[step]}-{number}.html"
        for step in range(8)
    ]
    return header + body + relative + absolute + fragments + queries + outside + social + footer


def _relative(own: str, target: str) -> str:
    """The link from one path to another that is not written from the root."""
    folder = own[: own.rindex("/") + 1]
    if target.startswith(folder):
        return target.removeprefix(folder) or "./"
    return f"..{target}"


def _query(shape: Pages, number: int) -> str:
    if not shape.variants:
        return ""
    number %= shape.variants
    # One in three is spelt otherwise than it is canonical.
    return variant(number) if number % 3 else f"/list?sort=date&page={number}"


def filler(size: int) -> str:
    """Paragraphs of about `size` bytes, the same on every page."""
    paragraphs = []
    for number in range(10_000):
        if size <= 0:
            break
        words = [WORDS[(number * 7 + place * place) % len(WORDS)] for place in range(44)]
        first, second = " ".join(words[:20]), " ".join(words[20:])
        text = f"<p class='text' id='p{number}'>{first} <em>{WORDS[number % len(WORDS)]}</em> {second}.</p>\n"
        paragraphs.append(text)
        size -= len(text)
    return "".join(paragraphs)


def document(title: str, hrefs: list[str]) -> str:
    """An ordinary page with these links, up to its END."""
    anchors = [
        f'<li><a class="item" href="{href}">{WORDS[place % 14]} {place}</a></li>'
        for place, href in enumerate(hrefs)
    ]
    lists = "\n".join(
        f"<ul class='menu'>\n{chr(10).join(anchors[start : start + 10])}\n</ul>\n<p>{title}</p>"
        for start in range(0, len(anchors), 10)
    )
    return (
        f"<!doctype html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n<title>{title}</title>\n"
        f"<meta name='description' content='What {title} is about'>\n"
        "<link rel='stylesheet' href='/style.css'>\n<script src='/script.js'></script>\n</head>\n<body>\n"
        f"{lists}\n"
    )


# --- the server ---------------------------------------------------------------------------------------------


class Entry:
    """One answer: the pieces it is written in, and how often it was given."""

    __slots__ = ("hits", "pieces")

    def __init__(self, pieces: tuple[bytes, ...]) -> None:
        self.pieces = pieces
        self.hits = 0


class Site:
    """One address's answers by request target."""

    def __init__(self, entries: dict[bytes, Entry]) -> None:
        self.entries = entries

    def answer(self, target: bytes) -> tuple[bytes, ...]:
        """The pieces of the answer to this target, which is counted."""
        entry = self.entries.get(target)
        if entry is None:
            return (MISSING,)
        entry.hits += 1
        return entry.pieces


class TreeSite(Site):
    """Pages made when they are asked for, and forgotten but for their count."""

    def __init__(self, tree: Tree) -> None:
        super().__init__({b"/robots.txt": Entry((encode(ROBOTS, "text/plain"),))})
        self._tree = tree

    def answer(self, target: bytes) -> tuple[bytes, ...]:
        """The pieces of the answer to this target, which is counted."""
        number = self._number(target)
        if number is None:
            return super().answer(target)
        self.entries.setdefault(target, Entry(())).hits += 1
        return (encode(tree_page(self._tree, number), HTML),)

    def _number(self, target: bytes) -> int | None:
        digits = target.rpartition(b"-")[2].removesuffix(b".html")
        number = int(digits) if digits.isdigit() else 0
        return number if tree_path(number).encode() == target and number < self._tree.urls else None


def tree_page(tree: Tree, number: int) -> bytes:
    """The body of a Tree's page."""
    children = range(number * tree.fan + 1, min(tree.urls, number * tree.fan + 1 + tree.fan))
    hrefs = [tree_path((number - 1) // tree.fan if number else 0), *map(tree_path, children)]
    return document(f"Article {number}", hrefs).encode() + END


def encode(body: bytes, kind: str) -> bytes:
    """A whole answer."""
    return HEAD.format(kind=kind, length=len(body), tag=len(body)).encode() + body


def render(shape: Pages, port: int) -> Iterator[tuple[str, Site]]:
    """Every site by its address. What is the same on all pages is one object, so that the web stays small."""
    templates: dict[tuple[int, int], str] = {}
    tail = filler(shape.size - OWN_BYTES).encode()
    robots = encode(ROBOTS, "text/plain")
    for site in range(shape.sites):
        pages = shape.pages(site)
        entries = {b"/robots.txt": Entry((robots,))}
        for number, target in enumerate(shape.paths(site)):
            key = (pages, number)
            template = templates.get(key)
            if template is None:
                template = templates[key] = document(
                    f"Page {number} of {{origin}}", links(shape, pages, number)
                )
            entry = Entry(_answer(template, tail, f"http://{address(site)}:{port}", f"s{site}"))
            entries[target.encode()] = entry
            if number >= pages:
                entries[f"/list?sort=date&page={number - pages}".encode()] = entry
        yield address(site), Site(entries)


def _answer(template: str, tail: bytes, origin: str, tag: str) -> tuple[bytes, ...]:
    start = template.replace("{origin}", origin).replace("{tag}", tag).encode()
    length = len(start) + len(tail) + len(END)
    head = HEAD.format(kind=HTML, length=length, tag=f"{tag}-{length}").encode()
    return head + start, tail, END


class Tally:
    """What was asked, over all connections."""

    def __init__(self, sites: dict[str, Site]) -> None:
        self.sites = sites
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.requests, self.first, self.last = 0, 0.0, 0.0
        for site in self.sites.values():
            for entry in site.entries.values():
                entry.hits = 0

    def count(self) -> dict[str, Any]:
        """How many requests, when the first and the last came (monotonic seconds), and this process's CPU."""
        return {"requests": self.requests, "first": self.first, "last": self.last, "cpu": cpu_seconds()}

    def hits(self) -> dict[str, dict[str, int]]:
        """Requests by address and target; a page with two spellings counts under its first."""
        told: dict[str, dict[str, int]] = {}
        for place, site in self.sites.items():
            seen: dict[int, str] = {}
            for target, entry in site.entries.items():
                if entry.hits and id(entry) not in seen:
                    seen[id(entry)] = target.decode("latin-1")
                    told.setdefault(place, {})[target.decode("latin-1")] = entry.hits
        return told


class Line(asyncio.Protocol):
    """One connection."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._rest = b""

    def connection_made(self, transport: Any) -> None:
        """Which site it is for is told by the address that was connected to."""
        self._transport = transport
        self._site = self._tally.sites[transport.get_extra_info("sockname")[0]]

    def data_received(self, data: bytes) -> None:
        """Answer every whole request; none has a body."""
        data = self._rest + data
        while (end := data.find(b"\r\n\r\n")) >= 0:
            self._answer(data[data.find(b" ") + 1 : data.find(b" HTTP/1")])
            data = data[end + 4 :]
        self._rest = data

    def _answer(self, target: bytes) -> None:
        tally = self._tally
        tally.last = time.monotonic()
        if not tally.requests:
            tally.first = tally.last
        tally.requests += 1
        self._transport.writelines(self._site.answer(target))


async def serve(shape: Shape) -> None:
    """Serve until standard input ends; each of its lines is a word of Tally's, answered by a line of JSON."""
    loop = asyncio.get_running_loop()
    sockets = listen([address(site) for site in range(shape.sites)], 0)
    port = sockets[0].getsockname()[1]
    sites: dict[str, Site]
    sites = dict(render(shape, port)) if isinstance(shape, Pages) else {address(0): TreeSite(shape)}
    tally = Tally(sites)
    servers = [await loop.create_server(lambda: Line(tally), sock=sock, backlog=1024) for sock in sockets]
    print(json.dumps(port), flush=True)
    words = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(words), sys.stdin)
    while word := (await words.readline()).decode().strip():
        print(
            json.dumps({"clear": tally.clear, "count": tally.count, "hits": tally.hits}[word]()), flush=True
        )
    for server in servers:
        server.close()


# --- its handle ---------------------------------------------------------------------------------------------


class Count(NamedTuple):
    """What a web was asked so far; times are seconds of the machine's monotonic clock, 0: nothing was asked."""

    requests: int
    first: float
    last: float
    cpu: float


class Web:
    """A running web; a context manager. `core`: the processor it is kept on, None: any."""

    def __init__(self, shape: Shape, core: int | None = None) -> None:
        self.shape = shape
        self._core = core

    def __enter__(self) -> Self:
        command = [sys.executable, __file__, type(self.shape).__name__, json.dumps(asdict(self.shape))]
        with on_core(self._core):
            self._process = subprocess.Popen(
                # A group of its own: Ctrl-C is the parent's to hear, who then closes our input.
                command,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                process_group=0,
            )
        self.port = int(self._read())
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

    def seeds(self, sites: int | None = None) -> list[str]:
        """Roots of the first `sites` sites; None: of all."""
        return [f"{self.origin(site)}/" for site in range(self.shape.sites if sites is None else sites)]

    def declared(self, sites: int | None = None) -> set[str]:
        """What a right crawl of the first `sites` sites fetches, robots.txt aside."""
        assert isinstance(self.shape, Pages), "a Tree has no end worth listing"
        many = self.shape.sites if sites is None else sites
        return {self.origin(site) + path for site in range(many) for path in self.shape.paths(site)}

    def clear(self) -> None:
        """Forget what was asked."""
        self._ask("clear")

    def count(self) -> Count:
        """Cheap: may be asked while it serves."""
        return Count(**self._ask("count"))

    def hits(self) -> dict[str, int]:
        """How often each URL was asked for, robots.txt aside."""
        return {
            f"http://{place}:{self.port}{target}": hits
            for place, targets in self._ask("hits").items()
            for target, hits in targets.items()
            if target != "/robots.txt"
        }

    def _ask(self, word: str) -> Any:
        assert self._process.stdin
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        return json.loads(self._read())

    def _read(self) -> str:
        assert self._process.stdout
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the web has ended with code {self._process.wait()}")
        return answer


def main() -> None:
    """The server's process: shape and its numbers as JSON."""
    import uvloop

    kind, numbers = sys.argv[1:3]
    uvloop.run(serve({"Pages": Pages, "Tree": Tree}[kind](**json.loads(numbers))))


if __name__ == "__main__":
    main()
