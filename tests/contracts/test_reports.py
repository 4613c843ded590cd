"""What every report promises: an answer over any database, plain figures, words and pictures that do no harm.

Each over nothing, over a small crawl on three databases; over a million pages by `make drills` (ten seconds each).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from scrapy.settings import BaseSettings
from scrapy.utils.project import get_project_settings
from sqlalchemy import Engine

from crawler import options, reports
from crawler.printable import printable_lines
from crawler.reports import Crawl, Report
from crawler.store.database import migrate, open_database
from crawler.views.page import Section, written
from tests.databases import KINDS, fresh_database
from tests.reporting import fill
from tests.servers import start_valkey

SITES, PAGES = 12, 30
# What these say of the same crawl is the same whatever database it is in: the clock has no part in it.
TIMELESS = (
    *("active_domains", "blocks", "domains", "home_pages", "languages", "ledger"),
    *("pace", "summary", "top_levels", "types"),
)


class Crawls:
    """Crawls by what they hold and where; each is made once."""

    def __init__(self, folder: Path, stack: ExitStack, redis_url: str) -> None:
        self._folder, self._stack, self._redis_url = folder, stack, redis_url
        self._made: dict[tuple[str, str], Crawl] = {}

    def __call__(self, what: str, kind: str = "sqlite") -> Crawl:
        if (what, kind) not in self._made:
            url = self._stack.enter_context(fresh_database(kind, self._folder))
            engine = open_database(url)
            self._stack.callback(engine.dispose)
            self._fill(engine, what)
            self._made[what, kind] = crawl_of(engine, url, self._redis_url, self._folder)
        return self._made[what, kind]

    @staticmethod
    def _fill(engine: Engine, what: str) -> None:
        if what == "empty":
            migrate(engine)
        else:
            fill(engine, SITES, PAGES)


def crawl_of(engine: Engine, url: str, redis_url: str, folder: Path) -> Crawl:
    settings = BaseSettings(get_project_settings())
    for name, value in {"REDIS_URL": redis_url, "DATABASE_URL": url, "VAR_DIR": str(folder)}.items():
        settings.set(name, value, priority="cmdline")
    return Crawl(engine, settings, options.read(settings))


@pytest.fixture(scope="module")
def crawls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crawls]:
    folder = tmp_path_factory.mktemp("reports")
    with ExitStack() as stack:
        server = start_valkey(folder)
        stack.callback(server.stop)
        yield Crawls(folder, stack, server.url)


@pytest.mark.parametrize("name", reports.names())
def test_nothing_was_crawled(name: str, crawls: Crawls) -> None:
    judge(Report(name), Report(name).figures(crawls("empty")))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", reports.names())
def test_a_small_crawl(name: str, kind: str, crawls: Crawls) -> None:
    report = Report(name)
    figures = report.figures(crawls("small", kind))
    judge(report, figures)
    assert not report.failed(figures)
    if name in TIMELESS:
        assert plain(figures) == plain(report.figures(crawls("small")))


def judge(report: Report, figures: Any) -> None:
    """What holds for any report over any crawl."""
    json.dumps(figures)
    text = report.text(figures)
    assert text.strip()
    assert text == printable_lines(text), "a terminal would obey a stranger"
    assert max(map(len, text.splitlines())) <= 250
    assert 10 <= len(report.title) <= 160
    rows = report.rows(figures)
    assert len({tuple(row) for row in rows}) <= 1, "rows have other columns"
    assert all(not isinstance(value, dict | list) for row in rows for value in row.values())
    for picture in report.pictures(figures):
        harmless(picture.svg)
        assert picture.title
    page = written([Section(report.name, report.title, text, report.pictures(figures))])
    assert "<script" not in page
    assert "src=" not in page.replace("src=//evil.example", "")


def harmless(svg: str) -> None:
    """Well formed, elements that draw, and no attribute that loads or runs anything."""
    allowed = {"svg", "rect", "circle", "line", "text", "title"}
    for element in ElementTree.fromstring(svg).iter():
        assert element.tag.rpartition("}")[2] in allowed
        assert not [name for name in element.attrib if name.startswith("on") or name in ("href", "style")]


def plain(figures: Any) -> Any:
    return json.loads(json.dumps(figures))


@pytest.mark.drill
@pytest.mark.timeout(900)
def test_a_million_pages_take_no_report_ten_seconds(tmp_path: Path) -> None:
    server = start_valkey(tmp_path)
    try:
        url = f"sqlite:///{tmp_path / 'large.db'}"
        engine = open_database(url)
        fill(engine, 5_000, 200)
        crawl = crawl_of(engine, url, server.url, tmp_path)
        taken = {}
        for report in map(Report, reports.names()):
            began = time.process_time()
            report.text(figures := report.figures(crawl))
            report.pictures(figures)
            taken[report.name] = round(time.process_time() - began, 2)
        engine.dispose()
    finally:
        server.stop()
    assert {name: seconds for name, seconds in taken.items() if seconds > 10} == {}, taken
