"""Loads as CSV files: 24 hours of a site, UTC, each from 0 (idle) to 1 (full). Pure: lines in, profiles out, and back.

    site,day,h00,h01,…,h23      day: all, weekday or weekend
    site,0,1,…,23               paper 000's form: all days

A load is a share of a full line, as a scaled ping time is; an empty field says that it is not known. A site is a URL
or a host (then https). Raises LoadFileError, which names line, column, what came and what is wanted.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TextIO

import numpy as np

from crawler.planning.load import CELLS, FULL, UNKNOWN
from crawler.urls.canonical import split
from crawler.urls.url import UrlError

HOURS: Final = 24
DAYS: Final[dict[str, tuple[int, ...]]] = {"all": (0, 1), "weekday": (0,), "weekend": (1,)}
HEADER: Final = ("site", "day", *(f"h{hour:02}" for hour in range(HOURS)))
SIMPLE_HEADER: Final = ("site", *map(str, range(HOURS)))
_WANTED: Final = "wanted site,day,h00,h01,…,h23 or site,0,1,…,23"


class LoadFileError(ValueError):
    """No file of loads; says where, what came and what is wanted."""


def read(lines: Iterable[str]) -> dict[str, np.ndarray]:
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


def write(out: TextIO, profiles: Iterable[tuple[str, np.ndarray]]) -> int:
    """The file of these profiles: site, and 48 loads as floats, NaN unknown; how many sites."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(HEADER)
    many = 0
    for site, loads in profiles:
        for place, day in enumerate(("weekday", "weekend")):
            writer.writerow((site, day, *map(_told, loads[HOURS * place : HOURS * (place + 1)])))
        many += 1
    return many


def _header(row: Sequence[str]) -> tuple[str, ...]:
    came = tuple(field.strip().lower().removeprefix("\ufeff") for field in row)
    for wanted in (HEADER, SIMPLE_HEADER):
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
        raise LoadFileError(f"line {line}: {len(row)} fields; wanted {len(header)}, as the header has")
    site = _site(row[0], line)
    day = row[1].strip().lower() if header is HEADER else "all"
    if day not in DAYS:
        raise LoadFileError(f"line {line}, column day: {row[1]!r}; wanted {', '.join(DAYS)}")
    first = given.setdefault((site, day), line)
    if first != line:
        raise LoadFileError(
            f"line {line}: {site} on day {day!r} stands in line {first} already; wanted it once"
        )
    loads = np.array(list(_loads(row, header, line)), np.uint8)
    profile = found.setdefault(site, np.full(CELLS, UNKNOWN, np.uint8))
    for place in DAYS[day]:
        part = profile[HOURS * place : HOURS * (place + 1)]
        new = loads != UNKNOWN
        if day == "all":
            new &= part == UNKNOWN
        part[new] = loads[new]


def _site(text: str, line: int) -> str:
    text = text.strip()
    try:
        return split(text if "://" in text else f"https://{text}")[0]
    except UrlError as error:
        raise LoadFileError(f"line {line}, column site: {error}; wanted a URL or a host") from None


def _loads(row: Sequence[str], header: tuple[str, ...], line: int) -> Iterator[int]:
    for name, text in list(zip(header, row, strict=True))[-HOURS:]:
        if not text.strip():
            yield UNKNOWN
            continue
        try:
            load = float(text)
        except ValueError:
            load = -1.0
        if not 0.0 <= load <= 1.0:
            raise LoadFileError(
                f"line {line}, column {name}: {text!r}; wanted a number from 0 (idle) to 1 (full), or nothing"
            )
        yield round(load * FULL)


def _told(load: float) -> str:
    return "" if np.isnan(load) else f"{load:.3f}"
