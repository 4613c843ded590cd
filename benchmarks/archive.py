"""What does it cost to keep a page? CPU-milliseconds and bytes for a page of 26 kB, by gzip level and by part.

The pages are real ones from tests/pages, joined up to that size; name a folder of HTML files for others. Run:
python benchmarks/archive.py [FOLDER].
"""

from __future__ import annotations

import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from hashlib import sha256
from itertools import cycle, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from isal import igzip_lib
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.http import HtmlResponse
from scrapy.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from crawler import records  # noqa: E402
from crawler.agent.page import LoadedPage  # noqa: E402
from crawler.archive import warc  # noqa: E402
from crawler.pipelines.archive import Archive  # noqa: E402
from crawler.spiders.site import SiteSpider  # noqa: E402

SIZE = 26_000
PAGES = 20
# The least of so many rounds counts.
ROUNDS = 7
HEAD = [
    b"HTTP/1.1 200 OK\r\n",
    b"Server: nginx\r\n",
    b"Date: Wed, 18 Nov 2026 12:00:00 GMT\r\n",
    b"Content-Type: text/html; charset=utf-8\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Content-Encoding: gzip\r\n",
    b"Last-Modified: Sun, 01 Nov 2026 12:00:00 GMT\r\n",
    b'ETag: "6a-1"\r\n',
    b"Vary: Accept-Encoding\r\n",
]


def bodies(folder: Path) -> list[bytes]:
    """Pages of that size, each of other files than the next."""
    files = [path.read_bytes() for path in sorted(folder.rglob("*.html")) if path.stat().st_size]
    made = []
    for number in range(PAGES):
        joined = b""
        for file in islice(cycle(files), number * 3, None):
            joined += file
            if len(joined) >= SIZE:
                break
        made.append(joined[:SIZE])
    return made


def milliseconds(work: Callable[[int], object]) -> float:
    """CPU time of one call, each with the number of a page."""
    least = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        for number in range(PAGES):
            work(number)
        least = min(least, time.process_time() - began)
    return least / PAGES * 1000


def by_level(pages: list[bytes]) -> None:
    """A line for each way to compress."""
    ways: dict[str, Callable[[bytes], bytes]] = {
        f"isal {level}": lambda page, level=level: igzip_lib.compress(page, level, igzip_lib.COMP_GZIP)  # type: ignore[misc]
        for level in range(4)
    }
    ways |= {f"zlib {level}": lambda page, level=level: zlib.compress(page, level) for level in (1, 6)}  # type: ignore[misc]
    for name, way in ways.items():
        kept = sum(len(way(page)) for page in pages) / PAGES
        cost = milliseconds(lambda number, way=way: way(pages[number]))  # type: ignore[misc]
        print(f"{name:<8} {cost:.3f} ms   {kept:7,.0f} bytes   {kept / SIZE:.3f}")


def by_part(pages: list[bytes], folder: str) -> None:
    """The whole step, and what its largest parts take of it."""
    step = Archive.from_crawler(crawler(folder))
    loaded = [page(number, body) for number, body in enumerate(pages)]
    whole = milliseconds(lambda number: step.process(loaded[number]))
    packed = milliseconds(lambda number: warc.member(pages[number]))
    hashed = milliseconds(lambda number: sha256(pages[number]).digest())
    print(f"the step {whole:.3f} ms, of which compressing {packed:.3f}, one SHA-256 {hashed:.3f}")
    began = time.process_time()
    step.flush()
    print(f"flush    {(time.process_time() - began) / PAGES / ROUNDS * 1000:.3f} ms a page")
    step.close()
    size = sum(path.stat().st_size for path in Path(folder, "archive").iterdir())
    print(f"on the disk {size / PAGES / ROUNDS:,.0f} bytes a page, request and index with it")


def crawler(folder: str) -> Crawler:
    """One that is not run."""
    settings = Settings()
    settings.setmodule("settings.local")
    settings.set("VAR_DIR", folder, priority="cmdline")
    return Crawler(SiteSpider, settings)


def page(number: int, body: bytes) -> LoadedPage:
    """A page as it comes from the download, checksum filled."""
    site, path = "http://a.example", f"/page-{number}.html"
    fields = {b"Accept": b"text/html,*/*;q=0.8", b"Accept-Language": b"en", b"User-Agent": b"bench"}
    request = Request(site + path, headers=fields, meta={"raw_head": HEAD})
    record = records.Page(
        site=site,
        path=path,
        fetched_at=1_794_999_000_000 + number,
        outcome="stored",
        status=200,
        content_type="text/html; charset=utf-8",
        sha256=sha256(body).hexdigest(),
        address="127.0.0.1",
        latency_ms=12,
        wire_size=6_000,
    )
    agent = SimpleNamespace(session=SimpleNamespace(author=SimpleNamespace(name="bench", run="1")))
    response = HtmlResponse(site + path, body=body, request=request, protocol="HTTP/1.1")
    nothing = cast("Any", None)
    return LoadedPage(cast("Any", agent), nothing, nothing, response, record)


def main() -> None:
    """Both."""
    pages = bodies(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "tests" / "pages")
    by_level(pages)
    with tempfile.TemporaryDirectory() as folder:
        by_part(pages, folder)


if __name__ == "__main__":
    main()
