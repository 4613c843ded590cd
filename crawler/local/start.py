"""`python -m crawler.local.start …`: runs `scrapy …`, starting a quarter faster.

For child processes. Imports create few garbage objects, so the collector runs rarely.
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

# Allocations before a collection. Long-running processes set their own threshold.
GC_ALLOCATIONS = 50_000


def look_rarely() -> None:
    """Collect rarely."""
    gc.set_threshold(GC_ALLOCATIONS, *gc.get_threshold()[1:])


def end_quickly() -> None:
    """Skip the collection at exit, unless users' code is loaded."""
    atexit.register(gc.freeze)


def settings() -> Settings | None:
    """The project's settings with those the parent passed on; None if it passed none."""
    from scrapy.utils.project import get_project_settings

    from crawler.options import HANDED_ON

    # Removed, so that child processes of this one do not inherit it.
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
