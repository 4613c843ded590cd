"""The other crawlers of benchmarks/throughput.py, each written as its own users would write it.

    python benchmarks/contenders.py scrapy|redis|written SEEDS_FILE RECORDS_FILE REDIS_URL

Each does what Lowtide does with a page: SHA-256, title, description, in-site links, URL dedupe, a record out; 64
requests at a time, 8 of them to one host. None reads robots.txt, publishes what it knows, or could go on after a
kill. CPU goes to METER_FILE (benchmarks/meters.py).
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, TextIO
from urllib.parse import urljoin, urlsplit

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import meters  # noqa: E402

REQUESTS, REQUESTS_PER_HOST = 64, 8


def stock(seeds: list[str], records: Path, redis_url: str) -> None:
    """Scrapy's CrawlSpider at its defaults, with scrapy-redis's scheduler and filter where a server is named."""
    from scrapy.crawler import AsyncCrawlerProcess
    from scrapy.http import Response
    from scrapy.linkextractors import LinkExtractor
    from scrapy.spiders import CrawlSpider, Rule

    class Stock(CrawlSpider):
        name = "stock"
        start_urls: ClassVar = seeds
        allowed_domains: ClassVar = [urlsplit(url).hostname for url in seeds]
        rules: ClassVar = (Rule(LinkExtractor(), callback="record", follow=True),)

        def parse_start_url(self, response: Response, **_given: Any) -> Any:
            return self.record(response)

        def record(self, response: Response) -> Iterator[dict[str, str | None]]:
            yield {
                "url": response.url,
                "sha256": sha256(response.body).hexdigest(),
                "title": response.xpath("string(//title)").get(),
                "description": response.xpath("//meta[@name='description']/@content").get(),
            }

    settings: dict[str, Any] = {
        "CONCURRENT_REQUESTS": REQUESTS,
        "CONCURRENT_REQUESTS_PER_DOMAIN": REQUESTS_PER_HOST,
        "EXTENSIONS": {"benchmarks.meters.CpuMeter": 0},
        # Scrapy's default, a line per page, would cost it a tenth more.
        "LOG_LEVEL": "WARNING",
        "TELNETCONSOLE_ENABLED": False,
        "REMOTE_CONTROL_ENABLED": False,
    }
    if redis_url:
        settings |= {
            "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
            "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
            "ITEM_PIPELINES": {"scrapy_redis.pipelines.RedisPipeline": 300},
            "REDIS_URL": redis_url,
        }
    else:
        settings["FEEDS"] = {str(records): {"format": "jsonlines"}}
    process = AsyncCrawlerProcess(settings)
    process.crawl(Stock)
    process.start()


# A path that is canonical as it stands.
PLAIN = re.compile(r"/(?!/)[\w~/-]*(?:\.[\w~-][\w~/-]*)*", re.ASCII)


class Host:
    """The hand-written crawler's view of one site: what it has seen, and what its links mean."""

    def __init__(self, start: str) -> None:
        self.root = urljoin(start, "/")
        self.seen = {self.root}
        self._meaning: dict[str, str | None] = {}  # of links that mean the same on every page

    def new(self, base: str, hrefs: Iterable[str]) -> list[str]:
        """Canonical URLs of the site that were not seen before, in order."""
        found = []
        for href in hrefs:
            url = self._canonical(base, href)
            if url is not None and url not in self.seen:
                self.seen.add(url)
                found.append(url)
        return found

    def _canonical(self, base: str, href: str) -> str | None:
        """None: it leads elsewhere."""
        if not href.startswith(("/", "http")):
            return self._join(base, href)
        if href not in self._meaning:
            self._meaning[href] = self._join(base, href)
        return self._meaning[href]

    def _join(self, base: str, href: str) -> str | None:
        from w3lib.url import canonicalize_url

        if PLAIN.fullmatch(href):
            return self.root + href[1:]
        if href.startswith("http") and not href.startswith(self.root):
            return None
        url = canonicalize_url(urljoin(base, href))
        return url if url.startswith(self.root) else None


async def written(seeds: list[str], out: TextIO) -> None:
    """What a good engineer writes in an afternoon: workers on one queue, aiohttp, lxml, a set and a memo per site."""
    import aiohttp
    from lxml import etree

    parser = etree.HTMLParser(encoding="utf-8")
    anchors: Any = etree.XPath("//a/@href", smart_strings=False)
    title: Any = etree.XPath("string(//title)", smart_strings=False)
    description: Any = etree.XPath("string(//meta[@name='description']/@content)", smart_strings=False)
    todo: asyncio.Queue[tuple[Host, str]] = asyncio.Queue()
    for seed in seeds:
        host = Host(seed)
        todo.put_nowait((host, host.root))

    async def work(session: aiohttp.ClientSession) -> None:
        while True:
            host, url = await todo.get()
            async with session.get(url) as response:
                body = await response.read()
            page = etree.fromstring(body, parser)
            record = {
                "url": url,
                "sha256": sha256(body).hexdigest(),
                "title": title(page),
                "description": description(page),
            }
            out.write(json.dumps(record) + "\n")
            for link in host.new(url, anchors(page)):
                todo.put_nowait((host, link))
            todo.task_done()

    connector = aiohttp.TCPConnector(limit=REQUESTS, limit_per_host=REQUESTS_PER_HOST)
    cookies = aiohttp.DummyCookieJar()
    async with (
        aiohttp.ClientSession(connector=connector, cookie_jar=cookies) as session,
        asyncio.TaskGroup() as group,
    ):
        workers = [group.create_task(work(session)) for _ in range(REQUESTS)]
        await todo.join()
        for worker in workers:
            worker.cancel()


def main() -> None:
    """Crawl the seeds to their end."""
    contender, seeds_file, records, redis_url = sys.argv[1:5]
    seeds = Path(seeds_file).read_text().split()
    if contender != "written":
        stock(seeds, Path(records), redis_url if contender == "redis" else "")
        return
    import uvloop

    began = meters.cpu_seconds()
    with Path(records).open("w", encoding="utf-8") as out:
        uvloop.run(written(seeds, out))
    meters.write_usage(meters.cpu_seconds() - began)


if __name__ == "__main__":
    main()
