"""What leasing promises of paths that come from outside to a site in hand, on a real server: none is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from crawler import records
from crawler.agent.frontier import Frontier, Turn
from crawler.agent.leasing import Leasing
from crawler.agent.publisher import Outbox
from crawler.agent.session import Session
from crawler.agent.site_lease import SiteLease
from crawler.fetch.dns import Names
from crawler.queue.queue import SiteQueue
from crawler.queue.sites import Delivery, Newcomer, Offer, Published
from tests.queue_driver import connect, queue_options
from tests.servers import RunningServer

SITE = "http://127.0.3.1"


class WatchedQueue(SiteQueue):
    """Calls `meanwhile` once, while paths are read; loses the reply of a delivery where `loses` says so."""

    meanwhile: Callable[[], None] = staticmethod(lambda: None)
    loses = False

    async def given(self, site: str, start: int) -> list[str]:
        entries = await super().given(site, start)
        now, self.meanwhile = self.meanwhile, lambda: None
        now()
        return entries

    async def publish(self, agent: str, deliveries: Sequence[Delivery]) -> list[Published]:
        published = await super().publish(agent, deliveries)
        if self.loses:
            self.loses = False
            raise RedisConnectionError("the reply is lost")
        return published


class Hand:
    """One agent's sites, moved by a test."""

    def __init__(self, queue: WatchedQueue) -> None:
        options = queue_options()
        self.queue = queue
        self.session = Session(queue, options, lost=lambda: None)
        self.outbox = Outbox(queue, self.session.author, 100, 100)
        self.slots: list[SiteLease] = []  # as they were settled
        self.leasing = Leasing(
            self.session,
            queue,
            self.outbox,
            Names(1.0),
            options,
            ("site",),
            0.0,
            "lowtide",
            None,
            self.slots.append,
        )

    async def lease(self) -> tuple[SiteLease, Turn]:
        """The only site, and its root as a page in flight."""
        await self.session.open("site", ("site",))
        await self.queue.discover([Newcomer(SITE, b"")], 0)
        await self.leasing.lease()
        await self.until(lambda: bool(self.slots))
        lease = self.slots[0]
        turn = lease.frontier.take(0.0)
        assert turn
        lease.in_flight = 1
        return lease, turn

    def finish(self, lease: SiteLease, turn: Turn) -> None:
        """The page's turn has ended."""
        lease.in_flight = 0
        page = records.Page(site=SITE, path=turn.path, fetched_at=1, outcome="stored", status=200)
        self.outbox.add(lease, page)
        lease.frontier.finish(turn)

    async def flush(self) -> None:
        self.outbox.pack()
        await self.outbox.flush()

    async def offer(self, *paths: str) -> None:
        """Each as an entry of its own."""
        for path in paths:
            await self.queue.offer([Offer(SITE, [path])])
        self.leasing.note_given([SITE])

    @staticmethod
    async def until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not condition():  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.01)


@asynccontextmanager
async def hand(valkey: RunningServer) -> AsyncIterator[Hand]:
    client = connect(valkey)
    try:
        yield Hand(WatchedQueue(client, queue_options()))
    finally:
        await client.aclose()


@pytest.mark.parametrize("ending", ["finished", "returned"])
def test_a_site_that_ends_while_its_paths_are_read_keeps_them(valkey: RunningServer, ending: str) -> None:
    asyncio.run(end_while_paths_are_read(valkey, ending))


async def end_while_paths_are_read(valkey: RunningServer, ending: str) -> None:
    async with hand(valkey) as agent:
        lease, turn = await agent.lease()

        def end() -> None:
            agent.finish(lease, turn)
            agent.leasing.end(lease, "finished" if ending == "finished" else "returned")

        agent.queue.meanwhile = end
        await agent.offer("/late")
        await agent.leasing.take_given()
        while not agent.outbox.empty:
            await agent.flush()
        if ending == "finished":
            await agent.until(lambda: lease.live)
            assert "/late" in lease.frontier
            assert agent.slots[-1] is lease, "it is to be fetched"
        record = await agent.queue.record(SITE)
        assert record
        assert record.state != "finished"
        if ending == "returned":
            entries, given, _ = await agent.queue.checkpoint(SITE)
            frontier = Frontier()
            frontier.restore(entries)
            assert "/late" in frontier or "/late" in given


def test_paths_are_not_read_while_the_server_may_have_taken_a_delivery(valkey: RunningServer) -> None:
    asyncio.run(lose_a_reply(valkey))


async def lose_a_reply(valkey: RunningServer) -> None:
    async with hand(valkey) as agent:
        lease, turn = await agent.lease()
        await agent.offer("/a")
        await agent.leasing.take_given()
        agent.finish(lease, turn)
        agent.queue.loses = True
        with pytest.raises(RedisConnectionError):
            await agent.flush()
        await agent.offer("/b", "/c", "/d")
        await agent.leasing.take_given()  # as in a flush in which pages have to wait
        await agent.flush()
        await agent.leasing.take_given()
        assert [path for path in ("/a", "/b", "/c", "/d") if path not in lease.frontier] == []
        assert lease.paths_seen == len(await agent.queue.given(SITE, 0))
