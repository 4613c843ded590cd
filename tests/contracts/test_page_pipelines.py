"""What every page pipeline promises, over all in PAGE_PIPELINES and two by dotted path.

Built as the agent builds them, it takes a page of any content type and any bytes without raising, and leaves alone
what says which page it was. The objects around the page are the agent's own; nothing is connected.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from scrapy.crawler import Crawler
from scrapy.http import Headers, Response
from scrapy.settings import Settings
from scrapy.utils.misc import build_from_crawler, load_object

from crawler import options, records
from crawler.agent.agent import Agent
from crawler.agent.frontier import Frontier
from crawler.agent.overrides import PLAIN, SiteSession
from crawler.agent.page import Chain, LoadedPage, NotKeptError
from crawler.agent.site_lease import SiteLease
from crawler.content import extra
from crawler.fetch.dns import Names
from crawler.pipelines.sitemaps import Sitemaps
from crawler.queue.sites import Leased
from crawler.spiders.site import SiteSpider

OUTSIDER = "tests.contracts.outsider.WithoutScripts"
NEW_ATTRIBUTE = "tests.contracts.outsider.Scripts"
SITE = "http://127.0.0.1:8000"


def project_settings() -> Settings:
    made = Settings()
    made.setmodule("settings.local")
    made.set("REDIS_URL", "unix:///nowhere", priority="cmdline")
    made.set("SCOPE", "any", priority="cmdline")
    made.set("KEYWORDS_PER_PAGE", 5, priority="cmdline")
    return made


REGISTERED = [
    path for path, order in project_settings().getdict("PAGE_PIPELINES").items() if order is not None
]
PIPELINES = [*REGISTERED, OUTSIDER, NEW_ATTRIBUTE]

CONTENT_TYPES = (
    "",
    "text/html",
    "TEXT/HTML; charset=utf-8",
    "text/html; charset=no-such-thing",
    "text/html; charset=hex",
    "text/html; charset=utf-16",
    'text/html; charset="',
    "application/xhtml+xml",
    "application/pdf",
    "image/png",
    "text/plain; charset=utf-16",
    ";;;",
    "\xff\xfe",
)
BODIES = {
    "empty": b"",
    "blank": b" \n\t\r ",
    "zeros": bytes(1000),
    "all bytes": bytes(range(256)) * 40,
    "page": b"<title>One</title><meta name=description content=About><a href=/two>2</a>",
    "no end": b"<html><head><title>never closed <a href='/x",
    "deep": b"<div>" * 20_000,
    "wide": b"<a href=/x>" * 6_000,
    "odd links": b"<a href='http://[::1'>a</a><a href='//'>b</a><a href='http://a:99999/'>c</a><a href='\x00'>d"
    b"</a><a href='javascript:x'>e</a><a href='http://\xc3\xa9.example/'>f</a><a href=%>g</a>",
    "bad base": b"<base href='http://['><a href=x>x</a>",
    "empty base": b"<base href><a href=x>x</a>",
    "surrogates": "<title>\ud800 x</title><a href='/\ud800'>x</a>".encode("utf-8", "surrogatepass"),
    "wrong charset": b"<meta charset=utf-16><title>plain</title>",
    "utf-16": "<title>Sixteen</title>".encode("utf-16"),
    "null in title": b"<title>a\x00b\x0b\x1bc</title>",
    "long title": b"<title>" + b"x " * 100_000 + b"</title>",
    "entities": b'<!DOCTYPE x [<!ENTITY a "1234567890">]><title>&a;&#xD800;&#x110000;&#0;</title>',
    "frames": b"<meta name=robots content='NOINDEX, nofollow'><a href=/no>no</a>",
    "elsewhere": b"<a href=mailto:a@b.example>a</a><a href='ftp://[::'>b</a><img src><video><source><embed type=x>"
    b"<a href=/x.pdf>c</a> d@e.example <noscript><script>x</script></noscript><iframe>y",
    "korean": "<html lang=kr><title>물때</title><h1>물때표</h1><p>물때표를 潮汐潮汐".encode("cp949"),
    "gzip": b"\x1f\x8b\x08\x00garbage",
}


class Bench:
    """An agent that is connected to nothing, and pages for it."""

    def __init__(self) -> None:
        given = project_settings()
        self.crawler = Crawler(SiteSpider, given)
        chain = Chain(self.crawler, {})
        self.agent = Agent(self.crawler, options.read(given), Names(1.0), chain, wake=lambda: None)

    def page(self, body: bytes, content_type: str, path: str = "/") -> LoadedPage:
        frontier = Frontier(max_pages=100)
        frontier.add([path], 0)
        turn = frontier.take(0.0)
        assert turn is not None
        lease = SiteLease(
            Leased(SITE, "1", suspended=False, address=None),
            frontier,
            0,
            SiteSession(SITE, PLAIN, "lowtide"),
            0.0,
        )
        headers = Headers(
            {"Content-Type": content_type.encode("latin-1"), "X-Robots-Tag": b"\xff, noarchive"}
        )
        record = records.Page(
            site=SITE, path=path, fetched_at=1, outcome="stored", status=200, content_type=content_type
        )
        return LoadedPage(self.agent, lease, turn, Response(SITE + path, headers=headers, body=body), record)


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    asyncio.run(made.agent._client.aclose())


def check_step(bench: Bench, path: str, body: bytes, content_type: str) -> None:
    """One step on one page of its own."""
    step = build_from_crawler(load_object(path), bench.crawler)
    page = bench.page(body, content_type)
    step.process(page)
    assert page.body == body
    record = page.record
    assert (record.site, record.path, record.fetched_at, record.status) == (SITE, "/", 1, 200)
    again, links = records.decode({b"v": records.VERSION, b"r": records.encode(record), b"l": page.out_links})
    assert isinstance(again, records.Page)
    assert again.title == record.title
    assert extra.bounded(record.extra) == (record.extra, ""), "what is left out of extra"
    assert links == page.out_links


@pytest.mark.parametrize("path", PIPELINES)
@pytest.mark.parametrize("content_type", CONTENT_TYPES)
def test_any_content_type_and_body_is_taken(bench: Bench, path: str, content_type: str) -> None:
    for body in BODIES.values():
        check_step(bench, path, body, content_type)


@pytest.mark.parametrize("path", PIPELINES)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    body=some.one_of(some.binary(max_size=300), some.text("<>/=\"' ahreftitlmbs&#;x0", max_size=200)),
    charset=some.sampled_from(["", "; charset=utf-8", "; charset=euc-kr", "; charset=utf-7"]),
)
def test_hostile_bytes_are_taken(bench: Bench, path: str, body: bytes | str, charset: str) -> None:
    check_step(bench, path, body if isinstance(body, bytes) else body.encode(), f"text/html{charset}")


@pytest.mark.parametrize("name", BODIES)
def test_the_whole_chain_ends_the_turn_without_an_error(bench: Bench, name: str) -> None:
    chain = Chain(bench.crawler, {**dict.fromkeys(REGISTERED, 1), OUTSIDER: 0, REGISTERED[-1]: 2})
    page = bench.page(BODIES[name], "text/html")
    before = len(bench.agent.outbox)
    chain.process(page)
    # What the parser leaves out of a page is told, and no step's error.
    assert page.record.error == ("parsed to depth 256: elements are nested deeper" if name == "deep" else "")
    assert len(bench.agent.outbox) == before, "the user's parse comes first"
    page.publish()
    assert page.lease.frontier.in_flight == 0
    assert len(bench.agent.outbox) == before + 1


class Failing:
    """A step that cannot work."""

    def process(self, page: LoadedPage) -> None:
        raise RuntimeError("no luck")


def test_the_suite_sees_a_failing_step(bench: Bench) -> None:
    with pytest.raises(RuntimeError):
        check_step(bench, f"{__name__}.Failing", b"", "")


def test_a_failing_step_costs_the_page_nothing_else(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    chain = Chain(bench.crawler, {**project_settings().getdict("PAGE_PIPELINES"), f"{__name__}.Failing": 150})
    page = bench.page(BODIES["page"], "text/html")
    page.note("something is left out")
    chain.process(page)
    page.publish()
    assert page.record.error == "something is left out; Failing: no luck"
    assert page.record.title == "One"
    assert len(page.record.sha256) == 64
    assert page.lease.frontier.in_flight == 0
    assert "Failing failed on" in caplog.text


def sitemap_of(urls: list[str]) -> bytes:
    return f"<urlset>{''.join(f'<url><loc>{url}</loc></url>' for url in urls)}</urlset>".encode()


def test_all_pages_of_a_sitemap_in_a_foreign_alphabet_are_found(bench: Bench) -> None:
    """As large as the protocol allows, with escapes in small letters, as many sites write them."""
    word = quote("привет-" * 3).lower()
    urls = [f"{SITE}/{word}{number}/" for number in range(50_000)]
    page = bench.page(sitemap_of(urls), "text/xml")
    page.lease.frontier.max_pages = 0
    Sitemaps().process(page)
    assert len(page.lease.frontier) == 1 + len(urls)
    assert page.record.error == ""


def test_what_of_a_sitemap_takes_too_long_is_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crawler.content.html._MOST_WORK_OF_FILE", 50_000)
    page = bench.page(sitemap_of([f"{SITE}/%d0%bf{number}" for number in range(1_000)]), "text/xml")
    Sitemaps().process(page)
    found = len(page.lease.frontier) - 1
    assert 0 < found < 1_000
    assert page.record.error == f"{1_000 - found} URLs left out: too slow to resolve"
    assert page.lease.frontier.left_out == {"markup": 1}


class Keeper:
    """A step that keeps something; what was asked of it, in order, and whether in the event loop's thread."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, bool]] = []
        self.refuses = ""

    def process(self, page: LoadedPage) -> None:
        self._note("process")

    def flush(self) -> None:
        self._note("flush")

    def sync(self) -> None:
        self._note("sync")

    def _note(self, what: str) -> None:
        self.asked.append((what, threading.current_thread() is threading.main_thread()))
        if what == self.refuses:
            raise OSError("no room")


def test_what_records_refer_to_is_written_and_then_synced_in_a_thread(bench: Bench) -> None:
    chain = Chain(bench.crawler, {f"{__name__}.Keeper": 1})
    [step] = chain._steps
    assert isinstance(step, Keeper)

    async def flushes() -> None:
        chain.process(bench.page(b"", ""))
        for refused in ("flush", "sync", ""):
            step.refuses = refused
            if refused:
                with pytest.raises(NotKeptError, match="Keeper: no room"):
                    await chain.flush()
            else:
                await chain.flush()
        await chain.flush()  # no page came: nothing has to be synced

    asyncio.run(flushes())
    assert step.asked == [
        ("process", True),
        ("flush", True),
        *[("flush", True), ("sync", False)] * 2,
        ("flush", True),
    ]


@pytest.mark.parametrize("path", PIPELINES)
def test_it_may_be_flushed_synced_and_closed_at_any_time(
    bench: Bench, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    chain = Chain(bench.crawler, {path: 1})

    async def flushes() -> None:
        for _ in range(2):
            await chain.flush()
            chain.process(bench.page(BODIES["page"], "text/html"))
            await chain.flush()

    asyncio.run(flushes())
    chain.close()
