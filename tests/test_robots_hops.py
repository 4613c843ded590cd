"""A robots.txt that lies elsewhere, or has grown old: it is read once and alone, and no page is asked before it."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.crawling import ROOT, Place, Run
from tests.faults import HopHeldBack, suffers
from tests.servers import RunningServer
from tests.small_site import Reply, SmallSite, links, moved, text
from tests.told import outcomes

PAGES = [f"/{number}" for number in range(8)]
RULES = "User-agent: *\nDisallow: /no\n"
RULES_SECONDS = 0.4
ELSEWHERE = {
    "/robots.txt": moved("/rules.txt"),
    "/rules.txt": text(RULES, seconds=RULES_SECONDS),
    "*": links(*PAGES, "/no", seconds=0.05),
}
# Both kinds of site in one crawl: one request at a time, and three.
OVERRIDES = {"127.0.1.3": {"connections": 3}}


def crawl(place: Place, valkey: RunningServer, *sites: SmallSite, **given: object) -> Run:
    seeds = [site.root for site in sites]
    return place.crawl(
        seeds,
        REDIS_URL=valkey.url,
        SITE_OVERRIDES=OVERRIDES,
        env={"PYTHONPATH": str(ROOT)},
        **given,
    ).succeeded()


def check_walked_by_the_rules(valkey: RunningServer, site: SmallSite) -> None:
    """The rules were read where they lie, once; then every page that they allow was asked for, once."""
    assert site.paths[:2] == ["/robots.txt", "/rules.txt"]
    assert site.log[2].at - site.log[1].at >= RULES_SECONDS
    assert sorted(site.paths) == sorted(["/robots.txt", "/rules.txt", "/", *PAGES])
    found = {url: how for url, how in outcomes(valkey).items() if url.startswith(site.root)}
    assert {url for url, how in found.items() if how == "denied"} == {f"{site.site}/no"}
    assert len(found) == len(PAGES) + 2


def test_the_rules_behind_a_redirect_hold(place: Place, valkey: RunningServer) -> None:
    with SmallSite(ELSEWHERE, "127.0.1.1") as one, SmallSite(ELSEWHERE, "127.0.1.3") as three:
        crawl(place, valkey, one, three)
        check_walked_by_the_rules(valkey, one)
        check_walked_by_the_rules(valkey, three)
        assert (one.most, three.most) == (1, 3)


def test_a_hop_that_is_held_back_is_asked_again(place: Place, valkey: RunningServer) -> None:
    with SmallSite(ELSEWHERE, "127.0.1.1") as one, SmallSite(ELSEWHERE, "127.0.1.3") as three:
        run = crawl(place, valkey, one, three, EXTENSIONS=suffers(HopHeldBack))
        assert run.err.count("held back: robots.txt of") == 2
        check_walked_by_the_rules(valkey, one)
        check_walked_by_the_rules(valkey, three)


@pytest.mark.parametrize(("hops", "denied"), [(5, True), (6, False)])
def test_five_redirects_of_the_rules_are_followed(
    place: Place, valkey: RunningServer, hops: int, denied: bool
) -> None:
    """What lies further away is not there (RFC 9309, 2.3.1.2)."""
    chain = {f"/r{hop}": moved(f"/r{hop + 1}") for hop in range(1, hops)}
    routes = {"/robots.txt": moved("/r1"), **chain, f"/r{hops}": text(RULES), "*": links("/no", "/yes")}
    with SmallSite(routes) as site:
        crawl(place, valkey, site)
        assert site.paths[:6] == ["/robots.txt", *(f"/r{hop}" for hop in range(1, 6))]
        assert (outcomes(valkey)[f"{site.site}/no"] == "denied") == denied
        assert f"/r{6}" not in site.paths


def test_rules_that_lie_where_nobody_may_go_forbid_everything(place: Place, valkey: RunningServer) -> None:
    """The site itself may be visited, and nobody would refuse its pages."""
    with SmallSite({"/robots.txt": moved("http://10.1.2.3/robots.txt"), "*": links("/1")}) as site:
        run = crawl(place, valkey, site)
        assert site.paths == ["/robots.txt"]
        assert outcomes(valkey) == {}
        assert f"{site.site}: backing off for" in run.err
        assert "crawl it again with --again" not in run.err


def test_rules_that_cannot_be_decoded_are_read_as_they_come(place: Place, valkey: RunningServer) -> None:
    """Some servers name an alphabet where an encoding is expected."""
    odd = Reply(200, {"Content-Type": "text/plain", "Content-Encoding": "utf-8"}, RULES)
    with SmallSite({"/robots.txt": odd, "*": links("/no")}, "127.0.1.1") as site:
        crawl(place, valkey, site)
        assert site.paths == ["/robots.txt", "/"]
        assert outcomes(valkey)[f"{site.site}/no"] == "denied"


def test_an_old_robots_txt_is_read_anew_by_one(place: Place, valkey: RunningServer) -> None:
    """Not by each of a site's connections."""
    pages = [f"/{number}" for number in range(30)]
    routes = {"/robots.txt": text(RULES, seconds=0.2), "*": links(*pages, "/no", seconds=0.2)}
    with SmallSite(routes, "127.0.1.3") as site:
        crawl(place, valkey, site, ROBOTS_LIFETIME_SECONDS=1)
        read = site.times("/robots.txt")
        assert len(read) >= 2
        assert [pause for pause in (two - one for one, two in pairwise(read)) if pause < 1] == []
        assert site.pages == dict.fromkeys(["/", *pages], 1)
        assert site.most == 3
