"""URLs of one site that come from outside of it: linked from other sites, redirected to, pushed. None is lost.

Each case is a crawl as a user starts it; what counts is what the servers were asked for.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from crawler.queue.sites import bucket_of
from tests.crawling import RUN_SECONDS, Place, Run
from tests.servers import RunningServer, eventually
from tests.small_site import Reply, Route, SmallSite, links, moved
from tests.test_inlet import INLET, running
from tests.told import outcomes

LINKED = [f"/linked/{number}" for number in range(80)]
OLD = [f"/old/{number}" for number in range(30)]
NEW = [f"/new/{number}" for number in range(30)]


def leaf(name: str) -> Reply:
    """A page with words of its own that links to nothing."""
    return Reply(200, {"Content-Type": "text/html"}, f"<p>{name}")


def leaves(*names: str) -> dict[str, Route]:
    return {name: leaf(name) for name in names}


@contextmanager
def sites(*webs: dict[str, Route], first: int = 1) -> Iterator[list[SmallSite]]:
    """Sites with addresses of their own; a page may name another site as `{1}`, by its place."""
    with ExitStack() as stack:
        started = [
            stack.enter_context(SmallSite({}, f"127.0.3.{first + place}")) for place in range(len(webs))
        ]
        names = [site.site for site in started]
        for site, web in zip(started, webs, strict=True):
            site.routes.update({path: placed(route, names) for path, route in web.items()})
        yield started


def placed(route: Route, names: list[str]) -> Route:
    if not isinstance(route, Reply):
        return route
    fields = {name: value.format(*names) for name, value in route.fields.items()}
    return route._replace(fields=fields, body=route.body.format(*names))


def hub() -> tuple[dict[str, Route], dict[str, Route], dict[str, Route]]:
    """A hub that links to pages of a second site, and a third that has moved there: none of it is linked elsewhere."""
    return (
        {"/": links(*(f"{{1}}{path}" for path in LINKED))},
        {**leaves("/", *LINKED, *NEW)},
        {"/": links(*OLD), **{old: moved(f"{{1}}{new}") for old, new in zip(OLD, NEW, strict=True)}},
    )


@pytest.mark.parametrize("scope", ["seeds", "any"])
def test_pages_of_another_seed_are_fetched(place: Place, scope: str) -> None:
    with sites(*hub()) as (first, second, third):
        place.crawl([first.root, second.root, third.root], SCOPE=scope).succeeded()
        assert set(second.pages) == {"/", *LINKED, *NEW}
        assert set(second.pages.values()) == {1}
        assert set(third.pages) == {"/", *OLD}
    ledger = place.run("report", "ledger").succeeded()
    assert "balanced" in ledger.out


def test_of_a_new_site_every_linked_page_is_fetched(place: Place) -> None:
    with sites(*hub()) as (first, second, _third):
        place.crawl([first.root], SCOPE="any").succeeded()
        assert set(second.pages) == {"/", *LINKED}


def test_pages_of_a_finished_site_open_it_for_these_alone(place: Place) -> None:
    """The hub is met when the site that it names is finished long since."""
    with sites(
        {"/": links("{1}/linked", "{1}/", "{1}/known")}, {"/": links("/known"), **leaves("/known", "/linked")}
    ) as (
        first,
        second,
    ):
        place.crawl([second.root]).succeeded()
        assert set(second.pages) == {"/", "/known"}
        place.crawl([first.root]).succeeded()
        assert second.pages == {"/": 1, "/known": 1, "/linked": 1}


def test_links_to_known_pages_open_no_finished_site(place: Place) -> None:
    webs: list[dict[str, Route]] = [
        {
            "/": links(
                *(f"{{{other}}}/" for other in range(6)), "/a", *(f"{{{other}}}/a" for other in range(6))
            ),
            "/a": leaf(str(place_)),
        }
        for place_ in range(6)
    ]
    with sites(*webs) as found:
        run = place.crawl([site.root for site in found]).succeeded()
        for site in found:
            assert site.pages == {"/": 1, "/a": 1}
            assert site.paths.count("/robots.txt") == 1
        assert "is reopened" not in run.err


def test_pushed_urls_of_a_finished_site_are_fetched(place: Place, valkey: RunningServer) -> None:
    pushed = [f"/pushed/{number}" for number in range(300)]
    with sites(leaves("/", *pushed)) as (site,), running(place, REDIS_URL=valkey.url) as (agent, _):
        valkey.client.lpush(INLET, site.root)
        eventually(lambda: place.stored() == {site.site: {site.root}}, "the site is finished")
        for path in pushed:
            valkey.client.lpush(INLET, site.site + path)
        eventually(lambda: set(site.pages) == {"/", *pushed}, "every pushed page", 60)
        assert set(site.pages.values()) == {1}
        assert agent.process.poll() is None


def test_seeds_of_known_sites_are_fetched_by_the_next_crawl(place: Place) -> None:
    with sites(leaves("/", "/new", "/newer")) as (site,):
        place.crawl([site.root]).succeeded()
        place.run("seed", f"{site.root}new", site.root, ALLOW_PRIVATE_ADDRESSES="127.0.0.0/8").succeeded()
        place.crawl([]).succeeded()
        assert site.pages == {"/": 1, "/new": 1}
        place.crawl([f"{site.root}newer", f"{site.root}new"]).succeeded()
        assert site.pages == {"/": 1, "/new": 1, "/newer": 1}


def test_where_a_seed_redirects_is_the_seed(place: Place) -> None:
    with sites({"/": moved("{1}/")}, {"/": links("/a"), **leaves("/a")}) as (old, new):
        run = place.crawl([old.root]).succeeded()
        assert new.pages == {"/": 1, "/a": 1}
        assert f"{old.site} redirects to {new.site}" in run.out
        place.crawl([old.root], "--again").succeeded()
        assert new.pages == {"/": 2, "/a": 2}


def test_every_seed_of_a_site_may_redirect(place: Place) -> None:
    """Within one flush, to several sites; `--again` follows all of them, but not to what the patterns leave out."""
    given = {"FLUSH_SECONDS": 1, "SCOPE_INCLUDE": "/n[0-9]"}
    old = {f"/n{number}": moved(f"{{{1 + number % 2}}}/n{number}") for number in range(6)}
    with sites(old, {"*": links("/")}, {"*": links("/")}) as (first, even, odd):
        seeds = [first.site + path for path in old]
        place.crawl(seeds, **given).succeeded()
        assert even.pages == {"/n0": 1, "/n2": 1, "/n4": 1}
        assert odd.pages == {"/n1": 1, "/n3": 1, "/n5": 1}
        place.crawl(seeds, "--again", **given).succeeded()
        assert even.pages == {"/n0": 2, "/n2": 2, "/n4": 2}
        assert odd.pages == {"/n1": 2, "/n3": 2, "/n5": 2}


def test_links_to_where_a_seed_redirects_may_be_found_before_it_does(place: Place) -> None:
    """The hub is finished and stored by the time that its links turn out to belong to the crawl."""
    asked = Event()

    def later(_times: int) -> Reply:
        asked.wait(RUN_SECONDS)
        return moved(f"{new.site}/")

    with sites({"/": links(*(f"{{2}}{path}" for path in LINKED))}, {}, leaves("/", *LINKED)) as (
        hub,
        old,
        new,
    ):
        old.routes["/"] = later
        run = place.start_crawl([hub.root, old.root])
        eventually(lambda: place.finished() == {hub.site}, "the hub is finished")
        asked.set()
        run.wait().succeeded()
        assert new.pages == dict.fromkeys(["/", *LINKED], 1)


def test_seeds_that_redirect_from_site_to_site_end(place: Place) -> None:
    webs: list[dict[str, Route]] = [{"/": moved(f"{{{(number + 1) % 8}}}/")} for number in range(8)]
    with sites(*webs) as found:
        place.crawl([found[0].root], REDIRECT_MAX_TIMES=3).stored_nothing()
        assert [len(site.pages) for site in found] == [1, 1, 1, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("scope", ["host", "domain"])
def test_a_redirect_of_a_page_that_is_no_seed_widens_nothing(place: Place, scope: str) -> None:
    with sites({"/": links("/away"), "/away": moved("{1}/")}, leaves("/")) as (site, other):
        place.crawl([site.root], SCOPE=scope).succeeded()
        assert not other.pages


def test_depth_counts_across_sites(place: Place) -> None:
    second = {"/": leaf("root"), "/b": links("/c"), "/c": links("/d"), **leaves("/d")}
    with sites({"/": links("{1}/b")}, second) as (first, other):
        place.crawl([first.root, other.root], MAX_DEPTH=2).succeeded()
        assert set(other.pages) == {"/", "/b", "/c"}


def test_a_killed_agent_loses_no_offer(place: Place) -> None:
    with sites(*hub()) as (first, second, third):
        seeds = [first.root, second.root, third.root]
        run = place.start_crawl(seeds, DOWNLOAD_DELAY=0.02)
        eventually(lambda: len(second.log) > 20, "some pages")
        run.end(signal.SIGKILL)
        place.crawl(seeds).succeeded()
        assert set(second.pages) == {"/", *LINKED, *NEW}


@contextmanager
def held_up(*sites: SmallSite) -> Iterator[Event]:
    """These sites answer nothing before the event is set."""
    free = Event()
    for site in sites:
        routes = {path: partial(answered_when, free, route) for path, route in site.routes.items()}
        site.routes.update(routes)
    try:
        yield free
    finally:
        free.set()


def answered_when(free: Event, route: Route, times: int) -> Reply:
    free.wait(60)
    return route if isinstance(route, Reply) else route(times)


def state_of(valkey: RunningServer, site: str) -> str:
    """A site's letter in the queue; empty while it is not known."""
    record = valkey.client.hget(bucket_of("lt:{0}:", site), site)
    return (record or b"").decode()[:1]


def test_an_agent_that_outlives_its_servers_data_offers_again(place: Place, valkey: RunningServer) -> None:
    """Redis loses the page and the offer that went before it; the page is fetched again, and its link too."""
    valkey.client.config_set("appendfsync", "always")
    kept: list[Path] = []

    def page(times: int) -> Reply:
        if times == 1:
            kept.append(valkey.keep())
        return links(f"{other.site}/linked")

    with sites({"/": links("/p")}, leaves("/", "/linked")) as (hub, other), held_up(other) as free:
        hub.routes["/p"] = page
        run = place.start_crawl([hub.root, other.root], REDIS_URL=valkey.url, LEASE_SECONDS=3)
        eventually(lambda: state_of(valkey, hub.site) == "f", "the hub is finished")
        assert valkey.client.exists(f"lt:{{0}}:paths:{other.site}"), "the link was offered"
        valkey.go_back(kept[0])
        eventually(lambda: state_of(valkey, hub.site) == "f", "the hub is finished once more")
        free.set()
        run.wait().succeeded()
        assert hub.pages["/p"] == 2
        assert other.pages["/linked"] == 1
        assert f"{other.site}/linked" in outcomes(valkey)


# --- Random webs against a walk of their own --------------------------------------------------------------------------


class World:
    """Six sites whose pages link and redirect to one another at random; three of them are seeds."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.pages = [(site, path) for site in range(6) for path in ["/", *(f"/p{n}" for n in range(25))]]
        self.targets = {page: self._targets(page) for page in self.pages}

    def _targets(self, page: tuple[int, str]) -> tuple[bool, list[tuple[int, str]]]:
        """Whether the page redirects, and where it leads."""
        redirects = page[1] != "/" and self._random.random() < 0.15
        many = 1 if redirects else self._random.choice((0, 1, 2, 3))
        return redirects, self._random.sample(self.pages, many)

    def web(self, site: int) -> dict[str, Route]:
        routes: dict[str, Route] = {}
        for (place, path), (redirects, targets) in self.targets.items():
            if place == site:
                urls = [f"{{{other}}}{target}" for other, target in targets]
                routes[path] = moved(urls[0]) if redirects else self._page(site, path, urls)
        return routes

    @staticmethod
    def _page(site: int, path: str, urls: list[str]) -> Reply:
        body = links(*urls).body if urls else ""
        return Reply(200, {"Content-Type": "text/html"}, f"<p>{site} {path}{body}")

    def reachable(self, inside: set[int]) -> set[tuple[int, str]]:
        """A plain breadth-first walk from the first three roots."""
        found, waiting = set[tuple[int, str]](), [(site, "/") for site in range(3)]
        while waiting:
            page = waiting.pop()
            if page not in found and page[0] in inside:
                found.add(page)
                waiting += self.targets[page][1]
        return found


def has_asked(found: list[SmallSite], run: Run, many: int) -> bool:
    """Whether so many requests were made, or the crawl is over."""
    return sum(len(site.log) for site in found) > many or run.process.poll() is not None


@pytest.mark.parametrize(("scope", "seed", "kills"), [("seeds", 1, 0), ("any", 2, 0), ("seeds", 3, 2)])
def test_a_random_web_is_walked_to_its_end(place: Place, scope: str, seed: int, kills: int) -> None:
    world = World(seed)
    with sites(*(world.web(site) for site in range(6))) as found:
        seeds = [site.root for site in found[:3]]
        given = {"SCOPE": scope, "REDIRECT_MAX_TIMES": 99, "DOWNLOAD_DELAY": 0.03 if kills else 0}
        for number in range(kills):
            run = place.start_crawl(seeds, **given)
            eventually(partial(has_asked, found, run, 10 * number + 5), "some pages")
            run.process.kill()
            run.wait()
        place.crawl(seeds, **given).succeeded()
        expected = world.reachable(set(range(3 if scope == "seeds" else 6)))
        # A site that is new is walked from its root as well.
        roots = {(site, "/") for site in range(6) if any(page[0] == site for page in expected)}
        expected |= world.reachable(set(range(6))) if scope == "any" else set()
        asked = {(place_, path) for place_, site in enumerate(found) for path in site.pages}
        assert asked >= expected | roots
        assert scope == "any" or asked == expected
    assert "balanced" in place.run("report", "ledger").succeeded().out
