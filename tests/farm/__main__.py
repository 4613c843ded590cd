"""`python -m tests.farm`: serves a farm in this process until SIGTERM, SIGINT or the parent's end.

Hides the choice of the event loop. Exit code 0 after a clean end, 2 for options that cannot be served.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

from .plan import add_arguments, from_options
from .server import serve


def main(arguments: list[str] | None = None) -> int:
    """Parses, serves, returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.farm", description="A local web that misbehaves.")
    add_arguments(parser)
    parser.add_argument("--port", type=int, default=0, help="0 = one that is free")
    parser.add_argument("--hits", type=Path, help="append one JSON line per request here")
    parser.add_argument("--ready", type=Path, help="write port and seeds here; default: stdout")
    parser.add_argument(
        "--parent", type=int, default=os.getppid(), help="end when it is no longer the parent"
    )
    options = parser.parse_args(arguments)
    try:
        plan = from_options(options)
    except ValueError as error:
        parser.error(str(error))
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(serve(plan, options.port, options.hits, options.ready, options.parent))
    return 0


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Of uvloop where it is installed; None = asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


if __name__ == "__main__":
    sys.exit(main())
