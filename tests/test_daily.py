"""Daily caps: a site is asked for so much within a day, by all agents together, and goes on with the next one."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from typing import Any

import pytest

from crawler.agent.politeness import DailyCaps, Days, Spent
from tests.crawling import Place
from tests.drills import key
from tests.outages import frozen
from tests.queue_driver import driver
from tests.servers import RunningServer, eventually
from tests.small_site import Reply, SmallSite, links

DAY_MS = 86_400_000
MANY = [f"/{number}" for number in range(40)]


def test_what_a_day_allows() -> None:
    caps = DailyCaps(3, 1000, 3600.0)
    noon = 20_000 * 86_400.0 + 43_200
    assert caps.day(noon) == 20_000
    assert caps.tomorrow(noon) == noon + 43_200
    assert caps.used_up(Spent(2, 999)) == ""
    assert "3 requests of the day" in caps.used_up(Spent(3, 0))
    assert "1000 bytes of the day" in caps.used_up(Spent(0, 1000))
    assert DailyCaps(0, 1, 3600.0).used_up(Spent(10**9, 0)) == ""
    assert DailyCaps(1, 0, 3600.0).used_up(Spent(0, 10**12)) == ""


def test_what_two_agents_asked_for_counts_for_both(valkey: RunningServer) -> None:
    site, other = "https://a.example", "https://b.example"
    noon = 20_000 * 86_400.0 + 43_200
    clock = [noon]
    with driver(valkey) as queue:
        one, two = (Days(queue.queue, DailyCaps(3, 1000, 3600.0), lambda: clock[0]) for _ in range(2))
        (day,) = queue.wait(one.open([site]))
        day.count(1, 0)
        day.count(1, 300)
        assert day.used_up() == ""
        queue.wait(one.tell())
        queue.wait(one.tell())
        (there, elsewhere) = queue.wait(two.open([site, other]))
        there.count(1, 0)
        assert "3 requests of the day" in there.used_up()
        assert elsewhere.used_up() == ""
        assert there.tomorrow == noon + 43_200
        clock[0] += 43_200
        assert there.used_up() == "", "another day's are forgotten"
        there.count(1, 1000)
        assert "1000 bytes" in there.used_up()
        queue.wait(two.tell())
        assert [queue.spent(day, [site]) for day in (20_000, 20_001)] == [[(3, 300)], [(1, 1000)]]
        assert 0 < valkey.client.ttl(key("spent:20001")) <= 2 * 86_400 + 1


def test_what_could_not_be_told_is_told_later(valkey: RunningServer) -> None:
    with driver(valkey) as queue:
        days = Days(queue.queue, DailyCaps(3, 0, 3600.0), lambda: 5.0)
        (day,) = queue.wait(days.open(["https://a.example"]))
        day.count(2, 10)
        with frozen(valkey), pytest.raises(TimeoutError):
            queue.wait(asyncio.wait_for(days.tell(), 0.3))
        day.count(1, 0)
        queue.wait(days.tell())
        ((requests, _),) = queue.spent(0, ["https://a.example"])
        assert requests >= 3, "twice, where nobody knows whether it was heard"


def shown(place: Place, valkey: RunningServer, site: SmallSite) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(
        place.run("site", "show", site.site, "--json", REDIS_URL=valkey.url).succeeded().out
    )
    return told


def wake(valkey: RunningServer, site: SmallSite) -> None:
    valkey.client.zadd(key("wake:site"), {site.site: 1})


def check_waits_for_midnight(valkey: RunningServer, site: SmallSite) -> None:
    due = valkey.client.zscore(key("wake:site"), site.site)
    assert due == (int(time.time() * 1000) // DAY_MS + 1) * DAY_MS


def test_a_site_that_had_its_requests_waits_for_the_next_day(place: Place, valkey: RunningServer) -> None:
    """Whoever takes it up that day, as often as that may be; another site goes on to its end."""
    with (
        SmallSite({"/": links(*MANY), "*": links()}) as large,
        SmallSite({"/": links("/a"), "*": links()}, "127.0.1.2") as small,
    ):
        given: dict[str, Any] = {"REDIS_URL": valkey.url, "SITE_REQUESTS_PER_DAY": 10}
        run = place.crawl([large.root, small.root], **given).succeeded()
        assert len(large.log) == 10
        assert large.paths[0] == "/robots.txt"
        assert small.pages == {"/": 1, "/a": 1}
        assert "all 10 requests of the day are used (SITE_REQUESTS_PER_DAY)" in run.err
        check_waits_for_midnight(valkey, large)
        told = shown(place, valkey, large)
        assert (told["state"], told["done"], told["known"]) == ("later", 9, 41)
        assert "SITE_REQUESTS_PER_DAY" in told["why"]

        wake(valkey, large)
        place.crawl([], **given).succeeded()
        assert len(large.log) == 10, "the day is the same, the agent another"
        check_waits_for_midnight(valkey, large)

        wake(valkey, large)
        place.crawl([], REDIS_URL=valkey.url, SITE_REQUESTS_PER_DAY=0).succeeded()
        assert large.pages == dict.fromkeys(["/", *MANY], 1), "nothing was lost or fetched twice"


def test_a_killed_agents_requests_count(place: Place, valkey: RunningServer) -> None:
    with SmallSite({"/": links(*MANY), "*": links(seconds=0.05)}) as site:
        given: dict[str, Any] = {"REDIS_URL": valkey.url, "SITE_REQUESTS_PER_DAY": 30, "LEASE_SECONDS": 1}
        run = place.start_crawl([site.root], FLUSH_RECORDS=1, **given)
        eventually(lambda: len(site.log) >= 12, "12 requests")
        run.process.send_signal(signal.SIGKILL)
        run.process.wait()
        place.crawl([], **given).succeeded()
        # What the killed one had asked for and not yet published, within FLUSH_SECONDS.
        assert 30 <= len(site.log) <= 34


def test_a_site_that_had_its_bytes_waits_too(place: Place, valkey: RunningServer) -> None:
    """The one that leads beyond the cap is the last; a page that failed counts by its body too."""
    fields = {"Content-Type": "text/html"}
    failed = Reply(404, fields, "gone" * 2_500)
    routes = {"/": links(*MANY), "/0": failed, "*": Reply(200, fields, "x" * 10_000)}
    with SmallSite(routes) as site:
        run = place.crawl([site.root], REDIS_URL=valkey.url, SITE_BYTES_PER_DAY=50_000).succeeded()
        assert "all 50000 bytes of the day are used (SITE_BYTES_PER_DAY)" in run.err
        assert site.paths == ["/robots.txt", "/", "/0", "/1", "/2", "/3"], "of 10 kB, robots.txt too"
        check_waits_for_midnight(valkey, site)


def test_a_day_has_24_hours_of_the_setting(place: Place, valkey: RunningServer) -> None:
    """Shortened hours make a day that can be waited for: the crawl goes on by itself with the next one."""
    with SmallSite({"/": links(*MANY[:17]), "*": links()}) as site:
        given = {"HOUR_SECONDS": 0.1, "SITE_REQUESTS_PER_DAY": 8, "WHEN_IDLE": "wait"}
        run = place.start_crawl([site.root], REDIS_URL=valkey.url, **given)
        eventually(lambda: len(site.pages) == 18, "all pages are loaded", 40)
        run.end()
        at = [asked.at for asked in site.log]
        # 18 pages and robots.txt are of three days at least, wherever the crawl's first midnight falls.
        assert max(at) - min(at) > 24 * 0.1


def test_works_and_checks_count_too(place: Place, valkey: RunningServer) -> None:
    """Loading takes 4 of 8 requests, and the day has 4 left for recheck and checks of status together."""
    with SmallSite({"/": links("/a", "/b"), "*": links()}) as site:
        given: dict[str, Any] = {"REDIS_URL": valkey.url, "SITE_REQUESTS_PER_DAY": 8}
        given |= {"DATABASE_URL": f"sqlite:///{place.var / 'crawl.db'}", "STATUS_BY_TRAFFIC": 0}
        given |= {"RECRAWL_MODE": "interval", "RECHECK_INTERVAL_SECONDS": 0.2, "STATUS_INTERVAL_SECONDS": 0.2}
        place.var.mkdir()
        coordinator = place.start("coordinate", **given)
        place.crawl([site.root], **given).succeeded()
        assert len(site.log) == 4
        run = place.start_crawl([], "--with", "recheck,status", "--when-idle", "wait", **given)
        eventually(lambda: len(site.log) == 8, "what is left of the day", 60)
        for work in ("recheck", "status"):
            eventually(lambda work=work: is_tomorrow(valkey, site, work), f"{work} waits for midnight", 60)
        run.end().succeeded()
        coordinator.end().succeeded()
        assert len(site.log) == 8


def is_tomorrow(valkey: RunningServer, site: SmallSite, work: str) -> bool:
    due = valkey.client.zscore(key(f"wake:{work}"), site.site)
    return bool(due == (int(time.time() * 1000) // DAY_MS + 1) * DAY_MS)
