"""How long a person waits before anything happens: measured from outside, the best of some tries on a busy machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from scrapy.downloadermiddlewares.cookies import CookiesMiddleware
from scrapy.exceptions import NotConfigured
from scrapy.utils.test import get_crawler

from crawler.agent.scrapy_parts import STOCK, Cookies
from tests.crawling import QUICK, ROOT, SCRAPY, Place, wait_for_hits
from tests.farm import Farm
from tests.small_site import SmallSite, links
from tests.terminals import Terminal

# From the start of the command to the first request that a site sees, the bundled server's start included: so many
# times what Scrapy's own command takes to print its help, measured in turn. 1.5 on a machine with other work.
FIRST_REQUEST_RATIO = 2.5
# What our settings and commands may make of the processor time of Scrapy's own start: 1.3 is seen.
HELP_RATIO = 1.8
TRIES = 10
HELP_TRIES = 5


def test_the_first_request_leaves_soon(tmp_path: Path) -> None:
    best = float("inf")
    with Farm(sites=1, pages=1, kinds=(), names=()) as farm:
        for number in range(TRIES):
            folder = tmp_path / str(number)
            folder.mkdir()
            before = len(farm.hits())
            with Place(folder) as place:
                stock = seconds([str(SCRAPY), "--help"], folder)
                began = time.time()
                run = place.start_crawl(farm.seeds, fresh=True)
                wait_for_hits(farm, 1, since=before)
                best = min(best, (farm.hits()[before].time - began) / stock)
                run.wait().succeeded()
            if best <= FIRST_REQUEST_RATIO:
                break
    assert best <= FIRST_REQUEST_RATIO, f"{best:.2f} times Scrapy's own start"


def seconds(command: list[str], folder: Path) -> float:
    began = time.monotonic()
    subprocess.run(command, cwd=folder, capture_output=True, check=True)
    return time.monotonic() - began


def processor_seconds(command: list[str], folder: Path) -> float:
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_utime + used.ru_stime


def test_help_comes_as_soon_as_scrapys_own(tmp_path: Path) -> None:
    command = [str(SCRAPY), "--help"]
    best = float("inf")
    for _ in range(HELP_TRIES):
        best = min(best, processor_seconds(command, ROOT) / processor_seconds(command, tmp_path))
        if best <= HELP_RATIO:
            break
    assert best <= HELP_RATIO, f"{best:.2f} times Scrapy's own start"
    said = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    assert "doctor" in said


# Runs a module as `python -m` would, then tells what the collector did until then and left to its last round.
LOOKED_AT = """
import atexit, gc, json, runpy, sys
sys.argv = sys.argv[1:]
try:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
except SystemExit:
    pass
looks = sum(one["collections"] for one in gc.get_stats())
atexit._run_exitfuncs()
print(json.dumps([looks, gc.get_freeze_count()]))
"""


def collected(module: str, *words: str, folder: Path) -> tuple[int, int]:
    """How often the collector looked until the command had run, and how many objects it leaves alone at the end."""
    command = [sys.executable, "-c", LOOKED_AT, module, *words]
    env = {**os.environ, "LOWTIDE_VAR_DIR": str(folder / "var")}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, check=True, text=True)
    looks, left = json.loads(done.stdout.splitlines()[-1])
    return looks, left


def test_processes_of_our_own_are_not_searched_for_garbage_while_they_start(tmp_path: Path) -> None:
    ours, stock = (collected(name, "seed", folder=tmp_path)[0] for name in ("crawler.local.start", "scrapy"))
    assert ours < stock / 4


def test_a_command_ends_without_a_last_search_but_not_one_that_runs_spiders(tmp_path: Path) -> None:
    assert collected("scrapy", "seed", folder=tmp_path)[1] > 100_000
    # Python 3.12 leaves some hundred objects of its own alone.
    assert collected("scrapy", "extract", folder=tmp_path)[1] < 1_000


def test_our_way_to_start_is_scrapys(tmp_path: Path) -> None:
    ours, stock = (
        subprocess.run([*way, "seed", "--help"], cwd=ROOT, capture_output=True, check=True, text=True)
        for way in ([sys.executable, "-m", "crawler.local.start"], [str(SCRAPY)])
    )
    assert ours.stdout == stock.stdout


def test_a_crawl_and_its_coordinator_load_no_more_than_they_use() -> None:
    """Each crawl pays for it twice: numpy and a database that is not in use take a tenth of a start."""
    loaded = "import crawler.reports.summary, crawler.coordinator.coordinator, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", loaded], cwd=ROOT, capture_output=True, check=True, text=True
    )
    modules = set(done.stdout.split())
    assert "sqlalchemy" in modules
    assert modules.isdisjoint({"numpy", "sqlalchemy.dialects.postgresql"})


# What no first page needs: figures, graphs, tables, drawing, pages of the dashboard; Scrapy's own way to download, and
# a second one that comes with the list of public suffixes.
HEAVY = {
    *("numpy", "numba", "llvmlite", "scipy", "pyarrow", "networkx", "networkit", "graspologic_native"),
    *("sqlalchemy", "alembic", "sqlite3", "rich", "jinja2", "aiohttp", "prometheus_client"),
    *(
        "requests",
        "tldextract",
        "scrapy.core.downloader.handlers.http11",
        "crawler.store.tables",
        "crawler.views.live",
    ),
}


@pytest.mark.parametrize("looked_at", [False, True], ids=["a pipe", "a terminal"])
def test_what_a_crawl_has_loaded_when_its_first_answer_comes(place: Place, looked_at: bool) -> None:
    with SmallSite({"/": links()}) as web:
        told = {**QUICK, "EXTENSIONS": json.dumps({"tests.early_modules.EarlyModules": 1})}
        if looked_at:
            settings = [word for name, value in told.items() for word in ("-s", f"{name}={value}")]
            command = [str(SCRAPY), "crawl", "site", "-a", f"seeds={web.root}", *settings]
            with Terminal(command, place.environment(), ROOT, 80) as crawl:
                assert crawl.wait() == 0
        else:
            place.crawl([web.root], fresh=True, **told).succeeded()
    loaded = set((place.var / "modules.txt").read_text().split())
    assert "crawler.agent.agent" in loaded
    assert loaded.isdisjoint(HEAVY), sorted(loaded & HEAVY)


@pytest.mark.parametrize(
    ("given", "there"),
    [
        ({"COOKIES_ENABLED": True}, True),
        ({"COOKIES_ENABLED": False}, False),
        ({"COOKIES_ENABLED": True, "DOWNLOADER_MIDDLEWARES": {STOCK: 650}}, False),
        ({"COOKIES_ENABLED": True, "DOWNLOADER_MIDDLEWARES": {STOCK: None}}, False),
    ],
    ids=str,
)
def test_cookies_are_scrapys_where_they_are_asked_for(given: dict[str, Any], there: bool) -> None:
    """Its middleware is loaded for those alone; where somebody's settings have it, they decide."""
    crawler = get_crawler(settings_dict=given)
    if there:
        assert isinstance(Cookies.from_crawler(crawler), CookiesMiddleware)
    else:
        with pytest.raises(NotConfigured):
            Cookies.from_crawler(crawler)
