"""A minimal redis-cli; the bundled server has none."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING, Any

import redis

from crawler.queue import connection

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings


def talk(settings: BaseSettings, command: list[str], source: IO[str]) -> int:
    """Returns 1 if the last command failed."""
    client = connection.connect_blocking(settings)
    try:
        if command:
            return _send(client, command)
        code = 0
        for words in _lines(source, connection.told(settings)):
            code = _send(client, words)
        return code
    finally:
        client.close()


def _lines(source: IO[str], address: str) -> Iterable[list[str]]:
    prompt = f"{address}> " if source.isatty() else ""
    while True:
        if prompt:
            print(prompt, end="", flush=True)
        line = source.readline()
        if not line or line.strip() in ("exit", "quit"):
            return
        try:
            words = shlex.split(line)
        except ValueError as error:
            print(f"(error) {error}")
            continue
        if words:
            yield words


def _send(client: redis.Redis, words: list[str]) -> int:
    try:
        # Not execute_command: it would parse the reply, and the raw one is shown.
        held = client.connection_pool.get_connection()
        try:
            held.send_command(*words)  # type: ignore[no-untyped-call]
            reply = held.read_response()
        finally:
            client.connection_pool.release(held)
    except redis.ResponseError as error:
        print(f"(error) {error}")
        return 1
    print("\n".join(shown(reply)))
    return 0


def shown(reply: Any, indent: str = "") -> list[str]:
    """As redis-cli, nested lists numbered."""
    if reply is None:
        return [f"{indent}(nil)"]
    if isinstance(reply, bytes):
        return [f'{indent}"{reply.decode("utf-8", "backslashreplace")}"']
    if isinstance(reply, dict):
        reply = [part for pair in reply.items() for part in pair]
    if isinstance(reply, list | tuple | set):
        return _numbered(list(reply), indent) or [f"{indent}(empty)"]
    kind = "(integer) " if isinstance(reply, int) else ""
    return [f"{indent}{kind}{reply}"]


def _numbered(parts: list[Any], indent: str) -> list[str]:
    lines = []
    for number, part in enumerate(parts, 1):
        mark = f"{number}) "
        inner = shown(part, indent + " " * len(mark))
        lines.append(indent + mark + inner[0].lstrip())
        lines += inner[1:]
    return lines
