"""Every example of README.md and docs/*.md is run: a page that says what is not so fails here.

What stands in a page (tests/examples.py) is run in its order, in a copy of the project in a temporary folder, with a
small web in place of https://example.org, .com and .net, a Valkey in place of redis://queue.example.net:6379/0 and a
database in place of postgresql+psycopg://crawl@db.example.net/crawl.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import warm
from tests.crawling import Place
from tests.examples import PAGES, ROOT, Block, Step, blocks_of, matches, register, steps_of
from tests.farm import Farm
from tests.project_copy import copy_project
from tests.servers import RunningServer

PACKAGES = ("crawler", "rankers", "settings", "tests")
COPIED = (
    *PACKAGES,
    "docs",
    "scrapy.cfg",
    "Makefile",
    "pyproject.toml",
    "requirements.lock",
    "requirements-rank.lock",
    "requirements-all.lock",
)
# Sites of the small web stand for these; in the order of their names, as lists of sites are.
NAMES = ("https://example.com", "https://example.net", "https://example.org")
REDIS = "redis://queue.example.net:6379/0"
DATABASE = "postgresql+psycopg://crawl@db.example.net/crawl"
# Programs of the machine that examples use; what needs one that is not here is left out, and the test is skipped.
PROGRAMS = ("sqlite3", "redis-cli", "curl")
RUN_SECONDS = 120.0
# How long a command is tried again while another runs beside it.
TRY_SECONDS = 60.0
TRY_PAUSE_SECONDS = 0.5
# What is not waited for: these change no meaning, only how long an example takes.
QUICK = {"DOWNLOAD_DELAY": "0", "FLUSH_SECONDS": "0.1", "BATCH_SECONDS": "0.1", "RETRY_DELAY_SECONDS": "0.1"}


@pytest.mark.needs(*PROGRAMS)
@pytest.mark.timeout(400)
@pytest.mark.parametrize("page", PAGES)
def test_every_example_does_what_the_page_says(page: str, valkey: RunningServer, short_folder: Path) -> None:
    blocks = [
        block for block in blocks_of((ROOT / page).read_text(encoding="utf-8")) if block.runs or block.file
    ]
    if not any(block.runs for block in blocks):
        return
    changes = any(block.file.split("/")[0] in PACKAGES for block in blocks)
    set_up(short_folder, changes=changes)
    with (
        warm.shim() as shim,
        Farm(sites=len(NAMES), pages=12, kinds=("duplicate", "missing"), names=()) as farm,
        Place(short_folder) as place,
    ):
        reader = Reader(page, place, stand_ins(farm, valkey, place), None if changes else shim)
        for block in blocks:
            reader.take(block)
    if reader.left_out:
        pytest.skip(f"not on this machine: {', '.join(sorted(reader.left_out))}")


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Not pytest's: below it the bundled server's socket must lie where the pages say, within 107 bytes."""
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="lt-docs-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


class Reader:
    """Does what a page says, block by block."""

    def __init__(self, page: str, place: Place, stand_ins: dict[str, str], shim: Path | None = None) -> None:
        self.left_out: set[str] = set()
        self._page = page
        self._folder = place.folder
        self._stand_ins = stand_ins
        settings = {"ALLOW_PRIVATE_ADDRESSES": "127.0.0.0/8", **QUICK}
        self._env = place.environment({f"LOWTIDE_{name}": value for name, value in settings.items()})
        first = [str(folder) for folder in (shim, Path(sys.executable).parent) if folder]
        self._env["PATH"] = os.pathsep.join([*first, self._env["PATH"]])
        if not shim:  # the packages of the copy
            self._env["PYTHONPATH"] = str(self._folder)
        for name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL"):  # a make below another tells its folder
            self._env.pop(name, None)
        self._beside: list[tuple[str, subprocess.Popen[str]]] = []

    def take(self, block: Block) -> None:
        """Write it, or run it."""
        if block.registry:
            register(self._folder / block.file, block.registry, block.text)
        elif block.file:
            target = self._folder / block.file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(self._real(block.text), encoding="utf-8")
        elif block.kind == "python":
            self._try(block, [sys.executable, "-c", self._real(block.text)], [])
        else:
            try:
                for step in steps_of(block.text):
                    self._do(block, step)
                self._end_those_beside(block)
            finally:
                for _, process in self._beside:
                    process.kill()
                    process.wait()
                self._beside = []

    def _do(self, block: Block, step: Step) -> None:
        command = self._real(step.command)
        program = command.split()[0]
        if program in PROGRAMS and not shutil.which(program):
            self.left_out.add(program)
        elif command.endswith(" &"):
            with (self._folder / "beside.log").open("a") as log:
                started = warm.popen(
                    ["bash", "-c", f"exec {command[:-2]}"],
                    cwd=self._folder,
                    env=self._env,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    text=True,
                )
            self._beside.append((step.command, started))
        else:
            self._try(block, ["bash", "-c", command], step.expected)

    def _try(self, block: Block, command: list[str], expected: list[str]) -> None:
        deadline = time.monotonic() + (TRY_SECONDS if self._beside else 0)
        while (wrong := self._run(command, expected)) and time.monotonic() < deadline:
            time.sleep(TRY_PAUSE_SECONDS)
        assert not wrong, f"{self._page}:{block.line} $ {command[-1]}\n{wrong}"

    def _run(self, command: list[str], expected: list[str]) -> str:
        """What went otherwise than the page says; empty: nothing."""
        ended = warm.run(
            command,
            cwd=self._folder,
            env=self._env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )
        if ended.returncode:
            return f"ended with code {ended.returncode}:\n{ended.stdout[-1500:]}\n{ended.stderr[-1500:]}"
        printed = self._told(ended.stdout)
        if expected and not matches(expected, printed):
            return f"wanted:\n{chr(10).join(expected)}\ncame:\n{printed}"
        return ""

    def _end_those_beside(self, block: Block) -> None:
        for _, process in reversed(self._beside):
            process.send_signal(signal.SIGINT)
        for command, process in self._beside:
            code = process.wait(RUN_SECONDS)
            said = (self._folder / "beside.log").read_text()[-1500:]
            assert code == 0, f"{self._page}:{block.line} $ {command}\nended with code {code}:\n{said}"

    def _real(self, text: str) -> str:
        """The page's addresses turned into those of the stand-ins."""
        for told, real in self._stand_ins.items():
            text = text.replace(told, real)
        return text

    def _told(self, text: str) -> str:
        """And back, in what was printed."""
        for told, real in self._stand_ins.items():
            text = text.replace(real, told)
        return text


def stand_ins(farm: Farm, valkey: RunningServer, place: Place) -> dict[str, str]:
    """In this order: a host alone comes last, since it is part of all others."""
    sites = {told: farm.site(number) for number, told in enumerate(NAMES)}
    hosts = {host(told): host(real) for told, real in sites.items()}
    return {REDIS: valkey.url, DATABASE: f"sqlite:///{place.folder / 'shared.db'}", **sites, **hosts}


def host(site: str) -> str:
    return site.split("/")[2].split(":")[0]


def set_up(folder: Path, *, changes: bool) -> None:
    """The project as a person has it, with a `.venv` that make takes for set up.

    A copy where the page changes our packages; else these are links, and commands are forked.
    """
    linked = () if changes else PACKAGES
    copy_project(folder, [name for name in COPIED if name not in linked])
    for name in linked:
        (folder / name).symlink_to(ROOT / name)
    (folder / ".venv").mkdir()
    for part in Path(sys.prefix).iterdir():
        if not part.name.startswith("ready"):
            (folder / ".venv" / part.name).symlink_to(part)
    for ready in ("ready", "ready-rank", "ready-all"):  # the later ones of make are made after the first
        (folder / ".venv" / ready).touch()


@pytest.mark.parametrize(
    ("text", "error"),
    [("$ false\n", "code 1"), ("$ echo a\nb\n", "wanted:"), ("$ sleep 60 &\n", "code -2")],
)
def test_a_wrong_example_is_seen(text: str, error: str, short_folder: Path) -> None:
    reader = Reader("page", Place(short_folder), {})
    with pytest.raises(AssertionError, match=error):
        reader.take(Block(1, "console", text))
