"""The page that says where each part of the papers is: every name in its tables is there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest
from scrapy.settings import default_settings

from crawler import options
from crawler.store.tables import metadata

ROOT = Path(__file__).resolve().parent.parent
PAGE = "docs/papers.md"
PAPERS = ("000", "001", "002", "003", "004")
COLUMNS = 5
ROOMS = ("crawler", "rankers", "settings", "benchmarks")


class Row(NamedTuple):
    """One line of a paper's table."""

    line: int
    paper: str
    asked: str
    here: list[str]
    tests: list[str]
    benchmarks: list[str]


def rows_of(text: str) -> Iterator[Row]:
    """Lines of the papers' tables; a table without a paper's heading is none of them."""
    paper = ""
    for number, line in enumerate(text.splitlines(), 1):
        if heading := re.match(r"## Paper (\d{3})$", line):
            paper = heading[1]
        elif paper and line.startswith("| ") and not line.startswith("| in the paper"):
            cells = [cell.strip() for cell in line.strip("|").split(" |")]
            assert len(cells) == COLUMNS, f"{PAGE}:{number} has {len(cells)} columns"
            asked, *named, _ = cells
            here, tests, benchmarks = (re.findall(r"`([^`]+)`", cell) for cell in named)
            yield Row(number, paper, asked, here, tests, benchmarks)


ROWS = list(rows_of((ROOT / PAGE).read_text(encoding="utf-8")))


def test_what_does_it_is_there() -> None:
    assert [f"{PAGE}:{row.line} {name}" for row in ROWS for name in row.here if not is_there(name)] == []


def test_what_shows_it_is_there() -> None:
    assert [f"{PAGE}:{row.line} {name}" for row in ROWS for name in row.tests if not is_test(name)] == []


def test_what_measures_it_is_there() -> None:
    wrong = [
        f"{PAGE}:{row.line} {name}"
        for row in ROWS
        for name in row.benchmarks
        if not name.startswith("benchmarks/") or not (ROOT / name).is_file()
    ]
    assert wrong == []


def test_every_line_names_what_does_it() -> None:
    assert [f"{PAGE}:{row.line} {row.asked}" for row in ROWS if not row.here] == []


@pytest.mark.parametrize("paper", PAPERS)
def test_of_every_paper_most_is_tested_and_measured(paper: str) -> None:
    of_paper = [row for row in ROWS if row.paper == paper]
    assert len(of_paper) >= 10
    assert sum(bool(row.tests) for row in of_paper) >= 0.9 * len(of_paper)
    # A configuration key has nothing to measure, and half of 002's lines are such.
    assert sum(bool(row.benchmarks) for row in of_paper) >= 0.45 * len(of_paper)


@pytest.mark.parametrize("kind", ["formula", "figure", "table"])
def test_numbered_parts_are_all_named(kind: str) -> None:
    """By paper, the numbers that its formulas, figures and tables have."""
    numbers = {
        "formula": {"003": ["1"], "004": [str(n) for n in range(1, 14)]},
        "figure": {
            "000": list("12345"),
            "001": ["2.1", "3.1", "3.2", "3.3", "4.1", "4.2", "4.3", "4.4", "A", "B"],
            "002": list("12345678"),
            "003": [str(n) for n in range(1, 16)],
        },
        "table": {
            "001": ["2.1", "4.1", "4.2"],
            "002": list("123456"),
            "003": list("12345678"),
        },
    }[kind]
    missing = [
        f"{paper}: {kind} {number}"
        for paper, wanted in numbers.items()
        for number in wanted
        if number not in named_numbers(kind, " ; ".join(row.asked for row in ROWS if row.paper == paper))
    ]
    assert missing == []


@pytest.mark.parametrize(
    "name",
    [
        *(
            "crawler.agent.site_lease.Slots",
            "crawler.agents",
            "NO_SUCH_SETTING",
            "pages.colour",
            "scrapy fly",
        ),
        *("tests/test_crawl.py", "rankers.exact.solve.nothing"),
    ],
)
def test_a_wrong_name_is_seen(name: str) -> None:
    assert not is_there(name)


def test_a_wrong_test_is_seen() -> None:
    assert not is_test("tests/test_crawl.py::test_of_nothing")
    assert not is_test("tests/test_nothing.py")
    assert not is_test("crawler/records.py")


def named_numbers(kind: str, text: str) -> set[str]:
    """`figures 4.1 to 4.3`, `table 5`, `formula (1)`: the numbers that stand behind the word, ranges filled."""
    found: set[str] = set()
    one = r"\(?([0-9]+(?:\.[0-9]+)?|[A-Z]\b)\)?"
    word = {"formula": "formulas?", "figure": "figures?", "table": "tables?"}[kind]
    for behind in re.findall(rf"\b{word} ({one}(?:(?:, | and | to ){one})*)", text):
        numbers = re.findall(one, behind[0])
        found.update(numbers)
        for first, last in re.findall(rf"{one} to {one}", behind[0]):
            head, _, low = first.rpartition(".")
            high = last.rpartition(".")[2]
            found.update(f"{head}.{n}" if head else str(n) for n in range(int(low), int(high) + 1))
    return found


def is_there(name: str) -> bool:
    """A module's attribute, a setting, a column of the tables, or a command."""
    if name.startswith("scrapy "):
        return (ROOT / f"crawler/commands/{name.split()[1]}.py").is_file()
    if re.fullmatch(r"[A-Z][A-Z_]+", name):
        return name in options.NAMES or hasattr(default_settings, name)
    table, _, column = name.partition(".")
    if table in metadata.tables:
        return column in metadata.tables[table].c
    return table in ROOMS and is_attribute(name)


def is_attribute(name: str) -> bool:
    """Whether the longest module in the name has the rest of it; fields of plain data count."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: object = import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def is_test(name: str) -> bool:
    """A file of tests, or one of its functions."""
    file, _, function = name.partition("::")
    if not re.fullmatch(r"tests/((contracts|docs|tools)/)?test_\w+\.py", file) or not (ROOT / file).is_file():
        return False
    return not function or function in functions_of(file)


@cache
def functions_of(file: str) -> frozenset[str]:
    """The tests that a file has."""
    body = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
    found = (node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(node.name for node in found if node.name.startswith("test_"))
