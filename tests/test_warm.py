"""A forked command is to others what a started one is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import warm
from tests.crawling import ROOT, Place, Run, parent_of
from tests.servers import eventually
from tests.small_site import SmallSite, links

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="commands are forked on Linux alone")
both = pytest.mark.parametrize("fresh", [False, True], ids=["forked", "started"])


def seen(run: Run, of: str) -> list[str]:
    """Its words in /proc."""
    return [word.decode() for word in Path(f"/proc/{run.pid}/{of}").read_bytes().split(b"\0") if word]


@both
def test_what_others_see_of_it(place: Place, fresh: bool) -> None:
    run = place.start("dashboard", fresh=fresh, env={"OF_ITS_OWN": "1 2"}, DASHBOARD_PORT=0)
    assert warm.is_forked(run.pid) is not fresh
    eventually(lambda: "http://" in run.out, "it serves")
    wanted = place.environment({"OF_ITS_OWN": "1 2"})
    assert dict(word.split("=", 1) for word in seen(run, "environ")) == wanted
    command = seen(run, "cmdline")
    assert command[command.index(run.command[0]) :] == run.command
    assert Path(f"/proc/{run.pid}/cwd").resolve() == ROOT
    assert Path(f"/proc/{run.pid}/fd/0").readlink() == Path(os.devnull)
    assert place.processes("dashboard") == [run.pid]
    assert run.process.poll() is None
    run.end(signal.SIGKILL)
    assert run.code == -signal.SIGKILL
    assert place.processes("dashboard") == []


@both
@pytest.mark.parametrize(
    ("words", "code", "out", "err"),
    [
        (("version",), 0, "Scrapy ", ""),
        (("nosuch",), 2, "Unknown command: nosuch", ""),
        (("report", "nosuch"), 2, "", "nosuch"),
        (("runspider", "raises.py"), 1, "", 'raise RuntimeError("as it is read")'),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_how_it_ends(
    place: Place, fresh: bool, words: tuple[str, ...], code: int, out: str, err: str
) -> None:
    (place.folder / "raises.py").write_text('raise RuntimeError("as it is read")')
    (place.folder / "scrapy.cfg").write_text((ROOT / "scrapy.cfg").read_text())
    run = place.start(*words, fresh=fresh, cwd=place.folder).wait()
    assert (run.code, out in run.out, err in run.err) == (code, True, True), (run.out, run.err)


LIVING = ("dashboard", "-s", "DASHBOARD_PORT=0")


@pytest.mark.parametrize(
    "env",
    [{"PYTHONVERBOSE": "1"}, {"PYTHONOPTIMIZE": "1"}, {"LONG": "x" * warm.ROOM}],
    ids=lambda env: next(iter(env)),
)
def test_another_start_of_python_or_too_long_an_environment_is_started(
    place: Place, env: dict[str, str]
) -> None:
    run = place.start(*LIVING, env=env)
    assert not warm.is_forked(run.pid)
    run.process.kill()


@pytest.mark.parametrize(
    ("file", "forked"),
    [
        ("own_module.py", True),
        ("__pycache__/own_module.pyc", True),
        ("sitecustomize.py", False),
        ("rich.py", False),
        ("crawler/__init__.py", False),
    ],
)
def test_modules_in_place_of_those_that_are_imported_are_started(
    place: Place, file: str, forked: bool
) -> None:
    folder = place.folder / "own"
    (folder / file).parent.mkdir(parents=True)
    (folder / file).touch()
    run = place.start(*LIVING, env={"PYTHONPATH": str(folder)})
    assert warm.is_forked(run.pid) is forked
    run.process.kill()


OWN_SPIDER = """
from crawler.spiders.site import SiteSpider


class Own(SiteSpider):
    name = "own"
"""


@pytest.mark.parametrize("own_modules", [False, True])
def test_what_a_crawl_starts_is_forked_too(place: Place, own_modules: bool) -> None:
    """As its child; a spider of a folder in PYTHONPATH, where compiled files come to lie, changes nothing."""
    given: dict[str, Any] = {}
    if own_modules:
        (place.folder / "own_spider.py").write_text(OWN_SPIDER)
        (place.folder / "__pycache__").mkdir()
        env = {"PYTHONPATH": str(place.folder)}
        given = {"spider": "own", "env": env, "SPIDER_MODULES": "own_spider"}
    with SmallSite({"*": links()}) as site:
        run = place.start_crawl([site.root], "--when-idle", "wait", **given)
        eventually(lambda: place.processes("coordinate"), "it has a coordinator")
        (coordinator,) = place.processes("coordinate")
        assert warm.is_forked(coordinator)
        assert parent_of(coordinator) == run.pid
        run.end().succeeded()


def test_a_shell_forks_too(place: Place) -> None:
    with warm.shim() as folder:
        env = place.environment({"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"})
        words = "scrapy version; scrapy nosuch; echo code $?"
        said = subprocess.run(["bash", "-c", words], env=env, cwd=ROOT, capture_output=True, text=True).stdout
        assert said.startswith("Scrapy ")
        assert said.endswith("code 2\n")
        for number, code in ((signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)):
            shell = subprocess.Popen(
                ["scrapy", *LIVING], env=env, cwd=ROOT, stdout=subprocess.PIPE, text=True
            )
            assert shell.stdout is not None
            with shell.stdout:
                assert "http://" in shell.stdout.readline()
                (forked,) = set(place.processes("dashboard")) - {shell.pid}
                assert warm.is_forked(forked)
                # What a shell is sent it hands on; nobody can hand on SIGKILL.
                os.kill(forked if number == signal.SIGKILL else shell.pid, number)
                assert shell.wait() == code
