"""Links and canonical URLs: one spelling per page, what a page forbids is left, and hostile pages do no harm.

Oracles: w3lib's canonicalize_url over urljoin for paths and queries, Python's codecs for what a page is written in.
"""

from __future__ import annotations

import re
from urllib.parse import urljoin, urlsplit

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from lxml import html
from w3lib.url import canonicalize_url

from crawler.content import html as links
from crawler.content.html import Links
from crawler.urls.url import UrlError, ascii_host, host_of, path_of, split_page

SITE = "http://example.org"
PAGE = f"{SITE}/dir/page?x=1"
HTML = "text/html"
LENGTH = 2083


def found(
    body: str | bytes, url: str = PAGE, most: int = 100, length: int = LENGTH, kind: str = HTML
) -> Links:
    """The links of a page of SITE."""
    body = body if isinstance(body, bytes) else body.encode()
    return links.links(links.document(body, kind), url, SITE, most, length)


def inside(body: str | bytes, url: str = PAGE) -> list[str]:
    return found(body, url).inside


# --- Canonical URLs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "site", "path"),
    [
        ("http://example.org", SITE, "/"),
        ("http://example.org?b=2&a=1", SITE, "/?a=1&b=2"),
        ("HTTP://EXAMPLE.ORG:80/A#part", SITE, "/A"),
        ("http://example.org:/x", SITE, "/x"),
        ("http://example.org./x", SITE, "/x"),
        ("https://example.org:443/", "https://example.org", "/"),
        ("https://example.org:80/", "https://example.org:80", "/"),
        ("http://example.org:443/", "http://example.org:443", "/"),
        ("http://example.org:08080/", "http://example.org:8080", "/"),
        ("http://user:word@example.org/x", SITE, "/x"),
        ("\x01 http://example.org/x \x1f", SITE, "/x"),
        # As browsers read it: the host ends at the first of them, and nobody is led to another.
        ("http:\\\\example.org\\a\\b?c\\d", SITE, "/a/b?c%5Cd="),
        ("http://example.org\\@other.example/", SITE, "/@other.example/"),
        ("http://example.org/\\..\\x", SITE, "/x"),
        ("http://example.org/a;b=1?c", SITE, "/a;b=1?c="),
        ("http://example.org/%7ea%2fb%zz", SITE, "/~a%2Fb%zz"),
        ("http://example.org/a/../b/./c", SITE, "/b/c"),
        ("http://example.org/\ud55c?\uae00=1", SITE, "/%ED%95%9C?%EA%B8%80=1"),
        ("http://a_b.example.org/", "http://a_b.example.org", "/"),
        ("http://\ud55c\uad6d/", "http://xn--3e0b707e", "/"),
        ("http://\ud55c\uad6d\u3002/x", "http://xn--3e0b707e", "/x"),
        ("http://B\u00dcCHER.example/", "http://xn--bcher-kva.example", "/"),
        ("http://stra\u00dfe.example/", "http://xn--strae-oqa.example", "/"),
        ("http://i\u2764.example/", "http://xn--i-7iq.example", "/"),
        ("http://_dmarc.\ud55c\uad6d/", "http://_dmarc.xn--3e0b707e", "/"),
        ("http://\uff11\uff12\uff17.0.0.1/", "http://127.0.0.1", "/"),
        ("http://[::1]:80/", "http://[::1]", "/"),
        ("http://[2001:DB8:0:0:0:0:0:1]:8080/", "http://[2001:db8::1]:8080", "/"),
    ],
)
def test_one_spelling(url: str, site: str, path: str) -> None:
    assert split_page(url) == (site, path)
    assert split_page(site + path) == (site, path)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "scheme ''; expected http or https"),
        ("example.org/x", "scheme ''"),
        ("//example.org/x", "scheme ''"),
        ("ftp://example.org/", "scheme 'ftp'"),
        ("javascript:alert(1)", "scheme 'javascript'"),
        ("http:///", "no host"),
        ("http://:80/", "no host"),
        ("http://./", "is not a host name"),
        ("http://a..b/", "is not a host name"),
        ("http://a../", "is not a host name"),
        ("http://a b/", "is not a host name"),
        ("http://a%20b/", "is not a host name"),
        ("http://1.2.3.256/", "is not an IPv4 address"),
        ("http://a.1/", "is not a number of an IPv4 address"),
        ("http://[fe80::1%eth0]/", "fe80::1"),
        ('http://a"b/', "is not a host name"),
        (f"http://{'a' * 64}.org/", "is not a host name"),
        (f"http://{'a.' * 127}org/", "is not a host name"),
        ("http://example.org:99999/", "port '99999'; expected a number up to 65535"),
        ("http://example.org:x/", "port 'x'; expected a number"),
        ("http://[::1/", "Invalid IPv6"),
        ("http://[::zz]/", "::zz"),
        ("http://[v1.a:b]/", "v1.a:b"),
        ("http://\udc80/", "U+DC80"),
        ("http://example.org/\udc80", "surrogates not allowed"),
        ("http://\u2488com/", "U+2488"),
    ],
)
def test_what_is_no_url_of_the_web_is_refused_in_words(url: str, said: str) -> None:
    with pytest.raises(UrlError) as caught:
        split_page(url)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 600


@given(st.text(st.characters(codec=None), max_size=80))
@example("http://\udcff@x\n:0/\r\t")
@settings(max_examples=200, deadline=None)
def test_no_text_does_harm(text: str) -> None:
    for url in (text, f"http://{text}", f"http://{text}/", f"https://example.org/{text}"):
        try:
            site, path = split_page(url)
        except UrlError:
            continue
        assert site.isascii()
        assert path.isascii()
        assert path.startswith("/")
        assert not set(site + path) & set(" \n\r\t#")
        assert ascii_host(host_of(site)) in site


def test_the_host_of_a_site() -> None:
    assert ascii_host("EXAMPLE.org.") == "example.org"
    assert [host_of(site) for site in (SITE, "https://a.b:81", "http://[::1]:80")] == [
        "example.org",
        "a.b",
        "::1",
    ]


# --- Links against w3lib and urllib -----------------------------------------------------------------------

_PIECE = st.text(st.sampled_from("abAB01-._~%25 \ud55c\u00e9+&=;:@!$'()*,/?#"), max_size=12)
_HOSTS = st.sampled_from(["example.org", "other.example", "a.b.c:8080"])
HREFS = st.one_of(
    _PIECE,
    st.builds("/{}".format, _PIECE),
    st.builds("?{}".format, _PIECE),
    st.builds("../{}".format, _PIECE),
    st.builds("//{}/{}".format, _HOSTS, _PIECE),
    st.builds("{}://{}/{}".format, st.sampled_from(["http", "https"]), _HOSTS, _PIECE),
    st.builds("{}://{}?{}".format, st.sampled_from(["http", "https"]), _HOSTS, _PIECE),
)


def links_of(href: str, url: str) -> list[str]:
    """The URLs that a page with this one link leads to."""
    got = links.links(html.Element("a", href=href), url, SITE, 10, LENGTH)
    return [SITE + path for path in got.inside] + [
        site + path for site, paths in got.outside.items() for path in paths
    ]


@given(href=HREFS, url=st.sampled_from([PAGE, SITE + "/", "https://example.org/a/b/", "http://a.b.c:8080"]))
@settings(max_examples=400, deadline=None)
def test_a_link_names_the_page_that_w3lib_and_urllib_make_of_it(href: str, url: str) -> None:
    href = href.strip(" ")
    # urljoin makes two slashes one, parts what stands behind a `;` from the path, and overlooks an empty query or host.
    assume("//" not in re.sub("^(https?:)?//", "", href))
    assume(not href.startswith("//") or urlsplit(href).netloc)
    assume(";" not in href and not href.partition("#")[0].endswith(("?", " ")))
    joined = urljoin(url, href)
    # Which names are none is told by the tables above.
    assume(urlsplit(joined).netloc in ("example.org", "other.example", "a.b.c:8080"))
    fetched = urlsplit(joined).scheme in ("http", "https") and not href.startswith("#")
    assert ["".join(split_page(one)) for one in links_of(href, url)] == (
        [canonicalize_url(joined)] if fetched else []
    )


@given(href=HREFS)
@settings(max_examples=100, deadline=None)
def test_a_redirect_goes_where_a_link_would(href: str) -> None:
    assume(not href.strip(" ").startswith("#"))
    place = links.target(PAGE, href.encode().decode("latin-1"), LENGTH)
    assert ([] if place is None else ["".join(place)]) == links_of(href, PAGE)


@pytest.mark.parametrize("port", [1, 79, 81, 8080, 9999, 10_000, 59_999, 60_000, 64_999, 65_000, 65_535])
def test_a_link_with_a_port_is_found_either_way(port: int) -> None:
    url = f"http://example.org:{port}/a"
    assert links_of(url, PAGE) == [canonicalize_url(url)]
    simple = links._SIMPLE.fullmatch(url)
    assert (simple is not None and simple[1] == f"http://example.org:{port}") == (port < 65_000)


@pytest.mark.parametrize("port", ["0", "00080", "08080", "65536", "70000", "99999", "123456", "80", "0443"])
def test_an_odd_port_is_left_to_the_long_way(port: str) -> None:
    simple = links._SIMPLE.fullmatch(f"http://example.org:{port}/a")
    assert simple is None or simple[1] is None


# --- Links, one thing at a time ---------------------------------------------------------------------------


def test_links_are_told_apart_by_site_and_come_once_in_order() -> None:
    body = """<a href="b">1</a><a href="/dir/a#x">2</a><A HREF="b">3</A><area href=/c>
              <a href="http://other.example/y">4</a><a href="//other.example/x?b&a">5</a>
              <a href="https://example.org/secure">6</a><a name=n>7</a><link href="/style.css">"""
    assert found(body) == Links(
        ["/dir/b", "/dir/a", "/c"],
        {"http://other.example": ["/y", "/x?b&a"], "https://example.org": ["/secure"]},
    )


@pytest.mark.parametrize(
    "href",
    [
        "#top",
        " #top",
        "javascript:void(0)",
        " JavaScript:void(0)",
        "java\nscript:void(0)",
        "mailto:a@example.org",
        "tel:+49123",
        "data:text/html,<a href=/x>",
        "ftp://example.org/x",
        "file:///etc/passwd",
        "about:blank",
        "httpx://example.org/",
        "http://[::1",
        "http://example.org:99999/",
        "http://a b/",
    ],
)
def test_what_cannot_be_fetched_is_no_link(href: str) -> None:
    assert found(f'<a href="{href}">x</a>') == Links([], {})


@pytest.mark.parametrize(
    ("href", "path"),
    [
        ("", "/dir/page?x=1"),
        ("  /a  ", "/a"),
        ("/a\n/b", "/a/b"),
        ("?y=2", "/dir/page?y=2"),
        ("http:/x", "/x"),
        ("http:///example.org/x", "/x"),
        ("http://", None),
        ("http:x", "/dir/x"),
        ("HTTP://EXAMPLE.ORG:80/x", "/x"),
        ("a:b", None),
        ("./a:b", "/dir/a:b"),
    ],
)
def test_odd_links_mean_what_they_mean_to_browsers(href: str, path: str | None) -> None:
    assert inside(f'<a href="{href}">x</a>') == ([path] if path else [])


@pytest.mark.parametrize("rel", ["nofollow", "NoFollow", "noopener nofollow", "ugc,nofollow"])
def test_nofollow_is_obeyed(rel: str) -> None:
    assert inside(f'<a rel="{rel}" href="/a">x</a><a rel="noopener" href="/b">x</a><a rel href=/c>') == [
        "/b",
        "/c",
    ]


@pytest.mark.parametrize(
    ("base", "path"),
    [
        ("/other/", "/other/a"),
        ("", "/dir/a"),
        ("sub/", "/dir/sub/a"),
        ("http://example.org/", "/a"),
        (" HTTP://example.org/up/ ", "/up/a"),
        ("javascript:alert(1)", "/dir/a"),
        ("data:text/html,x", "/dir/a"),
        ("mailto:a@example.org", "/dir/a"),
        ("http://[", "/dir/a"),
    ],
)
def test_a_base_counts_if_links_can_start_from_it(base: str, path: str) -> None:
    assert inside(f'<base href="{base}"><base href="/second/"><a href="a">x</a>') == [path]


@pytest.mark.parametrize(
    ("content", "path"),
    [
        ("0; url=/on", "/on"),
        ("0;URL='on'", "/dir/on"),
        ('5 , url = "/on" x', "/on"),
        (" 0.5\n/on", "/on"),
        ("0;on?a b", "/dir/on?a%20b"),
        ("3; url=#top", None),
        ("300", None),
        ("0;", None),
        ("0; url=", None),
        ("0; url=''", None),
        ("soon; url=/on", None),
        ("0url=/on", None),
        ("0; url=javascript:alert(1)", None),
        ("0; url=file:///etc/passwd", None),
    ],
)
def test_a_page_may_send_its_visitors_on(content: str, path: str | None) -> None:
    quoted = content.replace('"', "&quot;")
    body = f'<head><meta name=a><meta HTTP-EQUIV=" Refresh " content="{quoted}"></head><a href="/a">x</a>'
    assert inside(body) == ([path] if path else []) + ["/a"]


def test_only_the_head_sends_visitors_on() -> None:
    refresh = '<meta http-equiv="refresh" content="0; url=/on">'
    assert inside(f"<body><p>x</p>{refresh}<noscript>{refresh}</noscript></body>") == []


@pytest.mark.parametrize(
    ("head", "path"),
    [
        ('<noscript><meta http-equiv="refresh" content="0; url=/plain"></noscript>', "/plain"),
        ('<title>x</title><noscript><link rel="x"><meta http-equiv="refresh" content="0;/plain">', "/plain"),
        (
            '<noscript><meta http-equiv="refresh" content="0; url=/plain"></noscript>'
            '<meta http-equiv="refresh" content="0; url=/on">',
            "/on",
        ),
    ],
)
def test_a_page_may_send_those_without_javascript_on(head: str, path: str) -> None:
    assert inside(f"<head>{head}</head><body><p>x</p></body>") == [path]


def test_frames_are_links_like_anchors() -> None:
    page = """<head><base href="/of/"></head><frameset cols="20%,*"><frame src="menu.html">
        <FRAME SRC="text.html#top"><frame name="empty"><frame src="http://other.example/"></frameset>"""
    assert found(page) == Links(["/of/menu.html", "/of/text.html"], {"http://other.example": ["/"]})
    assert inside("<frameset><frame src=a.html></frameset><noframes><a href=b.html>") == ["/dir/a.html"]


@pytest.mark.parametrize(
    "src",
    [
        "a.html",
        "a",
        "a.php?file=x.png",
        "/",
        "a.asp",
        "//example.org",
        "a/?b=x.svg",
        "http://example.org/x.cgi",
    ],
)
def test_an_iframe_that_may_be_a_page_is_a_link(src: str) -> None:
    assert inside(f'<p><iframe src="{src}"><a href="/within">x</a></iframe>') == [path_of(urljoin(PAGE, src))]


@pytest.mark.parametrize(
    "src",
    [
        "a.svg",
        "a.png?v=1",
        "film.MP4",
        "a.svg#view",
        "a.pdf",
        "about:blank",
        "javascript:x",
        "data:text/html,x",
    ],
)
def test_an_iframe_of_something_else_is_none(src: str) -> None:
    assert found(f'<p><iframe src="{src}"></iframe>') == Links([], {})


def test_a_frame_that_has_its_content_in_itself_leads_nowhere() -> None:
    assert inside('<p><iframe srcdoc="<a href=/x>" src="/never"></iframe><iframe srcdoc=""></iframe>') == []


def test_widgets_of_other_sites_are_told_apart() -> None:
    """They are followed, and are none of the page's links."""
    page = '<iframe src="http://film.example/1"></iframe><a href="http://other.example/">x</a>'
    assert found(page) == Links([], {"http://other.example": ["/"]}, {"http://film.example": ["/1"]})
    assert found('<iframe src="http://x.com.au"></iframe>').framed == {"http://x.com.au": ["/"]}


def test_a_header_may_send_visitors_on() -> None:
    assert links.written(None, "0; url=/on").hrefs == ["/on"]
    assert links.written(None, "300").hrefs == []


def test_a_base_on_another_site_leads_there() -> None:
    assert found('<base href="http://other.example/"><a href="a">x</a>') == Links(
        [], {"http://other.example": ["/a"]}
    )


def test_only_so_many_links_are_taken() -> None:
    body = "".join(f'<a href="/{number}">x</a>' for number in range(10))
    got, site = found(body, most=3), SITE
    assert got.inside == ["/0", "/1", "/2"]
    assert got.left_out == "first 3 distinct links, 7 left out (MAX_LINKS_PER_PAGE)"
    assert got.beyond == {site: [f"/{number}" for number in range(3, 10)]}
    assert found(body, most=10).left_out == found(body, most=11).left_out == ""
    elsewhere = "".join(f'<a href="http://{number // 2}.example/{number}">x</a>' for number in range(10))
    assert found(elsewhere, most=3).outside == {"http://0.example": ["/0", "/1"], "http://1.example": ["/2"]}


def test_what_leads_nowhere_new_does_not_count() -> None:
    """A menu that stands there again and again, and places on the page itself."""
    menu = '<a href="/menu">x</a><a href="../menu#x">x</a><a href="#here"></a><a href="page?x=1#there"></a>'
    body = "".join(f'{menu}<a href="#{number}">x</a><a href="{number}">x</a>' for number in range(40))
    paths = found(body, most=41)
    assert (len(paths.inside), paths.left_out) == (42, "")
    assert found(body, most=40).inside == paths.inside[:-1]


def test_links_that_would_take_long_are_given_up_and_told() -> None:
    """A page may have as many odd links as it likes; simple ones behind them are still taken."""
    host = "\u00e9" * 40
    body = "".join(f"<a href='http://{host}{number}.example/'>x</a>" for number in range(30_000))
    got = found(body + "<a href=/simple>x</a>", most=50_000)
    assert got.inside == ["/simple"]
    given_up = 30_000 - len(got.outside)
    assert 0 < given_up < 30_000
    assert got.left_out == f"{given_up:,} links left out: too slow to resolve"


def test_of_megabytes_of_odd_queries_not_all_are_read() -> None:
    """To tell which page one leads to takes long: all of these would hold an agent up for eight seconds."""
    odd = [
        f"/{number}?" + "&".join(f"{name}={number};" for name in "zyxwvutsrqponmlkjihgfedcba")
        for number in range(20_000)
    ]
    plain = [f"/{number}?a={number}" for number in range(1_000)]
    body = "".join(f"<a href='{href}'>x</a>" for href in [*odd, *plain]).encode()
    got = links.links(links.document(body, "text/html"), f"{SITE}/", SITE, 50_000, 2_083)
    assert got.given_up > len(odd) / 2
    assert len(got.inside) + got.given_up == len(odd) + len(plain)
    assert got.inside[-len(plain) :] == plain
    few = "".join(f"<a href='{href}'>x</a>" for href in odd[:1_000]).encode()
    assert links.links(links.document(few, "text/html"), f"{SITE}/", SITE, 50_000, 2_083).given_up == 0


def test_a_base_that_no_url_may_have_leads_nowhere() -> None:
    base = "/" + "a/" * LENGTH
    assert inside(f"<base href='{base}'><a href=x>x</a><a href='http://example.org/y'>x</a>") == ["/y"]


def test_long_links_are_no_more_than_their_page() -> None:
    """However many links start from a long base."""
    base = "/" + "a/" * 1_000
    got = found(f"<base href='{base}'>" + "".join(f"<a href={n}>x</a>" for n in range(9_000)), most=50_000)
    assert 4_000 < len(got.inside) < 6_000
    left = 9_000 - len(got.inside)
    words = f"first {len(got.inside):,} distinct links, {left:,} left out (their base URL is long)"
    assert got.left_out == words


def test_a_link_may_be_as_long_as_the_limit_and_no_longer() -> None:
    room = 50 - len(SITE) - 1
    body = f'<a href="/{"a" * room}">x</a><a href="/{"b" * (room + 1)}">x</a><a href="{"../" * 20}c">x</a>'
    assert found(body, length=50).inside == [f"/{'a' * room}"]
    # Short as it stands, long once it is escaped.
    assert found("<a href='/" + "\ud55c" * 9 + "'>x</a>", length=50).inside == []


def test_redirects() -> None:
    assert links.target(PAGE, "../a?b&a", LENGTH) == (SITE, "/a?b&a")
    assert links.target(PAGE, "//Other.example:80", LENGTH) == ("http://other.example", "/")
    assert links.target(PAGE, "/\ud55c".encode().decode("latin-1"), LENGTH) == (SITE, "/%ED%95%9C")
    assert links.target(PAGE, "/caf\xe9", LENGTH) == (SITE, "/caf%C3%A9")
    assert links.target(PAGE, "/\ud55c", LENGTH) == (SITE, "/%ED%95%9C")
    for nowhere in ("javascript:1", "ftp://example.org/", "http://[", "http://a b/", "/" + "a" * LENGTH):
        assert links.target(PAGE, nowhere, LENGTH) is None


# --- What robots may do with a page -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "header", "words"),
    [
        ("<p>x", "", set()),
        ('<meta name="robots" content="NOINDEX, nofollow">', "", {"noindex", "nofollow"}),
        ('<META NAME="RoBoTs" CONTENT="none">', "", {"none"}),
        ('<meta name="robots" content="a,,b"><meta name=robots content=c>', "", {"a", "b", "c"}),
        ('<meta name="googlebot" content="nofollow">', "", set()),
        ("<meta name=robots>", "", set()),
        ("", "noindex, NoFollow", {"noindex", "nofollow"}),
        ("<meta name=robots content=noindex>", "nofollow", {"noindex", "nofollow"}),
        ("", "googlebot: noindex, nofollow", set()),
        ("", "noindex, otherbot: nofollow, noarchive", {"noindex"}),
        ("", "googlebot: noindex\nnofollow\r\nother-bot/2.1: none", {"nofollow"}),
        ("", "max-snippet: 20, nofollow", {"max-snippet:", "20", "nofollow"}),
        ("", "*: nofollow", {"*:", "nofollow"}),
    ],
)
def test_directives_that_hold_for_everybody(body: str, header: str, words: set[str]) -> None:
    assert links.robots_directives(links.document(body.encode(), HTML), header) == words


def test_a_date_in_a_header_is_no_name_of_a_crawler() -> None:
    header = "unavailable_after: Friday, 25-Jun-10 15:00:00 GMT, nofollow"
    assert "nofollow" in links.robots_directives(None, header)


@pytest.mark.parametrize(
    ("body", "header", "words"),
    [
        ("", "lowtide: nofollow", {"nofollow"}),
        ("", "Lowtide: NOINDEX, nofollow, otherbot: noarchive", {"noindex", "nofollow"}),
        ("", "otherbot: none, lowtide: nofollow\nnoimageindex", {"nofollow", "noimageindex"}),
        ("", "lowtideish: nofollow", set()),
        ("<meta name=LowTide content=nofollow>", "", {"nofollow"}),
        ("<meta name=otherbot content=nofollow>", "", set()),
    ],
)
def test_directives_said_to_us_by_name(body: str, header: str, words: set[str]) -> None:
    root = links.document(body.encode(), HTML)
    assert links.robots_directives(root, header, "lowtide") == words


# --- Encodings --------------------------------------------------------------------------------------------

KOREAN = "\ub620\ubc29\uac01\ud558 \ud55c\uae00"
JAPANESE = "\u8868\u30bd \u65e5\u672c\u8a9e"


def page_of(title: str, encoding: str, head: str = "", before: bytes = b"") -> bytes:
    return before + f'<html><head>{head}<title>{title}</title></head><a href="/x">x</a>'.encode(encoding)


@pytest.mark.parametrize(
    ("body", "kind", "title"),
    [
        (page_of(KOREAN, "utf-8"), "text/html; charset=utf-8", KOREAN),
        (page_of(KOREAN, "utf-8"), HTML, KOREAN),
        (page_of(KOREAN, "utf-8"), "", KOREAN),
        (page_of(KOREAN, "utf-8", before=b"\xef\xbb\xbf"), "text/html; charset=euc-kr", KOREAN),
        (page_of(KOREAN, "utf-8"), "text/html; charset=utf-8-sig", KOREAN),
        (page_of(KOREAN, "cp949"), 'text/html; charset="EUC-KR"', KOREAN),
        (page_of(KOREAN, "cp949", "<meta charset=ks_c_5601-1987>"), HTML, KOREAN),
        (page_of(KOREAN, "cp949", before=b"<?xml version='1.0' encoding='euc-kr'?>"), HTML, KOREAN),
        (page_of(KOREAN, "cp949"), HTML, KOREAN),
        (page_of(KOREAN, "cp949", "<script>" + "x" * 9000 + "</script>"), HTML, KOREAN),
        (page_of(KOREAN, "utf-8", "<meta charset=euc-kr>"), "text/html; charset=utf-8", KOREAN),
        (page_of(JAPANESE, "cp932", "<meta charset=shift_jis>"), HTML, JAPANESE),
        (page_of(JAPANESE, "euc_jp", "<meta charset=euc-jp>"), HTML, JAPANESE),
        (page_of(JAPANESE, "iso2022_jp", "<meta charset=iso-2022-jp>"), HTML, JAPANESE),
        (page_of(JAPANESE, "gb18030"), "text/html; charset=gb2312", JAPANESE),
        (page_of("\u041f\u0440\u0438", "koi8_r"), "text/html; charset=koi8-r", "\u041f\u0440\u0438"),
        (page_of("caf\xe9 \u20ac", "cp1252"), "text/html; charset=iso-8859-1", "caf\xe9 \u20ac"),
        (page_of("caf\xe9", "mac_roman"), "text/html; charset=macintosh", "caf\xe9"),
        (page_of(KOREAN, "utf-16-le", before=b"\xff\xfe"), HTML, KOREAN),
        (page_of(KOREAN, "utf-16-be", before=b"\xfe\xff"), "text/html; charset=utf-8", KOREAN),
        (page_of(KOREAN, "utf-16-le"), "text/html; charset=utf-16le", KOREAN),
        (page_of(KOREAN, "utf-32-le", before=b"\xff\xfe\0\0"), HTML, KOREAN),
        # A page that says so in ASCII cannot be in UTF-16.
        (page_of(KOREAN, "utf-8", "<meta charset=utf-16>"), HTML, KOREAN),
        # Codecs that are none for pages; the page is read as it would be undeclared.
        *(
            (page_of(KOREAN, "utf-8"), f"text/html; charset={codec}", KOREAN)
            for codec in ("base64", "hex", "zlib", "idna", "punycode", "undefined", "utf-7", "unicode_escape")
        ),
        (page_of(KOREAN, "cp949", "<meta charset=rot13>"), HTML, KOREAN),
        (page_of(KOREAN, "utf-8"), "text/html; charset=no-such-thing", KOREAN),
    ],
)
def test_a_page_is_read_in_its_encoding(body: bytes, kind: str, title: str) -> None:
    root = links.document(body, kind)
    assert root.findtext(".//title") == title
    assert links.links(root, PAGE, SITE, 10, LENGTH).inside == ["/x"]


@pytest.mark.parametrize("cut", range(1, 7))
def test_an_undeclared_page_that_ends_inside_a_character_is_still_understood(cut: int) -> None:
    for encoding in ("utf-8", "cp949"):
        body = page_of(KOREAN, encoding) + KOREAN.encode(encoding)
        assert links.document(body[:-cut], "").findtext(".//title") == KOREAN


@pytest.mark.parametrize("encoding", ["utf-8", "cp949", "euc_jp", "gb18030", "cp932", "cp1252"])
def test_bad_bytes_cost_no_link(encoding: str) -> None:
    body = b'<title>a\xff\xff b</title>\x81\x00\xff<a href="/x">x</a>'
    assert found(body, kind=f"text/html; charset={encoding}").inside == ["/x"]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le"])
def test_undeclared_zeros_cost_no_link(encoding: str) -> None:
    assert inside('<!doctype html><a href="/x">x</a><a href=y>y</a>'.encode(encoding)) == ["/x", "/dir/y"]


def test_an_undeclared_page_in_neither_is_read_as_western() -> None:
    assert links.document(b"<title>\xff\x80 caf\xe9</title>", "").findtext(".//title") == "\xff\u20ac caf\xe9"


def test_characters_that_cannot_be_become_others() -> None:
    body = '<title>&#xD800;&#0;&#x110000;</title><a href="/&#xD800;">x</a>'
    links.document(body.encode(), HTML).findtext(".//title").encode()
    assert inside(body) == ["/%EF%BF%BD"]


@pytest.mark.parametrize("body", [b"", b" \n\t", b"<!-- x -->", b"<?xml version='1.0'?>", b"\xff\xfe"])
def test_nothing_to_parse(body: bytes) -> None:
    assert links.document(body, HTML) is None
    assert links.links(None, PAGE, SITE, 10, LENGTH) == Links([], {})
    assert links.robots_directives(None, "") == set()


# --- Hostile pages ----------------------------------------------------------------------------------------

_TAGS = st.sampled_from(
    [b"<a href=", b"<area href='", b'"', b"'", b">", b"<base href=", b"<meta charset=", b"<meta name=robots content=",
     b"http://", b"//", b"&#x", b"&#xd800;", b"\0", b"<!--", b"<![CDATA[", b"<?xml encoding='", b"</a>", b"rel=", b"[",
     b"\xff", b"<svg>", b"<template>", b"utf-16", b"base64", b"%", b"javascript:"]
)  # fmt: skip
BODIES = st.lists(st.one_of(_TAGS, st.binary(max_size=6)), max_size=25).map(b"".join)
KINDS = st.one_of(
    st.builds(
        "text/html; charset={}".format, st.sampled_from(["utf-8", "utf-16", "hz", "uu", "x", "utf-32"])
    ),
    st.text(max_size=12),
)


@given(body=BODIES, kind=KINDS, base=st.one_of(st.just(PAGE), st.text(max_size=12)))
@settings(max_examples=300, deadline=None)
def test_a_hostile_page_gives_fewer_links_and_never_an_exception(body: bytes, kind: str, base: str) -> None:
    root = links.document(body, kind)
    got = links.links(root, base, SITE, 10, LENGTH)
    for site, paths in {SITE: got.inside, **got.outside}.items():
        assert all(split_page(site + path)[0] == site for path in paths)
    links.robots_directives(root, kind)
    links.target(base, kind, LENGTH)


@pytest.mark.parametrize(
    "body",
    [
        b"<div>" * 100_000 + b"<a href=/x>",
        b"<a" * 100_000,
        b"<a href=/x " + b" ".join(b"a%d=1" % number for number in range(150_000)) + b">",
        b"<a x' " + b"".join(b"a%d='>'" % number for number in range(150_000)) + b">",
        b"<a" + b"".join(b"/a%d" % number for number in range(150_000)) + b">",
        b"<a " * 1_000_000,
        b"<a " + b"= '" * 1_000_001,
        b"<base href='" + b"a/" * 100_000 + b"'><a href=x>",
        b"<meta name=robots content='" + b"nofollow," * 50_000 + b"'>",
        b"<!--" * 100_000,
        b"&#x41;" * 100_000,
    ],
    ids=[
        "deep",
        "open",
        "attributes",
        "quoted",
        "bare",
        "tags",
        "values",
        "base",
        "meta",
        "comments",
        "references",
    ],
)
@pytest.mark.timeout(10)
def test_a_bomb_is_parsed_or_given_up_soon(body: bytes) -> None:
    root = links.document(body, HTML)
    links.links(root, PAGE, SITE, 5000, LENGTH)
    links.robots_directives(root, "a:" * 50_000 + "\n" * 50_000)


def test_a_page_is_cut_off_before_a_tag_with_too_many_attributes() -> None:
    def body(count: int) -> str:
        attributes = " ".join(f"data-attribute-{number}='a>b'" for number in range(count - 1))
        return f"<a href=/1>x</a><a href=/2 {attributes}>x</a><a href=/3>x</a>"

    assert inside(body(links.MOST_ATTRIBUTES)) == ["/1", "/2", "/3"]
    assert inside(body(links.MOST_ATTRIBUTES + 1)) == ["/1"]


def test_long_attributes_are_no_reason_to_cut() -> None:
    words = "word / " * 100_000
    assert inside(f"<img alt='{words}' src='data:image/png;base64,{words}'><a href=/x>") == ["/x"]


def test_the_path_of_a_canonical_url() -> None:
    assert [path_of(url) for url in ("http://a", "http://a?b", "http://a/", "http://a/b?c=/d")] == [
        "/",
        "/?b",
        "/",
        "/b?c=/d",
    ]
