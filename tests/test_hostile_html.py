"""Pages made to hold a crawler up: what each costs is bounded, and what was left out is told."""

from __future__ import annotations

import time
from functools import cache

import pytest

from crawler.content import charset, html, text
from crawler.content.keywords import headings, keywords
from crawler.content.text import mail_and_ftp, media_of
from settings.base import MAX_HTML_BYTES, MAX_LINKS_PER_PAGE
from tests.crawling import Place
from tests.servers import RunningServer
from tests.small_site import Reply, SmallSite
from tests.told import told_pages
from tests.tools.hostile_pages import hostile_pages, ordinary_page

SITE = "http://example.org"
HTML = "text/html"
# What a hostile page may take: of the time of an ordinary one of its size, and of that of its own first quarter (4: in
# proportion; 16: it grows with the square).
TIMES_THE_ORDINARY = 8.0
STEEP = 9.0
SIZE = 1_000_000
DRILL_SIZE = 4_000_000
PAGES = hostile_pages(SIZE)
large_pages = cache(hostile_pages)


def seconds(body: bytes) -> float:
    """Of this process's processor time, for parsing and all that is read of a page."""
    start = time.process_time()
    root = html.parsed(body, lambda: charset.encoding_of(body, HTML), MAX_HTML_BYTES).root
    found = html.links(root, f"{SITE}/a/b", SITE, MAX_LINKS_PER_PAGE, 2_083)
    assert len(found.inside) <= MAX_LINKS_PER_PAGE + 1
    html.robots_directives(root, "")
    html.named_canonical(root, "", f"{SITE}/a", 2_083)
    seen = text.visible(root)
    text.content_hash(seen)
    if root is not None:
        media_of(root, found)
        mail_and_ftp(html.written(root).hrefs, seen)
        keywords("", headings(root), text.collapsed(seen), "", 10)
    return time.process_time() - start


@cache
def ordinary(size: int) -> float:
    """What a page of this size takes that means no harm."""
    body = ordinary_page(size)
    return min(seconds(body) for _ in range(3))


@pytest.mark.parametrize("name", PAGES)
def test_a_hostile_page_costs_a_few_times_what_others_do(name: str) -> None:
    """However large it is: in proportion to its size, with no step that grows faster."""
    check_costs(PAGES[name], ordinary(SIZE))


@pytest.mark.drill
@pytest.mark.parametrize("name", PAGES)
def test_a_large_hostile_page_costs_a_few_times_what_others_do(name: str) -> None:
    check_costs(large_pages(DRILL_SIZE)[name], ordinary(DRILL_SIZE))


def check_costs(body: bytes, usual: float) -> None:
    whole = min(seconds(body) for _ in range(2))
    assert whole < TIMES_THE_ORDINARY * usual
    assert whole < max(STEEP * seconds(body[: len(body) // 4]), usual)


@pytest.mark.parametrize(
    ("body", "most", "inside", "left_out"),
    [
        (b"<a href=/1>", 100, ["/1"], ""),
        (b"<a href=/1>" + b" " * 89, 100, ["/1"], ""),
        (
            b"<a href=/1>" + b" " * 90 + b"<a href=/2>",
            100,
            ["/1"],
            "parsed the first 100 of 112 bytes (MAX_HTML_BYTES)",
        ),
        (
            b"<a href=/1>x</a><a " + b"".join(b"a%d=1 " % n for n in range(12_000)) + b"><a href=/2>",
            10**7,
            ["/1"],
            "parsed the first 16 bytes: too many attributes",
        ),
        (
            b"<a href=/1>x</a>" + b"<div>" * 300 + b"<a href=/2>x</a>",
            10**4,
            ["/1"],
            "parsed to depth 256: elements are nested deeper",
        ),
        (b"<a href=/1>x</a>" + b"<p>" * 300 + b"<a href=/2>x</a>", 10**4, ["/1", "/2"], ""),
        (
            b"<a href=/1>x</a>" + b"<br>" * 750_000 + b"<a href=/2>x</a>",
            10**7,
            ["/1"],
            "parsed the first 2,998,272 bytes: too many tags",
        ),
        (
            b"<a href=/1>x</a>" + b"<b a b c d e f g h i j>" * 100_000 + b"<a href=/2>x</a>",
            10**7,
            ["/1"],
            "parsed the first 2,299,993 bytes: too many attributes",
        ),
        (
            b"<a href=/1>x</a>" + b"x" * 11_000_000 + b"<a href=/2>x</a>",
            10**8,
            ["/1"],
            "parsed up to a text or attribute value above 10 MB",
        ),
        (b"<a href=/1>x</a>" + b"a = b / c " * 400_000 + b"<a href=/2>x</a>", 10**7, ["/1", "/2"], ""),
    ],
    ids=["whole", "as long", "longer", "attributes", "deep", "flat", "tags", "crowded", "one text", "prose"],
)
def test_what_was_left_out_is_told(body: bytes, most: int, inside: list[str], left_out: str) -> None:
    page = html.parsed(body, lambda: "utf-8", most)
    assert page.left_out == left_out
    assert html.links(page.root, f"{SITE}/", SITE, 100, 2_083).inside == inside


def test_the_record_tells_what_was_left_out(place: Place, valkey: RunningServer) -> None:
    """The page is stored, with the checksum of all its bytes."""
    body = "<title>long</title><a href=/1>x</a>" + " " * 2_000 + "<a href=/2>x</a>"
    page = Reply(200, {"Content-Type": HTML}, body)
    with SmallSite({"/": page, "/1": Reply(200, {"Content-Type": HTML}, "<p>short")}) as site:
        place.crawl([site.root], REDIS_URL=valkey.url, MAX_HTML_BYTES=1_000).succeeded()
    assert site.pages == {"/": 1, "/1": 1}
    told = {page.path: page for page in told_pages(valkey)}
    assert told["/"].error == f"parsed the first 1,000 of {len(body):,} bytes (MAX_HTML_BYTES)"
    assert (told["/"].outcome, told["/"].title, told["/"].size) == ("stored", "long", len(body))
    assert told["/1"].error == ""
