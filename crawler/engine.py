"""Private parts of Scrapy's engine that the crawler needs, checked at start for Scrapy 2.19.

For waking an idle engine, requests in progress, the end of `start`, and closing before the engine runs.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler, CrawlerProcessBase
    from scrapy.http import Response

# Limit for a stopped crawl to finish its start, without waiting for a missing service.
BEGIN_SECONDS = 3.0


def check(crawler: Crawler) -> None:
    """Raises RuntimeError if this Scrapy lacks one of them."""
    slot = getattr(crawler.engine, "_slot", None)
    for holder, name in ((slot, "nextcall"), (slot, "inprogress"), (crawler.engine, "_start")):
        if not hasattr(holder, name):
            raise RuntimeError(f"this Scrapy's engine has no {name}; expected 2.19")


def wake(crawler: Crawler) -> None:
    """Fetch the next request now; does nothing unless the engine runs."""
    engine = crawler._engine
    if engine is not None and engine._slot is not None and engine._slot.closing is None:
        engine._slot.nextcall.schedule()


def in_progress(crawler: Crawler) -> set[Request]:
    """Requests whose download, callback or output is in progress."""
    engine = crawler._engine
    return set() if engine is None or engine._slot is None else engine._slot.inprogress


def starting(crawler: Crawler) -> bool:
    """Whether the spider's `start` may still yield requests."""
    engine = crawler._engine
    return engine is None or engine._start is not None


def closing(crawler: Crawler) -> bool:
    """Whether the spider is closing: no new work may begin."""
    engine = crawler._engine
    return engine is None or engine._slot is None or engine._slot.closing is not None


async def download(crawler: Crawler, request: Request) -> Response:
    """Fetch through all downloader middlewares, without the scheduler."""
    response: Response = await crawler.engine.download_async(request)
    return response


async def close(crawler: Crawler, reason: str) -> None:
    """Close the crawl, also before the engine runs."""
    while not crawler.engine.running:  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0.01)
    await crawler.engine.close_spider_async(reason=reason)


def end_in_order(process: CrawlerProcessBase) -> None:
    """A crawl stopped during its start begins, within BEGIN_SECONDS, and is then closed.

    Scrapy would stop the event loop, with an error's exit code. Only for its asyncio process.
    """
    from scrapy.crawler import AsyncCrawlerProcess

    if not isinstance(process, AsyncCrawlerProcess):
        return
    stop = process.stop

    async def begun_and_stopped() -> None:
        loop = asyncio.get_running_loop()
        latest = loop.time() + BEGIN_SECONDS
        while any(map(_begins, process.crawlers)) and loop.time() < latest:  # noqa: ASYNC110 - as in `close`
            await asyncio.sleep(0.01)
        await stop()

    process.stop = begun_and_stopped  # type: ignore[method-assign]


def _begins(crawler: Crawler) -> bool:
    return crawler.crawling and not (crawler._engine and crawler._engine.running)
