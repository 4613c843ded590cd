"""The work `status` by real agents: what they say of servers that misbehave, how soon, and that nothing is lost."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.core.downloader import Slot

from crawler.agent.jobs.status import RobotsCache
from crawler.agent.observer import SiteWatch
from crawler.agent.requests import CHECKS, TurnDownloader
from crawler.queue.batches import BatchPage
from tests.conftest import MakeDatabase
from tests.crawling import Place, Run
from tests.farm import Farm
from tests.outages import frozen, pass_time, tables_that_go
from tests.raw_server import Exchange
from tests.servers import RunningServer, eventually, free_port
from tests.small_site import Reply, Route, SmallSite, links, moved, text
from tests.test_healths import Receiver
from tests.test_works import give, queue_of

pytestmark = pytest.mark.timeout(180)

HTML = {"Content-Type": "text/html"}
QUICK = {
    "RETRY_DELAY_SECONDS": 0.05,
    "STATUS_DELAY_SECONDS": 0.5,
    "CONNECT_TIMEOUT_SECONDS": 1.0,
    "HEAD_TIMEOUT_SECONDS": 1.0,
    "BODY_TIMEOUT_SECONDS": 0.5,
}


class OddSite(SmallSite):
    """A site whose pages misbehave below HTTP's manners: `behave` is reset, silent, slow-body, short-body or noise."""

    def __init__(self, behave: str, host: str, routes: dict[str, Route] | None = None) -> None:
        super().__init__(routes or {}, host)
        self.behave = behave

    async def _serve(self, exchange: Exchange) -> None:
        if not self.behave:
            await super()._serve(exchange)
            return
        first = (await exchange.request()).split(b"\r\n")[0]
        if b"/robots.txt" in first:
            await exchange.send(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        elif self.behave == "reset":
            exchange.reset()
        elif self.behave == "noise":
            await exchange.send(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
        elif self.behave == "silent":
            await asyncio.Event().wait()
        else:
            await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nhalf")
            if self.behave == "slow-body":
                await asyncio.Event().wait()


@contextmanager
def town(*sites: SmallSite) -> Iterator[tuple[SmallSite, ...]]:
    """All of them at work."""
    with ExitStack() as stack:
        yield tuple(stack.enter_context(site) for site in sites)


def check(place: Place, seeds: list[str], *words: str, **given: Any) -> Run:
    """`scrapy crawl status` to its end."""
    return place.crawl(seeds, *words, spider="status", **{**QUICK, **given}).succeeded()


def start(place: Place, seeds: list[str], *words: str, **given: Any) -> Run:
    """The same that goes on."""
    return place.start_crawl(seeds, "--when-idle", "wait", *words, spider="status", **{**QUICK, **given})


def found(place: Place) -> dict[str, tuple[Any, ...]]:
    """Site -> health, status and tries of its last check."""
    query = (
        "select s.site, h.health, h.status, h.tries from health h join sites s using (site_id) "
        "order by h.checked_at"
    )
    return {site: tuple(rest) for site, *rest in place.rows(query)}


def let_be_due(place: Place, *sites: SmallSite) -> None:
    """These sites are due at once, whatever the last check said."""
    with queue_of(place) as queue:
        for site in sites:
            assert queue.plan_work(site.site, "status", 1)


def times_asked(site: SmallSite) -> int:
    return site.pages["/"]


# --- what is said of whom -----------------------------------------------------------------------------------


def test_each_kind_of_server_has_its_word(tmp_path: Path) -> None:
    denied = text("User-agent: *\nDisallow: /")
    # Another sum and another size than it says.
    damaged = Reply(
        200, {"Content-Encoding": "gzip"}, packed=gzip.compress(b"User-agent: *\n")[:-8] + b"\1" * 8
    )
    wanted: dict[SmallSite, tuple[Any, ...]] = {
        SmallSite({"/": links()}, "127.0.2.1"): ("normal", 200, 1),
        SmallSite({"/": moved("http://elsewhere.example/")}, "127.0.2.2"): ("normal", 301, 1),
        SmallSite({"/": links(seconds=0.7)}, "127.0.2.3"): ("delayed", 200, 3),
        SmallSite({"/": Reply(503)}, "127.0.2.4"): ("delayed", 503, 1),
        SmallSite({"/": Reply(429)}, "127.0.2.5"): ("delayed", 429, 1),
        SmallSite({"/": Reply(500)}, "127.0.2.6"): ("error", 500, 1),
        SmallSite({"/": Reply(404)}, "127.0.2.7"): ("error", 404, 1),
        SmallSite({"/": Reply(200, HTML, "<p>ORA-00942: no table")}, "127.0.2.8"): ("error", 200, 1),
        SmallSite({"/": moved("/in"), "/in": Reply(502)}, "127.0.2.9"): ("error", 502, 1),
        OddSite("slow-body", "127.0.2.10"): ("error", -5, 1),
        OddSite("short-body", "127.0.2.11"): ("error", -8, 1),
        OddSite("noise", "127.0.2.12"): ("error", -12, 1),
        OddSite("reset", "127.0.2.13"): ("disconnected", -6, 3),
        OddSite("silent", "127.0.2.14"): ("disconnected", -4, 3),
        SmallSite({"/robots.txt": denied, "/": Reply(500)}, "127.0.2.15"): ("normal", -9, 1),
        SmallSite({"/robots.txt": Reply(500), "/": links()}, "127.0.2.16"): ("error", 500, 1),
        SmallSite({"/robots.txt": damaged, "/": links()}, "127.0.2.18"): ("error", -8, 1),
    }
    with town(*wanted) as sites, Place(tmp_path) as place:
        nobody = f"http://127.0.2.17:{free_port()}"
        seeds = [site.root for site in sites] + [f"{nobody}/"]
        check(place, seeds, STATUS_ERROR_PATTERNS=r"ORA-\d{5}")
        by_site = found(place)
        assert by_site.pop(nobody) == ("disconnected", -2, 3)
        assert by_site == {site.site: said for site, said in wanted.items()}
        assert times_asked(sites[2]) == 3, "a late answer is looked at again"
        assert sites[14].paths == ["/robots.txt"], "what robots.txt forbids is not asked"
        assert sites[16].paths == ["/robots.txt"], "nor what it may forbid"
        assert place.rows("select error from health where status = 200 and health = 'error'") == [
            ("its text contains 'ORA-00942'",)
        ]
        told = place.rows("select count(*) from health_changes where told_at is not null")
        assert told == [(len(wanted) + 1 - 3,)], "all but the normal ones"
        times = "latency_ms >= 700 and head_ms >= 700 and body_ms >= 0 and address = '127.0.2.3'"
        assert place.rows(f"select count(*) from health where {times}") == [(1,)]
        _check_report(place, len(wanted) + 1)


def test_whoever_has_a_sites_robots_txt_is_not_the_site(tmp_path: Path) -> None:
    """Its answer counts as the site's own; its silence, its address and how late it is do not."""
    rules = {
        "/silent": text("", seconds=60),
        "/late": text("User-agent: *\nDisallow: /", seconds=0.7),
        "/rest": Reply(429),
        "/ill": Reply(500),
    }
    wanted = {"/late": ("normal", -9, 1), "/rest": ("delayed", 429, 1), "/ill": ("error", 500, 1)}
    with town(SmallSite(rules, "127.0.3.1")) as (other,), Place(tmp_path) as place:
        leads = [*(f"{other.site}{path}" for path in rules), "http://10.1.2.3/robots.txt"]
        hosts = {lead: f"127.0.2.{number}" for number, lead in enumerate(leads, 1)}
        with town(
            *(SmallSite({"/robots.txt": moved(lead), "/": links()}, hosts[lead]) for lead in leads)
        ) as sites:
            check(place, [site.root for site in sites])
            assert {site.site: site.paths for site in sites} == {site.site: ["/robots.txt"] for site in sites}
            assert other.pages == dict.fromkeys(rules, 1)
            said = dict(zip(rules, (site.site for site in sites), strict=False))
            assert found(place) == {said[path]: verdict for path, verdict in wanted.items()}
            assert place.rows("select distinct address like '127.0.2.%', latency_ms < 700 from health") == [
                (1, 1)
            ]
            with queue_of(place) as queue:
                kept = dict(zip(leads, queue.permits([site.site for site in sites]), strict=True))
            assert [lead for lead in leads if kept[lead]] == [f"{other.site}/late"]


def _check_report(place: Place, many: int) -> None:
    told = json.loads(place.run("report", "status", "--json").succeeded().out)["status"]
    assert told["sites"] == many
    assert told["by_health"] == {"disconnected": 3, "error": 9, "delayed": 3, "normal": 3}
    first, last = told["by_site"][0], told["by_site"][-1]
    assert (first["health"], first["availability_1d"], first["p50_ms_1d"]) == ("disconnected", 0.0, None)
    assert (last["health"], last["availability_1d"], last["checks_7d"]) == ("normal", 1.0, 1)
    said = place.run("report", "status").succeeded().out
    assert "3 disconnected, 9 error, 3 delayed, 3 normal" in said
    assert len(place.run("report", "status", "--csv").succeeded().out.splitlines()) == many + 1
    assert "http://127.0.2.14" in said
    assert "head timeout" in said


# --- how soon, and how politely -------------------------------------------------------------------------------


def test_an_outage_and_its_end_are_told_within_an_interval(tmp_path: Path) -> None:
    receiver = Receiver()
    # Each answer ends its connection: one that is kept would go on as it began.
    fine = Reply(200, {**HTML, "Connection": "close"}, "<p>well")
    with town(OddSite("", "127.0.2.1", {"/": fine})) as (site,), Place(tmp_path) as place:
        assert isinstance(site, OddSite)
        run = start(place, [site.root], STATUS_INTERVAL_SECONDS=2, STATUS_WEBHOOK=receiver.url)
        eventually(lambda: times_asked(site) >= 2, "it is asked again and again", 60)
        site.behave = "reset"
        eventually(lambda: receiver.got, "the outage is told", 60)
        site.behave = ""
        eventually(lambda: len(receiver.got) == 2, "its end is told", 60)
        run.end().succeeded()
        rows = place.rows("select checked_at, health from health order by checked_at")
    receiver.close()
    assert [(one["site"], one["was"], one["now"]) for one in receiver.got] == [
        (site.site, "normal", "disconnected"),
        (site.site, "disconnected", "normal"),
    ]
    for one in receiver.got:
        first = next(at for at, health in rows if at >= one["seen_at"] and health == one["now"])
        before = max(at for at, health in rows if at < first)
        assert first == one["seen_at"] == one["since"], "the first check that saw it told it"
        # An interval and three tries; a busy machine takes its time.
        assert first - before < 2_000 + 4_000


def test_robots_txt_is_read_once_in_its_lifetime_and_the_pause_is_kept(tmp_path: Path) -> None:
    rules = text("User-agent: *\nCrawl-delay: 0.4\nDisallow: /x")
    with town(SmallSite({"/": moved("/a"), "/a": links(), "/robots.txt": rules})) as (site,):
        with Place(tmp_path) as place:
            run = start(place, [site.root], STATUS_INTERVAL_SECONDS=0.5)
            eventually(lambda: site.pages["/a"] >= 3, "three checks", 60)
            run.end().succeeded()
        assert site.paths.count("/robots.txt") == 1
        gaps = [later.at - asked.at for asked, later in zip(site.log, site.log[1:], strict=False)]
        assert min(gaps) > 0.35, "but for what a busy machine adds to the one and not to the other"
        site.log.clear()
        with Place(tmp_path) as place:
            # Another name is another reader.
            check(place, [site.root], USER_AGENT="other")
            assert site.paths.count("/robots.txt") == 1


def test_pages_behind_the_first_one_count_as_far_as_they_are_asked_for(tmp_path: Path) -> None:
    routes: dict[str, Route] = {
        "/robots.txt": text("User-agent: *\nDisallow: /hidden"),
        "/": links("/a", "/hidden", "/b", "http://elsewhere.example/"),
        "/a": links("/c"),
        "/b": links("/bad"),
        "/c": links(),
        "/bad": Reply(500),
    }
    with town(SmallSite(routes)) as (site,), Place(tmp_path) as place:
        check(place, [site.root], STATUS_DEPTH=1)
        assert site.pages == Counter(("/", "/a", "/b"))
        let_be_due(place, site)
        check(place, [], STATUS_DEPTH=2)
        let_be_due(place, site)
        check(place, [], STATUS_DEPTH=2, STATUS_LINKS=3)
        rows = place.rows("select pages, path, health from health order by id")
        assert rows[0] == (3, "/", "normal")
        assert (5, "/bad", "error") in rows
        assert rows[-1] == (4, "/", "normal")
        assert site.pages["/hidden"] == 0


def test_sites_that_hang_do_not_hold_up_the_others(tmp_path: Path) -> None:
    hanging = [OddSite("silent", f"127.0.3.{n}") for n in range(1, 9)]
    healthy = [SmallSite({"/": links()}, f"127.0.2.{n}") for n in range(1, 9)]
    with town(*hanging, *healthy) as sites, Place(tmp_path) as place:
        given = {"STATUS_SLOTS": 4, "STATUS_DELAY_SECONDS": 0.2, "HEAD_TIMEOUT_SECONDS": 10}
        run = place.start_crawl([site.root for site in sites], spider="status", **{**QUICK, **given})
        eventually(lambda: all(times_asked(site) for site in healthy), "all healthy ones were asked", 30)
        asked = max(at for site in healthy for at in site.times("/"))
        first = min(at for site in healthy for at in site.times("/"))
        # Four hanging ones at a time would take a minute and more; they leave their slots after 0.2 s.
        assert asked - first < 3
        run.end().succeeded()
        assert Counter(row[0] for row in found(place).values()) == {"normal": 8}
        with queue_of(place) as queue:
            eventually(lambda: queue.due_now("status") == 8, "who was not asked to the end is due")


def test_neither_a_sites_delay_nor_its_silence_is_anothers(tmp_path: Path) -> None:
    """More hang than Scrapy lets one download slot have at a time, and DOWNLOAD_DELAY is each site's own."""
    hanging = [OddSite("silent", f"127.0.3.{n}") for n in range(1, 13)]
    healthy = [SmallSite({"/": links()}, f"127.0.2.{n}") for n in range(1, 7)]
    with town(*hanging, *healthy) as sites, Place(tmp_path) as place:
        given = {"STATUS_DELAY_SECONDS": 0.2, "HEAD_TIMEOUT_SECONDS": 15, "DOWNLOAD_DELAY": 2.0}
        run = place.start_crawl([site.root for site in sites], spider="status", **{**QUICK, **given})
        eventually(lambda: all(times_asked(site) for site in healthy), "all healthy ones were asked", 60)
        first = [site.times("/robots.txt")[0] for site in healthy]
        pages = [site.times("/")[0] for site in healthy]
        assert max(first) - min(first) < 4
        assert max(pages) - min(first) < 8
        run.end().succeeded()


def test_checks_do_not_count_as_pages_under_way() -> None:
    downloader = TurnDownloader.__new__(TurnDownloader)
    downloader.total_concurrency = 2
    page, *checks = (Request(f"https://s{n}.example/") for n in range(4))
    downloader.slots = {CHECKS: Slot(100, 0.0, 0.0)}
    downloader.slots[CHECKS].active.update(checks)
    downloader.active = {page, *checks}
    assert not downloader.needs_backout()
    downloader.active.add(Request("https://t.example/"))
    assert downloader.needs_backout()


# --- beside loading -------------------------------------------------------------------------------------------


def test_loading_tells_of_its_sites_and_nobody_asks_them_beside(tmp_path: Path) -> None:
    routes: dict[str, Route] = {"/": links(*(f"/{n}" for n in range(30))), "*": links()}
    with town(SmallSite(routes, "127.0.2.1"), SmallSite({"/": Reply(500)}, "127.0.2.2")) as (site, ill):
        with Place(tmp_path) as place:
            seeds = [site.root, ill.root]
            place.crawl(seeds, "--with", "status", DOWNLOAD_DELAY=0.05, MAX_TRIES=1, **QUICK).succeeded()
            rows = place.rows("select distinct seen_by, health from health")
            assert ("traffic", "normal") in rows
            assert ("traffic", "error") in rows
            assert place.rows("select now from health_changes") == [("error",)]
        during = [asked for asked in site.log if asked.at < max(site.times("/29"))]
        assert [asked.path for asked in during].count("/") == 1


def test_loading_alone_tells_too_unless_it_is_not_to(tmp_path: Path) -> None:
    with town(SmallSite({"/": links()})) as (site,), Place(tmp_path) as place:
        place.crawl([site.root], STATUS_BY_TRAFFIC=0).succeeded()
        assert place.rows("select count(*) from health") == [(0,)]
        place.crawl([site.root], "--again").succeeded()
        assert found(place) == {site.site: ("normal", 200, 1)}


def test_loading_tells_of_a_first_page_that_never_came_whole(tmp_path: Path) -> None:
    wanted: dict[SmallSite, tuple[Any, ...]] = {
        OddSite("slow-body", "127.0.2.1"): ("error", -5, 3),
        OddSite("short-body", "127.0.2.2"): ("error", -8, 3),
        OddSite("noise", "127.0.2.3"): ("error", -12, 3),
        OddSite("reset", "127.0.2.4"): ("disconnected", -6, 3),
    }
    with town(*wanted) as sites, Place(tmp_path) as place:
        place.crawl([site.root for site in sites], **QUICK).stored_nothing()
        assert found(place) == {site.site: wanted[site] for site in sites}
        assert place.rows("select distinct seen_by, path from health") == [("traffic", "/")]


def test_one_try_of_another_work_is_no_outage(tmp_path: Path) -> None:
    site = OddSite("", "127.0.2.1", {"/": links()})
    with town(site), Place(tmp_path) as place:
        place.crawl([site.root], **QUICK).succeeded()
        for behave, health in (("reset", "normal"), ("short-body", "error")):
            site.behave = behave
            give(place, site.site, "recheck", BatchPage("/", "visited"))
            place.crawl([], spider="recheck", **QUICK).succeeded()
            assert found(place)[site.site][0] == health


# --- many agents, and what is away ---------------------------------------------------------------------------


def rows_of(url: str, query: str) -> list[tuple[Any, ...]]:
    from sqlalchemy import text as sql

    from crawler.store.database import open_database, transaction

    engine = open_database(url)
    with transaction(engine) as connection:
        rows = [tuple(row) for row in connection.execute(sql(query))]
    engine.dispose()
    return rows


# Where every answer is in time, a check is one request: one that a lost lease breaks off half-way is not told.
ONE_REQUEST_EACH = {"STATUS_DELAY_SECONDS": 30, "HEAD_TIMEOUT_SECONDS": 60, "CONNECT_TIMEOUT_SECONDS": 60}


def go_through(place: Place, server: RunningServer, database: str, through: str, outage: Any) -> None:
    """Two agents check a town of 20 again and again while something is away; each answer has its row."""
    where = {"REDIS_URL": server.url, "STATUS_INTERVAL_SECONDS": 0.5, "LEASE_SECONDS": 3, **ONE_REQUEST_EACH}
    where["STATUS_SLOTS"] = 4  # so that none can take all
    sites = [SmallSite({"/": links()}, f"127.0.2.{n}") for n in range(1, 21)]
    with town(*sites):
        # Else a server that is killed while its disk is busy may have acknowledged what it had not written.
        server.client.config_set("appendfsync", "always")
        coordinator = place.start("coordinate", REDIS_URL=server.url, DATABASE_URL=through)
        runs = [start(place, [site.root for site in sites], **where) for _ in range(2)]
        eventually(lambda: server.client.zcard("lt:{0}:agents") == 2, "both have joined", 60)
        eventually(lambda: min(map(times_asked, sites)) >= 2, "every site was asked twice", 60)
        outage()
        asked = Counter({site.site: times_asked(site) for site in sites})
        eventually(lambda: all(times_asked(s) > asked[s.site] + 1 for s in sites), "they are asked on", 90)
        for run in runs:
            run.end().succeeded()
        eventually(lambda: not server.client.xlen("lt:{0}:results"), "all is stored", 60)
        coordinator.end().succeeded()
        query = "select s.site, count(*) from health h join sites s on s.site_id = h.site_id group by s.site"
        rows = dict(rows_of(database, query))
        assert rows == {site.site: times_asked(site) for site in sites}
        assert rows_of(database, "select count(*) from health where tries > 1") == [(0,)]
        seen = rows_of(database, "select agent, count(*), count(distinct seq) from health group by agent")
        assert seen  # by both, or by one that was always the first to ask
        assert all(many == different for _, many, different in seen)
        assert rows_of(database, "select count(*) from dead_letters") == [(0,)]


def test_nothing_is_lost_while_the_server_is_away(place: Place, valkey: RunningServer) -> None:
    def outage() -> None:
        with frozen(valkey):
            pass_time(1.5)
        valkey.kill()
        pass_time(1.5)
        valkey.start()

    database = f"sqlite:///{place.var / 'crawl.db'}"
    place.var.mkdir()
    go_through(place, valkey, database, database, outage)


@pytest.mark.needs("postgres")
def test_nothing_is_lost_while_the_database_is_away(
    place: Place, valkey: RunningServer, make_database: MakeDatabase
) -> None:
    with tables_that_go(make_database("postgres")) as tables:

        def outage() -> None:
            tables.take_away()
            pass_time(2)
            tables.give_back()

        go_through(place, valkey, tables.url, tables.through, outage)


@pytest.mark.drill
@pytest.mark.timeout(900)
@pytest.mark.needs("postgres")
def test_nothing_is_lost_while_server_and_database_are_away_for_a_minute(
    place: Place, valkey: RunningServer, make_database: MakeDatabase
) -> None:
    with tables_that_go(make_database("postgres")) as tables:

        def outage() -> None:
            tables.take_away()
            pass_time(60)
            tables.give_back()
            with frozen(valkey):
                pass_time(60)
            valkey.kill()
            pass_time(60)
            valkey.start()

        go_through(place, valkey, tables.url, tables.through, outage)


def test_due_times_survive_the_loss_of_the_queue(place: Place, valkey: RunningServer) -> None:
    where = {"REDIS_URL": valkey.url, "DATABASE_URL": f"sqlite:///{place.var / 'crawl.db'}"}
    place.var.mkdir()
    with town(SmallSite({"/": links()}, "127.0.2.1"), SmallSite({"/": links()}, "127.0.2.2")) as (one, two):
        coordinator = place.start("coordinate", **where)
        check(place, [one.root], **where)
        check(place, [two.root], STATUS_INTERVAL_SECONDS=900, **where)
        eventually(lambda: not valkey.client.xlen("lt:{0}:results"), "all is stored")
        coordinator.end().succeeded()
        before = dict(valkey.client.zrange("lt:{0}:wake:status", 0, -1, withscores=True))
        assert len(before) == 2
        valkey.client.flushall()
        place.run("queue", "rebuild", STATUS_INTERVAL_SECONDS=300, **where).succeeded()
        after = dict(valkey.client.zrange("lt:{0}:wake:status", 0, -1, withscores=True))
        assert set(after) == set(before)
        assert abs(after[one.site.encode()] - before[one.site.encode()]) < 5_000
        assert times_asked(one) == times_asked(two) == 1
        check(place, [], **where)
        assert times_asked(one) == times_asked(two) == 1, "none is due yet"


def test_hundreds_of_sites_are_all_checked_in_one_run(tmp_path: Path) -> None:
    """They are taken up at the same moment, all on addresses that nobody knew."""
    with Farm(sites=600, pages=1, kinds=(), names=()) as farm, Place(tmp_path) as place:
        check(place, list(farm.seeds))
        assert place.rows("select count(distinct site_id), count(*) from health") == [(600, 600)]


def test_the_operators_word_holds_for_checks(tmp_path: Path) -> None:
    one, two = SmallSite({"/": links()}, "127.0.2.1"), SmallSite({"/": links()}, "127.0.2.2")
    with town(one, two), Place(tmp_path) as place:
        check(place, [one.root, two.root])
        place.run("site", "block", one.root).succeeded()
        let_be_due(place, one, two)
        check(place, [])
        assert (times_asked(one), times_asked(two)) == (1, 2)
        place.run("site", "resume", one.root).succeeded()
        check(place, [])
        assert (times_asked(one), times_asked(two)) == (2, 2)
        with queue_of(place) as queue:
            assert set(queue.details(one.site)["due_ms"]) == {"status"}


# --- what is kept and watched, without a crawl -------------------------------------------------------------------


@pytest.mark.parametrize(
    "permit",
    [RobotsCache(1700000000.0, 0.0, "lowtide", ()), RobotsCache(1.0, 2.5, "my-bot", ("/", "/index.php?a=1"))],
)
def test_a_permit_is_read_as_it_was_written(permit: RobotsCache) -> None:
    assert RobotsCache.read(str(permit)) == permit


@pytest.mark.parametrize("kept", ["", "x", "1 2", "soon 0 bot /"])
def test_what_is_no_permit_is_none(kept: str) -> None:
    assert RobotsCache.read(kept) is None


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_first_page_that_is_forbidden_is_not_its_site_either_where_another_one_loads(status: int) -> None:
    watch = SiteWatch(limit=3.0, pages=3, interval=300.0)
    assert watch.saw("/", status, 0.1, 0.0) == "error", "nothing else is known yet"
    assert watch.saw("/seed", 200, 0.1, 1.0) == "normal"
    assert watch.saw("/", status, 0.1, 2.0) is None
    assert watch.saw("/", 500, 0.1, 3.0) == "error"


def test_a_page_is_not_its_site() -> None:
    watch = SiteWatch(limit=3.0, pages=3, interval=300.0)
    assert watch.saw("/a", 404, 0.1, 0.0) is None
    assert watch.saw("/a", 500, 0.1, 0.0) is None
    assert watch.saw("/a", -2, None, 0.0) is None
    assert watch.saw("/a", 200, 0.1, 0.0) == "normal"
    assert watch.saw("/b", 200, 0.1, 299.0) is None
    assert watch.saw("/b", 200, 0.1, 300.0) == "normal", "once an interval"
    assert [watch.saw("/late", 200, 9.0, 301.0) for _ in range(4)] == [None, None, "delayed", None]
    assert watch.saw("/", 500, 0.1, 302.0) == "error"
    assert watch.saw("/robots.txt", -2, None, 303.0) == "disconnected"
    assert watch.saw("/a", 503, 0.1, 304.0) == "delayed"
    assert watch.saw("/a", 200, 0.1, 305.0) == "normal"
