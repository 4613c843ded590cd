"""Results as agents publish them, processes that publish or store them, and empty databases to store them in.

A part of benchmarks, none itself. Records are those of a crawl: 64 sites in turn, every field that a page usually has,
50 links of which 30 are those of its site's menu.
"""

from __future__ import annotations

import multiprocessing
import random
import struct
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from hashlib import blake2b
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis
from scrapy.settings import Settings
from sqlalchemy import func, select

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import meters  # noqa: E402
from crawler import options, records  # noqa: E402
from crawler.agent import watch  # noqa: E402
from crawler.coordinator.coordinator import Coordinator  # noqa: E402
from crawler.queue.results import results_key  # noqa: E402
from crawler.store.database import migrate, open_database, transaction  # noqa: E402
from crawler.store.tables import fetches, pages  # noqa: E402
from settings import base  # noqa: E402
from tests.databases import fresh_database  # noqa: E402
from tests.servers import RunningServer, eventually, start_valkey  # noqa: E402

KEY = results_key(base.KEY_PREFIX)
DATABASES = ("sqlite", "postgres", "mariadb")
# Names of the processes of a database's server, where it runs on this machine.
SERVERS = {"postgres": "postgres", "mariadb": "mariadbd"}
# Longest wait for anything.
PATIENCE_SECONDS = 300.0
# Sites that an agent has in hand (SITE_SLOTS): a batch holds a few pages of each.
SITES_IN_HAND = 64
# Of the links of a page, those of the site's menu, and its own.
MENU, OWN = 30, 20
PAGES_A_SITE = 200
# Records after which a producer looks how many wait: an agent does so every ten seconds.
LOOK_EVERY = 32 * base.FLUSH_RECORDS


# --- records ---

WORDS = tuple(
    f"{first}{second}"
    for first in ("al", "be", "cor", "da", "en", "fi", "gra", "ho", "in", "ju", "ka", "lo", "mi", "no", "or")
    for second in ("na", "rit", "so", "ver", "lim", "ten", "ga", "pol", "mer", "dis")
)
KOREAN = ("제목", "학교", "안내", "공지", "대학", "연구", "서울", "소식", "자료", "검색", "행사", "과학")
HOSTS = tuple(f"www.{one}-{two}.example" for one in WORDS[:20] for two in WORDS[20:30])


class Result(NamedTuple):
    """What an agent publishes of a page."""

    page: records.Page
    links: bytes


class Author:
    """The records of one agent, page by page of 64 sites in turn."""

    def __init__(self, number: int) -> None:
        self._dice = random.Random(number)
        self.name = f"crawl-3-{20_000 + number}-{number:04x}"
        self.run = "20261118T182211Z"
        self._number = number
        self._seq = 0

    def results(self, many: int) -> Iterator[Result]:
        """So many records, in the order in which an agent would publish them."""
        made = 0
        for group in range(1 + many // (SITES_IN_HAND * PAGES_A_SITE)):
            sites = [self._site(group * SITES_IN_HAND + n) for n in range(SITES_IN_HAND)]
            for number in range(PAGES_A_SITE):
                for site, korean, menu in sites:
                    if made == many:
                        return
                    made += 1
                    yield self._result(site, korean, menu, number)

    def _site(self, number: int) -> tuple[str, bool, list[int]]:
        name = self._dice.choice(HOSTS).removesuffix("example")
        site = f"https://{name}{self._number}-{number}.example"
        return site, self._dice.random() < 0.3, [self._dice.getrandbits(64) for _ in range(MENU)]

    def _result(self, site: str, korean: bool, menu: list[int], number: int) -> Result:
        dice = self._dice
        links = {*menu, *(dice.getrandbits(64) for _ in range(OWN))}
        return Result(self._page(site, korean, number), struct.pack(f"<{len(links)}Q", *sorted(links)))

    def _page(self, site: str, korean: bool, number: int) -> records.Page:
        dice = self._dice
        self._seq += 1
        slug = "-".join(dice.choices(WORDS, k=dice.choice((2, 3, 4, 5))))
        words = KOREAN if korean else WORDS
        title = " ".join(dice.choices(words, k=7))
        about = " ".join(dice.choices(words, k=18)) if dice.random() < 0.6 else ""
        size = int(dice.lognormvariate(10.0, 0.6))
        digest = blake2b(f"{site}{number}".encode()).hexdigest()
        dated = dice.random() < 0.6
        return records.Page(
            agent=self.name,
            run=self.run,
            seq=self._seq,
            site=site,
            path=f"/{dice.choice(WORDS)}/{slug}-{100_000 + 3 * number}.html",
            fetched_at=1_795_000_000_000 + 7 * self._seq,
            outcome="duplicate" if dice.random() < 0.07 else "stored",
            status=200,
            depth=dice.randrange(6),
            size=size,
            latency_ms=dice.randrange(20, 400),
            sha256=digest[:64],
            content_type="text/html; charset=utf-8",
            charset="utf-8",
            title=title,
            description=about,
            language="ko" if korean else "en",
            content_hash=digest[64:96],
            media={"image": dice.randrange(1, 40), "document": dice.randrange(1, 4)},
            outside_hosts=dice.sample(HOSTS, dice.randrange(1, 9)),
            mail_domains=[site[12:]] if dice.random() < 0.1 else [],
            robots=["nofollow"] if dice.random() < 0.03 else [],
            etag=f'"{digest[:5]}-{digest[5:18]}"' if dated else "",
            last_modified="Tue, 17 Nov 2026 08:12:31 GMT" if dated else "",
            address=f"203.0.113.{number % 250}",
            wire_size=size // 4,
            connect_ms=dice.randrange(10, 200) if dice.random() < 0.1 else None,
            head_ms=dice.randrange(20, 400),
            body_ms=dice.randrange(1, 100),
            warc_file=f"{self.name}-{self.run}-00001.warc.gz",
            warc_offset=self._seq * 7_000,
            warc_length=6_500 + size % 900,
        )


def mixed(many: int, agents: int = 4) -> list[Result]:
    """The records of four agents as they come through the stream."""
    each = [list(Author(number).results(many // agents)) for number in range(agents)]
    step = base.FLUSH_RECORDS
    return [
        one
        for start in range(0, many // agents, step)
        for results in each
        for one in results[start : start + step]
    ]


# --- processes ---

# Forked from one that has imported all this and has no threads: to import it anew takes each process half a second.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["benchmarks.producers"])


class Worker:
    """A process that gets ready, begins when told, says when it is done, and stays until its CPU time was read."""

    def __init__(self, work: Callable[..., None], *given: Any) -> None:
        self._near, far = PROCESSES.Pipe()
        self.process = PROCESSES.Process(target=_obey, args=(far, work, *given), daemon=True)
        self.process.start()
        self._cpu = 0.0

    def ready(self) -> None:
        """Wait until it could begin."""
        self._hear("ready")

    def begin(self) -> None:
        """Let it work; from now on its CPU time counts."""
        self._cpu = meters.cpu_of(self.process.pid or 0)
        self._near.send("go")

    def done(self) -> None:
        """Wait until its work is done."""
        self._hear("done")

    def cpu(self) -> float:
        """CPU seconds since it began; the process ends."""
        used = meters.cpu_of(self.process.pid or 0) - self._cpu
        self._near.send("bye")
        self.process.join(PATIENCE_SECONDS)
        return used

    def _hear(self, word: str) -> None:
        assert self._near.poll(PATIENCE_SECONDS), f"a process never said {word}"
        said = self._near.recv()
        assert said == word, said


def _obey(near: Connection, work: Callable[..., None], *given: Any) -> None:
    def begin() -> None:
        near.send("ready")
        near.recv()

    work(begin, *given)
    near.send("done")
    near.recv()


def produce(begin: Callable[[], None], url: str, number: int, many: int) -> None:
    """Publish the records of one agent, as many at a time as agents do, packed where these would pack them."""
    results = list(Author(number).results(many))
    with redis.Redis.from_url(url) as client:
        client.ping()
        begin()
        packs = False
        for start in range(0, many, base.FLUSH_RECORDS):
            if start % LOOK_EVERY == 0:
                packs = client.xlen(KEY) >= watch.LONG
            pipe = client.pipeline(transaction=False)
            for page, links in results[start : start + base.FLUSH_RECORDS]:
                text = records.encode(page)
                pipe.xadd(
                    KEY, {b"v": records.VERSION, b"r": records.pack(text) if packs else text, b"l": links}
                )
            pipe.execute()


def coordinate(begin: Callable[[], None], url: str, database: str, over: Any) -> None:
    """A coordinator as `scrapy coordinate` runs it, until the event `over` is set and the stream is empty."""
    settings = Settings()
    settings.setmodule("settings.base")
    settings.update({"REDIS_URL": url, "DATABASE_URL": database})
    coordinator = Coordinator(settings, options.read(settings))
    begin()
    coordinator.run(threading.Event(), lambda drained: over.is_set() and drained())


# --- places ---


class Place:
    """An empty database and an empty Valkey."""

    def __init__(self, kind: str, database: str, valkey: RunningServer) -> None:
        self.kind, self.database, self.valkey = kind, database, valkey
        self.engine = open_database(database)
        migrate(self.engine)

    def server_cpu(self) -> float:
        """CPU seconds of the database's server so far."""
        name = SERVERS.get(self.kind)
        return sum(map(_cpu_with_ended_children, _servers(name))) if name else 0.0

    def until_stored(self) -> None:
        """Wait until the stream is empty."""
        eventually(lambda: self.valkey.client.xlen(KEY) == 0, "all is stored", PATIENCE_SECONDS)

    def stored(self) -> int:
        """Rows of pages and of fetches."""
        with transaction(self.engine) as connection:
            many = [connection.execute(select(func.count(table.c.id))).scalar() for table in (pages, fetches)]
        return int(many[0] or 0) if many[0] == many[1] else -1


@contextmanager
def place(kind: str) -> Iterator[Place]:
    """A Place in a temporary folder, gone at the end; pytest's Skipped where there is no such database."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        database = stack.enter_context(fresh_database(kind, folder))
        (folder / "valkey").mkdir()
        valkey = start_valkey(folder / "valkey")
        stack.callback(valkey.stop)
        ready = Place(kind, database, valkey)
        stack.callback(ready.engine.dispose)
        yield ready


def is_there(kind: str) -> bool:
    try:
        with tempfile.TemporaryDirectory() as folder, fresh_database(kind, Path(folder)):
            return True
    except pytest.skip.Exception as reason:
        print(f"left out: {reason}", file=sys.stderr)
        return False


def _servers(name: str) -> list[int]:
    """Processes of this name."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and (entry / "comm").read_text().strip() == name:
                found.append(int(entry.name))
    return found


def _cpu_with_ended_children(pid: int) -> float:
    """A server that works in processes which end with their connection leaves their time to the first."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / meters.TICKS
    return 0.0
