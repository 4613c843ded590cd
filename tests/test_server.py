"""The bundled server with real processes: who starts it, who stops it, and what kill -9 leaves behind.

Members that must die or compete are processes of their own, driven line by line over their standard input.
Every test ends with no server and no socket left; the `var` fixture checks that and ends what a failed test
left, by process id.
"""

import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
import redis

from crawler.local import server as server_module
from crawler.local.server import CoordinatorRunsError, Server, ServerError, socket_path
from tests.servers import start_valkey

ROOT = Path(__file__).parent.parent
# Of what the server's program alone takes until it answers.
START_RATIO = 3

# One order per line: "join ROLE AT" (AT: when, in monotonic seconds), "leave AT",
# "look TIMES AT" (how often an agent was seen).
MEMBER = """
import sys, time
from pathlib import Path
from crawler.local.server import Server, ServerError

server = Server(Path(sys.argv[1]))
print("ready", flush=True)
for line in sys.stdin:
    order, *words = line.split()
    time.sleep(max(0.0, float(words[-1]) - time.monotonic()))
    try:
        if order == "look":
            print(sum(server.agents_alive() for _ in range(int(words[0]))), flush=True)
        elif order == "join":
            membership = server.join(words[0])
            print("started" if membership.started else "joined", flush=True)
        else:
            print("stopped" if membership.leave() else "left", flush=True)
    except ServerError as error:
        print(type(error).__name__, flush=True)
"""


class Member:
    """Another process that joins and leaves on order."""

    def __init__(self, var: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", MEMBER, str(var)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def order(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def join(self, role: str = "agent") -> str:
        self.order(f"join {role} 0")
        return self.answer()

    def leave(self) -> str:
        self.order("leave 0")
        return self.answer()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def servers(var: Path) -> list[int]:
    """The living server processes whose folder is VAR_DIR/valkey; zombies have none."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if (entry / "cwd").readlink() == var / "valkey" and "valkey" in (entry / "exe").readlink().name:
                found.append(int(entry.name))
        except (OSError, ValueError):
            continue
    return found


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def kill_server(var: Path) -> None:
    (pid,) = servers(var)
    kill(pid)


def kill(pid: int) -> None:
    """Wait until its parent has collected it: before that a thread of it may hold its socket and its locks."""
    os.kill(pid, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{pid}").exists())


def client(url: str) -> "closing[redis.Redis]":
    return closing(redis.Redis.from_url(url, decode_responses=True))


def check_nothing_left(var: Path) -> None:
    """Raise if a server or a socket is left, having removed both."""
    left = servers(var)
    for pid in left:
        kill(pid)
    path = socket_path(var)
    left_socket = path.exists()
    if left_socket:
        path.unlink()
    if path.parent != var / "valkey" and path.parent.exists():
        path.parent.rmdir()
    assert not left
    assert not left_socket


@pytest.fixture
def var() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="lowtide-") as folder:
        path = Path(folder).resolve() / "var"
        yield path
        check_nothing_left(path)


@pytest.fixture
def make_member(var: Path) -> Iterator[Callable[[], Member]]:
    made: list[Member] = []

    def make() -> Member:
        made.append(Member(var))
        assert made[-1].answer() == "ready"
        return made[-1]

    yield make
    for member in made:
        member.kill()


# --- joining and leaving -------------------------------------------------------------------------------


def test_first_starts_last_stops(var: Path) -> None:
    server = Server(var)
    assert not server.running()
    with server.join() as first:
        assert first.started
        assert server.running()
        with client(first.url) as redis_client:
            assert redis_client.ping()
        with server.join() as second:
            assert not second.started
        assert server.running()
        assert first.leave()
        assert not server.running()
        assert not servers(var)
        assert not first.leave()


def test_start_is_short(var: Path, tmp_path: Path) -> None:
    """Next to one of the server's program alone; the best of a few, since others may hold the cores."""
    took = []
    for number in range(10):
        began = time.monotonic()
        with Server(var).join() as membership:
            ours = time.monotonic() - began
            assert membership.started
        took.append(ours / bare_start(tmp_path / str(number)))
        if took[-1] <= START_RATIO:
            break
    assert min(took) <= START_RATIO, took


def bare_start(folder: Path) -> float:
    """Seconds until a server answers that is started as simply as can be."""
    folder.mkdir()
    began = time.monotonic()
    server = start_valkey(folder)
    try:
        return time.monotonic() - began
    finally:
        server.stop()


def test_settings_the_queue_relies_on(var: Path) -> None:
    wanted = {
        "appendonly": "yes",
        "appendfsync": "everysec",
        "maxmemory-policy": "noeviction",
        "hash-max-listpack-value": "300",
        "auto-aof-rewrite-percentage": "100",
        "auto-aof-rewrite-min-size": str(64 * 2**20),
        "save": "",
        "port": "0",
        "dir": str(var / "valkey"),
    }
    with Server(var).join() as membership, client(membership.url) as redis_client:
        assert {name: redis_client.config_get(name)[name] for name in wanted} == wanted
        assert socket_path(var).stat().st_mode & 0o777 == 0o700


def test_six_at_the_same_instant_start_one_server_and_stop_it(
    var: Path, make_member: Callable[[], Member]
) -> None:
    members = [make_member() for _ in range(6)]
    for _ in range(10):
        for order, once, others in (("join agent", "started", "joined"), ("leave", "stopped", "left")):
            at = time.monotonic() + 0.02
            for member in members:
                member.order(f"{order} {at}")
            answers = sorted(member.answer() for member in members)
            assert answers == sorted([once, *[others] * 5])
            assert len(servers(var)) == (order == "join agent")
    # "Ready" once per round: never a second server, not even for a moment.
    assert (var / "valkey" / "server.log").read_text().count("Ready to accept connections") == 10


def test_members_that_come_and_go_across_each_other(var: Path, make_member: Callable[[], Member]) -> None:
    """Each at its own rhythm, so that joins meet stops: everyone finds a server that answers."""
    members = [make_member() for _ in range(4)]
    start = time.monotonic() + 0.02
    for step in range(8):
        for number, member in enumerate(members):
            at = start + step * 0.04 + number * 0.007 * (step % 3)
            member.order(f"join agent {at}")
            member.order(f"leave {at + 0.01 * number}")
    for member in members:
        for _ in range(8):
            assert member.answer() in ("started", "joined")
            assert member.answer() in ("stopped", "left")
    assert not servers(var)


def test_unknown_role_is_refused(var: Path) -> None:
    with pytest.raises(ValueError, match=r"'boss'.*visitor, agent, coordinator"):
        Server(var).join("boss")


# --- after kill -9 -------------------------------------------------------------------------------------


def test_living_server_without_users_is_taken_over(var: Path, make_member: Callable[[], Member]) -> None:
    members = [make_member(), make_member()]
    assert [member.join() for member in members] == ["started", "joined"]
    before = servers(var)
    for member in members:
        member.kill()
    server = Server(var)
    assert server.running()
    assert not server.agents_alive()
    with server.join() as membership:
        assert not membership.started
        assert servers(var) == before
        assert membership.leave()


def test_stale_socket_is_replaced_and_data_is_kept(var: Path, make_member: Callable[[], Member]) -> None:
    member = make_member()
    assert member.join() == "started"
    with client(Server(var).url) as redis_client:
        redis_client.config_set("appendfsync", "always")
        redis_client.set("page", "kept")
    kill_server(var)
    member.kill()
    assert socket_path(var).exists()
    assert not Server(var).running()
    with Server(var).join() as membership:
        assert membership.started
        with client(membership.url) as redis_client:
            assert redis_client.get("page") == "kept"


@pytest.mark.parametrize("role", ["visitor", "coordinator"])
def test_server_killed_under_its_members_is_started_again_and_that_is_told(
    var: Path, make_member: Callable[[], Member], role: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The starter is this process and has not collected the dead child: a zombie counts as gone."""
    server = Server(var)
    with server.join() as membership:
        member = make_member()
        assert member.join() == "joined"
        assert not server.gone()
        assert "was gone" not in caplog.text
        kill_server(var)
        assert server.gone()
        with server.join(role) as other:
            assert other.started
            assert "the bundled server had ended; it was restarted" in caplog.text
        assert server.running()
        assert not membership.leave()
        assert member.leave() == "stopped"


def test_last_one_out_needs_no_server(var: Path) -> None:
    with Server(var).join() as membership:
        kill_server(var)
        assert membership.leave()
    socket_path(var).unlink()


def test_data_is_on_the_disk_after_an_orderly_stop(var: Path) -> None:
    server = Server(var)
    with server.join() as membership, client(membership.url) as redis_client:
        redis_client.set("page", "kept")
    with server.join() as membership, client(membership.url) as redis_client:
        assert membership.started
        assert redis_client.get("page") == "kept"


def test_stopped_by_another_than_its_starter(var: Path, make_member: Callable[[], Member]) -> None:
    """The starter lives on and never collects its child; the last one out is not held up by that."""
    starter, last = make_member(), make_member()
    assert starter.join() == "started"
    assert last.join() == "joined"
    assert starter.leave() == "left"
    assert last.leave() == "stopped"
    assert not servers(var)


# --- nobody is left ------------------------------------------------------------------------------------

# The watchdog, but with looks so short that many happen during a test.
QUICK_WATCHDOG = """
import sys
from crawler.local import watchdog
watchdog.LOOK_SECONDS = 0.02
watchdog.watchdog(sys.argv[1], sys.argv[2], [sys.argv[3] + "/valkey-server", *sys.argv[4:]])
"""


@pytest.fixture
def quick_watchdog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(server_module, "_watchdog", lambda: [sys.executable, "-c", QUICK_WATCHDOG])


def watchdog_of(server: int) -> int:
    return int(Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize("long", [False, True])
def test_a_server_whose_users_were_all_killed_ends(
    var: Path, monkeypatch: pytest.MonkeyPatch, long: bool
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    place = var / ("x" * 90) if long else var
    member = Member(place)
    assert member.answer() == "ready"
    assert member.join() == "started"
    with client(Server(place).url) as redis_client:
        redis_client.set("page", "kept")
    member.kill()
    until(lambda: not servers(place), 30)
    assert not socket_path(place).exists()
    until(lambda: socket_path(place).parent.exists() != long)
    assert "no process uses this server" in (place / "valkey" / "server.log").read_text()
    with Server(place).join() as membership, client(membership.url) as redis_client:
        assert membership.started
        assert redis_client.get("page") == "kept"


def test_a_server_that_has_users_is_not_stopped(
    var: Path, make_member: Callable[[], Member], quick_watchdog: None
) -> None:
    with Server(var).join("visitor"):
        (pid,) = servers(var)
        for _ in range(10):
            member = make_member()
            assert member.join() == "joined"
            member.kill()
            time.sleep(0.05)
        assert servers(var) == [pid]


def test_members_and_a_watchdog_that_looks_all_the_time(var: Path, quick_watchdog: None) -> None:
    """A process that dies leaves the server to the watchdog; one that joins at that moment is served all the same."""
    server = Server(var)
    for pause in (0.0, 0.02, 0.04, 0.06) * 5:
        member = Member(var)
        assert member.answer() == "ready"
        assert member.join() in ("started", "joined")
        member.kill()
        time.sleep(pause)
        with server.join() as membership, client(membership.url) as redis_client:
            assert redis_client.ping()
            redis_client.incr("count")
    with server.join() as membership, client(membership.url) as redis_client:
        assert redis_client.get("count") == "20"


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for a signal at the death of the parent")
def test_a_watchdog_that_is_killed_takes_its_server_along(
    var: Path, make_member: Callable[[], Member]
) -> None:
    server, member = Server(var), make_member()
    assert member.join() == "started"
    (pid,) = servers(var)
    with client(server.url) as redis_client:
        redis_client.set("page", "kept")
    os.kill(watchdog_of(pid), signal.SIGKILL)
    until(lambda: not servers(var))
    assert server.gone(), "its user is still there"
    with server.join() as membership, client(membership.url) as redis_client:
        assert membership.started
        assert redis_client.get("page") == "kept"
        (pid,) = servers(var)
        member.kill()
    assert not servers(var)


def test_a_watchdog_ends_with_its_server(var: Path) -> None:
    with Server(var).join():
        (pid,) = servers(var)
        watchdog = watchdog_of(pid)
        assert not server_module.is_gone(watchdog)
        kill_server(var)
        until(lambda: server_module.is_gone(watchdog))
    with Server(var).join():
        (pid,) = servers(var)
        watchdog = watchdog_of(pid)
    until(lambda: server_module.is_gone(watchdog))


# --- never a second server -----------------------------------------------------------------------------


@pytest.fixture
def stopped_server(var: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The process id of a server that is alive, used by this process, and frozen."""
    monkeypatch.setattr(server_module, "PING_SECONDS", 0.5)
    with Server(var).join():
        (pid,) = servers(var)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield pid
        finally:
            os.kill(pid, signal.SIGCONT)


def test_frozen_server_is_an_error_and_no_second_one_starts(var: Path, stopped_server: int) -> None:
    with pytest.raises(ServerError, match=f"has not answered.*kill -CONT {stopped_server}") as caught:
        Server(var).join()
    assert str(socket_path(var)) in str(caught.value)
    assert "Ready to accept connections" in caught.value.log_tail
    assert servers(var) == [stopped_server]
    assert not Server(var).running()
    os.kill(stopped_server, signal.SIGCONT)
    until(Server(var).running)
    with Server(var).join() as membership:
        assert not membership.started


def test_frozen_server_cannot_be_stopped_but_is_left(var: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "PING_SECONDS", 0.5)
    membership = Server(var).join()
    (pid,) = servers(var)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(ServerError, match="has not answered"):
        membership.leave()
    assert not Server(var).agents_alive()
    os.kill(pid, signal.SIGCONT)
    until(Server(var).running)
    with Server(var).join() as next_one:
        assert not next_one.started
        assert next_one.leave()


@contextmanager
def full_backlog(path: Path) -> Iterator[None]:
    with ExitStack() as waiting:
        try:
            while True:
                one = waiting.enter_context(socket.socket(socket.AF_UNIX))
                one.setblocking(False)
                one.connect(str(path))
        except BlockingIOError:
            yield


def test_full_backlog_is_not_taken_for_gone(var: Path, stopped_server: int) -> None:
    with full_backlog(socket_path(var)), pytest.raises(ServerError, match="has not answered"):
        Server(var).join()
    assert servers(var) == [stopped_server]


def test_backlog_that_is_full_for_a_moment(var: Path, stopped_server: int) -> None:
    with full_backlog(socket_path(var)):
        waker = subprocess.Popen(["/bin/sh", "-c", f"sleep 0.1; kill -CONT {stopped_server}"])
        with Server(var).join() as membership:
            assert not membership.started
        assert waker.wait() == 0


def test_deleted_socket_of_a_living_server(var: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "SERVER_LOCK_SECONDS", 0.2)
    path = socket_path(var)
    with Server(var).join():
        (pid,) = servers(var)
        hidden = path.rename(path.with_suffix(".hidden"))
        with pytest.raises(ServerError, match=f"runs as process {pid}.*`kill {pid}`"):
            Server(var).join()
        assert servers(var) == [pid]
        hidden.rename(path)


def test_start_lock_held_for_ever(
    var: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_module, "START_LOCK_SECONDS", 0.3)
    monkeypatch.setattr(server_module, "QUIET_SECONDS", 0.1)
    server = Server(var)
    with caplog.at_level(logging.INFO), server.join() as membership:
        with server._alone(), pytest.raises(ServerError, match=r"start\.lock has been held"):
            server.join()
        assert caplog.text.count("which another process holds") == 1
        assert membership.leave()


# --- what cannot work is told --------------------------------------------------------------------------


def test_var_dir_that_is_a_file(var: Path) -> None:
    var.write_text("")
    with pytest.raises(ServerError, match=f"VAR_DIR={var} cannot be used.*expected: a folder"):
        Server(var).join()
    assert not Server(var).coordinator_alive()


def test_var_dir_that_cannot_be_made() -> None:
    with pytest.raises(ServerError, match="VAR_DIR=/proc/nowhere cannot be used"):
        Server(Path("/proc/nowhere")).join()


def test_death_while_starting_carries_the_log(var: Path) -> None:
    (var / "valkey").mkdir(parents=True)
    (var / "valkey" / "appendonlydir").write_text("not a folder")
    with pytest.raises(ServerError, match="ended while starting") as caught:
        Server(var).join("coordinator")
    assert "append" in caught.value.log_tail
    assert caught.value.log_tail in str(caught.value)
    # Nothing was joined: the same process may try again once it is mended.
    assert not Server(var).coordinator_alive()
    (var / "valkey" / "appendonlydir").unlink()
    with Server(var).join("coordinator") as membership:
        assert membership.started
        assert membership.leave()


def test_loading_counts_as_alive(var: Path, make_member: Callable[[], Member]) -> None:
    """A second member that comes while the file is read waits for it and starts nothing."""
    with Server(var).join() as membership, client(membership.url) as redis_client:
        redis_client.eval("for i = 1, 200000 do redis.call('RPUSH', 'page', 'x' .. i) end", 0)
    first, second = make_member(), make_member()
    for member in (first, second):
        member.order("join agent 0")
    assert sorted((first.answer(), second.answer())) == ["joined", "started"]
    assert len(servers(var)) == 1
    with client(Server(var).url) as redis_client:
        assert redis_client.llen("page") == 200000
    assert [first.leave(), second.leave()] == ["left", "stopped"]


# --- where the socket lies -----------------------------------------------------------------------------


@pytest.fixture
def long_var(var: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A VAR_DIR whose socket must lie elsewhere; below /tmp, unless the test says otherwise."""
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    path = var / ("x" * 90)
    yield path
    check_nothing_left(path)


def test_long_path_gets_a_short_private_folder(long_var: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = Server(long_var)
    folder = socket_path(long_var).parent
    assert folder.parent == Path("/tmp")
    with caplog.at_level(logging.INFO), server.join() as membership:
        server.join("visitor").leave()
        assert folder.stat().st_mode & 0o777 == 0o700
        assert caplog.text.count("too long") == 1
        with client(membership.url) as redis_client:
            assert redis_client.ping()
    assert not folder.exists()


def test_long_path_below_the_runtime_folder(long_var: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as runtime:
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        assert socket_path(long_var).is_relative_to(runtime)
        with Server(long_var).join() as membership:
            assert membership.started
            assert socket_path(long_var).is_socket()
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime + "/gone")
        assert socket_path(long_var).parent.parent == Path("/tmp")


def test_short_folder_open_to_others_is_refused(long_var: Path) -> None:
    folder = socket_path(long_var).parent
    folder.mkdir()
    folder.chmod(0o755)
    with pytest.raises(ServerError, match=r"not private.*drwxr-xr-x"):
        Server(long_var).join()


def test_the_limit_is_exact(var: Path) -> None:
    room = 107 - len(str(var / "valkey" / "valkey.sock")) - 1
    longest, too_long = var / ("x" * room), var / ("x" * (room + 1))
    assert socket_path(longest).is_relative_to(longest)
    assert not socket_path(too_long).is_relative_to(too_long)
    with Server(longest).join() as membership, client(membership.url) as redis_client:
        assert redis_client.ping()


def test_odd_characters_in_var_dir(var: Path) -> None:
    odd = var / "a b#%c?é'"
    with Server(odd).join() as membership, client(membership.url) as redis_client:
        assert redis_client.ping()


# --- the coordinator -----------------------------------------------------------------------------------


def test_one_coordinator_at_a_time(var: Path, make_member: Callable[[], Member]) -> None:
    server, other = Server(var), make_member()
    with server.join("coordinator") as coordinator:
        assert server.coordinator_alive()
        assert not server.agents_alive()
        assert other.join("coordinator") == "CoordinatorRunsError"
        with pytest.raises(CoordinatorRunsError, match=f"VAR_DIR={var}"):
            server.join("coordinator")
        coordinator.leave()
        assert not server.coordinator_alive()
        assert other.join("coordinator") == "started"
        other.kill()
        assert not server.coordinator_alive()
        with server.join("coordinator") as next_one:
            assert not next_one.started


def test_looking_at_a_lock_is_never_mistaken_for_holding_it(
    var: Path, make_member: Callable[[], Member]
) -> None:
    server, other, looker = Server(var), make_member(), make_member()
    with server.join("visitor"):
        server.join("agent").leave()
        for _ in range(50):
            other.order("join coordinator 0")
            other.order("leave 0")
        looker.order("look 5000 0")
        for _ in range(5000):
            assert not server.agents_alive()
        assert looker.answer() == "0"
        assert [other.answer() for _ in range(100)] == ["joined", "left"] * 50


def test_leave_when_alone(var: Path, make_member: Callable[[], Member]) -> None:
    server, agent = Server(var), make_member()
    asked: list[bool] = []

    def drained() -> bool:
        asked.append(True)
        return len(asked) > 1

    with server.join("coordinator") as coordinator:
        assert agent.join() == "joined"
        assert server.agents_alive()
        assert not coordinator.leave_when_alone(drained)
        assert not asked, "an agent is there: the stream need not be looked at"
        assert agent.leave() == "left"
        assert not coordinator.leave_when_alone(drained)
        assert server.coordinator_alive()
        assert server.running()
        assert coordinator.leave_when_alone(drained)
        assert not server.running()
        assert not servers(var)
        assert coordinator.leave_when_alone(drained)
        assert len(asked) == 2


def test_leave_when_alone_spares_a_visitor(var: Path, make_member: Callable[[], Member]) -> None:
    server, visitor = Server(var), make_member()
    with server.join("coordinator") as coordinator:
        assert visitor.join("visitor") == "joined"
        assert coordinator.leave_when_alone(lambda: True)
        assert server.running()
        assert not server.coordinator_alive()
        assert visitor.leave() == "stopped"


def test_leave_when_alone_fails_without_leaving(var: Path) -> None:
    def broken() -> bool:
        raise OSError("the stream is away")

    server = Server(var)
    with server.join("coordinator") as coordinator:
        with pytest.raises(OSError, match="the stream is away"):
            coordinator.leave_when_alone(broken)
        assert server.coordinator_alive()
        with server.join() as agent, pytest.raises(ValueError, match="role 'agent'"):
            agent.leave_when_alone(lambda: True)


def test_agent_waits_while_the_coordinator_leaves(var: Path, make_member: Callable[[], Member]) -> None:
    """An agent that joins at the very moment finds the coordinator there, or sees that it has gone."""
    server, agent = Server(var), make_member()
    coordinator = server.join("coordinator")

    def drained() -> bool:
        agent.order("join agent 0")
        assert not server.agents_alive()
        return True

    assert coordinator.leave_when_alone(drained)
    assert agent.answer() == "started"
    assert not server.coordinator_alive()
    assert agent.leave() == "stopped"


# --- children ------------------------------------------------------------------------------------------


def test_locks_do_not_pass_to_executed_children(var: Path) -> None:
    with Server(var).join("coordinator"):
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
        try:
            held = [str(link.readlink()) for link in Path(f"/proc/{child.pid}/fd").iterdir()]
            assert held
            assert not [path for path in held if path.endswith(".lock")]
        finally:
            child.kill()
            child.wait()


def test_the_server_gets_no_descriptor_of_its_starter(var: Path) -> None:
    read, write = os.pipe()
    os.set_inheritable(write, True)
    try:
        with Server(var).join():
            (pid,) = servers(var)
            targets = {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()}
            assert str(Path(f"/proc/self/fd/{write}").readlink()) not in targets
            assert str(var / "valkey" / "server.lock") in targets
            assert str(var / "valkey" / "users.lock") not in targets
            assert os.getsid(pid) == pid
    finally:
        os.close(read)
        os.close(write)


def test_forked_child_cannot_end_its_parents_membership(var: Path) -> None:
    server = Server(var)
    with server.join() as membership:
        child = os.fork()
        if child == 0:
            os._exit(membership.leave())
        assert os.waitpid(child, 0)[1] == 0
        assert server.agents_alive()
        assert membership.leave()


def test_membership_ends_though_a_forked_child_lives(var: Path) -> None:
    server = Server(var)
    membership = server.join("coordinator")
    child = os.fork()
    if child == 0:
        signal.pause()
    try:
        assert membership.leave()
        assert not server.coordinator_alive()
        with server.join("coordinator") as again:
            assert again.started
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
