"""Seeds that arrive over Redis while a crawl runs, and the Redis that the settings name: scrapy-redis's words hold.

Agent and coordinator are processes of their own here, on a server that neither has started, as on many machines.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from crawler.agent.seeding import TOLD_LINES
from tests.crawling import Place, Run
from tests.farm import Farm
from tests.servers import RunningServer, eventually, free_port

INLET = "site:start_urls"


@pytest.fixture(scope="module")
def farm() -> Iterator[Farm]:
    with Farm(sites=9, pages=3, kinds=(), names=()) as started:
        yield started


@contextmanager
def running(place: Place, **given: Any) -> Iterator[tuple[Run, Run]]:
    """A waiting agent and a coordinator that stores into VAR_DIR/crawl.db; both end by SIGTERM, with code 0."""
    place.var.mkdir(exist_ok=True)
    database = {"DATABASE_URL": f"sqlite:///{place.var}/crawl.db"}
    coordinator = place.start("coordinate", **database, BATCH_SECONDS=0.1, **given)
    agent = place.start_crawl((), "--when-idle", "wait", **given)
    coordinator.says("writes to")
    agent.says("Spider opened")
    yield agent, coordinator
    agent.end().succeeded()
    coordinator.end().succeeded()


def stored(place: Place) -> set[str]:
    return set(place.stored())


def test_every_way_in(place: Place, valkey: RunningServer, farm: Farm, tmp_path: Path) -> None:
    sites = [farm.site(number) for number in range(9)]
    redis = valkey.client
    with running(place, REDIS_URL=valkey.url) as (agent, coordinator):
        redis.lpush(INLET, sites[0], json.dumps({"url": sites[1] + "/", "meta": {"any": 1}}))
        eventually(lambda: stored(place) == set(sites[:2]), "seeds of a list")
        redis.sadd(INLET, sites[2], json.dumps({"url": sites[3]}))
        eventually(lambda: stored(place) == set(sites[:4]), "seeds of a set")
        redis.zadd(INLET, {sites[4]: 2, json.dumps({"url": sites[5]}): 1})
        eventually(lambda: stored(place) == set(sites[:6]), "seeds of a sorted set")

        redis.rpush(INLET, "no url", b"\xff\x80", '{"link": "x"}', "ftp://127.0.0.1/", sites[6])
        eventually(lambda: stored(place) == set(sites[:7]), "the good one among bad values")
        assert agent.err.count("is not a seed") == 4
        assert "expected a URL or JSON with a url" in agent.err

        file = tmp_path / "seeds.txt"
        file.write_text(f"# one new, one known\n{sites[7]}\n{sites[0]}\n")
        said = place.run("seed", str(file), REDIS_URL=valkey.url).succeeded().out
        assert "1 sites added, 1 known before" in said
        added = place.run("seed", sites[8], sites[8], "--json", REDIS_URL=valkey.url).succeeded().out
        assert json.loads(added)["new"] == 1
        eventually(lambda: stored(place) == set(sites), "seeds of the command")

        assert redis.exists(INLET) == 0
        assert agent.process.poll() is None
        eventually(lambda: place.stored() == farm.expected(), "every page")
        assert "[agent] " in agent.err
        assert "[agent] " not in coordinator.err
        assert "[coordinator] " in coordinator.err
    assert redis.xlen("lt:{0}:results") == 0
    assert redis.zcard("lt:{0}:agents") == 0
    assert redis.keys("lt:{0}:held:*") == []
    assert redis.keys("lt:{0}:coordinator:*") == []


def test_an_inlet_of_another_kind_is_told(place: Place, valkey: RunningServer) -> None:
    """Once, however often it is looked at."""
    valkey.client.set(INLET, "http://127.0.1.1/")
    agent = place.start_crawl((), "--when-idle", "wait", REDIS_URL=valkey.url)
    words = f"{INLET} is a string; expected a list, set or sorted set of URLs"
    agent.says(words)
    looks = looks_at_the_inlet(valkey)
    eventually(lambda: looks_at_the_inlet(valkey) >= looks + 2, "it is looked at again")
    agent.end().succeeded()
    assert agent.err.count(words) == 1


def test_what_another_crawler_left_is_taken_over(place: Place, valkey: RunningServer, farm: Farm) -> None:
    """From another server, whole; what is no URL stays there, so that nothing is lost that somebody may want."""
    pickled = b"\x80\x04\x95\x0a\x00"
    folder = place.folder / "theirs"
    folder.mkdir()
    theirs = RunningServer(folder)
    try:
        for number, kind in enumerate(("list", "set", "zset")):
            sites = range(3 * number, 3 * number + 3)
            plain = [f"{farm.site(site)}/{page}" for site in sites for page in range(700)]
            put(theirs, kind, "old:start_urls", [*plain[:900], pickled, *plain[900:]])
            words = ("seed", "--take-over", "old:start_urls", "--from", theirs.url)
            said = place.run(*words, REDIS_URL=valkey.url).succeeded().out
            assert said.startswith("3 sites added, ")
            assert said.endswith(" 1 lines left out\n")
            assert left(theirs, kind, "old:start_urls") == [pickled]
            theirs.client.delete("old:start_urls")
    finally:
        theirs.stop()
    for site in range(9):
        paths = valkey.client.lrange(f"lt:{{0}}:paths:{farm.site(site)}", 0, -1)
        given = [path for text in paths for path in text.decode().split("\n")]
        assert set(given) >= {f"/{page}" for page in range(700)}


def test_a_server_to_take_from_that_is_away(place: Place, valkey: RunningServer) -> None:
    words = ("seed", "--take-over", "old:start_urls", "--from", "redis://127.0.0.1:1/0")
    place.run(*words, REDIS_URL=valkey.url).refused("127.0.0.1:1", "does not answer", code=1)
    place.run("seed", "--from", valkey.url, "https://example.org").refused("expected the key too", code=2)


def put(server: RunningServer, kind: str, key: str, values: list[Any]) -> None:
    if kind == "list":
        server.client.lpush(key, *values)
    elif kind == "set":
        server.client.sadd(key, *values)
    else:
        server.client.zadd(key, {value: number % 7 for number, value in enumerate(values)})


def left(server: RunningServer, kind: str, key: str) -> list[bytes]:
    if kind == "list":
        return list(server.client.lrange(key, 0, -1))
    return list(server.client.smembers(key) if kind == "set" else server.client.zrange(key, 0, -1))


def looks_at_the_inlet(valkey: RunningServer) -> int:
    """How often its kind was asked for."""
    return int(valkey.client.info("commandstats").get("cmdstat_type", {"calls": 0})["calls"])


def test_one_value_that_cannot_be_used_costs_no_other(
    place: Place, valkey: RunningServer, farm: Farm
) -> None:
    """Neither in its own batch nor in a later one, however many there are."""
    redis = valkey.client
    with running(place, REDIS_URL=valkey.url) as (agent, _):
        redis.rpush(INLET, "https://example.org/", farm.seeds[0])
        eventually(lambda: stored(place) == {farm.site(0)}, "the good one beside one without a contact")
        assert "https://example.org skipped: USER_AGENT 'lowtide' has no contact" in agent.err
        redis.rpush(INLET, *(f"bad {number}" for number in range(TOLD_LINES + 5)))
        eventually(lambda: redis.exists(INLET) == 0, "many bad ones are taken out")
        looks = looks_at_the_inlet(valkey)
        eventually(lambda: looks_at_the_inlet(valkey) >= looks + 2, "and that batch is over")
        redis.rpush(INLET, "the last bad one", farm.seeds[1])
        eventually(lambda: stored(place) == {farm.site(0), farm.site(1)}, "the good one of a later batch")
        eventually(lambda: "'the last bad one' is not a seed" in agent.err, "the last one is told")
        assert agent.err.count("'bad ") == TOLD_LINES
        assert redis.exists(INLET) == 0


def test_another_inlet_and_prefix(place: Place, valkey: RunningServer, farm: Farm) -> None:
    given = {"REDIS_URL": valkey.url, "START_URLS_KEY": "mine", "KEY_PREFIX": "other"}
    valkey.client.lpush("mine", farm.seeds[0])
    place.start_crawl((), **given).wait().succeeded()
    assert valkey.client.xlen("other:{0}:results") > 3
    assert valkey.client.keys("lt:*") == []
    assert valkey.client.exists("mine") == 0


def test_redis_params_are_used(place: Place, valkey: RunningServer, farm: Farm) -> None:
    given = {"REDIS_URL": valkey.url, "REDIS_PARAMS": {"db": 3, "client_name": "lowtide-probe"}}
    with running(place, **given):
        names = {client["name"] for client in valkey.client.client_list()}
        assert "lowtide-probe" in names
        run = place.run("seed", farm.seeds[0], **given).succeeded()
        assert "1 sites added" in run.out
        eventually(lambda: len(place.stored()) == 1, "a crawl in database 3")
    sizes = valkey.client.info("keyspace")
    assert set(sizes) == {"db3"}


def test_host_and_port_name_a_server_too(place: Place, valkey: RunningServer, farm: Farm) -> None:
    port = free_port()
    valkey.client.config_set("bind", "127.0.0.1")
    valkey.client.config_set("port", port)
    run = place.crawl(farm.seeds[:1], REDIS_HOST="127.0.0.1", REDIS_PORT=port, REDIS_DB=2)
    run.succeeded()
    assert set(valkey.client.info("keyspace")) == {"db2"}
    assert not (place.var / "valkey").exists(), "a server of its own was started"
