"""`python -m crawler.local.start …`: what `scrapy …` does, a quarter sooner; for the processes that we start ourselves.

A start makes half a million objects, and none of them is garbage: Python's collector would go through them again and
again, a fifth of all the time that a start takes, and once more at the end.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scrapy.settings import Settings

# Objects made before the collector looks. What works for long has a number of its own.
GC_ALLOCATIONS = 50_000


def look_rarely() -> None:
    """The collector looks at new objects once in a while, and seldom at all."""
    gc.set_threshold(GC_ALLOCATIONS, *gc.get_threshold()[1:])


def end_quickly() -> None:
    """At the end of the process nobody looks for garbage; not for strangers' code, whose open files it might hold."""
    atexit.register(gc.freeze)


def settings() -> Settings | None:
    """The project's, below what the process that started this one has handed on; None where that is nothing."""
    from scrapy.utils.project import get_project_settings

    from crawler.options import HANDED_ON

    # Taken out: what this process starts in turn, a hook say, has settings of its own.
    handed_on = os.environ.pop(HANDED_ON, "")
    if not handed_on:
        return None
    found = get_project_settings()
    found.setdict(json.loads(handed_on), priority="cmdline")
    return found


if __name__ == "__main__":
    look_rarely()
    from scrapy.cmdline import execute

    sys.argv[0] = "scrapy"
    execute(settings=settings())
