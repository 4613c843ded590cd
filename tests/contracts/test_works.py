"""What every work beside loading keeps, whichever is registered: its spider, robots.txt, an end, and a due time."""

from __future__ import annotations

from pathlib import Path

import pytest
from scrapy.settings import Settings
from scrapy.spiderloader import SpiderLoader
from scrapy.utils.misc import load_object

from crawler.agent import jobs
from crawler.queue.batches import BatchPage
from crawler.records import WORKS, Work
from tests.crawling import Place
from tests.small_site import SmallSite, links, text
from tests.test_works import give, queue_of

pytestmark = pytest.mark.timeout(120)
every_work = pytest.mark.parametrize("name", list(jobs.CLASSES))
every_packed = pytest.mark.parametrize("name", [name for name in jobs.CLASSES if jobs.is_packed(name)])
# In which a page is whose turn it is for that work, where it is another state than `visited`.
STATES = {"revive": "no_response_1"}


@every_work
def test_it_is_a_work_with_a_spider_of_its_own(name: Work) -> None:
    assert name in WORKS
    found = load_object(jobs.CLASSES[name])
    asked = ("begin", "request", "answered", "unanswered", "shut", "next_due")
    assert all(callable(getattr(found, method)) for method in asked)
    assert found.packed in (True, False)
    spiders = SpiderLoader.from_settings(Settings({"SPIDER_MODULES": ["crawler.spiders"]}))
    assert (spiders.load(name).name, spiders.load(name).work) == (name, name)  # type: ignore[attr-defined]


@every_packed
def test_it_asks_nothing_that_robots_forbid_ends_and_is_due_again(name: Work, tmp_path: Path) -> None:
    with SmallSite({"/": links("/a", "/b")}) as web, Place(tmp_path) as place:
        web.routes |= {"/a": links(), "/b": links()}
        place.crawl([web.root]).succeeded()
        web.routes["/robots.txt"] = text("User-agent: *\nDisallow: /")
        web.log.clear()
        pages = [BatchPage(path, STATES.get(name, "visited")) for path in ("/a", "/b")]  # type: ignore[arg-type]
        give(place, web.site, name, *pages)
        place.crawl([], spider=name).succeeded()
        assert web.paths == ["/robots.txt"]
        told = place.rows("select count(*) from fetches where outcome = 'delayed' and status = -9")
        assert told == [(2,)]
        with queue_of(place) as queue:
            ((site, due_ms, _),) = queue.due(name, 9)
            assert site == web.site
            assert due_ms > queue.server_seconds() * 1000
            assert queue.record(site).agent == ""
