"""The works beside loading, by real agents: what they ask, what they make of the answers, and when they end.

What they are to ask is packed by the test, but where it is said that a coordinator does.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

import pytest
import redis.asyncio

from crawler.agent.agent import PACKING_SECONDS
from crawler.local.server import Server
from crawler.queue.batches import DIGEST_BYTES, BatchPage, RecheckBatch, pack
from crawler.queue.queue import SiteQueue
from crawler.records import Work
from tests.crawling import Place
from tests.queue_driver import driver, queue_options
from tests.servers import RunningServer, eventually, free_port
from tests.small_site import Reply, SmallSite, links, moved, text

pytestmark = pytest.mark.timeout(120)

HTML = {"Content-Type": "text/html"}
DAY_MS = 86_400_000


class Looker:
    """The queue of a place, asked between two runs."""

    def __init__(self, queue: SiteQueue, loop: asyncio.AbstractEventLoop) -> None:
        self._queue, self._loop = queue, loop

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._queue, name)
        return lambda *given, **more: self._loop.run_until_complete(call(*given, **more))


@contextmanager
def queue_of(place: Place) -> Iterator[Looker]:
    """The place's queue, while nobody works."""
    loop = asyncio.new_event_loop()
    with Server(place.var).join("visitor") as server:
        client = redis.asyncio.Redis.from_url(server.url)
        try:
            yield Looker(SiteQueue(client, queue_options()), loop)
        finally:
            loop.run_until_complete(client.aclose())
            loop.close()


def give(
    place: Place, site: str, work: Work, *pages: BatchPage, due_ms: int = 1, next_due_ms: int = 0
) -> None:
    """Let a work be due for a site, with these pages to ask."""
    with queue_of(place) as queue:
        assert queue.plan_work(site, work, due_ms)
        assert queue.pack(site, work, pack(RecheckBatch(list(pages), next_due_ms)))


def asks(place: Place) -> list[tuple[str, str, int]]:
    """What the history tells of questions: path, answer, status."""
    told = "('unchanged', 'changed', 'answers', 'silent', 'delayed')"
    query = (
        "select p.url, f.outcome, f.status from fetches f join pages p using (url_hash) "
        f"where f.outcome in {told} order by f.id"
    )
    return [(url.split("/", 3)[3], outcome, status) for url, outcome, status in place.rows(query)]


def lives(place: Place) -> dict[str, tuple[str, int]]:
    """Path -> state and straight failures."""
    rows = place.rows("select url, state, fails from pages")
    return {"/" + url.split("/", 3)[3]: (state, fails) for url, state, fails in rows}


def test_revive_asks_the_silent_and_takes_in_what_was_never_loaded(tmp_path: Any) -> None:
    gone = Reply(404, HTML, "gone")
    with SmallSite({"/": links("/new", "/old", "/dead")}) as web, Place(tmp_path) as place:
        web.routes |= {"/new": gone, "/old": links(), "/dead": gone}
        place.crawl([web.root]).succeeded()
        assert lives(place)["/new"] == ("no_response_1", 1)
        web.routes |= {"/new": links("/found")}
        silent = "no_response_1"
        give(
            place,
            web.site,
            "revive",
            BatchPage("/new", silent, loaded=False),
            BatchPage("/dead", silent, loaded=False),
        )
        web.log.clear()
        run = place.crawl([], spider="revive").succeeded()
        assert web.paths[0] == "/robots.txt", "the rules hold for every work"
        assert [(asked.method, asked.path) for asked in web.log[1:]] == [("GET", "/new"), ("GET", "/dead")]
        assert lives(place) == {
            "/": ("visited", 0),
            "/old": ("visited", 0),
            "/new": ("visited", 0),
            "/dead": ("no_response_2", 2),
        }
        assert asks(place) == [("dead", "silent", 404)]
        with queue_of(place) as queue:
            ((site, due_ms, _),) = queue.due("revive", 9)
            tomorrow = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(due_ms / 1000))
            assert f"revive: sites are due in a later run: {site} from {tomorrow}" in run.err
            assert (site, queue.packet(site, "revive")) == (web.site, b"")
            assert 0.9 * DAY_MS < due_ms - queue.server_seconds() * 1000 < 1.1 * DAY_MS


def test_a_page_that_was_loaded_before_is_asked_by_head_and_by_get_where_that_is_not_known(
    tmp_path: Any,
) -> None:
    with SmallSite({"/": links("/a")}) as web, Place(tmp_path) as place:
        web.routes |= {"/a": links()}
        place.crawl([web.root]).succeeded()
        web.routes |= {"/": Reply(200, HTML, "x"), "/a": lambda times: Reply(405 if times == 2 else 200)}
        web.log[:] = [asked for asked in web.log if asked.path == "/a"]
        give(place, web.site, "revive", BatchPage("/", "no_response_1"), BatchPage("/a", "no_response_1"))
        place.crawl([], spider="revive").succeeded()
        assert [(asked.method, asked.path) for asked in web.log[1:] if asked.path != "/robots.txt"] == [
            ("HEAD", "/"),
            ("HEAD", "/a"),
            ("GET", "/a"),
        ]
        # They were never silent: whatever is said of silent ones is not for them.
        assert set(lives(place).values()) == {("visited", 0)}


def test_recheck_takes_in_what_has_changed_and_tells_the_rest(tmp_path: Any) -> None:
    tagged = {**HTML, "ETag": '"1"'}
    routes = {"/": links("/same", "/other", "/gone", "/late")}
    with SmallSite(routes) as web, Place(tmp_path) as place:
        web.routes |= {
            path: Reply(200, tagged, f"<p>text of {path}") for path in ("/same", "/other", "/gone", "/late")
        }
        place.crawl([web.root]).succeeded()
        web.routes |= {
            "/same": Reply(304, tagged),
            "/other": Reply(200, {**HTML, "ETag": '"2"'}, "<title>new</title><p>another text"),
            "/gone": Reply(410),
            "/late": Reply(500),
        }
        pages = [BatchPage(path, "visited", etag='"1"') for path in ("/same", "/other", "/gone", "/late")]
        give(place, web.site, "recheck", *pages)
        web.log.clear()
        place.crawl([], spider="recheck").succeeded()
        assert {asked.fields.get("If-None-Match") for asked in web.log[1:]} == {'"1"'}
        assert asks(place) == [("same", "unchanged", 304), ("gone", "silent", 410), ("late", "delayed", 500)]
        assert lives(place)["/gone"] == ("no_response_1", 1)
        (row,) = place.rows("select title, last_changed = fetched_at from pages where url like '%/other'")
        assert row == ("new", 1)
        assert place.rows("select count(*) from pages where last_changed is not null") == [(1,)]
        assert place.rows("select url like '%/gone' from pages where next_check > last_checked") == [(1,)]


def test_a_body_that_is_the_same_is_no_change(tmp_path: Any) -> None:
    with SmallSite({"/": links("/a")}) as web, Place(tmp_path) as place:
        web.routes["/a"] = Reply(200, HTML, "<p>text")
        place.crawl([web.root]).succeeded()
        digest = sha256(b"<p>text").digest()[:DIGEST_BYTES]
        give(place, web.site, "recheck", BatchPage("/a", "visited", digest=digest))
        place.crawl([], spider="recheck").succeeded()
        assert asks(place) == [("a", "unchanged", 200)]
        assert web.pages["/a"] == 2


def test_by_head_what_has_changed_is_sent_back_to_loading(tmp_path: Any) -> None:
    with SmallSite({"/": links("/a", "/b")}) as web, Place(tmp_path) as place:
        web.routes |= {path: Reply(200, {**HTML, "ETag": '"1"'}, "<p>one") for path in ("/a", "/b")}
        place.crawl([web.root]).succeeded()
        web.routes["/a"] = Reply(200, {**HTML, "ETag": '"2"'}, "<p>two")
        give(place, web.site, "recheck", *(BatchPage(path, "visited", etag='"1"') for path in ("/a", "/b")))
        web.log.clear()
        place.crawl([], spider="recheck", RECHECK_METHOD="head").succeeded()
        assert [asked.method for asked in web.log[1:]] == ["HEAD", "HEAD"]
        assert asks(place) == [("a", "changed", 200), ("b", "unchanged", 200)]
        assert lives(place)["/a"] == ("init", 0)


def test_a_site_that_does_not_answer_is_asked_once_for_all_its_pages(tmp_path: Any) -> None:
    paths = [f"/{number}" for number in range(30)]
    with Place(tmp_path) as place:
        with SmallSite({"/": links(*paths)}) as web:
            web.routes["*"] = text("x")
            web.routes["/robots.txt"] = Reply(404)
            place.crawl([web.root]).succeeded()
        give(place, web.site, "recheck", *(BatchPage(path, "visited") for path in paths))
        place.crawl([], spider="recheck").succeeded()
        assert asks(place) == [(path[1:], "silent", -2) for path in paths]
        assert {state for path, (state, _) in lives(place).items() if path != "/"} == {"no_response_1"}


def test_robots_holds_for_works_too(tmp_path: Any) -> None:
    with SmallSite({"/": links("/a")}) as web, Place(tmp_path) as place:
        web.routes["/a"] = links()
        place.crawl([web.root]).succeeded()
        web.routes["/robots.txt"] = text("User-agent: *\nDisallow: /a")
        give(place, web.site, "recheck", BatchPage("/a", "visited"))
        web.log.clear()
        place.crawl([], spider="recheck").succeeded()
        assert web.paths == ["/robots.txt"]
        assert asks(place) == [("a", "delayed", -9)]
        assert lives(place)["/a"] == ("visited", 0)


def ask_a(place: Place, web: SmallSite, robots: Reply, work: Work = "recheck", **given: Any) -> None:
    """The page /a is loaded, and asked again when robots.txt is that."""
    web.routes["/a"] = links()
    place.crawl([web.root]).succeeded()
    web.routes["/robots.txt"] = robots
    give(place, web.site, work, BatchPage("/a", "visited"))
    web.log.clear()
    place.crawl([], spider=work, **given).succeeded()


def test_a_robots_txt_whose_redirect_leads_nowhere_says_nothing_of_the_pages(tmp_path: Any) -> None:
    with SmallSite({"/": links("/a")}) as web, Place(tmp_path) as place:
        ask_a(place, web, moved(f"http://127.0.1.9:{free_port()}/robots.txt"))
        assert web.paths == ["/robots.txt"]
        assert asks(place) == [("a", "delayed", -13)]
        assert lives(place)["/a"] == ("visited", 0)
        assert place.rows("select count(*) from health where health = 'disconnected'") == [(0,)]


def test_a_site_that_cannot_be_asked_says_nothing_of_its_pages(tmp_path: Any) -> None:
    odd = {"127.0.1.1": {"headers": {"X-Odd": "\ud800"}}}  # half a character cannot be sent
    with SmallSite({"/": links("/a")}) as web, Place(tmp_path) as place:
        ask_a(place, web, Reply(404), SITE_OVERRIDES=odd)
        assert web.paths == []
        assert asks(place) == [("a", "delayed", -13)]
        assert lives(place)["/a"] == ("visited", 0)


@pytest.mark.parametrize("work", ["recheck", "revive"])
def test_a_robots_txt_that_is_silent_behind_a_redirect_within_its_site_is_the_sites_silence(
    tmp_path: Any, work: Work
) -> None:
    with SmallSite({"/": links("/a"), "/rules": text("", seconds=60)}) as web, Place(tmp_path) as place:
        ask_a(place, web, moved("/rules"), work, HEAD_TIMEOUT_SECONDS=1)
        assert web.paths == ["/robots.txt", "/rules"]
        assert asks(place) == [("a", "silent", -4)]
        assert ("disconnected", -4) in place.rows("select health, status from health")


@pytest.mark.parametrize(
    ("robots", "seconds"),
    [(Reply(429, {"Retry-After": "300"}), 300), (Reply(503, {"Retry-After": "5"}), 60), (Reply(500), 60)],
)
def test_a_robots_txt_that_asks_for_a_rest_gets_it_from_every_work(
    tmp_path: Any, robots: Reply, seconds: int
) -> None:
    with SmallSite({"/": links("/a")}) as web, Place(tmp_path) as place:
        ask_a(place, web, robots)
        assert web.paths == ["/robots.txt"]
        assert asks(place) == [("a", "delayed", robots.status)]
        with queue_of(place) as queue:
            ((site, until_ms, _),) = queue.due("site", 9)
            assert site == web.site
            assert 0.5 * seconds < until_ms / 1000 - queue.server_seconds() <= 1.1 * seconds


@pytest.mark.parametrize("work", ["recheck", "revive"])
def test_a_page_that_answers_503_keeps_no_work_from_the_others(tmp_path: Any, work: Work) -> None:
    with SmallSite({"/": links("/a", "/b", "/c"), "*": links()}) as web, Place(tmp_path) as place:
        place.crawl([web.root]).succeeded()
        web.routes["/a"] = Reply(503)
        state = "visited" if work == "recheck" else "no_response_1"
        give(place, web.site, work, *(BatchPage(path, state) for path in ("/a", "/b", "/c")))
        web.log.clear()
        run = place.crawl([], spider=work).succeeded()
        assert web.pages == {"/a": 1, "/b": 1, "/c": 1}
        assert "backing off for" not in run.err


def test_one_agent_does_several_works_and_ends_when_nothing_is_due(tmp_path: Any) -> None:
    with SmallSite({"/": links("/a")}) as web, Place(tmp_path) as place:
        web.routes["/a"] = Reply(404)
        place.crawl([web.root]).succeeded()
        give(place, web.site, "revive", BatchPage("/a", "no_response_1", loaded=False))
        with SmallSite({"/": links()}, host="127.0.1.2") as other:
            place.crawl([other.root], "--with", "revive,recheck").succeeded()
            assert other.pages == {"/": 1}
        assert asks(place) == [("a", "silent", 404)]
        # Later ones are left for later.
        place.crawl([], spider="revive").succeeded()
        assert len(asks(place)) == 1


def test_the_queue_shows_due_times_for_every_work(tmp_path: Any) -> None:
    with SmallSite({"/": links()}) as web, Place(tmp_path) as place:
        place.crawl([web.root]).succeeded()
        give(place, web.site, "recheck", BatchPage("/", "visited"), due_ms=4_000_000_000_000)
        shown = json.loads(place.run("queue", "show", "--json").succeeded().out)
        assert shown["due"]["recheck"] == {"sites": 1, "next_ms": 4_000_000_000_000}
        assert "due   recheck: 1 site at 2096-" in place.run("queue", "show").succeeded().out
        details = json.loads(place.run("site", "show", web.site, "--json").succeeded().out)
        assert details["due_ms"]["recheck"] == 4_000_000_000_000


# --- packed by a coordinator ---

# Pages are due by the time that the next run has begun.
SOON = {"RECRAWL_MODE": "interval", "RECHECK_INTERVAL_SECONDS": 1, "REVIVE_FIRST_SECONDS": 1}


@pytest.mark.parametrize(
    ("work", "path", "told"), [("recheck", "/", "unchanged"), ("revive", "/gone", "silent")]
)
def test_what_is_due_is_waited_for_until_it_is_packed(
    tmp_path: Any, work: Work, path: str, told: str
) -> None:
    with SmallSite({"/": links("/gone")}) as web, Place(tmp_path) as place:
        place.crawl([web.root], **SOON).succeeded()
        ((loaded_ms,),) = place.rows("select max(fetched_at) from pages")
        eventually(lambda: time.time() * 1000 > loaded_ms + 1000, "all pages are due")
        web.log.clear()
        place.crawl([], spider=work, **SOON).succeeded()
        assert web.paths[:2] == ["/robots.txt", path]
        assert asks(place)[0][:2] == (path[1:], told)


def test_an_agent_ends_where_nobody_packs_what_is_due(tmp_path: Any, valkey: RunningServer) -> None:
    with Place(tmp_path) as place, driver(valkey) as queue:
        queue.join("other", {"works": ["site"]})
        queue.add("https://a.example")
        queue.leave("other", queue.take_one("other"), "finished")
        queue.plan_work("https://a.example", "recheck", 1)
        began = time.monotonic()
        run = place.crawl([], spider="recheck", REDIS_URL=valkey.url).succeeded()
        assert time.monotonic() - began > PACKING_SECONDS
        assert "recheck: sites are due in a later run: https://a.example" in run.err


RELINK = """
from crawler.spiders.recheck import RecheckSpider


class Relink(RecheckSpider):
    name = "relink"

    def parse(self, response):
        yield response.follow("/found")
"""


def test_links_that_a_recheckers_parse_gives_are_loaded_by_the_next_crawl(tmp_path: Any) -> None:
    with SmallSite({"/": links("/a")}) as web, Place(tmp_path) as place:
        web.routes |= {"/a": links(), "/found": links()}
        place.crawl([web.root]).succeeded()
        (tmp_path / "relinking.py").write_text(RELINK)
        give(place, web.site, "recheck", BatchPage("/", "visited"), BatchPage("/a", "visited"))
        web.log.clear()
        own = {"env": {"PYTHONPATH": str(tmp_path)}, "SPIDER_MODULES": "relinking"}
        run = place.crawl([], spider="relink", **own).succeeded()
        assert "request failed to build" not in run.err
        assert set(web.pages) == {"/", "/a"}
        place.crawl([]).succeeded()
        assert web.pages["/found"] == 1
