"""Links of real pages: the same set that Scrapy's LinkExtractor and w3lib find, whatever way they are found by.

The pages are skeletons of real ones (tests/pages), and pages made up of pieces of their links. Where ours is meant to
differ from Scrapy's, the difference is a function or a test below, by name and with its reason.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as some
from scrapy.http import HtmlResponse
from scrapy.linkextractors import LinkExtractor
from w3lib.html import strip_html5_whitespace

from crawler.content import html
from crawler.content.charset import encoding_of
from crawler.urls.url import resolve, split_page

PAGES = sorted((Path(__file__).parent / "pages").glob("*.html"))
# Beyond what any link of these pages has: the limits have tests of their own (tests/test_links.py).
MOST, LENGTH = 10_000, 100_000
HTML = "text/html"


# --- The two ways -----------------------------------------------------------------------------------------


def ours(body: bytes, url: str) -> set[str]:
    """The pages that a page leads to for our agent, by three ways that must agree: anew, remembered, the long one."""
    site = split_page(url)[0]
    html._remembered.cache_clear()
    root = html.document(body, HTML)

    def found() -> html.Links:
        return html.links(root, url, site, MOST, LENGTH, lambda: encoding_of(body, HTML))

    first = found()
    assert found() == first
    assert long_way(root, body, url, site) == first
    elsewhere = (*first.outside.items(), *first.framed.items())
    every = [site + path for path in first.inside] + [
        other + path for other, paths in elsewhere for path in paths
    ]
    assert all("".join(resolve(one)) == one for one in every)
    return {"".join(split_page(one)) for one in every}


def long_way(root: object, body: bytes, url: str, site: str) -> html.Links:
    """The same as `links.links` does, every link by `resolve`."""
    inside: dict[str, None] = {}
    outside: dict[str, dict[str, None]] = {}
    framed: dict[str, dict[str, None]] = {}

    def encoding() -> str:
        return encoding_of(body, HTML)

    for hrefs, elsewhere in zip(html.written(root), (outside, framed), strict=True):
        for href in hrefs:
            base = html._place_of(html._base(root, url, encoding))
            place = html._resolved(base, href, LENGTH, encoding)
            if place and place[0] == site:
                inside[place[1]] = None
            elif place:
                elsewhere.setdefault(place[0], {})[place[1]] = None
    return html.Links(
        list(inside), *({site: list(paths) for site, paths in each.items()} for each in (outside, framed))
    )


def scrapys(body: bytes, url: str) -> set[str]:
    """What Scrapy finds on the same page, spelt by w3lib, but for the differences that are meant."""
    response = HtmlResponse(url, body=body, headers={"Content-Type": HTML})
    without_places_on_the_page(response)
    with_slashes_as_browsers_read_them(response)
    frames = {"tags": ("a", "area", "frame", "iframe"), "attrs": ("href", "src")}
    extractor = LinkExtractor(canonicalize=True, unique=False, deny_extensions=[], **frames)
    # rel=nofollow is obeyed.
    found = {link.url for link in extractor.extract_links(response) if not link.nofollow}
    return {spelt for url in found if (spelt := as_sites_are_spelt(url))}


# --- The differences that are meant -----------------------------------------------------------------------


def without_places_on_the_page(response: HtmlResponse) -> None:
    """`#part` is no link: a page needs not be told that it is itself."""
    for element in response.selector.root.iter("a", "area"):
        if strip_html5_whitespace(element.get("href", "")).startswith("#"):
            del element.attrib["href"]


def with_slashes_as_browsers_read_them(response: HtmlResponse) -> None:
    """Of any number behind a scheme, forward or back, the host begins there; urljoin makes a path of them."""
    for element in response.selector.root.iter("a", "area"):
        href = strip_html5_whitespace(element.get("href", ""))
        if re.match(r"(https?:)?[/\\]{2}", href, re.IGNORECASE):
            element.set("href", re.sub(r"^([^/\\]*)[/\\]+", r"\1//", href).replace("\\", "/"))
        if re.fullmatch(r"(https?:)?[/\\]*", href, re.IGNORECASE) and len(href) > 1:
            del element.attrib["href"]  # no host at all; urljoin stays where it is


def as_sites_are_spelt(url: str) -> str | None:
    """One spelling per site: no user, no default port, no dot at the end. None: nothing that HTTP could ask for."""
    parts = urlsplit(url)
    host = (parts.hostname or "").removesuffix(".")
    if parts.scheme not in ("http", "https") or not can_exist(host):
        return None
    try:
        port = parts.port
    except ValueError:
        return None
    host = f"[{host}]" if ":" in host else host
    place = f":{port}" if port not in (None, 80 if parts.scheme == "http" else 443) else ""
    return f"{parts.scheme}://{host}{place}{parts.path or '/'}{parts.query and '?' + parts.query}"


def can_exist(host: str) -> bool:
    """An address, or a name that DNS can hold; w3lib takes `a b` and `a..b`, too."""
    labels = host.split(".")
    return ":" in host or (len(host) <= 253 and all(re.fullmatch("[a-z0-9_-]{1,63}", one) for one in labels))


def test_hosts_are_spelt_by_idna_2008() -> None:
    """As browsers do; w3lib has Python's codec, by which stra\u00dfe.de is another's strasse.de."""
    assert split_page("http://stra\u00dfe.de/")[0] == "http://xn--strae-oqa.de"


def test_a_base_counts_wherever_it_stands() -> None:
    """Scrapy looks at the first 4,096 characters."""
    body = b"<title>" + b"x" * 5000 + b"</title><base href=/b/><a href=a>x</a>"
    assert ours(body, "http://a.example/") == {"http://a.example/b/a"}
    assert scrapys(body, "http://a.example/") == {"http://a.example/a"}


def test_links_are_joined_as_browsers_do() -> None:
    """Scrapy joins by urljoin."""
    body = b"<a href='a//b'><a href='x;'><a href='\\\\y'><a href='/\\\\c.example/z'><a href='?'>"
    assert ours(body, "http://a.example/d/e?f") - scrapys(body, "http://a.example/d/e?f") == {
        *("http://a.example/d/a//b", "http://a.example/d/e"),
    }


def test_a_base_that_is_no_url_does_not_count() -> None:
    """Scrapy gives such a page up."""
    assert ours(b"<base href='//['><a href=a>x</a>", "http://a.example/") == {"http://a.example/a"}
    with pytest.raises(ValueError, match="IPv6"):
        scrapys(b"<base href='//['><a href=a>x</a>", "http://a.example/")


def test_a_query_is_escaped_in_the_encoding_of_its_page_else_as_utf_8() -> None:
    """Scrapy drops a link whose query the page's encoding cannot write."""
    body = '<meta charset=euc-kr><a href="/?q=\ud55c\uac15">x</a><a href="/\ud55c?q=\u00e9">x</a>'.encode(
        "cp949", "xmlcharrefreplace"
    )
    assert ours(body, "http://a.example/") - scrapys(body, "http://a.example/") == {
        "http://a.example/%ED%95%9C?q=%C3%A9"
    }
    assert scrapys(body, "http://a.example/") == {"http://a.example/?q=%C7%D1%B0%AD"}


# --- Real pages -------------------------------------------------------------------------------------------


def url_of(page: Path) -> str:
    """The URL that the page was saved from: its first line."""
    return page.read_bytes().partition(b"-->")[0].removeprefix(b"<!--").decode().strip()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_real_page_has_the_links_that_scrapy_finds(page: Path) -> None:
    body, url = page.read_bytes(), url_of(page)
    found = ours(body, url)
    assert len(found) > 3
    assert found == scrapys(body, url)


def test_the_pages_are_many_and_ugly() -> None:
    """What the set must not lose: a page or an oddity that is dropped is a check that is dropped."""
    text = b"\n".join(page.read_bytes() for page in PAGES)
    hrefs = re.findall(rb"""href\s*=\s*["']([^"']*)""", text)
    assert len(PAGES) >= 25
    assert len(hrefs) > 700
    for odd in (
        b"&amp;",
        b"#",
        b"javascript:",
        b"mailto:",
        b"../",
        b" http",
        b"HTTP://",
        b":80/",
        b"http:\\\\",
        b"tel:",
        b";u=",
        b"%9D",
    ):
        assert any(odd in href for href in hrefs), odd
    assert any(max(href, default=0) > 127 for href in hrefs)


# --- Pages made of pieces of real links -------------------------------------------------------------------

REAL = [
    element.get("href")
    for page in PAGES
    if (root := html.document(page.read_bytes(), HTML)) is not None
    for element in root.iter("a", "area")
    if element.get("href")
]
WORDS = sorted({word for href in REAL for word in re.split(r"[/?#&=;:]", href) if 0 < len(word) < 30})
# Parted by white space; what is white space or empty itself is added where they are used.
ODD = r""". .. ... %2e %2E%2e %2F %2f %20 %zz % %7e %5B %C7%D1 %ED%95%9C \ + ~ a//b ;x=1 a:b @ [ ] | ' " < * $"""
HOSTS = r"""a.example A.Example a.example. b.example b.example:80 b.example:443 b.example:8080 b.example:08080
            b.example:99999 user:word@b.example u@b.example:80 www.GuerrillaGardening.org x--y.example a_b.example
            a..b . 127.0.0.1 [::1] [::1]:80 [2001:DB8::0:1] [:: h\@b.example %41.example xn--80ap5ae.xn--p1ai"""
STARTS = r"""/ // /// ./ ../ ../../ . .. ? & ; http: https: http:/ http:// https:// HTTP:// mailto: javascript:
             ftp:// file:/// x: htt :// http:\\ \ \\"""
PAGE_URLS = [
    "http://a.example/",
    "http://a.example/d/e",
    "https://b.example/d//e/f?x=1",
    "http://a.example/d/e;f/g",
    "http://b.example:8080/%ED%95%9C/",
    "http://a.example/a:b/c.d/e%20f/g.html?h",
]
BASES = "/ ./ ../ ? //a.example //b.example:80/ http://a.example/ https://B.example./d/ http://[::1]/ ftp://a.example/"
# Python's name of an encoding: what a page calls it, and letters that it has.
ENCODINGS = {
    "utf-8": ("utf-8", "\ud55c\u00e9\u65e5\U0001f30a"),
    "cp949": ("euc-kr", "\ud55c\uae00"),
    "cp932": ("shift_jis", "\u65e5\u30bd"),
    "cp1252": ("iso-8859-1", "\u00e9\u20ac"),
}
Texts = some.SearchStrategy[str]


def words(encoding: str) -> Texts:
    """Pieces between the delimiters of a URL."""
    letters = some.text(some.sampled_from("ab1-_.~" + ENCODINGS[encoding][1]), max_size=3)
    return some.one_of(
        some.sampled_from(WORDS),
        some.sampled_from([*ODD.split(), "", "a b", "\t", "\n", "\x0b", "\x01", "\x7f", "\ufeff"]),
        letters,
    )


def either(*others: Texts) -> Texts:
    """One of these, or nothing."""
    return some.one_of(some.just(""), *others)


def hrefs(encoding: str) -> Texts:
    """Links put together from pieces of real ones: start, host, path, query, fragment, each of them or not."""
    word, host = words(encoding), some.sampled_from([*HOSTS.split(), "", "a b", "\ud55c\uae00.example"])
    start = some.one_of(
        some.sampled_from([*STARTS.split(), "", " ", "\n/", "tel: "]),
        some.builds("{}://{}/".format, some.sampled_from(["http", "https"]), host),
        some.builds("//{}{}".format, host, some.sampled_from("/?#")),
    )
    path = some.lists(word, max_size=4).map("/".join)
    fields = some.lists(some.one_of(word, some.builds("{}={}".format, word, word)), max_size=4)
    query = either(fields.map("&".join).map("?{}".format))
    fragment = either(word.map("#{}".format))
    end = some.sampled_from(["", "", "", " ", "\n"])
    return some.builds("{}{}{}{}{}".format, start, path, query, fragment, end)


def bases(encoding: str) -> Texts:
    """What may stand in a `<base>`, without escapes of HTML: Scrapy finds it by an expression that undoes none."""
    word = words(encoding).map(lambda word: re.sub(r"[&<>'\"\\:@\[\]]", "", word))
    start = some.sampled_from(["", *BASES.split(), ENCODINGS[encoding][1]])
    path = some.lists(word, max_size=3).map("/".join)
    tail = either(word.map("?{}".format), word.map("#{}".format))
    return some.builds("{}{}{}".format, start, path, tail)


@some.composite
def pages(draw: some.DrawFn) -> tuple[bytes, str]:
    """A page and its URL."""
    encoding = draw(some.sampled_from(sorted(ENCODINGS)))
    base = draw(some.one_of(some.none(), some.none(), bases(encoding)))
    link = some.one_of(hrefs(encoding), some.sampled_from(REAL))
    found = draw(some.lists(link, min_size=1, max_size=6))
    rel = draw(some.sampled_from(["", "", "", ' rel="nofollow"', " rel='ugc,NoFollow'", " rel=nofollower"]))
    head = f"<meta charset={ENCODINGS[encoding][0]}>" + (
        "" if base is None else f'<base href="{escape(base)}">'
    )
    text = head + "".join(f'<a href="{escape(href)}"{rel}>x</a>' for href in found)
    try:
        return text.encode(encoding), draw(some.sampled_from(PAGE_URLS))
    except UnicodeEncodeError:
        # What the encoding cannot write is a test of its own.
        assume(False)
        raise


@given(page=pages())
@settings(max_examples=150, deadline=None)
@example(page=(b"<a href='a//b'><a href='../x//y'>", "http://a.example/d/e/"))
@example(page=(b"<a href='./?x'><a href='../?x'><a href='./'><a href='../../../x'>", "http://a.example/d/e"))
@example(page=(b"<a href='a'><a href='?x'><a href='../y'>", "http://a.example/d//e/f"))
@example(page=(b"<a href='http:\\\\b.example\\@c.example/'>", "https://a.example/"))
@example(page=(b"<a href='?b=2&a-=1&a=%ED&a=+&a&&a=z'><a href='?b&a#x'><a href='?&'>", "http://a.example/d/"))
@example(page=(b"<base href='ftp://a.example/'><a href='x'><a href='//b.example'>", "http://a.example/d/"))
@example(page=(b"<a href='?a=b=c'><a href='?'><a href='?b=%ed&a'><a href='?%20=%7E'>", "http://a.example/d/"))
def test_a_made_up_page_has_the_same_links_by_either_way(page: tuple[bytes, str]) -> None:
    """Where each of them leads is told by tests/test_urls.py."""
    ours(*page)
