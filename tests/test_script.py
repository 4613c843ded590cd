"""A crawl from a script of a user's, as Scrapy's manual shows it: whatever the script sets, holds for all of the crawl.

On one machine a coordinator and a planner store and plan for the script's agent, in processes of their own.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.crawling import QUICK, ROOT, STORED, Place, Run, wait_for_hits
from tests.farm import Farm

SCRIPT = """
import json
import sys

from scrapy.crawler import {process} as Process
from scrapy.utils.project import get_project_settings

seeds, given = sys.argv[1], json.loads(sys.argv[2])
settings = get_project_settings()
for name, value in given.items():
    settings.set(name, value)
process = Process(settings)
process.crawl({spider}, seeds=seeds)
process.start()
"""
SPIDERS = """
from crawler.spiders.site import SiteSpider


class Custom(SiteSpider):
    name = "custom"
    custom_settings = {"BATCH_RECORDS": 7, "KEY_PREFIX": "own"}


class Updated(SiteSpider):
    name = "updated"

    @classmethod
    def update_settings(cls, settings):
        super().update_settings(settings)
        settings.set("DATABASE_URL", settings["DATABASE_OF_TEST"], priority="spider")


class AddOn:
    def update_settings(self, settings):
        settings.set("DATABASE_URL", settings["DATABASE_OF_TEST"], priority="cmdline")
"""


@pytest.fixture
def farm() -> Iterator[Farm]:
    with Farm(sites=2, pages=6, kinds=(), names=()) as started:
        yield started


def script(
    place: Place,
    farm: Farm,
    process: str = "CrawlerProcess",
    spider: str = '"site"',
    env: dict[str, str] | None = None,
    **given: Any,
) -> Run:
    """Starts one; `given` is what it sets."""
    file = place.folder / "script.py"
    file.write_text(SCRIPT.format(process=process, spider=spider))
    (place.folder / "own.py").write_text(SPIDERS)
    quick = {f"LOWTIDE_{name}": str(value) for name, value in QUICK.items()}
    path = f"{ROOT}{os.pathsep}{place.folder}"
    words = [sys.executable, str(file), ",".join(farm.seeds), json.dumps(given)]
    return Run(
        words, place.environment({**quick, "PYTHONPATH": path, **(env or {})}), ROOT, place.folder / "script"
    )


def stored(database: Path) -> set[str]:
    with closing(sqlite3.connect(database)) as tables:
        return {url for (url,) in tables.execute(f"select url from pages where {STORED}")}


def wanted(farm: Farm) -> set[str]:
    return {url for site in farm.expected().values() for url in site}


@pytest.mark.parametrize("process", ["CrawlerProcess", "AsyncCrawlerProcess"])
def test_a_folder_that_a_script_sets(place: Place, farm: Farm, process: str) -> None:
    own = place.folder / "own"
    run = script(place, farm, process, VAR_DIR=str(own)).wait().succeeded()
    assert stored(own / "crawl.db") == wanted(farm)
    assert not (place.var / "valkey").exists(), "nothing was started elsewhere"
    assert run.err.count("bundled server started") == 1


def test_a_database_that_a_script_sets(place: Place, farm: Farm) -> None:
    database = place.folder / "elsewhere.db"
    script(place, farm, DATABASE_URL=f"sqlite:///{database}").wait().succeeded()
    assert stored(database) == wanted(farm)
    assert not (place.var / "crawl.db").exists()


def test_a_prefix_and_values_of_all_kinds_that_a_script_sets(place: Place, farm: Farm) -> None:
    given = {
        "KEY_PREFIX": "mine",
        "SITE_SCHEDULER_OPTIONS": {},
        "BATCH_RECORDS": 3,
        "BATCH_SECONDS": 0.05,
        "RECRAWL_MODE": "interval",
        "LOG_FILE": None,
        "FIND_ALIASES": False,
        "SITE_OVERRIDES": {farm.site(0): {"headers": {"X-Key": "a-secret"}}},
        "ARCHIVE_CONTENT_TYPES": "",
    }
    run = script(place, farm, **given).wait().succeeded()
    assert stored(place.var / "crawl.db") == wanted(farm)
    assert "writes to" in run.err
    assert (place.var / "valkey" / "key_prefix").read_text() == "mine"


def test_what_the_environment_says_is_less_than_what_a_script_sets(place: Place, farm: Farm) -> None:
    database = place.folder / "elsewhere.db"
    env = {
        "LOWTIDE_DATABASE_URL": f"sqlite:///{place.folder}/of-the-environment.db",
        "LOWTIDE_KEY_PREFIX": "environment",
        "LOWTIDE_REDIS_URL": "redis://127.0.0.1:1/0",
    }
    given = {"DATABASE_URL": f"sqlite:///{database}", "KEY_PREFIX": "mine", "REDIS_URL": ""}
    script(place, farm, env=env, **given).wait().succeeded()
    assert stored(database) == wanted(farm)
    assert not (place.folder / "of-the-environment.db").exists()


def test_settings_of_a_users_project_are_less_than_what_a_script_sets(place: Place, farm: Farm) -> None:
    """They stand below `from settings.local import *`, so above the environment."""
    (place.folder / "project.py").write_text(
        "from settings.local import *\n"
        f"DATABASE_URL = 'sqlite:///{place.folder}/of-the-project.db'\n"
        "KEY_PREFIX = 'project'\nLEASE_SECONDS = 40\n"
    )
    database = place.folder / "elsewhere.db"
    env = {"SCRAPY_SETTINGS_MODULE": "project"}
    given = {"DATABASE_URL": f"sqlite:///{database}", "KEY_PREFIX": "mine", "LEASE_SECONDS": 5}
    script(place, farm, env=env, **given).wait().succeeded()
    assert stored(database) == wanted(farm)
    assert not (place.folder / "of-the-project.db").exists()


@pytest.mark.parametrize("spider", ["custom", "updated", "site"])
def test_what_a_spider_or_an_addon_sets(place: Place, farm: Farm, spider: str) -> None:
    database = place.folder / "elsewhere.db"
    given: dict[str, Any] = {"DATABASE_OF_TEST": f"sqlite:///{database}"}
    if spider == "site":
        given["ADDONS"] = {"own.AddOn": 0}
    else:
        given["SPIDER_MODULES"] = "own"
    script(place, farm, spider=f'"{spider}"', **given).wait().succeeded()
    assert stored(place.var / "crawl.db" if spider == "custom" else database) == wanted(farm)


ELSEWHERE = """
import sys

from scrapy.crawler import AsyncCrawlerProcess
from scrapy.settings import Settings

settings = Settings()
settings.setmodule("settings.local")
process = AsyncCrawlerProcess(settings)
process.crawl("site", seeds=sys.argv[1])
process.start()
"""


def test_a_script_that_is_in_no_project(place: Place, farm: Farm) -> None:
    quick = {f"LOWTIDE_{name}": str(value) for name, value in QUICK.items()}
    words = [sys.executable, "-c", ELSEWHERE, ",".join(farm.seeds)]
    env = place.environment(quick)
    Run(words, env, place.folder, place.folder / "script").wait().succeeded()
    assert stored(place.var / "crawl.db") == wanted(farm)


CODE = """
import json
import sys

from scrapy.crawler import {process} as Process
from scrapy.utils.project import get_project_settings

from crawler.command import exit_code_of

settings = get_project_settings()
for name, value in json.loads(sys.argv[2]).items():
    settings.set(name, value)
process = Process(settings)
crawl = process.create_crawler("site")
process.crawl(crawl, seeds=sys.argv[1])
process.start()
sys.exit(exit_code_of(crawl))
"""


@pytest.mark.parametrize("process", ["CrawlerProcess", "AsyncCrawlerProcess"])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"SITE_SLTS": 3}, "unknown setting SITE_SLTS; did you mean SITE_SLOTS?"),
        ({"SITE_SLOTS": "many"}, "SITE_SLOTS is 'many'"),
        (
            {"SITE_SLTS": 3, "EXTENSIONS_BASE": {"crawler.local.local.LocalServer": None}},
            "unknown setting SITE_SLTS; did you mean SITE_SLOTS?",
        ),
    ],
    ids=str,
)
def test_a_setting_of_a_script_that_cannot_be_used_is_refused(
    place: Place, farm: Farm, process: str, given: dict[str, Any], said: str
) -> None:
    """The crawl never begins, so the exit code that the script asks for is 1."""
    file = place.folder / "code.py"
    file.write_text(CODE.format(process=process))
    words = [sys.executable, str(file), farm.seeds[0], json.dumps(given)]
    run = Run(words, place.environment(), ROOT, place.folder / "code").wait()
    assert run.code == 1
    assert said in run.err
    assert "exit_code_of" not in run.err, "it raises nothing"
    assert not farm.hits()
    place.check_nothing_left()


RAISES = """
import sys

from scrapy.crawler import AsyncCrawlerProcess
from scrapy.utils.project import get_project_settings

from crawler.local.local import LocalServer

process = AsyncCrawlerProcess(get_project_settings())
crawler = process.create_crawler("site")
crawler._apply_settings()
assert crawler.get_extension(LocalServer)
raise ValueError("the script raises")
"""


def test_nothing_is_left_of_a_script_that_is_killed(place: Place, farm: Farm) -> None:
    own = place.folder / "own"
    run = script(place, farm, VAR_DIR=str(own), WHEN_IDLE="wait")
    wait_for_hits(farm, 3)
    run.end(signal.SIGKILL)
    place.check_nothing_left()
    script(place, farm, VAR_DIR=str(own)).wait().succeeded()
    assert stored(own / "crawl.db") == wanted(farm)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=str)
def test_nothing_is_left_of_a_script_that_is_told_to_end(place: Place, farm: Farm, number: int) -> None:
    run = script(place, farm, "AsyncCrawlerProcess", WHEN_IDLE="wait")
    wait_for_hits(farm, 14)
    run.end(number).succeeded()
    place.check_nothing_left()
    assert stored(place.var / "crawl.db") == wanted(farm)


def test_nothing_is_left_of_a_script_that_raises(place: Place, farm: Farm) -> None:
    """It has built its crawler, so its server runs; then it fails before the crawl begins."""
    file = place.folder / "raises.py"
    file.write_text(RAISES)
    run = Run([sys.executable, str(file), farm.seeds[0]], place.environment(), ROOT, place.folder / "raises")
    assert run.wait().code == 1
    assert "the script raises" in run.err
    place.check_nothing_left()
