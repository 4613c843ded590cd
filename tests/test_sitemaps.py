"""Sitemaps: how they are read, what a crawl takes from them, and what they tell recheck."""

from __future__ import annotations

import gzip
import random
import signal
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, select

from crawler.content.sitemaps import MOST_MEMBERS, STAMPED_FROM, Entry, Sitemap, may_be, named, read, told
from crawler.recheck.change_model import believed, keep
from crawler.records import Page, Record, hash64, pack_lastmods, unpack_lastmods
from crawler.store.database import migrate, open_database, transaction
from crawler.store.tables import pages
from crawler.store.write import Stored, store
from tests.conftest import MakeDatabase
from tests.costs import STEEP, growth, ratio
from tests.crawling import Place
from tests.databases import KINDS
from tests.servers import eventually
from tests.small_site import Reply, SmallSite, links, moved, text

MANY = 1_000_000
SPACE = "http://www.sitemaps.org/schemas/sitemap/0.9"
XML = {"Content-Type": "application/xml"}
SITE = "https://a.example"
KEY = hash64(SITE)
NOW = 1_795_000_000_000


def urlset(*urls: str, lastmod: str = "") -> str:
    when = f"<lastmod>{lastmod}</lastmod>" if lastmod else ""
    return (
        f'<urlset xmlns="{SPACE}">'
        + "".join(f"<url><loc>{url}</loc>{when}</url>" for url in urls)
        + "</urlset>"
    )


def index(*urls: str) -> str:
    return (
        "<sitemapindex>" + "".join(f"<sitemap><loc>{url}</loc></sitemap>" for url in urls) + "</sitemapindex>"
    )


# --- how they are read ---


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (
            urlset("/a?b=1&amp;c", lastmod="2026-11-19T10:00:00Z"),
            Sitemap([Entry("/a?b=1&c", 1_795_082_400_000)], []),
        ),
        (urlset("/a", lastmod="2026-11-19T19:00:00+09:00"), Sitemap([Entry("/a", 1_795_082_400_000)], [])),
        (urlset("/a", lastmod="2026-11-19"), Sitemap([Entry("/a", 1_795_046_400_000)], [])),
        (urlset("/a", lastmod="yesterday"), Sitemap([Entry("/a", 0)], [])),
        (index("/one.xml", "/two.xml.gz"), Sitemap([], ["/one.xml", "/two.xml.gz"])),
        (
            "<rss><channel><item><pubDate>Thu, 19 Nov 2026 10:00:00 GMT</pubDate><link>/n</link></item>"
            "</channel></rss>",
            Sitemap([Entry("/n", 1_795_082_400_000)], []),
        ),
        (
            '<feed xmlns="http://www.w3.org/2005/Atom"><entry><link href="/e"/><updated>2026-11-19T10:00:00Z</updated>'
            "</entry></feed>",
            Sitemap([Entry("/e", 1_795_082_400_000)], []),
        ),
        ("<urlset><url></url><url><loc/></url></urlset>", Sitemap([], [])),
        # The page of an entry is no comment on it, nothing to edit it by, and not the entry as a feed.
        (
            '<feed><entry><link rel="replies" href="/r"/><link rel="self" href="/s"/><link rel="alternate" '
            'type="application/json" href="/j"/><link rel="Alternate" type="text/html" href="/e"/></entry>'
            '<entry><link rel="edit" href="/x"/><link href="/f"/></entry><entry><link rel="self" href="/g"/></entry>'
            '<entry><link rel="http://www.iana.org/assignments/relation/alternate" href="/h"/></entry></feed>',
            Sitemap([Entry("/e", 0), Entry("/f", 0), Entry("/h", 0)], []),
        ),
        (
            "<rss><channel><link>/</link><image><url>/logo.gif</url></image><item><guid>http://a.example/1</guid></item>"
            '<item><guid isPermaLink="false">http://a.example/no</guid></item><item>'
            '<atom:link xmlns:atom="a" rel="self" href="/no"/><guid>http://a.example/no</guid><link>/2</link></item></channel></rss>',
            Sitemap([Entry("http://a.example/1", 0), Entry("/2", 0)], []),
        ),
        (
            '<rdf:RDF xmlns:rdf="r" xmlns="s" xmlns:dc="d"><channel rdf:about="/"><link>/</link></channel>'
            "<item><link>/r</link><dc:date>2026-11-19</dc:date></item></rdf:RDF>",
            Sitemap([Entry("/r", 1_795_046_400_000)], []),
        ),
        (
            "<sitemapindex><sitemap><loc>/1</loc><loc>/2</loc></sitemap><sitemap>/3</sitemap></sitemapindex>",
            Sitemap([], ["/1", "/2", "/3"]),
        ),
        (f"\n \t<?xml version='1.0' encoding='UTF-8'?>\n{urlset('/a')}", Sitemap([Entry("/a", 0)], [])),
        (f"<!-- made - by -- us --><?xml version='1.0'?>{urlset('/a')}", Sitemap([Entry("/a", 0)], [])),
        (f"\ufeff\n<?xml version='1.0'?>{urlset('/a')}", Sitemap([Entry("/a", 0)], [])),
        (
            f"<?xml version='1.0'?><?xml-stylesheet href='a'?><!DOCTYPE urlset><!-- x -->{urlset('/a')}",
            Sitemap([Entry("/a", 0)], []),
        ),
    ],
)
def test_its_forms(body: str, found: Sitemap) -> None:
    for named_one in (False, True):
        assert read(body.encode(), MANY, is_list=named_one) == found
        assert read(gzip.compress(body.encode()), MANY, is_list=named_one) == found
        for codec in ("utf-16", "utf-16-le", "utf-16-be"):
            if body.startswith("<"):
                assert read(body.encode(codec), MANY, is_list=named_one) == found
    assert may_be(body.encode())
    assert may_be(gzip.compress(body.encode() * 9))


def test_what_is_none() -> None:
    assert read(b"<html><body><a href=/a>urlset</a>", MANY) is None
    for page in (
        b"<!DOCTYPE html><html><!-- <urlset> --><body>",
        b"<?xml version='1.0'?><html><urlset></urlset>",
        b"<urlsets><url><loc>/a</loc></url></urlsets>",
        b"<!-- <rss> <feed>",
        gzip.compress(b"<html><rss>"),
        b"",
    ):
        assert read(page, MANY) is None and not may_be(page), page
    assert read(b"http://a.example/a\n", MANY) is None, "plain text is one only where it is named as one"
    lines = b"\xef\xbb\xbfhttp://a.example/a\r\n\r\nhttps://a.example/b\nno url\n"
    found = read(lines, MANY, is_list=True)
    assert found and [entry.url for entry in found.pages] == ["http://a.example/a", "https://a.example/b"]


def test_one_that_is_named_may_stand_behind_a_complaint() -> None:
    complaint = b"<br />\n<b>Warning</b>: mysqli in /a.php on line 1<br />\n"
    body = complaint + b"<?xml version='1.0'?>" + urlset("/a").encode()
    assert read(body, MANY, is_list=True) == Sitemap([Entry("/a", 0)], [])
    assert read(body, MANY) is None


def test_what_stands_before_the_first_element_takes_little_time() -> None:
    for part in (
        b"<!--",
        b"<!-- -",
        b"<?",
        b"<?a?",
        b" ",
        b"\xef\xbb\xbf",
        b"<!DOCTYPE a[",
        b"<!DOCTYPE a[]",
        b"<!-- -->",
    ):
        assert not may_be(part * 1_000_000)
        assert growth(may_be, part * 1_000_000, part * 250_000) < STEEP


def test_a_broken_one_gives_what_was_whole() -> None:
    whole = urlset("/a", "/b")
    found = read(whole[: whole.index("/b") + 2].encode(), MANY)
    assert found and found.pages == [Entry("/a", 0)] and "broken" in found.error


def many_pages(count: int) -> bytes:
    """A sitemap of pages that look alike, so that wrong bits still make URLs of them."""
    chance = random.Random(count)
    colours = ("red", "green", "blue")
    paths = (
        f"{SITE}/articles/{chance.choice(colours)}-{chance.randrange(10**6)}-{at}" for at in range(count)
    )
    return urlset(*paths).encode()


def pages_of(body: bytes) -> list[Entry]:
    found = read(body, MANY)
    return found.pages if found else []


def test_a_gzip_that_is_cut_short_gives_what_came_before() -> None:
    body = many_pages(5_000)
    whole, named_ones = gzip.compress(body), pages_of(body)
    for left, least in ((len(whole) // 2, 2_000), (len(whole) - 8, 5_000), (len(whole) - 1, 5_000)):
        found = read(whole[:left], MANY)
        assert found and len(found.pages) >= least
        assert found.pages == named_ones[: len(found.pages)]
        assert found.error == "its gzip is broken: it is truncated"


@pytest.mark.parametrize("count", [10, 100, 150])
def test_a_gzip_with_a_wrong_bit_names_no_page_that_was_not_written(count: int) -> None:
    body = many_pages(count)
    whole, named_ones = gzip.compress(body), pages_of(body)
    for bit in range(len(whole) * 8):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        assert set(pages_of(bytes(damaged))) <= set(named_ones), f"bit {bit}"


def test_of_a_gzip_the_members_are_taken_that_stand_before_what_is_damaged() -> None:
    body = many_pages(2_000)
    half = len(body) // 2
    first, second = (gzip.compress(part) for part in (body[:half], body[half:]))
    before = pages_of(body[:half])
    assert len(before) > 900
    for behind in (second[:-8] + b"\xff" * 8, second[:500] + b"\xff" * 40 + second[540:], b"<urlset>"):
        found = read(first + behind, MANY)
        assert found and found.pages == before
        assert found.error.startswith("its gzip is broken: ")


def test_a_gzip_that_was_named_and_gives_nothing_is_told() -> None:
    packed = gzip.compress(urlset("/a").encode())[:11]
    found = read(packed, MANY, is_list=True)
    assert found == Sitemap([], [], "its gzip is broken: it is truncated")
    assert read(packed, MANY) is None, "what nobody named may be anything"


def test_a_gzip_of_several_members_is_read_to_its_end() -> None:
    body = urlset(*(f"/{one}" for one in range(1_000))).encode()
    parts = [gzip.compress(body[at : at + 100]) for at in range(0, len(body), 100)]
    found = read(b"".join(parts) + bytes(100), MANY)
    assert found and len(found.pages) == 1_000
    assert found.error == ""
    found = read(b"".join(parts), 10_000)
    assert found and 100 < len(found.pages) < 1_000
    assert "first 10000 bytes" in found.error


def test_a_gzip_of_empty_members_ends_soon() -> None:
    def read_all(members: int) -> None:
        found = read(gzip.compress(b"") * members, MANY, is_list=True)
        assert found and "its gzip is broken: it has more than" in found.error

    assert ratio(lambda: read_all(20 * MOST_MEMBERS), lambda: read_all(MOST_MEMBERS + 1), 3) < 3


def test_it_may_not_be_larger_than_its_bound() -> None:
    body = urlset(*(f"/{one}" for one in range(10_000))).encode()
    for packed in (body, gzip.compress(body)):
        found = read(packed, 10_000)
        assert found and 100 < len(found.pages) < 1_000 and "first 10000 bytes" in found.error
    bomb = gzip.compress(body[:60] + b" " * 50_000_000)
    assert read(bomb, 10_000) is not None
    assert ratio(lambda: read(bomb, 10_000), lambda: read(bomb, 100_000_000), 0.2) < 0.2


def test_entities_are_not_resolved(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    for entity in ('"' + "x" * 1000 + '"', f'SYSTEM "file://{tmp_path}/secret"'):
        body = f"<!DOCTYPE a [<!ENTITY x {entity}>]>{urlset('/a&x;')}"
        found = read(body.encode(), MANY)
        assert found is not None
        assert not any("secret" in entry.url or "xx" in entry.url for entry in found.pages)


def test_robots_name_them() -> None:
    body = b"Sitemap: https://a.example/one.xml\r\nUser-agent: *\rDisallow: /x\n  sitemap :/two.xml # ours\nSitemap:\n"
    assert named(body) == ["https://a.example/one.xml", "/two.xml"]
    assert len(named(b"".join(b"Sitemap: /%d\n" % one for one in range(10_000)))) == 500


def test_a_time_that_all_pages_have_says_nothing() -> None:
    stamped = [Entry(f"/{one}", 5) for one in range(STAMPED_FROM)]
    assert told(stamped) == []
    assert told([*stamped[:4], Entry("/new", 9), Entry("/old", 1), Entry("/none", 0)])[0] == Entry("/new", 9)


# --- a crawl ---


def crawled(folder: Path, routes: dict[str, Any], **given: Any) -> tuple[set[str], set[str]]:
    """Paths that were asked for, and those that are stored; {root} stands for the site in what it says."""
    with SmallSite({}) as web, Place(folder) as place:
        web.routes = {
            path: reply._replace(body=reply.body.replace("{root}", web.site))
            for path, reply in routes.items()
        }
        place.crawl([web.root], **given).succeeded()
        stored = place.rows("select url from pages where status = 200")
        return set(web.pages), {url.removeprefix(web.site) for (url,) in stored}


ROUTES = {
    "/robots.txt": text(
        "User-agent: *\nDisallow: /secret\nSitemap: {root}/map.xml\nSitemap: http://127.0.1.2:9/o.xml"
    ),
    "/": links("/a"),
    "/a": links(),
    "/map.xml": Reply(200, XML, index("{root}/one.xml", "/two.xml", "http://127.0.1.2:9/x.xml")),
    "/one.xml": Reply(
        200, XML, urlset("{root}/b", "/a", "/secret/1", "http://127.0.1.2:9/y", "javascript:x")
    ),
    "/two.xml": Reply(200, XML, index("/three.xml") + "broken"),
    "/three.xml": Reply(200, XML, index("/never.xml")),
    "/b": links("/c"),
    "/c": links(),
}


def test_pages_that_no_link_leads_to_are_found(tmp_path: Path) -> None:
    asked, stored = crawled(tmp_path, ROUTES)
    assert asked == {"/", "/a", "/b", "/c", "/map.xml", "/one.xml", "/two.xml", "/three.xml"}
    assert stored == asked


HTML = {"Content-Type": "text/html"}
# What an index names, of any kind and called anything; each names a page of its own.
KINDS_OF_MAPS = {
    "/maps/set.xml": Reply(200, XML, urlset("/of/set")),
    "/maps/set.php": Reply(200, HTML, urlset("/of/php")),
    "/maps/list.txt": text("{root}/of/list\n"),
    "/maps/list.php": Reply(200, HTML, "{root}/of/list-html\n"),
    "/maps/nothing": Reply(200, {}, "\n" + urlset("/of/nothing")),
    "/maps/packed.gz": Reply(200, XML, packed=gzip.compress(urlset("/of/gz").encode())),
    "/maps/atom": Reply(200, {}, '<feed><entry><link rel="edit" href="/no"/><link href="/of/atom"/></entry></feed>'),
    "/maps/moved.txt": moved("/maps/target.txt"),
    "/maps/target.txt": text("{root}/of/moved\n"),
}  # fmt: skip
OF_MAPS = {f"/of/{name}" for name in ("set", "php", "list", "list-html", "nothing", "gz", "atom", "moved")}
ANY_INDEX = Reply(200, XML, index(*KINDS_OF_MAPS))
PAGES_OF_MAPS = {"*": links()}


@pytest.mark.parametrize("moves", [0, 1, 3])
@pytest.mark.parametrize("sitemaps", ["named", "tried"])
def test_an_index_is_read_behind_redirects_with_all_that_it_names(
    tmp_path: Path, sitemaps: str, moves: int
) -> None:
    way = ["/sitemap.xml", "/wp-sitemap", "/next/", "/end.xml"]
    routes: dict[str, Any] = {"/robots.txt": text("Sitemap: /sitemap.xml" if sitemaps == "named" else "")}
    routes |= dict(zip(way, [moved(to) for to in way[1 : moves + 1]], strict=False))
    routes |= {way[moves]: ANY_INDEX, **KINDS_OF_MAPS, **PAGES_OF_MAPS}
    asked, _ = crawled(tmp_path, routes, SITEMAPS=sitemaps, MAX_DEPTH=1)
    assert asked == {"/", *way[: moves + 1], *KINDS_OF_MAPS, *OF_MAPS}


def test_what_an_index_behind_a_redirect_names_is_known_when_the_site_is_gone_on_with(tmp_path: Path) -> None:
    """The agent dies while it waits for the text file, of which nothing but its name says what it is."""
    slow = text("", seconds=60.0)
    with SmallSite(PAGES_OF_MAPS) as web, Place(tmp_path) as place:
        web.routes |= {
            "/robots.txt": text("Sitemap: /sitemap.xml"),
            "/sitemap.xml": moved("/index.xml"),
            "/index.xml": Reply(200, XML, index("/list.txt")),
            "/list.txt": slow,
        }
        run = place.start_crawl([web.root], LEASE_SECONDS=3)
        eventually(lambda: "/list.txt" in web.pages, "the text file is asked for", 30)

        def told() -> bool:
            with suppress(sqlite3.Error):
                return bool(place.rows("select 1 from pages where url like '%/index.xml'"))
            return False

        eventually(told, "what came before it is in the tables")
        run.end(signal.SIGKILL)
        web.routes["/list.txt"] = text(f"{web.site}/of/list")
        place.crawl([], LEASE_SECONDS=3).succeeded()
        assert "/of/list" in web.pages
        assert web.pages["/index.xml"] == 1


def test_a_page_that_is_linked_is_read_by_its_first_element(tmp_path: Path) -> None:
    """A linked feed's entries are links; an index leads on once; a list of URLs is a text like any other."""
    routes = {
        "/": links("/feed", "/html", "/index", "/urls.txt"),
        "/feed": Reply(200, HTML, "<rss><channel><item><link>/entry</link></item></channel></rss>"),
        "/html": Reply(200, HTML, "<html><urlset><url><loc>/no</loc></url></urlset>"),
        "/index": Reply(200, XML, index("/further")),
        "/further": Reply(200, XML, index("/no-more") + urlset("/no")),
        "/urls.txt": text("{root}/no"),
        "/entry": links(),
    }
    asked, _ = crawled(tmp_path, routes)
    assert asked == {*routes, "/further"}


def test_patterns_for_pages_do_not_close_sitemaps(tmp_path: Path) -> None:
    routes = {
        "/robots.txt": text("Sitemap: /sitemap.xml\nSitemap: /secret/map.xml"),
        "/sitemap.xml": moved("/index.xml"),
        "/index.xml": Reply(200, XML, index("/maps/list.txt", "/secret/more.xml")),
        "/maps/list.txt": text("{root}/docs/only\n{root}/blog/no\n{root}/docs/secret/no\n"),
        "/docs/": links("/docs/a", "/blog/"),
        "*": links(),
    }
    given = {"SCOPE_INCLUDE": "/docs/", "SCOPE_EXCLUDE": "/secret/"}
    with SmallSite({}) as web, Place(tmp_path) as place:
        web.routes = {
            path: one._replace(body=one.body.replace("{root}", web.site)) for path, one in routes.items()
        }
        place.crawl([f"{web.site}/docs/"], **given).succeeded()
        maps = {"/sitemap.xml", "/index.xml", "/maps/list.txt"}
        assert set(web.pages) == {"/docs/", "/docs/a", "/docs/only", *maps}


def test_one_of_the_same_host_under_another_scheme_or_name_is_offered_to_that_site(tmp_path: Path) -> None:
    with SmallSite({"*": links()}) as one, SmallSite({"*": links()}) as other, Place(tmp_path) as place:
        one.routes["/robots.txt"] = text(f"Sitemap: {other.site}/map.xml")
        other.routes["/map.xml"] = Reply(200, XML, urlset("/found"))
        place.crawl([one.root, other.root]).succeeded()
        assert set(other.pages) == {"/", "/map.xml", "/found"}


def test_what_a_sitemap_says_of_pages_that_are_yet_to_come_reaches_the_tables(tmp_path: Path) -> None:
    """With a pause between requests it is stored long before they are; also where the site is given back between."""
    entries = "".join(
        f"<url><loc>/{one}</loc><lastmod>2026-01-{one + 10}</lastmod></url>" for one in range(8)
    )
    routes = {
        "/robots.txt": text("Sitemap: /map.xml"),
        "/map.xml": Reply(200, XML, f"<urlset>{entries}</urlset>"),
        "/": links("/3", "/unnamed"),
        "/7": Reply(404),
        "*": links(),
    }
    with SmallSite(routes) as web, Place(tmp_path) as place:
        run = place.start_crawl([web.root], DOWNLOAD_DELAY=0.3)
        eventually(lambda: len(web.pages) >= 4, "some of its pages are loaded", 30)
        run.end()
        assert len(web.pages) < 11
        place.crawl([], DOWNLOAD_DELAY=0.3).succeeded()
        rows = place.rows("select url, date(sitemap_lastmod / 1000, 'unixepoch'), signalled_at from pages")
        named_ones = {f"{web.site}/{one}": f"2026-01-{one + 10}" for one in range(8)}
        others = dict.fromkeys((web.root, f"{web.site}/unnamed", f"{web.site}/map.xml"))
        assert {url: when for url, when, _ in rows} == named_ones | others
        assert {news for _, _, news in rows} == {None}


def test_they_may_be_left_alone(tmp_path: Path) -> None:
    asked, _ = crawled(tmp_path, ROUTES, SITEMAPS="off")
    assert asked == {"/", "/a"}


def test_the_usual_place_may_be_tried(tmp_path: Path) -> None:
    routes = {"/": links(), "/sitemap.xml": Reply(200, XML, urlset("{root}/b")), "/b": links()}
    asked, _ = crawled(tmp_path, routes, SITEMAPS="tried")
    assert asked == {"/", "/sitemap.xml", "/b"}


def test_an_index_is_as_deep_as_its_sitemaps_and_their_pages_are_one_deeper(tmp_path: Path) -> None:
    asked, stored = crawled(tmp_path, ROUTES, MAX_DEPTH=1)
    assert asked == {"/", "/a", "/b", "/map.xml", "/one.xml", "/two.xml", "/three.xml"}
    assert stored == asked


# --- what they tell recheck ---


@pytest.mark.timeout(120)
def test_what_a_sitemap_says_later_reaches_the_tables(tmp_path: Path) -> None:
    """Recheck asks the sitemap again; its news is a signal for the page, and its new page is loaded."""
    when = {"now": "2026-01-01", "more": ""}

    def sitemap(_: int) -> Reply:
        return Reply(200, XML, urlset("/a", when["more"] or "/a", lastmod=when["now"]))

    routes: dict[str, Any] = {
        "/robots.txt": text("Sitemap: /map.xml"),
        "/": links("/a"),
        "/a": links(),
        "/new": links(),
    }
    given = {"RECRAWL_MODE": "freshness", "RECHECK_INTERVAL_SECONDS": 3}
    with SmallSite(routes) as web, Place(tmp_path) as place:
        web.routes["/map.xml"] = sitemap
        run = place.start_crawl([web.root], "--with", "recheck", "--when-idle", "wait", **given)

        def said(query: str) -> object:
            with suppress(sqlite3.Error):  # there are no tables yet
                return next((value for (value,) in place.rows(query)), None)
            return None

        of_a = f"from pages where url = '{web.site}/a'"
        eventually(lambda: said(f"select sha256 {of_a}"), "it is loaded")
        assert said(f"select signalled_at {of_a}") is None
        when.update(now="2100-01-01", more="/new")
        eventually(lambda: said(f"select signalled_at {of_a}"), "news is a signal")
        eventually(lambda: "/new" in web.pages, "the new page is loaded")
        run.end().succeeded()


class Tables:
    """A site of three pages and its sitemap, without agents."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.sequence = 0
        migrate(engine)
        self.put(*(self.page(path, NOW) for path in ("/a", "/b", "/map.xml")))

    def page(self, path: str, at: int, **given: Any) -> Page:
        self.sequence += 1
        return Page(
            site=SITE, path=path, fetched_at=at, status=200, outcome="stored", sha256=f"{at:064x}", size=100,
            agent="h", run="r", seq=self.sequence, **given,
        )  # fmt: skip

    def put(self, *records: Record) -> None:
        with transaction(self.engine) as connection:
            store(connection, [Stored(f"{NOW + self.sequence}-0", one) for one in records])

    def say(self, at: int, **changed: int) -> Page:
        packed = pack_lastmods((hash64(f"{SITE}/{name}"), when) for name, when in changed.items())
        record = self.page("/map.xml", at, lastmods=packed)
        self.put(record)
        return record

    def signalled(self) -> dict[str, int | None]:
        with transaction(self.engine) as connection:
            rows = connection.execute(select(pages.c.url, pages.c.signalled_at)).all()
        return {url.removeprefix(f"{SITE}/"): at for url, at in rows if not url.endswith("xml")}

    def heard(self, at: int) -> dict[str, int]:
        """Signals since each page's last visit, as recheck's next look finds and keeps them."""
        found = believed(self.engine, KEY, "default", None)
        keep(self.engine, KEY, found, at, at)
        numbers = list(found.rows)
        many = found.recrawl.signals(numbers)
        said = {
            found.rows[one].url.removeprefix(f"{SITE}/"): int(n) for one, n in zip(numbers, many, strict=True)
        }
        return {name: n for name, n in said.items() if name != "map.xml"}


def test_lastmods_are_packed() -> None:
    pairs = [(-1, 5), (2**62, NOW)]
    assert unpack_lastmods(pack_lastmods(pairs)) == pairs
    assert unpack_lastmods(pack_lastmods(pairs) + b"odd") == pairs


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_brings_what_its_sitemap_said(kind: str, make_database: MakeDatabase) -> None:
    engine = open_database(make_database(kind))
    try:
        tables = Tables(engine)
        many = [f"/{one}" for one in range(50)]
        tables.put(*(tables.page(path, NOW, sitemap_lastmod=NOW - 500) for path in many))

        def said(path: str) -> tuple[int | None, int | None]:
            with transaction(engine) as connection:
                query = select(pages.c.sitemap_lastmod, pages.c.signalled_at)
                row = connection.execute(query.where(pages.c.url == SITE + path)).one()
            return row[0], row[1]

        assert {said(path) for path in many} == {(NOW - 500, None)}
        tables.put(tables.page("/0", NOW + 10), tables.page("/1", NOW + 10, sitemap_lastmod=NOW - 900))
        assert said("/0") == said("/1") == (NOW - 500, None), "nothing later was said"
        tables.put(tables.page("/2", NOW + 10, sitemap_lastmod=NOW - 100, error="x"))
        assert said("/2") == (NOW - 100, None), "it was loaded by then"
        tables.put(tables.page("/a", NOW + 10, sitemap_lastmod=NOW - 100))
        assert said("/a") == (NOW - 100, None)
        tables.say(NOW + 20, a=NOW - 50)
        assert said("/a") == (NOW - 50, NOW + 20)
    finally:
        engine.dispose()


@pytest.mark.parametrize("kind", KINDS)
def test_a_newer_time_is_a_signal(kind: str, make_database: MakeDatabase) -> None:
    engine = open_database(make_database(kind))
    try:
        tables = Tables(engine)
        assert tables.heard(NOW) == {"a": 0, "b": 0}
        tables.say(NOW + 1000, a=NOW - 5000, b=NOW + 500, c=NOW + 1)
        assert tables.signalled() == {"a": None, "b": NOW + 1000}, "a was loaded after it had changed"
        assert tables.heard(NOW + 1500) == {"a": 0, "b": 1}
        again = tables.say(NOW + 2000, a=NOW - 5000, b=NOW + 500)
        tables.put(again)
        assert tables.signalled() == {"a": None, "b": NOW + 1000}, "nothing new was said"
        tables.say(NOW + 3000, a=NOW - 4000, b=NOW + 400)
        assert tables.signalled() == {"a": NOW + 3000, "b": NOW + 1000}
        assert tables.heard(NOW + 3500) == tables.heard(NOW + 3600) == {"a": 1, "b": 1}
        tables.put(tables.page("/a", NOW + 4000))
        assert tables.heard(NOW + 4500) == {"a": 0, "b": 1}, "a visit has judged it"
    finally:
        engine.dispose()


def test_a_signal_that_came_before_its_visit_is_judged_by_it(make_database: MakeDatabase) -> None:
    engine = open_database(make_database("sqlite"))
    try:
        tables = Tables(engine)
        tables.heard(NOW)
        tables.say(NOW + 10_000, a=NOW + 5_000)
        tables.put(tables.page("/a", NOW + 20_000), tables.page("/b", NOW + 20_000))
        assert tables.heard(NOW + 30_000) == {"a": 0, "b": 0}
        found = believed(engine, KEY, "default", None)
        silent_changes = found.recrawl.view(list(found.rows), 1.0, 1.0).hosts.seen[0, 1]
        assert 1 < silent_changes < 2.01, "b and the sitemap changed unannounced, a did not"
    finally:
        engine.dispose()
