"""What a crawl leaves at its end, and whether it has begun.

Starts the bundled server if needed. Raises ServerAwayError, ServerError or OptionError without a server,
BrokenRecordError without a valid queue.
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
    """What is left, in sites and records."""

    later: int  # sites with a later due time
    next_due_ms: int  # when the first of them is due; 0: none
    why: str  # the reason; empty: unknown
    records: int  # in the results stream
    coordinators: list[str]  # names of the active ones


def look(settings: BaseSettings, options: Options) -> Left:
    """The current figures."""
    with joined(settings, options):
        client = connection.connect_blocking(settings)
        try:
            alive = coordinators(client, options.key_prefix)
        finally:
            client.close()
        return asyncio.run(_look(settings, options, alive))


def has_begun(settings: BaseSettings, options: Options) -> bool:
    """See `SiteQueue.has_begun`."""
    with joined(settings, options):
        return asyncio.run(_has_begun(settings, options))


def coordinators(client: Any, prefix: str) -> list[str]:
    """Names of those seen within the last 15 s."""
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
