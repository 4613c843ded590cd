"""What stands in the meta of a slot's request beside Scrapy's own keys: one object under one key, KEY.

A slot waits for the end of each of its requests, and each end must be told once, whatever middlewares and users copy.
So an errand is begun and ended; an end that was told before counts for nothing. Requests are copied together with
their meta: of all that carry an errand, its heir alone, which a downloader middleware put in the place of the request
under way, comes back to the slot. Every other one is a user's. Raises nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from crawler.fetch.context import KEY, FetchContext

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.http import Headers, Response

    from crawler.agent.frontier import Turn
    from crawler.agent.site_lease import Slot

# All slots share one download slot, which AutoThrottle would slow down for every site.
SLOT_META: Final[dict[str, Any]] = {"download_slot": "agent", "autothrottle_dont_adjust_delay": True}
# And checks of sites' status another; settings/base.py lets neither wait (DOWNLOAD_SLOTS).
CHECKS: Final = "status"
# The frontier retries, follows and judges by itself; the answer of any status comes to us. Scrapy leaves a verbatim URL
# as it is, and so does what fetches it.
PAGE_META: Final[dict[str, Any]] = {
    **SLOT_META,
    "verbatim_url": True,
    "dont_redirect": True,
    "dont_retry": True,
    "handle_httpstatus_all": True,
}


@dataclass(eq=False, repr=False, slots=True)
class Errand(FetchContext):
    """One request of a slot: robots.txt, a page's turn (`turn`), a spider's own (`own`), or a `trial` of the site."""

    slot: Slot = field(kw_only=True)
    turn: Turn | None = None
    own: bool = False
    trial: bool = False  # a page that was loaded before is asked again: does the site work?
    callback: Callable[..., Any] | None = None  # the user's, of a request of his own
    errback: Callable[..., Any] | None = None
    replaced: int = 0  # requests that middlewares put in its place so far
    heir: Request | None = None  # the one that is in its place now, and not yet back
    under_way: bool = False
    url: str = ""  # what was asked for at last
    headers: Headers | None = None  # that request's, with what middlewares add
    worn: int = 0  # times that the site had set cookies which were sent along
    first: Response | None = None  # a redirect of the page whose turn it is: this request goes where it leads
    hops: int = 0  # such requests for the page, this one included

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url or self.slot.site}>"

    @property
    def meta(self) -> dict[str, Any]:
        """What the meta of its request says to Scrapy, and no copy of it should."""
        return SLOT_META if self.own else PAGE_META

    @property
    def for_robots(self) -> bool:
        """Whether it fetches robots.txt."""
        return self.turn is None and not self.own and not self.trial

    @property
    def tries(self) -> int | None:
        """How often its page was tried before; None: it asks for none."""
        return self.turn.tries if self.turn else None

    @property
    def elsewhere(self) -> bool:
        """Whether another site is asked: a redirect of robots.txt may lead there."""
        return not self.url.startswith(f"{self.slot.site}/")

    def begin(self, request: Request) -> None:
        """The request is on its way."""
        self.under_way = True
        self.url, self.headers = request.url, request.headers
        self.patience = None if self.elsewhere else self.slot.patience
        self.slot.in_flight += 1

    def end(self) -> bool:
        """The request is no longer under way; whether it was."""
        if not self.under_way:
            return False
        # The heir refers to this errand in turn: such a circle would be freed late.
        self.under_way, self.heir = False, None
        self.slot.in_flight -= 1
        if self.slot.day is not None:
            self.slot.day.count(0, self.received)
            self.received = 0
        return True


def errand_of(request: Request) -> Errand | None:
    """The errand in a request's meta; None: it is not a slot's, nor a copy of one."""
    errand = request.meta.get(KEY)
    return errand if isinstance(errand, Errand) else None
