"""`python -m rankers FOLDER`: ranks the pages of a folder that `scrapy convert` wrote.

Exit codes: 0 done; 1 failed, with the reason in the last line; 2 invalid arguments.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rankers import job


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m rankers", description=__doc__.splitlines()[0])
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", help="output of convert, such as var/convert/RUN"
    )
    job.add_options(parser)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    opts = parser.parse_args(arguments)
    try:
        wanted = job.job_of(opts, opts.folder)
    except ValueError as error:
        parser.error(job.told(error))
    try:
        figures = job.run(wanted, job.shown())
    except job.errors() as error:
        job.end_shown()
        print(f"rankers: {job.told(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        job.end_shown()
        print("rankers: stopped; nothing was written", file=sys.stderr)
        return 1
    job.end_shown()
    print(json.dumps(figures, indent=2) if opts.json else job.text(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
