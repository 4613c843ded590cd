"""Errors of the site queue, and reading of values in Redis that only agents should write."""

from __future__ import annotations

from collections.abc import Iterable

from crawler.printable import printable
from crawler.queue import connection


class SessionGoneError(Exception):
    """The server has no session of this agent: drop every lease and join again."""


class StaleLeaseError(Exception):
    """The token is not current: another agent may hold the site. Drop the frontier."""


class QueueOlderError(Exception):
    """The server was restored to an earlier state and lacks acknowledged offers of this agent.

    Drop every lease, leave, and join again; the links are found again when their pages are fetched again.
    """


class LockLostError(Exception):
    """Another process holds the lock."""


class BrokenRecordError(ValueError):
    """A key of the queue has a value that no agent wrote; the message is for the operator."""

    def __init__(self, key: bytes | str, found: str, wanted: str = "sites' records") -> None:
        super().__init__(f"{shown(key)} in Redis has {found[:200]}; expected {wanted}. {connection.ANEW}")


def whole_number(key: str, field: str, text: bytes) -> int:
    """The field as an integer; raises BrokenRecordError for anything else."""
    try:
        return int(text)
    except ValueError:
        raise BrokenRecordError(key, found_in(field, text), "whole numbers") from None


def found_in(field: bytes | str, text: bytes | str) -> str:
    """A field and its value, for messages."""
    return f"'{shown(text)}' for '{shown(field)}'"


def text_of(key: bytes | str, value: bytes | str) -> str:
    """The value decoded; raises BrokenRecordError for bytes that no agent writes."""
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        raise BrokenRecordError(key, f"'{shown(value)}'", "UTF-8") from None


def texts_of(key: bytes | str, values: Iterable[bytes]) -> list[str]:
    """Each value decoded; raises BrokenRecordError as `text_of`."""
    return [text_of(key, value) for value in values]


def shown(value: bytes | str) -> str:
    """The value for messages, whatever its bytes."""
    return printable(value.decode(errors="backslashreplace") if isinstance(value, bytes) else value)
