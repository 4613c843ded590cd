"""docs/tables.md: every table and column is told, none that is not there, and every question gets an answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import Engine

from crawler.records import (
    Check,
    OperatorCommand,
    Page,
    RunEvent,
    SiteEnded,
    SiteFound,
    Visit,
    hash64,
    pack_links,
)
from crawler.store.database import migrate, open_database, transaction
from crawler.store.ranks import Ranked, replace
from crawler.store.tables import metadata
from crawler.store.write import DeadLetter, Stored, bury, store
from tests.conftest import MakeDatabase
from tests.databases import KINDS
from tests.examples import ROOT, blocks_of

PAGE = (ROOT / "docs/tables.md").read_text(encoding="utf-8")
# What a block says of itself in its first line, and the kind of database that it is for.
DIALECTS = {"-- SQLite": "sqlite", "-- PostgreSQL": "postgres", "-- MariaDB": "mariadb"}
QUESTIONS = [block for block in blocks_of(PAGE) if block.kind == "sql"]


def test_the_page_tells_every_column_and_no_other() -> None:
    told: dict[str, set[str]] = {}
    for section in re.split(r"^## `", PAGE, flags=re.MULTILINE)[1:]:
        cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
        told[section.partition("`")[0]] = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert told == {name: set(table.columns.keys()) for name, table in metadata.tables.items()}


@pytest.fixture
def crawl(make_database: MakeDatabase) -> Iterator[dict[str, Engine]]:
    """Engines over a small crawl in which every question has an answer, by kind."""
    engines: dict[str, Engine] = {}

    class Opened(dict[str, Engine]):
        def __missing__(self, kind: str) -> Engine:
            self[kind] = engines[kind] = filled(make_database(kind))
            return self[kind]

    yield Opened()
    for engine in engines.values():
        engine.dispose()


def filled(url: str) -> Engine:
    engine = open_database(url)
    migrate(engine)
    sites = ("https://example.org", "https://example.net", "https://example.com")
    records: list[object] = [SiteFound(site=site, found_at=1) for site in sites]
    records += [SiteEnded(site=site, ended_at=9, finished=True, published=99, known=99) for site in sites]
    records += [
        OperatorCommand(site=sites[0], ordered_at=5, order="pause"),
        RunEvent(agent="h", run="r", spider="s", started_at=1),
    ]
    records += [Check(crawler=1, code=2, checked_at=3, status=200, digest="ab")]
    records += [Visit(agent="h", run="r", seq=999, site=sites[0], hour=494_000, pages=3, seconds=0.2)]
    for number in range(120):
        records.append(turn(sites[number % 3], number % 20, number))
    engine_rows = [Stored(f"{n}-0", one, pack_links(["x"])) for n, one in enumerate(records, 1)]  # type: ignore[arg-type]
    with transaction(engine) as connection:
        store(connection, engine_rows)
        bury(connection, [DeadLetter("9-0", "no record", {b"v": b"1"})])
    pages, known = (np.array([hash64(text) for text in texts]) for texts in ([f"{sites[0]}/"], sites))
    one = np.ones(1)
    replace(
        engine, Ranked("r", "exact", "site", 0.85, known[:1], pages, one, known[:1], one, one.astype(int))
    )
    return engine


def turn(site: str, place: int, number: int) -> Page:
    """The turn of a page; each page has several, with another text each time."""
    return Page(
        site=site,
        path=f"/{place or ''}",
        fetched_at=1_795_000_000_000 + number,
        outcome="failed" if place == 7 else "stored",
        status=404 if place == 7 else 200,
        agent="h",
        run="r",
        seq=number,
        size=10,
        sha256="ab" * 32,
        language="ko",
        content_hash=f"{number:032x}",
        outside_hosts=["a.example", "b.example"],
        warc_file="a.warc.gz",
        head_ms=3,
        body_ms=4,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_every_question_gets_an_answer(kind: str, crawl: dict[str, Engine]) -> None:
    silent = []
    for block in QUESTIONS:
        only = DIALECTS.get(block.text.splitlines()[0])
        if only in (None, kind):
            with crawl[kind].connect() as connection:
                asked = {"no_parameters": True}  # a % is one
                if not connection.exec_driver_sql(block.text, execution_options=asked).all():
                    silent.append(f"docs/tables.md:{block.line}")
    assert silent == []


def test_there_are_questions_for_every_database() -> None:
    assert len(QUESTIONS) >= 15
    assert {DIALECTS.get(block.text.splitlines()[0]) for block in QUESTIONS} == {None, *DIALECTS.values()}
    assert Path(ROOT / "docs/tables.md").exists()
