"""Copies of the project in other folders, as a person or a machine has it.

What this one's Python and its compiler of loops have kept goes along: times and sizes of files are copied too, so it
stays good there, and no copy spends its first minute on compiling all of it anew.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# What another process is just writing beside a kept file: `x.pyc.140…`, `x.nbi.tmp.…`.
_UNDER_WAY = ("*.pyc.*", "*.tmp.*")


def copy_project(folder: Path, names: Iterable[str]) -> None:
    """These files and folders of the project into this folder, which is made if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns(*_UNDER_WAY))
        else:
            shutil.copy2(ROOT / name, folder / name)
