"""A queue that was lost while the tables have unfinished sites: agents say so and end with 1, and so do others."""

from __future__ import annotations

import shutil
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from tests.crawling import Place, Run
from tests.servers import RunningServer, eventually
from tests.small_site import SmallSite, links

KEY = "lt:{0}:tables"
LOST = "the queue does not know {} unfinished sites of the tables"


@contextmanager
def long_sites(many: int = 2) -> Iterator[list[SmallSite]]:
    """Sites that no test waits for to the end of."""
    pages = {f"/{number}": links() for number in range(300)}
    sites = [SmallSite({"/": links(*pages), **pages}, f"127.0.3.{number}") for number in range(1, many + 1)]
    for site in sites:
        site.__enter__()
    try:
        yield sites
    finally:
        for site in sites:
            site.__exit__()


@contextmanager
def short_site(host: str = "127.0.4.1") -> Iterator[SmallSite]:
    """A site that is done at once."""
    with SmallSite({"/": links()}, host) as site:
        yield site


def begin(place: Place, sites: list[SmallSite], **given: Any) -> None:
    """A crawl that ends with all of these sites unfinished, in queue and tables."""
    before = [len(site.paths) for site in sites]
    roots = [site.root for site in sites]
    run = place.start_crawl(roots, "--no-summary", DOWNLOAD_DELAY=0.1, **given)
    eventually(
        lambda: all(len(site.paths) > many + 5 for site, many in zip(sites, before, strict=True)),
        "all sites are begun",
    )
    run.end().succeeded()


def unfinished(place: Place) -> int:
    """Sites that are not finished in the tables."""
    return int(place.rows("select count(*) from sites where state <> 'finished'")[0][0])


# --- one machine ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seeded", [True, False])
def test_a_lost_queue_is_no_crawl_that_is_done(place: Place, seeded: bool) -> None:
    with long_sites() as sites, short_site() as other:
        begin(place, sites)
        place.check_nothing_left()
        assert unfinished(place) == 2
        shutil.rmtree(place.var / "valkey")
        run = place.crawl([other.root] if seeded else [])
        run.refused(LOST.format(2), "`scrapy queue rebuild` brings them back", code=1)
        assert place.run("doctor").code == 1
        assert "lacks 2 unfinished sites of the tables" in place.run("doctor").out
        place.run("queue", "rebuild").succeeded()
        assert "0 problems" in place.run("doctor").succeeded().out
        place.crawl([]).succeeded()
        assert unfinished(place) == 0
        assert all(len(set(site.paths)) == 302 for site in sites)


def test_sites_that_are_found_again_are_not_lost(place: Place) -> None:
    """The same command after the loss of the queue walks everything again: nothing is missing at its end."""
    with long_sites() as sites:
        begin(place, sites)
        place.check_nothing_left()
        shutil.rmtree(place.var / "valkey")
        place.crawl([site.root for site in sites]).succeeded()
        assert unfinished(place) == 0


def test_a_queue_that_is_reset_on_purpose_is_not_lost(place: Place) -> None:
    with long_sites() as sites, short_site() as other:
        begin(place, sites)
        place.check_nothing_left()
        place.run("queue", "reset", "--yes").succeeded()
        place.crawl([other.root]).succeeded()
        assert "0 problems" in place.run("doctor").succeeded().out
        # What is found after the reset is missed as ever.
        begin(place, sites[:1])
        place.check_nothing_left()
        shutil.rmtree(place.var / "valkey")
        place.crawl([other.root]).refused(LOST.format(2), code=1)


def test_two_crawls_that_share_the_tables_miss_nothing_of_each_other(place: Place) -> None:
    with long_sites(1) as sites, short_site() as other:
        begin(place, sites)
        place.check_nothing_left()
        place.crawl([other.root], KEY_PREFIX="second").succeeded()


def test_a_forgotten_site_is_not_lost(place: Place) -> None:
    with long_sites() as sites:
        begin(place, sites)
        place.check_nothing_left()
        for site in sites:
            place.run("site", "forget", site.site).succeeded()
        place.crawl([]).refused("no seeds", code=2)


# --- a server of one's own --------------------------------------------------------------------------------


class Crawl:
    """Agents on a named server, and coordinators beside them."""

    def __init__(self, place: Place, server: RunningServer) -> None:
        self._place = place
        self._given = {"REDIS_URL": server.url, "DATABASE_URL": f"sqlite:///{place.var}/crawl.db"}
        place.var.mkdir(exist_ok=True)

    def run(self, *words: str) -> Run:
        return self._place.run(*words, **self._given)

    def coordinator(self) -> Run:
        return self._place.start("coordinate", BATCH_SECONDS=0.1, **self._given)

    def agent(self, sites: list[SmallSite], *words: str, **given: Any) -> Run:
        roots = [site.root for site in sites]
        return self._place.start_crawl(roots, "--no-summary", *words, **{**self._given, **given})


def test_a_server_that_forgets_in_the_middle_of_a_crawl(place: Place, valkey: RunningServer) -> None:
    crawl = Crawl(place, valkey)
    with long_sites() as sites:
        coordinator = crawl.coordinator()
        given = {"DOWNLOAD_DELAY": 0.1, "SITE_SLOTS": 1, "LEASE_SECONDS": 3}
        agents = [crawl.agent(sites, **given)]
        eventually(lambda: unfinished_or_none(place) == 2, "the tables know both sites")
        agents.append(crawl.agent([], **given))
        eventually(lambda: all_held(valkey), "each has a site")
        valkey.client.flushall()
        for agent in agents:
            agent.wait().refused("unfinished", "`scrapy queue rebuild`", code=1)
        coordinator.says(LOST.format(2))
        assert "lacks 2 unfinished sites of the tables" in crawl.run("doctor").out
        crawl.run("queue", "rebuild").succeeded()
        crawl.agent([]).wait().succeeded()
        eventually(lambda: not valkey.client.xlen("lt:{0}:results"), "everything is stored")
        assert unfinished(place) == 0
        crawl.run("doctor").succeeded()
        coordinator.end().succeeded()


def all_held(server: RunningServer) -> bool:
    """Whether two agents hold a site each."""
    return len(list(server.client.scan_iter("lt:{0}:held:*"))) == 2


def unfinished_or_none(place: Place) -> int:
    """As `unfinished`, 0 before there are tables."""
    if not (place.var / "crawl.db").exists():
        return 0
    with suppress(sqlite3.OperationalError):  # they are just being made
        return unfinished(place)
    return 0


def test_an_agent_waits_for_a_coordinator_that_starts_with_it(place: Place, valkey: RunningServer) -> None:
    crawl = Crawl(place, valkey)
    with long_sites() as sites:
        begin(place, sites, REDIS_URL=valkey.url)
        coordinator = crawl.coordinator()
        eventually(lambda: unfinished_or_none(place) == 2, "both sites are stored")
        coordinator.end().succeeded()
        valkey.client.flushall()
        agent = crawl.agent([])
        coordinator = crawl.coordinator()
        agent.wait().refused(LOST.format(2), code=1)
        coordinator.end().succeeded()


def test_an_agent_that_waits_for_seeds_says_what_is_lost_and_goes_on(
    place: Place, valkey: RunningServer
) -> None:
    crawl = Crawl(place, valkey)
    with long_sites() as sites, short_site() as other:
        begin(place, sites, REDIS_URL=valkey.url)
        coordinator = crawl.coordinator()
        eventually(lambda: unfinished_or_none(place) == 2, "both sites are stored")
        valkey.client.flushall()
        agent = crawl.agent([other], "--when-idle", "wait", LEASE_SECONDS=1)
        agent.says(LOST.format(2))
        crawl.run("queue", "rebuild").succeeded()
        eventually(lambda: all(len(set(site.paths)) == 302 for site in sites), "they are walked")
        agent.end(signal.SIGTERM).succeeded()
        coordinator.end().succeeded()


def test_a_site_that_is_just_being_forgotten_is_not_lost(place: Place, valkey: RunningServer) -> None:
    """The queue forgets at once, the tables when the order has passed the stream."""
    crawl = Crawl(place, valkey)
    with long_sites() as sites:
        begin(place, sites, REDIS_URL=valkey.url)
        coordinator = crawl.coordinator()
        eventually(lambda: valkey.client.hget(KEY, "lost") == b"0", "the coordinator has counted")
        eventually(lambda: unfinished_or_none(place) == 2, "both sites are stored")
        coordinator.end().succeeded()
        for site in sites:
            place.run("site", "forget", site.site, REDIS_URL=valkey.url).succeeded()
        assert unfinished(place) == 2
        crawl.agent([]).wait().refused("no seeds", code=2)
        coordinator = crawl.coordinator()
        eventually(lambda: not unfinished(place), "the orders are obeyed")
        coordinator.end().succeeded()
        assert "does not know" not in coordinator.err
