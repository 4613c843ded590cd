"""A machine that loses its power: an ext4 file system in a file, and what the kernel had written to it by then.

`cut` stops all processes of the crawl, copies the image (so what only the page cache held is not in it), kills the
processes, and mounts the copy in the place of the first. Needs root and a loop device; skips the test without them.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.own_databases import open_folder
from tests.servers import eventually

MEGABYTES = 512


class Disk:
    """The file system of that machine, mounted at `folder`."""

    def __init__(self, folder: Path, images: Path) -> None:
        self.folder = folder
        self._images = images
        self._image = images / "disk-0"
        with self._image.open("wb") as file:
            file.truncate(MEGABYTES << 20)
        _call("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(self._image))
        self._mount()

    def cut(self, processes: Callable[[], list[int]]) -> None:
        """The power goes; `processes` gives the ids of all that use the disk."""
        stopped = _stopped(processes)
        copy = self._images / f"disk-{time.monotonic_ns()}"
        self._copy(copy)
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        eventually(lambda: not processes(), "all processes are gone")
        self.unmount()
        self._image.unlink()
        self._image = copy
        self._mount()

    def unmount(self) -> None:
        """Take it away; what uses it must have ended."""
        eventually(lambda: _tries("umount", str(self.folder)), f"{self.folder} can be unmounted")

    def _mount(self) -> None:
        _call("mount", "-o", "loop", str(self._image), str(self.folder))

    def _copy(self, copy: Path) -> None:
        """The image of one moment: copied again if the kernel wrote meanwhile."""
        while True:
            before = self._writes()
            _call("cp", "--sparse=always", str(self._image), str(copy))
            if before == self._writes():
                return

    def _writes(self) -> tuple[str, ...]:
        """What the kernel counts of the loop device: writes, sectors written, requests in flight."""
        for device in Path("/sys/block").glob("loop*"):
            with suppress(OSError):
                if (device / "loop/backing_file").read_text().strip() == str(self._image):
                    fields = (device / "stat").read_text().split()
                    return fields[4], fields[6], fields[8]
        raise AssertionError(f"no loop device has {self._image}")


@contextmanager
def disk() -> Iterator[Disk]:
    """A disk whose power can be cut, gone after the block."""
    if os.geteuid() != 0 or not shutil.which("mkfs.ext4"):
        pytest.skip("no disk whose power can be cut: that needs root and mkfs.ext4")
    with open_folder() as base:  # a PostgreSQL has a user of its own
        folder, images = base / "disk", base / "images"
        folder.mkdir()
        images.mkdir()
        try:
            made = Disk(folder, images)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no disk whose power can be cut: {error.stderr.strip()}")
        try:
            yield made
        finally:
            made.unmount()


def _stopped(processes: Callable[[], list[int]]) -> list[int]:
    """All of them stand still, those that started meanwhile too."""
    stopped: set[int] = set()
    while left := set(processes()) - stopped:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        eventually(lambda pids=left: all(map(_stands, pids)), "all processes stand still")  # type: ignore[misc]
        stopped |= left
    return sorted(stopped)


def _stands(pid: int) -> bool:
    """Whether no thread of it runs; one that waits for the disk goes on until it has what it waits for."""
    states = []
    for task in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):
            states.append(task.read_text().rpartition(")")[2].split()[0])
    return all(state in "TZX" for state in states)


def _call(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def _tries(*command: str) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0
