"""Pages of the docs: what they name is there, their plug-ins are proved, and what reads their examples can fail."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples import PAGES, ROOT, Step, blocks_of, matches, register, steps_of


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
    "crawler/recheck": ("NAMES", "test_recrawl.py"),
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
    """`crawler/content/html.py`, `queue.lua` below a folder …: a path in a page is a path in the project."""
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
