"""How fast do results come into the tables, and what does a record cost on its way: ours against direct writes.

    python benchmarks/coordinator.py [--databases sqlite,postgres] [--rounds 3] [--share 1.0] [--json]

Four processes make the records. `commit each`: every one writes a record and commits it, as a crawler without a
coordinator would. `batches`: the same, BATCH_RECORDS to a commit. `stream`: ours, they publish into the results stream,
from which a coordinator (or two) writes. `tables alone`: no process but this one, which writes records that are there.
`rows alone`: the same as rows that are there, three statements a batch: what is left is driver and database.
`backlog`: what records cost that wait for a coordinator, and how fast they go once it is there.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Connection, select

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import meters  # noqa: E402
from benchmarks.producers import (  # noqa: E402
    DATABASES,
    KEY,
    PROCESSES,
    Author,
    Place,
    Worker,
    coordinate,
    is_there,
    mixed,
    place,
    produce,
)
from crawler import records  # noqa: E402
from crawler.coordinator.coordinator import GC_ALLOCATIONS  # noqa: E402
from crawler.store import rows  # noqa: E402
from crawler.store.database import open_database, transaction  # noqa: E402
from crawler.store.tables import pages  # noqa: E402
from crawler.store.upsert import write  # noqa: E402
from crawler.store.write import FETCHES, Stored, store, write_pages  # noqa: E402
from settings import base  # noqa: E402

PRODUCERS = 4
# Records that each producer makes: one commit each is slow, and a batch must not be all there is.
EACH = {"commit each": 1_000, "batches": 15_000, "stream": 30_000, "stream, two": 30_000}
# Records of the tables' work alone: enough that SQLite's log is carried over several times.
ALONE = 200_000
BACKLOG = 200_000
ROUNDS = 3


# --- the ways ---


def write_directly(begin: Callable[[], None], database: str, number: int, many: int, batch: int) -> None:
    """Write the records of one agent into the tables, so many to a transaction."""
    stored = [Stored("1-0", page, links) for page, links in Author(number).results(many)]
    engine = open_database(database)
    with transaction(engine) as connection:
        connection.execute(select(pages.c.id).limit(1))
    begin()
    for start in range(0, many, batch):
        with transaction(engine) as connection:
            store(connection, stored[start : start + batch])
    engine.dispose()


class Figures(NamedTuple):
    """What one way did in one round; CPU in milliseconds a record."""

    database: str
    way: str
    records: int
    per_second: float
    producer: float
    coordinator: float
    stream: float
    server: float
    stored: int  # rows in pages and in fetches, if they agree; -1 if not


def measure(kind: str, way: str, each: int) -> Figures:
    """One way once, over servers of its own."""
    with place(kind) as ready:
        over = PROCESSES.Event()
        producers, coordinators = _workers(ready, way, each, over)
        for worker in (*producers, *coordinators):
            worker.ready()
        stream, server = meters.cpu_of(ready.valkey.pid), ready.server_cpu()
        began = time.monotonic()
        for worker in (*coordinators, *producers):
            worker.begin()
        for worker in producers:
            worker.done()
        over.set()
        if coordinators:
            ready.until_stored()
        seconds = time.monotonic() - began
        used = [sum(worker.cpu() for worker in group) for group in (producers, coordinators)]
        used += [meters.cpu_of(ready.valkey.pid) - stream, ready.server_cpu() - server]
        many = PRODUCERS * each
        a_record = [1000 * seconds / many for seconds in used]
        return Figures(kind, way, many, many / seconds, *a_record, ready.stored())


def _workers(ready: Place, way: str, each: int, over: Any) -> tuple[list[Worker], list[Worker]]:
    if way.startswith("stream"):
        coordinators = 2 if way.endswith("two") else 1
        return (
            [Worker(produce, ready.valkey.url, number, each) for number in range(PRODUCERS)],
            [Worker(coordinate, ready.valkey.url, ready.database, over) for _ in range(coordinators)],
        )
    batch = base.BATCH_RECORDS if way == "batches" else 1
    return [Worker(write_directly, ready.database, number, each, batch) for number in range(PRODUCERS)], []


def tables_alone(kind: str, many: int) -> Figures:
    """`store` on records that are there, batch by batch, as four agents would mix them; decoding is not in it."""
    return _alone(kind, "tables alone", many, _decoded, store)


def rows_alone(kind: str, many: int) -> Figures:
    """The rows of the same records, which are there."""
    return _alone(kind, "rows alone", many, _as_rows, _write_rows)


def _decoded(entries: list[dict[bytes, bytes]]) -> list[Stored]:
    return [Stored("1-0", *records.decode(fields), records.is_plain(fields)) for fields in entries]


def _as_rows(entries: list[dict[bytes, bytes]]) -> tuple[list[rows.Row], list[rows.Row]]:
    made = []
    for stored in _decoded(entries):
        page = stored.record
        assert isinstance(page, records.Page)
        key = rows.site_id(page.site), records.hash64(page.url)
        made.append((rows.page_row(page, *key, stored.links), rows.fetch_row(page, *key)))
    return sorted(page for page, _ in made), [fetch for _, fetch in made]


def _write_rows(connection: Connection, batch: tuple[list[rows.Row], list[rows.Row]]) -> None:
    write_pages(connection, batch[0])
    write(connection, FETCHES, batch[1])


def _alone(
    kind: str,
    way: str,
    many: int,
    ready_made: Callable[[list[dict[bytes, bytes]]], Any],
    put: Callable[[Connection, Any], object],
) -> Figures:
    """One process, batch by batch; only `put` and the commit are measured."""
    with place(kind) as ready:
        entries = [
            {b"v": records.VERSION, b"r": records.encode(page), b"l": links} for page, links in mixed(many)
        ]
        gc.collect()
        gc.freeze()  # a coordinator has only one batch at a time
        gc.set_threshold(GC_ALLOCATIONS)
        server, seconds, cpu = ready.server_cpu(), 0.0, 0.0
        for start in range(0, many, base.BATCH_RECORDS):
            batch = ready_made(entries[start : start + base.BATCH_RECORDS])
            began, used = time.monotonic(), meters.cpu_seconds()
            with transaction(ready.engine) as connection:
                put(connection, batch)
            seconds += time.monotonic() - began
            cpu += meters.cpu_seconds() - used
        gc.unfreeze()
        costs = [1000 * one / many for one in (0.0, cpu, 0.0, ready.server_cpu() - server)]
        return Figures(kind, way, many, many / seconds, *costs, ready.stored())


class Backlog(NamedTuple):
    """What records cost that wait for a coordinator, and how they go."""

    records: int
    record_bytes: float  # JSON and links, as published
    memory_bytes: float  # of the server, a record
    drained_per_second: float
    stored: int


def backlog(kind: str, many: int) -> Backlog:
    """Records pile up, then a coordinator comes."""
    with place(kind) as ready:
        client = ready.valkey.client
        before = _memory(client)
        producer = Worker(produce, ready.valkey.url, 0, many)
        producer.ready()
        producer.begin()
        producer.done()
        producer.cpu()
        memory = (_memory(client) - before) / many
        some = client.xrange(KEY, count=1_000)
        size = statistics.mean(sum(map(len, fields.values())) for _, fields in some)
        over = PROCESSES.Event()
        over.set()
        worker = Worker(coordinate, ready.valkey.url, ready.database, over)
        worker.ready()
        began = time.monotonic()
        worker.begin()
        ready.until_stored()
        seconds = time.monotonic() - began
        worker.cpu()
        return Backlog(many, size, memory, many / seconds, ready.stored())


def _memory(client: Any) -> int:
    """Bytes of data, without what connections and the log's buffers hold at the moment."""
    found = client.info("memory")
    return int(found["used_memory"] - found["mem_clients_normal"] - found["mem_aof_buffer"])


# --- the whole ---


def all_figures(databases: list[str], rounds: int, share: float) -> Iterator[Figures]:
    """Every way on every database, in turn; `share` of the records."""
    for _ in range(rounds):
        for kind in databases:
            for way, each in EACH.items():
                if not (way == "stream, two" and kind == "sqlite"):  # one writer at a time there
                    yield measure(kind, way, max(100, int(each * share)))
            yield tables_alone(kind, max(400, int(ALONE * share)))
            yield rows_alone(kind, max(400, int(ALONE * share)))


def faults_of(rows: list[Figures], waited: Backlog | None) -> list[str]:
    """What must not be: a record that is not stored, or stored twice."""
    wrong = [f"{row.database}, {row.way}: {row.stored} of {row.records} stored" for row in rows]
    wrong = [words for words, row in zip(wrong, rows, strict=True) if row.stored != row.records]
    if waited and waited.stored != waited.records:
        wrong.append(f"backlog: {waited.stored} of {waited.records} stored")
    return wrong


def table(rows: list[Figures]) -> str:
    """Medians over the rounds, in brackets least and most; ratios to a commit for each record."""
    lines = [
        f"{'':<28}{'records/s':>28}{'x commit each':>15}"
        f"{'producer':>10}{'coordinator':>13}{'stream':>8}{'database':>10}   CPU-ms a record"
    ]
    for kind, way in dict.fromkeys((row.database, row.way) for row in rows):
        same = [row for row in rows if (row.database, row.way) == (kind, way)]
        pace = [row.per_second for row in same]
        alone = [row.per_second for row in rows if (row.database, row.way) == (kind, "commit each")]
        ratio = f"{statistics.median(pace) / statistics.median(alone):.1f}" if alone else ""
        spread = f"{statistics.median(pace):,.0f} ({min(pace):,.0f} .. {max(pace):,.0f})"
        costs = [statistics.median(row[place] for row in same) for place in range(4, 8)]
        told = "".join(f"{cost:>{width}.3f}" for cost, width in zip(costs, (10, 13, 8, 10), strict=True))
        lines.append(f"{kind + ', ' + way:<28}{spread:>28}{ratio:>15}{told}")
    return "\n".join(lines)


def main() -> int:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--databases", default=",".join(DATABASES), help="some of " + ", ".join(DATABASES))
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help=f"times each is measured (default {ROUNDS})"
    )
    parser.add_argument("--share", type=float, default=1.0, help="of the usual number of records (default 1)")
    parser.add_argument("--json", action="store_true", help="every figure, as JSON")
    given = parser.parse_args()
    rows: list[Figures] = []
    kinds = [kind for kind in given.databases.split(",") if is_there(kind)]
    for row in all_figures(kinds, given.rounds, given.share):
        rows.append(row)
        print(f"{row.database}, {row.way}: {row.per_second:,.0f} records/s", file=sys.stderr)
    waited = backlog(kinds[0], max(400, int(BACKLOG * given.share)))
    wrong = faults_of(rows, waited)
    if given.json:
        print(
            json.dumps({"ways": [row._asdict() for row in rows], "backlog": waited._asdict(), "wrong": wrong})
        )
    else:
        print(table(rows))
        print("\n".join(f"backlog, {name}: {value:,.0f}" for name, value in waited._asdict().items()))
        print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
