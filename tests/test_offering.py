"""What an agent's offers promise, on a real server: when they wait, what is sent again, and what bounds them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from crawler.agent import offers, seeding
from crawler.agent.offers import CALL_BYTES, ENTRY_PATHS, Offers
from crawler.agent.seeding import Seeding
from crawler.agent.session import Author
from crawler.queue.queue import SiteQueue
from crawler.queue.sites import Offer
from crawler.urls.scope import Scope
from crawler.urls.seeds import Seed
from tests.queue_driver import connect, queue_options
from tests.servers import RunningServer

A, B = "http://127.0.3.1", "http://127.0.3.2"
INLET = "site:start_urls"


class CountingQueue(SiteQueue):
    """Keeps what was offered, call by call; `meanwhile` is called while the first is under way."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.calls: list[Sequence[Offer]] = []
        self.meanwhile: Callable[[], object] = lambda: None

    async def offer(self, offers: Sequence[Offer], max_sites: int = 0, *, agent: str = "") -> list[int]:
        self.calls.append(offers)
        answers = await super().offer(offers, max_sites, agent=agent)
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        return answers


class Offering:
    """One agent's offers and seeds."""

    def __init__(self, client: Redis, **changes: Any) -> None:
        options = queue_options(**changes)
        self.client: Any = client
        self.queue = CountingQueue(client, options)
        author, scope = Author("test"), Scope(options)
        self.seeding = Seeding(client, self.queue, options, scope, author, "lowtide")
        self.offers = Offers(self.queue, options, scope, author, self.seeding)

    async def read_seeds(self, *seeds: str) -> None:
        await self.seeding.take_in(",".join(seeds))
        await self.seeding.drain_inlet()

    async def paths(self, site: str) -> list[str]:
        """The paths that wait for a site."""
        return [
            path for entry in await self.queue.given(site, 0) for path in entry.split("\n") if path[0] == "/"
        ]


@asynccontextmanager
async def offering(valkey: RunningServer, **changes: Any) -> AsyncIterator[Offering]:
    client = connect(valkey)
    try:
        yield Offering(client, **changes)
    finally:
        await client.aclose()


# --- waiting for seeds --------------------------------------------------------------------------------------


def test_pages_wait_for_the_seeds_of_start(valkey: RunningServer) -> None:
    async def check() -> None:
        async with offering(valkey, scope="seeds") as one:
            one.seeding.starting = lambda: True
            await one.read_seeds(A)
            one.offers.add(B, ["/linked"], 1)
            await one.offers.send()
            assert one.offers.waits, "B may be a seed yet"
            one.seeding.give(Seed(B, "/"))
            one.seeding.starting = lambda: False
            await one.offers.send()
            assert one.offers.waits, "it is one, and is not queued"
            await one.seeding.queue_given()
            await one.offers.send()
            assert one.offers.empty
            assert await one.paths(B) == ["/", "/linked"]

    asyncio.run(check())


def test_pages_wait_for_what_is_in_the_inlet_at_first(valkey: RunningServer) -> None:
    async def check() -> None:
        async with offering(valkey, scope="seeds") as one:
            await one.client.lpush(INLET, B)
            await one.seeding.take_in(A)
            one.offers.add(B, ["/linked"], 1)
            await one.offers.send()
            assert one.offers.waits
            await one.seeding.drain_inlet()
            await one.offers.send()
            assert await one.paths(B) == ["/", "/linked"]

    asyncio.run(check())


@pytest.mark.parametrize("full", [False, True])
def test_a_start_that_never_ends_is_not_waited_for_without_end(
    valkey: RunningServer, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    monkeypatch.setattr(seeding, "START_SECONDS", 60.0 if full else 0.2)

    async def check() -> None:
        async with offering(valkey, scope="seeds") as one:
            one.seeding.starting = lambda: True
            await one.read_seeds(A)
            one.offers.add(B, ["/linked"], 1)
            assert one.offers.waits
            if full:
                one.seeding.stop_waiting()
            async with asyncio.timeout(30):
                while one.offers.waits:  # noqa: ASYNC110 - there is no event to wait for
                    await asyncio.sleep(0.01)
            await one.offers.send()
            assert one.offers.empty, "no seed, by what is known"

    asyncio.run(check())


def test_seeds_that_are_read_while_offers_are_sent_let_no_page_go(valkey: RunningServer) -> None:
    """What that call left is sent by the next one, and not before are the pages that name it published."""

    async def check() -> None:
        async with offering(valkey, scope="seeds") as one:
            one.seeding.starting = lambda: True
            await one.read_seeds(A)
            one.queue.meanwhile = lambda: setattr(one.seeding, "starting", lambda: False)
            one.offers.add(A, ["/x"], 1)
            one.offers.add(B, ["/linked"], 1)
            await one.offers.send()
            assert one.seeding.read
            assert not one.offers.empty
            assert one.offers.waits
            await one.offers.send()
            assert not one.offers.waits

    asyncio.run(check())


def test_a_longer_way_that_is_found_meanwhile_replaces_no_shorter_one(valkey: RunningServer) -> None:
    async def check() -> None:
        async with offering(valkey, scope="seeds", max_depth=9) as one:
            await one.seeding.take_in(A)
            one.queue.meanwhile = lambda: one.offers.add(B, ["/x"], 5)
            one.offers.add(A, ["/y"], 1)
            one.offers.add(B, ["/x"], 1)
            await one.offers.send()
            await one.seeding.take_in(B)
            await one.seeding.queue_seeds([Seed(B, "/")])
            await one.seeding.drain_inlet()
            await one.offers.send()
            sent = [offer for call in one.queue.calls for offer in call if offer.site == B]
            assert [(offer.paths, offer.depth) for offer in sent] == [(["/x"], 1)]

    asyncio.run(check())


# --- what is refused ----------------------------------------------------------------------------------------


def test_what_a_blocked_site_refused_is_offered_again(valkey: RunningServer) -> None:
    async def check() -> None:
        async with offering(valkey, scope="any") as one:
            await one.read_seeds(A, B)
            await one.queue.order(B, "block")
            for path in ("/x", "/y"):
                one.offers.add(B, [path], 1)
                await one.offers.send()
            assert one.offers.empty
            await one.queue.order(B, "resume")
            for path in ("/x", "/y"):
                one.offers.add(B, [path], 1)
                await one.offers.send()
            assert await one.paths(B) == ["/", "/x", "/y"]

    asyncio.run(check())


def test_what_a_full_list_refused_is_offered_again(valkey: RunningServer) -> None:
    async def check() -> None:
        async with offering(valkey, scope="any") as one:
            await one.read_seeds(A, B)
            await one.client.rpush(f"lt:{{0}}:paths:{B}", *["/w"] * 10_000)
            one.offers.add(B, ["/x"], 1)
            await one.offers.send()
            await one.client.delete(f"lt:{{0}}:paths:{B}")
            one.offers.add(B, ["/x"], 1)
            await one.offers.send()
            assert await one.paths(B) == ["/", "/x"]

    asyncio.run(check())


def test_each_site_beyond_the_limit_is_told_once(
    valkey: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    """It has many pages, and each may be linked at another time, from other depths."""

    async def check() -> None:
        async with offering(valkey, scope="any", max_sites=1) as one:
            await one.read_seeds(A)
            for number in range(3):
                for depth in (1, 2):
                    one.offers.add(B, [f"/{number}/{depth}"], depth)
                await one.offers.send()
            assert len(one.queue.calls) == 1

    asyncio.run(check())
    assert caplog.messages == ["1 sites left out: MAX_SITES is 1"]


def test_a_seed_that_redirects_beyond_the_limit_widens_nothing(
    valkey: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "agent")

    async def check() -> None:
        async with offering(valkey, scope="seeds", max_sites=1) as one:
            await one.read_seeds(A)
            assert one.offers.move(A, B, "/", 1) == ""
            await one.offers.send()
            assert one.offers.empty

    asyncio.run(check())
    assert caplog.messages == ["1 sites left out: MAX_SITES is 1"]


@pytest.mark.parametrize(("scope", "expected"), [("any", ["/", "/y"]), ("seeds", [])])
def test_a_link_to_a_site_that_was_forgotten_finds_it_as_new(
    valkey: RunningServer, scope: str, expected: list[str]
) -> None:
    """The page that has the link is published next: there may be no other."""

    async def check() -> None:
        async with offering(valkey, scope=scope) as one:
            await one.read_seeds(A, B)
            one.offers.add(B, ["/x"], 1)
            await one.offers.send()
            assert await one.queue.forget(B) == 1
            one.offers.add(B, ["/y"], 1)
            await one.offers.send()
            assert one.offers.empty
            assert sorted(await one.paths(B)) == expected

    asyncio.run(check())


# --- what bounds them ---------------------------------------------------------------------------------------


def test_calls_are_bounded_in_bytes(valkey: RunningServer) -> None:
    async def check() -> None:
        async with offering(valkey, scope="any") as one:
            await one.read_seeds(A)
            paths = [f"/{number:04}{'x' * 2_000}" for number in range(2_000)]
            one.offers.add(B, paths, 1)
            one.offers.add(B, ["/" + "y" * 300_000, "/z"], 1)
            await one.offers.send()
            calls = [sum(len(path) for one in call for path in one.paths) for call in one.queue.calls]
            assert sum(calls) > 4_000_000
            assert max(calls) <= CALL_BYTES
            assert max(len(entry.paths) for call in one.queue.calls for entry in call) <= ENTRY_PATHS
            assert sorted((await one.paths(B))[1:]) == sorted([*paths, "/" + "y" * 300_000, "/z"])

    asyncio.run(check())


def test_many_that_wait_hold_up_fetching(valkey: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offers, "MOST_PENDING", 100_000)

    async def check() -> None:
        async with offering(valkey, scope="any") as one:
            await one.read_seeds(A)
            for number in range(1_000):
                one.offers.add(B, [f"/{number}", "/same"], 1)
                one.offers.add(B, ["/same"], 1)
            assert one.offers.full
            valkey.kill()
            with pytest.raises(RedisError):
                await one.offers.send()
            assert one.offers.full, "nothing was sent"
            valkey.start()
            await one.offers.send()
            assert not one.offers.full
            assert len(await one.paths(B)) == 1_002

    asyncio.run(check())


def test_what_leads_outside_is_kept_within_bounds(
    valkey: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first that is found, with the shortest way; it is sent when its site belongs to the crawl."""
    monkeypatch.setattr(offers, "MOST_OF_A_SITE", 3)
    monkeypatch.setattr(offers, "MOST_OUTSIDE", 1_000)
    third = "http://127.0.3.3"

    async def check() -> None:
        async with offering(valkey, scope="seeds") as one:
            await one.read_seeds(A)
            for depth in (2, 1):
                one.offers.add(B, [f"/{number}" for number in range(5)], depth)
                await one.offers.send()
            one.offers.add(third, [f"/{number}" for number in range(5)], 1)
            await one.offers.send()
            assert await one.paths(B) == await one.paths(third) == []
            await one.seeding.queue_seeds([Seed(B, "/"), Seed(third, "/")])
            one.offers.look_again()
            await one.offers.send()
            sent = {(offer.site, path): offer.depth for offer in one.queue.calls[-1] for path in offer.paths}
            assert sent == {(site, f"/{number}"): 1 for site in (B, third) for number in range(3)}

    asyncio.run(check())
