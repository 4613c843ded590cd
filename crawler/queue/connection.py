"""Clients of Redis or Valkey from scrapy-redis's settings: asyncio for agents, blocking for coordinators.

REDIS_URL, REDIS_HOST, REDIS_PORT, REDIS_DB and REDIS_PARAMS mean what they mean in scrapy-redis. Two things always
differ: the library's retries are off, since a script that is sent twice runs twice (callers back off), and replies are
bytes. Calls of an agent wait for a free connection. Messages contain no password.
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


# --- Whether a restart of the server keeps the queue ---
#
# The append-only file has scripts and transactions as MULTI … EXEC. On loading it, an older server checks the rights of
# the user `default` and drops what it may not do, with a line in its own log only. Other commands are not checked.


# From these versions on the server does not check. Redis: fix #14545 is in 8.4.4. Valkey: fix #3984; 9.1.2 was tested
# and may not be the first.
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
    """What a restart of the server keeps; `keeps` None: unknown."""

    keeps: bool | None
    version: str


def memory_of(client: Any, prefix: str) -> Memory:
    """Ask the server; raises RedisError. For unsafe versions the user needs `+acl|dryrun`."""
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
    """What to do if a restart may not keep the queue; empty: nothing."""
    if memory.keeps:
        return ""
    line = f"the line `{REMEDY}` in the users file, which lets nobody in"
    if memory.keeps is None:
        return f"expected {line}, or `+acl|dryrun` for this user, so that it can be seen"
    return f"expected {line}; then `acl load`"


def restart_warning(client: Any, prefix: str) -> str:
    """The warning of a starting process; empty: none, or unknown."""
    try:
        memory = memory_of(client, prefix)
    except redis.RedisError:
        return ""
    if memory.keeps is not False:
        return ""
    return f"{memory.version} {FORGETS}: {restart_advice(memory)}"


# The extension that runs the bundled server; settings.cluster takes it out.
BUNDLED = "crawler.local.local.LocalServer"
# Time limits of a connection attempt and a reply, in seconds; scrapy-redis's 30 s are as long as a lease.
CONNECT_SECONDS = 5
REPLY_SECONDS = 10
# Of one asyncio client, unless REDIS_PARAMS says otherwise; the server runs one call at a time anyway.
MOST_CONNECTIONS = 32
# Advice if another program wrote to the crawl's keys.
ANEW = (
    "Once `scrapy queue show` tells of no records and no agents (where it cannot tell: once the agents have ended and "
    "`scrapy coordinate` has stored what waits), make the queue anew from the tables: `scrapy queue reset --yes`, then "
    "`scrapy queue rebuild`"
)
# Advice if the queue has lost sites.
REBUILD = "`scrapy queue rebuild` brings them back (`scrapy queue reset --yes` gives them up)"
# Advice if the server is out of memory.
FULL = (
    "`scrapy coordinate` stores the records that wait there and takes them out; if that is not enough, raise maxmemory "
    "(`redis-cli config set maxmemory 2gb`)"
)
# Errors of a server that cannot work at the moment: full disk, lost quorum, failover.
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
    """Message for the operator: that many unfinished sites of the tables are lost."""
    return f"the queue does not know {many:,} unfinished sites of the tables; {REBUILD}"


def connect(settings: BaseSettings) -> redis_asyncio.Redis:
    """The asyncio client, not connected yet. Raises OptionError if no server is named."""
    params = {"max_connections": MOST_CONNECTIONS, **_parameters(settings)}
    client = cast(
        "redis_asyncio.Redis", _build(params, redis_cls=redis_asyncio.Redis, retry=AsyncRetry(NoBackoff(), 0))
    )
    if "connection_pool" not in params:
        client.connection_pool = _patient(client.connection_pool)
    return client


def _patient(pool: redis_asyncio.ConnectionPool) -> redis_asyncio.BlockingConnectionPool:
    """The same settings with a pool that waits for a free connection; the library's default raises."""
    return redis_asyncio.BlockingConnectionPool(
        connection_class=_with_plain_errors(pool.connection_class),
        max_connections=pool.max_connections,
        timeout=REPLY_SECONDS,
        **pool.connection_kwargs,
    )


def _with_plain_errors(kind: type[Any]) -> type[Any]:
    """A connection class that reports a closed connection as ConnectionError on every event loop.

    On the first write to a connection that was closed without a reset, asyncio raises the OSError that the library
    expects, but uvloop a RuntimeError.
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
    """The blocking client, otherwise as `connect`."""
    return cast(
        "redis.Redis", _build(_parameters(settings), redis_cls=redis.Redis, retry=Retry(NoBackoff(), 0))
    )


def is_named(settings: BaseSettings) -> bool:
    """Whether the settings name a server; if not, the bundled one is used."""
    params = settings.getdict("REDIS_PARAMS")
    return bool(
        settings.get("REDIS_URL")
        or settings.get("REDIS_HOST")
        or {"url", "host", "unix_socket_path", "connection_pool"} & params.keys()
    )


def require(settings: BaseSettings) -> None:
    """Raise OptionError if no server is named and the settings exclude the bundled one."""
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
    """Raise ServerAwayError if the named server does not answer, ServerRefusesError if it denies access."""
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
    """The named server denies access; a retry does not help."""


def passes(error: redis.RedisError) -> bool:
    """Whether a retry may help: the server is away, or cannot work at the moment."""
    if isinstance(error, redis.AuthenticationError):
        return False
    return (
        is_full(error)
        or isinstance(error, redis.ConnectionError | redis.TimeoutError)
        or _words(error).startswith(_PASSING)
    )


def is_full(error: Exception) -> bool:
    """Whether the server refuses a command because it is out of memory (`maxmemory`)."""
    return isinstance(error, OutOfMemoryError)


def lasts(error: Exception) -> bool:
    """Whether a retry cannot help a running agent: no permission, or a key of another type.

    Not the opposite of `passes`: invalid values may be repaired, so agents wait for that.
    """
    return is_of_wrong_kind(error) or (isinstance(error, redis.RedisError) and refused(error))


def is_of_wrong_kind(error: Exception) -> bool:
    """Whether a key has another type than ours: another program wrote it."""
    return isinstance(error, redis.ResponseError) and "WRONGTYPE" in _words(error)


def _words(error: Exception) -> str:
    """The server's message without the command that the library puts before it."""
    return str(error).rpartition("caused error: ")[2]


def refused(error: redis.RedisError) -> bool:
    """Whether the server denied permission."""
    # The asyncio client wraps errors of connecting.
    errors = (error, error.__cause__, error.__context__)
    return any(isinstance(one, redis.AuthenticationError | NoPermissionError) for one in errors)


def explained(settings: BaseSettings, error: redis.RedisError) -> str:
    """The error of the named server, for messages."""
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
    """The server's address without its password, for messages."""
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
        # The library would send its name and version with every connection: two needless commands.
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
    """Raise OptionError for a URL that the library accepts and we cannot use."""
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
