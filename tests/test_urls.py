"""URLs as browsers read them: what is asked for is the link as the URL standard serialises it, and nothing beside.

The table was compared with ada, the URL parser of Node.js. It says what the standard says, and where this differs:
hosts that no name server can know are refused, a `^` is escaped in a path (older browsers leave it), and user,
password and the dot behind a host are left out. A test below compares afresh where Node.js is there.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crawler.content import html
from crawler.urls.url import UrlError, page_of, resolve, split_page
from tests.costs import STEEP, growth

LENGTH = 2083

# By what they start from: links, and where they lead; None: they lead nowhere.
TABLE: dict[str, dict[str, str | None]] = {
    "http://example.org/foo/bar": {
        "": "http://example.org/foo/bar",
        "a": "http://example.org/foo/a",
        "./a": "http://example.org/foo/a",
        "../a": "http://example.org/a",
        "../../a": "http://example.org/a",
        "../../../a": "http://example.org/a",
        "/a": "http://example.org/a",
        "//h/a": "http://h/a",
        "///h/a": "http://h/a",
        "////h/a": "http://h/a",
        "http://h/a": "http://h/a",
        "http:/a": "http://example.org/a",
        "http:a": "http://example.org/foo/a",
        "http:": "http://example.org/foo/bar",
        "http:?x": "http://example.org/foo/bar?x",
        "http:#x": "http://example.org/foo/bar",
        "http:///h/p": "http://h/p",
        "https:/x": "https://x/",
        "https:x": "https://x/",
        "https:///x": "https://x/",
        "HTTP://H/": "http://h/",
        "hTTps:\\\\h\\x": "https://h/x",
        "?": "http://example.org/foo/bar?",
        "?a": "http://example.org/foo/bar?a",
        "?a=1&a": "http://example.org/foo/bar?a=1&a",
        "??": "http://example.org/foo/bar??",
        "?#": "http://example.org/foo/bar?",
        "/?": "http://example.org/?",
        "a?": "http://example.org/foo/a?",
        "a?b?c": "http://example.org/foo/a?b?c",
        "a/?": "http://example.org/foo/a/?",
        "#x": "http://example.org/foo/bar",
        "a#b?c": "http://example.org/foo/a",
        "a?b#c?d": "http://example.org/foo/a?b",
        "/a#": "http://example.org/a",
        "\\x": "http://example.org/x",
        "\\\\h\\x": "http://h/x",
        "http:\\\\h\\x": "http://h/x",
        "/\\h/p": "http://h/p",
        "\\/h/p": "http://h/p",
        "a\\b": "http://example.org/foo/a/b",
        "a?b\\c": "http://example.org/foo/a?b\\c",
        "a\\..\\b": "http://example.org/foo/b",
        "http:\\a": "http://example.org/a",
        "//h\\p": "http://h/p",
        "a//b": "http://example.org/foo/a//b",
        "a//b/../c": "http://example.org/foo/a//c",
        "/a//": "http://example.org/a//",
        "/a///../b": "http://example.org/a//b",
        "//h//a": "http://h//a",
        "..//a": "http://example.org//a",
        "./": "http://example.org/foo/",
        "../": "http://example.org/",
        "..": "http://example.org/",
        ".": "http://example.org/foo/",
        "/..": "http://example.org/",
        "/.": "http://example.org/",
        "/../a": "http://example.org/a",
        "/./a": "http://example.org/a",
        "a/.": "http://example.org/foo/a/",
        "a/..": "http://example.org/foo/",
        "a/./b": "http://example.org/foo/a/b",
        "a/../b": "http://example.org/foo/b",
        "a/../../b": "http://example.org/b",
        "a/...": "http://example.org/foo/a/...",
        "a/..b": "http://example.org/foo/a/..b",
        "a/b..": "http://example.org/foo/a/b..",
        "a/.b": "http://example.org/foo/a/.b",
        "/a/./../b/../c/": "http://example.org/c/",
        "%2e": "http://example.org/foo/",
        "%2E%2e": "http://example.org/",
        "a/%2e%2e/b": "http://example.org/foo/b",
        "a/.%2e/b": "http://example.org/foo/b",
        "a/%2e./b": "http://example.org/foo/b",
        "a/%2E": "http://example.org/foo/a/",
        "a/%2e/b": "http://example.org/foo/a/b",
        "%2e%2e%2e": "http://example.org/foo/%2e%2e%2e",
        "a%2eb": "http://example.org/foo/a%2eb",
        "%2e%2f": "http://example.org/foo/%2e%2f",
        "a/%2e%2e%2fb": "http://example.org/foo/a/%2e%2e%2fb",
        "x;": "http://example.org/foo/x;",
        "x;y=1": "http://example.org/foo/x;y=1",
        "x;a=1;b=2?c=1;d=2": "http://example.org/foo/x;a=1;b=2?c=1;d=2",
        "?p=x.git;a=summary": "http://example.org/foo/bar?p=x.git;a=summary",
        "/wiki?FrontPage": "http://example.org/wiki?FrontPage",
        "?%E3%83%88": "http://example.org/foo/bar?%E3%83%88",
        "?w=%u9888%u690E": "http://example.org/foo/bar?w=%u9888%u690E",
        "/books?q=subject:x": "http://example.org/books?q=subject:x",
        "?u=/a": "http://example.org/foo/bar?u=/a",
        "?mc=a@b": "http://example.org/foo/bar?mc=a@b",
        "?b=2&a=1": "http://example.org/foo/bar?b=2&a=1",
        "?sig=z&a=1&Exp=5": "http://example.org/foo/bar?sig=z&a=1&Exp=5",
        "?%5B0%5D=1": "http://example.org/foo/bar?%5B0%5D=1",
        "?[0]=1": "http://example.org/foo/bar?[0]=1",
        "/a[1]": "http://example.org/a[1]",
        "/%5B1%5D": "http://example.org/%5B1%5D",
        "/a%2fb": "http://example.org/a%2fb",
        "/a%2Fb": "http://example.org/a%2Fb",
        "/a%7eb": "http://example.org/a%7eb",
        "/a~b": "http://example.org/a~b",
        "%zz": "http://example.org/foo/%zz",
        "%": "http://example.org/foo/%",
        "%2": "http://example.org/foo/%2",
        "?%": "http://example.org/foo/bar?%",
        "?%zz": "http://example.org/foo/bar?%zz",
        "a%20b": "http://example.org/foo/a%20b",
        "a+b": "http://example.org/foo/a+b",
        "?a+b": "http://example.org/foo/bar?a+b",
        "?a%20b": "http://example.org/foo/bar?a%20b",
        "a b": "http://example.org/foo/a%20b",
        "?a b": "http://example.org/foo/bar?a%20b",
        "a\tb": "http://example.org/foo/ab",
        "a\nb": "http://example.org/foo/ab",
        "a\r\nb": "http://example.org/foo/ab",
        " a ": "http://example.org/foo/a",
        "\x00a\x1f": "http://example.org/foo/a",
        "\x0ca": "http://example.org/foo/a",
        "?a\tb": "http://example.org/foo/bar?ab",
        "ht\ntp://h/": "http://h/",
        "ja\nvascript:x": None,
        "\xa0a": "http://example.org/foo/%C2%A0a",
        "a\u3000": "http://example.org/foo/a%E3%80%80",
        'a"b': "http://example.org/foo/a%22b",
        '?a"b': "http://example.org/foo/bar?a%22b",
        "a<b>": "http://example.org/foo/a%3Cb%3E",
        "?a<b>": "http://example.org/foo/bar?a%3Cb%3E",
        "a`b": "http://example.org/foo/a%60b",
        "?a`b": "http://example.org/foo/bar?a`b",
        "a{b}": "http://example.org/foo/a%7Bb%7D",
        "?a{b}": "http://example.org/foo/bar?a{b}",
        "a|b": "http://example.org/foo/a|b",
        "?a|b": "http://example.org/foo/bar?a|b",
        "a^b": "http://example.org/foo/a%5Eb",
        "?a^b": "http://example.org/foo/bar?a^b",
        "a'b": "http://example.org/foo/a'b",
        "?a'b": "http://example.org/foo/bar?a%27b",
        "a\x7fb": "http://example.org/foo/a%7Fb",
        "?a\x7f": "http://example.org/foo/bar?a%7F",
        "a\x01b": "http://example.org/foo/a%01b",
        "?a\x01b": "http://example.org/foo/bar?a%01b",
        "a&b": "http://example.org/foo/a&b",
        "?a&&b": "http://example.org/foo/bar?a&&b",
        "?&": "http://example.org/foo/bar?&",
        "?=": "http://example.org/foo/bar?=",
        "a=b": "http://example.org/foo/a=b",
        "a,b": "http://example.org/foo/a,b",
        "a!b$c*d(e)": "http://example.org/foo/a!b$c*d(e)",
        "a:b": None,
        "./a:b": "http://example.org/foo/a:b",
        "/a:b": "http://example.org/a:b",
        "?a:b": "http://example.org/foo/bar?a:b",
        "a/b:c": "http://example.org/foo/a/b:c",
        "1:b": "http://example.org/foo/1:b",
        "a@b": "http://example.org/foo/a@b",
        "//@h/": "http://h/",
        "//u@h/": "http://h/",
        "//u:p@h/a": "http://h/a",
        "//u@v@h/": "http://h/",
        "//u:p:q@h/": "http://h/",
        "/\ud55c\uae00": "http://example.org/%ED%95%9C%EA%B8%80",
        "?\ud55c": "http://example.org/foo/bar?%ED%95%9C",
        "\xe9": "http://example.org/foo/%C3%A9",
        "/caf\xe9?\xe9": "http://example.org/caf%C3%A9?%C3%A9",
        "/%ED%95%9C": "http://example.org/%ED%95%9C",
        "\U0001f600": "http://example.org/foo/%F0%9F%98%80",
        "//h:80/": "http://h/",
        "//h:443/": "http://h:443/",
        "//h:0/": "http://h:0/",
        "//h:00080/": "http://h/",
        "//h:8080/": "http://h:8080/",
        "//h:08080/": "http://h:8080/",
        "//h:65535/": "http://h:65535/",
        "//h:65536/": None,
        "//h:99999999999999999999/": None,
        "//h:/a": "http://h/a",
        "//h:x/": None,
        "//h:8 0/": None,
        "//h:-1/": None,
        "//h:+80/": None,
        "//h:80:80/": None,
        "//:80/": None,
        "//": None,
        "http://": None,
        "https://": None,
        "http:////": None,
        "//?x": None,
        "//#x": None,
        "//u@/": None,
        "//EXAMPLE.org": "http://example.org/",
        "//a.B.c?x=1": "http://a.b.c/?x=1",
        "//h?x": "http://h/?x",
        "//h#x": "http://h/",
        "//a_b.c/": "http://a_b.c/",
        "//-a-.c/": "http://-a-.c/",
        "//xn--3e0b707e/": "http://xn--3e0b707e/",
        "//\ud55c\uad6d/x": "http://xn--3e0b707e/x",
        "//\ud55c\uad6d\u3002/x": "http://xn--3e0b707e/x",
        "//B\xdcCHER.example": "http://xn--bcher-kva.example/",
        "//stra\xdfe.example": "http://xn--strae-oqa.example/",
        "//i\u2764.example": "http://xn--i-7iq.example/",
        "//%ED%95%9C%EA%B8%80.kr/": "http://xn--bj0bj06e.kr/",
        "//a%41/": "http://aa/",
        "//a%2eb/": "http://a.b/",
        "//%65xample.org/": "http://example.org/",
        "//a%20b/": None,
        "//a%zz/": None,
        "//a b/": None,
        "//a<b/": None,
        "//a|b/": None,
        "//a^b/": None,
        "//%00/": None,
        "//\uff11\uff12\uff17.0.0.1/": "http://127.0.0.1/",
        "//\u2488com/": None,
        "//\xad/": None,
        "//a\xadb/": "http://ab/",
        "//127.0.0.1/": "http://127.0.0.1/",
        "//127.1/": "http://127.0.0.1/",
        "//2130706433/": "http://127.0.0.1/",
        "//0x7f.1/": "http://127.0.0.1/",
        "//0x7f000001/": "http://127.0.0.1/",
        "//0177.0.0.1/": "http://127.0.0.1/",
        "//1.2.3/": "http://1.2.0.3/",
        "//1.2.3.4.5/": None,
        "//256.256.256.256/": None,
        "//1.2.3.256/": None,
        "//1.2.65535/": "http://1.2.255.255/",
        "//1.2.65536/": None,
        "//4294967295/": "http://255.255.255.255/",
        "//4294967296/": None,
        "//0x/": "http://0.0.0.0/",
        "//0x.0/": "http://0.0.0.0/",
        "//09.1/": None,
        "//1.2.3.09/": None,
        "//foo.0x4/": None,
        "//foo.1/": None,
        "//1.foo/": "http://1.foo/",
        "//0xg.1/": None,
        "//0xg/": "http://0xg/",
        "//1.2.3.4./": "http://1.2.3.4/",
        "//1_0.1/": None,
        "//127.0.0.0x1/": "http://127.0.0.1/",
        "//[::1]/": "http://[::1]/",
        "//[::1]:80/": "http://[::1]/",
        "//[2001:DB8:0:0:0:0:0:1]:8080/x": "http://[2001:db8::1]:8080/x",
        "//[::1": None,
        "//[::zz]/": None,
        "//[v1.a:b]/": None,
        "//[::1]x/": None,
        "//[1.2.3.4]/": None,
        "//[::1%25eth0]/": None,
        "//[::1.2.3.4]/": "http://[::102:304]/",
        "//[1:2:3:4:5:6:7:8]/": "http://[1:2:3:4:5:6:7:8]/",
        "//[1:0:0:4:0:0:0:8]/": "http://[1:0:0:4::8]/",
        "//[]/": None,
        "ftp://h/": None,
        "javascript:alert(1)": None,
        "mailto:a@b": None,
        "data:text/html,x": None,
        "file:///etc": None,
        "about:blank": None,
        "httpx://h/": None,
        "tel:+1": None,
        "h+t-t.p:x": None,
        "blob:http://h/x": None,
        "view-source:http://h/": None,
    },
    "https://example.org/foo/bar": {
        "http:/a": "http://a/",
        "http:a": "http://a/",
        "https:/a": "https://example.org/a",
        "https:a": "https://example.org/foo/a",
        "//h/a": "https://h/a",
        "https://h:80/": "https://h:80/",
        "https://h:443/": "https://h/",
        "http://h:443/": "http://h:443/",
    },
    "http://example.org/foo/bar?a=1": {
        "": "http://example.org/foo/bar?a=1",
        "?": "http://example.org/foo/bar?",
        "?b": "http://example.org/foo/bar?b",
        "#x": "http://example.org/foo/bar?a=1",
        "a": "http://example.org/foo/a",
        "/a": "http://example.org/a",
        "./": "http://example.org/foo/",
    },
    "http://e/a//b": {
        "c": "http://e/a//c",
        "../c": "http://e/a/c",
        "../../c": "http://e/c",
        "../../../c": "http://e/c",
        "./c": "http://e/a//c",
        "": "http://e/a//b",
        ".": "http://e/a//",
        "..": "http://e/a/",
        "/c": "http://e/c",
    },
    "http://e/a//": {
        "c": "http://e/a//c",
        "../c": "http://e/a/c",
        "..": "http://e/a/",
    },
    "http://e": {
        "": "http://e/",
        "a": "http://e/a",
        "../a": "http://e/a",
        "?x": "http://e/?x",
        "./?x": "http://e/?x",
    },
    "http://e/a;x/b;y?q": {
        "c": "http://e/a;x/c",
        "?z": "http://e/a;x/b;y?z",
        "": "http://e/a;x/b;y?q",
        "../c;d": "http://e/c;d",
    },
    "http://e/a%2fb/c%2e": {
        "d": "http://e/a%2fb/d",
        "../d": "http://e/d",
        "?x": "http://e/a%2fb/c%2e?x",
    },
    "http://e/a/b/../c": {
        "d": "http://e/a/d",
    },
    "http://[::1]:8080/x/y": {
        "a": "http://[::1]:8080/x/a",
        "//h": "http://h/",
        "/a": "http://[::1]:8080/a",
    },
    "http://user:pw@e:80/x?": {
        "": "http://e/x?",
        "a": "http://e/a",
        "#z": "http://e/x?",
    },
}
CASES = [(base, href, url) for base, some in TABLE.items() for href, url in some.items()]


def resolved(base: str, href: str) -> str | None:
    try:
        return "".join(resolve(href, resolve(base)))
    except UrlError:
        return None


def placed(base: str, href: str) -> str | None:
    """What a link of a page leads to."""
    place = html._Base(base, resolve(base)[0], LENGTH, None).place(href)
    return None if place is None else "".join(place)


@pytest.mark.parametrize(("base", "href", "url"), CASES)
def test_a_link_is_asked_for_as_browsers_ask(base: str, href: str, url: str | None) -> None:
    assert resolved(base, href) == url
    # A fragment of the page itself is no link, wherever it might start from.
    assert placed(base, href) == (None if href.startswith("#") else url)


def test_what_is_asked_for_stays_what_it_is() -> None:
    for url in {url for _, _, url in CASES if url}:
        assert "".join(resolve(url)) == url
        assert url.isascii()
        assert url.isprintable()
        assert " " not in url


# --- Against Node.js --------------------------------------------------------------------------------------

_WORDS = st.sampled_from(
    ["a", "b", "/", "//", "\\", ".", "..", "%2e", "%2F", "%zz", "%", "?", "#", ";", "&", "=", "+", " ", "\t", "\n", "@",
     ":", "[", "]", "|", "`", "{", "}", "'", '"', "<", ">", "~", "\u00e9", "\ud55c", "\x7f", "\x01", "http:", "https:",
     "http://", "HTTP://H", "//h", "h.example", "127.0.0.1", "1.2", "0x7f", ":80", ":443", "./", "../", "-", "_", "$"]
)  # fmt: skip
HREFS = st.lists(_WORDS, max_size=7).map("".join)
BASES = st.sampled_from(
    ["http://example.org/foo/bar?q=1", "https://e/", "http://e/a//b/c;d", "http://h:8080/x/"]
)
_NODE = shutil.which("node")
_ASK_NODE = """
const found = JSON.parse(require("fs").readFileSync(0)).map(([base, href]) => {
  try { const url = new URL(href, base); url.username = url.password = url.hash = ""; return url.href; }
  catch (error) { return null; }
});
console.log(JSON.stringify(found));
"""
_HOST_OF_THE_WEB = re.compile(r"https?://(\[[0-9a-f:]+\]|[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*)\.?(:\d+)?/")


@pytest.mark.skipif(_NODE is None, reason="Node.js is not there")
@given(st.lists(st.tuples(BASES, HREFS), min_size=300, max_size=300))
@settings(max_examples=8, deadline=None)
def test_links_lead_where_those_of_node_lead(cases: list[tuple[str, str]]) -> None:
    assert _NODE
    told = subprocess.run(
        [_NODE, "-e", _ASK_NODE], input=json.dumps(cases), capture_output=True, text=True, check=True
    )
    for (base, href), url in zip(cases, json.loads(told.stdout), strict=True):
        mine = resolved(base, href)
        if url is None or not _HOST_OF_THE_WEB.match(url):
            assert mine is None, (base, href, url)
        else:
            host, slash, rest = url.partition("://")[2].partition("/")
            wanted = f"{url.partition('://')[0]}://{re.sub(r'[.](?=:|$)', '', host)}{slash}{rest}"
            # Node.js drops the mark of an empty query of what a link starts from.
            assert mine == wanted, (base, href)


# --- Properties -------------------------------------------------------------------------------------------


@given(base=BASES, href=st.one_of(HREFS, st.text(max_size=40)))
@settings(max_examples=400, deadline=None)
def test_the_short_way_is_the_long_one(base: str, href: str) -> None:
    if not href.strip(" \t\n\f\r").startswith("#"):
        assert placed(base, href) == resolved(base, href)


@given(href=HREFS)
@settings(max_examples=400, deadline=None)
def test_every_spelling_of_a_page_names_it(href: str) -> None:
    """The name of a page is one of its spellings, and means no other."""
    url = resolved("http://example.org/foo/bar?q=1", href)
    if url is not None:
        site, page = split_page(url)
        assert page == page_of(page)
        assert resolve(site + page) == (site, page)


@pytest.mark.parametrize(
    "text",
    ["../" * 300_000, "a/" * 300_000 + "../" * 300_000, "\\" * 900_000, "%2e%2e/" * 100_000, "@" * 900_000,
     "[" * 900_000, "//" + "a." * 400_000, "//" + "9" * 900_000, "?" * 900_000, "#" * 900_000, "\ud55c" * 300_000,
     "\t" * 900_000],
    ids=["up", "down and up", "backslashes", "escaped", "users", "brackets", "labels", "number", "queries", "fragments",
         "escapes", "tabs"],
)  # fmt: skip
def test_long_ones_take_time_that_grows_with_them(text: str) -> None:
    def all_ways(text: str) -> None:
        for href in (text, f"http://h/{text}", f"http://h{text}", f"?{text}"):
            resolved("http://example.org/foo/", href)

    middle, eighth = len(text) // 2, len(text) // 8
    assert growth(all_ways, text, text[:eighth] + text[middle : middle + eighth]) < STEEP


def test_a_query_is_escaped_in_the_encoding_of_its_page_and_a_path_never() -> None:
    base = resolve("http://example.org/")
    assert resolve("/\ud55c?\ud55c", base, "cp949") == ("http://example.org", "/%ED%95%9C?%C7%D1")
    # Nor one whose letters the encoding does not have.
    assert resolve("?\ud55c", base, "latin-1") == ("http://example.org", "/?%ED%95%9C")
