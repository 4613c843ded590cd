"""Connections to Redis or Valkey from scrapy-redis's settings, for agents (asyncio) and coordinators (blocking).

REDIS_URL, REDIS_HOST, REDIS_PORT, REDIS_DB and REDIS_PARAMS mean what scrapy-redis's users know. Two things are
ours whatever they say: the library's own retries are off (a script that was sent twice is taken twice; callers
back off themselves), and replies stay bytes. Of an agent's many calls at once, those that find no connection free wait
for one. No message of this file holds a password.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import parse_qs, urlsplit

import redis
from redis import asyncio as redis_asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError, OutOfMemoryError
from redis.retry import Retry

from crawler.options import OptionError, without_password

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings


# ------------------------------------------------------------------------------------------------------------
# Whether a restart of the server keeps the queue.
#
# Scripts and transactions stand in the append-only file as MULTI … EXEC. While it reads that file, an older server
# asks whether the user `default` may do what is in between, and drops it where that user may not; it says so in its
# own log alone. Where users are named, `default` is often off and without rights. All other commands come back.


# From these versions on the server does not ask. Redis: its fix #14545 is in 8.4.4. Valkey: its fix #3984; 9.1.2 was
# tried, and may not be the first.
SAFE_FROM = {"redis": (8, 4, 4), "valkey": (9, 1, 2)}
# What the queue's script and the coordinators leave in the append-only file.
_WRITES = (
    "HSET k f v",
    "HINCRBY k f 1",
    "HDEL k f",
    "RPUSH k v",
    "LPOP k",
    "SADD k m",
    "SREM k m",
    "ZADD k 1 m",
    "ZREM k m",
    "SET k v",
    "PEXPIREAT k 1",
    "UNLINK k",
    "XADD k * f v",
    "XDEL k 1-1",
    "XACK k g 1-1",
    "XCLAIM k g c 0 1-1",
)
FORGETS = "forgets at a restart what scripts wrote, and with it the queue"
REMEDY = "user default off ~* &* +@all"


class Memory(NamedTuple):
    """What a restart keeps; `keeps` None: that is not known."""

    keeps: bool | None
    version: str


def memory_of(client: Any, prefix: str) -> Memory:
    """Ask the server; RedisError if it does not answer. Where its version is not safe, it needs `+acl|dryrun`."""
    hello = _fields(client.execute_command("HELLO"))
    name, version = hello["server"], hello["version"]
    shown = f"{name.capitalize()} {version}"
    numbers = tuple(int(part) for part in version.split(".") if part.isdigit())
    if numbers >= SAFE_FROM.get(name, (999,)):
        return Memory(True, shown)
    try:
        return Memory(_default_may_write(client, prefix), shown)
    except redis.ResponseError:  # not permitted, or no such command
        return Memory(None, shown)


def _default_may_write(client: Any, prefix: str) -> bool:
    for command in _WRITES:
        name, _, *rest = command.split()
        reply = client.execute_command("ACL", "DRYRUN", "default", name, f"{prefix}:{{0}}:any", *rest)
        if _text(reply) != "OK":
            return False
    return True


def _fields(reply: Any) -> dict[str, str]:
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return {_text(name): _text(value) for name, value in pairs}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def restart_advice(memory: Memory) -> str:
    """What to do where a restart may not keep the queue; empty: nothing."""
    if memory.keeps:
        return ""
    line = f"the line `{REMEDY}` in the users file, which lets nobody in"
    if memory.keeps is None:
        return f"expected {line}, or `+acl|dryrun` for this user, so that it can be seen"
    return f"expected {line}; then `acl load`"


def restart_warning(client: Any, prefix: str) -> str:
    """What a process says once as it starts; empty: nothing, or the server does not tell."""
    try:
        memory = memory_of(client, prefix)
    except redis.RedisError:
        return ""
    if memory.keeps is not False:
        return ""
    return f"{memory.version} {FORGETS}: {restart_advice(memory)}"


# The extension that runs the bundled server; settings.cluster takes it out.
BUNDLED = "crawler.local.local.LocalServer"
# What a connection attempt and a reply may take, in seconds; scrapy-redis's 30 s would freeze a whole lease.
CONNECT_SECONDS = 5
REPLY_SECONDS = 10
# Of one asyncio client, where REDIS_PARAMS says nothing else; the server answers one call after the other anyway.
MOST_CONNECTIONS = 32
# What helps where somebody else wrote to the crawl's keys.
ANEW = (
    "Once `scrapy queue show` tells of no records and no agents (where it cannot tell: once the agents have ended and "
    "`scrapy coordinate` has stored what waits), make the queue anew from the tables: `scrapy queue reset --yes`, then "
    "`scrapy queue rebuild`"
)
# What helps where the queue has lost sites.
REBUILD = "`scrapy queue rebuild` brings them back (`scrapy queue reset --yes` gives them up)"
# What helps where the server has no memory left.
FULL = (
    "`scrapy coordinate` stores the records that wait there and takes them out; if that is not enough, raise maxmemory "
    "(`redis-cli config set maxmemory 2gb`)"
)
# Answers of a server that is there but cannot work just now: full disk, lost quorum, failing over.
_PASSING = (
    "MISCONF",
    "NOREPLICAS",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "MASTERDOWN",
    "LOADING",
    "READONLY",
    "BUSY ",
)


def sites_lost(many: int) -> str:
    """For the person who runs the crawl: so many unfinished sites of the tables are lost."""
    return f"the queue does not know {many:,} unfinished sites of the tables; {REBUILD}"


def connect(settings: BaseSettings) -> redis_asyncio.Redis:
    """The asyncio client for agents; no connection is made yet. OptionError where no server is named."""
    params = {"max_connections": MOST_CONNECTIONS, **_parameters(settings)}
    client = cast(
        "redis_asyncio.Redis", _build(params, redis_cls=redis_asyncio.Redis, retry=AsyncRetry(NoBackoff(), 0))
    )
    if "connection_pool" not in params:
        client.connection_pool = _patient(client.connection_pool)
    return client


def _patient(pool: redis_asyncio.ConnectionPool) -> redis_asyncio.BlockingConnectionPool:
    """The same, but that who finds all connections in use waits for one: the library's own refuses him."""
    return redis_asyncio.BlockingConnectionPool(
        connection_class=_with_plain_errors(pool.connection_class),
        max_connections=pool.max_connections,
        timeout=REPLY_SECONDS,
        **pool.connection_kwargs,
    )


def _with_plain_errors(kind: type[Any]) -> type[Any]:
    """The same kind of connection, which tells that it is closed by a ConnectionError, whatever the event loop says.

    After an outage in which nobody sent a reset, the first write finds the connection closed. The standard loop raises
    an OSError then, as the library expects; uvloop a RuntimeError, which would look like a fault of this program.
    """

    class PlainErrors(kind):  # type: ignore[misc]
        async def send_packed_command(self, *command: Any, **named: Any) -> None:
            try:
                await super().send_packed_command(*command, **named)
            except RuntimeError as error:
                if "handler is closed" not in str(error):
                    raise
                raise redis.ConnectionError(f"the connection is closed: {error}") from None

    return PlainErrors


def connect_blocking(settings: BaseSettings) -> redis.Redis:
    """The blocking client for coordinators and commands; as `connect` otherwise."""
    return cast(
        "redis.Redis", _build(_parameters(settings), redis_cls=redis.Redis, retry=Retry(NoBackoff(), 0))
    )


def is_named(settings: BaseSettings) -> bool:
    """Whether the settings name a server; if not, the bundled one is meant."""
    params = settings.getdict("REDIS_PARAMS")
    return bool(
        settings.get("REDIS_URL")
        or settings.get("REDIS_HOST")
        or {"url", "host", "unix_socket_path", "connection_pool"} & params.keys()
    )


def require(settings: BaseSettings) -> None:
    """OptionError where no server is named and the settings keep the bundled one out: two would be two crawls."""
    if not may_serve_itself(settings):
        _parameters(settings)


def may_serve_itself(settings: BaseSettings) -> bool:
    """Whether these settings let a process use the bundled server."""
    return settings.getwithbase("EXTENSIONS").get(BUNDLED) is not None


def serves_itself(crawler: Crawler) -> bool:
    """Whether this crawl uses the bundled server, so that a coordinator is started with it."""
    try:
        parts = crawler.extensions.middlewares if crawler.extensions else ()
    except RuntimeError:
        return False  # Scrapy has none before the crawl begins
    return BUNDLED in (f"{type(part).__module__}.{type(part).__qualname__}" for part in parts)


def check(settings: BaseSettings) -> None:
    """ServerAwayError where the named server does not answer, ServerRefusesError where it does not let us in."""
    client = connect_blocking(settings)
    try:
        client.ping()
    except redis.RedisError as error:
        kind = ServerRefusesError if refused(error) else ServerAwayError
        raise kind(explained(settings, error)) from None
    finally:
        client.close()


class ServerAwayError(Exception):
    """The named server cannot be used now."""


class ServerRefusesError(ServerAwayError):
    """The named server is up and does not let us in; asking again in the same way does not help."""


def passes(error: redis.RedisError) -> bool:
    """Whether waiting helps: the server is away, or there and cannot work just now."""
    if isinstance(error, redis.AuthenticationError):
        return False
    return (
        is_full(error)
        or isinstance(error, redis.ConnectionError | redis.TimeoutError)
        or _words(error).startswith(_PASSING)
    )


def is_full(error: Exception) -> bool:
    """Whether the server refuses a command that needs memory, as it has no more (`maxmemory`)."""
    return isinstance(error, OutOfMemoryError)


def lasts(error: Exception) -> bool:
    """Whether an agent in mid-run waits in vain: it may not, or a key is none of ours.

    Not the contrary of `passes`: what the script met of values that are none may be mended, and is waited for.
    """
    return is_of_wrong_kind(error) or (isinstance(error, redis.RedisError) and refused(error))


def is_of_wrong_kind(error: Exception) -> bool:
    """Whether the server says that a key holds another kind of value than ours: somebody else wrote there."""
    return isinstance(error, redis.ResponseError) and "WRONGTYPE" in _words(error)


def _words(error: Exception) -> str:
    """The server's own words: the library puts the command before them where several were sent together."""
    return str(error).rpartition("caused error: ")[2]


def refused(error: redis.RedisError) -> bool:
    """Whether the server's answer is that we may not."""
    # The asyncio client wraps what went wrong while it connected.
    errors = (error, error.__cause__, error.__context__)
    return any(isinstance(one, redis.AuthenticationError | NoPermissionError) for one in errors)


def explained(settings: BaseSettings, error: redis.RedisError) -> str:
    """What went wrong with the named server, in words for a person."""
    where = f"REDIS_URL {told(settings)}"
    text = str(error).removesuffix(".")
    if isinstance(error, NoPermissionError):
        return f"{where} refuses a command: {text}; expected a user who may use all keys of KEY_PREFIX"
    if "called without any password" in text:
        return f"{where} knows no password: {text}; expected REDIS_URL without one"
    if refused(error) and _has_password(settings):
        return f"{where} refused this user or password: {text}; expected those that it knows"
    if refused(error):
        return f"{where} asks for a password; expected redis://:PASSWORD@host:6379/0, or USER:PASSWORD@ there"
    if is_of_wrong_kind(error):
        return f"{where} says {text}; expected the crawl's own keys below KEY_PREFIX, as it made them. {ANEW}"
    if is_full(error):
        return f"{where} is full: {text}; expected free memory. {FULL}"
    if isinstance(error, redis.ConnectionError | redis.TimeoutError):
        return f"{where} does not answer: {text}; expected a Redis or Valkey that is up"
    return f"{where}: {text}"


def _has_password(settings: BaseSettings) -> bool:
    params = _parameters(settings)
    url = urlsplit(str(params.get("url") or ""))
    return bool(params.get("password") or url.password or "password" in parse_qs(url.query))


def told(settings: BaseSettings) -> str:
    """The server's address for messages, without its password."""
    params = _parameters(settings)
    url = without_password(str(params.get("url") or ""))
    return url or str(params.get("unix_socket_path") or f"{params.get('host')}:{params.get('port', 6379)}")


def _parameters(settings: BaseSettings) -> dict[str, Any]:
    from scrapy_redis.connection import SETTINGS_PARAMS_MAP

    if not is_named(settings):
        raise OptionError(
            "REDIS_URL is empty; expected the address of a Redis or Valkey, as redis://host:6379/0"
        )
    params: dict[str, Any] = {
        "socket_timeout": REPLY_SECONDS,
        "socket_connect_timeout": CONNECT_SECONDS,
        # The library would tell its name and version with every connection: two commands that nobody reads.
        "driver_info": None,
    }
    params.update(settings.getdict("REDIS_PARAMS"))
    params.update({ours: settings[name] for name, ours in SETTINGS_PARAMS_MAP.items() if settings.get(name)})
    return params


def _build(params: dict[str, Any], **ours: Any) -> object:
    from scrapy_redis.connection import get_redis

    dropped = {"redis_cls", "retry", "retry_on_timeout", "retry_on_error", "decode_responses"}
    kept = {name: value for name, value in params.items() if name not in dropped}
    _check_url(str(kept.get("url") or ""))
    for name in ("port", "db"):
        if name in kept:
            kept[name] = int(kept[name])
    try:
        return get_redis(**kept, **ours, decode_responses=False)
    except (TypeError, ValueError) as error:
        came = without_password(str(kept.get("url") or ""))
        raise OptionError(
            f"REDIS_URL {came!r} or REDIS_PARAMS cannot be used: {error}; expected redis://host:6379/0 or unix:///PATH"
        ) from None


def _check_url(url: str) -> None:
    """OptionError for what the library would take without a word and we cannot use."""
    try:
        parts = urlsplit(url)
    except ValueError:  # the library says what is wrong with it
        return
    if "decode_responses" in parse_qs(parts.query, keep_blank_values=True):
        raise OptionError(
            f"REDIS_URL {without_password(url)!r} asks for decode_responses; expected it without: replies stay bytes"
        )
    number = parts.path.strip("/")
    if parts.scheme in ("redis", "rediss") and number and not re.fullmatch("[0-9]+", number):
        raise OptionError(
            f"REDIS_URL {without_password(url)!r} names database {number!r}; expected its number, as "
            "redis://host:6379/0"
        )
