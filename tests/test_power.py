"""What was acknowledged is on the disk, and settings of servers that would break that are named.

What a power cut really leaves is shown by the drills (test_drills_power.py); here it is seen which files were synced,
and when.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis import Redis
from sqlalchemy import create_engine, make_url, text

from crawler import options
from crawler.archive import writer as archive
from crawler.archive.reader import Library
from crawler.local.local import joined
from crawler.local.server import FILES, Server
from crawler.store import durability
from crawler.store.database import open_database, transaction
from tests.archiving import check_files, check_rows, exchange, noise, writer
from tests.conftest import MakeDatabase
from tests.contracts.test_page_pipelines import project_settings
from tests.crawling import ROOT, Place
from tests.farm import Farm
from tests.faults import SlowDisk, suffers
from tests.own_databases import mariadb, open_folder, postgres
from tests.servers import RunningServer
from tests.test_doctor import bad

needs_postgres = pytest.mark.needs("postgres")
needs_mariadb = pytest.mark.needs("mariadb")


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[Path, int]]:
    """How long each file was when it was synced last, in the order of that; folders are there too."""
    synced: dict[Path, int] = {}
    for name in ("fsync", "fdatasync"):
        whole = getattr(os, name)

        def sync(descriptor: int, whole: Callable[[int], None] = whole) -> None:
            path, size = Path(f"/proc/self/fd/{descriptor}").readlink(), os.fstat(descriptor).st_size
            whole(descriptor)
            synced.pop(path, None)
            synced[path] = size

        monkeypatch.setattr(os, name, sync)
    yield synced


# --- the archive ------------------------------------------------------------------------------------------


def test_a_page_is_published_when_its_capture_is_on_the_disk(place: Place) -> None:
    """And while the disk is slow, the event loop is not."""
    with Farm(sites=6, pages=12, kinds=("duplicate",), names=()) as farm:
        run = place.crawl(
            farm.seeds, EXTENSIONS=suffers(SlowDisk), ARCHIVE_FILE_BYTES=20_000, env={"PYTHONPATH": str(ROOT)}
        )
        run.succeeded()
        assert "published:" in run.err
        assert "published before it was on the disk" not in run.err
        assert "the event loop waits for the disk" not in run.err
        assert place.stored() == farm.expected()
    check_files(place.var / "archive")
    assert check_rows(place) == sum(map(len, place.stored().values()))


def test_a_file_is_synced_with_its_name_and_those_of_its_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "var" / "archive"
    made = writer(folder)
    with watched(monkeypatch) as synced:
        place = made.add(exchange("/1", noise(1)), "text/html", 200, None)
        made.flush()
        assert synced == {}
        made.sync()
    [path] = archive.being_written(folder)
    assert synced[path] == path.stat().st_size >= place.offset + place.length
    assert {folder, folder.parent, tmp_path} <= synced.keys()
    made.close()


def test_folders_of_a_first_try_that_failed_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "var" / "archive"
    made = writer(folder)
    made.add(exchange("/1", noise(1)), "text/html", 200, None)

    def refuse(*_given: object) -> None:
        raise BlockingIOError("another process has the lock")

    with monkeypatch.context() as broken, pytest.raises(BlockingIOError):
        broken.setattr(archive.fcntl, "flock", refuse)
        made.flush()
    with watched(monkeypatch) as synced:
        made.flush()
        made.sync()
    assert {folder, folder.parent, tmp_path} <= synced.keys()
    made.close()


def test_a_file_is_finished_in_an_order_that_a_power_cut_cannot_break(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = writer(tmp_path)
    made.add(exchange("/1", noise(1)), "text/html", 200, None)
    with watched(monkeypatch) as synced:
        made.close()
    # The folder last: the names of both.
    assert [path.name for path in synced] == [
        "agent-run-00001.warc.gz.open",
        "agent-run-00001.cdxj.new",
        tmp_path.name,
    ]
    check_files(tmp_path)


def test_what_the_disk_did_not_take_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the kernel does it: what it could not write is dropped, and the next fsync says that all is well."""
    made = writer(tmp_path)
    places = [made.add(exchange("/0", noise(0)), "text/html", 200, None)]
    made.flush()
    made.sync()
    kept = archive.being_written(tmp_path)[0].stat().st_size
    places.append(made.add(exchange("/1", noise(1)), "text/html", 200, None))
    made.flush()

    def fail(descriptor: int) -> None:
        size = os.fstat(descriptor).st_size
        os.ftruncate(descriptor, kept)
        os.ftruncate(descriptor, size)
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken, pytest.raises(OSError, match="Input/output"):
        broken.setattr(os, "fdatasync", fail)
        made.sync()
    places.append(made.add(exchange("/2", noise(2)), "text/html", 200, None))
    made.flush()
    made.sync()
    assert made.waiting == 0
    made.close()
    check_files(tmp_path)
    with Library(tmp_path) as library:
        bodies = [library.read(place.file, place.offset).body for place in places]
    assert bodies == [noise(number) for number in range(3)]


# --- the bundled server -----------------------------------------------------------------------------------


def test_what_a_command_changed_is_on_the_disk_when_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while others use the server, so that it goes on and syncs its file when its second is over."""
    settings = project_settings()
    settings.set("REDIS_URL", "", priority="cmdline")
    settings.set("VAR_DIR", str(tmp_path / "var"), priority="cmdline")
    with Server(tmp_path / "var").join() as crawl, Redis.from_url(crawl.url) as client:
        with watched(monkeypatch) as synced, joined(settings, options.read(settings), changes=True):
            client.set("seed", "x" * 1_000)
        [written] = (tmp_path / "var" / "valkey" / FILES).glob("*.incr.aof")
        assert synced[written] >= 1_000
        assert written.stat().st_size == synced[written]


def test_a_new_server_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    var = tmp_path / "one" / "var"
    with watched(monkeypatch) as synced, Server(var).join():
        assert {tmp_path, var.parent, var, var / "valkey", var / "valkey" / FILES} <= synced.keys()


def test_zeros_that_a_power_cut_left_are_cut_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file system may know a file's new length before it has the bytes; Valkey does not start over such a file."""
    server = Server(tmp_path)
    with server.join() as membership, Redis.from_url(membership.url) as client:
        client.set("kept", "1")
    [file] = (tmp_path / "valkey" / FILES).glob("*.incr.aof")
    size = file.stat().st_size
    with file.open("ab") as tail:
        tail.write(b"*3\r\n$3\r\nSET\r\n$4\r\nlo" + bytes(200_000))
    with server.join() as membership, Redis.from_url(membership.url) as client:
        assert client.keys() == [b"kept"]
    assert "removed 200000 zeros at its end" in caplog.text
    assert file.stat().st_size >= size


# --- settings of servers ----------------------------------------------------------------------------------


def warned(place: Place, **given: object) -> list[str]:
    """What a coordinator warns of at its start."""
    run = place.start("coordinate", **given)
    run.says("writes to")
    run.end().succeeded()
    return [line for line in run.err.splitlines() if "a power failure can lose acknowledged data" in line]


def test_a_redis_that_forgets_is_named(place: Place, valkey: RunningServer) -> None:
    place.var.mkdir()
    tables = {"REDIS_URL": valkey.url, "DATABASE_URL": f"sqlite:///{place.var}/crawl.db"}
    assert warned(place, **tables) == []
    valkey.client.config_set("appendfsync", "no")
    [line] = warned(place, **tables)
    assert "appendfsync is no; expected everysec" in line
    found = bad(place, REDIS_URL=valkey.url)
    assert set(found) == {"appendfsync"}
    assert "expected everysec" in found["appendfsync"]["advice"]
    valkey.client.config_set("appendonly", "no")
    [line] = warned(place, **tables)
    assert "appendonly is no; expected yes" in line


def test_a_user_who_may_not_ask_is_not_told(valkey: RunningServer) -> None:
    """Nor does the server's log of refused commands get a line at each start."""
    valkey.client.config_set("appendfsync", "no")
    valkey.client.execute_command("ACL", "SETUSER", "crawler", "on", ">x", "~*", "+info", "+ping")
    with Redis(unix_socket_path=valkey.url.removeprefix("unix://"), username="crawler", password="x") as user:
        assert durability.of_redis(user) == []
    assert "config" not in {one["object"].partition("|")[0] for one in valkey.client.acl_log()}


@needs_postgres
def test_postgres_commits_to_the_disk_though_its_default_is_not_to(make_database: MakeDatabase) -> None:
    url = make_database("postgres")
    plain = create_engine(url, isolation_level="AUTOCOMMIT")
    with plain.connect() as connection:
        name = make_url(url).database
        connection.execute(text(f"ALTER DATABASE {name} SET synchronous_commit = off"))
    plain.dispose()
    [risk] = durability.of_database(plain)
    assert str(risk).startswith("synchronous_commit is off; expected on: ")
    plain.dispose()
    ours = open_database(url)
    for _ in range(2):  # a rollback at the end of the first does not take it back
        with transaction(ours) as connection:
            assert connection.execute(text("SHOW synchronous_commit")).scalar() == "on"
    assert durability.of_database(ours) == []
    ours.dispose()


@needs_postgres
def test_a_postgres_that_does_not_sync_is_named(place: Place, valkey: RunningServer) -> None:
    with open_folder() as folder, postgres(folder, fsync="off", full_page_writes="off") as server:
        check_named(place, valkey, server.url, {"fsync": "off", "full_page_writes": "off"})


@needs_mariadb
def test_a_mariadb_that_does_not_sync_is_named(place: Place, valkey: RunningServer) -> None:
    options = {"innodb_flush_log_at_trx_commit": "2", "innodb_doublewrite": "0"}
    with mariadb(place.folder, **options) as url:
        check_named(place, valkey, url, {"innodb_flush_log_at_trx_commit": "2", "innodb_doublewrite": "OFF"})


def check_named(place: Place, valkey: RunningServer, url: str, unsafe: dict[str, str]) -> None:
    lines = warned(place, REDIS_URL=valkey.url, DATABASE_URL=url)
    assert len(lines) == len(unsafe)
    for name, value in unsafe.items():
        assert any(f"{name} is {value}; expected " in line for line in lines), lines
    found = bad(place, REDIS_URL=valkey.url, DATABASE_URL=url)
    assert {name: one["found"] for name, one in found.items()} == unsafe
