"""Hours planned while real agents crawl: who gives way is gone on with by whoever comes, with a planner or without.

Hours are of one second; half of the sites are idle in even hours and the other half in odd ones, so that hybrid has
somebody give way whenever an hour begins.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter
from contextlib import closing
from typing import Any

import pytest
import redis

from crawler import records
from crawler.local.server import Server
from tests.crawling import Place, Run, fetched
from tests.farm import Farm
from tests.queue_driver import BASE
from tests.servers import RunningServer, eventually
from tests.told import outcomes, told

SETTINGS: dict[str, Any] = {
    "SITE_SCHEDULER": "hybrid",
    "SITE_SCHEDULER_OPTIONS": {"keep": "min"},
    "HOUR_SECONDS": 1,
    "SITE_SLOTS": 2,
    "ARCHIVE_CONTENT_TYPES": "",
}
IDLE, BUSY = 0.1, 0.9
GAVE_WAY = "suspended by the plan"


def farm_of(pages: int) -> Farm:
    """Six sites; a page takes some 55 ms."""
    return Farm(sites=6, pages=pages, kinds=(), names=(), delay_ms=50)


def know(place: Place, farm: Farm) -> None:
    """Import the loads of all sites."""
    lines = [",".join(["site", *map(str, range(24))])]
    for number, seed in enumerate(farm.seeds):
        loads = [IDLE if hour % 2 == number % 2 else BUSY for hour in range(24)]
        lines.append(",".join([seed, *map(str, loads)]))
    file = place.folder / "loads.csv"
    file.write_text("\n".join(lines))
    place.run("load", "import", str(file)).succeeded()


def suspended_by(run: Run) -> int:
    """How many sites the planner says that it has suspended."""
    return sum(map(int, re.findall(r"planner: hour .* (\d+) suspended", run.err)))


def waiting_suspended(client: redis.Redis) -> set[str]:
    members: set[bytes] = client.smembers(BASE + "suspended")  # type: ignore[assignment]
    return {member.decode() for member in members}


def until_next_hour() -> None:
    hour = int(time.time())
    eventually(lambda: int(time.time()) != hour, "the hour's change")


def test_who_gave_way_on_one_agent_is_finished_by_another(place: Place) -> None:
    with farm_of(60) as farm:
        know(place, farm)
        first = place.start_crawl(farm.seeds, **SETTINGS)
        first.says("plans the hours")
        with closing(redis.Redis.from_url(Server(place.var).url)) as client:
            eventually(lambda: len(waiting_suspended(client)) >= 2, "sites gave way")
            second = place.start_crawl((), **SETTINGS)
            gave_way: set[str] = set()  # while the first one was alone

            def joined() -> bool:
                seen = waiting_suspended(client)
                if client.zcard(BASE + "agents") == 2:
                    return True
                gave_way.update(seen)
                return False

            eventually(joined, "the second agent joined")
            first.end(signal.SIGTERM).succeeded()
        second.wait().succeeded()
        both = place.rows(
            "select site from fetches join sites using (site_id) group by site having count(distinct agent) = 2"
        )
        assert gave_way & {site for (site,) in both}
        assert suspended_by(first) > 0
        assert place.stored() == farm.expected()
        assert set(fetched(farm.hits()).values()) == {1}


@pytest.mark.drill
def test_a_planner_that_is_killed_as_the_hour_changes_has_a_successor(place: Place) -> None:
    with farm_of(90) as farm:
        know(place, farm)
        run = place.start_crawl(farm.seeds, **SETTINGS)
        run.says("plans the hours")
        until_next_hour()
        (planner,) = place.processes("plan")
        os.kill(planner, signal.SIGKILL)
        eventually(lambda: run.err.count("plans the hours") == 2, "another planner plans")
        before = suspended_by(run)
        run.wait().succeeded()
        assert suspended_by(run) > before
        assert place.stored() == farm.expected()
        assert set(fetched(farm.hits()).values()) == {1}


def test_without_a_planner_the_crawl_goes_on_to_its_end(place: Place, valkey: RunningServer) -> None:
    """With those that gave way while there was one."""
    with farm_of(25) as farm:
        know(place, farm)
        here = {**SETTINGS, "REDIS_URL": valkey.url}
        planner = place.start("plan", **here, DATABASE_URL=f"sqlite:///{place.var / 'crawl.db'}")
        planner.says("plans the hours")
        agent = place.start_crawl(farm.seeds, **here)
        eventually(lambda: len(waiting_suspended(valkey.client)) >= 2, "sites gave way")
        planner.process.kill()
        planner.process.wait()
        agent.wait().succeeded()
        assert outcomes(valkey) == {url: "stored" for urls in farm.expected().values() for url in urls}
        assert set(fetched(farm.hits()).values()) == {1}
        ended = Counter(one.reason for one in told(valkey) if isinstance(one, records.SiteEnded))
        assert ended[GAVE_WAY] >= 2
        assert ended[""] == len(farm.seeds)
