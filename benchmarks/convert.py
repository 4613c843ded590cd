"""What converting takes: from SQLite's tables to dense ids, Parquet, the graph and load files.

    python benchmarks/convert.py [--pages 1000000 | --large] [--processes 1,2] [--servers] [--json]

Synthetic tables, seeded: sites of power-law sizes (the largest has 2 % of the pages) in the order of arrival, 64 of
them interleaved; of their rows 84 % are pages, 8 % duplicates, 5 % redirects (a fifth of them to another site), 3 %
dead, and one page in a hundred has the bytes of a page of another site. Ten links a page, of which a fifth lead to what
was never fetched; about 300 bytes of text. Texts are drawn from 20,000, so Parquet is smaller here than with real ones.

Beside it stands the machine's own bare reader: the same rows and columns by sqlite3's `fetchmany`, in the same order,
and nothing done with them. Each conversion is a process of its own, so that its memory is its own. With `--servers` the
load files go into PostgreSQL and MariaDB too, where they answer on this machine.

Exit code 1: a goal is missed, or two conversions gave other bytes. Rates are owed at a million rows and above.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from sqlalchemy import URL, make_url

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.goals import Goal, goals_table, goals_told  # noqa: E402
from crawler.convert.reading import BATCH_ROWS  # noqa: E402
from crawler.convert.spill import TEXTS  # noqa: E402
from crawler.records import hash64  # noqa: E402
from crawler.store.database import migrate, open_database  # noqa: E402
from crawler.store.rows import PAGE_COLUMNS  # noqa: E402
from rankers.folder import read_manifest  # noqa: E402
from tests.databases import fresh_database  # noqa: E402

LARGE = 10_000_000
# Below, what begins and ends a conversion counts for more than what rows take.
OWED_ROWS = 1_000_000
# Of the tables that are converted first, so that everything is compiled and loaded.
SMALL = 2_000
LINKS = 10
INTERLEAVED = 64
# Of a hundred pages of a site.
DUPLICATES, REDIRECTS, DEAD = 8, 5, 3
COPIED = 50  # place of the one that has the bytes of its like on other sites
WORDS = 20_000
# The bare reader asks for what convert needs of a row.
READ = ("site_id", "url_hash", "outcome", "duplicate_of", "redirect", "links", *TEXTS.names)

LEXICON = np.array(
    [
        "tide",
        "harbour",
        "lantern",
        "ferry",
        "chart",
        "signal",
        "anchor",
        "rope",
        "mist",
        "gull",
        "pier",
        "salt",
        "wave",
    ]
)


# One conversion: seconds of each stage, peak memory of it while it reads and in all, of the largest converter, figures.
CONVERSION = """
import json, resource, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from crawler.convert.convert import Wishes, convert
from crawler.store.database import open_database
stages, last, reading = {}, None, 0.0
def progress(stage, done, total):
    global last, reading
    now = time.perf_counter()
    if stage == "reading pages":
        reading = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    stages[stage] = stages.get(stage, 0.0) + now - last
    last = now
wishes = Wishes(processes=int(sys.argv[4]), load=tuple(filter(None, sys.argv[5].split(","))))
small = open_database(f"sqlite:///{sys.argv[6]}")
last = time.perf_counter()
convert(small, Path(sys.argv[3] + "-warm"), wishes, progress)  # compiles, and loads what is loaded once
stages.clear()
engine = open_database(f"sqlite:///{sys.argv[2]}")
began = last = time.perf_counter()
figures = convert(engine, Path(sys.argv[3]), wishes, progress)
ended = time.perf_counter()
stages["manifest"] = ended - last
memory = [resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
mib = {"reading": reading, "coordinator": memory[0], "converter": memory[1]}
print(json.dumps({"seconds": ended - began, "stages": stages, "mib": mib, "figures": figures}))
"""


class Reading(NamedTuple):
    """What the bare reader took."""

    rows: int
    seconds: float


# --- the tables ---


def site_sizes(pages: int, random: np.random.Generator) -> np.ndarray:
    """Pages of each site: a power law, the largest with 2 % of all."""
    sizes: list[np.ndarray] = []
    left = pages
    while left > 0:
        drawn = np.minimum((random.pareto(0.9, 10_000) * 2 + 1).astype(np.int64), max(1, pages // 50))
        drawn = drawn[np.cumsum(drawn) <= left] if drawn.sum() > left else drawn
        sizes.append(drawn if len(drawn) else np.array([left]))
        left -= int(sizes[-1].sum())
    return np.concatenate(sizes)


def arrivals(sizes: np.ndarray) -> np.ndarray:
    """Rows (numbered site by site) in the order in which they come, 64 sites at a time."""
    starts = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    parts = []
    for first in range(0, len(sizes), INTERLEAVED):
        some = range(first, min(first + INTERLEAVED, len(sizes)))
        turns = np.concatenate([np.arange(sizes[site]) for site in some])
        rows = np.concatenate([starts[site] + np.arange(sizes[site]) for site in some])
        parts.append(rows[np.argsort(turns, kind="stable")])
    return np.concatenate(parts)


def place_of(number: int) -> int:
    """Where a site's page of this number stands in a hundred, the same mixture for small sites; -1: its first."""
    return number * 37 % 100 if number else -1


def kind_of(number: int) -> str:
    """What became of a site's page of this number."""
    place = place_of(number)
    if place < 0 or place >= DUPLICATES + REDIRECTS + DEAD:
        return "stored"
    return "duplicate" if place < DUPLICATES else "redirected" if place < DUPLICATES + REDIRECTS else "failed"


class Web:
    """All rows of the synthetic tables, made as they are asked for."""

    def __init__(self, pages: int, seed: int = 7) -> None:
        random = np.random.default_rng(seed)
        self.sizes = site_sizes(pages, random)
        self._site = np.repeat(np.arange(len(self.sizes)), self.sizes)
        self._start = np.concatenate(([0], np.cumsum(self.sizes)))
        self.order = arrivals(self.sizes)
        self.hashes = np.fromiter(map(hash64, map(self.url, range(pages))), np.int64, pages)
        self._words = [f"{' '.join(random.choice(LEXICON, 30))}" for _ in range(WORDS)]
        self._random = random

    def name(self, site: int) -> str:
        """The site's name; three sites share a domain."""
        return f"https://www{site % 3}.site-{site // 3:06}.example"

    def url(self, row: int) -> str:
        """The URL of a row."""
        site = int(self._site[row])
        number = row - int(self._start[site])
        path = f"/section-{number % 17}/page-{number:07}.html" if number else "/"
        return self.name(site) + path

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """In the order of arrival, columns as in PAGE_COLUMNS."""
        for first in range(0, len(self.order), 50_000):
            rows = self.order[first : first + 50_000]
            links = self._links(rows)
            for row, packed in zip(rows.tolist(), links, strict=True):
                yield self._row(row, packed)

    def _links(self, rows: np.ndarray) -> list[bytes]:
        """Three quarters within the site, a fifth to what was never fetched."""
        random, many = self._random, (len(rows), LINKS)
        site = self._site[rows]
        near = self._start[site][:, None] + (random.random(many) * self.sizes[site][:, None]).astype(np.int64)
        far = random.integers(0, len(self.hashes), many)
        found = self.hashes[np.where(random.random(many) < 0.75, near, far)].view(np.uint64)
        unknown = random.integers(0, 2**63, many).view(np.uint64)
        found = np.sort(np.where(random.random(many) < 0.19, unknown, found), axis=1)
        return [np.unique(one).tobytes() for one in found]

    def _row(self, row: int, links: bytes) -> tuple[Any, ...]:
        site = int(self._site[row])
        number = row - int(self._start[site])
        kind = kind_of(number)
        # What a duplicate has the bytes of, and a redirect leads to: the page before it; a fifth lead to another site.
        named = self.url(row - 1) if number else ""
        if kind == "redirected" and number % 5 == 0:
            named = self.url((row + 1_000) % len(self.order))
        body = f"copy {number}" if place_of(number) == COPIED else f"{row - (kind == 'duplicate')}"
        words = self._words[row % WORDS]
        stored = kind in ("stored", "duplicate")
        given = {
            "site_id": hash64(self.name(site)),
            "url_hash": int(self.hashes[row]),
            "url": self.url(row),
            "state": "visited",
            "outcome": kind,
            "status": 200,
            "depth": 1,
            "tries": 1,
            "size": 26_000 + row % 1000,
            "latency_ms": 100,
            "sha256": hashlib.sha256(body.encode()).hexdigest() if stored else None,
            "duplicate_of": named if kind == "duplicate" else None,
            "redirect": named if kind == "redirected" else None,
            "content_type": "text/html; charset=utf-8" if stored else None,
            "title": words[:60] if stored else None,
            "description": words[60:220] if stored and row % 5 < 3 else None,
            "fetched_at": 1_795_000_000_000 + row,
            "links": links if kind == "stored" else None,
            "fails": 0,
            "language": "en" if stored else None,
        }
        return tuple(map(given.get, PAGE_COLUMNS))


def fill(file: Path, pages: int) -> None:
    """Makes a database of so many rows, as a crawl leaves it."""
    engine = open_database(f"sqlite:///{file}")
    migrate(engine)
    engine.dispose()
    web = Web(pages)
    places = ", ".join("?" * len(PAGE_COLUMNS))
    with closing(sqlite3.connect(file)) as tables:
        tables.execute("pragma synchronous=off")
        named = ((hash64(name), name) for name in map(web.name, range(len(web.sizes))))
        tables.executemany(
            "insert into sites (site_id, site, state, published, known, over_budget) "
            "values (?, ?, 'finished', 0, 0, 0)",
            named,
        )
        rows = web.rows()
        while batch := list(islice(rows, 50_000)):
            tables.executemany(f"insert into pages ({', '.join(PAGE_COLUMNS)}) values ({places})", batch)
            tables.commit()
        tables.execute("pragma wal_checkpoint(truncate)")


def filled(folder: Path, pages: int) -> Path:
    """A database of so many rows, in this folder; made if it is not there yet."""
    file = folder / f"rows-{pages}.db"
    if not file.exists():
        begun = file.with_suffix(".begun")
        begun.unlink(missing_ok=True)
        fill(begun, pages)
        begun.rename(file)
    return file


# --- what is measured ---


def bare_reading(file: Path) -> Reading:
    """All rows through sqlite3, in convert's order, thrown away."""
    rows = 0
    began = time.perf_counter()
    with closing(sqlite3.connect(file)) as tables:
        cursor = tables.execute(f"select {', '.join(READ)} from pages order by site_id, url_hash")
        while batch := cursor.fetchmany(BATCH_ROWS):
            rows += len(batch)
    return Reading(rows, time.perf_counter() - began)


def conversion(file: Path, small: Path, folder: Path, processes: int, load: str) -> dict[str, Any]:
    """One conversion in a process of its own."""
    command = [sys.executable, "-c", CONVERSION, str(ROOT), str(file), str(folder), str(processes), load]
    ended = subprocess.run([*command, str(small)], capture_output=True, text=True, cwd=ROOT, check=False)
    if ended.returncode:
        raise SystemExit(ended.stderr)
    told: dict[str, Any] = json.loads(ended.stdout)
    figures, stages = told["figures"], told["stages"]
    links = figures["counts"]["links_read"]
    # Load files are there where somebody asks for them: rates are those of what is always written.
    seconds = told["seconds"] - stages.get("writing load files", 0.0)
    return {
        "processes": processes,
        "seconds": seconds,
        "rows_s": figures["counts"]["rows"] / seconds,
        "pages_s": figures["pages"] / seconds,
        "stages": stages,
        "link_rows_s": links / stages["resolving links"],
        "load_pages_s": figures["pages"] / stages["writing load files"] if load else None,
        **{f"{who}_mib": mib for who, mib in told["mib"].items()},
        "pages": figures["pages"],
        "links": figures["links"],
        "digest": hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()[:16],
        "parquet_bytes_a_page": sum(
            one["bytes"] for name, one in read_manifest(folder)["files"].items() if name.startswith("pages-")
        )
        / max(1, figures["pages"]),
    }


def loading(folder: Path) -> dict[str, float]:
    """Pages a second, each with its links, that the databases on this machine take of the folder's files."""
    pages = read_manifest(folder)["pages"]
    taken = {"duckdb": [sys.executable, "-c", _DUCKDB]}
    with ExitStack() as stack:
        for kind in ("postgres", "mariadb"):
            with suppress(pytest.skip.Exception):
                url = make_url(stack.enter_context(fresh_database(kind, folder)))
                taken[kind] = _client(url)
        return {kind: pages / _seconds(command, folder / "load") for kind, command in taken.items()}


_DUCKDB = "import duckdb; duckdb.connect('bench.duckdb').execute(open('duckdb.sql').read())"


def _client(url: URL) -> list[str]:
    server = ["-h", str(url.host), str(url.database)]
    if url.get_backend_name() == "postgresql":
        return ["psql", "-q", "-X", "-f", "postgresql.sql", "-U", str(url.username), *server]
    return ["mariadb", "--local-infile=1", "-e", "source mariadb.sql", "-u", str(url.username), *server]


def _seconds(command: list[str], folder: Path) -> float:
    began = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


# --- what is told ---


def measure(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All figures of this many rows."""
    small, file = (filled(Path(given.folder or folder), rows) for rows in (SMALL, given.pages))
    if given.fill:
        return {}
    bare_reading(file)  # so that neither reader has a colder file than the other
    bare = bare_reading(file)
    told: dict[str, Any] = {"rows": bare.rows, "bare_rows_s": bare.rows / bare.seconds, "conversions": []}
    for processes in given.processes:
        run = folder / f"run-{processes}"
        told["conversions"].append(conversion(file, small, run, processes, given.load))
    if given.servers:
        told["loaded_pages_s"] = loading(run)
    return told


def goals_of(told: dict[str, Any]) -> list[Goal]:
    """The same bytes every time; of the best conversion pages and links a second, of all the most memory."""
    runs = told["conversions"]
    goals = [Goal("different outputs for the same rows", len({one["digest"] for one in runs}), 1, 1)]
    if told["rows"] < OWED_ROWS:
        return goals
    least = 80_000 if told["rows"] >= LARGE else 100_000
    goals += [
        Goal("pages/s", max(one["pages_s"] for one in runs), least, np.inf),
        Goal("link rows/s, the whole stage", max(one["link_rows_s"] for one in runs), 15e6, np.inf),
        Goal("GiB at a time, all processes of a conversion", max(map(_gib, runs)), 0, 2.5),
    ]
    if written := [one["load_pages_s"] for one in runs if one["load_pages_s"]]:
        goals.append(Goal("pages/s into load files", max(written), 200_000, np.inf))
    return goals


def _gib(run: dict[str, Any]) -> float:
    """The most that all processes held at a time: converters are gone when all is read."""
    converters = run["processes"] if run["processes"] > 1 else 0  # one alone reads in its coordinator
    reading = run["reading_mib"] + converters * run["converter_mib"]
    return float(max(reading, run["coordinator_mib"])) / 1024


def text(told: dict[str, Any]) -> str:
    """A line or some for each conversion."""
    lines = [f"{told['rows']:,} rows; the bare reader reads {told['bare_rows_s']:,.0f} rows/s"]
    for one in told["conversions"]:
        stages = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in one["stages"].items())
        share = one["rows_s"] / told["bare_rows_s"]
        lines += [
            f"{one['processes']} converters: {one['seconds']:.1f} s, {one['pages_s']:,.0f} pages/s, "
            f"{share:.2f} x the bare reader; {one['link_rows_s'] / 1e6:.1f} M link rows/s; "
            f"{one['coordinator_mib']:,.0f} MiB; while reading {one['reading_mib']:,.0f} + "
            f"{one['processes']} x {one['converter_mib']:,.0f}",
            f"  {stages}",
            f"  {one['pages']:,} pages of {one['parquet_bytes_a_page']:.0f} bytes, {one['links']:,} links",
        ]
        if one["load_pages_s"]:
            lines.append(f"  load files: {one['load_pages_s']:,.0f} pages/s written, each with its links")
    lines += [
        f"  {kind} takes {pages:,.0f} pages/s" for kind, pages in told.get("loaded_pages_s", {}).items()
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Parse, measure, print; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pages", type=int, default=1_000_000, help="rows of the table")
    parser.add_argument("--large", action="store_true", help=f"{LARGE:,} of them")
    parser.add_argument("--processes", default="1,2", help="converters of each run, comma-separated")
    parser.add_argument(
        "--load", default="postgresql,mariadb,duckdb", help="load files to write; empty: none"
    )
    parser.add_argument("--servers", action="store_true", help="load them into the databases of this machine")
    parser.add_argument("--folder", help="keep the tables here for the next time")
    parser.add_argument("--fill", action="store_true", help="with --folder: make the tables and nothing else")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    given.pages = LARGE if given.large else given.pages
    given.processes = [int(word) for word in given.processes.split(",")]
    if given.folder:
        Path(given.folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        told = measure(given, Path(folder))
    if given.fill:
        return 0
    goals = goals_of(told)
    if given.json:
        print(json.dumps({**told, "goals": goals_told(goals)}))
    else:
        print(text(told), goals_table(goals), sep="\n\n")
    return int(not all(goal.met for goal in goals))


if __name__ == "__main__":
    sys.exit(main())
