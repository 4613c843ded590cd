"""The parent of a bundled server: stops it when no process uses it any more.

    python -I -S watchdog.py FOLDER SOCKET_FOLDER PROGRAMS OPTION …

FOLDER has the locks of `crawler.local.server`; SOCKET_FOLDER is removed with the server (empty: none);
PROGRAMS has the server's program. Descriptor 3 is server.lock. If the watchdog is killed, the server gets
SIGTERM (Linux only).
"""

import fcntl
import os
import sys
import time

PROGRAM = "valkey-server"
SERVER_LOCK_FD = 3
# Interval of checks. A server without users at two checks in a row is stopped, so an agent that is restarted after
# a kill finds it running.
LOOK_SECONDS = 2.0
# Limit for the server to write its file and end. No process can join during that time.
STOP_SECONDS = 60.0
# Linux: the signal that a process gets when its parent ends.
PR_SET_PDEATHSIG = 1
# Importing the module `signal` takes as long as everything else here.
SIGTERM = 15


def watchdog(folder: str, socket_folder: str, command: list[str]) -> None:
    """Returns when the server has ended."""
    server = start(command)
    os.close(SERVER_LOCK_FD)
    # Opened once, so they stay the locks of this server's users if the folder is removed.
    start_lock, users_lock = (
        os.open(f"{folder}/{name}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        for name in ("start.lock", "users.lock")
    )
    end_with(server)
    looks_without_users = 0
    while True:
        time.sleep(LOOK_SECONDS)
        if not try_lock(start_lock):  # a process is joining or leaving
            looks_without_users = 0
            continue
        unused = try_lock(users_lock)
        looks_without_users = looks_without_users + 1 if unused else 0
        if looks_without_users > 1:
            stop(server, socket_folder)
        if unused:
            fcntl.flock(users_lock, fcntl.LOCK_UN)
        fcntl.flock(start_lock, fcntl.LOCK_UN)


def start(command: list[str]) -> int:
    """Returns the server's process id."""
    parent = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        os.setsid()
        end_with_parent(parent)
        os.pwrite(SERVER_LOCK_FD, f"{os.getpid():<20}\n".encode(), 0)
        os.execv(command[0], command)  # noqa: S606 - no shell needed
    except OSError as error:
        os.write(2, f"{command[0]} cannot be started: {error}\n".encode())
    finally:
        os._exit(1)


def end_with_parent(parent: int) -> None:
    """In the server's process: SIGTERM when the watchdog ends."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, SIGTERM)
        if os.getppid() != parent:
            os._exit(1)


def end_with(server: int) -> None:
    """Ends this process as soon as the server has ended."""
    import signal

    def look(*_: object) -> None:
        if os.waitpid(server, os.WNOHANG)[0]:
            raise SystemExit

    signal.signal(signal.SIGCHLD, look)
    look()


def stop(server: int, socket_folder: str) -> None:
    """Needs both locks. Returns only if the server does not end."""
    os.write(2, b"watchdog: no process uses this server any more; stopping it\n")
    try:
        os.kill(server, SIGTERM)
        time.sleep(STOP_SECONDS)
    except SystemExit:
        if socket_folder:
            os.rmdir(socket_folder)  # noqa: PTH106 - pathlib takes as long to load as all of this
        raise


def try_lock(descriptor: int) -> bool:
    """True if the lock was free."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


if __name__ == "__main__":
    watchdog(sys.argv[1], sys.argv[2], [f"{sys.argv[3]}/{PROGRAM}", *sys.argv[4:]])
