"""Commands without an interpreter's start: a warm process forks one for each.

A start of `scrapy` takes half a second of processor time, nearly all of it for imports; a fork takes some milliseconds,
and the tests start some two thousand commands. What is forked is a process of its own in all that others can see of it:
id, signals, exit code, working folder, output, and the command line and environment that /proc shows. It has imported
what commands import, and nothing that depends on the environment: no settings, no reactor.

Only tests fork (conftest says so): what is measured by a benchmark starts as usual. So does a command whose memory is
looked at, as a fork shares that of the warm process; one whose environment changes how Python itself starts; and any on
other systems than Linux.
`python -m tests.warm FD` is the warm process, one for each process that asks; it ends when that does.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Protocol

ROOT = Path(__file__).resolve().parent.parent
# What commands import of ours; the rest is for single ones, and large.
PACKAGES = ("agent", "pipelines", "spiders", "commands", "sites", "store", "views", "reports")
# Room for the command line and the environment that others see of a forked process.
ROOM = 60_000
# Beginning of the names in an environment that Python reads when it starts.
OF_PYTHON = "PYTHON"
LENGTH_BYTES = 8


class Process(Protocol):
    """What is used here of subprocess.Popen."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...
    def kill(self) -> None: ...


class _Use:
    """Whether commands are forked in this process."""

    on = False


def use() -> None:
    """Fork commands from now on."""
    _Use.on = sys.platform == "linux"


def start(
    command: list[str], env: Mapping[str, str], cwd: Path, out: Path, err: Path, *, fresh: bool
) -> Process:
    """A process of this command, which writes to these files; forked unless it must be `fresh`."""
    if _Use.on and not fresh and _may_be_forked(command, env):
        return Forked(command, env, cwd, out, err)
    with out.open("wb") as to_out, err.open("wb") as to_err:
        return subprocess.Popen(
            command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=to_out, stderr=to_err
        )


def _may_be_forked(command: list[str], env: Mapping[str, str]) -> bool:
    if Path(command[0]).name != "scrapy":
        return False
    own, wanted = (
        {name: value for name, value in names.items() if name.startswith(OF_PYTHON)}
        for names in (os.environ, env)
    )
    return own == wanted and max(len(_joined(command)), len(_joined(_assigned(env)))) <= ROOM


def _joined(words: list[str]) -> bytes:
    return b"".join(os.fsencode(word) + b"\0" for word in words)


def _assigned(env: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in env.items()]


# --- The caller's side ------------------------------------------------------------------------------------


class Forked:
    """A command's process, as subprocess.Popen would have it."""

    def __init__(self, command: list[str], env: Mapping[str, str], cwd: Path, out: Path, err: Path) -> None:
        self.returncode: int | None = None
        for file in (out, err):
            file.write_bytes(b"")
        reading, writing = os.pipe()
        self._told = os.fdopen(reading, "rb", buffering=0)
        wanted = {"command": command, "env": dict(env), "cwd": str(cwd), "out": str(out), "err": str(err)}
        try:
            _warm_process().ask(wanted, writing)
        finally:
            os.close(writing)
        self.pid = self._next_number()

    def poll(self) -> int | None:
        """The exit code, minus the signal's number where that ended it; None: it runs."""
        if self.returncode is None and select.select([self._told], [], [], 0)[0]:
            self._end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The same, once it has ended; subprocess.TimeoutExpired where that takes longer."""
        if self.returncode is None:
            if not select.select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            self._end()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, sig: int) -> None:
        """Nothing where it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def kill(self) -> None:
        """As a power switch would."""
        self.send_signal(signal.SIGKILL)

    def _end(self) -> None:
        self.returncode = self._next_number()
        self._told.close()

    def _next_number(self) -> int:
        told = self._told.read(LENGTH_BYTES)
        assert told, "the warm process has ended"
        return int.from_bytes(told, "big", signed=True)


class _WarmProcess:
    """The caller's end of it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, there = socket.socketpair()
        with there:
            self._process = subprocess.Popen(
                # A long argument and a long value: room for those of the processes that are forked.
                [sys.executable, "-m", "tests.warm", str(there.fileno()), "x" * ROOM],
                # NumPy's library would start threads, which do not survive a fork.
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "WARM_ROOM": "x" * ROOM},
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                pass_fds=[there.fileno()],
            )

    def ask(self, wanted: dict[str, Any], answers: int) -> None:
        """Fork a process; its id and its exit code are written to this file."""
        message = json.dumps(wanted).encode()
        with self._lock:
            socket.send_fds(self._socket, [len(message).to_bytes(LENGTH_BYTES, "big")], [answers])
            self._socket.sendall(message)

    def end(self) -> None:
        """What it has forked goes on."""
        self._socket.close()
        self._process.wait()


@cache
def _warm_process() -> _WarmProcess:
    made = _WarmProcess()
    atexit.register(made.end)
    return made


# --- The warm process -------------------------------------------------------------------------------------


class _Wanted(NamedTuple):
    """What a forked process is to be."""

    command: list[str]
    env: dict[str, str]
    cwd: str
    out: str
    err: str


def _import_all() -> None:
    importlib.import_module("scrapy.cmdline")
    for name in PACKAGES:
        package = importlib.import_module(f"crawler.{name}")
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if ".migrations" not in found.name:
                importlib.import_module(found.name)


def _serve(caller: socket.socket) -> _Wanted | None:
    """Fork until the caller has ended (None); comes back in each forked process too, with what that is to be."""
    answers: dict[int, int] = {}  # of each process that runs, the file for its exit code
    woken, waking = os.pipe()
    os.set_blocking(waking, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waking)
    while True:
        ready, _, _ = select.select([caller, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _tell_codes(answers)
        if caller not in ready:
            continue
        head, files, _, _ = socket.recv_fds(caller, LENGTH_BYTES, 1)
        if not head:
            return None
        wanted = _Wanted(**json.loads(_read(caller, int.from_bytes(head, "big"))))
        pid = os.fork()
        if not pid:
            for file in (woken, waking, caller.detach(), *files, *answers.values()):
                os.close(file)
            return wanted
        answers[pid] = files[0]
        _tell(files[0], pid)


def _read(caller: socket.socket, size: int) -> bytes:
    with caller.makefile("rb", buffering=0) as file:
        parts, missing = [], size
        while missing:
            parts.append(file.read(missing))
            missing -= len(parts[-1])
        return b"".join(parts)


def _tell(answers: int, number: int) -> None:
    with suppress(BrokenPipeError):  # nobody wants to know any more
        os.write(answers, number.to_bytes(LENGTH_BYTES, "big", signed=True))


def _tell_codes(answers: dict[int, int]) -> None:
    """What has ended, to whom it belongs."""
    while answers:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        file = answers.pop(pid)
        _tell(file, os.waitstatus_to_exitcode(status))
        os.close(file)


# --- The forked process -----------------------------------------------------------------------------------


def _become(wanted: _Wanted) -> None:
    """As if it had been started like this."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.chdir(wanted.cwd)
    for file, number in ((wanted.out, 1), (wanted.err, 2)):
        opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(wanted.env)
    _show(wanted)
    time.tzset()
    random.seed()
    sys.argv = wanted.command[:]
    sys.path[0] = str(Path(wanted.command[0]).parent)


def _show(wanted: _Wanted) -> None:
    """The command line and the environment in /proc are the process's own memory."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    # arg_start, arg_end, env_start, env_end: fields 48 to 51 of all, of which two stand before.
    arguments, arguments_end, environment, environment_end = map(int, fields[45:49])
    for start, end, words in (
        (arguments, arguments_end, wanted.command),
        (environment, environment_end, _assigned(wanted.env)),
    ):
        shown = _joined(words)
        ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)


class _End:
    """The end of a forked process, once all is done that is to be done at an exit: without taking Python to pieces.

    Which takes two times as long as most commands.
    """

    def __init__(self) -> None:
        self._code: int | None = None
        # Before all imports, as what is registered first is called last.
        atexit.register(self._leave)

    def run(self, command: Callable[[], object]) -> NoReturn:
        """Run the command; any other end than an exit is left to Python."""
        try:
            command()
        except SystemExit as end:
            self._code = end.code if isinstance(end.code, int) else 0 if end.code is None else None
            raise
        sys.exit(0)

    def _leave(self) -> None:
        if self._code is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self._code)


def main() -> None:
    """Fork until the caller ends; a forked process runs its command."""
    end = _End()
    _import_all()
    # All of it lives as long as the process, and is shared with what is forked.
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as caller:
        wanted = _serve(caller)
    if wanted is not None:
        from scrapy.cmdline import execute

        _become(wanted)
        end.run(execute)


if __name__ == "__main__":
    main()
