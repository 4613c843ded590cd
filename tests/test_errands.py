"""Each end of a slot's request is told once, whatever users and middlewares copy; and what is a user's stays his.

A page has one turn and one record, and no crawl waits for ever: for a request that was copied, put in another's place
or held back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from scrapy import Request
from scrapy.exceptions import (
    DownloadCancelledError,
    DownloadFailedError,
    StopDownload,
    UnsupportedURLSchemeError,
)
from scrapy.settings import Settings
from twisted.python.failure import Failure

from crawler.agent.fetcher import PageFetcher
from crawler.agent.frontier import Frontier
from crawler.agent.overrides import PLAIN, SiteSession
from crawler.agent.requests import RequestContext, request_context_of
from crawler.agent.site_lease import SiteLease
from crawler.fetch.context import KEY
from crawler.fetch.errors import HeaderLimitError, MalformedResponseError, worth_another_try
from crawler.queue.sites import Leased
from tests.asking import asking
from tests.crawling import ROOT, Place, Run
from tests.faults import LateConnection, suffers
from tests.queue_driver import queue_options
from tests.servers import RunningServer
from tests.small_site import Reply, SmallSite, at_first, links, text
from tests.told import outcomes, told_pages

# A crawl of a few pages that takes longer hangs.
HANGS_SECONDS = 30
SPIDERS = '''
from scrapy import Request, signals
from scrapy.downloadermiddlewares.retry import get_retry_request
from scrapy.exceptions import IgnoreRequest, StopDownload
from crawler.spiders.site import SiteSpider


class Told(SiteSpider):
    name = "told"

    def parse(self, response, word=""):
        yield {"url": response.url, "word": word, "times": response.meta.get("retry_times", 0)}

    def other(self, response, word=""):
        yield {"other": response.url, "word": word, "times": response.meta.get("retry_times", 0)}

    def erred(self, failure):
        yield {"erred": failure.request.url, "error": type(failure.value).__name__}


class Retrier(Told):
    """Asks once more for pages that it does not like, in each of the ways that Scrapy's users know."""

    name = "retrier"

    def parse(self, response, word=""):
        yield from super().parse(response, word)
        if response.url.endswith("/helper"):
            yield get_retry_request(response.request, spider=self, reason="odd", max_retry_times=2)
        if response.url.endswith("/replaced") and not hasattr(self, "again"):
            self.again = True
            yield response.request.replace(dont_filter=True)
        if response.url.endswith("/next"):
            yield response.request.replace(url=response.urljoin("/behind"))
        if response.url.endswith("/callback"):
            yield Request(response.urljoin("/bare"), callback=response.request.callback)
        if response.meta["depth"] == 0:
            yield response.follow("/own", callback=self.other, cb_kwargs={"word": "given"})

    def other(self, response, word=""):
        yield from super().other(response, word)
        yield get_retry_request(response.request, spider=self, reason="odd", max_retry_times=1)


class Copier(Told):
    """Hands a response's meta on."""

    name = "copier"

    def parse(self, response, word=""):
        yield from super().parse(response)
        if response.meta["depth"] == 0:
            yield Request(response.urljoin("/copied"), meta=response.meta)


class Referred(Told):
    """Its links carry where they were found."""

    name = "referred"
    custom_settings = {"REFERER_ENABLED": True}

    def parse(self, response, word=""):
        yield from response.follow_all(css="a")


class Worded(Told):
    """Uses common words as keys, and ours too."""

    name = "worded"
    words = {"slot": "10:30", "turn": 2, "own": True, "sending": "later", "in_place": 5, "lowtide": "high"}

    def parse(self, response, word=""):
        if response.meta["depth"] == 0:
            yield response.follow("/hidden", meta=self.words)
            yield response.follow("/more", meta=self.words, callback=self.other)
        else:
            yield {"url": response.url, **{word: response.meta[word] for word in self.words if word != "lowtide"}}

    other = parse


class Places:
    """Puts another request in a request's place, made in the way that its path names."""

    def __init__(self, crawler):
        self.crawler = crawler
        self.swapped = set()

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

    def process_request(self, request):
        where, _, path = request.url.rpartition("/")
        new = f"{where}/put-for-{path}"
        if path in ("gone", "put-for-callback-meta", "put-for-stranger-errback"):
            raise IgnoreRequest("gone")
        if path == "callback":
            return Request(new, callback=request.callback)
        if path == "callback-meta":
            return Request(new, callback=request.callback, meta=request.meta)
        if path == "stranger-errback":
            return Request(new, callback=request.callback, errback=self.crawler.spider.erred)
        if path == "arguments":
            return Request(new, cb_kwargs={"word": "put"})
        if path == "same":
            return Request(new, callback=self.crawler.spider.other)
        if path == "private":
            return request.replace(url=f"{where}/no/" + path)
        if path == "elsewhere":
            return request.replace(url="http://127.0.1.9:9/")
        if path == "robots.txt" and request.url not in self.swapped:
            self.swapped.add(request.url)
            return request.replace(headers={"X-Put": "1"})


class Placed(Told):
    name = "placed"
    custom_settings = {"DOWNLOADER_MIDDLEWARES": {"errand_spiders.Places": 543}}

    def parse(self, response, word=""):
        yield from super().parse(response, word)
        if response.meta["depth"] == 0:
            yield response.follow("/same", callback=self.other, cb_kwargs={"word": "kept"})


class Waiting(Told):
    name = "waiting"
    custom_settings = {"DOWNLOADER_MIDDLEWARES": {"errand_spiders.Places": 543}}


class Unsayable:
    """Refuses with words that no record can hold."""

    def process_request(self, request):
        if request.url.endswith("/1"):
            raise IgnoreRequest("name \\udcff")


class Refused(Told):
    name = "refused"
    custom_settings = {"DOWNLOADER_MIDDLEWARES": {"errand_spiders.Unsayable": 543}}


class Stopper:
    """Ends the download of each page but the first when its head is there."""

    @classmethod
    def from_crawler(cls, crawler):
        stopper = cls()
        crawler.signals.connect(stopper.stop, signal=signals.headers_received)
        return stopper

    def stop(self, request):
        if request.url.endswith("/1"):
            raise StopDownload


class Stopped(Told):
    name = "stopped"
    custom_settings = {"EXTENSIONS": {"errand_spiders.Stopper": 500}}


class Late(Told):
    """Two requests of its own at a time: one is told to wait, and the other one is just about to leave."""

    name = "late"

    def parse(self, response, word=""):
        if response.meta["depth"] == 0:
            for path in ("/busy", "/late"):
                yield response.follow(path, callback=self.other, errback=self.erred)


class Starter(Told):
    """Its start requests have data, and so have links to other sites."""

    name = "starter"

    async def start(self):
        yield Request(
            self.first, headers={"X-A": "1"}, cookies={"a": "b"}, cb_kwargs={"word": "lost"}, errback=self.erred,
            meta={"kept": 1},
        )
        yield Request(self.first + "plain", dont_filter=True)

    def parse(self, response, word=""):
        yield from super().parse(response, word)
        if response.url == self.first:
            yield Request(self.second, cb_kwargs={"word": "lost"}, meta={"kept": 1})
            yield Request(self.second, cb_kwargs={"word": "lost"})
            yield Request(self.second, meta=response.meta)
            yield Request(self.second + "post", method="POST", body="x")
            yield Request(self.second + "called", callback=self.other)
'''

Crawl = Callable[..., Run]


@pytest.fixture
def crawl(place: Place, valkey: RunningServer) -> Crawl:
    """Runs one of the spiders over these sites; items go into items.jsonl."""
    (place.folder / "errand_spiders.py").write_text(SPIDERS)

    def run(spider: str, *sites: SmallSite, words: Sequence[str] = (), **given: Any) -> Run:
        settings = {
            "env": {"PYTHONPATH": f"{place.folder}:{ROOT}"},
            "SPIDER_MODULES": "errand_spiders",
            "REDIS_URL": valkey.url,
            **given,
        }
        seeds, output = [site.root for site in sites], ("-O", f"{place.folder}/items.jsonl")
        started = place.start_crawl(seeds, *words, *output, spider=spider, **settings)
        return started.wait(HANGS_SECONDS).succeeded()

    return run


def items(place: Place, name: str) -> list[dict[str, Any]]:
    """The items that have such a key, by its value."""
    lines = Path(place.folder / "items.jsonl").read_text().splitlines()
    return sorted((one for one in map(json.loads, lines) if name in one), key=lambda one: str(one[name]))


# --- copies of our requests --------------------------------------------------------------------------------


def test_a_page_is_asked_for_once_more_beside_its_turn(
    place: Place, valkey: RunningServer, crawl: Crawl
) -> None:
    with SmallSite({"/": links("/helper", "/replaced", "/next", "/callback"), "*": links()}) as site:
        crawl("retrier", site)
        assert site.pages == {
            "/": 1,
            "/helper": 3,
            "/replaced": 2,
            "/next": 1,
            "/behind": 1,
            "/callback": 1,
            "/bare": 1,
            "/own": 2,
        }
        # One record of each page; a copy for another URL is a link like any other.
        wanted = {site.root, *(f"{site.site}/{name}" for name in ("helper", "replaced", "next", "callback"))}
        assert set(outcomes(valkey)) == {*wanted, f"{site.site}/behind", f"{site.site}/bare"}
        assert [one["times"] for one in items(place, "url") if one["url"].endswith("/helper")] == [0, 1, 2]
        # The user's own callback and words come back in a copy of a request of his own.
        own = [(one["word"], one["times"]) for one in items(place, "other")]
        assert own == [("given", 0), ("given", 1)]


def test_a_link_with_a_copied_meta_is_a_page(valkey: RunningServer, crawl: Crawl) -> None:
    with SmallSite({"*": links()}) as site:
        # Scrapy writes more into an answer's meta where it comes from the cache.
        for prefix in ("fresh", "cached"):
            crawl("copier", site, HTTPCACHE_ENABLED=True, AUTOTHROTTLE_ENABLED=True, KEY_PREFIX=prefix)
            assert set(outcomes(valkey, prefix)) == {site.root, f"{site.site}/copied"}
        assert site.pages == {"/": 1, "/copied": 1}


def test_a_link_with_a_referer_is_the_same_link(valkey: RunningServer, crawl: Crawl) -> None:
    with SmallSite({"/": links("/1", "/2"), "*": links("/")}) as site:
        crawl("referred", site)
        assert site.pages == {"/": 1, "/1": 1, "/2": 1}
        assert not any("Referer" in asked.fields for asked in site.log)
        assert len(outcomes(valkey)) == 3


def test_a_users_words_in_meta_are_his(place: Place, valkey: RunningServer, crawl: Crawl) -> None:
    with SmallSite({"*": links()}) as site:
        crawl("worded", site)
        wanted = {"slot": "10:30", "turn": 2, "own": True, "sending": "later", "in_place": 5}
        assert items(place, "url") == [
            {"url": f"{site.site}/{name}", **wanted} for name in ("hidden", "more")
        ]
        assert set(outcomes(valkey)) == {site.root}


# --- what middlewares put in a request's place --------------------------------------------------------------


def test_whatever_is_put_in_a_pages_place_ends_its_turn(
    place: Place, valkey: RunningServer, crawl: Crawl
) -> None:
    names = ("callback", "callback-meta", "stranger-errback", "arguments", "private", "elsewhere")
    routes = {"/robots.txt": text("User-agent: *\nDisallow: /no"), "/": links(*names), "*": links()}
    with SmallSite(routes) as site:
        crawl("placed", site, MAX_TRIES=1)
        assert site.pages == {"/": 1, "/put-for-callback": 1, "/put-for-arguments": 1, "/put-for-same": 1}
        # The rules are read through the middleware too.
        assert [asked.fields.get("X-Put") for asked in site.log if asked.path == "/robots.txt"] == ["1"]
        found = {
            page.path.lstrip("/"): (page.outcome, page.status, page.error) for page in told_pages(valkey)
        }
        assert len(found) == len(told_pages(valkey)) == 7
        assert {found["callback"][1], found["arguments"][1]} == {200}
        assert found["callback-meta"] == found["stranger-errback"] == ("failed", -14, "IgnoreRequest: gone")
        # robots.txt and the site hold for it as well.
        assert found["private"][:2] == found["elsewhere"][:2] == ("failed", -9)
        assert "robots.txt of" in found["private"][2]
        assert "http://127.0.1.9:9/ is not on" in found["elsewhere"][2]
        assert items(place, "erred") == []
        words = {one["url"].rpartition("/")[2]: one["word"] for one in items(place, "url")}
        assert words == {"": "", "put-for-callback": "", "put-for-arguments": "put"}
        assert [(one["other"], one["word"]) for one in items(place, "other")] == [
            (f"{site.site}/put-for-same", "kept")
        ]


def test_a_page_in_whose_place_something_waits_is_none_of_the_spiders_own(
    valkey: RunningServer, crawl: Crawl
) -> None:
    """It waits for the site's delay when the site goes back, and is walked with its next lease."""
    busy = Reply(503, {"Retry-After": "7200"}, seconds=0.7)
    with SmallSite({"/": links("/busy", "/callback"), "/busy": busy}, "127.0.1.3") as site:
        overrides = {site.host: {"connections": 2}}
        run = crawl("waiting", site, DOWNLOAD_DELAY=0.5, SITE_OVERRIDES=overrides)
        assert site.pages == {"/": 1, "/busy": 1}
        assert "of the spider's own requests" not in run.err
        assert outcomes(valkey) == {site.root: "stored"}


# --- ends ---------------------------------------------------------------------------------------------------


def test_an_error_that_cannot_be_written_is_told_all_the_same(valkey: RunningServer, crawl: Crawl) -> None:
    with SmallSite({"/": links("/1", "/2"), "*": links()}) as site:
        crawl("refused", site)
        (page,) = [page for page in told_pages(valkey) if page.status != 200]
        assert (page.path, page.outcome, page.error) == ("/1", "failed", "IgnoreRequest: name \\udcff")
        assert len(outcomes(valkey)) == 3


def test_a_request_of_ones_own_that_is_held_back_is_sent_later(
    place: Place, valkey: RunningServer, crawl: Crawl
) -> None:
    busy = at_first(Reply(429, {"Retry-After": "1"}), links())
    with SmallSite({"/busy": busy, "*": links()}, "127.0.1.3") as site:
        overrides = {site.host: {"connections": 2}}
        crawl("late", site, SITE_OVERRIDES=overrides, EXTENSIONS=suffers(LateConnection))
        assert items(place, "erred") == []
        assert [one["other"] for one in items(place, "other")] == [f"{site.site}/busy", f"{site.site}/late"]
        assert site.pages == {"/": 1, "/busy": 2, "/late": 1}
        assert site.times("/late")[0] - site.times("/busy")[0] > 1


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (DownloadFailedError("x"), True),
        (MalformedResponseError("x"), True),
        (ValueError("a slip"), True),
        (StopDownload(), False),
        (DownloadCancelledError("above DOWNLOAD_MAXSIZE"), False),
        (HeaderLimitError("x"), False),
        (UnsupportedURLSchemeError("x"), False),
    ],
)
def test_only_what_may_pass_is_tried_again(error: Exception, passes: bool) -> None:
    assert worth_another_try(error) is passes


def test_a_download_that_is_ended_on_purpose_is_not_tried_again(valkey: RunningServer, crawl: Crawl) -> None:
    with SmallSite({"/": links("/1"), "*": links()}) as site:
        crawl("stopped", site)
        found = {page.path: (page.outcome, page.status, page.tries) for page in told_pages(valkey)}
        assert found == {"/": ("stored", 200, 1), "/1": ("failed", -13, 1)}
        assert site.pages == {"/": 1, "/1": 1}


# --- what a page has no room for ----------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["any", "seeds"])
def test_what_a_seed_or_a_link_elsewhere_has_no_room_for_is_told(crawl: Crawl, scope: str) -> None:
    routes = {"*": links()}
    with SmallSite(routes, "127.0.1.1") as one, SmallSite(routes, "127.0.1.2") as two:
        words = ("-a", f"first={one.root}", "-a", f"second={two.root}")
        run = crawl("starter", words=words, SCOPE=scope)
        assert one.pages == {"/": 1, "/plain": 1}
        followed = scope == "any"
        assert two.pages == ({"/": 1} if followed else {})
        assert not any("X-A" in asked.fields for asked in one.log)
        seed = "handled as a seed, without its errback, cb_kwargs, headers, cookies, meta['kept']"
        assert f"{one.root} {seed}" in run.err
        assert run.err.count("handled as a seed") == 1
        link = "handled as a link to a site that is not leased here, without its cb_kwargs, meta['kept']"
        assert (f"{two.root} {link}" in run.err) is followed
        # Told once: a page may have many.
        assert run.err.count("handled as a link") == followed
        assert f"{two.root}post dropped: it has the method POST and a body" in run.err
        assert f"{two.root}called dropped: it has a callback of its own" in run.err


# --- the object itself ---------------------------------------------------------------------------------------


def test_an_errand_ends_once_and_a_copy_shares_it() -> None:
    request = Request("http://127.0.0.1/", meta=asking(lambda: True))
    context = request_context_of(request.replace(url="http://127.0.0.1/other"))
    assert context is not None
    assert context is request_context_of(request)

    class Counted:
        site, in_flight, timeouts, day = "http://127.0.0.1", 0, None, None

    context.lease = Counted()  # type: ignore[assignment]
    context.begin(request)
    assert (context.lease.in_flight, repr(context)) == (1, "<RequestContext http://127.0.0.1/>")
    assert (context.end(), context.end(), context.lease.in_flight) == (True, False, 0)


def test_a_record_that_cannot_be_told_leaves_the_page_in_flight_and_the_slot_free() -> None:
    class Deaf:
        options = queue_options(max_tries=1, adaptive_timeouts=False)
        settled = 0
        works = ()
        leasing = outbox = SimpleNamespace()

        def publish(self, *_record: object) -> None:
            raise ValueError("not a word of it")

        def settle(self, _slot: SiteLease) -> None:
            self.settled += 1

    agent: Any = Deaf()
    crawler: Any = SimpleNamespace(settings=Settings({"REDIRECT_MAX_TIMES": 1}))
    visits = PageFetcher(crawler, agent, cast("Any", None))
    frontier = Frontier()
    frontier.add(["/"], 0)
    leased = Leased("http://127.0.0.1", "1", False, None)
    lease = SiteLease(leased, frontier, 1, SiteSession(leased.site, PLAIN, "lowtide"), 0.0)
    context = RequestContext(lambda: True, lease=lease, turn=frontier.take(0.0))
    failure: Any = Failure(ValueError("a slip"))
    failure.request = Request(lease.site, meta={KEY: context})
    context.begin(failure.request)
    with pytest.raises(ValueError, match="not a word of it"):
        visits.failed(failure)
    assert (lease.in_flight, agent.settled) == (0, 1)
    assert (frontier.in_flight, frontier.published) == (1, 0)


def test_another_thing_under_our_key_is_the_users() -> None:
    assert request_context_of(Request("http://127.0.0.1/", meta={KEY: "high"})) is None
