"""Tables to dense ids: against a table worked out by hand, random ones and a slow second telling, on every database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, text

from crawler.convert import reading
from crawler.convert.convert import ConvertError
from crawler.records import hash64
from crawler.store.database import migrate, transaction
from crawler.store.tables import pages
from crawler.urls.url import domain_finder
from rankers.folder import check, read_manifest
from tests.conftest import MakeDatabase
from tests.converting import (
    Given,
    Rule,
    converted,
    files_of,
    fill,
    find_sites,
    links_of,
    make_bounds_small,
    opened,
    put,
    table,
)
from tests.databases import KINDS
from tests.servers import eventually

A, B, W, OTHER = "https://a.example", "https://b.example", "https://www.a.example", "http://127.0.0.1:81"
BY_HAND = (
    Given(
        A,
        "/",
        links=(f"{A}/long", f"{A}/?s=2", f"{B}/", f"{A}/", f"{A}/gone", "https://far.example/"),
        title="A",
    ),
    Given(A, "/long", text="same", links=(f"{A}/?s=2", f"{B}/index"), title="X"),
    Given(A, "/?s=2", outcome="duplicate", text="same", to="/long"),
    Given(A, "/gone", outcome="failed"),
    Given(B, "/", outcome="redirected", to=f"{B}/index"),
    Given(B, "/index", links=(f"{A}/long", f"{A}/?s=1", f"{W}/"), title="Index"),
    Given(W, "/", outcome="redirected", to=f"{W}/round"),
    Given(W, "/round", outcome="redirected", to=f"{W}/"),
    Given(W, "/empty", text=""),
    Given(OTHER, "/", outcome="redirected", to=f"{A}/"),
    Given(OTHER, "/empty", text="", links=(f"{OTHER}/",)),
    Given(OTHER, "/copy", text="same", links=(f"{OTHER}/empty",)),
    Given(OTHER, "/secret", outcome="denied"),
    Given("https://c.example", "/", outcome="failed"),
)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    make_bounds_small(monkeypatch)


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'crawl.db'}"


# --- what comes of a table ----------------------------------------------------------------------------------


def by_hash(site: str, *paths: str) -> list[str]:
    return sorted((site + path for path in paths), key=hash64)


def test_a_table_worked_out_by_hand(database: str, tmp_path: Path, small: None) -> None:
    put(database, BY_HAND)
    figures = converted(database, tmp_path / "run")
    run = tmp_path / "run"
    # By domain: 127.0.0.1, a.example with two sites, b.example. Of the three copies `/long` and `/?s=2` are as short.
    urls = [f"{OTHER}/empty", *by_hash(A, "/", "/?s=2"), f"{W}/empty", f"{B}/index"]
    told = table(run, "pages")
    assert [page["url"] for page in told] == urls
    assert [page["url_hash"] for page in told] == [hash64(url) for url in urls]
    assert [(page["page_id"], page["site_id"], page["domain_id"]) for page in told] == [
        (0, 0, 0),
        (1, 1, 1),
        (2, 1, 1),
        (3, 2, 1),
        (4, 3, 2),
    ]
    assert links_of(run) == {
        f"{OTHER}/empty": {f"{A}/"},
        f"{A}/": {f"{A}/?s=2", f"{B}/index"},
        f"{A}/?s=2": {f"{B}/index", f"{OTHER}/empty"},
        f"{W}/empty": set(),
        f"{B}/index": {f"{A}/?s=2"},
    }
    assert figures["counts"] == {
        "rows": 14,
        "duplicates": 2,
        "redirects": 4,
        "redirects_to_no_page": 0,
        "redirects_without_end": 2,
        "rows_denied": 1,
        "rows_failed": 2,
        "rows_filtered": 0,
        "rows_without_site": 0,
        "sites_without_pages": 1,
        "links_read": 13,
        "links_unknown": 4,
        "links_own": 2,
        "links_parallel": 1,
        "pages_with_damaged_links": 0,
    }


def test_sites_and_their_index_pages(database: str, tmp_path: Path, small: None) -> None:
    put(database, BY_HAND)
    converted(database, tmp_path / "run")
    told = table(tmp_path / "run", "sites")
    assert [(one["site"], one["title"], one["description"]) for one in told] == [
        (OTHER, None, None),  # its `/` leads to another site
        (A, "A", "about A"),
        (W, None, None),  # its `/` leads in a circle
        (B, "Index", "about Index"),  # where `/` leads to
    ]
    assert [(one["site_hash"], one["first_page"], one["pages"]) for one in told] == [
        (hash64(OTHER), 0, 1),
        (hash64(A), 1, 2),
        (hash64(W), 3, 1),
        (hash64(B), 4, 1),
    ]
    assert table(tmp_path / "run", "domains") == [
        {"domain_id": 0, "domain": "127.0.0.1", "sites": 1, "pages": 1},
        {"domain_id": 1, "domain": "a.example", "sites": 2, "pages": 3},
        {"domain_id": 2, "domain": "b.example", "sites": 1, "pages": 1},
    ]


def test_the_arrays_and_the_manifest_say_the_same(database: str, tmp_path: Path, small: None) -> None:
    put(database, BY_HAND)
    figures = converted(database, tmp_path / "run")
    graph = tmp_path / "run/graph"
    ptr, target = np.load(graph / "ptr.npy"), np.load(graph / "target.npy")
    pairs = [(page, to) for page in range(5) for to in target[ptr[page] : ptr[page + 1]]]
    assert [(one["source"], one["target"]) for one in table(tmp_path / "run", "links")] == sorted(pairs)
    assert [array.dtype for array in (ptr, target)] == [np.int64, np.int32]
    assert np.load(graph / "site.npy").tolist() == [0, 1, 3, 4, 5]
    assert np.load(graph / "domain.npy").tolist() == [0, 1, 1, 2]
    communities = table(tmp_path / "run", "communities")
    community = np.load(graph / "community.npy").tolist()
    assert sum(one["sites"] for one in communities) == 4
    assert [page["community_id"] for page in table(tmp_path / "run", "pages")] == [
        community[site] for site in (0, 1, 1, 2, 3)
    ]
    manifest = read_manifest(tmp_path / "run")
    assert {name: manifest[name] for name in ("pages", "sites", "domains", "communities", "links")} == {
        "pages": 5,
        "sites": 4,
        "domains": 3,
        "communities": len(communities),
        "links": 6,
    }
    assert {**figures, "log_bytes": 0} == {
        k: v for k, v in manifest.items() if k not in ("format", "files")
    } | {"log_bytes": 0}
    on_disk = {str(p.relative_to(tmp_path / "run")) for p in (tmp_path / "run").rglob("*") if p.is_file()}
    assert set(manifest["files"]) == on_disk - {"manifest.json"}
    check(tmp_path / "run", manifest["files"])


# --- any table ----------------------------------------------------------------------------------------------

SITES = ("https://a.example", "https://b.a.example", "https://b.example:81", "http://10.0.0.1")
PATHS = ("/", "/1", "/2", "/33", "/?q=4")
URLS = [site + path for site in SITES for path in PATHS]


@st.composite
def rows(draw: st.DrawFn) -> list[Given]:
    """Rows with few texts and URLs, so that much is alike; an agent gives no duplicate and no redirect any links."""
    found = []
    for url in draw(st.permutations(URLS))[: draw(st.integers(0, len(URLS)))]:
        site = next(one for one in SITES if url.startswith(one + "/"))
        kind: Any = draw(st.sampled_from(["stored", "stored", "stored", "duplicate", "redirected", "failed"]))
        body = draw(st.sampled_from([None, None, "", "one", "two"]))
        linked = draw(st.lists(st.sampled_from([*URLS, "https://far.example/"]), max_size=5))
        to = draw(st.sampled_from(PATHS if kind == "duplicate" else URLS))
        named = to if kind in ("duplicate", "redirected") else ""
        given_links = tuple(linked) if kind == "stored" else ()
        found.append(Given(site, url.removeprefix(site), kind, body, named, given_links, title=url[-1]))
    return found


@pytest.fixture(scope="module")
def emptied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], str]]:
    """The URL of one database, each time without rows: migrating takes longer than converting a few."""
    url = f"sqlite:///{tmp_path_factory.mktemp('random') / 'crawl.db'}"
    with opened(url) as engine:
        migrate(engine)

        def empty() -> str:
            with transaction(engine) as connection:
                connection.execute(text("delete from pages"))
                connection.execute(text("delete from sites"))
            return url

        yield empty


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows())
def test_any_table_comes_out_as_the_rule_says(
    emptied: Callable[[], str], tmp_path_factory: pytest.TempPathFactory, given_rows: list[Given]
) -> None:
    rule = Rule(given_rows)
    folder = tmp_path_factory.mktemp("any") / "run"
    with pytest.MonkeyPatch.context() as patch:
        make_bounds_small(patch)
        figures = converted(put(emptied(), given_rows), folder)
    told = table(folder, "pages")
    assert {page["url"] for page in told} == rule.pages
    assert links_of(folder) == rule.links
    assert {name: figures["counts"][name] for name in rule.counts} == rule.counts
    order = [(page["domain_id"], page["site_id"], page["url_hash"]) for page in told]
    assert order == sorted(order)
    counts = figures["counts"]
    left_out = [counts[name] for name in ("duplicates", "redirects", "rows_failed", "rows_without_site")]
    assert counts["rows"] == len(given_rows) == len(told) + sum(left_out)


def test_a_lone_page_that_redirects_to_itself_is_no_page(emptied: Callable[[], str], tmp_path: Path) -> None:
    lone = [Given("https://a.example", "/", "redirected", to="https://a.example/")]
    assert converted(put(emptied(), lone), tmp_path / "run")["counts"]["redirects"] == 1


# --- the same bytes -----------------------------------------------------------------------------------------


def many_rows() -> list[Given]:
    """Forty sites of some pages, linked criss-cross, with copies on other sites."""
    names = [f"https://{name}{number}.example" for number in range(20) for name in ("a.n", "b.m")]
    urls = [f"{name}/{page}" for name in names for page in range(7)]
    found = []
    for number, url in enumerate(urls):
        site, _, path = url.rpartition("/")
        body = f"same {number % 9}" if number % 5 == 0 else None
        to = tuple(urls[(number * step) % len(urls)] for step in (3, 17, 101))
        found.append(Given(site, f"/{path}", text=body, links=to, title=f"Page {number}"))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_every_database_gives_the_same_bytes(
    kind: str, make_database: MakeDatabase, database: str, tmp_path: Path, small: None
) -> None:
    converted(put(database, many_rows()), tmp_path / "file", load=("postgresql",))
    converted(put(make_database(kind), many_rows()), tmp_path / "run", load=("postgresql",))
    assert files_of(tmp_path / "run") == files_of(tmp_path / "file")
    assert len(table(tmp_path / "run", "pages")) > 200


def test_two_converters_and_another_order_of_arrival_give_the_same_bytes(
    make_database: MakeDatabase, tmp_path: Path, small: None
) -> None:
    rows = many_rows()
    converted(put(make_database("sqlite"), rows), tmp_path / "one")
    converted(put(make_database("sqlite"), rows[::-1]), tmp_path / "two", processes=2)
    assert files_of(tmp_path / "two") == files_of(tmp_path / "one")
    assert len(list((tmp_path / "two").glob("pages-*.parquet"))) > 10


# --- one state ----------------------------------------------------------------------------------------------


@contextmanager
def writing(url: str, pair: tuple[str, str]) -> Iterator[list[int]]:
    """Writes a page of each site in one transaction, again and again; what it yields grows by one each time."""
    written: list[int] = []
    stop = threading.Event()

    def write(engine: Engine) -> None:
        while not stop.is_set():
            fill(engine, [Given(site, f"/{len(written)}") for site in pair])
            written.append(1)
            stop.wait(0.02)  # as a coordinator breathes between two batches

    with opened(url) as engine:
        thread = threading.Thread(target=write, args=(engine,))
        thread.start()
        try:
            yield written
        finally:
            stop.set()
            thread.join()


@pytest.mark.parametrize("kind", KINDS)
def test_all_converters_see_one_state_while_a_coordinator_writes(
    kind: str, make_database: MakeDatabase, tmp_path: Path, small: None
) -> None:
    """MariaDB is read by one, whatever is asked for."""
    url = put(make_database(kind), [Given(A, "/first"), Given(B, "/first")])
    # Neither of one range nor read in one go: the sites' pages are far apart in every order.
    put(url, [Given(f"https://a{number:02}.example", "/") for number in range(20)])
    with writing(url, (A, B)) as written:
        eventually(lambda: len(written) > 5, "the writer is at work")
        before = len(written)
        figures = converted(url, tmp_path / "run", processes=2)
        eventually(lambda: len(written) > before, "the writer went on")
    pages_of = {one["site"]: one["pages"] for one in table(tmp_path / "run", "sites")}
    assert pages_of[A] == pages_of[B] > before
    assert figures["pages"] == pages_of[A] * 2 + 20


def test_the_growth_of_the_log_is_told_and_given_back(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "LARGEST_LOG_BYTES", 0)
    put(database, many_rows())
    with opened(database) as engine:
        with reading.held(engine) as connection:
            before = reading.log_bytes(engine)
            put(database, [Given(A, f"/{number}") for number in range(50)])
            assert reading.log_bytes(engine) > before
            assert connection.execute(pages.select().where(pages.c.url.like(f"{A}/%"))).first() is None
        converted(database, tmp_path / "run")
        assert reading.log_bytes(engine) == 0


def test_pages_are_read_by_the_index_and_nothing_is_sorted(database: str) -> None:
    put(database, many_rows())
    asked = [
        reading.SOME_SITES.params(sites=[1, 2, 3]),
        reading.ONE_SITE.params(site=1, first=0, most=10),
    ]
    with opened(database) as engine, transaction(engine) as connection:
        for statement in asked:
            plain = statement.compile(engine, compile_kwargs={"literal_binds": True})
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {plain}").all()
            steps = " ".join(str(step[-1]) for step in plan)
            assert "SEARCH pages USING INDEX" in steps, steps
            assert "TEMP B-TREE" not in steps, steps


# --- bad input ----------------------------------------------------------------------------------------------


def test_tables_without_a_page(database: str, tmp_path: Path) -> None:
    with opened(put(database, [Given(A, "/", outcome="failed")])) as engine:
        find_sites(engine, [B])
    figures = converted(database, tmp_path / "run", load=("duckdb", "postgresql"))
    assert [figures[name] for name in ("pages", "sites", "domains", "communities", "links")] == [0] * 5
    assert (figures["counts"]["rows_failed"], figures["counts"]["sites_without_pages"]) == (1, 2)
    assert [table(tmp_path / "run", name) for name in ("pages", "sites", "links")] == [[], [], []]
    assert np.load(tmp_path / "run/graph/ptr.npy").tolist() == [0]
    assert np.load(tmp_path / "run/graph/site.npy").tolist() == [0]


def test_pages_without_links(database: str, tmp_path: Path) -> None:
    converted(put(database, [Given(A, "/"), Given(A, "/1", links=(f"{A}/1",))]), tmp_path / "run")
    assert links_of(tmp_path / "run") == {f"{A}/": set(), f"{A}/1": set()}


def test_a_million_links_on_one_page(database: str, tmp_path: Path) -> None:
    with opened(put(database, [Given(A, "/"), Given(A, "/1"), Given(B, "/")])) as engine:
        hashes = np.random.default_rng(1).integers(0, 2**63, 1_000_000, np.uint64)
        hashes[:2] = [hash64(f"{A}/1") % 2**64, hash64(f"{B}/") % 2**64]
        with transaction(engine) as connection:
            changed = pages.update().where(pages.c.url == f"{A}/").values(links=np.sort(hashes).tobytes())
            connection.execute(changed)
    figures = converted(database, tmp_path / "run", processes=2)
    assert links_of(tmp_path / "run")[f"{A}/"] == {f"{A}/1", f"{B}/"}
    assert figures["counts"]["links_read"] - figures["counts"]["links_unknown"] == 2


def test_redirects_are_followed_ten_times(database: str, tmp_path: Path) -> None:
    chain = [Given(A, f"/{n}", outcome="redirected", to=f"{A}/{n + 1}") for n in range(11)]
    rows = [
        Given(A, "/11"),
        *chain,
        Given(B, "/far", links=(f"{A}/0",)),
        Given(B, "/near", links=(f"{A}/1",)),
    ]
    figures = converted(put(database, rows), tmp_path / "run")
    assert links_of(tmp_path / "run") == {f"{A}/11": set(), f"{B}/far": set(), f"{B}/near": {f"{A}/11"}}
    assert figures["counts"]["redirects_without_end"] == 1


def test_links_that_are_no_hashes_are_left_out_and_counted(database: str, tmp_path: Path) -> None:
    rows = [Given(A, "/", links=(f"{A}/1", f"{A}/2")), Given(A, "/1", links=(f"{A}/",)), Given(A, "/2")]
    with opened(put(database, rows)) as engine, transaction(engine) as connection:
        connection.execute(pages.update().where(pages.c.url == f"{A}/").values(links=b"123456789"))
    figures = converted(database, tmp_path / "run")
    assert links_of(tmp_path / "run") == {f"{A}/": set(), f"{A}/1": {f"{A}/"}, f"{A}/2": set()}
    assert figures["counts"]["pages_with_damaged_links"] == 1


def test_two_urls_with_one_hash_are_an_error_that_names_both(
    database: str, tmp_path: Path, small: None
) -> None:
    with opened(put(database, many_rows())) as engine, transaction(engine) as connection:
        same = pages.update().where(pages.c.url == "https://b.m3.example/5")
        connection.execute(same.values(url_hash=hash64("https://a.n1.example/2")))
    told = r"https://b\.m3\.example/5 and https://a\.n1\.example/2 have the same hash"
    with pytest.raises(ConvertError, match=told):
        converted(database, tmp_path / "run")
    assert not list(tmp_path.glob("run*"))


def test_a_value_of_another_kind_is_told(database: str, tmp_path: Path, small: None) -> None:
    """SQLite keeps whatever it is given; a converter's error is its coordinator's."""
    with opened(put(database, many_rows())) as engine, transaction(engine) as connection:
        connection.execute(text("update pages set size = 'large' where url = 'https://a.n1.example/2'"))
    with pytest.raises(ConvertError, match="table pages, around 'https://"):
        converted(database, tmp_path / "run", processes=2)
    assert not list(tmp_path.glob("run*"))


def test_a_text_that_is_no_utf8_is_told(database: str, tmp_path: Path) -> None:
    with opened(put(database, [Given(A, "/")])) as engine, transaction(engine) as connection:
        connection.execute(text("update pages set title = cast(x'ff41' as text)"))
    with pytest.raises(ConvertError, match="table pages cannot be read: Could not decode to UTF-8"):
        converted(database, tmp_path / "run")


def test_rows_of_a_site_without_a_name_are_counted(database: str, tmp_path: Path) -> None:
    put(database, [Given(A, "/"), Given(B, "/"), Given(B, "/1")])
    with opened(database) as engine, transaction(engine) as connection:
        connection.execute(text("delete from sites where site = :site"), {"site": B})
    assert converted(database, tmp_path / "run")["counts"]["rows_without_site"] == 2


# --- domains and communities --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "private", "public"),
    [
        ("www.example.co.uk", "example.co.uk", "example.co.uk"),
        ("foo.github.io", "foo.github.io", "github.io"),
        ("a.b.blogspot.com", "b.blogspot.com", "blogspot.com"),
        ("github.io", "github.io", "github.io"),
        ("co.kr", "co.kr", "co.kr"),
        ("10.0.0.1", "10.0.0.1", "10.0.0.1"),
        ("[::1]:8080", "::1", "::1"),
        ("localhost", "localhost", "localhost"),
        ("shop.one.localhost", "one.localhost", "one.localhost"),
        ("Www.Example.COM", "example.com", "example.com"),
    ],
)
def test_domains(host: str, private: str, public: str) -> None:
    assert domain_finder(private_suffixes=True)(f"http://{host}") == private
    assert domain_finder(private_suffixes=False)(f"http://{host}") == public


def test_communities_are_found_in_the_links_between_sites(database: str, tmp_path: Path) -> None:
    names = [[f"https://{letter}{number}.example" for number in range(4)] for letter in "ab"]
    rows = [Given(one, "/", links=tuple(f"{other}/" for other in group)) for group in names for one in group]
    figures = converted(put(database, rows), tmp_path / "run")
    assert figures["communities"] == 2
    assert [one["community_id"] for one in table(tmp_path / "run", "sites")] == [0] * 4 + [1] * 4
    assert [(one["site"], one["sites"], one["pages"]) for one in table(tmp_path / "run", "communities")] == [
        ("https://a0.example", 4, 4),
        ("https://b0.example", 4, 4),
    ]


def test_communities_may_be_given(database: str, tmp_path: Path) -> None:
    """Sites without a page may be in the file, unknown ones may not."""
    put(database, [Given(A, "/"), Given(B, "/"), Given(OTHER, "/"), Given(W, "/", outcome="failed")])
    file = tmp_path / "communities.csv"
    file.write_text(f"site,community\n{W},zoo\n{B},sea\n{OTHER},sea\n")
    figures = converted(database, tmp_path / "run", communities=file)
    told = {one["site"]: one["community_id"] for one in table(tmp_path / "run", "sites")}
    assert told == {OTHER: 0, A: 1, B: 0}
    assert figures["options"]["communities"] == "given"
    file.write_text("https://stranger.example,sea\n")
    with pytest.raises(ConvertError, match=r"communities\.csv: .*https://stranger\.example"):
        converted(database, tmp_path / "other", communities=file)
    with pytest.raises(ConvertError, match="No such file"):
        converted(database, tmp_path / "other", communities=tmp_path / "none.csv")
