"""What does a page cost in Scrapy's item pipelines, and what in our own chain? CPU-microseconds per page.

Both ways take the same answers through the same engine, from a handler that downloads nothing, into four steps that
do nothing; so the difference is the way's own price. Run: python benchmarks/page_pipelines.py [PAGES].
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from scrapy import Request, Spider
from scrapy.crawler import AsyncCrawlerProcess
from scrapy.http import HtmlResponse, Response

PAGES = 5_000
# Four steps: as many as PAGE_PIPELINES has.
STEPS = 4
# Each way several times, in processes of their own and in turn; the least disturbed one counts.
ROUNDS = 3
# The last one is Scrapy's default: up to 100 items of an answer at a time.
WAYS = ("nothing", "own chain", "item pipelines", "item pipelines at 100")


class Canned:
    """A download handler whose answer is always there."""

    lazy = False

    @classmethod
    def from_crawler(cls, _crawler: Any) -> Canned:
        """Built by Scrapy."""
        return cls()

    async def download_request(self, request: Request) -> Response:
        """The same small page for any URL."""
        return HtmlResponse(request.url, body=b"<title>x</title>", request=request)

    async def close(self) -> None:
        """Nothing is open."""


class Step:
    """Does nothing, as a page pipeline and as an item pipeline."""

    def process(self, page: object) -> None:
        """A page pipeline's turn."""

    def process_item(self, item: object) -> object:
        """An item pipeline's turn."""
        return item


class Pages(Spider):
    """Asks for `pages` pages and sends each one way."""

    name = "pages"

    async def start(self) -> AsyncIterator[Request]:
        """All requests, one by one."""
        for number in range(int(self.pages)):
            yield Request(f"http://127.0.0.1/{number}", dont_filter=True)

    def parse(self, response: Response) -> Iterator[dict[str, str]] | None:
        """The way is chosen once per page, as cheaply for each."""
        if self.way.startswith("item pipelines"):
            return iter([{"url": response.url}])
        if self.way == "own chain":
            for step in self.steps:
                step.process(response)
        return None


def measure(way: str, pages: int) -> float:
    """CPU-microseconds per page, in this process."""
    steps = [type(f"Step{number}", (Step,), {}) for number in range(STEPS)]
    settings = {
        "DOWNLOAD_HANDLERS": {"http": Canned},
        "ITEM_PIPELINES": {step: number for number, step in enumerate(steps)},
        "CONCURRENT_ITEMS": 100 if way.endswith("100") else 1,
        "TELNETCONSOLE_ENABLED": False,
        "REMOTE_CONTROL_ENABLED": False,
        "LOG_LEVEL": "ERROR",
        "ASYNCIO_EVENT_LOOP": "uvloop.Loop",
    }
    process = AsyncCrawlerProcess(settings)
    process.crawl(Pages, way=way, pages=pages, steps=[step() for step in steps])
    before = time.process_time()
    process.start()
    return (time.process_time() - before) / pages * 1e6


def main() -> int:
    """All ways, each in processes of its own."""
    if "--way" in sys.argv:
        print(json.dumps(measure(sys.argv[-1], int(sys.argv[-2]))))
        return 0
    pages = int(sys.argv[1]) if len(sys.argv) > 1 else PAGES
    best: dict[str, float] = {}
    for way in WAYS * ROUNDS:
        command = [sys.executable, __file__, "--way", str(pages), way]
        cost = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        best[way] = min(cost, best.get(way, cost))
    for way in WAYS:
        print(f"{way:<21} {best[way]:7.0f} us   {best[way] - best['nothing']:+7.0f} us")
    return 0


if __name__ == "__main__":
    sys.exit(main())
