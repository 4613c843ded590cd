"""What is not installed: each command that needs an extra says in its last line which command installs it, code 2.

The processes run in this environment with the extras' libraries hidden: `import` of one fails as if it were not there.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from rankers import extras
from tests.crawling import Place
from tests.farm import Farm

ROOT = Path(__file__).resolve().parent.parent
# Python imports it at its start, wherever it is found first.
HIDING = "import sys\nsys.modules.update(dict.fromkeys({!r}))\n"
# Modules whose name is not that of what is installed.
DISTRIBUTIONS = {"graspologic_native": "graspologic-native"}
# Brought by another library of the same extra.
COME_ALONG = {"scipy", "py4j"}


def hidden(folder: Path, *modules: str) -> dict[str, str]:
    """An environment in which these are not installed; none: no library of any extra."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(HIDING.format(list(modules) or [*extras.EXTRA_OF]))
    return {"PYTHONPATH": str(folder)}


@pytest.mark.parametrize(
    ("words", "missing", "extra"),
    [
        (["convert"], "numba", "rank"),
        (["convert"], "pyarrow", "rank"),
        (["convert"], "graspologic_native", "rank"),
        (["rank"], "numba", "rank"),
        (["rank"], "pyarrow", "rank"),
        (["rank", "--graphml", "x.graphml"], "networkx", "rank"),
        (["rank", "--mode", "rankers.reference.solve"], "networkx", "rank"),
        (["report", "-s", "DATABASE_URL=postgresql+psycopg://u@127.0.0.1:9/x"], "psycopg", "postgres"),
        (["report", "-s", "DATABASE_URL=mysql+pymysql://u@127.0.0.1:9/x"], "pymysql", "mariadb"),
    ],
)
def test_a_command_names_what_installs_it(place: Place, words: list[str], missing: str, extra: str) -> None:
    ended = place.start(*words, env=hidden(place.folder / "hidden", missing)).wait()
    ended.refused(f"{missing} is not installed; run: pip install 'lowtide[{extra}]'", code=2)
    last = ended.err.strip().splitlines()[-1]
    assert missing in last, ended.err


@pytest.mark.parametrize("words", [["crawl", "site", "-a", "seeds=https://example.org"], ["coordinate"]])
def test_a_crawl_without_its_database_driver_does_not_begin(place: Place, words: list[str]) -> None:
    ended = place.start(
        *words,
        env=hidden(place.folder / "hidden", "psycopg"),
        DATABASE_URL="postgresql+psycopg://u@127.0.0.1:9/x",
        USER_AGENT="test (+https://example.org)",
    ).wait()
    ended.refused("psycopg is not installed; run: pip install 'lowtide[postgres]'", code=2)
    assert "server started" not in ended.err


@pytest.mark.parametrize(
    ("program", "missing", "extra"),
    [
        ("rankers", "numba", "rank"),
        ("rankers", "pyarrow", "rank"),
        ("rankers.spark", "pyarrow", "rank"),
        ("rankers.spark", "pyspark", "spark"),
        ("rankers.spark", "pandas", "spark"),
    ],
)
def test_a_program_names_what_installs_it(tmp_path: Path, program: str, missing: str, extra: str) -> None:
    command = [sys.executable, "-m", program, str(tmp_path)]
    environment = {**os.environ, **hidden(tmp_path / "hidden", missing)}
    ended = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 2, ended.stderr
    assert (
        ended.stderr.strip()
        .splitlines()[-1]
        .endswith(
            f"{missing} is not installed; run: pip install 'lowtide[{extra}]' "
            f"(in a checkout: make {'setup-rank' if extra == 'rank' else 'setup-all'})"
        )
    )
    assert "Traceback" not in ended.stderr


def test_a_crawl_needs_none_of_them(place: Place) -> None:
    """Two agents, a hook's hour table, recheck by worth, and all reports on a page without one picture."""
    environment = hidden(place.folder / "hidden")
    with Farm(sites=2, pages=5, kinds=(), names=()) as farm:
        seeds = place.folder / "seeds.txt"
        seeds.write_text("\n".join(farm.seeds))
        place.start(
            *(
                "crawl",
                "site",
                "--agents",
                "2",
                "-a",
                f"seeds={seeds}",
                "-s",
                "ALLOW_PRIVATE_ADDRESSES=127.0.0.0/8",
            ),
            env=environment,
            DOWNLOAD_DELAY=0,
            SITE_SCHEDULER="hybrid",
        ).wait().succeeded()
    html = place.folder / "report.html"
    written = place.start("report", "--html", str(html), env=environment).wait().succeeded()
    assert (
        "blocks: its picture is left out: networkx is not installed" in written.err
        or "<svg" in html.read_text()
    )
    assert place.start("report", env=environment).wait().succeeded().out
    for words in (["doctor", "--help"], ["extract", "--check"], ["load", "export"], ["top", "--help"]):
        place.start(*words, env=environment).wait().succeeded()


def test_an_extra_of_each_module_brings_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    brings = {
        extra: {re.split(r"[\[<>=!~ ]", line)[0] for line in lines}
        for extra, lines in project["optional-dependencies"].items()
    }
    offences = [
        f"{module}: {extra}"
        for module, extra in extras.EXTRA_OF.items()
        if module not in COME_ALONG and DISTRIBUTIONS.get(module, module) not in brings[extra]
    ]
    assert offences == []


def test_what_is_no_library_of_an_extra_is_a_fault_as_before() -> None:
    assert extras.missing(ImportError("no such thing", name="nobody_has_this")) is None
    assert extras.missing(ImportError("no name")) is None
    extras.require("numba", "networkx")
    with pytest.raises(KeyError):
        extras.require("nobody_has_this")
