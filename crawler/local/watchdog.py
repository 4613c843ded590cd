"""The parent of a bundled server: stops it when no process uses it any more, however the last one ended.

A script of its own, run without the rest of this project and without site-packages, so that it starts in milliseconds:

    python -I -S watchdog.py FOLDER SOCKET_FOLDER PROGRAMS OPTION …

FOLDER has the locks of `crawler.local.server`. SOCKET_FOLDER is removed with the server; empty: there is none to
remove. PROGRAMS is the folder of the server's program: a search for servers by that name finds servers alone.
Descriptor 3 is server.lock, which the server keeps for its life.

The watchdog ends with the server. If it is killed, the server gets SIGTERM, writes its file and ends too (Linux only);
processes that still use the server start another one.
"""

import fcntl
import os
import sys
import time

PROGRAM = "valkey-server"
SERVER_LOCK_FD = 3
# How often the watchdog looks for users. It stops a server that has none at two looks in a row: an agent that was
# killed and is started again soon finds it running.
LOOK_SECONDS = 2.0
# What the server may take to write its file and end. Nobody can join meanwhile.
STOP_SECONDS = 60.0
# Linux: the signal that a process gets when its parent dies.
PR_SET_PDEATHSIG = 1
# Not from the module `signal`, which takes as long to load as all the rest.
SIGTERM = 15


def watchdog(folder: str, socket_folder: str, command: list[str]) -> None:
    """Start the server and stay until it has ended."""
    server = start(command)
    os.close(SERVER_LOCK_FD)
    # Opened once, so that they stay the locks of this server's users where the folder is removed.
    start_lock, users_lock = (
        os.open(f"{folder}/{name}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        for name in ("start.lock", "users.lock")
    )
    end_with(server)
    looks_without_users = 0
    while True:
        time.sleep(LOOK_SECONDS)
        if not try_lock(start_lock):  # a process joins or leaves
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
    """The server's process."""
    parent = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        os.setsid()
        end_with_parent(parent)
        os.pwrite(SERVER_LOCK_FD, f"{os.getpid():<20}\n".encode(), 0)
        os.execv(command[0], command)  # noqa: S606 - no shell is wanted
    except OSError as error:
        os.write(2, f"{command[0]} cannot be started: {error}\n".encode())
    finally:
        os._exit(1)


def end_with_parent(parent: int) -> None:
    """In the server's process: SIGTERM when the watchdog dies."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, SIGTERM)
        if os.getppid() != parent:
            os._exit(1)


def end_with(server: int) -> None:
    """From now on this process ends as soon as the server has ended."""
    import signal

    def look(*_: object) -> None:
        if os.waitpid(server, os.WNOHANG)[0]:
            raise SystemExit

    signal.signal(signal.SIGCHLD, look)
    look()


def stop(server: int, socket_folder: str) -> None:
    """Needs both locks. Ends this process with the server; returns where the server does not end."""
    os.write(2, b"watchdog: no process uses this server any more; it is stopped\n")
    try:
        os.kill(server, SIGTERM)
        time.sleep(STOP_SECONDS)
    except SystemExit:
        if socket_folder:
            os.rmdir(socket_folder)  # noqa: PTH106 - pathlib takes as long to load as all of this
        raise


def try_lock(descriptor: int) -> bool:
    """Take it if no other process holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


if __name__ == "__main__":
    watchdog(sys.argv[1], sys.argv[2], [f"{sys.argv[3]}/{PROGRAM}", *sys.argv[4:]])
