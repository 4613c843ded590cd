"""Real crawls, converted and ranked: pages, links and ranks are those of what the farm declares, whoever crawled it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import networkx as nx
import pytest

from crawler.records import hash64
from rankers import job, results
from tests.converting import Given, Rule, converted, files_of, links_of, table
from tests.crawling import Place
from tests.farm import Declared, Farm

KINDS = ("duplicate", "redirect", "away", "missing", "charset", "base", "session", "binary")


@pytest.fixture(scope="module")
def farm() -> Iterator[Farm]:
    with Farm(sites=4, pages=9, kinds=KINDS, names=()) as running:
        yield running


@pytest.fixture(scope="module")
def by_one(farm: Farm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return crawled(farm, tmp_path_factory.mktemp("one"))


def crawled(farm: Farm, folder: Path, *words: str) -> Path:
    """The folder that a crawl of the farm is converted to."""
    with Place(folder) as place:
        place.crawl(farm.seeds, *words).succeeded()
        converted(f"sqlite:///{place.var / 'crawl.db'}", folder / "run")
    return folder / "run"


def declared(farm: Farm) -> list[Given]:
    """The farm as rows: what each URL answers, and whom it links to."""
    return [
        row_of(site, one)
        for site in (seed.rstrip("/") for seed in farm.seeds)
        for url, one in farm.declared.items()
        if url.startswith(f"{site}/") and one.depth is not None
    ]


def row_of(site: str, one: Declared) -> Given:
    path = one.url.removeprefix(site)
    if one.kind == "redirect":
        return Given(site, path, "redirected", to=one.resource.location)
    if one.kind == "error":
        return Given(site, path, "failed")
    return Given(site, path, text=one.sha256, links=tuple(one.resource.follow))


def test_pages_and_links_are_those_of_the_web(farm: Farm, by_one: Path) -> None:
    rule = Rule(declared(farm))
    told = table(by_one, "pages")
    assert {page["url"] for page in told} == rule.pages
    assert links_of(by_one) == rule.links
    assert sum(map(len, rule.links.values())) > 100, "a web with few links proves little"
    assert len(rule.leads_to) > len(rule.pages), "no copies and no redirects prove little"


def test_pages_are_numbered_site_by_site(farm: Farm, by_one: Path) -> None:
    told = table(by_one, "pages")
    # Every site of the farm is an address, and so a domain of its own.
    sites = sorted(seed.rstrip("/") for seed in farm.seeds)
    place = [(sites.index(site_of(page["url"])), hash64(page["url"])) for page in told]
    assert place == sorted(place)
    assert [page["site_id"] for page in told] == [site for site, _ in place]
    declared_titles = {site: f"Page 0 of {site.split('/')[2].split(':')[0]}" for site in sites}
    assert {one["site"]: one["title"] for one in table(by_one, "sites")} == declared_titles


def test_two_agents_give_the_same(farm: Farm, by_one: Path, tmp_path: Path) -> None:
    """But for the times at which pages were fetched."""
    by_two = crawled(farm, tmp_path, "--agents", "2")
    one, two = files_of(by_one), files_of(by_two)
    timed = {"manifest.json", *(name for name in one if name.startswith("pages-"))}
    assert {name for name in one if one[name] != two[name]} <= timed
    assert one.keys() == two.keys()
    assert without_times(by_one) == without_times(by_two)
    assert ranked(by_one, tmp_path / "ranks-1") == ranked(by_two, tmp_path / "ranks-2"), "to the last bit"


def test_ranks_are_those_of_the_web(farm: Farm, by_one: Path, tmp_path: Path) -> None:
    """By networkx, over the links that the farm declares."""
    web = nx.DiGraph()
    links = Rule(declared(farm)).links
    web.add_nodes_from(sorted(links))
    web.add_edges_from((source, target) for source, targets in links.items() for target in targets)
    wanted = nx.pagerank(web, 0.85, tol=1e-11 / len(web), max_iter=1_000)
    found = ranked(by_one, tmp_path / "ranks")
    assert found.keys() == wanted.keys()
    assert sum(abs(found[url] - rank) for url, rank in wanted.items()) < 1e-8
    assert max(wanted.values()) > 3 * min(wanted.values()), "ranks that are all alike prove little"


def ranked(run: Path, out: Path) -> dict[str, float]:
    """The rank of each page by its URL, as the command writes it."""
    job.run(job.Job(run, tolerance=1e-10, out=out))
    urls = [page["url"] for page in table(run, "pages")]
    return dict(zip(urls, results.read_pages(out).tolist(), strict=True))


def without_times(folder: Path) -> list[dict[str, object]]:
    return [{**page, "fetched_at": 0} for page in table(folder, "pages")]


def site_of(url: str) -> str:
    return "/".join(url.split("/")[:3])
