"""What a process without an event loop of Scrapy's does on one machine: use the bundled server, see to a coordinator.

The same share that crawler.local.local gives an agent: a membership in the server, a coordinator started where none
runs, the server started again where it died. At the end whoever leaves last makes sure that a coordinator is there to
store what waits, and does not wait for it. ServerError where the server cannot be had.
"""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from crawler.local.local import POLL_SECONDS, WATCH_SECONDS, CoordinatorProcess, ServerKeeper
from crawler.local.server import Server

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

    from crawler.options import Options


class Beside:
    """One process's share in the machine's own server, from its making to the end of `with`.

    `trouble` says why it ended the work by itself; empty: it did not.
    """

    def __init__(self, settings: BaseSettings, options: Options) -> None:
        self.trouble = ""
        self._server = Server(options.var)
        self._membership = self._server.join("agent", options.key_prefix)
        self._keeper = ServerKeeper(self._server)
        self._coordinator = CoordinatorProcess(settings, options, self._server)
        self._coordinator.ensure()

    @property
    def url(self) -> str:
        """Where the server listens."""
        return self._membership.url

    async def watch(self, stop: asyncio.Event) -> None:
        """Looks after server and coordinator; sets `stop` where one of them cannot be had."""
        while not self.trouble:
            await asyncio.sleep(WATCH_SECONDS)
            if not await asyncio.to_thread(self._keeper.look):
                self.trouble = f"the bundled server cannot be started again: {self._keeper.trouble}"
            self._coordinator.ensure()
            if self._coordinator.hopeless:
                self.trouble = (
                    "no coordinator can run, so nothing would be stored; what came is kept in the stream"
                )
        stop.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while not self._server.coordinator_alive() and not self._coordinator.hopeless:
            self._coordinator.ensure()
            time.sleep(POLL_SECONDS)
        self._membership.leave()
