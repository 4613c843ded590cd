"""Crawls many random webs and prints what is not as it must be."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests import crawling
from tests.tools.random_webs.features import NAMES
from tests.tools.random_webs.judging import differences


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.tools.random_webs")
    parser.add_argument("--webs", type=int, default=100, help="how many")
    parser.add_argument(
        "--kills", type=int, default=20, help="so many of them are killed on the way, twice each"
    )
    parser.add_argument(
        "--first", type=int, default=0, help="number of the first web; the same number is the same web"
    )
    parser.add_argument("--features", nargs="*", choices=NAMES, default=NAMES, help="what the sites do")
    given = parser.parse_args()
    wrong = 0
    for seed in range(given.first, given.first + given.webs):
        kills = 2 if seed - given.first < given.kills else 0
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="lowtide-") as folder, crawling.Place(Path(folder)) as place:
            found = differences(place, seed, kills, given.features)
        wrong += bool(found)
        print(
            f"web {seed}, {kills} kills, {time.monotonic() - began:.1f} s: {len(found)} differences",
            flush=True,
        )
        for line in found[:20]:
            print("  ", line, flush=True)
    print(f"{given.webs} webs, {wrong} with differences")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
