"""Folders of results: whole or not there, and every damage told by name."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rankers.folder import (
    FolderError,
    check,
    made_whole,
    newest,
    read_manifest,
    remove_leftovers,
    write_manifest,
)
from tests import warm

# Writes half of a folder, says so, and waits to be killed.
HALF = """
import sys, time
from pathlib import Path
from rankers.folder import made_whole
with made_whole(Path(sys.argv[1])) as folder:
    (folder / "half.bin").write_bytes(b"half")
    print("half", flush=True)
    time.sleep(60)
"""


def write(folder: Path, text: str = "one") -> Path:
    with made_whole(folder) as unfinished:
        (unfinished / "graph").mkdir()
        (unfinished / "graph/ptr.npy").write_text(text)
        (unfinished / "pages.parquet").write_bytes(b"")
        write_manifest(unfinished, {"pages": 3, "site": "ü"})
    return folder


def test_a_folder_is_there_with_all_that_was_written(tmp_path: Path) -> None:
    folder = write(tmp_path / "deep" / "run")
    assert read_manifest(folder) == {
        "format": 1,
        "pages": 3,
        "site": "ü",
        "files": {
            "graph/ptr.npy": {"bytes": 3, "sha256": hashlib.sha256(b"one").hexdigest()},
            "pages.parquet": {"bytes": 0, "sha256": hashlib.sha256(b"").hexdigest()},
        },
    }
    check(folder, ["graph/ptr.npy", "pages.parquet"])
    assert [path.name for path in folder.parent.iterdir()] == ["run"]


def test_the_same_files_give_the_same_manifest(tmp_path: Path) -> None:
    one, other = write(tmp_path / "one"), write(tmp_path / "other")
    assert (one / "manifest.json").read_bytes() == (other / "manifest.json").read_bytes()


@pytest.mark.parametrize("error", [OSError(28, "full"), KeyboardInterrupt()])
def test_nothing_is_left_of_a_block_that_raises(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)), made_whole(tmp_path / "run") as folder:
        (folder / "half").write_text("x")
        raise error
    assert list(tmp_path.iterdir()) == []


def test_without_a_manifest_nothing_is_finished(tmp_path: Path) -> None:
    with (
        pytest.raises(FolderError, match=r"run: no manifest\.json was written"),
        made_whole(tmp_path / "run"),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_new_one_takes_the_place_of_the_old(tmp_path: Path) -> None:
    write(tmp_path / "run", "old")
    folder = write(tmp_path / "run", "new")
    assert (folder / "graph/ptr.npy").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_the_old_one_stays_where_the_new_one_fails(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", "old")
    with pytest.raises(ValueError, match="no"), made_whole(folder):
        raise ValueError("no")
    check(folder, ["graph/ptr.npy"])


@pytest.mark.parametrize("name", ["run", "run.old"])
def test_what_was_not_made_here_does_not_give_way(tmp_path: Path, name: str) -> None:
    letters = tmp_path / name / "letters.txt"
    letters.parent.mkdir()
    letters.write_text("dear")
    with pytest.raises(FolderError, match=rf"{name} has no manifest\.json"):
        write(tmp_path / "run")
    letters.with_name("manifest.json").write_text('{"name": "a web application"}')
    with pytest.raises(FolderError, match="has format None"):
        write(tmp_path / "run")
    assert letters.read_text() == "dear"
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_an_empty_folder_gives_way(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    check(write(tmp_path / "run"), ["graph/ptr.npy"])


def half_written(folder: Path) -> subprocess.Popen[str]:
    started = warm.popen([sys.executable, "-c", HALF, str(folder)], stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    assert started.stdout.readline() == "half\n"
    return started


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_a_kill_leaves_nothing_under_the_name(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    kill(half_written(folder))
    assert [path.name for path in tmp_path.iterdir()] == ["run.tmp"]
    assert newest(tmp_path) is None
    write(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["graph", "manifest.json", "pages.parquet"]


def test_two_do_not_write_one_folder(tmp_path: Path) -> None:
    first = half_written(tmp_path / "run")
    try:
        with pytest.raises(FolderError, match=r"run\.tmp is being written by another process"):
            write(tmp_path / "run")
        remove_leftovers(tmp_path)
        assert (tmp_path / "run.tmp/half.bin").read_bytes() == b"half"
    finally:
        kill(first)
    remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_newest_is_the_one_finished_last(tmp_path: Path) -> None:
    assert newest(tmp_path / "none") is None
    later, earlier = write(tmp_path / "a"), write(tmp_path / "b")
    os.utime(earlier / "manifest.json", (1, 1))
    (tmp_path / "c").mkdir()
    assert newest(tmp_path) == later


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda file: file.unlink(), r"ptr\.npy is missing; expected 3 bytes"),
        (lambda file: file.write_text("on"), r"ptr\.npy has 2 bytes; expected 3"),
        (lambda file: file.write_text("two"), r"ptr\.npy is damaged: its SHA-256 is 3fc4.*; expected 7692"),
    ],
)
def test_damage_is_told(tmp_path: Path, damage: object, told: str) -> None:
    folder = write(tmp_path / "run")
    assert callable(damage)
    damage(folder / "graph/ptr.npy")
    check(folder, ["pages.parquet"])
    with pytest.raises(FolderError, match=told):
        check(folder, ["pages.parquet", "graph/ptr.npy"])


def test_a_file_that_the_manifest_does_not_name_is_told(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match=r"does not list links\.parquet"):
        check(write(tmp_path / "run"), ["links.parquet"])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, r"run has no manifest\.json"),
        ("{", "cannot be read"),
        ("[]", "format None; expected 1"),
        ('{"format": 2, "files": {}}', "format 2; expected 1"),
        ('{"format": 1}', "format 1; expected 1"),
    ],
)
def test_a_manifest_that_cannot_be_used_is_told(tmp_path: Path, text: str | None, told: str) -> None:
    folder = write(tmp_path / "run")
    (folder / "manifest.json").unlink()
    if text is not None:
        (folder / "manifest.json").write_text(text)
    with pytest.raises(FolderError, match=told):
        read_manifest(folder)


def test_the_manifest_is_for_people_too(tmp_path: Path) -> None:
    text = (write(tmp_path / "run") / "manifest.json").read_text(encoding="utf-8")
    assert "ü" in text
    assert text == json.dumps(json.loads(text), indent=2, ensure_ascii=False) + "\n"
