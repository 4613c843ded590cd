"""Limits a page's `extra` to plain JSON of bounded size."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from crawler.records import MOST_EXTRA_BYTES

# Maximum nesting: MariaDB's JSON functions allow 32.
DEEPEST = 20
# How many dropped entries a message names, and characters of a name.
NAMED, NAME_LENGTH = 3, 40
# Colon and comma.
_BETWEEN = 2


def bounded(extra: Any) -> tuple[dict[str, Any], str]:
    """The kept entries, and a message about dropped ones; the largest are dropped first."""
    if not isinstance(extra, dict):
        return {}, f"extra is left out: it is {type(extra).__name__}; expected a dictionary"
    kept: dict[str, Any] = {}
    sizes: dict[str, int] = {}
    left_out: list[str] = []
    for name, value in extra.items():
        try:
            kept[name], sizes[name] = _plain(name, value)
        except (TypeError, ValueError, RecursionError) as error:
            left_out.append(f"{_named(name)} ({str(error)[:100]})")
    total = sum(sizes.values()) + _BETWEEN
    for name in sorted(sizes, key=lambda one: -sizes[one]):
        if total <= MOST_EXTRA_BYTES:
            break
        total -= sizes[name]
        del kept[name]
        left_out.append(
            f"{_named(name)} ({sizes[name]:,} bytes of JSON; expected {MOST_EXTRA_BYTES:,} in all)"
        )
    return kept, _in_words(left_out)


def _plain(name: Any, value: Any) -> tuple[Any, int]:
    """The value as read from JSON, and its size in bytes."""
    if not isinstance(name, str):
        raise TypeError(f"the name is {type(name).__name__}; expected a text")
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
    named = json.dumps(name, ensure_ascii=False).encode()
    plain = msgspec.json.decode(text)
    if _is_deeper(plain, DEEPEST):
        raise ValueError(f"nested more than {DEEPEST} deep")
    return plain, len(named) + len(text) + _BETWEEN


def _is_deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, list | dict):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper(one, levels - 1) for one in inner)


def _named(name: Any) -> str:
    return f"extra[{str(name)[:NAME_LENGTH]!r}]"


def _in_words(left_out: list[str]) -> str:
    if not left_out:
        return ""
    more = f" and {len(left_out) - NAMED} more" if len(left_out) > NAMED else ""
    return f"left out: {', '.join(left_out[:NAMED])}{more}"
