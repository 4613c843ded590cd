"""What a robots.txt allows, by RFC 9309's rules and by the files that are really out there."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from protego import Protego

from crawler.fetch import errors
from crawler.robots import rules as robots_file
from crawler.robots.policy import ADDRESS_REFUSED, EVERYTHING, UNAVAILABLE, Rules, product, rules
from crawler.urls.url import split_page
from tests.costs import STEEP, growth, ratio
from tests.crawling import ROOT, Place
from tests.servers import RunningServer
from tests.small_site import SmallSite, links, text
from tests.told import outcomes

SITE = "https://example.org"
MOST = 500_000


def read(text: str | bytes, most_bytes: int = MOST) -> Rules:
    return rules(200, text if isinstance(text, bytes) else text.encode(), SITE, "lowtide", most_bytes)


def allowed(text: str | bytes, path: str) -> bool:
    return read(text).allows(SITE + path, "lowtide")


@pytest.mark.parametrize(
    ("rule", "forbidden"),
    [
        ("https://staging.example.net/", False),
        ("https://staging.example.net", False),
        ("http://cdn.example.org/a", False),
        ("HTTPS://Other.Test:8443/a?b", False),
        ("https://user:secret@other.test/a", False),
        ("https://한글.kr/a", False),
        ("https://example.org/a", True),
        ("http://www.example.org:80/a", True),
        ("https://Example.ORG./a", True),
        ("https://user@example.org/", True),
        ("https://example.org?b", False),
        # What no host can be is an error of the file, and the reading that forbids more counts.
        ("https:///a", True),
        ("https://a..b/a", True),
    ],
)
def test_a_rule_of_another_host_says_nothing_of_this_one(rule: str, forbidden: bool) -> None:
    assert allowed(f"User-agent: *\nDisallow: {rule}\n", "/a") is not forbidden
    # It is a rule all the same: the names behind it are of another group.
    both = f"User-agent: other\nDisallow: {rule}\nUser-agent: lowtide\nDisallow: /b\n"
    assert allowed(both, "/a")
    assert not allowed(both, "/b")


# --- By status --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 201, 204, 299])
def test_an_answer_is_read(status: int) -> None:
    found = rules(status, b"User-agent: *\nDisallow: /a", SITE, "lowtide", MOST)
    assert found.available
    assert not found.allows(f"{SITE}/a", "lowtide")
    assert found.allows(f"{SITE}/b", "lowtide")


@pytest.mark.parametrize("status", [301, 304, 307, 400, 401, 403, 404, 410, 451, 499])
def test_no_file_allows_everything(status: int) -> None:
    found = rules(status, b"User-agent: *\nDisallow: /", SITE, "lowtide", MOST)
    assert found == EVERYTHING
    assert found.allows(f"{SITE}/a", "lowtide")


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 599, *range(-1, -10, -1), -11, -12, -13])
def test_no_answer_allows_nothing_for_now(status: int) -> None:
    found = rules(status, b"User-agent: *\nAllow: /", SITE, "lowtide", MOST)
    assert found == UNAVAILABLE
    assert not found.allows(f"{SITE}/a", "lowtide")


def test_a_refused_address_is_left_to_the_pages_to_tell() -> None:
    assert errors.status_code_of(errors.AddressRefusedError()) == ADDRESS_REFUSED
    assert rules(ADDRESS_REFUSED, b"", SITE, "lowtide", MOST) == EVERYTHING


# --- Whose rules ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("user_agent", "name"),
    [
        ("lowtide", "lowtide"),
        ("lowtide (+https://example.org/bot)", "lowtide"),
        ("mybot/1.0 (+https://example.org/bot)", "mybot"),
        ("Mozilla/5.0 (compatible; mybot)", "mybot"),
        ("Mozilla/5.0 (X11) Gecko (compatible;mybot/2.1; +https://example.org)", "mybot"),
        ("Mozilla/5.0 (X11; Linux)", "Mozilla"),
        ("", "*"),
        (" x", "*"),
    ],
)
def test_the_name_that_files_know_us_by(user_agent: str, name: str) -> None:
    assert product(user_agent) == name


@pytest.mark.parametrize(
    "text",
    [
        "User-agent: *\nDisallow: /",
        "User-agent: lowtide\nDisallow: /",
        "USER-AGENT: LowTide\nDISALLOW: /",
        "  user-agent : lowtide  # us\n  disallow :  /  # all",
        "User-agent: lowtide/2.1\nDisallow: /",
        "User-agent: *\nAllow: /\n\nUser-agent: lowtide\nDisallow: /",
        "User-agent: other\nUser-agent: lowtide\nDisallow: /",
        "User-agent: lowtide\nDisallow: /b\n\nUser-agent: lowtide\nDisallow: /",
        "\ufeffUser-agent: *\nDisallow: /",
        "User-agent: *\rDisallow: /\r",
        "User-agent: *\r\nDisallow: /\r\n",
        "Sitemap: https://example.org/s.xml\nUser-agent: *\nNo-such-thing: x\nDisallow: /",
        "<html>\nUser-agent: *\nDisallow: /",
    ],
)
def test_rules_for_us(text: str) -> None:
    assert not allowed(text, "/a")
    assert allowed(text, "/robots.txt")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\0\xff",
        "Disallow: /",
        "User-agent: *",
        "User-agent: *\nDisallow:",
        "User-agent: other\nDisallow: /",
        "User-agent: lowtidebot\nDisallow: /",
        "User-agent: *\nDisallow: /\n\nUser-agent: lowtide\nDisallow:",
        "User-agent: *\nDisallow: /\n\nUser-agent: lowtide/2.1 (x)\nAllow: /",
        "#User-agent: *\n#Disallow: /",
        "<!doctype html><title>Not found</title>",
    ],
)
def test_no_rules_for_us(text: str) -> None:
    assert allowed(text, "/a")


# --- Which pages ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "forbidden", "free"),
    [
        ("Disallow: /a", ["/a", "/ab", "/a/b", "/a?x"], ["/", "/A", "/b/a"]),
        ("Disallow: /a/", ["/a/", "/a/b"], ["/a", "/ab"]),
        ("Disallow: /*.gif$", ["/x.gif", "/a/b.gif"], ["/x.gif?y", "/x.gifs"]),
        ("Disallow: /*?", ["/?x", "/a?"], ["/a"]),
        ("Disallow: /a\nAllow: /a/b", ["/a", "/a/c"], ["/a/b", "/a/b/c"]),
        ("Allow: /a\nDisallow: /a", [], ["/a"]),
        ("Disallow: /\nAllow: /$", ["/a"], ["/"]),
        ("Disallow: /%ED%95%9C", ["/%ED%95%9C"], ["/%ED%95"]),
        ("Disallow: /\ud55c", ["/%ED%95%9C"], ["/a"]),
        ("Disallow: /a%3Cb", ["/a%3Cb", "/a%3cb"], ["/a"]),
        ("Disallow: /x?b=1", ["/x?b=1", "/x?b=12", "/x?a=2&b=1"], ["/x?a=2", "/x"]),
    ],
)
def test_the_longest_rule_wins(lines: str, forbidden: list[str], free: list[str]) -> None:
    text = f"User-agent: *\n{lines}\n"
    assert [path for path in forbidden if allowed(text, path)] == []
    assert [path for path in free if not allowed(text, path)] == []


# --- Delay ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("", None),
        ("User-agent: *\nDisallow: /", None),
        ("User-agent: *\nCrawl-delay: 5", 5.0),
        ("User-agent: *\ncrawl-delay: 0.5", 0.5),
        ("User-agent: *\nCrawl-delay: 0", 0.0),
        ("User-agent: *\nCrawl-delay: 100000", 100_000.0),
        ("User-agent: *\nCrawl-delay: 10 s", 10.0),
        ("User-agent: *\nCrawl-delay: 10sec.  # please", 10.0),
        ("User-agent: *\nCrawl-delay: 1,5", 1.5),
        ("User-agent: *\nCrawl-delay: .5", 0.5),
        ("User-agent: *\nCrawl-delay: 2 Minutes", 120.0),
        ("User-agent: *\nCrawl-delay: 500ms", 0.5),
        ("User-agent: *\nCrawl delay: 7", 7.0),
        ("User-agent: *\nCrawl-delay: 2\nCrawl-delay: 7\nCrawl-delay: 3", 7.0),
        ("User-agent: *\nRequest-rate: 1/10", 10.0),
        ("User-agent: *\nRequest-rate: 30/1m 0600-0845", 2.0),
        ("User-agent: *\nRequest-rate: 0/10", None),
        ("User-agent: *\nCrawl-delay: 3\nRequest-rate: 1/10", 10.0),
        ("User-agent: other\nCrawl-delay: 9\nUser-agent: *\nCrawl-delay: 2", 2.0),
        ("User-agent: *\nCrawl-delay: 9\n\nUser-agent: lowtide\nCrawl-delay: 2", 2.0),
        ("User-agent: *\nCrawl-delay: 9\n\nUser-agent: lowtide\nDisallow:", None),
        ("User-agent: other\nCrawl-delay: 9", None),
        *(
            (f"User-agent: *\nCrawl-delay: {text}", None)
            for text in ("", "soon", "-3", "nan", "inf", "1e999", "1/5", "1 2", "5 apples")
        ),
    ],
)
def test_the_delay_that_is_asked_for(text: str, seconds: float | None) -> None:
    assert read(text).crawl_delay == seconds


# --- Size and hostile files -------------------------------------------------------------------------------


def test_a_rule_that_the_limit_cuts_is_left_out() -> None:
    start = "User-agent: *\nDisallow: /a\n"
    text = f"{start}Disallow: /behind\n"
    for most in range(len(start), len(text)):
        found = read(text, most)
        assert not found.allows(f"{SITE}/a", "lowtide")
        assert found.allows(f"{SITE}/b", "lowtide")
        assert found.allows(f"{SITE}/behind", "lowtide"), most
    assert not read(text, len(text)).allows(f"{SITE}/behind", "lowtide")
    # A line without an end, longer than all that is read, says nothing.
    assert read("Disallow: /" * 100, 50).allows(f"{SITE}/", "lowtide")
    assert not read("User-agent: *\rDisallow: /a\rDisallow: /b", 30).allows(f"{SITE}/a", "lowtide")


def test_a_file_above_the_size_of_pages_is_read_as_far_as_it_goes(
    place: Place, valkey: RunningServer
) -> None:
    """And whatever is behind that does not count."""
    rules = "User-agent: *\nDisallow: /no\n" + "#\n" * 2000 + "Disallow: /behind\n"
    with SmallSite({"/robots.txt": text(rules), "*": links("/no", "/yes", "/behind")}) as site:
        given = {"DOWNLOAD_MAXSIZE": 1000, "ROBOTS_MAX_BYTES": 3000}
        place.crawl([site.root], REDIS_URL=valkey.url, **given).succeeded()
    assert site.pages == {"/": 1, "/yes": 1, "/behind": 1}
    assert outcomes(valkey)[f"{site.site}/no"] == "denied"


_LINES = st.sampled_from(
    b"User-agent:|*|lowtide|\n|\r\n|Disallow:|Allow:| /|%|%zz|$|#|:|Crawl-delay:|Request-rate:|Visit-time:|1/0|9999-1"
    b"|Sitemap:|Host:|\xff|\0".split(b"|")
)


@given(st.lists(st.one_of(_LINES, st.binary(max_size=4)), max_size=40).map(b"".join), st.integers(0, 200))
@example(b"User-agent: *\nDisallow: /\xff%\xed", 500)
@settings(max_examples=200, deadline=None)
def test_no_file_does_harm(body: bytes, most: int) -> None:
    found = rules(200, body, SITE, "lowtide", most)
    assert found.available
    assert found.crawl_delay is None or found.crawl_delay >= 0
    found.allows(f"{SITE}/%ED%95?%zz", "lowtide")


# Bytes as long as the longest file that is read; the first line makes all others count for us.
BIG = {
    "rules": b"".join(b"Disallow: /p%d\n" % number for number in range(40_000)),
    "one rule": b"Disallow:/\n" * 50_000,
    "lengths": b"".join(b"Disallow: /" + b"z" * length + b"\n" for length in range(1_000)),
    "wildcards": b"".join(b"Disallow: /*a*a*a*a*%db\n" % number for number in range(20_000)),
    "a rule of wildcards": b"Disallow: /" + b"*a" * MOST,
    "stars": b"Disallow: /" + b"*" * MOST,
    "queries": b"".join(b"Disallow: /*?a=1&b=%d*c*d\n" % number for number in range(20_000)),
    "agents": b"".join(b"User-agent:a%d\n" % number for number in range(40_000)),
    "all agents": b"User-agent:*\n" * 50_000,
    "names": b"User-agent: " + b"a " * MOST,
    "paths": b"Disallow: " + b"/a " * MOST,
    "blanks": b" " * MOST,
    "names without values": b"disallow " * 100_000,
    "tags": b"<p" * MOST,
    "tags without end": b"<p " * MOST,
    "comments": b"#" * MOST,
    "escapes": b"Disallow: /" + b"%41" * MOST,
}
# What one may take of the time of an ordinary file of the same size.
TIMES_THE_ORDINARY = 7.0


@pytest.mark.parametrize("name", BIG)
def test_a_hostile_file_is_read_and_asked_in_bounded_time(name: str) -> None:
    body = (b"User-agent: *\n" + BIG[name])[:MOST]
    quarter, ordinary = body[: MOST // 4], (b"User-agent: *\n" + BIG["rules"])[:MOST]
    assert growth(read, body, quarter) < STEEP
    assert ratio(lambda: read(body), lambda: read(ordinary), TIMES_THE_ORDINARY) < TIMES_THE_ORDINARY
    found, few, rules = map(read, (body, quarter, ordinary))
    assert growth(ask, found, few) < STEEP
    assert ratio(lambda: ask(found), lambda: ask(rules), TIMES_THE_ORDINARY) < TIMES_THE_ORDINARY


def ask(found: Any) -> None:
    for _ in range(10):
        found.allows(f"{SITE}/{'a' * 2_000}", "lowtide")
        found.allows(f"{SITE}/{'a' * 500}?{'&'.join('a=1' for _ in range(300))}", "lowtide")


def test_the_most_wildcards_that_are_followed_cost_little() -> None:
    rules = (b"Disallow: /*a*a*a*a*%d\n" % number for number in range(robots_file.MOST_WILDCARDS // 6))
    found = read(b"User-agent: *\n" + b"".join(rules))

    def asked(length: int) -> None:
        assert all(found.allows(f"{SITE}/{'a' * length}", "lowtide") for _ in range(10))

    assert growth(asked, 2_000, 500) < STEEP


def test_what_comes_behind_the_most_wildcards_forbids_more_and_not_less() -> None:
    many = "".join(f"Disallow: /x{number}/*a\n" for number in range(robots_file.MOST_WILDCARDS // 2))
    text = f"User-agent: *\n{many}Disallow: /no/*.pdf\nAllow: /no/*.html\nDisallow: /b\n"
    found = read(text)
    free = ("/x1/b", "/a", "/nobody")
    forbidden = ("/x1/a", "/no/x.pdf", "/no/x.html", "/no/", "/b")
    assert [path for path in free if not found.allows(SITE + path, "lowtide")] == []
    assert [path for path in forbidden if found.allows(SITE + path, "lowtide")] == []


# --- Beside Protego ---------------------------------------------------------------------------------------

_PATHS = st.lists(
    st.sampled_from(["/", "a", "b", "*", "?", "=", "&", "%2F", "%61", "한", "%C3%A9", ".", "~"]), max_size=4
)
_RULES = st.builds(
    "{}: {}{}".format,
    st.sampled_from(["Disallow", "Allow"]),
    st.sampled_from(["/", "/", ""]),
    _PATHS.map("".join),
)
_GROUPS = st.builds("User-agent: {}".format, st.sampled_from(["*", "lowtide", "other"]))


@given(
    st.lists(st.one_of(_RULES, _GROUPS), max_size=8).map("\n".join), st.lists(_PATHS.map("".join), max_size=6)
)
@settings(max_examples=300, deadline=None)
def test_nothing_is_allowed_that_protego_forbids(text: str, paths: list[str]) -> None:
    """But where Protego is wrong: docs/robots.md has those cases."""
    theirs, ours = Protego.parse(text), read(text)
    for path in paths:
        url = "".join(split_page(f"{SITE}/{path}"))
        assert theirs.can_fetch(url, "lowtide") or not ours.allows(url, "lowtide"), url


# --- The page for owners ----------------------------------------------------------------------------------

_ROW = re.compile(r"^\| (.+?) \| `(.*?)` \| `(.*?)` \| (.*?) \| (.*?) \| (.*?) \|$", re.MULTILINE)
CASES = _ROW.findall((ROOT / "docs/robots.md").read_text(encoding="utf-8"))
WORD = {True: "allowed", False: "forbidden"}


@pytest.mark.parametrize("row", CASES, ids=[row[0] for row in CASES])
def test_the_page_tells_what_is_so(row: tuple[str, ...]) -> None:
    _, written, path, rfc, protego, lowtide = row
    body = written.encode().decode("unicode_escape").encode("latin-1")
    assert lowtide.strip("*") == WORD[allowed(body, path)]
    parsed = Protego.parse(body.decode("utf-8-sig", "replace"))
    assert protego == WORD[parsed.can_fetch(SITE + path, "lowtide")]
    assert rfc in ("allowed", "forbidden", "not said")
    # What the RFC forbids is never fetched; bold is what Protego would fetch.
    assert rfc != "forbidden" or lowtide.strip("*") == "forbidden"
    assert lowtide.startswith("**") == (lowtide.strip("*") == "forbidden" and protego == "allowed")


def test_the_page_has_its_rows() -> None:
    assert len(CASES) >= 60
