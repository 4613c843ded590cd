"""`scrapy extract`: records and items anew from what is stored, and whether tables and archive agree."""

from __future__ import annotations

import json
import signal
import sqlite3
import textwrap
from collections.abc import Iterator
from contextlib import closing
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, select

from crawler.archive import writer as archive
from crawler.records import Page, pack_links
from crawler.store.database import migrate, open_database, transaction
from crawler.store.queries import archived_pages, count_archived
from crawler.store.tables import fetches, pages, sites
from crawler.store.write import Stored, forget, store
from tests.archiving import check_files, exchange, writer
from tests.conftest import MakeDatabase
from tests.crawling import Place, Run
from tests.databases import KINDS
from tests.farm import Farm
from tests.servers import RunningServer, eventually
from tests.small_site import Reply, SmallSite, at_first, links

COLUMNS = "url, outcome, status, depth, tries, size, latency_ms, sha256, duplicate_of, content_type, title, description"
MORE = "fetched_at, links, canonical, etag, last_modified, address, wire_size, warc_file, warc_offset, warc_length"
ROWS = f"select {COLUMNS}, {MORE} from pages order by url"

STEP = '''
"""What a user adds once the crawl is over."""


class Shout:
    def process(self, page):
        page.record.keywords = [page.record.title.upper()]
'''

SPIDER = '''
"""What a user writes."""
from scrapy.http import HtmlResponse
from crawler.spiders.site import SiteSpider


class Stamped:
    def process_item(self, item):
        item["stamped"] = True
        return item


class Again(SiteSpider):
    name = "again"
    custom_settings = {"ITEM_PIPELINES": {"again.Stamped": 1}}

    def parse(self, response):
        if isinstance(response, HtmlResponse):
            yield {
                "url": response.url,
                "title": response.css("title::text").get(),
                "type": response.headers["Content-Type"].decode(),
                "depth": response.meta["depth"],
                "address": str(response.ip_address),
                "fetched_at": response.meta["fetched_at"],
                "word": getattr(self, "word", None),
            }
            yield response.follow("/anything", callback=self.parse)
'''


@pytest.fixture
def crawled(place: Place) -> Iterator[Place]:
    """A crawl that is over, and a web that is gone."""
    with Farm(sites=2, pages=8, kinds=("duplicate", "missing", "charset", "redirect"), names=()) as farm:
        place.crawl(farm.seeds).succeeded()
    yield place
    for name in ("again.py", "more.py"):
        (place.folder / name).unlink(missing_ok=True)


def change(place: Place, statement: str) -> None:
    with closing(sqlite3.connect(place.var / "crawl.db")) as connection:
        connection.execute(statement)
        connection.commit()


def extract(place: Place, *words: str, **given: Any) -> Run:
    env = {"PYTHONPATH": str(place.folder)}
    return place.run("extract", *words, env=env, **given)


# --- records anew -------------------------------------------------------------------------------------------


def test_records_are_what_they_were_and_no_new_fetches(crawled: Place) -> None:
    before, history = crawled.rows(ROWS), crawled.rows("select * from fetches order by id")
    kept = crawled.rows("select count(*) from pages where warc_file is not null")[0][0]
    change(
        crawled,
        "update pages set title = 'lost', links = null, canonical = null, tries = 9, size = 0 "
        "where warc_file is not null",
    )
    ended = extract(crawled, "--json").succeeded()
    figures = json.loads(ended.out)
    assert figures == {
        "files": 1,
        "captures": kept,
        "published": kept,
        "damaged": 0,
        "missing": 0,
        "failed": 0,
        "dropped": 0,
    }
    assert crawled.rows(ROWS) == before
    assert crawled.rows("select * from fetches order by id") == history
    assert crawled.rows("select count(*) from pages where extracted_at is not null") == [(kept,)]
    extract(crawled).succeeded()
    assert crawled.rows(ROWS) == before


@pytest.mark.parametrize("by_site", [False, True])
def test_words_to_our_own_name_are_heeded_as_by_the_fetch(tmp_path: Path, by_site: bool) -> None:
    """That name is told by the archive: today's settings may have another."""
    html = {"Content-Type": "text/html"}
    routes = {
        "/": links("/meta", "/header", "/other"),
        "/meta": Reply(200, html, "<meta name=mybot content=nofollow><a href=/hidden>x</a>"),
        "/header": Reply(200, {**html, "X-Robots-Tag": "mybot: nofollow"}, "<a href=/hidden>x</a>"),
        "/other": Reply(200, html, "<meta name=lowtide content=nofollow><a href=/found>x</a>"),
        "/found": links(),
    }
    name = "mybot/1.0 (+https://example.org)"
    given: dict[str, Any] = {"USER_AGENT": name}
    with SmallSite(routes) as web, Place(tmp_path) as place:
        if by_site:
            given = {"SITE_OVERRIDES": {web.host: {"headers": {"User-Agent": name}}}}
        place.crawl([web.root], **given).succeeded()
        assert set(web.pages) == set(routes)
        query = "select url, robots, links from pages order by url"
        before = place.rows(query)
        assert sum(robots == '["nofollow"]' for _, robots, _ in before) == 2
        extract(place).succeeded()
        assert place.rows(query) == before


def test_a_new_step_fills_old_pages(crawled: Place) -> None:
    (crawled.folder / "more.py").write_text(STEP)
    steps = {
        "crawler.pipelines.checksum.Checksum": 100,
        "crawler.pipelines.attributes.Attributes": 200,
        "more.Shout": 250,
        "crawler.pipelines.links.Links": 300,
    }
    extract(crawled, PAGE_PIPELINES=steps).succeeded()
    found = crawled.rows("select title, keywords from pages where warc_file is not null")
    assert found
    assert all(json.loads(keywords) == [(title or "").upper()] for title, keywords in found)


def test_an_older_capture_takes_nothing_from_a_newer_page(place: Place) -> None:
    """Two captures of one page: the row keeps the newer, in whatever order they are read."""
    first = Reply(200, {"Content-Type": "text/html"}, "<title>old</title>")
    second = Reply(200, {"Content-Type": "text/html"}, "<title>new</title>")
    with SmallSite({"/": at_first(first, second)}) as site:
        place.crawl([site.root]).succeeded()
        place.crawl([site.root], "--again").succeeded()
    assert len(check_files(place.var / "archive")) == 2
    change(place, "update pages set title = 'lost'")
    ended = extract(place).succeeded()
    assert "2 captures, 2 published" in ended.out
    assert place.rows("select title from pages") == [("new",)]
    assert place.rows("select count(*) from fetches") == [(2,)]


def test_what_was_forgotten_stays_so(crawled: Place) -> None:
    [(one,)] = crawled.rows("select min(site) from sites")
    crawled.run("site", "forget", one).succeeded()
    crawled.run("coordinate").succeeded()
    assert crawled.rows(f"select count(*) from sites where site = '{one}'") == [(0,)]
    extract(crawled).succeeded()
    assert crawled.rows(f"select count(*) from pages where url like '{one}%'") == [(0,)]
    assert crawled.rows(f"select count(*) from sites where site = '{one}'") == [(0,)]


def test_files_of_the_dead_are_finished_first_and_those_of_the_living_left(
    tmp_path: Path, place: Place
) -> None:
    folder = place.var / "archive"
    living, dead = writer(folder, "living"), writer(tmp_path, "dead")
    for made in (living, dead):
        made.add(exchange("/1", b"one"), "text/html", 200, None)
        made.flush()
    [left] = archive.being_written(tmp_path)
    (folder / left.name).write_bytes(left.read_bytes() + b"torn")
    ended = extract(place).succeeded()
    assert "1 captures, 1 published" in ended.out
    assert "1 files are still being written" in ended.err
    assert [path.name for path in archive.finished(folder)] == ["dead-00001.warc.gz"]
    assert [path.name for path in archive.being_written(folder)] == ["living-00001.warc.gz.open"]
    for made in (living, dead):
        made.close()
    # The page is nobody's: no row was made of it.
    assert place.rows("select count(*) from pages") == [(0,)]


def test_what_cannot_be_read_is_told_and_the_rest_done(crawled: Place) -> None:
    [file] = archive.finished(crawled.var / "archive")
    [(offset, url)] = crawled.rows(
        "select warc_offset, url from pages where url like '%/twin/one.html' limit 1"
    )
    damage(file, offset + 200)
    ended = extract(crawled, "--json")
    figures = json.loads(ended.out)
    assert ended.code == 1
    assert figures["damaged"] >= 1
    assert "are damaged" in ended.err
    # Its twin has no body of its own.
    assert figures["published"] == figures["captures"] > 10
    assert url.replace("one", "two") in ended.err


def test_it_waits_for_redis(place: Place, valkey: RunningServer) -> None:
    made = writer(place.var / "archive")
    for number in range(900):
        made.add(exchange(f"/{number}", b"<title>x</title>" * 200), "text/html", 200, None)
    made.close()
    # By its default a server that is killed may lose what it has answered for: up to two seconds' worth.
    valkey.client.config_set("appendfsync", "always")
    run = place.start("extract", REDIS_URL=valkey.url)
    eventually(lambda: valkey.client.exists("lt:{0}:results"), "the first records", 30)
    valkey.kill()
    run.says("waiting to publish")
    valkey.start()
    run.wait().succeeded()
    told = valkey.client.xrange("lt:{0}:results")
    assert len({fields[b"r"] for _, fields in told}) == 900


# --- a spider's items ---------------------------------------------------------------------------------------


def test_a_spider_parses_what_is_stored(crawled: Place) -> None:
    (crawled.folder / "again.py").write_text(SPIDER)
    items = crawled.folder / "items.jsonl"
    before = crawled.rows("select * from pages order by id")
    ended = extract(
        crawled, "--spider", "again", "-a", "word=hello", "-O", str(items), SPIDER_MODULES="again"
    ).succeeded()
    found = {item["url"]: item for item in map(json.loads, items.read_text().splitlines())}
    wanted = crawled.rows(
        "select url, title, content_type, depth, address, fetched_at from pages where warc_file is not null"
    )
    assert len(found) == len(wanted) > 10
    for url, title, kind, depth, address, fetched_at in wanted:
        assert found[url] == {
            "url": url,
            "title": title,
            "type": kind,
            "depth": depth,
            "address": address,
            "fetched_at": fetched_at,
            "word": "hello",
            "stamped": True,
        }
    assert f"{len(found)} captures" in ended.out
    assert f"{len(found)} dropped" in ended.out
    assert crawled.rows("select * from pages order by id") == before
    assert not crawled.processes()


def test_items_can_go_to_the_output_alone(crawled: Place) -> None:
    (crawled.folder / "again.py").write_text(SPIDER)
    ended = extract(crawled, "--spider", "again", "-O", "-:jsonlines", SPIDER_MODULES="again").succeeded()
    assert len([json.loads(line) for line in ended.out.splitlines()]) > 10
    assert "captures" in ended.err


def test_a_spider_of_scrapys_own_kind_and_other_files(crawled: Place, tmp_path: Path) -> None:
    (crawled.folder / "again.py").write_text(
        textwrap.dedent(
            """
            from scrapy import Spider

            class Plain(Spider):
                name = "plain"
                custom_settings = {"VAR_DIR": "var/elsewhere"}
                start_urls = ["http://127.0.0.1:1/"]

                def parse(self, response):
                    yield {"url": response.url}
            """
        )
    )
    [file] = archive.finished(crawled.var / "archive")
    items = crawled.folder / "items.jsonl"
    words = ("--spider", "plain", "-O", str(items), str(file))
    extract(crawled, *words, SPIDER_MODULES="again").succeeded()
    assert len(items.read_text().splitlines()) > 10


# --- check --------------------------------------------------------------------------------------------------


def damage(file: Path, place: int) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 0x55
    file.write_bytes(data)


def test_the_check_finds_a_flipped_byte_and_a_lost_file(crawled: Place) -> None:
    ended = crawled.run("extract", "--check").succeeded()
    kept = crawled.rows("select count(*) from pages where warc_file is not null")[0][0]
    assert ended.out == f"{kept} ok, 0 missing, 0 damaged\n"
    [file] = archive.finished(crawled.var / "archive")
    url, offset = crawled.rows(
        "select url, warc_offset from pages where warc_file is not null and url not like '%twin%' order by id"
    )[3]
    damage(file, offset + 300)
    ended = crawled.run("extract", "--check", "--json")
    assert ended.code == 1
    found = json.loads(ended.out)
    assert (found["ok"], found["missing"], found["damaged"]) == (kept - 1, 0, 1)
    assert found["first"][0]["url"] == url
    ended = crawled.run("extract", "--check")
    assert ended.code == 1
    assert f"damaged  {url}: " in ended.out
    file.unlink()
    ended = crawled.run("extract", "--check")
    assert ended.code == 1
    assert f"0 ok, {kept} missing, 0 damaged" in ended.out
    assert ended.out.count("missing  http") == 10


def test_the_check_compares_row_and_capture(crawled: Place) -> None:
    urls = [
        url for (url,) in crawled.rows("select url from pages where outcome = 'stored' order by id limit 3")
    ]
    first, second, third = urls
    change(crawled, f"update pages set sha256 = '{'0' * 64}' where url = '{first}'")
    change(crawled, f"update pages set warc_length = warc_length + 1 where url = '{second}'")
    place = f"select warc_offset from pages where url = '{first}'"
    length = f"select warc_length from pages where url = '{first}'"
    change(
        crawled, f"update pages set warc_offset = ({place}), warc_length = ({length}) where url = '{third}'"
    )
    ended = crawled.run("extract", "--check")
    assert ended.code == 1
    told = {
        line.split()[1].rstrip(":"): line for line in ended.out.splitlines() if line.startswith("damaged")
    }
    assert "its SHA-256 is" in told[first]
    assert "its length is" in told[second]
    assert "its URL is" in told[third]


def test_a_revisit_without_its_original_is_found(crawled: Place) -> None:
    [file] = archive.finished(crawled.var / "archive")
    url, offset = crawled.rows("select duplicate_of, 0 from pages where outcome = 'duplicate' order by url")[
        0
    ]
    [(offset,)] = crawled.rows(f"select warc_offset from pages where url = '{url}'")
    damage(file, offset + 200)
    ended = crawled.run("extract", "--check")
    assert ended.code == 1
    assert "0 missing, 2 damaged" in ended.out


def test_a_crawl_that_goes_on_can_be_checked(place: Place) -> None:
    with SmallSite({"/": links("/a", "/b"), "/a": links(), "/b": Reply(200, {}, "<p>b")}) as site:
        run = place.start_crawl([site.root], "--when-idle", "wait")
        eventually(lambda: (place.var / "crawl.db").exists(), "the tables", 30)
        eventually(lambda: _kept(place) == 3, "three pages", 30)
        assert archive.being_written(place.var / "archive")
        assert place.run("extract", "--check").succeeded().out == "3 ok, 0 missing, 0 damaged\n"
        run.end(signal.SIGINT).succeeded()


def _kept(place: Place) -> int:
    try:
        return int(place.rows("select count(*) from pages where warc_file is not null")[0][0])
    except sqlite3.OperationalError:
        return 0


# --- what it refuses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 1, "no archive in"),
        (("nowhere.warc.gz",), 2, "no file nowhere.warc.gz"),
        (("--check",), 1, "nothing was crawled yet"),
        (("--check", "--spider", "site"), 2, "--check and --spider are both given"),
        (("--check", "a", "b"), 2, "--check takes one folder"),
        (("--spider", "sites"), 2, "did you mean site?"),
        (("-O", "items.jsonl"), 2, "expected --spider NAME"),
        (("-a", "word=x"), 2, "expected --spider NAME"),
    ],
)
def test_a_wrong_call_is_refused(place: Place, words: tuple[str, ...], code: int, said: str) -> None:
    ended = place.run("extract", *words)
    ended.refused(said, code=code)


def test_a_cluster_must_be_named(place: Place) -> None:
    made = writer(place.var / "archive")
    made.add(exchange("/1", b"one"), "text/html", 200, None)
    made.close()
    ended = place.run("extract", env={"SCRAPY_PROJECT": "cluster"})
    ended.refused("REDIS_URL is empty")
    ended = place.run("extract", "--check", env={"SCRAPY_PROJECT": "cluster"})
    ended.refused("DATABASE_URL is empty")


# --- in the tables ------------------------------------------------------------------------------------------


@pytest.fixture
def tables(make_database: MakeDatabase, request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = open_database(make_database(request.param))
    migrate(engine)
    yield engine
    engine.dispose()


every_kind = pytest.mark.parametrize("tables", KINDS, indirect=True)


def record(seq: int, fetched_at: int, title: str, extracted_at: int = 0, **more: Any) -> Stored:
    made = Page(
        site="https://a.example",
        path="/",
        fetched_at=fetched_at,
        outcome="stored",
        status=200,
        title=title,
        extracted_at=extracted_at,
        agent="extract" if extracted_at else "agent",
        run="1",
        seq=seq,
        **more,
    )
    return Stored(f"{seq}-0", made, pack_links([f"https://a.example/{title}"]))


@every_kind
def test_in_whatever_order_records_come_the_same_row_is_left(tables: Engine) -> None:
    old, new = record(1, 1000, "old"), record(2, 2000, "new", depth=3)
    first = record(3, 2000, "made anew", 5000, depth=3)
    again = record(4, 2000, "made anew, again", 6000, depth=3)
    late = record(5, 1000, "of the old fetch", 7000)
    for number, order in enumerate(permutations([old, new, first, again, late])):
        with transaction(tables) as connection:
            forget(connection, "https://a.example")
        for stored in order:
            with transaction(tables) as connection:
                store(connection, [stored])
        with transaction(tables) as connection:
            # Once more, as after a coordinator's death; what was made anew may have come before its row.
            store(connection, list(order))
            assert title_of(connection) == "made anew, again", number
            assert connection.execute(select(fetches.c.seq).order_by(fetches.c.seq)).scalars().all() == [1, 2]


def title_of(connection: Any) -> str:
    row = connection.execute(select(pages.c.title, pages.c.depth, pages.c.links)).one()
    assert row.links == pack_links([f"https://a.example/{row.title}"])
    return str(row.title)


@every_kind
def test_what_is_not_in_the_tables_is_not_brought_there(tables: Engine) -> None:
    with transaction(tables) as connection:
        store(connection, [record(1, 1000, "made anew", 5000)])
        assert connection.execute(select(pages.c.id)).all() == []
        assert connection.execute(select(sites.c.site_id)).all() == []
        assert connection.execute(select(fetches.c.id)).all() == []


@every_kind
def test_a_new_fetch_takes_its_place(tables: Engine) -> None:
    with transaction(tables) as connection:
        store(connection, [record(1, 1000, "first"), record(2, 1000, "anew", 5000)])
        assert connection.execute(select(pages.c.title, pages.c.extracted_at)).one() == ("anew", 5000)
        store(connection, [record(3, 2000, "fetched")])
        assert connection.execute(select(pages.c.title, pages.c.extracted_at)).one() == ("fetched", None)


@every_kind
def test_rows_are_read_in_short_ranges(tables: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [
        record(number, 1000, "x", warc_file="f", warc_offset=number, warc_length=1, sha256="0" * 64)
        for number in range(1, 8)
    ]
    for number, stored in enumerate(made):
        assert isinstance(stored.record, Page)
        stored.record.path = f"/{number}"
    other = record(99, 1000, "not kept")
    assert isinstance(other.record, Page)
    other.record.path = "/other"
    with transaction(tables) as connection:
        store(connection, [*made[:4], other, *made[4:]])
    assert count_archived(tables) == 7
    monkeypatch.setattr("crawler.store.queries.ARCHIVED_RANGE", 3)
    assert sorted(page.offset for page in archived_pages(tables)) == list(range(1, 8))
