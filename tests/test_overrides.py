"""Single sites that are asked otherwise than all others: what is sent to them, and that nobody else gets it."""

from __future__ import annotations

import pytest
from scrapy import Request
from scrapy.http import Response

from crawler.agent.overrides import LONGEST_COOKIE, MOST_COOKIES, PLAIN, Overrides, SiteSession
from crawler.options import OptionError, SiteOverride
from tests.crawling import Place, check_delay
from tests.servers import RunningServer
from tests.small_site import Reply, SmallSite, links, moved
from tests.test_options import read
from tests.told import outcomes

PAGES = 9
ROBOTS = "User-agent: special\nDisallow: /no\n"


# --- Which entry holds ------------------------------------------------------------------------------------


def test_the_most_precise_entry_holds() -> None:
    keys = ["https://a.example.org", "a.example.org", ".Example.org", ".org", "http://[::1]:80"]
    entries = {key: SiteOverride(headers={"X-Key": key}) for key in keys}
    found = Overrides(entries)

    def key_of(site: str) -> str | None:
        return found.of(site).headers.get("X-Key")

    assert key_of("https://a.example.org") == keys[0]
    assert key_of("http://a.example.org") == keys[1]
    assert key_of("https://a.example.org:8443") == keys[1]
    assert key_of("https://b.a.example.org") == keys[2]
    assert key_of("https://example.org") == keys[2]
    assert key_of("https://badexample.org") == keys[3]
    assert key_of("http://[::1]") == keys[4]
    assert key_of("https://example.com") is None
    assert Overrides({}).of("https://example.org") is PLAIN


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"http://": {}}, "SITE_OVERRIDES names 'http://'"),
        ({"a b": {}}, "SITE_OVERRIDES names 'a b'"),
        (
            {"a.org:8080": {}},
            "names 'a.org:8080', a host with a port; expected a site like http://a.org:8080",
        ),
        ({".a.org:80": {}}, "names '.a.org:80', a host with a port"),
        ({"https://a.org/path": {}}, "names 'https://a.org/path'; expected https://a.org"),
        ({"a.org/path": {}}, "names 'a.org/path'; expected a.org"),
        ({"a.org?x": {}}, "expected a.org"),
        ({"a.org#x": {}}, "expected a.org"),
        ({"http://me@a.org": {}}, "expected http://a.org"),
        ({"A.org": {}, "a.org": {}}, "names 'A.org' and 'a.org', both for a.org; expected only one of them"),
        (
            {"https://a.org": {}, "https://a.org:443/": {}},
            "both for https://a.org; expected only one of them",
        ),
        ('{"a.org": {"connections": 1}, "a.org": {}}', "has 'a.org' twice; expected each key once"),
        (
            {"a.org": {"proxy": "http://127.0.0.1:99999"}},
            "the proxy for 'a.org': 'http://127.0.0.1:99999' is no proxy",
        ),
        (
            {"a.org": {"proxy": "me:secret@h:http"}},
            "'http://***@h:http' is no proxy; expected SCHEME://HOST:PORT",
        ),
        (
            {"a.org": {"proxy": "gopher://127.0.0.1:70"}},
            "expected SCHEME://HOST:PORT, SCHEME one of http, https, socks4",
        ),
        (
            {"a.org": {"headers": {"Cookie": "a=b"}}},
            "has the header 'Cookie' for 'a.org'; expected `cookies`",
        ),
        ({"a.org": {"headers": {"host": "b.org"}}}, "has the header 'host' for 'a.org'"),
        (
            {"a.org": {"delay": 3}},
            "expected some of headers, cookies, delay_seconds, connections, proxy, and no delay",
        ),
        ({"a.org": {"delay_seconds": -1}}, "expected a number >= 0.0 in delay_seconds"),
        ({"a.org": {"connections": 0}}, "in connections"),
        ("{", "expected a mapping"),
    ],
)
def test_an_entry_that_can_hold_for_no_site_is_told(given: object, says: str) -> None:
    with pytest.raises(OptionError) as caught:
        Overrides(read(SITE_OVERRIDES=given).site_overrides)
    assert "SITE_OVERRIDES" in str(caught.value)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "proxy", ["127.0.0.1", "127.0.0.1:8080", "http://me:secret@[::1]:8080", "socks5h://proxy.example:1080/"]
)
def test_proxies_that_can_be_asked(proxy: str) -> None:
    assert Overrides({"a.org": SiteOverride(proxy=proxy)}).of("http://a.org").proxy == proxy


def test_keys_that_overlap_are_not_the_same() -> None:
    keys = ["a.org", ".a.org", "http://a.org", "https://a.org", "http://a.org:8080"]
    found = Overrides({key: SiteOverride(headers={"X-Key": key}) for key in keys})
    assert found.of("http://a.org:8080").headers["X-Key"] == keys[4]
    assert found.of("http://a.org:81").headers["X-Key"] == keys[0]


def test_a_wrong_entry_ends_the_crawl_at_start(place: Place) -> None:
    run = place.crawl(["http://127.0.1.1:9/"], SITE_OVERRIDES={"a b": {}})
    run.refused("SITE_OVERRIDES names 'a b'", code=2)


# --- What requests wear -----------------------------------------------------------------------------------


def test_a_users_own_words_stay() -> None:
    override = SiteOverride(headers={"X-Ask": "all"}, cookies={}, proxy="http://127.0.0.1:1")
    site_session = SiteSession("http://a.example", override, "lowtide")
    request = Request(
        "http://a.example/x",
        headers={"X-Ask": "mine"},
        cookies=[{"name": "one", "value": "1"}],
        meta={"proxy": "http://127.0.0.1:2"},
    )
    site_session.apply(request)
    assert request.headers["X-Ask"] == b"mine"
    assert request.headers["Cookie"] == b"one=1"
    assert request.meta["proxy"] == "http://127.0.0.1:2"


def test_cookies_stay_with_their_site() -> None:
    site_session = SiteSession("http://a.example", SiteOverride(cookies={"given": "1"}), "lowtide")
    asked = Request("http://a.example/login")
    lines = ["session=2; Path=/", "deep=3; Path=/deep/", "other=4; Domain=b.example"]
    site_session.take_in(Response(asked.url, headers={"Set-Cookie": lines}, request=asked))

    def sent(url: str) -> set[bytes]:
        request = Request(url)
        site_session.apply(request)
        return set((request.headers.get("Cookie") or b"").split(b"; ")) - {b""}

    assert sent("http://a.example/") == {b"given=1", b"session=2"}
    assert sent("http://a.example/deep/x") == {b"given=1", b"session=2", b"deep=3"}
    assert sent("http://b.example/") == set()


def test_a_site_may_set_so_many_cookies_only() -> None:
    """Held they take memory, and each answer would take longer than the one before."""
    for override in (PLAIN, SiteOverride(cookies={"given": "1"})):
        site_session = SiteSession("http://a.example", override, "lowtide")

        def answer(*lines: str, site_session: SiteSession = site_session) -> None:
            asked = Request("http://a.example/")
            site_session.take_in(
                Response(asked.url, status=302, headers={"Set-Cookie": [*lines]}, request=asked)
            )

        answer("first=1", f"long={'x' * LONGEST_COOKIE}")
        for number in range(10):
            answer(*(f"c{number}-{one}=x" for one in range(100)))
        times = site_session.cookies
        answer("one-more=1")
        assert site_session.cookies == times, "nothing new to send"
        answer("first=2")
        assert site_session.cookies == times + 1
        site_session.wear()
        request = Request("http://a.example/")
        site_session.apply(request)
        sent = (request.headers.get("Cookie") or b"").split(b"; ")
        assert len(sent) == MOST_COOKIES
        assert b"first=2" in sent
        assert (b"given=1" in sent) == (override is not PLAIN)
        assert not any(one.startswith(b"long") for one in sent)


# --- In a crawl -------------------------------------------------------------------------------------------


def site(host: str, seconds: float) -> SmallSite:
    """Pages that link to each other, take a while, and set a cookie."""
    body = links(*(f"/{number}" for number in range(PAGES)), "/no").body
    session = {"Set-Cookie": "session=abc; Path=/"}
    routes = {
        "/robots.txt": Reply(200, {"Content-Type": "text/plain", **session}, ROBOTS),
        "*": Reply(200, {"Content-Type": "text/html", **session}, body, seconds),
    }
    return SmallSite(routes, host)


def test_one_site_is_asked_otherwise(place: Place, valkey: RunningServer) -> None:
    override = {
        "headers": {"X-Ask": "please", "User-Agent": "special/1.0 (+https://example.org/bot)"},
        "cookies": {"given": "1"},
        "delay_seconds": 0.4,
        "connections": 3,
    }
    with site("127.0.1.1", 1.0) as one, site("127.0.1.2", 0.05) as two:
        place.crawl(
            [one.root, two.root],
            REDIS_URL=valkey.url,
            FIND_ALIASES=False,
            SITE_OVERRIDES={"127.0.1.1": override},
        ).succeeded()
    assert set(one.paths) == {"/robots.txt", "/", *(f"/{number}" for number in range(PAGES))}
    assert set(two.paths) == {*one.paths, "/no"}  # its rules forbid it to `special` alone
    for asked in one.log:
        assert (asked.fields["X-Ask"], asked.fields["User-Agent"][:11]) == ("please", "special/1.0"), asked
        wanted = {"given=1"} if asked.path == "/robots.txt" else {"given=1", "session=abc"}
        assert set(asked.fields["Cookie"].split("; ")) == wanted, asked
    for asked in two.log:
        assert not {"X-Ask", "Cookie"} & set(asked.fields)
        assert asked.fields["User-Agent"] == "lowtide"
    assert 1 < one.most <= 3
    check_delay([asked.at for asked in one.log if asked.path != "/robots.txt"], 0.4)
    assert two.most == 1


def test_one_site_is_asked_through_a_proxy(place: Place, valkey: RunningServer) -> None:
    """The site with the proxy does not answer itself, and need not."""
    with site("127.0.1.1", 0.0) as proxy, site("127.0.1.2", 0.0) as plain:
        place.crawl(
            ["http://127.0.1.9:9/", plain.root],
            REDIS_URL=valkey.url,
            SITE_OVERRIDES={"http://127.0.1.9:9": {"proxy": proxy.site}},
            MAX_PAGES_PER_SITE=3,
        ).succeeded()
        assert set(proxy.paths) >= {"http://127.0.1.9:9/", "http://127.0.1.9:9/robots.txt"}
        assert all(path.startswith("/") for path in plain.paths)
        assert outcomes(valkey)["http://127.0.1.9:9/"] == "stored"


def test_a_stranger_gets_nothing_that_is_the_sites(place: Place, valkey: RunningServer) -> None:
    """Two sites send us to a third one for their robots.txt; what it is asked with is none of theirs."""
    with SmallSite({}, "127.0.1.3") as stranger:
        rules = {
            "127.0.1.1": moved(f"{stranger.site}/asked-by-one.txt"),
            "127.0.1.2": moved(f"{stranger.site}/asked-by-two.txt"),
        }
        with (
            SmallSite({"/robots.txt": rules["127.0.1.1"], "*": links()}, "127.0.1.1") as one,
            SmallSite({"http://127.0.1.2/robots.txt": rules["127.0.1.2"], "*": links()}) as proxy,
        ):
            overrides = {
                "127.0.1.1": {"headers": {"Authorization": "Bearer secret"}, "cookies": {"key": "secret"}},
                "127.0.1.2": {"proxy": proxy.site},
            }
            given = {"REDIS_URL": valkey.url, "SITE_OVERRIDES": overrides}
            place.crawl([one.root, "http://127.0.1.2/"], **given).succeeded()
        assert {asked.fields["Authorization"] for asked in one.log} == {"Bearer secret"}
        assert proxy.paths == ["http://127.0.1.2/robots.txt", "http://127.0.1.2/"]
        assert sorted(stranger.paths) == ["/asked-by-one.txt", "/asked-by-two.txt"]
        assert [asked for asked in stranger.log if {"Authorization", "Cookie"} & set(asked.fields)] == []
