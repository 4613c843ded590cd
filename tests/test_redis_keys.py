"""The table of keys in docs/redis-keys.md beside the keys of a crawl at work.

Every key that is there stands in the table with its kind, and whatever stands in the last column works in `redis-cli`
and in `scrapy queue cli`, and shows what the table says. tests/docs/test_examples.py runs that page's examples.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import pytest
import redis

from crawler.local.server import socket_path
from crawler.queue.keys import KEYS, page_with_table
from crawler.queue.script import source
from tests import warm
from tests.crawling import ROOT, SCRAPY, Place
from tests.farm import Farm
from tests.servers import eventually

pytestmark = [pytest.mark.needs("redis-cli"), pytest.mark.timeout(180)]

NAMES = ("one.localhost", "two.localhost")
# Names in the page's keys that stand for others.
STAND_INS = {"WORK": "(?:site|recheck|revive|status)", "XXXX": "[0-9a-f]{4}", "N": r"\d+"}
KINDS = {"sorted set": "zset"}
# What must be there while this crawl is at work; the others come and go.
THERE = {
    *("crawl", "count", "sites:XXXX", "fresh", "wake:WORK", "park:PLACE", "busy", "crowd", "checkpoint:SITE"),
    *("paths:SITE", "budget", "why", "alias:XXXX", "agents", "renewed", "agent:NAME", "held:NAME"),
    *("coordinator:NAME", "coordinated", "results", "scope"),
}


class Row(NamedTuple):
    """One line of the table."""

    key: str
    kinds: tuple[str, ...]  # as Redis names them
    commands: tuple[str, ...]  # a second one is for each key that the first one names

    def fits(self, key: str) -> bool:
        """Whether a key of the server is one of these."""
        parts = re.split(r"\b(WORK|XXXX|SITE|NAME|PLACE|N)\b", self.key)
        pattern = "".join(
            STAND_INS.get(part, ".+") if odd % 2 else re.escape(part) for odd, part in enumerate(parts)
        )
        return re.fullmatch(pattern, key) is not None


def rows() -> list[Row]:
    """The table as it stands."""
    page = (ROOT / "docs/redis-keys.md").read_text(encoding="utf-8")
    found = []
    for line in page.splitlines():
        if line.startswith("| `"):
            key, kind, _, look = (cell.strip() for cell in line.strip("|").split(" | "))
            kinds = tuple(KINDS.get(one, one) for one in re.split(", | or ", kind))
            found.append(Row(key.strip("`"), kinds, tuple(re.findall(r"`([^`]+)`", look))))
    return found


TABLE = rows()


def test_the_table_is_read() -> None:
    assert len(TABLE) > 20
    assert all(row.commands for row in TABLE)
    keys = {row.key.removeprefix("lt:{0}:") for row in TABLE}
    assert keys >= THERE


def test_the_page_has_the_table_of_the_code() -> None:
    page = (ROOT / "docs/redis-keys.md").read_text(encoding="utf-8")
    assert page == page_with_table(page), "make docs"


def test_the_table_has_every_key_that_the_code_uses() -> None:
    """The first word of each: `sites` of `sites:XXXX`."""
    python = "\n".join(file.read_text() for file in (ROOT / "crawler").rglob("*.py"))
    used = set(re.findall(r"base \.\. '(\w+)", source()))
    used |= set(re.findall(r"\{self\._base\}([a-z]\w*)", python))
    assert len(used) > 30
    known = {re.split(r":", key.name.removeprefix("lt:{0}:"))[0] for key in KEYS}
    assert used - known == set()


def test_every_key_of_the_crawl_is_in_the_table(crawl: Crawl) -> None:
    unknown, wrong = [], []
    for key, kind in crawl.keys().items():
        row = next((row for row in TABLE if row.fits(key)), None)
        if row is None:
            unknown.append(key)
        elif kind not in row.kinds:
            wrong.append(f"{key}: {kind}")
    assert unknown == []
    assert wrong == []


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.key.removeprefix("lt:{0}:"))
def test_the_last_column_works(row: Row, crawl: Crawl) -> None:
    replies = crawl.look(row)
    assert replies
    if row.key.removeprefix("lt:{0}:") in THERE:
        assert all(replies), f"{row.commands} show nothing"


def test_what_is_shown_is_what_the_table_says(crawl: Crawl) -> None:
    shown = {row.key.removeprefix("lt:{0}:"): crawl.look(row)[-1] for row in TABLE}
    assert shown["crawl"] == ["site"]
    states = {"waiting", "leased", "later", "paused", "added"}
    assert states <= set(shown["count"])
    assert re.fullmatch(r"[wslfabWSLFAB] \S+( \d+/\d+)?( \d+ \S+ site)?", shown["sites:XXXX"][0])
    assert crawl.waiting in shown["fresh"]
    assert crawl.down in shown["wake:WORK"]
    (held,) = (name for name in NAMES if f"//{name}" in shown["busy"])
    (other,) = set(NAMES) - {held}
    assert shown["park:PLACE"] == [f"http://{other}:{crawl.port}"]
    assert "127.0.0.1" in shown["busy"]
    assert shown["budget"] == [crawl.waiting, "500"]
    assert shown["why"] == ["its owner asked"]
    assert "/given" in "\n".join(shown["paths:SITE"])
    about = json.loads(dict(pairs(shown["agent:NAME"]))["about"])
    assert {"host", "spider", "slots"} <= about.keys()
    assert all(site.startswith("http://") for site, _ in pairs(shown["held:NAME"]))
    assert {"pid", "written", "lag"} <= json.loads(shown["coordinator:NAME"][0]).keys()
    assert "coordinators" in shown["results"]


def test_a_record_of_the_stream_is_json(crawl: Crawl) -> None:
    """The line below the table; a record is stored within a tenth of a second, so it is looked for until one is met."""
    words = "xrange 'lt:{0}:results' - + count 1"
    assert f"`redis-cli {words}`" in (ROOT / "docs/redis-keys.md").read_text(encoding="utf-8")
    eventually(lambda: any(map(is_json, crawl.redis_cli(shlex.split(words)))), "a record is met", 30)


def test_the_small_redis_cli_says_the_same(crawl: Crawl) -> None:
    """One call for all lines, each with a mark before its reply."""
    lines = [crawl.real(command) for row in TABLE for command in row.commands[:1]]
    given = "".join(f"echo line-{number}\n{line}\n" for number, line in enumerate(lines))
    said = crawl.queue_cli(given)
    assert said.returncode == 0, said.stdout + said.stderr
    assert said.stdout.count('"line-') == len(lines)
    assert "(error)" not in said.stdout


# --- the crawl --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def crawl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crawl]:
    """At work, with sites in as many states as can be had at a time."""
    with (
        # Sites that last: what an agent holds at the beginning it holds at the end.
        Farm(sites=8, pages=200, kinds=(), names=NAMES, down=(7,)) as farm,
        Place(tmp_path_factory.mktemp("keys")) as place,
    ):
        # The two names share an address, on which one of them has to wait; the site that is down rests.
        seeds = [*map(farm.site, NAMES), farm.site(7), *map(farm.site, range(7))]
        run = place.start_crawl(
            seeds,
            "--when-idle=wait",
            SITE_SLOTS=4,
            SITES_PER_ADDRESS=1,
            DOWNLOAD_DELAY=1,
            LEASE_SECONDS=120,
            MAX_TRIES=2,
            SCOPE="host",
        )
        at_work = Crawl(place, farm)
        at_work.wait()
        at_work.give_orders()
        yield at_work
        run.end(signal.SIGINT).succeeded()


class Crawl:
    """What is looked at, and how."""

    def __init__(self, place: Place, farm: Farm) -> None:
        self.port = farm.port
        self.down, self.waiting, self.paused = farm.site(7), farm.site(6), farm.site(5)
        self._place = place
        self._socket = socket_path(place.var)
        self._client = redis.Redis(unix_socket_path=str(self._socket), decode_responses=True)

    def wait(self) -> None:
        """Until sites are held, one waits for an address, one rests, and pages are stored."""
        eventually(self._is_at_work, "the crawl is at work", 60)

    def _is_at_work(self) -> bool:
        with suppress(redis.RedisError):
            there = set(self.keys())
            needed = ["wake:site", "park:127.0.0.1", "fresh", "coordinated", "results", "scope"]
            some = ["held:", "alias:", "checkpoint:"]
            return all(f"lt:{{0}}:{key}" in there for key in needed) and all(
                any(key.startswith(f"lt:{{0}}:{one}") for key in there) for one in some
            )
        return False

    def give_orders(self) -> None:
        """What an operator may want of sites."""
        for words in (
            ("site", "pause", self.paused, "--reason", "its owner asked"),
            ("site", "budget", self.waiting, "500"),
            ("seed", f"{self.waiting}/given"),
        ):
            self._place.run(*words).succeeded()

    def keys(self) -> dict[str, str]:
        """Every key, and its kind."""
        names = list(self._client.scan_iter(count=10_000))
        pipeline = self._client.pipeline(transaction=False)
        for name in names:
            pipeline.type(name)
        kinds = dict(zip(names, pipeline.execute(), strict=True))
        return {name: kind for name, kind in kinds.items() if kind != "none"}

    def real(self, command: str) -> str:
        """A line of the page with what is here in place of what is there."""
        agent = str(self._client.zrange("lt:{0}:agents", 0, 0)[0])
        bucket = hashlib.sha1(self.waiting.encode()).hexdigest()[:4]
        site = self._site_for(command, agent)
        there = {"https://example.org": site, "SITE": self.waiting, "XXXX": bucket, "192.0.2.1": "127.0.0.1"}
        for told, here in {**there, "NAME": agent}.items():
            command = command.replace(told, here)
        return command

    def _site_for(self, command: str, agent: str) -> str:
        """One that has what this command shows."""
        if ":checkpoint:" in command:
            return str(next(iter(self._client.hgetall(f"lt:{{0}}:held:{agent}"))))
        return self.paused if ":why'" in command else self.waiting

    def look(self, row: Row) -> list[list[str]]:
        """The lines that each command prints; the second one's are of the last key that the first one named."""
        first = self.redis_cli(shlex.split(self.real(row.commands[0])))
        replies = [first]
        if len(row.commands) > 1:
            replies += [self.redis_cli([row.commands[1], key]) for key in first]
        return replies

    def redis_cli(self, words: list[str]) -> list[str]:
        """What it prints; it must know the command."""
        command = ["redis-cli", "-e", "-s", str(self._socket), *words]
        # Packed links are bytes, which it prints as they are.
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=10, check=False
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return [line for line in done.stdout.splitlines() if line]

    def queue_cli(self, given: str) -> subprocess.CompletedProcess[str]:
        """Lines given to `scrapy queue cli`."""
        env: dict[str, Any] = self._place.environment()
        return warm.run(
            [str(SCRAPY), "queue", "cli"],
            input=given,
            env=env,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


def is_json(line: str) -> bool:
    """Whether a line is an object of JSON."""
    with suppress(ValueError):
        return isinstance(json.loads(line), dict)
    return False


def pairs(flat: list[str]) -> list[tuple[str, str]]:
    """A hash as redis-cli prints it: names and values in turn."""
    return list(zip(flat[::2], flat[1::2], strict=True))
