"""The few private things of Scrapy's engine that we lean on, in one place, checked at start.

Scrapy has no public way to wake an engine whose scheduler holds requests back until they are due, and closing a
spider before its engine runs is lost. Both were read in Scrapy 2.19; `check` fails loudly where they are gone.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scrapy.crawler import Crawler


def check(crawler: Crawler) -> None:
    """RuntimeError where this Scrapy is not as we know it."""
    if not hasattr(getattr(crawler.engine, "_slot", None), "nextcall"):
        raise RuntimeError("this Scrapy has no engine._slot.nextcall, which wakes the engine; wanted 2.19")


def wake(crawler: Crawler) -> None:
    """Let the engine ask for the next request now; harmless before it runs and after it ended."""
    engine = crawler._engine
    if engine is not None and engine._slot is not None and engine._slot.closing is None:
        engine._slot.nextcall.schedule()


async def close(crawler: Crawler, reason: str) -> None:
    """End the crawl with this reason, also when the engine has not begun to run yet."""
    while not crawler.engine.running:  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0.01)
    await crawler.engine.close_spider_async(reason=reason)
