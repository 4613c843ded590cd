"""Validates numbers; raises RecrawlError with the value and what is expected."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from crawler.recheck import RecrawlError

# These may be below 0.
TIMES = ("last", "changed_at")


def positive(name: str, value: Any) -> float:
    """One finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 < value < math.inf:
        raise RecrawlError(f"{name} is {value!r}; expected a number above 0")
    return float(value)


def shares(name: str, value: Any) -> np.ndarray:
    """Shares, 0 to 1, of any shape."""
    found = np.asarray(value, np.float32)
    if not ((found >= 0) & (found <= 1)).all():
        raise RecrawlError(f"{name} is {value!r}; expected shares, 0 to 1")
    return found


def numbers(name: str, values: Any, n: int, kind: type) -> np.ndarray:
    """A copy with n numbers: finite or NaN, and >= 0 except times."""
    try:
        found: np.ndarray = np.array(np.broadcast_to(np.asarray(values), (n,)), dtype=kind)
    except (ValueError, TypeError):
        raise RecrawlError(f"{name} is of shape {np.shape(values)}; expected one number, or {n}") from None
    least = -math.inf if name in TIMES else 0.0
    wrong = np.isinf(found) | (found < least)
    if wrong.any():
        raise RecrawlError(f"{name} is {found[wrong][0]}; expected finite numbers, {least:g} or more")
    return found
