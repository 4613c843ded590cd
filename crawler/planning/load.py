"""How busy each site is at which hour, from what it cost to fetch its pages: pure arrays, no input or output.

A visit is what one agent saw of one site in one hour: the median time that a page took, and the share of its requests
that were refused (429, 5xx, no answer in time). Visits are folded into 48 cells a site (weekday and weekend by the
hour, UTC), older ones count for less. What is forecast is the site's own mean, plus the shape that its group and all
sites have in common, plus its own departure from that as far as the evidence goes: without evidence a site is flat.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TextIO

import numpy as np

from crawler.urls.url import UrlError, split_page

CELLS: Final = 48
# A visit's weight halves in this time: patterns change with seasons and with a site's machines. A guess, not measured.
HALF_LIFE_HOURS: Final = 21 * 24.0
# A visit says as much as half a one of the hours before and after it.
NEIGHBOUR: Final = 0.5
# Visits after which a departure is believed half, until there is enough to estimate it (`shrinkage`).
FIRST_SHRINKAGE: Final = 8.0
LEAST_SHRINKAGE, MOST_SHRINKAGE = 0.5, 100.0
# Cells with two visits or more, before the estimate is taken.
CELLS_TO_ESTIMATE: Final = 200
# Error of a forecast load from which on a smooth day beats the raw one: with picking the least of several noisy hours
# one picks noise (simulated: they meet at 0.06).
SMOOTH_FROM_ERROR: Final = 0.06
# The pace that counts as no load: that of the fastest sites in their best hour, but for a few.
REFERENCE_PERCENTILE: Final = 95
IDLE, FULL, UNKNOWN = 0, 254, 255
# Sites that are worked out at a time: what stands between their cells and a forecast takes kilobytes a site.
BLOCK_SITES: Final = 1 << 14
# A site that answers at all has some pace left.
BUSIEST: Final = 253
# An imported load is a share of a full line (ping times and the like); what pace it leaves is (1 - load) to this power,
# by which the figures of paper 000 come out. Measured loads are lost pace as they are.
IMPORTED_EXPONENT: Final = 1.5
# The first hour since 1970 was of a Thursday; Saturday is the third day.
_FIRST_WEEKDAY: Final = 3


class Forecast(NamedTuple):
    """The next 24 hours, the first column being the hour asked for."""

    load: np.ndarray  # (n, 24) uint8: 0 idle .. 253 busy; 255 where nothing is known of the site
    reference: float  # pages an hour of one connection at load 0; 0: nothing is known of any site


def cell_of(hour: int) -> int:
    """The cell of an hour since 1970, UTC: 0 to 23 on weekdays, 24 to 47 at weekends."""
    weekday = (hour // 24 + _FIRST_WEEKDAY) % 7
    return hour % 24 + (24 if weekday >= 5 else 0)


def lost_pace(share: np.ndarray) -> np.ndarray:
    """The load (0 to 1) as it would be measured, of an imported one."""
    return np.asarray(1 - (1 - share) ** IMPORTED_EXPONENT)


def share_of_line(lost: np.ndarray) -> np.ndarray:
    """The other way: what would be imported of a measured load."""
    return np.asarray(1 - (1 - lost) ** (1 / IMPORTED_EXPONENT))


def with_profiles(load: np.ndarray, profiles: np.ndarray, hour: int) -> np.ndarray:
    """The forecast loads from this hour on, imported ones in their place wherever they are known.

    `profiles`: (n, 48) uint8, a row for each row of `load`, cells as of `cell_of`.
    """
    given = profiles[:, [cell_of(hour + step) for step in range(24)]]
    return np.where(given == UNKNOWN, load, _MEASURED[given])


class LoadTable:
    """Cells of n sites, and what they have in common."""

    _COLUMNS = ("_mean", "_refused", "_weight", "_at")

    def __init__(self, sites: int) -> None:
        self._mean = np.zeros((sites, CELLS), np.float32)  # log of a page's seconds
        self._refused = np.zeros((sites, CELLS), np.float32)
        self._weight = np.zeros((sites, CELLS), np.float32)
        self._at = np.zeros((sites, CELLS), np.int32)  # hour of the last visit
        self._within = np.zeros(2)  # sum of squares between visits of one cell, and how many

    def __len__(self) -> int:
        return len(self._weight)

    def grow(self, sites: int) -> None:
        """Make room for this many sites."""
        more = sites - len(self)
        if more > 0:
            for name in self._COLUMNS:
                old = getattr(self, name)
                setattr(self, name, np.concatenate([old, np.zeros((more, CELLS), old.dtype)]))

    def fold(self, hour: int, rows: np.ndarray, seconds: np.ndarray, refused: np.ndarray) -> None:
        """Take in the visits of one hour: distinct site rows, their pages' seconds, shares of refusals (0 .. 1).

        Where all was refused seconds are NaN. Hours may come in any order; ValueError for seconds that are not above 0.
        """
        if not (np.isnan(seconds) | (seconds > 0)).all():
            raise ValueError("seconds of a page; expected above 0, or NaN where none came")
        if not self._weight.any():
            # Of no site is it known what a page takes: who was only refused so far is not known at all.
            timed = ~np.isnan(seconds)
            rows, seconds, refused = rows[timed], seconds[timed], refused[timed]
        cell = cell_of(hour)
        day = cell // 24 * 24
        log = np.log(seconds)
        for column, weight in (
            (cell, 1.0),
            (day + (cell - 1) % 24, NEIGHBOUR),
            (day + (cell + 1) % 24, NEIGHBOUR),
        ):
            self._fold_cell(hour, column, weight, rows, log, refused)

    def _fold_cell(
        self, hour: int, cell: int, weight: float, rows: np.ndarray, log: np.ndarray, refused: np.ndarray
    ) -> None:
        old = self._weight[rows, cell]
        passed = np.maximum(hour - self._at[rows, cell], 0)
        kept = np.where(old > 0, old * np.exp2(-passed / HALF_LIFE_HOURS), 0.0)
        total = kept + weight
        before = self._mean[rows, cell]
        value = np.where(np.isnan(log), np.where(old > 0, before, self._level(rows)), log)
        after = before + (value - before) * weight / total
        again = (old >= 1) & (weight == 1.0)
        self._within += (((value - before) * (value - after))[again].sum(), again.sum())
        self._mean[rows, cell] = after
        self._refused[rows, cell] += (refused - self._refused[rows, cell]) * weight / total
        self._weight[rows, cell] = total
        self._at[rows, cell] = np.maximum(self._at[rows, cell], hour)

    def seen(self, hour: int) -> np.ndarray:
        """Which sites were visited in this hour of the day, or twice beside it: (n,) bool."""
        return np.asarray(self._weight[:, cell_of(hour)] >= 1)

    def _level(self, rows: np.ndarray) -> np.ndarray:
        """What stands for a time that nobody took: the site's mean, else that of all."""
        weight = self._weight[rows].sum(axis=1)
        own = (self._weight[rows] * self._mean[rows]).sum(axis=1) / np.maximum(weight, 1e-9)
        every = self._weight.sum()
        mean = float((self._weight * self._mean).sum() / every) if every else 0.0
        return np.where(weight > 0, own, mean)

    def shrinkage(self) -> float:
        """Visits after which a site's departure from the common shape is believed half, from the visits themselves."""
        squares, many = self._within
        if many < CELLS_TO_ESTIMATE or self._count(lambda rows: self._weight[rows] >= 2) < CELLS_TO_ESTIMATE:
            return FIRST_SHRINKAGE
        within = squares / many
        common = self._common(np.zeros(len(self), np.int32), 1)[0]
        own = self._site_means(lambda _: np.zeros(CELLS))
        departed, error, cells = 0.0, 0.0, 0
        for rows in self._blocks():
            weight = self._weight[rows]
            sure = weight >= 2
            departure = (self._mean[rows] - own[rows, None] - common)[sure]
            departed += float((departure**2).sum())
            error += float((within / weight[sure]).sum())
            cells += len(departure)
        between = (departed - error) / cells
        if between <= 0:
            return MOST_SHRINKAGE
        return float(np.clip(within / between, LEAST_SHRINKAGE, MOST_SHRINKAGE))

    def forecast(self, hour: int, groups: np.ndarray | None = None) -> Forecast:
        """Loads from this hour on. `groups`: an index from 0 up for each site, of sites that share a day."""
        groups = np.zeros(len(self), np.int32) if groups is None else groups
        known = np.asarray(self._weight.any(axis=1))
        steps = np.full((len(self), 24), UNKNOWN, np.uint8)
        if not known.any():
            return Forecast(steps, 0.0)
        if not known.all():
            steps[known], reference = self._only(known).forecast(hour, groups[known])
            return Forecast(steps, reference)
        common = self._common(groups, int(groups.max()) + 1)
        own = self._site_means(lambda rows: common[groups[rows]])
        k = self.shrinkage()

        def pace(rows: slice) -> np.ndarray:
            return self._pace(rows, own[rows, None], common[groups[rows]], k)

        best = np.concatenate([pace(rows).max(axis=1) for rows in self._blocks()])
        # Of best hours: with means, the best hours of many sites would all be load 0, and none the best.
        reference = float(np.percentile(best, REFERENCE_PERCENTILE))
        cells = [cell_of(hour + step) for step in range(24)]
        for rows in self._blocks():
            load = self._smoothed(rows, 1 - np.minimum(pace(rows) / reference, 1.0), k)[:, cells]
            steps[rows] = np.clip(np.rint(load * 254), 0, BUSIEST)
        return Forecast(steps, reference * 3600)

    def _only(self, chosen: np.ndarray) -> LoadTable:
        """A table of these rows alone."""
        table = LoadTable(0)
        for name in self._COLUMNS:
            setattr(table, name, getattr(self, name)[chosen])
        table._within = self._within
        return table

    def _blocks(self) -> Iterator[slice]:
        for first in range(0, len(self), BLOCK_SITES):
            yield slice(first, min(first + BLOCK_SITES, len(self)))

    def _count(self, what: Callable[[slice], np.ndarray]) -> int:
        return sum(int(np.count_nonzero(what(rows))) for rows in self._blocks())

    def _pace(self, rows: slice, own: np.ndarray, shape: np.ndarray, k: float) -> np.ndarray:
        """Pages a second in each cell, as far as the evidence goes."""
        weight, mean, refused = self._weight[rows], self._mean[rows], self._refused[rows]
        belief = weight / (weight + k)
        departure = belief * (mean - own - shape)
        total = np.maximum(weight.sum(axis=1), 1e-9)
        own_refused = ((weight * refused).sum(axis=1) / total)[:, None]
        shrunk = own_refused + belief * (refused - own_refused)
        return np.asarray((1 - shrunk) * np.exp(-(own + shape + departure)))

    def _site_means(self, shape_of: Callable[[slice], np.ndarray]) -> np.ndarray:
        """Each site's own level, the shape that it shares with others taken out; the mean of all where it has none."""
        weight, total = np.zeros(len(self)), np.zeros(len(self))
        for rows in self._blocks():
            weight[rows] = self._weight[rows].sum(axis=1)
            total[rows] = (self._weight[rows] * (self._mean[rows] - shape_of(rows))).sum(axis=1)
        everybody = total.sum() / max(weight.sum(), 1e-9)
        return np.asarray(np.where(weight > 0, total / np.maximum(weight, 1e-9), everybody))

    def _common(self, groups: np.ndarray, many: int) -> np.ndarray:
        """The day's shape of each group (groups, 48): shrunk to that of all sites, and that to none."""
        own = self._site_means(lambda _: np.zeros(CELLS))
        sums, weights = np.zeros((many, CELLS)), np.zeros((many, CELLS))
        for rows in self._blocks():
            weight = self._weight[rows]
            _add_by_group(sums, groups[rows], weight * (self._mean[rows] - own[rows, None]))
            _add_by_group(weights, groups[rows], weight)
        everybody = sums.sum(axis=0) / (weights.sum(axis=0) + FIRST_SHRINKAGE)
        return np.asarray(everybody + (sums - weights * everybody) / (weights + FIRST_SHRINKAGE))

    def _smoothed(self, rows: slice, load: np.ndarray, k: float) -> np.ndarray:
        """Towards two waves a day where the evidence is thin, as it is where it is not."""
        many = self._within[1]
        spread = np.sqrt(self._within[0] / many) if many >= CELLS_TO_ESTIMATE else 0.3
        # Shrinkage has taken a part of the error already.
        error = (1 - load) * spread / np.sqrt(self._weight[rows] + k)
        raw = 1 / (1 + (error / SMOOTH_FROM_ERROR) ** 2)
        waves = np.concatenate([_two_waves(load[:, :24]), _two_waves(load[:, 24:])], axis=1)
        return np.asarray(np.clip(raw * load + (1 - raw) * waves, 0, 1))

    # --- one site as bytes ---

    def pack(self, row: int) -> bytes:
        """A site's cells, of which those without evidence take nothing."""
        cells = np.flatnonzero(self._weight[row]).astype(np.uint8)
        parts = (self._mean, self._refused, self._weight, self._at)
        return cells.tobytes() + b"".join(part[row, cells].tobytes() for part in parts)

    def unpack(self, row: int, packed: bytes) -> None:
        """What `pack` gave; ValueError where it is none."""
        many, rest = divmod(len(packed), 1 + 4 * 4)
        cells = np.frombuffer(packed[:many], np.uint8)
        if rest or (cells >= CELLS).any():
            raise ValueError(f"{len(packed)} bytes are no site's loads")
        words = np.frombuffer(packed[many:], np.float32).reshape(4, many)
        self._mean[row, cells], self._refused[row, cells], self._weight[row, cells] = words[:3]
        self._at[row, cells] = words[3].view(np.int32)


def _add_by_group(sums: np.ndarray, groups: np.ndarray, values: np.ndarray) -> None:
    """Adds each row of values to its group's sum; numpy's `add.at` takes four times as long for it."""
    order = np.argsort(groups, kind="stable")
    found, first = np.unique(groups[order], return_index=True)
    if len(found):
        sums[found] += np.add.reduceat(values[order], first, axis=0, dtype=np.float64)


def _two_waves(day: np.ndarray) -> np.ndarray:
    """A day's mean, its first and its second harmonic (n, 24)."""
    waves = np.fft.rfft(day, axis=1)
    waves[:, 3:] = 0
    return np.fft.irfft(waves, 24, axis=1)


# What each imported byte becomes.
_MEASURED: Final = np.concatenate(
    [np.clip(np.rint(lost_pace(np.arange(FULL + 1) / FULL) * FULL), 0, BUSIEST), [UNKNOWN]]
).astype(np.uint8)


# ------------------------------------------------------------------------------------------------------------
# Loads as CSV files: 24 hours of a site, UTC, each from 0 (idle) to 1 (full). Pure: lines in, profiles out, and back.
#
# site,day,h00,h01,…,h23 day: all, weekday or weekend site,0,1,…,23 paper 000's form: all days
#
# A load is a share of a full line, as a scaled ping time is; an empty field says that it is not known. A site is a
# URL or a host (then https). Raises LoadFileError, which names line, column, what came and what is wanted.


CSV_HOURS: Final = 24
CSV_DAYS: Final[dict[str, tuple[int, ...]]] = {"all": (0, 1), "weekday": (0,), "weekend": (1,)}
CSV_HEADER: Final = ("site", "day", *(f"h{hour:02}" for hour in range(CSV_HOURS)))
SIMPLE_CSV_HEADER: Final = ("site", *map(str, range(CSV_HOURS)))
_WANTED: Final = "expected site,day,h00,h01,…,h23 or site,0,1,…,23"


class LoadFileError(ValueError):
    """No file of loads; says where, what came and what is expected."""


def read_csv(lines: Iterable[str]) -> dict[str, np.ndarray]:
    """Profiles by site: 48 uint8 in the order of crawler.planning.load (0 idle, 254 full, 255 unknown).

    A row of weekdays or weekends counts for more than one of all days.
    """
    rows = csv.reader(lines, strict=True)
    found: dict[str, np.ndarray] = {}
    given: dict[tuple[str, str], int] = {}  # site and day -> line
    try:
        header = _header(next(rows, []))
        for row in rows:
            if any(field.strip() for field in row):
                _take(row, header, rows.line_num, found, given)
    except csv.Error as error:
        raise LoadFileError(f"line {rows.line_num}: {error}") from None
    return found


def write_csv(out: TextIO, profiles: Iterable[tuple[str, np.ndarray]]) -> int:
    """The file of these profiles: site, and 48 loads as floats, NaN unknown; how many sites."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_HEADER)
    many = 0
    for site, loads in profiles:
        for place, day in enumerate(("weekday", "weekend")):
            writer.writerow((site, day, *map(_told, loads[CSV_HOURS * place : CSV_HOURS * (place + 1)])))
        many += 1
    return many


def _header(row: Sequence[str]) -> tuple[str, ...]:
    came = tuple(field.strip().lower().removeprefix("\ufeff") for field in row)
    for wanted in (CSV_HEADER, SIMPLE_CSV_HEADER):
        if came == wanted:
            return wanted
    raise LoadFileError(f"line 1: the header is {','.join(row)[:200]!r}; {_WANTED}")


def _take(
    row: Sequence[str],
    header: tuple[str, ...],
    line: int,
    found: dict[str, np.ndarray],
    given: dict[tuple[str, str], int],
) -> None:
    if len(row) != len(header):
        raise LoadFileError(f"line {line}: {len(row)} fields; expected {len(header)}, as the header has")
    site = _site(row[0], line)
    day = row[1].strip().lower() if header is CSV_HEADER else "all"
    if day not in CSV_DAYS:
        raise LoadFileError(f"line {line}, column day: {row[1]!r}; expected {', '.join(CSV_DAYS)}")
    first = given.setdefault((site, day), line)
    if first != line:
        raise LoadFileError(
            f"line {line}: {site} on day {day!r} stands in line {first} already; expected it once"
        )
    loads = np.array(list(_loads(row, header, line)), np.uint8)
    profile = found.setdefault(site, np.full(CELLS, UNKNOWN, np.uint8))
    for place in CSV_DAYS[day]:
        part = profile[CSV_HOURS * place : CSV_HOURS * (place + 1)]
        new = loads != UNKNOWN
        if day == "all":
            new &= part == UNKNOWN
        part[new] = loads[new]


def _site(text: str, line: int) -> str:
    text = text.strip()
    try:
        return split_page(text if "://" in text else f"https://{text}")[0]
    except UrlError as error:
        raise LoadFileError(f"line {line}, column site: {error}; expected a URL or a host") from None


def _loads(row: Sequence[str], header: tuple[str, ...], line: int) -> Iterator[int]:
    for name, text in list(zip(header, row, strict=True))[-CSV_HOURS:]:
        if not text.strip():
            yield UNKNOWN
            continue
        try:
            load = float(text)
        except ValueError:
            load = -1.0
        if not 0.0 <= load <= 1.0:
            raise LoadFileError(
                f"line {line}, column {name}: {text!r}; expected a number from 0 (idle) to 1 (full), or nothing"
            )
        yield round(load * FULL)


def _told(load: float) -> str:
    return "" if np.isnan(load) else f"{load:.3f}"
