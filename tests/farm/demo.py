"""What `make demo` shows: a small local web, crawled by two agents, and what was found.

Everything happens on loopback, below VAR_DIR var/demo; nothing is left running.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.farm import Farm

VAR_DIR = Path("var/demo")
SITES, PAGES = 12, 40


def main() -> int:
    shutil.rmtree(VAR_DIR, ignore_errors=True)
    VAR_DIR.mkdir(parents=True)
    with Farm(sites=SITES, pages=PAGES, delay_ms=20) as farm:
        seeds = VAR_DIR / "seeds.txt"
        seeds.write_text("\n".join(farm.seeds) + "\n")
        command = [
            *(str(Path(sys.executable).parent / "scrapy"), "crawl", "site"),
            *("-a", f"seeds={seeds}", "--agents", "2"),
            *("-s", f"VAR_DIR={VAR_DIR}", "-s", "ALLOW_PRIVATE_ADDRESSES=127.0.0.0/8"),
            *("-s", "DOWNLOAD_DELAY=0.05", "-s", "RETRY_DELAY_SECONDS=0.5"),
        ]
        print(f"A web of {SITES} sites is served on 127.0.1.1 to 127.0.1.{SITES}, port {farm.port}.")
        print("$ " + " ".join(["scrapy", *command[1:]]), flush=True)
        code = subprocess.run(command, check=False).returncode
    if code == 0:
        print(f"\nlook:    sqlite3 {VAR_DIR}/crawl.db 'select url, status, title from pages limit 5'")
        print("yours:   make crawl SEEDS=https://… ARGS=\"-s USER_AGENT='mybot (+https://…)'\"")
    return code


if __name__ == "__main__":
    sys.exit(main())
