"""Load files, really loaded: into PostgreSQL by psql, into MariaDB by its client, into DuckDB; equal row by row."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from sqlalchemy import create_engine, make_url, text

from crawler.convert import DATABASES, writing
from tests.conftest import MakeDatabase

HOSTILE = [
    None,
    "",
    "NULL",
    "\\N",
    "\\.",
    "back\\slash",
    "trailing\\",
    "two\\\\",
    "tab\there",
    "line\nfeed",
    "carriage\rreturn",
    "both\r\n",
    'double "quote"',
    "single 'quote'",
    "comma, semicolon; pipe|",
    "emoji \U0001f600",
    "line\u2028separator \u2029",
    "control \x01\x02\x1b\x1f\x7f\x85",
    "\ufeffBOM",
    "\\x41 \\101 \\b \\t",
    "last \U0010ffff",
    " blanks ",
    "long " * 14_000,
    "긴 제목 " * 20_000,
]


@pytest.fixture
def load(tmp_path: Path) -> Path:
    """The folder `load` of a converted folder of hostile texts, over two files of pages."""
    many = len(HOSTILE)
    for number in range(2):
        ids = range(number * many, (number + 1) * many)
        texts = HOSTILE if number == 0 else HOSTILE[::-1]
        writing.write_table(tmp_path / f"pages-{number:05}.parquet", "pages", page_columns(list(ids), texts))
    links = {"source": [0, 0, many], "target": [1, 2, 0]}
    writing.write_table(tmp_path / "links-00000.parquet", "links", links)
    numbers = ("site_id", "domain_id", "community_id", "first_page", "pages")
    names = {"site": ["https://a.example", "https://b.example"], "site_hash": [-(2**63), 2**63 - 1]}
    texts_of = {"title": HOSTILE[6:8], "description": [None, "\t"]}
    writing.write_table(
        tmp_path / "sites.parquet", "sites", {**{name: [0, 1] for name in numbers}, **names, **texts_of}
    )
    domains = {"domain_id": [0], "domain": ["a.example"], "sites": [2], "pages": [2 * many]}
    writing.write_table(tmp_path / "domains.parquet", "domains", domains)
    communities = {"community_id": [0], "site": ["https://a.example"], "sites": [2], "pages": [2 * many]}
    writing.write_table(tmp_path / "communities.parquet", "communities", communities)
    assert sum(writing.write_load_files(tmp_path, DATABASES, 2)) == 2 * many + 3 + 2 + 1 + 1
    return tmp_path / "load"


def page_columns(ids: list[int], texts: list[str | None]) -> dict[str, Any]:
    numbers = ("page_id", "site_id", "domain_id", "community_id", "size")
    hashes = {"site_hash": [-(2**63)] * len(ids), "url_hash": [2**63 - 1] * len(ids)}
    rest = dict.fromkeys(("description", "sha256", "language", "content_type"), [None] * len(ids))
    return {
        **{name: list(ids) for name in numbers},
        **hashes,
        **rest,
        "url": [f"https://a.example/{i}" for i in ids],
        "title": texts,
        "description": texts[::-1],
        "extra": [text and json.dumps({"said": text}, ensure_ascii=False) for text in texts],
        "fetched_at": [1_795_000_000_000] * len(ids),
    }


def wanted(load: Path) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of every table, from the Parquet files."""
    found = {}
    for table in writing.SCHEMAS:
        files = sorted(load.parent.glob(f"{table}*.parquet"))
        found[table] = [tuple(row.values()) for file in files for row in pq.read_table(file).to_pylist()]
    return found


def loaded(url: str) -> dict[str, list[tuple[Any, ...]]]:
    """The same from a database."""
    engine = create_engine(url)
    keys = {"pages": "page_id", "links": "source, target"}
    try:
        with engine.connect() as connection:
            return {
                table: [
                    tuple(row)
                    for row in connection.execute(
                        text(f"select * from {table} order by {keys.get(table, 1)}")
                    )
                ]
                for table in writing.SCHEMAS
            }
    finally:
        engine.dispose()


def call(program: str, *arguments: str, cwd: Path, script: Path | None = None) -> str:
    """What it prints; both outputs, since warnings are on either."""
    if shutil.which(program) is None:
        pytest.skip(f"no {program} on this machine")
    given = script.read_text(encoding="utf-8") if script else ""
    ended = subprocess.run([program, *arguments], cwd=cwd, input=given, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout + ended.stderr


@pytest.mark.needs("postgres", "psql")
def test_postgresql_takes_all_of_it(load: Path, make_database: MakeDatabase) -> None:
    url = make_url(make_database("postgres"))
    server = ["-h", str(url.host), "-p", str(url.port), "-U", str(url.username), str(url.database)]
    said = call("psql", "-X", "-f", "postgresql.sql", *server, cwd=load)
    assert "WARNING" not in said
    assert loaded(url.render_as_string(hide_password=False)) == wanted(load)


@pytest.mark.needs("mariadb")
def test_mariadb_takes_all_of_it_without_a_warning(load: Path, make_database: MakeDatabase) -> None:
    url = make_url(make_database("mariadb"))
    server = ["-h", str(url.host), "-P", str(url.port), "-u", str(url.username), str(url.database)]
    script = load / "mariadb.sql"
    assert call("mariadb", "--local-infile=1", *server, cwd=load, script=script) == ""
    assert loaded(url.render_as_string(hide_password=False)) == wanted(load)


@pytest.mark.needs("mariadb")
def test_a_warning_of_mariadb_would_be_seen(load: Path, make_database: MakeDatabase) -> None:
    url = make_url(make_database("mariadb"))
    server = ["-h", str(url.host), "-P", str(url.port), "-u", str(url.username), str(url.database)]
    script = load / "narrow.sql"
    script.write_text((load / "mariadb.sql").read_text().replace("MEDIUMTEXT", "TEXT"))
    assert "Data truncated" in call("mariadb", "--local-infile=1", *server, cwd=load, script=script)


@pytest.mark.needs("duckdb")
def test_duckdb_takes_all_of_it(load: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    duckdb = pytest.importorskip("duckdb")
    monkeypatch.chdir(load)
    with duckdb.connect() as connection:
        connection.execute((load / "duckdb.sql").read_text())
        found = {table: connection.execute(f"from {table}").fetchall() for table in writing.SCHEMAS}
    assert found == wanted(load)


def test_a_line_is_a_row(load: Path) -> None:
    lines = (load / "pages.tsv").read_bytes().decode().split("\n")
    assert lines.pop() == ""
    assert len(lines) == 2 * len(HOSTILE)
    assert {line.count("\t") for line in lines} == {len(writing.SCHEMAS["pages"]) - 1}


def test_only_what_is_asked_for_is_written(tmp_path: Path) -> None:
    for table, schema in writing.SCHEMAS.items():
        writing.write_table(tmp_path / f"{table}.parquet", table, {name: [] for name in schema.names})
    assert list(writing.write_load_files(tmp_path, ["duckdb"], 1)) == []
    assert [path.name for path in (tmp_path / "load").iterdir()] == ["duckdb.sql"]
