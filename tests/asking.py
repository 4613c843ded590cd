"""Requests that ask whether they may be sent, as those of a slot do, where there is no slot."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from crawler.agent.requests import RequestContext
from crawler.fetch.context import KEY

if TYPE_CHECKING:
    pass


def asking(may_send: Callable[[], bool]) -> dict[str, Any]:
    """The meta of a request whose handler asks `may_send` at the last moment."""
    return {KEY: RequestContext(may_send, lease=cast("Any", None))}
