"""`scrapy convert` as a person calls it: what it prints and refuses; kills and full disks leave nothing half."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from rankers.folder import check, read_manifest
from tests import warm
from tests.converting import Given, converted, put, table
from tests.crawling import ROOT, Place
from tests.outages import small_disk

SITES = [f"https://s{number}.example" for number in range(20)]
# Many ranges, so that each moment lasts.
SLOW = """
import sys
import time
from pathlib import Path
from crawler.convert import numbering
from tests.converting import converted
numbering.RANGE_ROWS = 20
converted(sys.argv[1], Path(sys.argv[2]), processes=int(sys.argv[3]))
"""
# What is in the unfinished folder when it is killed, and how many read: rows are being read, pages are being written.
MOMENTS = (("spill/00003.texts", 2), ("pages-00003.parquet", 1))


def rows(many: int) -> list[Given]:
    """Linked within their sites only."""
    sites = [SITES[n % len(SITES)] for n in range(many)]
    return [
        Given(site, f"/{n}", links=(f"{site}/{(n + 20) % many}",), title=f"Page {n} " * 20)
        for n, site in enumerate(sites)
    ]


@pytest.fixture
def filled(place: Place) -> Place:
    place.var.mkdir()
    put(f"sqlite:///{place.var / 'crawl.db'}", rows(2_000))
    return place


def test_it_prints_what_there_is(filled: Place) -> None:
    run = filled.run("convert", "--run", "today").succeeded()
    lines = dict(line.split(maxsplit=1) for line in run.out.splitlines())
    assert lines["folder"] == str(filled.var / "convert/today")
    assert lines["pages"].startswith("2,000 pages, 20 sites, 20 domains, ")
    assert lines["links"] == f"{read_manifest(filled.var / 'convert/today')['links']:,} links"
    again = filled.run("convert", "--run", "today").refused("convert/today is there already", "--run", code=1)
    assert again.out == ""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--run", "../x.tmp"), ("--run is '../x.tmp'; expected letters",)),
        (("--load", "mysql"), ("--load names 'mysql'; expected some of postgresql, mariadb, duckdb",)),
    ],
)
def test_a_wrong_call_is_refused(place: Place, words: tuple[str, ...], told: tuple[str, ...]) -> None:
    place.run("convert", *words).refused(*told, code=2)


def test_without_tables_nothing_is_converted(place: Place) -> None:
    place.run("convert").refused("nothing was crawled yet: no tables in sqlite:///", code=1)


def test_a_kill_leaves_nothing_half_and_no_process(filled: Place) -> None:
    """Every process of a Place is looked for at its end: a converter that outlives its coordinator would be found."""
    folder = filled.var / "convert/run"
    for moment, processes in MOMENTS:
        process = warm.popen(
            [sys.executable, "-c", SLOW, f"sqlite:///{filled.var / 'crawl.db'}", str(folder), str(processes)],
            env=filled.environment(),
            cwd=ROOT,
        )
        while not (folder.with_name("run.tmp") / moment).exists():
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.002)
        process.kill()
        process.wait()
        assert [path.name for path in folder.parent.iterdir()] == ["run.tmp"]
    told = json.loads(filled.run("convert", "--json", "--load", "duckdb").succeeded().out)
    whole = Path(told["folder"])
    assert list(folder.parent.iterdir()) == [whole]
    check(whole, read_manifest(whole)["files"])
    assert told["pages"] == told["counts"]["rows"] == len(table(whole, "pages"))
    assert told["options"]["load"] == ["duckdb"]


def test_a_full_disk_is_one_line_and_leaves_nothing(filled: Place) -> None:
    database = f"sqlite:///{filled.var / 'crawl.db'}"
    with small_disk(filled.folder / "small", megabytes=1) as disk:
        disk.fill()
        run = filled.run("convert", VAR_DIR=str(disk.folder), DATABASE_URL=database)
        run.refused("No space left on device", str(disk.folder), code=1)
        assert len(run.err.strip().splitlines()) == 1
        assert list((disk.folder / "convert").iterdir()) == []


def test_wherever_the_disk_is_full_nothing_is_left(filled: Place) -> None:
    database = f"sqlite:///{filled.var / 'crawl.db'}"
    failed = []
    with small_disk(filled.folder / "small", megabytes=8) as disk:
        for taken in range(8_000_000, 0, -400_000):
            (disk.folder / "taken").write_bytes(bytes(taken))
            try:
                converted(database, disk.folder / "run", load=("postgresql",), processes=2)
            except OSError as error:
                failed.append(str(error))
                assert [path.name for path in disk.folder.iterdir()] == ["taken"]
            else:
                break
        check(disk.folder / "run", read_manifest(disk.folder / "run")["files"])
    assert len(failed) > 1
    assert [said for said in failed if "No space left on device" not in said] == []
