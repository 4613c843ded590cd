"""`scrapy doctor`: a healthy crawl passes, and everything that would stop or harm one is named with what to do."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import Any

import pytest

from crawler.store.database import migrate, open_database
from tests.crawling import Place, Run
from tests.servers import RunningServer, eventually, free_port
from tests.small_site import SmallSite, links


def findings(run: Run) -> dict[str, dict[str, str]]:
    """What `--json` printed, by what was looked at."""
    return {finding["what"]: finding for finding in json.loads(run.out)}


def bad(place: Place, **given: Any) -> dict[str, dict[str, str]]:
    """The bad findings of a doctor who ends with 1."""
    run = place.run("doctor", "--json", **given)
    assert run.code == 1, run.out + run.err
    assert "Traceback" not in run.err
    found = {what: one for what, one in findings(run).items() if one["grade"] == "bad"}
    assert found
    return found


def test_a_new_machine_is_healthy(place: Place) -> None:
    run = place.run("doctor").succeeded()
    assert "0 problems" in run.out
    assert "BAD" not in run.out
    for what in (
        "VAR_DIR",
        "disk",
        "descriptors",
        "USER_AGENT",
        "Redis",
        "eviction",
        "append-only",
        "clock",
        "database",
    ):
        assert f"  {what} " in run.out, run.out
    assert "has no contact" in run.out
    place.check_nothing_left()


def test_a_coordinator_that_left_is_not_alive(place: Place) -> None:
    with SmallSite({"/": links()}) as site:
        place.crawl([site.root]).succeeded()
    found = findings(place.run("doctor", "--json"))
    assert found["coordinator"]["found"] == "none is running, the stream is empty"


def test_a_named_server_with_its_coordinator_is_healthy(place: Place, valkey: RunningServer) -> None:
    place.var.mkdir()
    database = {"DATABASE_URL": f"sqlite:///{place.var}/crawl.db", "REDIS_URL": valkey.url}
    coordinator = place.start("coordinate", **database)
    coordinator.says("writes to")
    eventually(lambda: valkey.client.keys("lt:{0}:coordinator:*"), "a heartbeat")
    run = place.run("doctor", "--json", **database, USER_AGENT="bot (+https://example.org)").succeeded()
    found = findings(run)
    assert {one["grade"] for one in found.values()} == {"good"}, found
    assert "0 records in the stream" in found["coordinator"]["found"]
    assert "tables of version" in found["database"]["found"]
    assert valkey.url in found["Redis"]["found"]
    coordinator.end().succeeded()


def test_a_server_that_is_away(place: Place) -> None:
    url = f"redis://:secret@127.0.0.1:{free_port()}"
    found = bad(place, REDIS_URL=url)
    assert set(found) == {"Redis"}
    assert "127.0.0.1" in found["Redis"]["found"]
    assert "secret" not in str(found)
    assert "REDIS_URL" in found["Redis"]["advice"]


def test_a_server_that_forgets_or_evicts(place: Place, valkey: RunningServer) -> None:
    valkey.client.config_set("maxmemory", "100mb")
    valkey.client.config_set("maxmemory-policy", "allkeys-lru")
    assert set(bad(place, REDIS_URL=valkey.url)) == {"eviction"}
    valkey.client.config_set("appendonly", "no")
    found = bad(place, REDIS_URL=valkey.url)
    assert found["eviction"]["found"] == "allkeys-lru"
    assert "noeviction" in found["eviction"]["advice"]
    assert found["append-only"]["found"] == "off"
    assert "config set appendonly yes" in found["append-only"]["advice"]
    # Without a limit nothing is evicted, whatever the policy.
    valkey.client.config_set("maxmemory", "0")
    assert set(bad(place, REDIS_URL=valkey.url)) == {"append-only"}


def test_records_that_nobody_stores(place: Place, valkey: RunningServer) -> None:
    valkey.client.xadd("lt:{0}:results", {"v": "1", "r": "{}"})
    found = bad(place, REDIS_URL=valkey.url)
    assert set(found) == {"coordinator"}
    assert found["coordinator"]["found"] == "none is running, 1 records in the stream"
    assert "scrapy coordinate" in found["coordinator"]["advice"]


def test_tables_of_another_version(place: Place) -> None:
    place.var.mkdir()
    engine = open_database(f"sqlite:///{place.var}/crawl.db")
    migrate(engine)
    engine.dispose()
    with closing(sqlite3.connect(place.var / "crawl.db")) as connection:
        connection.execute("update lowtide_version set version_num = '9999'")
        connection.commit()
    found = bad(place)
    assert set(found) == {"database"}
    assert "holds tables of version 9999" in found["database"]["found"]
    run = place.run("doctor")
    assert run.code == 1
    assert "BAD   database" in run.out
    assert "1 problem" in run.out


@pytest.mark.parametrize("url", ["nonsense", "sqlite:////no/such/folder/x.db"])
def test_a_database_that_cannot_work(place: Place, url: str) -> None:
    found = bad(place, DATABASE_URL=url)
    assert set(found) == {"database"}
    assert url in found["database"]["found"]


def test_a_database_that_refuses(place: Place) -> None:
    found = bad(place, DATABASE_URL=f"postgresql+psycopg://me:secret@127.0.0.1:{free_port()}/x")
    assert set(found) == {"database"}
    assert "refused" in found["database"]["found"]
    assert "secret" not in found["database"]["found"]


def test_a_folder_that_cannot_be_written(place: Place) -> None:
    (place.folder / "file").write_text("in the way")
    found = bad(place, VAR_DIR=place.folder / "file" / "var")
    assert "VAR_DIR" in found
    assert str(place.folder / "file") in found["VAR_DIR"]["found"]
    assert "expected a writable folder" in found["VAR_DIR"]["advice"]


def test_more_slots_than_descriptors(place: Place) -> None:
    found = bad(place, SITE_SLOTS=10_000_000)
    assert set(found) == {"descriptors"}
    assert "ulimit -n" in found["descriptors"]["advice"]
