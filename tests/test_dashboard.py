"""The dashboard as a person sees it, in Chromium: a crawl under way, nothing crawled, Redis away, strangers' words.

Whatever is opened: nothing is asked of another host, the console is silent, nothing is wider than the screen.
"""

from __future__ import annotations

import asyncio
import base64
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from threading import Barrier, Event
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from scrapy.settings import BaseSettings

from crawler import options
from crawler.store.database import open_database
from crawler.views.dashboard import Dashboard
from crawler.views.page import Section
from tests.contracts.test_reports import crawl_of
from tests.crawling import Place, Run
from tests.farm import Farm
from tests.reporting import HOSTILE, fill, site_name
from tests.servers import RunningServer, eventually, free_port

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
# As root in a container there is no sandbox; the rest keeps it from looking for hosts of its own.
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
PHONE, DESKTOP = {"width": 390, "height": 844}, {"width": 1440, "height": 900}
needs_browser = pytest.mark.needs("Chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


@contextmanager
def opened(browser: Any, url: str, size: dict[str, int], scheme: str = "light") -> Iterator[Any]:
    """A page, judged at its end for all that it asked and said."""
    context = browser.new_context(viewport=size, color_scheme=scheme)
    page = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(f"dialog {dialog.message}"))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(url)
    yield page
    wide = page.evaluate("document.scrollingElement.scrollWidth - innerWidth")
    context.close()
    assert said == []
    assert {urlsplit(one).netloc for one in asked if not one.startswith("data:")} == {urlsplit(url).netloc}
    assert wide <= 0, f"{wide} pixels wider than the screen"


@contextmanager
def dashboard(place: Place, **given: Any) -> Iterator[str]:
    """Its URL while it runs."""
    run = place.start("dashboard", **{"DASHBOARD_PORT": 0, **given})
    eventually(lambda: "http://" in run.out or run.process.poll() is not None, "the dashboard listens", 90)
    try:
        yield url_of(run)
    finally:
        run.end().succeeded()


def url_of(run: Run) -> str:
    found = re.search(r"http://\S+", run.out)
    assert found, run.err
    return found[0]


def ask(url: str, path: str = "/", method: str = "GET", **headers: str) -> HTTPResponse:
    connection = HTTPConnection(urlsplit(url).netloc, timeout=30)
    connection.request(
        method, path, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )
    answer = connection.getresponse()
    answer.body = answer.read().decode()  # type: ignore[attr-defined]
    connection.close()
    return answer


@needs_browser
def test_a_crawl_under_way(place: Place, browser: Any) -> None:
    with Farm(sites=5, pages=150, kinds=("missing",), names=()) as farm:
        (place.folder / "loads.csv").write_text(
            "site," + ",".join(map(str, range(24))) + "\n"
            + "".join(f"{farm.site(number)}{',0.4' * 24}\n" for number in range(3))
        )  # fmt: skip
        place.run("load", "import", str(place.folder / "loads.csv")).succeeded()
        crawl = place.start_crawl(farm.seeds, DOWNLOAD_DELAY=0.5)
        with dashboard(place) as url:
            with opened(browser, url, DESKTOP) as page:
                page.get_by_role("heading", name="In hand, for all works").wait_for()
                eventually(lambda: page.locator("rect.cell").count() == 24 * 3, "the load picture", 60)
                assert page.locator("rect.now").count() == 1
                page.get_by_text("/missing").first.wait_for()
                done = page.locator(".tile", has_text="known pages done").locator("b")
                first = done.inner_text()
                eventually(lambda: done.inner_text() != first, "the page renews itself", 60)
                page.get_by_role("link", name=urlsplit(farm.site(0)).netloc).first.click()
                page.get_by_text("Newest pages").wait_for()
                assert page.locator("rect.cell").count() == 24
            metrics = ask(url, "/metrics")
            assert 'lowtide_up{service="redis"} 1.0' in metrics.body  # type: ignore[attr-defined]
            assert 'lowtide_sites{state="leased"} 5.0' in metrics.body  # type: ignore[attr-defined]
            assert re.search(r"lowtide_agent_pages_total\{agent=\"[\w-]+\"\} \d", metrics.body)  # type: ignore[attr-defined]
            crawl.end().succeeded()


@needs_browser
def test_nothing_was_crawled(place: Place, browser: Any) -> None:
    with dashboard(place) as url, opened(browser, url, PHONE) as page:
        page.get_by_text("Nothing is stored yet").wait_for()
        page.get_by_text("Nobody is at work").wait_for()
        assert ask(url, "/site?name=https://example.org").status == 404


@needs_browser
def test_strangers_words_while_redis_is_away(place: Place, browser: Any) -> None:
    """Everything that the tables tell is shown, as words; on a phone and on a large screen, light and dark."""
    database = f"sqlite:///{place.folder / 'filled.db'}"
    engine = open_database(database)
    fill(engine, 12, 30)
    engine.dispose()
    away = {"REDIS_URL": f"redis://127.0.0.1:{free_port()}/0", "DATABASE_URL": database}
    grounds = set()
    with dashboard(place, **away) as url:
        for size, scheme in ((PHONE, "light"), (DESKTOP, "dark")):
            with opened(browser, url, size, scheme) as page:
                page.get_by_role("alert").get_by_text("Redis").first.wait_for()
                page.get_by_text("Top ranks").wait_for()
                page.get_by_text(HOSTILE[0], exact=False).first.wait_for()
                assert page.locator("main script, main img, main a[href^=javascript]").count() == 0
                grounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert len(grounds) == 2, "light and dark look alike"
        with opened(browser, f"{url}site?name={quote(site_name(0))}", PHONE) as page:
            page.get_by_text(HOSTILE[4]).first.wait_for()
            page.get_by_text("a\\x1b[31mred\\u202eback").first.wait_for()
        answer = ask(url, f"/site?name={quote('<script>x</script>')}")
        assert "<script>x" not in answer.body  # type: ignore[attr-defined]


@needs_browser
def test_the_page_of_reports(place: Place, browser: Any, tmp_path: Path) -> None:
    """It is opened from the disk, and asks for nothing."""
    place.var.mkdir()
    engine = open_database(f"sqlite:///{place.var / 'crawl.db'}")
    fill(engine, 12, 30)
    engine.dispose()
    file = tmp_path / "report.html"
    place.run("report", "--html", str(file)).succeeded()
    for size in (PHONE, DESKTOP):
        with opened(browser, file.as_uri(), size) as page:
            page.get_by_text(HOSTILE[0], exact=False).first.wait_for()
            assert page.locator("svg.picture").count() >= 10


def test_records_of_sites_that_are_none_are_told(place: Place, valkey: RunningServer) -> None:
    place.run("seed", "http://127.0.1.1", REDIS_URL=valkey.url).succeeded()
    (bucket,) = valkey.client.keys("*:sites:*")
    valkey.client.hset(bucket, "http://127.0.1.1", "garbage")
    with dashboard(place, REDIS_URL=valkey.url) as url:
        for path in ("/", "/site?name=http://127.0.1.1"):
            answer = ask(url, path)
            assert answer.status == 200
            assert "expected sites&#39; records" in answer.body  # type: ignore[attr-defined]


def test_who_may_look(place: Place, valkey: RunningServer) -> None:
    given = {"REDIS_URL": valkey.url}
    place.run("dashboard", DASHBOARD_ADDRESS="0.0.0.0", **given).refused(
        "DASHBOARD_ADDRESS is '0.0.0.0'", "or a password", code=2
    )
    with dashboard(place, **given) as url:
        answer = ask(url)
        policy = answer.headers["Content-Security-Policy"]
        assert answer.status == 200
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert ask(url, Host="evil.example").status == 403, "another page's name for this machine"
        assert ask(url, Host="localhost").status == 200
        assert ask(url, method="POST").status == 405
        port = str(urlsplit(url).port)
        place.run("dashboard", DASHBOARD_PORT=port, **given).refused(
            "cannot listen", "DASHBOARD_PORT", code=1
        )
    secret = {"DASHBOARD_ADDRESS": "0.0.0.0", "DASHBOARD_PASSWORD": "wörd"}
    with dashboard(place, **given, **secret) as url:
        local = url.replace("0.0.0.0", "127.0.0.1")
        assert ask(local).status == 401
        assert ask(local, "/metrics").status == 401
        for password, status in (("wrong", 401), ("wörd", 200)):
            sent = base64.b64encode(f"me:{password}".encode()).decode()
            assert ask(local, Authorization=f"Basic {sent}", Host="crawl.example").status == status
        assert ask(local, Authorization="Basic ####").status == 401


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first page has every report, however busy the machine."""
    monkeypatch.setattr("crawler.views.watching.FIRST_SECONDS", 60.0)


def settings_of_a_full_crawl(valkey: RunningServer, folder: Path) -> BaseSettings:
    """Of a dashboard on a free port, over tables with something in them."""
    url = f"sqlite:///{folder / 'crawl.db'}"
    engine = open_database(url)
    fill(engine, 3, 10)
    engine.dispose()
    settings = crawl_of(engine, url, valkey.url, folder).settings.copy()
    settings.set("DASHBOARD_PORT", 0, priority="cmdline")
    return settings


def test_reports_stand_on_the_page_and_one_that_fails_takes_nothing_else_down(
    valkey: RunningServer, tmp_path: Path, patience: None
) -> None:
    settings = settings_of_a_full_crawl(valkey, tmp_path)

    def bad(_engine: Any) -> Section:
        raise ValueError("no such <b>column</b>")

    def good(_engine: Any) -> Section:
        return Section("freshness", "How fresh the copy is", "97 % & more", [])

    # In a thread of its own: in this one the browser's driver may have a loop that runs.
    with ThreadPoolExecutor(1) as thread:
        page = thread.submit(asyncio.run, served(settings, {"freshness": good, "status": bad})).result()
    assert "97 % &amp; more" in page
    assert "no such &lt;b&gt;column" in page
    assert "Top ranks" in page


def test_reports_that_take_long_are_made_side_by_side(
    valkey: RunningServer, tmp_path: Path, patience: None
) -> None:
    """Each waits until the other has begun; made one behind the other, the first would be missing on the page."""
    settings = settings_of_a_full_crawl(valkey, tmp_path)
    both = Barrier(2)

    def slow(name: str) -> Callable[[Any], Section]:
        def made(_engine: Any) -> Section:
            both.wait(timeout=60)
            return Section(name, name, f"text of {name}", [])

        return made

    with ThreadPoolExecutor(1) as thread:
        boards = {name: slow(name) for name in ("status", "freshness")}
        page = thread.submit(asyncio.run, served(settings, boards)).result()
    assert "text of status" in page
    assert "text of freshness" in page


def test_quick_looks_wait_for_no_report(valkey: RunningServer, tmp_path: Path) -> None:
    """More reports than the loop's own threads, none of which ends before the quick looks have been answered."""
    settings = settings_of_a_full_crawl(valkey, tmp_path)
    answered = Event()

    def slow(_engine: Any) -> Section:
        answered.wait(timeout=60)
        return Section("slow", "slow", "text of a report", [])

    async def looked() -> tuple[Any, Any]:
        made = Dashboard(settings, options.read(settings), {f"slow{number}": slow for number in range(40)})
        loop = asyncio.get_running_loop()
        try:
            url = await made.start()
            async with asyncio.timeout(30):
                page = await loop.run_in_executor(asking, ask, url)
                return page, await loop.run_in_executor(asking, ask, url, "/metrics")
        finally:
            answered.set()
            await made.stop()

    with ThreadPoolExecutor(1) as thread, ThreadPoolExecutor(1) as asking:
        page, metrics = thread.submit(asyncio.run, looked()).result()
    assert "Top ranks" in page.body
    assert "text of a report" not in page.body
    assert "lowtide_sites_by_health" in metrics.body


async def served(settings: BaseSettings, boards: dict[str, Any]) -> str:
    """The page of a dashboard with these reports, asked for once."""
    made = Dashboard(settings, options.read(settings), boards)
    try:
        url = await made.start()
        answer = await asyncio.to_thread(ask, url)
    finally:
        await made.stop()
    return str(answer.body)  # type: ignore[attr-defined]
