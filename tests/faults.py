"""Scrapy extensions that put one fault into an agent: what drills cannot bring about from outside at the right moment.

Each bends one method of a class, in the process that it is switched on in, and says so in the log when it strikes:

    fleet.agent(EXTENSIONS=suffers(KilledAtLeave))
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

from crawler.agent.agent import Agent
from crawler.agent.download import CurlDownloadHandler
from crawler.sites.queue import Newcomer, SiteQueue

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from crawler.agent.slots import Slot

logger = logging.getLogger("faults")

LATE_SECONDS = 0.5
LATE_PATH = "/late"


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


def _of_links(newcomers: Sequence[Newcomer]) -> bool:
    return any(b'"link"' in one.record for one in newcomers)


class KilledAtDiscover(Fault):
    """Dies when it is about to queue sites that were met in links."""

    def bend(self) -> None:
        whole = SiteQueue.discover

        async def discover(self: SiteQueue, newcomers: Sequence[Newcomer], *rest: Any, **named: Any) -> Any:
            if _of_links(newcomers):
                _killed("sites were met in links")
            return await whole(self, newcomers, *rest, **named)

        SiteQueue.discover = discover  # type: ignore[method-assign]


class HeldDiscover(Fault):
    """Sites that were met in links are not queued before the file named in FAULT_UNTIL is there."""

    def bend(self) -> None:
        whole = SiteQueue.discover
        may_go_on = Path(os.environ["FAULT_UNTIL"]).exists

        async def discover(self: SiteQueue, newcomers: Sequence[Newcomer], *rest: Any, **named: Any) -> Any:
            if _of_links(newcomers):
                logger.warning("held: discover")
                while not may_go_on():  # noqa: ASYNC110 - a test in another process says when
                    await asyncio.sleep(0.02)
            return await whole(self, newcomers, *rest, **named)

        SiteQueue.discover = discover  # type: ignore[method-assign]


class KilledAtLeave(Fault):
    """Dies when it is about to give a site back, all of which is published."""

    def bend(self) -> None:
        async def leave(*_arguments: Any, **_named: Any) -> bool:
            _killed("a site is given back")

        SiteQueue.leave = leave  # type: ignore[method-assign]


class HopHeldBack(Fault):
    """The first request for a robots.txt that was redirected is held back, as while the lease is not sure."""

    def bend(self) -> None:
        whole = Agent.may_send
        struck: set[str] = set()

        def may_send(self: Agent, slot: Slot) -> bool:
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
