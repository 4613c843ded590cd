"""What a person gets wrong, from seeds to databases.

Every command ends with a code that is not 0 and a line that says what came and what is expected, without a traceback;
and nothing is left running.
"""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.crawling import ROOT, Place, wait_for_hits
from tests.farm import Farm
from tests.servers import RunningServer, free_port

WRONG_CALL = 2
USELESS_TO_TRY_AGAIN = 3
SEED = ("http://127.0.1.1:9/",)

OTHER_SPIDER = """
from crawler.spiders.site import SiteSpider

class Other(SiteSpider):
    name = "other"
"""


@pytest.fixture(scope="module")
def farm() -> Iterator[Farm]:
    with Farm(sites=2, pages=3, kinds=(), names=()) as started:
        yield started


# --- Seeds ------------------------------------------------------------------------------------------------


def test_no_seeds(place: Place) -> None:
    place.crawl(()).refused("no seeds: expected -a seeds=FILE", "site:start_urls", code=WRONG_CALL)


def test_a_seed_file_that_is_not_there(place: Place) -> None:
    run = place.run("crawl", "site", "-a", f"seeds={place.folder}/none.txt")
    run.refused(f"seeds: '{place.folder}/none.txt' is neither a file nor a URL", code=WRONG_CALL)
    assert not place.var.exists()


def test_a_seed_file_that_is_a_folder(place: Place) -> None:
    run = place.run("crawl", "site", "-a", f"seeds={place.folder}")
    run.refused("seeds: ", "Is a directory", str(place.folder), code=WRONG_CALL)


def test_lines_that_are_no_seeds_are_told_and_the_others_go_on(place: Place, farm: Farm) -> None:
    file = place.folder / "seeds.txt"
    lines = [
        "# two good ones",
        farm.seeds[0],
        "",
        "no url at all",
        "ftp://127.0.1.1/",
        farm.seeds[1],
        "http://",
    ]
    file.write_text("\n".join(lines))
    run = place.crawl([str(file)]).succeeded()
    assert "line 4: 'no url at all' is not a seed" in run.err
    assert "line 5: 'ftp://127.0.1.1/' is not a seed" in run.err
    assert "expected http or https" in run.err
    assert "line 7: 'http://' is not a seed" in run.err
    assert run.err.count("is not a seed") == 3
    assert place.stored() == farm.expected()


def test_seeds_outside_of_the_patterns_are_named(place: Place, farm: Farm) -> None:
    outside = [f"http://127.0.9.{number}/" for number in range(1, 10)]
    run = place.crawl([farm.seeds[0], *outside], SCOPE_EXCLUDE="//127.0.9").succeeded()
    said = f"9 seeds excluded by SCOPE_INCLUDE or SCOPE_EXCLUDE, the first: {' '.join(outside[:5])}\n"
    assert said in run.err
    assert place.stored().keys() == {farm.seeds[0].rstrip("/")}
    seeded = place.run("seed", *outside[:2], SCOPE_EXCLUDE="//127.0.9")
    seeded.refused(f"1 seeds excluded by SCOPE_INCLUDE or SCOPE_EXCLUDE: {outside[0]}", code=WRONG_CALL)
    assert "0 sites added" in seeded.out and "2 seeds left out" in seeded.out


def test_only_seeds_outside_of_the_patterns(place: Place) -> None:
    seeds = ["http://127.0.9.1/", "http://127.0.9.2/a"]
    run = place.crawl(seeds, SCOPE_INCLUDE="/docs/")
    run.refused(
        "2 seeds excluded by SCOPE_INCLUDE or SCOPE_EXCLUDE: http://127.0.9.1/ http://127.0.9.2/a",
        "no seeds: SCOPE_INCLUDE or SCOPE_EXCLUDE excludes all 2 URLs given",
        code=WRONG_CALL,
    )
    assert "expected -a seeds" not in run.err
    assert run.err.splitlines()[-1].startswith("lowtide: no seeds: SCOPE_INCLUDE or SCOPE_EXCLUDE excludes")
    file = place.folder / "seeds.txt"
    file.write_text("no url at all\nhttp://127.0.9.1/\n")
    run = place.crawl([str(file)], SCOPE_INCLUDE="/docs/")
    run.refused("excludes all 1 URLs given, and 1 lines are invalid", code=WRONG_CALL)


def test_only_junk_is_no_seed(place: Place) -> None:
    file = place.folder / "seeds.txt"
    file.write_text("no url at all\n")
    place.crawl([str(file)]).refused("line 1: 'no url at all'", "no seeds: expected", code=WRONG_CALL)


def test_junk_after_a_crawl_is_told_as_well(place: Place, farm: Farm) -> None:
    place.crawl(farm.seeds[:1]).succeeded()
    place.crawl(["junk://127.0.0.1/"]).refused("no seeds: expected", "none of the 1 lines", code=WRONG_CALL)


def test_a_seed_that_leaves_loopback_without_a_contact(place: Place) -> None:
    place.crawl(["http://192.0.2.1/"]).refused(
        "USER_AGENT 'lowtide' has no contact",
        "http://192.0.2.1",
        "e-mail address",
        "(+https://",
        code=WRONG_CALL,
    )


def test_seeding_what_leaves_loopback_without_a_contact(place: Place) -> None:
    run = place.run("seed", "http://192.0.2.1/").refused("USER_AGENT 'lowtide' has no contact", code=2)
    assert "added" not in run.out


def test_standard_input_for_several_agents(place: Place) -> None:
    run = place.run("crawl", "site", "-a", "seeds=-", "--agents", "2")
    run.refused("seeds=- goes with one agent; expected a file", code=WRONG_CALL)


# --- Names ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["crawl", "sites"], ["no spider 'sites'", "there are recheck, revive, site", "did you mean site?"]),
        (["crawl"], ["expected the name of one spider"]),
        (
            ["crawl", "site", "--scheduler", "soonest"],
            ["SITE_SCHEDULER is 'soonest'", "expected one of", "random", "path of a class"],
        ),
        (
            ["crawl", "site", "--scheduler", "hybrid", "-s", 'SITE_SCHEDULER_OPTIONS={"keep": "never"}'],
            ["keep is 'never'", "expected one of", "none, next, min, mean"],
        ),
        (
            ["crawl", "site", "--scheduler", "sorted", "-s", 'SITE_SCHEDULER_OPTIONS={"keep": "min"}'],
            ["SITE_SCHEDULER_OPTIONS are {'keep': 'min'}", "sorted"],
        ),
        (
            ["crawl", "site", "-s", "SITE_SCHEDULER_OPTIONS=seed"],
            ["SITE_SCHEDULER_OPTIONS is 'seed'; expected a mapping"],
        ),
        (
            ["crawl", "site", "--scheduler", "builtins.dict"],
            ["SITE_SCHEDULER is 'builtins.dict'", "a class with score and keep"],
        ),
        (
            ["crawl", "site", "--scheduler", "random", "-s", 'SITE_SCHEDULER_OPTIONS={"seed": "a"}'],
            ["seed is 'a'; expected an integer"],
        ),
        (
            ["crawl", "site", "--scheduler", "early", "-s", 'SITE_SCHEDULER_OPTIONS={"weight": "NaN"}'],
            ["weight is 'NaN'; expected a number from 0"],
        ),
        (
            ["crawl", "site", "-s", 'PAGE_PIPELINES={"x.y": 1}'],
            ["PAGE_PIPELINES has 'x.y'", "expected a dotted path"],
        ),
        (["crawl", "site", "-s", "SITE_SLOT=4"], ["unknown setting SITE_SLOT; did you mean SITE_SLOTS?"]),
        (["crawl", "site", "-s", "SITE_SLOTS=many"], ["SITE_SLOTS is 'many'; expected a whole number"]),
        (
            ["crawl", "site", "-s", "SCOPE=planet"],
            ["SCOPE is 'planet'; expected one of seeds, host, domain, any"],
        ),
        (["crawl", "site", "-s", "SCOPE_EXCLUDE=("], ["SCOPE_EXCLUDE holds '('", "regular expression"]),
        (
            ["crawl", "site", "-s", "ALLOW_PRIVATE_ADDRESSES=home"],
            ["ALLOW_PRIVATE_ADDRESSES holds 'home'", "expected networks"],
        ),
        (["crawl", "site", "-s", "DOWNLOAD_TIMEOUT=soon"], ["DOWNLOAD_TIMEOUT is 'soon'; expected a number"]),
        (["crawl", "site", "--when-idle", "sleep"], ["WHEN_IDLE is 'sleep'; expected one of stop, wait"]),
        (["crawl", "site", "--with", "sleep"], ["WITH_WORKS names 'sleep'; expected some of site, recheck"]),
        (
            ["crawl", "site", "--with", "revive", "-s", "SITE_SLOTS=4", "-s", 'WORK_SLOTS={"revive": 4}'],
            ["WORK_SLOTS is {'revive': 4} and SITE_SLOTS is 4; expected SITE_SLOTS of 5 or more"],
        ),
        (
            ["crawl", "revive", "-s", "SITE_SLOTS=4", "-s", 'WORK_SLOTS={"revive": 5}'],
            ["WORK_SLOTS is {'revive': 5} and SITE_SLOTS is 4; expected SITE_SLOTS of 5 or more"],
        ),
        (
            ["crawl", "site", "-a", "sedes=http://127.0.1.1/"],
            ["-a sedes: spider 'site' has no such argument", "did you mean seeds?"],
        ),
        (["crawl", "site", "--agents", "0"], ["--agents is 0; expected 1 or more"]),
        (["coordinate", "-s", "BATCH_RECORDS=0"], ["BATCH_RECORDS is '0'; expected", ">= 1"]),
    ],
    ids=lambda words: " ".join(words[-1:]),
)
def test_wrong_names_and_values(place: Place, words: list[str], says: list[str]) -> None:
    place.run(*words).refused(*says, code=WRONG_CALL)
    assert not place.var.exists(), "something was started or written before the call was checked"


def test_a_wrong_name_in_the_environment(place: Place) -> None:
    run = place.run("crawl", "site", env={"LOWTIDE_SITE_SLOT": "4"})
    run.refused("unknown setting LOWTIDE_SITE_SLOT", "did you mean LOWTIDE_SITE_SLOTS?")


def test_a_wrong_value_in_the_environment(place: Place) -> None:
    run = place.run("crawl", "site", env={"LOWTIDE_LEASE_SECONDS": "0.5"})
    run.refused("LEASE_SECONDS is '0.5'; expected", ">= 1", code=WRONG_CALL)


# --- Servers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["crawl", "seed"])
def test_a_redis_that_is_not_there(place: Place, command: str) -> None:
    url = f"redis://:secret@127.0.0.1:{free_port()}/0"
    words = {"crawl": ["crawl", "site", "-a", f"seeds={SEED[0]}"], "seed": ["seed", SEED[0]]}[command]
    run = place.run(*words, REDIS_URL=url)
    run.refused("REDIS_URL redis://***@127.0.0.1:", "onnect", code=1)
    assert "secret" not in run.err + run.out


@pytest.mark.parametrize("words", [["crawl", "site"], ["seed", "http://127.0.0.1/"], ["coordinate"]])
def test_a_redis_url_that_is_none(place: Place, words: list[str]) -> None:
    place.run(*words, REDIS_URL="nonsense").refused("REDIS_URL 'nonsense'", "expected redis://", code=2)


@pytest.mark.parametrize("query", ["", "?password=wrong-secret", "?username=me&password=wrong-secret"])
def test_a_redis_that_asks_for_a_password(place: Place, valkey: RunningServer, query: str) -> None:
    valkey.client.config_set("requirepass", "x")
    says = "refused this user or password" if query else "asks for a password"
    codes = {"crawl site": USELESS_TO_TRY_AGAIN, "crawl site --agents 2": USELESS_TO_TRY_AGAIN}
    for words in (*codes, "coordinate", "seed http://127.0.0.1/", "queue show", "site list", "doctor"):
        run = place.run(*words.split(), REDIS_URL=valkey.url + query)
        assert (says in run.err + run.out, run.code) == (True, codes.get(words, 1)), run.err
        assert f"REDIS_URL {valkey.url}" in run.err + run.out
        assert "wrong-secret" not in run.err + run.out
        assert "Traceback" not in run.err


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://127.0.0.1:9/abc", "names database 'abc'; expected its number"),
        (
            "redis://127.0.0.1:9/0?decode_responses=yes&password=secret",
            "redis://127.0.0.1:9/0?decode_responses=yes&password=***' asks for decode_responses; expected it without",
        ),
    ],
)
def test_a_redis_url_that_would_be_taken_otherwise(place: Place, url: str, says: str) -> None:
    for words in (["crawl", "site"], ["coordinate"], ["queue", "show"]):
        place.run(*words, REDIS_URL=url).refused("REDIS_URL '", says, code=2)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("nonsense", "is not a database URL; expected sqlite:///PATH"),
        ("oracle://me@127.0.0.1/x", "oracle is not supported; expected sqlite:///PATH"),
        ("sqlite+none:///x.db", "no such driver; expected sqlite:///PATH"),
        ("sqlite:////nowhere/at/all/x.db", "folder /nowhere/at/all does not exist"),
        ("sqlite://", "an in-memory database is lost when its process ends; expected sqlite:///PATH"),
    ],
)
def test_a_database_that_cannot_work(place: Place, url: str, says: str) -> None:
    # At the same time, since each takes a while to begin.
    for run in (place.start_crawl(SEED, DATABASE_URL=url), place.start("coordinate", DATABASE_URL=url)):
        run.wait().refused("DATABASE_URL", url, says)


def test_a_crawl_that_nobody_stores_ends_in_the_middle(place: Place) -> None:
    with Farm(sites=2, pages=40, kinds=(), names=()) as farm:
        place.var.mkdir()
        (place.var / "crawl.db").write_text("no database" * 200)
        run = place.crawl(farm.seeds, DOWNLOAD_DELAY=1.0)
        run.refused("file is not a database", "no coordinator can run", "the next run stores them", code=3)


def test_a_database_that_refuses(place: Place) -> None:
    url = f"postgresql+psycopg://me:secret@127.0.0.1:{free_port()}/x"
    run = place.crawl(SEED, DATABASE_URL=url)
    run.refused("DATABASE_URL postgresql+psycopg://me:***@127.0.0.1:", "refused", code=1)
    assert "secret" not in run.err


@pytest.mark.parametrize("command", ["crawl", "seed", "coordinate"])
def test_a_folder_that_cannot_be_written(place: Place, command: str) -> None:
    words = {"crawl": ["crawl", "site", "-a", f"seeds={SEED[0]}"], "seed": ["seed", SEED[0]]}.get(
        command, [command]
    )
    file = place.folder / "file"
    file.write_text("in the way")
    place.run(*words, VAR_DIR=file / "var").refused(str(file / "var"), "expected", code=1)
    if command == "crawl":
        place.run(*words, "--agents", "2", VAR_DIR="/proc/x").refused("/proc/x", "expected")


# --- Somebody else's --------------------------------------------------------------------------------------


def test_tables_of_another_version(place: Place, farm: Farm) -> None:
    place.crawl(farm.seeds[:1]).succeeded()
    place.check_nothing_left()
    with closing(sqlite3.connect(place.var / "crawl.db")) as connection:
        connection.execute("update lowtide_version set version_num = '9999'")
        connection.commit()
    run = place.crawl(farm.seeds, "--again")
    run.refused("holds tables of version 9999; this Lowtide knows 0017")
    place.run("report").refused("version 9999", code=1)
    assert place.rows("select version_num from lowtide_version") == [("9999",)]


def test_another_spider_under_the_same_prefix(place: Place, farm: Farm) -> None:
    place.crawl(farm.seeds[:1]).succeeded()
    (place.folder / "other_spider.py").write_text(OTHER_SPIDER)
    given = {
        "spider": "other",
        "env": {"PYTHONPATH": str(place.folder)},
        "SPIDER_MODULES": "other_spider,crawler.spiders",
    }
    before = len(farm.hits())
    run = place.start_crawl(farm.seeds, **given).wait()
    run.refused(
        "KEY_PREFIX 'lt' belongs to spider 'site', not 'other'",
        "expected",
        code=USELESS_TO_TRY_AGAIN,
    )
    assert len(farm.hits()) == before
    place.check_nothing_left()  # nobody works on the first one's prefix any more
    place.start_crawl(farm.seeds[1:], KEY_PREFIX="other", **given).wait().succeeded()
    assert place.stored() == farm.expected()


@pytest.mark.parametrize("words", [["crawl", "site"], ["crawl", "site", "--agents", "2"], ["coordinate"]])
def test_a_second_crawl_beside_the_first(place: Place, farm: Farm, words: list[str]) -> None:
    """Its records would wait in a stream that the first one's coordinator does not read."""
    first = place.start_crawl(farm.seeds, "--when-idle", "wait")
    first.says("writes to")
    run = place.run(*words, KEY_PREFIX="other")
    run.refused(
        f"VAR_DIR={place.var} belongs to the crawl KEY_PREFIX 'lt', this one is 'other'",
        f"expected a VAR_DIR of its own (-s VAR_DIR={place.var / 'second'})",
        code=USELESS_TO_TRY_AGAIN,
    )
    assert first.end().code == 0


def test_a_second_crawl_after_one_whose_records_wait(place: Place, farm: Farm) -> None:
    """Those of the first are stored before: it is said how."""
    before = len(farm.hits())
    first = place.start_crawl(farm.seeds, "--when-idle", "wait", BATCH_SECONDS=30)
    first.says("writes to")
    wait_for_hits(farm, 4, before)
    place.kill_all()
    for words in (["crawl", "site"], ["crawl", "site", "--agents", "2"], ["coordinate"]):
        run = place.run(*words, KEY_PREFIX="other")
        run.refused("records of 'lt' are not stored yet: `scrapy coordinate -s VAR_DIR=", code=3)
        assert "__del__" not in run.err
    place.check_nothing_left()
    place.run("coordinate").succeeded()
    place.crawl(farm.seeds, KEY_PREFIX="other").succeeded()


# --- Many machines ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "env", [{"SCRAPY_PROJECT": "cluster"}, {"SCRAPY_SETTINGS_MODULE": "settings.cluster"}], ids=" ".join
)
def test_a_cluster_without_its_redis(place: Place, env: dict[str, str]) -> None:
    commands = [["crawl", "site"], ["coordinate"], ["seed", "http://127.0.0.1/"]]
    for run in [place.start(*words, env=env) for words in commands]:
        run.wait().refused("REDIS_URL is empty; expected the address of a Redis", code=2)
    assert not place.var.exists(), "a server of its own was started"


def test_a_cluster_without_its_database(place: Place, valkey: RunningServer) -> None:
    run = place.run("coordinate", env={"SCRAPY_PROJECT": "cluster"}, REDIS_URL=valkey.url)
    run.refused("DATABASE_URL is empty; expected the database that all coordinators share", code=2)
    assert not place.var.exists()


def test_a_cluster_agent_needs_no_database(place: Place, valkey: RunningServer, farm: Farm) -> None:
    run = place.start_crawl(
        farm.seeds[:1], env={"SCRAPY_PROJECT": "cluster", "LOWTIDE_REDIS_URL": valkey.url}
    ).wait()
    run.succeeded()
    assert valkey.client.xlen("lt:{0}:results") > 0
    assert not (place.var / "crawl.db").exists()


def test_an_interrupt_at_any_moment_leaves_nothing(place: Place, farm: Farm) -> None:
    run = place.start_crawl(farm.seeds)
    run.says("server started")
    os.kill(run.pid, signal.SIGINT)
    run.wait()
    assert "Traceback" not in run.err, run.err


def test_a_crawl_that_is_told_to_end_before_it_began_ends_well(place: Place, farm: Farm) -> None:
    before = len(farm.hits())
    run = place.start_crawl(
        farm.seeds, env={"PYTHONPATH": str(ROOT)}, EXTENSIONS={"tests.early_signal.EarlySignal": 1}
    )
    run.wait().succeeded()
    assert "Spider opened" in run.err
    assert len(farm.hits()) == before


def test_looking_around_starts_nothing(place: Place) -> None:
    assert place.run("list").succeeded().out.split() == ["recheck", "revive", "site", "status"]
    assert "--agents" in place.run("crawl", "--help").succeeded().out
    assert not Path(place.var).exists()
