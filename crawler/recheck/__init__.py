"""WHICH PAGE AGAIN: what a visit is worth against what it costs, for all pages of all sites, without looking at all.

A visit is made where its value exceeds its price. Value: the freshness that it is expected to bring, weighted by the
page's importance (value.py), from what earlier visits told of the page's changes (rates.py) and what its site signals
(signals.py). Cost: seconds of a slot at the hour's pace. Price: one figure for all, found by feedback so that the
budget is used up (price.py). How value and cost become one score is the mode (modes.py), which RECRAWL_MODE names or
any dotted path; law.py is the one formula that all of ours are cases of. Pages stand in columns, grouped by host
(columns.py); hosts are scored in turn, and each choice looks at the few candidates that this left (candidates.py).
Where sites come one by one, as in the crawl, account.py keeps the budget and the price for all of them.

Pure: arrays in, arrays out; no clock, no Redis, no Scrapy. Times are seconds since any epoch, the same in all calls;
one that stands still or jumps back makes pages no older, and nothing else.

`Recrawl` is in core.py, and what it knows of pages in known.py. RecrawlError: what was given means nothing; says what
came and what is expected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    import numpy as np

    from crawler.recheck.core import Recrawl as Recrawl
    from crawler.recheck.view import PageView

# name -> dotted path. Read without importing a mode, so that a command line is checked at once.
NAMES = {
    "default": "crawler.recheck.modes.DEFAULT",
    "importance": "crawler.recheck.modes.IMPORTANCE",
    "freshness": "crawler.recheck.modes.FRESHNESS",
    "staleness": "crawler.recheck.modes.STALENESS",
    "paper": "crawler.recheck.modes.PAPER",
    "round_robin": "crawler.recheck.modes.ROUND_ROBIN",
    "change_frequency": "crawler.recheck.modes.CHANGE_FREQUENCY",
    "importance_proportional": "crawler.recheck.modes.IMPORTANCE_PROPORTIONAL",
}


class RecrawlError(ValueError):
    """No such mode or page, an option it does not take, or numbers that mean nothing; says what is expected."""


class Mode(Protocol):
    """A way to score pages; pure, and the same for the same view."""

    # Whether view.price is the price of a slot's second, moved by feedback, and only pages above 0 are visited. Else
    # the best are visited whatever their score, and where one site is asked alone, those above view.price.
    priced: bool

    def score(self, view: PageView) -> np.ndarray:
        """float32 per page of the view, higher = sooner; finite, or -inf for "not now"."""


def get(name: str) -> Mode:
    """The mode of this name or dotted path: what stands there, called without arguments if it is a class."""
    path = check(name)
    from importlib import import_module

    module, _, attribute = path.rpartition(".")
    found = getattr(import_module(module), attribute)
    return cast("Mode", found() if isinstance(found, type) else found)


def check(name: str, also: tuple[str, ...] = ()) -> str:
    """The dotted path that `name` means; RecrawlError if nothing is there.

    `also`: what the caller understands beside modes; stands for itself.
    """
    if name in also:
        return name
    if name in NAMES:
        return NAMES[name]
    module, _, attribute = name.rpartition(".")
    if module and _is_mode(module, attribute):
        return name
    wanted = ", ".join((*NAMES, *also))
    raise RecrawlError(
        f"RECRAWL_MODE is {name!r}; expected one of {wanted}, or a dotted path to something with score and priced"
    )


def __getattr__(name: str) -> Any:
    # Arrays and compiler are imported by who makes a Recrawl, not by who checks a name.
    if name == "Recrawl":
        from crawler.recheck.core import Recrawl

        return Recrawl
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _is_mode(module: str, attribute: str) -> bool:
    from importlib import import_module

    try:
        found = getattr(import_module(module), attribute, None)
    except ImportError:
        return False
    return callable(getattr(found, "score", None)) and isinstance(getattr(found, "priced", None), bool)
