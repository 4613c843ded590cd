"""What all tests share: fresh servers, databases and VAR_DIRs, and no silent skips where services are required."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest
from sqlalchemy import Engine

from crawler.store.database import migrate, open_database
from tests import warm
from tests.crawling import Place
from tests.databases import fresh_database
from tests.servers import RunningServer, start_valkey

# A shell's background job ignores SIGINT, and hands that on to every process that a test means to interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Taken out of the environment, where every other LOWTIDE_ name is a setting of the crawl; processes of xdist, which
# inherit what is left of that, are told by `pytest_configure_node`.
REQUIRED = os.environ.pop("LOWTIDE_TESTS_REQUIRE", "") == "1" or os.environ.get("CI", "").lower() == "true"

warm.use()

# Minutes each: begun last, one of them alone would be what everybody waits for.
LONG_FILES = ("test_examples.py", "test_benchmarks.py")


class MakeDatabase(Protocol):
    """Gives the URL of an empty database of a kind: sqlite, postgres or mariadb."""

    def __call__(self, kind: str) -> str: ...


class OpenTables(Protocol):
    """Opens a database of a kind: sqlite, postgres or mariadb."""

    def __call__(self, kind: str) -> Engine: ...


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long ones first; all others in their order."""
    items.sort(key=lambda item: item.path.name not in LONG_FILES)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """What a process of xdist has to know."""
    node.workerinput["required"] = REQUIRED


def is_required(config: pytest.Config) -> bool:
    """Whether a service that is not there fails the tests that need it."""
    return REQUIRED or bool(getattr(config, "workerinput", {}).get("required", False))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fails a test that was skipped for want of a service, where all services are required."""
    report = yield
    marker = item.get_closest_marker("needs")
    if is_required(item.config) and marker and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"needs {', '.join(marker.args)}, and may not be skipped here: {reason}"
    return report


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[RunningServer]:
    """A server of the test's own."""
    folder = tmp_path / "valkey"
    folder.mkdir()
    server = start_valkey(folder)
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A VAR_DIR of the test's own for real commands; nothing of theirs may be left at its end."""
    with Place(tmp_path) as own:
        yield own


@pytest.fixture
def make_database(tmp_path: Path) -> Iterator[MakeDatabase]:
    """Empty databases, gone after the test."""
    with ExitStack() as stack:
        yield lambda kind: stack.enter_context(fresh_database(kind, tmp_path))


@pytest.fixture
def fresh(make_database: MakeDatabase) -> Iterator[OpenTables]:
    """Engines for databases without tables."""
    with ExitStack() as stack:

        def opened(kind: str) -> Engine:
            engine = open_database(make_database(kind))
            stack.callback(engine.dispose)
            return engine

        yield opened


@pytest.fixture
def filled(fresh: OpenTables) -> OpenTables:
    """Engines for databases with empty tables."""

    def made(kind: str) -> Engine:
        engine = fresh(kind)
        migrate(engine)
        return engine

    return made
