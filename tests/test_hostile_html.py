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
# Seconds of this process for parsing and all that is read of a page; the slowest takes half of it on a slow machine.
PATIENCE = 1.5
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
    "pictures": b"".join(b"<img src=/%d.png>" % number for number in range(200_000)),
    "addresses": repeated(b"a@b.c "),
    "zeros": repeated(b"\0"),
    "UTF-16": b"\xff\xfe" + repeated("<a>".encode("utf-16-le")),
    "ISO-2022-JP": b"<meta charset=iso-2022-jp>" + repeated(b"\x1b$B$\x22\x1b(B"),
    "HZ": b"<meta charset=hz>" + repeated(b"~{<:Ky~}"),
    "in no encoding": repeated(b"\xa4\xff\x81 "),
}


@pytest.mark.parametrize("name", BIG)
def test_a_hostile_page_costs_a_bounded_time(name: str) -> None:
    body = BIG[name]
    start = time.process_time()
    root = links.parsed(body, lambda: charset.encoding_of(body[:MAX_HTML_BYTES], HTML), MAX_HTML_BYTES).root
    found = links.links(root, f"{SITE}/a/b", SITE, MAX_LINKS_PER_PAGE, 2_083)
    assert len(found.inside) <= MAX_LINKS_PER_PAGE
    links.robots_directives(root, "")
    links.named_canonical(root, "", f"{SITE}/a", 2_083)
    seen = text.visible(root)
    text.content_hash(seen)
    if root is not None:
        media(root, found)
        mail_and_ftp(links.hrefs(root, MAX_LINKS_PER_PAGE), seen)
        keywords("", headings(root), text.collapsed(seen), "", 10)
    assert time.process_time() - start < PATIENCE


@pytest.mark.parametrize(
    ("body", "most", "inside", "left_out"),
    [
        (b"<a href=/1>", 100, ["/1"], ""),
        (b"<a href=/1>" + b" " * 89, 100, ["/1"], ""),
        (b"<a href=/1>" + b" " * 90 + b"<a href=/2>", 100, ["/1"], "parsed as far as 100 of 112 bytes"),
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
    ],
    ids=["whole", "as long", "longer", "attributes", "deep", "flat"],
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
    assert told["/"].error == f"parsed as far as 1,000 of {len(body):,} bytes"
    assert (told["/"].outcome, told["/"].title, told["/"].size) == ("stored", "long", len(body))
    assert told["/1"].error == ""
