"""How long a person waits before anything happens: measured from outside, the best of some tries on a busy machine."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from tests.crawling import ROOT, SCRAPY, Place, wait_for_hits
from tests.farm import Farm

# From the start of the command to the first request that a site sees, the bundled server's start included.
FIRST_REQUEST_SECONDS = 1.5
# What our settings and commands may add to Scrapy's own start.
HELP_SECONDS = 0.5
TRIES = 3
HELP_TRIES = 5


def test_the_first_request_leaves_soon(tmp_path: Path) -> None:
    best = float("inf")
    with Farm(sites=1, pages=1, kinds=(), names=()) as farm:
        for number in range(TRIES):
            folder = tmp_path / str(number)
            folder.mkdir()
            before = len(farm.hits())
            with Place(folder) as place:
                began = time.time()
                run = place.start_crawl(farm.seeds)
                wait_for_hits(farm, 1, since=before)
                best = min(best, farm.hits()[before].time - began)
                run.wait().succeeded()
            if best <= FIRST_REQUEST_SECONDS:
                break
    assert best <= FIRST_REQUEST_SECONDS, f"{best:.2f} s"


def seconds(command: list[str], folder: Path) -> float:
    began = time.monotonic()
    subprocess.run(command, cwd=folder, capture_output=True, check=True)
    return time.monotonic() - began


def test_help_comes_as_soon_as_scrapys_own(tmp_path: Path) -> None:
    command = [str(SCRAPY), "--help"]
    stock = ours = float("inf")
    for _ in range(HELP_TRIES):
        stock = min(stock, seconds(command, tmp_path))
        ours = min(ours, seconds(command, ROOT))
        if ours - stock <= HELP_SECONDS:
            break
    assert ours - stock <= HELP_SECONDS, f"{ours:.2f} s, Scrapy's own {stock:.2f} s"
    said = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    assert "doctor" in said
