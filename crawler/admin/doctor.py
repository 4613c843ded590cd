"""Checks of Redis, database, machine and settings; failed checks become findings, `examine` never raises."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import redis
import scrapy

from crawler.admin import operator
from crawler.disk import make_folder, sync_folders
from crawler.local.local import joined, names_tables
from crawler.local.server import ServerError
from crawler.local.summary import coordinators
from crawler.options import OptionError
from crawler.queue import connection
from crawler.queue.results import results_key
from crawler.reconcile import comparing
from crawler.release import version
from crawler.store import database, durability
from crawler.urls.seeds import names_contact

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

    from crawler.options import Options

Grade = Literal["good", "note", "bad"]
# With less free space a crawl ends soon.
LEAST_FREE_BYTES = 1_000_000_000
# Descriptors in addition to a connection per slot: logs, database, Redis, feeds.
SPARE_DESCRIPTORS = 100
MOST_CLOCK_SECONDS = 2.0
# The oldest version with the required streams and scripts.
LEAST_VERSION = (7, 0)


class Finding(NamedTuple):
    """The result of a check: `bad` harms a crawl, `note` is information; `advice` says what to do."""

    what: str
    grade: Grade
    found: str
    advice: str = ""


def examine(settings: BaseSettings, options: Options) -> list[Finding]:
    """All findings, in the order of a crawl's needs."""
    findings: list[Finding] = []
    for look in (_versions, _folder, _space, _descriptors, _user_agent, _server, _database):
        findings += _safely(look, settings, options)
    return findings


def text(findings: list[Finding]) -> str:
    """The findings for the terminal."""
    marks = {"good": "ok  ", "note": "note", "bad": "BAD "}
    lines = []
    for finding in findings:
        lines.append(f"{marks[finding.grade]}  {finding.what:<14} {finding.found}")
        if finding.advice:
            lines.append(f"      {'':<14} -> {finding.advice}")
    bad = sum(finding.grade == "bad" for finding in findings)
    lines.append(f"\n{bad} problems" if bad != 1 else "\n1 problem")
    return "\n".join(lines)


def _safely(
    look: Callable[[BaseSettings, Options], Iterator[Finding]], settings: BaseSettings, options: Options
) -> list[Finding]:
    try:
        return list(look(settings, options))
    except (
        connection.ServerAwayError,
        ServerError,
        database.DatabaseError,
        OptionError,
        redis.RedisError,
        OSError,
    ) as error:
        return [Finding(look.__name__.strip("_"), "bad", str(error))]


def _versions(_settings: BaseSettings, _options: Options) -> Iterator[Finding]:
    known = (
        f"Scrapy {scrapy.__version__}, Python {platform.python_version()}, {platform.platform(terse=True)}"
    )
    yield Finding("lowtide", "good", f"{version()}; {known}")


def _folder(_settings: BaseSettings, options: Options) -> Iterator[Finding]:
    try:
        sync_folders(*make_folder(options.var))
        with tempfile.TemporaryFile(dir=options.var):
            pass
    except OSError as error:
        yield Finding("VAR_DIR", "bad", f"{options.var}: {error.strerror}", "expected a writable folder")
        return
    yield Finding("VAR_DIR", "good", str(options.var))


def _space(_settings: BaseSettings, options: Options) -> Iterator[Finding]:
    place = next(path for path in (options.var, *options.var.parents) if path.exists())
    free = shutil.disk_usage(place).free
    found = f"{free / 1e9:.1f} GB free at {place}"
    if free < LEAST_FREE_BYTES:
        yield Finding("disk", "bad", found, f"expected at least {LEAST_FREE_BYTES / 1e9:.0f} GB")
    else:
        yield Finding("disk", "good", found)


def _descriptors(_settings: BaseSettings, options: Options) -> Iterator[Finding]:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = options.site_slots + SPARE_DESCRIPTORS
    if 0 <= limit < wanted:
        yield Finding(
            "descriptors",
            "bad",
            f"limit {limit}",
            f"expected {wanted} for SITE_SLOTS {options.site_slots}: ulimit -n {wanted}",
        )
    else:
        yield Finding("descriptors", "good", f"limit {limit}")


def _user_agent(settings: BaseSettings, _options: Options) -> Iterator[Finding]:
    agent = settings["USER_AGENT"]
    if names_contact(agent):
        yield Finding("USER_AGENT", "good", agent)
    else:
        yield Finding(
            "USER_AGENT",
            "note",
            f"{agent!r} has no contact",
            "expected a URL or e-mail address to crawl beyond loopback: 'mybot (+https://example.org/bot)'",
        )


def _server(settings: BaseSettings, options: Options) -> Iterator[Finding]:
    # Called first: `joined` sets REDIS_URL.
    tables = names_tables(settings, options)
    with joined(settings, options) as address:
        client: Any = connection.connect_blocking(settings)
        try:
            client.ping()
        except redis.RedisError as error:
            why = connection.explained(settings, error)
            yield Finding("Redis", "bad", why, "expected a running server at REDIS_URL")
            return
        yield from _server_itself(client, address, options)
        yield from _coordinators(client, options)
        yield from _queue(client, options, tables=tables)


def _server_itself(client: Any, address: str, options: Options) -> Iterator[Finding]:
    info = client.info()
    name = "Valkey" if "valkey_version" in info else "Redis"
    version = str(info.get("valkey_version") or info["redis_version"])
    numbers = tuple(int(part) for part in version.split(".")[:2])
    grade: Grade = "good" if numbers >= LEAST_VERSION else "bad"
    yield Finding(
        "Redis", grade, f"{name} {version} at {address}", "" if grade == "good" else "expected 7.0 or newer"
    )
    policy = info.get("maxmemory_policy", "?")
    if policy != "noeviction" and info.get("maxmemory", 0):
        yield Finding(
            "eviction",
            "bad",
            str(policy),
            "expected noeviction: an evicted key loses a site (config set maxmemory-policy noeviction)",
        )
    else:
        yield Finding("eviction", "good", str(policy))
    yield from _memory(info)
    if info.get("aof_enabled"):
        yield Finding("append-only", "good", "on")
        yield _restart(connection.memory_of(client, options.key_prefix))
    else:
        yield Finding(
            "append-only",
            "bad",
            "off",
            "expected on: a restart of Redis loses the queue (config set appendonly yes)",
        )
    yield from _appendfsync(client)
    seconds, micros = client.time()
    off = abs(time.time() - seconds - micros / 1e6)
    far = off > MOST_CLOCK_SECONDS
    yield Finding(
        "clock",
        "note" if far else "good",
        f"differs by {off:.1f} s from Redis'",
        "expected NTP on both machines" if far else "",
    )


def _memory(info: dict[str, Any]) -> Iterator[Finding]:
    """Yields nothing without maxmemory."""
    used, most = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if 0 < most <= used:
        found = f"Redis is full: {used / 1e6:.1f} MB used, maxmemory {most / 1e6:.1f} MB"
        yield Finding("memory", "bad", found, connection.FULL)
    elif most:
        yield Finding("memory", "good", f"{used / 1e6:.1f} MB used, maxmemory {most / 1e6:.1f} MB")


def _appendfsync(client: Any) -> Iterator[Finding]:
    """Yields nothing if the setting is not readable."""
    found = durability.appendfsync(client)
    if found == "no":
        yield Finding(
            "appendfsync",
            "bad",
            found,
            "expected everysec: a power failure can lose 30 s of changes (config set appendfsync everysec)",
        )
    elif found:
        yield Finding("appendfsync", "good", found)


def _restart(memory: connection.Memory) -> Finding:
    """Whether a restart of Redis loses the queue."""
    if memory.keeps:
        return Finding("restart", "good", "keeps the queue")
    found = f"{memory.version} {connection.FORGETS}"
    if memory.keeps is None:
        found += ", unless the user `default` may write"
    return Finding("restart", "bad", found, connection.restart_advice(memory))


def _queue(client: Any, options: Options, *, tables: bool) -> Iterator[Finding]:
    """Whether the queue has all unfinished sites of the tables."""
    try:
        engine = operator.the_tables(options) if tables else None
        lost = comparing.count_lost(engine, client, options.key_prefix) if engine is not None else 0
    except database.DatabaseError:
        return  # reported by _database
    if lost:
        found = f"lacks {lost:,} unfinished sites of the tables"
        yield Finding("queue", "bad", found, f"it was lost: {connection.REBUILD}")
    elif engine is not None:
        yield Finding("queue", "good", "has all unfinished sites of the tables")


def _coordinators(client: Any, options: Options) -> Iterator[Finding]:
    alive = coordinators(client, options.key_prefix)
    waiting = client.xlen(results_key(options.key_prefix))
    if alive:
        yield Finding("coordinator", "good", f"{', '.join(alive)}; {waiting} records in the stream")
    elif waiting:
        yield Finding(
            "coordinator",
            "bad",
            f"none is running, {waiting} records in the stream",
            "start one: scrapy coordinate",
        )
    else:
        yield Finding(
            "coordinator",
            "note",
            "none is running, the stream is empty",
            "a crawl on one machine starts its own; in a cluster run `scrapy coordinate`",
        )


def _database(settings: BaseSettings, options: Options) -> Iterator[Finding]:
    if not names_tables(settings, options):
        yield Finding(
            "database",
            "note",
            "DATABASE_URL is empty",
            "agents need none; set the coordinators' URL for `scrapy report` and `scrapy queue rebuild`",
        )
        return
    engine = database.open_database(options.database)
    url = database.told(engine.url)
    if engine.url.get_backend_name() == "sqlite" and not Path(str(engine.url.database)).exists():
        yield Finding("database", "note", f"{url} does not exist yet", "the first coordinator creates it")
        return
    version = database.check_version(engine)
    if version is None:
        yield Finding("database", "note", f"{url}: no tables yet", "the first coordinator creates them")
    else:
        yield Finding("database", "good", f"{url}, tables of version {version}")
    for risk in durability.of_database(engine):
        advice = f"expected {risk.expected}, or a power failure can lose stored data: {risk.advice}"
        yield Finding(risk.name, "bad", risk.value, advice)
    if engine.url.get_backend_name() == "sqlite" and not os.access(str(engine.url.database), os.W_OK):
        yield Finding("database", "bad", f"{engine.url.database} is not writable", "expected write access")
