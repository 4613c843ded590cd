"""Database servers of a test's own, for what may not be done to the machine's: other settings, a power cut.

Everything listens on loopback and is gone after the block; a machine that cannot start one skips the test.
"""

from __future__ import annotations

import getpass
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.servers import eventually, free_port


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter, gone after the block."""
    folder = Path(tempfile.mkdtemp(prefix="lt-open-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


class Postgres:
    """A PostgreSQL with the settings of its makers but for `options`, its data below a folder that all may enter."""

    def __init__(self, folder: Path, **options: str) -> None:
        self._options = options
        self._data = folder / "postgres"
        self._port = free_port()
        self._bin = _postgres_programs()
        self._process: subprocess.Popen[bytes] | None = None
        owner = pwd.getpwnam("postgres")
        self._data.mkdir(mode=0o700)
        os.chown(self._data, owner.pw_uid, owner.pw_gid)
        self._begin("initdb", "-D", str(self._data), "-U", "postgres", "--auth=trust").wait()
        self.url = f"postgresql+psycopg://postgres@127.0.0.1:{self._port}/postgres"

    def start(self) -> None:
        """Start it over the data that is there, and wait until it answers."""
        # What the machine ran when its power went names a process that may be another's by now.
        (self._data / "postmaster.pid").unlink(missing_ok=True)
        given = {"listen_addresses": "127.0.0.1", "port": str(self._port), "unix_socket_directories": ""}
        given |= self._options
        options = [word for name, value in given.items() for word in ("-c", f"{name}={value}")]
        self._process = self._begin("postgres", "-D", str(self._data), *options)
        asked = [str(self._bin / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self._port)]
        eventually(lambda: subprocess.run(asked, check=False).returncode == 0, "PostgreSQL answers")

    def processes(self) -> list[int]:
        """Its process and those that it started."""
        if self._process is None or self._process.poll() is not None:
            return []
        return [self._process.pid, *_children(self._process.pid)]

    def stop(self) -> None:
        """End it in order."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(30)

    def _begin(self, program: str, *words: str) -> subprocess.Popen[bytes]:
        command = [str(self._bin / program), *words]
        given = {"user": "postgres", "group": "postgres", "extra_groups": [], "cwd": "/"}
        silent = subprocess.DEVNULL
        return subprocess.Popen(command, stdin=silent, stdout=silent, stderr=silent, **given)  # type: ignore[call-overload, no-any-return]


@contextmanager
def postgres(folder: Path, **options: str) -> Iterator[Postgres]:
    """A PostgreSQL of the test's own, running; skips the test where it cannot be had."""
    if os.geteuid() != 0:
        pytest.skip("no PostgreSQL of its own: only root may start it as its user")
    server = Postgres(folder, **options)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def mariadb(folder: Path, **options: str) -> Iterator[str]:
    """The URL of a MariaDB of the test's own with these options; skips the test where its programs are not there."""
    install, server = shutil.which("mariadb-install-db"), shutil.which("mariadbd")
    if not install or not server:
        pytest.skip("no mariadbd on PATH")
    data, port = folder / "mariadb", free_port()
    user = f"--user={getpass.getuser()}"
    made = [install, "--no-defaults", f"--datadir={data}", user, "--auth-root-authentication-method=normal"]
    subprocess.run(made, check=True, capture_output=True)
    given = {"port": port, "socket": data / "s", "bind-address": "127.0.0.1", **options}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    process = subprocess.Popen(
        [server, "--no-defaults", f"--datadir={data}", user, *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        eventually(lambda: _listens(port), "MariaDB answers")
        yield f"mariadb+pymysql://root@127.0.0.1:{port}/test"
    finally:
        process.terminate()
        process.wait(30)


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _postgres_programs() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        pytest.skip("no initdb below /usr/lib/postgresql")
    return found[-1].parent


def _children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and (entry / "stat").read_text().rpartition(")")[2].split()[1] == str(
                pid
            ):
                found.append(int(entry.name))
    return found
