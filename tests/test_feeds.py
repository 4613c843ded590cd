"""A crawl that goes on keeps its feeds: nothing of what earlier runs wrote is lost, and each file stays valid.

Below, a feed is cut at every byte, as a killed agent may leave it; then crawls are killed and go on.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import signal
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest
from scrapy import Spider
from scrapy.extensions.feedexport import FeedExporter
from scrapy.utils.test import get_crawler

from crawler.agent import feed_file
from settings import base
from tests.crawling import QUICK, ROOT, Place, Run
from tests.farm import Farm
from tests.servers import RunningServer, eventually, free_port

SPIDER = """
from crawler.spiders.site import SiteSpider


class Fed(SiteSpider):
    name = "fed"

    def parse(self, response):
        yield {"url": response.url, "text": 'one "quoted",\\n{"and": [broken]}\\n'}


class Other(Fed):
    name = "other"


class Nowhere:
    "A storage that uploads a whole file."

    def __init__(self, uri, *, feed_options=None):
        pass

    def open(self, spider):
        return open("/dev/null", "wb")

    def store(self, file):
        file.close()
"""
SCRIPT = """
import sys
from scrapy.crawler import AsyncCrawlerProcess
from scrapy.utils.project import get_project_settings

feed, seeds, again = sys.argv[1:]
settings = get_project_settings()
settings.set("FEEDS", {feed: {"format": "jsonlines", "overwrite": True}})
settings.set("WALK_AGAIN", again == "again")
process = AsyncCrawlerProcess(settings)
process.crawl("fed", seeds=seeds)
process.start()
"""


@pytest.fixture
def farm() -> Iterator[Farm]:
    """One site that takes a second and a half."""
    with Farm(sites=1, pages=30, kinds=(), names=(), delay_ms=50) as started:
        yield started


def crawl(place: Place, farm: Farm, *words: str, **given: Any) -> Run:
    (place.folder / "fed_spider.py").write_text(SPIDER)
    own = {"spider": "fed", "env": {"PYTHONPATH": str(place.folder)}, "SPIDER_MODULES": "fed_spider"}
    return place.start_crawl(farm.seeds, *words, **{**own, **given})


def as_lines(text: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.decode().splitlines()]


def as_rows(text: bytes) -> list[dict[str, Any]]:
    return list(csv.DictReader(io.StringIO(text.decode(), newline="")))


def as_array(text: bytes) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(text)
    return found


def as_elements(text: bytes) -> list[dict[str, Any]]:
    return [{field.tag: field.text or "" for field in item} for item in Xml.fromstring(text)]


READ: dict[str, Callable[[bytes], list[dict[str, Any]]]] = {
    "jsonl": as_lines,
    "csv": as_rows,
    "json": as_array,
    "xml": as_elements,
}


# What a killed agent leaves of its last item.
TORN = {
    "jsonl": b'{"url": "http://127',
    "csv": b'http://127.0.1.1/1,"one ""quoted"",\n',
    "json": b',\n{"url": "http://127',
    "xml": b"<item><url>http://127",
}


def urls(feed: Path) -> set[str]:
    return {item["url"] for item in READ[feed.suffix[1:]](feed.read_bytes())}


def wanted(farm: Farm) -> set[str]:
    return {url for site in farm.expected().values() for url in site}


# --- A file that was cut anywhere --------------------------------------------------------------------------


def opened(path: Path, *, goes_on: bool, **options: Any) -> tuple[FeedExporter, Spider]:
    """An exporter of a feed whose format is the path's ending, and the spider whose items it waits for."""
    kind = path.suffix[1:].replace("jsonl", "jsonlines")
    settings = {
        "FEEDS": {str(path): {"format": kind, **options}},
        "FEED_STORAGES_BASE": base.FEED_STORAGES_BASE,
        "FEED_EXPORTERS_BASE": base.FEED_EXPORTERS_BASE,
    }
    crawler = get_crawler(Spider, settings)
    crawler._apply_settings()
    (exporter,) = (one for one in crawler.extensions.middlewares if isinstance(one, FeedExporter))
    feed_file.begin(crawler, goes_on=goes_on)
    spider = Spider("one")
    spider.crawler = crawler
    exporter.open_spider(spider)
    return exporter, spider


class Feed:
    """A feed as Scrapy writes it with our settings, without a crawl."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.path = path
        self.options = options

    def write(self, *items: dict[str, Any], goes_on: bool = True) -> None:
        """One run that overwrites, or would if the crawl did not go on."""
        exporter, spider = opened(self.path, goes_on=goes_on, **{"overwrite": True, **self.options})
        for item in items:
            exporter.item_scraped(item, spider)
        for slot in exporter.slots:
            if slot.itemcount or slot.store_empty:
                slot.start_exporting()
                slot.finish_exporting()
                slot.storage.store(exporter._get_file(slot))


NASTY = [
    {"url": "a", "text": 'x,"y"\n{"z": 1},\n}\n]'},
    {"url": "b", "text": "</item>ü\r\n, "},
    {"url": "c", "text": "plain"},
]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("x.jsonl", {}),
        ("x.jsonl", {"encoding": "latin-1"}),
        ("x.csv", {}),
        ("x.csv", {"fields": ["text", "url"]}),
        ("x.json", {}),
        ("x.json", {"encoding": "latin-1"}),
        ("x.json", {"indent": 4}),
        ("x.xml", {}),
        ("x.xml", {"indent": 2}),
    ],
    ids=str,
)
def test_a_feed_cut_at_any_byte_goes_on(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    path = tmp_path / name
    encoding = options.get("encoding", "utf-8")

    def read() -> list[dict[str, Any]]:
        found = READ[path.suffix[1:]](path.read_bytes().decode(encoding).encode())
        # A field's line ends are XML's business.
        return [{"url": item["url"], "text": item["text"].replace("\r\n", "\n")} for item in found]

    plain = [{**item, "text": item["text"].replace("\r\n", "\n")} for item in NASTY]
    Feed(path, **options).write(*NASTY, goes_on=False)
    assert read() == plain
    whole = path.read_bytes()
    kept_before = 0
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        Feed(path, **options).write({"text": "new", "url": "n"})
        *kept, last = read()
        assert last == {"url": "n", "text": "new"}
        assert kept == plain[: len(kept)]
        assert len(kept) >= kept_before, f"cut at {size} of {len(whole)}"
        kept_before = len(kept)
        path.write_bytes(whole[:size])
        Feed(path, **options).write()
        assert read() == kept or not path.read_bytes()
    assert kept_before == len(NASTY)


def test_a_feed_that_begins_is_emptied(tmp_path: Path) -> None:
    for suffix in READ:
        feed = Feed(tmp_path / f"x.{suffix}")
        feed.write(*NASTY, goes_on=False)
        os.utime(feed.path, (1, 1))
        feed.write(NASTY[2], goes_on=False)
        assert urls(feed.path) == {"c"}


def test_columns_of_a_table_stay(tmp_path: Path) -> None:
    feed = Feed(tmp_path / "x.csv")
    feed.write({"url": "a", "text": "1"}, goes_on=False)
    feed.write({"text": "2", "more": "x", "url": "b"})
    assert feed.path.read_text().splitlines() == ["url,text", "a,1", "b,2"]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("x.pickle", {}),
        (
            "x.jsonl.gz",
            {"format": "jsonlines", "postprocessing": ["scrapy.extensions.postprocessing.GzipPlugin"]},
        ),
        ("x.jsonl", {"encoding": "utf-16"}),
        ("x.json", {"indent": None}),
    ],
    ids=str,
)
def test_a_format_that_cannot_be_appended_to_is_kept_aside(
    tmp_path: Path, name: str, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    feed, kept = Feed(tmp_path / name, **options), tmp_path / f"{name}.1"
    feed.write(*NASTY, goes_on=False)
    before = feed.path.read_bytes()
    if feed.options.get("indent", 0) is not None:
        feed.write()
        assert feed.path.read_bytes() == before, "without an item there is nothing to begin"
        assert not kept.exists()
    feed.write(NASTY[2])
    assert kept.read_bytes() == before
    assert 0 < feed.path.stat().st_size < len(before)
    assert str(kept) in caplog.text
    feed.write(NASTY[2])
    assert (tmp_path / f"{name}.2").exists()
    assert kept.read_bytes() == before


PLUGINS = "scrapy.extensions.postprocessing"


@pytest.mark.parametrize("kind", ["jsonlines", "csv", "json", "xml"])
def test_a_gzipped_feed_of_a_killed_agent_has_all_its_items(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "x.gz"
    agents = Agents(path, 1, format=kind, postprocessing=[f"{PLUGINS}.GzipPlugin"])
    agents.scrape(0, "first", "second", "third")
    text = zlib.decompressobj(31).decompress(path.read_bytes())
    assert [word for word in (b"first", b"second", b"third") if word not in text] == []
    assert "killed" not in caplog.text
    agents.end(0)
    assert b"third" in gzip.decompress(path.read_bytes())


def test_a_plugin_that_may_lose_items_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "x.bz2"
    Agents(path, 1, format="jsonlines", postprocessing=[f"{PLUGINS}.Bz2Plugin"])
    assert f"feed {path}: Bz2Plugin may keep items in memory" in caplog.text


def test_two_agents_may_write_into_one_file(tmp_path: Path) -> None:
    """The second one joins a crawl at work: neither cuts nor overwrites what the first one writes."""
    path = tmp_path / "x.jsonl"
    storage = feed_file.FeedFile(str(path), feed_options={"format": "jsonlines", "overwrite": True})
    first = storage.open(Spider("one"))
    first.write(b'{"url": "a"}\n{"url": ')
    Feed(path).write({"url": "n"})
    first.write(b'"b"}\n')
    first.close()
    assert path.read_bytes() == b'{"url": "a"}\n{"url": {"url": "n"}\n"b"}\n'


class Agents:
    """Agents that began at the same moment with the same feed, in whatever order their items come."""

    def __init__(self, path: Path, many: int, **options: Any) -> None:
        self._feeds = []
        for _ in range(many):
            self._feeds.append(opened(path, goes_on=False, **options))

    def scrape(self, agent: int, *urls: str) -> None:
        exporter, spider = self._feeds[agent]
        for url in urls:
            exporter.item_scraped({"url": url}, spider)

    def end(self, agent: int) -> None:
        exporter, spider = self._feeds[agent]
        feed_file.leave_without_items(spider.crawler, finished=True)
        for slot in exporter.slots:
            if slot.itemcount or slot.store_empty:
                slot.start_exporting()
                slot.finish_exporting()
                slot.storage.store(exporter._get_file(slot))


def items_of(paths: Iterable[Path], read: Callable[[bytes], list[dict[str, Any]]]) -> list[str]:
    return sorted(item["url"] for path in paths for item in read(path.read_bytes()))


@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("suffix", sorted(READ))
def test_agents_that_begin_together_lose_no_item(
    tmp_path: Path, suffix: str, old: bool, overwrite: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / f"x.{suffix}"
    if old and overwrite:
        path.write_text("of another crawl")
        os.utime(path, (1, 1))
    agents = Agents(path, 3, overwrite=overwrite)
    agents.scrape(0, "a")
    agents.scrape(1, "b")
    agents.scrape(0, "c")
    agents.scrape(1, "d")
    agents.end(0)
    agents.end(1)
    agents.end(2)
    files = [path] if suffix in ("csv", "jsonl") else [path, tmp_path / f"x.{suffix}.1"]
    assert sorted(tmp_path.iterdir()) == files
    assert items_of(files, READ[suffix]) == ["a", "b", "c", "d"]
    assert ("allows only one writer; the items of this agent are in" in caplog.text) == (len(files) > 1)


@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize("suffix", sorted(READ))
def test_an_agent_whose_items_come_late_keeps_those_of_one_that_ended(
    tmp_path: Path, suffix: str, overwrite: bool
) -> None:
    path = tmp_path / f"x.{suffix}"
    path.write_text("of another crawl" if overwrite else "")
    os.utime(path, (1, 1))
    agents = Agents(path, 3, overwrite=overwrite)
    agents.scrape(0, "a", "b")
    agents.end(0)
    agents.scrape(1, "c")
    agents.end(1)
    agents.end(2)
    assert items_of([path], READ[suffix]) == ["a", "b", "c"]
    assert list(tmp_path.iterdir()) == [path]


# --- Crawls that are killed --------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", sorted(READ))
def test_a_killed_crawl_keeps_its_feed(place: Place, farm: Farm, suffix: str) -> None:
    feed = place.folder / f"items.{suffix}"
    feed.write_text("of another crawl")
    run = crawl(place, farm, "-O", str(feed))
    eventually(lambda: feed.exists() and feed.read_bytes().count(b"http") > 8, "some items are written")
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    with feed.open("ab") as file:
        file.write(TORN[suffix])
    assert feed.read_bytes().count(b"of another crawl") == 0
    run = crawl(place, farm, "-O", str(feed)).wait().succeeded()
    assert place.stored() == farm.expected()
    assert urls(feed) == wanted(farm)
    assert f"feed {feed}: this crawl continues, so items are appended" in run.err


def test_a_killed_crawl_keeps_its_gzipped_feed(place: Place, farm: Farm) -> None:
    feed = place.folder / "items.jsonl.gz"
    given = {
        "FEEDS": json.dumps({str(feed): {"format": "jsonlines", "postprocessing": [f"{PLUGINS}.GzipPlugin"]}})
    }
    run = crawl(place, farm, **given)
    eventually(lambda: feed.exists() and feed.stat().st_size > 300, "some items are written")
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    crawl(place, farm, **given).wait().succeeded()
    files = [feed, Path(f"{feed}.1")]
    unpacked = [zlib.decompressobj(31).decompress(file.read_bytes()) for file in files]
    assert {item["url"] for text in unpacked for item in as_lines(text)} == wanted(farm)
    assert all(unpacked)


def test_a_finished_crawl_keeps_its_feed_until_it_is_crawled_again(place: Place, farm: Farm) -> None:
    feed = place.folder / "items.jsonl"
    crawl(place, farm, "-O", str(feed)).wait().succeeded()
    before = feed.read_bytes()
    assert urls(feed) == wanted(farm)
    crawl(place, farm, "-O", str(feed)).wait().succeeded()
    assert feed.read_bytes() == before
    feed.write_text("old")
    run = crawl(place, farm, "--again", "-O", str(feed)).wait().succeeded()
    assert urls(feed) == wanted(farm)
    assert "goes on" not in run.err


def test_a_site_that_is_unfinished_keeps_its_items_when_all_are_crawled_again(place: Place) -> None:
    """`--again` crawls finished sites again; others go on where they were."""
    feed = place.folder / "items.jsonl"
    with Farm(sites=1, pages=30, kinds=(), names=(), delay_ms=50) as farm:
        run = crawl(place, farm, "-O", str(feed))
        eventually(lambda: feed.exists() and feed.read_bytes().count(b"http") > 15, "some items are written")
        run.end().succeeded()
        crawl(place, farm, "--again", "-O", str(feed)).wait().succeeded()
        assert urls(feed) == wanted(farm)


def test_each_of_several_agents_keeps_its_feed(place: Place) -> None:
    feeds = [place.folder / f"items-{number}.jsonl" for number in (1, 2)]
    words = ("--agents", "2", "-O", f"{place.folder}/items.jsonl")
    for feed in feeds:
        feed.write_text("of another crawl\n")
    with Farm(sites=4, pages=15, kinds=(), names=(), delay_ms=50) as farm:
        run = crawl(place, farm, *words, SITE_SLOTS=2)
        for feed in feeds:
            eventually(lambda feed=feed: feed.read_text().count("http") > 3, "each has written items")
        for pid in (run.pid, *place.processes("crawl")):
            os.kill(pid, signal.SIGKILL)
        run.wait()
        assert "another" not in "".join(feed.read_text() for feed in feeds)
        crawl(place, farm, *words).wait().succeeded()
        assert urls(feeds[0]) | urls(feeds[1]) == wanted(farm)
        before = [feed.read_bytes() for feed in feeds]
        crawl(place, farm, *words).wait().succeeded()
        assert [feed.read_bytes() for feed in feeds] == before
        for feed in feeds:
            feed.write_text("old\n")
        crawl(place, farm, "--again", *words).wait().succeeded()
        assert urls(feeds[0]) | urls(feeds[1]) == wanted(farm)


@pytest.mark.parametrize("suffix", sorted(READ))
def test_two_agents_started_at_once_share_a_feed(place: Place, valkey: RunningServer, suffix: str) -> None:
    """Started by hand with the same command: whoever has an item first empties the file of an earlier crawl."""
    feed = place.folder / f"items.{suffix}"
    feed.write_text("of another crawl")
    with Farm(sites=6, pages=10, kinds=(), names=(), delay_ms=20) as farm:
        own = {"REDIS_URL": valkey.url, "SITE_SLOTS": 3}
        runs = [crawl(place, farm, "-O", str(feed), **own) for _ in range(2)]
        for run in runs:
            run.wait().succeeded()
        feeds = sorted(place.folder.glob(f"items.{suffix}*"))
        read = [item["url"] for file in feeds for item in READ[suffix](file.read_bytes())]
        assert set(read) == wanted(farm)
        assert len(read) == len(set(read))


def test_a_script_that_goes_on_keeps_its_feed(place: Place, farm: Farm) -> None:
    (place.folder / "fed_spider.py").write_text(SPIDER)
    script = place.folder / "script.py"
    script.write_text(SCRIPT)
    feed = place.folder / "items.jsonl"
    given = {f"LOWTIDE_{name}": str(value) for name, value in QUICK.items()}
    path = f"{ROOT}{os.pathsep}{place.folder}"
    env = place.environment({**given, "PYTHONPATH": path, "LOWTIDE_SPIDER_MODULES": "fed_spider"})

    def run(again: str = "") -> Run:
        words = [sys.executable, str(script), str(feed), ",".join(farm.seeds), again]
        return Run(words, env, ROOT, place.folder / "script")

    killed = run()
    eventually(lambda: feed.exists() and feed.read_bytes().count(b"http") > 8, "some items are written")
    killed.end(signal.SIGKILL)
    run().wait().succeeded()
    assert urls(feed) == wanted(farm)
    run().wait().succeeded()
    assert urls(feed) == wanted(farm)
    feed.write_text("old")
    run("again").wait().succeeded()
    assert urls(feed) == wanted(farm)


# --- Runs that never get to know ---------------------------------------------------------------------------


def test_a_feed_is_not_emptied_where_the_queue_cannot_be_asked(
    place: Place, farm: Farm, valkey: RunningServer
) -> None:
    feed = place.folder / "items.jsonl"
    feed.write_text('{"url": "kept"}\n')
    crawl(place, farm, REDIS_URL=valkey.url).wait().succeeded()
    crawl(place, farm, "-O", str(feed), spider="other", REDIS_URL=valkey.url).wait().refused("prefix", code=3)
    away = f"redis://127.0.0.1:{free_port()}/0"
    script = place.folder / "script.py"
    script.write_text(SCRIPT)
    env = place.environment(
        {
            "PYTHONPATH": f"{ROOT}{os.pathsep}{place.folder}",
            "LOWTIDE_SPIDER_MODULES": "fed_spider",
            "LOWTIDE_REDIS_URL": away,
        }
    )
    Run(
        [sys.executable, str(script), str(feed), farm.seeds[0], ""], env, ROOT, place.folder / "script"
    ).wait()
    assert feed.read_text() == '{"url": "kept"}\n'


def test_a_run_that_fails_empties_no_feed(place: Place) -> None:
    """Its queue is new: it may have been lost."""
    feed = place.folder / "items.json"
    feed.write_text("[]")
    (place.folder / "fed_spider.py").write_text(SPIDER)
    own = {"spider": "fed", "env": {"PYTHONPATH": str(place.folder)}, "SPIDER_MODULES": "fed_spider"}
    place.start_crawl([], "-O", str(feed), **own).wait().refused("no seeds", code=2)
    assert feed.read_text() == "[]"


def test_a_storage_that_cannot_append_says_so(place: Place, farm: Farm) -> None:
    storages = {"FEED_STORAGES": {"nowhere": "fed_spider.Nowhere"}}
    crawl(place, farm, "-O", "nowhere://items.jsonl", **storages).wait().succeeded()
    run = crawl(place, farm, "-O", "nowhere://items.jsonl", **storages).wait().succeeded()
    assert "feed nowhere://items.jsonl: this crawl continues, but Nowhere cannot append" in run.err
    run = crawl(place, farm, "-O", "nowhere://%(time)s.jsonl", **storages).wait().succeeded()
    assert "cannot append" not in run.err
