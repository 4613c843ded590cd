"""Commands without an interpreter's start: a warm process forks one for each.

A start of `scrapy` takes half a second of processor time, nearly all of it for imports; a fork takes some milliseconds.
Most crawls start a coordinator in turn, and some a planner. What is forked is in all that others can see of it the
process that would have been started: child of the one that asked for it, id, signals, exit code, working folder, files,
and the command line and environment that /proc shows. It has imported what commands import, and nothing that depends on
the environment: no settings, no reactor.

Each process that may fork has a warm child, from which its own children are split off as its brothers. That child is
made before the process becomes a command, so it stays as it was; it ends when the process does.

Only tests fork (conftest says so), and only where they say `popen`: what is measured by a benchmark starts as usual. So
does a command whose memory or start is looked at, one whose environment changes how Python itself starts or where our
packages come from, and any on other systems than Linux.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import platform
import random
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

ROOT = Path(__file__).resolve().parent.parent
# What commands import of ours, but for what few of them need that is large: the compiler, a web server.
PACKAGES = (
    *("agent", "archive", "content", "fetch", "pipelines", "queue", "robots", "spiders", "status", "urls"),
    *("admin", "coordinator", "local", "planning", "reconcile", "store", "views", "reports", "commands"),
)
LARGE = ("crawler.views.dashboard",)
# Modules that Python imports whenever it starts.
AT_START = ("sitecustomize", "usercustomize")
# Room for the command line and the environment that others see of a forked process.
ROOM = 60_000
# Commands of ours that start processes of ours.
STARTING = ("crawl", "runspider", "coordinate")
# The system call that makes a process, by machine.
CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine()) if sys.platform == "linux" else None
CLONE_PARENT = 0x8000
LENGTH_BYTES = 8
# Signals that a terminal or a test sends to a whole group of processes; the warm one of them works on.
TO_GROUPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class _Wanted(NamedTuple):
    """What a forked process is to be."""

    command: list[str]
    env: dict[str, str]
    cwd: str
    new_session: bool
    group: int  # -1: that of the process that asks
    first: _Call | None  # what it does first


class _Call(NamedTuple):
    """A function of a module, and what it is called with."""

    module: str
    name: str
    arguments: list[Any]


class _State:
    """Of this process."""

    warm: _Warm | None = None
    is_command = False  # it was forked itself; it forks what it starts of ours
    fork_exec: Callable[..., int] | None = None  # what subprocess calls without us
    asked = threading.local()


def use() -> None:
    """From now on what `popen` starts is forked where it may be."""
    if CLONE is None or _State.fork_exec is not None:
        return
    _State.fork_exec = subprocess._fork_exec  # type: ignore[attr-defined]
    subprocess._fork_exec = _fork_exec  # type: ignore[attr-defined]
    subprocess._USE_POSIX_SPAWN = False  # type: ignore[attr-defined]


def popen(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """A subprocess.Popen, of a forked process where that makes no difference."""
    with _asked():
        return subprocess.Popen(command, **options)


def run(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[Any]:
    """The same for subprocess.run."""
    with _asked():
        return subprocess.run(command, **options)


def is_forked(pid: int) -> bool:
    """Whether this living process was: then there is room for other words where those of its command stand."""
    beginning, end = _places(pid)[:2]
    return end - beginning > ROOM


@contextmanager
def _asked() -> Iterator[None]:
    _State.asked.yes = True
    try:
        yield
    finally:
        _State.asked.yes = False


# What a shell calls in place of `scrapy`: it hands on its files and waits for the end of the process that is forked.
SHIM = """#!{python} -IS
import json, os, signal, socket, sys
line = socket.socket(socket.AF_UNIX)
line.connect({address!r})
message = json.dumps(([{scrapy!r}, *sys.argv[1:]], os.getcwd(), dict(os.environ))).encode()
socket.send_fds(line, [len(message).to_bytes({length}, "big")], [0, 1, 2])
line.sendall(message)
number = lambda: int.from_bytes(line.recv({length}, socket.MSG_WAITALL), "big", signed=True)
pid = number()
for one in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
    signal.signal(one, lambda received, _: os.kill(pid, received))
code = number()
if code < 0:
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


@contextmanager
def shim() -> Iterator[Path]:
    """A folder for PATH with a `scrapy` that is forked too, for shells and their scripts."""
    with tempfile.TemporaryDirectory(prefix="lt-shim-") as name, socket.socket(socket.AF_UNIX) as door:
        folder = Path(name)
        address = str(folder / "door")
        door.bind(address)
        door.listen()
        scrapy = Path(sys.executable).with_name("scrapy")
        text = SHIM.format(python=sys.executable, address=address, scrapy=str(scrapy), length=LENGTH_BYTES)
        (folder / "scrapy").write_text(text)
        (folder / "scrapy").chmod(0o755)
        threading.Thread(target=_open_door, args=(door,), daemon=True).start()
        yield folder
        with suppress(OSError):  # macOS: it is not connected
            door.shutdown(socket.SHUT_RDWR)


def _open_door(door: socket.socket) -> None:
    while True:
        try:
            caller, _ = door.accept()
        except OSError:  # closed
            return
        threading.Thread(target=_answer, args=(caller,), daemon=True).start()


def _answer(caller: socket.socket) -> None:
    """Start what the shim was called for, and tell its id and its exit code."""
    with caller:
        head, files, _, _ = socket.recv_fds(caller, LENGTH_BYTES, 3)
        command, cwd, env = json.loads(_received(caller, int.from_bytes(head, "big")))
        process = popen(command, env=env, cwd=cwd, stdin=files[0], stdout=files[1], stderr=files[2])
        for file in files:
            os.close(file)
        for number in (lambda: process.pid, process.wait):
            with suppress(BrokenPipeError):  # the shim was killed
                caller.sendall(number().to_bytes(LENGTH_BYTES, "big", signed=True))


# --- The side of the process that asks --------------------------------------------------------------------


class _Given(NamedTuple):
    """What subprocess gives its `_fork_exec`, in this order; some versions of Python give more behind it."""

    args: list[bytes]
    programs: list[bytes]
    close_fds: bool
    kept_fds: tuple[int, ...]
    cwd: bytes | None
    env: list[bytes] | None
    stdin: int
    stdin_end: int
    stdout_end: int
    stdout: int
    stderr_end: int
    stderr: int
    errors_end: int
    errors: int
    restore_signals: bool
    new_session: bool
    group: int
    gid: object
    groups: object
    uid: object
    umask: int
    first: Callable[[], object] | None


def _fork_exec(*arguments: Any) -> int:
    """In place of the function of this name that subprocess calls."""
    given = _Given(*arguments[: len(_Given._fields)])
    wanted = _wanted(given)
    if wanted is None:
        assert _State.fork_exec is not None
        return _State.fork_exec(*arguments)
    files = [
        file if file != -1 else number
        for number, file in enumerate((given.stdin, given.stdout, given.stderr))
    ]
    if _State.warm is None:
        _State.warm = _begin()
    return _State.warm.fork(wanted, files)


def _wanted(given: _Given) -> _Wanted | None:
    """What is to be forked; None: it has to be started."""
    command = [os.fsdecode(word) for word in given.args]
    asked = getattr(_State.asked, "yes", False) or (_State.is_command and _is_ours(command))
    first = _call_of(given.first)
    # Other files and other users: nobody here asks for these.
    plain = given.close_fds and set(given.kept_fds) == {given.errors}
    plain = plain and (given.gid, given.groups, given.uid, given.umask) == (None, None, None, -1)
    if not asked or not plain or (given.first and not first):
        return None
    env = dict(os.environ) if given.env is None else _variables(given.env)
    folder = os.fsdecode(given.cwd or Path.cwd())
    wanted = _Wanted(command, env, folder, given.new_session, given.group, first)
    return wanted if _may_be_forked(wanted) else None


def _call_of(first: Callable[[], object] | None) -> _Call | None:
    """A function of a module with its arguments; None: it is of no module, or there is none."""
    if not isinstance(first, partial) or first.keywords:
        return None
    return _Call(first.func.__module__, first.func.__name__, list(first.args))


def _variables(env: list[bytes]) -> dict[str, str]:
    pairs = (os.fsdecode(word).partition("=") for word in env)
    return {name: value for name, _, value in pairs}


def _may_be_forked(wanted: _Wanted) -> bool:
    """Whether the process would be what the warm one has imported, and has room for how it looks."""
    own, its = (
        {name: value for name, value in names.items() if name.startswith("PYTHON") and name != "PYTHONPATH"}
        for names in (os.environ, wanted.env)
    )
    sizes = len(_joined(wanted.command)), len(_joined(_assigned(wanted.env)))
    return (
        own == its
        and max(sizes) <= ROOM
        and _program_of(wanted.command) is not None
        and not _would_differ(_path_of(wanted))
        and Path(wanted.cwd).is_dir()
    )


def _program_of(command: list[str]) -> tuple[str, str, list[str]] | None:
    """`scrapy`, or a module or script that Python is to run, and its arguments; None: it is none of these."""
    name = Path(command[0]).name
    if name == "scrapy":
        return "scrapy", "", command[1:]
    if command[0] != sys.executable or len(command) < 2:
        return None
    if command[1] in ("-m", "-c"):
        return command[1], command[2], command[3:]
    return None if command[1].startswith("-") else ("script", command[1], command[2:])


def _is_command(command: list[str]) -> bool:
    return Path(command[0]).name == "scrapy" or _is_ours(command)


def _starts_others(command: list[str]) -> bool:
    """Whether it has use for a warm child; a fork costs as much as many a command."""
    program = _program_of(command)
    assert program is not None
    kind, what, arguments = program
    if kind == "scrapy" or what == "crawler.local.start":
        cluster = any(word.startswith("REDIS_URL=") for word in arguments) and "--agents" not in arguments
        return arguments[:1] != [] and arguments[0] in STARTING and not (cluster and arguments[0] == "crawl")
    return not _is_ours(command)


def _would_differ(folders: list[Path]) -> bool:
    """Whether a module of these folders comes in the place of one that the warm process may have imported."""
    others = [folder for folder in sys.path if Path(folder) not in folders]
    names = {
        path.name.partition(".")[0] for folder in folders if folder.is_dir() for path in folder.iterdir()
    }
    return any(name in AT_START or _is_module(name, others) for name in names)


def _is_module(name: str, folders: list[str]) -> bool:
    """Whether a module or a package of this name is there; a folder of files alone is none."""
    spec = PathFinder.find_spec(name, folders) if name.isidentifier() else None
    return spec is not None and spec.origin is not None


def _is_ours(command: list[str]) -> bool:
    """Whether Python is to run a module of the crawler's."""
    return command[1:2] == ["-m"] and command[2].startswith("crawler.")


def _path_of(wanted: _Wanted) -> list[Path]:
    """The folders of PYTHONPATH other than the project's own."""
    folders = [Path(wanted.cwd, word) for word in wanted.env.get("PYTHONPATH", "").split(os.pathsep) if word]
    return [folder for folder in folders if folder.resolve() != ROOT]


def _joined(words: list[str]) -> bytes:
    return b"".join(os.fsencode(word) + b"\0" for word in words)


def _assigned(env: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in env.items()]


class _Warm:
    """The warm child of this process, seen from here."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._lock = threading.Lock()

    def fork(self, wanted: _Wanted, files: list[int]) -> int:
        """The id of a new child of this process, with these as its first three files."""
        message = json.dumps(wanted).encode()
        with self._lock:
            socket.send_fds(self._line, [len(message).to_bytes(LENGTH_BYTES, "big")], files)
            self._line.sendall(message)
            told = self._line.recv(LENGTH_BYTES, socket.MSG_WAITALL)
        assert told, "the warm process has ended"
        return int.from_bytes(told, "big")

    def close(self) -> None:
        """It ends."""
        self._line.close()


def _begin() -> _Warm:
    """The first warm process, which has to import all that the others have from it."""
    line, its = socket.socketpair()
    with its, Path(os.devnull).open("rb") as nothing:
        process = subprocess.Popen(
            # A long argument and a long value: room for those of the processes that are forked.
            [sys.executable, "-m", "tests.warm", str(its.fileno()), "x" * ROOM],
            # NumPy's library would start threads, which do not survive a fork.
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "WARM_ROOM": "x" * ROOM},
            cwd=ROOT,
            stdin=nothing,
            pass_fds=[its.fileno()],
        )
    warm = _Warm(line)

    def end() -> None:
        warm.close()
        process.wait()

    atexit.register(end)
    return warm


# --- The warm process -------------------------------------------------------------------------------------


def _import_all() -> None:
    importlib.import_module("scrapy.cmdline")
    platform.platform()  # it starts a program, and keeps what that says
    for name in PACKAGES:
        package = importlib.import_module(f"crawler.{name}")
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if ".migrations" not in found.name and found.name not in LARGE:
                importlib.import_module(found.name)


class _Task(NamedTuple):
    """A forked process, which is to become this."""

    wanted: _Wanted
    line: socket.socket  # to its warm child, if it has one


def _serve(line: socket.socket) -> _Task | None:
    """Fork until the process that asks has ended (None); comes back in each forked process too, with its task."""
    actions = {number: signal.signal(number, signal.SIG_IGN) for number in TO_GROUPS}
    while True:
        head, files, _, _ = socket.recv_fds(line, LENGTH_BYTES, 3)
        if not head:
            return None
        wanted = _Wanted(*json.loads(_received(line, int.from_bytes(head, "big"))))
        if not _split_off():
            own, its = socket.socketpair()
            if not _starts_others(wanted.command) or os.fork():
                its.close()
                for number, action in actions.items():
                    signal.signal(number, action)
                _take_place(wanted, files)
                line.sendall(os.getpid().to_bytes(LENGTH_BYTES, "big"))
                line.close()
                return _Task(wanted, own)
            # Here goes on the warm child of the process that was split off.
            line.close()
            own.close()
            line = its
        for file in files:
            os.close(file)


def _received(line: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = line.recv(size - len(parts))
        assert part, "the process that asked ended in the middle of it"
        parts += part
    return bytes(parts)


def _split_off() -> int:
    """os.fork, but the new process is a child of this one's parent."""
    python, system = ctypes.pythonapi, ctypes.PyDLL(None)
    python.PyOS_BeforeFork()
    pid = system.syscall(CLONE, CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    if pid:
        python.PyOS_AfterFork_Parent()
    else:
        python.PyOS_AfterFork_Child()
    assert pid >= 0, "no process could be made"
    return int(pid)


# --- The forked process -----------------------------------------------------------------------------------


def _take_place(wanted: _Wanted, files: list[int]) -> None:
    """Its files, its group, and what has to be called first."""
    for number, file in enumerate(files):
        os.dup2(file, number)
    for file in files:
        os.close(file)
    if wanted.new_session:
        os.setsid()
    if wanted.group >= 0:
        os.setpgid(0, wanted.group)
    if wanted.first is not None:
        first = _Call(*wanted.first)
        getattr(importlib.import_module(first.module), first.name)(*first.arguments)


def _become(wanted: _Wanted) -> None:
    """As if it had been started like this."""
    os.chdir(wanted.cwd)
    os.environ.clear()
    os.environ.update(wanted.env)
    _show(wanted)
    time.tzset()
    random.seed()


def _show(wanted: _Wanted) -> None:
    """The command line and the environment in /proc are the process's own memory."""
    arguments, arguments_end, environment, environment_end = _places(os.getpid())
    for start, end, words in (
        (arguments, arguments_end, wanted.command),
        (environment, environment_end, _assigned(wanted.env)),
    ):
        shown = _joined(words)
        ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)


def _places(pid: int) -> list[int]:
    """Where a process's command line begins and ends in its memory, and where its environment does."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return [int(field) for field in fields[45:49]]  # 48 to 51 of all, of which two stand before


def _run(wanted: _Wanted) -> None:
    """What the interpreter would do."""
    program = _program_of(wanted.command)
    assert program is not None
    kind, what, arguments = program
    sys.path[1:1] = [str(folder) for folder in _path_of(wanted)]
    if kind == "scrapy":
        from scrapy.cmdline import execute

        sys.argv, sys.path[0] = wanted.command[:], str(Path(wanted.command[0]).parent)
        execute()
    elif kind == "-m":
        sys.argv, sys.path[0] = [what, *arguments], wanted.cwd
        sys.modules.pop(what, None)
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv, sys.path[0] = ["-c", *arguments], ""
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(what, "<string>", "exec"), main.__dict__)
    else:
        sys.argv, sys.path[0] = [what, *arguments], str(Path(wanted.cwd, what).parent)
        runpy.run_path(what, run_name="__main__")


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
            with suppress(OSError):  # whoever read it has ended
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(self._code)


def main() -> None:
    """Fork until the process that asks ends; a forked process becomes its command."""
    end = _End()
    _import_all()
    # All of it lives as long as the process, and is shared with what is forked.
    gc.freeze()
    task = _serve(socket.socket(fileno=int(sys.argv[1])))
    if task is None:
        os._exit(0)  # it has nothing to tidy up, and what is imported has
    if _starts_others(task.wanted.command):
        _State.warm, _State.is_command = _Warm(task.line), True
        use()
    _become(task.wanted)
    if _is_command(task.wanted.command):
        end.run(lambda: _run(task.wanted))
    # What is said of a stranger's objects as they go belongs to what a script says.
    _run(task.wanted)


if __name__ == "__main__":
    main()
