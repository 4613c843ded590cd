"""What Scrapy's users are used to works here as well: what a response offers, feeds, middlewares, signals, commands.

tests/test_own_spider.py shows what `parse` may yield, and how several agents share a feed; here is the rest. Where a
way is not ours to keep, the test says what happens instead.
"""

from __future__ import annotations

import asyncio
import csv
import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.settings import Settings

from crawler.agent.scrapy_parts import ForeignHandlers
from crawler.fetch.errors import NotSentError
from tests.asking import asking
from tests.crawling import QUICK, ROOT, Place, Run, check_delay, fetched, robots_read
from tests.farm import Farm
from tests.raw_server import Exchange, RawServer, in_loop

WAYS = '''
"""What a user writes."""
import asyncio
import json
import os
from collections import Counter
from pathlib import Path

from scrapy import Request, Spider, signals
from scrapy.exceptions import CloseSpider, IgnoreRequest
from scrapy.http import HtmlResponse
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule

from crawler.spiders.site import SiteSpider

TOLD = Path(os.environ["TOLD"])


class Offers(SiteSpider):
    """All that a response offers."""

    name = "offers"

    def parse(self, response):
        yield {
            "url": response.url,
            "css": response.css("title::text").get(),
            "xpath": response.xpath("//title/text()").get(),
            "joined": response.urljoin("../up?x=1"),
            "depth": response.meta["depth"],
            "address": str(response.ip_address),
            "protocol": response.protocol,
            "latency": response.meta["download_latency"],
            "agent": response.request.headers["User-Agent"].decode(),
        }
        if response.meta["depth"] == 0:
            yield response.follow("/hidden/one.html", callback=self.parse_detail)
            yield from response.follow_all(
                ["/hidden/two.html", "/hidden/two.html#top", "/hidden/three.html"],
                callback=self.parse_detail, cb_kwargs={"word": "all"}, meta={"kept": "here"},
            )

    def parse_detail(self, response, word=""):
        yield {"detail": response.url, "word": word, "kept": response.meta.get("kept"), "depth": response.meta["depth"]}


class Digger(SiteSpider):
    """Follows from pages that are no first page."""

    name = "digger"

    def parse(self, response, word="none"):
        yield {"url": response.url, "word": word, "kept": response.meta.get("kept")}
        if response.meta["depth"] == 0:
            yield response.follow("/hidden/two.html", cb_kwargs={"word": "given"}, meta={"kept": "here"})
            yield response.follow("/" + "x" * 3000)
        if response.meta["depth"] == 1:
            yield response.follow("/hidden/one.html")


class Circler(SiteSpider):
    """Every answer's links are followed with a callback that does so again."""

    name = "circler"

    def parse(self, response):
        if response.meta["depth"] == 0:
            yield from self.parse_again(response)

    def parse_again(self, response):
        yield {"url": response.url}
        yield Request(response.urljoin("/hidden/two.html"), callback=self.parse_twice, dont_filter=True)
        yield from response.follow_all(css="a", callback=self.parse_again)

    def parse_twice(self, response):
        yield {"twice": response.url}


class Ruled(CrawlSpider):
    """No spider of ours: start_urls, rules, and a callback for what they find."""

    name = "ruled"
    start_urls = [os.environ.get("SEED", "")]
    rules = [Rule(LinkExtractor(allow=r"/d\\d/"), callback="parse_page")]

    def parse_page(self, response):
        yield {"url": response.url}


class Late(Spider):
    """Has to think before it knows where to begin."""

    name = "late"

    async def start(self):
        for url in os.environ["SEED"].split(","):
            await asyncio.sleep(1.0)
            yield Request(url)

    def parse(self, response):
        yield {"url": response.url}


class Plain(SiteSpider):
    """One item per page."""

    name = "plain"

    def parse(self, response):
        yield {"url": response.url, "title": response.css("title::text").get()}


class Fed(Plain):
    name = "fed"
    custom_settings = {"FEEDS": {str(TOLD / "fed-%(name)s.jsonl"): {"format": "jsonlines", "overwrite": True}}}


class Fetcher(SiteSpider):
    """Waits for a page of its own in the midst of another."""

    name = "fetcher"
    custom_settings = {
        "ITEM_PIPELINES": {"scrapy.pipelines.files.FilesPipeline": 1},
        "FILES_STORE": str(TOLD / "files"),
    }

    async def parse(self, response):
        if response.meta["depth"] == 0:
            beside = await self.crawler.engine.download_async(Request(response.urljoin("/hidden/one.html")))
            yield {"beside": beside.url, "status": beside.status, "file_urls": [response.urljoin("/hidden/two.html")]}


class Ended(SiteSpider):
    name = "ended"

    def parse(self, response):
        raise CloseSpider("seen enough")


class Contracted(SiteSpider):
    name = "contracted"

    def parse(self, response):
        """What a page gives.

        @url SEED
        @returns items 1 1
        @scrapes url
        """
        yield {"url": response.url}

    parse.__doc__ = parse.__doc__.replace("SEED", os.environ.get("SEED", ""))


class Wrong(Contracted):
    name = "wrong"

    def parse(self, response):
        """What a page does not give.

        @url SEED
        @returns items 2
        """
        yield {"url": response.url}

    parse.__doc__ = parse.__doc__.replace("SEED", os.environ.get("SEED", ""))


# --- middlewares, extensions ---


class Witness:
    """Sees every request and every answer."""

    def __init__(self, crawler):
        self.seen = {"requests": [], "responses": []}
        crawler.signals.connect(self.tell, signal=signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

    def process_request(self, request):
        request.headers["User-Agent"] = "another/2.0"
        self.seen["requests"].append(request.url)

    def process_response(self, request, response):
        self.seen["responses"].append(response.url)
        return response

    def tell(self):
        (TOLD / "witness.json").write_text(json.dumps(self.seen))


class Witnessed(Plain):
    name = "witnessed"
    custom_settings = {"DOWNLOADER_MIDDLEWARES": {"ways.Witness": 543}}

    def parse(self, response):
        yield from super().parse(response)
        yield response.follow("/private/", callback=self.parse, errback=self.told)

    def told(self, failure):
        yield {"refused": failure.request.url}


class Meddler:
    """Does to each page what its path asks for."""

    def __init__(self, crawler):
        self.crawler = crawler

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

    async def process_request(self, request):
        path = request.url.partition("//")[2].partition("/")[2]
        other = request.url.replace(path, "hidden/one.html")
        if path == "answer":
            return HtmlResponse(request.url, body=b"<title>made up</title><a href='/hidden/two.html'>on</a>")
        if path == "ignore":
            raise IgnoreRequest("not expected")
        if path == "bug":
            raise ValueError("a slip")
        if path == "fresh":
            return Request(other, meta={"kept": path})
        if path == "copy":
            return request.replace(url=other)
        if path == "callback":
            return Request(other + "?beside", callback=self.crawler.spider.parse_beside)
        if path == "borrow":
            return await self.crawler.engine.download_async(Request(other))
        if path.startswith("endless"):
            return Request(request.url + "x")

    def process_response(self, request, response):
        if request.url.endswith("/hidden/three.html"):
            raise IgnoreRequest("no such answer")
        return response


class Meddled(SiteSpider):
    name = "meddled"
    custom_settings = {"DOWNLOADER_MIDDLEWARES": {"ways.Meddler": 543}}

    def parse(self, response):
        yield {
            "url": response.url, "title": response.css("title::text").get(),
            "kept": response.meta.get("kept"), "depth": response.meta["depth"],
        }

    def parse_beside(self, response):
        yield {"beside": response.url}


class Adds:
    """A spider middleware that adds to what `parse` gives and refuses some answers."""

    def process_spider_input(self, response):
        if response.url.endswith("/d1/p1.html"):
            raise ValueError("not this one")

    async def process_spider_output(self, response, result):
        async for one in result:
            yield one
        yield {"after": response.url}


class Listener:
    """An extension that counts signals."""

    def __init__(self, crawler):
        self.counts, self.dropped = Counter(), []
        for name in ("spider_opened", "response_received", "item_scraped", "spider_idle", "spider_error"):
            crawler.signals.connect(self.counter(name), signal=getattr(signals, name), weak=False)
        crawler.signals.connect(self.drop, signal=signals.request_dropped)
        crawler.signals.connect(self.close, signal=signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

    def counter(self, name):
        def count(**_told):
            self.counts[name] += 1
        return count

    def drop(self, request):
        self.dropped.append(request.url)

    def close(self, spider, reason):
        told = {"counts": self.counts, "dropped": self.dropped, "reason": reason}
        (TOLD / "listener.json").write_text(json.dumps(told))


class Listened(Plain):
    name = "listened"
    custom_settings = {"SPIDER_MIDDLEWARES": {"ways.Adds": 543}, "EXTENSIONS": {"ways.Listener": 500}}

    def parse(self, response):
        yield from super().parse(response)
        if response.meta["depth"] == 0:
            yield response.follow("/")


class Proxied:
    """Sends everything through a proxy."""

    def process_request(self, request):
        request.meta["proxy"] = os.environ["PROXY"]


class Stock(SiteSpider):
    name = "stock"
    custom_settings = {
        "DOWNLOAD_HANDLERS": {
            "http": "scrapy.core.downloader.handlers.http11.HTTP11DownloadHandler",
            "https": "scrapy.core.downloader.handlers.http11.HTTP11DownloadHandler",
        },
        "COMPRESSION_ENABLED": True,
    }
'''
STOCK = dict.fromkeys(("http", "https"), "scrapy.core.downloader.handlers.http11.HTTP11DownloadHandler")


class User:
    """Somebody with a module `ways` and a folder of his own for each of the things he tries."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack
        (folder / "ways.py").write_text(WAYS)

    def place(self, name: str = "only") -> Place:
        """A VAR_DIR of its own; nothing may be left running there."""
        folder = self.folder / name
        folder.mkdir()
        return self._stack.enter_context(Place(folder))

    def given(self, place: Place, **env: str) -> dict[str, Any]:
        """What makes the project find the module, for a command in this place."""
        told = {"PYTHONPATH": str(self.folder), "TOLD": str(place.folder), **env}
        return {"env": told, "SPIDER_MODULES": "ways"}

    def start(self, place: Place, spider: str, seeds: list[str], *words: str, **given: Any) -> Run:
        """A crawl whose items go into items.jsonl of the place."""
        words = (*words, "-O", f"{place.folder}/items.jsonl", "--no-summary")
        return place.start_crawl(seeds, *words, spider=spider, **{**self.given(place), **given})

    def crawl(self, spider: str, seeds: list[str], *words: str, **given: Any) -> tuple[Place, Run]:
        """As `start` in a new place, and wait until all has ended."""
        place = self.place()
        run = self.start(place, spider, seeds, *words, **given).wait()
        place.check_nothing_left()
        return place, run


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    with ExitStack() as stack:
        yield User(tmp_path, stack)


def items(place: Place, name: str = "items.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (place.folder / name).read_text().splitlines()]


def told(place: Place, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((place.folder / name).read_text())
    return found


# --- what `parse` is given, and what it may give ----------------------------------------------------------


def test_a_response_offers_all_that_scrapys_own_does(user: User) -> None:
    with Farm(sites=1, pages=8, links=4, kinds=("nofollow", "meta"), names=()) as farm:
        place, run = user.crawl("offers", farm.seeds)
        run.succeeded()
        site = farm.site(0)
        assert place.stored() == farm.expected()
        rows = {
            url: (title, depth) for url, title, depth in place.rows("select url, title, depth from pages")
        }
        pages = [item for item in items(place) if "url" in item]
        assert {item["url"]: (item["css"], item["depth"]) for item in pages} == rows
        assert all(item["css"] == item["xpath"] for item in pages)
        assert {item["address"] for item in pages} == {urlsplit(site).hostname}
        assert {(item["protocol"], item["agent"]) for item in pages} == {("HTTP/1.1", "lowtide")}
        assert all(0 < item["latency"] < 10 for item in pages)
        assert {item["joined"] for item in pages} >= {f"{site}/up?x=1"}
        details = sorted(
            (i["detail"], i["word"], i["kept"], i["depth"]) for i in items(place) if "detail" in i
        )
        assert details == [
            (f"{site}/hidden/one.html", "", None, 1),
            (f"{site}/hidden/three.html", "all", "here", 1),
            (f"{site}/hidden/two.html", "all", "here", 1),
        ]


def test_what_a_link_of_parse_carries_arrives_and_its_depth_counts(user: User) -> None:
    with Farm(sites=1, pages=8, links=4, kinds=("nofollow",), names=()) as farm:
        shallow = user.place("shallow")
        runs = [
            user.start(place := user.place("deep"), "digger", farm.seeds),
            user.start(shallow, "digger", farm.seeds, MAX_DEPTH=1, USER_AGENT="shallow"),
        ]
        for run in runs:
            run.wait().succeeded()
        site = farm.site(0)
        depths = dict(place.rows("select url, depth from pages"))
        assert depths[f"{site}/hidden/one.html"] == 2
        assert f"{site}/hidden/one.html" not in dict(shallow.rows("select url, depth from pages"))
        assert not any("xxx" in hit.path for hit in farm.hits())
        # With data for its callback it is fetched beside the pages, and is none of them.
        assert f"{site}/hidden/two.html" not in depths
        found = {item["url"]: (item["word"], item["kept"]) for item in items(place)}
        assert found.pop(f"{site}/hidden/two.html") == ("given", "here")
        assert set(found.values()) == {("none", None)}


def test_own_requests_are_sent_once_each(user: User) -> None:
    with Farm(sites=1, pages=8, links=4, kinds=("nofollow",), names=()) as farm:
        few = user.place("few")
        runs = [
            user.start(place := user.place("all"), "circler", farm.seeds, USER_AGENT="all"),
            user.start(few, "circler", farm.seeds, USER_AGENT="few", MAX_PAGES_PER_SITE=3),
        ]
        for run in runs:
            run.wait().succeeded()
        assert place.stored() == farm.expected()
        asked = fetched(hit for hit in farm.hits() if hit.user_agent == "all")
        twice = f"{farm.site(0)}/hidden/two.html"
        # Once as a page, once by the spider; but what is not to be filtered as often as it was asked for.
        own = Counter(item["url"].partition("#")[0] for item in items(place) if "url" in item)
        assert asked.pop(twice) >= len(own) > 8
        assert set(asked.values()) <= {1, 2}
        own_of_few = [hit for hit in farm.hits() if hit.user_agent == "few" and hit.path != "/robots.txt"]
        assert len(own_of_few) == 3 + 3
        assert runs[1].err.count("3 of the spider's own requests (MAX_PAGES_PER_SITE)") == 1


def test_a_crawl_spider_with_rules_runs(user: User) -> None:
    with Farm(sites=1, pages=8, kinds=(), names=()) as farm:
        place = user.place()
        given = user.given(place, SEED=farm.seeds[0])
        user.start(place, "ruled", [], **given).wait().succeeded()
        place.check_nothing_left()
        assert place.stored() == farm.expected()
        wanted = {url for url in farm.expected()[farm.site(0)] if "/d" in url}
        found = Counter(item["url"].partition("#")[0] for item in items(place))
        assert set(found) == wanted
        assert max(fetched(farm.hits()).values()) <= 2


def test_start_requests_are_waited_for(user: User) -> None:
    with Farm(sites=2, pages=2, kinds=(), names=()) as farm:
        place = user.place()
        user.start(place, "late", [], **user.given(place, SEED=",".join(farm.seeds))).wait().succeeded()
        assert place.stored() == farm.expected()


def test_pages_that_a_spider_waits_for_and_files_that_an_item_names(user: User) -> None:
    with Farm(sites=1, pages=4, kinds=("nofollow",), names=()) as farm:
        place, run = user.crawl("fetcher", farm.seeds)
        run.succeeded()
        assert place.stored() == farm.expected()
        (item,) = items(place)
        assert (item["beside"], item["status"]) == (f"{farm.site(0)}/hidden/one.html", 200)
        (file,) = item["files"]
        body = (place.folder / "files" / file["path"]).read_bytes()
        assert b"<title>" in body
        assert fetched(farm.hits())[f"{farm.site(0)}/hidden/two.html"] == 1


def test_a_spider_that_has_seen_enough_ends_well(user: User) -> None:
    with Farm(sites=2, pages=30, kinds=(), names=(), delay_ms=30) as farm:
        own, counted, wrong = user.place("own"), user.place("counted"), user.place("wrong")
        runs = [
            user.start(own, "ended", farm.seeds),
            user.start(counted, "plain", farm.seeds, "--agents", "2", CLOSESPIDER_ITEMCOUNT=3),
            user.start(wrong, "plain", ["nothing"], CLOSESPIDER_ITEMCOUNT=3),
        ]
        for run in runs:
            run.wait()
        assert [run.code for run in runs] == [0, 0, 2]
        assert own.rows("select distinct reason from runs") == [("seen enough",)]
        # An agent that ended so is not started again.
        assert Counter(counted.rows("select reason from runs")) == {("closespider_itemcount",): 2}
        assert 0 < len(counted.stored()[farm.site(0)]) < 30


# --- feeds ------------------------------------------------------------------------------------------------


def test_feeds_of_the_command_line_and_of_the_settings(user: User) -> None:
    with Farm(sites=4, pages=6, kinds=(), names=(), delay_ms=30) as farm:
        table, fed = user.place("table"), user.place("fed")
        wanted = Counter(url for urls in farm.expected().values() for url in urls)
        runs = [
            table.start_crawl(farm.seeds, "-o", f"{table.folder}/x.csv", spider="plain", **user.given(table)),
            fed.start_crawl(farm.seeds, "--agents", "2", spider="fed", **user.given(fed)),
        ]
        for run in runs:
            run.wait().succeeded()
        with (table.folder / "x.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert Counter(row["url"] for row in rows) == wanted
        assert all(row["title"].startswith("Page ") for row in rows)
        # Each agent has a file of its own, as with -O; one file would be the last one's.
        parts = [items(fed, f"fed-fed-{number}.jsonl") for number in (1, 2)]
        assert Counter(item["url"] for part in parts for item in part) == wanted


# --- downloader middlewares -------------------------------------------------------------------------------


def test_a_middleware_sees_every_request_and_takes_none_of_ours_away(user: User) -> None:
    with Farm(sites=1, pages=6, kinds=("private",), names=()) as farm:
        place, run = user.crawl("witnessed", farm.seeds)
        run.succeeded()
        site = farm.site(0)
        assert place.stored() == farm.expected()
        urls = {*farm.expected()[site], f"{site}/robots.txt"}
        seen = told(place, "witness.json")
        assert Counter(seen["requests"]) == Counter(seen["responses"]) == Counter(urls)
        assert {hit.user_agent for hit in farm.hits()} == {"another/2.0"}
        # The project's own middlewares are still there: robots.txt holds for the spider's own requests.
        assert f"{site}/private/" not in fetched(farm.hits())
        assert [item["refused"] for item in items(place) if "refused" in item] == [f"{site}/private/"]


def test_whatever_a_middleware_does_to_a_page_ends_its_turn(user: User) -> None:
    paths = ("answer", "ignore", "bug", "fresh", "copy", "callback", "borrow", "endless", "hidden/three.html")
    with Farm(sites=1, pages=1, kinds=("nofollow", "meta"), names=()) as farm:
        site = farm.site(0)
        place, run = user.crawl("meddled", [f"{site}/{path}" for path in paths])
        run.succeeded()
        rows = place.rows("select url, outcome, status, error, tries from pages")
        found = {url.removeprefix(f"{site}/"): (*rest,) for url, *rest in rows}
        pages = {item["url"].removeprefix(f"{site}/"): item for item in items(place) if "url" in item}
        asked = fetched(farm.hits())

        # An answer of its own is the page, its links are followed, and nobody was asked.
        assert found["answer"][:2] == ("stored", 200)
        assert pages["answer"]["title"] == "made up"
        assert found["hidden/two.html"][:2] == ("stored", 200)
        assert f"{site}/answer" not in asked

        # A refusal is told with its reason, and not tried again.
        assert found["ignore"] == ("failed", -14, "IgnoreRequest: not expected", 1)
        assert found["hidden/three.html"] == ("failed", -14, "IgnoreRequest: no such answer", 1)
        assert asked[f"{site}/hidden/three.html"] == 1
        assert found["bug"][:3] == ("failed", -13, "ValueError: a slip")

        # A request in a page's place brings that page's answer, whether it is a copy or made anew.
        assert {found[path][0] for path in ("fresh", "copy", "borrow")} <= {"stored", "duplicate"}
        assert asked[f"{site}/hidden/one.html"] == 3
        one = [item for item in items(place) if item.get("url") == f"{site}/hidden/one.html"]
        assert [item["kept"] for item in one if item["kept"]] == ["fresh"]
        assert len(one) == 3

        # With a callback of its own it is sent beside the page; and there is an end of new ones.
        assert found["callback"][:2] == ("failed", -14)
        assert "with its own callback" in found["callback"][2]
        assert asked[f"{site}/hidden/one.html?beside"] == 1
        assert found["endless"][:2] == ("failed", -14)
        assert "20 times in a row" in found["endless"][2]


# --- spider middlewares, extensions, signals --------------------------------------------------------------


def test_a_spider_middleware_and_an_extension_beside_ours(user: User) -> None:
    with Farm(sites=1, pages=6, kinds=(), names=()) as farm:
        place, run = user.crawl("listened", farm.seeds, MAX_TRIES=1)
        run.succeeded()
        site = farm.site(0)
        refused = f"{site}/d1/p1.html"
        (row,) = place.rows("select url, error from pages where outcome = 'failed'")
        assert row == (refused, "ValueError: not this one")
        pages = set(place.stored()[site])
        assert refused not in pages
        found = items(place)
        assert {item["url"] for item in found if "url" in item} == pages
        # The answer of robots.txt passes too.
        after = {item["after"] for item in found if "after" in item}
        assert after >= {*pages, f"{site}/robots.txt"}
        heard = told(place, "listener.json")
        assert heard["reason"] == "finished"
        assert heard["dropped"] == [f"{site}/"]
        assert heard["counts"] == {
            "spider_opened": 1,
            "response_received": len(farm.hits()),
            "item_scraped": len(found),
            "spider_idle": 1,
        }


def test_auto_throttle_slows_no_site_for_the_sake_of_another(user: User) -> None:
    with Farm(sites=8, pages=3, kinds=(), names=()) as farm:
        place, run = user.crawl("plain", farm.seeds, AUTOTHROTTLE_ENABLED=True, DOWNLOAD_DELAY=0.5)
        run.succeeded()
        assert place.stored() == farm.expected()
        spans = defaultdict(list)
        for hit in farm.hits():
            spans[hit.host].append(hit.monotonic)
        assert sorted(map(len, spans.values())) == [4] * 8
        assert max(map(min, spans.values())) < min(map(max, spans.values())), "one after the other"


# --- HTTP cache -------------------------------------------------------------------------------------------


def test_a_second_run_is_served_from_the_cache(user: User) -> None:
    cached = {"HTTPCACHE_ENABLED": True}
    with Farm(sites=1, pages=8, kinds=("redirect", "missing"), names=()) as farm:
        place = user.place()
        user.start(place, "plain", farm.seeds, **cached).wait().succeeded()
        assert place.stored() == farm.expected()
        asked = len(farm.hits())
        fetches = place.rows("select count(*) from fetches")[0][0]
        # Nobody is asked, so nobody's delay is waited for.
        run = user.start(place, "plain", farm.seeds, KEY_PREFIX="second", DOWNLOAD_DELAY=20, **cached)
        run.wait().succeeded()
        assert farm.hits()[asked:] == []
        assert place.rows("select count(*) from fetches")[0][0] == 2 * fetches
        assert {item["url"] for item in items(place)} == farm.expected()[farm.site(0)]
        assert (place.var / "httpcache" / "plain").is_dir()
        assert not (ROOT / ".scrapy").exists()


# --- proxies ----------------------------------------------------------------------------------------------


async def forward(exchange: Exchange) -> None:
    """One request through a proxy: the line has the whole URL, the answer goes back as it comes."""
    request = await exchange.request()
    method, url, version = request.split(b"\r\n", 1)[0].split(b" ")
    parts = urlsplit(url.decode())
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        path = url.decode().partition(parts.netloc)[2].encode()
        head = b" ".join((method, path, version)) + b"\r\nConnection: close\r\n"
        writer.write(head + request.split(b"\r\n", 1)[1])
        while data := await reader.read(65_536):
            await exchange.send(data)
    finally:
        writer.close()


def test_a_proxy_of_a_middleware_or_of_the_environment(user: User) -> None:
    @in_loop
    async def scene() -> None:
        async with AsyncStack() as proxies:
            with Farm(sites=2, pages=3, kinds=(), names=()) as farm:
                dead = "http://127.0.0.1:9"
                spared = str(urlsplit(farm.site(1)).hostname)
                meddling = {"DOWNLOADER_MIDDLEWARES": {"ways.Proxied": 543}}
                cases: dict[str, Callable[[str], tuple[dict[str, str], dict[str, Any]]]] = {
                    "environment": lambda url: ({"http_proxy": url, "no_proxy": spared}, {}),
                    "middleware": lambda url: ({"http_proxy": dead, "PROXY": url}, meddling),
                    "switched off": lambda _url: ({"http_proxy": dead}, {"HTTPPROXY_ENABLED": False}),
                }
                runs, servers = {}, {}
                for name, case in cases.items():
                    servers[name] = await proxies.enter(RawServer(forward))
                    env, settings = case(f"http://127.0.0.1:{servers[name].port}")
                    place = user.place(name)
                    given = user.given(place, **env)
                    runs[place] = user.start(place, "plain", farm.seeds, **given, **settings)
                for place, run in runs.items():
                    (await asyncio.to_thread(run.wait)).succeeded()
                    assert place.stored() == farm.expected()
                # robots.txt and three pages of each of the two sites.
                asked = {name: len(server.requests) for name, server in servers.items()}
                assert asked == {"environment": 4, "middleware": 8, "switched off": 0}
                assert len(farm.hits()) == 3 * 8

    scene()


class AsyncStack:
    """Servers that end together."""

    def __init__(self) -> None:
        self._servers: list[RawServer] = []

    async def __aenter__(self) -> AsyncStack:
        return self

    async def enter(self, server: RawServer) -> RawServer:
        self._servers.append(await server.__aenter__())
        return server

    async def __aexit__(self, *_error: object) -> None:
        for server in self._servers:
            await server.__aexit__()


# --- another download handler -----------------------------------------------------------------------------


def test_a_crawl_over_scrapys_own_handler(user: User) -> None:
    with Farm(sites=2, pages=6, names=()) as farm:
        site = farm.site(0)
        seeds = [*farm.seeds, f"{site}/_/gzip", "http://localhost:9/"]
        # The guard knows what a name means, though not what the handler connects to.
        given = {"ALLOW_PRIVATE_ADDRESSES": "127.0.1.0/24", "MAX_TRIES": 2}
        named, chosen, bare = user.place("named"), user.place("chosen"), user.place("bare")
        runs = [
            user.start(named, "stock", seeds, **given),
            user.start(chosen, "plain", seeds, **given, DOWNLOAD_HANDLERS=STOCK, COMPRESSION_ENABLED=True),
            user.start(
                bare, "plain", [f"{site}/_/gzip"], **given, DOWNLOAD_HANDLERS=STOCK, MAX_PAGES_PER_SITE=1
            ),
        ]
        for run in runs:
            assert run.wait().code == 0, run.err[-3000:]
            assert "private addresses are refused by name only" in run.err
        wanted = farm.expected()
        wanted[site] = {*wanted[site], f"{site}/_/gzip"}
        for place in (named, chosen):
            place.check_nothing_left()
            assert place.stored() == wanted
            refused = place.rows("select url, status from pages where status = -10")
            assert refused == [("http://localhost:9/", -10)]
        assert farm.forbidden_hits() == []
        # Without the middleware nobody decodes.
        title = "select title from pages where url like '%/_/gzip'"
        assert named.rows(title)[0][0]
        assert not bare.rows(title)[0][0]
        assert "expected COMPRESSION_ENABLED=True" in runs[2].err
        assert "expected COMPRESSION_ENABLED=True" not in runs[0].err


def test_a_stock_handler_keeps_to_the_delay(user: User) -> None:
    with Farm(sites=1, pages=4, kinds=(), names=(), delay_ms=100) as farm:
        place, run = user.crawl("stock", farm.seeds, DOWNLOAD_DELAY=0.5)
        run.succeeded()
        assert place.stored() == farm.expected()
        times = [hit.monotonic for hit in farm.hits()]
        assert len(times) == 5
        check_delay(times, 0.5)


@in_loop
async def test_a_stock_handler_is_not_asked_while_the_lease_may_be_gone() -> None:
    settings = Settings()
    settings.setmodule("settings.base")
    settings.update(
        {"DOWNLOAD_HANDLERS": STOCK, "ALLOW_PRIVATE_ADDRESSES": "127.0.0.0/8"}, priority="cmdline"
    )
    middleware = ForeignHandlers.from_crawler(Crawler(Spider, settings))
    try:
        held = Request("http://127.0.0.1/", meta=asking(lambda: False))
        with pytest.raises(NotSentError, match="held back"):
            await middleware.process_request(held)
        sent = Request("http://127.0.0.1/", meta=asking(lambda: True))
        await middleware.process_request(sent)
        assert sent.meta["download_timeout"] == 45
    finally:
        await middleware.close()


# --- commands ---------------------------------------------------------------------------------------------


def test_commands_that_fetch_by_hand(user: User) -> None:
    with Farm(sites=1, pages=2, kinds=("redirect",), names=()) as farm:
        place, seed = user.place(), farm.seeds[0]
        own = user.given(place, SEED=seed, BROWSER="echo opened %s", TMPDIR=str(place.folder))
        reach = {
            **own,
            "ALLOW_PRIVATE_ADDRESSES": "127.0.0.0/8",
            "DOWNLOAD_DELAY": 0,
            "USER_AGENT": "by-hand",
        }
        title = "(response.css('title::text').get(), str(response.ip_address), response.protocol)"
        runs = {
            "shell": place.start("shell", "--nolog", "-c", title, seed, **reach),
            "fetch": place.start("fetch", "--nolog", f"{farm.site(0)}/moved/old.html", **reach),
            "parse": place.start("parse", "--nolog", "--spider", "contracted", seed, **reach),
            "view": place.start("view", seed, **reach),
            "refused": place.start("fetch", seed, **own),
        }
        for run in runs.values():
            assert run.wait().code == 0, run.err[-3000:]
        host = urlsplit(seed).hostname
        assert runs["shell"].out.strip() == f"('Page 0 of {host}', '{host}', 'HTTP/1.1')"
        assert "/moved/new.html" in runs["fetch"].out
        assert f"[{{'url': '{seed}'}}]" in runs["parse"].out
        assert "opened file://" in runs["view"].out
        assert runs["refused"].out == ""
        assert "ALLOW_PRIVATE_ADDRESSES" in runs["refused"].err
        assert {hit.user_agent for hit in farm.hits()} == {"by-hand"}
        # None of them is a crawl: no server, no tables, no claim to the prefix.
        assert not place.var.exists()


def test_contracts_are_checked_without_a_crawl(user: User) -> None:
    with Farm(sites=1, pages=2, kinds=(), names=()) as farm:
        place = user.place()
        own = user.given(place, SEED=farm.seeds[0])
        reach = {**own, "ALLOW_PRIVATE_ADDRESSES": "127.0.0.0/8", "DOWNLOAD_DELAY": 0}
        kept = place.start("check", "contracted", **reach)
        broken = place.start("check", "wrong", **reach)
        listed = place.start("list", **own)
        assert kept.wait().code == 0, kept.err
        assert "Ran 2 contracts" in kept.err
        assert broken.wait().code == 1
        assert "FAILED (failures=1)" in broken.err
        names = listed.wait().out.split()
        assert listed.code == 0
        assert {"contracted", "ruled", "wrong"} <= set(names)
        assert not place.var.exists()


def test_a_spider_that_scrapy_writes_is_a_crawl(user: User) -> None:
    copy = user.folder / "project"
    copy.mkdir()
    for name in ("crawler", "settings"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(ROOT / "scrapy.cfg", copy)
    place = user.place()
    here: dict[str, Any] = {"cwd": copy, "env": {"PYTHONPATH": str(copy)}}
    with Farm(sites=1, pages=4, kinds=(), names=()) as farm:
        place.run("genspider", "written", farm.seeds[0], **here).succeeded()
        file = copy / "crawler" / "spiders" / "written.py"
        text = file.read_text()
        file.write_text(text.replace("pass", "yield {'url': response.url}"))
        listed = place.run("list", **here).succeeded().out.split()
        assert listed == ["recheck", "revive", "site", "status", "written"]
        feed = f"{place.folder}/items.jsonl"
        place.run("crawl", "written", "-O", feed, **QUICK, **here).succeeded()
        assert place.stored() == farm.expected()
        assert {item["url"] for item in items(place)} == farm.expected()[farm.site(0)]
        assert robots_read(farm.hits()).total() == 1


def test_runspider_tells_how_it_ended(user: User) -> None:
    with Farm(sites=1, pages=2, kinds=(), names=()) as farm:
        place = user.place()
        file = user.folder / "alone.py"
        file.write_text(
            "from crawler.spiders.site import SiteSpider\n\n\nclass Alone(SiteSpider):\n    name = 'alone'\n"
        )
        wrong = place.start("runspider", str(file), SITE_SLTS=3)
        nothing = user.place("nothing").start("runspider", str(file), **QUICK)
        run = place.run("runspider", str(file), "-a", f"seeds={farm.seeds[0]}", **QUICK)
        run.succeeded()
        wrong.wait().refused("SITE_SLOTS", code=2)
        nothing.wait().refused("no seeds", code=2)
        assert "Referer" not in run.err
        assert place.stored() == farm.expected()
