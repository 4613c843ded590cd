"""Sites that may be others under a second name: both are crawled until their pages prove it, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

import msgspec
import pytest
from scrapy.settings import Settings
from sqlalchemy import Engine, event, select

from crawler.admin import operator
from crawler.agent.frontier import Frontier
from crawler.options import Options
from crawler.queue.queue import SiteQueue
from crawler.queue.sites import Offer, Restored, root_marks
from crawler.reconcile import reopening
from crawler.reconcile.aliases import Loaded, compared
from crawler.reconcile.reopening import Reopening
from crawler.records import Page, SiteEnded, SiteFound, decode, hash64
from crawler.store.database import transaction
from crawler.store.tables import sites
from crawler.store.write import Stored, store
from crawler.urls.scope import Scope
from tests.conftest import OpenTables
from tests.crawling import Place, Run
from tests.databases import KINDS
from tests.queue_driver import BASE, Driver, delivery, driver
from tests.servers import RunningServer
from tests.small_site import RESET, Reply, Route, SmallSite, at_first, links, text

HOST = "127.0.0.1"
MANY = 200
# Requests to a second name that a true alias may cost.
SOME_TENS = 60


def page(words: str, *targets: str, seconds: float = 0.0) -> Reply:
    """A page with a text of its own."""
    return links(*targets, seconds=seconds)._replace(
        body=f"<title>{words}</title><p>{words}</p>" + links(*targets).body
    )


def tree(mark: str, many: int, seconds: float = 0.0) -> dict[str, Route]:
    """Pages /p0 to /pN below a root that links to the first ten; each links to ten more."""
    paths = [f"/p{number}" for number in range(many)]
    pages = {
        path: page(f"{mark} {path}", *paths[10 * number + 10 : 10 * number + 20], seconds=seconds)
        for number, path in enumerate(paths)
    }
    return {"/": page(f"{mark} root", *paths[:10]), **pages}


def under(name: str, routes: Mapping[str, Route]) -> dict[str, Route]:
    """Routes for requests to one name."""
    return {f"//{name}{path}": route for path, route in routes.items()}


def hub(*urls: str) -> SmallSite:
    """A site of its own, on another address, that links to these."""
    return SmallSite({"/": links(*urls)}, "127.0.1.1")


def crawl(place: Place, seeds: Iterable[str], *words: str, **given: Any) -> Run:
    return place.crawl(seeds, *words, **{"SCOPE": "any", **given}).succeeded()


def alias_of(place: Place) -> dict[str, str]:
    """The sites that are left out, each with the one that it is."""
    return dict(place.rows("select site, alias_of from sites where alias_of is not null"))


def same_as(place: Place) -> dict[str, str]:
    """The sites that have another one's pages and are crawled all the same."""
    return dict(place.rows("select site, same_as from sites where same_as is not null"))


def ledger(place: Place) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(place.run("report", "ledger", "--json").succeeded().out)["ledger"]
    assert found["balanced"], found["wrong"]
    return found


# --- what is no alias ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seeded", [True, False])
def test_names_with_one_landing_page_keep_their_own_pages(place: Place, seeded: bool) -> None:
    """Fifty names on one address; their root pages are equal, and nothing else is."""
    names = [f"n{number}.localhost" for number in range(50)]
    inner = [f"/p{number}" for number in range(12)]
    routes: dict[str, Route] = {"/": page("Choose your language", *inner[:2])}
    for name in names:
        routes |= under(name, {path: page(f"{name} {path}", *inner) for path in inner})
    with SmallSite(routes, HOST) as site:
        urls = [f"http://{name}:{site.port}/" for name in names]
        with hub(*urls) as linking:
            crawl(place, urls if seeded else [linking.root])
        assert {name: set(site.asked_of(name)) for name in names} == {name: {"/", *inner} for name in names}
        assert len(site.log) == len(names) * (2 + len(inner))
    assert alias_of(place) == same_as(place) == {}
    ledger(place)


def test_another_port_is_another_site(place: Place) -> None:
    """Two services with one default page each; the user gave a page of either."""
    services = [
        {"/": page("It works"), "/app": page(f"app {number}", *[f"/app/{n}" for n in range(5)])}
        | {f"/app/{n}": page(f"app {number} {n}", "/") for n in range(5)}
        for number in range(2)
    ]
    with SmallSite(services[0], HOST) as one, SmallSite(services[1], HOST) as two:
        crawl(place, [one.root, two.root, f"{one.site}/app", f"{two.site}/app"], DOWNLOAD_DELAY=0.1)
        assert one.pages == two.pages == dict.fromkeys(services[0], 1)


def test_what_is_given_as_a_seed_is_fetched(place: Place) -> None:
    """Two names of one site, both given: their pages are the same, which is told, and both are crawled."""
    with SmallSite(tree("one", 40), HOST) as site:
        apex, www = (f"http://{name}.localhost:{site.port}" for name in ("one", "www.one"))
        place.run("seed", f"{www}/p0", f"{www}/").succeeded()
        crawl(place, [apex])
        for name in ("one.localhost", "www.one.localhost"):
            assert set(site.asked_of(name)) == tree("one", 40).keys()
    assert alias_of(place) == {}
    assert len(same_as(place)) == 1
    out = place.run("report", "summary").succeeded().out
    assert "sites with another one's pages, crawled nevertheless" in out


def test_sites_under_construction_have_own_pages_later(place: Place) -> None:
    later = {path: page(f"x {path}") for path in ("/a", "/b")}
    names = ("one.localhost", "two.localhost")
    routes: dict[str, Route] = {}
    for name in names:
        own = page(f"{name} is ready", *(f"/{name}{path}" for path in later))
        routes |= under(name, {"/": at_first(page("Under construction"), own)})
        routes |= under(name, {f"/{name}{path}": page(f"{name} {path}") for path in later})
    with SmallSite({}, HOST) as site:
        asked: dict[str, int] = {}

        def root(name: str) -> Route:
            def reply(_times: int) -> Reply:
                asked[name] = asked.get(name, 0) + 1
                route = routes[f"//{name}/"]
                return route if isinstance(route, Reply) else route(asked[name])

            return reply

        site.routes |= routes | {f"//{name}/": root(name) for name in names}
        seeds = [f"http://{name}:{site.port}/" for name in names]
        crawl(place, seeds)
        crawl(place, seeds, "--again")
        for name in names:
            assert set(site.asked_of(name)) == {"/", f"/{name}/a", f"/{name}/b"}


def test_a_link_s_alias_that_is_given_as_a_seed_is_crawled(place: Place) -> None:
    with SmallSite(tree("one", MANY), HOST) as site:
        apex, www = (f"http://{name}.localhost:{site.port}" for name in ("one", "www.one"))
        with hub(apex, www) as linking:
            crawl(place, [linking.root])
            ((alias, original),) = alias_of(place).items()
            name = alias.partition("//")[2].partition(":")[0]
            assert len(site.asked_of(name)) <= SOME_TENS
            crawl(place, [alias])
        assert set(site.asked_of(name)) == tree("one", MANY).keys()
        assert len(site.asked_of(name)) == MANY + 1
        assert alias_of(place) == {}
        assert {alias, original} == {apex, www}
    ledger(place)


def test_a_site_that_is_not_crawled_has_no_aliases(place: Place) -> None:
    """The first is blocked before the second is found: what is allowed is crawled."""
    with SmallSite(tree("same", 30), HOST) as site:
        first, second = (f"http://{name}.localhost:{site.port}" for name in ("same", "www.same"))
        crawl(place, [first])
        place.run("site", "block", first).succeeded()
        with hub(second) as linking:
            crawl(place, [linking.root])
        assert set(site.asked_of("www.same.localhost")) == tree("same", 30).keys()


def test_another_robots_txt_is_another_site(place: Place) -> None:
    pages = tree("same", 30)
    routes = {**pages, "//same.localhost/robots.txt": text("User-agent: *\nDisallow: /\nAllow: /$\n")}
    with SmallSite(routes, HOST) as site:
        first, second = (f"http://{name}.localhost:{site.port}" for name in ("same", "www.same"))
        with hub(second) as linking:
            crawl(place, [first])
            crawl(place, [linking.root])
        assert site.asked_of("same.localhost") == ["/"]
        assert set(site.asked_of("www.same.localhost")) == pages.keys()


@pytest.mark.parametrize("late", [4, 12, 150])
def test_a_mirror_with_a_page_of_its_own_is_crawled(place: Place, late: int) -> None:
    """Where it shows among the pages that both have loaded."""
    pages = tree("one", MANY)
    theirs = pages[f"/p{late}"]
    assert isinstance(theirs, Reply)
    own = theirs._replace(body=f"{theirs.body}<p>The mirror's own: <a href=/only-here>x</a>")
    routes = {**pages, f"//mirror.localhost/p{late}": own, "/only-here": page("x")}
    with SmallSite(routes, HOST) as site:
        one, mirror = (f"http://{name}.localhost:{site.port}" for name in ("one", "mirror"))
        # A link to the page that differs brings it forward; the site that was given loads it when its turn comes.
        with hub(f"{mirror}/", f"{mirror}/p{late}") as linking:
            crawl(place, [linking.root, one])
        assert set(site.asked_of("mirror.localhost")) == {*pages, "/only-here"}
    assert alias_of(place) == {}


# --- what is one ------------------------------------------------------------------------------------------


def test_a_second_name_costs_some_tens_of_requests(place: Place) -> None:
    """And nothing is lost that is linked under that name alone, by its own pages or by others, before or later."""
    pages = tree("one", MANY) | {"/linked": page("linked"), "/later": page("later")}
    with SmallSite(pages, HOST) as site:
        apex, www = (f"http://{name}.localhost:{site.port}" for name in ("one", "www.one"))
        with hub(f"{apex}/") as linking:
            linking.routes["/"] = links(f"{apex}/", f"{www}/", "/more")
            linking.routes["/more"] = links(f"{www}/linked")
            crawl(place, [linking.root])
            ((alias, original),) = alias_of(place).items()
            names = [url.partition("//")[2].partition(":")[0] for url in (original, alias)]
            asked, more = map(site.asked_of, names)
            assert 6 <= len(more) <= SOME_TENS
            assert len(set(more)) == len(more)
            assert len(set(asked)) == len(asked)
            assert set(asked) | set(more) >= tree("one", MANY).keys()
            assert set(asked) >= tree("one", MANY).keys()
            found = ledger(place)
            assert found["sites"][alias]["given_up"] > 0
            with hub(f"{alias}/later") as other:
                crawl(place, [other.root])
            assert "/later" in site.asked_of(names[0])
            assert "/later" not in site.asked_of(names[1])
        shown = json.loads(place.run("site", "show", alias, "--json").succeeded().out)
        assert (shown["state"], shown["alias_of"]) == ("alias", original)
        assert shown["not_asked"] == found["sites"][alias]["given_up"]
        listed = place.run("site", "list", "--state", "alias").succeeded().out
        assert f"{alias} is {original}; {shown['not_asked']} URLs not fetched" in listed
        out = place.run("report", "summary").succeeded().out
        assert f"{shown['not_asked']} of their URLs were not fetched" in out
    ledger(place)


@pytest.mark.parametrize("order", ["resume", "block"])
def test_an_alias_is_opened_again(place: Place, order: str) -> None:
    """By the operator's word, or since the site that it stands for is blocked; it goes on where it was."""
    with SmallSite(tree("one", MANY), HOST) as site:
        apex, www = (f"http://{name}.localhost:{site.port}" for name in ("one", "www.one"))
        with hub(apex, www) as linking:
            crawl(place, [linking.root])
            ((alias, original),) = alias_of(place).items()
            name = alias.partition("//")[2].partition(":")[0]
            place.run("site", order, alias if order == "resume" else original).succeeded()
            crawl(place, [linking.root])
        assert set(site.asked_of(name)) == tree("one", MANY).keys()
        assert len(site.asked_of(name)) == MANY + 1
        assert alias_of(place) == {}
    ledger(place)


def test_an_original_that_is_given_up_has_no_aliases(place: Place) -> None:
    """Its name stops to answer when the alias was left out already."""
    with SmallSite({}, HOST) as site:
        one, www = (f"http://{name}.localhost:{site.port}" for name in ("one", "www.one"))

        def until_it_dies(reply: Route) -> Route:
            assert isinstance(reply, Reply)
            return lambda _times: reply if len(site.asked_of("one.localhost")) < MANY / 2 else RESET

        pages = tree("one", MANY)
        dying = {path: until_it_dies(reply) for path, reply in {**pages, "/robots.txt": Reply(404)}.items()}
        site.routes |= {**pages, **under("one.localhost", dying)}
        with hub(f"{one}/", f"{www}/") as linking:
            crawl(place, [linking.root, one], MAX_TRIES=1, DOWNLOAD_DELAY=0.02)
        assert "given up: " in dict(place.rows("select site, reason from sites"))[one]
        assert set(site.asked_of("www.one.localhost")) == pages.keys()
    assert alias_of(place) == {}
    ledger(place)


def test_a_finding_outlives_its_agent(place: Place) -> None:
    with SmallSite(tree("one", MANY, seconds=0.01), HOST) as site:
        apex, www = (f"http://{name}.localhost:{site.port}" for name in ("one", "www.one"))
        with hub(apex, www) as linking:
            for many in (15, 40):
                run = place.start_crawl([linking.root], SCOPE="any", LEASE_SECONDS=2)
                run.says("may be ") if many == 15 else None
                while len(site.log) < many and run.process.poll() is None:
                    pass
                run.end(signal.SIGKILL)
            crawl(place, [linking.root], LEASE_SECONDS=2)
        ((alias, original),) = alias_of(place).items()
        names = [url.partition("//")[2].partition(":")[0] for url in (original, alias)]
        assert set(site.asked_of(names[0])) == tree("one", MANY).keys()
        assert len(set(site.asked_of(names[1]))) <= SOME_TENS
    ledger(place)


def test_again_asks_anew(place: Place) -> None:
    """An alias stays one at the same cost; with pages of its own it is none."""
    with SmallSite(tree("one", MANY), HOST) as site:
        one, www = (f"http://{name}.localhost:{site.port}" for name in ("one", "www.one"))
        with hub(f"{www}/") as linking:
            crawl(place, [one])
            crawl(place, [linking.root])
            assert alias_of(place) == {www: one}
            before = len(site.asked_of("www.one.localhost"))
            crawl(place, [linking.root, one], "--again")
            assert alias_of(place) == {www: one}
            asked = site.asked_of("www.one.localhost")[before:]
            assert 6 <= len(asked) <= SOME_TENS
            before += len(asked)
            site.routes |= under("www.one.localhost", tree("another", 30))
            crawl(place, [linking.root, one], "--again")
            asked = site.asked_of("www.one.localhost")[before:]
            assert set(asked) == tree("another", 30).keys()
            assert alias_of(place) == {}
    ledger(place)


# --- a coordinator's part ---------------------------------------------------------------------------------

MARK = root_marks("http://a.example", HOST, "ab" * 32, "robots")
PATHS = ["/", *(f"/{number}" for number in range(6))]


class Judge:
    """A coordinator over a queue and tables, and agents' part of what it judges."""

    def __init__(self, queue: Driver, engine: Engine) -> None:
        self.queue, self.engine = queue, engine
        self._entries = 100
        self._reopening = Reopening(Settings({"REDIS_URL": queue.server.url}), queue.options, "c")
        queue.join("one", {})

    def walk(self, site: str, *, linked: bool, own: str = "", ending: str = "returned") -> None:
        """Find a site, load all its pages but `/left`, and give it back; the page `own` has a text of its own."""
        with transaction(self.engine) as connection:
            found = SiteFound(site=site, found_at=1, source="link" if linked else "seed")
            turns = [
                Page(
                    site=site,
                    path=path,
                    fetched_at=1,
                    outcome="stored",
                    status=200,
                    sha256=sha256(f"{site if path == own else ''}{path}".encode()).hexdigest(),
                )
                for path in PATHS
            ]
            store(connection, [Stored(f"{n + 1}-0", one) for n, one in enumerate([found, *turns])])
        if linked:
            self.queue.offer([Offer(site, ["/"], record=b"found")])
        else:
            self.queue.add(site)
        held = {one.site: one for one in self.queue.take("one", 9)}
        leased = held.pop(site)
        for one in held.values():
            self.queue.leave("one", one, "returned")
        frontier = Frontier(site=site)
        frontier.add([*PATHS, "/left"], 0)
        for _ in PATHS:
            turn = frontier.take(0)
            assert turn
            frontier.finish(turn)
        given = delivery(leased, 1, records=0, delta=frontier.whole(), fold=True, root=MARK, given=1)
        self.queue.publish("one", [given])
        figures = {"known": len(frontier), "done": frontier.published, "done_hash": frontier.done_hash}
        self.queue.leave("one", leased, ending, seq=1, **figures)
        self.queue.raw.delete(f"{BASE}results")

    def decide(self) -> None:
        while self._reopening.decide(self.engine):
            pass

    def told(self) -> dict[str, str | None]:
        with transaction(self.engine) as connection:
            found = connection.execute(select(sites.c.site, sites.c.same_as))
            return {row.site: row.same_as for row in found}

    def store(self, record: SiteEnded | SiteFound) -> None:
        self._entries += 1
        with transaction(self.engine) as connection:
            store(connection, [Stored(f"{self._entries}-0", record)])

    def close(self) -> None:
        self._reopening.close()


@contextmanager
def deciding(queue: Driver, options: Options) -> Iterator[Reopening]:
    """A coordinator under other settings."""
    made = Reopening(Settings({"REDIS_URL": queue.server.url}), options, "c")
    yield made
    made.close()


@pytest.fixture
def judge(request: pytest.FixtureRequest, valkey: RunningServer, filled: OpenTables) -> Iterator[Judge]:
    with driver(valkey, lease_seconds=30) as queue:
        made = Judge(queue, filled(getattr(request, "param", "sqlite")))
        yield made
        made.close()


SEED, TWIN, LINKED, OTHER = (f"http://{name}.example" for name in ("seed", "twin", "linked", "other"))


def test_it_judges_however_long_the_tables_take(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reopening, "LOCK_SECONDS", 1.0)
    judge.walk(SEED, linked=False)
    judge.walk(OTHER, linked=True, own="/3")

    @event.listens_for(judge.engine, "before_cursor_execute")
    def wait(*_about: object) -> None:
        time.sleep(0.5)

    judge.decide()
    assert judge.queue.details(OTHER)["no_alias_of"] == SEED


@pytest.mark.parametrize("judge", KINDS, indirect=True)
def test_it_judges_by_what_the_tables_hold(judge: Judge) -> None:
    queue = judge.queue
    judge.walk(SEED, linked=False)
    judge.walk(TWIN, linked=False)
    judge.walk(LINKED, linked=True)
    judge.walk(OTHER, linked=True, own="/3")
    judge.decide()
    assert [queue.state(one) for one in (SEED, TWIN, LINKED, OTHER)] == [
        *("suspended", "suspended", "alias", "suspended")
    ]
    assert judge.told() == {SEED: None, TWIN: SEED, LINKED: None, OTHER: None}
    assert queue.checkpoint(SEED)[1] == ["/left"], "what is left of the alias is asked there"
    ((_, fields),) = queue.raw.xrange(f"{BASE}results")
    record, _ = decode(fields)
    assert isinstance(record, SiteEnded)
    assert (record.site, record.alias_of, record.pending) == (LINKED, SEED, 1)
    assert record.left_out == {"alias": 1}
    assert queue.suspects() == 0
    # Nothing waits for a comparison any more.
    assert {one.site for one in queue.take("one", 9)} == {SEED, TWIN, OTHER}


def test_a_site_with_a_budget_of_its_own_stands_for_no_other(judge: Judge) -> None:
    judge.walk(SEED, linked=False)
    judge.queue.set_budget(SEED, 9)
    judge.walk(LINKED, linked=True)
    judge.decide()
    assert judge.queue.state(LINKED) == "suspended"


def test_patterns_that_tell_the_two_apart_keep_both(valkey: RunningServer, filled: OpenTables) -> None:
    with driver(valkey, lease_seconds=30, scope_exclude=r"//seed\.example/left") as queue:
        judge = Judge(queue, filled("sqlite"))
        judge.walk(SEED, linked=False)
        judge.walk(LINKED, linked=True)
        judge.decide()
        assert queue.state(LINKED) == "suspended"
        judge.close()


def test_a_finished_site_is_told_and_stays_what_it_is(judge: Judge) -> None:
    judge.walk(SEED, linked=False)
    judge.walk(LINKED, linked=True, ending="finished")
    judge.decide()
    assert judge.queue.state(LINKED) == "finished"
    assert judge.told()[LINKED] == SEED


def test_nothing_is_judged_before_it_is_stored(judge: Judge) -> None:
    judge.walk(SEED, linked=False)
    judge.queue.raw.xadd(f"{BASE}results", {"r": "a page"})
    judge.walk(LINKED, linked=True)
    judge.queue.raw.xadd(f"{BASE}results", {"r": "a page"}, id="1-1")
    judge.decide()
    assert judge.queue.state(LINKED) == "suspended"
    assert {one.site for one in judge.queue.take("one", 9)} == {SEED}, "it waits"
    judge.queue.raw.delete(f"{BASE}results")
    judge.decide()
    assert judge.queue.state(LINKED) == "alias"


# --- the comparison ---------------------------------------------------------------------------------------


def site_of(*contents: str, first: int = 0) -> dict[str, Loaded]:
    pages = {f"/{number}": Loaded(200, content) for number, content in enumerate(contents, first)}
    return {"/": Loaded(200, "root"), **pages}


def test_five_equal_pages_of_three_contents_are_a_proof() -> None:
    enough = site_of(*"abcde")
    assert compared(enough, enough, whole=False) == "same"
    assert compared(enough, site_of(*"abcd"), whole=False) == "open"
    assert compared(enough, site_of(*"abcdx"), whole=False) == "no"
    assert compared(enough, {**enough, "/": Loaded(200, "other")}, whole=False) == "no"
    for few in ("aabbb", ("root",) * 5, ("root", "root", "a", "b", "a")):
        assert compared(site_of(*few), site_of(*few), whole=False) == "open", few


def test_a_text_is_enough_and_an_answer_that_may_pass_says_nothing() -> None:
    mine = {f"/{n}": Loaded(200, f"mine {n}", f"text {n}") for n in range(5)}
    theirs = {f"/{n}": Loaded(200, f"theirs {n}", f"text {n}") for n in range(5)}
    assert compared(mine, theirs, whole=False) == "same"
    for status in (429, 500, 503, -3):
        assert compared(mine, theirs | {"/4": Loaded(status)}, whole=False) == "open"
    for other in (Loaded(404), Loaded(301, redirect="/x")):
        assert compared(mine, theirs | {"/4": other}, whole=False) == "no"
        assert compared({"/": other}, {"/": other}, whole=False) == "open"
    assert (
        compared({"/x": Loaded(301, redirect="/y")}, {"/x": Loaded(301, redirect="/z")}, whole=False) == "no"
    )


def test_of_fewer_pages_all_must_be_there() -> None:
    few = site_of("a", "b")
    assert compared(few, few, whole=True) == "same"
    assert compared(few, few, whole=False) == "open"
    assert compared(few, site_of("a"), whole=True) == "open"
    assert compared(site_of(), site_of(), whole=True) == "open", "one page alone says nothing"


def test_another_port_has_no_mark_in_common() -> None:
    def marks(site: str) -> set[str]:
        return set(root_marks(site, HOST, "ab" * 32, "robots").split("\n"))

    assert marks("http://a.example") & marks("http://www.a.example")
    assert marks("http://a.example:81") & marks("http://www.a.example:81")
    assert marks("http://a.example") & marks("https://a.example")
    assert not marks("http://a.example") & marks("https://b.example")
    assert not marks("http://a.example") & marks("http://a.example:8080")
    assert not marks("http://a.example:8080") & marks("https://a.example:8443")
    assert not marks("http://[::1]") & marks("http://[::1]:80000")


def test_a_full_site_keeps_whose_pages_it_has(judge: Judge) -> None:
    """More that is left out of it is told by another last record, which says nothing of that."""
    queue = judge.queue
    full = msgspec.structs.replace(queue.options, max_pages_per_site=len(PATHS))
    judge.walk(SEED, linked=False, ending="finished")
    judge.walk(TWIN, linked=False, ending="finished")
    judge.store(SiteEnded(site=TWIN, ended_at=1, finished=True, published=len(PATHS), known=len(PATHS)))
    with deciding(queue, full) as reopening:
        reopening.decide(judge.engine)
        assert judge.told()[TWIN] == SEED
        queue.offer([Offer(TWIN, ["/more"])])
        reopening.decide(judge.engine)
        ((_, fields),) = queue.raw.xrange(f"{BASE}results")
        queue.raw.delete(f"{BASE}results")
        record, _ = decode(fields)
        assert isinstance(record, SiteEnded)
        assert record.left_out == {"pages": 1}
        judge.store(record)
        reopening.decide(judge.engine)
    assert judge.told()[TWIN] == SEED
    assert queue.state(TWIN) == "finished"


def test_a_rebuild_that_goes_on_opens_no_alias(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator looks at it before its original has come back too."""
    queue = judge.queue
    names = sorted((f"http://{number}.example" for number in range(9)), key=hash64)
    for name in names[:-1]:
        judge.store(SiteFound(site=name, found_at=1, source="link"))
        judge.store(
            SiteEnded(
                site=name, ended_at=1, finished=True, published=0, known=0, alias_of=names[-1], reason="x"
            )
        )
    judge.store(SiteFound(site=names[-1], found_at=1, source="seed"))
    monkeypatch.setattr(operator, "BATCH", 1)
    restore = SiteQueue.restore

    async def restore_and_look(self: SiteQueue, found: Sequence[Restored]) -> int:
        new = await restore(self, found)
        await asyncio.to_thread(judge.decide)
        return new

    monkeypatch.setattr(SiteQueue, "restore", restore_and_look)
    queue.wait(operator.rebuild(queue.queue, judge.engine, Scope(queue.options), queue.options))
    assert [queue.state(name) for name in names] == ["alias"] * 8 + ["waiting"]
