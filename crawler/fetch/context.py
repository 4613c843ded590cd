"""The crawl's per-request context for the download handler, in `Request.meta[KEY]`; optional."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from scrapy import Request

    from crawler.fetch.timeouts import SiteTimeouts

KEY: Final = "lowtide"


@dataclass(eq=False, repr=False, slots=True)
class FetchContext:
    """Context of one request."""

    may_send: Callable[[], bool]  # called right before sending; False cancels the request (NotSentError)
    timeouts: SiteTimeouts | None = None  # of the requested site; None: the limits of the settings
    received: int = 0  # total bytes of bodies, updated by the handler

    @property
    def for_robots(self) -> bool:
        """Whether to truncate the body to ROBOTS_MAX_BYTES."""
        return True

    @property
    def tries(self) -> int | None:
        """Number of the current try; None disables adaptive timeouts."""
        return None


def context_of(request: Request) -> FetchContext | None:
    """The FetchContext in a request's meta, or None."""
    context = request.meta.get(KEY)
    return context if isinstance(context, FetchContext) else None
