"""Every locked package has a wheel for every platform and Python that we name, so nobody needs a compiler.

By tests/wheels.txt, which `make lock` writes beside the lock files; hashes tie the two together, so no index is asked.
"""

from __future__ import annotations

import re
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

from tests.tools import wheels
from tests.tools.wheels import LOCKS, PLATFORMS, PYTHONS, ROOT, Pinned, Wheel, pinned, table, taken_by


def missing(locked: list[Pinned], there: list[Wheel], platform: str, python: tuple[int, int]) -> list[str]:
    """Packages that are expected there and have no wheel whose hash the lock has."""
    tags = taken_by(platform, python)
    having = {(wheel.name, wheel.version, wheel.sha256) for wheel in there if wheel.tags & tags}
    return [
        f"{one.name} {one.version}"
        for one in locked
        if one.is_wanted(platform, python)
        and not any((one.name, one.version, sha256) in having for sha256 in one.hashes)
    ]


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("python", PYTHONS, ids=lambda python: ".".join(map(str, python)))
@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_every_locked_package_has_a_wheel(lock: Path, platform: str, python: tuple[int, int]) -> None:
    assert missing(list(pinned(lock)), table(), platform, python) == []


def test_the_table_is_of_these_locks() -> None:
    """No line that no lock has, none twice: a stale table is seen."""
    locked = {
        (one.name, one.version, sha256) for lock in LOCKS for one in pinned(lock) for sha256 in one.hashes
    }
    assert [wheel for wheel in table() if (wheel.name, wheel.version, wheel.sha256) not in locked] == []
    assert len(set(table())) == len(table())


def test_each_package_is_wanted_once_for_each_platform() -> None:
    for lock in LOCKS:
        for platform in PLATFORMS:
            for python in PYTHONS:
                names = [one.name for one in pinned(lock) if one.is_wanted(platform, python)]
                assert len(names) == len(set(names)) > 50


def test_a_package_without_a_wheel_is_seen() -> None:
    """What was in the way before: wheels for x86_64 up to 3.13 alone, and a source archive."""
    file = "pycld2-0.42-cp313-cp313-manylinux2014_x86_64.manylinux_2_17_x86_64.whl"
    there = [Wheel("pycld2", "0.42", "a" * 64, file)]
    text = "pycld2==0.42 --hash=sha256:" + "a" * 64 + " --hash=sha256:" + "b" * 64
    words = text.split("--hash=sha256:")
    locked = [Pinned(wheels.Requirement(words[0].strip()), frozenset(word.strip() for word in words[1:]))]
    assert missing(locked, there, "Linux x86_64", (3, 13)) == []
    for platform, python in (
        ("Linux x86_64", (3, 14)),
        ("Linux aarch64", (3, 13)),
        ("Darwin arm64", (3, 13)),
    ):
        assert missing(locked, there, platform, python) == ["pycld2 0.42"]


def test_a_wheel_of_another_hash_is_none() -> None:
    there = [Wheel("six", "1.17.0", "a" * 64, "six-1.17.0-py2.py3-none-any.whl")]
    locked = [Pinned(wheels.Requirement("six==1.17.0"), frozenset({"b" * 64}))]
    assert missing(locked, there, "Linux x86_64", (3, 11)) == ["six 1.17.0"]


def test_locks_agree_and_name_no_host() -> None:
    """A package has one version in all of them: what `make demo` installed stays when `make test` adds to it."""
    of_lock = [
        {(str(one.requirement), one.hashes) for one in pinned(lock)}
        for lock in (*LOCKS, ROOT / "requirements-all.lock")
    ]
    for smaller, larger in pairwise(of_lock):
        assert smaller <= larger
    for lock in (*LOCKS, ROOT / "requirements-all.lock", wheels.TABLE):
        assert not re.search(r"://|--(?:extra-)?index-url|--find-links", lock.read_text())


def test_what_the_core_asks_for_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for lock, wanted in zip(
        LOCKS, (project["dependencies"], project["optional-dependencies"]["rank"]), strict=True
    ):
        versions: dict[str, list[str]] = {}
        for one in pinned(lock):
            versions.setdefault(one.name, []).append(one.version)
        for line in map(wheels.Requirement, wanted):
            found = versions.get(wheels.canonicalize_name(line.name), [])
            assert found and all(line.specifier.contains(version) for version in found), line
