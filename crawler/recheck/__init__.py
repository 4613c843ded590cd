"""Recheck: which pages to visit again. Pure functions over arrays: no clock, no Redis, no Scrapy.

A page is visited when its expected gain in freshness exceeds its cost times the price; RECRAWL_MODE names the formula.
Times are seconds since one epoch. Raises RecrawlError for invalid arguments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    import numpy as np

    from crawler.recheck.core import Recrawl as Recrawl
    from crawler.recheck.view import PageView

# Name -> dotted path. Checked without importing a mode, so that the command line starts fast.
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
    """Invalid mode, page, option or number; the message says what is expected."""


class Mode(Protocol):
    """Scores pages; pure."""

    # True: view.price is the price of a slot second, moved by feedback, and only scores above 0 are visited.
    # False: the highest scores are visited; `candidates` takes those above view.price.
    priced: bool

    def score(self, view: PageView) -> np.ndarray:
        """float32 per page, higher = sooner; finite, or -inf for "not now"."""


def get(name: str) -> Mode:
    """The mode with this name or dotted path; a class is instantiated."""
    path = check(name)
    from importlib import import_module

    module, _, attribute = path.rpartition(".")
    found = getattr(import_module(module), attribute)
    return cast("Mode", found() if isinstance(found, type) else found)


def check(name: str, also: tuple[str, ...] = ()) -> str:
    """The dotted path of a mode; names in `also` stay as they are. Raises RecrawlError for unknown names."""
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
    # Checking a name must not import numpy and numba; making a Recrawl does.
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
