"""Pages made to hold a crawler up: what each costs is bounded, and what was left out is told."""

from __future__ import annotations

import time

import pytest

from crawler.agent import charset, links, text
from crawler.agent.domains import mail_and_ftp
from crawler.agent.keywords import headings, keywords
from crawler.agent.media import media
from settings.base import MAX_HTML_BYTES, MAX_LINKS_PER_PAGE
from tests.crawling import Place
from tests.servers import RunningServer
from tests.small_site import Reply, SmallSite
from tests.told import told_pages

SITE = "http://example.org"
HTML = "text/html"
# What a hostile page may take: of the time of an ordinary one of its size, and of that of its own first quarter (4: in
# proportion; 16: it grows with the square).
TIMES_THE_ORDINARY = 8.0
STEEP = 9.0
SIZE = 4_000_000


def repeated(piece: bytes) -> bytes:
    return piece * (SIZE // len(piece))


def tags(attributes: int, piece: bytes = b"a%d=1 ") -> bytes:
    """Many tags of so many attributes."""
    tag = b"<a " + b"".join(piece % number for number in range(attributes)) + b">"
    return repeated(tag)


BIG = {
    "100,000 attributes": b"<a href=/x " + b"".join(b"a%d=1 " % number for number in range(100_000)) + b">",
    "attributes by the thousand": tags(4_900),
    "attributes by the hundred": tags(150),
    "attributes below the least that counts": tags(240, b"%d "),
    "attributes of a page below the least that counts": tags(13_000)[:65_000],
    "attributes of the root": b"".join(b"<html a%d=1>" % number for number in range(300_000)),
    "200,000 links": b"".join(b"<a href=/p%d>x</a>" % number for number in range(200_000)),
    "links with queries": b"".join(
        b"<a href='?b=%d&a=1&%d'>" % (number, number) for number in range(200_000)
    ),
    "links in Korean": "".join(f"<a href='/한글{number}?q=한글'>" for number in range(100_000)).encode(),
    "blanks in a tag": b"<a" + repeated(b" ") + b">",
    "slashes in a tag": b"<a" + repeated(b"/") + b">",
    "line ends in a tag that is left open": b"<a" + repeated(b"\n"),
    "equals signs in a tag": b"<a " + repeated(b"= "),
    "names without values": b"<a " + repeated(b"x= "),
    "quotes left open": repeated(b"<a href='x>"),
    "one quote left open": b'<a href="' + repeated(b"x"),
    "quotes of both kinds": repeated(b"<a b=\"'><a b='\">"),
    "open anchors": repeated(b"<a "),
    "closed anchors": repeated(b"<a>"),
    "deep": repeated(b"<div>"),
    "deep and closed": b"<b>" * 250 + repeated(b"<a></i>"),
    "deep and told": b"<b>" * 250 + repeated(b"x<br>"),
    "paragraphs": repeated(b"<b><i><u><p>"),
    "tables": repeated(b"<table><tr><td>"),
    "comments": repeated(b"<!--"),
    "references": repeated(b"&#65;"),
    "metas": repeated(b"<meta name=robots content=x,y>"),
    "canonicals": b"<head>" + repeated(b"<link rel=canonical href='javascript:x'>"),
    "bases": repeated(b"<base href=a/>"),
    "a long base": b"<base href='/"
    + b"a/" * 50_000
    + b"'>"
    + b"".join(b"<a href=%d>" % number for number in range(SIZE // 28)),
    "a base of slashes": b"<base href=//>" + b"".join(b"<a href=%d>" % number for number in range(200_000)),
    "a base that is long enough": b"<base href='/"
    + b"a/" * 1_000
    + b"'>"
    + b"".join(b"<a href=../%d>" % number for number in range(200_000)),
    "foreign hosts": "".join(f"<a href=http://é{number}ü.example/>" for number in range(100_000)).encode(),
    "long foreign hosts": "".join(
        f"<a href=//{'éü' * 25}{number}.{'é' * 50}/>" for number in range(15_000)
    ).encode(),
    "addresses in IPv6": b"".join(b"<a href=http://[::%x]/>" % number for number in range(150_000)),
    "links by fragment": b"".join(b"<a href=x#%d>" % number for number in range(200_000)),
    "links by script": b"".join(b"<a href=javascript:%d>" % number for number in range(150_000)),
    "escapes": b"".join(b"<a href=/%d%s>" % (number, b"%7e" * 500) for number in range(2_600)),
    "percent signs": b"".join(b"<a href=/%d%s>" % (number, b"%" * 1_500) for number in range(2_600)),
    "backslashes": b"".join(rb"<a href=\\h\%d>" % number for number in range(200_000)),
    "dots": b"".join(b"<a href=/%d%s>" % (number, b"/.." * 600) for number in range(2_200)),
    "long links": b"".join(b"<a href='/%d%s'>" % (number, b"~ " * 900) for number in range(2_200)),
    "iframes": b"".join(b"<iframe src=/%d></iframe>" % number for number in range(150_000)),
    "scripts": b"<body>" + repeated(b"x<script>y</script>"),
    "selects": repeated(b"<select><option>"),
    "templates": repeated(b"<template></template>"),
    "icons": repeated(b"<svg><title>x</title></svg>"),
    "CDATA": repeated(b"<![CDATA["),
    "only &": repeated(b"&"),
    "only <": repeated(b"<"),
    "one text": b"<body>" + repeated(b"1 "),
    "pictures": b"".join(b"<img src=/%d.png>" % number for number in range(200_000)),
    "addresses": repeated(b"a@b.c "),
    "zeros": repeated(b"\0"),
    "UTF-16": b"\xff\xfe" + repeated("<a>".encode("utf-16-le")),
    "ISO-2022-JP": b"<meta charset=iso-2022-jp>" + repeated(b"\x1b$B$\x22\x1b(B"),
    "HZ": b"<meta charset=hz>" + repeated(b"~{<:Ky~}"),
    "in no encoding": repeated(b"\xa4\xff\x81 "),
}


def seconds(body: bytes) -> float:
    """Of this process's processor time, for parsing and all that is read of a page."""
    start = time.process_time()
    root = links.parsed(body, lambda: charset.encoding_of(body, HTML), MAX_HTML_BYTES).root
    found = links.links(root, f"{SITE}/a/b", SITE, MAX_LINKS_PER_PAGE, 2_083)
    assert len(found.inside) <= MAX_LINKS_PER_PAGE + 1
    links.robots_directives(root, "")
    links.named_canonical(root, "", f"{SITE}/a", 2_083)
    seen = text.visible(root)
    text.content_hash(seen)
    if root is not None:
        media(root, found)
        mail_and_ftp(links.written(root).hrefs, seen)
        keywords("", headings(root), text.collapsed(seen), "", 10)
    return time.process_time() - start


@pytest.fixture(scope="module")
def ordinary() -> float:
    """What a page of the same size takes that means no harm."""
    paragraph = "<p class=x>Words of a <a href=/page/{0}?a=1>page {0}</a> that <b>mean</b> something.</p>\n"
    pieces = (paragraph.format(number) for number in range(SIZE // len(paragraph)))
    body = "".join(pieces).encode()
    return min(seconds(body) for _ in range(3))


@pytest.mark.parametrize("name", BIG)
def test_a_hostile_page_costs_a_few_times_what_others_do(name: str, ordinary: float) -> None:
    """However large it is: in proportion to its size, with no step that grows faster."""
    body = BIG[name]
    whole = min(seconds(body) for _ in range(2))
    assert whole < TIMES_THE_ORDINARY * ordinary
    assert whole < max(STEEP * seconds(body[: len(body) // 4]), ordinary)


@pytest.mark.parametrize(
    ("body", "most", "inside", "left_out"),
    [
        (b"<a href=/1>", 100, ["/1"], ""),
        (b"<a href=/1>" + b" " * 89, 100, ["/1"], ""),
        (
            b"<a href=/1>" + b" " * 90 + b"<a href=/2>",
            100,
            ["/1"],
            "parsed as far as 100 of 112 bytes (MAX_HTML_BYTES)",
        ),
        (
            b"<a href=/1>x</a><a " + tags(6_000) + b"><a href=/2>",
            10**7,
            ["/1"],
            "parsed as far as its attributes are not too many: 16 bytes",
        ),
        (
            b"<a href=/1>x</a>" + b"<div>" * 300 + b"<a href=/2>x</a>",
            10**4,
            ["/1"],
            "parsed as far as its elements are 256 deep",
        ),
        (b"<a href=/1>x</a>" + b"<p>" * 300 + b"<a href=/2>x</a>", 10**4, ["/1", "/2"], ""),
        (
            b"<a href=/1>x</a>" + b"<br>" * 750_000 + b"<a href=/2>x</a>",
            10**7,
            ["/1"],
            "parsed as far as its tags are not too many: 2,998,272 bytes",
        ),
        (
            b"<a href=/1>x</a>" + b"<b a b c d e f g h i j>" * 100_000 + b"<a href=/2>x</a>",
            10**7,
            ["/1"],
            "parsed as far as its attributes are not too many: 2,299,993 bytes",
        ),
        (
            b"<a href=/1>x</a>" + b"x" * 11_000_000 + b"<a href=/2>x</a>",
            10**8,
            ["/1"],
            "parsed as far as a text or a value of 10 MB",
        ),
        (b"<a href=/1>x</a>" + b"a = b / c " * 400_000 + b"<a href=/2>x</a>", 10**7, ["/1", "/2"], ""),
    ],
    ids=["whole", "as long", "longer", "attributes", "deep", "flat", "tags", "crowded", "one text", "prose"],
)
def test_what_was_left_out_is_told(body: bytes, most: int, inside: list[str], left_out: str) -> None:
    page = links.parsed(body, lambda: "utf-8", most)
    assert page.left_out == left_out
    assert links.links(page.root, f"{SITE}/", SITE, 100, 2_083).inside == inside


def test_the_record_tells_what_was_left_out(place: Place, valkey: RunningServer) -> None:
    """The page is stored, with the checksum of all its bytes."""
    body = "<title>long</title><a href=/1>x</a>" + " " * 2_000 + "<a href=/2>x</a>"
    page = Reply(200, {"Content-Type": HTML}, body)
    with SmallSite({"/": page, "/1": Reply(200, {"Content-Type": HTML}, "<p>short")}) as site:
        place.crawl([site.root], REDIS_URL=valkey.url, MAX_HTML_BYTES=1_000).succeeded()
    assert site.pages == {"/": 1, "/1": 1}
    told = {page.path: page for page in told_pages(valkey)}
    assert told["/"].error == f"parsed as far as 1,000 of {len(body):,} bytes (MAX_HTML_BYTES)"
    assert (told["/"].outcome, told["/"].title, told["/"].size) == ("stored", "long", len(body))
    assert told["/1"].error == ""
