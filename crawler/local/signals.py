"""How a process with an event loop hears that it is to end: SIGINT and SIGTERM, for as long as its work takes.

No longer: a signal to a loop that closes would be an error in its log. From then on both do what they do by default.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def told_to_end(heard: Callable[[], None]) -> Iterator[None]:
    """Within it `heard` is called at each of them, by the running loop."""
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, heard)
    try:
        yield
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
