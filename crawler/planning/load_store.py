"""Reads and writes sites' loads in the tables: measured (`visits`) and imported (`profiles`).

Reads in short transactions; raises DatabaseError. `LoadedTable.refresh` reads new rows only: rows committed late with
smaller ids, and deleted sites, are noticed by the next process.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from operator import ge
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from sqlalchemy import delete, func, select

from crawler.planning.load import CELLS, FULL, UNKNOWN, Forecast, LoadTable, share_of_line, with_profiles
from crawler.records import hash64
from crawler.robots.rules import Window
from crawler.store.database import transaction
from crawler.store.queries import by_key
from crawler.store.rows import clean
from crawler.store.tables import profiles as profile_rows
from crawler.store.tables import sites, visits
from crawler.store.upsert import Upsert, write
from crawler.urls.url import host_of

if TYPE_CHECKING:
    from sqlalchemy import Engine

# Length of a country's top-level domain.
COUNTRY_LETTERS: Final = 2
# Rows per transaction.
STRETCH_ROWS = 10_000
PROFILES = Upsert(
    "profiles",
    profile_rows,
    ("site_id", "site", "loads", "imported_at"),
    ("site_id",),
    ("site", "loads", "imported_at"),
    ge,
)
# First hours of a weekday and of a weekend day.
WEEKDAY, WEEKEND = 4 * 24, 2 * 24
# Growing arrays are copied: reserve this fraction more.
SPARE_SHARE: Final = 8


class VisitRow(NamedTuple):
    """A site's visit in one hour (records.Visit)."""

    id: int
    site: str
    hour: int
    seconds: float | None  # median per page; None: no page was timed
    refused: float
    pages: int
    delay_seconds: float
    hours_open: str | None


def visits_after(engine: Engine, last_id: int, most: int = STRETCH_ROWS) -> list[VisitRow]:
    """Up to `most` visits with greater ids, ordered by id; empty if there are none yet."""
    more = (visits.c.hour, visits.c.seconds, visits.c.refused, visits.c.pages, visits.c.delay_seconds)
    query = (
        select(visits.c.id, sites.c.site, *more, visits.c.hours_open)
        .join_from(visits, sites, visits.c.site_id == sites.c.site_id)
        .where(visits.c.id > last_id)
        .order_by(visits.c.id)
        .limit(most)
    )
    with transaction(engine) as db:
        return [VisitRow(*row) for row in db.execute(query)]


# --- Imported loads ---


def profiles(engine: Engine) -> Iterator[tuple[str, np.ndarray]]:
    """Imported loads: site name and 48 bytes by cell (255: unknown)."""
    query = select(profile_rows.c.site_id, profile_rows.c.site, profile_rows.c.loads)
    for rows in by_key(engine, query, profile_rows.c.site_id):
        for _, site, loads in rows:
            yield site, np.frombuffer(loads, np.uint8)


def import_profiles(engine: Engine, rows: Iterable[tuple[str, np.ndarray]]) -> int:
    """Replaces the imported loads of these distinct sites; returns their number."""
    now = time.time_ns() // 1_000_000
    many = 0
    coming = iter(rows)
    while some := list(islice(coming, STRETCH_ROWS)):
        made = [(hash64(site), clean(site), loads.astype(np.uint8).tobytes(), now) for site, loads in some]
        with transaction(engine) as db:
            write(db, PROFILES, sorted(made))
        many += len(some)
    return many


def forget_profile(engine: Engine, site: str) -> bool:
    """Deletes a site's imported loads; returns whether there were any."""
    with transaction(engine) as db:
        gone = db.execute(delete(profile_rows).where(profile_rows.c.site_id == hash64(site))).rowcount
    return bool(gone)


# --- All loads ---


def load_table(engine: Engine) -> LoadedTable:
    """All loads stored so far."""
    loaded = LoadedTable()
    loaded.refresh(engine)
    return loaded


class LoadedTable:
    """Measured and imported loads; row i belongs to `names[i]`."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.rows: dict[str, int] = {}  # by name
        self.table = LoadTable(0)  # measured; may have more rows than names
        self.delays = np.zeros(
            0, np.float32
        )  # pause between two requests when last seen, in seconds; NaN: unknown
        self.windows: list[
            str
        ] = []  # robots.txt's Visit-time when last seen (crawler.robots.rules); empty: none
        self.visits: Counter[int] = Counter()  # number by row
        self.imported = np.zeros((0, CELLS), np.uint8)  # imported loads; 255: unknown
        self._groups: list[int] = []  # sites of one country share a daily shape
        self._countries: dict[str, int] = {"": 0}
        self.many_visits = 0  # total number
        self._last_id = 0
        self._imports: tuple[Any, ...] = (0, None)

    def __len__(self) -> int:
        return len(self.names)

    def refresh(self, engine: Engine) -> int:
        """Reads new rows; returns the number of new visits."""
        many = 0
        while rows := visits_after(engine, self._last_id):
            self._take_in(rows)
            self._last_id = rows[-1].id
            many += len(rows)
        self.many_visits += many
        with transaction(engine) as db:
            query = select(func.count(), func.max(profile_rows.c.imported_at)).select_from(profile_rows)
            imports = tuple(db.execute(query).one())
        if imports != self._imports:
            self._read_profiles(engine)
            self._imports = imports
        return many

    def forecast(self, hour: int) -> Forecast:
        """Loads of all sites from this hour on; known imported loads replace measured ones."""
        many = len(self)
        measured = self._measured(hour)
        return measured._replace(load=with_profiles(measured.load[:many], self.imported[:many], hour))

    def seen(self, hour: int) -> np.ndarray:
        """(n,) bool: sites with own data for this hour of the day."""
        many = len(self)
        given = with_profiles(np.full((many, 24), UNKNOWN, np.uint8), self.imported[:many], hour)[:, 0]
        return np.asarray(self.table.seen(hour)[:many] | (given != UNKNOWN))

    def is_open(self, hour: int, hour_seconds: float) -> np.ndarray:
        """(n, 24) bool: hours of which robots.txt allows the greater part, from this one on."""
        found = np.ones((len(self), 24), bool)
        known: dict[str, list[bool]] = {}
        for row, text in enumerate(self.windows):
            if text:
                if text not in known:
                    known[text] = _open_hours(text, hour, hour_seconds)
                found[row] = known[text]
        return found

    def profile(self) -> np.ndarray:
        """(n, 48) float64: loads for `scrapy load export`, as shares of line capacity, 0 to 1; NaN: unknown."""
        many = len(self)
        measured = self._measured(WEEKDAY).load[:many], self._measured(WEEKEND).load[:many]
        lost = np.concatenate(measured, axis=1)
        found = share_of_line(np.minimum(lost, FULL) / FULL)
        found[lost == UNKNOWN] = np.nan
        given = self.imported[:many]
        return np.where(given == UNKNOWN, found, given / FULL)

    def _measured(self, hour: int) -> Forecast:
        groups = np.zeros(len(self.table), np.int32)
        groups[: len(self)] = self._groups
        return self.table.forecast(hour, groups)

    # --- Reading ---

    def _take_in(self, rows: Sequence[VisitRow]) -> None:
        at = np.array([self._row_of(one.site) for one in rows])
        self._make_room()
        self.visits.update(at.tolist())
        self.delays[at] = [one.delay_seconds for one in rows]  # the last one of each site wins
        for row, one in zip(at.tolist(), rows, strict=True):
            self.windows[row] = one.hours_open or ""
        hours = np.array([one.hour for one in rows])
        seconds = np.array([one.seconds or np.nan for one in rows], float)
        refused = np.array([one.refused for one in rows], float)
        for hour in np.unique(hours).tolist():
            left = np.flatnonzero(hours == hour)
            while len(left):  # several agents may have seen a site in one hour
                _, first = np.unique(at[left], return_index=True)
                now = left[first]
                self.table.fold(hour, at[now], seconds[now], refused[now])
                left = np.delete(left, first)

    def _read_profiles(self, engine: Engine) -> None:
        self.imported[:] = UNKNOWN
        for site, loads in profiles(engine):
            row = self._row_of(site)
            self._make_room()
            self.imported[row] = loads

    def _row_of(self, site: str) -> int:
        row = self.rows.setdefault(site, len(self.names))
        if row == len(self.names):
            self.names.append(site)
            self.windows.append("")
            self._groups.append(self._countries.setdefault(country_of(site), len(self._countries)))
        return row

    def _make_room(self) -> None:
        more = len(self) - len(self.table)
        if more <= 0:
            return
        more += len(self) // SPARE_SHARE
        self.table.grow(len(self.table) + more)
        self.delays = np.concatenate([self.delays, np.full(more, np.nan, np.float32)])
        self.imported = np.concatenate([self.imported, np.full((more, CELLS), UNKNOWN, np.uint8)])


def country_of(site: str) -> str:
    """The country that a site's name ends with, two letters; empty where it ends with none."""
    last = host_of(site).rpartition(".")[2]
    return last if len(last) == COUNTRY_LETTERS and last.isalpha() else ""


def _open_hours(text: str, hour: int, hour_seconds: float) -> list[bool]:
    window = None
    with suppress(ValueError):  # what cannot be read closes nothing
        window = Window.read(text)
    if window is None:
        return [True] * 24
    return [window.share((hour + step) * hour_seconds, hour_seconds) >= 0.5 for step in range(24)]
