"""Policies that choose which site comes first. Pure: arrays of sites in, one score per site out.

`get(name)` returns a policy by name or dotted path. Raises SchedulerError, which lists the valid names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    import numpy as np

# Name -> dotted path. Checked without importing a policy, so that the command line starts fast.
NAMES = {
    "random": "crawler.schedulers.paper.Random",
    "sorted": "crawler.schedulers.paper.Sorted",
    "hybrid": "crawler.schedulers.paper.Hybrid",
    "regret": "crawler.schedulers.regret.Regret",
    "early": "crawler.schedulers.regret.Early",
}


class SchedulerError(ValueError):
    """Invalid policy, option or view."""


@dataclass(frozen=True)
class SiteView:
    """What a policy sees of n sites. Arrays are read-only and valid; only `pace_cap` may be infinite."""

    load: np.ndarray  # (n, 24) uint8: the next 24 hours, column 0 = now; 0 idle .. 254 full, 255 unknown
    pages_per_hour: np.ndarray  # (n,) float32: one slot's pace at load 0
    pace_cap: np.ndarray  # (n,) float32: pace allowed by the crawl delay
    remaining: np.ndarray  # (n,) float32: pages still to fetch (estimate); 0 = finished
    ready: np.ndarray  # (n,) bool: may be crawled in this hour
    sequence: np.ndarray  # (n,) int64: order of listing
    slots: int  # sites worked on at a time, over all agents
    hour_left: float  # share of this hour still to come, 0 .. 1
    exponent: float = 1.0  # law from load to pace: 1 for loads measured as lost pace, 1.5 for ping tables

    def __post_init__(self) -> None:
        """Validates the view; raises SchedulerError."""
        from crawler.schedulers import view_check

        view_check.check(self)


class SiteScheduler(Protocol):
    """A policy."""

    def score(self, view: SiteView) -> np.ndarray:
        """float32 per site, higher = sooner, -inf = not in this hour."""

    def keep(self, view: SiteView, running: np.ndarray) -> np.ndarray:
        """Per index of a running site: whether it continues in this hour."""


def get(name: str, **options: Any) -> SiteScheduler:
    """The policy with this name or dotted path, built with its options. Raises SchedulerError."""
    path = check(name)
    from scrapy.utils.misc import load_object

    return cast("SiteScheduler", load_object(path)(**options))


def pace(view: SiteView, rows: slice | np.ndarray = slice(None)) -> np.ndarray:
    """(n, 24) float32: pages per slot-hour in each of the next hours.

    min(pace_cap, pages_per_hour * (1 - load/254) ** exponent). An unknown hour has the mean of the known loads; a site
    without known loads keeps pages_per_hour.
    """
    from crawler.schedulers import law

    return law.pace(view, rows)


def hours(view: SiteView, name: str = "hybrid", top: int | None = None, **options: Any) -> list[list[int]]:
    """The hour table: 24 columns, column 0 = now, each with at most `top` rows, best first."""
    from crawler.schedulers import table

    return table.hours(view, get(name, **options), top)


def check(name: str) -> str:
    """The dotted path of a policy. Raises SchedulerError for unknown names."""
    if name in NAMES:
        return NAMES[name]
    module, _, attribute = name.rpartition(".")
    if module and _is_policy(module, attribute):
        return name
    raise SchedulerError(
        f"SITE_SCHEDULER is {name!r}; expected one of {', '.join(NAMES)}, or the path of a class with score and keep"
    )


def check_options(name: str, options: dict[str, Any]) -> None:
    """Raises SchedulerError if the policy cannot be built with these options."""
    check(name)
    if not options:
        return  # the common case imports nothing
    try:
        get(name, **options)
    except TypeError as error:
        raise SchedulerError(
            f"SITE_SCHEDULER_OPTIONS are {options}; expected options of {name}: {error}"
        ) from None


def _is_policy(module: str, attribute: str) -> bool:
    from importlib import import_module

    try:
        found = getattr(import_module(module), attribute, None)
    except ImportError:
        return False
    return all(callable(getattr(found, name, None)) for name in ("score", "keep"))
