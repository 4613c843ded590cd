"""Forecasts each site's load by hour, from what its pages cost to fetch. Pure arrays.

A visit is one agent's view of a site in one hour: median page time and share of refused requests (429, 5xx, timeout).
A site has 48 cells (weekday and weekend by UTC hour). A forecast is the site's mean, the common shape, and the site's
own deviation as far as the evidence supports it.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TextIO

import numpy as np

from crawler.urls.url import UrlError, split_page

CELLS: Final = 48
# A visit's weight halves in this time. An assumption, not measured.
HALF_LIFE_HOURS: Final = 21 * 24.0
# A visit counts half in the neighbouring hours.
NEIGHBOUR: Final = 0.5
# Visits at which a deviation counts half, until `shrinkage` can be estimated.
FIRST_SHRINKAGE: Final = 8.0
LEAST_SHRINKAGE, MOST_SHRINKAGE = 0.5, 100.0
# Cells with two or more visits needed for the estimate.
CELLS_TO_ESTIMATE: Final = 200
# Forecast error above which a smoothed day is better: the minimum of noisy hours is biased (simulated: equal at 0.06).
SMOOTH_FROM_ERROR: Final = 0.06
# The pace that counts as load 0: this percentile of sites' best hours.
REFERENCE_PERCENTILE: Final = 95
IDLE, FULL, UNKNOWN = 0, 254, 255
# Sites computed at a time: intermediate arrays take kilobytes per site.
BLOCK_SITES: Final = 1 << 14
# Highest load of a site that answers.
BUSIEST: Final = 253
# An imported load is a share of line capacity (ping times); the pace left is (1 - load) to this power, as in paper 000.
# Measured loads are lost pace already.
IMPORTED_EXPONENT: Final = 1.5
# The first hour since 1970 was on a Thursday; Saturday is the third day.
_FIRST_WEEKDAY: Final = 3


class Forecast(NamedTuple):
    """The next 24 hours, starting with the requested one."""

    load: np.ndarray  # (n, 24) uint8: 0 idle .. 253 busy; 255 unknown
    reference: float  # pages an hour of one connection at load 0; 0: unknown


def cell_of(hour: int) -> int:
    """The cell of a UTC hour since 1970: 0 to 23 on weekdays, 24 to 47 at weekends."""
    weekday = (hour // 24 + _FIRST_WEEKDAY) % 7
    return hour % 24 + (24 if weekday >= 5 else 0)


def lost_pace(share: np.ndarray) -> np.ndarray:
    """Converts imported loads (0 to 1) to measured ones."""
    return np.asarray(1 - (1 - share) ** IMPORTED_EXPONENT)


def share_of_line(lost: np.ndarray) -> np.ndarray:
    """Converts measured loads to imported ones."""
    return np.asarray(1 - (1 - lost) ** (1 / IMPORTED_EXPONENT))


def with_profiles(load: np.ndarray, profiles: np.ndarray, hour: int) -> np.ndarray:
    """Loads with the known imported ones in place of forecasts, from this hour on.

    `profiles`: (n, 48) uint8, one row per site, cells as in `cell_of`.
    """
    given = profiles[:, [cell_of(hour + step) for step in range(24)]]
    return np.where(given == UNKNOWN, load, _MEASURED[given])


class LoadTable:
    """Cells of n sites, and their common shape."""

    _COLUMNS = ("_mean", "_refused", "_weight", "_at")

    def __init__(self, sites: int) -> None:
        self._mean = np.zeros((sites, CELLS), np.float32)  # log of a page's seconds
        self._refused = np.zeros((sites, CELLS), np.float32)
        self._weight = np.zeros((sites, CELLS), np.float32)
        self._at = np.zeros((sites, CELLS), np.int32)  # hour of the last visit
        self._within = np.zeros(2)  # sum of squares between visits of one cell, and their number

    def __len__(self) -> int:
        return len(self._weight)

    def grow(self, sites: int) -> None:
        """Makes room for this many sites."""
        more = sites - len(self)
        if more > 0:
            for name in self._COLUMNS:
                old = getattr(self, name)
                setattr(self, name, np.concatenate([old, np.zeros((more, CELLS), old.dtype)]))

    def fold(self, hour: int, rows: np.ndarray, seconds: np.ndarray, refused: np.ndarray) -> None:
        """Adds one hour's visits: distinct site rows, seconds per page (NaN: all refused), share of refusals (0 to 1).

        Hours may come in any order. Raises ValueError if seconds are not above 0.
        """
        if not (np.isnan(seconds) | (seconds > 0)).all():
            raise ValueError("seconds of a page are 0 or less; expected above 0, or NaN without an answer")
        if not self._weight.any():
            # Without a timed page on any site, refusals alone cannot be converted to a load.
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
        """(n,) bool: sites visited in this hour of the day, or twice in the neighbouring hours."""
        return np.asarray(self._weight[:, cell_of(hour)] >= 1)

    def _level(self, rows: np.ndarray) -> np.ndarray:
        weight = self._weight[rows].sum(axis=1)
        own = (self._weight[rows] * self._mean[rows]).sum(axis=1) / np.maximum(weight, 1e-9)
        every = self._weight.sum()
        mean = float((self._weight * self._mean).sum() / every) if every else 0.0
        return np.where(weight > 0, own, mean)

    def shrinkage(self) -> float:
        """Visits at which a site's deviation counts half, estimated from the visits."""
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
        """Loads from this hour on. `groups`: index per site; sites of a group share a daily shape."""
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
        # Of best hours: a percentile of means would make the best hours of many sites equal at load 0.
        reference = float(np.percentile(best, REFERENCE_PERCENTILE))
        cells = [cell_of(hour + step) for step in range(24)]
        for rows in self._blocks():
            load = self._smoothed(rows, 1 - np.minimum(pace(rows) / reference, 1.0), k)[:, cells]
            steps[rows] = np.clip(np.rint(load * 254), 0, BUSIEST)
        return Forecast(steps, reference * 3600)

    def _only(self, chosen: np.ndarray) -> LoadTable:
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
        weight, mean, refused = self._weight[rows], self._mean[rows], self._refused[rows]
        belief = weight / (weight + k)
        departure = belief * (mean - own - shape)
        total = np.maximum(weight.sum(axis=1), 1e-9)
        own_refused = ((weight * refused).sum(axis=1) / total)[:, None]
        shrunk = own_refused + belief * (refused - own_refused)
        return np.asarray((1 - shrunk) * np.exp(-(own + shape + departure)))

    def _site_means(self, shape_of: Callable[[slice], np.ndarray]) -> np.ndarray:
        weight, total = np.zeros(len(self)), np.zeros(len(self))
        for rows in self._blocks():
            weight[rows] = self._weight[rows].sum(axis=1)
            total[rows] = (self._weight[rows] * (self._mean[rows] - shape_of(rows))).sum(axis=1)
        everybody = total.sum() / max(weight.sum(), 1e-9)
        return np.asarray(np.where(weight > 0, total / np.maximum(weight, 1e-9), everybody))

    def _common(self, groups: np.ndarray, many: int) -> np.ndarray:
        own = self._site_means(lambda _: np.zeros(CELLS))
        sums, weights = np.zeros((many, CELLS)), np.zeros((many, CELLS))
        for rows in self._blocks():
            weight = self._weight[rows]
            _add_by_group(sums, groups[rows], weight * (self._mean[rows] - own[rows, None]))
            _add_by_group(weights, groups[rows], weight)
        everybody = sums.sum(axis=0) / (weights.sum(axis=0) + FIRST_SHRINKAGE)
        return np.asarray(everybody + (sums - weights * everybody) / (weights + FIRST_SHRINKAGE))

    def _smoothed(self, rows: slice, load: np.ndarray, k: float) -> np.ndarray:
        many = self._within[1]
        spread = np.sqrt(self._within[0] / many) if many >= CELLS_TO_ESTIMATE else 0.3
        # Shrinkage has removed a part of the error already.
        error = (1 - load) * spread / np.sqrt(self._weight[rows] + k)
        raw = 1 / (1 + (error / SMOOTH_FROM_ERROR) ** 2)
        waves = np.concatenate([_two_waves(load[:, :24]), _two_waves(load[:, 24:])], axis=1)
        return np.asarray(np.clip(raw * load + (1 - raw) * waves, 0, 1))

    # --- One site as bytes ---

    def pack(self, row: int) -> bytes:
        """A site's cells; empty ones take no space."""
        cells = np.flatnonzero(self._weight[row]).astype(np.uint8)
        parts = (self._mean, self._refused, self._weight, self._at)
        return cells.tobytes() + b"".join(part[row, cells].tobytes() for part in parts)

    def unpack(self, row: int, packed: bytes) -> None:
        """Loads what `pack` returned. Raises ValueError for other bytes."""
        many, rest = divmod(len(packed), 1 + 4 * 4)
        cells = np.frombuffer(packed[:many], np.uint8)
        if rest or (cells >= CELLS).any():
            raise ValueError(f"{len(packed)} bytes are not a packed site; expected what pack() returns")
        words = np.frombuffer(packed[many:], np.float32).reshape(4, many)
        self._mean[row, cells], self._refused[row, cells], self._weight[row, cells] = words[:3]
        self._at[row, cells] = words[3].view(np.int32)


def _add_by_group(sums: np.ndarray, groups: np.ndarray, values: np.ndarray) -> None:
    # Four times as fast as numpy's `add.at`.
    order = np.argsort(groups, kind="stable")
    found, first = np.unique(groups[order], return_index=True)
    if len(found):
        sums[found] += np.add.reduceat(values[order], first, axis=0, dtype=np.float64)


def _two_waves(day: np.ndarray) -> np.ndarray:
    waves = np.fft.rfft(day, axis=1)
    waves[:, 3:] = 0
    return np.fft.irfft(waves, 24, axis=1)


# Imported byte -> measured load.
_MEASURED: Final = np.concatenate(
    [np.clip(np.rint(lost_pace(np.arange(FULL + 1) / FULL) * FULL), 0, BUSIEST), [UNKNOWN]]
).astype(np.uint8)


# --- Loads as CSV ---
# One row per site and day, 24 UTC hours from 0 (idle) to 1 (full); an empty field is unknown. Header:
# site,day,h00,…,h23 (day: all, weekday, weekend) or site,0,…,23 (all days, as in paper 000).


CSV_HOURS: Final = 24
CSV_DAYS: Final[dict[str, tuple[int, ...]]] = {"all": (0, 1), "weekday": (0,), "weekend": (1,)}
CSV_HEADER: Final = ("site", "day", *(f"h{hour:02}" for hour in range(CSV_HOURS)))
SIMPLE_CSV_HEADER: Final = ("site", *map(str, range(CSV_HOURS)))
_WANTED: Final = "expected site,day,h00,h01,…,h23 or site,0,1,…,23"


class LoadFileError(ValueError):
    """Invalid CSV file; names line, column, value and what is expected."""


def read_csv(lines: Iterable[str]) -> dict[str, np.ndarray]:
    """Profiles by site: 48 uint8 (0 idle, 254 full, 255 unknown). Weekday and weekend rows override all-day rows."""
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
    """Writes sites with 48 loads each (NaN: unknown); returns the number of sites."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_HEADER)
    many = 0
    for site, loads in profiles:
        for place, day in enumerate(("weekday", "weekend")):
            writer.writerow((site, day, *map(_told, loads[CSV_HOURS * place : CSV_HOURS * (place + 1)])))
        many += 1
    return many


def _header(row: Sequence[str]) -> tuple[str, ...]:
    fields = tuple(field.strip().lower().removeprefix("\ufeff") for field in row)
    for wanted in (CSV_HEADER, SIMPLE_CSV_HEADER):
        if fields == wanted:
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
        raise LoadFileError(f"line {line}: {len(row)} fields; expected {len(header)} as in the header")
    site = _site(row[0], line)
    day = row[1].strip().lower() if header is CSV_HEADER else "all"
    if day not in CSV_DAYS:
        raise LoadFileError(f"line {line}, column day: {row[1]!r}; expected {', '.join(CSV_DAYS)}")
    first = given.setdefault((site, day), line)
    if first != line:
        raise LoadFileError(
            f"line {line}: {site} on day {day!r} is already in line {first}; expected one row"
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
                f"line {line}, column {name}: {text!r}; expected a number from 0 (idle) to 1 (full), or an empty field"
            )
        yield round(load * FULL)


def _told(load: float) -> str:
    return "" if np.isnan(load) else f"{load:.3f}"
