"""Reads personalisation weights of jumps from a file.

    page_id,weight        or        site_id,weight
    17,2.5                          3,1

Unlisted pages and sites in a .csv weigh 0; a site's weight is divided among its pages. A .npy has a weight per page.
Raises ValueError, naming the line, and OSError.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

import numpy as np

_KEYS = ("page_id", "site_id")


def read(path: Path, first: np.ndarray) -> np.ndarray:
    """A weight per page; site s has pages first[s] .. first[s + 1] - 1."""
    if path.suffix == ".npy":
        try:
            return np.load(path, allow_pickle=False)  # type: ignore[no-any-return]
        except (ValueError, EOFError) as error:
            raise ValueError(f"{path}: {error}; expected an array with a weight per page") from None
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            return _read_lines(lines, first)
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path}: {error}") from None


def _read_lines(lines: Iterable[str], first: np.ndarray) -> np.ndarray:
    rows = csv.reader(lines)
    header = next(rows, [])
    if header[1:] != ["weight"] or header[0] not in _KEYS:
        raise ValueError(f"the header is {','.join(header)!r:.60}; expected page_id,weight or site_id,weight")
    by_page = header[0] == "page_id"
    found = np.zeros(int(first[-1]) if by_page else len(first) - 1)
    for number, row in enumerate(rows, 2):
        try:
            key, weight = int(row[0]), float(row[1])
        except (IndexError, ValueError):
            raise ValueError(f"line {number} is {','.join(row)!r:.60}; expected an id and a weight") from None
        if not 0 <= key < len(found):
            raise ValueError(f"line {number} has {header[0]} {key}; expected 0 .. {len(found) - 1}")
        found[key] += weight
    size = np.diff(first)
    return found if by_page else np.repeat(found / np.maximum(size, 1), size)
