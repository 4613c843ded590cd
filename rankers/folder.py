"""Result folders that exist complete or not at all.

    with made_whole(Path("results")) as folder:
        ...  # files into `folder`
        write_manifest(folder, {"pages": 3})

Even after a kill or power loss, only finished folders have the final name. Raises FolderError (one line) and OSError.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Version of file names and columns.
FORMAT = 1
MANIFEST = "manifest.json"
_TEMPORARY = ".tmp"
_OLD = ".old"


class FolderError(Exception):
    """A folder cannot be read or written; says what is expected."""


@contextmanager
def made_whole(folder: Path) -> Iterator[Path]:
    """A temporary folder, renamed when the block ends; it replaces an earlier result.

    The block must write the manifest. If it raises, everything is removed; after a kill `<folder>.tmp` remains. Raises
    FolderError if another process writes the folder, the manifest is missing, or the existing folder is not a result.
    """
    check_gives_way(folder)
    temporary = folder.with_name(folder.name + _TEMPORARY)
    temporary.mkdir(parents=True, exist_ok=True)
    with _held(temporary):
        try:
            _empty(temporary)
            yield temporary
            if not (temporary / MANIFEST).is_file():
                raise FolderError(f"{folder}: no {MANIFEST} was written; expected one with the other files")
            _flush(temporary)
            _put_in_place(temporary, folder)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def write_manifest(folder: Path, figures: Mapping[str, Any]) -> None:
    """Writes the manifest: the figures, the format, and size and SHA-256 of each file."""
    files = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": _digest(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != folder / MANIFEST
    }
    text = json.dumps({"format": FORMAT, **figures, "files": files}, indent=2, ensure_ascii=False)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def check_gives_way(folder: Path, figure: str = "") -> None:
    """Raises FolderError unless the folder is missing, empty, or has a manifest with this figure."""
    for path in (folder, folder.with_name(folder.name + _OLD)):
        if path.is_file() or (path.is_dir() and any(path.iterdir())):
            if figure and figure not in read_manifest(path):
                raise FolderError(
                    f"{path} exists without {figure!r} in its {MANIFEST}; expected another folder"
                )
            read_manifest(path)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest. Raises FolderError if it is missing or has another format."""
    path = folder / MANIFEST
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise FolderError(f"{folder} has no {MANIFEST}; expected a complete folder") from None
    except (OSError, ValueError) as error:
        raise FolderError(f"{path} cannot be read: {error}") from None
    found = read.get("format") if isinstance(read, dict) else None
    if found != FORMAT or not isinstance(read.get("files"), dict):
        raise FolderError(f"{path} has format {found!r}; expected {FORMAT}: write the folder again")
    return dict(read)


def check(folder: Path, names: Iterable[str]) -> None:
    """Raises FolderError for the first file that differs from the manifest."""
    files = read_manifest(folder)["files"]
    for name in names:
        if name not in files:
            raise FolderError(f"{folder / MANIFEST} does not list {name}; expected it among its files")
        _check_file(folder / name, files[name])


def newest(parent: Path) -> Path | None:
    """The folder below `parent` finished last; None: there is none."""
    whole = [path.parent for path in parent.glob(f"*/{MANIFEST}") if not _is_passing(path.parent)]
    return max(whole, key=lambda folder: ((folder / MANIFEST).stat().st_mtime_ns, folder.name), default=None)


def remove_leftovers(parent: Path) -> None:
    """Removes unfinished folders of killed processes below `parent`."""
    for path in parent.glob(f"*{_TEMPORARY}"):
        try:
            with _held(path):
                shutil.rmtree(path)
        except FolderError:
            continue


def _is_passing(folder: Path) -> bool:
    return folder.name.endswith((_TEMPORARY, _OLD))


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Locks the folder itself, so that the lock ends with the process and leaves no file."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The previous holder may have renamed it.
            ours = os.path.samestat(os.fstat(descriptor), folder.stat())
        except (BlockingIOError, FileNotFoundError):
            ours = False
        if not ours:
            raise FolderError(f"{folder} is being written by another process; wait, or use another folder")
        yield
    finally:
        os.close(descriptor)


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _flush(folder: Path) -> None:
    below = sorted(folder.rglob("*"), key=lambda path: -len(path.parts))
    for path in [*filter(Path.is_file, below), *filter(Path.is_dir, below), folder]:
        _flush_one(path)


def _flush_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _put_in_place(temporary: Path, folder: Path) -> None:
    old = folder.with_name(folder.name + _OLD)
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    temporary.rename(folder)
    _flush_one(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_file(path: Path, listed: Mapping[str, Any]) -> None:
    if not path.is_file():
        raise FolderError(f"{path} is missing; expected {listed['bytes']} bytes")
    size = path.stat().st_size
    if size != listed["bytes"]:
        raise FolderError(f"{path} has {size} bytes; expected {listed['bytes']}")
    found = _digest(path)
    if found != listed["sha256"]:
        raise FolderError(f"{path} is damaged: its SHA-256 is {found}; expected {listed['sha256']}")
