"""`python -m tests.fuzz`: feeds broken input to every parser that meets strangers' bytes, for as long as it is told.

Each target has seeds (good input, and what was once found) and a function that takes bytes; whatever it raises that it
does not promise is a finding, and so is input that takes too long. A finding tells how to repeat it: an attempt is made
of the run's number and its own alone. Exit code 1: something was found.
"""

from __future__ import annotations

import argparse
import gzip
import io
import os
import random
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC
from functools import cache
from pathlib import Path
from typing import NamedTuple

import brotli
import numpy as np

from crawler import records
from crawler.agent import responses
from crawler.agent.frontier import CheckpointError, Frontier, encode
from crawler.archive import reader, warc
from crawler.content import charset, sitemaps, text
from crawler.content import html as links
from crawler.content.keywords import headings, keywords
from crawler.content.language import language
from crawler.content.text import media_of
from crawler.fetch import decoding
from crawler.planning import load
from crawler.printable import printable
from crawler.robots import policy
from crawler.status import packets
from crawler.urls import seeds
from crawler.urls.url import UrlError, split_page
from tests.archiving import exchange

PAGES = Path(__file__).parent / "pages"
SITE = "http://example.org"
# Longest input that is made: enough for work that grows with the square of it to be seen.
MOST_BYTES = 60_000
# Seconds of this process for one input, on a slow machine.
SLOW_SECONDS = 1.0
NOW = 1_795_003_200_000


class Target(NamedTuple):
    """A parser: what it is fed with at first, pieces that mean something to it, and what it may raise."""

    feed: Callable[[bytes], object]
    seeds: Callable[[], list[bytes]]
    words: tuple[bytes, ...] = ()
    foreseen: tuple[type[Exception], ...] = ()


@dataclass(frozen=True)
class Finding:
    """An input that did harm."""

    target: str
    run: int
    attempt: int
    what: str
    data: bytes

    def __str__(self) -> str:
        repeat = f"python -m tests.fuzz {self.target} --run {self.run} --attempt {self.attempt}"
        return f"{self.target}: {self.what}\n  input ({len(self.data)} bytes): {self.data[:200]!r}\n  repeat: {repeat}"


# --- Targets ----------------------------------------------------------------------------------------------

TARGETS: dict[str, Target] = {}


def target(
    seeds: Callable[[], list[bytes]], words: str = "", foreseen: tuple[type[Exception], ...] = ()
) -> Callable[[Callable[[bytes], object]], Callable[[bytes], object]]:
    """Registers a function under its name; `words`: pieces, parted by blanks."""

    def register(feed: Callable[[bytes], object]) -> Callable[[bytes], object]:
        pieces = tuple(word.encode() for word in words.split())
        TARGETS[feed.__name__.strip("_")] = Target(feed, cache(seeds), pieces, foreseen)
        return feed

    return register


def _pages() -> list[bytes]:
    return [page.read_bytes() for page in sorted(PAGES.glob("*.html"))]


def _texts() -> list[bytes]:
    words = "대한민국 日本語のページ 中国是世界 Привет café"
    return [
        words.encode(name, "ignore") for name in ("utf-8", "cp949", "euc_jp", "gb18030", "utf-16", "cp1251")
    ]


@target(
    lambda: [
        b"User-agent: *\nDisallow: /a*b$\nAllow: /\nCrawl-delay: 1.5\nVisit-time: 0100-0800\nSitemap: /s",
        b"\xef\xbb\xbfUser-Agent: lowtide/1\r\nDisallow: /%ed%95%9c?q=\xc7\xd1#x\rRequest-rate: 1/10m",
    ],
    "User-agent: Disallow: Allow: * $ / %2A %24 %zz ? & = # <br> \\n lowtide \xff\xfe",
)
def robots_file(data: bytes) -> None:
    rules = policy.rules(200, data, SITE, "lowtide", 50_000)
    for path in ("/", "/a/b?c=d&e=", "/%ED%95%9C$", "/" + "a" * 500):
        rules.allows(SITE + path, "lowtide")


@target(
    lambda: [*_pages(), *(b"<title>" + words + b"</title><a href='" + words + b"'>" for words in _texts())],
    "<a href= <base href= <meta charset= http-equiv=refresh content=0;url= <link rel=canonical href= <!-- --> <script> "
    "<p> </a> &#x &amp; \" ' > http:// "
    "../ euc-kr iso-2022-jp utf-16 \x1b$B",
)
def html(data: bytes) -> None:
    page = links.parsed(data, lambda: charset.encoding_of(data, "text/html"), MOST_BYTES)
    found = links.links(page.root, f"{SITE}/a/b", SITE, 5_000, 2_083)
    links.robots_directives(page.root, "noindex", "lowtide")
    links.named_canonical(page.root, "", f"{SITE}/a/b", 2_083)
    seen = text.collapsed(text.visible(page.root))
    text.content_hash(seen)
    language(seen)
    if page.root is not None:
        media_of(page.root, found)
        keywords("", headings(page.root), seen, "", 10)


@target(lambda: [*_texts(), *_pages()], "charset= <meta utf-8 euc-kr big5 hz \x1b$B \xff\xfe")
def encoding(data: bytes) -> None:
    header, _, body = data.partition(b"\n")
    for kind in ("", "text/html; charset=euc-kr", header[:100].decode("latin-1")):
        charset.as_utf8(body, charset.encoding_of(body, kind)).decode("utf-8", "replace")


@target(
    lambda: [
        b"http://example.org/a?b=c#d",
        "https://한글.kr/경로?질의=값".encode(),
        b"http://[::1]:80/%ED%95%9C/../x",
    ],
    "http:// https:// // / ? # % & = @ : [ ] .. \\ xn-- \u3002",
    (UrlError,),
)
def url(data: bytes) -> None:
    site, path = split_page(data.decode("utf-8", "surrogateescape"))
    again = split_page(site + path)
    assert again == (site, path), f"{site + path!r} is not canonical: {''.join(again)!r}"
    assert printable(site + path) == site + path


@target(
    lambda: [
        b"nofollow, lowtide: noindex\nunavailable_after: 1 Jan",
        b'<a>; rel="canonical", </b>; rel=x',
        b"120",
    ],
    '; , : = " < > rel= canonical lowtide: Wed, 21 Oct 2015 07:28:00 GMT',
)
def header_values(data: bytes) -> None:
    words = data.decode("latin-1")
    links.robots_directives(None, words, "lowtide")
    links.named_canonical(None, words, f"{SITE}/", 2_083)
    links.target(f"{SITE}/", words, 2_083)
    responses.seconds_asked(words)


@target(
    lambda: [
        b"http://example.org/\nexample.com\n# no seed\n",
        b'{"url": "https://example.org/a"}',
        b'{"url":' + b"[" * 50_000,
    ],
    'http:// { } "url": , # \\u0000 [',
)
def seed_lines(data: bytes) -> None:
    list(seeds.from_lines(data.decode("utf-8", "replace").split("\n")))
    seeds.from_inlet(data)


@target(
    lambda: [
        packets.join(["7", "1042", "200", "20261118120000", "url=http://a/|b"]),
        packets.join(["1"]) * 3,
    ],
    "| || \\ 00000 url= run= seq= -1 99999999999999999999",
)
def packet(data: bytes) -> None:
    for several in (True, False):
        frames = packets.Frames(4_096, several=several)
        for whole in (*frames.feed(data[:50]), *frames.feed(data[50:]), *frames.end()):
            if isinstance(whole, bytes):
                try:
                    packets.decode(whole, NOW, UTC)
                except packets.PacketError as error:
                    printable(str(error))


@target(
    lambda: [
        records.encode(
            records.Page(site=SITE, path="/", fetched_at=1, outcome="stored", status=200, title="가")
        ),
        records.pack(records.encode(records.SiteFound(site=SITE, found_at=1))),
    ],
    '{ } [ ] : , " null -1 1e999 \\ud800 "kind" "page" "site"',
    (records.RecordError,),
)
def record(data: bytes) -> None:
    for links_field in (b"", data[:8]):
        records.decode({b"v": records.VERSION, b"r": data, b"l": links_field})


def _checkpoints() -> list[bytes]:
    frontier = Frontier()
    frontier.add((f"/page{number}" for number in range(50)), 1)
    for _ in range(3):
        turn = frontier.take(0.0)
        assert turn is not None
    return [encode(frontier.everything()), encode(frontier.changes())]


@target(_checkpoints, foreseen=(CheckpointError,))
def checkpoint(data: bytes) -> None:
    with suppress(CheckpointError):
        Frontier().restore([_checkpoints()[0], data])
    Frontier().restore([data])


def _archives() -> list[bytes]:
    one = exchange("/a", b"<p>body " * 20)
    number = "<urn:uuid:00000000-0000-4000-8000-000000000001>"
    made = [warc.response(one, number, number), warc.request(one, number, number)]
    packed = b"".join(map(warc.member, made))
    return [packed, packed * 2, *made]


@target(_archives, "WARC/1.1 WARC-Type: Content-Length: \r\n \r\n\r\n response \x1f\x8b")
def archive(data: bytes) -> None:
    with tempfile.NamedTemporaryFile(suffix=".warc.gz") as file:
        file.write(data)
        file.flush()
        list(reader.captures(Path(file.name)))
    with suppress(warc.WarcError):
        warc.http_parts(warc.read(data).block)


ENCODINGS = ("gzip", "deflate", "br", "gzip, br", "gzip, gzip", "br, deflate")


def _bodies() -> list[bytes]:
    """Behind a byte that says in which encoding."""
    page = _pages()[0][:5_000]
    packed = [
        gzip.compress(page),
        zlib.compress(page),
        brotli.compress(page),
        brotli.compress(gzip.compress(page)),
    ]
    return [
        *(bytes([number]) + one for number, one in enumerate(packed)),
        b"\0" + packed[0] + packed[0] + b"\n",
        b"\0" + b"\x1f\x8b\x08\x1e" + bytes(6) + b"\3\0abcname\0comment\0\1\2" + packed[0][10:],
        b"\1" + zlib.compress(page, wbits=-15),
        b"\4" + gzip.compress(packed[0]),
    ]


@target(_bodies, "\x1f\x8b\x08 \x78\x9c \x1b\x00")
def body(data: bytes) -> None:
    encodings = ENCODINGS[data[0] % len(ENCODINGS)] if data else ""
    found = decoding.decoded(data[1:], encodings, MOST_BYTES)
    assert found.as_it_came or len(found.body) <= MOST_BYTES + 1


def _sitemaps() -> list[bytes]:
    urls = b"<url><loc>http://example.org/a?b=c&amp;d</loc><lastmod>2026-11-19T10:00:00+09:00</lastmod></url>"
    whole = b'<?xml version="1.0"?><urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">%s</urlset>'
    feeds = (
        b"<rss><channel><item><link>/a</link><pubDate>Wed, 21 Oct 2015 07:28:00 GMT</pubDate></item></channel></rss>",
        b'<feed xmlns="http://www.w3.org/2005/Atom"><entry><link href="/b"/><updated>2026-01</updated></entry></feed>',
    )
    index = b"<sitemapindex><sitemap><loc>/a.xml.gz</loc></sitemap></sitemapindex>"
    return [
        whole % (urls * 3),
        gzip.compress(whole % urls),
        index,
        *feeds,
        b"http://example.org/a\nhttp://b/\n",
    ]


@target(
    _sitemaps,
    "<urlset> <url> </url> <loc> </loc> <lastmod> <sitemap> <entry> <item> <link href= <!DOCTYPE [ <!ENTITY &a; ]> "
    "<![CDATA[ ]]> xmlns= 9999-99-99T99:99:99+99:99 -0001-01-01 \x1f\x8b http:// <?xml encoding='utf-16'?>",
)
def sitemap(data: bytes) -> None:
    sitemaps.may_be(data)
    for is_list in (True, False):
        found = sitemaps.read(data, MOST_BYTES, is_list=is_list)
        if found is not None:
            sitemaps.told(found.pages)
            links.places([entry.url for entry in found.pages] + found.maps, f"{SITE}/s.xml", SITE, 2_083)
    links.places(sitemaps.named(data), f"{SITE}/robots.txt", SITE, 2_083)


def _tables() -> list[bytes]:
    table = io.StringIO()
    load.write_csv(table, [(site, np.linspace(0.0, 1.0, 48)) for site in (SITE, "https://b.example:81")])
    return [table.getvalue().encode(), b"\xef\xbb\xbf" + table.getvalue().replace("\n", "\r\n").encode()]


@target(_tables, 'site, day, weekday all " , NaN inf -1 http:// 23', (load.LoadFileError,))
def load_table(data: bytes) -> None:
    load.read_csv(data.decode("utf-8-sig", "replace").splitlines(keepends=True))


# --- Attempts ---------------------------------------------------------------------------------------------


def made(one: Target, rng: random.Random) -> bytes:
    """A seed of the target, changed in a few places."""
    given = one.seeds()
    data = bytearray(rng.choice(given)[:MOST_BYTES])
    for _ in range(rng.choice((0, 1, 1, 2, 3, 5, 10, 30))):
        _change(data, one, given, rng)
    return bytes(data[:MOST_BYTES])


def _change(data: bytearray, one: Target, given: list[bytes], rng: random.Random) -> None:
    start = rng.randrange(len(data) + 1)
    end = min(len(data), start + rng.choice((1, 2, 4, 16, 200)))
    way = rng.randrange(6)
    if way == 0:
        data[start:end] = rng.randbytes(end - start)
    elif way == 1:
        del data[start:end]
    elif way == 2:
        data[start:start] = rng.choice(one.words or (b"\0",))
    elif way == 3:
        other = rng.choice(given)
        data[start:end] = other[rng.randrange(len(other) + 1) :][: rng.choice((4, 50, 500))]
    elif way == 4 and data[start:end]:
        # What takes a time that grows with the square of its input shows only where there is much of it.
        piece = bytes(data[start:end]) if rng.random() < 0.5 else rng.choice(one.words or (b"(",))
        data[start:start] = piece * (rng.choice((3, 100, MOST_BYTES)) // len(piece) + 1)
    elif data[start:end]:
        data[start] ^= 1 << rng.randrange(8)


def attempt(name: str, run: int, number: int) -> Finding | None:
    """One input; None: it did no harm."""
    one = TARGETS[name]
    data = made(one, random.Random(f"{name} {run} {number}"))
    start = time.process_time()
    try:
        one.feed(data)
    except one.foreseen:
        pass
    except Exception:
        return Finding(name, run, number, traceback.format_exc().strip(), data)
    seconds = time.process_time() - start
    if seconds > SLOW_SECONDS:
        return Finding(name, run, number, f"took {seconds:.1f} s; expected {SLOW_SECONDS:g} s at most", data)
    return None


def fuzz(name: str, seconds: float, run: int) -> tuple[int, Finding | None]:
    """Attempts until the time is over or something is found; how many there were."""
    deadline, number = time.monotonic() + seconds, 0
    while time.monotonic() < deadline:
        if found := attempt(name, run, number):
            return number + 1, found
        number += 1
    return number, None


def _all(names: list[str], seconds: float, run: int) -> Iterator[Finding]:
    for name in names:
        many, found = fuzz(name, seconds, run)
        print(f"{name:<14} {many:>9,} inputs, {'1 finding' if found else 'nothing found'}", flush=True)
        if found:
            yield found


def main(arguments: list[str] | None = None) -> int:
    """Parses, feeds, tells; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description="Broken input for every parser."
    )
    parser.add_argument(
        "names", nargs="*", metavar="TARGET", help=f"some of {', '.join(TARGETS)}; default: all"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target")
    parser.add_argument(
        "--run", type=int, help="number that all input is made of; default: another one each time"
    )
    parser.add_argument("--attempt", type=int, help="this one input of the run alone")
    options = parser.parse_args(arguments)
    names = options.names or list(TARGETS)
    if unknown := set(names) - set(TARGETS):
        parser.error(f"{', '.join(sorted(unknown))} is no target; expected some of {', '.join(TARGETS)}")
    run = int.from_bytes(os.urandom(4)) if options.run is None else options.run
    if options.attempt is not None:
        found = [one for name in names if (one := attempt(name, run, options.attempt))]
    else:
        print(f"run {run}: {len(names)} targets, {options.seconds:g} s each")
        found = list(_all(names, options.seconds, run))
    for one in found:
        print(f"\n{one}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
