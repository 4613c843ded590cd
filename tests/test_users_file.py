"""Configuration and users file of docs/cluster.md, on the bundled Valkey and on this machine's Redis.

A server takes the file, forgets nothing at a restart, and lets each user do what the page says that it does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from crawler.local.server import server_binary
from tests.crawling import QUICK, ROOT, Place
from tests.examples import blocks_of
from tests.servers import RunningServer, eventually, free_port, machine_redis
from tests.small_site import SmallSite, links

PAGE = (ROOT / "docs/cluster.md").read_text(encoding="utf-8")
FILES = {block.file: block.text for block in blocks_of(PAGE)}
USERS, CONF = FILES["cluster/users.acl"], FILES["cluster/valkey.conf"]
# Written by a script, so that the server's append-only file has it as MULTI … EXEC.
WRITES = "redis.call('HSET', KEYS[1], 'a', 1) redis.call('RPUSH', KEYS[2], 'b') return 1"


class Guarded:
    """A server on a port of 127.0.0.1 with the page's configuration, which knows the page's users and no other."""

    def __init__(self, folder: Path, program: Path) -> None:
        folder.mkdir()
        (folder / "users.acl").write_text(USERS)
        self.address = f"127.0.0.1:{free_port()}"
        page = dict(line.split(" ", 1) for line in CONF.splitlines() if not line.startswith("#"))
        here = {"bind": "127.0.0.1", "dir": str(folder), "aclfile": str(folder / "users.acl")}
        options = {**page, **here, "port": self.address.partition(":")[2]}
        self.server = RunningServer(folder, ("admin", "admin-password"), program, **options)
        self.admin = self.server.client

    def url(self, user: str) -> str:
        """REDIS_URL of a user."""
        return f"redis://{user}:{user}-password@{self.address}/0"

    @contextmanager
    def client(self, user: str) -> Iterator[redis.Redis]:
        """A connection of a user."""
        client = redis.Redis.from_url(self.url(user))
        try:
            yield client
        finally:
            client.close()

    def restart(self) -> None:
        """As after a power cut."""
        self.server.kill()
        self.server.start()


@pytest.fixture(params=["Valkey", pytest.param("Redis", marks=pytest.mark.needs("redis-server"))])
def guarded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Guarded]:
    """The bundled server, or this machine's."""
    program = server_binary() if request.param == "Valkey" else machine_redis()
    guarded = Guarded(tmp_path / "server", program)
    try:
        yield guarded
    finally:
        guarded.server.stop()


@pytest.mark.parametrize("user", ["agent", "coordinator", "operator"])
def test_a_restart_keeps_what_a_script_wrote(guarded: Guarded, user: str) -> None:
    with guarded.client(user) as client:
        loaded = client.script_load(WRITES)
        client.evalsha(loaded, 2, "lt:{0}:one", "lt:{0}:two")
    guarded.admin.set("lt:{0}:three", 1)
    # While an fsync goes on the server keeps what it was told in a buffer.
    eventually(lambda: not guarded.admin.info("persistence")["aof_buffer_length"], "the file has it")
    guarded.restart()
    assert {key.decode() for key in guarded.admin.scan_iter()} == {"lt:{0}:one", "lt:{0}:two", "lt:{0}:three"}


def test_a_restart_keeps_what_a_transaction_wrote(guarded: Guarded) -> None:
    with guarded.client("coordinator") as client, client.pipeline(transaction=True) as pipe:
        pipe.xadd("lt:{0}:results", {"v": 1})
        pipe.set("lt:{0}:planner", 1)
        pipe.execute()
    guarded.restart()
    assert guarded.admin.dbsize() == 2


def test_the_user_default_may_do_everything_and_is_open_to_no_one(guarded: Guarded) -> None:
    with redis.Redis.from_url(f"redis://{guarded.address}") as stranger:
        for command in ("ping", "hello", "auth default ''", "auth ''", "get lt:{0}:crawl"):
            with pytest.raises(redis.RedisError, match=r"(?i)auth|pass"):
                stranger.execute_command(*command.split())


def test_a_restart_that_would_forget_is_named_before_it(guarded: Guarded, place: Place) -> None:
    """Where the user `default` has no rights: it depends on the server's version."""
    given = {"REDIS_URL": guarded.url("operator"), "DATABASE_URL": f"sqlite:///{place.folder}/crawl.db"}
    safe = guarded.admin.info("server").get("server_name") == "valkey"

    def doctor() -> dict[str, Any]:
        run = place.run("doctor", "--json", **given)
        (found,) = (one for one in json.loads(run.out) if one["what"] == "restart")
        assert run.code == (0 if found["grade"] == "good" else 1), run.out
        return dict(found)

    assert doctor()["grade"] == "good"
    guarded.admin.execute_command("ACL", "SETUSER", "default", "resetkeys", "-@all")
    found = doctor()
    if not safe:
        assert found["grade"] == "bad"
        assert found["found"].startswith("Redis 7.0")
        assert "user default off ~* &* +@all" in found["advice"]
    coordinator = place.start("coordinate", **{**given, "REDIS_URL": guarded.url("coordinator")})
    coordinator.says("writes to")
    eventually(lambda: guarded.admin.exists("lt:{0}:tables"), "it is at work")
    coordinator.end().succeeded()
    assert ("forgets at a restart" in coordinator.err) is not safe, coordinator.err
    assert guarded.admin.acl_log() == []
    guarded.admin.execute_command("ACL", "SETUSER", "operator", "-acl|dryrun")
    found = doctor()
    assert found["grade"] == ("good" if safe else "bad")
    assert safe or "`+acl|dryrun` for this user" in found["advice"]


def test_the_operator_does_all_that_the_page_says(guarded: Guarded, place: Place) -> None:
    """Every command that the page names for that user, a rebuild with an unfinished site among them."""
    place.var.mkdir()
    database = f"sqlite:///{place.var}/crawl.db"

    def operate(*words: str, **given: Any) -> str:
        named = {"REDIS_URL": guarded.url("operator"), "DATABASE_URL": database}
        return place.run(*words, **{**named, **given}).succeeded().out

    pages = {f"/{number}": links() for number in range(200)}
    with (
        SmallSite({"/": links(*pages), **pages}) as long,
        SmallSite({"/": links()}, "127.0.1.2") as short,
        SmallSite({"/": links()}, "127.0.1.3") as third,
    ):
        coordinator = place.start(
            "coordinate", REDIS_URL=guarded.url("coordinator"), DATABASE_URL=database, BATCH_SECONDS=0.1
        )
        coordinator.says("writes to")
        operate("seed", long.root, short.root, third.root, **QUICK)
        operate("site", "block", third.site)
        given = {"REDIS_URL": guarded.url("agent"), "DOWNLOAD_DELAY": 0.1}
        agent = place.start_crawl([], "--no-summary", **given)
        eventually(lambda: len(long.paths) > 5, "the long site is begun")
        agent.end().succeeded()
        eventually(lambda: not guarded.admin.xlen("lt:{0}:results"), "everything is stored")
        for words in (
            ("queue", "show"),
            ("site", "list"),
            ("site", "show", long.site),
            ("site", "pause", long.site),
            ("site", "resume", long.site),
            ("site", "budget", long.site, "150"),
            ("report", "summary", "ledger"),
            ("doctor",),
            ("queue", "cli", "hgetall", "lt:{0}:count"),
            ("site", "forget", third.site),
        ):
            operate(*words)
        eventually(lambda: not guarded.admin.xlen("lt:{0}:results"), "the orders are stored")
        guarded.admin.flushdb()
        rebuilt = json.loads(operate("queue", "rebuild", "--json"))
        assert (rebuilt["finished"], rebuilt["unfinished"]) == (1, 1), rebuilt
        assert guarded.admin.exists(f"lt:{{0}}:checkpoint:{long.site}")
        assert json.loads(operate("queue", "show", "--json"))["suspended"] == 1
        operate("queue", "reset", "--yes")
        operate("queue", "rebuild")
        coordinator.end().succeeded()
    assert guarded.admin.acl_log() == []
