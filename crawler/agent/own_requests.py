"""A spider's own requests: which are plain links, and which were asked for before.

A plain link becomes a page of its site: at once where the page that gives it is of the same site in hand, for then both
are published together, else it is offered. Any other request of a user's has something that a page has no room for
(a callback, data, a body) and is fetched beside the pages: once per site in hand unless its `dont_filter` is set,
and no more of them than the site may have pages. Raises nothing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from scrapy.spidermiddlewares.base import BaseSpiderMiddleware

from crawler.agent.request_context import errand_of

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from crawler.agent.request_context import Errand
    from crawler.agent.site_lease import Slot

logger = logging.getLogger("agent")

# Keys of meta that Scrapy and we write; a user's own may be any other.
_WRITTEN: Final = frozenset({"depth", "is_start_request"})
# What else is in the meta of a response; whoever copies it whole gives nothing of his own with these.
_COPIED: Final = _WRITTEN | {
    "cache_timestamp",
    "cached_response",
    "decoding_error",
    "download_latency",
    "download_timeout",
    "encoded",
    "proxy",
    "raw_head",
    "redirect_reasons",
    "redirect_times",
    "redirect_ttl",
    "redirect_urls",
    "retry_times",
    "stage_times",
    "_auth_proxy",
    "_dont_cache",
    "_scheme_proxy",
}
# A link's header that Scrapy writes where REFERER_ENABLED says so.
_NOT_GIVEN: Final = frozenset({b"Referer"})


# In the meta of a spider's request on its way to the scheduler: the slot of the page that gives it.
_GIVEN_BY: Final = "lowtide_given_by"


class GivenBy(BaseSpiderMiddleware):
    """Spider middleware: notes in each request which site in hand gives it, for `giver_of`."""

    def get_processed_request(self, request: Request, response: Response | None) -> Request:
        """Called with every request that a spider gives."""
        asked = getattr(response, "request", None)
        errand = errand_of(asked) if asked is not None else None
        if errand is not None:
            request.meta[_GIVEN_BY] = errand.slot
        return request


def giver_of(request: Request) -> Slot | None:
    """The slot of the page that gives this request, said once; None: no page of a site in hand, or it is not known."""
    slot: Slot | None = request.meta.pop(_GIVEN_BY, None)
    return slot


def default_callbacks(spider: Spider | None) -> tuple[object, ...]:
    """What a request's callback may be that has none of its own."""
    return None, getattr(spider, "parse", None), getattr(spider, "_parse", None)


def beyond_link(request: Request, spider: Spider | None) -> list[str]:
    """What makes it more than the request of a link to a page, in words; nothing for one."""
    found = [] if request.method == "GET" else [f"the method {request.method}"]
    if request.body:
        found.append("a body")
    if request.callback not in default_callbacks(spider):
        found.append("a callback of its own")
    return found


def carried(request: Request, errand: Errand | None) -> list[str]:
    """What it has for its callback or for the site that a page has no room for, by name.

    `errand` tells that it is a copy of a request of ours, or has its meta: what others put in is no word of the user.
    """
    headers = request.headers.keys() - _NOT_GIVEN
    if errand is not None and not errand.own and request.headers == errand.headers:
        headers = set()
    given: dict[str, Any] = {
        "errback": request.errback,
        "cb_kwargs": request.cb_kwargs,
        "headers": headers,
        "cookies": request.cookies,
    }
    written = _WRITTEN if errand is None else _COPIED
    meta = [f"meta[{key!r}]" for key in request.meta if key not in written]
    return [name for name, one in given.items() if one] + meta


class OwnRequests:
    """Those that were taken for the sites in hand. `most` per site; 0: no limit."""

    def __init__(self, crawler: Crawler, most: int) -> None:
        self._crawler = crawler
        self._most = most
        self._taken: dict[str, _Taken] = {}

    def take(self, slot: Slot, request: Request) -> bool:
        """Whether this one is to be fetched; counted as taken if so."""
        taken = self._of(slot)
        assert self._crawler.request_fingerprinter
        mark = self._crawler.request_fingerprinter.fingerprint(request)
        if mark in taken.marks and not request.dont_filter:
            self._crawler.stats.inc_value("dupefilter/filtered")
            return False
        if 0 < self._most <= taken.count:
            if not taken.told:
                logger.warning(
                    "%s: %d requests of the spider's own (MAX_PAGES_PER_SITE); more are dropped",
                    slot.site,
                    self._most,
                )
            taken.told = True
            return False
        taken.marks.add(mark)
        taken.count += 1
        return True

    def _of(self, slot: Slot) -> _Taken:
        taken = self._taken.get(slot.site)
        if taken is None or taken.slot is not slot:
            # What went back is forgotten here, where alone the number grows.
            self._taken = {site: one for site, one in self._taken.items() if one.slot.live}
            taken = self._taken[slot.site] = _Taken(slot)
        return taken


class _Taken:
    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.marks: set[bytes] = set()
        self.count = 0
        self.told = False
