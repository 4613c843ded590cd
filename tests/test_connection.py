"""crawler.queue.connection over a real server: an agent's many calls at once share few connections."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis
import uvloop
from scrapy.settings import Settings

from crawler.queue import connection
from crawler.queue.connection import MOST_CONNECTIONS
from tests.servers import RunningServer

CALLS = 500
OURS = "ours"


def connections_of(given: dict[str, Any]) -> int:
    """How many connections many calls at once took; each is answered."""
    given = {**given, "REDIS_PARAMS": {**given.get("REDIS_PARAMS", {}), "client_name": OURS}}

    async def called() -> int:
        client = connection.connect(Settings(given))
        try:
            answers = await asyncio.gather(*(client.echo(str(one)) for one in range(CALLS)))
            assert answers == [str(one).encode() for one in range(CALLS)]
            return sum(one["name"] == OURS for one in await client.client_list())
        finally:
            await client.aclose()

    return asyncio.run(called())


@pytest.mark.parametrize(
    ("params", "most"),
    [({}, MOST_CONNECTIONS), ({"max_connections": 5}, 5)],
    ids=["ours", "as REDIS_PARAMS says"],
)
def test_calls_that_find_no_connection_free_wait_for_one(
    valkey: RunningServer, params: dict[str, Any], most: int
) -> None:
    assert connections_of({"REDIS_URL": valkey.url, "REDIS_PARAMS": params}) == most


@pytest.mark.parametrize("loop", ["standard", "uvloop"])
def test_a_connection_that_was_closed_meanwhile_is_a_connection_error(
    valkey: RunningServer, loop: str
) -> None:
    """As after a silent outage: the kernel has given the connection up, and the library writes to it."""

    async def written() -> None:
        client = connection.connect(Settings({"REDIS_URL": valkey.url}))
        try:
            pool: Any = client.connection_pool
            used = await pool.get_connection()
            used._writer.transport.abort()
            await pool.release(used)
            with pytest.raises(redis.ConnectionError):
                await client.ping()
            assert await client.ping()
        finally:
            await client.aclose()

    (uvloop.run if loop == "uvloop" else asyncio.run)(written())


def test_an_address_by_parts_is_no_other_case(valkey: RunningServer) -> None:
    path = valkey.url.removeprefix("unix://")
    assert connections_of({"REDIS_PARAMS": {"unix_socket_path": path}}) == MOST_CONNECTIONS


def test_the_addresses_own_bound_holds(valkey: RunningServer) -> None:
    assert connections_of({"REDIS_URL": f"{valkey.url}?max_connections=7"}) == 7
