"""Scrapy extensions that put one fault into an agent: what drills cannot bring about from outside at the right moment.

Each bends one method of a class, in the process that it is switched on in, and says so in the log when it strikes:

    fleet.agent(EXTENSIONS=suffers(KilledAtLeave))
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

from crawler.agent.agent import Agent
from crawler.fetch.handler import CurlDownloadHandler
from crawler.queue.queue import SiteQueue
from crawler.queue.sites import Delivery, Offer

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from crawler.agent.site_lease import SiteLease

logger = logging.getLogger("faults")

LATE_SECONDS = 0.5
LATE_PATH = "/late"
# What SlowDisk takes.
SYNC_SECONDS = 0.1


def suffers(fault: type[Fault]) -> dict[str, Any]:
    """The setting EXTENSIONS of a process that has this fault; PYTHONPATH must name the project's folder."""
    return {f"{fault.__module__}.{fault.__qualname__}": 1}


class Fault:
    """Made by Scrapy before the agent is."""

    @classmethod
    def from_crawler(cls, _crawler: Crawler) -> Self:
        fault = cls()
        fault.bend()
        return fault

    def bend(self) -> None:
        """Put the fault in."""
        raise NotImplementedError


def _killed(where: str) -> NoReturn:
    logger.warning("killed: %s", where)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


class KilledAtOffer(Fault):
    """Dies when it is about to offer links to other sites."""

    def bend(self) -> None:
        async def offer(*_arguments: Any, **_named: Any) -> Any:
            _killed("links to other sites are offered")

        SiteQueue.offer = offer  # type: ignore[method-assign]


class HeldOffer(Fault):
    """Links to other sites are not offered before the file named in FAULT_UNTIL is there."""

    def bend(self) -> None:
        whole = SiteQueue.offer
        may_go_on = Path(os.environ["FAULT_UNTIL"]).exists

        async def offer(self: SiteQueue, offers: Sequence[Offer], *rest: Any, **named: Any) -> Any:
            logger.warning("held: offer")
            while not may_go_on():  # noqa: ASYNC110 - a test in another process says when
                await asyncio.sleep(0.02)
            return await whole(self, offers, *rest, **named)

        SiteQueue.offer = offer  # type: ignore[method-assign]


class KilledAtLeave(Fault):
    """Dies when it is about to give a site back, all of which is published."""

    def bend(self) -> None:
        async def leave(*_arguments: Any, **_named: Any) -> bool:
            _killed("a site is given back")

        SiteQueue.leave = leave  # type: ignore[method-assign]


class SlowDisk(Fault):
    """A file is on the disk as far as fsync was called for it, and its name once that was called for the folder.

    Each call takes a tenth of a second, so that pages end meanwhile. What is published before its capture is there, and
    an event loop that waits for the disk, are said in the log as errors.
    """

    def bend(self) -> None:
        synced: dict[str, int] = {}
        names: set[str] = set()

        def slowly(whole: Callable[[int], None]) -> Callable[[int], None]:
            def sync(descriptor: int) -> None:
                if asyncio._get_running_loop() is not None:
                    logger.error("the event loop waits for the disk")
                path = Path(f"/proc/self/fd/{descriptor}").readlink()
                if path.is_dir():
                    found = os.listdir(path)  # noqa: PTH208 - names, as the folder has them
                    whole(descriptor)
                    names.update(found)
                    return
                size = os.fstat(descriptor).st_size
                time.sleep(SYNC_SECONDS)
                whole(descriptor)
                synced[path.name] = size

            return sync

        def is_kept(page: dict[str, Any]) -> bool:
            file = page.get("warc_file")
            if not file:
                return True
            there = {file, f"{file}.open"} & names
            end = int(page["warc_offset"]) + int(page["warc_length"])
            return bool(there) and any(synced.get(name, 0) >= end for name in (file, f"{file}.open"))

        os.fdatasync, os.fsync = slowly(os.fdatasync), slowly(os.fsync)
        whole = SiteQueue.publish

        async def publish(self: SiteQueue, agent: str, deliveries: Sequence[Delivery]) -> Any:
            pages = [json.loads(record) for one in deliveries for record, _ in one.records]
            for page in pages:
                if not is_kept(page):
                    logger.error("published before it was on the disk: %s", page)
            logger.info("published: %d captures", sum("warc_file" in page for page in pages))
            return await whole(self, agent, deliveries)

        SiteQueue.publish = publish  # type: ignore[method-assign]


class HopHeldBack(Fault):
    """The first request for a robots.txt that was redirected is held back, as while the lease is not sure."""

    def bend(self) -> None:
        whole = Agent.may_send
        struck: set[str] = set()

        def may_send(self: Agent, slot: SiteLease) -> bool:
            if slot.robots_hops and slot.site not in struck:
                struck.add(slot.site)
                logger.warning("held back: robots.txt of %s", slot.site)
                return False
            return whole(self, slot)

        Agent.may_send = may_send  # type: ignore[method-assign]


class LateConnection(Fault):
    """Pages named `/late` take half a second more until they are connected, as under a slow look-up."""

    def bend(self) -> None:
        whole = CurlDownloadHandler.download_request

        async def download_request(self: CurlDownloadHandler, request: Request) -> Response:
            if request.url.endswith(LATE_PATH):
                logger.warning("late: %s", request.url)
                await asyncio.sleep(LATE_SECONDS)
            return await whole(self, request)

        CurlDownloadHandler.download_request = download_request  # type: ignore[method-assign]
