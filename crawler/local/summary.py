"""What a crawl leaves when it ends: sites that rest until later, records that nobody stores; and whether it has begun.

A look at the server of the crawl, which is started for it where it is the bundled one. ServerAwayError, ServerError or
OptionError where there is none to look at, BrokenRecordError where it holds no queue.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from crawler.local.local import joined
from crawler.queue import connection
from crawler.queue.queue import SiteQueue
from crawler.queue.results import heartbeat_key

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

    from crawler.options import Options


class Left(NamedTuple):
    """How much there is, in sites and records."""

    later: int  # sites that rest
    next_due_ms: int  # when the first of them may go on; 0: none rests
    why: str  # it rests; empty: nothing is said
    records: int  # in the results stream
    coordinators: list[str]  # those that are alive, by name


def look(settings: BaseSettings, options: Options) -> Left:
    """What there is now."""
    with joined(settings, options):
        client = connection.connect_blocking(settings)
        try:
            alive = coordinators(client, options.key_prefix)
        finally:
            client.close()
        return asyncio.run(_look(settings, options, alive))


def has_begun(settings: BaseSettings, options: Options) -> bool:
    """Whether the crawl goes on, as `SiteQueue.has_begun`."""
    with joined(settings, options):
        return asyncio.run(_has_begun(settings, options))


def coordinators(client: Any, prefix: str) -> list[str]:
    """Names of the coordinators that showed themselves within the last 15 s."""
    key = heartbeat_key(prefix, "")
    return sorted(found.decode().removeprefix(key) for found in client.scan_iter(match=f"{key}*", count=1000))


async def _has_begun(settings: BaseSettings, options: Options) -> bool:
    client = connection.connect(settings)
    try:
        return await SiteQueue(client, options).has_begun(again=options.walk_again)
    finally:
        await client.aclose()


async def _look(settings: BaseSettings, options: Options, alive: list[str]) -> Left:
    client = connection.connect(settings)
    try:
        queue = SiteQueue(client, options)
        depth = await queue.depth()
        soonest = await queue.later(1) if depth.later else []
    finally:
        await client.aclose()
    _, due_ms, why = soonest[0] if soonest else ("", 0, "")
    return Left(depth.later, due_ms, why, depth.records, alive)
