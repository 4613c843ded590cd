"""WHICH SITE FIRST: one file per policy. A policy is pure: arrays of sites in, a score per site out.

`get(name)` gives a policy by its name here or by any dotted path; SchedulerError lists the right names. What
policies share is in law.py (from load to pace) and ahead.py (what later hours are worth); table.py draws all hours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    import numpy as np

# name -> dotted path. Read without importing a policy, so that a command line is checked at once.
NAMES = {
    "random": "crawler.schedulers.paper.Random",
    "sorted": "crawler.schedulers.paper.Sorted",
    "hybrid": "crawler.schedulers.paper.Hybrid",
    "regret": "crawler.schedulers.regret.Regret",
    "early": "crawler.schedulers.regret.Early",
}


class SchedulerError(ValueError):
    """No such policy, an option it does not take, or a view that means nothing; says what is expected."""


@dataclass(frozen=True)
class SiteView:
    """What a policy sees of n sites; arrays are read-only.

    A view checks itself when it is made: a shape or type that is not the one below, NaN, a negative number or an
    infinite one (but for `pace_cap`) is a SchedulerError. So no policy has to check what it is shown.
    """

    load: np.ndarray  # (n, 24) uint8: the next 24 hours, column 0 = now; 0 idle .. 254 full, 255 unknown
    pages_per_hour: np.ndarray  # (n,) float32: one slot's pace at load 0
    pace_cap: np.ndarray  # (n,) float32: pace allowed by the crawl delay
    remaining: np.ndarray  # (n,) float32: pages still to fetch (estimate); 0 = finished
    ready: np.ndarray  # (n,) bool: may be worked on in this hour
    sequence: np.ndarray  # (n,) int64: order of listing
    slots: int  # sites worked on at a time, over all agents
    hour_left: float  # share of this hour still to come, 0 .. 1
    exponent: float = 1.0  # law from load to pace: 1 for loads measured as lost pace, 1.5 for ping tables

    def __post_init__(self) -> None:
        """SchedulerError with the field, what it is and what is expected."""
        from crawler.schedulers import view_check

        view_check.check(self)


class SiteScheduler(Protocol):
    """A policy."""

    def score(self, view: SiteView) -> np.ndarray:
        """float32 per site, higher = sooner, -inf = not in this hour; the caller takes the top."""

    def keep(self, view: SiteView, running: np.ndarray) -> np.ndarray:
        """Per index of a running site, whether it goes on into this hour."""


def get(name: str, **options: Any) -> SiteScheduler:
    """The policy of this name or dotted path, built with its options; SchedulerError if there is none."""
    path = check(name)
    from scrapy.utils.misc import load_object

    return cast("SiteScheduler", load_object(path)(**options))


def pace(view: SiteView, rows: slice | np.ndarray = slice(None)) -> np.ndarray:
    """(n, 24) float32: pages per slot-hour in each of the next hours; the one law from load to pace, cap included.

    min(pace_cap, pages_per_hour * (1 - load/254) ** exponent). An unknown hour has the mean of the known loads; a
    site none of whose hours are known keeps pages_per_hour through all of them.
    """
    from crawler.schedulers import law

    return law.pace(view, rows)


def hours(view: SiteView, name: str = "hybrid", top: int | None = None, **options: Any) -> list[list[int]]:
    """The hour table: 24 columns, column 0 is now, of rows of the view, best first, at most `top` in a column."""
    from crawler.schedulers import table

    return table.hours(view, get(name, **options), top)


def check(name: str) -> str:
    """The dotted path that `name` means; SchedulerError if nothing is there."""
    if name in NAMES:
        return NAMES[name]
    module, _, attribute = name.rpartition(".")
    if module and _is_policy(module, attribute):
        return name
    raise SchedulerError(
        f"SITE_SCHEDULER is {name!r}; expected one of {', '.join(NAMES)}, or the path of a class with score and keep"
    )


def check_options(name: str, options: dict[str, Any]) -> None:
    """SchedulerError if there is no such policy, or if it is not to be built with these options."""
    check(name)
    if not options:
        return  # nothing is imported for what most crawls have
    try:
        get(name, **options)
    except TypeError as error:
        raise SchedulerError(
            f"SITE_SCHEDULER_OPTIONS are {options}; expected such as {name} takes: {error}"
        ) from None


def _is_policy(module: str, attribute: str) -> bool:
    from importlib import import_module

    try:
        found = getattr(import_module(module), attribute, None)
    except ImportError:
        return False
    return all(callable(getattr(found, name, None)) for name in ("score", "keep"))
