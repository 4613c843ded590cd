"""What is read from a page, as one golden record per page, and part by part what is hard to tell right."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from benchmarks.attributes import measure
from crawler import records
from crawler.agent.page import LoadedPage, media_type
from crawler.content import html, text
from crawler.content.text import kind_of, media_of
from crawler.pipelines.attributes import Attributes
from crawler.pipelines.language import Language
from tests.contracts.test_page_pipelines import SITE, Bench
from tests.costs import STEEP, growth, ratio
from tests.languages import TEXTS
from tests.tools.hostile_pages import ordinary_page

HTML = "text/html; charset=utf-8"
TOLD = ("charset", "language", "title", "description", "robots", "media", "outside_hosts", "mail_domains")


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    asyncio.run(made.agent._client.aclose())


def read(bench: Bench, body: str | bytes, content_type: str = HTML) -> records.Page:
    """The record of a page of SITE after the steps that read it."""
    page = bench.page(body if isinstance(body, bytes) else body.encode(), content_type)
    Attributes().process(page)
    Language.from_crawler(bench.crawler).process(page)
    return page.record


def told(record: records.Page) -> dict[str, Any]:
    """What the record says that is not the default; the bench's own header adds two words to robots."""
    found = {name: getattr(record, name) for name in TOLD}
    found["robots"] = [word for word in record.robots if word not in ("noarchive", "\xff")]
    return {name: value for name, value in found.items() if value}


# --- golden pages -----------------------------------------------------------------------------------------

KOREAN = f"""<html><head><meta http-equiv=Content-Type content="text/html; charset=euc-kr">
<title> 항구  소식 </title><meta name=Description content="똠방각하가 전하는 소식">
<meta name=robots content="NOARCHIVE, index"></head><body><img src=/logo.gif><img src=/logo.gif>
<p>{TEXTS["ko"][4]}<br>문의: webmaster@port.example.co.kr로 보내 주세요.
<a href=mailto:info@Port.example.co.kr?subject=x>편지</a> <a href=/물때.hwp>물때</a>
<a href=ftp://ftp.port.example.co.kr/pub/>자료실</a> <a href=http://www.sea.example.kr/a.zip>바다</a>
<script>var 영어 = "The quick brown fox";</script></body></html>"""
JAPANESE = (
    f"<title>港のお知らせ</title><h1>港</h1><p>{TEXTS['ja'][4]}<embed src=/nami.mp4><audio src=nami.mp3>"
)
GERMAN = f"<html lang=de><title>Fähre fällt aus</title><p>{TEXTS['de'][4]} Größe: 5 m, Preis: 3 €"
CHINESE = f"<title>港口消息</title><p>{TEXTS['zh'][4]}"
TAIWANESE = f"<title>港口消息</title><p>{TEXTS['zh'][8]}"
ENGLISH = (
    f"<html><title>Ferry</title><p>{TEXTS['en'][4]}<a href=/t.pdf>timetable</a><a href=/t.pdf#2>p. 2</a>"
)

KOREAN_RECORD = {
    "charset": "cp949",
    "language": "ko",
    "title": "항구 소식",
    "description": "똠방각하가 전하는 소식",
    "robots": ["index"],
    "media": {"image": 1, "document": 1, "archive": 1},
    "outside_hosts": ["www.sea.example.kr"],
    "mail_domains": ["port.example.co.kr"],
}


@pytest.mark.parametrize(
    ("body", "content_type", "wanted"),
    [
        (KOREAN.encode("cp949"), "text/html", KOREAN_RECORD),
        # EUC-KR has no 똠; where the header says it, CP949 is meant, as browsers read it.
        (KOREAN.encode("cp949"), "text/html; charset=EUC-KR", KOREAN_RECORD),
        (KOREAN.replace("euc-kr", "x").encode("cp949"), "text/html", KOREAN_RECORD),
        (KOREAN.replace("euc-kr", "utf-8").encode(), "text/html", KOREAN_RECORD | {"charset": "utf-8"}),
        (
            JAPANESE.encode("shift_jis"),
            "text/html; charset=Shift_JIS",
            {
                "charset": "cp932",
                "language": "ja",
                "title": "港のお知らせ",
                "media": {"audio": 1, "video": 1},
            },
        ),
        (
            f"<meta charset=euc-jp>{JAPANESE}".encode("euc-jp"),
            "text/html",
            {
                "charset": "euc_jp",
                "language": "ja",
                "title": "港のお知らせ",
                "media": {"audio": 1, "video": 1},
            },
        ),
        (
            CHINESE.encode("gb2312"),
            "text/html; charset=gb2312",
            {"charset": "gb18030", "language": "zh", "title": "港口消息"},
        ),
        (
            TAIWANESE.encode("big5"),
            "text/html; charset=big5",
            {"charset": "big5hkscs", "language": "zh", "title": "港口消息"},
        ),
        (
            GERMAN.encode("cp1252"),
            "text/html; charset=ISO-8859-1",
            {"charset": "cp1252", "language": "de", "title": "Fähre fällt aus"},
        ),
        (
            ENGLISH.encode("utf-16"),
            "text/html",
            {"charset": "utf-16-le", "language": "en", "title": "Ferry", "media": {"document": 1}},
        ),
    ],
)
def test_a_golden_page(bench: Bench, body: bytes, content_type: str, wanted: dict[str, Any]) -> None:
    assert told(read(bench, body, content_type)) == wanted


def test_one_text_has_one_hash_in_any_charset(bench: Bench) -> None:
    pages = [
        KOREAN.encode("cp949"),
        KOREAN.replace("euc-kr", "utf-8").encode(),
        KOREAN.replace("<p>", "<div>\n ").encode("cp949"),
    ]
    hashes = {read(bench, page, "text/html").content_hash for page in pages}
    assert len(hashes) == 1
    assert hashes != {read(bench, ENGLISH).content_hash}


def test_what_is_no_html_says_nothing_but_by_its_header(bench: Bench) -> None:
    record = read(bench, b"%PDF-1.7 <title>x</title> a@b.example", "application/pdf")
    assert record.robots == ["noarchive", "\xff"]
    assert (record.charset, record.content_hash, record.language, record.title) == ("", "", "", "")
    assert (record.media, record.outside_hosts, record.mail_domains) == ({}, [], [])


@pytest.mark.parametrize(
    ("body", "title"),
    [
        ("<body><svg><title>Menu</title></svg><p>x", ""),
        ("<body><svg><g><title>Menu</title></g></svg><title>late</title>", "late"),
        ("<title>page</title><svg><title>Menu</title></svg>", "page"),
        ("<title></title><svg><title>Menu</title></svg>", ""),
    ],
)
def test_the_title_of_an_icon_is_none_of_the_pages(bench: Bench, body: str, title: str) -> None:
    assert read(bench, body).title == title


@pytest.mark.parametrize(
    ("content_type", "kind"),
    [
        ("", ""),
        ("*/*", ""),
        ("html", ""),
        ("application/unknown", ""),
        ("TEXT/HTML; charset=x", "text/html"),
        ("text/html, text/html", "text/html"),
        ("text/html; charset=a, text/html; charset=b", "text/html"),
        ("text/html,*/*", "text/html"),
        ("text/plain, application/xhtml+xml;q=1", "application/xhtml+xml"),
        ("text/html, application/pdf", "application/pdf"),
        ("image/png", "image/png"),
    ],
)
def test_the_kind_that_a_content_type_says(content_type: str, kind: str) -> None:
    assert media_type(content_type) == kind


def test_a_page_without_text_has_neither_hash_nor_language(bench: Bench) -> None:
    record = read(bench, "<html lang=de><title>Bilder</title><img src=a.png><img src=b.png>")
    assert (record.content_hash, record.language) == ("", "")
    assert record.media == {"image": 2}


def test_words_for_robots_are_few_and_short(bench: Bench) -> None:
    many = " ".join(f"w{number}" for number in range(1_000))
    record = read(bench, f"<meta name=robots content='{many} {'x' * 10_000}'>")
    assert len(record.robots) == 20
    assert max(map(len, record.robots)) <= 60
    assert record.robots == sorted(record.robots)


# --- media ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        ("<img src=/a.png><img src=/a.png><img src=/b>", {"image": 2}),
        ("<img><img src=''><img src='data:image/png;base64,x'>", {"image": 3}),
        ("<img src='data:,x' data-src=/a.jpg><a href=/a.jpg>x</a>", {"image": 1}),
        ("<picture><source srcset=/a.webp><img src=/a.jpg></picture>", {"image": 1}),
        ("<video><source src=/a.mp4><source src=/a.webm></video><video src=/a.mp4>", {"video": 1}),
        ("<video></video><video></video><audio></audio>", {"audio": 1, "video": 2}),
        ("<object data=/a.swf></object><embed src=/b type=video/x><embed src=/c>", {"video": 2}),
        ("<object data=/a type=application/pdf></object>", {}),
        ("<a href=/a.PDF>1</a><a href='/a.PDF#page=2'>2</a><a href='/b.pdf?x=1'>3</a>", {"document": 2}),
        (
            "<a href=http://b.example/a.zip>1</a><a href=/a.zip>2</a><a href=/s.exe>3</a>",
            {"archive": 2, "program": 1},
        ),
        ("<a href=/html>1</a><a href=/a.html>2</a><a href=/pdf>3</a><a href='/x?f=a.pdf'>4</a>", {}),
        ("<a href=/a.pdf rel=nofollow>1</a>", {}),
    ],
)
def test_files_by_kind(body: str, kinds: dict[str, int]) -> None:
    root = html.document(body.encode(), HTML)
    assert media_of(root, html.links(root, f"{SITE}/", SITE, 100, 2_083)) == kinds


def test_an_ending_is_the_last_of_the_path() -> None:
    assert kind_of("/a.tar.gz") == "archive"
    assert kind_of("/a.pdf/b") is None
    assert kind_of("/?a.pdf") is None
    assert kind_of("/pdf") is None


# --- whom a page names ------------------------------------------------------------------------------------


def named(body: str) -> tuple[list[str], list[str]]:
    """Mail and FTP domains of a page."""
    from crawler.content.text import visible

    root = html.document(body.encode(), HTML)
    return text.mail_and_ftp(html.written(root).hrefs, visible(root))


@pytest.mark.parametrize(
    ("body", "mail"),
    [
        ("<a href=mailto:a@B.example>x</a> c@b.example", ["b.example"]),
        (
            "<a href=' MailTo:%20A%40b.example,%20c@d.example?cc=e@f.example'>x</a>",
            ["b.example", "d.example"],
        ),
        ("<a href='mailto:&lt;a@b.example&gt;'>x</a>", ["b.example"]),
        ("<a href='mailto:'>x</a><a href='mailto:a@'>x</a><a href='mailto:a@b'>x</a>", []),
        ("<a href='mailto:a@한국.example'>x</a>", ["xn--3e0b707e.example"]),
        ("Write to a.b+c@snu.ac.kr로, or d@e.example.", ["snu.ac.kr", "e.example"]),
        ("@handle, a @ b.example, logo@2x.png, a@b, a@-, @b.example, a@b..example", []),
        ("<a href=http://b.example/@a.example>x</a>", []),
        ("<script>a@b.example</script><!-- a@b.example -->", []),
    ],
)
def test_domains_of_mail_addresses(body: str, mail: list[str]) -> None:
    assert named(body) == (mail, [])


@pytest.mark.parametrize(
    ("href", "ftp"),
    [
        ("ftp://FTP.example.org/pub/", ["ftp.example.org"]),
        ("FTP://user:word@ftp.example.org:2121/x", ["ftp.example.org"]),
        ("ftp://[::1]/x", ["::1"]),
        ("ftp://[::1/x", []),
        ("ftp:x", []),
        ("ftp://a b/", []),
        ("ftps://a.example/", []),
    ],
)
def test_hosts_of_ftp_links(href: str, ftp: list[str]) -> None:
    assert named(f"<a href='{href}'>x</a>") == ([], ftp)


def test_hosts_of_other_sites_in_their_order_once() -> None:
    body = (
        "<a href=http://b.example/1>x</a><a href=https://b.example/2>x</a><a href=http://a.example:81/>x</a>"
        "<a href=http://127.0.0.1:9/own>x</a><a href=/in>x</a><a href=http://[::2]:8/>x</a>"
        "<a href=http://no.example/ rel=nofollow>x</a>"
    )
    found = html.links(html.document(body.encode(), HTML), f"{SITE}/", SITE, 100, 2_083)
    assert text.outside_hosts(found, SITE) == ["b.example", "a.example", "::2"]


def test_names_are_few() -> None:
    body = "".join(
        f"<a href=http://h{number}.example/>x</a><a href=mailto:a@m{number}.example>x</a> a@t{number}.example"
        for number in range(1_000)
    )
    root = html.document(body.encode(), HTML)
    found = html.links(root, f"{SITE}/", SITE, 5_000, 2_083)
    assert text.outside_hosts(found, SITE) == [f"h{number}.example" for number in range(text.MOST_DOMAINS)]
    assert named(body)[0] == [f"m{number}.example" for number in range(text.MOST_DOMAINS)]


# --- what it costs ----------------------------------------------------------------------------------------


def test_the_benchmark_gives_figures_that_can_be_true() -> None:
    figures = measure(rounds=1, seconds=0.0)
    assert set(figures) == {"plain", "full", "Korean"}
    for of_page in figures.values():
        parts = [cost for part, cost in of_page.items() if part.startswith("- ")]
        assert all(cost > 0 for cost in of_page.values())
        assert len(parts) == 5


# --- hostile pages ----------------------------------------------------------------------------------------

# Of each thing in a page, and the size of an ordinary page; the second pair in `make drills`.
SIZES = [(75_000, 1_000_000), pytest.param((300_000, 4_000_000), marks=pytest.mark.drill)]


@cache
def hostile(many: int) -> dict[str, bytes]:
    return {
        "mails": b"<body>" + b"a@b.example " * many,
        "marks": b"<body>" + b"a@" * (4 * many),
        "labels": b"<body>a@" + b"b." * (4 * many),
        "long labels": b"<body>" + (b"a@" + b"b" * 60 + b".") * (many // 10),
        "mail links": b"<body>" + b"<a href=mailto:a@b.example>" * many,
        "one mail link": b"<body><a href='mailto:" + b"a@b.example," * many + b"'>",
        "hosts": b"<body>"
        + b"".join(b"<a href=http://h%d.example/>" % number for number in range(many // 15)),
        "pictures": b"<body>" + b"".join(b"<img src=%d.png>" % number for number in range(many)),
        "inlined pictures": b"<body>"
        + (b"<img src='data:image/png;base64," + b"x" * 50_000 + b"'>") * (many // 2_000),
        "films": b"<body>" + b"<video>" * (many // 10),
        "metas": b"<head>" + b"<meta name=robots content=none>" * many,
        "titles": b"<title>" + b"x " * (4 * many),
    }


# What all that is read but the parsing may take, of the time of the ordinary page.
TIMES_THE_ORDINARY = 12.0


@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: str(sizes[0]))
@pytest.mark.parametrize("name", hostile(1))
def test_a_hostile_page_takes_bounded_time(bench: Bench, name: str, sizes: tuple[int, int]) -> None:
    many, size = sizes

    def read(page: LoadedPage) -> None:
        Attributes().process(page)
        Language.from_crawler(bench.crawler).process(page)

    page, quarter, ordinary = (
        bench.page(body, HTML)
        for body in (hostile(many)[name], hostile(many // 4)[name], ordinary_page(size))
    )
    assert page.document is not None
    assert growth(read, page, quarter) < STEEP
    assert ratio(lambda: read(page), lambda: read(ordinary), TIMES_THE_ORDINARY) < TIMES_THE_ORDINARY
    assert len(records.encode(page.record)) < 20_000
