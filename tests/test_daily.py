"""Daily caps: a site is asked for so much within a day, by all agents together, and goes on with the next one."""

from __future__ import annotations

import json
import signal
import time
from typing import Any

from crawler.agent.daily import DailyCaps, Spent
from crawler.agent.frontier import Frontier
from tests.crawling import Place
from tests.drills import key
from tests.servers import RunningServer, eventually
from tests.small_site import Reply, SmallSite, links

DAY_MS = 86_400_000
MANY = [f"/{number}" for number in range(40)]


def test_what_a_day_allows() -> None:
    caps = DailyCaps(3, 1000, 3600.0)
    noon = 20_000 * 86_400.0 + 43_200
    today = caps.today(None, noon)
    assert today == Spent(20_000, 0, 0)
    assert caps.today(Spent(20_000, 2, 5), noon) == Spent(20_000, 2, 5)
    assert caps.today(Spent(19_999, 2, 5), noon) == today, "another day's are forgotten"
    assert caps.tomorrow(today) == noon + 43_200
    assert caps.used_up(Spent(20_000, 2, 999)) == ""
    assert "3 requests of the day" in caps.used_up(Spent(20_000, 3, 0))
    assert "1000 bytes of the day" in caps.used_up(Spent(20_000, 0, 1000))
    assert DailyCaps(0, 1, 3600.0).used_up(Spent(1, 10**9, 0)) == ""
    assert DailyCaps(1, 0, 3600.0).used_up(Spent(1, 0, 10**12)) == ""


def test_what_is_spent_goes_with_the_checkpoint() -> None:
    frontier = Frontier()
    frontier.add(["/"], 0)
    whole = frontier.whole()
    frontier.spent = Spent(20_000, 7, 12_345)
    for entries in ([whole, frontier.delta()], [frontier.whole()]):
        found = Frontier()
        found.restore(entries)
        assert found.spent == Spent(20_000, 7, 12_345)
        assert len(found) == 1


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
        assert "its 10 requests of the day are used up (SITE_REQUESTS_PER_DAY)" in run.err
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
        assert "its 50000 bytes of the day are used up (SITE_BYTES_PER_DAY)" in run.err
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
