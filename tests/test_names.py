"""Names against a name server of our own: order, caches, failures, and what needs no look-up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from scrapy.exceptions import CannotResolveHostError

from crawler.fetch.dns import CACHE_NAMES, FAILURE_SECONDS, LONGEST_SECONDS, SHORTEST_SECONDS, Names
from tests.raw_server import in_loop, name_server, until

LITERALS = [
    ("192.0.2.7", "192.0.2.7"),
    ("2001:db8::7", "2001:db8::7"),
    ("[2001:DB8:0::7]", "2001:db8::7"),
    ("127.1", "127.0.0.1"),
    ("0x7f000001", "127.0.0.1"),
    ("0x0a.1", "10.0.0.1"),
    ("2130706433", "127.0.0.1"),
    ("0177.0.0.1", "127.0.0.1"),
    ("localhost", "127.0.0.1"),
    ("LOCALHOST.", "127.0.0.1"),
    ("a.b.localhost", "127.0.0.1"),
]


@asynccontextmanager
async def resolver(*args: Any) -> AsyncIterator[Names]:
    """Names that are closed at the end also when the test fails."""
    names = Names(*args)
    try:
        yield names
    finally:
        await names.close()


class Clock:
    """Monotonic seconds that a test moves by hand."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(("host", "address"), LITERALS)
def test_what_needs_no_look_up(host: str, address: str) -> None:
    @in_loop
    async def scene() -> None:
        async with name_server({}) as (server, where), resolver(1.0, [where]) as names:
            assert await names.resolve(host) == [address]
            assert server.asked == []

    scene()


@pytest.mark.parametrize("host", ["1.2.3.999", "1.2.3.4.5", "::g", "[::1", "0xzz"])
@in_loop
async def test_neither_name_nor_address(host: str) -> None:
    async with resolver(0.2, ["127.0.0.1:9"]) as names:
        if host == "[::1":
            assert await names.resolve(host) == ["::1"]
        else:
            with pytest.raises(CannotResolveHostError, match=r"neither a name nor an address"):
                await names.resolve(host)


@in_loop
async def test_ipv4_comes_first_and_the_answer_is_remembered() -> None:
    zone = {"both.example": ["2001:db8::1", "192.0.2.1", "192.0.2.2"]}
    async with name_server(zone) as (server, where), resolver(2.0, [where]) as names:
        first = await names.resolve("both.example")
        assert sorted(first[:2]) == ["192.0.2.1", "192.0.2.2"]
        assert first[2] == "2001:db8::1"
        asked = len(server.asked)
        assert await names.resolve("both.example") == first
        assert len(server.asked) == asked


@in_loop
async def test_a_name_with_ipv6_only() -> None:
    async with name_server({"six.example": ["2001:db8::6"]}) as (_, where), resolver(2.0, [where]) as names:
        assert await names.resolve("six.example") == ["2001:db8::6"]


@in_loop
async def test_the_address_that_worked_stays_first_over_look_ups() -> None:
    zone, clock = {"two.example": ["192.0.2.1", "192.0.2.2"]}, Clock()
    async with name_server(zone, ttl_s=0) as (server, where), resolver(2.0, [where], clock) as names:
        first, second = await names.resolve("two.example")
        names.worked("two.example", second)
        assert await names.resolve("two.example") == [second, first]
        asked, clock.now = len(server.asked), clock.now + LONGEST_SECONDS
        assert await names.resolve("two.example") == [second, first]
        assert len(server.asked) > asked
        zone["two.example"] = [first]
        clock.now += LONGEST_SECONDS
        assert await names.resolve("two.example") == [first]


@pytest.mark.parametrize(("ttl_s", "kept_s"), [(0, SHORTEST_SECONDS), (120, 120), (86_400, LONGEST_SECONDS)])
@in_loop
async def test_the_answers_lifetime_is_bounded(ttl_s: int, kept_s: float) -> None:
    clock = Clock()
    zone = {"a.example": ["192.0.2.1"]}
    async with name_server(zone, ttl_s) as (server, where), resolver(2.0, [where], clock) as names:
        await names.resolve("a.example")
        asked = len(server.asked)
        clock.now += kept_s - 2
        await names.resolve("a.example")
        assert len(server.asked) == asked
        # c-ares has a cache of its own behind ours, so a second question cannot be waited for here.
        assert names._cache["a.example"].until == pytest.approx(clock.now + 2, abs=1.1)


@in_loop
async def test_a_name_that_does_not_exist_is_asked_for_once() -> None:
    clock = Clock()
    async with name_server({}) as (server, where), resolver(2.0, [where], clock) as names:
        for _ in range(3):
            with pytest.raises(CannotResolveHostError, match=r"gone\.example: .*not found"):
                await names.resolve("gone.example")
        asked = len(server.asked)
        server.zone["gone.example"] = ["192.0.2.9"]
        clock.now += FAILURE_SECONDS + 1
        assert await names.resolve("gone.example") == ["192.0.2.9"]
        assert len(server.asked) > asked


@in_loop
async def test_search_domains_are_not_tried() -> None:
    async with name_server({}) as (server, where), resolver(2.0, [where]) as names:
        with pytest.raises(CannotResolveHostError):
            await names.resolve("gone.example")
        assert set(server.asked) == {"gone.example"}


@in_loop
async def test_a_silent_name_server_costs_the_limit_and_holds_up_nobody() -> None:
    zone = {"good.example": ["192.0.2.1"]}
    mute = frozenset(f"mute{number}.example" for number in range(100))
    async with name_server(zone, mute=mute) as (_, where), resolver(1.5, [where]) as names:
        hanging = [asyncio.ensure_future(names.resolve(host)) for host in sorted(mute)]
        await asyncio.sleep(0)
        assert await names.resolve("good.example") == ["192.0.2.1"]
        assert not any(task.done() for task in hanging)
        answers = await asyncio.gather(*hanging, return_exceptions=True)
        assert all(isinstance(one, CannotResolveHostError) for one in answers)
        assert "no answer within 1.5 s (CONNECT_TIMEOUT_SECONDS)" in str(answers[0])


@in_loop
async def test_look_ups_of_one_name_are_one_and_survive_a_waiter_that_leaves() -> None:
    async with (
        name_server({"slow.example": ["192.0.2.1"]}, mute=frozenset(["slow.example"])) as (
            server,
            where,
        ),
        resolver(8.0, [where]) as names,
    ):
        waiting = [asyncio.ensure_future(names.resolve("slow.example")) for _ in range(20)]
        await until(lambda: len(server.asked) == 2)
        waiting.pop().cancel()
        server.mute = frozenset()
        assert await asyncio.gather(*waiting) == [["192.0.2.1"]] * 19
        assert len(server.asked) <= 4


@in_loop
async def test_closing_ends_look_ups_at_once() -> None:
    mute = frozenset(["slow.example"])
    async with name_server({}, mute=mute) as (server, where), resolver(10.0, [where]) as names:
        waiting = asyncio.ensure_future(names.resolve("slow.example"))
        await until(lambda: bool(server.asked))
        await names.close()
        with pytest.raises(CannotResolveHostError, match="closed"):
            await waiting
        with pytest.raises(CannotResolveHostError, match="closed"):
            await names.resolve("other.example")
            await names.close()


def listed() -> tuple[str, str]:
    """A name of this machine's own hosts file, other than localhost, and its address."""
    for line in Path("/etc/hosts").read_text().splitlines():
        address, *hosts = line.partition("#")[0].split() or [""]
        for host in hosts:
            if ":" not in address and not host.startswith(("localhost", "ip6-")):
                return host, address
    pytest.skip("the hosts file lists nothing but localhost")


@in_loop
async def test_the_hosts_file_is_honoured() -> None:
    host, address = listed()
    async with name_server({}) as (server, where), resolver(2.0, [where]) as names:
        assert address in await names.resolve(host)
        assert server.asked == []


@in_loop
async def test_names_that_share_an_address_in_the_hosts_file_keep_their_own(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("127.0.0.1 A.example # 127.0.0.9 a.example\n127.0.0.1\tb.example bb.example.\n::2 b.example\n"
                    "127.0.0.2 b.example\nno b.example\n127.0.0.3\n\n")  # fmt: skip
    async with name_server({"c.example": ["127.0.0.7"]}) as (server, where):
        names = Names(2.0, [where], hosts=file)
        assert await names.resolve("a.example") == ["127.0.0.1"]
        assert await names.resolve("B.example") == ["127.0.0.1", "127.0.0.2", "::2"]
        assert await names.resolve("bb.example") == ["127.0.0.1"]
        assert server.asked == []
        assert await names.resolve("c.example") == ["127.0.0.7"]
        file.write_text("127.0.0.3 d.example")
        assert await names.resolve("d.example") == ["127.0.0.3"]
        file.unlink()
        with pytest.raises(CannotResolveHostError):
            await names.resolve("e.example")
        await names.close()


@in_loop
async def test_the_cache_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crawler.fetch.dns.CACHE_NAMES", 3)
    zone = {f"n{number}.example": [f"192.0.2.{number}"] for number in range(5)}
    async with name_server(zone) as (_, where), resolver(2.0, [where]) as names:
        for host in zone:
            await names.resolve(host)
        assert list(names._cache) == ["n2.example", "n3.example", "n4.example"]
    assert CACHE_NAMES == 10_000


@pytest.mark.parametrize("host", ["a" * 64 + ".example", "a..example", "x" * 300, "\u00fc" * 80 + ".example"])
@in_loop
async def test_names_that_cannot_be(host: str) -> None:
    async with name_server({}) as (_, where), resolver(1.0, [where]) as names:
        with pytest.raises(CannotResolveHostError):
            await names.resolve(host)
