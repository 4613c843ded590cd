"""Which sites and pages belong to a crawl: decided right, and kept to by real crawls of named sites."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from scrapy.settings import Settings

from crawler import options
from crawler.options import OptionError
from crawler.urls.scope import Scope, is_variant
from tests.crawling import Place, fetched
from tests.farm import Farm
from tests.servers import RunningServer
from tests.small_site import SmallSite, links

NAMES = ("one.localhost", "www.one.localhost", "a.shop.one.localhost", "two.localhost")


def scope(kind: str, *seeds: str, **given: Any) -> Scope:
    settings = Settings()
    settings.setmodule("settings.base")
    settings.update({"SCOPE": kind, **given})
    made = Scope(options.read(settings))
    made.widen(set(chain.from_iterable(map(made.roots_of, seeds))))
    return made


# --- Decided ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "seed", "inside", "outside"),
    [
        ("host", "https://example.org", ["http://example.org:81", "https://a.b.example.org"], ["https://anexample.org"]),
        ("host", "https://www.example.org", ["https://www.example.org"], ["https://example.org", "https://org"]),
        ("host", "http://127.0.0.1", ["http://127.0.0.1:8080"], ["http://127.0.0.2", "http://0.1"]),
        (
            "domain",
            "https://www.example.co.uk",
            ["https://example.co.uk", "http://shop.example.co.uk:8000"],
            ["https://other.co.uk", "https://co.uk", "https://example.uk"],
        ),
        ("domain", "https://co.uk", ["https://co.uk"], ["https://other.co.uk"]),
        ("domain", "http://www.one.localhost", ["http://one.localhost"], ["http://two.localhost", "http://localhost"]),
        ("domain", "http://wiki.team.corp", ["http://team.corp"], ["http://mail.corp", "http://corp"]),
        ("domain", "http://127.0.0.1", ["http://127.0.0.1:8080"], ["http://127.1.0.1"]),
        ("domain", "http://[2001:db8::1]", ["http://[2001:db8::1]:80"], ["http://[2001:db8::2]"]),
        ("any", "http://a.example", ["http://b.example"], []),
    ],
)  # fmt: skip
def test_sites_found_in_links(kind: str, seed: str, inside: list[str], outside: list[str]) -> None:
    made = scope(kind, seed)
    assert [site for site in inside if not made.has_site(site)] == []
    assert [site for site in outside if made.has_site(site)] == []


def test_seeds_scope_takes_no_site_from_links() -> None:
    made = scope("seeds", "http://a.example")
    assert not made.has_site("http://a.example")


@pytest.mark.parametrize("kind", ["seeds", "host", "domain"])
def test_a_seed_is_told_from_sites_that_its_scope_has(kind: str) -> None:
    made = scope(kind, "http://www.a.example", "http://b.example")
    assert made.is_of_a_seed("https://www.a.example:8443")
    assert made.is_of_a_seed("http://b.example")
    assert kind == "seeds" or not made.is_of_a_seed("http://shop.a.example")
    assert kind == "seeds" or not made.is_of_a_seed("http://a.example")


def test_patterns_decide_about_pages() -> None:
    made = scope("any", SCOPE_INCLUDE="/docs/\n^https://b\\.", SCOPE_EXCLUDE=" \\.pdf$ \n\n[?&]print=")
    assert made.has_page("https://a.example/docs/x")
    assert made.has_page("https://b.example/")
    assert not made.has_page("https://a.example/blog")
    assert not made.has_page("https://a.example/docs/x.pdf")
    assert not made.has_page("https://b.example/?print=1")


def test_patterns_that_say_what_pages_are_expected_do_not_close_sitemaps() -> None:
    made = scope("any", SCOPE_INCLUDE="/docs/", SCOPE_EXCLUDE="/secret/")
    paths = ["/map.xml", "/docs/map.xml", "/docs/secret/map.xml"]
    assert made.sitemaps_of("https://a.example", paths) == paths[:2]
    assert made.pages_of("https://a.example", paths) == paths[1:2]


@pytest.mark.parametrize(
    ("one", "other", "so"),
    [
        ("http://a.example", "https://www.a.example:8443", True),
        ("https://www.a.example", "https://a.example", True),
        ("https://a.example", "https://b.a.example", False),
        ("https://www.example", "https://example.org", False),
    ],
)
def test_variants_of_a_site(one: str, other: str, so: bool) -> None:
    assert is_variant(one, other) == is_variant(other, one) == so


@pytest.mark.parametrize("setting", ["SCOPE_INCLUDE", "SCOPE_EXCLUDE"])
def test_a_pattern_that_is_none_is_refused(setting: str) -> None:
    with pytest.raises(OptionError, match=rf"{setting} holds '\('; expected a regular expression"):
        scope("any", **{setting: "fine\n("})


# --- Kept to ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def farm() -> Iterator[Farm]:
    """Sites by name that all link to each other, and to the first of two numbered ones."""
    with Farm(sites=2, pages=8, names=NAMES, kinds=("away", "redirect")) as started:
        yield started


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("host", ["one.localhost", "www.one.localhost", "a.shop.one.localhost"]),
        ("domain", ["one.localhost", "www.one.localhost", "a.shop.one.localhost"]),
        ("any", [*NAMES, 0, 1]),
    ],
)
def test_a_crawl_keeps_to_its_scope(place: Place, farm: Farm, kind: str, names: list[str | int]) -> None:
    before = len(farm.hits())
    # `domain` reaches the sites beside and above its seed, `host` those below.
    seed = farm.site("one.localhost" if kind == "host" else "www.one.localhost")
    place.crawl([seed], SCOPE=kind).succeeded()
    wanted = {farm.site(name) for name in names}
    assert place.stored() == farm.expected(wanted, seeds=[seed])
    assert {f"http://{hit.host}" for hit in farm.hits()[before:]} == wanted
    sources = dict(place.rows("select site, source from sites"))
    assert sources.pop(seed) == "seed"
    assert set(sources.values()) == {"link"}


def test_a_crawl_keeps_to_its_number_of_sites(place: Place, farm: Farm) -> None:
    seed = farm.site("two.localhost")
    before = len(farm.hits())
    place.crawl([seed], "--agents", "2", SCOPE="any", MAX_SITES=3).succeeded()
    found = place.stored()
    assert len(found) == 3
    assert seed in found
    assert found == farm.expected(set(found), seeds=list(found))
    assert len({hit.host for hit in farm.hits()[before:]}) == 3


def test_seeds_beyond_the_number_of_sites_are_told(place: Place, farm: Farm) -> None:
    run = place.crawl(farm.seeds, MAX_SITES=1).succeeded()
    assert "1 sites left out: MAX_SITES is 1" in run.err
    assert len(place.stored()) == 1


def test_a_crawl_keeps_to_its_pages_and_depth(place: Place, farm: Farm) -> None:
    before = len(farm.hits())
    place.crawl(farm.seeds, MAX_PAGES_PER_SITE=4).succeeded()
    # Redirects are fetches too, and count.
    assert fetched(farm.hits()[before:]).total() == 8
    left = place.rows("select known - published, over_budget, state from sites")
    assert all(known == over > 0 and state == "finished" for known, over, state in left), left


def test_a_crawl_keeps_to_its_depth_and_patterns(place: Place, tmp_path: Path) -> None:
    with Farm(sites=1, pages=40, names=(), kinds=()) as farm:
        given = {
            "SCOPE_EXCLUDE": r"/d2/\n^nothing$".replace(r"\n", "\n"),
            "SCOPE_INCLUDE": "p\\d+\\.html$\n/$",
        }
        place.crawl(farm.seeds, MAX_DEPTH=2, **given).succeeded()
        shallow = farm.expected(max_depth=2)[farm.site(0)]
        rows = dict(place.rows("select url, depth from pages"))
        assert set(rows) < shallow
        assert max(rows.values()) == 2
        assert not any("/d2/" in url or "?" in url for url in rows)
        first = {
            url for url in farm.expected(max_depth=1)[farm.site(0)] if "/d2/" not in url and "?" not in url
        }
        assert first < set(rows)


def test_patterns_hold_for_what_a_link_leads_to(place: Place, valkey: RunningServer) -> None:
    """Also for the pages that a site met in links begins with."""
    with SmallSite({"*": links("/ok", "/private/three")}, "127.0.1.2") as other:
        found = links(*(f"{other.site}/{path}" for path in ("private/one", "open", "private/two")))
        with SmallSite({"*": found}) as first:
            given = {"SCOPE": "any", "SCOPE_EXCLUDE": "/private/", "REDIS_URL": valkey.url}
            place.crawl([first.root], **given).succeeded()
        assert other.pages == {"/": 1, "/open": 1, "/ok": 1}
