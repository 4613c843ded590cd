"""Seeds that a spider gives itself, in `start`: whenever they come, they are seeds like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.crawling import Place
from tests.drills import key
from tests.servers import RunningServer, eventually
from tests.small_site import SmallSite, links
from tests.test_inlet import looks_at_the_inlet
from tests.told import outcomes

START_SECONDS = 2
SPIDERS = f"""
import asyncio
import pathlib
from scrapy import Request
from crawler.spiders.site import SiteSpider


class Slow(SiteSpider):
    name = "slow"

    async def start(self):
        await asyncio.sleep({START_SECONDS})
        yield Request(self.first)


class AtOnce(SiteSpider):
    name = "atonce"

    async def start(self):
        yield Request(self.first)


class WhenTold(SiteSpider):
    '''Waits for a file, and says when it has given its request.'''

    name = "whentold"

    async def start(self):
        while not pathlib.Path(self.go).exists():
            await asyncio.sleep(0.02)
        yield Request(self.first)
        self.logger.info("the request is given")
"""


@pytest.fixture
def own(place: Place, valkey: RunningServer) -> dict[str, Any]:
    """What makes the project find the spiders, and the server."""
    (place.folder / "starting_spiders.py").write_text(SPIDERS)
    return {
        "env": {"PYTHONPATH": str(place.folder)},
        "SPIDER_MODULES": "starting_spiders",
        "REDIS_URL": valkey.url,
    }


def test_a_start_that_takes_its_time_is_waited_for(
    place: Place, valkey: RunningServer, own: dict[str, Any]
) -> None:
    with SmallSite({"*": links("/1")}) as site:
        place.start_crawl([], "-a", f"first={site.root}", spider="slow", **own).wait().succeeded()
        assert site.paths == ["/robots.txt", "/", "/1"]
        assert set(outcomes(valkey)) == {site.root, f"{site.site}/1"}


def test_a_seed_given_while_redis_is_away_is_kept(
    place: Place, valkey: RunningServer, own: dict[str, Any], tmp_path: Path
) -> None:
    go = tmp_path / "go"
    with SmallSite({"*": links()}) as site:
        arguments = ("-a", f"first={site.root}", "-a", f"go={go}")
        run = place.start_crawl([], *arguments, spider="whentold", **own)
        # Several looks: what an agent asks once, at its start, is behind it.
        eventually(lambda: looks_at_the_inlet(valkey) >= 3, "it looks at the inlet again and again")
        valkey.kill()
        run.says("Redis is away")
        go.touch()
        run.says("the request is given")
        valkey.start()
        run.wait().succeeded()
        assert site.paths == ["/robots.txt", "/"]


def test_links_to_a_seed_that_start_gives_late_are_followed(
    place: Place, valkey: RunningServer, own: dict[str, Any], tmp_path: Path
) -> None:
    """The page that names it is loaded, and could be published, long before."""
    go = tmp_path / "go"
    with SmallSite({"*": links()}, "127.0.1.2") as late:
        with SmallSite({"/": links(f"{late.site}/linked")}) as site:
            arguments = ("-a", f"first={late.root}", "-a", f"go={go}")
            run = place.start_crawl([site.root], *arguments, spider="whentold", **own)
            eventually(lambda: site.pages["/"], "the page is asked for")
            looks = looks_at_the_inlet(valkey)
            eventually(lambda: looks_at_the_inlet(valkey) >= looks + 3, "many flushes' time has passed")
            go.touch()
            run.wait().succeeded()
        assert late.pages == {"/": 1, "/linked": 1}


def test_a_start_without_a_contact_is_told_as_with_seeds(place: Place, own: dict[str, Any]) -> None:
    words = "USER_AGENT 'lowtide' has no contact; expected a URL or e-mail address before crawling https://example.org"
    given = {**own, "KEY_PREFIX": "given"}
    run = place.start_crawl([], "-a", "first=https://example.org/", spider="atonce", **given)
    named = place.start_crawl(["https://example.org/"], REDIS_URL=own["REDIS_URL"])
    run.wait().refused(words, code=2)
    named.wait().refused(words, code=2)


def test_nothing_is_queued_under_anothers_prefix(
    place: Place, valkey: RunningServer, own: dict[str, Any]
) -> None:
    valkey.client.set(key("crawl"), "site")
    with SmallSite({"*": links()}) as site:
        run = place.start_crawl([], "-a", f"first={site.root}", spider="atonce", **own).wait()
        run.refused("belongs to spider 'site', not 'atonce'", code=3)
        assert valkey.client.keys("*") == [key("crawl").encode()]
        assert site.log == []
