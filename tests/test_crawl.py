"""Whole crawls of the farm as a person runs them: what is stored is exactly what the farm declares.

One crawl of an untidy web by one agent, and one by two, are looked at from many sides; the others are small.
"""

from __future__ import annotations

import signal
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import pytest

from crawler.records import pack_links
from tests.crawling import Place, Run, check_delay, fetched, robots_read, wait_for_hits
from tests.farm import FORBIDDEN, KINDS, Declared, Farm, Hit
from tests.servers import eventually

TRIES = 3  # MAX_TRIES of settings/base.py
OUTCOMES = {
    "page": "stored",
    "binary": "stored",
    "duplicate": "duplicate",
    "redirect": "redirected",
    "error": "failed",
}


@dataclass
class Crawled:
    """A crawl that is over."""

    farm: Farm
    place: Place
    run: Run
    hits: list[Hit]

    def truth(self) -> dict[str, Declared]:
        """What the farm declares about the URLs of the crawled sites."""
        origins = {seed.rstrip("/") + "/" for seed in self.farm.seeds}
        return {
            url: one
            for url, one in self.farm.declared.items()
            if any(url.startswith(origin) for origin in origins)
        }


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crawled]:
    """Three untidy sites, crawled by one agent."""
    with Farm(sites=3, pages=14) as farm, Place(tmp_path_factory.mktemp("one")) as place:
        run = place.crawl(farm.seeds)
        yield Crawled(farm, place, run, farm.hits())


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crawled]:
    """Six sites, crawled by two agents."""
    kinds = [kind for kind in KINDS if kind != "busy"]
    with (
        Farm(sites=6, pages=25, kinds=kinds, delay_ms=60) as farm,
        Place(tmp_path_factory.mktemp("two")) as place,
    ):
        run = place.crawl(
            farm.seeds, "--agents", "2", SITE_SLOTS=2
        )  # so that the first leaves the other some
        yield Crawled(farm, place, run, farm.hits())


@pytest.fixture(params=["one", "two"])
def crawled(request: pytest.FixtureRequest) -> Crawled:
    found: Crawled = request.getfixturevalue(request.param)
    return found


# --- What is stored ---------------------------------------------------------------------------------------


def test_the_crawl_succeeds_and_says_so(crawled: Crawled) -> None:
    crawled.run.succeeded()
    pages = sum(map(len, crawled.farm.expected(kinds=("page", "binary")).values()))
    assert f"  pages        {pages:>9}   " in crawled.run.out, crawled.run.out
    assert str(crawled.place.var / "crawl.db") in crawled.run.out


def test_the_stored_pages_are_exactly_the_declared_ones(crawled: Crawled) -> None:
    assert crawled.place.stored() == crawled.farm.expected()


def test_every_page_has_the_declared_outcome(crawled: Crawled) -> None:
    wanted = {
        url: (OUTCOMES[one.kind], one.status)
        for url, one in crawled.truth().items()
        if one.depth is not None and one.kind in OUTCOMES
    }
    wanted |= {url: ("denied", -9) for url, one in crawled.truth().items() if one.kind == "denied"}
    rows = crawled.place.rows("select url, outcome, status from pages")
    assert {url: (outcome, status) for url, outcome, status in rows} == wanted
    assert len(rows) == len(wanted)


def test_depths_are_the_declared_ones(crawled: Crawled) -> None:
    truth = crawled.truth()
    rows = dict(crawled.place.rows("select url, depth from pages where outcome != 'denied'"))
    assert rows == {url: truth[url].depth for url in rows}
    assert max(rows.values()) >= 3


def test_bodies_and_titles_are_the_served_ones(crawled: Crawled) -> None:
    truth = crawled.truth()
    rows = crawled.place.rows(
        "select url, sha256, size, title from pages where outcome in ('stored', 'duplicate')"
    )
    for url, sha256, size, title in rows:
        assert (sha256, size) == (truth[url].sha256, len(truth[url].resource.body)), url
        assert truth[url].kind == "binary" or title, url
    titles = {url: title for url, _, _, title in rows}
    for origin in crawled.farm.expected():
        assert titles[f"{origin}/charset/cp949.html"].startswith("밀물과 썰물")
        assert titles[f"{origin}/charset/latin1.html"].startswith("Café")


def test_links_are_kept_as_hashes(crawled: Crawled) -> None:
    truth = crawled.truth()
    rows = crawled.place.rows("select url, links from pages where outcome = 'stored'")
    for url, links in rows:
        path = truth[url].resource.path
        if path.startswith("/meta/") or truth[url].kind == "binary":
            assert not links, url
            continue
        written = truth[url].resource.links
        followed = [
            link.target for link in written if link.target and not link.rel and len(link.target) < 2083
        ]
        assert (links or b"") == pack_links(followed), url


def test_duplicates_and_redirects_name_their_other_page(crawled: Crawled) -> None:
    truth = crawled.truth()
    twins = crawled.place.rows("select url, duplicate_of from pages where outcome = 'duplicate'")
    assert twins
    assert all(other == url.replace("two", "one") for url, other in twins)
    moved = crawled.place.rows("select url, redirect from pages where outcome = 'redirected'")
    assert moved
    assert all(target == truth[url].resource.location for url, target in moved)


# --- What was asked for -----------------------------------------------------------------------------------


def test_nothing_forbidden_is_asked_for(crawled: Crawled) -> None:
    assert crawled.farm.forbidden_hits() == []
    assert {one.kind for one in crawled.truth().values()} >= set(FORBIDDEN)


def test_every_page_is_fetched_once_retries_aside(crawled: Crawled) -> None:
    def turns(one: Declared) -> int:
        return TRIES if one.status == 500 else 1 + one.resource.busy_first

    asked = fetched(crawled.hits)
    truth = crawled.truth()
    reached = (url for url, one in truth.items() if one.depth is not None and one.kind in OUTCOMES)
    assert asked == Counter({url: turns(truth[url]) for url in reached})


def test_one_agent_reads_robots_once_per_site(one: Crawled) -> None:
    assert set(robots_read(one.hits).values()) == {1}
    assert len(robots_read(one.hits)) == 3


def test_two_agents_read_robots_once_per_lease(two: Crawled) -> None:
    leases = two.place.queue()["token"]
    assert 6 <= robots_read(two.hits).total() <= leases


def test_a_site_is_asked_one_page_at_a_time(one: Crawled) -> None:
    connections = defaultdict(set)
    for hit in one.hits:
        connections[hit.host].add(hit.connection_id)
    # 14 pages and more, over connections that are kept.
    assert all(len(ids) <= 3 for ids in connections.values()), connections


# --- What is known afterwards -----------------------------------------------------------------------------


def test_every_site_is_finished_and_counted(crawled: Crawled) -> None:
    rows = crawled.place.rows(
        "select site, state, published, (select count(*) from pages where pages.site_id = sites.site_id) from sites"
    )
    assert {row[0] for row in rows} == set(crawled.farm.expected())
    assert {row[1] for row in rows} == {"finished"}
    assert all(published == count for _, _, published, count in rows), rows
    assert crawled.place.rows("select * from dead_letters") == []


def test_every_run_is_told_from_start_to_end(crawled: Crawled) -> None:
    rows = crawled.place.rows("select spider, scheduler, reason, ended_at >= started_at from runs")
    agents = 2 if "--agents" in crawled.run.command else 1
    assert rows == [("site", "regret", "finished", 1)] * agents


def test_the_history_holds_every_turn_once(crawled: Crawled) -> None:
    turns = crawled.place.rows("select count(*), count(distinct url_hash) from fetches")
    assert turns == crawled.place.rows("select count(*), count(*) from pages")


def test_both_agents_take_part(two: Crawled) -> None:
    assert len(two.place.rows("select distinct agent from fetches")) == 2


def test_log_lines_name_their_process(one: Crawled, two: Crawled) -> None:
    assert "[agent] " in one.run.err
    assert "[coordinator] " in one.run.err
    for name in ("[agent 1] ", "[agent 2] ", "[coordinator] "):
        assert name in two.run.err
    assert "[agent] " not in two.run.err


# --- One run after another --------------------------------------------------------------------------------


def test_a_second_crawl_fetches_nothing_and_again_walks_anew(place: Place) -> None:
    with Farm(sites=2, pages=6, kinds=()) as farm:
        place.crawl(farm.seeds).succeeded()
        first = fetched(farm.hits())
        assert set(first.values()) == {1}
        place.crawl(farm.seeds).succeeded()
        assert fetched(farm.hits()) == first
        assert robots_read(farm.hits()).total() == 2
        place.crawl(farm.seeds, "--again").succeeded()
        assert fetched(farm.hits()) == first + first
        assert place.stored() == farm.expected()
        assert place.rows("select count(*) from fetches") == [(2 * len(first),)]


def test_an_interrupted_crawl_loses_nothing_and_is_continued(place: Place) -> None:
    with Farm(sites=2, pages=40, kinds=(), delay_ms=40) as farm:
        run = place.start_crawl(farm.seeds)
        wait_for_hits(farm, 20)
        run.end(signal.SIGINT).succeeded()
        asked = fetched(farm.hits())
        assert len(asked) < 80, "it was not interrupted"
        # What was in flight has been finished and stored.
        assert {url for (url,) in place.rows("select url from pages")} == set(asked)
        assert place.rows("select distinct state from sites") == [("unfinished",)]
        place.check_nothing_left()
        place.crawl(()).succeeded()
        assert place.stored() == farm.expected()
        assert max(fetched(farm.hits()).values()) == 1


def test_the_delay_holds_and_a_longer_crawl_delay_wins(place: Place) -> None:
    with Farm(sites=2, pages=5, kinds=(), crawl_delays={1: 1.0}) as farm:
        place.crawl(farm.seeds, DOWNLOAD_DELAY=0.4).succeeded()
        times = defaultdict(list)
        for hit in farm.hits():
            times[hit.host].append(hit.monotonic)
        quick, slow = (times[farm.site(number).removeprefix("http://")] for number in (0, 1))
        check_delay(quick, 0.4)
        check_delay(slow, 1.0)
        assert min(later - sooner for sooner, later in pairwise(quick)) < 0.95, (
            "the longer one is the other's alone"
        )
        assert place.stored() == farm.expected()


def test_a_site_that_is_down_costs_the_others_nothing(place: Place) -> None:
    with Farm(sites=3, pages=4, kinds=(), names=(), down=(1,)) as farm:
        run = place.crawl(farm.seeds).succeeded()
        assert place.stored() == farm.expected()
        assert "1 sites are due later" in run.err
        assert farm.site(1) in run.err
        states = dict(place.rows("select site, state from sites"))
        assert states.pop(farm.site(1)) == "unfinished"
        assert set(states.values()) == {"finished"}


def test_a_crawl_may_wait_for_seeds(place: Place) -> None:
    with Farm(sites=2, pages=3, kinds=()) as farm:
        run = place.start_crawl(farm.seeds[:1], "--when-idle", "wait")
        run.says("writes to")
        eventually(lambda: len(place.stored()) == 1, "the first site is stored")
        place.run("seed", farm.seeds[1]).succeeded()
        eventually(lambda: place.stored() == farm.expected(), "the second site is stored")
        run.end().succeeded()


SLOW = """
import asyncio
import os
import signal

from scrapy import signals

from crawler.spiders.site import SiteSpider


class Slow(SiteSpider):
    name = "slow"

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.begin, signals.spider_opened)
        return spider

    async def begin(self):
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(float(self.seconds))
"""


@pytest.mark.parametrize(("seconds", "ending"), [(0.3, "Spider closed (shutdown)"), (60, "Spider opened")])
def test_a_crawl_that_is_told_to_end_while_it_begins(place: Place, seconds: float, ending: str) -> None:
    """It is closed in order, but not waited for where its beginning lasts."""
    (place.folder / "slow_spider.py").write_text(SLOW)
    given = {"env": {"PYTHONPATH": str(place.folder)}, "SPIDER_MODULES": "slow_spider"}
    with Farm(sites=1, pages=3, kinds=()) as farm:
        words = ("-a", f"seconds={seconds}")
        run = place.start_crawl(farm.seeds, *words, spider="slow", **given).wait().succeeded()
    assert [line for line in run.err.splitlines() if "Spider " in line][-1].endswith(ending)
    place.check_nothing_left()
