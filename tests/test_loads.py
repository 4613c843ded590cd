"""Loads in the tables: what agents told and what was imported, on every kind of database; and the commands."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Engine, create_engine, select

from crawler.planning import load_store
from crawler.planning.load import BUSIEST, CSV_HEADER, FULL, SIMPLE_CSV_HEADER, UNKNOWN, cell_of, lost_pace
from crawler.planning.load_store import (
    country_of,
    forget_profile,
    import_profiles,
    load_table,
    profiles,
    visits_after,
)
from crawler.records import Visit
from crawler.reports import load as report
from crawler.store import queries
from crawler.store.database import transaction
from crawler.store.tables import profiles as profile_rows
from crawler.store.tables import visits
from crawler.store.write import Stored, forget, store
from tests.conftest import OpenTables
from tests.crawling import Place
from tests.databases import KINDS
from tests.servers import RunningServer, eventually
from tests.small_site import SmallSite
from tests.small_site import links as page

SITE, OTHER = "https://a.example", "https://b.example"
# 00:00 UTC of a Monday.
MONDAY = 4 * 24 + 52 * 7 * 24
every_kind = pytest.mark.parametrize("kind", KINDS)


def visit(number: int, hour: int, site: str = SITE, **more: Any) -> Visit:
    given: dict[str, Any] = {"agent": "h-1", "run": "r", "seq": number, "pages": 3, "seconds": 0.2}
    return Visit(site=site, hour=hour, **(given | more))


def put(engine: Engine, *records: Visit) -> None:
    with transaction(engine) as connection:
        store(connection, [Stored(f"{n}-0", record) for n, record in enumerate(records, 1)])


def given(load: int) -> np.ndarray:
    return np.full(48, load, np.uint8)


# --- What agents told -------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("many", [2, 60])  # of a few and of many, each database is told in its own way
def test_visits_come_back_in_order_and_once(kind: str, many: int, filled: OpenTables) -> None:
    engine = filled(kind)
    told = [visit(n, MONDAY + n, seconds=0.1 * n, refused=1 / 3, delay_seconds=2.5) for n in range(1, many)]
    last = visit(many, MONDAY, OTHER, seconds=0.0, pages=0, refused=1.0, hours_open="0100-0800")
    put(engine, *told, last)
    put(engine, *told, last)
    rows = visits_after(engine, 0)
    assert len(rows) == many
    assert [row.id for row in rows] == sorted(row.id for row in rows)
    by_seconds = {row.seconds: row for row in rows}
    first = by_seconds[0.1]
    assert first[1:] == (SITE, MONDAY + 1, 0.1, 1 / 3, 3, 2.5, None)
    assert by_seconds[None][1:] == (OTHER, MONDAY, None, 1.0, 0, 0.0, "0100-0800")
    assert visits_after(engine, rows[0].id, 1) == rows[1:2]
    assert visits_after(engine, rows[-1].id) == []


@every_kind
def test_a_forgotten_site_leaves_nothing(kind: str, filled: OpenTables) -> None:
    engine = filled(kind)
    put(engine, visit(1, MONDAY), visit(2, MONDAY, OTHER))
    import_profiles(engine, [(SITE, given(3)), (OTHER, given(4))])
    with transaction(engine) as connection:
        forget(connection, SITE)
    assert [row.site for row in visits_after(engine, 0)] == [OTHER]
    assert [site for site, _ in profiles(engine)] == [OTHER]


# --- What was imported ------------------------------------------------------------------------------------


@every_kind
def test_imports_replace_and_are_forgotten(
    kind: str, filled: OpenTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (load_store, queries):
        monkeypatch.setattr(module, "STRETCH_ROWS", 7)
    engine = filled(kind)
    names = [f"https://{n}.example" for n in range(30)]
    assert import_profiles(engine, ((name, given(n)) for n, name in enumerate(names))) == 30
    assert {site: int(values[0]) for site, values in profiles(engine)} == {
        name: n for n, name in enumerate(names)
    }
    import_profiles(engine, [(names[3], given(200))])
    found = dict(profiles(engine))
    assert len(found) == 30
    assert (found[names[3]] == 200).all()
    assert forget_profile(engine, names[3])
    assert not forget_profile(engine, names[3])
    assert names[3] not in dict(profiles(engine))


# --- Both -------------------------------------------------------------------------------------------------


def test_a_table_grows_with_what_comes(filled: OpenTables, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read bit by bit it knows the same as read in one go."""
    engine = filled("sqlite")
    dice = np.random.default_rng(1)
    told = [
        visit(n, MONDAY + n // 9, f"https://{n % 37}.example", seconds=float(dice.uniform(0.1, 2.0)))
        for n in range(1, 600)
    ]
    put(engine, *told[:100])
    table = load_table(engine)
    assert table.refresh(engine) == 0
    put(engine, *told[100:])
    monkeypatch.setattr(load_store, "STRETCH_ROWS", 50)
    assert table.refresh(engine) == 499
    assert len(table) == len(table.names) == len(table.windows) == 37
    assert sum(table.visits.values()) == 599
    again = load_table(engine)
    assert again.names == table.names
    assert (again.forecast(MONDAY).load == table.forecast(MONDAY).load).all()
    assert table.forecast(MONDAY).load.shape == (37, 24)


def test_two_agents_may_see_a_site_in_one_hour(filled: OpenTables) -> None:
    engine = filled("sqlite")
    put(engine, visit(1, MONDAY), visit(2, MONDAY, seconds=0.4), visit(3, MONDAY, OTHER))
    table = load_table(engine)
    assert table.visits == {0: 2, 1: 1}
    assert table.forecast(MONDAY).load[0, 0] > table.forecast(MONDAY).load[1, 0]


def test_the_last_word_on_pause_and_window_counts(filled: OpenTables) -> None:
    engine = filled("sqlite")
    put(engine, visit(1, MONDAY, delay_seconds=1.0, hours_open="0100-0800"))
    table = load_table(engine)
    assert table.is_open(MONDAY, 3600)[0].tolist() == [1 <= hour < 8 for hour in range(24)]
    assert table.is_open(MONDAY + 5, 3600)[0, :4].tolist() == [True, True, True, False]
    put(engine, visit(2, MONDAY + 1, delay_seconds=4.0), visit(3, MONDAY, OTHER, hours_open="soon"))
    import_profiles(engine, [("https://c.example", given(9))])
    table.refresh(engine)
    assert table.is_open(MONDAY, 3600).all()
    assert table.delays[: len(table)].tolist() == pytest.approx([4.0, 0.0, np.nan], nan_ok=True)


def test_imported_loads_stand_for_measured_ones(filled: OpenTables) -> None:
    engine = filled("sqlite")
    put(
        engine,
        *(visit(n, MONDAY + n, seconds=0.2) for n in range(1, 30)),
        visit(99, MONDAY, OTHER, seconds=2.0),
    )
    table = load_table(engine)
    measured = table.forecast(MONDAY).load
    half = given(UNKNOWN)
    half[:6] = 127
    import_profiles(engine, [(OTHER, half), ("https://c.example", given(FULL))])
    table.refresh(engine)
    load = table.forecast(MONDAY).load
    assert (load[0] == measured[0]).all()
    assert (load[1, 6:] == measured[1, 6:]).all()
    assert load[1, :6].tolist() == [round((1 - 0.5**1.5) * FULL)] * 6
    assert (load[2] == BUSIEST).all()
    assert (table.forecast(MONDAY + 5 * 24).load[1] == measured[1]).all(), "given for weekdays alone"
    assert table.seen(MONDAY).tolist() == [True, True, True]
    assert table.seen(MONDAY + 20).tolist() == [True, False, True]
    forget_profile(engine, OTHER)
    table.refresh(engine)
    assert (table.forecast(MONDAY).load[1] == measured[1]).all()


def test_what_is_exported_and_imported_is_the_same_forecast(filled: OpenTables) -> None:
    engine = filled("sqlite")
    dice = np.random.default_rng(2)
    put(
        engine,
        *(
            visit(n, MONDAY + n % 168, f"https://{n % 5}.example", seconds=float(dice.uniform(0.1, 1)))
            for n in range(1, 900)
        ),
    )
    table = load_table(engine)
    before = table.forecast(MONDAY).load.astype(int)
    profile = table.profile()
    assert lost_pace(profile[:, cell_of(MONDAY)]) * FULL == pytest.approx(before[:, 0], abs=0.5)
    import_profiles(engine, zip(table.names, np.rint(profile * FULL).astype(np.uint8), strict=True))
    table.refresh(engine)
    assert np.abs(table.forecast(MONDAY).load.astype(int) - before).max() <= 1
    assert table.profile() == pytest.approx(np.rint(profile * FULL) / FULL)


# --- Commands ---------------------------------------------------------------------------------------------


def test_loads_go_in_and_out(place: Place) -> None:
    """Before the first crawl, and with sites that no crawl knows."""
    given_file = place.folder / "loads.csv"
    given_file.write_text(
        ",".join(SIMPLE_CSV_HEADER)
        + "\n"
        + "example.org"
        + ",0.25" * 24
        + "\n"
        + "example.net"
        + "," * 24
        + "\n"
    )
    said = place.run("load", "import", str(given_file)).succeeded()
    assert said.out == "loads of 2 sites imported\n"
    out = place.folder / "out.csv"
    place.run("load", "export", str(out)).succeeded()
    printed = place.run("load", "export").succeeded().out
    assert printed == out.read_text()
    header, *rows = printed.splitlines()
    assert header == ",".join(CSV_HEADER)
    assert [row.split(",")[:3] for row in rows] == [
        ["https://example.net", "weekday", ""],
        ["https://example.net", "weekend", ""],
        ["https://example.org", "weekday", "0.252"],
        ["https://example.org", "weekend", "0.252"],
    ]
    shown = place.run("report", "load").succeeded().out.splitlines()
    assert [line.split()[0] for line in shown] == ["site", "https://example.org", "https://example.net"]
    assert place.run("load", "import", str(out), "--json").succeeded().out == '{\n  "imported": 2\n}\n'
    assert "measured again" in place.run("load", "forget", "example.org").succeeded().out
    assert len(place.run("load", "export").succeeded().out.splitlines()) == 3
    place.run("load", "forget", "example.org").refused("no loads were imported of these sites", code=1)


def test_what_cannot_be_imported_changes_nothing(place: Place) -> None:
    bad = place.folder / "bad.csv"
    bad.write_text(",".join(SIMPLE_CSV_HEADER) + "\nexample.org" + ",2" * 24 + "\n")
    place.run("load", "import", str(bad)).refused(
        "bad.csv: line 2, column 0: '2'", "nothing was imported", code=1
    )
    bad.write_bytes(b"\xff\xfe")
    place.run("load", "import", str(bad)).refused("bad.csv: ", "nothing was imported", code=1)
    place.run("load", "import", "no-such-file.csv").refused("no-such-file.csv: No such file", code=2)
    place.run("load", "export").refused("no loads are known yet", code=1)
    place.run("load", "import").refused("expected import FILE | export", code=2)
    place.run("load").refused("expected import FILE | export", code=2)
    assert not (place.var / "crawl.db").exists()


def test_a_crawl_tells_and_the_report_shows(place: Place, valkey: RunningServer) -> None:
    url = f"sqlite:///{place.folder}/crawl.db"
    cluster = {"REDIS_URL": valkey.url, "DATABASE_URL": url}
    with SmallSite({"/": page(*map(str, range(9))), "*": page(seconds=0.02)}) as site:
        place.crawl([site.root], **cluster).succeeded()
        coordinator = place.start("coordinate", **cluster)
        coordinator.says("writes to")
        wait_for_visit(url)
        coordinator.end().succeeded()
    found = json.loads(place.run("report", "load", "--json", **cluster).succeeded().out)["load"]
    (one,) = found["sites"]
    assert (one["site"], one["visits"], one["imported"]) == (site.site, 1, False)
    assert 1_000 < one["pages_per_hour"] < 200_000
    assert len(one["load"]) == len(one["open"]) == 24
    assert site.site in place.run("report", "load", **cluster).succeeded().out


def wait_for_visit(url: str) -> None:
    engine = create_engine(url)

    def there() -> bool:
        with engine.connect() as connection:
            return bool(connection.execute(select(visits.c.id)).all())

    eventually(there, "the visit is stored")
    engine.dispose()


def test_the_report_is_short_and_the_busiest_come_first() -> None:
    sites = [
        {
            "site": f"https://{'long-' * 9}{n}.example",
            "load": [1 - n / 100, None, *[0.0] * 22],
            "open": [True] * 23 + [False],
            "pages_per_hour": None if n else 1234.5,
            "visits": n,
            "imported": n == 1,
        }
        for n in range(100)
    ]
    lines = report.text({"hour": MONDAY + 22, "sites": sites}).splitlines()
    assert len(lines) == 40
    assert "22h   04h   10h   16h" in lines[0]
    assert f"█.{'▁' * 21}-" in lines[1]
    assert "1,234" in lines[1]
    assert lines[2].endswith("1, imported")
    assert "62 sites more" in lines[-1]
    assert report.text({"sites": []}).startswith("  no load is known yet")


def test_imports_are_rows_of_their_own(filled: OpenTables) -> None:
    engine = filled("sqlite")
    import_profiles(engine, [(SITE, given(3))])
    with engine.connect() as connection:
        (row,) = connection.execute(select(profile_rows)).all()
    assert (row.site, row.loads) == (SITE, bytes([3] * 48))
    assert load_table(engine).names == [SITE]


@pytest.mark.parametrize(
    ("site", "country"),
    [
        ("https://www.example.co.kr", "kr"),
        ("https://example.kr:8443", "kr"),
        ("https://example.org", ""),
        ("http://127.0.0.11:80", ""),
        ("http://[2001:db8::ab]", ""),
    ],
)
def test_sites_of_a_country_share_a_day(site: str, country: str) -> None:
    assert country_of(site) == country
