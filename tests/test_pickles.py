"""What anybody can write into Redis runs no code: a pickle in any key that is read is refused, and the crawl goes on.

A house test sees to it that no module can load one; here it is tried.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.crawling import Place, wait_for_hits
from tests.farm import Farm
from tests.servers import RunningServer, eventually

LOADED = "import pickle, sys; pickle.load(sys.stdin.buffer)"


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """A file that is there once the pickle was loaded."""
    return tmp_path / "loaded"


@pytest.fixture
def pickle(marker: Path) -> bytes:
    """It works: whoever loads it makes the file."""
    made = f"cposix\nsystem\n(S'touch {marker}'\ntR.".encode()
    subprocess.run([sys.executable, "-c", LOADED], input=made, check=True)
    marker.unlink()
    return made


def poison_all(redis: Any, pickle: bytes) -> int:
    """Puts the pickle into every key there is, in place of what it held; how many there were."""
    keys = redis.keys("lt:*")
    for key in keys:
        kind = redis.type(key).decode()
        if kind == "list":
            for place in range(redis.llen(key)):
                redis.lset(key, place, pickle)
        elif kind == "hash":
            redis.hset(key, mapping=dict.fromkeys(redis.hkeys(key), pickle))
        elif kind == "set":
            redis.sadd(key, pickle)
        elif kind == "zset":
            redis.zadd(key, {pickle: 1})
        elif kind == "stream":
            redis.xadd(key, {"record": pickle, pickle: pickle})
        else:
            redis.set(key, pickle)
    return len(keys)


@pytest.mark.timeout(180)
def test_a_pickle_in_any_key_runs_nothing(
    place: Place, valkey: RunningServer, pickle: bytes, marker: Path
) -> None:
    redis = valkey.client
    place.var.mkdir()
    given = {"REDIS_URL": valkey.url, "DATABASE_URL": f"sqlite:///{place.var}/crawl.db"}
    with Farm(sites=2, pages=30, kinds=(), names=(), delay_ms=30) as farm:
        first = place.start_crawl(farm.seeds, **given)
        wait_for_hits(farm, 20)
        first.end().succeeded()
        checkpoints = redis.keys("lt:{0}:checkpoint:*")
        assert len(checkpoints) == 2
        for key in checkpoints:
            redis.lset(key, 0, pickle)
        redis.rpush("site:start_urls", pickle)
        redis.xadd("lt:{0}:results", {"record": pickle})
        redis.xadd("lt:{0}:results", {pickle: pickle})
        coordinator = place.start("coordinate", **given)
        second = place.crawl((), **given).succeeded()
        assert "is not a seed" in second.err
        assert second.err.count("starting over") == 2, second.err
        eventually(lambda: place.stored() == farm.expected(), "every page")
        eventually(lambda: redis.xlen("lt:{0}:results") == 0, "all is stored or refused")
        assert len(place.rows("select reason from dead_letters")) == 2
        coordinator.end().succeeded()
        assert poison_all(redis, pickle) > 8
        # No crawl is left to go on with; what is asked here may fail, but it ends.
        runs = [
            place.start("site", "list", **given),
            place.start("queue", "show", **given),
            place.start("report", **given),
            place.start_crawl(farm.seeds, **given),
        ]
        for run in runs:
            run.wait()
    assert not marker.exists()
