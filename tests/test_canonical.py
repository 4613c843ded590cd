"""What a page names as canonical: recorded, followed as a link is, and no way for anybody to do harm.

The crawl is one of the farm's kind `canonical`: its truth says which names count and where they lead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from crawler.content import html
from crawler.content.charset import encoding_of
from tests.costs import STEEP, growth
from tests.crawling import Place
from tests.farm import Farm

SITE = "https://example.org"
PAGE = f"{SITE}/dir/page?b=1"
LENGTH = 2083


def named(head: str = "", header: str = "", url: str = PAGE, body: str = "<p>x") -> str:
    text = f"<html><head>{head}</head><body>{body}".encode()
    return html.named_canonical(html.document(text, "text/html"), header, url, LENGTH)


# --- What is named ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "canonical"),
    [
        ("", ""),
        ("<link rel=canonical href=/a>", f"{SITE}/a"),
        ("<link rel=canonical href=a>", f"{SITE}/dir/a"),
        ("<base href=/other/><link rel=canonical href=a>", f"{SITE}/other/a"),
        ("<LINK REL='Alternate CANONICAL' HREF=' HTTPS://Example.org:443/a?c&amp;b#x '>", f"{SITE}/a?c&b"),
        ("<link rel=canonical href=//other.example/x>", "https://other.example/x"),
        ("<link rel=canonical href=http://example.org/dir/page?b=1>", "http://example.org/dir/page?b=1"),
        # Its own, however it is written.
        ("<link rel=canonical href='?b=1#top'>", ""),
        ("<link rel=canonical href>", ""),
        # The first one that leads anywhere.
        (
            "<link rel=canonical href=javascript:x><link rel=canonical href=/a><link rel=canonical href=/b>",
            f"{SITE}/a",
        ),
        ("<link rel=canonical href='http://a b/'><link rel=canonical href=/a>", f"{SITE}/a"),
        (f"<link rel=canonical href=/{'a' * LENGTH}><link rel=canonical href=/a>", f"{SITE}/a"),
        ("<link rel=canonical href='#'><link rel=canonical href=/a>", f"{SITE}/a"),
        ("<link rel=canonical href='?b=1'><link rel=canonical href=/a>", ""),
        ("<link rel=canonical><link rel=canonical href=/a>", f"{SITE}/a"),
        # Other links of the head.
        ("<link rel=stylesheet href=/a><link rel=shortlink href=/b><link href=/c>", ""),
        ("<link rel=canonicals href=/a><link rel=non-canonical href=/a>", ""),
        ("<meta name=robots content=nofollow><link rel=canonical href=/a>", f"{SITE}/a"),
    ],
)
def test_what_a_head_names(head: str, canonical: str) -> None:
    assert named(head) == canonical


def test_a_name_outside_the_head_does_not_count() -> None:
    """There a visitor's comment could stand."""
    assert named(body="<p><link rel=canonical href=/a>") == ""
    assert named(body="<svg><head><link rel=canonical href=/a></head></svg>") == ""


@pytest.mark.parametrize(
    ("header", "canonical"),
    [
        ("</a>; rel=canonical", f"{SITE}/a"),
        ('<a> ; REL="Canonical"', f"{SITE}/dir/a"),
        ('</x,y;z>; rel=preload; title="a, <b>; rel=canonical", </a>; rel="next canonical"', f"{SITE}/a"),
        ("</caf\xc3\xa9>; rel=canonical", f"{SITE}/caf%C3%A9"),
        ("<javascript:x>; rel=canonical,,</a>;rel=canonical", f"{SITE}/a"),
        ("<https://other.example/>; rel=canonical", "https://other.example/"),
        ("<?b=1>; rel=canonical", ""),
        ("</a>; rel=preload; rel=canonical", ""),
        ("</a>; rel=canonical; anchor=/b", ""),
        ("</a>; title=canonical", ""),
        ("/a; rel=canonical", ""),
        ("</a; rel=canonical", ""),
        ('</a>; title="; rel=canonical', ""),
    ],
)
def test_what_a_header_names(header: str, canonical: str) -> None:
    assert named(header=header) == canonical
    assert html.named_canonical(None, header, PAGE, LENGTH) == canonical


def test_the_head_goes_before_the_header() -> None:
    assert named("<link rel=canonical href=/head>", "</header>; rel=canonical") == f"{SITE}/head"
    assert named("<link rel=canonical href=tel:1>", "</header>; rel=canonical") == f"{SITE}/header"
    assert named("<base href=/other/>", "<a>; rel=canonical") == f"{SITE}/dir/a"


def test_a_query_is_escaped_in_the_encoding_of_its_page() -> None:
    body = "<head><meta charset=euc-kr><link rel=canonical href='/?q=\ud55c'>".encode("cp949")
    root = html.document(body, "text/html")
    found = html.named_canonical(root, "", PAGE, LENGTH, lambda: encoding_of(body, "text/html"))
    assert found == f"{SITE}/?q=%C7%D1"


@pytest.mark.parametrize("url", [f"{SITE}/", f"{SITE}/a/b?c=d", "http://[::1]:8080/x", "http://a/"])
def test_a_canonical_url_falls_into_site_and_path(url: str) -> None:
    site, path = html.parts(url)
    assert site + path == url
    assert path.startswith("/")
    assert site.count("/") == 2


# --- Nonsense and malice ----------------------------------------------------------------------------------

_PIECES = some.sampled_from(
    [
        "<",
        ">",
        '"',
        "\\",
        ",",
        ";",
        "=",
        " ",
        "rel",
        "canonical",
        "anchor",
        "/a",
        "href",
        "javascript:",
        "//[",
        "\x00",
    ]
)


@given(some.lists(_PIECES, max_size=20).map("".join))
@settings(max_examples=300, deadline=None)
def test_no_text_does_harm(text: str) -> None:
    for head in (
        text,
        f"<link rel=canonical href={text}>",
        f"<base href='{text}'><link rel=canonical href=a>",
    ):
        found = named(head, f"canonical {text}")
        assert not found or "".join(html.parts(found)) == found
        assert len(found) <= LENGTH


def test_of_many_names_that_lead_nowhere_only_the_first_are_looked_at() -> None:
    nowhere = "<link rel=canonical href=javascript:x>"
    whole, quarter = (
        html.document(f"<html><head>{nowhere * many}<link rel=canonical href=/a>".encode(), "text/html")
        for many in (100_000, 25_000)
    )

    def look(root: Any) -> None:
        assert html.named_canonical(root, "", PAGE, LENGTH) == ""

    assert growth(look, whole, quarter) < STEEP


@pytest.mark.parametrize(
    "header",
    [
        "canonical" + " " * 200_000,
        "canonical" + "<" * 200_000,
        "canonical" + "<>" * 100_000,
        "canonical" + '<>"' * 70_001,
        "canonical" + "<>;" * 70_000,
        "canonical<>" + ";rel" * 50_000,
        'canonical<>;rel="' + "\\" * 200_001,
        "</a>;rel=x," * 20_000 + "canonical",
    ],
)
def test_a_bomb_is_read_soon(header: str) -> None:
    def read(header: str) -> None:
        assert html.named_canonical(None, header, PAGE, LENGTH) == ""

    assert growth(read, header, header[: len(header) // 4]) < STEEP


# --- A crawl ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def crawled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Farm, Place]]:
    """Three sites with pages that name others, crawled without leaving the seeds' own sites."""
    with (
        Farm(sites=3, pages=4, kinds=("canonical",), names=()) as farm,
        Place(tmp_path_factory.mktemp("x")) as place,
    ):
        place.crawl(farm.seeds[:2]).succeeded()
        yield farm, place


def test_what_is_named_is_found_and_what_names_it_is_kept(crawled: tuple[Farm, Place]) -> None:
    farm, place = crawled
    expected = farm.expected(seeds=farm.seeds[:2])
    assert place.stored() == expected
    for site, urls in expected.items():
        assert {f"{site}/canonical/{name}.html" for name in ("print", "article", "meant", "paper")} <= urls
    assert farm.forbidden_hits() == []


def test_the_column_tells_the_name_or_nothing(crawled: tuple[Farm, Place]) -> None:
    farm, place = crawled

    def wanted(url: str) -> str | None:
        named = [link.target for link in farm.declared[url].resource.links if link.rel == "canonical"]
        return named[0] if named and named[0] != url else None

    rows = dict(place.rows("select url, canonical from pages"))
    assert rows == {url: wanted(url) for url in rows}
    # The farm's truth has all of them: another site's, one beside nofollow, one that is the page's own.
    assert rows[f"{farm.site(0)}/canonical/claim.html"] == f"{farm.site(1)}/"
    assert rows[f"{farm.site(0)}/canonical/closed.html"] == f"{farm.site(0)}/hidden/four.html"
    assert rows[f"{farm.site(0)}/canonical/scan.pdf"] == f"{farm.site(0)}/canonical/paper.html"
    assert rows[f"{farm.site(0)}/canonical/itself.html"] is None


def test_a_name_is_no_out_link(crawled: tuple[Farm, Place]) -> None:
    _, place = crawled
    assert place.rows("select url from pages where url like '%/canonical/%' and links is not null") == []


def test_a_claim_leads_to_another_site_where_the_scope_has_it(place: Place) -> None:
    """Of two sites that do not link to each other otherwise; the claim alone leads there."""
    with Farm(sites=2, pages=1, links=2, kinds=("canonical",), names=()) as farm:
        place.crawl(farm.seeds[:1], SCOPE="any").succeeded()
        assert place.stored() == farm.expected("any", seeds=farm.seeds[:1])
        assert set(place.stored()) == {farm.site(0), farm.site(1)}
