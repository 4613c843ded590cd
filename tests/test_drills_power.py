"""Drills: the machine loses its power in mid-crawl; the next run has every page, and every capture that rows name.

Everything a crawl writes is on one disk: the bundled server's file, the archive, and the tables in SQLite or in a
PostgreSQL. The next run finds what the kernel had written when the power went, and not a byte more.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import text

from crawler.store.database import open_database, transaction
from tests.crawling import STORED, Place
from tests.databases import KINDS
from tests.drills import ONCE
from tests.farm import Farm
from tests.own_databases import Postgres, postgres
from tests.power import Disk, disk
from tests.servers import eventually

CUTS = 10
# A crawl of 1,500 pages takes some ten seconds of a machine that has nothing else to do.
PATIENCE_SECONDS = 300.0


@pytest.fixture(scope="module")
def farm() -> Iterator[Farm]:
    with Farm(sites=24, pages=50, kinds=ONCE, names=()) as started:
        yield started


@pytest.fixture
def rng() -> random.Random:
    """Chance that can be had again: a drill that fails prints its seed."""
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed of this drill's chance: {seed}")
    return random.Random(seed)


class Machine:
    """A crawl with all its data on a disk whose power can be cut."""

    def __init__(self, place: Place, where: Disk, server: Postgres | None) -> None:
        self.place = place
        place.var = where.folder / "var"
        self._disk, self._postgres = where, server
        self.database = server.url if server else f"sqlite:///{place.var / 'crawl.db'}"
        # All defaults but these.
        self.given = {
            "ALLOW_PRIVATE_ADDRESSES": "127.0.0.0/8",
            "DOWNLOAD_DELAY": 0.1,
            "DATABASE_URL": server.url if server else None,
        }

    def crawl(self, farm: Farm, seeds: list[str], requests: int) -> None:
        """Begin, and return after so many requests."""
        before = len(farm.hits())
        self.place.start("crawl", "site", "-a", f"seeds={','.join(seeds)}", "--no-summary", **self.given)
        eventually(lambda: len(farm.hits()) - before >= requests, f"{requests} requests", PATIENCE_SECONDS)

    def cut_power(self) -> None:
        self._disk.cut(self._processes)
        if self._postgres:
            self._postgres.start()

    def crawl_to_the_end(self) -> None:
        """The next run, with no seeds."""
        self.place.start("crawl", "site", "--no-summary", **self.given).wait(PATIENCE_SECONDS).succeeded()
        self.place.check_nothing_left()

    def pages(self) -> dict[str, set[str]]:
        engine = open_database(self.database)
        found: dict[str, set[str]] = {}
        with transaction(engine) as tables:
            asked = f"select site, url from pages join sites using (site_id) where {STORED}"
            for site, url in tables.execute(text(asked)):
                found.setdefault(site, set()).add(url)
        engine.dispose()
        return found

    def captures(self) -> dict[str, int]:
        """How many rows name a capture that is there, missing, or damaged."""
        run = self.place.run("extract", "--check", "--json", DATABASE_URL=self.given["DATABASE_URL"])
        found = json.loads(run.out)
        return {word: found[word] for word in ("ok", "missing", "damaged")}

    def _processes(self) -> list[int]:
        return self.place.processes() + (self._postgres.processes() if self._postgres else [])


@pytest.mark.drill
@pytest.mark.parametrize("cut", range(CUTS))
@pytest.mark.parametrize("kind", KINDS[:2])
def test_a_power_cut(kind: str, cut: int, farm: Farm, tmp_path: Path, rng: random.Random) -> None:
    with ExitStack() as stack:
        where = stack.enter_context(disk())
        server = stack.enter_context(postgres(where.folder)) if kind == "postgres" else None
        machine = Machine(stack.enter_context(Place(tmp_path)), where, server)
        expected = farm.expected()
        many = sum(map(len, expected.values()))
        machine.crawl(farm, farm.seeds, rng.randrange(many // 10, many))
        machine.cut_power()
        machine.crawl_to_the_end()
        stored = machine.pages()
        missing = sum(len(urls - stored.get(site, set())) for site, urls in expected.items())
        captures = machine.captures()
        print(f"{kind}, cut {cut}: {missing} of {many} pages missing, captures {captures}")
        assert (missing, captures["missing"], captures["damaged"]) == (0, 0, 0)


@pytest.mark.drill
@pytest.mark.parametrize("cut", range(3))
def test_seeds_that_were_accepted(cut: int, farm: Farm, tmp_path: Path) -> None:
    """The power goes as soon as `scrapy seed` has ended, in mid-crawl."""
    with disk() as where, Place(tmp_path) as place:
        machine = Machine(place, where, None)
        machine.crawl(farm, farm.seeds[:10], 100)
        for seed in farm.seeds[10:13]:
            place.run("seed", seed).succeeded()
        machine.cut_power()
        machine.crawl_to_the_end()
        stored = machine.pages()
        assert set(farm.seeds[10:13]) <= {f"{site}/" for site in stored}
