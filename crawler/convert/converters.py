"""Converters: processes that read ranges of sites side by side, all of them one state of the tables.

    with started(engine, folder, 2) as converters, snapshot.held(engine, converters.begin) as connection: …
        for counts in converters.read(range(many)): …

Hides the processes. Each is asked in lines of JSON and answers in lines of JSON; nothing is pickled, and one whose
coordinator is killed sees the end of its input and ends. ConvertError where one fails, with its words.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

import crawler
from crawler.convert import reading, sites, snapshot
from crawler.convert.errors import ConvertError
from crawler.convert.threads import in_order
from crawler.store.database import DatabaseError, open_database


class Converters:
    """Some processes that have the tables open; `begin` them, then let them `read`."""

    def __init__(self, processes: list[subprocess.Popen[str]]) -> None:
        self._processes = processes
        self._idle: queue.SimpleQueue[subprocess.Popen[str]] = queue.SimpleQueue()

    def begin(self, name: str) -> None:
        """Lets all of them see the state of this name (snapshot.held)."""
        for process in self._processes:
            _tell(process, name)
        for process in self._processes:
            _answer(process)
            self._idle.put(process)

    def read(self, folder: Path, ranges: Iterable[int]) -> Iterator[dict[str, int]]:
        """Puts the ranges down in `folder`, where the plan is; what `read_range` returns for each, in their order."""

        def read_one(number: int) -> dict[str, int]:
            process = self._idle.get()
            try:
                _tell(process, [str(folder), number])
                return dict(_answer(process))
            finally:
                self._idle.put(process)

        return in_order(read_one, ranges, len(self._processes))


@contextmanager
def started(engine: Engine, many: int) -> Iterator[Converters]:
    """So many converters, ready to begin; all are gone when the block ends."""
    processes: list[subprocess.Popen[str]] = []
    try:
        processes.extend(_start() for _ in range(many))
        for process in processes:
            _tell(process, engine.url.render_as_string(hide_password=False))
        for process in processes:
            _answer(process)
        yield Converters(processes)
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _start() -> subprocess.Popen[str]:
    # As this process found the package, whatever folder it was called in.
    path = [str(Path(crawler.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [sys.executable, "-m", "crawler.convert.converters"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _tell(process: subprocess.Popen[str], what: Any) -> None:
    assert process.stdin is not None
    try:
        print(json.dumps(what), file=process.stdin, flush=True)
    except BrokenPipeError:
        raise _ended(process) from None


def _answer(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise _ended(process)
    answer = json.loads(line)
    if "error" in answer:
        raise ConvertError(answer["error"])
    return answer["done"]


def _ended(process: subprocess.Popen[str]) -> ConvertError:
    return ConvertError(f"a converter ended with code {process.wait()} before its work was done")


# --- the other side -------------------------------------------------------------------------------------------


def main() -> None:
    """One converter: the database's URL, the state's name, then ranges to read, until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the coordinator's end is its end
    asked = map(json.loads, sys.stdin)
    try:
        engine = open_database(next(asked))
        with engine.connect():  # drivers load here, not while everybody waits for the state
            _done(None)
        with snapshot.joined(engine, next(asked)) as connection:
            _done(None)
            for folder, number in asked:
                plan = sites.load(Path(folder))
                _done(reading.read_range(connection, plan, Path(folder), number))
    except StopIteration:
        return
    except BrokenPipeError:
        # The coordinator was killed: nobody is there to be told, nor to read what Python would flush at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ConvertError, DatabaseError, OSError) as error:
        print(json.dumps({"error": str(error)}), flush=True)


def _done(what: Any) -> None:
    print(json.dumps({"done": what}), flush=True)


if __name__ == "__main__":
    main()
