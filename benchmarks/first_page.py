"""How long a person waits in a terminal, from typing `scrapy crawl site -a seeds=URL` to the first page on the screen.

    python benchmarks/first_page.py                       # nine crawls
    python benchmarks/first_page.py --beside ../before    # in turn with another checkout of this repository

The site is on loopback and answers at once; so the pause between robots.txt and the first page (DOWNLOAD_DELAY) is the
site's, and all else is ours. CPU is of the processes that the first page waits for, the command and its child: it is
nearly the same on a machine that has other work, seconds are not. Each crawl has a folder and a server of its own.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.goals import at_most, goals_table, goals_told
from benchmarks.meters import TICKS
from tests.crawling import Place
from tests.small_site import SmallSite, links
from tests.terminals import Terminal

ROOT = Path(__file__).resolve().parents[1]
# From the command to the first page on the screen, on a machine without other work.
GOAL_SECONDS = 2.0
LOOK_SECONDS = 0.01
MOST_SECONDS = 120.0
# The view's row of pages, once there are any.
_SHOWN = re.compile(r"pages +[█░]+ [1-9]\d* of")


class Waited(NamedTuple):
    """Seconds from the command on; `cpu` until the first page was asked for."""

    robots: float
    page: float
    screen: float
    cpu: float


def first_page(checkout: Path, delay: float) -> Waited:
    """One crawl by the code of a checkout."""
    page = links("/a", "/b", "/c")
    with (
        tempfile.TemporaryDirectory(prefix="first-page-") as folder,
        SmallSite({"*": page, "/robots.txt": links()}) as web,
        Place(Path(folder)) as place,
    ):
        scrapy = checkout / ".venv/bin/scrapy"
        given = {"ALLOW_PRIVATE_ADDRESSES": "127.0.0.0/8", "DOWNLOAD_DELAY": delay}
        settings = [word for name, value in given.items() for word in ("-s", f"{name}={value}")]
        command = [str(scrapy), "crawl", "site", "-a", f"seeds={web.root}", *settings]
        began = time.monotonic()
        with Terminal(command, place.environment(), checkout, 80) as crawl:
            _wait(lambda: bool(web.times("/")), began)
            cpu = sum(_cpu(pid) for pid in place.processes("crawl", "site"))
            _wait(lambda: bool(_SHOWN.search(crawl.text)), began)
            shown = time.monotonic()
            crawl.wait()
        asked = [web.times(path)[0] - began for path in ("/robots.txt", "/")]
    return Waited(*asked, shown - began, cpu)


def _wait(there: Callable[[], bool], began: float) -> None:
    while not there():
        if time.monotonic() - began > MOST_SECONDS:
            raise SystemExit(f"first_page: no first page within {MOST_SECONDS:.0f} s")
        time.sleep(LOOK_SECONDS)


def _cpu(pid: int) -> float:
    """User and system seconds of a process; 0.0 where it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def table(found: dict[str, list[Waited]]) -> str:
    """Medians, in brackets the least and the most."""
    lines = [f"{'':<28}" + "".join(f"{name:>26}" for name in found)]
    for place, what in enumerate(
        ("robots.txt asked, s", "first page asked, s", "on the screen, s", "CPU-s until asked")
    ):
        cells = [_spread([one[place] for one in rows]) for rows in found.values()]
        lines.append(f"{what:<28}" + "".join(f"{cell:>26}" for cell in cells))
    return "\n".join(lines)


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f} .. {max(values):.2f})"


def rounds(checkouts: dict[str, Path], many: int, delay: float) -> Iterator[tuple[str, Waited]]:
    """All crawls, the checkouts in turn."""
    for _ in range(many):
        for name, checkout in checkouts.items():
            yield name, first_page(checkout, delay)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--delay", type=float, default=1.0, help="DOWNLOAD_DELAY (default: the crawl's own, 1 s)"
    )
    parser.add_argument("--beside", type=Path, help="another checkout with its own .venv, measured in turn")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    checkouts = {"this one": ROOT, **({"beside": given.beside.resolve()} if given.beside else {})}
    found: dict[str, list[Waited]] = {name: [] for name in checkouts}
    for name, waited in rounds(checkouts, given.rounds, given.delay):
        found[name].append(waited)
    # The least: other work on the machine only ever adds.
    goal = at_most(
        "seconds to the first page on the screen, the least",
        min(one.screen for one in found["this one"]),
        GOAL_SECONDS,
    )
    if given.json:
        rows = {name: [one._asdict() for one in waits] for name, waits in found.items()}
        print(json.dumps({"found": rows, "goals": goals_told([goal])}))
    else:
        print(table(found), goals_table([goal]), sep="\n\n")
    return 0 if goal.met else 1


if __name__ == "__main__":
    sys.exit(main())
