"""Single sites that are asked otherwise than all others: what is sent to them, and that nobody else gets it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from scrapy import Request
from scrapy.http import Response

from crawler.agent.overrides import PLAIN, Dress, Overrides
from crawler.options import OptionError, SiteOverride
from tests.crawling import Place, Run
from tests.raw_server import Exchange, RawServer, in_loop
from tests.test_options import read

PAGES = 9
ROBOTS = b"User-agent: special\nDisallow: /no\n"


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
        ({"a.org": {"headers": {"Cookie": "a=b"}}}, "has the header 'Cookie' for 'a.org'; wanted `cookies`"),
        ({"a.org": {"headers": {"host": "b.org"}}}, "has the header 'host' for 'a.org'"),
        ({"a.org": {"delay": 3}}, "wanted no field delay"),
        ({"a.org": {"delay_seconds": -1}}, "wanted a number >= 0.0 in delay_seconds"),
        ({"a.org": {"connections": 0}}, "in connections"),
        ("{", "wanted a mapping"),
    ],
)
def test_an_entry_that_can_hold_for_no_site_is_told(given: object, says: str) -> None:
    with pytest.raises(OptionError) as caught:
        Overrides(read(SITE_OVERRIDES=given).site_overrides)
    assert "SITE_OVERRIDES" in str(caught.value)
    assert says in str(caught.value)


def test_a_wrong_entry_ends_the_crawl_at_start(place: Place) -> None:
    run = place.crawl(["http://127.0.1.1:9/"], SITE_OVERRIDES={"a b": {}})
    run.refused("SITE_OVERRIDES names 'a b'", code=2)


# --- What requests wear -----------------------------------------------------------------------------------


def test_a_users_own_words_stay() -> None:
    override = SiteOverride(headers={"X-Ask": "all"}, cookies={}, proxy="http://127.0.0.1:1")
    dress = Dress("http://a.example", override, "lowtide")
    request = Request(
        "http://a.example/x",
        headers={"X-Ask": "mine"},
        cookies=[{"name": "one", "value": "1"}],
        meta={"proxy": "http://127.0.0.1:2"},
    )
    dress.put_on(request)
    assert request.headers["X-Ask"] == b"mine"
    assert request.headers["Cookie"] == b"one=1"
    assert request.meta["proxy"] == "http://127.0.0.1:2"


def test_cookies_stay_with_their_site() -> None:
    dress = Dress("http://a.example", SiteOverride(cookies={"given": "1"}), "lowtide")
    asked = Request("http://a.example/login")
    lines = ["session=2; Path=/", "deep=3; Path=/deep/", "other=4; Domain=b.example"]
    dress.take_in(Response(asked.url, headers={"Set-Cookie": lines}, request=asked))

    def sent(url: str) -> set[bytes]:
        request = Request(url)
        dress.put_on(request)
        return set((request.headers.get("Cookie") or b"").split(b"; ")) - {b""}

    assert sent("http://a.example/") == {b"given=1", b"session=2"}
    assert sent("http://a.example/deep/x") == {b"given=1", b"session=2", b"deep=3"}
    assert sent("http://b.example/") == set()


# --- In a crawl -------------------------------------------------------------------------------------------


class Asked:
    """A small site of pages that link to each other: what was asked, when, and how much at a time."""

    def __init__(self, seconds: float) -> None:
        self.heads: dict[str, dict[str, str]] = {}  # path -> header fields
        self.started: list[float] = []
        self.at_a_time = self.most = 0
        self._seconds = seconds

    async def serve(self, exchange: Exchange) -> None:
        while True:
            head = (await exchange.request()).decode("latin-1")
            path = head.split()[1]
            self.heads[path] = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
            self.at_a_time += 1
            self.most = max(self.most, self.at_a_time)
            if path != "/robots.txt":
                self.started.append(time.monotonic())
                await asyncio.sleep(self._seconds)
            self.at_a_time -= 1
            await exchange.send(self._answer(path))

    @staticmethod
    def _answer(path: str) -> bytes:
        links = "".join(f"<a href=/{number}>x</a>" for number in range(PAGES)) + "<a href=/no>no</a>"
        body = ROBOTS if path == "/robots.txt" else links.encode()
        kind = b"text/plain" if path == "/robots.txt" else b"text/html"
        return (
            b"HTTP/1.1 200 OK\r\nSet-Cookie: session=abc; Path=/\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s"
            % (kind, len(body), body)
        )

    def least_distance(self) -> float:
        return min(b - a for a, b in zip(self.started, self.started[1:], strict=False))


async def crawl(place: Place, *servers: RawServer, **given: object) -> Run:
    seeds = [f"http://{server.host}:{server.port}/" for server in servers]
    return (await asyncio.to_thread(place.crawl, seeds, **given)).succeeded()


def on_two_sites(scene: Callable[..., Awaitable[None]]) -> Callable[[Path], None]:
    """A test over two sites whose answers take a while, and a folder."""

    @in_loop
    async def test(tmp_path: Path) -> None:
        special, plain = Asked(0.3), Asked(0.05)
        with Place(tmp_path) as place:
            async with (
                RawServer(special.serve, host="127.0.1.1") as one,
                RawServer(plain.serve, host="127.0.1.2") as two,
            ):
                await scene(place, (special, one), (plain, two))

    return test


@on_two_sites
async def test_one_site_is_asked_otherwise(
    place: Place, special: tuple[Asked, RawServer], plain: tuple[Asked, RawServer]
) -> None:
    override = {
        "headers": {"X-Ask": "please", "User-Agent": "special/1.0 (+https://example.org/bot)"},
        "cookies": {"given": "1"},
        "delay_seconds": 0.1,
        "connections": 3,
    }
    await crawl(
        place,
        special[1],
        plain[1],
        DOWNLOAD_DELAY=0,
        FIND_ALIASES=False,
        SITE_OVERRIDES={"127.0.1.1": override},
    )
    one, two = special[0], plain[0]
    assert set(one.heads) == {"/robots.txt", "/", *(f"/{number}" for number in range(PAGES))}
    assert set(two.heads) == {*one.heads, "/no"}  # its rules forbid it to `special` alone
    for path, fields in one.heads.items():
        assert (fields["X-Ask"], fields["User-Agent"][:11]) == ("please", "special/1.0"), path
        wanted = {"given=1"} if path == "/robots.txt" else {"given=1", "session=abc"}
        assert set(fields["Cookie"].split("; ")) == wanted, path
    for fields in two.heads.values():
        assert not {"X-Ask", "Cookie"} & set(fields)
        assert fields["User-Agent"] == "lowtide"
    assert 1 < one.most <= 3
    assert one.least_distance() >= 0.095
    assert two.most == 1


@on_two_sites
async def test_one_site_is_asked_through_a_proxy(
    place: Place, proxy: tuple[Asked, RawServer], plain: tuple[Asked, RawServer]
) -> None:
    """The site with the proxy does not answer itself, and need not."""
    url = f"http://{proxy[1].host}:{proxy[1].port}"
    seeds = ["http://127.0.1.9:9/", f"http://{plain[1].host}:{plain[1].port}/"]
    overrides = {"http://127.0.1.9:9": {"proxy": url}}
    run = await asyncio.to_thread(place.crawl, seeds, SITE_OVERRIDES=overrides, MAX_PAGES_PER_SITE=3)
    run.succeeded()
    assert set(proxy[0].heads) >= {"http://127.0.1.9:9/", "http://127.0.1.9:9/robots.txt"}
    assert all(path.startswith("/") for path in plain[0].heads)
    assert place.rows(
        "select count(*) from pages where url like 'http://127.0.1.9:9/%' and outcome = 'stored'"
    ) == [(1,)]
