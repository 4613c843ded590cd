"""A folder of results that is there whole or not at all.

    with made_whole(Path("results")) as folder:
        ...  # files into `folder`
        write_manifest(folder, {"pages": 3})

Hides the temporary name, the flushing and the renaming, and what the manifest says of the files. Whatever happens in
the block, a kill or a lost machine included, nothing is seen under the final name but what was finished. FolderError
says in one line what is wrong with a folder; OSError (a full disk) passes as it comes.
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

# Of the files' names and columns: whoever reads a folder must know this one.
FORMAT = 1
MANIFEST = "manifest.json"
_TEMPORARY = ".tmp"
_OLD = ".old"


class FolderError(Exception):
    """A folder that cannot be read, or not be written just now; says what is there and what should be."""


@contextmanager
def made_whole(folder: Path) -> Iterator[Path]:
    """An empty folder to write to, which gets its name when the block ends; one that had the name gives way to it.

    The block writes the manifest. Where it raises, all that it wrote is removed. FolderError where another process
    is writing the same folder, the manifest is missing, or what has the name was not made here. A kill leaves
    `<folder>.tmp`, which the next one empties and `remove_leftovers` removes.
    """
    check_gives_way(folder)
    temporary = folder.with_name(folder.name + _TEMPORARY)
    temporary.mkdir(parents=True, exist_ok=True)
    with _held(temporary):
        try:
            _empty(temporary)
            yield temporary
            if not (temporary / MANIFEST).is_file():
                raise FolderError(f"{folder}: no {MANIFEST} was written; expected one beside the other files")
            _flush(temporary)
            _put_in_place(temporary, folder)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def write_manifest(folder: Path, figures: Mapping[str, Any]) -> None:
    """Writes the manifest: these figures, the format, and of each file below the folder its bytes and SHA-256."""
    files = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": _digest(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != folder / MANIFEST
    }
    text = json.dumps({"format": FORMAT, **figures, "files": files}, indent=2, ensure_ascii=False)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def check_gives_way(folder: Path, figure: str = "") -> None:
    """FolderError for a folder of somebody else's, which nothing may take the place of.

    Ours is one with a manifest, and in it the figure of this name; nothing, or an empty folder, is nobody's.
    """
    for path in (folder, folder.with_name(folder.name + _OLD)):
        if path.is_file() or (path.is_dir() and any(path.iterdir())):
            if figure and figure not in read_manifest(path):
                raise FolderError(
                    f"{path} is there and has no {figure!r} in its {MANIFEST}; expected another place"
                )
            read_manifest(path)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a whole folder; FolderError where there is none, or of another format."""
    path = folder / MANIFEST
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise FolderError(f"{folder} has no {MANIFEST}; expected a folder that was written whole") from None
    except (OSError, ValueError) as error:
        raise FolderError(f"{path} cannot be read: {error}") from None
    found = read.get("format") if isinstance(read, dict) else None
    if found != FORMAT or not isinstance(read.get("files"), dict):
        raise FolderError(f"{path} is of format {found!r}; expected {FORMAT}: write the folder anew")
    return dict(read)


def check(folder: Path, names: Iterable[str]) -> None:
    """FolderError for the first of these files that is not as the manifest says: there, so long, with these bytes."""
    files = read_manifest(folder)["files"]
    for name in names:
        if name not in files:
            raise FolderError(f"{folder / MANIFEST} names no {name}; expected it among its files")
        _check_file(folder / name, files[name])


def newest(parent: Path) -> Path | None:
    """The folder below `parent` that was finished last; None: none was."""
    whole = [path.parent for path in parent.glob(f"*/{MANIFEST}") if not _is_passing(path.parent)]
    return max(whole, key=lambda folder: ((folder / MANIFEST).stat().st_mtime_ns, folder.name), default=None)


def remove_leftovers(parent: Path) -> None:
    """Removes what killed processes left unfinished below `parent`; not what somebody is writing."""
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
    """Keeps others off; the lock is the folder's own, so that it ends with its process and leaves no file."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever held it may have given it its final name meanwhile.
            ours = os.path.samestat(os.fstat(descriptor), folder.stat())
        except (BlockingIOError, FileNotFoundError):
            ours = False
        if not ours:
            raise FolderError(f"{folder} is being written by another process; wait for it, or name another")
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
    """All files, then all folders from the innermost out: names are safe when what they name is."""
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


def _check_file(path: Path, told: Mapping[str, Any]) -> None:
    if not path.is_file():
        raise FolderError(f"{path} is missing; expected {told['bytes']} bytes")
    size = path.stat().st_size
    if size != told["bytes"]:
        raise FolderError(f"{path} has {size} bytes; expected {told['bytes']}")
    found = _digest(path)
    if found != told["sha256"]:
        raise FolderError(f"{path} is damaged: its SHA-256 is {found}; expected {told['sha256']}")
