"""What drills take away from a crawl and give back: its database, its server, the room on its disks.

Whatever is done here is done to something of the test's own. PostgreSQL and MariaDB are reached over a line that is
cut, SQLite is locked by the test's own process, a full disk is a small file system that is gone after the block.
"""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

import pytest
from sqlalchemy import make_url

from tests.drills import go_on, stop_process
from tests.servers import Line, RunningServer

MIB = 1024 * 1024


# --- the database -----------------------------------------------------------------------------------------


class Tables(Protocol):
    """A database that can be away."""

    url: str  # for the test, always
    through: str  # for coordinators

    def take_away(self) -> None:
        """From now on coordinators cannot write."""

    def give_back(self) -> None:
        """From now on they can; nothing where they could all the time."""


class FarTables:
    """Over a line that breaks what is connected and refuses what comes."""

    def __init__(self, url: str) -> None:
        real = make_url(url)
        self._line = Line(real.host or "", real.port or 0)
        self._away = False
        self.url = url
        self.through = real.set(port=self._line.port).render_as_string(hide_password=False)

    def take_away(self) -> None:
        self._away = True
        self._line.cut()

    def give_back(self) -> None:
        if self._away:
            self._away = False
            self._line.mend()


class LockedTables:
    """SQLite, where another process has a transaction that nobody may write beside."""

    def __init__(self, url: str) -> None:
        self.url = self.through = url
        self._holder: sqlite3.Connection | None = None

    def take_away(self) -> None:
        self._holder = sqlite3.connect(make_url(self.url).database or "", isolation_level=None, timeout=10)
        self._holder.execute("begin exclusive")

    def give_back(self) -> None:
        if self._holder is not None:
            self._holder.execute("rollback")
            self._holder.close()
            self._holder = None


@contextmanager
def tables_that_go(url: str) -> Iterator[Tables]:
    """The database of this URL; given back at the end of the block."""
    tables: Tables = LockedTables(url) if url.startswith("sqlite") else FarTables(url)
    try:
        yield tables
    finally:
        tables.give_back()
        if isinstance(tables, FarTables):
            tables.take_away()


# --- the server -------------------------------------------------------------------------------------------


class SyncedServer(RunningServer):
    """A server with an `appendfsync` of the test's choice, whose data can be lost."""

    def __init__(self, folder: Path, fsync: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._data = folder
        self._fsync = fsync
        super().__init__(folder)

    def start(self) -> None:
        """As every server's start."""
        super().start()
        self.client.config_set("appendfsync", self._fsync)

    def lose(self) -> None:
        """End it as a power switch would, and its disk with it."""
        self.kill()
        shutil.rmtree(self._data / "appendonlydir")


@contextmanager
def synced_server(folder: Path, fsync: str = "everysec") -> Iterator[SyncedServer]:
    """A server that is gone after the block."""
    server = SyncedServer(folder, fsync)
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def frozen(server: RunningServer) -> Iterator[None]:
    """The server does not answer for the length of the block, and does not know it."""
    stop_process(server.pid)
    try:
        yield
    finally:
        go_on(server.pid)


def pass_time(seconds: float) -> None:
    """The outage itself: there is nothing to wait for but the time."""
    time.sleep(seconds)


# --- the disk ---------------------------------------------------------------------------------------------


class SmallDisk:
    """A file system that can be filled to its last byte."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filling = folder / "filling"

    def fill(self) -> None:
        """From now on nobody can write a byte more."""
        with suppress(OSError), self._filling.open("wb", buffering=0) as file:
            while file.write(bytes(MIB)):
                pass

    def free(self) -> None:
        """Give all the room back."""
        self._filling.unlink(missing_ok=True)


@contextmanager
def small_disk(folder: Path, megabytes: int = 64) -> Iterator[SmallDisk]:
    """A disk at this folder, in memory; skips the test where we may not mount one."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"no disk to fill: {error}")
    if mounted.returncode:
        pytest.skip(f"no disk to fill: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(folder)
    finally:
        # Not held up by a process that a failed test has left.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
