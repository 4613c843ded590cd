"""Reports by what they say: the paper's table, home pages, domains at home, paces, graphs; files for others to read."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crawler import options
from crawler.options import OptionError
from crawler.reports import (
    Crawl,
    Report,
    active_domains,
    blocks,
    domains,
    hours,
    languages,
    pace,
    ranks,
    types,
)
from crawler.reports.home_pages import figures as home_figures
from crawler.reports.home_pages import home_of
from crawler.reports.top_levels import TABLE, as_table, shares, top_level
from crawler.store.addresses import Addresses
from crawler.store.database import open_database
from tests.contracts.test_reports import crawl_of
from tests.crawling import Place
from tests.reporting import HOSTILE, crawl, fill, site_name

SITES, PAGES = 12, 30
RECORDS = [one for one in crawl(SITES, PAGES) if one.__class__.__name__ == "Page"]
STORED: list[Any] = [one for one in RECORDS if one.outcome == "stored"]  # type: ignore[union-attr]

# Paper 001, table 2.1 (Inktomi): pages and shares in per cent. Its printed total, 2,165,036, has two digits swapped:
# the rows sum to 2,615,036, and so do its shares.
PRINTED = {"com": 516_709, "edu": 698_616, "gov": 117_125, "net": 113_595, "mil": 14_734, "org": 89_939}
OTHER, TOTAL, MISPRINTED_TOTAL = 1_064_318, 2_615_036, 2_165_036
PER_CENT = (20, 27, 4, 4, 1, 3, 41)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crawl]:
    folder = tmp_path_factory.mktemp("filled")
    url = f"sqlite:///{folder / 'crawl.db'}"
    engine = open_database(url)
    fill(engine, SITES, PAGES)
    yield crawl_of(engine, url, "redis://127.0.0.1:1/0", folder)
    engine.dispose()


def with_options(of: Crawl, **given: Any) -> Crawl:
    settings = of.settings.copy()
    for name, value in given.items():
        settings.set(name, value, priority="cmdline")
    return Crawl(of.engine, settings, options.read(settings))


# --- the paper's analyser ---------------------------------------------------------------------------------


def test_the_papers_table_of_top_level_domains() -> None:
    """Its rows give its shares; with its own total they would not even sum to 100."""
    found = {**PRINTED, "kr": OTHER - 1_000, "uk": 1_000}
    table = shares(as_table(found), TABLE)
    assert [one["domain"] for one in table] == [*TABLE, "other"]
    assert [one["pages"] for one in table] == [*PRINTED.values(), OTHER]
    assert sum(one["pages"] for one in table) == TOTAL
    assert tuple(round(one["share"] * 100) for one in table) == PER_CENT
    assert [round(many / MISPRINTED_TOTAL * 100) for many in (*PRINTED.values(), OTHER)] != list(PER_CENT)


@pytest.mark.parametrize(
    ("site", "name"),
    [
        ("https://www.snu.ac.kr", "kr"),
        ("http://example.COM:8080".lower(), "com"),
        ("http://202.30.64.22", "no name"),
        ("http://[2001:db8::1]", "no name"),
        ("http://localhost", "no name"),
        ("https://xn--hu5b25b9vdfxu.xn--3e0b707e", "xn--3e0b707e"),
    ],
)
def test_top_levels(site: str, name: str) -> None:
    assert top_level(site) == name


@pytest.mark.parametrize(
    ("url", "home"),
    [
        ("http://snu.ac.kr/~wkim", "snu.ac.kr/~wkim"),  # the paper's two examples
        ("http://202.30.64.22/~wkim", "202.30.64.22/~wkim"),
        ("http://h", "h"),
        ("https://h/", "h"),
        ("http://h/index.html", "h"),
        ("http://h/~kim/", "h/~kim"),
        ("http://h/%7Ekim/index.htm", "h/~kim"),
        ("http://h/~kim/thesis", ""),
        ("http://h/a/~kim", ""),
        ("http://h/?q=~kim", ""),
        ("http://h/~", ""),
        ("http://h/news", ""),
    ],
)
def test_home_pages(url: str, home: str) -> None:
    assert home_of(url) == home


def test_home_pages_are_counted_once(filled: Crawl) -> None:
    urls = {one.url for one in STORED}
    people = sum(f"{site_name(n)}/~kim1/" in urls for n in range(SITES))
    found = home_figures(filled)
    assert (found["of_hosts"], found["of_people"], found["pages"]) == (SITES, people, len(urls))


def test_shares_of_languages_are_of_what_is_told(filled: Crawl) -> None:
    found = {one["language"]: one for one in languages.figures(filled)}
    told = [one.language for one in STORED if one.language]
    assert {name: one["pages"] for name, one in found.items() if name} == {
        name: told.count(name) for name in set(told)
    }
    assert sum(one["share"] for one in found.values() if one["share"]) == pytest.approx(1, abs=1e-3)
    assert found[None]["share"] is None
    assert "Korean" in languages.text(list(found.values()))


def test_text_and_multimedia(filled: Crawl) -> None:
    found = types.figures(filled)
    with_files = sum(bool(one.media) for one in STORED)
    assert {one["kind"]: one["files"] for one in found["files"]} == {
        "image": 3 * with_files,
        "document": with_files,
    }
    assert {one["type"]: one["pages"] for one in found["content"]} == {
        "text/html": sum(one.content_type.startswith("text/html") for one in STORED),
        "application/pdf": sum(one.content_type == "application/pdf" for one in STORED),
    }
    words = len(STORED) + with_files
    assert found["text_share"] == pytest.approx(words / (words + 3 * with_files), abs=1e-3)
    assert found["text_share"] + found["multimedia_share"] == pytest.approx(1)


def test_active_domains_at_home_by_a_file_of_networks(filled: Crawl, tmp_path: Path) -> None:
    """Odd sites lie on 210.89.0.0/16, even ones elsewhere; four lines of what a file may hold."""
    file = tmp_path / "networks.txt"
    file.write_text("# home\n210.89.0.0/16\n\n2001:db8::/32  # and this\n")
    found = active_domains.figures(with_options(filled, DOMESTIC_NETWORKS=str(file)))
    classes = {one["domain"]: one["class"] for one in found["domains"]}
    assert classes["site0.co.kr"] == "national"
    assert classes["site1.com"] == "international"
    assert classes["site2.org"] == "elsewhere"
    assert classes["files1.org"] == "unknown"
    assert classes["example.kr"] == "national"
    by_name = {one["domain"]: one for one in found["domains"]}
    assert [by_name["example.kr"][kind] for kind in ("web", "mail", "ftp")] == [False, True, False]
    assert [by_name["files1.org"][kind] for kind in ("web", "mail", "ftp")] == [False, False, True]
    assert found["classes"]["national"]["domains"] == sum(name.endswith(".kr") for name in classes)


def test_active_domains_by_the_countrys_own_blocks(filled: Crawl) -> None:
    """202.30.64.22 is the paper's own example of an address in Korea; 8.8.8.8 is not in Korea."""
    at_home = active_domains.domestic(filled.options)
    assert at_home("202.30.64.22")
    assert not at_home("8.8.8.8")
    assert not at_home("no address")
    british = active_domains.domestic(with_options(filled, NATIONAL_DOMAIN="uk").options)
    assert british("212.58.244.20")


def test_a_wrong_file_of_networks_is_named(filled: Crawl, tmp_path: Path) -> None:
    file = tmp_path / "bad.txt"
    file.write_text("10.0.0.0/8\n10.0.0.0/99\n")
    for given, said in ((file, "line 2: "), (tmp_path / "none", "No such file")):
        with pytest.raises(OptionError, match=said):
            active_domains.domestic(with_options(filled, DOMESTIC_NETWORKS=str(given)).options)


def test_addresses_are_asked_for_once(tmp_path: Path) -> None:
    asked: list[str] = []

    def resolve(host: str) -> str:
        asked.append(host)
        return "192.0.2.1" if host == "a.example" else ""

    file = tmp_path / "addresses.json"
    assert Addresses(file, resolve).of(["a.example", "b.example"]) == {
        "a.example": "192.0.2.1",
        "b.example": "",
    }
    assert Addresses(file, resolve).of(["a.example", "b.example"])["a.example"] == "192.0.2.1"
    assert sorted(asked) == ["a.example", "b.example"]
    file.write_text("{nonsense")
    assert Addresses(file).of(["localhost"])["localhost"] in ("127.0.0.1", "::1")


# --- the others -------------------------------------------------------------------------------------------


def test_paces_are_told_by_scheduler(filled: Crawl) -> None:
    found = pace.figures(filled)
    by_agent = [sum(one.agent == name for one in RECORDS) for name in ("a-2", "a-1")]  # type: ignore[union-attr]
    assert [(one["scheduler"], one["pages"]) for one in found["schedulers"]] == [
        ("hybrid", by_agent[0]),
        ("regret", by_agent[1]),
    ]
    assert sum(one["pages"] for one in found["hours"]) == len(RECORDS)


def test_first_pages_and_the_spread_of_ranks(filled: Crawl) -> None:
    found = ranks.figures(filled)
    assert found["top"][0]["url"] == f"{site_name(0)}/"
    assert found["top"][0]["title"] == HOSTILE[0]
    importance = [one["importance"] for one in found["top"]]
    assert importance == sorted(importance, reverse=True)
    assert found["spread"][0]["pages"] == found["pages"] == SITES * PAGES
    many = [one["pages"] for one in found["spread"]]
    assert many == sorted(many, reverse=True)


def test_the_graph_of_blocks(filled: Crawl) -> None:
    found = blocks.figures(filled)
    assert found["by"] == "importance"
    assert len(found["blocks"]) == SITES
    hosts = [site_name(number).partition("://")[2] for number in range(SITES)]
    between = {(one.site.partition("://")[2], host) for one in STORED for host in one.outside_hosts}
    assert {(one["source"], one["target"]) for one in found["links"]} == between
    assert blocks.pictures(found)[0].svg.count("<circle") == len(hosts)
    assert blocks.pictures(found) == blocks.pictures(found)


def test_registered_domains(filled: Crawl) -> None:
    found = {one["domain"]: one for one in domains.figures(filled)}
    assert sum(one["pages"] for one in found.values()) == len(STORED)
    named = sum("site1.com" in one.outside_hosts for one in STORED)
    assert found["site1.com"]["linked_from"] == named > 0


# --- files for others -------------------------------------------------------------------------------------


def test_tables_and_a_page_for_others(place: Place) -> None:
    place.var.mkdir()
    engine = open_database(f"sqlite:///{place.var / 'crawl.db'}")
    fill(engine, SITES, PAGES)
    engine.dispose()
    printed = place.run("report", "ranks", "--csv").succeeded().out
    titles = [row["title"] for row in csv.DictReader(io.StringIO(printed))]
    assert HOSTILE[0] in titles
    assert f"'{HOSTILE[1]}" in titles, "a spreadsheet would run it"
    file = place.folder / "report.html"
    both = place.run("report", "languages", "load", "--html", str(file), "--json").succeeded()
    assert list(json.loads(both.out)) == ["languages", "load"]
    page = file.read_text(encoding="utf-8")
    assert page.count('class="cell ') == 24 * SITES
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "").replace(
        "https://site", ""
    ).replace("https://xn--", "")
    place.run("report", "langages").refused("no report 'langages'", "did you mean languages?", code=2)
    place.run("report", "load", "pace", "--csv").refused("expected one report", code=2)
    place.run("report", "--html", str(place.folder / "no" / "x.html"), "load").refused("No such file", code=1)


# --- the hour table ---


def hour_table(*columns: dict[str, int | None]) -> dict[str, Any]:
    """The figures of `report hours`: for each hour from 23 on the sites in their order, with their loads."""
    listed = [
        {"hour": 23 + step, "sites": [{"site": site, "load": load} for site, load in column.items()]}
        for step, column in enumerate(columns)
    ]
    return {"scheduler": "regret", "sites": 3, "hour_seconds": 3600.0, "hours": listed}


def test_the_hour_table_has_a_row_for_each_hour_and_place() -> None:
    found = hour_table({"https://b.example": 5, "https://a.example": None}, {}, {"https://a.example": 70})
    assert Report("hours").rows(found) == [
        {"hour": 23, "place": 1, "site": "https://b.example", "load": 5},
        {"hour": 23, "place": 2, "site": "https://a.example", "load": None},
        {"hour": 25, "place": 1, "site": "https://a.example", "load": 70},
    ]


def test_the_picture_of_the_hour_table_shows_who_is_first_when() -> None:
    found = hour_table({"https://b.example": 5, "https://a.example": None}, {"https://a.example": 70})
    (picture,) = Report("hours").pictures(found)
    assert picture.svg.index("b.example, 23h: 5%") < picture.svg.index("a.example, 23h: unknown")
    assert "a.example, 00h: 70%" in picture.svg
    assert f"b.example, 00h: not among the first {hours.TOP}" in picture.svg
    assert "robots.txt" not in picture.svg
    (known,) = Report("hours").pictures(hour_table({"https://b.example": 5}, {"https://a.example": 70}))
    assert "unknown" not in known.svg
    assert Report("hours").pictures(hour_table({}, {})) == []


def test_the_picture_of_the_hour_table_says_how_many_it_leaves_out() -> None:
    many = {f"https://{number}.example": 1 for number in range(hours.MOST_ROWS + 2)}
    (picture,) = Report("hours").pictures(hour_table(many))
    assert "2 later ones left out" in picture.title
