"""Validates a `SiteView`: shapes, types and numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from crawler.schedulers import SchedulerError
from crawler.schedulers.law import HOURS

if TYPE_CHECKING:
    from crawler.schedulers import SiteView

TYPES = {
    "load": np.uint8,
    "pages_per_hour": np.float32,
    "pace_cap": np.float32,
    "remaining": np.float32,
    "ready": np.bool_,
    "sequence": np.int64,
}


def check(view: SiteView) -> None:
    """Raises SchedulerError for the first invalid field."""
    n = len(view.remaining) if isinstance(view.remaining, np.ndarray) and view.remaining.ndim else 0
    for name, kind in TYPES.items():
        _check_array(name, getattr(view, name), kind, (n, HOURS) if name == "load" else (n,))
    # Infinite means no cap here; the other fields must be finite.
    _check_numbers("pages_per_hour", view.pages_per_hour, np.inf)
    _check_numbers("remaining", view.remaining, np.inf)
    _check_numbers("pace_cap", view.pace_cap, math.nan)
    if isinstance(view.slots, bool) or not isinstance(view.slots, int | np.integer) or view.slots < 0:
        raise SchedulerError(f"SiteView.slots is {view.slots!r}; expected an integer >= 0")
    if not (_is_number(view.hour_left) and 0 <= view.hour_left <= 1):
        raise SchedulerError(f"SiteView.hour_left is {view.hour_left!r}; expected a share of an hour, 0 to 1")
    if not (_is_number(view.exponent) and 0 < view.exponent < math.inf):
        raise SchedulerError(f"SiteView.exponent is {view.exponent!r}; expected a number above 0")


def _check_array(name: str, values: Any, kind: type[np.generic], shape: tuple[int, ...]) -> None:
    if not isinstance(values, np.ndarray):
        came = type(values).__name__
    elif values.dtype != kind or values.shape != shape:
        came = f"{values.dtype} of shape {values.shape}"
    else:
        return
    raise SchedulerError(
        f"SiteView.{name} is {came}; expected an array of {np.dtype(kind)} of shape {shape}, for as many sites as "
        "`remaining` has"
    )


def _check_numbers(name: str, values: np.ndarray, refused: float) -> None:
    # With a NaN in the array, min and max are NaN.
    if not len(values) or (values.min() >= 0 and values.max() != refused):
        return
    row = int(np.flatnonzero(~(values >= 0) | (values == refused))[0])
    wanted = "a number of 0 or more" if math.isnan(refused) else "a finite number of 0 or more"
    raise SchedulerError(f"SiteView.{name} is {values[row]} at row {row}; expected {wanted}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)
