"""Names in folders, brought to the disk: a file's own fsync promises its content, not that it is found again.

All raise OSError where the disk does.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path


def make_folder(folder: Path, mode: int = 0o777) -> list[Path]:
    """Make the folder, and those above it that are missing; the folders that have a new name now, to be synced."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(mode=mode, parents=True, exist_ok=True)
    return [path.parent for path in missing]


def sync_folders(*folders: Path) -> None:
    """A power cut takes back no name that was made or changed in these folders before."""
    for folder in dict.fromkeys(folders):
        _sync(folder)


def sync_files(paths: Iterable[Path]) -> None:
    """A power cut takes back nothing that any process has written to these files; one that is gone is left out."""
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system without fsync for folders keeps their names by itself
            raise
    finally:
        os.close(descriptor)
