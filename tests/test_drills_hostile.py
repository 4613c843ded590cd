"""Drills: one site in five is hostile, and the others hardly notice.

The ordinary sites are walked alone first, then among hostile ones with the same slots. They must be complete, nearly
as fast, and the agent must not have grown.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.crawling import Place, Run
from tests.farm import Farm
from tests.farm.plan import HOSTILITIES
from tests.servers import RunningServer
from tests.told import told_pages
from tests.tools.hostile_pages import hostile_pages, ordinary_page, waits

# Shorter than a person would set them, as the farm is near.
GIVEN = {
    "CONNECT_TIMEOUT_SECONDS": 2,
    "HEAD_TIMEOUT_SECONDS": 2,
    "BODY_TIMEOUT_SECONDS": 3,
    "MAX_TRIES": 2,
    "MAX_PAGES_PER_SITE": 200,
}
# Of the ordinary sites' pace when they are alone. In the best of so many walks of a few seconds: a machine that is busy
# with other things may well take as long as they do.
LEAST_PACE = 0.8
SHORT_WALKS = 3
# Two downloads at their limit of 10 MB, two pages of 1 MB as trees, and what a crawl of ordinary sites grows by.
MOST_GROWTH = 150e6
# How much longer than beside an ordinary page of the same size a site may wait beside a hostile one.
TIMES_THE_ORDINARY = 8.0


@dataclass
class Walk:
    """What the ordinary sites' part of a crawl took."""

    pages: int
    seconds: float
    memory: int  # bytes, the most that the agent held

    @property
    def pace(self) -> float:
        """Pages a second."""
        return self.pages / self.seconds


def hostile(sites: int, names: tuple[str, ...]) -> dict[int, str]:
    """Every fifth site, each hostile in another way, as far as there are some."""
    return {place: names[number % len(names)] for number, place in enumerate(range(2, sites, 5))}


def walk(
    place: Place, farm: Farm, server: RunningServer, seeds: list[str], limit: float, **given: Any
) -> Walk:
    """Crawl these until every page that is expected has been asked for, and end the crawl."""
    server.client.flushall()
    wanted = {url for urls in farm.expected().values() for url in urls}
    before = len(farm.hits())
    words = ("--no-summary", "--when-idle", "wait")  # or it might end by itself just when it is ended
    run = place.start_crawl(seeds, *words, fresh=True, REDIS_URL=server.url, **{**GIVEN, **given})
    most = 0
    deadline = time.monotonic() + limit
    while missing := wanted - {hit.url for hit in farm.hits()[before:]}:
        assert time.monotonic() < deadline, f"{len(missing)} pages not asked for: {run.err[-2000:]}"
        assert run.process.poll() is None, run.err[-2000:]
        most = max(most, resident(run))
        time.sleep(0.1)
    run.end().succeeded()
    check_stored(server, farm, wanted)
    hits = [hit for hit in farm.hits()[before:] if hit.url in wanted]
    assert most
    return Walk(len(wanted), hits[-1].monotonic - hits[0].monotonic, most)


def check_stored(server: RunningServer, farm: Farm, wanted: set[str]) -> None:
    """Every page of the ordinary sites is stored, once; what was asked for last may have been cut short by the end."""
    urls = [page.url for page in told_pages(server) if page.status == 200 and page.url in wanted]
    assert len(urls) == len(set(urls))
    assert len(wanted - set(urls)) <= len(farm.expected())


def resident(run: Run) -> int:
    """Bytes of memory that the agent holds now; 0: it has ended."""
    try:
        status = Path(f"/proc/{run.pid}/status").read_text()
    except OSError:
        return 0
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024 if "VmRSS:" in status else 0


@pytest.mark.drill
@pytest.mark.parametrize(
    ("sites", "pages", "slots", "delay", "names", "limit", "walks"),
    [
        (20, 20, 20, 0.2, ("calendar", "attributes", "drip-body", "endless-headers"), 30, SHORT_WALKS),
        # Every hostility there is, fewer slots than sites, and two or three minutes among them.
        pytest.param(
            150, 110, 100, 0.6, HOSTILITIES, 280, 1, marks=[pytest.mark.drill, pytest.mark.timeout(600)]
        ),
    ],
    ids=["short", "long"],
)
def test_hostile_sites_hold_up_nobody(
    place: Place,
    valkey: RunningServer,
    sites: int,
    pages: int,
    slots: int,
    delay: float,
    names: tuple[str, ...],
    limit: float,
    walks: int,
) -> None:
    bad = hostile(sites, names)
    given = {"SITE_SLOTS": slots, "DOWNLOAD_DELAY": delay}
    with Farm(sites=sites, pages=pages, kinds=(), names=(), hostile=bad) as farm:
        good = [seed for number, seed in enumerate(farm.seeds) if number not in bad]
        alone = walk(place, farm, valkey, good, limit, **given)
        for _ in range(walks):
            among = walk(place, farm, valkey, farm.seeds, limit, **given)
            print(f"alone {alone}, among {len(bad)} hostile sites {among}")
            assert among.memory - alone.memory < MOST_GROWTH, (alone, among)
            if among.pace >= LEAST_PACE * alone.pace:
                return
    raise AssertionError(f"alone {alone}, among hostile sites {among}")


@pytest.mark.drill
def test_pages_made_to_hold_an_agent_up_hold_up_nobody(place: Place, valkey: RunningServer) -> None:
    """Beside each page of 1 MB another site waits not much longer than beside an ordinary one of that size."""
    size = 1_000_000
    alone = waits(place, valkey, {f"ordinary {number}": ordinary_page(size) for number in range(20)})
    for _ in range(SHORT_WALKS):
        among = waits(place, valkey, hostile_pages(size))
        print(f"beside ordinary pages {alone[0]}, beside hostile ones {among[:5]}")
        if among[0].seconds < TIMES_THE_ORDINARY * alone[0].seconds:
            return
    raise AssertionError(f"beside ordinary pages {alone[0]}, beside hostile ones {among[:5]}")
