"""The commands that look at a crawl and give it orders: several names, states, pipes, and whose tables they mean."""

from __future__ import annotations

import argparse
import json
import os
import pkgutil
import subprocess
from collections.abc import Iterator
from hashlib import sha1
from importlib import import_module

import pytest
from scrapy.exceptions import UsageError
from scrapy.utils.project import get_project_settings

import crawler.commands
from crawler.command import LowtideCommand
from tests.crawling import ROOT, SCRAPY, Place
from tests.drills import key
from tests.farm import Farm
from tests.servers import RunningServer, eventually
from tests.small_site import Reply, SmallSite

WRONG_CALL = 2
LASTING = 3
CLUSTER = {"SCRAPY_PROJECT": "cluster"}


@pytest.fixture(scope="module")
def farm() -> Iterator[Farm]:
    with Farm(sites=3, pages=3, kinds=(), names=()) as started:
        yield started


@pytest.fixture
def queued(place: Place, valkey: RunningServer) -> Place:
    """Four sites wait in a named server's queue."""
    sites = ["http://localhost:28099", "http://[::1]:28099", "http://BÜCHER.localhost", "http://127.0.1.1"]
    place.run("seed", *sites, REDIS_URL=valkey.url).succeeded()
    return place


# --- Options ----------------------------------------------------------------------------------------------

COMMANDS = [name for _, name, _ in pkgutil.iter_modules(crawler.commands.__path__)]


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_swallows_an_option_that_it_does_not_know(name: str) -> None:
    command = import_module(f"crawler.commands.{name}").Command()
    if not isinstance(command, LowtideCommand):
        pytest.skip("Scrapy's own, that takes one word")
    command.settings = get_project_settings()
    parser = argparse.ArgumentParser()
    command.add_options(parser)
    for word in ("--nix", "--nix=1", "-x", "--logflie"):
        with pytest.raises(UsageError, match=f"no such option: {word.partition('=')[0]}"):
            command.check_words([word, "--", "more"])
    with pytest.raises(UsageError, match="did you mean --logfile"):
        command.check_words(["--logflie"])
    words = ["--", "-1", "-", "--nix"] if command.takes_words else ["--"]
    command.check_words(words)
    assert "--" not in words
    if not command.takes_words:
        with pytest.raises(UsageError, match=f"{name} takes no 'more'; expected options only"):
            command.check_words(["more"])


def test_an_option_that_is_misspelt_ends_a_command(place: Place) -> None:
    for words in (("load", "export", "--nix"), ("crawl", "site", "--nix"), ("dashboard", "--nix")):
        run = place.run(*words, cwd=place.folder, env={"SCRAPY_SETTINGS_MODULE": "settings.local"})
        assert run.refused(code=WRONG_CALL).err.endswith("scrapy: error: no such option: --nix\n")
    assert not place.var.exists() and not (place.folder / "--nix").exists()


# --- Which sites ------------------------------------------------------------------------------------------


def test_an_order_is_for_all_that_are_named_or_for_none(queued: Place, valkey: RunningServer) -> None:
    def paused() -> int:
        return int(valkey.client.hget(key("count"), "paused") or 0)

    run = queued.run("site", "pause", "localhost:28099", "nowhere.localhost", REDIS_URL=valkey.url)
    run.refused("no site 'nowhere.localhost' in this crawl", code=1)
    assert paused() == 0
    run = queued.run("site", "pause", "localhost:28099", "127.0.1.1", REDIS_URL=valkey.url).succeeded()
    assert run.out == (
        "http://localhost:28099: paused; it was waiting\nhttp://127.0.1.1: paused; it was waiting\n"
    )
    assert paused() == 2


@pytest.mark.parametrize(
    ("name", "site"),
    [
        ("localhost:28099", "http://localhost:28099"),
        ("LOCALHOST", "http://localhost:28099"),
        ("[::1]", "http://[::1]:28099"),
        ("[::1]:28099", "http://[::1]:28099"),
        ("BÜCHER.localhost", "http://xn--bcher-kva.localhost"),
    ],
)
def test_a_site_is_found_by_its_host(queued: Place, valkey: RunningServer, name: str, site: str) -> None:
    run = queued.run("site", "show", name, "--json", REDIS_URL=valkey.url).succeeded()
    assert json.loads(run.out)["site"] == site


def test_another_port_is_another_site(queued: Place, valkey: RunningServer) -> None:
    queued.run("site", "show", "localhost:1", REDIS_URL=valkey.url).refused("no site 'localhost:1'", code=1)


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (("hset", "{key}", "http://127.0.1.1", "garbage"), "'garbage' for 'http://127.0.1.1'; expected"),
        (("hset", "{key}", "http://127.0.1.1", "q -"), "'q -' for"),
        (("hset", "{key}", "http://127.0.1.1", "w - 1/many"), "'w - 1/many' for"),
        (("hset", "{key}", "http://127.0.1.1", b"w \xff"), r"'w \xff' for"),
        (("hset", "{key}", b"\xff", "w -"), r"'w -' for '\xff'"),
        (("set", "{key}", "garbage"), "no hash"),
    ],
)
def test_a_key_that_holds_no_records_is_told_with_what_to_do(
    queued: Place, valkey: RunningServer, harm: tuple[str | bytes, ...], says: str
) -> None:
    bucket = key(f"sites:{sha1(b'http://127.0.1.1').hexdigest()[:4]}")
    valkey.client.delete(bucket)
    valkey.client.execute_command(*(bucket if word == "{key}" else word for word in harm))
    run = queued.run("site", "list", REDIS_URL=valkey.url)
    run.refused(
        f"{bucket} in Redis has {says}", "`scrapy queue reset --yes`, then `scrapy queue rebuild`", code=1
    )
    if harm[-2] != b"\xff":
        run = queued.run("site", "show", "http://127.0.1.1", REDIS_URL=valkey.url)
        run.refused(f"{bucket} in Redis has", code=1)
    queued.run("queue", "show", REDIS_URL=valkey.url).succeeded()
    queued.run("queue", "reset", "--yes", REDIS_URL=valkey.url).succeeded()
    queued.run("site", "list", REDIS_URL=valkey.url).succeeded()


ANEW = "`scrapy queue reset --yes`, then `scrapy queue rebuild`"
SITE = "http://127.0.1.1"


def harmed(valkey: RunningServer, *harm: str | int) -> None:
    """Write to the crawl's keys as somebody else may; `{key}` before a key's name stands for the prefix."""
    words = (key(word.removeprefix("{key}")) if str(word).startswith("{key}") else word for word in harm)
    valkey.client.execute_command(*words)


def test_a_count_that_is_none_is_told_with_what_to_do(queued: Place, valkey: RunningServer) -> None:
    harmed(valkey, "hset", "{key}count", "finished", "abc")
    told = (f"{key('count')} in Redis has 'abc' for 'finished'; expected whole numbers", ANEW)
    queued.run("queue", "show", REDIS_URL=valkey.url).refused(*told, code=1)
    queued.crawl([], REDIS_URL=valkey.url).refused(*told, code=LASTING)
    shown = queued.run("top", "--once", REDIS_URL=valkey.url, COLUMNS=1000).succeeded()
    assert "'abc' for 'finished'" in " ".join(shown.out.split())
    queued.run("queue", "reset", "--yes", "--force", REDIS_URL=valkey.url).succeeded()
    queued.run("queue", "show", REDIS_URL=valkey.url).succeeded()


def test_a_budget_that_is_none_is_told_with_what_to_do(queued: Place, valkey: RunningServer) -> None:
    harmed(valkey, "hset", "{key}budget", SITE, "abc")
    told = (f"{key('budget')} in Redis has 'abc' for {SITE!r}; expected whole numbers", ANEW)
    queued.run("site", "show", SITE, REDIS_URL=valkey.url).refused(*told, code=1)
    queued.crawl([], REDIS_URL=valkey.url).refused(*told, code=LASTING)


@pytest.mark.parametrize(("field", "text"), [("about", "notjson"), ("about", "[]"), ("pages", "many")])
def test_an_agent_that_is_none_is_told_with_what_to_do(
    queued: Place, valkey: RunningServer, field: str, text: str
) -> None:
    harmed(valkey, "zadd", "{key}agents", 99_999_999_999_999, "ghost")
    harmed(valkey, "hset", "{key}agent:ghost", field, text)
    told = f"{key('agent:ghost')} in Redis has '{text}' for '{field}'"
    queued.run("queue", "show", REDIS_URL=valkey.url).refused(told, ANEW, code=1)
    shown = queued.run("top", "--once", REDIS_URL=valkey.url, COLUMNS=1000).succeeded()
    assert f"has '{text}' for '{field}'" in " ".join(shown.out.split())
    queued.run("plan", REDIS_URL=valkey.url, DATABASE_URL="sqlite://").refused(told, ANEW, code=1)
    run = queued.run("queue", "reset", "--yes", REDIS_URL=valkey.url)
    run.refused("agents work on this crawl: ghost", "--force", code=1)
    queued.run("queue", "reset", "--yes", "--force", REDIS_URL=valkey.url).succeeded()
    queued.run("queue", "show", REDIS_URL=valkey.url).succeeded()


def test_an_agent_s_name_that_is_none_is_told_with_what_to_do(queued: Place, valkey: RunningServer) -> None:
    valkey.client.zadd(key("agents"), {b"\xff": 99_999_999_999_999})
    told = rf"{key('agents')} in Redis has '\xff'; expected UTF-8"
    queued.run("queue", "show", REDIS_URL=valkey.url).refused(told, ANEW, code=1)
    run = queued.run("queue", "reset", "--yes", REDIS_URL=valkey.url)
    run.refused(r"agents work on this crawl: \xff;", "--force", code=1)
    queued.run("queue", "reset", "--yes", "--force", REDIS_URL=valkey.url).succeeded()


@pytest.mark.parametrize("name", ["count", "agents", "crawl", f"checkpoint:{SITE}"])
def test_a_key_of_the_wrong_kind_is_no_outage(queued: Place, valkey: RunningServer, name: str) -> None:
    if name.startswith("checkpoint:"):
        harmed(valkey, "hset", "{key}budget", SITE, 1)  # or nobody would read its checkpoint
    valkey.client.delete(key(name))
    harmed(valkey, *(("hset", "{key}crawl", "a", "b") if name == "crawl" else ("set", "{key}" + name, "1")))
    run = queued.crawl([], REDIS_URL=valkey.url)
    run.refused("WRONGTYPE", "expected the crawl's own keys", ANEW, code=LASTING)
    assert "Redis is away" not in run.err
    if name in ("count", "agents"):
        run = queued.run("queue", "show", REDIS_URL=valkey.url)
        run.refused("WRONGTYPE", "expected the crawl's own keys", ANEW, code=1)
    queued.run("queue", "reset", "--yes", "--force", REDIS_URL=valkey.url).succeeded()
    queued.run("queue", "show", REDIS_URL=valkey.url).succeeded()


def test_a_reset_that_cannot_see_who_works_tells_what_to_do(queued: Place, valkey: RunningServer) -> None:
    valkey.client.set(key("agents"), "1")
    run = queued.run("queue", "reset", "--yes", REDIS_URL=valkey.url)
    run.refused("whether agents work on this crawl is unknown", "WRONGTYPE", "--yes --force", code=1)
    assert ANEW not in run.err, "that leads back here"
    assert valkey.client.exists(key("agents"))
    queued.run("queue", "reset", "--yes", "--force", REDIS_URL=valkey.url).succeeded()
    queued.run("queue", "show", REDIS_URL=valkey.url).succeeded()


def test_sites_that_are_leased(place: Place, valkey: RunningServer) -> None:
    with SmallSite({"/": Reply(seconds=20)}) as slow:
        run = place.start_crawl([slow.root], REDIS_URL=valkey.url)
        eventually(lambda: "/" in slow.paths, "the site is in hand")
        shown = place.run("site", "list", "--state", "leased", REDIS_URL=valkey.url).succeeded()
        assert shown.out.startswith("leased ")
        assert f"{slow.site} held by " in shown.out
        assert place.run("site", "list", "--state", "waiting", REDIS_URL=valkey.url).succeeded().out == ""
        refused = place.run("queue", "reset", "--yes", REDIS_URL=valkey.url)
        name = valkey.client.zrange(key("agents"), 0, -1)[0].decode()
        refused.refused(f"agents work on this crawl: {name}; stop them first", "--force", code=1)
        assert valkey.client.exists(key("crawl"))
        place.run("queue", "reset", "--yes", "--force", REDIS_URL=valkey.url).succeeded()
        assert not valkey.client.exists(key("crawl"))
        run.process.kill()
        run.wait()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["list", "--state", "foo"], ["--state is 'foo'; expected one of waiting, ", "leased"]),
        (["list", "--most", "-1"], ["--most is -1; expected a number, 0 for all"]),
        (["budget", "localhost", "²"], ["PAGES is '²'; expected a whole number"]),
        (["budget", "localhost"], ["expected list | show SITE", "budget SITE PAGES|default"]),
        (["pause"], ["expected list | show SITE"]),
        (["list", "localhost"], ["expected list | show SITE"]),
    ],
    ids=lambda words: " ".join(words),
)
def test_calls_that_are_wrong(place: Place, words: list[str], says: list[str]) -> None:
    place.run("site", *words).refused(*says, code=WRONG_CALL)
    assert not place.var.exists()


def test_a_site_that_rests_may_go_on_at_once(place: Place) -> None:
    with SmallSite(
        {"/": lambda times: Reply(503, {"Retry-After": "3600"}) if times == 1 else Reply()}
    ) as site:
        run = place.crawl([site.root]).stored_nothing()
        assert "  later                1   next at " in run.out
        assert " (it answered 503): `scrapy crawl" in run.out
        assert "`scrapy crawl site` resumes then, `--when-idle wait` waits" in run.out
        shown = place.run("site", "resume", site.site).succeeded()
        assert shown.out == f"{site.site}: resumed, due now; it was later\n"
        done = place.crawl(()).succeeded()
    assert site.pages == {"/": 2}
    assert "  sites                1   1 finished" in done.out
    assert "later" not in done.out


# --- Whose tables -----------------------------------------------------------------------------------------


def test_tables_that_nobody_named_are_left_alone(place: Place, valkey: RunningServer, farm: Farm) -> None:
    """A crawl of this machine alone lies where a cluster's commands would look."""
    place.crawl(farm.seeds).succeeded()
    place.check_nothing_left()
    site = farm.site(0)
    place.run("seed", site, REDIS_URL=valkey.url).succeeded()
    for words in (["report"], ["queue", "rebuild"]):
        for env in (CLUSTER, {}):
            run = place.run(*words, env=env, REDIS_URL=valkey.url)
            run.refused("DATABASE_URL is empty; expected the database of this crawl's coordinators", code=2)
    shown = place.run("site", "show", site, "--json", env=CLUSTER, REDIS_URL=valkey.url).succeeded()
    assert "DATABASE_URL is empty: figures of the tables are left out" in shown.err
    assert "published" not in json.loads(shown.out)
    gone = place.run("site", "forget", site, env=CLUSTER, REDIS_URL=valkey.url).succeeded()
    assert "DATABASE_URL is empty, so its pages go when a coordinator has stored the order" in gone.out
    assert place.stored() == farm.expected()
    assert place.run("report").succeeded().out.startswith("  sites                3   3 finished")


def test_records_that_nobody_stores_are_told_at_the_end(
    place: Place, valkey: RunningServer, farm: Farm
) -> None:
    said = "records wait in the results stream and no coordinator is running; expected one: scrapy coordinate"
    run = place.crawl(farm.seeds, REDIS_URL=valkey.url).succeeded()
    assert f"lowtide: {valkey.client.xlen(key('results'))} {said}" in run.err
    coordinator = place.start("coordinate", REDIS_URL=valkey.url)
    eventually(lambda: not valkey.client.xlen(key("results")), "all is stored")
    run = place.crawl(farm.seeds, "--again", REDIS_URL=valkey.url).succeeded()
    assert said not in run.err
    coordinator.end().succeeded()


def test_a_named_database_that_no_coordinator_has_filled_is_told_at_the_end(
    place: Place, valkey: RunningServer, farm: Farm
) -> None:
    """The crawl is good: nothing is wrong with the database, and what to type is the last line."""
    given = {"REDIS_URL": valkey.url, "DATABASE_URL": f"sqlite:///{place.folder / 'named.db'}"}
    run = place.crawl(farm.seeds, **given).succeeded()
    assert run.out == ""
    waiting, last = run.err.splitlines()[-2:]
    assert waiting.endswith("expected one: scrapy coordinate")
    assert last == (
        f"lowtide: no figures yet: DATABASE_URL {given['DATABASE_URL']} has no tables; `scrapy coordinate` with the "
        "same REDIS_URL and DATABASE_URL creates them and stores the records"
    )
    missing = f"no tables in DATABASE_URL {given['DATABASE_URL']} yet: a coordinator creates them"
    place.run("report", **given).refused(missing, code=1)
    coordinator = place.start("coordinate", **given)
    eventually(lambda: not valkey.client.xlen(key("results")), "all is stored")
    run = place.crawl(farm.seeds, **given).succeeded()
    assert f"results: {given['DATABASE_URL']}" in run.out
    other = given["DATABASE_URL"].replace("named.db", "other.db")
    run = place.crawl(farm.seeds, **given | {"DATABASE_URL": other}).succeeded()
    assert run.err.splitlines()[-1].endswith("creates them, or runs with another DATABASE_URL")
    coordinator.end().succeeded()


# --- Seeds ------------------------------------------------------------------------------------------------


def test_nothing_is_added_where_a_source_is_missing(place: Place, farm: Farm) -> None:
    run = place.run("seed", farm.site(0), f"{place.folder}/nonexist", farm.site(1))
    run.refused(
        "nonexist' is neither a file nor a URL; expected one of them; nothing was added", code=WRONG_CALL
    )
    assert not place.var.exists()


def test_a_file_that_is_missing_is_no_host(place: Place) -> None:
    said = "'seeds.txt' is neither a file nor a URL: 'txt' is not a public suffix; expected https://seeds.txt"
    place.run("seed", "seeds.txt").refused(said, code=WRONG_CALL)
    place.run("crawl", "site", "-a", "seeds=seeds.txt").refused(said, code=WRONG_CALL)
    assert not place.var.exists()


def test_a_site_that_is_finished_stays_so_and_that_is_told(place: Place, farm: Farm) -> None:
    place.crawl(farm.seeds[:1]).succeeded()
    run = place.run("seed", f"{farm.site(0)}/more").succeeded()
    assert "1 known before (their new pages are fetched; --again walks them again), 0 walked again" in run.out


# --- Pipes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["site list --most 0", "queue cli hgetall many"], ids=str)
def test_a_reader_that_has_seen_enough(place: Place, valkey: RunningServer, words: str) -> None:
    """More than a pipe holds, into one whose reader leaves after the first line."""
    lines = place.folder / "seeds.txt"
    lines.write_text("\n".join(f"http://{'x' * 60}.{number}.localhost" for number in range(2000)))
    place.run("seed", str(lines), REDIS_URL=valkey.url).succeeded()
    valkey.client.hset("many", mapping={f"{'x' * 100}{number}": "y" for number in range(2000)})
    ended = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {SCRAPY} {words} -s REDIS_URL={valkey.url} | head -1"],
        cwd=ROOT,
        env=place.environment({"PATH": os.environ["PATH"]}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.count("\n") == 1
