"""The figures are those of Scrapy's own middleware and collector, and the line of a page is made only if it is seen."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.stats import DownloaderStats
from scrapy.exceptions import NotConfigured
from scrapy.http import Headers, Response
from scrapy.statscollectors import MemoryStatsCollector
from scrapy.utils.log import configure_logging
from scrapy.utils.project import get_project_settings

from crawler.agent.scrapy_parts import DownloadTally, LeanStats, PageLog
from crawler.spiders.site import SiteSpider
from tests.crawling import Place
from tests.farm import Farm

SEVERAL = Headers({"Set-Cookie": ["a=b", "c=d; Path=/"], "X-Long": "y" * 300})
REQUESTS = [
    Request("http://127.0.0.1/"),
    Request("https://example.org/a/b?c=d", headers={"User-Agent": "x", "Accept": "text/html"}),
    Request("https://example.org/form", method="POST", body=b"a=1&b=2", headers={"Content-Type": "x/y"}),
]
RESPONSES = [
    Response("http://127.0.0.1/", status=200, body=b"x" * 999, headers=SEVERAL),
    Response("http://127.0.0.1/", status=404, headers={"Date": "now"}),
    Response("http://127.0.0.1/", status=999),
]


def figures(kind: type[MemoryStatsCollector], middleware: type[Any]) -> dict[str, Any]:
    stats = kind(Crawler(SiteSpider, get_project_settings()))
    made = middleware(stats)
    for request in REQUESTS:
        assert made.process_request(request) is None
        for response in RESPONSES:
            assert made.process_response(request, response) is response
        assert made.process_exception(request, TimeoutError("late")) is None
    stats.inc_value("twice", start=3)
    stats.inc_value("twice", 2)
    stats.max_value("most", 4)
    stats.min_value("least", 4)
    assert stats.get_value("none", "default") == "default"
    return stats.get_stats()


def test_the_figures_are_those_of_scrapy() -> None:
    stock = figures(MemoryStatsCollector, DownloaderStats)
    ours = figures(LeanStats, DownloadTally)
    size = "downloader/request_bytes"
    assert abs(stock.pop(size) - ours.pop(size)) <= 2 * len(REQUESTS)
    assert ours == stock


def test_it_can_be_switched_off() -> None:
    settings = get_project_settings()
    settings.set("DOWNLOADER_STATS", False)
    crawler = Crawler(SiteSpider, settings)
    with pytest.raises(NotConfigured):
        DownloadTally.from_crawler(crawler)


@pytest.mark.parametrize(("level", "made"), [("DEBUG", True), ("INFO", False), ("WARNING", False)])
def test_the_line_of_a_page_is_made_if_it_is_seen(level: str, made: bool) -> None:
    settings = get_project_settings()
    settings.set("LOG_LEVEL", level)
    before = list(logging.root.handlers)
    try:
        configure_logging(settings)
        line = PageLog().crawled(REQUESTS[0], RESPONSES[0], SiteSpider())
    finally:
        for handler in set(logging.root.handlers) - set(before):
            logging.root.removeHandler(handler)
    assert (line is not None) is made


def test_a_crawl_tells_its_pages_at_debug_only(place: Place) -> None:
    with Farm(sites=1, pages=2, kinds=(), names=()) as farm:
        loud = place.crawl(farm.seeds, LOG_LEVEL="DEBUG", STATS_DUMP=True).succeeded()
        assert f"Crawled (200) <GET {farm.seeds[0]}>" in loud.err
        assert "'downloader/response_status_count/200': " in loud.err
        assert "'response_received_count': 3" in loud.err
        quiet = place.crawl(farm.seeds, "--again", LOG_LEVEL="INFO").succeeded()
        assert "Crawled (" not in quiet.err
