"""Which wheel of each locked package fits which platform and Python: the table tests/wheels.txt, and how it is read.

    python -m tests.tools.wheels PYLOCK > tests/wheels.txt     # as `make lock` does

PYLOCK is a pylock.toml of the same resolution as requirements-rank.lock; it names files, lock files only hash them. A
line of the table is a wheel that some platform takes: package, version, sha256, file. Wheels that no platform here
takes are left out.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.tags import Tag, compatible_tags, cpython_tags, mac_platforms
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "tests/wheels.txt"
LOCKS = (ROOT / "requirements.lock", ROOT / "requirements-rank.lock")
PYTHONS = ((3, 11), (3, 12), (3, 13), (3, 14))
# The oldest glibc and macOS that wheels may ask for: Debian 10, RHEL 8, Ubuntu 20.04; macOS 14.
GLIBC, MACOS = 28, (14, 0)
PLATFORMS = ("Linux x86_64", "Linux aarch64", "Darwin arm64")


class Pinned(NamedTuple):
    """A package of a lock file: where it is expected, and the hashes of its files."""

    requirement: Requirement  # ==version, with its marker
    hashes: frozenset[str]

    @property
    def name(self) -> str:
        return canonicalize_name(self.requirement.name)

    @property
    def version(self) -> str:
        return next(iter(self.requirement.specifier)).version

    def is_wanted(self, platform: str, python: tuple[int, int]) -> bool:
        marker = self.requirement.marker
        return marker is None or marker.evaluate(environment(platform, python))


class Wheel(NamedTuple):
    """A line of the table."""

    name: str
    version: str
    sha256: str
    file: str

    @property
    def tags(self) -> frozenset[Tag]:
        return parse_wheel_filename(self.file)[3]


def environment(platform: str, python: tuple[int, int]) -> dict[str, str]:
    """What markers are asked about, on that platform."""
    system, machine = platform.split()
    version = ".".join(map(str, python))
    return {
        "implementation_name": "cpython",
        "implementation_version": f"{version}.4",
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_system": system,
        "python_full_version": f"{version}.4",
        "python_version": version,
        "sys_platform": system.lower(),
    }


def taken_by(platform: str, python: tuple[int, int]) -> frozenset[Tag]:
    """The tags of wheels that pip would install there."""
    system, machine = platform.split()
    platforms = [
        *([f"manylinux_2_{minor}_{machine}" for minor in range(GLIBC, 16, -1)] if system == "Linux" else []),
        *([f"manylinux2014_{machine}"] if system == "Linux" else mac_platforms(MACOS, machine)),
    ]
    interpreter = f"cp{python[0]}{python[1]}"
    return frozenset(
        [
            *cpython_tags(python, abis=[interpreter], platforms=platforms),
            *compatible_tags(python, interpreter=interpreter, platforms=platforms),
        ]
    )


def pinned(lock: Path) -> Iterator[Pinned]:
    """What a lock file names."""
    logical = lock.read_text().replace("\\\n", " ")
    for line in logical.splitlines():
        if line[:1].isalnum():
            words = line.split("--hash=sha256:")
            yield Pinned(Requirement(words[0].strip()), frozenset(word.strip() for word in words[1:]))


def table() -> list[Wheel]:
    """What tests/wheels.txt says."""
    lines = TABLE.read_text().splitlines()
    return [Wheel(*line.split()) for line in lines if not line.startswith("#")]


def files(pylock: Path) -> Iterator[Wheel]:
    """The wheels that a pylock.toml names, without the address of their index."""
    for package in tomllib.loads(pylock.read_text())["packages"]:
        for wheel in package.get("wheels", []):
            name = wheel["url"].rpartition("/")[2]
            yield Wheel(package["name"], package["version"], wheel["hashes"]["sha256"], name)


def main(arguments: list[str]) -> int:
    """Print the table; 2 without a file."""
    if len(arguments) != 1:
        print("wheels: expected a pylock.toml: python -m tests.tools.wheels PYLOCK", file=sys.stderr)
        return 2
    taken = frozenset().union(*(taken_by(one, python) for one in PLATFORMS for python in PYTHONS))
    print(
        "# Wheels of requirements-rank.lock for " + ", ".join(PLATFORMS) + "; `make lock` writes this file."
    )
    for wheel in sorted(files(Path(arguments[0]))):
        if wheel.tags & taken:
            print(*wheel)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
