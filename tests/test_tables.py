"""The tables on every kind of database: made once, never spoilt, and filled to the same state in whatever order.

The rules of writing are checked on all three kinds, since each has its own upsert.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, Table, create_engine, inspect, make_url, select, text
from sqlalchemy.dialects import mysql, postgresql, sqlite

from crawler.records import (
    OperatorCommand,
    OrderWord,
    Page,
    Record,
    RunEvent,
    SiteEnded,
    SiteFound,
    Visit,
    hash64,
    pack_links,
)
from crawler.store import database, write
from crawler.store import rows as row_of
from crawler.store import upsert as upserts
from crawler.store.database import (
    DatabaseAwayError,
    DatabaseError,
    RowRefusedError,
    check_version,
    migrate,
    open_database,
    told,
    transaction,
)
from crawler.store.queries import summary
from crawler.store.tables import dead_letters, fetches, metadata, pages, runs, sites, visits
from crawler.store.upsert import Upsert
from crawler.store.write import Counts, DeadLetter, Stored, bury, clean, entry_number, store
from tests import warm
from tests.conftest import MakeDatabase, OpenTables
from tests.databases import KINDS, POSTGRES
from tests.servers import free_port

ROOT = Path(__file__).parent.parent
SITE = "https://a.example"

every_kind = pytest.mark.parametrize("kind", KINDS)


def page(path: str, fetched_at: int = 1_000, **more: Any) -> Page:
    given: dict[str, Any] = {
        "site": SITE,
        "outcome": "stored",
        "status": 200,
        "agent": "h-1",
        "run": "r",
        "seq": fetched_at,
    }
    return Page(path=path, fetched_at=fetched_at, **(given | more))


def put(engine: Engine, *records: Record, links: bytes = b"", first: int = 1) -> Counts:
    """Writes the records as one batch; their entries are numbered from `first`."""
    batch = [Stored(f"{first + n}-0", record, links) for n, record in enumerate(records)]
    with transaction(engine) as connection:
        return store(connection, batch)


def rows(engine: Engine, table: Table) -> list[dict[str, Any]]:
    """All rows but for their running numbers, in the order of the other columns."""
    with engine.connect() as connection:
        found = [dict(row) for row in connection.execute(select(table)).mappings()]
    for row in found:
        row.pop("id", None)
    return sorted(found, key=repr)


def everything(engine: Engine) -> dict[str, list[dict[str, Any]]]:
    return {table.name: rows(engine, table) for table in (sites, pages, fetches, runs, visits)}


def column(engine: Engine, table: Table, name: str) -> list[Any]:
    return [row[name] for row in rows(engine, table)]


# --- Opening ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nonsense", "is not a database URL"),
        ("", "is not a database URL"),
        ("mongodb://h/x", "mongodb is not supported"),
        ("sqlite+nosuch:////tmp/x.db", "no such driver"),
        ("postgresql+psycopg2://h/x", "pip install 'lowtide[postgres]'"),
        ("mysql+mysqldb://h/x", "pip install 'lowtide[mariadb]'"),
        ("sqlite://", "in-memory"),
        ("sqlite:////no/such/folder/crawl.db", "folder /no/such/folder does not exist"),
        ("postgresql://u:secret@h:port/x", "is not a database URL"),
    ],
)
def test_url_that_cannot_work_is_refused_by_name(url: str, words: str) -> None:
    with pytest.raises(DatabaseError, match="DATABASE_URL") as caught:
        open_database(url)
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_file_is_told_as_it_is_written_and_no_password_is() -> None:
    assert told(make_url("sqlite:////tmp/서울 crawl/crawl.db")) == "sqlite:////tmp/서울 crawl/crawl.db"
    assert told(make_url("sqlite:///crawl.db?mode=ro")) == "sqlite:///crawl.db?mode=ro"
    assert told(make_url("mariadb+pymysql://u:secret@db/x")) == "mariadb+pymysql://u:***@db/x"


@pytest.mark.parametrize("kind", ["postgresql", "mariadb", "mysql"])
def test_refused_connection_is_away_and_hides_the_password(kind: str) -> None:
    engine = open_database(f"{kind}://someone:secret@127.0.0.1:{free_port()}/x")
    with pytest.raises(DatabaseAwayError) as caught:
        migrate(engine)
    assert "someone" in str(caught.value)
    assert "secret" not in str(caught.value)
    engine.dispose()


@pytest.mark.parametrize("kind", KINDS[1:])
def test_database_that_does_not_exist_is_no_outage(kind: str, make_database: MakeDatabase) -> None:
    url = make_url(make_database(kind))
    engine = open_database(url.set(database="lowtide_no_such_database").render_as_string(hide_password=False))
    with pytest.raises(DatabaseError, match="lowtide_no_such_database") as caught:
        migrate(engine)
    assert not isinstance(caught.value, DatabaseAwayError)
    engine.dispose()


def test_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "crawl.db"
    path.write_bytes(b"a letter to my aunt\n" * 1_000)
    engine = open_database(f"sqlite:///{path}")
    with pytest.raises(DatabaseError, match="not a database") as caught:
        migrate(engine)
    assert not isinstance(caught.value, DatabaseAwayError)
    engine.dispose()


def test_locked_file_is_away(filled: OpenTables) -> None:
    engine = filled("sqlite")
    with engine.connect() as holder:
        holder.exec_driver_sql("BEGIN EXCLUSIVE")
        with pytest.raises(DatabaseAwayError, match="locked"), transaction(engine) as connection:
            connection.exec_driver_sql("PRAGMA busy_timeout=20")
            store(connection, [Stored("1-0", page("/"))])


def test_sqlite_is_set_up_for_one_writer_and_many_readers(filled: OpenTables) -> None:
    with filled("sqlite").connect() as connection:
        asked = (
            "journal_mode",
            "synchronous",
            "page_size",
            "cache_size",
            "busy_timeout",
            "wal_autocheckpoint",
        )
        found = [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in asked]
    assert found == ["wal", 2, 8192, -65536, 10_000, 10_000]


# Of each kind that most pages have none of, one value.
RARE = {
    "error": "why",
    "duplicate_of": "/a",
    "redirect": "https://b.example/",
    "canonical": SITE + "/c",
    "mail_domains": ["b.example"],
    "ftp_domains": ["c.example"],
    "robots": ["nofollow"],
    "keywords": ["tide"],
    "asked_as": "/asked",
    "extra": {"words": 3},
}


@every_kind
@pytest.mark.parametrize("many", [1, upserts.LEAST_COPIED + 5])
def test_what_a_newer_turn_does_not_have_is_gone(kind: str, many: int, filled: OpenTables) -> None:
    """Rows with and without the rare columns are written by statements of their own."""
    engine = filled(kind)
    names = [name for name in row_of.RARE_COLUMNS if name not in ("extracted_at", *row_of.LIFE_COLUMNS)]
    assert set(names) == set(RARE)
    put(engine, *(page(f"/{n}", 1_000 + n, **RARE) for n in range(many)))
    assert all(all(row[name] for name in names) for row in rows(engine, pages))
    put(engine, *(page(f"/{n}", 2_000 + n, title="new") for n in range(many)))
    found = rows(engine, pages)
    assert {row[name] for row in found for name in names} == {None}
    assert [row["title"] for row in found] == ["new"] * many
    both = [page("/0", 3_000, **RARE), page("/0", 3_001), page("/1", 3_002), page("/1", 3_003, **RARE)]
    put(engine, *both)
    errors = {row["url"]: row["error"] for row in rows(engine, pages)}
    assert (errors[SITE + "/0"], errors[SITE + "/1"]) == (None, "why")


# --- Versions ---------------------------------------------------------------------------------------------


def test_known_versions_are_those_of_the_revisions() -> None:
    config = Config()
    config.set_main_option("script_location", "crawler.store:migrations")
    revisions = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
    assert tuple(reversed(revisions)) == database.KNOWN


@every_kind
def test_revisions_make_the_tables_that_the_code_knows(kind: str, fresh: OpenTables) -> None:
    walked, made = fresh(kind), fresh(kind)
    at_revision(walked, "head")
    migrate(made)
    with walked.connect() as connection:
        given = {"compare_type": True, "version_table": database.VERSION_TABLE}
        context = MigrationContext.configure(connection, opts=given)
        assert compare_metadata(context, metadata) == []
    assert shape(made) == shape(walked)


def shape(engine: Engine) -> dict[str, Any]:
    """Tables with their columns and keys, as the database tells them; the order of columns is none of its meaning."""
    asked = inspect(engine)
    return {
        name: (
            sorted(repr({**one, "type": repr(one["type"])}) for one in asked.get_columns(name)),
            asked.get_pk_constraint(name),
            asked.get_unique_constraints(name),
            asked.get_indexes(name),
            asked.get_table_options(name) if engine.dialect.name != "sqlite" else (),
        )
        for name in asked.get_table_names()
    }


@every_kind
def test_tables_that_were_half_made_are_taken_up(kind: str, fresh: OpenTables) -> None:
    """MariaDB commits each by itself."""
    engine = fresh(kind)
    with transaction(engine) as connection:
        database._VERSIONS.create(connection)
        metadata.create_all(connection, tables=[pages, sites, visits])
    migrate(engine)
    put(engine, page("/", language="ko"))
    assert check_version(engine) == database.KNOWN[-1]
    assert column(engine, pages, "language") == ["ko"]


@every_kind
def test_migrating_again_changes_nothing(kind: str, fresh: OpenTables) -> None:
    engine = fresh(kind)
    assert check_version(engine) is None
    migrate(engine)
    put(engine, page("/"))
    migrate(engine)
    assert check_version(engine) == database.KNOWN[-1]
    assert column(engine, pages, "url") == [SITE + "/"]


def at_revision(engine: Engine, revision: str) -> None:
    """The tables as the Lowtide of that revision made them."""
    config = Config()
    config.set_main_option("script_location", "crawler.store:migrations")
    with transaction(engine) as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


NEXT_REVISION = """
import sqlalchemy as sa
from alembic import op

revision, down_revision = "9001", "{before}"


def upgrade():
    if "colour" not in {{column["name"] for column in sa.inspect(op.get_bind()).get_columns("pages")}}:
        op.add_column("pages", sa.Column("colour", sa.Text()))
"""


@pytest.fixture
def next_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Lowtide that comes after this one, and has one revision more."""
    folder = tmp_path / "migrations"
    shutil.copytree(ROOT / "crawler/store/migrations", folder)
    written = NEXT_REVISION.format(before=database.KNOWN[-1])
    (folder / "versions/revision_9001.py").write_text(written, encoding="utf-8")
    monkeypatch.setattr(database, "_MIGRATIONS", str(folder))
    monkeypatch.setattr(database, "KNOWN", (*database.KNOWN, "9001"))


def colours(engine: Engine) -> list[Any]:
    with engine.connect() as connection:
        return connection.execute(text("SELECT url, colour FROM pages")).all()  # type: ignore[return-value]


@every_kind
def test_tables_of_an_older_version_are_brought_to_this_one(
    kind: str, filled: OpenTables, request: pytest.FixtureRequest
) -> None:
    engine, before = filled(kind), database.KNOWN[-1]
    put(engine, page("/old"))
    assert check_version(engine) == before
    request.getfixturevalue("next_revision")
    migrate(engine)
    assert check_version(engine) == "9001"
    assert colours(engine) == [(f"{SITE}/old", None)]
    # As MariaDB keeps it where it was killed before the revision was noted: what it made, and the version of before.
    with transaction(engine) as connection:
        connection.execute(text(f"UPDATE {database.VERSION_TABLE} SET version_num = '{before}'"))
    migrate(engine)
    assert check_version(engine) == "9001"
    put(engine, page("/new"))
    assert len(colours(engine)) == 2


@every_kind
def test_tables_from_before_the_first_revision_are_refused_with_what_to_do(
    kind: str, filled: OpenTables
) -> None:
    engine = filled(kind)
    put(engine, page("/old"))
    with transaction(engine) as connection:
        connection.execute(text(f"UPDATE {database.VERSION_TABLE} SET version_num = '0009'"))
    said = f"version 0009, .* tables of {database.KNOWN[0]} or later: start a new crawl .*another VAR_DIR"
    for call in (check_version, migrate):
        with pytest.raises(DatabaseError, match=said):
            call(engine)
    assert column(engine, pages, "url") == [f"{SITE}/old"]


def test_a_site_that_is_given_as_a_seed_is_one_from_then_on(filled: OpenTables) -> None:
    engine = filled("sqlite")
    put(engine, SiteFound(site=SITE, found_at=5, source="link"))
    put(engine, SiteFound(site=SITE, found_at=9))
    assert column(engine, sites, "source") == ["seed"]
    put(engine, SiteFound(site=SITE, found_at=9, source="link"))
    assert column(engine, sites, "source") == ["seed"]


@pytest.mark.parametrize("kind", KINDS[2:])
def test_the_lock_is_held_until_others_see_the_new_version(kind: str, make_database: MakeDatabase) -> None:
    """SQLite and PostgreSQL let go of theirs by committing; MariaDB's knows of no transaction."""
    url = make_database(kind)
    engine, other = open_database(url), open_database(url)
    with transaction(engine) as connection:
        with database._alone(connection):
            database._upgrade(connection)
        assert check_version(other) == database.KNOWN[-1]
    engine.dispose()
    other.dispose()


MIGRATE = (
    "import sys; from crawler.store.database import *; sys.stdin.read(1); migrate(open_database(sys.argv[1]))"
)


@every_kind
def test_processes_that_start_at_once_do_not_collide(kind: str, make_database: MakeDatabase) -> None:
    url = make_database(kind)
    command = [sys.executable, "-c", MIGRATE, url]
    started = [
        warm.popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, text=True)
        for _ in range(3)
    ]
    try:
        for process in started:
            assert process.stdin is not None
            process.stdin.write("x")
            process.stdin.flush()
        said = [process.communicate(timeout=30)[1] for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait(timeout=60)
    assert [process.returncode for process in started] == [0, 0, 0], said
    engine = open_database(url)
    assert check_version(engine) == database.KNOWN[-1]
    engine.dispose()


@every_kind
def test_tables_of_another_version_are_left_alone(kind: str, filled: OpenTables) -> None:
    engine = filled(kind)
    with transaction(engine) as connection:
        connection.execute(text(f"UPDATE {database.VERSION_TABLE} SET version_num = '9999'"))
    for call in (check_version, migrate):
        with pytest.raises(DatabaseError, match="holds tables of version 9999; this Lowtide knows 0017"):
            call(engine)


@every_kind
def test_tables_of_strangers_are_left_alone(kind: str, fresh: OpenTables) -> None:
    engine = fresh(kind)
    with transaction(engine) as connection:
        connection.execute(text("CREATE TABLE pages (id INTEGER)"))
    with pytest.raises(DatabaseError, match=f"a table named pages but no {database.VERSION_TABLE}"):
        migrate(engine)


@every_kind
def test_migration_that_was_killed_halfway_is_taken_up(kind: str, fresh: OpenTables) -> None:
    engine = fresh(kind)
    with transaction(engine) as connection:
        connection.execute(
            text(f"CREATE TABLE {database.VERSION_TABLE} (version_num VARCHAR(32) PRIMARY KEY)")
        )
        sites.create(connection)
    migrate(engine)
    put(engine, page("/"))
    assert check_version(engine) == database.KNOWN[-1]


# --- Writing ----------------------------------------------------------------------------------------------


def a_crawl() -> list[Record]:
    """Records in which every rule decides something: pages twice, a site found twice, ended twice, two runs."""
    found = [
        SiteFound(site=SITE, found_at=20, source="https://b.example"),
        SiteFound(site=SITE, found_at=10, source="seed"),
        SiteFound(site="https://only.example", found_at=30),
    ]
    ended = [
        SiteEnded(site=SITE, ended_at=90, finished=False, published=2, known=9, reason="hour"),
        SiteEnded(
            site=SITE, ended_at=80, finished=True, published=5, known=9
        ),  # an agent whose clock is late
    ]
    moments = [
        RunEvent(agent="h-1", run="r", spider="site", started_at=1),
        RunEvent(agent="h-1", run="r", spider="site", started_at=1, ended_at=99, reason="finished"),
        RunEvent(agent="h-2", run="r", spider="site", started_at=2),
    ]
    turns = [page(f"/{n % 7}", 100 + n, title=f"turn {n}", size=n) for n in range(20)]
    orders = [
        ordered("block", reason="its owner asked"),
        ordered("pause", reason="asked to"),
        ordered("budget", pages=7),
        ordered("budget", pages=0),
        ordered("resume", "https://only.example"),
        ordered("budget", "https://only.example"),
        ordered("block", "https://unheard.example"),
    ]
    hours = [
        Visit(agent="h-1", run="r", seq=900 + n, site=site, hour=494_000, pages=3, seconds=0.1 + n)
        for n, site in enumerate((SITE, SITE, "https://only.example"))
    ]
    return [*found, *turns, *moments, *ended, *orders, *hours]


def ordered(
    order: OrderWord, site: str = SITE, *, pages: int | None = None, reason: str = ""
) -> OperatorCommand:
    return OperatorCommand(site=site, ordered_at=5, order=order, pages=pages, reason=reason)


@every_kind
def test_tables_end_the_same_in_whatever_order_and_however_often(kind: str, filled: OpenTables) -> None:
    engine = filled(kind)
    batch = [Stored(f"{n + 1}-0", record, pack_links([str(n)])) for n, record in enumerate(a_crawl())]
    with transaction(engine) as connection:
        assert store(connection, batch) == Counts(pages=20, found=3, ended=2, runs=3, orders=7, visits=3)
    expected = everything(engine)
    for seed in range(4):
        _write_shuffled(engine, batch, random.Random(seed))
        assert everything(engine) == expected, f"after the same records again, seed {seed}"
        _empty(engine)
        _write_shuffled(engine, batch, random.Random(100 + seed))
        assert everything(engine) == expected, f"in another order, seed {seed}"


def _write_shuffled(engine: Engine, batch: list[Stored], dice: random.Random) -> None:
    shuffled = dice.sample(batch, len(batch)) + dice.sample(batch, 5)
    while shuffled:
        cut = dice.randint(1, 6)
        with transaction(engine) as connection:
            store(connection, shuffled[:cut])
        shuffled = shuffled[cut:]


def _empty(engine: Engine) -> None:
    with transaction(engine) as connection:
        for table in (sites, pages, fetches, runs):
            connection.execute(table.delete())


@every_kind
def test_what_the_rules_keep(kind: str, filled: OpenTables) -> None:
    engine = filled(kind)
    put(engine, *a_crawl())
    site = next(row for row in rows(engine, sites) if row["site"] == SITE)
    assert site["site_id"] == hash64(SITE)
    assert (site["found_at"], site["source"]) == (10, "seed")
    assert (site["state"], site["published"], site["known"], site["reason"]) == ("finished", 5, 9, None)
    assert sorted(column(engine, pages, "title")) == sorted(f"turn {n}" for n in range(13, 20))
    assert sorted(column(engine, fetches, "seq")) == list(range(100, 120))
    ends = {row["agent"]: (row["ended_at"], row["reason"]) for row in rows(engine, runs)}
    assert ends == {"h-1": (99, "finished"), "h-2": (None, None)}
    orders = {
        row["site"]: (row["stopped"], row["stopped_reason"], row["budget"]) for row in rows(engine, sites)
    }
    assert orders == {
        SITE: ("paused", "asked to", 0),
        "https://only.example": (None, None, None),
        "https://unheard.example": ("blocked", None, None),
    }


@every_kind
@pytest.mark.parametrize("batches", [1, 9])
def test_a_site_that_is_forgotten_is_gone_until_it_is_found_anew(
    kind: str, batches: int, filled: OpenTables
) -> None:
    engine = filled(kind)
    other = "https://b.example"
    crawl: list[Record] = [
        SiteFound(site=SITE, found_at=1),
        page("/old"),
        ordered("block"),
        SiteFound(site=other, found_at=1),
        ordered("forget"),
        SiteFound(site=SITE, found_at=2, source="link"),
        page("/new", 2_000),
        ordered("budget", pages=3),
        ordered("forget", "https://unheard.example"),
    ]
    for start in range(0, 9, 9 // batches):
        put(engine, *crawl[start : start + 9 // batches], first=start + 1)
    before = everything(engine)
    found = {row["site"]: (row["found_at"], row["stopped"], row["budget"]) for row in before["sites"]}
    assert found == {SITE: (2, None, 3), other: (1, None, None)}
    assert column(engine, pages, "url") == [SITE + "/new"]
    assert len(before["fetches"]) == 1
    put(engine, *crawl[4:], first=5)
    assert everything(engine) == before, "the order again, and what came after it"
    put(engine, page("/newer", 3_000), first=20)
    put(engine, *crawl, first=1)
    assert {SITE + "/new", SITE + "/newer"} <= set(column(engine, pages, "url")), "all of it again"


def test_page_of_an_unknown_site_makes_it_known(filled: OpenTables) -> None:
    engine = filled("sqlite")
    put(engine, page("/"))
    assert rows(engine, sites)[0] | {"site_id": 0} == {
        **dict.fromkeys(
            ("found_at", "source", "ended_at", "reason", "ended_entry", "found_entry", "alias_of")
        ),
        **dict.fromkeys(("stopped", "stopped_reason", "stopped_entry", "budget", "budget_entry", "pending")),
        **dict.fromkeys(("health", "health_since", "health_status", "health_told", "health_penalty")),
        **dict.fromkeys(("health_damped", "health_at", "left_out", "left_out_by", "left_out_hashes")),
        **dict.fromkeys(("same_as",)),
        "site_id": 0,
        "site": SITE,
        "state": "queued",
        "published": 0,
        "known": 0,
        "over_budget": 0,
    }


def test_what_a_page_does_not_have_is_null(filled: OpenTables) -> None:
    engine = filled("sqlite")
    put(engine, page("/", outcome="failed", status=-1, error="refused"))
    row = rows(engine, pages)[0]
    none = (
        "sha256",
        "duplicate_of",
        "redirect",
        "content_type",
        "title",
        "description",
        "links",
        "canonical",
    )
    assert [row[name] for name in none] == [None] * len(none)
    assert (row["state"], row["error"], row["status"]) == ("no_response_1", "refused", -1)


def test_duplicate_names_the_url_of_the_other(filled: OpenTables) -> None:
    engine = filled("sqlite")
    put(engine, page("/b", outcome="duplicate", duplicate_of="/a", sha256="ab" * 32), links=pack_links(["x"]))
    row = rows(engine, pages)[0]
    assert (row["duplicate_of"], row["sha256"], row["links"]) == (SITE + "/a", "ab" * 32, pack_links(["x"]))


HOSTILE = [
    "back\\slash \\N \\0 \\",
    "quotes ' \" ` ; -- %s %(x)s :name ?",
    "tab\tline\nreturn\r\n",
    "emoji 🌊 and the last one \U0010ffff",
    "\ufeffBOM, \u2028 and \x01\x7f control",
    "제목입니다",
    "x" * 70_000,
    " spaces at the end  ",
]


@every_kind
def test_hostile_texts_come_back_as_they_went(kind: str, filled: OpenTables) -> None:
    engine = filled(kind)
    put(engine, *(page(f"/{n}", 1_000 + n, title=title, error=title) for n, title in enumerate(HOSTILE)))
    assert sorted(column(engine, pages, "title")) == sorted(HOSTILE)
    assert sorted(column(engine, pages, "error")) == sorted(HOSTILE)


@every_kind
def test_texts_that_no_database_takes_are_cleaned(kind: str, filled: OpenTables) -> None:
    engine = filled(kind)
    put(engine, page("/\0a", title="a\0b\ud800c"))
    put(engine, SiteFound(site="https://\0n.example", found_at=1, source="\udfff"))
    assert column(engine, pages, "title") == ["ab\ufffdc"]
    assert column(engine, pages, "url") == [SITE + "/a"]
    assert sorted(filter(None, column(engine, sites, "source"))) == ["\ufffd"]


@every_kind
def test_no_text_of_a_page_is_too_odd_for_a_database(kind: str, filled: OpenTables) -> None:
    """Whatever field it stands in, lists and the names of a table among them."""
    odd: dict[str, Any] = {
        str: "a\0\ud800",
        list[str]: ["a\0\ud800", "\0"],
        dict[str, int]: {"a\0\udfff": 1},
        dict[str, Any]: {"a\0\udfff": [{"\0b": "c\0\ud800"}]},
    }
    needed = ("site", "path", "sha256", "content_hash", "duplicate_of")
    given = {
        field.name: odd[field.type]
        for field in msgspec.structs.fields(Page)
        if field.type in odd and field.name not in needed
    }
    assert {"media", "outside_hosts", "keywords", "robots", "title", "etag", "extra"} <= set(given)
    engine = filled(kind)
    put(engine, page("/odd", **given))
    (row,) = rows(engine, pages)
    texts = [value for value in row.values() if isinstance(value, str)]
    assert len(texts) >= 10
    for value in texts:
        value.encode()
        assert "\0" not in value
        assert "\\u0000" not in value


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("", ""),
        ("a\0", "a"),
        ("é\0", "é"),
        ("\ud83c\udf0a", "🌊"),
        ("\ud83c", "\ufffd"),
        ("é\udc80é", "é\ufffdé"),
    ],
)
def test_clean(given: str, wanted: str) -> None:
    assert clean(given) == wanted


@every_kind
def test_urls_are_told_apart_byte_by_byte(kind: str, filled: OpenTables) -> None:
    engine = filled(kind)
    paths = ["/a", "/A", "/e", "/é", "/a%20", "/a "]
    put(engine, *(page(path, 1_000 + n) for n, path in enumerate(paths)))
    with engine.connect() as connection:
        for path in paths:
            asked = select(pages.c.url_hash).where(pages.c.url == SITE + path)
            found = connection.execute(asked).scalars().all()
            # MariaDB compares as if both were padded with spaces.
            assert hash64(SITE + path) in found
            assert len(found) == 1 or path.startswith("/a")
    assert len(column(engine, pages, "url")) == len(paths)


@every_kind
def test_value_that_does_not_fit_is_refused_and_nothing_of_the_batch_stays(
    kind: str, filled: OpenTables
) -> None:
    engine = filled(kind)
    with pytest.raises(RowRefusedError):
        put(engine, page("/good"), page("/bad", 1_001, size=2**63))
    assert rows(engine, pages) == []


@every_kind
def test_large_links_are_kept_whole(kind: str, filled: OpenTables) -> None:
    engine = filled(kind)
    links = os.urandom(8 * 50_000)
    put(engine, page("/"), links=links)
    assert column(engine, pages, "links") == [links]


def test_reading_in_the_order_of_sites_needs_no_sorting(filled: OpenTables) -> None:
    asked = "EXPLAIN QUERY PLAN SELECT * FROM pages ORDER BY site_id, url_hash"
    with filled("sqlite").connect() as connection:
        plan = " ".join(str(row[-1]) for row in connection.exec_driver_sql(asked))
    assert "TEMP B-TREE" not in plan


def test_record_without_an_origin_has_no_history(filled: OpenTables) -> None:
    engine = filled("sqlite")
    put(engine, page("/", agent=""), page("/b", agent=""))
    assert len(rows(engine, pages)) == 2
    assert rows(engine, fetches) == []


@pytest.mark.parametrize(
    ("earlier", "later"),
    [("1-0", "1-1"), ("1-9", "2-0"), ("9-0", "10-0"), ("1795002630155-1048575", "1795002630156-0")],
)
def test_entry_numbers_follow_the_stream(earlier: str, later: str) -> None:
    assert entry_number(earlier) < entry_number(later) < 2**63


# --- Every field into its column --------------------------------------------------------------------------


def a_full_page(number: int) -> Page:
    """A page with another value in every field."""
    texts = ("error", "sha256", "duplicate_of", "redirect", "canonical", "content_type", "charset", "title")
    more = (
        "description",
        "language",
        "content_hash",
        "etag",
        "last_modified",
        "address",
        "warc_file",
        "asked_as",
    )
    numbers = ("status", "depth", "tries", "size", "latency_ms", "wire_size", "connect_ms", "head_ms")
    rest = ("body_ms", "warc_offset", "warc_length")
    lists = ("outside_hosts", "mail_domains", "ftp_domains", "robots", "keywords")
    return Page(
        site=SITE,
        path=f"/{number}",
        fetched_at=1_000_000 + number,
        outcome="duplicate",
        agent="h-1",
        run="r",
        seq=number,
        media={"image": number, "video": 2},
        extra={"words": number, "parts": [{"name": "'\\é🌊", "share": 0.5}, None, True]},
        **{name: f"{name} {number}" for name in (*texts, *more)},  # type: ignore[arg-type]
        **{name: 100 * place + number for place, name in enumerate((*numbers, *rest), 1)},  # type: ignore[arg-type]
        **{name: [f"{name} {number}", "'\\é"] for name in lists},  # type: ignore[arg-type]
    )


# Columns of pages that other pages' records fill.
SAID_BY_SITEMAPS = ("sitemap_lastmod", "signalled_at")
# Columns that are not the field of that name as it is.
MADE = {
    "pages": (
        *(
            "site_id",
            "url_hash",
            "url",
            "asked_as",
            "state",
            "duplicate_of",
            "links",
            "media",
            "extracted_at",
        ),
        *("fails", "last_checked", "last_changed", "next_check", "walked_at"),
        *SAID_BY_SITEMAPS,
    ),
    "fetches": ("site_id", "url_hash"),
}


@every_kind
@pytest.mark.parametrize("many", [3, 100])  # of a few and of many, PostgreSQL is told in other ways
def test_every_field_comes_into_the_column_of_its_name(kind: str, many: int, filled: OpenTables) -> None:
    engine = filled(kind)
    given = [a_full_page(number) for number in range(1, many + 1)]
    put(engine, *given, links=pack_links(["x"]))
    for table in (pages, fetches):
        stored = {row["fetched_at"]: row for row in rows(engine, table)}
        assert len(stored) == many
        for one in given:
            row = stored[one.fetched_at]
            fields = msgspec.structs.asdict(one)
            for name in set(row) - set(MADE[table.name]):
                wanted = fields[name]
                came = json.loads(row[name]) if isinstance(wanted, list | dict) else row[name]
                assert came == wanted, name
            assert (row["site_id"], row["url_hash"]) == (hash64(SITE), hash64(one.url))
    row = {row["url"]: row for row in rows(engine, pages)}[SITE + "/1"]
    assert (row["state"], row["duplicate_of"]) == ("visited", f"{SITE}duplicate_of 1")
    assert row["asked_as"] == f"{SITE}asked_as 1"
    assert (json.loads(row["media"]), row["links"]) == ({"image": 1, "video": 2}, pack_links(["x"]))


@pytest.mark.parametrize("upsert", [one for one in vars(write).values() if isinstance(one, Upsert)])
def test_a_statement_names_the_columns_in_the_order_of_the_rows(upsert: Upsert) -> None:
    for dialect in (sqlite.dialect(), postgresql.psycopg.dialect(), mysql.pymysql.dialect()):
        statement = upserts._statement(dialect, upsert)
        named, places = re.findall(r"\(([^()]*)\)", statement)[:2]
        assert tuple(name.strip(' "`') for name in named.split(",")) == upsert.columns
        assert len(places.split(",")) == len(upsert.columns)
    assert upsert.columns[: len(upsert.key)] == upsert.key or upsert.key in (("digest",), ("stream_id",))
    left_out = set(row_of.RARE_COLUMNS) - set(row_of.LIFE_COLUMNS) if upsert is write.USUAL_PAGES else set()
    assert set(upsert.changed) - set(upsert.columns) == left_out


def test_no_column_of_a_page_is_left_out() -> None:
    for upsert in (write.PAGES, write.FETCHES, write.RUNS, write.CHECKS, write.VISITS):
        others = SAID_BY_SITEMAPS if upsert is write.PAGES else ()
        assert {*upsert.columns, *others, "id"} == {*upsert.table.columns.keys(), "id"}
    ruled = {name for name, _ in write.PAGES.computed}
    assert {*write.PAGES.changed, *ruled} == set(write.PAGES.columns) - {"site_id", "url_hash", "url"}
    assert not ruled & set(write.PAGES.changed)


# --- How each database takes many rows --------------------------------------------------------------------


@every_kind
def test_many_rows_follow_the_rules_of_few(kind: str, filled: OpenTables) -> None:
    engine = filled(kind)
    put(engine, *(page(f"/{n}", 2_000 + n, title="first") for n in range(0, 200, 2)))
    put(engine, *(page(f"/{n}", 1_000 + 1_000 * (n % 4) + n, title="second") for n in range(200)), first=9)
    titles = {row["url"].rpartition("/")[2]: row["title"] for row in rows(engine, pages)}
    assert len(titles) == 200
    # 1,000 + n is older than what was there, 3,000 + n newer; odd ones were not there.
    assert {title for n, title in titles.items() if int(n) % 4 == 0} == {"first"}
    assert {title for n, title in titles.items() if int(n) % 4} == {"second"}
    assert len(rows(engine, fetches)) == 300


@every_kind
def test_a_batch_may_hold_the_same_page_and_the_same_turn_many_times(kind: str, filled: OpenTables) -> None:
    engine = filled(kind)
    same = [page(f"/{n % 30}", 5_000 - n, seq=n % 30, title=f"turn {n}") for n in range(300)]
    put(engine, *same)
    assert sorted(column(engine, pages, "title")) == sorted(f"turn {n}" for n in range(30))
    assert sorted(column(engine, fetches, "seq")) == list(range(30))
    assert sorted(column(engine, fetches, "fetched_at")) == sorted(5_000 - n for n in range(30))


@every_kind
def test_many_rows_on_both_sides_of_an_order_to_forget(kind: str, filled: OpenTables) -> None:
    engine = filled(kind)
    before = [page(f"/old{n}", 1_000 + n) for n in range(60)]
    after = [page(f"/new{n}", 3_000 + n) for n in range(40)]
    put(engine, *before, ordered("forget"), *after)
    assert sorted(column(engine, pages, "url")) == sorted(SITE + one.path for one in after)
    assert sorted(column(engine, fetches, "seq")) == [3_000 + n for n in range(40)]


@pytest.mark.parametrize("kind", KINDS[1:2])
def test_a_connection_that_breaks_under_a_copy_is_an_outage(
    kind: str, filled: OpenTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, other = filled(kind), create_engine(POSTGRES)
    copy = upserts._copy

    def cut_off(connection: Connection, *given: Any) -> None:
        pid = connection.execute(text("SELECT pg_backend_pid()")).scalar()
        with other.connect() as killer:
            killer.execute(text(f"SELECT pg_terminate_backend({pid})"))
        copy(connection, *given)

    monkeypatch.setattr(upserts, "_copy", cut_off)
    with pytest.raises(DatabaseAwayError):
        put(engine, *(page(f"/{n}", 1_000 + n) for n in range(100)))
    monkeypatch.undo()
    put(engine, *(page(f"/{n}", 1_000 + n) for n in range(100)))
    assert len(rows(engine, pages)) == 100
    other.dispose()


@pytest.mark.parametrize("kind", KINDS[2:])
@pytest.mark.parametrize("mode", ["", "ANSI_QUOTES", "NO_BACKSLASH_ESCAPES", "ANSI"])
def test_spelt_out_texts_are_the_same_under_every_rule_of_the_server(
    kind: str, mode: str, filled: OpenTables
) -> None:
    engine = filled(kind)
    given = [page(f"/{n}", 1_000 + n, title=title, keywords=[title]) for n, title in enumerate(HOSTILE)]
    with transaction(engine) as connection:
        connection.execute(text(f"SET SESSION sql_mode = CONCAT(@@sql_mode, ',{mode}')"))
        store(connection, [Stored("1-0", one, os.urandom(80)) for one in given])
    found = {row["url"]: row for row in rows(engine, pages)}
    assert {url: row["title"] for url, row in found.items()} == {one.url: one.title for one in given}
    assert all(json.loads(found[one.url]["keywords"]) == [one.title] for one in given)


@pytest.mark.parametrize("kind", KINDS[2:])
def test_more_rows_than_one_statement_takes(
    kind: str, filled: OpenTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upserts, "MOST_CHARACTERS", 3_000)
    engine = filled(kind)
    put(engine, *(page(f"/{n}", 1_000 + n, title="x" * 40 * n) for n in range(1, 101)))
    assert sorted(column(engine, pages, "title")) == ["x" * 40 * n for n in range(1, 101)]


# --- Dead letters -----------------------------------------------------------------------------------------


@every_kind
def test_dead_letter_keeps_the_entry_whole_and_once(kind: str, filled: OpenTables) -> None:
    engine = filled(kind)
    fields = {b"v": b"1", b"r": b'{"kind":"\0"}', b"l": bytes(range(256)), b"\xff": b""}
    for reason in ("first\0 \ud800", "second"):
        with transaction(engine) as connection:
            bury(connection, [DeadLetter("5-0", reason, fields)])
    (row,) = rows(engine, dead_letters)
    kept = json.loads(row["fields"])
    assert (row["stream_id"], row["reason"]) == ("5-0", "first \ufffd")
    assert (kept["v"], kept["r"], kept["\\xff"]) == ("1", '{"kind":"\0"}', "")
    assert kept["l"]["base64"].startswith("AAECAwQF")


# --- Figures ----------------------------------------------------------------------------------------------


@every_kind
def test_summary(kind: str, filled: OpenTables) -> None:
    engine = filled(kind)
    turns = [
        page("/1", 10, size=100),
        page("/2", 20, size=50),
        page("/3", 30, outcome="duplicate", duplicate_of="/1", size=100),
        page("/4", 40, outcome="redirected", status=301),
        page("/5", 50, outcome="failed", status=404),
        page("/6", 60, outcome="failed", status=404),
        page("/7", 70, outcome="failed", status=-2),
        page("/8", 80, outcome="denied", status=0),
        page("/9", 90, outcome="filtered"),
    ]
    end = SiteEnded(site=SITE, ended_at=99, finished=True, published=9, known=9)
    put(engine, *turns, end, SiteFound(site="https://b.example", found_at=1))
    figures = summary(engine)
    assert figures == {
        "sites": 2,
        "aliases": 0,
        "aliases_not_asked": 0,
        "same": 0,
        "sites_finished": 1,
        "sites_paused": 0,
        "sites_blocked": 0,
        "sites_aliases": 0,
        "stored": 2,
        "duplicates": 1,
        "redirected": 1,
        "filtered": 1,
        "failed": 3,
        "failed_by_status": {404: 2, -2: 1},
        "denied": 1,
        "bytes": 150,
        "dead_letters": 0,
        "first_fetch": 10,
        "last_fetch": 90,
    }
    assert list(figures["failed_by_status"]) == [404, -2]


@every_kind
def test_a_site_that_is_stopped_or_an_alias_is_not_told_as_finished(kind: str, filled: OpenTables) -> None:
    engine = filled(kind)
    stands = {"paused": "paused", "blocked": "blocked", "alias": None, "both": "blocked", "done": None}
    for name in stands:
        site = f"https://{name}.example"
        put(engine, SiteFound(site=site, found_at=1))
        put(engine, SiteEnded(site=site, ended_at=9, finished=True, published=0, known=0))
    put(engine, SiteFound(site="https://open.example", found_at=1))
    with transaction(engine) as connection:
        for name, stopped in stands.items():
            row = sites.update().where(sites.c.site == f"https://{name}.example")
            alias = "https://done.example" if name in ("alias", "both") else None
            connection.execute(row.values(stopped=stopped, alias_of=alias))
    figures = summary(engine)
    assert figures["sites"] == 6
    found = {name: number for name, number in figures.items() if name.startswith("sites_")}
    assert found == {"sites_finished": 1, "sites_paused": 1, "sites_blocked": 2, "sites_aliases": 1}


def test_summary_of_nothing(filled: OpenTables) -> None:
    figures = summary(filled("sqlite"))
    assert figures.pop("failed_by_status") == {}  # type: ignore[misc]
    assert (figures.pop("first_fetch"), figures.pop("last_fetch")) == (None, None)  # type: ignore[misc]
    assert set(figures.values()) == {0}


# --- Services that must be there ----------------------------------------------------------------------------

SKIPPING = """
import pytest

@pytest.mark.needs("postgres")
def test_service():
    pytest.skip("nobody there")

def test_other():
    pytest.skip("never mind")
"""


@pytest.mark.parametrize("more", [[], ["-n", "1"]], ids=["alone", "xdist"])
@pytest.mark.parametrize(("name", "value"), [("LOWTIDE_TESTS_REQUIRE", "1"), ("CI", "true"), ("", "")])
def test_required_service_may_not_be_skipped(name: str, value: str, more: list[str], tmp_path: Path) -> None:
    (tmp_path / "test_skipping.py").write_text(SKIPPING)
    environment = {
        key: text for key, text in os.environ.items() if key not in ("CI", "LOWTIDE_TESTS_REQUIRE")
    }
    if name:
        environment[name] = value
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.conftest",
        "-c",
        "pyproject.toml",
        *more,
        str(tmp_path),
    ]
    ended = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == (1 if name else 0), ended.stdout
    assert ("1 failed, 1 skipped" if name else "2 skipped") in ended.stdout
    assert not name or "needs postgres, and may not be skipped here: Skipped: nobody there" in ended.stdout
