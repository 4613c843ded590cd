"""The house's own rules: who may import whom, what must be named, documented and shipped, what may not stand here.

Rules are data at the top; every check is a function that lists offences as `file:line what`, so that a failing
test says all of them at once. The last tests of a group feed a check with an offence, so that it is known to bite.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from crawler import options
from crawler.queue import script
from settings import document
from tests.examples import PAGES
from tests.farm import Farm
from tests.servers import RunningServer

ROOT = Path(__file__).resolve().parent.parent
OURS = ("crawler", "rankers", "settings")

# Everybody may import these: records, left_out and printable know nothing, options and engine know records at most.
BASE = frozenset({"records", "left_out", "options", "engine", "printable", "disk", "release"})
# Room of crawler/ -> rooms it may import, besides BASE and itself. A room that is not named here is refused.
MAY_IMPORT: dict[str, frozenset[str]] = {
    "records": frozenset(),
    "printable": frozenset(),
    "release": frozenset(),
    "left_out": frozenset(),
    "disk": frozenset(),
    "states": frozenset({"records"}),
    "options": frozenset({"records"}),
    "engine": frozenset({"records"}),
    "urls": frozenset(),
    "queue": frozenset(),
    "fetch": frozenset({"urls"}),
    "robots": frozenset({"urls"}),
    "content": frozenset({"urls"}),
    "status": frozenset({"queue", "urls"}),
    "schedulers": frozenset({"records", "states"}),
    "agent": frozenset({"queue", "urls", "fetch", "robots", "content", "states", "status.health"}),
    "spiders": frozenset({"agent"}),
    "archive": frozenset({"agent", "queue", "urls", "content", "fetch", "robots"}),
    "pipelines": frozenset({"agent", "archive", "content", "fetch", "queue.results"}),
    "local": frozenset({"queue"}),
    "store": frozenset({"urls", "states", "status.health"}),
    "planning": frozenset({"queue", "urls", "robots.rules", "schedulers", "store"}),
    "recheck": frozenset({"queue", "urls", "states", "schedulers", "store"}),
    "recrawl": frozenset({"recheck"}),
    # A frontier is made of a site's pages where it is opened again, and read where queue and tables are compared.
    "reconcile": frozenset({"queue", "urls", "store", "local", "agent.frontier"}),
    "coordinator": frozenset({"queue", "store", "planning", "recheck", "reconcile", "schedulers", "states"}),
    "admin": frozenset({"queue", "urls", "store", "recheck", "reconcile", "local"}),
    "convert": frozenset({"store", "urls"}),
    "views": frozenset({"queue", "store", "planning", "local", "admin"}),
    "reports": frozenset(
        {"queue", "urls", "store", "planning", "recheck", "reconcile", "coordinator", "local", "views"}
    ),
    # Part of the commands in all but its place: it may name the errors that they turn into one line.
    "command": frozenset({"admin", "local", "queue", "store"}),
    "commands": frozenset(
        {
            "admin",
            "agent",
            "archive",
            "command",
            "convert",
            "coordinator",
            "fetch",
            "local",
            "planning",
            "pipelines",
        }
        | {"queue", "recheck", "reconcile", "reports", "schedulers", "spiders", "states", "status", "store"}
        | {"urls", "views"}
    ),
}
# These import nothing of ours but what is named, not even BASE.
PURE = frozenset(
    {
        "records",
        "left_out",
        "printable",
        "disk",
        "release",
        "states",
        "options",
        "engine",
        "schedulers",
        "recrawl",
    }
)
# Room -> what of rankers it may import. What names a missing extra stands there, as rankers import nothing of ours.
RANKERS_FOR = {
    "commands": "rankers",
    "convert": "rankers",
    "command": "rankers.extras",
    "store": "rankers.extras",
}
FORBIDDEN_NAMES = frozenset({"utils", "util", "common", "helpers", "helper", "misc"})
FORBIDDEN_MODULES = frozenset({"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"})
# What takes long to import or much memory, and who pays for it: never a command line's help, and of an agent
# only what a page needs. Scrapy itself brings lxml, Twisted and tldextract, so forbidding those saves nothing.
HEAVY = ("sqlalchemy", "alembic", "numpy", "networkx", "rich", "psycopg", "pymysql", "pyarrow", "numba")
# Settings that stand in base.py and have no effect yet: their comments say so, and README names what is missing.
NO_EFFECT_YET: set[str] = set()


# Files that may import less than their room -> all that they may import; the first that fits counts.
STRICTER: dict[str, frozenset[str]] = {
    # The model of changing pages knows no tables and no queue; these four connect it with them.
    r"crawler/recheck/(?!planner|revisits|change_model|report)": frozenset({"records", "states"}),
    r"crawler/status/health\.py": frozenset({"records"}),
    # Tables are read by load_store alone.
    r"crawler/planning/(?!load_store)": BASE | {"queue", "urls", "robots.rules", "schedulers"},
}


# Libraries that are imported and not declared -> the dependency that cannot be without them.
COMES_WITH = {
    "brotli": "scrapy",
    "certifi": "tldextract",
    "idna": "tldextract",
    "markupsafe": "jinja2",
    "pycares": "aiodns",
    "pydispatch": "scrapy",
    "twisted": "scrapy",
    "w3lib": "scrapy",
}


# Modules whose name is not that of their distribution.
MODULE_OF = {"cld3_py": "gcld3"}
# Libraries that an extra brings -> where they may be imported: nothing of these is needed by a crawl.
OF_AN_EXTRA = {
    "graspologic_native": ("rankers/communities.py",),
    "networkx": ("rankers/reference.py", "crawler/reports/blocks.py"),
    "numba": ("rankers/compiling.py", "crawler/recheck/compiling.py"),
    "py4j": ("rankers/spark.py",),
    "pyarrow": ("rankers/", "crawler/convert/", "crawler/commands/rank.py"),
    "pyspark": ("rankers/spark.py",),
}


class Import(NamedTuple):
    """One module that a file of ours names in an import."""

    file: str
    line: int
    module: str  # full dotted name, the imported name included
    typing_only: bool


# --- who may import whom ----------------------------------------------------------------------------------


def test_imports_go_one_way() -> None:
    assert [
        f"{found.file}:{found.line} {room_of(found.file)} may not import {found.module}"
        for found in all_imports()
        if found.file.startswith("crawler/") and not may_import(found)
    ] == []


def test_rooms_have_no_cycle_even_for_type_checkers() -> None:
    """Names for annotations are free, as long as no two rooms need each other: that would be one room."""
    graph: dict[str, set[str]] = {}
    for found in all_imports():
        there = room_of_module(found.module)
        if there and found.file.startswith("crawler/") and there not in BASE:
            graph.setdefault(room_of(found.file), set()).add(there)
    assert cycle_of(graph) == []


def test_rankers_import_nothing_of_ours() -> None:
    offences = [
        f"{found.file}:{found.line} {found.module}"
        for found in all_imports()
        if found.file.startswith("rankers/")
        and found.module.split(".")[0] in ("crawler", "settings", "scrapy")
    ]
    assert offences == []


def test_the_architecture_page_tells_the_same_rules() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    told: dict[str, set[str]] = {}
    for rooms, allowed in re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| (.*) \|$", page, re.MULTILINE):
        for room in re.findall(r"`(\w+)`", rooms):
            told[room] = set(re.findall(r"`([\w.]+)`", allowed))
    there = {room_of(file) for file in our_files() if file.startswith("crawler/")}
    rules = {
        room: {one for one in allowed if one.split(".")[0] in there}
        for room, allowed in MAY_IMPORT.items()
        if room in there - {"command", "commands"}
    }
    assert {room: told.get(room) for room in rules} == rules


def test_every_room_has_its_rule() -> None:
    rooms = {room_of(file) for file in our_files() if file.startswith("crawler/")} - {""}
    assert rooms - set(MAY_IMPORT) == set(), "a new room needs its line in MAY_IMPORT"


@pytest.mark.parametrize(
    ("file", "module"),
    [
        ("crawler/agent/new.py", "crawler.store.tables.pages"),
        ("crawler/queue/new.py", "crawler.agent.agent.Agent"),
        ("crawler/pipelines/new.py", "crawler.store.database.transaction"),
        ("crawler/schedulers/new.py", "crawler.options.Options"),
        ("crawler/records.py", "crawler.options"),
        ("crawler/store/new.py", "crawler.command.CommandError"),
        ("crawler/store/new.py", "crawler.commands.seed"),
        ("crawler/agent/new.py", "settings.base"),
        ("crawler/recheck/new.py", "crawler.store.tables.pages"),
        ("crawler/recheck/new.py", "crawler.options.Options"),
        ("crawler/planning/new.py", "crawler.store.tables.pages"),
        ("crawler/reports/new.py", "crawler.agent.agent"),
    ],
)
def test_a_wrong_import_is_seen(file: str, module: str) -> None:
    assert not may_import(Import(file, 1, module, typing_only=False))


def test_a_cycle_is_seen() -> None:
    assert cycle_of({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == ["a", "b", "c", "a"]


# --- names, docstrings, forbidden modules -----------------------------------------------------------------


def test_no_drawer_for_everything() -> None:
    assert [file for file in our_files() if FORBIDDEN_NAMES & set(Path(file).with_suffix("").parts)] == []


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        file for file in our_files() if (ROOT / file).stat().st_size and not ast.get_docstring(tree(file))
    ]
    assert silent == []
    empty = [file for file in our_files() if not (ROOT / file).stat().st_size]
    assert [file for file in empty if Path(file).name != "__init__.py"] == []


def test_nothing_is_pickled() -> None:
    offences = [
        f"{found.file}:{found.line} {found.module}"
        for found in (*all_imports(), *imports_below("tests"), *imports_below("benchmarks"))
        if found.module.split(".")[0] in FORBIDDEN_MODULES
    ]
    assert offences == []


def test_the_import_reader_sees_every_form(tmp_path: Path) -> None:
    source = (
        "import pickle as p\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import numpy\n"
        "def later():\n    from . import near\n    from crawler.agent import agent\n"
        "    import_module('crawler.store')\n"
    )
    found = list(imports_of("crawler/queue/new.py", ast.parse(source)))
    assert [(one.module, one.typing_only) for one in found] == [
        ("pickle", False),
        ("typing.TYPE_CHECKING", False),
        ("numpy", True),
        ("crawler.queue.near", False),
        ("crawler.agent.agent", False),
        ("crawler.store", False),
    ]


# --- settings ---------------------------------------------------------------------------------------------


def test_every_option_stands_in_base_with_a_reason_of_its_own() -> None:
    """Neighbours may share a reason where they share a word (FLUSH_SECONDS, FLUSH_RECORDS)."""
    reasons = {setting.name: entry for entry in document.entries(base_source()) for setting in entry.settings}
    assert sorted(options.NAMES - set(reasons)) == [], "options that settings/base.py does not set"
    assert sorted(name for name in options.NAMES if not reasons[name].reason) == []
    shared = [
        [setting.name for setting in reasons[name].settings]
        for name in sorted(options.NAMES)
        if not set.intersection(*(set(s.name.split("_")) for s in reasons[name].settings))
    ]
    assert shared == [], "settings without a comment of their own"


def test_base_sets_nothing_that_nobody_knows() -> None:
    from scrapy.settings import default_settings

    names = {setting.name for entry in document.entries(base_source()) for setting in entry.settings}
    assert sorted(names - options.NAMES - set(dir(default_settings))) == []


def test_the_settings_page_is_fresh() -> None:
    written = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
    assert written == document.page(base_source()), "docs/settings.md is stale: run `make docs`"


def test_the_settings_page_names_every_option() -> None:
    written = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
    assert [name for name in sorted(options.NAMES) if f"**`{name}`**" not in written] == []


def test_what_has_no_effect_says_so() -> None:
    """One that is given its effect loses the remark, here and in base.py."""
    silent = {
        setting.name
        for entry in document.entries(base_source())
        if "No effect yet" in " ".join(entry.reason.split())
        for setting in entry.settings
    }
    assert silent == NO_EFFECT_YET


def test_a_reason_is_the_comment_above(tmp_path: Path) -> None:
    source = '# --- One ---\n\n# Why.\n# Really.\nA_B = 1\nA_C = {\n    2: 3,\n}\n\n# --- Two ---\n\nD = ""\n'
    assert document.entries(source) == [
        document.Entry(
            "One",
            "Why.\nReally.",
            (document.Setting("A_B", "1"), document.Setting("A_C", "{\n    2: 3,\n}")),
        ),
        document.Entry("Two", "", (document.Setting("D", '""'),)),
    ]


# --- commands and dependencies are told -------------------------------------------------------------------


def test_every_command_is_shown_with_an_example() -> None:
    shown = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    examples = set(re.findall(r"^\$ .*?\bscrapy ([a-z]+)", shown, re.MULTILINE))
    assert commands() - examples == set()


def test_no_text_names_a_command_that_is_not_there() -> None:
    """Messages and pages send nobody to a command that does not exist."""
    stock = {"settings", "list", "shell", "fetch", "version", "startproject", "genspider", "bench", "check"}
    named = re.compile(r"(?:`|\$ |'|\")scrapy ([a-z]+)\b")
    offences = [
        f"{file}: scrapy {word}"
        for file in tracked()
        if file.endswith((".py", ".md", "Makefile")) and not file.startswith("tests/")
        for word in named.findall(text_of(file))
        if word not in commands() | stock
    ]
    assert offences == []


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(d for e in project["optional-dependencies"].values() for d in e)]
    names = {re.split(r"[\[<>=!~ ]", line)[0] for line in wanted} - {project["name"]}
    reasons = (ROOT / "docs/decisions/0001-dependencies.md").read_text(encoding="utf-8")
    assert sorted(name for name in names if f"| `{name}` |" not in reasons) == []


def test_every_library_in_use_is_a_dependency_or_comes_with_one() -> None:
    """Of the packages themselves; what tests use is installed beside them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {re.split(r"[\[<>=!~ ]", line)[0].replace("-", "_") for line in project["dependencies"]}
    declared = {MODULE_OF.get(name, name) for name in declared}
    known = declared | set(COMES_WITH) | set(sys.stdlib_module_names) | set(OURS)
    offences = [
        f"{found.file}:{found.line} {found.module}"
        for found in all_imports()
        if found.module.split(".")[0] not in known
        and not found.file.startswith(OF_AN_EXTRA.get(found.module.split(".")[0], ("nowhere",)))
    ]
    assert offences == []
    assert {bringer for bringer in COMES_WITH.values() if bringer not in declared} == set()


# --- what is shipped --------------------------------------------------------------------------------------


def test_package_data_is_readable_as_scrapyd_reads_it() -> None:
    assert script.source().startswith("#!lua")


def test_all_package_data_is_declared() -> None:
    """What is no Python below a package of ours must match a pattern in pyproject.toml, or no egg has it."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    declared = tools["package-data"]["crawler"]
    undeclared = [
        file
        for file in tracked()
        if file.startswith("crawler/") and not file.endswith(".py")
        if not any(Path(file).match(pattern.removeprefix("**/")) for pattern in declared)
    ]
    assert undeclared == []


def test_no_file_knows_the_place_where_it_was_made() -> None:
    """No machine's paths, no package host's name: what is tracked works anywhere."""
    offences = [
        f"{file}:{number} {line.strip()[:80]}"
        for file in tracked()
        for number, line in enumerate(text_of(file).splitlines(), 1)
        if file != "tests/test_house.py" and PLACES.search(line)
    ]
    assert offences == []


# A home folder, a temporary file's fixed name, an index URL. `/root` only as a first part.
PLACES = re.compile(
    r"(?<![\w.}/-])/(?:root|home/\w+|Users/\w+)/\w|(?:pypi|pythonhosted|artifactory|nexus)\.[a-z]+(?:\.[a-z]+)*/"
    r"|--(?:extra-)?index-url|index-url\s*="
)


@pytest.mark.parametrize(
    "line",
    [
        "see /root/x",
        "'/Users/me/x'",
        "at /home/me/x",
        "https://pypi.example/simple",
        "--extra-index-url https://h",
    ],
)
def test_a_place_is_seen(line: str) -> None:
    assert PLACES.search(line)


# --- what is imported when --------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["--help"], ["crawl", "--help"], ["doctor", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    assert heavy_in(run_scrapy(*arguments).stderr) == []


def test_an_agent_never_imports_what_only_a_coordinator_needs(valkey: RunningServer, tmp_path: Path) -> None:
    """A whole crawl of one agent: neither the database nor arrays."""
    with Farm(sites=1, pages=2, kinds=(), names=()) as farm:
        settings = {
            "REDIS_URL": valkey.url,
            "VAR_DIR": str(tmp_path),
            "ALLOW_PRIVATE_ADDRESSES": "127.0.0.0/8",
            "DOWNLOAD_DELAY": "0",
        }
        given = [word for name, value in settings.items() for word in ("-s", f"{name}={value}")]
        ended = run_scrapy("crawl", "site", "-a", f"seeds={farm.seeds[0]}", *given)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert "crawler.agent.agent" in imported(ended.stderr), "the crawl did not run as expected"
    assert heavy_in(ended.stderr) == []


def test_a_heavy_import_is_seen() -> None:
    ended = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import numpy"], capture_output=True, text=True, check=True
    )
    assert heavy_in(ended.stderr) == ["numpy"]


# --- merges -----------------------------------------------------------------------------------------------

MERGE_MARKS = re.compile(r"^(?:<{7}|>{7}|\|{7}) ", re.MULTILINE)


def merge_marks_in(file: str, text: str) -> list[str]:
    return [f"{file}:{text.count(chr(10), 0, found.start()) + 1}" for found in MERGE_MARKS.finditer(text)]


def test_no_file_has_marks_of_a_merge() -> None:
    assert [mark for file in tracked() for mark in merge_marks_in(file, text_of(file))] == []


def test_marks_of_a_merge_are_seen() -> None:
    marks = "\n".join(("a", "<" * 7 + " HEAD", "b", "=" * 7, "c", ">" * 7 + " f7f60d0 (Words)", ""))
    assert merge_marks_in("docs/x.md", marks) == ["docs/x.md:2", "docs/x.md:6"]


# --- how the rules are read -------------------------------------------------------------------------------


@cache
def tracked() -> tuple[str, ...]:
    """Every file that is part of the project: tracked, or new and not ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return tuple(sorted(name for name in listed.split("\0") if name and (ROOT / name).is_file()))


def our_files() -> list[str]:
    return [
        file for file in tracked() if file.endswith(".py") and file.startswith(tuple(f"{o}/" for o in OURS))
    ]


@cache
def text_of(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8", errors="replace")


@cache
def tree(file: str) -> ast.Module:
    return ast.parse(text_of(file))


def base_source() -> str:
    return text_of("settings/base.py")


def commands() -> set[str]:
    return {Path(f).stem for f in our_files() if re.fullmatch(r"crawler/commands/[a-z]\w*\.py", f)}


@cache
def all_imports() -> tuple[Import, ...]:
    return tuple(found for file in our_files() for found in imports_of(file, tree(file)))


def imports_below(folder: str) -> Iterator[Import]:
    for file in tracked():
        if file.endswith(".py") and file.startswith(f"{folder}/"):
            yield from imports_of(file, tree(file))


def imports_of(file: str, module: ast.Module) -> Iterator[Import]:
    """Every import of a file, also those inside functions and by import_module with a plain name."""
    typing_only = {
        id(inner)
        for node in ast.walk(module)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    nodes = sorted((n for n in ast.walk(module) if hasattr(n, "lineno")), key=lambda n: n.lineno)
    for node in nodes:
        for name in _named_by(node, file):
            yield Import(file, node.lineno, name, id(node) in typing_only)


def _named_by(node: ast.AST, file: str) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        package = Path(file).parent.parts[: len(Path(file).parent.parts) - node.level + 1]
        start = [*package] if node.level else []
        return [".".join(filter(None, [*start, node.module, alias.name])) for alias in node.names]
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
        first = node.args[0] if node.args else None
        return [first.value] if isinstance(first, ast.Constant) and isinstance(first.value, str) else []
    return []


def room_of(file: str) -> str:
    """crawler/content/html.py -> content; crawler/records.py -> records; crawler/__init__.py -> ''."""
    name = Path(file).parts[1].removesuffix(".py")
    return "" if name == "__init__" else name


def room_of_module(module: str) -> str:
    first, _, rest = module.partition(".")
    return rest.split(".")[0] if first == "crawler" else ""


def may_import(found: Import) -> bool:
    """Whether the rules allow it. Names for annotations alone are free but for commands and settings."""
    if found.module.split(".")[0] in ("settings", "rankers"):
        return found.module.startswith(RANKERS_FOR.get(room_of(found.file), "nothing"))
    here, there = room_of(found.file), room_of_module(found.module)
    if there in ("", here):
        return True
    if found.typing_only:
        return there != "commands"
    if here not in MAY_IMPORT:
        return False
    allowed = MAY_IMPORT[here] | (frozenset() if here in PURE else BASE)
    allowed = next((less for files, less in STRICTER.items() if re.match(files, found.file)), allowed)
    rest = found.module.removeprefix("crawler.")
    return any(rest == room or rest.startswith(f"{room}.") for room in allowed)


def cycle_of(graph: dict[str, set[str]]) -> list[str]:
    """One way round through the graph; empty where there is none."""
    done: set[str] = set()

    def walk(node: str, path: list[str]) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        for following in sorted(graph.get(node, set()) - {node}):
            if found := walk(following, [*path, node]):
                return found
        done.add(node)
        return []

    return next((found for node in sorted(graph) if (found := walk(node, []))), [])


def run_scrapy(*arguments: str) -> subprocess.CompletedProcess[str]:
    """One command in a process of its own; its imports are in stderr."""
    command = [sys.executable, "-X", "importtime", "-m", "scrapy", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def imported(stderr: str) -> set[str]:
    """Modules that -X importtime told of."""
    return set(re.findall(r"^import time:\s+\d+ \|\s+\d+ \|\s+(\S+)$", stderr, re.MULTILINE))


def heavy_in(stderr: str) -> list[str]:
    found = imported(stderr)
    return [name for name in HEAVY if name in found]
