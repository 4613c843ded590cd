"""What a call costs: processor time, compared with that of another call, so that no verdict depends on the machine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TypeVar

# Of four times the input: 4 is in proportion to its size, 16 is the square.
STEEP = 9.0
# What takes less than this is no cost, and the clock is too coarse for it.
FLOOR_SECONDS = 0.01
TRIES = 5

Input = TypeVar("Input")


def seconds(call: Callable[[], object]) -> float:
    """Of this process's processor time."""
    start = time.process_time()
    call()
    return time.process_time() - start


def ratio(dear: Callable[[], object], cheap: Callable[[], object], enough: float) -> float:
    """What `dear` costs, in times the cost of `cheap`; measured again while that is not below `enough`."""
    found = math.inf
    for _ in range(TRIES):
        base = max(FLOOR_SECONDS, min(seconds(cheap) for _ in range(2)))
        found = min(found, seconds(dear) / base)
        if found < enough:
            break
    return found


def growth(call: Callable[[Input], object], whole: Input, quarter: Input) -> float:
    """How many times the cost of a quarter of the input all of it costs: below STEEP if no step is quadratic."""
    return ratio(lambda: call(whole), lambda: call(quarter), STEEP)
