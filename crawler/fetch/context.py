"""What the download handler needs to know of the crawl, in a request's meta under KEY. Without one it asks nobody."""

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
    """A request that the crawl waits for; used as it is by checks of a site's status."""

    may_send: Callable[
        [], bool
    ]  # called right before the request is sent; False: it is not sent (NotSentError)
    timeouts: SiteTimeouts | None = None  # with the site that is asked; None: the time limits of the settings
    received: int = 0  # bytes of bodies, added up by the handler

    @property
    def for_robots(self) -> bool:
        """Whether a body above ROBOTS_MAX_BYTES is cut off there."""
        return True

    @property
    def tries(self) -> int | None:
        """How often the page was tried before; None: time limits do not follow the site's own times."""
        return None


def context_of(request: Request) -> FetchContext | None:
    """The context in a request's meta."""
    context = request.meta.get(KEY)
    return context if isinstance(context, FetchContext) else None
