"""How long and how large one download may be: the settings' limits, and one request's own.

Pure values. Each limit of time carries the name of the setting or meta key that it comes from, for error messages.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crawler.options import Options


@dataclass(frozen=True, slots=True)
class Limit:
    """Seconds that one stage may take, and the setting or meta key they come from."""

    seconds: float
    name: str

    def capped(self, seconds: float) -> Limit:
        """The shorter of this limit and the one that the request asks for."""
        return Limit(seconds, "download_timeout") if seconds < self.seconds else self

    def __str__(self) -> str:
        return f"{self.seconds:g} s ({self.name})"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one download may take. `size` is bytes, on the wire and decoded; 0 = no limit."""

    connect: Limit
    head: Limit
    body: Limit
    header_bytes: int
    header_fields: int
    size: int
    size_name: str = "DOWNLOAD_MAXSIZE"

    @classmethod
    def of(cls, given: Options, size: int) -> Limits:
        """The limits that the settings mean."""
        return cls(
            Limit(given.connect_timeout_seconds, "CONNECT_TIMEOUT_SECONDS"),
            Limit(given.head_timeout_seconds, "HEAD_TIMEOUT_SECONDS"),
            Limit(given.body_timeout_seconds, "BODY_TIMEOUT_SECONDS"),
            given.max_header_bytes,
            given.max_header_fields,
            size,
        )

    def narrowed(self, meta: dict[str, Any]) -> Limits:
        """These limits as one request's meta changes them."""
        limits, seconds, size = self, meta.get("download_timeout"), meta.get("download_maxsize")
        if seconds:
            stages = self.connect.capped(seconds), self.head.capped(seconds), self.body.capped(seconds)
            limits = replace(limits, connect=stages[0], head=stages[1], body=stages[2])
        if size is not None:
            limits = replace(limits, size=size, size_name="download_maxsize")
        return limits
