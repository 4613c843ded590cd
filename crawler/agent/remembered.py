"""A bounded memory of what came last. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Remembered(Generic[Key, Value]):
    """The last values by the hash of their keys: `most` of them; the older half may be forgotten at a time."""

    def __init__(self, most: int) -> None:
        self._half = most // 2
        self._young: dict[int, Value] = {}
        self._old: dict[int, Value] = {}

    def __contains__(self, key: Key) -> bool:
        number = hash(key)
        return number in self._young or number in self._old

    def get(self, key: Key) -> Value | None:
        """The value that was put last; None: there was none, or it is forgotten."""
        number = hash(key)
        return self._young.get(number, self._old.get(number))

    def put(self, key: Key, value: Value) -> None:
        """Remember this value."""
        if len(self._young) >= self._half:
            self._old, self._young = self._young, {}
        self._young[hash(key)] = value

    def clear(self) -> None:
        """Forget all of them."""
        self._young, self._old = {}, {}
