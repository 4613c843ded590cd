"""A forked command is to others what a started one is."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests import warm
from tests.crawling import ROOT, Place, Run
from tests.servers import eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="commands are forked on Linux alone")
both = pytest.mark.parametrize("fresh", [False, True], ids=["forked", "started"])


def seen(run: Run, of: str) -> list[str]:
    """Its words in /proc."""
    return [word.decode() for word in Path(f"/proc/{run.pid}/{of}").read_bytes().split(b"\0") if word]


@both
def test_what_others_see_of_it(place: Place, fresh: bool) -> None:
    run = place.start("dashboard", fresh=fresh, env={"OF_ITS_OWN": "1 2"}, DASHBOARD_PORT=0)
    assert warm.is_forked(run.process) is not fresh
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


def test_what_python_reads_at_its_start_is_read(place: Place) -> None:
    run = place.start("version", env={"PYTHONVERBOSE": "1"}).wait()
    assert not warm.is_forked(run.process)
    assert "import 'scrapy'" in run.err


def test_a_long_environment_starts_as_usual(place: Place) -> None:
    run = place.start("version", env={"LONG": "x" * warm.ROOM}).wait()
    assert (run.code, warm.is_forked(run.process)) == (0, False)
