"""What one agent makes of single sites: rests, broken checkpoints, the operator's orders; and when it ends."""

from __future__ import annotations

import json
import re
from collections import Counter
from hashlib import sha1
from typing import Any

import pytest

from crawler.agent.frontier import Frontier
from crawler.queue.sites import Restored
from tests.crawling import Place, Run, check_delay, fetched, wait_for_hits
from tests.drills import Fleet, key
from tests.farm import Farm
from tests.queue_driver import driver
from tests.servers import RunningServer, eventually
from tests.small_site import Reply, SmallSite, links
from tests.told import told_pages

PLAIN: dict[str, Any] = {"kinds": (), "names": ()}


def ask(place: Place, valkey: RunningServer, *words: str) -> Run:
    """A command of the operator's."""
    return place.run(*words, REDIS_URL=valkey.url).succeeded()


def shown(place: Place, valkey: RunningServer, site: str) -> dict[str, Any]:
    """What `scrapy site show` tells of a site."""
    found: dict[str, Any] = json.loads(ask(place, valkey, "site", "show", site, "--json").out)
    return found


# --- seeds ------------------------------------------------------------------------------------------------


def test_a_root_and_a_page_may_be_given_in_either_order(place: Place, valkey: RunningServer) -> None:
    with SmallSite({"*": links()}, "127.0.1.1") as one, SmallSite({"*": links()}, "127.0.1.2") as two:
        for seeds in ((one.root, f"{two.site}/x"), (f"{one.site}/x", two.root)):
            place.run("seed", *seeds, REDIS_URL=valkey.url).succeeded()
        place.crawl([], REDIS_URL=valkey.url).succeeded()
        assert one.pages == two.pages == {"/": 1, "/x": 1}
        assert one.paths.index("/") < one.paths.index("/x")
        assert {page.depth for page in told_pages(valkey)} == {0}


# --- the end ----------------------------------------------------------------------------------------------


def test_an_idle_agent_waits_for_one_that_still_discovers(place: Place, valkey: RunningServer) -> None:
    """Only one of them can have the first site, which names the others: the one without any must not go home."""
    with (
        Farm(sites=4, pages=2, delay_ms=400, **PLAIN) as farm,
        Fleet(place, farm, valkey, SCOPE="any", SITE_SLOTS=1) as fleet,
    ):
        for _ in range(2):
            fleet.agent(seeds=[farm.seeds[0]])
        fleet.wait()
        fleet.check_exact(farm.expected("any"))
        assert len({hit.user_agent for hit in farm.hits()}) == 2


IMPATIENT = """
from crawler.agent import agent
from crawler.spiders.site import SiteSpider

agent.COORDINATOR_SECONDS = 1.0


class Impatient(SiteSpider):
    name = "impatient"
"""


def test_new_pages_of_finished_sites_need_a_coordinator(place: Place, valkey: RunningServer) -> None:
    (place.folder / "impatient.py").write_text(IMPATIENT)
    own = {
        "spider": "impatient",
        "SPIDER_MODULES": "impatient",
        "env": {"PYTHONPATH": str(place.folder)},
        "REDIS_URL": valkey.url,
    }
    with SmallSite({"*": links()}) as site:
        place.start_crawl([site.root], **own).wait().succeeded()
        run = place.start_crawl([f"{site.site}/new"], **own).wait()
        run.refused("1 finished sites may have new pages, but no coordinator is running", code=1)
        assert run.err.count("agent: 1 finished sites may have new pages") == 1
        assert run.err.splitlines()[-1].startswith("lowtide: 1 finished sites may have new pages")
        assert site.pages == {"/": 1}


def test_a_site_that_is_down_rests_is_named_and_goes_on_when_due(place: Place, valkey: RunningServer) -> None:
    with Farm(sites=2, pages=3, down=(1,), **PLAIN) as farm, Fleet(place, farm, valkey) as fleet:
        port, down = farm.port, farm.site(1)
        run = fleet.agent().wait().succeeded()
        last = run.err[run.err.index("1 sites are due later") :]
        assert f"{down} until " in last
        assert "DownloadConnectionRefusedError" in last
        assert shown(place, valkey, down)["state"] == "later"
    with (
        Farm(sites=2, pages=3, port=port, **PLAIN) as farm,
        Fleet(place, farm, valkey) as fleet,
    ):
        valkey.client.zadd(key("wake:site"), {down: 1})
        fleet.agent()
        fleet.wait()
        fleet.check_exact()
        assert {f"http://{hit.host}" for hit in farm.hits()} == {down}


# --- tries and rests --------------------------------------------------------------------------------------


def test_pages_get_their_tries_and_sites_their_rests(place: Place, valkey: RunningServer) -> None:
    """`broken` answers 500 always, `busy` once 503 with Retry-After: 1, during which the whole site rests."""
    with (
        Farm(sites=1, pages=3, kinds=("broken", "busy"), names=()) as farm,
        Fleet(place, farm, valkey, RETRY_DELAY_SECONDS=0.4, MAX_TRIES=2) as fleet,
    ):
        run = fleet.agent().wait().succeeded()
        fleet.check_exact()
        hits = [hit for hit in farm.hits() if hit.path != "/robots.txt"]
        assert Counter(hit.path for hit in hits if hit.status >= 500) == {"/broken.html": 2, "/busy.html": 1}
        tries = [hit.monotonic for hit in hits if hit.path == "/broken.html"]
        assert tries[1] - tries[0] >= 0.4
        busy = next(number for number, hit in enumerate(hits) if hit.status == 503)
        assert hits[busy + 1].monotonic - hits[busy].monotonic >= 1.0
        assert "backing off for 1 s: it answered 503" in run.err
        assert place.rows("select outcome, status, tries from pages where url like '%broken%'") == [
            ("failed", 500, 2)
        ]
        assert place.rows("select outcome, status, tries from pages where url like '%busy%'") == [
            ("stored", 200, 2)
        ]


# --- checkpoints ------------------------------------------------------------------------------------------


def test_a_broken_checkpoint_costs_its_own_site_only(place: Place, valkey: RunningServer) -> None:
    with Farm(sites=2, pages=16, **PLAIN) as farm, Fleet(place, farm, valkey, DOWNLOAD_DELAY=0.1) as fleet:
        broken, whole = farm.site(0), farm.site(1)
        run = fleet.agent()
        wait_for_hits(farm, 10)
        run.end().succeeded()
        valkey.client.delete(key(f"checkpoint:{broken}"))
        valkey.client.rpush(key(f"checkpoint:{broken}"), b"\xc1 garbage \x00\xff")
        known = {url for url in fetched(farm.hits()) if url.startswith(whole)}
        before = len(farm.hits())

        run = fleet.agent()
        wait_for_hits(farm, 12, before)
        fleet.kill(run)  # what it has published since is a good checkpoint again
        assert f"{broken}: checkpoint unreadable" in run.err
        assert whole not in run.err

        run = fleet.agent()
        fleet.wait()
        assert "cannot be read" not in run.err
        fleet.store_all()
        assert place.stored() == farm.expected()
        fleet.check_nothing_left()
        asked = fetched(farm.hits())
        assert {asked[url] for url in known} == {1}
        assert asked[f"{broken}/"] == 2


def test_what_is_no_path_of_a_site_is_left_out_and_told_once(place: Place, valkey: RunningServer) -> None:
    with SmallSite({"*": links()}) as site:
        place.run("seed", site.root, REDIS_URL=valkey.url).succeeded()
        valkey.client.rpush(key(f"paths:{site.site}"), "trash", "/x\nmore trash", b"\xff", b"/\xff")
        run = place.crawl([], REDIS_URL=valkey.url).succeeded()
        assert run.err.count("invalid paths left out") == 1
        assert f"site {site.site}: 3 invalid paths left out, the first is 'trash'; expected /…" in run.err
        assert set(site.pages) == {"/x", "/%EF%BF%BD"}


def test_trash_alone_leaves_the_root(place: Place, valkey: RunningServer) -> None:
    with SmallSite({"*": links()}) as site:
        place.run("seed", site.root, REDIS_URL=valkey.url).succeeded()
        valkey.client.rpush(key(f"paths:{site.site}"), "trash")
        place.crawl([], REDIS_URL=valkey.url).succeeded()
        assert site.pages == {"/": 1}


def test_a_page_that_cannot_be_asked_for_has_failed(place: Place, valkey: RunningServer) -> None:
    """A checkpoint may have a path that makes no URL behind the name of its site."""
    frontier = Frontier()
    frontier.add(("/", "trash", "/x"), 0)
    with SmallSite({"*": links()}) as site, driver(valkey) as queue:
        queue.give_checkpoint(site.site, frontier.whole())
        queue.restore([Restored(site.site, "suspended")])
        run = place.crawl([], REDIS_URL=valkey.url).succeeded()
        assert f"{site.site}: 'trash' request failed to build: ValueError" in run.err
        assert site.pages == {"/": 1, "/x": 1}
        assert [page.path for page in told_pages(valkey) if page.outcome == "failed"] == ["trash"]


def test_a_site_that_cannot_be_asked_goes_back(place: Place, valkey: RunningServer) -> None:
    with SmallSite({"*": links()}) as site, driver(valkey) as queue:
        broken = f"{site.site}x"
        queue.add(broken, site.site)
        run = place.crawl([], REDIS_URL=valkey.url).succeeded()
        assert re.search(rf"{broken}: backing off for \d+ s: UnsupportedURLSchemeError: ", run.err)
        assert f"1 sites are due later and continue in the next run: {broken}" in run.err
        assert site.pages == {"/": 1}


def test_a_site_that_could_not_be_taken_up_is_not_forgotten(place: Place, valkey: RunningServer) -> None:
    """Leased, but then its address could not be told to the server: it goes back and is leased once more."""
    with Farm(sites=2, pages=4, **PLAIN) as farm, Fleet(place, farm, valkey, LEASE_SECONDS=1) as fleet:
        valkey.client.hset(key("busy"), "127.0.1.1", "no number: whoever takes a place on this address fails")
        run = fleet.agent()
        run.says("Redis is away")
        valkey.client.hdel(key("busy"), "127.0.1.1")
        fleet.wait()
        fleet.store_all()
        assert place.stored() == farm.expected()
        assert set(fetched(farm.hits()).values()) == {1}
        assert "Redis is back" in run.err


@pytest.mark.parametrize("more", [(), ("--with", "status"), ("--agents", "2")], ids=" ".join)
def test_what_is_no_record_ends_every_crawl_that_meets_it(
    place: Place, valkey: RunningServer, more: tuple[str, ...]
) -> None:
    """Also of an agent that has something else in hand, and of the next one."""
    with SmallSite({"*": links()}, "127.0.1.1") as whole, SmallSite({"*": links()}, "127.0.1.2") as broken:
        place.run("seed", broken.root, whole.root, REDIS_URL=valkey.url).succeeded()
        bucket = key(f"sites:{sha1(broken.site.encode()).hexdigest()[:4]}")
        valkey.client.hset(bucket, broken.site, "garbage")
        for _ in range(2):
            run = place.crawl([], *more, REDIS_URL=valkey.url)
            run.refused(f"{bucket} in Redis has 'garbage' for '{broken.site}'", "scrapy queue reset", code=3)
            assert "Redis is away" not in run.err
            assert "Traceback" not in run.err
        assert broken.paths == []


def test_what_is_no_record_ends_the_crawl_that_has_its_site(place: Place, valkey: RunningServer) -> None:
    with SmallSite({"/": Reply(seconds=1), "*": links()}) as site:
        run = place.start_crawl([site.root], REDIS_URL=valkey.url)
        eventually(lambda: "/" in site.paths, "the site is in hand")
        bucket = key(f"sites:{sha1(site.site.encode()).hexdigest()[:4]}")
        valkey.client.hset(bucket, site.site, "garbage")
        run.wait().refused(f"{bucket} in Redis has 'garbage' for '{site.site}'", code=3)
        assert "Traceback" not in run.err


def test_what_an_agent_cannot_hold_ends_its_crawl(place: Place, valkey: RunningServer) -> None:
    run = place.start_crawl([], "--when-idle", "wait", REDIS_URL=valkey.url)
    eventually(lambda: valkey.client.zcard(key("agents")) == 1, "it is at work")
    held = key(f"held:{valkey.client.zrange(key('agents'), 0, -1)[0].decode()}")
    valkey.client.hset(held, "http://127.0.1.1", "")
    run.wait().refused(f"{held} in Redis has '' for 'http://127.0.1.1'; expected an agent's sites", code=3)
    assert "Traceback" not in run.err


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("config", "set", "requirepass", "x"), "asks for a password"),
        (("acl", "setuser", "default", "-evalsha"), "refuses a command"),
    ],
)
def test_an_agent_that_may_no_more_does_not_wait(
    place: Place, valkey: RunningServer, change: tuple[str, ...], says: str
) -> None:
    run = place.start_crawl([], "--when-idle", "wait", REDIS_URL=valkey.url)
    eventually(lambda: valkey.client.zcard(key("agents")) == 1, "it is at work")
    valkey.client.execute_command(*change)
    # A connection that was let in stays so.
    valkey.client.execute_command("client", "kill", "type", "normal", "skipme", "yes")
    run.wait().refused(says, code=3)


# --- the operator's orders --------------------------------------------------------------------------------


def asked_for(farm: Farm, site: str) -> int:
    return sum(f"http://{hit.host}" == site for hit in farm.hits())


def until_still(farm: Farm, fleet: Fleet, site: str, seconds: float) -> int:
    """Wait until the agent has given the site back; how often it was asked by then."""
    eventually(lambda: not any(site in fleet.held(run) for run in fleet.alive), "it is given back", seconds)
    return asked_for(farm, site)


def test_orders_are_obeyed_within_a_renewal(place: Place, valkey: RunningServer) -> None:
    with (
        Farm(sites=3, pages=44, **PLAIN) as farm,
        Fleet(place, farm, valkey, DOWNLOAD_DELAY=0.25, LEASE_SECONDS=3) as fleet,
    ):
        blocked, paused, other = map(farm.site, range(3))
        # Waiting: a busy machine may be done with the third before the paused one is resumed.
        run = fleet.agent("--when-idle", "wait")
        wait_for_hits(farm, 12)
        ask(place, valkey, "site", "block", blocked, "--reason", "its owner asked us to")
        ask(place, valkey, "site", "pause", paused)
        # A renewal comes every second, a third of the lease.
        asked = {site: until_still(farm, fleet, site, 2.0) for site in (blocked, paused)}
        others = asked_for(farm, other)
        eventually(lambda: asked_for(farm, other) >= min(others + 5, 44), "the other one goes on")
        assert asked == {site: asked_for(farm, site) for site in asked}
        assert max(asked.values()) < 44
        ask(place, valkey, "site", "resume", paused)
        eventually(lambda: fleet.counts().get("finished") == 2, "both are finished", 30)
        run.end().succeeded()
        fleet.store_all()
        fleet.check_published_once()
        fleet.check_nothing_left()
        assert {site: place.stored()[site] for site in (paused, other)} == farm.expected(
            seeds=[paused, other]
        )
        assert set(fetched(farm.hits()).values()) == {1}  # the paused one went on where it was
        assert asked_for(farm, blocked) == asked[blocked]
        assert {fleet.counts()[name] for name in ("blocked", "finished")} == {1, 2}
        assert shown(place, valkey, blocked)["why"] == "its owner asked us to"


def test_a_budget_holds_from_the_next_lease(place: Place, valkey: RunningServer) -> None:
    with Farm(sites=2, pages=30, **PLAIN) as farm, Fleet(place, farm, valkey, DOWNLOAD_DELAY=0.1) as fleet:
        run = fleet.agent()
        wait_for_hits(farm, 8)
        run.end().succeeded()
        ask(place, valkey, "site", "budget", farm.site(0), "12")
        fleet.agent()
        fleet.wait()
        fleet.store_all()
        assert [len(place.stored()[farm.site(number)]) for number in (0, 1)] == [12, 30]
        rows = place.rows(f"select reason, over_budget > 0 from sites where site = '{farm.site(0)}'")
        assert rows == [("left out: 18 pages by MAX_PAGES_PER_SITE", 1)]


# --- the plan ---------------------------------------------------------------------------------------------


def test_a_probed_site_goes_back_after_a_few_pages(place: Place, valkey: RunningServer) -> None:
    hour_seconds = 1e6
    with (
        Farm(sites=2, pages=8, **PLAIN) as farm,
        Fleet(place, farm, valkey, SITE_SLOTS=1, HOUR_SECONDS=hour_seconds) as fleet,
    ):
        probed, planned = farm.site(0), farm.site(1)
        hour = int(valkey.client.time()[0] // hour_seconds)
        valkey.client.set(key("planner"), "the-test 1")  # nobody else writes lists
        place.run("seed", *farm.seeds, REDIS_URL=valkey.url).succeeded()
        valkey.client.rpush(key(f"probe:{hour}"), probed)
        valkey.client.rpush(key(f"hour:{hour}"), planned)
        fleet.agent()
        fleet.wait()
        fleet.check_exact()
        order = [f"http://{hit.host}" for hit in farm.hits() if hit.path != "/robots.txt"]
        assert order == [probed] * 5 + [planned] * 8 + [probed] * 3


def test_a_suspended_site_is_asked_no_earlier_by_whoever_goes_on(place: Place, valkey: RunningServer) -> None:
    """Suspended again and again, and taken up at once each time: the pause between two requests holds all the same."""
    with (
        Farm(sites=1, pages=8, **PLAIN) as farm,
        Fleet(place, farm, valkey, SITE_SLOTS=1, DOWNLOAD_DELAY=0.6, HOUR_SECONDS=6) as fleet,
    ):
        valkey.client.set(key("planner"), "the-test 1")
        run = fleet.agent()
        fleet.until_working(run)
        for pages in (2, 4):
            wait_for_hits(farm, pages + pages // 2)  # with the readings of robots.txt, one a lease
            valkey.client.sadd(key(f"suspend:{fleet.session(run)}"), farm.site(0))
            token = fleet.counts()["token"]
            eventually(
                lambda token=token: fleet.counts()["token"] > token, "it is suspended, and gone on with"
            )
        fleet.wait()
        fleet.check_exact()
        check_delay([hit.monotonic for hit in farm.hits()], 0.6)
