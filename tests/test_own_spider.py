"""A user's own spider: a subclass with `parse`, in a file that the project knows nothing of.

Its items go through an ordinary Scrapy pipeline and into a feed; whatever it does costs no page.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.crawling import QUICK, Place, fetched
from tests.farm import Farm

SPIDER = '''
"""What a user writes."""
from scrapy import Request
from crawler.spiders.site import SiteSpider


class Titles(SiteSpider):
    name = "titles"

    def parse(self, response):
        if hasattr(response, "text"):  # a PDF file has no title
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


class Stamp:
    """An ordinary item pipeline."""

    def process_item(self, item):
        return {**item, "stamp": "seen"}
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
        assert refused == {f"{site}/private/": "RobotsDenied", f"{farm.site(1)}/": "RobotsDenied"}
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
