"""What `make demo` shows: a small local web, its hours, a crawl by two agents, and a page with all reports.

Ranks too, where the extra `rank` is installed.

Everything happens on loopback, below VAR_DIR var/demo; nothing is left running.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from tests.farm import Farm
from tests.farm.plan import KINDS

VAR_DIR = Path("var/demo")
SITES, PAGES = 12, 40
# Sites that ask for a rest would say so three times each, and what is shown would be lost between.
SHOWN = tuple(kind for kind in KINDS if kind != "busy")
SCRAPY = Path(sys.executable).parent / "scrapy"
# Whether the extra of convert and rank is installed.
RANKS = all(find_spec(name) for name in ("numba", "pyarrow", "graspologic_native"))
# What every command of the demo is told beside its own words.
SETTINGS = (
    *("-s", f"VAR_DIR={VAR_DIR}", "-s", "ALLOW_PRIVATE_ADDRESSES=127.0.0.0/8"),
    *("-s", "SITE_SCHEDULER=hybrid"),
)


def main() -> int:
    shutil.rmtree(VAR_DIR, ignore_errors=True)
    VAR_DIR.mkdir(parents=True)
    with Farm(sites=SITES, pages=PAGES, kinds=SHOWN, delay_ms=20) as farm:
        seeds, loads = VAR_DIR / "seeds.txt", VAR_DIR / "loads.csv"
        seeds.write_text("\n".join(farm.seeds) + "\n")
        loads.write_text(profiles([farm.site(number) for number in range(SITES)]))
        print(f"A web of {SITES} sites is served on 127.0.1.1 to 127.0.1.{SITES}, port {farm.port}.")
        code = show("Each site has its busy hours. This is known of them:", "load", "import", str(loads))
        code = code or show("The sites wait, and each hour has its own order of them:", "seed", str(seeds))
        code = code or show("", "report", "hours", lines=12)
        code = code or show(
            "Two agents crawl them:",
            *("crawl", "site", "--agents", "2", "-s", "DOWNLOAD_DELAY=0.05", "-s", "RETRY_DELAY_SECONDS=0.5"),
        )
    if RANKS:
        code = code or show("What links say of the pages:", "convert")
        code = code or show("", "rank")
    elif code == 0:
        print("\nNot shown: convert and rank. `make setup-rank` installs what they need (0.5 GB).")
    code = code or show("All reports on one page:", "report", "--html", str(VAR_DIR / "report.html"))
    if code == 0:
        print(f"\nopen:    {VAR_DIR}/report.html   (and, while a crawl goes on, scrapy dashboard)")
        print(f"look:    sqlite3 {VAR_DIR}/crawl.db 'select url, status, title from pages limit 5'")
        print("yours:   make crawl SEEDS=https://… ARGS=\"-s USER_AGENT='mybot (+https://…)'\"")
    return code


def show(about: str, *words: str, lines: int = 0) -> int:
    """Run a command as the reader would, and show it; of long output the first `lines`, 0: all. Its exit code."""
    if about:
        print(f"\n{about}")
    print("$ " + " ".join(["scrapy", *words]), flush=True)
    command = [str(SCRAPY), *words, *SETTINGS]
    if not lines:
        return subprocess.run(command, check=False).returncode
    ended = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    shown = ended.stdout.splitlines()
    print("\n".join([*shown[:lines], *(["  …"] if len(shown) > lines else [])]), flush=True)
    return ended.returncode


def profiles(sites: Sequence[str]) -> str:
    """Loads as a CSV file: each site is busiest at an hour of its own."""
    rows = ["site," + ",".join(map(str, range(24)))]
    for number, site in enumerate(sites):
        busiest = 24 * number / len(sites)
        day = [0.5 + 0.45 * math.cos((hour - busiest) / 24 * 2 * math.pi) for hour in range(24)]
        rows.append(f"{site}," + ",".join(f"{load:.2f}" for load in day))
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.exit(main())
