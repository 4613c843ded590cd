"""Syncs file names to disk; a file's fsync covers its content only.

Raises OSError.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path


def make_folder(folder: Path, mode: int = 0o777) -> list[Path]:
    """Makes the folder and its parents. Returns the folders to sync."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(mode=mode, parents=True, exist_ok=True)
    return [path.parent for path in missing]


def sync_folders(*folders: Path) -> None:
    """After it names in these folders survive a power cut."""
    for folder in dict.fromkeys(folders):
        _sync(folder)


def sync_files(paths: Iterable[Path]) -> None:
    """Syncs contents, by whichever process written. Missing files are skipped."""
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
        if error.errno != errno.EINVAL:  # a file system without fsync for folders keeps names by itself
            raise
    finally:
        os.close(descriptor)
