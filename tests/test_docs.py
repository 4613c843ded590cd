"""Every example of README.md and docs/*.md is run: a page that says what is not so fails here.

What stands in a page is run in its order, in a copy of the project in a temporary folder, with a small web in place
of https://example.org, .com and .net, a Valkey in place of redis://queue.example.net:6379/0 and a database in place
of postgresql+psycopg://crawl@db.example.net/crawl.

    ```console   lines that begin with `$ ` are run by bash (`> `: the same command goes on) and must end with
                 code 0. Other lines are what they print to standard output: `…` stands for any text, alone on a
                 line for any number of lines. A command that ends with ` &` runs until the end of its block and
                 must then end with code 0; while it runs, the others are tried again until they do what the page
                 says.
    ```python    is run as a script.

A comment right before a block changes that: `<!-- file: PATH -->` writes it there instead of running it,
`<!-- line: PATH NAME -->` puts it at the end of the dictionary NAME of that file, `<!-- run: skip REASON -->` only
shows it. Blocks of other kinds (```text, ```ini …) are only shown.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import warm
from tests.crawling import Place
from tests.farm import Farm
from tests.project_copy import copy_project
from tests.servers import RunningServer

ROOT = Path(__file__).resolve().parent.parent
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
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
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


class Block(NamedTuple):
    """One fenced block; `line` is that of its fence."""

    line: int
    kind: str
    text: str
    file: str = ""  # written there
    registry: str = ""  # put at the end of the dictionary of this name in `file`
    skip: str = ""  # why it is not run

    @property
    def runs(self) -> bool:
        return self.kind in ("console", "python") and not self.skip and not self.file


class Step(NamedTuple):
    """One command and what it prints."""

    command: str
    expected: list[str]


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


def test_what_is_not_run_says_why() -> None:
    silent = [
        f"{page}:{block.line}"
        for page in PAGES
        for block in blocks_of((ROOT / page).read_text(encoding="utf-8"))
        if block.skip and len(block.skip) < 10
    ]
    assert silent == []


def test_most_examples_are_run() -> None:
    """A page cannot be made right by leaving its examples out: the number of skipped ones is known."""
    blocks = [b for page in PAGES for b in blocks_of((ROOT / page).read_text(encoding="utf-8"))]
    assert sum(bool(block.skip) for block in blocks) <= 5
    assert sum(block.runs for block in blocks) >= 15


# Folder of a plug-in -> the dictionary that it is registered in, where there is one, and its contract suite.
PLUG_INS = {
    "crawler/pipelines": ("PAGE_PIPELINES", "test_page_pipelines.py"),
    "crawler/recrawl": ("NAMES", "test_recrawl.py"),
    "crawler/reports": ("", "test_reports.py"),
    "crawler/schedulers": ("NAMES", "test_schedulers.py"),
    "rankers": ("NAMES", "test_rankers.py"),
}


@pytest.mark.parametrize("page", PAGES)
def test_every_plug_in_of_a_page_is_registered_and_run_through_its_contract(page: str) -> None:
    blocks = blocks_of((ROOT / page).read_text(encoding="utf-8"))
    lines = "".join(
        f"{block.registry} {line}\n" for block in blocks if block.registry for line in block.text.splitlines()
    )
    proved = re.findall(
        r"pytest tests/contracts -k '(.*)'", "\n".join(block.text for block in blocks if block.runs)
    )
    for block in blocks:
        folder, _, name = block.file.rpartition("/")
        if block.registry or folder not in PLUG_INS:
            continue
        name, (registry, suite) = name.removesuffix(".py"), PLUG_INS[folder]
        assert (ROOT / "tests/contracts" / suite).exists()
        if registry:
            assert re.search(rf'^{registry} .*"{folder.replace("/", ".")}\.{name}\.', lines, re.MULTILINE), (
                block.file
            )
        assert name in " ".join(proved).split(), (
            f"{block.file} is in no `pytest tests/contracts -k` of {page}"
        )


@pytest.mark.parametrize("page", PAGES)
def test_plug_ins_of_a_page_are_written_as_ours_are(page: str) -> None:
    """They pass the linter, so that a copy of one does not begin with its complaints."""
    for block in blocks_of((ROOT / page).read_text(encoding="utf-8")):
        if block.file.rpartition("/")[0] in PLUG_INS and not block.registry:
            for command in ("check", "format --check"):
                called = [sys.executable, "-m", "ruff", *command.split(), "--stdin-filename", block.file, "-"]
                said = subprocess.run(
                    called, cwd=ROOT, input=block.text, capture_output=True, text=True, check=False
                )
                assert said.returncode == 0, f"{page}:{block.line} {block.file}\n{said.stdout}{said.stderr}"


def test_links_between_pages_lead_somewhere() -> None:
    pages = [*PAGES, "CHANGELOG.md", "CONTRIBUTING.md"]
    pages += [f"docs/decisions/{path.name}" for path in (ROOT / "docs/decisions").glob("*.md")]
    broken = [
        f"{page}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", (ROOT / page).read_text(encoding="utf-8"))
        if "://" not in target and not ((ROOT / page).parent / target).exists()
    ]
    assert broken == []


def test_modules_that_pages_name_are_there() -> None:
    """`crawler/agent/links.py`, `queue.lua` below a folder …: a path in a page is a path in the project."""
    pages = [
        *PAGES,
        "CONTRIBUTING.md",
        *(f"docs/decisions/{p.name}" for p in (ROOT / "docs/decisions").glob("*")),
    ]
    path = re.compile(r"`((?:crawler|rankers|settings|tests|benchmarks|docs)/[\w./-]+)`")
    missing = []
    for page in pages:
        text = (ROOT / page).read_text(encoding="utf-8")
        written = {block.file for block in blocks_of(text)}
        missing += [
            f"{page}: {n}" for n in path.findall(text) if n not in written and not (ROOT / n).exists()
        ]
    assert missing == []


# --- how a page is run ------------------------------------------------------------------------------------


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


def register(file: Path, name: str, lines: str) -> None:
    """Put the lines at the end of this dictionary of the file."""
    before = file.read_text(encoding="utf-8")
    after, found = re.subn(
        rf"^({re.escape(name)}\b[^\n]*\{{\n.*?)^\}}$",
        lambda match: f"{match[1]}{lines}}}",
        before,
        count=1,
        flags=re.MULTILINE | re.DOTALL,
    )
    assert found, f"{file} has no dictionary {name}"
    file.write_text(after, encoding="utf-8")


def blocks_of(text: str) -> list[Block]:
    """The fenced blocks of a page, with the comments right before them."""
    found: list[Block] = []
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        fence = re.fullmatch(r"```(\w+)", lines[number])
        if not fence:
            number += 1
            continue
        end = lines.index("```", number + 1)
        above = lines[number - 1] if number else ""
        file = re.fullmatch(r"<!-- (?:file|line): (\S+)(?: (\S+))? -->", above)
        skip = re.fullmatch(r"<!-- run: skip (.*) -->", above)
        body = "\n".join(lines[number + 1 : end]) + "\n"
        path, registry = (file[1], file[2] or "") if file else ("", "")
        found.append(Block(number + 1, fence[1], body, path, registry, skip[1] if skip else ""))
        number = end + 1
    return found


def steps_of(text: str) -> list[Step]:
    """The commands of a console block; one goes on behind a backslash, or in a line that begins with `> `."""
    steps: list[Step] = []
    for line in text.splitlines():
        last = steps[-1] if steps and not steps[-1].expected else None
        if last and last.command.endswith("\\"):
            steps[-1] = Step(f"{last.command[:-1]}{line.strip()}", [])
        elif last and line.startswith("> "):
            steps[-1] = Step(f"{last.command}\n{line[2:]}", [])
        elif line.startswith("$ "):
            steps.append(Step(line[2:].rstrip(), []))
        elif steps:
            steps[-1].expected.append(line.rstrip())
    return steps


def matches(expected: list[str], printed: str) -> bool:
    """Whether what was printed is what the page shows; `…` is any text, alone on a line any lines."""
    pattern = ""
    for line in expected:
        if line.strip() == "…":
            pattern += r"(?:.*\n)*"
        else:
            pattern += re.escape(line).replace("…", ".*") + r"[ ]*\n"
    return (
        re.fullmatch(pattern.rstrip("\n"), "".join(f"{x.rstrip()}\n" for x in printed.splitlines()))
        is not None
    )


# --- that all this can fail -------------------------------------------------------------------------------


def test_blocks_and_their_comments_are_read() -> None:
    page = (
        "# T\n\n```console\n$ a \\\n    b\nout\n$ c\n```\n<!-- file: x/y.py -->\n```python\n1\n```\n"
        "<!-- line: x/z.py NAMES -->\n```python\n    1: 2,\n```\n"
        "<!-- run: skip there is none here -->\n```console\n$ no\n```\n```text\nfree\n```\n"
    )
    blocks = blocks_of(page)
    assert [(b.kind, b.file, b.registry, b.skip, b.runs) for b in blocks] == [
        ("console", "", "", "", True),
        ("python", "x/y.py", "", "", False),
        ("python", "x/z.py", "NAMES", "", False),
        ("console", "", "", "there is none here", False),
        ("text", "", "", "", False),
    ]
    assert steps_of(blocks[0].text) == [Step("a b", ["out"]), Step("c", [])]


def test_a_line_is_put_into_its_dictionary(tmp_path: Path) -> None:
    file = tmp_path / "names.py"
    file.write_text('OTHER = {\n    "x": "y",\n}\nNAMES: dict[str, str] = {\n    "a": "b",\n}\nLAST = {\n}\n')
    register(file, "NAMES", '    "c": "d",\n')
    assert 'NAMES: dict[str, str] = {\n    "a": "b",\n    "c": "d",\n}\nLAST' in file.read_text()
    with pytest.raises(AssertionError, match=r"has no dictionary NAME\b"):
        register(file, "NAME", "")


@pytest.mark.parametrize(
    ("expected", "printed", "wanted"),
    [
        (["a"], "a\n", True),
        (["a"], "b\n", False),
        (["a"], "a\nb\n", False),
        (["a", "…"], "a\nb\nc\n", True),
        (["…", "c"], "a\nb\nc\n", True),
        (["n … m"], "n 12 m\n", True),
        (["n … m"], "n 12 k\n", False),
        (["(a|b)"], "a\n", False),
    ],
)
def test_output_is_compared(expected: list[str], printed: str, wanted: bool) -> None:
    assert matches(expected, printed) is wanted


@pytest.mark.parametrize(
    ("text", "error"),
    [("$ false\n", "code 1"), ("$ echo a\nb\n", "wanted:"), ("$ sleep 60 &\n", "code -2")],
)
def test_a_wrong_example_is_seen(text: str, error: str, short_folder: Path) -> None:
    reader = Reader("page", Place(short_folder), {})
    with pytest.raises(AssertionError, match=error):
        reader.take(Block(1, "console", text))
