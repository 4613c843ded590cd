"""Sites that are left alone for a while: how long, by whom that was asked, and that nothing is sent meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from crawler.agent.responses import FIRST_REST_SECONDS
from tests.crawling import ROOT, Place
from tests.drills import key
from tests.faults import LATE_PATH, LateConnection, suffers
from tests.servers import RunningServer, start_valkey
from tests.small_site import Reply, SmallSite, at_first, links

SPREAD = 1.1
# How much later than the answer was asked for an agent may have begun to count.
LATE_SECONDS = 10.0
BUSY = Reply(503)


def busy_for(seconds: int, status: int = 503, after: float = 0.0) -> Reply:
    """An answer that asks for a rest; it comes `after` a while, in seconds."""
    return Reply(status, {"Retry-After": str(seconds)}, "", after)


def rest_of(valkey: RunningServer, site: SmallSite) -> float:
    """How long the site is left alone, counted from its last request."""
    due = valkey.client.zscore(key("wake:site"), site.site)
    assert isinstance(due, float), f"{site.site} does not rest"
    return due / 1000 - time.time() - (site.log[-1].at - time.monotonic())


# --- How long ---------------------------------------------------------------------------------------------


def test_rests_grow_as_long_as_a_site_is_busy(place: Place, valkey: RunningServer) -> None:
    """A minute, doubled from run to run; longer where the site says so, and not all sites alike."""
    with ExitStack() as stack:
        busy = stack.enter_context(SmallSite({"/": BUSY}))
        patient = stack.enter_context(SmallSite({"/robots.txt": busy_for(7200)}, "127.0.1.2"))
        hosts = [f"127.0.1.{number}" for number in (3, 4, 5)]
        alike = [stack.enter_context(SmallSite({"/robots.txt": BUSY}, host)) for host in hosts]
        first = [site.root for site in (busy, patient, *alike)]
        rests = []
        for seeds in (first, [], []):
            place.crawl(seeds, REDIS_URL=valkey.url, MAX_TRIES=9).succeeded()
            rests.append(rest_of(valkey, busy))
            valkey.client.zadd(key("wake:site"), {busy.site: 1})
        for doublings, rest in enumerate(rests):
            least = FIRST_REST_SECONDS * 2**doublings
            assert least - 0.01 <= rest <= least * SPREAD + LATE_SECONDS, rests
        assert busy.pages == {"/": 3}

        assert 7200 <= rest_of(valkey, patient) <= 7200 * SPREAD + LATE_SECONDS
        others = [rest_of(valkey, site) for site in alike]
        assert all(
            FIRST_REST_SECONDS <= rest <= FIRST_REST_SECONDS * SPREAD + LATE_SECONDS for rest in others
        )
        assert max(others) - min(others) > 0.05, "sites that failed together come back together"
        assert [site.paths for site in (patient, *alike)] == [["/robots.txt"]] * 4


# --- Meanwhile, with two requests at a time ---------------------------------------------------------------

LONG_SECONDS = 3
# Time for both requests to leave before the first is answered.
BOTH_SECONDS = 0.6
RETRY_SECONDS = 4.0


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, SmallSite]]:
    """Three sites by name, when a crawl with two connections to each is over."""
    folder = tmp_path_factory.mktemp("rests")
    (folder / "valkey").mkdir()
    patient = at_first(busy_for(LONG_SECONDS, 429, BOTH_SECONDS), links())
    two_rests = {
        "/": links("/long", "/short", "/other"),
        "/long": patient,
        "/short": at_first(busy_for(1, 503, 2 * BOTH_SECONDS), links()),
        "/other": links(),
    }
    late = {"/": links("/long", LATE_PATH, "/other"), "/long": patient, "*": links()}
    hub = links(*(f"/{number}" for number in range(6)), seconds=BOTH_SECONDS)
    retry = {
        "/": links("/fails", "/hub"),
        "/fails": at_first(Reply(500), links()),
        "/hub": hub,
        "*": links(),
    }
    with ExitStack() as stack:
        server = start_valkey(folder / "valkey")
        stack.callback(server.stop)
        place = stack.enter_context(Place(folder))
        sites = {
            name: stack.enter_context(SmallSite(routes, f"127.0.2.{number}"))
            for number, (name, routes) in enumerate(
                [("two rests", two_rests), ("late", late), ("retry", retry)], 1
            )
        }
        place.crawl(
            [site.root for site in sites.values()],
            REDIS_URL=server.url,
            RETRY_DELAY_SECONDS=RETRY_SECONDS,
            SITE_OVERRIDES={site.host: {"connections": 2} for site in sites.values()},
            EXTENSIONS=suffers(LateConnection),
            env={"PYTHONPATH": str(ROOT)},
        ).succeeded()
        yield sites


def check_left_alone(site: SmallSite) -> None:
    """Between the answer that asked for a rest and the end of that time nothing was sent."""
    answered = site.times("/long")[0] + BOTH_SECONDS
    assert [one.path for one in site.log if answered < one.at < answered + LONG_SECONDS] == []


def test_a_shorter_rest_ends_no_longer_one(asked: dict[str, SmallSite]) -> None:
    site = asked["two rests"]
    assert site.times("/short")[0] < site.times("/long")[0] + BOTH_SECONDS, "both were under way"
    check_left_alone(site)
    assert site.pages == {"/": 1, "/long": 2, "/short": 2, "/other": 1}


def test_what_was_connecting_is_not_sent_into_a_rest(asked: dict[str, SmallSite]) -> None:
    check_left_alone(asked["late"])
    assert asked["late"].pages == {"/": 1, "/long": 2, LATE_PATH: 1, "/other": 1}


def test_a_page_that_gets_another_turn_holds_up_no_other(asked: dict[str, SmallSite]) -> None:
    site = asked["retry"]
    first, again = site.times("/fails")
    assert again - first >= RETRY_SECONDS
    others = [one.at for one in site.log if one.path.strip("/").isdigit()]
    assert len(others) == 6
    assert max(others) < again
