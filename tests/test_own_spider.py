"""A user's own spider: a subclass with `parse`, in a file that the project knows nothing of.

Its items go through an ordinary Scrapy pipeline and into a feed; whatever it does costs no page.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.crawling import QUICK, Place, fetched
from tests.drills import key
from tests.farm import Farm
from tests.servers import RunningServer, eventually
from tests.small_site import Reply, SmallSite, at_first, links
from tests.test_offers import held_up, state_of
from tests.told import outcomes

SPIDER = '''
"""What a user writes."""
import asyncio
import pathlib
from scrapy import Request
from scrapy.http import HtmlResponse
from crawler.spiders.site import SiteSpider


class Titles(SiteSpider):
    name = "titles"

    def parse(self, response):
        if isinstance(response, HtmlResponse):  # a PDF file has no title
            yield {"url": response.url, "title": response.css("title::text").get()}


class Broken(SiteSpider):
    name = "broken"

    def parse(self, response):
        if "/d" in response.url:
            raise ValueError("parse fails on " + response.url)
        yield {"url": response.url}


class Follower(SiteSpider):
    name = "follower"

    def parse(self, response):
        if response.meta["depth"] == 0:
            yield response.follow("/hidden/one.html")
            yield response.follow("/hidden/two.html", callback=self.parse_detail, cb_kwargs={"word": "two"})
            yield response.follow("/private/", callback=self.parse_detail, errback=self.told)
            yield response.follow("/moved/old.html", callback=self.parse_detail, cb_kwargs={"word": "moved"})
            yield response.follow("/away", callback=self.parse_detail, errback=self.told)
            yield Request("file:///etc/hostname", callback=self.parse_detail)
            yield Request("ftp://127.0.0.1/x", callback=self.parse_detail)
            yield {"root": response.url}

    def parse_detail(self, response, word=""):
        yield {"detail": response.url, "word": word, "size": len(response.body)}

    def told(self, failure):
        yield {"refused": failure.request.url, "error": type(failure.value).__name__}


class Pager(SiteSpider):
    """Follows all links itself."""

    name = "pager"

    def parse(self, response):
        yield from response.follow_all(css="a")


class MetaCopier(SiteSpider):
    name = "metacopier"

    def parse(self, response):
        yield response.follow("/?copied=" + str(response.meta["depth"]), meta=response.meta, callback=self.detail)

    def detail(self, response):
        yield {"detail": response.url}


class Raiser(SiteSpider):
    name = "raiser"

    def parse(self, response):
        raise ValueError("no generator, and it fails at once")


class AsyncFollower(SiteSpider):
    name = "async"

    async def parse(self, response):
        yield {"url": response.url}


class LastLinks(SiteSpider):
    """Gives as many links as the page's name says, which nobody else knows."""

    name = "lastlinks"

    def parse(self, response):
        many = int(response.url.rpartition("/")[2] or 0)
        for number in range(many):
            yield response.follow(f"/{many}/{number}/")


class Patient(SiteSpider):
    """Its `parse` waits until a file is there."""

    name = "patient"

    async def parse(self, response):
        while not pathlib.Path(self.go).exists():
            await asyncio.sleep(0.02)
        yield {"url": response.url}


class Detailer(SiteSpider):
    """Asks for some pages of its own beside the first one."""

    name = "detailer"

    def parse(self, response):
        if response.meta["depth"] == 0:
            for number in range(3):
                yield response.follow(f"/own/{number}", callback=self.detail)

    def detail(self, response):
        yield {"detail": response.url, "status": response.status}


class Linker(SiteSpider):
    """Knows a page of another site that no page names."""

    name = "linker"

    def parse(self, response):
        if response.url == self.hub:
            yield Request(self.other)


class Stamp:
    """An ordinary item pipeline."""

    def process_item(self, item):
        return {**item, "stamp": "seen"}


class SlowStamp:
    """An item pipeline that waits with the items of one page until a file is there."""

    @classmethod
    def from_crawler(cls, crawler):
        stamp = cls()
        stamp.go = pathlib.Path(crawler.settings["STAMP_WHEN"])
        return stamp

    async def process_item(self, item):
        while item["url"].endswith("/slow") and not self.go.exists():
            await asyncio.sleep(0.02)
        return item


class Drops:
    """A spider middleware that wants nothing of what `parse` gives, and does not even look at it."""

    def process_spider_output(self, response, result):
        return []

    async def process_spider_output_async(self, response, result):
        return
        yield
'''


@pytest.fixture
def own(place: Place) -> dict[str, Any]:
    """What makes the project find the file."""
    (place.folder / "own_spiders.py").write_text(SPIDER)
    return {
        "env": {"PYTHONPATH": str(place.folder)},
        "SPIDER_MODULES": "own_spiders",
        "ITEM_PIPELINES": {"own_spiders.Stamp": 300},
    }


def items(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_items_pass_pipelines_into_a_feed(place: Place, own: dict[str, Any]) -> None:
    with Farm(sites=2, pages=8) as farm:
        run = place.start_crawl(
            farm.seeds, "-O", f"{place.folder}/items.jsonl", spider="titles", **own
        ).wait()
        run.succeeded()
        assert place.stored() == farm.expected()
        found = items(place.folder / "items.jsonl")
        wanted = {url for urls in farm.expected(kinds=("page", "duplicate")).values() for url in urls}
        assert Counter(item["url"] for item in found) == Counter(wanted)
        assert {item["stamp"] for item in found} == {"seen"}
        titles = dict(place.rows("select url, title from pages where title is not null"))
        assert all(item["title"] == titles[item["url"]] for item in found)


def test_each_of_several_agents_writes_a_file(place: Place, own: dict[str, Any]) -> None:
    with Farm(sites=4, pages=20, kinds=(), names=(), delay_ms=40) as farm:
        output = ("-O", f"{place.folder}/items.jsonl")
        place.start_crawl(farm.seeds, "--agents", "2", *output, spider="titles", **own).wait().succeeded()
        first, second = (items(place.folder / f"items-{number}.jsonl") for number in (1, 2))
        assert not (place.folder / "items.jsonl").exists()
        wanted = {url for urls in farm.expected().values() for url in urls}
        assert Counter(item["url"] for item in first + second) == Counter(wanted)
        assert place.stored() == farm.expected()


def test_items_on_standard_output_stay_clean(place: Place, own: dict[str, Any]) -> None:
    with Farm(sites=1, pages=3, kinds=(), names=()) as farm:
        run = place.start_crawl(farm.seeds, "-O", "-:jsonlines", spider="async", **own).wait().succeeded()
        assert {json.loads(line)["url"] for line in run.out.splitlines()} == farm.expected()[farm.site(0)]
        assert "  pages  " in run.err


def test_a_parse_that_raises_costs_no_page(place: Place, own: dict[str, Any]) -> None:
    with Farm(sites=1, pages=12, kinds=(), names=()) as farm:
        output = ("-O", f"{place.folder}/items.jsonl")
        run = place.start_crawl(farm.seeds, *output, spider="broken", **own).wait()
        assert run.code == 0
        assert place.stored() == farm.expected()
        assert "parse fails on" in run.err
        wanted = {url for url in farm.expected()[farm.site(0)] if "/d" not in url}
        assert {item["url"] for item in items(place.folder / "items.jsonl")} == wanted


def test_own_requests_go_where_the_crawl_may(place: Place, own: dict[str, Any]) -> None:
    with Farm(sites=2, pages=4, kinds=("nofollow", "private", "away", "redirect"), names=()) as farm:
        output = ("-O", f"{place.folder}/items.jsonl")
        run = place.start_crawl(farm.seeds[:1], *output, spider="follower", **own).wait().succeeded()
        found = items(place.folder / "items.jsonl")
        site = farm.site(0)
        # A plain link joins the site's pages; a request with a callback is fetched beside them.
        wanted = farm.expected(seeds=farm.seeds[:1])[site]
        assert place.stored() == {site: wanted | {f"{site}/hidden/one.html"}}
        details = {item["detail"]: item for item in found if "detail" in item}
        assert {url: item["word"] for url, item in details.items()} == {
            f"{site}/hidden/two.html": "two",
            f"{site}/moved/new.html": "moved",
        }
        assert all(item["size"] for item in details.values())
        # robots.txt holds for a user's own requests too, and no redirect leads around it.
        asked = fetched(farm.hits())
        assert f"{site}/private/" not in asked
        assert not any(url.startswith(farm.site(1)) for url in asked)
        refused = {item["refused"]: item["error"] for item in found if "refused" in item}
        assert refused == {f"{site}/private/": "RobotsDeniedError", f"{farm.site(1)}/": "RobotsDeniedError"}
        assert "file:///etc/hostname" in run.err
        assert "ftp://127.0.0.1/x" in run.err


def test_runspider_runs_it_too(place: Place) -> None:
    file = place.folder / "one_spider.py"
    file.write_text(SPIDER.split("class Broken")[0])
    with Farm(sites=1, pages=4, kinds=(), names=()) as farm:
        place.run(
            "runspider", str(file), "-a", f"seeds={farm.seeds[0]}", "-O", f"{place.folder}/i.jsonl", **QUICK
        ).succeeded()
        place.check_nothing_left()
        assert place.stored() == farm.expected()
        assert len(items(place.folder / "i.jsonl")) == 4


def test_links_that_only_parse_gives_are_walked(place: Place, own: dict[str, Any]) -> None:
    steps = {"crawler.pipelines.checksum.Checksum": 100, "crawler.pipelines.links.Links": None}
    with Farm(sites=1, pages=8, kinds=(), names=()) as farm:
        run = place.start_crawl(farm.seeds, spider="pager", PAGE_PIPELINES=steps, **own).wait()
        run.succeeded()
        assert place.stored() == farm.expected()


@pytest.mark.parametrize("spider", ["metacopier", "raiser"])
def test_a_clumsy_parse_holds_up_nothing(place: Place, own: dict[str, Any], spider: str) -> None:
    with Farm(sites=1, pages=8, kinds=(), names=()) as farm:
        run = place.start_crawl(farm.seeds, spider=spider, **own).wait()
        assert run.code == 0
        assert place.stored() == farm.expected()


# --- A page's turn ends when all that its `parse` gave is processed ------------------------------------------


def test_links_of_a_sites_last_page_are_walked(
    place: Place, valkey: RunningServer, own: dict[str, Any]
) -> None:
    """The page names no links, and is the only one; what `parse` gives comes when nothing else is left."""
    many = (1, 2, 3, 5)
    with ExitStack() as stack:
        sites = {
            number: stack.enter_context(SmallSite({"*": links()}, f"127.0.1.{number}")) for number in many
        }
        seeds = [f"{site.site}/{number}" for number, site in sites.items()]
        place.start_crawl(seeds, spider="lastlinks", REDIS_URL=valkey.url, **own).wait().succeeded()
        asked = {number: set(site.pages) for number, site in sites.items()}
        assert asked == {
            number: {f"/{number}", *(f"/{number}/{last}/" for last in range(number))} for number in many
        }


def test_a_link_to_another_site_in_hand_outlives_its_agent(
    place: Place, valkey: RunningServer, own: dict[str, Any]
) -> None:
    """The page that gives it is published, and the site that it leads to has nothing to publish yet."""
    given = {**own, "REDIS_URL": valkey.url, "LEASE_SECONDS": 1}
    with (
        SmallSite({"*": links()}, "127.0.1.1") as other,
        SmallSite({}, "127.0.1.2") as hub,
        held_up(other) as free,
    ):
        hub.routes["/"] = partial(answered_behind, other)
        arguments = ("-a", f"hub={hub.root}", "-a", f"other={other.site}/linked")
        run = place.start_crawl([hub.root, other.root], *arguments, spider="linker", **given)
        eventually(lambda: state_of(valkey, hub.site) == "f", "the hub is finished")
        run.end(signal.SIGKILL)
        free.set()
        place.start_crawl([], *arguments, spider="linker", **given).wait().succeeded()
        assert hub.pages == {"/": 1}
        assert f"{other.site}/linked" in outcomes(valkey)


def answered_behind(other: SmallSite, _times: int) -> Reply:
    """A page that comes when another site was asked."""
    eventually(lambda: other.log, "the other site is asked")
    return links()


def test_an_item_in_a_pipeline_outlives_its_agent(
    place: Place, valkey: RunningServer, own: dict[str, Any], tmp_path: Path
) -> None:
    """A page is told as done only when its items are: else nobody would give them again."""
    go = tmp_path / "go"
    given = {
        **own,
        "ITEM_PIPELINES": {"own_spiders.SlowStamp": 300},
        "STAMP_WHEN": str(go),
        "REDIS_URL": valkey.url,
        "LEASE_SECONDS": 1,
    }
    feed = ("-o", f"{tmp_path}/items.jsonl")
    with SmallSite({"*": links("/slow", "/quick")}) as site:
        run = place.start_crawl([site.root], *feed, spider="async", **given)
        eventually(lambda: f"{site.site}/quick" in outcomes(valkey), "the page behind it is published")
        run.end(signal.SIGKILL)
        assert f"{site.site}/slow" not in outcomes(valkey)
        go.touch()
        place.start_crawl([], *feed, spider="async", **given).wait().succeeded()
        assert set(outcomes(valkey)) == {f"{site.site}{path}" for path in ("/", "/slow", "/quick")}
        given = {item["url"] for item in items(tmp_path / "items.jsonl")}
        assert given == {f"{site.site}{path}" for path in ("/", "/slow", "/quick")}
        assert site.pages == {"/": 1, "/slow": 2, "/quick": 1}


@pytest.mark.parametrize("spider", ["titles", "async"])
def test_a_middleware_that_drops_all_holds_up_nothing(
    place: Place, valkey: RunningServer, own: dict[str, Any], spider: str
) -> None:
    with SmallSite({"*": links("/1", "/2")}) as site:
        drops = {"own_spiders.Drops": 10}
        given = {"REDIS_URL": valkey.url, "SPIDER_MIDDLEWARES": drops, **own}
        place.start_crawl([site.root], spider=spider, **given).wait().succeeded()
        assert len(outcomes(valkey)) == 3


def test_an_agent_that_ends_waits_for_a_parse(
    place: Place, valkey: RunningServer, own: dict[str, Any], tmp_path: Path
) -> None:
    """And does nothing else meanwhile."""
    go = tmp_path / "go"
    with SmallSite({"*": links("/1")}) as site:
        arguments = ("-a", f"go={go}", "-O", f"{tmp_path}/items.jsonl")
        run = place.start_crawl([site.root], *arguments, spider="patient", REDIS_URL=valkey.url, **own)
        eventually(lambda: len(site.pages) == 2, "both pages are asked for")
        run.process.send_signal(signal.SIGTERM)
        run.says("Closing spider (shutdown)")
        before = cpu_seconds(run.pid)
        began = time.process_time()
        while (busy := time.process_time() - began) < 1:
            pass  # the span that is measured, on a machine with other work too
        assert cpu_seconds(run.pid) - before < 0.5 * busy
        assert outcomes(valkey) == {}
        go.touch()
        run.wait().succeeded()
        assert len(outcomes(valkey)) == len(items(tmp_path / "items.jsonl")) == 2


def cpu_seconds(pid: int) -> float:
    """What a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- Own requests and rests --------------------------------------------------------------------------------


def test_a_rest_that_an_own_request_is_asked_for_is_kept(
    place: Place, valkey: RunningServer, own: dict[str, Any]
) -> None:
    """Before Scrapy's middleware asks for it again, which it then does in its turn."""
    with ExitStack() as stack:
        sites = {
            status: stack.enter_context(SmallSite({"*": links("/1")}, f"127.0.1.{host}"))
            for host, status in enumerate((429, 503), 1)
        }
        for status, site in sites.items():
            site.routes["/own/0"] = at_first(Reply(status, {"Retry-After": "2"}), links())
        seeds = [site.root for site in sites.values()]
        run = place.start_crawl(seeds, spider="detailer", REDIS_URL=valkey.url, **own).wait().succeeded()
        for status, site in sites.items():
            first, again = site.times("/own/0")
            assert again - first >= 2
            assert [one.path for one in site.log if first < one.at < first + 2] == []
            assert {"/1", "/own/1", "/own/2"} < set(site.pages)
            assert f"{site.site}: backing off for 2 s: it answered {status}" in run.err


def test_one_of_its_own_requests_that_always_fails_is_not_its_site(
    place: Place, valkey: RunningServer, own: dict[str, Any]
) -> None:
    with SmallSite({"/own/0": Reply(503), "*": links("/1")}) as site:
        run = place.start_crawl([site.root], spider="detailer", REDIS_URL=valkey.url, **own).wait()
        run.succeeded()
        assert "backing off for" not in run.err
        assert site.pages == {"/": 1, "/own/0": 3, "/own/1": 1, "/own/2": 1, "/1": 1}


def test_own_requests_that_are_not_sent_are_told(
    place: Place, valkey: RunningServer, own: dict[str, Any]
) -> None:
    with SmallSite({"/own/0": Reply(503, {"Retry-After": "7200"}), "*": links()}) as site:
        run = place.start_crawl([site.root], spider="detailer", REDIS_URL=valkey.url, **own).wait()
        run.succeeded()
        assert f"{site.site}: 3 of the spider's own requests not sent, the site was returned" in run.err
        assert site.pages == {"/": 1, "/own/0": 1}
        assert valkey.client.zscore(key("wake:site"), site.site)


def test_own_requests_to_a_site_that_is_given_up_are_told_and_hold_up_nothing(
    place: Place, valkey: RunningServer, own: dict[str, Any]
) -> None:
    """Its robots.txt is old by the time that the first of them has its answer, and silent when it is read anew."""
    routes = {
        "/robots.txt": at_first(Reply(404), links(seconds=60)),
        "/own/0": links(seconds=1.2),
        "*": links(),
    }
    given = {"ROBOTS_LIFETIME_SECONDS": 1, "HEAD_TIMEOUT_SECONDS": 2, "MAX_TRIES": 1}
    with SmallSite(routes) as site:
        run = place.start_crawl([site.root], spider="detailer", REDIS_URL=valkey.url, **given, **own)
        run.wait(45).succeeded()
        assert f"{site.site}: given up after" in run.err
        assert f"{site.site}: 2 of the spider's own requests not sent" in run.err
        assert site.pages == {"/": 1, "/own/0": 1}
        assert outcomes(valkey) == {site.root: "stored"}
