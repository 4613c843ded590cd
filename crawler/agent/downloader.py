"""Scrapy's downloader, which lets no request of a slot go astray.

A slot waits for the end of each of its requests. Scrapy would end one without a word to it where a downloader
middleware gives another request, or an answer that belongs to another request, in its place: such a request takes
over the place, its callback included, and such an answer is the page's own. A request with a callback of its own
cannot be both: it is fetched beside the page, and the page's turn ends with IgnoreRequest, as it does when there
is no end of new ones.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from scrapy import Request
from scrapy.core.downloader import Downloader
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response

from crawler.agent.own_requests import default_callbacks

if TYPE_CHECKING:
    from scrapy import Spider
    from twisted.internet.defer import Deferred

# Requests in place of one, one after the other; logins and challenges take a few.
MOST_IN_PLACE: Final = 20
# Where they are counted in a request's meta.
COUNT: Final = "in_place"


class TurnDownloader(Downloader):
    """What Scrapy's DOWNLOADER names."""

    def fetch(self, request: Request, spider: Spider | None = None) -> Deferred[Response | Request]:  # noqa: ARG002
        """What came for the request through all downloader middlewares: its response, or a request in its place."""
        fetched: Deferred[Response | Request] = super().fetch(request)
        if "slot" not in request.meta:
            return fetched
        # All slots share one download slot, which AutoThrottle would slow down for every site.
        request.meta["autothrottle_dont_adjust_delay"] = True
        return fetched.addCallback(partial(self._kept, request))

    def _kept(self, request: Request, came: Response | Request) -> Response | Request:
        if isinstance(came, Request):
            return self._in_place(request, came)
        if came.request is not None and came.request is not request:
            for key, value in came.request.meta.items():
                request.meta.setdefault(key, value)
        came.request = request
        if "cached" in came.flags:
            # Nobody was asked, so the site's delay has nothing to count from.
            request.meta["slot"].started_at = 0.0
        return came

    def _in_place(self, request: Request, came: Request) -> Request:
        count = request.meta.get(COUNT, 0) + 1
        if count > MOST_IN_PLACE:
            raise IgnoreRequest(f"middlewares put {MOST_IN_PLACE} requests in its place, one after the other")
        if came.callback == request.callback:
            came.meta[COUNT] = count
            return came
        if came.callback not in default_callbacks(self.crawler.spider):
            self.crawler.engine.crawl(came)
            raise IgnoreRequest(f"a middleware put {came.url} with a callback of its own in its place")
        return came.replace(
            callback=request.callback,
            errback=request.errback,
            meta={**came.meta, **request.meta, COUNT: count},
        )
