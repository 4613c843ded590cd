"""Real servers for tests: a Valkey that can be killed and started again, and a TCP line that can be cut.

Everything lives on loopback or a Unix socket in a temporary folder, and is gone after `stop`.
"""

from __future__ import annotations

import fcntl
import functools
import os
import random
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from crawler.local.server import server_binary

# For whatever is waited for: generous, since a busy machine must not fail a test.
PATIENCE_SECONDS = 60.0


def eventually(condition: Callable[[], object], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    """Waits until the condition holds; fails with `what` after the deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.01)


class RunningServer:
    """One server with an append-only file in a folder of its own; `more` are options of its configuration.

    `login` is the user and password of `client`, where the server lets nobody in without. `program` is the server's
    binary, the bundled Valkey where none is given.
    """

    def __init__(
        self,
        folder: Path,
        login: tuple[str, str] | None = None,
        program: Path | None = None,
        **more: str,
    ) -> None:
        # Not in `folder`: the path of a socket ends at 107 bytes.
        self._short = Path(tempfile.mkdtemp(prefix="lt-"))
        self._socket = self._short / "s"
        self._folder = folder
        self._program = program or server_binary()
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"unix://{self._socket}"
        self._more = more
        user, password = login or (None, None)
        self.client = redis.Redis(
            unix_socket_path=str(self._socket), username=user, password=password, retry=Retry(NoBackoff(), 0)
        )
        self.start()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Starts the server over the data that is there, and waits until it answers."""
        options = {
            "port": "0",
            "unixsocket": str(self._socket),
            "dir": str(self._folder),
            "save": "",
            "appendonly": "yes",
            **self._more,
        }
        command = [
            str(self._program),
            *(word for name, value in options.items() for word in (f"--{name}", value)),
        ]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        eventually(self._answers, "the server answers")

    def kill(self) -> None:
        """Ends the server as a power switch would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(timeout=60)

    def keep(self) -> Path:
        """A copy of its data as they are on the disk, for `go_back`."""
        kept = Path(tempfile.mkdtemp(dir=self._short))
        shutil.copytree(self._folder, kept, dirs_exist_ok=True)
        return kept

    def go_back(self, kept: Path) -> None:
        """Ends the server and starts it over older data: a power cut, or a failover to a replica that lags."""
        self.kill()
        shutil.rmtree(self._folder)
        shutil.copytree(kept, self._folder)
        self.start()

    def stop(self) -> None:
        """Ends the server and removes its socket; its data stay where they are."""
        self.kill()
        self.client.close()
        shutil.rmtree(self._short, ignore_errors=True)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"{self._program} ended with code {self._process.returncode}"
        with suppress(redis.RedisError):
            return bool(self.client.ping())
        return False


def machine_redis() -> Path:
    """The `redis-server` of this machine; skips the test where there is none."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("no redis-server on this machine")
    return Path(program)


def start_valkey(folder: Path) -> RunningServer:
    """A server that keeps its data in `folder`; the caller stops it."""
    return RunningServer(folder)


class Line:
    """A TCP line to a server that can be cut (established connections break, new ones are refused) and mended."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self.port = free_port()
        self.mend()

    def mend(self) -> None:
        """Lets connections through, on the same port as ever."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def cut(self) -> None:
        """Breaks what is connected and refuses what comes."""
        assert self._listener is not None
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            ends, self._open = self._open, set()
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            with self._lock:
                self._open |= {near, far}
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
        source.close()
        with self._lock:
            self._open.discard(source)


# Below what the system gives out by itself (from 32768 on Linux, 49152 on macOS), so that nobody gets one by chance.
PORTS = range(20_000, 32_000)
_taken: set[int] = set()


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on, and that is given to nobody else while this process runs."""
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        if port in _taken:
            continue
        try:
            fcntl.lockf(_port_locks(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        _taken.add(port)
        return port
    raise AssertionError("no port is free")


@functools.cache
def _port_locks() -> int:
    """A file with a byte for each port, locked by the process that was given the port; open until this one ends."""
    path = Path(tempfile.gettempdir(), f"lowtide-test-ports-{os.getuid()}")
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
