"""The other crawlers of benchmarks/throughput.py, each written as its own users would write it.

    python benchmarks/contenders.py scrapy|redis|written SEEDS_FILE REDIS_URL

Each does what Lowtide does with a page: SHA-256, title, description, in-site links, URL dedupe, a record out.
"""

from __future__ import annotations

import asyncio
import sys
import time
from hashlib import sha256
from pathlib import Path
from typing import ClassVar
from urllib.parse import urljoin, urlsplit

from benchmarks import meters


def stock(seeds: list[str], redis_url: str) -> None:
    """Scrapy's CrawlSpider, with scrapy-redis's scheduler and filter where a server is named."""
    from scrapy.crawler import AsyncCrawlerProcess
    from scrapy.linkextractors import LinkExtractor
    from scrapy.spiders import CrawlSpider, Rule

    class Stock(CrawlSpider):
        name = "stock"
        start_urls = seeds
        allowed_domains: ClassVar = [urlsplit(url).hostname for url in seeds]
        rules: ClassVar = (Rule(LinkExtractor(), callback="record", follow=True),)

        def record(self, response):  # type: ignore[no-untyped-def]
            yield {
                "url": response.url,
                "sha256": sha256(response.body).hexdigest(),
                "title": response.xpath("string(//title)").get(),
                "description": response.xpath("//meta[@name='description']/@content").get(),
            }

    settings = {
        "LOG_LEVEL": "WARNING",
        "ROBOTSTXT_OBEY": True,
        "CONCURRENT_REQUESTS": 64,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 1,
        "TELNETCONSOLE_ENABLED": False,
        "DOWNLOAD_DELAY": 0,
        "COOKIES_ENABLED": False,
        "EXTENSIONS": {"benchmarks.meters.CpuMeter": 0},
    }
    if redis_url:
        settings |= {
            "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
            "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
            "ITEM_PIPELINES": {"scrapy_redis.pipelines.RedisPipeline": 300},
            "REDIS_URL": redis_url,
        }
    process = AsyncCrawlerProcess(settings)
    process.crawl(Stock)
    process.start()


async def written(seeds: list[str]) -> int:
    """What a good engineer writes in an afternoon: one task per site, aiohttp, lxml, a set per site."""
    import aiohttp
    from lxml import etree

    anchors, title = etree.XPath("//a/@href"), etree.XPath("string(//title)")
    description = etree.XPath("string(//meta[@name='description']/@content)")
    records: list[tuple[str, str, str, str]] = []
    gate = asyncio.Semaphore(64)

    async def site(session: aiohttp.ClientSession, start: str) -> None:
        root = urljoin(start, "/")
        seen, todo = {root}, [root]
        async with gate:
            while todo:
                url = todo.pop(0)
                async with session.get(url) as response:
                    body = await response.read()
                page = etree.fromstring(body, etree.HTMLParser(encoding="utf-8"))
                records.append((url, sha256(body).hexdigest(), title(page), description(page)))
                for href in anchors(page):
                    link = urljoin(url, href).partition("#")[0]
                    if link.startswith(root) and link not in seen:
                        seen.add(link)
                        todo.append(link)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(site(session, seed) for seed in seeds))
    return len(records)


def main() -> None:
    contender, seeds_file, redis_url = sys.argv[1:4]
    seeds = Path(seeds_file).read_text().split()
    if contender == "written":
        import uvloop

        cpu, wall = meters.cpu_seconds(), time.monotonic()
        pages = uvloop.run(written(seeds))
        meters.write(meters.cpu_seconds() - cpu, time.monotonic() - wall, pages)
    else:
        stock(seeds, redis_url if contender == "redis" else "")


if __name__ == "__main__":
    main()
