"""A spider's own requests: which are plain links, and which were asked for before.

A plain link becomes a page of its site. Any other request of a user's carries something that a page has no room for
(a callback, data, a body) and is fetched beside the pages: once per site in hand unless its `dont_filter` is set,
and no more of them than the site may have pages. Raises nothing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler

    from crawler.agent.slots import Slot

logger = logging.getLogger("agent")

# Keys of meta that Scrapy and we write; a user's own may be any other.
_WRITTEN: Final = frozenset({"depth", "is_start_request"})
# What else is in the meta of a response; whoever copies it whole gives nothing of his own with these.
_COPIED: Final = _WRITTEN | {
    "download_latency",
    "download_timeout",
    "encoded",
    "proxy",
    "stage_times",
    "_auth_proxy",
    "_scheme_proxy",
}


def default_callbacks(spider: Spider | None) -> tuple[object, ...]:
    """What a request's callback may be that has none of its own."""
    return None, getattr(spider, "parse", None), getattr(spider, "_parse", None)


def is_get_for(request: Request, callbacks: tuple[object, ...]) -> bool:
    """Whether it asks for a page as any link does, and its answer goes to one of these callbacks."""
    return request.method == "GET" and not request.body and request.callback in callbacks


def carries(request: Request, *, copied: bool) -> bool:
    """Whether it has something for its callback or for the site that a page has no room for.

    `copied` tells that its meta was a response's.
    """
    given: tuple[Any, ...] = (request.errback, request.cb_kwargs, request.headers, request.cookies)
    return any(given) or not request.meta.keys() <= (_COPIED if copied else _WRITTEN)


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
