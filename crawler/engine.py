"""The few private things of Scrapy's engine that we lean on, in one place, checked at start.

Scrapy has no public way to wake an engine whose scheduler holds requests back until they are due, to know when all
that a callback gave is processed, or whether a spider's `start` is over; and closing a spider before its engine runs
is lost, as is a signal that comes while it opens. All were read in Scrapy 2.19; `check` fails loudly where they are
gone.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler, CrawlerProcessBase
    from scrapy.http import Response

# What a crawl that is told to end may still take to begin; longer only where what it needs is away.
BEGIN_SECONDS = 3.0


def check(crawler: Crawler) -> None:
    """RuntimeError where this Scrapy is not as we know it."""
    slot = getattr(crawler.engine, "_slot", None)
    for holder, name in ((slot, "nextcall"), (slot, "inprogress"), (crawler.engine, "_start")):
        if not hasattr(holder, name):
            raise RuntimeError(f"this Scrapy's engine has no {name}; expected 2.19")


def wake(crawler: Crawler) -> None:
    """Let the engine ask for the next request now; harmless before it runs and after it ended."""
    engine = crawler._engine
    if engine is not None and engine._slot is not None and engine._slot.closing is None:
        engine._slot.nextcall.schedule()


def in_progress(crawler: Crawler) -> set[Request]:
    """The requests of which anything is still under way: the download, the callback, what it gave."""
    engine = crawler._engine
    return set() if engine is None or engine._slot is None else engine._slot.inprogress


def starting(crawler: Crawler) -> bool:
    """Whether the spider's `start` may still give requests."""
    engine = crawler._engine
    return engine is None or engine._start is not None


def closing(crawler: Crawler) -> bool:
    """Whether the spider is being closed: the engine waits for what is under way, and nothing more should be begun."""
    engine = crawler._engine
    return engine is None or engine._slot is None or engine._slot.closing is not None


async def download(crawler: Crawler, request: Request) -> Response:
    """Fetch past the scheduler, through all downloader middlewares; raises what they and the handler raise."""
    response: Response = await crawler.engine.download_async(request)
    return response


async def close(crawler: Crawler, reason: str) -> None:
    """End the crawl with this reason, also when the engine has not begun to run yet."""
    while not crawler.engine.running:  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0.01)
    await crawler.engine.close_spider_async(reason=reason)


def end_in_order(process: CrawlerProcessBase) -> None:
    """Crawls that are told to end while they begin, begin first, within BEGIN_SECONDS, and are closed then.

    Scrapy would end the event loop under them: what they joined would not be left, and the exit code be an error's.
    Only where the process is Scrapy's own for asyncio.
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
