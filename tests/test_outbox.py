"""What the outbox promises of a site that goes back while some of it is still on its way, on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from crawler import records
from crawler.agent.frontier import Frontier, Turn
from crawler.agent.overrides import PLAIN, SiteSession
from crawler.agent.publisher import Outbox
from crawler.agent.session import Author
from crawler.agent.site_lease import SiteLease
from crawler.queue.queue import SiteQueue
from crawler.queue.sites import Delivery, Newcomer, Published
from tests.queue_driver import connect, queue_options
from tests.servers import RunningServer

SITE = "http://a.example"


class WatchedQueue(SiteQueue):
    """Calls `meanwhile` after the server has taken a delivery, before the outbox hears of it."""

    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    async def publish(self, agent: str, deliveries: Sequence[Delivery]) -> list[Published]:
        published = await super().publish(agent, deliveries)
        self.meanwhile()
        self.meanwhile = lambda: None
        return published


def page(turn: Turn) -> records.Page:
    return records.Page(site=SITE, path=turn.path, fetched_at=1, outcome="stored", status=200)


async def flush(outbox: Outbox) -> None:
    outbox.pack()
    await outbox.flush()


async def next_frontier(valkey: RunningServer, ended_while_published: bool) -> Frontier:
    """The frontier that the next holder has of a site: one page published, another set back by its holder."""
    client = connect(valkey)
    queue = WatchedQueue(client, queue_options())
    author = Author("test")
    outbox = Outbox(queue, author, 100, 100)
    await queue.join(author.name, {})
    await queue.discover([Newcomer(SITE, b"")], 0)
    (leased,) = (await queue.lease(author.name, "site", 1, 0)).sites
    lease = SiteLease(leased, Frontier(), 0, SiteSession(SITE, PLAIN, "lowtide"), least_delay=0.0)
    lease.frontier.add(["/", "/tried"], 0)
    first, tried = lease.frontier.take(0.0), lease.frontier.take(0.0)
    assert first and tried
    lease.in_flight = 1

    def end() -> None:
        lease.in_flight = 0
        lease.frontier.set_back(tried, 9.0)
        lease.ending = "returned"
        outbox.end(lease)

    if ended_while_published:
        queue.meanwhile = end
    outbox.add(lease, page(first))
    lease.frontier.finish(first)
    await flush(outbox)
    if not ended_while_published:
        end()
    while not outbox.empty:
        assert outbox.due.is_set(), "nobody would flush again in time"
        await flush(outbox)
    entries, _, _ = await queue.checkpoint(SITE)
    await client.aclose()
    found = Frontier()
    found.restore(entries)
    return found


@pytest.mark.parametrize("ended_while_published", [False, True])
def test_a_try_is_not_forgotten(valkey: RunningServer, ended_while_published: bool) -> None:
    frontier = asyncio.run(next_frontier(valkey, ended_while_published))
    again = frontier.take(0.0)
    assert again
    assert (again.path, again.tries) == ("/tried", 2)
    assert frontier.take(0.0) is None
