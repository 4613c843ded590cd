"""Whether a restart of the server keeps the queue.

Scripts and transactions stand in the append-only file as MULTI … EXEC. While it reads that file, an older server asks
whether the user `default` may do what is in between, and drops it where that user may not; it says so in its own log
alone. Where users are named, `default` is often off and without rights. All other commands come back.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import redis

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


def advice(memory: Memory) -> str:
    """What to do where a restart may not keep the queue; empty: nothing."""
    if memory.keeps:
        return ""
    line = f"the line `{REMEDY}` in the users file, which lets nobody in"
    if memory.keeps is None:
        return f"expected {line}, or `+acl|dryrun` for this user, so that it can be seen"
    return f"expected {line}; then `acl load`"


def warning(client: Any, prefix: str) -> str:
    """What a process says once as it starts; empty: nothing, or the server does not tell."""
    try:
        memory = memory_of(client, prefix)
    except redis.RedisError:
        return ""
    if memory.keeps is not False:
        return ""
    return f"{memory.version} {FORGETS}: {advice(memory)}"
