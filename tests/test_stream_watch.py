"""An agent says it when nobody stores its results, and when somebody does again."""

from __future__ import annotations

import logging

import pytest

from crawler.agent.watch import StreamWatch
from crawler.queue.sites import Depth
from tests.crawling import Place
from tests.farm import Farm
from tests.servers import RunningServer, eventually


def depth(records: int, *, coordinated: int) -> Depth:
    return Depth(*[0] * 9, records=records, agents=1, coordinated=coordinated)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was said since this was last asked."""
    told = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return told


def test_it_is_said_once_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    watch = StreamWatch(most=100, patience=0.0)
    with caplog.at_level(logging.WARNING):
        watch.look(depth(5, coordinated=0))
        (alone,) = said(caplog)
        assert alone.startswith("5 records wait in the results stream, but no coordinator is running")
        assert "scrapy coordinate" in alone
        watch.look(depth(9, coordinated=0))
        assert said(caplog) == []
        watch.look(depth(9, coordinated=1))
        assert said(caplog) == ["a coordinator is running again; 9 records wait"]
        watch.look(depth(9, coordinated=1))
        assert said(caplog) == []


def test_nothing_is_said_before_it_has_lasted(caplog: pytest.LogCaptureFixture) -> None:
    watch = StreamWatch(most=100, patience=3_600.0)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            watch.look(depth(5, coordinated=0))
    assert said(caplog) == []


def test_an_empty_stream_needs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    watch = StreamWatch(most=100, patience=0.0)
    with caplog.at_level(logging.WARNING):
        watch.look(depth(0, coordinated=0))
    assert said(caplog) == []


def test_fetching_pauses_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    watch = StreamWatch(most=100, patience=0.0)
    with caplog.at_level(logging.WARNING):
        assert not watch.look(depth(100, coordinated=1))
        assert watch.paused
        assert not watch.look(depth(51, coordinated=1))
        assert watch.paused
        assert watch.look(depth(50, coordinated=1)), "who waits must be woken"
        assert not watch.paused
    pauses, goes_on = said(caplog)
    assert pauses.startswith(
        "100 records wait in the results stream (STREAM_MAX_RECORDS 100): fetching is paused"
    )
    assert goes_on == "the results stream is down to 50 records: fetching resumes"


def test_an_agent_without_a_coordinator_says_so(place: Place, valkey: RunningServer) -> None:
    with Farm(sites=1, pages=30, kinds=(), names=()) as farm:
        run = place.start_crawl(
            farm.seeds, "--when-idle", "wait", REDIS_URL=valkey.url, LEASE_SECONDS=1, DOWNLOAD_DELAY=0.05
        )
        run.says("records wait in the results stream, but no coordinator is running to store them")
        database = f"sqlite:///{place.folder}/crawl.db"
        coordinator = place.start("coordinate", REDIS_URL=valkey.url, DATABASE_URL=database)
        run.says("a coordinator is running again;")
        eventually(lambda: valkey.client.xlen("lt:{0}:results") == 0, "all is stored")
        run.end().succeeded()
        coordinator.end().succeeded()
    assert run.err.count("no coordinator is running") == 1
